"""Gradients of rotations: the same operator for the inverse rotation, to any order.

In forward mode plain operations rotate, also in a backward that gets gradients with tangents there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posenc_native.core.calls.rotation import flat, from_flat
from posenc_native.engines.following import forward_mode, needs_grad, tracing, transformed
from posenc_native.engines.plain import rotary as plain
from posenc_native.engines.torch.library import call
from posenc_native.engines.torch.turns import frequency_turns
from posenc_native.engines.verbs import APPLY_ROTARY, APPLY_ROTARY_QK, RotaryVerb

from .functions import Differentiable


class Turn(Differentiable):
    """A rotation of x, or of q and k."""

    def __init__(self, verb: RotaryVerb, tables: bool, alone: Turn | None = None) -> None:
        """tables: angles come from tables; alone: for q and k, the rotation of one tensor."""
        super().__init__(verb.operators[tables], len(verb.rotated))
        self.verb = verb
        self.tables = tables
        self.alone = alone

    def __call__(self, *args: Any) -> Any:
        """Rotate x, or q and k."""
        inputs = args[: self.inputs]
        if not transformed():
            return (self.followed if needs_grad(*inputs) else self.forward)(*args)
        if forward_mode():
            rotation = from_flat(args[self.inputs :], self.tables)
            results = plain.apply_rotary(self.verb.name, inputs, rotation, frequency_turns)
            return results[0] if self.alone is None else results
        return self.followed(*args)

    def followed(self, *args: Any) -> Any:
        """The results, recorded by autograd or a transform."""
        if self.alone is not None and args[0] is args[1] and tracing():
            # torch.compile allows no Function to get a tensor twice
            rotated = self.alone(args[0], *args[2:])
            return rotated, rotated
        return super().followed(*args)

    def forward(self, *args: Any) -> Any:
        """The results without autograd; the door bypasses torch's dispatcher."""
        options = from_flat(args[self.inputs :], True) if self.tables else args[self.inputs :]
        to = None if self.alone is None else False
        rotated = self.verb.door(*args[: self.inputs], *options, to)
        return call(self.bare.new, *args) if rotated is NotImplemented else rotated

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        """The gradients, rotated back."""
        results = self(*grads, *flat(from_flat(kept, self.tables).turned_back()))
        return (results,) if self.alone is None else results


# By whether tables have the angles.
ROTARY = {tables: Turn(APPLY_ROTARY, tables) for tables in (False, True)}
ROTARY_QK = {tables: Turn(APPLY_ROTARY_QK, tables, alone) for tables, alone in ROTARY.items()}
