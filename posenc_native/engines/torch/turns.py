"""The turns of frequencies as tensors: exact, by operators of the CPU if these are built.

An exported ONNX graph computes those of frequencies itself, since they may be parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_native.core.calls.constants import constant
from posenc_native.engines.following import exports_to_onnx
from posenc_native.engines.plain import phases

from . import library
from .library import call_for, ops


def frequency_turns(function: str, inv_freq: Tensor) -> Tensor:
    """The fractions and the whole turns of frequencies, [2, *inv_freq.shape]."""
    if inv_freq.is_meta:
        return inv_freq.new_empty((2, *inv_freq.shape), dtype=torch.int64)
    if exports_to_onnx():
        return torch.stack(phases.turns_by_products(inv_freq.detach()))
    flat = inv_freq.detach().cpu().flatten()
    if library.LIBRARY is not None:
        turns = call_for(function, ops.frequency_turns.default, flat)
    else:
        turns = torch.from_numpy(phases.frequency_turns(function, flat.numpy()))
    return turns.unflatten(-1, inv_freq.shape)  # type: ignore[no-any-return]


def sinusoidal_turns(function: str, dim: int, base: float, shift: float, scale: float) -> Tensor:
    """The fractions and the whole turns of the frequencies of a table, [2, dim / 2]."""
    if exports_to_onnx():
        return torch.tensor(_turns_of_table(function, dim, base, shift, scale))
    if library.LIBRARY is not None:
        return call_for(function, ops.sinusoidal_turns.default, dim, base, shift, scale)  # type: ignore[no-any-return]
    return torch.from_numpy(phases.sinusoidal_turns(function, dim, base, shift, scale))


@constant
def _turns_of_table(
    function: str, dim: int, base: float, shift: float, scale: float
) -> list[list[int]]:
    turns: list[list[int]] = phases.sinusoidal_turns(function, dim, base, shift, scale).tolist()
    return turns
