"""One autograd node for a call on DTensors.

torch records a node in Python for every `to_local` and `from_local`, which takes longer than a
small call. Here one node takes the parts of all DTensors, computes, and makes DTensors of the
results. The backward of a linear operation, as a rotation is, is a call of the same kind, which
autograd can record again. A second derivative of another operation has torch's nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from posenc_native.engines.following import needs_grad

from .cut import Cut, new_like, whole

# Takes the parts of the inputs, and None or a tuple of those of the outputs.
Compute = Callable[[Sequence[Tensor], Any], Sequence[Tensor]]


def linear(
    cuts: Sequence[Cut],
    inputs: Sequence[DTensor],
    read: Sequence[Tensor],
    compute: Compute,
    transpose: Compute,
) -> tuple[DTensor, ...]:
    """New DTensors sharded like the inputs, recorded if an input needs a gradient.

    read: the tensors that both functions read, beside the parts.
    """
    if not needs_grad(*inputs):
        return new_like(cuts, inputs, compute)
    results: Any = _Linear.apply(cuts, read, compute, transpose, *inputs)  # type: ignore[no-untyped-call]
    return results  # type: ignore[no-any-return]


def nonlinear(
    cuts: Sequence[Cut],
    inputs: Sequence[DTensor],
    others: Sequence[Tensor | None],
    read: Sequence[Tensor],
    compute: Compute,
    gradients: Callable[[Sequence[Any], Sequence[Tensor]], Sequence[Tensor | None]],
) -> tuple[DTensor, ...]:
    """New DTensors sharded like the inputs, recorded. No input has to be redistributed.

    others: local tensors with a gradient; compute, gradients: take them after the parts; read: the
    tensors that both functions read, beside these.
    """
    results: Any = _Nonlinear.apply(cuts, read, compute, gradients, *inputs, *others)  # type: ignore[no-untyped-call]
    return results  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        cuts: Sequence[Cut],
        read: Sequence[Tensor],
        compute: Compute,
        transpose: Compute,
        *inputs: DTensor,
    ) -> Any:
        ctx.call = cuts, transpose, compute, [x.placements for x in inputs]
        # Only to notice changes: the functions have them, too.
        ctx.save_for_backward(*read)
        return new_like(cuts, inputs, compute)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        read = ctx.saved_tensors  # raises if one of them was overwritten
        cuts, transpose, compute, placements = ctx.call
        # A result without a gradient gets plain zeros from torch.
        inputs = [whole(grad, cut.mesh) for grad, cut in zip(grads, cuts, strict=True)]
        results = linear(cuts, inputs, read, transpose, compute)
        return None, None, None, None, *map(_placed, results, placements)


class _Nonlinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        cuts: Sequence[Cut],
        read: Sequence[Tensor],
        compute: Compute,
        gradients: Any,
        *tensors: Any,
    ) -> Any:
        ctx.call = cuts, gradients, len(tensors)
        ctx.save_for_backward(*tensors, *read)
        inputs, others = tensors[: len(cuts)], tensors[len(cuts) :]
        return new_like(cuts, inputs, lambda parts, to: compute((*parts, *others), to))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        cuts, gradients, count = ctx.call
        tensors = ctx.saved_tensors[:count]
        inputs, others = tensors[: len(cuts)], tensors[len(cuts) :]
        incoming = [whole(grad, cut.mesh) for grad, cut in zip(grads, cuts, strict=True)]
        # For a second derivative, torch records these steps.
        parts = [x.to_local() for x in inputs]
        own = [cut.local(grad) for cut, grad in zip(cuts, incoming, strict=True)]
        result = gradients((*parts, *others), own)
        joined = [cut.join(part, cut.names) for cut, part in zip(cuts, result, strict=False)]
        return *[None] * 4, *joined, *result[len(cuts) :]


def _placed(grad: DTensor, placements: tuple[Any, ...]) -> DTensor:
    """A gradient placed like its input; that of a pending sum is the same on every rank."""
    if grad.placements == placements:
        return grad
    wanted = tuple(Replicate() if p.is_partial() else p for p in placements)
    return grad if grad.placements == wanted else grad.redistribute(placements=wanted)
