"""Biases by distance, sums along diagonals and look-ups by distance, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.engines.distances import Columns, Grid

from .checks import Array, check_array, check_float_array, check_out, round_once, store, table_dtype


def toeplitz_bias(diagonals: Array, *call: Any) -> Array:
    """The bias ``[..., H, q_len, k_len]`` from diagonals; call: a Grid, dtype and out."""
    function = "toeplitz_bias"
    *options, dtype, out = call
    grid = Grid(*options)
    check_float_array(function, "diagonals", diagonals)
    if dtype is not None:
        result_dtype = table_dtype(function, dtype, out)
    else:
        result_dtype = diagonals.dtype if out is None else table_dtype(function, None, out)
    entries = _entries(function, "diagonals", diagonals.shape, grid)
    heads = diagonals.shape[: diagonals.ndim - len(grid.q_len)]
    batch = heads[:-1] if grid.q_offset is None else grid.q_offset.shape
    leading = (*batch, *heads[-1:])
    shape = (*leading, math.prod(grid.q_len), math.prod(grid.k_len))
    arguments.check_byte_count(function, shape, 8)
    arguments.check_heads(function, heads, leading)
    check_out(function, out, shape, result_dtype, [diagonals, grid.q_offset])
    bias = _lay_down(diagonals, entries, leading, grid)
    return store(round_once(bias.astype(np.float64), result_dtype), out)


def add_toeplitz_bias(scores: Array, diagonals: Array, *call: Any) -> Array:
    """Scores plus bias, added in float32 (float64 for float64); call: a Grid, and out."""
    function = "add_toeplitz_bias"
    *options, out = call
    grid = Grid(*options)
    leading = _check_matrices(function, "scores", scores, grid)
    check_float_array(function, "diagonals", diagonals)
    entries = _entries(function, "diagonals", diagonals.shape, grid)
    arguments.check_heads(function, diagonals.shape[: diagonals.ndim - len(grid.q_len)], leading)
    _check_q_offset(function, grid.q_offset, leading)
    inputs = [diagonals, grid.q_offset]
    check_out(function, out, scores.shape, scores.dtype, inputs, replaceable=scores)
    sums = _sum_dtype(scores.dtype)
    bias = _lay_down(diagonals.astype(sums), entries, leading, grid)
    return store((scores.astype(sums) + bias).astype(scores.dtype), out)


def diagonal_sums(grad: Array, shape: tuple[int, ...], *call: Any) -> Array:
    """Sums along diagonals, with this shape, over leading axes that it lacks; call: a Grid."""
    function = "diagonal_sums"
    grid = Grid(*call)
    leading = _check_matrices(function, "grad", grad, grid)
    entries = _entries(function, "diagonals", shape, grid)
    heads = shape[: len(shape) - len(grid.q_len)]
    arguments.check_heads(function, heads, leading)
    _check_q_offset(function, grid.q_offset, leading)
    result = np.zeros(shape, np.float64)
    for plane in np.ndindex(leading):
        of_plane = tuple(
            0 if size == 1 else i
            for i, size in zip(plane[len(leading) - len(heads) :], heads, strict=True)
        )
        at = _entries_of(plane, entries, grid.q_offset)
        np.add.at(result[of_plane], at, grad[plane].astype(np.float64))
    return result.astype(_sum_dtype(grad.dtype))


def relative_gather(x: Array, index: Array | None, k_len: int, *call: Any) -> Array:
    """``(content + x at the columns index[start + j - i]) * scale``.

    call: start, q_offset and missing of Columns, content, scale and out.
    """
    function = "relative_gather"
    *options, content, scale, out = call
    columns = Columns(index, *options)
    leading, queries = _relative_rows(function, "x", x, "width")
    keys = arguments.size(function, "k_len", k_len)
    scale = arguments.factor(function, "scale", scale, x.dtype)
    shape = (*leading, queries, keys)
    arguments.check_byte_count(function, shape, 8)
    _check_q_offset(function, columns.q_offset, leading)
    found = _columns(function, columns, shape, x.shape[-1])
    if content is not None:
        check_float_array(function, "content", content)
        if content.dtype != x.dtype:
            wrong_type(function, "content", f"the dtype of x, {x.dtype}", content.dtype)
        arguments.check_shape(function, "content", content.shape, shape)
    check_out(function, out, shape, x.dtype, [x, index, columns.q_offset], replaceable=content)
    sums = _sum_dtype(x.dtype)
    padded = np.concatenate([x.astype(sums), np.zeros((*x.shape[:-1], 1), sums)], axis=-1)
    result = np.take_along_axis(padded, found, axis=-1)
    if content is not None:
        result = content.astype(sums) + result
    return store((result * sums.type(scale)).astype(x.dtype), out)


def relative_scatter(grad: Array, index: Array | None, width: int, *call: Any) -> Array:
    """The transpose of `relative_gather` with respect to x.

    call: start, q_offset and missing of Columns, scale and out.
    """
    function = "relative_scatter"
    *options, scale, out = call
    columns = Columns(index, *options)
    leading, queries = _relative_rows(function, "grad", grad, "k_len")
    width = arguments.size(function, "width", width)
    scale = arguments.factor(function, "scale", scale, grad.dtype)
    shape = (*leading, queries, width)
    arguments.check_byte_count(function, shape, 8)
    _check_q_offset(function, columns.q_offset, leading)
    found = _columns(function, columns, grad.shape, width)
    check_out(function, out, shape, grad.dtype, [grad, index, columns.q_offset])
    result = np.zeros((*leading, queries, width + 1), np.float64)
    rows = np.indices(grad.shape, sparse=True)[:-1]
    np.add.at(result, (*rows, found), grad.astype(np.float64))
    return store(round_once(result[..., :-1] * scale, grad.dtype), out)


def _sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _entries(function: str, name: str, shape: tuple[int, ...], grid: Grid) -> tuple[Array, ...]:
    """The entries of every query and key, [q_len, k_len], along each axis of the grid."""
    q_len, k_len, start, q_offset = grid
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
            wrong_value(function, "q_offset", "None if q_len and k_len are tuples", q_offset)
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
    diagonals: Array, entries: tuple[Array, ...], leading: tuple[int, ...], grid: Grid
) -> Array:
    """[*leading, q_len, k_len]"""
    rank, q_offset = len(grid.q_len), grid.q_offset
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
    """The entries of one matrix. If it is empty, its offset may exceed int64."""
    if q_offset is None or not entries[0].size:
        return entries
    return entries[0] - int(q_offset[plane[: q_offset.ndim]]), *entries[1:]


def _check_q_offset(function: str, q_offset: object, leading: tuple[int, ...]) -> None:
    if q_offset is None:
        return
    check_array(function, "q_offset", q_offset, arguments.INTEGER_DTYPES)
    assert isinstance(q_offset, np.ndarray)
    arguments.check_offset_shape(function, q_offset.shape, leading)


def _check_matrices(function: str, name: str, x: Array, grid: Grid) -> tuple[int, ...]:
    check_float_array(function, name, x)
    queries, keys = math.prod(grid.q_len), math.prod(grid.k_len)
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


def _columns(function: str, columns: Columns, shape: tuple[int, ...], width: int) -> Array:
    """The column of every query and key, with this shape; `width` if there is none."""
    index, start, q_offset, missing = columns
    *leading, queries, keys = shape
    entries = start + np.arange(keys) - np.arange(queries)[:, None]
    if q_offset is not None:
        planes = (*q_offset.shape, *(1,) * (len(leading) - q_offset.ndim + 2))
        if q_offset.dtype == np.uint64:  # an offset beyond int64 has no column either
            q_offset = np.minimum(q_offset, np.uint64(2**63 - 1))
        entries = entries - q_offset.astype(np.int64).reshape(planes)
    if index is None:
        found = entries
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
        found = np.where(there, index.astype(np.int64), width)[entries]
    found = np.where((found >= 0) & (found < width), found, width)
    return np.broadcast_to(found, shape)
