"""Gradients of sinusoidal tables: the derivative by a position is made from the table's entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posenc_native.engines import verbs
from posenc_native.engines.following import needs_function, needs_grad
from posenc_native.engines.plain.sinusoids import sinusoidal_rates

from .functions import Differentiable, in_sum_precision


class _Sinusoidal(Differentiable):
    """``sinusoidal(positions, dim, base, layout, shift, scale, dtype)``."""

    def __call__(self, positions: Tensor, *spec: Any) -> Any:
        if positions.is_floating_point() and needs_function(positions):
            return self.followed(positions, *spec)
        return self.forward(positions, *spec)

    def keeps(self, *args: Any) -> tuple[Any, ...]:
        return args

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        positions, *spec, _dtype = kept
        return (_position_gradient(in_sum_precision(grads[0]), positions, *spec),)


class _AddSinusoidal(Differentiable):
    """``add_sinusoidal(x, positions, x_scale, alpha, base, layout, shift, scale)``."""

    def __call__(self, x: Tensor, positions: Tensor | None, *options: Any) -> Any:
        if needs_function(x) or (positions is not None and needs_grad(positions)):
            return self.followed(x, positions, *options)
        return self.forward(x, positions, *options)

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        positions, x_scale, alpha, *spec = kept
        (grad,) = grads
        x = by_position = None
        if wanted[0]:
            x = grad if x_scale == 1.0 else grad * x_scale
        if positions is not None and wanted[1]:
            of_table = in_sum_precision(grad) * alpha
            if positions.shape != grad.shape[:-1]:  # one row of the table for the whole batch
                of_table = of_table.sum_to_size(*positions.shape, grad.shape[-1])
            by_position = _position_gradient(of_table, positions, grad.shape[-1], *spec)
        return x, by_position


SINUSOIDAL = _Sinusoidal(verbs.SINUSOIDAL.operator)
ADD_SINUSOIDAL = _AddSinusoidal(verbs.ADD_SINUSOIDAL.operator)


def _position_gradient(
    grad: Tensor, positions: Tensor, dim: int, base: float, layout: str, shift: float, scale: float
) -> Tensor:
    """The gradient of positions from grad, that of their table: sin' = w cos, cos' = -w sin.

    The table is recomputed in the dtype of grad. This is exact even if the result was rounded to
    half precision, cheaper than keeping the table, and differentiable itself.
    """
    table = SINUSOIDAL(positions, dim, base, layout, shift, scale, grad.dtype)
    (sin, cos), (of_sin, of_cos) = (_sin_and_cos(t, layout) for t in (table, grad))
    rates = sinusoidal_rates(dim, base, shift, scale, grad)
    by_position: Tensor = ((of_sin * cos - of_cos * sin) * rates).sum(-1)
    return by_position.to(positions.dtype)


def _sin_and_cos(table: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    if layout == "interleaved":
        return table[..., 0::2], table[..., 1::2]
    first, second = table.tensor_split(2, -1)
    return (second, first) if layout == "cos_sin" else (first, second)
