"""Sinusoidal tables, and their sum with x, in float64."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import numpy.typing as npt

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_value
from posenc_native.spectra.frequencies import exact_frequencies

from .checks import (
    Array,
    FloatArray,
    check_float_array,
    check_out,
    position_array,
    round_once,
    store,
    table_dtype,
)
from .phases import cos_sin, phases_at


def sinusoidal(
    positions: int | Array,
    dim: int,
    base: float,
    layout: str,
    shift: float,
    scale: float,
    dtype: npt.DTypeLike | None,
    out: Array | None,
) -> Array:
    """Table of sines and cosines, ``positions.shape + (dim,)``."""
    function = "sinusoidal"
    arguments.check_sinusoidal_layout(function, layout)
    width, *formula = arguments.frequency_parameters(function, dim, base, shift, scale)
    result_dtype = table_dtype(function, dtype, out)
    points = position_array(function, positions, row_bytes=width * result_dtype.itemsize)
    shape = (*points.shape, width)
    arguments.check_byte_count(function, shape, result_dtype.itemsize)
    check_out(function, out, shape, result_dtype, [points])
    # Allocated before any frequency is computed, so that a result too large for memory fails first.
    result = np.empty(shape, result_dtype) if out is None else out
    if result.size:
        table = _sinusoidal_table(points, exact_frequencies(width, *formula), layout)
        result[...] = round_once(table, result_dtype)
    return result


def add_sinusoidal(
    x: Array,
    positions: int | Array | None,
    x_scale: float,
    alpha: float,
    base: float,
    layout: str,
    shift: float,
    scale: float,
    out: Array | None,
) -> Array:
    """``x * x_scale + alpha * table``, x [..., seq, dim], positions None, [seq] or [..., seq]."""
    function = "add_sinusoidal"
    check_float_array(function, "x", x)
    if x.ndim < 2:
        wrong_value(function, "x", "at least 2 axes [..., seq, dim]", f"shape {list(x.shape)}")
    arguments.check_sinusoidal_layout(function, layout)
    formula = arguments.frequency_parameters(function, x.shape[-1], base, shift, scale)
    x_scale = arguments.factor(function, "x_scale", x_scale, x.dtype)
    alpha = arguments.factor(function, "alpha", alpha, x.dtype)
    points = position_array(function, x.shape[-2] if positions is None else positions)
    arguments.check_row_positions(function, points.shape, x.shape)
    check_out(function, out, x.shape, x.dtype, [points], replaceable=x)
    if not x.size:
        return x.copy() if out is None else out
    table = _sinusoidal_table(points, exact_frequencies(*formula), layout)
    with np.errstate(over="ignore", invalid="ignore"):
        total = x.astype(np.float64) * x_scale + alpha * table
    return store(round_once(total, x.dtype), out)


def _sinusoidal_table(
    positions: Array, frequencies: tuple[Decimal, ...], layout: str
) -> FloatArray:
    cos, sin = cos_sin(phases_at(positions[..., None], frequencies))
    if layout == "interleaved":
        return np.stack([sin, cos], axis=-1).reshape(*positions.shape, 2 * len(frequencies))
    halves = [sin, cos] if layout == "sin_cos" else [cos, sin]
    return np.concatenate(halves, axis=-1)
