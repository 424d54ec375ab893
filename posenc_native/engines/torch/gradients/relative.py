"""Gradients of biases by distance, of their sums and of look-ups, in pairs of transposes.

Calls that need a gradient come from training, on whole matrices. There is no eager form, because
the time that it would save is negligible there. torch.func and forward mode use plain operations.
The backward reads lengths from its tensors, because torch.compile would lose symbolic lengths that
were kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc_native.engines import verbs
from posenc_native.engines.following import tracing
from posenc_native.engines.torch.library import call, ops

from .functions import Differentiable, shape_of

# A grid is the result of inputs.grid_arguments; columns are the fields of a Columns, and scale.


class _Toeplitz(Differentiable):
    """A bias, from diagonals, its shape and dtype, and a grid."""

    def forward(self, diagonals: Tensor, shape: tuple[int, ...], dtype: Any, *grid: Any) -> Any:
        if not tracing():
            return call(ops.toeplitz_bias.default, diagonals, shape, dtype, *grid)
        out = diagonals.new_empty(shape, dtype=dtype)
        call(ops.toeplitz_bias_out.default, diagonals, *grid, out=out)
        return out

    def keeps(self, diagonals: Tensor, shape: Any, dtype: Any, *grid: Any) -> tuple[Any, ...]:
        return shape_of(diagonals), *grid

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        return (_sums_like(grads[0], *kept),)


class _AddToeplitz(Differentiable):
    """Scores plus a bias, from scores, diagonals and a grid."""

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        return grads[0] if wanted[0] else None, _sums_like(grads[0], *kept) if wanted[1] else None


def _sums_like(grad: Tensor, diagonals: Tensor, *grid: Any) -> Tensor:
    sums: Tensor = DIAGONAL_SUMS(grad, tuple(diagonals.shape), *grid)
    return sums.to(diagonals.dtype)


class _DiagonalSums(Differentiable):
    """The transpose of a bias, from matrices, the shape of the diagonals and a grid."""

    def forward(self, grad: Tensor, shape: tuple[int, ...], *grid: Any) -> Any:
        q_len, k_len, start, q_offset = grid
        keep = len(shape) - _axes(q_len)
        entries = None if start is None else list(shape[keep:])  # None: an entry per distance
        sums = call(ops.diagonal_sums.default, grad, keep, q_len, k_len, entries, start, q_offset)
        repeated = [axis for axis in range(keep) if shape[axis] == 1 and sums.shape[axis] != 1]
        return sums.sum(repeated, keepdim=True) if repeated else sums

    def keeps(self, grad: Tensor, shape: Any, *grid: Any) -> tuple[Any, ...]:
        return shape_of(grad), *grid

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        matrices, *grid = kept
        (grad,) = grads
        leading, q_offset = matrices.shape[:-2], grid[3]
        if q_offset is not None and q_offset.ndim != len(leading) - 1:
            # A bias has the axes of q_offset and heads; scores may have other axes between them.
            zeros = matrices.new_zeros(()).expand(matrices.shape)
            return (ADD_TOEPLITZ_BIAS(zeros, grad, *grid),)
        # A bias has the leading axes of its diagonals.
        entries = grad.shape[grad.ndim - _axes(grid[0]) :]
        diagonals = grad.expand(*leading, *entries)
        return (TOEPLITZ_BIAS(diagonals, tuple(matrices.shape), matrices.dtype, *grid),)


def _axes(q_len: list[int] | None) -> int:
    return 1 if q_len is None else len(q_len)


class _Gather(Differentiable):
    """A look-up, from x, content or None, the number of keys, and columns."""

    def forward(self, x: Tensor, content: Tensor | None, k_len: int, *options: Any) -> Any:
        *columns, scale = options
        if not tracing():
            operator = ops.relative_gather.default
            return call(operator, x, *columns, content, scale, k_len)
        out = x.new_empty((*x.shape[:-1], k_len))
        call(ops.relative_gather_out.default, x, *columns, content, scale, out=out)
        return out

    def keeps(self, x: Tensor, content: Any, k_len: int, *columns: Any) -> tuple[Any, ...]:
        return shape_of(x), *columns

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        by_column, *columns = kept
        (grad,) = grads
        x = content = None
        if wanted[0]:
            x = RELATIVE_SCATTER(grad, by_column.shape[-1], *columns)
        if wanted[1]:
            scale = columns[-1]
            content = grad if scale == 1.0 else grad * scale
        return x, content


class _Scatter(Differentiable):
    """The transpose of a look-up, from its gradient, the number of columns, and columns."""

    def forward(self, grad: Tensor, width: int, *columns: Any) -> Any:
        if not tracing():
            by_column = _by_column(columns[0], width)
            return call(ops.relative_scatter.default, grad, *columns, *by_column, width)
        out = grad.new_empty((*grad.shape[:-1], width))
        scatter_into(out, grad, *columns)
        return out

    def keeps(self, grad: Tensor, width: int, *columns: Any) -> tuple[Any, ...]:
        return shape_of(grad), *columns

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        by_key, *columns = kept
        return (RELATIVE_GATHER(grads[0], None, by_key.shape[-1], *columns),)


def scatter_into(out: Tensor, grad: Tensor, *columns: Any) -> None:
    """``relative_scatter`` into `out`."""
    by_column = _by_column(columns[0], out.shape[-1])
    call(ops.relative_scatter_out.default, grad, *columns, *by_column, out=out)


def _by_column(index: Tensor | None, width: int) -> tuple[Tensor | None, Tensor | None]:
    """On a GPU, the entries of the index sorted by column, and where each column begins."""
    if index is None or index.is_cpu:
        return None, None
    # An index of `missing` may be sorted before all columns or after them.
    by_column, order = torch.sort(index.long(), stable=True)
    return order, torch.searchsorted(by_column, torch.arange(width + 1, device=index.device))


TOEPLITZ_BIAS = _Toeplitz(verbs.TOEPLITZ_BIAS.operator)
ADD_TOEPLITZ_BIAS = _AddToeplitz(verbs.ADD_TOEPLITZ_BIAS.operator)
DIAGONAL_SUMS = _DiagonalSums(verbs.DIAGONAL_SUMS.operator)
RELATIVE_GATHER = _Gather(verbs.RELATIVE_GATHER.operator)
RELATIVE_SCATTER = _Scatter(verbs.RELATIVE_SCATTER.operator)
