"""Gradients of a rotation by the inputs of its angles: frequencies and positions.

The derivative by an angle is the cross product of a pair of x and its gradient, summed over heads;
no cosine is needed. It is computed from values that have not been rounded to half precision. The
call alone determines which thread sums which terms, in which order: there are no atomics, and
results are identical bit for bit every time. CPU and CUDA agree bit for bit only on the gradient of
x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls.rotation import Rotation, apart, of_each
from posenc_native.engines.following import forward_mode, needs_grad, tracing
from posenc_native.engines.plain.rotary import view_of
from posenc_native.engines.torch.library import call

from .functions import Differentiable
from .rotary import ROTARY, ROTARY_QK, Turn


class _Learned(Differentiable):
    """A rotation of x, or of q and k, that is also differentiable by frequencies and positions."""

    def __init__(self, turn: Turn, alone: _Learned | None = None) -> None:
        super().__init__(turn.name, turn.inputs)
        self.turn = turn
        self.alone = alone

    def __call__(self, *args: Any) -> Any:
        if forward_mode():
            return self.turn(*args)  # by plain operations: everything differentiates them
        if self.alone is None:
            return self.followed(*args)
        q, k, *options = args
        rotation = Rotation(*options)
        if apart(rotation):
            of_q, of_k = of_each(rotation)
            return self.alone(q, *of_q), self.alone(k, *of_k)
        if q is k and tracing():  # as in Turn
            rotated = self.alone(q, *options)
            return rotated, rotated
        return self.followed(*args)

    def keeps(self, *args: Any) -> tuple[Any, ...]:
        return args

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        """Gradients of x (or of q and k), positions and frequencies."""
        count = self.inputs
        inputs, rotation = kept[:count], Rotation(*kept[count:])
        positions, inv_freq, axis_map = rotation.positions, rotation.inv_freq, rotation.axis_map
        of_positions, of_frequencies = wanted[count : count + 2]
        if not (torch.is_grad_enabled() or forward_mode()):
            *turned, frequencies, points = call(
                self.bare.backward, *grads, *inputs, *rotation, of_positions=of_positions
            )
        else:  # for a second derivative in either mode
            turned = [_turned(grad, rotation.turned_back()) for grad in grads]
            angles = [_angle_gradient(x, y, rotation) for x, y in zip(inputs, turned, strict=True)]
            frequencies, points = _frequency_gradients(
                sum(angles[1:], angles[0]), positions, inv_freq, axis_map
            )
        if of_positions:
            if positions.numel() != points.numel():  # one row of positions for the whole batch
                points = points.sum(1, keepdim=True)
            points = points.reshape(positions.shape).to(positions.dtype)
        return (
            *turned,
            points if of_positions else None,
            frequencies.to(inv_freq.dtype) if of_frequencies else None,
        )


LEARNED_ROTARY = _Learned(ROTARY[False])
LEARNED_ROTARY_QK = _Learned(ROTARY_QK[False], LEARNED_ROTARY)


def _turned(grad: Tensor, rotation: Rotation) -> Tensor:
    angles = (rotation.positions, rotation.inv_freq)
    learned = needs_grad(*(t for t in angles if t is not None and t.is_floating_point()))
    return (LEARNED_ROTARY if learned else ROTARY[False])(grad, *rotation)  # type: ignore[no-any-return]


def _angle_gradient(x: Tensor, y: Tensor, rotation: Rotation) -> Tensor:
    """Cross products of the pairs of x and y, [b, s, P], summed over heads, or [b, s, H, P]."""
    pairs, start = rotation.inv_freq.shape[-1], rotation.rotary_start
    view = view_of("apply_rotary", "x", x, rotation, pairs)
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    half = view.block // 2
    (a, b), (g, h) = (
        t[..., start : start + 2 * pairs]
        .to(real)
        .unflatten(-1, (pairs // half, 2, half))
        .unbind(-2)
        for t in (x, y)
    )
    cross = (a * h - b * g).flatten(-2)
    cross = -cross if rotation.inverse else cross
    letters = rotation.layout.replace("t", "s")
    for letter in "bsh":
        if letter not in letters:
            letters, cross = letter + letters, cross.unsqueeze(0)
    cross = cross.permute([letters.index(letter) for letter in "bshd"])
    summed: Tensor = cross if rotation.inv_freq.ndim > 1 else cross.sum(2)
    return summed


def _frequency_gradients(
    angles: Tensor, positions: Tensor | None, inv_freq: Tensor, axis_map: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of inv_freq and of positions, [A, b, s], from those of the angles."""
    batch, tokens = angles.shape[:2]
    by_axis = axis_map is not None or inv_freq.ndim == 3
    if positions is None:
        points = torch.arange(tokens, device=angles.device).expand(1, 1, tokens)
    else:
        points = positions if by_axis else positions[None]
        points = points.unsqueeze(1) if points.ndim == 2 else points
    points = points.to(angles.dtype).expand(-1, batch, tokens)
    weights = inv_freq.to(angles.dtype)
    if inv_freq.ndim == 3:
        if weights.shape[1] == 1:
            angles = angles.sum(2, keepdim=True)
        return (
            torch.einsum("abs,bshp->ahp", points, angles),
            torch.einsum("bshp,ahp->abs", angles, weights),
        )
    if inv_freq.ndim == 2 and weights.shape[0] == 1:
        angles = angles.sum(2, keepdim=True)
    angles = angles if inv_freq.ndim == 2 else angles.unsqueeze(2)
    weights = weights if inv_freq.ndim == 2 else weights[None]
    # The axis that drives each pair, [A, P]; without an axis_map, a single axis.
    axes = torch.ones_like(weights[:1])
    if axis_map is not None:
        numbers = torch.arange(points.shape[0], device=angles.device)
        axes = (axis_map == numbers[:, None]).to(angles.dtype)
    frequencies = torch.einsum("abs,bshp,ap->hp", points, angles, axes)
    return (
        frequencies.reshape(inv_freq.shape),
        torch.einsum("bshp,hp,ap->abs", angles, weights, axes),
    )
