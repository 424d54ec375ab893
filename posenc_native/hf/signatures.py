"""Recognize the functions of a model that rotate, and the modules that make their tables.

Functions are recognized by the names of their arguments, modules by the names of their buffers.
"""

from __future__ import annotations

import ast
import copy
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .forms import NotServed

__all__ = [
    "RotaryArguments", "constant_name", "cos_and_sin", "forward_arguments", "is_compiled",
    "is_table", "makes_tables", "may_take_tables", "own_function", "rotary_arguments",
    "table_names",
    "takes_positions", "takes_tables", "title_of", "with_marked_frequencies", "with_own_buffers",
]  # fmt: skip

# --- functions ------------------------------------------------------------------------------------

# Names of arguments that are tables, or the beginnings of such names.
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


def title_of(function: Callable[..., Any]) -> str:
    """The name of a function in errors."""
    layer = getattr(getattr(function, "__self__", None), "kernel_layer_name", None)
    return str(layer or getattr(function, "__name__", type(function).__name__))


def own_function(function: Any) -> Any:
    """The model's own function, if the package `kernels` has made a module of it."""
    if isinstance(function, nn.Module) and hasattr(function, "kernel_layer_name"):
        return types.MethodType(type(function).forward, function)
    return function


def _argument_names(function: Any) -> list[str]:
    """The names; empty for a non-function, or for a builtin without a signature."""
    if not callable(function) or isinstance(function, type):
        return []
    try:
        return [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        return []


@dataclass(frozen=True)
class RotaryArguments:
    """The arguments of a rotary function."""

    names: tuple[str, ...]  # all of them, in order
    tables: tuple[str, ...]  # (cos, sin), or the table with both
    heads: tuple[str, ...]  # the rotated ones; (): the first arguments, one for each result
    positions: tuple[str, ...]  # required ones that add nothing to the tables
    defaults: dict[str, Any]  # of the others

    def by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        return dict(zip(self.names, args, strict=False)) | kwargs

    def heads_in(self, call: ast.Call, results: int = 0) -> list[str]:
        """The variables that a call in the source passes as heads; "" for other expressions."""
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        arguments = self.by_name(tuple(call.args), keywords)
        return [
            getattr(arguments.get(head), "id", "") for head in self.heads or self.names[:results]
        ]


def rotary_arguments(function: Callable[..., Any]) -> RotaryArguments:
    """The arguments of a function that `takes_tables`.

    Raises:
        NotServed: they do not fit a rotation of one tensor or of two.
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
    # The heads are consecutive, before the tables or after them.
    first = [names.index(n) for n in (*heads, *tables)][: len(heads)]
    together = bool(heads) and first[-1] - first[0] == len(heads) - 1
    if len(heads) not in (1, 2) or not together:
        raise NotServed(f"{title_of(function)} has unknown arguments: {', '.join(names)}")
    used = {*tables, *heads, *positions}
    defaults = {n: p.default for n, p in parameters.items() if n not in used}
    return RotaryArguments(names, tables, heads, positions, defaults)


# --- modules --------------------------------------------------------------------------------------


def table_names(module: nn.Module) -> tuple[str, ...]:
    """The prefixes of ``inv_freq`` in names of buffers; empty if it is no rotary embedding.

    Most modules have ``inv_freq`` itself. Models whose kinds of layers differ (Gemma 3) have one
    for each kind: ``sliding_attention_inv_freq``, ``full_attention_inv_freq``.
    """
    return tuple(
        name.removesuffix("inv_freq")
        for name, buffer in module._buffers.items()
        if name.endswith("inv_freq")
        and not name.endswith("original_inv_freq")
        and buffer is not None
        and buffer.ndim == 1
    )


def constant_name(module: nn.Module) -> str | None:
    """The name of a module's only buffer, if that is a table of complex numbers."""
    names = [name for name, _ in module._buffers.items()]  # torch.jit's have no iterator
    return names[0] if len(names) == 1 and names[0].startswith("freqs_ci") else None


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.jit has scripted or traced a module: its methods cannot be replaced."""
    return isinstance(module, torch.jit.ScriptModule)


def may_take_tables(module: nn.Module) -> bool:
    """Whether a compiled module has a method with an argument besides the hidden states.

    The functions that it calls cannot be inspected. A module with a single argument (an MLP) gets
    no tables.
    """
    code: Any = module._c
    methods = map(code._get_method, code._method_names())
    return any(len(method.schema.arguments) > 2 for method in methods)


def makes_tables(module: nn.Module) -> bool:
    """Whether a module looks like one whose output goes to a rotary function."""
    return bool(
        table_names(module)
        or constant_name(module)
        or "input_ids_shape" in forward_arguments(module)
    )


def forward_arguments(module: nn.Module) -> list[str]:
    """Names of the arguments of a forward, self included; empty for a compiled module."""
    if is_compiled(module):
        return []
    return list(inspect.signature(type(module).forward).parameters)


def with_own_buffers(module: nn.Module) -> nn.Module:
    """A copy with separate buffers, which a call may change. A configuration is not copied."""
    result = copy.copy(module)
    buffers = module._buffers.items()
    own = {name: None if buffer is None else buffer.clone() for name, buffer in buffers}
    result.__dict__["_buffers"] = own
    return result


def with_marked_frequencies(module: nn.Module, name: str) -> nn.Module:
    """A copy with frequencies that are far apart, which a model's own need not be."""
    result = with_own_buffers(module)
    for ending in ("inv_freq", "original_inv_freq"):
        buffer = result._buffers.get(name + ending)
        if buffer is not None:
            numbers = torch.arange(len(buffer), dtype=torch.float32)
            buffer.copy_(0.05 + 0.9 * (numbers + 0.5) / len(buffer))
    return result


def cos_and_sin(result: Any, module: nn.Module) -> tuple[Tensor, Tensor]:
    """cos and sin from the result of a rotary-embedding module."""
    if isinstance(result, Tensor) and result.is_complex():
        return result.real, result.imag
    if (
        isinstance(result, tuple)
        and len(result) == 2
        and all(isinstance(table, Tensor) and table.is_floating_point() for table in result)
    ):
        return result
    raise NotServed(f"{type(module).__name__} does not return a pair (cos, sin)")
