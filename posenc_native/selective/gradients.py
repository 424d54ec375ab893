"""Derivatives of `selective_rotary_qk` by q, k and steps.

    y = R(a) x,  a_t = sum of steps_u, u <= t        g: gradient of y
    of x        R(a) transposed, g                   a rotation the other way
    of a        g_b y_a - g_a y_b of every pair      summed over the heads that share the angle
    of steps    sum of those of a, u >= t            from the end, in float64

Only inputs are kept; y is computed again. All of it is made of operations that have derivatives
themselves, so second ones are there. Forward mode and torch.func follow a composition.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.base.arguments import wrong_value
from posenc_native.engines.tensors.composed.phases import moving
from posenc_native.engines.tensors.following import needs_grad, transformed

from .angles import FUNCTION, Angles, Selective, turned
from .phases import Rows, moved, sums_of_numbers

__all__ = ["rotate"]


def rotate(
    q: Any, k: Any, angles: Angles, starts: Any, to: dict[str, Any]
) -> tuple[Any, Any, Tensor]:
    """q, k and the state after them, for tensors.

    to: the keywords `inplace` and `out`, where they are given.
    """
    steps = angles.steps
    if needs_grad(steps) and any(to.values()):
        expected = "new tensors where steps require a gradient"
        wrong_value(FUNCTION, "out" if "out" in to else "inplace", expected, "others")
    if needs_grad(steps) and not transformed():
        return _Followed.apply(q, k, steps, angles.state, starts, angles.options)  # type: ignore[no-any-return, no-untyped-call]
    cos, sin, state = angles.tables()
    if transformed():
        own = angles.in_order(steps).to(cos.dtype)
        angle = sums_of_numbers(angles.arrays, own, angles.rows, own.ndim - 2)
        cos, sin = moving(cos, sin, angle)
    return (*turned(q, k, angles, cos, sin, to), state)


class _Followed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, steps: Tensor, state: Any, starts: Any, options: Selective
    ) -> Any:
        ctx.options = options
        ctx.starts = starts
        ctx.save_for_backward(q, k, steps, state)
        angles = Angles(q, k, steps.detach(), state, starts, options)
        results = rotate(q, k, angles, starts, {})
        ctx.mark_non_differentiable(results[-1])
        return results

    @staticmethod
    def backward(ctx: Any, of_q: Any, of_k: Any, _: Any) -> Any:
        q, k, steps, state = ctx.saved_tensors
        options: Selective = ctx.options
        back = options._replace(inverse=not options.inverse)
        if options.out_pairing != "same":
            back = back._replace(pairing=options.out_pairing, out_pairing=options.pairing)
        angles = Angles(of_q, of_k, steps, state, ctx.starts, back)
        grad_q, grad_k, _ = rotate(of_q, of_k, angles, ctx.starts, {})
        if not ctx.needs_input_grad[2]:
            return grad_q, grad_k, None, None, None, None
        angles = Angles(q, k, steps, state, ctx.starts, options)
        rotated = rotate(q, k, angles, ctx.starts, {})
        grad = _of_angles(angles, (of_q, of_k), rotated[:2])
        grad = _summed_from_the_end(grad, angles.rows)
        order = sorted(range(len(angles.order)), key=angles.order.__getitem__)
        return grad_q, grad_k, grad.permute(order).to(steps.dtype), None, None, None


def _of_angles(angles: Angles, grads: tuple[Any, ...], rotated: tuple[Any, ...]) -> Tensor:
    """Gradients of angles, in the order of tables."""
    heads = angles.in_order(angles.steps).shape[-3] if angles.by_head else 1
    total: Any = 0
    given = [pair for pair in zip(grads, rotated, strict=True) if pair[1] is not None]
    for (grad, y), view in zip(given, angles.views.values(), strict=True):
        size = 2 * view.pairs
        ((ga, gb), (ya, yb)) = (
            _pairs(each[..., view.start : view.start + size], view.out_block) for each in (grad, y)
        )
        one = angles.in_order((gb * ya - ga * yb).double())
        if angles.by_head and view.heads != heads:
            one = one.unflatten(-3, (heads, view.heads // heads)).sum(-3)
        total = total + one
    result: Tensor = -total if angles.options.inverse else total
    return result


def _pairs(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The first and the second dims of pairs, [..., P]; at least in float32."""
    x = x if x.dtype == torch.float64 else x.float()
    blocks = x.unflatten(-1, (-1, 2, block // 2))
    first, second = blocks.unbind(-2)
    return first.flatten(-2), second.flatten(-2)


def _summed_from_the_end(grad: Tensor, rows: Rows | None) -> Tensor:
    """Sums over this token and all after it in its row, [..., s, P]."""
    sums = grad.flip(-2).cumsum(-2).flip(-2)
    if rows is None:
        return sums
    sums = moved(sums, -2, 0)
    after = torch.cat((sums, sums.new_zeros((1, *sums.shape[1:]))))
    result: Tensor = moved(sums - after[rows.last][rows.of_tokens], 0, -2)
    return result
