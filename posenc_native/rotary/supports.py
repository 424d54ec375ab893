"""What is taken where a `Rotary` is: one, or whatever rotates as one says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from posenc_native.base import arguments

if TYPE_CHECKING:
    from .rotary import Rotary


class SupportsRotary(Protocol):
    """A `Rotary`, or what rotates as one says, such as a module of posenc_native.nn."""

    def __rotary__(self) -> Rotary:
        """The description."""


def rotary_in(value: Any) -> Rotary | None:
    """The `Rotary` that the value is or has; None if there is none.

    Whatever rotates as one says has the method ``__rotary__``: modules are on a floor above, and
    functions that take a `Rotary` need not know them. (An attribute ``rope`` would not do: `XPos`
    has one, and scales as well.)
    """
    of = getattr(type(value), "__rotary__", None)
    return None if of is None else of(value)


def rotary_of(function: str, argument: str, value: Any) -> Rotary:
    """The argument as a `Rotary`; TypeError if it neither is nor has one."""
    rope = rotary_in(value)
    if rope is None:
        expected = "a Rotary, or a module that rotates as one says (RotaryEmbedding)"
        arguments.wrong_type(function, argument, expected, type(value).__name__)
    return rope
