"""Rotations composed of torch operations, differentiable to every order."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.base.rotation import (
    Rotation,
    TableRotation,
    apart,
    of_each,
    of_pair,
    own_tokens,
)
from posenc_native.base.views import (
    RotaryView,
    check_frequency_axes,
    check_frequency_heads,
    check_same_tokens,
    rotary_axes,
    rounds_as_written,
)
from posenc_native.engines.reference.checks import check_inv_freq
from posenc_native.engines.tensors import library
from posenc_native.engines.tensors.following import transformed
from posenc_native.engines.tensors.inputs import view_of
from posenc_native.engines.tensors.library import call_for, ops

from .phases import (
    check_values,
    concrete,
    cos_sin,
    fixed_point_tensor,
    moving,
    phases_at,
    whole_numbers,
)


def apply_rotary(
    function: str, inputs: tuple[Tensor, ...], rotation: Rotation
) -> tuple[Tensor, ...]:
    """`posenc_native.apply_rotary` for x or for q and k."""
    shape = tuple(rotation.inv_freq.shape)
    check_frequency_axes(function, shape)
    views = _views(function, inputs, rotation, [shape[-1]] * len(inputs))
    names = ("x",) if len(views) == 1 else ("q", "k")
    check_frequency_heads(function, shape, dict(zip(names, views, strict=True)))
    angles = []
    for i, one in enumerate(of_each(rotation) if _turned_apart(inputs, rotation) else (rotation,)):
        with of_pair(rotation, i):
            angles.append(_angles(function, inputs[i], views[i], one))
    by_head = len(shape) > 1
    return tuple(
        _turn(x, *angles[min(i, len(angles) - 1)], view, by_head)
        for i, (x, view) in enumerate(zip(inputs, views, strict=True))
    )


def _turned_apart(inputs: tuple[Tensor, ...], rotation: Rotation | TableRotation) -> bool:
    return len(inputs) == 2 and apart(rotation)


def _angles(
    function: str, x: Tensor, view: RotaryView, rotation: Rotation
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for the tokens of x, with the signs for the rotation."""
    positions, inv_freq, axis_map = rotation.positions, rotation.inv_freq, rotation.axis_map
    shape = tuple(inv_freq.shape)
    by_axis = rotary_axes(function, positions is None, axis_map is None, len(shape))
    if positions is None:
        positions = torch.arange(view.tokens, device=x.device)
    axes = tuple(positions.shape[:1]) if by_axis else ()
    axes = shape[:1] if len(shape) == 3 else axes
    view.check_tokens(function, "positions", tuple(positions.shape), before=axes)
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = tables(function, positions, inv_freq, axis_map, real)
    scale = rotation.scale
    return cos * scale, sin * (-scale if rotation.inverse else scale)


def apply_rotary_tables(
    function: str, inputs: tuple[Tensor, ...], rotation: TableRotation
) -> tuple[Tensor, ...]:
    """`posenc_native.apply_rotary_tables` for x or for q and k."""
    rounds_as_written(function, rotation.compute)
    rotations = of_each(rotation)[: len(inputs)]
    pairs = [one.cos.shape[-1] if one.cos.ndim else 0 for one in rotations]
    views = _views(function, inputs, rotation, pairs)
    turns = []
    for i, (x, view, one) in enumerate(zip(inputs, views, rotations, strict=True)):
        with of_pair(rotation, i):
            turns.append(_read_tables(function, x, view, one))
    return tuple(
        _turn(x, cos, sin, view, by_head)
        for x, view, (cos, sin, by_head) in zip(inputs, views, turns, strict=True)
    )


def _read_tables(
    function: str, x: Tensor, view: RotaryView, rotation: TableRotation
) -> tuple[Tensor, Tensor, bool]:
    """The checked tables for x, in the dtype of the computation, and whether they are per head."""
    tables = {"cos": rotation.cos, "sin": rotation.sin}
    for name, table in tables.items():
        arguments.check_dtype(function, name, table.dtype, arguments.FLOAT_DTYPES)
    rows, axis_map = rotation.rows, rotation.axis_map
    count = None if rows is None else _check_rows(function, view, rotation)
    by_axis = axis_map is not None
    by_head = [
        view.check_table(function, name, tuple(table.shape), count, by_axis)
        for name, table in tables.items()
    ]
    if rotation.cos.dtype != rotation.sin.dtype:
        expected = f"the dtype of cos, {rotation.cos.dtype}"
        wrong_type(function, "sin", expected, rotation.sin.dtype)
    if by_axis:
        axes = _table_axes(function, view, rotation)
        tables = {name: _of_axes(table, axes) for name, table in tables.items()}
    if rows is not None:
        rows = whole_numbers(rows).clamp(0, max(rotation.cos.shape[0] - 1, 0))
        tables = {name: table[rows] for name, table in tables.items()}
    if any(by_head):
        for own, (name, table) in zip(by_head, list(tables.items()), strict=True):
            tables[name] = table.transpose(-2, -3) if own else table.unsqueeze(-2)
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    real = x.dtype if rotation.compute == "as_written" else real
    sin = -tables["sin"] if rotation.inverse else tables["sin"]
    return tables["cos"].to(real), sin.to(real), any(by_head)


def _check_rows(function: str, view: RotaryView, rotation: TableRotation) -> int:
    """The number of rows of the tables; ValueError, if values can be read, for a missing row."""
    rows = rotation.rows
    count = int(rotation.cos.shape[0]) if rotation.cos.ndim else 0
    arguments.check_dtype(function, "rows", rows.dtype, arguments.INTEGER_DTYPES)
    if rotation.axis_map is not None:
        wrong_value(function, "axis_map", "None with rows", "an array")
    view.check_tokens(function, "rows", tuple(rows.shape))
    if rows.numel() and not count:
        wrong_value(function, "cos", "at least one row", list(rotation.cos.shape))
    if concrete(rows):
        numbers = whole_numbers(rows)
        if bool(((numbers < 0) | (numbers >= count)).any()):
            wrong_value(function, "rows", f"rows of cos, 0 .. {count - 1}", numbers.tolist())
    return count


def _table_axes(function: str, view: RotaryView, rotation: TableRotation) -> Tensor:
    """The axis_map of tables as int64."""
    axis_map, cos, sin = rotation.axis_map, rotation.cos, rotation.sin
    arguments.check_dtype(function, "axis_map", axis_map.dtype, arguments.INTEGER_DTYPES)
    arguments.check_shape(function, "axis_map", tuple(axis_map.shape), (view.pairs,))
    if sin.shape[0] != cos.shape[0]:
        wrong_value(function, "sin", f"the shape of cos, {list(cos.shape)}", list(sin.shape))
    axes = whole_numbers(axis_map)
    if concrete(axes) and bool(((axes < 0) | (axes >= cos.shape[0])).any()):
        expected = f"values in 0 .. {cos.shape[0] - 1}"
        wrong_value(function, "axis_map", expected, axes.tolist())
    return axes


def _of_axes(table: Tensor, axes: Tensor) -> Tensor:
    """The table [..., P] from [A, ..., P]: each pair from the axis that drives it."""
    return table.gather(0, axes.expand(1, *table.shape[1:]))[0]


def _views(
    function: str,
    inputs: tuple[Tensor, ...],
    rotation: Rotation | TableRotation,
    pairs: list[int],
) -> list[RotaryView]:
    """How x, or q and k, are rotated."""
    views = []
    names = ("x",) if len(inputs) == 1 else ("q", "k")
    rotations = of_each(rotation)[: len(inputs)]
    for i, (name, x, one) in enumerate(zip(names, inputs, rotations, strict=True)):
        arguments.check_dtype(function, name, x.dtype, arguments.FLOAT_DTYPES)
        if x.dtype != inputs[0].dtype:
            wrong_type(function, name, f"the dtype of q, {inputs[0].dtype}", x.dtype)
        with of_pair(rotation, i):
            views.append(view_of(function, name, x, one, pairs[i]))
    if len(views) == 2:
        own_start = rotation.k_start >= 0
        check_same_tokens(function, views[0], views[1], own_tokens(rotation), own_start)
    return views


def _turn(x: Tensor, cos: Tensor, sin: Tensor, view: RotaryView, by_head: bool = False) -> Tensor:
    """x with its pairs rotated, computed in the dtype of cos and sin."""
    end = view.start + 2 * view.pairs
    half = view.block // 2
    turned = x[..., view.start : end].to(cos.dtype)
    # [..., blocks, 2, half]: the axis of length 2 holds the partners.
    partners = turned.unflatten(-1, (-1 if view.pairs else 0, 2, half))
    cos, sin = (
        view.align(table, by_head).unflatten(-1, (-1 if view.pairs else 0, half))
        for table in (cos, sin)
    )
    a, b = partners.unbind(-2)
    rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], -2)
    if view.out_block != view.block and view.pairs:
        rotated = rotated.movedim(-2, 0).flatten(-2).unflatten(-1, (-1, view.out_block // 2))
        rotated = rotated.movedim(0, -2)
    result = rotated.flatten(-3).to(x.dtype)
    if 2 * view.pairs == x.shape[-1]:
        return result
    return torch.cat([x[..., : view.start], result, x[..., end:]], -1)


def tables(
    function: str,
    positions: Tensor,
    inv_freq: Tensor,
    axis_map: Tensor | None,
    real: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions * inv_freq in the dtype `real`: [..., P], or [..., H, P]."""
    arguments.check_dtype(function, "inv_freq", inv_freq.dtype, arguments.FREQUENCY_DTYPES)
    arguments.check_position_dtype(function, "positions", positions.dtype)
    if axis_map is not None:
        arguments.check_dtype(function, "axis_map", axis_map.dtype, arguments.INTEGER_DTYPES)
        arguments.check_shape(
            function, "axis_map", tuple(axis_map.shape), tuple(inv_freq.shape[-1:])
        )
        if positions.ndim < 1:
            wrong_value(function, "positions", "shape [A, ...] with axis_map", "shape []")
        axis_map = whole_numbers(axis_map)
    check_values(function, positions, axis_map)
    summed = inv_freq.ndim == 3
    rows = positions.shape if axis_map is None and not summed else positions.shape[1:]
    arguments.check_byte_count(function, (*rows, *inv_freq.shape[-2:]), 8)
    # Positions and frequencies of every pair: [..., P] or [..., H, P], axes first if summed.
    if axis_map is None:
        points = positions[..., None]
    else:
        points = positions.movedim(0, -1)[..., axis_map]
    if inv_freq.ndim > 1:
        points = points[..., None, :]
    turns = _frequency_turns(function, inv_freq).to(positions.device)
    weights = inv_freq
    if summed:
        ones = (1,) * (positions.ndim - 1)
        turns, weights = (t.reshape(*t.shape[:-2], *ones, *t.shape[-2:]) for t in (turns, weights))
    phases = phases_at(points, *turns)
    if summed:
        phases = phases.sum(0)
    cos, sin = cos_sin(phases, real)
    angle = points.to(torch.promote_types(real, weights.dtype)) * weights
    if not (angle.requires_grad or transformed()):
        return cos, sin
    return moving(cos, sin, (angle.sum(0) if summed else angle).to(real))


def _frequency_turns(function: str, inv_freq: Tensor) -> Tensor:
    """The fractions and whole turns, [2, *inv_freq.shape], as 64-bit patterns."""
    if inv_freq.is_meta:
        return inv_freq.new_empty((2, *inv_freq.shape), dtype=torch.int64)
    flat = inv_freq.detach().cpu().flatten()
    if library.LIBRARY is not None:
        turns = call_for(function, ops.frequency_turns.default, flat)
    else:
        turns = fixed_point_tensor(check_inv_freq(function, flat.numpy()))
    return turns.unflatten(-1, inv_freq.shape)  # type: ignore[no-any-return]
