"""Gradients of norm and rotation in one pass: to q, k and the weights.

    y = R (w x r),  r = (mean x^2 + eps)^(-1/2);  h = R^-1 g,  u = w h

    dx = r (u - x r^2 mean(u x)),    dw = sum over tokens (and heads) of h x r

Only the arguments are kept: r is recomputed, and x is not rebuilt from y, because w may be 0. For a
norm after the rotation, x is the rotated input. Sums over tokens are computed in pieces of 32, then
in float64 in sequence: there are no atomics, and results are identical bit for bit every time. With
``compute="as_written"`` the gradient is that of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.rotation import from_flat, schema
from posenc_native.engines.following import forward_mode
from posenc_native.engines.plain import norm_rotary as plain
from posenc_native.engines.torch.library import call
from posenc_native.engines.torch.turns import frequency_turns
from posenc_native.engines.verbs import NORM_ROTARY_QK

from .functions import Differentiable


class _NormRotary(Differentiable):
    """Norm and rotation of q and k, by positions (and compute) or by tables."""

    def __init__(self, tables: bool) -> None:
        super().__init__(NORM_ROTARY_QK.operators[tables], 2)
        self.tables = tables
        # The indices of what follows the rotation, and of q_weight; tables include compute.
        self.end = len(schema(tables))
        self.at = self.end + (not tables)

    def keeps(self, *args: Any) -> tuple[Any, ...]:
        return args

    def followed(self, *args: Any) -> Any:
        # A repeated tensor becomes a view, since torch.compile accepts no tensor twice.
        once: list[Any] = []
        for arg in args:
            again = isinstance(arg, Tensor) and any(arg is other for other in once)
            once.append(arg.view_as(arg) if again else arg)
        return super().followed(*once)

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        if torch.is_grad_enabled() or forward_mode():  # for a second derivative
            gradients = self._plain(kept, grads)
        elif not kept[2 + self.at + 2]:  # no norm: the transpose, times the same factors of queries
            options = kept[2:]
            inverse = schema(self.tables).index("inverse")
            options[inverse] = not options[inverse]
            gradients = [*call(self.bare.new, *grads, *options), None, None]
        else:
            gradients = call(self.bare.backward, *grads, *kept)
        results: list[Any] = [None] * len(kept)
        for i, grad in zip((0, 1, self.at + 2, self.at + 3), gradients, strict=True):
            if wanted[i] and grad is not None:
                results[i] = grad.reshape(kept[i].shape).to(kept[i].dtype)
        return results

    def _plain(self, kept: list[Any], grads: tuple[Tensor, ...]) -> list[Tensor | None]:
        q, k, *options = kept
        rotation = from_flat(options[: self.end], self.tables)
        norm = Norm(*options[self.at :])
        # Separate views: if q is k, or both share a weight, each has its own gradient.
        with torch.enable_grad():
            views = [
                x.view_as(x) if x is not None and x.requires_grad else x
                for x in (q, k, norm.q_weight, norm.k_weight)
            ]
            norm = norm._replace(q_weight=views[2], k_weight=views[3])
            results = plain.norm_rotary(
                "norm_rotary_qk", views[0], views[1], rotation, False, norm, frequency_turns
            )
        inputs = [x for x in views if x is not None and x.requires_grad]
        # A k without a gradient has no backward path.
        pairs = [(y, grad) for y, grad in zip(results, grads, strict=True) if y.requires_grad]
        results, grads = zip(*pairs, strict=True)
        gradients = iter(
            torch.autograd.grad(results, inputs, grads, create_graph=torch.is_grad_enabled())
        )
        return [next(gradients) if x is not None and x.requires_grad else None for x in views]


# By whether tables have the angles.
NORM_ROTARY = {tables: _NormRotary(tables) for tables in (False, True)}
