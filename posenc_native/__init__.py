"""Position encodings, exact at any position, at the speed of memory, for NumPy and torch.

    import posenc_native as pn

    table = pn.sinusoidal(4096, 512)                    # NumPy in, NumPy out
    rope = pn.Rotary(head_dim=128, base=500000.0)
    q, k = rope(q, k, positions)                        # arrays or tensors

Modules for models are in `posenc_native.nn`, transformers models are served by
`posenc_native.hf.patch`.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import backend
from .backend import get_num_threads, set_backend, set_num_threads, show_config
from .distances import (
    alibi_columns,
    alibi_diagonals,
    alibi_slopes,
    clipped_diagonals,
    clipped_index,
    deberta_bucket,
    deberta_index,
    fire_bias,
    kerple_diagonals,
    relative_position_bucket,
    relative_positions,
    sandwich_diagonals,
    swin_diagonals,
    swin_v2_coordinates,
    t5_diagonals,
)
from .frequencies import frequencies, rotary_frequencies, wavelengths
from .relative import (
    add_toeplitz_bias,
    diagonal_sums,
    relative_gather,
    relative_scatter,
    toeplitz_bias,
)
from .rotary import (
    Rotary,
    apply_rotary,
    apply_rotary_qk,
    apply_rotary_qk_tables,
    apply_rotary_tables,
    rotary_tables,
)
from .sinusoidal import add_sinusoidal, shift_matrix, sinusoidal

if TYPE_CHECKING:
    from . import flex, hf, nn

__version__ = "0.1.0"

__all__ = [
    "Rotary",
    "add_sinusoidal",
    "add_toeplitz_bias",
    "alibi_columns",
    "alibi_diagonals",
    "alibi_slopes",
    "apply_rotary",
    "apply_rotary_qk",
    "apply_rotary_qk_tables",
    "apply_rotary_tables",
    "clipped_diagonals",
    "clipped_index",
    "deberta_bucket",
    "deberta_index",
    "diagonal_sums",
    "fire_bias",
    "flex",
    "frequencies",
    "get_num_threads",
    "hf",
    "kerple_diagonals",
    "nn",
    "relative_gather",
    "relative_position_bucket",
    "relative_positions",
    "relative_scatter",
    "rotary_frequencies",
    "rotary_tables",
    "sandwich_diagonals",
    "set_backend",
    "set_num_threads",
    "shift_matrix",
    "show_config",
    "sinusoidal",
    "swin_diagonals",
    "swin_v2_coordinates",
    "t5_diagonals",
    "toeplitz_bias",
    "wavelengths",
]

# Not inside torch.compile, where a first call might import it too late.
if "torch" in sys.modules:
    backend.torch_operations()

# They import torch, so only when somebody asks for them.
_OPTIONAL = ("flex", "hf", "nn")


def __getattr__(name: str) -> Any:
    if name in _OPTIONAL:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
