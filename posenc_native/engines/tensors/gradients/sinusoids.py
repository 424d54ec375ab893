"""Gradients of sinusoidal tables: the derivative by a position is made of the table's entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.engines.tensors.following import needs_function, needs_grad, tracing
from posenc_native.engines.tensors.library import call, ops

from .functions import Differentiable, Function, eager_function, in_sum_precision, keep, kept


def sinusoidal(positions: Tensor, *spec: Any) -> Tensor:
    """Differentiable ``sinusoidal(positions, dim, base, layout, shift, scale, dtype)``."""
    if not (positions.is_floating_point() and needs_function(positions)):
        return call(ops.sinusoidal.default, positions, *spec)  # type: ignore[no-any-return]
    function = _SinusoidalTraced if tracing() else _SinusoidalEager
    return function.apply(positions, *spec)  # type: ignore[no-any-return]


def add_sinusoidal(x: Tensor, positions: Tensor | None, *options: Any) -> Tensor:
    """Differentiable ``add_sinusoidal(x, positions, x_scale, ...)``."""
    options = (positions, *options)
    if not needs_function(x) and (positions is None or not needs_grad(positions)):
        return call(ops.add_sinusoidal.default, x, *options)  # type: ignore[no-any-return]
    function = _AddTraced if tracing() else _AddEager
    return function.apply(x, *options)  # type: ignore[no-any-return]


def _add_backward(ctx: Any, grad: Tensor) -> Any:
    positions, x_scale, alpha, *spec = kept(ctx)
    x = by_position = None
    if ctx.needs_input_grad[0]:
        x = grad if x_scale == 1.0 else grad * x_scale
    if positions is not None and ctx.needs_input_grad[1]:
        of_table = in_sum_precision(grad) * alpha
        if positions.shape != grad.shape[:-1]:  # one row of the table for all of a batch
            of_table = of_table.sum_to_size(*positions.shape, grad.shape[-1])
        by_position = _position_gradient(of_table, positions, grad.shape[-1], *spec)
    return x, by_position, *[None] * (len(spec) + 2)


def _sinusoidal_backward(ctx: Any, grad: Tensor) -> Any:
    positions, *spec, _dtype = kept(ctx)
    return _position_gradient(in_sum_precision(grad), positions, *spec), *[None] * (len(spec) + 1)


def _position_gradient(
    grad: Tensor, positions: Tensor, dim: int, base: float, layout: str, shift: float, scale: float
) -> Tensor:
    """The gradient of positions, from grad, that of their table: sin' = w cos, cos' = -w sin.

    The table is computed again in the dtype of grad. That is exact where the result was rounded to
    half precision, cheaper than keeping the table, and differentiable in turn.
    """
    table = sinusoidal(positions, dim, base, layout, shift, scale, grad.dtype)
    (sin, cos), (of_sin, of_cos) = (_sin_and_cos(t, layout) for t in (table, grad))
    rates = sinusoidal_rates(dim, base, shift, scale, grad)
    return ((of_sin * cos - of_cos * sin) * rates).sum(-1).to(positions.dtype)


def _sin_and_cos(table: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    if layout == "interleaved":
        return table[..., 0::2], table[..., 1::2]
    first, second = table.tensor_split(2, -1)
    return (second, first) if layout == "cos_sin" else (first, second)


def sinusoidal_rates(dim: int, base: float, shift: float, scale: float, like: Tensor) -> Tensor:
    """[dim / 2]: radians a position, for derivatives (angles themselves are fixed point)."""
    wide = torch.float32 if like.device.type == "mps" else torch.float64
    steps = torch.arange(dim // 2, dtype=wide, device=like.device)
    rates: Tensor = base ** (steps / (shift - dim / 2)) * scale if dim else steps
    return rates.to(like.dtype)


class _SinusoidalTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(positions: Tensor, *spec: Any) -> Any:
        return ops.sinusoidal.default(positions, *spec)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs)

    backward = staticmethod(_sinusoidal_backward)


class _AddTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *options: Any) -> Any:
        return ops.add_sinusoidal.default(x, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs[1:])

    backward = staticmethod(_add_backward)


_SinusoidalEager = eager_function("sinusoidal", 0, _sinusoidal_backward)

_AddEager = eager_function("add_sinusoidal", 1, _add_backward)

ADD_SINUSOIDAL = Differentiable.of("add_sinusoidal", 1, add_sinusoidal, _add_backward)
