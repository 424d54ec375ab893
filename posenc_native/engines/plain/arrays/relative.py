"""Biases by distance, sums along diagonals and look-ups by distance, in float64."""

from __future__ import annotations

import math
from typing import Any

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.engines.distances import Columns, Grid
from posenc_native.engines.plain import relative as plain

from .checks import Array, check_array, check_float_array, check_out, store, table_dtype


def toeplitz_bias(diagonals: Array, *call: Any) -> Array:
    """The bias ``[..., H, q_len, k_len]`` from diagonals; call: a Grid, dtype and out."""
    function = "toeplitz_bias"
    *options, dtype, out = call
    grid = _grid(function, options)
    check_float_array(function, "diagonals", diagonals)
    dtype = diagonals.dtype if dtype is None and out is None else table_dtype(function, dtype, out)
    rank = len(grid.q_len)
    if diagonals.ndim < rank:
        expected = f"a leading axis of heads and {rank} of entries"
        wrong_value(function, "diagonals", expected, list(diagonals.shape))
    heads = diagonals.shape[: diagonals.ndim - rank]
    leading = (*(heads[:-1] if grid.q_offset is None else grid.q_offset.shape), *heads[-1:])
    shape = (*leading, math.prod(grid.q_len), math.prod(grid.k_len))
    arguments.check_byte_count(function, shape, 8)
    check_out(function, out, shape, dtype, [diagonals, grid.q_offset])
    return store(plain.toeplitz_bias(function, diagonals, leading, dtype, grid), out)


def add_toeplitz_bias(scores: Array, diagonals: Array, *call: Any) -> Array:
    """Scores plus bias, added in float32 (float64 for float64); call: a Grid, and out."""
    function = "add_toeplitz_bias"
    *options, out = call
    grid = _grid(function, options)
    _check_matrices(function, "scores", scores, grid)
    check_float_array(function, "diagonals", diagonals)
    read = [diagonals, grid.q_offset]
    check_out(function, out, scores.shape, scores.dtype, read, replaceable=scores)
    return store(plain.add_toeplitz_bias(function, scores, diagonals, grid), out)


def diagonal_sums(grad: Array, shape: tuple[int, ...], *call: Any) -> Array:
    """Sums along diagonals, with this shape, over leading axes that it lacks; call: a Grid."""
    function = "diagonal_sums"
    grid = _grid(function, call)
    _check_matrices(function, "grad", grad, grid)
    return plain.diagonal_sums(function, grad, shape, grid)  # type: ignore[no-any-return]


def relative_gather(x: Array, index: Array | None, k_len: int, *call: Any) -> Array:
    """``(content + x at the columns index[start + j - i]) * scale``.

    call: start, q_offset and missing of Columns, content, scale and out.
    """
    function = "relative_gather"
    *options, content, scale, out = call
    columns = _columns(function, index, options)
    shape = (*_rows(function, "x", x, "width"), arguments.size(function, "k_len", k_len))
    scale = arguments.factor(function, "scale", scale, x.dtype)
    arguments.check_byte_count(function, shape, 8)
    if content is not None:
        check_float_array(function, "content", content)
        if content.dtype != x.dtype:
            wrong_type(function, "content", f"the dtype of x, {x.dtype}", content.dtype)
        arguments.check_shape(function, "content", content.shape, shape)
    check_out(function, out, shape, x.dtype, [x, index, columns.q_offset], replaceable=content)
    return store(plain.relative_gather(function, x, content, k_len, columns, scale), out)


def relative_scatter(grad: Array, index: Array | None, width: int, *call: Any) -> Array:
    """The transpose of `relative_gather` with respect to x.

    call: start, q_offset and missing of Columns, scale and out.
    """
    function = "relative_scatter"
    *options, scale, out = call
    columns = _columns(function, index, options)
    shape = (*_rows(function, "grad", grad, "k_len"), arguments.size(function, "width", width))
    scale = arguments.factor(function, "scale", scale, grad.dtype)
    arguments.check_byte_count(function, shape, 8)
    check_out(function, out, shape, grad.dtype, [grad, index, columns.q_offset])
    return store(plain.relative_scatter(function, grad, width, columns, scale), out)


def _grid(function: str, options: Any) -> Grid:
    grid = Grid(*options)
    for name, lengths in (("q_len", grid.q_len), ("k_len", grid.k_len)):
        for length in lengths:
            arguments.size(function, name, length)
    if grid.q_offset is not None:
        check_array(function, "q_offset", grid.q_offset, arguments.INTEGER_DTYPES)
    return grid


def _columns(function: str, index: Any, options: Any) -> Columns:
    columns = Columns(index, *options)
    for name, integers in (("index", index), ("q_offset", columns.q_offset)):
        if integers is not None:
            check_array(function, name, integers, arguments.INTEGER_DTYPES)
    return columns


def _check_matrices(function: str, name: str, x: Array, grid: Grid) -> None:
    check_float_array(function, name, x)
    sizes = queries, keys = math.prod(grid.q_len), math.prod(grid.k_len)
    if x.ndim < 2 or x.shape[-2:] != sizes:
        wrong_value(
            function, name, f"shape [..., q_len = {queries}, k_len = {keys}]", list(x.shape)
        )
    arguments.check_byte_count(function, sizes, 8)


def _rows(function: str, name: str, x: Array, last: str) -> tuple[int, ...]:
    """The axes before the last."""
    check_float_array(function, name, x)
    if x.ndim < 2:
        wrong_value(function, name, f"shape [..., q_len, {last}]", list(x.shape))
    return x.shape[:-1]
