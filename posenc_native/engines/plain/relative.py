"""Biases by distance, sums along diagonals and look-ups by distance."""

from __future__ import annotations

import math
from typing import Any

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.engines.distances import Columns, Grid

from .numbers import arange, cast, factor_of, of, readable, real, sums_by, take, whole, wide, zeros

Shape = tuple[int, ...]


def toeplitz_bias(function: str, diagonals: Any, leading: Shape, dtype: Any, grid: Grid) -> Any:
    """`posenc_native.toeplitz_bias`, with these leading axes."""
    xp, rank = of(diagonals), len(grid.q_len)
    heads, counts = tuple(diagonals.shape[:-rank]), tuple(diagonals.shape[-rank:])
    entries = _entries(function, heads, counts, leading, grid, diagonals)
    flat = diagonals.reshape(*heads, math.prod(counts))
    if grid.q_offset is None:
        bias = xp.broadcast_to(flat[..., entries], (*leading, *entries.shape))
    else:
        flat = xp.broadcast_to(flat, (*leading, flat.shape[-1]))
        shape = (*leading, *entries.shape[-2:])
        bias = take(flat, _planes(entries, leading, joined=True)).reshape(shape)
    return cast(bias, dtype)


def add_toeplitz_bias(function: str, scores: Any, diagonals: Any, grid: Grid) -> Any:
    """`posenc_native.add_toeplitz_bias`."""
    sums = real(scores)
    leading = tuple(scores.shape[:-2])
    bias = toeplitz_bias(function, cast(diagonals, sums.dtype), leading, sums.dtype, grid)
    return cast(sums + bias, scores.dtype)


def diagonal_sums(function: str, grad: Any, shape: Shape, grid: Grid) -> Any:
    """`posenc_native.diagonal_sums`, with this shape."""
    rank = len(grid.q_len)
    heads, counts = shape[: len(shape) - rank], shape[len(shape) - rank :]
    entries = _entries(function, heads, counts, tuple(grad.shape[:-2]), grid, grad)
    by_plane = wide(grad)
    if grid.q_offset is None:  # all planes have the same entries, so sum the planes first
        by_plane = _sum_to(by_plane, (*heads, *grad.shape[-2:]))
    leading = tuple(by_plane.shape[:-2])
    values = by_plane.reshape(*leading, math.prod(by_plane.shape[-2:]))
    sums = sums_by(_planes(entries, leading, joined=True), values, math.prod(counts))
    sums = _sum_to(sums, (*heads, sums.shape[-1])).reshape(shape)
    return cast(sums, real(grad[..., :0]).dtype)


def relative_gather(
    function: str, x: Any, content: Any, k_len: int, columns: Columns, scale: float
) -> Any:
    """`posenc_native.relative_gather`."""
    index = _columns(function, columns, (*x.shape[:-1], k_len), x.shape[-1], x)
    values = real(x)
    nothing = zeros((*x.shape[:-1], 1), values)
    result = take(of(x).concatenate([values, nothing], -1), index)
    if content is not None:
        result = real(content) + result
    return cast(result * factor_of(result, scale), x.dtype)


def relative_scatter(function: str, grad: Any, width: int, columns: Columns, scale: float) -> Any:
    """`posenc_native.relative_scatter`."""
    index = _columns(function, columns, tuple(grad.shape), width, grad)
    sums = sums_by(index, wide(grad), width + 1)
    return cast(sums[..., :-1] * factor_of(sums, scale), grad.dtype)


def _entries(
    function: str, heads: Shape, counts: Shape, leading: Shape, grid: Grid, like: Any
) -> Any:
    """The flattened entry of every query and key, [q_len, k_len].

    With q_offset, [*q_offset.shape, q_len, k_len].
    """
    q_len, k_len, start, q_offset = grid
    if q_offset is not None and len(q_len) != 1:
        expected = "None if q_len and k_len are tuples"
        wrong_value(function, "q_offset", expected, f"shape {list(q_offset.shape)}")
    if q_offset is not None:
        q_offset = whole(q_offset)
    flat = arange(1, like)[:, None]
    for axis, (queries, keys, count) in enumerate(zip(q_len, k_len, counts, strict=True)):
        first = queries - 1 if start is None else start[axis]
        low, high = first, first
        known = q_offset is None
        if q_offset is not None and readable(q_offset) and 0 not in q_offset.shape:
            low, high = first - int(q_offset.max()), first - int(q_offset.min())
            known = True
        known = known and all(type(n) is int for n in (low, high, queries, keys, count))
        if known and queries and keys and not (queries - 1 <= low and high <= count - keys):
            wrong_value(
                function, "diagonals",
                f"entries for all distances, at least {queries + keys - 1}",
                f"{count} with query 0 and key 0 at entry {first}",
            )  # fmt: skip
        entries = first + arange(keys, like) - arange(queries, like)[:, None]
        rows, columns = flat.shape
        flat = flat[:, None, :, None] * count + entries[None, :, None, :]
        flat = flat.reshape(rows * queries, columns * keys)
    arguments.check_heads(function, heads, leading)
    if q_offset is None:
        return flat
    arguments.check_offset_shape(function, tuple(q_offset.shape), leading)
    # Offsets that cannot be read must not lead outside the entries.
    return (flat - q_offset[..., None, None]).clip(0, max(counts[0] - 1, 0))


def _planes(entries: Any, leading: Shape, joined: bool = False) -> Any:
    """The entries of every plane; with q_offset, its axes come first. joined: as a last axis."""
    matrix = entries.shape[-2:]
    shape = (*entries.shape[:-2], *(1,) * (len(leading) + 2 - entries.ndim))
    last = (math.prod(matrix),) if joined else tuple(matrix)
    return of(entries).broadcast_to(entries.reshape(*shape, *last), (*leading, *last))


def _sum_to(x: Any, shape: Shape) -> Any:
    """x summed over the leading axes that the shape lacks or has with size 1."""
    extra = x.ndim - len(shape)
    x = x.sum(tuple(range(extra))) if extra else x
    repeated = tuple(i for i, size in enumerate(shape) if size == 1 and x.shape[i] != 1)
    return of(x).sum(x, repeated, keepdims=True) if repeated else x


def _columns(function: str, columns: Columns, shape: Shape, width: int, like: Any) -> Any:
    """The column of every query and key, with this shape; `width` if there is none."""
    index, start, q_offset, missing = columns
    *leading, queries, keys = shape
    xp = of(like)
    first = queries - 1 if start is None else start
    entries = first + arange(keys, like) - arange(queries, like)[:, None]
    if q_offset is not None:
        arguments.check_offset_shape(function, tuple(q_offset.shape), tuple(leading))
        q_offset = whole(q_offset)
        entries = entries - q_offset[..., None, None]
    column = entries
    if index is not None:
        index = whole(index)
        if index.ndim != 1:
            wrong_value(function, "index", "shape [q_len + k_len - 1]", list(index.shape))
        if missing is not None and 0 <= missing < width:
            wrong_value(function, "missing", f"none of the columns 0 .. {width - 1}", missing)
        if readable(index, q_offset):
            if 0 not in entries.shape and not (
                int(entries.min()) >= 0 and int(entries.max()) < index.shape[0]
            ):
                wrong_value(
                    function, "index", f"entries for all distances, at least {queries + keys - 1}",
                    f"{index.shape[0]} with query 0 and key 0 at entry {first}",
                )  # fmt: skip
            bad = (index < 0) | (index >= width)
            if missing is not None:
                bad = bad & (index != missing)
            if bool(bad.any()):
                wrong_value(function, "index", f"columns 0 .. {width - 1}", int(index[bad][0]))
        if 0 not in entries.shape:
            entries = entries.clip(0, index.shape[0] - 1)
        column = index[entries]
    column = xp.where((column >= 0) & (column < width), column, width)
    return _planes(column, tuple(leading))
