"""The gradient of queries, keys and values that come out of one matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.engines.following import forward_mode


def recorded(call: Any, matrix: Tensor) -> Any:
    """New q, k and v of a matrix that is split, recorded by autograd.

    call: has split, composed and gradient (encodings/rotary/packed.py), which are linear in the
        matrix.
    """
    return _Recorded.apply(call, matrix)  # type: ignore[no-untyped-call]


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Any, matrix: Tensor) -> Any:
        ctx.call, ctx.shape = call, matrix.shape
        # Only to notice changes: the call has them, too.
        ctx.save_for_backward(call.positions if isinstance(call.positions, Tensor) else None)
        return call.split(matrix)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        _ = ctx.saved_tensors  # raises if positions were overwritten
        if not (torch.is_grad_enabled() or forward_mode()):
            return None, ctx.call.gradient(ctx.shape, grads)
        with torch.enable_grad():  # for a second derivative
            matrix = grads[0].new_zeros(ctx.shape).requires_grad_()
            results = ctx.call.composed(matrix, None, None)
        return None, torch.autograd.grad(results, matrix, grads, create_graph=True)[0]
