"""Operations on torch tensors: native operators, or a composition of torch operations.

    small       small calls on the CPU: the NumPy module reads the tensors, past the dispatcher
    library     the operators, CPU and CUDA; gradients/ differentiates them
    composed/   other devices, transforms of torch.func, set_backend("reference")

The public functions call those here when they meet a tensor (engines/late.py).
"""

from torch import Tensor

from . import batching, fakes, library
from .inputs import diagonals_tensor
from .norm_rotary import run as norm_rotary
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
    rotary_tables,
)
from .sinusoids import add_sinusoidal, sinusoidal
from .small import at_once, is_dynamo_compiling

__all__ = [
    "Tensor",
    "add_sinusoidal",
    "add_toeplitz_bias",
    "apply_rotary",
    "apply_rotary_qk",
    "apply_rotary_qk_tables",
    "apply_rotary_tables",
    "at_once",
    "diagonal_sums",
    "diagonals_tensor",
    "is_dynamo_compiling",
    "norm_rotary",
    "relative_gather",
    "relative_scatter",
    "rotary_tables",
    "sinusoidal",
    "toeplitz_bias",
]

if library.LIBRARY is not None:
    fakes.register()
    batching.register()
