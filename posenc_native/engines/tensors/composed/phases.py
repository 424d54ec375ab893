"""Exact phases from torch operations, for devices without a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc_native.base.arguments import wrong_value
from posenc_native.engines.reference import phases
from posenc_native.engines.tensors.following import tracing


def moving(cos: Tensor, sin: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of phases that depend on the angle, for derivatives of any order.

    A phase is an integer and has no derivative. The results are cos(phase + d) and sin(phase + d)
    for a d that is 0 but has the derivatives of the angle. This also works in forward mode and
    torch.func.
    """
    d = angle - angle.detach()
    return cos * d.cos() - sin * d.sin(), sin * d.cos() + cos * d.sin()


def fixed_point_tensor(values: tuple[Any, ...]) -> Tensor:
    """Fractions and whole turns of frequencies, [2, ...], as 64-bit patterns."""
    turns = phases.fixed_point(values)
    words = [[t >> shift & (2**64 - 1) for t in turns] for shift in (0, 64)]
    return torch.from_numpy(np.array(words, dtype=np.uint64).reshape(2, -1).view(np.int64).copy())


def concrete(*tensors: Tensor | None) -> bool:
    """Whether values can be read: plain tensors on the CPU, and nothing is traced.

    On other devices, reading would wait for them; there an invalid value gives a wrong result.
    """
    return not tracing() and all(t is None or (type(t) is Tensor and t.is_cpu) for t in tensors)


def check_values(function: str, positions: Tensor, axis_map: Tensor | None) -> None:
    """ValueError for positions that are not finite and unknown axes, if values can be read."""
    if not concrete(positions, axis_map):
        return
    if positions.is_floating_point() and not bool((positions.abs() < 2.0**63).all()):
        wrong_value(function, "positions", "finite values of magnitude below 2^63", "larger or NaN")
    if axis_map is not None:
        axes = positions.shape[0]
        if bool(((axis_map < 0) | (axis_map >= axes)).any()):
            wrong_value(function, "axis_map", f"values in 0 .. {axes - 1}", axis_map.tolist())


def whole_numbers(integers: Tensor) -> Tensor:
    """Integers of any dtype as int64, which torch can compare; 2^63 and more as the largest."""
    wide = integers.to(torch.int64)
    if integers.dtype is not torch.uint64:
        return wide
    return torch.where(wide < 0, 2**63 - 1, wide)


def phases_at(points: Tensor, fraction: Tensor, whole: Tensor) -> Tensor:
    """As csrc/core/phase.h, by torch operations on 64-bit integers, which wrap."""
    low_half = 0xFFFFFFFF
    points = points.detach()
    if not points.dtype.is_floating_point:
        return points.to(torch.int64) * fraction
    # By magnitude, since 1 - p would round for a small negative p.
    magnitude = points.abs()
    floor = torch.floor(magnitude)
    # The fraction of a position as two 32-bit halves, and its product with the frequency.
    scaled = (magnitude - floor) * 2.0**32
    high = torch.floor(scaled)
    low = torch.floor((scaled - high) * 2.0**32).to(torch.int64)
    high = high.to(torch.int64)
    f_high, f_low = fraction >> 32 & low_half, fraction & low_half
    cross1 = high * f_low + (low * f_low >> 32 & low_half)
    cross2 = low * f_high + (cross1 & low_half)
    product = high * f_high + (cross1 >> 32 & low_half) + (cross2 >> 32 & low_half)
    phase = floor.to(torch.int64) * fraction + product + (high << 32 | low) * whole
    return torch.where(points < 0, -phase, phase)


def cos_sin(phase: Tensor, real: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of phases."""
    quadrant = phase + (1 << 61) >> 62
    angle = (phase - (quadrant << 62)).to(real) * (2 * np.pi / 2.0**64)
    cos, sin = torch.cos(angle), torch.sin(angle)
    odd = (quadrant & 1).bool()
    cos, sin = torch.where(odd, sin, cos), torch.where(odd, cos, sin)
    cos = torch.where((quadrant + 1 & 2).bool(), -cos, cos)
    sin = torch.where((quadrant & 2).bool(), -sin, sin)
    return cos, sin
