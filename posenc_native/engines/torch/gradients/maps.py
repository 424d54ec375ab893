"""Linear maps of a tensor whose steps autograd shall not record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc_native.engines.following import needs_grad, transformed

from .functions import per_gradient

Map = Callable[[Tensor], Tensor]


def is_eager_on_cpu(x: Tensor) -> bool:
    """Whether x is a plain tensor of the CPU, and nothing but autograd follows operations on it."""
    if torch.compiler.is_compiling() or type(x) is not Tensor or x.device.type != "cpu":
        return False
    followed = torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
    return not (followed or transformed())


def are_fixed_on_cpu(*tensors: Tensor) -> bool:
    """Whether all are `is_eager_on_cpu`, and none needs a gradient."""
    return all(map(is_eager_on_cpu, tensors)) and not needs_grad(*tensors)


def linear_map(x: Tensor, there: Map, back: Map) -> Tensor:
    """``there(x)``; `back` is the transposed map, which carries gradients."""
    if not needs_grad(x):
        return there(x)
    result: Tensor = _Linear.apply(x, there, back)  # type: ignore[no-untyped-call]
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Map, back: Map) -> Tensor:
        ctx.there, ctx.back = there, back
        return there(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (by_x,) = per_gradient(lambda grad: [linear_map(grad, ctx.back, ctx.there)], grads)
        return by_x, None, None
