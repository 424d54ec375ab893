"""Detection of DTensors: calls with them are split into parts, others run unchanged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import check_whole, error_of_the_whole

# The types of most arguments: the check must add no noticeable time to calls on plain tensors.
_PLAIN = frozenset({Tensor, type(None), int, float, bool, str, torch.dtype})


def taken_apart(
    operation: Callable[..., Any], parts: Callable[[], Callable[..., Any]], tuples: bool = False
) -> Callable[..., Any]:
    """The operation, extended to DTensors.

    parts: returns the rule, a function with the same arguments: it is imported with the first
    DTensor. tuples: tuples may have tensors.
    """
    plain = _PLAIN if tuples else _PLAIN | {tuple}

    @functools.wraps(operation)
    def run(*args: Any) -> Any:
        if plain.issuperset(map(type, args)) or not _any_dtensor(args):
            return operation(*args)
        return by_rule(operation, parts(), args)

    return run


def beside(x: Tensor, t: Tensor) -> Tensor:
    """t for a torch operation with x: if x is a DTensor, the DTensor that t stands for."""
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


class Rules(NamedTuple):
    """The modules with rules."""

    matrices: Any
    norm_rotary: Any
    relative: Any
    rotary: Any
    sinusoids: Any


_rules: Rules | None = None


def sharded() -> Rules:
    """The modules with rules, imported late: torch.distributed takes long."""
    global _rules
    if _rules is None:
        from . import matrices, norm_rotary, relative, rotary, sinusoids

        _rules = Rules(matrices, norm_rotary, relative, rotary, sinusoids)
    return _rules


def by_rule(operation: Callable[..., Any], rule: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Apply a rule to DTensors; errors are those of the operation on whole tensors."""
    if not torch.compiler.is_compiling():
        check_whole(operation, args)
    try:
        return rule(*args)
    except (ValueError, TypeError) as error:
        if torch.compiler.is_compiling():
            raise
        raise error_of_the_whole(operation, args, error) from None
