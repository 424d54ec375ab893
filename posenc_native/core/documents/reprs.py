"""Calls as text: the repr of a specification or a module is the call that makes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np


def call(self: object, **values: Any) -> str:
    """``Name(...)``, the call that makes an object with these arguments."""
    return f"{type(self).__name__}({call_arguments(type(self), **values)})"


def call_arguments(kind: Callable[..., Any], /, **values: Any) -> str:
    """The arguments of a call as text, without those equal to the defaults of `kind`.

    values: arguments by name, in the order of the signature. Required arguments are written by
        position if the signature allows it.
    """
    parameters = inspect.signature(kind).parameters
    shown = []
    for name, value in values.items():
        parameter = parameters.get(name)
        default = inspect.Parameter.empty if parameter is None else parameter.default
        if default is not inspect.Parameter.empty:
            if isinstance(value, bool) == isinstance(default, bool) and value == default:
                continue
        elif parameter is not None and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            shown.append(written(value))
            continue
        shown.append(f"{name}={written(value)}")
    return ", ".join(shown)


def written(value: Any) -> str:
    """A value as text; a long tuple is abbreviated, and then the text is no longer code."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, tuple) or len(value) <= 8:
        return repr(value)
    first = ", ".join(f"{number:.6g}" for number in value[:3])
    return f"({first}, ..., {value[-1]:.6g}: {len(value)} values)"
