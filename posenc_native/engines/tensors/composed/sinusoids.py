"""Sinusoidal tables composed of differentiable torch operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_value
from posenc_native.engines.tensors import library
from posenc_native.engines.tensors.following import needs_function
from posenc_native.engines.tensors.gradients.sinusoids import sinusoidal_rates
from posenc_native.engines.tensors.library import call_for, ops
from posenc_native.spectra.frequencies import checked_frequencies

from .phases import check_values, cos_sin, fixed_point_tensor, moving, phases_at


def sinusoidal(
    function: str, positions: Tensor, spec: tuple[Any, ...], dtype: torch.dtype
) -> Tensor:
    """`posenc_native.sinusoidal`; spec is (dim, base, layout, shift, scale)."""
    dim, base, layout, shift, scale = spec
    arguments.check_sinusoidal_layout(function, layout)
    dim, base, shift, scale = arguments.frequency_parameters(function, dim, base, shift, scale)
    arguments.check_byte_count(function, (*positions.shape, dim), dtype.itemsize)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    arguments.check_position_dtype(function, "positions", positions.dtype)
    check_values(function, positions, None)
    if positions.numel() == 0 and not needs_function(positions):  # skip computing frequencies
        return torch.empty((*positions.shape, dim), dtype=dtype, device=positions.device)
    turns = _sinusoidal_turns(function, dim, base, shift, scale).to(positions.device)
    cos, sin = cos_sin(phases_at(positions[..., None], *turns), real)
    if positions.is_floating_point() and needs_function(positions):
        rates = sinusoidal_rates(dim, base, shift, scale, cos)
        cos, sin = moving(cos, sin, positions[..., None].to(real) * rates)
    halves = [cos, sin] if layout == "cos_sin" else [sin, cos]
    if layout == "interleaved":
        return torch.stack(halves, -1).flatten(-2).to(dtype)
    return torch.cat(halves, -1).to(dtype)


def add_sinusoidal(
    function: str,
    x: Tensor,
    positions: Tensor | None,
    x_scale: float,
    alpha: float,
    spec: tuple[Any, ...],
) -> Tensor:
    """`posenc_native.add_sinusoidal`; spec is (base, layout, shift, scale)."""
    arguments.check_dtype(function, "x", x.dtype, arguments.FLOAT_DTYPES)
    if x.ndim < 2:
        wrong_value(function, "x", "shape [..., seq, dim]", list(x.shape))
    if positions is None:
        positions = torch.arange(x.shape[-2], device=x.device)
    else:
        arguments.check_row_positions(function, tuple(positions.shape), tuple(x.shape))
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    table = sinusoidal(function, positions, (x.shape[-1], *spec), real)
    return (x.to(real) * x_scale + alpha * table).to(x.dtype)


def _sinusoidal_turns(function: str, dim: int, base: float, shift: float, scale: float) -> Tensor:
    """The fractions and whole turns of frequencies, [2, P], as 64-bit patterns."""
    if library.LIBRARY is not None:
        return call_for(function, ops.sinusoidal_turns.default, dim, base, shift, scale)  # type: ignore[no-any-return]
    exact = checked_frequencies(function, dim, base, shift, scale)
    return fixed_point_tensor(exact)
