"""The operations in plain NumPy: oracle of the tests, and fallback where the native module is off.

Everything is computed in float64 and rounded once, at the store; nothing here is tuned. The
functions have the signatures of the native module and take NumPy arrays only; what they mean is
documented at the public functions.
"""

from .relative import (
    add_toeplitz_bias,
    diagonal_sums,
    relative_gather,
    relative_scatter,
    toeplitz_bias,
)
from .rotary import (
    apply_rotary,
    apply_rotary_qk,
    apply_rotary_qk_tables,
    apply_rotary_tables,
    rotary_backward,
    rotary_tables,
)
from .sinusoids import add_sinusoidal, sinusoidal

__all__ = [
    "add_sinusoidal",
    "add_toeplitz_bias",
    "apply_rotary",
    "apply_rotary_qk",
    "apply_rotary_qk_tables",
    "apply_rotary_tables",
    "diagonal_sums",
    "relative_gather",
    "relative_scatter",
    "rotary_backward",
    "rotary_tables",
    "sinusoidal",
    "toeplitz_bias",
]
