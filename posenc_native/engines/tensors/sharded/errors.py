"""What is said of a wrong call with DTensors: the same as of the tensors whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc_native.base.errors import add_hint, fault_of


class NotThePart(ValueError):
    """An argument that does not fit the whole of x; why, the operation says of the whole."""

    def __str__(self) -> str:
        return "an argument that does not fit a DTensor"


def error_of_the_whole(
    operation: Callable[..., Any], args: tuple[Any, ...], error: Exception
) -> Exception:
    """What the operation says of the shapes that the caller knows, if it has anything to say."""
    if fault_of(error) is not None and "DTensor" in str(error):
        return error
    try:
        operation(*without_memory(args))
    except (ValueError, TypeError) as about:
        hint = "a tensor that is no DTensor is the whole; DTensor.from_local makes one of a part"
        add_hint(about, hint)
        return about
    return error


def without_memory(value: Any) -> Any:
    """The same arguments with tensors on the device meta: what is wrong with their shapes."""
    if isinstance(value, Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, tuple):
        items = [without_memory(item) for item in value]
        return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
    return value
