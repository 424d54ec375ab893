"""One autograd node for a call on DTensors that is linear in its inputs, as a rotation is.

torch records a node in Python for every `to_local` and `from_local`, which takes longer than a
small call. Here one node takes the parts of all DTensors, computes, and makes DTensors of the
results. Its backward is a call of the same kind, the transpose, which autograd can record again.
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

    read: what both functions read.
    """
    if not needs_grad(*inputs):
        return new_like(cuts, inputs, compute)
    results: Any = _Linear.apply(cuts, read, compute, transpose, *inputs)  # type: ignore[no-untyped-call]
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


def _placed(grad: DTensor, placements: tuple[Any, ...]) -> DTensor:
    """A gradient placed like its input; that of a pending sum is the same on every rank."""
    if grad.placements == placements:
        return grad
    wanted = tuple(Replicate() if p.is_partial() else p for p in placements)
    return grad if grad.placements == wanted else grad.redistribute(placements=wanted)
