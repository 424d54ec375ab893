"""Arguments that may be a `Rotary` or an object that has one."""

from __future__ import annotations

from typing import Any

from posenc_native.core.calls import arguments
from posenc_native.core.calls.descriptions import description_in

from .rotary import Rotary


def rotary_in(value: Any) -> Rotary | None:
    """The `Rotary` that the value is or contains; None if neither."""
    rope = description_in(value)
    return rope if isinstance(rope, Rotary) else None


def rotary_of(function: str, argument: str, value: Any) -> Rotary:
    """The argument as a `Rotary`; TypeError if the argument neither is nor has a `Rotary`."""
    rope = rotary_in(value)
    if rope is None:
        expected = "a Rotary, or a module that has one (RotaryEmbedding)"
        arguments.wrong_type(function, argument, expected, type(value).__name__)
    return rope
