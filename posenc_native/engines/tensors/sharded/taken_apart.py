"""Which operations meet DTensors: these are taken apart, and plain tensors go on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .errors import check_whole, error_of_the_whole

# What most arguments are: a call on plain tensors is to pay nothing that shows.
_PLAIN = frozenset({Tensor, type(None), int, float, bool, str, torch.dtype})


def taken_apart(operation: Callable[..., Any], family: str, rule: str) -> Callable[..., Any]:
    """The operation, of DTensors too: <family>.py has the rule, of the same arguments."""

    # Only rotations and norms have tensors in tuples.
    plain = _PLAIN if family in ("rotary", "norm_rotary") else _PLAIN | {tuple}

    @functools.wraps(operation)
    def run(*args: Any) -> Any:
        if plain.issuperset(map(type, args)) or not _any_dtensor(args):
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
        if kind in _PLAIN:
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
    return by_rule(operation, getattr(rules[family], rule), args)


def by_rule(operation: Callable[..., Any], rule: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a rule makes of DTensors; errors are those of the operation on the whole."""
    if not torch.compiler.is_compiling():
        check_whole(operation, args)
    try:
        return rule(*args)
    except (ValueError, TypeError) as error:
        if torch.compiler.is_compiling():
            raise
        raise error_of_the_whole(operation, args, error) from None
