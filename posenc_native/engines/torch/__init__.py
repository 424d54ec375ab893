"""Operations on torch tensors: native operators, or plain torch operations (engines/plain).

    small       small CPU calls: the NumPy module reads the tensors, bypassing the dispatcher
    library     the operators, CPU and CUDA; gradients/ differentiates them
    turns       exact frequencies for engines/plain, which computes on other devices, under
                torch.func and after set_backend("reference")
    sharded/    DTensors, split into local parts (sharded/taken_apart.py detects them)

The public functions call these operations if an argument is a tensor (engines/late.py).
"""

from torch import Tensor

from . import batching, fakes, library, relative, rotary, sinusoids
from . import norm_rotary as qkv
from .inputs import diagonals_tensor
from .sharded.taken_apart import taken_apart
from .small import is_dynamo_compiling

apply_rotary = taken_apart(rotary.apply_rotary, "rotary", "rotate")
apply_rotary_qk = taken_apart(rotary.apply_rotary_qk, "rotary", "rotate_two")
rotary_tables = taken_apart(rotary.rotary_tables, "rotary", "rotary_tables")
norm_rotary = taken_apart(qkv.run, "norm_rotary", "norm_rotary")
sinusoidal = taken_apart(sinusoids.sinusoidal, "sinusoids", "sinusoidal")
add_sinusoidal = taken_apart(sinusoids.add_sinusoidal, "sinusoids", "add_sinusoidal")
toeplitz_bias = taken_apart(relative.toeplitz_bias, "relative", "toeplitz_bias")
add_toeplitz_bias = taken_apart(relative.add_toeplitz_bias, "relative", "add_toeplitz_bias")
diagonal_sums = taken_apart(relative.diagonal_sums, "relative", "diagonal_sums")
relative_gather = taken_apart(relative.relative_gather, "relative", "relative_gather")
relative_scatter = taken_apart(relative.relative_scatter, "relative", "relative_scatter")

__all__ = [
    "Tensor",
    "add_sinusoidal",
    "add_toeplitz_bias",
    "apply_rotary",
    "apply_rotary_qk",
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
