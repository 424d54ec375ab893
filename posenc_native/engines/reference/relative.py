"""Biases by distance, sums along diagonals and look-ups by distance, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value

from .checks import Array, check_array, check_float_array, check_out, round_once, store, table_dtype

# The entry of query i and key j is start + j - i (less q_offset).


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
    check_float_array(function, "diagonals", diagonals)
    if dtype is not None:
        result_dtype = table_dtype(function, dtype, out)
    else:
        result_dtype = diagonals.dtype if out is None else table_dtype(function, None, out)
    entries = _entries(function, "diagonals", diagonals.shape, q_len, k_len, start, q_offset)
    heads = diagonals.shape[: diagonals.ndim - len(q_len)]
    batch = heads[:-1] if q_offset is None else q_offset.shape
    leading = (*batch, *heads[-1:])
    shape = (*leading, math.prod(q_len), math.prod(k_len))
    arguments.check_byte_count(function, shape, 8)
    arguments.check_heads(function, heads, leading)
    inputs = [diagonals] if q_offset is None else [diagonals, q_offset]
    check_out(function, out, shape, result_dtype, inputs)
    bias = _lay_down(diagonals, entries, len(q_len), leading, q_offset)
    return store(round_once(bias.astype(np.float64), result_dtype), out)


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
    check_float_array(function, "diagonals", diagonals)
    entries = _entries(function, "diagonals", diagonals.shape, q_len, k_len, start, q_offset)
    arguments.check_heads(function, diagonals.shape[: diagonals.ndim - len(q_len)], leading)
    _check_q_offset(function, q_offset, leading)
    inputs = [diagonals] if q_offset is None else [diagonals, q_offset]
    check_out(function, out, scores.shape, scores.dtype, inputs, replaceable=scores)
    sums = _sum_dtype(scores.dtype)
    bias = _lay_down(diagonals.astype(sums), entries, len(q_len), leading, q_offset)
    return store((scores.astype(sums) + bias).astype(scores.dtype), out)


def diagonal_sums(
    grad: Array,
    shape: tuple[int, ...],
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...],
    q_offset: Array | None,
) -> Array:
    """Sums along diagonals, of this shape; leading axes that it lacks are summed over too."""
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
        at = _entries_of(plane, entries, q_offset)
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
    scale = arguments.factor(function, "scale", scale, x.dtype)
    shape = (*leading, queries, keys)
    arguments.check_byte_count(function, shape, 8)
    width = x.shape[-1]
    _check_q_offset(function, q_offset, leading)
    columns = _columns(function, index, width, queries, keys, start, q_offset, missing, leading)
    if content is not None:
        check_float_array(function, "content", content)
        if content.dtype != x.dtype:
            wrong_type(function, "content", f"the dtype of x, {x.dtype}", content.dtype)
        arguments.check_shape(function, "content", content.shape, shape)
    others = [array for array in (x, index, q_offset) if array is not None]
    check_out(function, out, shape, x.dtype, others, replaceable=content)
    sums = _sum_dtype(x.dtype)
    padded = np.concatenate([x.astype(sums), np.zeros((*x.shape[:-1], 1), sums)], axis=-1)
    result = np.take_along_axis(padded, columns, axis=-1)
    if content is not None:
        result = content.astype(sums) + result
    return store((result * sums.type(scale)).astype(x.dtype), out)


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
    scale = arguments.factor(function, "scale", scale, grad.dtype)
    shape = (*leading, queries, width)
    arguments.check_byte_count(function, shape, 8)
    _check_q_offset(function, q_offset, leading)
    columns = _columns(function, index, width, queries, keys, start, q_offset, missing, leading)
    others = [array for array in (grad, index, q_offset) if array is not None]
    check_out(function, out, shape, grad.dtype, others)
    result = np.zeros((*leading, queries, width + 1), np.float64)
    rows = np.indices(grad.shape, sparse=True)[:-1]
    np.add.at(result, (*rows, columns), grad.astype(np.float64))
    return store(round_once(result[..., :-1] * scale, grad.dtype), out)


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
        check_array(function, "q_offset", q_offset, arguments.INTEGER_DTYPES)
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
        bias[plane] = table[plane][_entries_of(plane, entries, q_offset)]
    return bias


def _entries_of(
    plane: tuple[int, ...], entries: tuple[Array, ...], q_offset: Array | None
) -> tuple[Array, ...]:
    """The entries of one matrix. Where it is empty, its offset may be one that int64 lacks."""
    if q_offset is None or not entries[0].size:
        return entries
    return entries[0] - int(q_offset[plane[: q_offset.ndim]]), *entries[1:]


def _check_q_offset(function: str, q_offset: object, leading: tuple[int, ...]) -> None:
    if q_offset is None:
        return
    check_array(function, "q_offset", q_offset, arguments.INTEGER_DTYPES)
    assert isinstance(q_offset, np.ndarray)
    arguments.check_offset_shape(function, q_offset.shape, leading)


def _check_matrices(
    function: str, name: str, x: Array, q_len: tuple[int, ...], k_len: tuple[int, ...]
) -> tuple[int, ...]:
    check_float_array(function, name, x)
    queries, keys = math.prod(q_len), math.prod(k_len)
    if x.ndim < 2 or x.shape[-2:] != (queries, keys):
        wrong_value(
            function, name, f"shape [..., q_len = {queries}, k_len = {keys}]", list(x.shape)
        )
    return x.shape[:-2]


def _relative_rows(function: str, name: str, x: Array, last: str) -> tuple[tuple[int, ...], int]:
    """Leading axes and the number of queries."""
    check_float_array(function, name, x)
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
        if q_offset.dtype == np.uint64:  # beyond int64 there is no column either
            q_offset = np.minimum(q_offset, np.uint64(2**63 - 1))
        entries = entries - q_offset.astype(np.int64).reshape(shape)
    if index is None:
        columns = entries
    else:
        check_array(function, "index", index, arguments.INTEGER_DTYPES)
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
