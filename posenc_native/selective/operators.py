"""Operators of angles that data decide: phases from steps, tables from phases.

They are of the CPU. What torch.func and forward mode follow, and other devices, have a composition
(phases.py), which these leave it to with None.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_native.engines.tensors.following import transformed
from posenc_native.engines.tensors.library import call, operators_take, ops


def accumulated_phases(steps: Tensor, state: Tensor | None) -> Tensor | None:
    """Sums along the last axis but one of steps in turns, from a state on."""
    if not _takes(steps, state):
        return None
    return call(ops.accumulated_phases.default, steps.detach(), state)  # type: ignore[no-any-return]


def phase_tables(phases: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """Cosines and sines of phases."""
    if not _takes(phases):
        return None
    return call(ops.phase_tables.default, phases.contiguous(), dtype)  # type: ignore[no-any-return]


def _takes(x: Tensor, *others: Tensor | None) -> bool:
    return x.is_cpu and not transformed() and operators_take(x, *others)
