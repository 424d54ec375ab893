"""The operations in plain NumPy: oracle of the tests and fallback where the native module is off.

Everything is computed in float64 and rounded once, at the store; nothing here is tuned. The
functions have the signatures of the native module and take NumPy arrays only; what they mean is
documented at the public functions.

Angles are counted in turns as 64-bit fixed point. A frequency of T / 2^64 turns a position puts
the integer position p at phase p * T mod 2^64: one integer product, whose overflow removes the
whole turns. The only error is that T is rounded, which moves the angle by at most |p| * 2^-65
turns.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from . import arguments
from .arguments import RotaryView, rotary_view, wrong_type, wrong_value
from .frequencies import EXACT, TWO_PI, checked_frequencies

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]
PhaseArray = npt.NDArray[np.uint64]  # one turn is 2^64

_TURN = 2**64
_LOW_HALF = 2**32 - 1


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
    frequencies = checked_frequencies(function, dim, base, shift, scale)
    result_dtype = _table_dtype(function, dtype, out)
    width = 2 * len(frequencies)
    points = _positions(function, positions, row_bytes=width * result_dtype.itemsize)
    shape = (*points.shape, width)
    arguments.check_byte_count(function, shape, result_dtype.itemsize)
    _check_out(function, out, shape, result_dtype, [points])
    table = _sinusoidal_table(points, frequencies, layout)
    return _store(_round(table, result_dtype), out)


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
    _check_float_array(function, "x", x)
    if x.ndim < 2:
        wrong_value(function, "x", "at least 2 axes [..., seq, dim]", f"shape {list(x.shape)}")
    arguments.check_sinusoidal_layout(function, layout)
    frequencies = checked_frequencies(function, x.shape[-1], base, shift, scale)
    x_scale = arguments.finite_number(function, "x_scale", x_scale)
    alpha = arguments.finite_number(function, "alpha", alpha)
    points = _positions(function, x.shape[-2] if positions is None else positions)
    if points.shape not in (x.shape[-2:-1], x.shape[:-1]):
        wrong_value(
            function,
            "positions",
            f"shape [seq] = {list(x.shape[-2:-1])} or x's without dim = {list(x.shape[:-1])}",
            list(points.shape),
        )
    _check_out(function, out, x.shape, x.dtype, [points], replaceable=x)
    table = _sinusoidal_table(points, frequencies, layout)
    with np.errstate(over="ignore", invalid="ignore"):
        total = x.astype(np.float64) * x_scale + alpha * table
    return _store(_round(total, x.dtype), out)


def rotary_tables(
    positions: int | Array,
    inv_freq: Array,
    axis_map: Array | None,
    scale: float,
    dtype: npt.DTypeLike | None,
) -> tuple[Array, Array]:
    """cos and sin, each ``positions.shape + (P,)``; with an axis_map positions are [A, ...]."""
    function = "rotary_tables"
    frequencies = np.array(_inv_freq(function, inv_freq))
    scale = arguments.finite_number(function, "scale", scale)
    result_dtype = _table_dtype(function, dtype, None)
    row_bytes = len(frequencies) * result_dtype.itemsize
    points = _positions(function, positions, row_bytes=row_bytes)
    if axis_map is not None and points.ndim < 1:
        wrong_value(function, "positions", "shape [A, ...] with axis_map", "a scalar")
    axes = _axis_map(function, axis_map, len(frequencies), points.shape)
    table_shape = (*points.shape[axes is not None :], len(frequencies))
    arguments.check_byte_count(function, table_shape, result_dtype.itemsize)
    cos, sin = _rotary_cos_sin(points, frequencies, axes, scale)
    return _round(cos, result_dtype), _round(sin, result_dtype)


def apply_rotary(
    x: Array,
    positions: int | Array | None,
    inv_freq: Array,
    layout: str,
    pairing: str | int,
    rotary_start: int,
    axis_map: Array | None,
    scale: float,
    inverse: bool,
    out: Array | None,
) -> Array:
    """x with the pairs of its heads rotated by position * inv_freq."""
    function = "apply_rotary"
    _check_float_array(function, "x", x)
    frequencies = _frequencies_of_heads(function, inv_freq)
    view = rotary_view(function, x.shape, layout, pairing, rotary_start, frequencies.shape[-1])
    arguments.check_frequency_heads(function, frequencies.shape, {"x": view})
    scale = arguments.finite_number(function, "scale", scale)
    points = _token_positions(function, positions, view, axis_map, frequencies)
    axes = _axis_map(function, axis_map, view.pairs, points.shape)
    inputs = [points, inv_freq, axis_map]
    _check_out(function, out, x.shape, x.dtype, inputs, replaceable=x)
    cos, sin = _rotary_cos_sin(points, frequencies, axes, scale)
    by_head = frequencies.ndim > 1
    return _store(_rotate(x, cos, -sin if inverse else sin, view, by_head=by_head), out)


def apply_rotary_qk(
    q: Array,
    k: Array,
    positions: int | Array | None,
    inv_freq: Array,
    layout: str,
    pairing: str | int,
    rotary_start: int,
    axis_map: Array | None,
    scale: float,
    inverse: bool,
    inplace: bool,
) -> tuple[Array, Array]:
    """q and k of one layer, which may differ in heads, rotated by the same angles."""
    function = "apply_rotary_qk"
    _check_query_and_key(function, q, k)
    frequencies = _frequencies_of_heads(function, inv_freq)
    pairs = frequencies.shape[-1]
    q_view, k_view = _views(function, q, k, layout, pairing, rotary_start, pairs)
    arguments.check_frequency_heads(function, frequencies.shape, {"q": q_view, "k": k_view})
    scale = arguments.finite_number(function, "scale", scale)
    points = _token_positions(function, positions, q_view, axis_map, frequencies)
    axes = _axis_map(function, axis_map, pairs, points.shape)
    if inplace:
        _check_writable(function, "q", q, [k, points, inv_freq, axis_map])
        _check_writable(function, "k", k, [q, points, inv_freq, axis_map])
    cos, sin = _rotary_cos_sin(points, frequencies, axes, scale)
    sin, by_head = -sin if inverse else sin, frequencies.ndim > 1
    rotated_q = _rotate(q, cos, sin, q_view, by_head=by_head)
    rotated_k = _rotate(k, cos, sin, k_view, by_head=by_head)
    return _store(rotated_q, q if inplace else None), _store(rotated_k, k if inplace else None)


def rotary_backward(
    grads: tuple[Array, ...],
    inputs: tuple[Array, ...],
    positions: int | Array | None,
    inv_freq: Array,
    layout: str,
    pairing: str | int,
    rotary_start: int,
    axis_map: Array | None,
    scale: float,
    inverse: bool,
    of_positions: bool,
) -> tuple[tuple[Array, ...], FloatArray, FloatArray | None]:
    """Gradients of x, or of q and k, from those of what they were rotated to; then those of
    frequencies, like inv_freq, and, if wanted, of positions [A, b, s], both in float64.
    """
    function = "rotary_backward"
    frequencies = _frequencies_of_heads(function, inv_freq)
    pairs = frequencies.shape[-1]
    views = [rotary_view(function, x.shape, layout, pairing, rotary_start, pairs) for x in inputs]
    points = _token_positions(function, positions, views[0], axis_map, frequencies)
    axes = _axis_map(function, axis_map, pairs, points.shape)
    cos, sin = _rotary_cos_sin(points, frequencies, axes, scale)
    back = sin if inverse else -sin
    turned = [
        _rotate(grad.astype(np.float64), cos, back, view, by_head=frequencies.ndim > 1)
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
    angles = -angles if inverse else angles
    # Which axis of positions drives which pair: of a sum, all of them.
    by_axis = points.astype(np.float64)
    if axes is None and frequencies.ndim < 3:
        by_axis = by_axis[None]
    drives = np.ones((len(by_axis), pairs))
    if axes is not None:
        drives = np.equal.outer(np.arange(len(by_axis)), axes).astype(np.float64)
    by_axis = by_axis.reshape(len(by_axis), -1, views[0].tokens)
    by_axis = np.broadcast_to(by_axis, (len(by_axis), *angles.shape[:2]))
    of_frequencies = np.einsum("abs,bshp,ap->ahp", by_axis, angles, drives)
    if frequencies.ndim < 3:
        of_frequencies = of_frequencies.sum(axis=0)
    rates = frequencies.astype(np.float64)
    rates = rates.reshape(-1, angles.shape[2], pairs) * drives[:, None]
    return (
        tuple(_round(y, x.dtype) for x, y in zip(inputs, turned, strict=True)),
        of_frequencies.reshape(frequencies.shape),
        np.einsum("bshp,ahp->abs", angles, rates) if of_positions else None,
    )


def apply_rotary_tables(
    x: Array,
    cos: Array,
    sin: Array,
    layout: str,
    pairing: str | int,
    rotary_start: int,
    inverse: bool,
    compute: str,
    out: Array | None,
) -> Array:
    """x with the pairs of its heads rotated by ready tables, cos and sin [s, P] or [b, s, P]."""
    function = "apply_rotary_tables"
    _check_float_array(function, "x", x)
    pairs = _check_tables(function, cos, sin)
    view = rotary_view(function, x.shape, layout, pairing, rotary_start, pairs)
    view.check_tokens(function, "cos", cos.shape, after=(pairs,))
    arguments.check_shape(function, "sin", sin.shape, cos.shape)
    as_written = arguments.rounds_as_written(function, compute)
    _check_out(function, out, x.shape, x.dtype, [cos, sin], replaceable=x)
    cos, sin = cos.astype(np.float64), sin.astype(np.float64)
    return _store(_rotate(x, cos, -sin if inverse else sin, view, as_written=as_written), out)


def apply_rotary_qk_tables(
    q: Array,
    k: Array,
    cos: Array,
    sin: Array,
    layout: str,
    pairing: str | int,
    rotary_start: int,
    inverse: bool,
    compute: str,
    inplace: bool,
) -> tuple[Array, Array]:
    """q and k of one layer, which may differ in heads, rotated by the same ready tables."""
    function = "apply_rotary_qk_tables"
    _check_query_and_key(function, q, k)
    pairs = _check_tables(function, cos, sin)
    q_view, k_view = _views(function, q, k, layout, pairing, rotary_start, pairs)
    q_view.check_tokens(function, "cos", cos.shape, after=(pairs,))
    arguments.check_shape(function, "sin", sin.shape, cos.shape)
    if inplace:
        _check_writable(function, "q", q, [k, cos, sin])
        _check_writable(function, "k", k, [q, cos, sin])
    as_written = arguments.rounds_as_written(function, compute)
    cos, sin = cos.astype(np.float64), sin.astype(np.float64)
    sin = -sin if inverse else sin
    rotated_q = _rotate(q, cos, sin, q_view, as_written=as_written)
    rotated_k = _rotate(k, cos, sin, k_view, as_written=as_written)
    return _store(rotated_q, q if inplace else None), _store(rotated_k, k if inplace else None)


# Phases

# Relative: entry of query i and key j is start + j - i (less q_offset)


def toeplitz_bias(
    diagonals: Array,
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...],
    q_offset: Array | None,
    dtype: npt.DTypeLike | None,
    out: Array | None,
) -> Array:
    """``[..., H, q_len, k_len]``: the diagonals laid down."""
    function = "toeplitz_bias"
    _check_float_array(function, "diagonals", diagonals)
    if dtype is not None:
        result_dtype = _table_dtype(function, dtype, out)
    else:
        result_dtype = diagonals.dtype if out is None else _table_dtype(function, None, out)
    entries = _entries(function, "diagonals", diagonals.shape, q_len, k_len, start, q_offset)
    heads = diagonals.shape[: diagonals.ndim - len(q_len)]
    batch = heads[:-1] if q_offset is None else q_offset.shape
    leading = (*batch, *heads[-1:])
    shape = (*leading, math.prod(q_len), math.prod(k_len))
    arguments.check_byte_count(function, shape, 8)
    arguments.check_heads(function, heads, leading)
    inputs = [diagonals] if q_offset is None else [diagonals, q_offset]
    _check_out(function, out, shape, result_dtype, inputs)
    bias = _lay_down(diagonals, entries, len(q_len), leading, q_offset)
    return _store(_round(bias.astype(np.float64), result_dtype), out)


def add_toeplitz_bias(
    scores: Array,
    diagonals: Array,
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...],
    q_offset: Array | None,
    out: Array | None,
) -> Array:
    """Scores and bias, added in float32 (float64 for float64)."""
    function = "add_toeplitz_bias"
    leading = _check_matrices(function, "scores", scores, q_len, k_len)
    _check_float_array(function, "diagonals", diagonals)
    entries = _entries(function, "diagonals", diagonals.shape, q_len, k_len, start, q_offset)
    arguments.check_heads(function, diagonals.shape[: diagonals.ndim - len(q_len)], leading)
    _check_q_offset(function, q_offset, leading)
    inputs = [diagonals] if q_offset is None else [diagonals, q_offset]
    _check_out(function, out, scores.shape, scores.dtype, inputs, replaceable=scores)
    sums = _sum_dtype(scores.dtype)
    bias = _lay_down(diagonals.astype(sums), entries, len(q_len), leading, q_offset)
    return _store((scores.astype(sums) + bias).astype(scores.dtype), out)


def diagonal_sums(
    grad: Array,
    shape: tuple[int, ...],
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...],
    q_offset: Array | None,
) -> Array:
    """Sums along diagonals, of the shape; over the leading axes that it has not, too."""
    function = "diagonal_sums"
    leading = _check_matrices(function, "grad", grad, q_len, k_len)
    entries = _entries(function, "diagonals", shape, q_len, k_len, start, q_offset)
    heads = shape[: len(shape) - len(q_len)]
    arguments.check_heads(function, heads, leading)
    _check_q_offset(function, q_offset, leading)
    result = np.zeros(shape, np.float64)
    for plane in np.ndindex(leading):
        of_plane = tuple(
            0 if size == 1 else i
            for i, size in zip(plane[len(leading) - len(heads) :], heads, strict=True)
        )
        offset = 0 if q_offset is None else q_offset[plane[: q_offset.ndim]]
        at = (entries[0] - int(offset), *entries[1:])
        np.add.at(result[of_plane], at, grad[plane].astype(np.float64))
    return result.astype(_sum_dtype(grad.dtype))


def relative_gather(
    x: Array,
    index: Array | None,
    k_len: int,
    start: int,
    q_offset: Array | None,
    missing: int | None,
    content: Array | None,
    scale: float,
    out: Array | None,
) -> Array:
    """``(content + x at the columns index[start + j - i]) * scale``."""
    function = "relative_gather"
    leading, queries = _relative_rows(function, "x", x, "width")
    keys = arguments.size(function, "k_len", k_len)
    scale = arguments.finite_number(function, "scale", scale)
    shape = (*leading, queries, keys)
    arguments.check_byte_count(function, shape, 8)
    width = x.shape[-1]
    _check_q_offset(function, q_offset, leading)
    columns = _columns(function, index, width, queries, keys, start, q_offset, missing, leading)
    if content is not None:
        _check_float_array(function, "content", content)
        if content.dtype != x.dtype:
            wrong_type(function, "content", f"the dtype of x, {x.dtype}", content.dtype)
        arguments.check_shape(function, "content", content.shape, shape)
    others = [array for array in (x, index, q_offset) if array is not None]
    _check_out(function, out, shape, x.dtype, others, replaceable=content)
    sums = _sum_dtype(x.dtype)
    padded = np.concatenate([x.astype(sums), np.zeros((*x.shape[:-1], 1), sums)], axis=-1)
    result = np.take_along_axis(padded, columns, axis=-1)
    if content is not None:
        result = content.astype(sums) + result
    return _store((result * sums.type(scale)).astype(x.dtype), out)


def relative_scatter(
    grad: Array,
    index: Array | None,
    width: int,
    start: int,
    q_offset: Array | None,
    missing: int | None,
    scale: float,
    out: Array | None,
) -> Array:
    """The transpose of `relative_gather` with respect to x."""
    function = "relative_scatter"
    leading, queries = _relative_rows(function, "grad", grad, "k_len")
    keys = grad.shape[-1]
    width = arguments.size(function, "width", width)
    scale = arguments.finite_number(function, "scale", scale)
    shape = (*leading, queries, width)
    arguments.check_byte_count(function, shape, 8)
    _check_q_offset(function, q_offset, leading)
    columns = _columns(function, index, width, queries, keys, start, q_offset, missing, leading)
    others = [array for array in (grad, index, q_offset) if array is not None]
    _check_out(function, out, shape, grad.dtype, others)
    result = np.zeros((*leading, queries, width + 1), np.float64)
    rows = np.indices(grad.shape, sparse=True)[:-1]
    np.add.at(result, (*rows, columns), grad.astype(np.float64))
    return _store(_round(result[..., :-1] * scale, grad.dtype), out)


def _sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _entries(
    function: str,
    name: str,
    shape: tuple[int, ...],
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...],
    q_offset: Array | None,
) -> tuple[Array, ...]:
    """The entries of every query and key, [q_len, k_len], along each axis of the grid."""
    rank = len(q_len)
    for length in q_len:
        arguments.size(function, "q_len", length)
    for length in k_len:
        arguments.size(function, "k_len", length)
    if len(shape) < rank:
        wrong_value(function, name, f"a leading axis of heads and {rank} of entries", list(shape))
    if q_offset is not None:
        _check_array(function, "q_offset", q_offset, arguments.INTEGER_DTYPES)
        if rank != 1:
            wrong_value(function, "q_offset", "none where q_len and k_len are tuples", q_offset)
    for queries, keys, first, count in zip(q_len, k_len, start, shape[-rank:], strict=True):
        if not queries or not keys:
            continue
        offsets = [0] if q_offset is None else q_offset.ravel().tolist()
        if any(not queries - 1 <= first - offset <= count - keys for offset in offsets):
            wrong_value(
                function, name, f"entries for all distances, at least {queries + keys - 1}",
                f"{count} with query 0 and key 0 at entry {first}",
            )  # fmt: skip
    arguments.check_byte_count(function, (math.prod(q_len), math.prod(k_len)), 8)
    i = np.indices(q_len).reshape(rank, -1, 1)
    j = np.indices(k_len).reshape(rank, 1, -1)
    return tuple(np.reshape(start, (rank, 1, 1)) + j - i)


def _lay_down(
    diagonals: Array,
    entries: tuple[Array, ...],
    rank: int,
    leading: tuple[int, ...],
    q_offset: Array | None,
) -> Array:
    """[*leading, q_len, k_len]"""
    table = np.broadcast_to(diagonals, (*leading, *diagonals.shape[diagonals.ndim - rank :]))
    if q_offset is None:
        return table[(slice(None),) * len(leading) + entries]
    bias = np.empty((*leading, *entries[0].shape), diagonals.dtype)
    for plane in np.ndindex(leading):
        bias[plane] = table[plane][entries[0] - int(q_offset[plane[: q_offset.ndim]])]
    return bias


def _check_q_offset(function: str, q_offset: object, leading: tuple[int, ...]) -> None:
    if q_offset is None:
        return
    _check_array(function, "q_offset", q_offset, arguments.INTEGER_DTYPES)
    assert isinstance(q_offset, np.ndarray)
    arguments.check_offset_shape(function, q_offset.shape, leading)


def _check_matrices(
    function: str, name: str, x: Array, q_len: tuple[int, ...], k_len: tuple[int, ...]
) -> tuple[int, ...]:
    _check_float_array(function, name, x)
    queries, keys = math.prod(q_len), math.prod(k_len)
    if x.ndim < 2 or x.shape[-2:] != (queries, keys):
        wrong_value(
            function, name, f"shape [..., q_len = {queries}, k_len = {keys}]", list(x.shape)
        )
    return x.shape[:-2]


def _relative_rows(function: str, name: str, x: Array, last: str) -> tuple[tuple[int, ...], int]:
    """Leading axes and the number of queries."""
    _check_float_array(function, name, x)
    if x.ndim < 2:
        wrong_value(function, name, f"shape [..., q_len, {last}]", list(x.shape))
    return x.shape[:-2], x.shape[-2]


def _columns(
    function: str,
    index: Array | None,
    width: int,
    queries: int,
    keys: int,
    start: int,
    q_offset: Array | None,
    missing: int | None,
    leading: tuple[int, ...],
) -> Array:
    """The column of every query and key, [*leading, queries, keys]; `width` where there is none."""
    entries = start + np.arange(keys) - np.arange(queries)[:, None]
    if q_offset is not None:
        shape = (*q_offset.shape, *(1,) * (len(leading) - q_offset.ndim + 2))
        entries = entries - q_offset.astype(np.int64).reshape(shape)
    if index is None:
        columns = entries
    else:
        _check_array(function, "index", index, arguments.INTEGER_DTYPES)
        if index.ndim != 1:
            wrong_value(function, "index", "shape [q_len + k_len - 1]", list(index.shape))
        if missing is not None and 0 <= missing < width:
            wrong_value(function, "missing", f"none of the columns 0 .. {width - 1}", missing)
        if entries.size and (entries.min() < 0 or entries.max() >= len(index)):
            wrong_value(
                function, "index", f"entries for all distances, at least {queries + keys - 1}",
                f"{len(index)} with query 0 and key 0 at entry {start}",
            )  # fmt: skip
        there = (index >= 0) & (index < width)
        if not np.all(there | (index == missing if missing is not None else False)):
            wrong_value(function, "index", f"columns 0 .. {width - 1}", index[~there][0])
        columns = np.where(there, index.astype(np.int64), width)[entries]
    columns = np.where((columns >= 0) & (columns < width), columns, width)
    return np.broadcast_to(columns, (*leading, queries, keys))


@lru_cache(maxsize=64)
def _fixed_point(frequencies: tuple[float | Decimal, ...]) -> tuple[int, ...]:
    """Frequencies, radians a position, as turns a position in units of 2^-64, to the nearest."""
    with decimal.localcontext(EXACT):
        return tuple(
            int((Decimal(frequency) * _TURN / TWO_PI).to_integral_value())
            for frequency in frequencies
        )


def _phases(positions: Array, frequencies: Sequence[float | Decimal]) -> PhaseArray:
    """Phase of every position at the frequency with the same last index; the two broadcast."""
    turns = _fixed_point(tuple(frequencies))
    fraction_of_turn = np.array([t % _TURN for t in turns], dtype=np.uint64)
    if positions.dtype.kind in "iu":
        products: PhaseArray = positions.astype(np.uint64) * fraction_of_turn
        return products
    # p * T = whole * T + sign * |frac| * T, where whole turns of T matter for the second product.
    frac, whole = np.modf(positions.astype(np.float64))
    frac_fixed = np.rint(np.abs(frac) * float(_TURN)).astype(np.uint64)
    whole_turns = np.array([t // _TURN % _TURN for t in turns], dtype=np.uint64)
    extra = _high_product(frac_fixed, fraction_of_turn) + frac_fixed * whole_turns
    phase: PhaseArray = whole.astype(np.int64).astype(np.uint64) * fraction_of_turn
    return np.where(frac < 0, phase - extra, phase + extra)


def _high_product(a: PhaseArray, b: PhaseArray) -> PhaseArray:
    """The upper 64 bits of the 128-bit products a * b."""
    a_high, a_low = a >> 32, a & _LOW_HALF
    b_high, b_low = b >> 32, b & _LOW_HALF
    middle = a_high * b_low + ((a_low * b_low) >> 32)
    carry = (a_low * b_high + (middle & _LOW_HALF)) >> 32
    product: PhaseArray = a_high * b_high + (middle >> 32) + carry
    return product


def _cos_sin(phase: PhaseArray) -> tuple[FloatArray, FloatArray]:
    # Taking the nearest quarter turn off as an integer keeps the digits of angles close to it.
    quarter = (phase + 2**61) >> 62
    angle = (phase - (quarter << 62)).view(np.int64) * (2 * math.pi / _TURN)
    cos, sin = np.cos(angle), np.sin(angle)
    odd, negative = quarter % 2 == 1, quarter >= 2
    cos, sin = np.where(odd, -sin, cos), np.where(odd, cos, sin)
    return np.where(negative, -cos, cos), np.where(negative, -sin, sin)


def _sinusoidal_table(
    positions: Array, frequencies: tuple[Decimal, ...], layout: str
) -> FloatArray:
    cos, sin = _cos_sin(_phases(positions[..., None], frequencies))
    if layout == "interleaved":
        return np.stack([sin, cos], axis=-1).reshape(*positions.shape, 2 * len(frequencies))
    halves = [sin, cos] if layout == "sin_cos" else [cos, sin]
    return np.concatenate(halves, axis=-1)


def _rotary_cos_sin(
    positions: Array, inv_freq: Array, axis_map: Array | None, scale: float
) -> tuple[FloatArray, FloatArray]:
    """cos and sin times scale, [..., P] for positions [...], or [A, ...] with an axis_map.

    With frequencies [H, P] or [A, H, P] they are [..., H, P].
    """
    if inv_freq.ndim == 3:
        terms = [
            np.stack([_phases(points[..., None], row) for row in of_axis.tolist()], axis=-2)
            for points, of_axis in zip(positions, inv_freq, strict=True)
        ]
        phases = np.asarray(np.sum(terms, axis=0, dtype=np.uint64))  # wraps, as phases do
    else:
        if axis_map is None:
            of_each_pair = positions[..., None]
        else:
            of_each_pair = np.moveaxis(positions[axis_map], 0, -1)
        if inv_freq.ndim == 1:
            phases = _phases(of_each_pair, inv_freq.tolist())
        else:
            phases = np.stack([_phases(of_each_pair, row) for row in inv_freq.tolist()], axis=-2)
    cos, sin = _cos_sin(phases)
    return cos * scale, sin * scale


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
        return _round(values, x.dtype).astype(np.float64) if as_written else values

    half = view.block // 2
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
        rotated = np.stack(turned, axis=-2)
    result: Array = x.copy()
    result[..., rotated_dims] = _round(rotated.reshape(part.shape), x.dtype)
    return result


def _cross_products(x: Array, y: FloatArray, view: RotaryView, own_heads: bool) -> FloatArray:
    """x_a y_b - x_b y_a of the pairs, [b, s, h, P]; h is 1, a sum, unless heads are their own."""
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


def _round(values: FloatArray, dtype: np.dtype[Any]) -> Array:
    """Values to the nearest of dtype, ties to even."""
    with np.errstate(over="ignore", invalid="ignore"):
        exact_enough = _round_to_odd(values) if dtype.name == "bfloat16" else values
        rounded: Array = exact_enough.astype(dtype)
        return rounded


def _round_to_odd(values: FloatArray) -> npt.NDArray[np.float32]:
    """To float32, towards zero with the last bit set if inexact, so that bfloat16 rounds once."""
    nearest = values.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= np.abs(nearest) > np.abs(values)
    bits |= nearest != values
    return nearest


def _store(result: Array, out: Array | None) -> Array:
    if out is None:
        return result
    out[...] = result
    return out


# Checks that need the arrays


def _check_array(function: str, argument: str, value: object, dtypes: tuple[str, ...]) -> None:
    if not isinstance(value, np.ndarray):
        wrong_type(function, argument, "a NumPy array", type(value).__name__)
    arguments.check_dtype(function, argument, value.dtype, dtypes)


def _check_float_array(function: str, argument: str, value: object) -> None:
    _check_array(function, argument, value, arguments.FLOAT_DTYPES)


def _check_query_and_key(function: str, q: Array, k: Array) -> None:
    _check_float_array(function, "q", q)
    _check_float_array(function, "k", k)
    if k.dtype != q.dtype:
        wrong_type(function, "k", f"the dtype of q, {q.dtype}", k.dtype)


def _check_tables(function: str, cos: Array, sin: Array) -> int:
    """The number of pairs that the tables are for; their shapes are checked against x."""
    _check_float_array(function, "cos", cos)
    _check_float_array(function, "sin", sin)
    if sin.dtype != cos.dtype:
        wrong_type(function, "sin", f"the dtype of cos, {cos.dtype}", sin.dtype)
    if cos.ndim < 1:
        wrong_value(function, "cos", "shape [s, P] or [b, s, P]", "a scalar")
    pairs: int = cos.shape[-1]
    return pairs


def _views(
    function: str,
    q: Array,
    k: Array,
    layout: str,
    pairing: str | int,
    rotary_start: int,
    pairs: int,
) -> tuple[RotaryView, RotaryView]:
    q_view = rotary_view(function, q.shape, layout, pairing, rotary_start, pairs, "q")
    k_view = rotary_view(function, k.shape, layout, pairing, rotary_start, pairs, "k")
    arguments.check_same_tokens(function, q_view, k_view)
    return q_view, k_view


def _positions(function: str, positions: object, row_bytes: int = 1) -> Array:
    """Positions as an array, an int n meaning 0 .. n-1; each adds row_bytes to the result."""
    if isinstance(positions, (int, np.integer)):
        count = arguments.size(function, "positions", positions)
        arguments.check_byte_count(function, (count, 8), max(row_bytes, 1))
        return np.arange(count, dtype=np.int64)
    _check_array(function, "positions", positions, arguments.POSITION_DTYPES)
    assert isinstance(positions, np.ndarray)
    if positions.dtype.kind == "f" and not np.all(np.abs(positions) < 2.0**63):
        wrong_value(function, "positions", "finite positions within 2^63", "larger or NaN")
    return positions


def _token_positions(
    function: str, positions: object, view: RotaryView, axis_map: object, inv_freq: Array
) -> Array:
    """Rotary positions [s], [b, s] or None for 0 .. s-1; by axes [A, s] or [A, b, s]."""
    by_axis = arguments.rotary_axes(function, positions is None, axis_map is None, inv_freq.ndim)
    points = _positions(function, view.tokens if positions is None else positions)
    axes = points.shape[:1] if by_axis else ()
    if inv_freq.ndim == 3:
        axes = inv_freq.shape[:1]
    view.check_tokens(function, "positions", points.shape, before=axes)
    return points


def _inv_freq(function: str, inv_freq: object) -> tuple[float, ...]:
    _check_array(function, "inv_freq", inv_freq, arguments.FREQUENCY_DTYPES)
    assert isinstance(inv_freq, np.ndarray)
    if inv_freq.ndim != 1:
        wrong_value(function, "inv_freq", "shape [P]", list(inv_freq.shape))
    if not np.all(np.abs(inv_freq) < arguments.FREQUENCY_LIMIT):
        wrong_value(function, "inv_freq", "finite frequencies within 2^63", "larger or NaN")
    return tuple(inv_freq.tolist())


def _frequencies_of_heads(function: str, inv_freq: object) -> Array:
    """inv_freq [P], [H, P] or [A, H, P]."""
    _check_array(function, "inv_freq", inv_freq, arguments.FREQUENCY_DTYPES)
    assert isinstance(inv_freq, np.ndarray)
    arguments.check_frequency_axes(function, inv_freq.shape)
    if not np.all(np.abs(inv_freq) < arguments.FREQUENCY_LIMIT):
        wrong_value(function, "inv_freq", "finite frequencies within 2^63", "larger or NaN")
    return inv_freq


def _axis_map(
    function: str, axis_map: object, pairs: int, positions_shape: tuple[int, ...]
) -> Array | None:
    """The axis_map, checked against the position axes that it chooses from."""
    if axis_map is None:
        return None
    _check_array(function, "axis_map", axis_map, arguments.INTEGER_DTYPES)
    assert isinstance(axis_map, np.ndarray)
    arguments.check_shape(function, "axis_map", axis_map.shape, (pairs,))
    axes = positions_shape[0]
    if np.any(axis_map < 0) or np.any(axis_map >= axes):
        wrong_value(function, "axis_map", f"axes 0 .. {axes - 1} of positions", axis_map.tolist())
    return axis_map


def _table_dtype(function: str, dtype: npt.DTypeLike | None, out: Array | None) -> np.dtype[Any]:
    """Dtype of a table: the one asked for, else that of out, else float32."""
    if dtype is not None:
        result = np.dtype(dtype)
    elif isinstance(out, np.ndarray):
        result = out.dtype
    else:
        result = np.dtype(np.float32)
    arguments.check_dtype(function, "dtype", result, arguments.FLOAT_DTYPES)
    return result


def _check_out(
    function: str,
    out: object,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    inputs: Sequence[Array | None],
    replaceable: Array | None = None,
) -> None:
    """Check a result to be written: out may be replaceable itself, and overlap no other input."""
    if out is None:
        return
    if not isinstance(out, np.ndarray):
        wrong_type(function, "out", "a NumPy array", type(out).__name__)
    if out.dtype != dtype:
        wrong_type(function, "out", f"dtype {dtype}", out.dtype)
    arguments.check_shape(function, "out", out.shape, shape)
    if replaceable is not None and not _same_memory(out, replaceable):
        inputs = [*inputs, replaceable]
    _check_writable(function, "out", out, inputs)


def _check_writable(
    function: str, argument: str, array: Array, inputs: Sequence[Array | None]
) -> None:
    if not array.flags.writeable:
        wrong_value(function, argument, "a writable array", "a read-only one")
    if _overlaps_itself(array):
        wrong_value(
            function, argument, "elements apart in memory", f"strides {list(array.strides)}"
        )
    if any(other is not None and np.shares_memory(array, other) for other in inputs):
        wrong_value(function, argument, "no partial overlap with an input", "shared memory")


def _same_memory(a: Array, b: Array) -> bool:
    """True for two views of equal shape and dtype that are one and the same."""
    return a.ctypes.data == b.ctypes.data and all(
        length == 1 or a_stride == b_stride
        for length, a_stride, b_stride in zip(a.shape, a.strides, b.strides, strict=True)
    )


def _overlaps_itself(array: Array) -> bool:
    """True unless every axis steps over all that the axes with smaller strides reach."""
    if array.size == 0:
        return False
    reach = array.itemsize
    for stride, length in sorted(
        (abs(stride), length)
        for stride, length in zip(array.strides, array.shape, strict=True)
        if length > 1
    ):
        if stride < reach:
            return True
        reach += stride * (length - 1)
    return False
