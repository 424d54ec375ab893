"""Descriptions of a rotation, which replace frequencies and also hold options that these lack.

A description is a `Rotary`, or its method ``__rotary__`` returns one. (An attribute ``rope`` would
not do: the module `XPos` has one, and scales as well.) If it learns its frequencies, its method
``__frequencies__`` returns them as a tensor, which gradients reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import arguments

# Options of a rotation that a description includes.
DESCRIBED = ("pairing", "rotary_start", "axis_map", "scale")


def description_in(value: Any) -> Any:
    """The `Rotary` that the value is or contains; None if neither."""
    of = getattr(type(value), "__rotary__", None)
    return None if of is None else of(value)


def learned_in(value: Any) -> Any:
    """The frequencies that a description learns; None if it learns none."""
    of = getattr(type(value), "__frequencies__", None)
    return None if of is None else of(value)


def check_none_beside(function: str, rope: Any, options: Mapping[str, Any]) -> None:
    """ValueError for an option beside a description that includes the option."""
    for name, value in options.items():
        if value is not None:
            expected = f"no {name} beside a Rotary, which has {name}={getattr(rope, name)!r}"
            arguments.wrong_value(function, name, expected, repr(value))
