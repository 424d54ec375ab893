"""Biases by distance, sums along diagonals and look-ups by distance, for tensors."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.engines.distances import Columns, Grid
from posenc_native.engines.following import needs_grad
from posenc_native.engines.plain import relative as plain

from .gradients import relative as relative_gradients
from .inputs import check_floats, composable, grid_arguments, integer_tensor, table_dtype
from .library import call, ops, relative_operators_take
from .results import check_output, copy_out, no_output_for_gradient, written


def toeplitz_bias(diagonals: Tensor, *rest: Any) -> Tensor:
    """`posenc_native.toeplitz_bias` for tensors; rest: a Grid, dtype and out."""
    function = "toeplitz_bias"
    *options, dtype, out = rest
    grid = Grid(*options)
    check_floats(function, "diagonals", diagonals)
    check_output(function, out, diagonals)
    dtype = diagonals.dtype if dtype is None and out is None else dtype
    dtype = table_dtype(function, dtype, out)
    q_offset = integer_tensor(function, "q_offset", grid.q_offset, diagonals.device)
    heads = tuple(diagonals.shape[: diagonals.ndim - len(grid.q_len)])
    if q_offset is not None and q_offset.ndim == 0:
        q_offset = q_offset.expand(heads[:-1])
    grid = grid._replace(q_offset=q_offset)
    leading = (*(heads[:-1] if q_offset is None else tuple(q_offset.shape)), *heads[-1:])
    shape = (*leading, math.prod(grid.q_len), math.prod(grid.k_len))
    arguments.check_byte_count(function, shape, 8)
    if not relative_operators_take(diagonals, q_offset, out):
        composable(function, diagonals=diagonals, q_offset=q_offset, out=out)
        bias: Tensor = plain.toeplitz_bias(function, diagonals, leading, dtype, grid)
        return bias if out is None else copy_out(function, out, bias, q_offset, apart=diagonals)
    fields = grid_arguments(*grid)
    if out is None:
        return relative_gradients.TOEPLITZ_BIAS(diagonals, shape, dtype, *fields)  # type: ignore[no-any-return]
    no_output_for_gradient(function, diagonals)
    arguments.check_shape(function, "out", tuple(out.shape), shape)
    call(ops.toeplitz_bias_out.default, diagonals, *fields, out=out)
    return written(out)


def add_toeplitz_bias(scores: Tensor, diagonals: Tensor, *rest: Any) -> Tensor:
    """`posenc_native.add_toeplitz_bias` for tensors; rest: a Grid, and out."""
    function = "add_toeplitz_bias"
    q_len, k_len, start, q_offset, out = rest
    # As in apply_rotary_qk, only the checks that decoding needs.
    check_floats(function, "scores", scores)
    check_floats(function, "diagonals", diagonals)
    if q_offset is not None:
        q_offset = integer_tensor(function, "q_offset", q_offset, scores.device)
    check_output(function, out, scores)
    if not relative_operators_take(scores, diagonals, q_offset, out):
        composable(function, scores=scores, diagonals=diagonals, q_offset=q_offset, out=out)
        grid = Grid(q_len, k_len, start, q_offset)
        result: Tensor = plain.add_toeplitz_bias(function, scores, diagonals, grid)
        if out is None:
            return result
        return copy_out(function, out, result, scores, q_offset, apart=diagonals)
    options = grid_arguments(q_len, k_len, start, q_offset)
    if needs_grad(scores, diagonals):
        if out is None:
            return relative_gradients.ADD_TOEPLITZ_BIAS(scores, diagonals, *options)  # type: ignore[no-any-return]
        if out is not scores:
            expected = "no out, or scores itself, if a gradient is required"
            wrong_value(function, "out", expected, "another tensor")
        return relative_gradients.ADD_TOEPLITZ_BIAS.in_place(scores, diagonals, *options)  # type: ignore[no-any-return]
    # Defaults of the schema are omitted, since an option takes torch 0.2 microseconds.
    passed = options if q_offset is not None else options[:3] if start or options[0] else ()
    if out is None:
        return call(ops.add_toeplitz_bias.default, scores, diagonals, *passed)  # type: ignore[no-any-return]
    if out is scores:
        call(ops.add_toeplitz_bias_.default, scores, diagonals, *passed)
    else:
        call(ops.add_toeplitz_bias_out.default, scores, diagonals, *passed, out=out)
    return written(out)


def diagonal_sums(grad: Tensor, shape: tuple[int, ...], *rest: Any) -> Tensor:
    """`posenc_native.diagonal_sums` for tensors; rest: a Grid."""
    function = "diagonal_sums"
    grid = Grid(*rest)
    check_floats(function, "grad", grad)
    q_offset = integer_tensor(function, "q_offset", grid.q_offset, grad.device)
    grid = grid._replace(q_offset=q_offset)
    if not relative_operators_take(grad, q_offset):
        composable(function, grad=grad, q_offset=q_offset)
        return plain.diagonal_sums(function, grad, shape, grid)  # type: ignore[no-any-return]
    return relative_gradients.DIAGONAL_SUMS(grad, shape, *grid_arguments(*grid))  # type: ignore[no-any-return]


def _columns(function: str, x: Tensor, *options: Any) -> Columns:
    """The `Columns` with these fields, with tensors on the device of x."""
    columns = Columns(*options)
    return columns._replace(
        index=integer_tensor(function, "index", columns.index, x.device),
        q_offset=integer_tensor(function, "q_offset", columns.q_offset, x.device),
    )


def relative_gather(x: Tensor, index: Any, k_len: int, *rest: Any) -> Tensor:
    """`posenc_native.relative_gather` for tensors.

    rest: start, q_offset and missing of Columns, content, scale and out.
    """
    function = "relative_gather"
    *options, content, scale, out = rest
    check_floats(function, "x", x)
    columns = _columns(function, x, index, *options)
    scale = arguments.factor(function, "scale", scale, x.dtype)
    shape = (*x.shape[:-1], k_len)
    arguments.check_byte_count(function, shape, 8)
    if content is not None:
        if not isinstance(content, Tensor):
            wrong_type(function, "content", "a tensor, as x is", type(content).__name__)
        if content.dtype != x.dtype:
            wrong_type(function, "content", f"the dtype of x, {x.dtype}", content.dtype)
        arguments.check_shape(function, "content", tuple(content.shape), shape)
    check_output(function, out, content if content is not None else x)
    read = {"index": columns.index, "q_offset": columns.q_offset}
    if not relative_operators_take(x, *read.values(), content, out):
        composable(function, x=x, **read, content=content, out=out)
        result: Tensor = plain.relative_gather(function, x, content, k_len, columns, scale)
        if out is None:
            return result
        return copy_out(function, out, result, content, *read.values(), apart=x)
    if out is None:
        return relative_gradients.RELATIVE_GATHER(x, content, k_len, *columns, scale)  # type: ignore[no-any-return]
    no_output_for_gradient(function, x, content)
    arguments.check_shape(function, "out", tuple(out.shape), shape)
    call(ops.relative_gather_out.default, x, *columns, content, scale, out=out)
    return written(out)


def relative_scatter(grad: Tensor, index: Any, width: int, *rest: Any) -> Tensor:
    """`posenc_native.relative_scatter` for tensors.

    rest: start, q_offset and missing of Columns, scale and out.
    """
    function = "relative_scatter"
    *options, scale, out = rest
    check_floats(function, "grad", grad)
    columns = _columns(function, grad, index, *options)
    scale = arguments.factor(function, "scale", scale, grad.dtype)
    arguments.check_byte_count(function, (*grad.shape[:-1], width), 8)
    check_output(function, out, grad)
    read = {"index": columns.index, "q_offset": columns.q_offset}
    if not relative_operators_take(grad, *read.values(), out):
        composable(function, grad=grad, **read, out=out)
        result: Tensor = plain.relative_scatter(function, grad, width, columns, scale)
        return (
            result if out is None else copy_out(function, out, result, *read.values(), apart=grad)
        )
    if out is None:
        return relative_gradients.RELATIVE_SCATTER(grad, width, *columns, scale)  # type: ignore[no-any-return]
    no_output_for_gradient(function, grad)
    arguments.check_shape(function, "out", tuple(out.shape), (*grad.shape[:-1], width))
    relative_gradients.scatter_into(out, grad, *columns, scale)
    return written(out)
