"""Gradients of biases by distance, of their sums and of look-ups: each is another's transpose.

Calls that need a gradient come from training, on whole matrices. So there is no eager form: the
time that it would save does not count. torch.func and forward mode take the composition. The
backward reads lengths from its tensors, because torch.compile would lose kept ones that are open.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.engines.tensors.following import needs_grad, tracing
from posenc_native.engines.tensors.inputs import Grid
from posenc_native.engines.tensors.library import call, ops

from .functions import Function, apply, in_place_function, keep, kept, shape_of


def toeplitz_bias(diagonals: Tensor, shape: tuple[int, ...], dtype: Any, grid: Grid) -> Tensor:
    """Differentiable bias of a shape and dtype."""
    if needs_grad(diagonals):
        return apply(_Toeplitz, diagonals, shape, dtype, *grid)  # type: ignore[no-any-return]
    return _lay_diagonals(diagonals, shape, dtype, grid)


def add_toeplitz_bias(scores: Tensor, diagonals: Tensor, *grid: Any) -> Tensor:
    """Differentiable ``add_toeplitz_bias(scores, diagonals, q_len, k_len, start, q_offset)``."""
    if needs_grad(scores, diagonals):
        return apply(_AddToeplitz, scores, diagonals, *grid)  # type: ignore[no-any-return]
    return call(ops.add_toeplitz_bias.default, scores, diagonals, *grid)  # type: ignore[no-any-return]


def diagonal_sums(grad: Tensor, shape: tuple[int, ...], grid: Grid) -> Tensor:
    """Differentiable sums of the shape of the diagonals."""
    if needs_grad(grad):
        return apply(_DiagonalSums, grad, shape, *grid)  # type: ignore[no-any-return]
    return _sum_diagonals(grad, shape, grid)


def relative_gather(x: Tensor, content: Tensor | None, k_len: int, *options: Any) -> Tensor:
    """Differentiable gather; options are index, start, q_offset, missing, scale."""
    if needs_grad(x) or (content is not None and needs_grad(content)):
        return apply(_Gather, x, content, k_len, *options)  # type: ignore[no-any-return]
    return _gather(x, content, k_len, options)


def relative_scatter(grad: Tensor, width: int, *options: Any) -> Tensor:
    """Differentiable scatter; options as those of the gather."""
    if needs_grad(grad):
        return apply(_Scatter, grad, width, *options)  # type: ignore[no-any-return]
    return _scatter(grad, width, options)


def _lay_diagonals(
    diagonals: Tensor, shape: tuple[int, ...], dtype: Any, grid: tuple[Any, ...]
) -> Tensor:
    if not tracing():
        return call(ops.toeplitz_bias.default, diagonals, shape, dtype, *grid)  # type: ignore[no-any-return]
    out = diagonals.new_empty(shape, dtype=dtype)
    call(ops.toeplitz_bias_out.default, diagonals, *grid, out=out)
    return out


def _axes(q_len: list[int] | None) -> int:
    return 1 if q_len is None else len(q_len)


def _sum_diagonals(grad: Tensor, shape: tuple[int, ...], grid: tuple[Any, ...]) -> Tensor:
    q_len, k_len, start, q_offset = grid
    keep = len(shape) - _axes(q_len)
    entries = None if start is None else list(shape[keep:])  # None: as many as there are distances
    sums = call(ops.diagonal_sums.default, grad, keep, q_len, k_len, entries, start, q_offset)
    repeated = [axis for axis in range(keep) if shape[axis] == 1 and sums.shape[axis] != 1]
    return sums.sum(repeated, keepdim=True) if repeated else sums  # type: ignore[no-any-return]


def _gather(x: Tensor, content: Tensor | None, k_len: int, options: tuple[Any, ...]) -> Tensor:
    *columns, scale = options
    if not tracing():
        return call(ops.relative_gather.default, x, *columns, content, scale, k_len)  # type: ignore[no-any-return]
    out = x.new_empty((*x.shape[:-1], k_len))
    call(ops.relative_gather_out.default, x, *columns, content, scale, out=out)
    return out


def _scatter(grad: Tensor, width: int, options: tuple[Any, ...]) -> Tensor:
    if not tracing():
        by_column = _by_column(options[0], width)
        return call(ops.relative_scatter.default, grad, *options, *by_column, width)  # type: ignore[no-any-return]
    out = grad.new_empty((*grad.shape[:-1], width))
    scatter_into(out, grad, *options)
    return out


def scatter_into(out: Tensor, grad: Tensor, *options: Any) -> None:
    """``relative_scatter`` into `out`."""
    by_column = _by_column(options[0], out.shape[-1])
    call(ops.relative_scatter_out.default, grad, *options, *by_column, out=out)


def _by_column(index: Tensor | None, width: int) -> tuple[Tensor | None, Tensor | None]:
    """On a GPU, the entries of the index sorted by column, and where each column begins."""
    if index is None or index.is_cpu:
        return None, None
    # It does not matter where an index of `missing` goes: before all columns, or behind them.
    by_column, order = torch.sort(index.long(), stable=True)
    return order, torch.searchsorted(by_column, torch.arange(width + 1, device=index.device))


class _Toeplitz(Function):
    @staticmethod
    def forward(diagonals: Tensor, shape: Any, dtype: Any, *grid: Any) -> Any:
        return _lay_diagonals(diagonals, shape, dtype, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, (shape_of(inputs[0]), *inputs[3:]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        diagonals, *grid = kept(ctx)
        sums = diagonal_sums(grad, tuple(diagonals.shape), tuple(grid))
        return sums.to(diagonals.dtype), *[None] * 6


def _add_toeplitz_backward(ctx: Any, grad: Tensor) -> Any:
    diagonals, *grid = kept(ctx)
    sums = None
    if ctx.needs_input_grad[1]:
        sums = diagonal_sums(grad, tuple(diagonals.shape), tuple(grid)).to(diagonals.dtype)
    return grad if ctx.needs_input_grad[0] else None, sums, *[None] * 4


class _AddToeplitz(Function):
    @staticmethod
    def forward(scores: Tensor, diagonals: Tensor, *grid: Any) -> Any:
        return call(ops.add_toeplitz_bias.default, scores, diagonals, *grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs[1:])

    backward = staticmethod(_add_toeplitz_backward)


class _DiagonalSums(Function):
    @staticmethod
    def forward(grad: Tensor, shape: Any, *grid: Any) -> Any:
        return _sum_diagonals(grad, shape, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, (shape_of(inputs[0]), *inputs[2:]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        matrices, *grid = kept(ctx)
        leading, q_offset = matrices.shape[:-2], grid[3]
        if q_offset is not None and q_offset.ndim != len(leading) - 1:
            # A bias has the axes of its q_offset and heads; scores may have others between them.
            zeros = matrices.new_zeros(()).expand(matrices.shape)
            return add_toeplitz_bias(zeros, grad, *grid), *[None] * 5
        # A bias has the leading axes of its diagonals.
        entries = grad.shape[grad.ndim - _axes(grid[0]) :]
        diagonals = grad.expand(*leading, *entries)
        bias = toeplitz_bias(diagonals, tuple(matrices.shape), matrices.dtype, tuple(grid))
        return bias, *[None] * 5


class _Gather(Function):
    @staticmethod
    def forward(x: Tensor, content: Tensor | None, k_len: int, *options: Any) -> Any:
        return _gather(x, content, k_len, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, (shape_of(inputs[0]), *inputs[3:]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        by_column, *options = kept(ctx)
        x = content = None
        if ctx.needs_input_grad[0]:
            x = relative_scatter(grad, by_column.shape[-1], *options)
        if ctx.needs_input_grad[1]:
            scale = options[-1]
            content = grad if scale == 1.0 else grad * scale
        return x, content, *[None] * 6


class _Scatter(Function):
    @staticmethod
    def forward(grad: Tensor, width: int, *options: Any) -> Any:
        return _scatter(grad, width, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, (shape_of(inputs[0]), *inputs[2:]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        by_key, *options = kept(ctx)
        return relative_gather(grad, None, by_key.shape[-1], *options), *[None] * 6


add_toeplitz_bias_ = in_place_function(
    "add_toeplitz_bias", 1, _add_toeplitz_backward, add_toeplitz_bias
)
