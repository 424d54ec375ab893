"""Which operations meet DTensors: these are taken apart and plain tensors go on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .errors import check_whole, error_of_the_whole

_DISTRIBUTED = "torch.distributed.tensor"


def taken_apart(operation: Callable[..., Any], family: str, rule: str) -> Callable[..., Any]:
    """The operation, of DTensors too: <family>.py has the rule, of the same arguments."""

    @functools.wraps(operation)
    def run(*args: Any) -> Any:
        # Who has not imported them has none.
        if not torch.compiler.is_compiling() and _DISTRIBUTED not in sys.modules:
            return operation(*args)
        if not _any_dtensor(args):
            return operation(*args)
        return _run(operation, family, rule, args)

    return run


def beside(x: Tensor, t: Tensor) -> Tensor:
    """t as torch computes with it and x: where x is a DTensor, the DTensor that t stands for."""
    if not _any_dtensor((x,)):
        return t
    from .cut import mesh_of, whole

    return whole(t, mesh_of((x,)))


def _any_dtensor(values: Any) -> bool:
    for value in values:
        kind = type(value)
        if kind is Tensor or value is None:
            continue
        if kind.__name__ == "DTensor" or (isinstance(value, tuple) and _any_dtensor(value)):
            return True
    return False


def _run(operation: Callable[..., Any], family: str, rule: str, args: tuple[Any, ...]) -> Any:
    from . import matrices, norm_rotary, relative, rotary, sinusoids

    rules = {
        "matrices": matrices, "norm_rotary": norm_rotary, "relative": relative, "rotary": rotary,
        "sinusoids": sinusoids,
    }  # fmt: skip
    if not torch.compiler.is_compiling():
        check_whole(operation, args)
    try:
        return getattr(rules[family], rule)(*args)
    except (ValueError, TypeError) as error:
        if torch.compiler.is_compiling():
            raise
        raise error_of_the_whole(operation, args, error) from None
