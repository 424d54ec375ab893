"""Derivatives of `selective_rotary_qk` by q, k and steps.

    y = R(a) x,  a_t = sum of steps_u, u <= t        g: gradient of y
    of x        R(a) transposed, g                   the inverse rotation
    of a        g_b y_a - g_a y_b of every pair      summed over the heads that share the angle
    of steps    sum of those of a, u >= t            from the end, in float64

Only inputs are kept. On the CPU an operator computes everything in one pass. For second
derivatives, and elsewhere, y is recomputed by differentiable operations. If tokens are on several
ranks, each rank receives only the sum over later ranks (across.py). Forward mode and torch.func use
a composition.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.encodings.positions.rows import Rows
from posenc_native.engines.following import needs_grad, transformed
from posenc_native.engines.plain.phases import moving
from posenc_native.engines.torch.gradients.functions import per_gradient

from . import operators
from .angles import FUNCTION, Angles, Selective, turned
from .phases import moved, sums_of_numbers

if TYPE_CHECKING:
    from .across import Across

__all__ = ["new_where_steps_learn", "rotate"]


def rotate(
    q: Any, k: Any, angles: Angles, starts: Any, to: dict[str, Any]
) -> tuple[Any, Any, Tensor]:
    """q, k and the state after them, for tensors.

    to: the keywords `inplace` and `out`, if the call has them.
    """
    steps = angles.steps
    learned = needs_grad(*(x for x in (q, k, steps) if x is not None))
    if any(to.values()):
        new_where_steps_learn(steps, "out" if "out" in to else "inplace")
        learned = False  # q and k may be traced; those operations handle it
    if learned and not transformed():
        if angles.rows is not None and not isinstance(starts, Tensor):
            starts = angles.rows.starts  # a copy: autograd cannot see changes of other arrays
        return _Followed.apply(  # type: ignore[no-any-return, no-untyped-call]
            q, k, steps, angles.state, starts, angles.options, angles.across
        )
    if angles.across is not None and transformed():
        hint = "torch.autograd has their derivatives"
        wrong_type(FUNCTION, "steps", "whole tokens in forward mode and in torch.func",
                   "DTensors cut along them", hint)  # fmt: skip
    results = operators.rotated(q, k, angles, starts, to)
    if results is not None:
        return results
    operators.checked_places(q, k, angles, starts, to)
    cos, sin, state = angles.tables()
    if transformed():
        own = angles.in_order(steps).to(cos.dtype)
        angle = sums_of_numbers(angles.arrays, own, angles.rows, own.ndim - 2)
        cos, sin = moving(cos, sin, angle)
    return (*turned(q, k, angles, cos, sin, to), state)


def new_where_steps_learn(steps: Tensor, argument: str) -> None:
    """ValueError if a gradient of steps needs values that would be overwritten."""
    if needs_grad(steps):
        expected = "new tensors if steps require a gradient"
        wrong_value(FUNCTION, argument, expected, "others")


class _Followed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Any,
        k: Any,
        steps: Tensor,
        state: Any,
        starts: Any,
        options: Selective,
        across: Across | None,
    ) -> Any:
        ctx.options = options
        ctx.across = across
        kept = (q, k) if ctx.needs_input_grad[2] else (None, None)
        ctx.save_for_backward(*kept, steps, state, starts)
        angles = Angles(q, k, steps.detach(), state, starts, options, across)
        results = rotate(q, k, angles, starts, {})
        ctx.mark_non_differentiable(results[-1])
        return results

    @staticmethod
    def backward(ctx: Any, of_q: Any, of_k: Any, _: Any) -> Any:
        backward = partial(
            _gradients, ctx.saved_tensors, ctx.options, ctx.across, ctx.needs_input_grad[2]
        )
        return *per_gradient(backward, (of_q, of_k)), None, None, None, None


def _gradients(
    saved: Any, options: Selective, across: Across | None, learned: bool, of_q: Any, of_k: Any
) -> tuple[Any, Any, Any]:
    """Gradients of q, k and, if they are learned, of the steps."""
    q, k, steps, state, starts = saved
    if learned and across is None:
        angles = Angles(q, k, steps, state, starts, options)
        gradients = operators.rotated_back((of_q, of_k), q, k, angles, starts)
        if gradients is not None:
            return gradients
    back = options._replace(inverse=not options.inverse)
    if options.out_pairing != "same":
        back = back._replace(pairing=options.out_pairing, out_pairing=options.pairing)
    angles = Angles(of_q, of_k, steps, state, starts, back, across)
    grad_q, grad_k, _ = rotate(of_q, of_k, angles, starts, {})
    if not learned:
        return grad_q, grad_k, None
    angles = Angles(q, k, steps, state, starts, options, across)
    rotated = rotate(q, k, angles, starts, {})
    grad = _of_angles(angles, (of_q, of_k), rotated[:2])
    grad = _summed_from_the_end(grad, angles.rows, across)
    order = sorted(range(len(angles.order)), key=angles.order.__getitem__)
    return grad_q, grad_k, grad.permute(order).to(steps.dtype)


def _of_angles(angles: Angles, grads: tuple[Any, ...], rotated: tuple[Any, ...]) -> Tensor:
    """Gradients of angles, in the order of tables."""
    heads = angles.in_order(angles.steps).shape[-3] if angles.by_head else 1
    total: Any = 0
    pairs = [pair for pair in zip(grads, rotated, strict=True) if pair[1] is not None]
    for (grad, y), view in zip(pairs, angles.views.values(), strict=True):
        size = 2 * view.pairs
        ((ga, gb), (ya, yb)) = (
            _pairs(x[..., view.start : view.start + size], view.out_block) for x in (grad, y)
        )
        gradient = angles.in_order((gb * ya - ga * yb).double())
        if angles.by_head and view.heads != heads:
            gradient = gradient.unflatten(-3, (heads, view.heads // heads)).sum(-3)
        total = total + gradient
    result: Tensor = -total if angles.options.inverse else total
    return result


def _pairs(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The first and the second dims of pairs, [..., P]; at least in float32."""
    x = x if x.dtype == torch.float64 else x.float()
    blocks = x.unflatten(-1, (-1, 2, block // 2))
    first, second = blocks.unbind(-2)
    return first.flatten(-2), second.flatten(-2)


def _summed_from_the_end(grad: Tensor, rows: Rows | None, across: Across | None) -> Tensor:
    """Sums over each token and all later tokens in its row, [..., s, P]."""
    sums = grad.flip(-2).cumsum(-2).flip(-2)
    if rows is None:
        if across is None:
            return sums
        return sums + across.later(grad.sum(-2)[None])[0].unsqueeze(-2)
    sums = moved(sums, -2, 0)
    after = torch.cat((sums, sums.new_zeros((1, *sums.shape[1:]))))
    rest = after[rows.last]
    if across is not None:
        rest = rest - across.later(after[rows.first] - rest)
    result: Tensor = moved(sums - rest[rows.of_tokens], 0, -2)
    return result
