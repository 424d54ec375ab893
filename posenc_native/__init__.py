"""Position encodings, exact at any length, in one pass over memory, for NumPy and torch.

    import posenc_native as pn

    table = pn.sinusoidal(4096, 512)                    # NumPy in, NumPy out
    rope = pn.Rotary(head_dim=128, base=500000.0)
    q, k = rope(q, k, positions)                        # arrays or tensors

Arrays of other libraries (pandas, xarray, JAX, memory-mapped files, anything with ``__array__`` or
``__dlpack__``) are read without a copy if they are on the CPU; the result is then a NumPy array.
Only NumPy arrays and tensors can be written to, as `out` or with ``inplace=True``. Masked arrays
raise TypeError. So do lists for an argument that sets the dtype of the result.

`posenc_native.nn` has modules for models, `posenc_native.hf.patch` patches transformers models, and
`posenc_native.plot` draws pictures.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from posenc_native.core.calls.suggestions.vocabulary import answered, unknown_name
from posenc_native.engines import late

from .engines.backend import get_num_threads, set_backend, set_num_threads

if TYPE_CHECKING:
    from . import flex, hf, nn, plot
    from .checkpoints.explanations.compare import compare
    from .checkpoints.explanations.explain import explain
    from .core.frequencies.axes import mrope_axis_map
    from .core.frequencies.frequencies import frequencies, wavelengths
    from .core.frequencies.scaling import rotary_frequencies, softmax_correction
    from .encodings.absolute.encodings import (
        combine,
        learned_positions,
        linear_positions,
        normalized_positions,
        recurrent_positions,
    )
    from .encodings.absolute.resampling import resample_positions
    from .encodings.positions.context_parallel import ContextParallel, context_parallel_positions
    from .encodings.positions.grids import (
        add_unrotated_tokens,
        augment_coordinates,
        grid_positions,
        image_coordinates,
        packed_grid_positions,
    )
    from .encodings.positions.rows import packed_positions, packed_segments, padded_positions
    from .encodings.positions.vision_language import vision_language_positions
    from .encodings.relative.alibi import alibi_columns, alibi_diagonals, alibi_slopes
    from .encodings.relative.anywhere import bias_at_positions
    from .encodings.relative.bias import add_toeplitz_bias, diagonal_sums, toeplitz_bias
    from .encodings.relative.buckets import deberta_bucket, relative_position_bucket
    from .encodings.relative.columns import clipped_index, deberta_index
    from .encodings.relative.distances import relative_positions
    from .encodings.relative.kernels import fire_bias, kerple_diagonals, sandwich_diagonals
    from .encodings.relative.lookup import relative_gather, relative_scatter
    from .encodings.relative.tables import clipped_diagonals, t5_diagonals
    from .encodings.relative.windows import swin_diagonals, swin_v2_coordinates
    from .encodings.rotary.append import rotary_append, rotary_append_tables
    from .encodings.rotary.apply import apply_rotary, apply_rotary_qk
    from .encodings.rotary.by_tables import (
        apply_rotary_qk_tables,
        apply_rotary_tables,
        rotary_tables,
    )
    from .encodings.rotary.full_width import FullWidthRotary
    from .encodings.rotary.norm import norm_rotary_qk, norm_rotary_qk_tables
    from .encodings.rotary.rerotate import rerotate
    from .encodings.rotary.rotary import Rotary
    from .encodings.rotary.several_axes import axial_rotary, mixed_frequencies, vision_rotary
    from .encodings.rotary.xpos import apply_xpos, xpos_tables
    from .encodings.selective.phases import accumulated_phases, phase_tables
    from .encodings.selective.rotary import selective_rotary_qk
    from .encodings.sinusoids.grid import GridCoordinates
    from .encodings.sinusoids.presets import sinusoidal_presets
    from .encodings.sinusoids.spec import SinusoidalSpec, sinusoidal_grid, sinusoidal_preset
    from .encodings.sinusoids.tables import add_sinusoidal, shift_matrix, sinusoidal
    from .engines.configuration import show_config
    from .models.layers import nope_layers
    from .models.presets import rotary_presets
    from .models.weights import (
        PairingEvidence,
        expected_pairing,
        guess_pairing,
        permute_qk,
        permute_state_dict,
    )

__version__ = "0.1.0"

__all__ = [
    "ContextParallel",
    "FullWidthRotary",
    "GridCoordinates",
    "PairingEvidence",
    "Rotary",
    "SinusoidalSpec",
    "accumulated_phases",
    "add_sinusoidal",
    "add_toeplitz_bias",
    "add_unrotated_tokens",
    "alibi_columns",
    "alibi_diagonals",
    "alibi_slopes",
    "apply_rotary",
    "apply_rotary_qk",
    "apply_rotary_qk_tables",
    "apply_rotary_tables",
    "apply_xpos",
    "augment_coordinates",
    "axial_rotary",
    "bias_at_positions",
    "clipped_diagonals",
    "clipped_index",
    "combine",
    "compare",
    "context_parallel_positions",
    "deberta_bucket",
    "deberta_index",
    "diagonal_sums",
    "expected_pairing",
    "explain",
    "fire_bias",
    "flex",
    "frequencies",
    "get_num_threads",
    "grid_positions",
    "guess_pairing",
    "hf",
    "image_coordinates",
    "kerple_diagonals",
    "learned_positions",
    "linear_positions",
    "mixed_frequencies",
    "mrope_axis_map",
    "nn",
    "nope_layers",
    "norm_rotary_qk",
    "norm_rotary_qk_tables",
    "normalized_positions",
    "packed_grid_positions",
    "packed_positions",
    "packed_segments",
    "padded_positions",
    "permute_qk",
    "permute_state_dict",
    "phase_tables",
    "plot",
    "recurrent_positions",
    "relative_gather",
    "relative_position_bucket",
    "relative_positions",
    "relative_scatter",
    "rerotate",
    "resample_positions",
    "rotary_append",
    "rotary_append_tables",
    "rotary_frequencies",
    "rotary_presets",
    "rotary_tables",
    "sandwich_diagonals",
    "selective_rotary_qk",
    "set_backend",
    "set_num_threads",
    "shift_matrix",
    "show_config",
    "sinusoidal",
    "sinusoidal_grid",
    "sinusoidal_preset",
    "sinusoidal_presets",
    "softmax_correction",
    "swin_diagonals",
    "swin_v2_coordinates",
    "t5_diagonals",
    "toeplitz_bias",
    "vision_language_positions",
    "vision_rotary",
    "wavelengths",
    "xpos_tables",
]

# The module of each public name, imported when the name is first used: importing all of them takes
# 40 ms. Type checkers read the imports above; a test compares the two.
_PLACES = {
    "encodings.absolute.encodings": (
        "combine learned_positions linear_positions normalized_positions recurrent_positions"
    ),
    "encodings.absolute.resampling": "resample_positions",
    "engines.configuration": "show_config",
    "checkpoints.explanations.compare": "compare",
    "checkpoints.explanations.explain": "explain",
    "models.layers": "nope_layers",
    "models.presets": "rotary_presets",
    "models.weights": (
        "PairingEvidence expected_pairing guess_pairing permute_qk permute_state_dict"
    ),
    "encodings.positions.context_parallel": "ContextParallel context_parallel_positions",
    "encodings.positions.grids": (
        "add_unrotated_tokens augment_coordinates grid_positions image_coordinates "
        "packed_grid_positions"
    ),
    "encodings.positions.rows": "packed_positions packed_segments padded_positions",
    "encodings.positions.vision_language": "vision_language_positions",
    "encodings.rotary.append": "rotary_append rotary_append_tables",
    "encodings.rotary.norm": "norm_rotary_qk norm_rotary_qk_tables",
    "encodings.relative.alibi": "alibi_columns alibi_diagonals alibi_slopes",
    "encodings.relative.anywhere": "bias_at_positions",
    "encodings.relative.bias": "add_toeplitz_bias diagonal_sums toeplitz_bias",
    "encodings.relative.buckets": "deberta_bucket relative_position_bucket",
    "encodings.relative.columns": "clipped_index deberta_index",
    "encodings.relative.distances": "relative_positions",
    "encodings.relative.kernels": "fire_bias kerple_diagonals sandwich_diagonals",
    "encodings.relative.lookup": "relative_gather relative_scatter",
    "encodings.relative.tables": "clipped_diagonals t5_diagonals",
    "encodings.relative.windows": "swin_diagonals swin_v2_coordinates",
    "encodings.rotary.apply": "apply_rotary apply_rotary_qk",
    "encodings.rotary.by_tables": "apply_rotary_qk_tables apply_rotary_tables rotary_tables",
    "encodings.rotary.full_width": "FullWidthRotary",
    "encodings.rotary.rerotate": "rerotate",
    "encodings.rotary.rotary": "Rotary",
    "encodings.rotary.several_axes": "axial_rotary mixed_frequencies vision_rotary",
    "encodings.rotary.xpos": "apply_xpos xpos_tables",
    "encodings.selective.phases": "accumulated_phases phase_tables",
    "encodings.selective.rotary": "selective_rotary_qk",
    "encodings.sinusoids.grid": "GridCoordinates",
    "encodings.sinusoids.presets": "sinusoidal_presets",
    "encodings.sinusoids.spec": "SinusoidalSpec sinusoidal_grid sinusoidal_preset",
    "encodings.sinusoids.tables": "add_sinusoidal shift_matrix sinusoidal",
    "core.frequencies.axes": "mrope_axis_map",
    "core.frequencies.frequencies": "frequencies wavelengths",
    "core.frequencies.scaling": "rotary_frequencies softmax_correction",
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}

late.torch_is_there()  # checked again when a function is first used

# These import torch or take milliseconds, so they are imported only when used. If one cannot be
# imported, its name stands for an `Unavailable` module, and the error comes when that is used.
_OPTIONAL = ("flex", "hf", "nn", "plot")


# Hidden from type checkers: it would tell them that every name exists.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _MODULES:
            late.torch_is_there()
            found = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
            if not isinstance(found, type):
                found = answered(found, __name__)
            globals()[name] = found  # the next lookup does not come here
            return found
        if name in _OPTIONAL:
            return _optional(name)
        error = unknown_name(__name__, name)
        rooms = [room for room in _OPTIONAL if f'"{name}"' in _exported(room)]
        if rooms and not name.startswith("_"):
            error.args = (f"{error}; use posenc_native.{rooms[0]}.{name}",)
        raise error

    def _optional(room):
        """A submodule, or what stands for it while a package that it needs is missing."""
        try:
            return importlib.import_module(f".{room}", __name__)
        except ImportError as error:
            from .core.calls.optional import Unavailable

            # The same object in all threads; a later import of the submodule replaces it.
            return globals().setdefault(room, Unavailable(f"{__name__}.{room}", error))

    def _exported(room):
        """The __all__ of a submodule as text: importing it for a typo would import torch."""
        import pkgutil

        for file in (f"{room}/__init__.py", f"{room}.py"):
            try:
                source = pkgutil.get_data(__name__, file).decode()
            except OSError:  # no such file, or the package has no sources
                continue
            return source.partition("__all__ = [")[2].partition("]")[0]
        return ""


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
