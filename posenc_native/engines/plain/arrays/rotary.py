"""Rotations by positions and by tables, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.rotation import Rotation, by_tables, flat, schema
from posenc_native.engines.plain import rotary as plain
from posenc_native.engines.plain.numbers import round_once
from posenc_native.engines.plain.phases import frequency_turns

from .checks import Array, check_array, check_out, check_outputs, position_array, store, table_dtype


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
    """x with the pairs of its heads rotated; call: a Rotation, and out."""
    return _turned("apply_rotary", {"x": x}, *call)[0]


def apply_rotary_qk(q: Array, k: Array, *call: Any) -> tuple[Array, ...]:
    """q and k, which may differ in heads, rotated by the same angles.

    call: a Rotation, and outputs: False for new arrays, True for q and k, or a pair of arrays.
    """
    return _turned("apply_rotary_qk", {"q": q, "k": k}, *call)


def check_rotation(function: str, x: Array, rotation: Rotation) -> tuple[Rotation, list[Array]]:
    """The rotation with a checked scale, and its arrays."""
    names = schema(by_tables(rotation))
    read = []
    for name, value in zip(names, flat(rotation), strict=True):
        option = name.removeprefix("k_")
        if option in _ARRAYS and (value is not None or name in _ARRAYS[:3]):
            check_array(function, option, value, None)
            read.append(value)
    if by_tables(rotation):
        return rotation, read
    scale = arguments.factor(function, "scale", rotation.scale, x.dtype)
    return rotation._replace(scale=scale), read


# Options that are arrays; the first ones always.
_ARRAYS = ("inv_freq", "cos", "sin", "positions", "axis_map", "rows")


def _turned(function: str, inputs: dict[str, Array], *call: Any) -> tuple[Array, ...]:
    *options, to = call
    for name, array in inputs.items():
        check_array(function, name, array, None)
    first = next(iter(inputs.values()))
    rotation, read = check_rotation(function, first, Rotation(*options))
    with np.errstate(over="ignore", invalid="ignore"):
        results = plain.apply_rotary(function, tuple(inputs.values()), rotation, frequency_turns)
    if len(inputs) == 2:
        outs = check_outputs(function, inputs, to, read)
    else:
        check_out(function, to, first.shape, first.dtype, read, replaceable=first)
        outs = [to]
    return tuple(store(np.ascontiguousarray(y), out) for y, out in zip(results, outs, strict=True))
