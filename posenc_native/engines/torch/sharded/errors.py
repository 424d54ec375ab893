"""Errors of wrong calls with DTensors: the same as for whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc_native.core.calls.errors import add_hint, fault_of


class NotThePart(ValueError):
    """Arguments that cannot be split. If shapes do not fit, the operation on the whole says why."""

    def __init__(self, why: str = "an argument does not fit a DTensor") -> None:
        super().__init__(why)


# Calls whose shapes fit, and how many of them are kept.
_FINE: set[Any] = set()
_KEPT = 4096
_OF_THEIR_VALUE = frozenset({type(None), bool, int, float, str})
# The most elements of an array that are read to look up a call: frequencies, maps of axes.
_READ = 4096


def check_whole(operation: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raise the errors of the operation for the whole shapes, as the caller sees them.

    A part may fit although the whole does not, or only on some ranks; the others would continue,
    write, and wait for this rank. Checked once for each combination of shapes.
    """
    try:
        call = (operation, _shown(args))
        if call in _FINE:
            return
    except TypeError:  # an argument has no hash, or is long
        call = None
    try:
        operation(*without_memory(args))
    except (ValueError, TypeError) as error:
        raise _with_hint(error) from None
    except Exception:  # operations that do not run without values are checked on the parts
        return
    if call is not None:
        if len(_FINE) >= _KEPT:
            _FINE.clear()
        _FINE.add(call)


def _shown(value: Any) -> Any:
    """The properties of an argument that determine whether a call is valid, as a key."""
    kind = type(value)
    if kind in _OF_THEIR_VALUE:  # true for most, and checked for every argument of a call
        return kind, value
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, tuple):
        return tuple([_shown(item) for item in value])
    if isinstance(value, np.ndarray):
        if value.size > _READ:
            raise TypeError("too long to be looked up")
        return value.shape, value.dtype, value.tobytes()
    if isinstance(value, list):
        return _shown(tuple(value))
    return kind, value


def _with_hint(error: Exception) -> Exception:
    add_hint(
        error, "a plain tensor is the whole value; DTensor.from_local makes a DTensor from a part"
    )
    return error


def error_of_the_whole(
    operation: Callable[..., Any], args: tuple[Any, ...], error: Exception
) -> Exception:
    """The error of the operation for the whole shapes, as the caller sees them, if any."""
    if fault_of(error) is not None and "DTensor" in str(error):
        return error
    try:
        operation(*without_memory(args))
    except NotImplementedError:  # the operation does not run without values
        return error
    except Exception as about:
        return _with_hint(about)
    return error


def without_memory(value: Any) -> Any:
    """The same arguments with tensors on the meta device, to check their shapes."""
    if isinstance(value, Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, tuple):
        items = [without_memory(item) for item in value]
        return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
    return value
