"""Gradients of norm and rotation in one pass: to q, k and the weights.

    y = R (w x r),  r = (mean x^2 + eps)^(-1/2);  h = R^-1 g,  u = w h

    dx = r (u - x r^2 mean(u x)),    dw = sum over tokens (and heads) of h x r

What is kept are the arguments: r is recomputed, and x is not rebuilt from y, where w may be 0. Of
a norm after the rotation x is the rotated one. Sums over tokens are those of pieces of 32, in
float64 one after the other: no atomics, the same bits every time. With ``compute="as_written"`` the
gradient is that of float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.base.norms import Norm
from posenc_native.base.rotation import Rotation, TableRotation
from posenc_native.engines.tensors.composed import norm_rotary as composed
from posenc_native.engines.tensors.following import forward_mode, needs_grad
from posenc_native.engines.tensors.library import call, ops

from .functions import Function, apply, keep, kept


def norm_rotary_qk(suffix: str, q: Tensor, k: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Differentiable ``norm_rotary_qk(q, k, *options)``, with angles as the suffix says."""
    weights = [option for option in options if isinstance(option, Tensor)]
    if not needs_grad(q, k, *weights):
        operator = getattr(ops, f"norm_rotary_qk{suffix}")
        return call(operator.default, q, k, *options)  # type: ignore[no-any-return]
    function = _NormRotaryFromTables if suffix else _NormRotary
    return apply(function, *_each_once(q, k, *options))  # type: ignore[no-any-return]


def _each_once(*args: Any) -> list[Any]:
    """The arguments; a tensor that comes again is a view: torch.compile takes none twice."""
    once: list[Any] = []
    for arg in args:
        again = isinstance(arg, Tensor) and any(arg is other for other in once)
        once.append(arg.view_as(arg) if again else arg)
    return once


def _backward(ctx: Any, grad_q: Tensor, grad_k: Tensor, suffix: str) -> Any:
    q, k, *options = kept(ctx)
    if torch.is_grad_enabled() or forward_mode():  # for a second derivative
        grads = _by_composition(suffix, q, k, options, (grad_q, grad_k))
    else:
        operator = getattr(ops, f"norm_rotary_qk{suffix}_backward")
        grads = call(operator.default, grad_q, grad_k, q, k, *options)
    needs = ctx.needs_input_grad
    at = _first_weight(suffix)
    results: list[Any] = [None] * (2 + len(options))
    for i, grad in zip((0, 1, at, at + 1), grads, strict=True):
        if needs[i] and grad is not None:
            x = (q, k, *options)[i]
            results[i] = grad.reshape(x.shape).to(x.dtype)
    return tuple(results)


def _first_weight(suffix: str) -> int:
    """Where q_weight is among the arguments of the Function."""
    return 2 + (len(TableRotation._fields) if suffix else len(Rotation._fields) + 1)


def _by_composition(
    suffix: str, q: Tensor, k: Tensor, options: list[Any], grads: tuple[Tensor, Tensor]
) -> list[Tensor | None]:
    at = _first_weight(suffix) - 2
    norm = Norm(*options[at:])
    rotation: Any = TableRotation(*options[:at]) if suffix else Rotation(*options[: at - 1])
    wanted = [q, k, norm.q_weight, norm.k_weight]
    # Views of their own: where q is k, or a weight serves both, each has its own gradient.
    with torch.enable_grad():
        views = [x.view_as(x) if x is not None and x.requires_grad else x for x in wanted]
    norm = norm._replace(q_weight=views[2], k_weight=views[3])
    with torch.enable_grad():
        results = composed.norm_rotary(_NAME, views[0], views[1], rotation, False, norm)
    inputs = [x for x in views if x is not None and x.requires_grad]
    # Of a k without a gradient nothing leads back.
    results, grads = zip(
        *((y, grad) for y, grad in zip(results, grads, strict=True) if y.requires_grad),
        strict=True,
    )
    found = iter(torch.autograd.grad(results, inputs, grads, create_graph=torch.is_grad_enabled()))
    return [next(found) if x is not None and x.requires_grad else None for x in views]


_NAME = "norm_rotary_qk"


class _NormRotary(Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, *options: Any) -> Any:
        return call(ops.norm_rotary_qk.default, q, k, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> Any:
        return _backward(ctx, grad_q, grad_k, "")


class _NormRotaryFromTables(Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, *options: Any) -> Any:
        return call(ops.norm_rotary_qk_from_tables.default, q, k, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> Any:
        return _backward(ctx, grad_q, grad_k, "_from_tables")
