"""Sinusoidal tables, and their sum with x."""

from __future__ import annotations

from typing import Any

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value

from .numbers import arange, beside, cast, factor_of, followed, of, wide
from .phases import Turns, check_points, cos_sin, moving, phases_at


def sinusoidal(
    function: str, positions: Any, spec: tuple[Any, ...], dtype: Any, real: Any, turns_of: Turns
) -> Any:
    """`posenc_native.sinusoidal`, computed in `real`; spec: dim, base, layout, shift, scale.

    turns_of: as `phases.sinusoidal_turns`.
    """
    xp = of(positions)
    dim, base, layout, shift, scale = spec
    arguments.check_sinusoidal_layout(function, layout)
    dim, base, shift, scale = arguments.frequency_parameters(function, dim, base, shift, scale)
    arguments.check_byte_count(function, (*positions.shape, dim), dtype.itemsize)
    arguments.check_position_dtype(function, "positions", positions.dtype)
    check_points(function, positions)
    moves = followed(positions)
    if 0 in positions.shape and not moves:  # skip computing frequencies
        return cast(xp.broadcast_to(positions[..., None], (*positions.shape, dim)), dtype)
    turns = beside(turns_of(function, dim, base, shift, scale), positions)
    cos, sin = cos_sin(phases_at(positions[..., None], *turns), real)
    if moves:
        rates = sinusoidal_rates(dim, base, shift, scale, cos)
        cos, sin = moving(cos, sin, positions[..., None].to(real) * rates)
    halves = [cos, sin] if layout == "cos_sin" else [sin, cos]
    if layout == "interleaved":
        return cast(xp.stack(halves, -1).reshape(*positions.shape, dim), dtype)
    return cast(xp.concatenate(halves, -1), dtype)


def add_sinusoidal(
    function: str, x: Any, positions: Any, x_scale: float, alpha: float, spec: tuple[Any, ...],
    turns_of: Turns,
) -> Any:  # fmt: skip
    """`posenc_native.add_sinusoidal`; spec is (base, layout, shift, scale).

    turns_of: as `phases.sinusoidal_turns`.
    """
    arguments.check_dtype(function, "x", x.dtype, arguments.FLOAT_DTYPES)
    if x.ndim < 2:
        wrong_value(function, "x", "shape [..., seq, dim]", list(x.shape))
    if positions is None:
        positions = arange(x.shape[-2], x)
    else:
        arguments.check_row_positions(function, tuple(positions.shape), tuple(x.shape))
    values = wide(x)
    spec = (x.shape[-1], *spec)
    table = sinusoidal(function, positions, spec, values.dtype, values.dtype, turns_of)
    return cast(values * factor_of(values, x_scale) + table * factor_of(table, alpha), x.dtype)


def sinusoidal_rates(dim: int, base: float, shift: float, scale: float, like: Any) -> Any:
    """Radians per position, [dim / 2], for derivatives (angles themselves are fixed point)."""
    xp = of(like)
    wide = xp.float32 if like.device.type == "mps" else xp.float64
    steps = xp.arange(dim // 2, dtype=wide, device=like.device)
    rates = base ** (steps / (shift - dim / 2)) * scale if dim else steps
    return rates.to(like.dtype)
