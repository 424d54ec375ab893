"""Plain operations on NumPy arrays: the oracle of the tests, and the fallback without native code.

Calls are checked here, and results are stored. The functions have the signatures of the native
module and take only NumPy arrays. The public functions document them. Sums of data-dependent phases
(selective.py) are computed with Python integers, for arrays alone.
"""

from .norm_rotary import norm_rotary_qk, rotary_append
from .relative import (
    add_toeplitz_bias,
    diagonal_sums,
    relative_gather,
    relative_scatter,
    toeplitz_bias,
)
from .rotary import apply_rotary, apply_rotary_qk, rotary_tables
from .selective import accumulated_phases, phase_tables, selective_rotary_qk
from .sinusoids import add_sinusoidal, sinusoidal

__all__ = [
    "accumulated_phases",
    "add_sinusoidal",
    "add_toeplitz_bias",
    "apply_rotary",
    "apply_rotary_qk",
    "diagonal_sums",
    "norm_rotary_qk",
    "phase_tables",
    "relative_gather",
    "relative_scatter",
    "rotary_append",
    "rotary_tables",
    "selective_rotary_qk",
    "sinusoidal",
    "toeplitz_bias",
]
