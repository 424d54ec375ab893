"""Descriptions of a rotation, which stand in place of frequencies and say all that these cannot.

A description is a `Rotary`, or has one, which its method ``__rotary__`` returns. (An attribute
``rope`` would not do: the module `XPos` has one, and scales as well.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import arguments

# Options of a rotation that a description has itself.
DESCRIBED = ("pairing", "rotary_start", "axis_map", "scale")


def description_in(value: Any) -> Any:
    """The `Rotary` that the value is or has; None if there is none."""
    of = getattr(type(value), "__rotary__", None)
    return None if of is None else of(value)


def check_none_beside(function: str, rope: Any, options: Mapping[str, Any]) -> None:
    """ValueError for an option, by its name, that is given beside a description which has it."""
    for name, given in options.items():
        if given is not None:
            expected = f"none beside a Rotary, which has {name}={getattr(rope, name)!r}"
            arguments.wrong_value(function, name, expected, repr(given))
