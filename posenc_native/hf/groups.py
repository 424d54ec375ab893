"""Find the modules of a model that share tables of cos and sin, and the functions that use them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from .instances import global_names
from .signatures import (
    is_compiled,
    makes_tables,
    may_take_tables,
    own_function,
    takes_positions,
    takes_tables,
)  # fmt: skip
from .speech import rotates_speech

__all__ = ["RotaryUses", "computes_cosines", "groups_sharing_tables", "rotary_uses"]


@dataclass(frozen=True)
class RotaryUses:
    """The rotary functions that the methods of a class call."""

    methods: dict[str, dict[str, Callable[..., Any]]]  # by method, then by the global name
    statics: dict[str, Callable[..., Any]]  # static methods of the class

    def functions(self) -> list[Callable[..., Any]]:
        """Each of them once."""
        called = [function for named in self.methods.values() for function in named.values()]
        return list(dict.fromkeys([*called, *self.statics.values()]))

    def __bool__(self) -> bool:
        return bool(self.methods or self.statics)


def rotary_uses(kind: type[nn.Module]) -> RotaryUses:
    """The rotary functions that the methods of a class call, inherited methods included."""
    methods: dict[str, dict[str, Callable[..., Any]]] = {}
    statics: dict[str, Callable[..., Any]] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for name, value in vars(base).items():
            if isinstance(value, staticmethod):
                if takes_tables(value.__func__):
                    statics[name] = value.__func__
            elif isinstance(value, types.FunctionType):
                methods[name] = _called_functions(value)
    return RotaryUses({name: called for name, called in methods.items() if called}, statics)


def _called_functions(method: types.FunctionType) -> dict[str, Callable[..., Any]]:
    """Functions of tables, or of positions, that a method calls by a global name."""
    inner = inspect.unwrap(method)
    if not isinstance(inner, types.FunctionType):
        return {}
    functions = {}
    for name in global_names(inner.__code__):
        function = own_function(inner.__globals__.get(name))
        if function is not None and (takes_tables(function) or takes_positions(function)):
            functions[name] = function
    return functions


def computes_cosines(kind: type[nn.Module]) -> bool:
    """Whether the forward of a class uses cos: it may make rows of a table itself."""
    forward = inspect.unwrap(kind.forward)
    return isinstance(forward, types.FunctionType) and "cos" in global_names(forward.__code__)


def groups_sharing_tables(modules: dict[str, nn.Module]) -> Iterator[list[str]]:
    """Names of modules that share tables: rotary-embedding modules and those that use their output.

    An attention module gets its tables from the nearest module above it (or from itself) that holds
    rotary-embedding modules. A module that keeps its own table is a group by itself. A module
    compiled by torch.jit belongs to the group if its call may get the tables.
    """
    holders: dict[str, list[str]] = {}  # name of the holder -> its rotary-embedding modules
    for name, module in modules.items():
        if makes_tables(module):
            holder = name.rpartition(".")[0]
            while isinstance(modules[holder], (nn.ModuleList, nn.ModuleDict)) and holder:
                holder = holder.rpartition(".")[0]
            holders.setdefault(holder, []).append(name)
    uses = {kind: rotary_uses(kind) for kind in {type(module) for module in modules.values()}}
    users: dict[str, list[str]] = {}
    alone: list[str] = []
    for name, module in modules.items():
        compiled = is_compiled(module)
        if compiled and is_compiled(modules[name.rpartition(".")[0]]):
            continue  # called by compiled code
        speech = not compiled and rotates_speech(module)
        if makes_tables(module) or not (
            may_take_tables(module) if compiled else uses[type(module)] or speech
        ):
            continue
        above = name
        while above not in holders and above:
            above = above.rpartition(".")[0]
        if above in holders:
            users.setdefault(above, []).append(name)
        elif not compiled and uses[type(module)]:
            alone.append(name)
    for holder, tables in holders.items():
        # If nothing rotates by an embedding of sines, the model adds it to the tokens.
        if holder in users or not all(isinstance(modules[name], nn.Embedding) for name in tables):
            yield tables + users.get(holder, [])
    for name in alone:
        yield [name]
