"""Rotations by positions and by tables."""

from __future__ import annotations

from typing import Any

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_type, wrong_value
from posenc_native.core.calls.rotation import (
    Rotation,
    apart,
    by_tables,
    of_each,
    of_pair,
    own_tokens,
)
from posenc_native.core.calls.tables import Tables
from posenc_native.core.calls.views import (
    RotaryView,
    check_frequency_axes,
    check_frequency_heads,
    check_same_tokens,
    rotary_axes,
    rotary_view,
    rounds_as_written,
)

from .numbers import arange, beside, cast, factor_of, followed, of, readable, take, whole, wide
from .phases import Turns, check_points, cos_sin, moving, phases_at


def apply_rotary(
    function: str, inputs: tuple[Any, ...], rotation: Rotation, turns_of: Turns
) -> tuple[Any, ...]:
    """`posenc_native.apply_rotary` for x or for q and k; turns_of: as `phases.frequency_turns`."""
    if by_tables(rotation):
        return _by_tables(function, inputs, rotation)
    shape = tuple(rotation.inv_freq.shape)
    arguments.check_dtype(function, "inv_freq", rotation.inv_freq.dtype, arguments.FREQUENCY_DTYPES)
    check_frequency_axes(function, shape)
    views = _views(function, inputs, rotation, [shape[-1]] * len(inputs))
    check_frequency_heads(function, shape, dict(zip(_names(inputs), views, strict=True)))
    angles = []
    separate = len(inputs) == 2 and apart(rotation)
    for i, own in enumerate(of_each(rotation) if separate else (rotation,)):
        with of_pair(rotation, i):
            angles.append(_angles(function, inputs[i], views[i], own, turns_of))
    return tuple(
        _turn(x, *angles[min(i, len(angles) - 1)], view, len(shape) > 1)
        for i, (x, view) in enumerate(zip(inputs, views, strict=True))
    )


def _by_tables(function: str, inputs: tuple[Any, ...], rotation: Rotation) -> tuple[Any, ...]:
    rounds_as_written(function, rotation.inv_freq.compute)
    rotations = of_each(rotation)[: len(inputs)]
    cosines = [own.inv_freq.cos for own in rotations]
    pairs = [cos.shape[-1] if cos.ndim else 0 for cos in cosines]
    views = _views(function, inputs, rotation, pairs)
    turns = []
    for i, (x, view, own) in enumerate(zip(inputs, views, rotations, strict=True)):
        with of_pair(rotation, i):
            turns.append(_read_tables(function, x, view, own.inv_freq, own.inverse))
    return tuple(
        _turn(x, cos, sin, view, by_head)
        for x, view, (cos, sin, by_head) in zip(inputs, views, turns, strict=True)
    )


def tables(
    function: str, positions: Any, inv_freq: Any, axis_map: Any, real: Any, turns_of: Turns
) -> tuple[Any, Any]:
    """Cosines and sines of positions * inv_freq in the dtype `real`: [..., P], or [..., H, P].

    turns_of: as `phases.frequency_turns`.
    """
    xp = of(positions)
    arguments.check_dtype(function, "inv_freq", inv_freq.dtype, arguments.FREQUENCY_DTYPES)
    arguments.check_position_dtype(function, "positions", positions.dtype)
    if axis_map is not None:
        arguments.check_dtype(function, "axis_map", axis_map.dtype, arguments.INTEGER_DTYPES)
        expected = tuple(inv_freq.shape[-1:])
        arguments.check_shape(function, "axis_map", tuple(axis_map.shape), expected)
        if positions.ndim < 1:
            wrong_value(function, "positions", "shape [A, ...] with axis_map", "shape []")
        axis_map = whole(axis_map)
    check_points(function, positions, axis_map)
    summed = inv_freq.ndim == 3
    rows = positions.shape if axis_map is None and not summed else positions.shape[1:]
    arguments.check_byte_count(function, (*rows, *inv_freq.shape[-2:]), 8)
    # Positions and frequencies of every pair: [..., P] or [..., H, P], axes first if summed.
    points = positions[..., None]
    if axis_map is not None:
        points = xp.moveaxis(positions, 0, -1)[..., axis_map]
    if inv_freq.ndim > 1:
        points = points[..., None, :]
    turns, weights = beside(turns_of(function, inv_freq), positions), inv_freq
    if summed:
        ones = (1,) * (positions.ndim - 1)
        turns, weights = (t.reshape(*t.shape[:-2], *ones, *t.shape[-2:]) for t in (turns, weights))
    phases = phases_at(points, *turns)
    if summed:
        phases = phases.sum(0)
    cos, sin = cos_sin(phases, real)
    if not (followed(positions) or followed(inv_freq)):
        return cos, sin
    angle = points.to(xp.promote_types(real, weights.dtype)) * weights
    return moving(cos, sin, (angle.sum(0) if summed else angle).to(real))


def _angles(
    function: str, x: Any, view: RotaryView, rotation: Rotation, turns_of: Turns
) -> tuple[Any, Any]:
    """Cosines and sines for the tokens of x, with the signs for the rotation."""
    positions, inv_freq, axis_map = rotation.positions, rotation.inv_freq, rotation.axis_map
    by_axis = rotary_axes(function, positions is None, axis_map is None, inv_freq.ndim)
    if positions is None:
        positions = arange(view.tokens, x)
    arguments.check_position_dtype(function, "positions", positions.dtype)
    axes = tuple(positions.shape[:1]) if by_axis else ()
    axes = tuple(inv_freq.shape[:1]) if inv_freq.ndim == 3 else axes
    view.check_tokens(function, "positions", tuple(positions.shape), before=axes)
    real = wide(x[..., :0]).dtype
    cos, sin = tables(function, positions, inv_freq, axis_map, real, turns_of)
    scale = rotation.scale
    return cos * factor_of(cos, scale), sin * factor_of(sin, -scale if rotation.inverse else scale)


def _read_tables(
    function: str, x: Any, view: RotaryView, tables: Tables, inverse: bool
) -> tuple[Any, Any, bool]:
    """The checked tables for x, in the dtype of the computation, and whether they are per head."""
    pair: dict[str, Any] = {"cos": tables.cos, "sin": tables.sin}
    for name, table in pair.items():
        arguments.check_dtype(function, name, table.dtype, arguments.FLOAT_DTYPES)
    rows, axis_map = tables.rows, tables.axis_map
    count = None if rows is None else _check_rows(function, view, tables)
    by_head = [
        view.check_table(function, name, tuple(table.shape), count, axis_map is not None)
        for name, table in pair.items()
    ]
    cos, sin = pair["cos"], pair["sin"]
    if cos.dtype != sin.dtype:
        wrong_type(function, "sin", f"the dtype of cos, {cos.dtype}", sin.dtype)
    if axis_map is not None:
        axes = _table_axes(function, view, tables)
        pair = {name: _of_axes(table, axes) for name, table in pair.items()}
    if rows is not None:
        rows = whole(rows).clip(0, max(cos.shape[0] - 1, 0))
        pair = {name: table[rows] for name, table in pair.items()}
    if any(by_head):
        for own, (name, table) in zip(by_head, list(pair.items()), strict=True):
            pair[name] = table.swapaxes(-2, -3) if own else table[..., None, :]
    real = x.dtype if tables.compute == "as_written" else wide(x[..., :0]).dtype
    sin = -pair["sin"] if inverse else pair["sin"]
    return cast(pair["cos"], real), cast(sin, real), any(by_head)


def _check_rows(function: str, view: RotaryView, tables: Tables) -> int:
    """The number of rows of the tables; ValueError, if values can be read, for a missing row."""
    cos: Any = tables.cos
    rows: Any = tables.rows
    count = int(cos.shape[0]) if cos.ndim else 0
    arguments.check_dtype(function, "rows", rows.dtype, arguments.INTEGER_DTYPES)
    if tables.axis_map is not None:
        wrong_value(function, "axis_map", "None with rows", "an array")
    view.check_tokens(function, "rows", tuple(rows.shape))
    if 0 not in rows.shape and not count:
        wrong_value(function, "cos", "at least one row", list(cos.shape))
    if readable(rows):
        numbers = whole(rows)
        if bool(((numbers < 0) | (numbers >= count)).any()):
            wrong_value(function, "rows", f"rows of cos, 0 .. {count - 1}", numbers.tolist())
    return count


def _table_axes(function: str, view: RotaryView, tables: Any) -> Any:
    """The axis_map of tables as int64."""
    axis_map, cos, sin = tables.axis_map, tables.cos, tables.sin
    arguments.check_dtype(function, "axis_map", axis_map.dtype, arguments.INTEGER_DTYPES)
    arguments.check_shape(function, "axis_map", tuple(axis_map.shape), (view.pairs,))
    if sin.shape[0] != cos.shape[0]:
        wrong_value(function, "sin", f"the shape of cos, {list(cos.shape)}", list(sin.shape))
    axes = whole(axis_map)
    if readable(axes) and bool(((axes < 0) | (axes >= cos.shape[0])).any()):
        wrong_value(function, "axis_map", f"values in 0 .. {cos.shape[0] - 1}", axes.tolist())
    return axes


def _of_axes(table: Any, axes: Any) -> Any:
    """The table [..., P] from [A, ..., P]: each pair from the axis that drives it."""
    return take(table, of(axes).broadcast_to(axes, (1, *table.shape[1:])), 0)[0]


def _names(inputs: tuple[Any, ...]) -> tuple[str, ...]:
    return ("x",) if len(inputs) == 1 else ("q", "k")


def _views(
    function: str, inputs: tuple[Any, ...], rotation: Rotation, pairs: list[int]
) -> list[RotaryView]:
    """How x, or q and k, are rotated."""
    views = []
    rotations = of_each(rotation)[: len(inputs)]
    for i, (name, x, own) in enumerate(zip(_names(inputs), inputs, rotations, strict=True)):
        arguments.check_dtype(function, name, x.dtype, arguments.FLOAT_DTYPES)
        if x.dtype != inputs[0].dtype:
            wrong_type(function, name, f"the dtype of q, {inputs[0].dtype}", x.dtype)
        with of_pair(rotation, i):
            views.append(view_of(function, name, x, own, pairs[i]))
    if len(views) == 2:
        own_start = rotation.k_start >= 0
        check_same_tokens(function, views[0], views[1], own_tokens(rotation), own_start)
    return views


def view_of(function: str, name: str, x: Any, rotation: Rotation, pairs: int) -> RotaryView:
    """How x is rotated; block sizes may be text, as in the schemas of operators."""
    pairing, out_pairing = (
        int(kind) if is_tensor(x) and isinstance(kind, str) and kind.lstrip("-").isdigit() else kind
        for kind in (rotation.pairing, rotation.out_pairing)
    )
    angles = "cos" if by_tables(rotation) else "inv_freq"
    return rotary_view(
        function, tuple(x.shape), rotation.layout, pairing, rotation.rotary_start, pairs, name,
        angles, out_pairing,
    )  # fmt: skip


def _turn(x: Any, cos: Any, sin: Any, view: RotaryView, by_head: bool = False) -> Any:
    """x with its pairs rotated, computed in the dtype of cos and sin."""
    xp, end = of(x), view.start + 2 * view.pairs

    def by_block(table: Any, block: int) -> Any:  # [..., P] as [..., blocks, half]
        return table.reshape(*table.shape[:-1], 2 * view.pairs // block, block // 2)

    cos, sin = (by_block(view.align(table, by_head), view.block) for table in (cos, sin))
    part = cast(x[..., view.start : end], cos.dtype)
    partners = part.reshape(*x.shape[:-1], 2 * view.pairs // view.block, 2, view.block // 2)
    a, b = partners[..., 0, :], partners[..., 1, :]
    turned = [
        by_block(half.reshape(*x.shape[:-1], view.pairs), view.out_block)
        for half in (a * cos - b * sin, b * cos + a * sin)
    ]
    result = cast(xp.stack(turned, -2).reshape(part.shape), x.dtype)
    if 2 * view.pairs == x.shape[-1]:
        return result
    return xp.concatenate([x[..., : view.start], result, x[..., end:]], -1)
