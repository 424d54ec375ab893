"""Rotations by positions and by tables, and their gradients, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
    rotary_view,
    rounds_as_written,
)

from .checks import (
    Array,
    FloatArray,
    check_array,
    check_float_array,
    check_inv_freq,
    check_out,
    check_outputs,
    position_array,
    round_once,
    store,
    table_dtype,
)
from .phases import PhaseArray, cos_sin, phases_at


def rotary_tables(
    positions: int | Array,
    inv_freq: Array,
    axis_map: Array | None,
    scale: float,
    dtype: npt.DTypeLike | None,
) -> tuple[Array, Array]:
    """cos and sin, each ``positions.shape + (P,)``; with an axis_map positions are [A, ...]."""
    function = "rotary_tables"
    frequencies = np.array(check_inv_freq(function, inv_freq))
    result_dtype = table_dtype(function, dtype, None)
    scale = arguments.factor(function, "scale", scale, result_dtype)
    row_bytes = len(frequencies) * result_dtype.itemsize
    points = position_array(function, positions, row_bytes=row_bytes)
    if axis_map is not None and points.ndim < 1:
        wrong_value(function, "positions", "shape [A, ...] with axis_map", "a scalar")
    axes = _axis_map(function, axis_map, len(frequencies), points.shape)
    table_shape = (*points.shape[axes is not None :], len(frequencies))
    arguments.check_byte_count(function, table_shape, result_dtype.itemsize)
    cos, sin = _rotary_cos_sin(points, frequencies, axes, scale)
    return round_once(cos, result_dtype), round_once(sin, result_dtype)


def apply_rotary(x: Array, *call: Any) -> Array:
    """x with the pairs of its heads rotated by position * inv_freq; call: a Rotation, and out."""
    return _by_positions("apply_rotary", {"x": x}, *call)[0]


def apply_rotary_qk(q: Array, k: Array, *call: Any) -> tuple[Array, ...]:
    """q and k, which may differ in heads, rotated by the same angles.

    call: a Rotation, and outputs: False for new arrays, True for q and k, or a pair of arrays.
    """
    return _by_positions("apply_rotary_qk", {"q": q, "k": k}, *call)


def _by_positions(function: str, inputs: dict[str, Array], *call: Any) -> tuple[Array, ...]:
    *options, to = call
    rotation = Rotation(*options)
    dtype = _common_dtype(function, inputs)
    frequencies = _frequencies_of_heads(function, rotation.inv_freq)
    views = _views(function, inputs, rotation, [frequencies.shape[-1]] * len(inputs))
    check_frequency_heads(function, frequencies.shape, dict(zip(inputs, views, strict=True)))
    angles = []
    for i, one in enumerate(of_each(rotation) if apart(rotation) else [rotation]):
        with of_pair(rotation, i):
            angles.append(_angles(function, one, views[i], frequencies, dtype))
    outs = _check_outs(function, inputs, to, [read for one in angles for read in one.read])
    tables = [one.cos_sin(rotation.inverse) for one in angles]
    results = [
        _rotate(x, *tables[min(i, len(tables) - 1)], view, by_head=frequencies.ndim > 1)
        for i, (x, view) in enumerate(zip(inputs.values(), views, strict=True))
    ]
    return tuple(map(store, results, outs))


def rotary_backward(
    grads: tuple[Array, ...], inputs: tuple[Array, ...], *call: Any
) -> tuple[tuple[Array, ...], FloatArray, FloatArray | None]:
    """Gradients of x (or of q and k), of frequencies and, if requested, of positions.

    The incoming gradients are those of the rotated tensors. Gradients of frequencies have the shape
    of inv_freq, those of positions [A, b, s]; both are float64.

    call: the Rotation, and whether the gradient of positions is requested.
    """
    function = "rotary_backward"
    *options, of_positions = call
    rotation = Rotation(*options)
    frequencies = _frequencies_of_heads(function, rotation.inv_freq)
    pairs = frequencies.shape[-1]
    views = [_view(function, "x", x, rotation, pairs) for x in inputs]
    points, _, axes, _, _ = back = _angles(
        function, rotation, views[0], frequencies, inputs[0].dtype
    )
    cos, sin = back.cos_sin(not rotation.inverse)
    turned = [
        _rotate(grad.astype(np.float64), cos, sin, view.turned_back(), by_head=frequencies.ndim > 1)
        for grad, view in zip(grads, views, strict=True)
    ]
    own_heads = frequencies.ndim > 1 and frequencies.shape[-2] != 1
    angles = np.sum(
        [
            _cross_products(x, y, view, own_heads)
            for x, y, view in zip(inputs, turned, views, strict=True)
        ],
        axis=0,
    )
    angles = -angles if rotation.inverse else angles
    # The axis of positions that drives each pair; if phases are summed, all axes do.
    by_axis = points.astype(np.float64)
    if axes is None and frequencies.ndim < 3:
        by_axis = by_axis[None]
    drives = np.ones((len(by_axis), pairs))
    if axes is not None:
        drives = np.equal.outer(np.arange(len(by_axis)), axes).astype(np.float64)
    batch = by_axis.shape[1] if by_axis.ndim == 3 else 1
    by_axis = by_axis.reshape(len(by_axis), batch, views[0].tokens)
    by_axis = np.broadcast_to(by_axis, (len(by_axis), *angles.shape[:2]))
    of_frequencies = np.einsum("abs,bshp,ap->ahp", by_axis, angles, drives)
    if frequencies.ndim < 3:
        of_frequencies = of_frequencies.sum(axis=0)
    rates = frequencies.astype(np.float64)
    axis_count = len(rates) if frequencies.ndim == 3 else 1
    rates = rates.reshape(axis_count, angles.shape[2], pairs) * drives[:, None]
    return (
        tuple(round_once(y, x.dtype) for x, y in zip(inputs, turned, strict=True)),
        of_frequencies.reshape(frequencies.shape),
        np.einsum("bshp,ahp->abs", angles, rates) if of_positions else None,
    )


def apply_rotary_tables(x: Array, *call: Any) -> Array:
    """x with the pairs of its heads rotated by tables; call: a TableRotation, and out."""
    return _by_tables("apply_rotary_tables", {"x": x}, *call)[0]


def apply_rotary_qk_tables(q: Array, k: Array, *call: Any) -> tuple[Array, ...]:
    """As `apply_rotary_qk`, by tables; call: a TableRotation, and outputs."""
    return _by_tables("apply_rotary_qk_tables", {"q": q, "k": k}, *call)


def _by_tables(function: str, inputs: dict[str, Array], *call: Any) -> tuple[Array, ...]:
    *options, to = call
    rotation = TableRotation(*options)
    _common_dtype(function, inputs)
    rotations = of_each(rotation)[: len(inputs)]
    pairs = []
    for i, one in enumerate(rotations):
        with of_pair(rotation, i):
            pairs.append(_check_tables(function, one.cos, one.sin))
    views = _views(function, inputs, rotation, pairs)
    tables = []
    for i, (one, view) in enumerate(zip(rotations, views, strict=True)):
        with of_pair(rotation, i):
            tables.append(_tables_of_tokens(function, one, view))
    outs = _check_outs(function, inputs, to, [read for one in rotations for read in _read_by(one)])
    as_written = rotation.compute == "as_written"
    results = [
        _rotate(x, cos, sin, view, by_head=by_head, as_written=as_written)
        for x, view, (cos, sin, by_head) in zip(inputs.values(), views, tables, strict=True)
    ]
    return tuple(map(store, results, outs))


def _check_outs(
    function: str, inputs: dict[str, Array], to: Any, read: list[Array | None]
) -> Sequence[Array | None]:
    """The checked outputs; for x, `to` is the output itself."""
    if len(inputs) == 2:
        return check_outputs(function, inputs, to, read)
    (x,) = inputs.values()
    check_out(function, to, x.shape, x.dtype, read, replaceable=x)
    return [to]


def _read_by(rotation: TableRotation) -> list[Array | None]:
    """The arrays that must not be written to."""
    return [rotation.cos, rotation.sin, rotation.rows, rotation.axis_map]


class _Angles(NamedTuple):
    """The checked data that determine the angles of a call."""

    points: Array
    frequencies: Array
    axes: Array | None
    scale: float
    read: list[Array | None]  # the arrays that must not be written to

    def cos_sin(self, inverse: bool = False) -> tuple[FloatArray, FloatArray]:
        """Cosines and sines for the forward or the inverse rotation."""
        cos, sin = _rotary_cos_sin(self.points, self.frequencies, self.axes, self.scale)
        return cos, -sin if inverse else sin


def _angles(
    function: str,
    rotation: Rotation,
    view: RotaryView,
    frequencies: Array,
    dtype: np.dtype[Any],
) -> _Angles:
    scale = arguments.factor(function, "scale", rotation.scale, dtype)
    points = _token_positions(function, rotation, view, frequencies)
    axes = _axis_map(function, rotation.axis_map, view.pairs, points.shape)
    read = [points, rotation.inv_freq, rotation.axis_map]
    return _Angles(points, frequencies, axes, scale, read)


def _tables_of_tokens(
    function: str, rotation: TableRotation, view: RotaryView
) -> tuple[FloatArray, FloatArray, bool]:
    """Cosines and sines with the sign for the rotation, and whether they are per head."""
    rounds_as_written(function, rotation.compute)
    given = {"cos": rotation.cos, "sin": rotation.sin}
    count = None if rotation.rows is None else _check_rows(function, rotation, view)
    by_axis = rotation.axis_map is not None
    of_heads = [
        view.check_table(function, name, table.shape, count, by_axis)
        for name, table in given.items()
    ]
    by_head = any(of_heads)
    tables = {}
    for (name, table), own in zip(given.items(), of_heads, strict=True):
        if rotation.rows is not None:
            table = table[rotation.rows]
        if by_axis:
            axes = _axis_map(function, rotation.axis_map, view.pairs, table.shape, "cos")
            if table.shape[0] != rotation.cos.shape[0]:
                wrong_value(function, name, f"{rotation.cos.shape[0]} axes", list(table.shape))
            pairs = [table[axis, ..., pair] for pair, axis in enumerate(axes.tolist())]
            # Without pairs, there may be no axes.
            table = np.stack(pairs, axis=-1) if pairs else np.zeros(table.shape[1:], table.dtype)
        if by_head:
            table = table.swapaxes(-2, -3) if own else table[..., None, :]
        tables[name] = table.astype(np.float64)
    return tables["cos"], -tables["sin"] if rotation.inverse else tables["sin"], by_head


def _check_rows(function: str, rotation: TableRotation, view: RotaryView) -> int:
    """The number of rows of the tables; ValueError if a token's row is not one of them."""
    rows, count = rotation.rows, int(rotation.cos.shape[0])
    check_array(function, "rows", rows, arguments.INTEGER_DTYPES)
    if rotation.axis_map is not None:
        wrong_value(function, "axis_map", "None with rows", "an array")
    view.check_tokens(function, "rows", rows.shape)
    if np.any(rows < 0) or np.any(rows >= count):
        wrong_value(function, "rows", f"rows of cos, 0 .. {count - 1}", rows.tolist())
    return count


def _rotary_cos_sin(
    positions: Array, inv_freq: Array, axis_map: Array | None, scale: float
) -> tuple[FloatArray, FloatArray]:
    """cos and sin times scale, [..., P] for positions [...], or [A, ...] with an axis_map.

    With frequencies [H, P] or [A, H, P] they are [..., H, P].
    """
    if inv_freq.ndim == 3:
        terms = [
            _phases_of_heads(points[..., None], of_axis)
            for points, of_axis in zip(positions, inv_freq, strict=True)
        ]
        phases = np.asarray(np.sum(terms, axis=0, dtype=np.uint64))  # wraps, as phases do
    else:
        if axis_map is None:
            of_each_pair = positions[..., None]
        else:
            of_each_pair = np.moveaxis(positions[axis_map], 0, -1)
        if inv_freq.ndim == 1:
            phases = phases_at(of_each_pair, inv_freq.tolist())
        else:
            phases = _phases_of_heads(of_each_pair, inv_freq)
    cos, sin = cos_sin(phases)
    return cos * scale, sin * scale


def _phases_of_heads(points: Array, inv_freq: Array) -> PhaseArray:
    """Phases [..., H, P] at points [..., 1] or [..., P]; there may be no head, and no pair."""
    phases = np.empty((*points.shape[:-1], *inv_freq.shape), np.uint64)
    for head, row in enumerate(inv_freq.tolist()):
        phases[..., head, :] = phases_at(points, row)
    return phases


# Rotation and rounding


def _rotate(
    x: Array,
    cos: FloatArray,
    sin: FloatArray,
    view: RotaryView,
    *,
    by_head: bool = False,
    as_written: bool = False,
) -> Array:
    def rounded(values: FloatArray) -> FloatArray:
        return round_once(values, x.dtype).astype(np.float64) if as_written else values

    half, out_half = view.block // 2, view.out_block // 2
    cos, sin = (_by_block(view.align(rounded(table), by_head), half) for table in (cos, sin))
    rotated_dims = slice(view.start, view.start + 2 * view.pairs)
    part = x[..., rotated_dims]
    blocks = part.astype(np.float64).reshape(*x.shape[:-1], view.pairs // half, 2, half)
    first, second = blocks[..., 0, :], blocks[..., 1, :]
    with np.errstate(over="ignore", invalid="ignore"):
        turned = (
            rounded(first * cos) - rounded(second * sin),
            rounded(second * cos) + rounded(first * sin),
        )
        partners = [_by_block(one.reshape(*x.shape[:-1], view.pairs), out_half) for one in turned]
        rotated = np.stack(partners, axis=-2)
    result: Array = x.copy()
    result[..., rotated_dims] = round_once(rotated.reshape(part.shape), x.dtype)
    return result


def _cross_products(x: Array, y: FloatArray, view: RotaryView, own_heads: bool) -> FloatArray:
    """x_a y_b - x_b y_a of the pairs, [b, s, h, P]; summed over heads (h = 1) unless own_heads."""
    half = view.block // 2
    dims = slice(view.start, view.start + 2 * view.pairs)
    (a, b), (g, h) = (
        np.moveaxis(t[..., dims].reshape(*t.shape[:-1], view.pairs // half, 2, half), -2, 0)
        for t in (x.astype(np.float64), y)
    )
    cross = (a * h - b * g).reshape(*x.shape[:-1], view.pairs)
    letters = view.layout.replace("t", "s")
    missing = [letter for letter in "bsh" if letter not in letters]
    cross = cross.reshape(*(1 for _ in missing), *cross.shape)
    letters = "".join(missing) + letters
    by_head: FloatArray = cross.transpose([letters.index(letter) for letter in "bshd"])
    return by_head if own_heads else by_head.sum(axis=2, keepdims=True)


def _by_block(table: FloatArray, half: int) -> FloatArray:
    """[..., P] as [..., blocks, half]."""
    return table.reshape(*table.shape[:-1], table.shape[-1] // half, half)


def _common_dtype(function: str, inputs: dict[str, Array]) -> np.dtype[Any]:
    for name, x in inputs.items():
        check_float_array(function, name, x)
    first, *others = inputs.values()
    for k in others:
        if k.dtype != first.dtype:
            wrong_type(function, "k", f"the dtype of q, {first.dtype}", k.dtype)
    return first.dtype


def _check_tables(function: str, cos: Array, sin: Array) -> int:
    """The number of pairs in the tables; their shapes are later checked against x."""
    check_float_array(function, "cos", cos)
    check_float_array(function, "sin", sin)
    if sin.dtype != cos.dtype:
        wrong_type(function, "sin", f"the dtype of cos, {cos.dtype}", sin.dtype)
    if cos.ndim < 1:
        wrong_value(function, "cos", "shape [s, P] or [b, s, P]", "a scalar")
    pairs: int = cos.shape[-1]
    return pairs


def _view(
    function: str, name: str, x: Array, rotation: Rotation | TableRotation, pairs: int
) -> RotaryView:
    angles = "inv_freq" if isinstance(rotation, Rotation) else "cos"
    return rotary_view(
        function, x.shape, rotation.layout, rotation.pairing, rotation.rotary_start, pairs, name,
        angles, rotation.out_pairing,
    )  # fmt: skip


def _views(
    function: str,
    inputs: dict[str, Array],
    rotation: Rotation | TableRotation,
    pairs: Sequence[int],
) -> list[RotaryView]:
    views = []
    for i, ((name, x), one) in enumerate(zip(inputs.items(), of_each(rotation), strict=False)):
        with of_pair(rotation, i):
            views.append(_view(function, name, x, one, pairs[i]))
    if len(views) == 2:
        check_same_tokens(function, views[0], views[1], own_tokens(rotation), rotation.k_start >= 0)
    return views


def _token_positions(function: str, rotation: Rotation, view: RotaryView, inv_freq: Array) -> Array:
    """Rotary positions [s], [b, s] or None for 0 .. s-1; by axes [A, s] or [A, b, s]."""
    positions, axis_map = rotation.positions, rotation.axis_map
    by_axis = rotary_axes(function, positions is None, axis_map is None, inv_freq.ndim)
    points = position_array(function, view.tokens if positions is None else positions)
    axes = points.shape[:1] if by_axis else ()
    if inv_freq.ndim == 3:
        axes = inv_freq.shape[:1]
    view.check_tokens(function, "positions", points.shape, before=axes)
    return points


def _frequencies_of_heads(function: str, inv_freq: object) -> Array:
    """inv_freq [P], [H, P] or [A, H, P]."""
    check_array(function, "inv_freq", inv_freq, arguments.FREQUENCY_DTYPES)
    assert isinstance(inv_freq, np.ndarray)
    check_frequency_axes(function, inv_freq.shape)
    if not np.all(np.abs(inv_freq) < arguments.FREQUENCY_LIMIT):
        wrong_value(function, "inv_freq", "finite frequencies within 2^63", "larger or NaN")
    return inv_freq


def _axis_map(
    function: str,
    axis_map: object,
    pairs: int,
    positions_shape: tuple[int, ...],
    of: str = "positions",
) -> Any:
    """The axis_map, checked against the axes of positions or tables that it selects from."""
    if axis_map is None:
        return None
    check_array(function, "axis_map", axis_map, arguments.INTEGER_DTYPES)
    assert isinstance(axis_map, np.ndarray)
    arguments.check_shape(function, "axis_map", axis_map.shape, (pairs,))
    axes = positions_shape[0]
    if np.any(axis_map < 0) or np.any(axis_map >= axes):
        wrong_value(function, "axis_map", f"axes 0 .. {axes - 1} of {of}", axis_map.tolist())
    return axis_map
