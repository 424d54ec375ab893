"""Sinusoidal tables, and their sum with x, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.engines.plain import sinusoids as plain
from posenc_native.engines.plain.phases import sinusoidal_turns

from .checks import Array, check_float_array, check_out, position_array, store, table_dtype


def sinusoidal(positions: int | Array, *call: Any) -> Array:
    """Table of sines and cosines, ``positions.shape + (dim,)``; call: the spec, dtype and out."""
    function = "sinusoidal"
    *spec, dtype, out = call
    arguments.check_sinusoidal_layout(function, spec[2])
    width, *_ = arguments.frequency_parameters(function, spec[0], spec[1], *spec[3:])
    result_dtype = table_dtype(function, dtype, out)
    points = position_array(function, positions, row_bytes=width * result_dtype.itemsize)
    shape = (*points.shape, width)
    arguments.check_byte_count(function, shape, result_dtype.itemsize)
    check_out(function, out, shape, result_dtype, [points])
    # Allocated before any frequency is computed, so that a result too large for memory fails first.
    result = np.empty(shape, result_dtype) if out is None else out
    result[...] = plain.sinusoidal(
        function, points, tuple(spec), result_dtype, np.float64, sinusoidal_turns
    )
    return result


def add_sinusoidal(x: Array, positions: int | Array | None, *call: Any) -> Array:
    """``x * x_scale + alpha * table``, x [..., seq, dim], positions None, [seq] or [..., seq].

    call: x_scale and alpha, the spec without dim, and out.
    """
    function = "add_sinusoidal"
    x_scale, alpha, *spec, out = call
    check_float_array(function, "x", x)
    points = None if positions is None else position_array(function, positions)
    x_scale = arguments.factor(function, "x_scale", x_scale, x.dtype)
    alpha = arguments.factor(function, "alpha", alpha, x.dtype)
    check_out(function, out, x.shape, x.dtype, [points], replaceable=x)
    with np.errstate(over="ignore", invalid="ignore"):
        total = plain.add_sinusoidal(
            function, x, points, x_scale, alpha, tuple(spec), sinusoidal_turns
        )
    return store(total, out)
