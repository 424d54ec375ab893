"""Gradients of rotations: the same operator turned the other way, to any order.

In forward mode it is the composition that turns, and so it is where a backward that is run there
gets gradients with tangents.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from posenc_native.base.rotation import Rotation, TableRotation
from posenc_native.engines.tensors.composed import rotary as composed
from posenc_native.engines.tensors.following import forward_mode, needs_function, tracing
from posenc_native.engines.tensors.library import call

from .functions import Differentiable


class Turn(Differentiable):
    """A rotation of x, or of q and k."""

    def __init__(self, name: str, kind: Any, function: str, alone: Turn | None = None) -> None:
        """alone: of q and k the rotation of one."""
        super().__init__(name, 1 if alone is None else 2)
        self.kind = kind
        self.function = function
        self.alone = alone

    def __call__(self, *args: Any) -> Any:
        """X, or q and k, turned."""
        inputs = args[: self.inputs]
        if not needs_function(*inputs):
            return call(self.bare[0], *args)
        if forward_mode():
            compose: Any = composed.apply_rotary
            if self.kind is TableRotation:
                compose = composed.apply_rotary_tables
            results = compose(self.function, inputs, self.kind(*args[self.inputs :]))
            return results[0] if self.alone is None else results
        if self.alone is not None and inputs[0] is inputs[1] and tracing():
            # torch.compile allows no Function one tensor twice
            rotated = self.alone(inputs[0], *args[2:])
            return rotated, rotated
        return self.followed(*args)

    def backward(self, kept: list[Any], wanted: tuple[bool, ...], *grads: Tensor) -> Any:
        """The gradients turned back."""
        results = self(*grads, *self.kind(*kept).turned_back())
        return (results,) if self.alone is None else results


ROTARY = Turn("rotary", Rotation, "apply_rotary")
ROTARY_QK = Turn("rotary_qk", Rotation, "apply_rotary_qk", ROTARY)
FROM_TABLES = Turn("rotary_from_tables", TableRotation, "apply_rotary_tables")
QK_FROM_TABLES = Turn("rotary_qk_from_tables", TableRotation, "apply_rotary_qk_tables", FROM_TABLES)
