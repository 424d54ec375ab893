"""Which operations meet DTensors: these are taken apart (sharded/), and plain tensors go on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc_native.base.errors import add_hint, fault_of

_DISTRIBUTED = "torch.distributed.tensor"


def taken_apart(operation: Callable[..., Any], family: str, rule: str) -> Callable[..., Any]:
    """The operation, of DTensors too: sharded/<family>.py has the rule, of the same arguments."""

    @functools.wraps(operation)
    def run(*args: Any) -> Any:
        # Who has not imported them has none.
        if not torch.compiler.is_compiling() and _DISTRIBUTED not in sys.modules:
            return operation(*args)
        if not _any_dtensor(args):
            return operation(*args)
        return _run(operation, family, rule, args)

    return run


def _any_dtensor(values: Any) -> bool:
    for value in values:
        kind = type(value)
        if kind is Tensor or value is None:
            continue
        if kind.__name__ == "DTensor" or (isinstance(value, tuple) and _any_dtensor(value)):
            return True
    return False


def _run(operation: Callable[..., Any], family: str, rule: str, args: tuple[Any, ...]) -> Any:
    from .sharded import norm_rotary, relative, rotary, sinusoids

    rules = {
        "norm_rotary": norm_rotary, "relative": relative, "rotary": rotary, "sinusoids": sinusoids,
    }  # fmt: skip
    try:
        return getattr(rules[family], rule)(*args)
    except (ValueError, TypeError) as error:
        if torch.compiler.is_compiling():
            raise
        raise _error_of_the_whole(operation, args, error) from None


def _error_of_the_whole(
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
