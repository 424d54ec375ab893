"""Rotations by positions and by tables, in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.rotation import Rotation, TableRotation
from posenc_native.engines.plain import rotary as plain
from posenc_native.engines.plain.numbers import round_once
from posenc_native.engines.plain.phases import frequency_turns

from .checks import (
    Array,
    check_array,
    check_out,
    check_outputs,
    position_array,
    store,
    table_dtype,
)

_BY_POSITIONS = functools.partial(plain.apply_rotary, turns_of=frequency_turns)
_ARRAYS = ("x", "q", "k", "positions", "inv_freq", "axis_map", "cos", "sin", "rows")


def rotary_tables(
    positions: int | Array,
    inv_freq: Array,
    axis_map: Array | None,
    scale: float,
    dtype: npt.DTypeLike | None,
) -> tuple[Array, Array]:
    """cos and sin, each ``positions.shape + (P,)``; with an axis_map positions are [A, ...]."""
    function = "rotary_tables"
    check_array(function, "inv_freq", inv_freq, arguments.FREQUENCY_DTYPES)
    if inv_freq.ndim != 1:
        wrong_value(function, "inv_freq", "shape [P]", list(inv_freq.shape))
    pairs = len(inv_freq)
    result_dtype = table_dtype(function, dtype, None)
    scale = arguments.factor(function, "scale", scale, result_dtype)
    points = position_array(function, positions, row_bytes=pairs * result_dtype.itemsize)
    if axis_map is not None and points.ndim < 1:
        wrong_value(function, "positions", "shape [A, ...] with axis_map", "a scalar")
    tables = plain.tables(function, points, inv_freq, axis_map, np.float64, frequency_turns)
    cos, sin = (round_once(table * scale, result_dtype) for table in tables)
    return cos, sin


def apply_rotary(x: Array, *call: Any) -> Array:
    """x with the pairs of its heads rotated by position * inv_freq; call: a Rotation, and out."""
    return _turned("apply_rotary", _BY_POSITIONS, Rotation, {"x": x}, *call)[0]


def apply_rotary_qk(q: Array, k: Array, *call: Any) -> tuple[Array, ...]:
    """q and k, which may differ in heads, rotated by the same angles.

    call: a Rotation, and outputs: False for new arrays, True for q and k, or a pair of arrays.
    """
    return _turned("apply_rotary_qk", _BY_POSITIONS, Rotation, {"q": q, "k": k}, *call)


def apply_rotary_tables(x: Array, *call: Any) -> Array:
    """x with the pairs of its heads rotated by tables; call: a TableRotation, and out."""
    operation = plain.apply_rotary_tables
    return _turned("apply_rotary_tables", operation, TableRotation, {"x": x}, *call)[0]


def apply_rotary_qk_tables(q: Array, k: Array, *call: Any) -> tuple[Array, ...]:
    """As `apply_rotary_qk`, by tables; call: a TableRotation, and outputs."""
    operation, inputs = plain.apply_rotary_tables, {"q": q, "k": k}
    return _turned("apply_rotary_qk_tables", operation, TableRotation, inputs, *call)


def _turned(
    function: str, operation: Callable[..., Any], kind: Any, inputs: dict[str, Array], *call: Any
) -> tuple[Array, ...]:
    *options, to = call
    rotation = kind(*options)
    for name, array in (*inputs.items(), *zip(kind._fields, rotation, strict=True)):
        if name in _ARRAYS and (array is not None or name == "inv_freq"):
            check_array(function, name, array, None)
    if kind is Rotation:
        first = next(iter(inputs.values()))
        rotation = rotation._replace(
            scale=arguments.factor(function, "scale", rotation.scale, first.dtype)
        )
    read = [option for option in rotation if isinstance(option, np.ndarray)]
    with np.errstate(over="ignore", invalid="ignore"):
        results = operation(function, tuple(inputs.values()), rotation)
    if len(inputs) == 2:
        outs = check_outputs(function, inputs, to, read)
    else:
        (x,) = inputs.values()
        check_out(function, to, x.shape, x.dtype, read, replaceable=x)
        outs = [to]
    return tuple(store(np.ascontiguousarray(y), out) for y, out in zip(results, outs, strict=True))
