"""Gradients of rotations: the same operator for the inverse rotation, to any order.

In forward mode plain operations rotate, also in a backward that gets gradients with tangents there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posenc_native.core.calls.rotation import Rotation, TableRotation
from posenc_native.engines import backend
from posenc_native.engines.following import forward_mode, needs_grad, tracing, transformed
from posenc_native.engines.plain import rotary as plain
from posenc_native.engines.torch.library import call
from posenc_native.engines.torch.turns import frequency_turns

from .functions import Differentiable


class Turn(Differentiable):
    """A rotation of x, or of q and k."""

    def __init__(self, name: str, kind: Any, function: str, alone: Turn | None = None) -> None:
        """alone: for q and k, the rotation of one tensor."""
        super().__init__(name, 1 if alone is None else 2)
        self.kind = kind
        self.function = function
        self.alone = alone

    def __call__(self, *args: Any) -> Any:
        """Rotate x, or q and k."""
        inputs = args[: self.inputs]
        if not transformed():
            return (self.followed if needs_grad(*inputs) else self.forward)(*args)
        if forward_mode():
            rotation = self.kind(*args[self.inputs :])
            if self.kind is TableRotation:
                results = plain.apply_rotary_tables(self.function, inputs, rotation)
            else:
                results = plain.apply_rotary(self.function, inputs, rotation, frequency_turns)
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
        """The results without autograd; a small call bypasses torch's dispatcher."""
        rotated = getattr(backend.door, self.function)(*args, None if self.alone is None else False)
        return call(self.bare[0], *args) if rotated is NotImplemented else rotated

    def backward(self, kept: list[Any], wanted: Sequence[bool], *grads: Tensor) -> Any:
        """The gradients, rotated back."""
        results = self(*grads, *self.kind(*kept).turned_back())
        return (results,) if self.alone is None else results


ROTARY = Turn("rotary", Rotation, "apply_rotary")
ROTARY_QK = Turn("rotary_qk", Rotation, "apply_rotary_qk", ROTARY)
FROM_TABLES = Turn("rotary_from_tables", TableRotation, "apply_rotary_tables")
QK_FROM_TABLES = Turn("rotary_qk_from_tables", TableRotation, "apply_rotary_qk_tables", FROM_TABLES)
