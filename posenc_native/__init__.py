"""Position encodings, exact at any length, in one pass over memory, for NumPy and torch.

    import posenc_native as pn

    table = pn.sinusoidal(4096, 512)                    # NumPy in, NumPy out
    rope = pn.Rotary(head_dim=128, base=500000.0)
    q, k = rope(q, k, positions)                        # arrays or tensors

Arrays of other libraries (pandas, xarray, JAX, memory-mapped files, anything with ``__array__`` or
``__dlpack__``) are read without a copy if they are on the CPU; the result is then a NumPy array.
Only NumPy arrays and tensors can be written to, as `out` or with ``inplace=True``. Masked arrays
raise TypeError. So do lists for an argument that sets the dtype of the result.

The operations are names of this module. What makes their arguments is one level down:

    pn.rotary        frequencies, scalings, presets, axes     pn.nn      modules for models
    pn.relative      ALiBi, T5, Swin ...: biases, indices     pn.hf      patches loaded models
    pn.sinusoids     frequencies, conventions, grids          pn.flex    score_mod functions
    pn.absolute      learned, linear, recurrent positions     pn.plot    pictures
    pn.positions     packed rows, masks, grids, images        pn.checkpoints   pairings of weights
    pn.selective     sums of data-dependent steps
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from posenc_native.encodings.namespaces import lazy
from posenc_native.engines import late

from . import checkpoints
from .core.calls.tables import Tables
from .encodings import absolute, positions, relative, rotary, selective, sinusoids
from .engines.backend import get_num_threads, set_backend, set_num_threads

if TYPE_CHECKING:
    from . import flex, hf, nn, plot
    from .checkpoints.explanations.compare import compare
    from .checkpoints.explanations.explain import explain
    from .encodings.relative.bias import add_toeplitz_bias, diagonal_sums, toeplitz_bias
    from .encodings.relative.lookup import relative_gather, relative_scatter
    from .encodings.rotary.append import rotary_append
    from .encodings.rotary.apply import apply_rotary, apply_rotary_qk
    from .encodings.rotary.norm import norm_rotary_qk
    from .encodings.rotary.rerotate import rerotate
    from .encodings.rotary.rotary import Rotary
    from .encodings.rotary.tables import rotary_tables
    from .encodings.selective.rotary import selective_rotary_qk
    from .encodings.sinusoids.spec import SinusoidalSpec
    from .encodings.sinusoids.tables import add_sinusoidal, sinusoidal
    from .engines.configuration import show_config

__version__ = "0.1.0"

__all__ = [
    "Rotary",
    "SinusoidalSpec",
    "Tables",
    "absolute",
    "add_sinusoidal",
    "add_toeplitz_bias",
    "apply_rotary",
    "apply_rotary_qk",
    "checkpoints",
    "compare",
    "diagonal_sums",
    "explain",
    "flex",
    "get_num_threads",
    "hf",
    "nn",
    "norm_rotary_qk",
    "plot",
    "positions",
    "relative",
    "relative_gather",
    "relative_scatter",
    "rerotate",
    "rotary",
    "rotary_append",
    "rotary_tables",
    "selective",
    "selective_rotary_qk",
    "set_backend",
    "set_num_threads",
    "show_config",
    "sinusoidal",
    "sinusoids",
    "toeplitz_bias",
]

late.torch_is_there()  # checked again when a function is first used

_NAMESPACES = {
    "absolute": absolute,
    "checkpoints": checkpoints,
    "positions": positions,
    "relative": relative,
    "rotary": rotary,
    "selective": selective,
    "sinusoids": sinusoids,
}
# So that `from posenc_native.relative import alibi_slopes` works, too.
sys.modules.update({f"{__name__}.{name}": module for name, module in _NAMESPACES.items()})

# These import torch or matplotlib, so they are imported only when used. If one cannot be imported,
# its name stands for an `Unavailable` module, and the error comes when that is used.
_OPTIONAL = ("flex", "hf", "nn", "plot")


# Hidden from type checkers: it would tell them that every name exists.
if not TYPE_CHECKING:
    _names, _get, _ = lazy(
        __name__,
        {
            "checkpoints.explanations.compare": "compare",
            "checkpoints.explanations.explain": "explain",
            "encodings.relative.bias": "add_toeplitz_bias diagonal_sums toeplitz_bias",
            "encodings.relative.lookup": "relative_gather relative_scatter",
            "encodings.rotary.append": "rotary_append",
            "encodings.rotary.apply": "apply_rotary apply_rotary_qk",
            "encodings.rotary.norm": "norm_rotary_qk",
            "encodings.rotary.rerotate": "rerotate",
            "encodings.rotary.rotary": "Rotary",
            "encodings.rotary.tables": "rotary_tables",
            "encodings.selective.rotary": "selective_rotary_qk",
            "encodings.sinusoids.spec": "SinusoidalSpec",
            "encodings.sinusoids.tables": "add_sinusoidal sinusoidal",
            "engines.configuration": "show_config",
        },
    )

    def __getattr__(name):
        if name in _names:
            return _get(name)
        if name in _OPTIONAL:
            return _optional(name)
        from .core.calls.suggestions.vocabulary import unknown_name

        error = unknown_name(__name__, name, __all__)
        rooms = [room for room, module in _NAMESPACES.items() if name in module.__all__]
        rooms += [room for room in _OPTIONAL if f'"{name}"' in _exported(room)]
        if rooms and not name.startswith("_"):
            text = f"module {__name__!r} has no attribute {name!r}"
            error.args = (f"{text}; use posenc_native.{rooms[0]}.{name}",)
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
