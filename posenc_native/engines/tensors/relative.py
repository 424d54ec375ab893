"""Biases by distance, sums along diagonals and look-ups by distance, of tensors."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value

from .composed import relative as composed_relative
from .following import needs_grad
from .gradients import relative as relative_gradients
from .inputs import check_floats, composable, grid_arguments, integer_tensor, table_dtype
from .library import call, ops, relative_operators_take
from .results import check_output, copy_out, no_output_for_gradient, written


def toeplitz_bias(
    diagonals: Tensor,
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...] | None,
    q_offset: Any,
    dtype: Any,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.toeplitz_bias` for tensors."""
    function = "toeplitz_bias"
    check_floats(function, "diagonals", diagonals)
    check_output(function, out, diagonals)
    dtype = diagonals.dtype if dtype is None and out is None else dtype
    dtype = table_dtype(function, dtype, out)
    q_offset = integer_tensor(function, "q_offset", q_offset, diagonals.device)
    heads = tuple(diagonals.shape[: diagonals.ndim - len(q_len)])
    if q_offset is not None and q_offset.ndim == 0:
        q_offset = q_offset.expand(heads[:-1])
    leading = (*(heads[:-1] if q_offset is None else tuple(q_offset.shape)), *heads[-1:])
    shape = (*leading, math.prod(q_len), math.prod(k_len))
    arguments.check_byte_count(function, shape, 8)
    options = (q_len, k_len, start, q_offset)
    if not relative_operators_take(diagonals, q_offset, out):
        composable(function, diagonals=diagonals, q_offset=q_offset, out=out)
        bias = composed_relative.toeplitz_bias(function, diagonals, leading, dtype, *options)
        if out is None:
            return bias
        return copy_out(function, out, bias, q_offset, apart=diagonals)
    if out is None:
        return relative_gradients.TOEPLITZ_BIAS(diagonals, shape, dtype, *grid_arguments(*options))  # type: ignore[no-any-return]
    no_output_for_gradient(function, diagonals)
    arguments.check_shape(function, "out", tuple(out.shape), shape)
    call(ops.toeplitz_bias_out.default, diagonals, *grid_arguments(*options), out=out)
    return written(out)


def add_toeplitz_bias(
    scores: Tensor,
    diagonals: Tensor,
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...] | None,
    q_offset: Any,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.add_toeplitz_bias` for tensors."""
    function = "add_toeplitz_bias"
    # As in apply_rotary_qk: only the checks that decoding needs.
    check_floats(function, "scores", scores)
    check_floats(function, "diagonals", diagonals)
    if q_offset is not None:
        q_offset = integer_tensor(function, "q_offset", q_offset, scores.device)
    check_output(function, out, scores)
    options = (q_len, k_len, start, q_offset)
    if not relative_operators_take(scores, diagonals, q_offset, out):
        composable(function, scores=scores, diagonals=diagonals, q_offset=q_offset, out=out)
        result = composed_relative.add_toeplitz_bias(function, scores, diagonals, *options)
        if out is None:
            return result
        return copy_out(function, out, result, scores, q_offset, apart=diagonals)
    grid = grid_arguments(*options)
    if needs_grad(scores, diagonals):
        if out is None:
            return relative_gradients.ADD_TOEPLITZ_BIAS(scores, diagonals, *grid)  # type: ignore[no-any-return]
        if out is not scores:
            expected = "no out, or scores itself, where a gradient is required"
            wrong_value(function, "out", expected, "another tensor")
        return relative_gradients.ADD_TOEPLITZ_BIAS.in_place(scores, diagonals, *grid)  # type: ignore[no-any-return]
    # Defaults of the schema are left out: reading each takes torch 0.2 microseconds.
    given = grid if q_offset is not None else grid[:3] if start or grid[0] else ()
    if out is None:
        return call(ops.add_toeplitz_bias.default, scores, diagonals, *given)  # type: ignore[no-any-return]
    if out is scores:
        call(ops.add_toeplitz_bias_.default, scores, diagonals, *given)
    else:
        call(ops.add_toeplitz_bias_out.default, scores, diagonals, *given, out=out)
    return written(out)


def diagonal_sums(
    grad: Tensor,
    shape: tuple[int, ...],
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...] | None,
    q_offset: Any,
) -> Tensor:
    """`posenc_native.diagonal_sums` for tensors."""
    function = "diagonal_sums"
    check_floats(function, "grad", grad)
    q_offset = integer_tensor(function, "q_offset", q_offset, grad.device)
    options = (q_len, k_len, start, q_offset)
    if not relative_operators_take(grad, q_offset):
        composable(function, grad=grad, q_offset=q_offset)
        return composed_relative.diagonal_sums(function, grad, shape, *options)
    return relative_gradients.DIAGONAL_SUMS(grad, shape, *grid_arguments(*options))  # type: ignore[no-any-return]


def relative_gather(
    x: Tensor,
    index: Any,
    k_len: int,
    start: int | None,
    q_offset: Any,
    missing: int | None,
    content: Tensor | None,
    scale: float,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.relative_gather` for tensors."""
    function = "relative_gather"
    check_floats(function, "x", x)
    index = integer_tensor(function, "index", index, x.device)
    q_offset = integer_tensor(function, "q_offset", q_offset, x.device)
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
    options = (index, start, q_offset, missing, scale)
    if not relative_operators_take(x, index, q_offset, content, out):
        composable(function, x=x, index=index, q_offset=q_offset, content=content, out=out)
        result = composed_relative.relative_gather(function, x, content, k_len, *options)
        if out is None:
            return result
        return copy_out(function, out, result, content, index, q_offset, apart=x)
    if out is None:
        return relative_gradients.RELATIVE_GATHER(x, content, k_len, *options)  # type: ignore[no-any-return]
    no_output_for_gradient(function, x, content)
    arguments.check_shape(function, "out", tuple(out.shape), shape)
    call(ops.relative_gather_out.default, x, *options[:-1], content, scale, out=out)
    return written(out)


def relative_scatter(
    grad: Tensor,
    index: Any,
    width: int,
    start: int | None,
    q_offset: Any,
    missing: int | None,
    scale: float,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.relative_scatter` for tensors."""
    function = "relative_scatter"
    check_floats(function, "grad", grad)
    index = integer_tensor(function, "index", index, grad.device)
    q_offset = integer_tensor(function, "q_offset", q_offset, grad.device)
    scale = arguments.factor(function, "scale", scale, grad.dtype)
    arguments.check_byte_count(function, (*grad.shape[:-1], width), 8)
    check_output(function, out, grad)
    options = (index, start, q_offset, missing, scale)
    if not relative_operators_take(grad, index, q_offset, out):
        composable(function, grad=grad, index=index, q_offset=q_offset, out=out)
        result = composed_relative.relative_scatter(function, grad, width, *options)
        if out is None:
            return result
        return copy_out(function, out, result, index, q_offset, apart=grad)
    if out is None:
        return relative_gradients.RELATIVE_SCATTER(grad, width, *options)  # type: ignore[no-any-return]
    no_output_for_gradient(function, grad)
    arguments.check_shape(function, "out", tuple(out.shape), (*grad.shape[:-1], width))
    relative_gradients.scatter_into(out, grad, *options)
    return written(out)
