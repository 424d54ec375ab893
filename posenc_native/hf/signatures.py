"""Which functions of a model are rotary functions, told by the names of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .forms import NotServed

__all__ = ["RotaryArguments", "is_table", "rotary_arguments", "takes_positions", "takes_tables"]

# Names of arguments that are tables, whole or as beginnings.
_ONE_TABLE = ("freqs_ci", "sinusoidal_pos")


def is_table(name: str) -> bool:
    """Whether the argument of this name is a table, or one of several."""
    return name.startswith(("cos", "sin_", *_ONE_TABLE)) or name == "sin"


def takes_tables(function: Any) -> bool:
    """Whether a function has arguments cos and sin, or one that holds both."""
    names = _argument_names(function)
    return {"cos", "sin"} <= {*names} or any(name.startswith(_ONE_TABLE) for name in names)


def takes_positions(function: Any) -> bool:
    """Whether a function has two arguments, heads x and their positions pos."""
    return _argument_names(function) == ["x", "pos"]


def _argument_names(function: Any) -> list[str]:
    """The names; none for what is not a function, or for a builtin that does not tell."""
    if not callable(function) or isinstance(function, type):
        return []
    try:
        return [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        return []


@dataclass(frozen=True)
class RotaryArguments:
    """The arguments of a rotary function.

    Attributes:
        names: all of them, in order.
        tables: (cos, sin), or the one with both.
        heads: those that are rotated.
        positions: those that must be there and say nothing that tables do not.
        defaults: the others.
    """

    names: tuple[str, ...]
    tables: tuple[str, ...]
    heads: tuple[str, ...]
    positions: tuple[str, ...]
    defaults: dict[str, Any]


def rotary_arguments(function: Callable[..., Any]) -> RotaryArguments:
    """The arguments of a function that `takes_tables`.

    Raises:
        NotServed: they are not those of a rotation of one tensor or of two.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    names = tuple(parameters)
    tables = tuple(n for n in names if n in ("cos", "sin") or n.startswith(_ONE_TABLE))
    required = [n for n in names if parameters[n].default is inspect.Parameter.empty]
    positions = tuple(n for n in required if n == "position_ids")
    heads = tuple(n for n in names if n not in (*tables, *positions) and n in (*required, "k"))
    # The heads stand together, before the tables or after them.
    first = [names.index(n) for n in (*heads, *tables)][: len(heads)]
    together = bool(heads) and first[-1] - first[0] == len(heads) - 1
    if len(heads) not in (1, 2) or not together:
        title = getattr(function, "__name__", type(function).__name__)
        raise NotServed(f"{title} has unknown arguments: {', '.join(names)}")
    used = {*tables, *heads, *positions}
    defaults = {n: p.default for n, p in parameters.items() if n not in used}
    return RotaryArguments(names, tables, heads, positions, defaults)
