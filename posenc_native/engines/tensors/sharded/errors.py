"""What is said of a wrong call with DTensors: the same as of the tensors whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc_native.base.errors import add_hint, fault_of


class NotThePart(ValueError):
    """What cannot be taken apart. Of shapes that do not fit the operation on the whole says why."""

    def __init__(self, why: str = "an argument does not fit a DTensor") -> None:
        super().__init__(why)


# Calls whose shapes were found to fit, and how many of them are kept.
_FINE: set[Any] = set()
_KEPT = 4096
_OF_THEIR_VALUE = frozenset({type(None), bool, int, float, str})
# Elements of an array that are read to look a call up: frequencies, maps of axes.
_READ = 4096


def check_whole(operation: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """The errors that the operation raises for the shapes that the caller knows.

    A part may fit where the whole does not, or on some ranks alone; the others would go on, write,
    and wait for this one. Looked at once for each combination of shapes.
    """
    try:
        call = (operation, _shown(args))
        if call in _FINE:
            return
    except TypeError:  # what has no hash, or is long
        call = None
    try:
        operation(*without_memory(args))
    except (ValueError, TypeError) as error:
        raise _with_hint(error) from None
    except Exception:  # what does not run without values is checked on the parts
        return
    if call is not None:
        if len(_FINE) >= _KEPT:
            _FINE.clear()
        _FINE.add(call)


def _shown(value: Any) -> Any:
    """What of an argument may decide whether a call is right, and can be looked up."""
    kind = type(value)
    if kind in _OF_THEIR_VALUE:  # most are, and this is asked for each of them in every call
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
        error, "a tensor that is no DTensor is the whole; DTensor.from_local makes one of a part"
    )
    return error


def error_of_the_whole(
    operation: Callable[..., Any], args: tuple[Any, ...], error: Exception
) -> Exception:
    """What the operation says of the shapes that the caller knows, if it has anything to say."""
    if fault_of(error) is not None and "DTensor" in str(error):
        return error
    try:
        operation(*without_memory(args))
    except NotImplementedError:  # it does not run without values
        return error
    except Exception as about:
        return _with_hint(about)
    return error


def without_memory(value: Any) -> Any:
    """The same arguments with tensors on the device meta: what is wrong with their shapes."""
    if isinstance(value, Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, tuple):
        items = [without_memory(item) for item in value]
        return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
    return value
