"""Which modules of a model make tables of cos and sin, and how they are called on trial."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from .forms import NotServed

__all__ = [
    "constant_name", "cos_and_sin", "forward_arguments", "makes_tables", "table_names",
    "with_marked_frequencies", "with_own_buffers",
]  # fmt: skip


def table_names(module: nn.Module) -> tuple[str, ...]:
    """What stands before ``inv_freq`` in names of buffers; nothing if it is no rotary embedding.

    Most have ``inv_freq`` itself. Models whose kinds of layer differ (Gemma 3) have one a kind:
    ``sliding_attention_inv_freq``, ``full_attention_inv_freq``.
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
    names = list(module._buffers)
    return names[0] if len(names) == 1 and names[0].startswith("freqs_ci") else None


def makes_tables(module: nn.Module) -> bool:
    """Whether a module looks like one whose output a rotary function gets."""
    return bool(
        table_names(module)
        or constant_name(module)
        or "input_ids_shape" in forward_arguments(module)
    )


def forward_arguments(module: nn.Module) -> list[str]:
    """Names of the arguments of a forward, self included."""
    return list(inspect.signature(type(module).forward).parameters)


def with_own_buffers(module: nn.Module) -> nn.Module:
    """A copy with buffers of its own; a call may change them. A configuration is not copied."""
    result = copy.copy(module)
    buffers = {
        name: buffer if buffer is None else buffer.clone()
        for name, buffer in module._buffers.items()
    }
    result.__dict__["_buffers"] = buffers
    return result


def with_marked_frequencies(module: nn.Module, name: str) -> nn.Module:
    """A copy with frequencies that are far apart, which those of a model need not be."""
    result = with_own_buffers(module)
    for ending in ("inv_freq", "original_inv_freq"):
        buffer = result._buffers.get(name + ending)
        if buffer is not None:
            count = len(buffer)
            buffer.copy_(0.05 + 0.9 * (torch.arange(count) + 0.5) / count)
    return result


def cos_and_sin(result: Any, module: nn.Module) -> tuple[Tensor, Tensor]:
    """cos and sin out of what a rotary-embedding module gives."""
    if isinstance(result, Tensor) and result.is_complex():
        return result.real, result.imag
    if (
        isinstance(result, tuple)
        and len(result) == 2
        and all(isinstance(table, Tensor) and table.is_floating_point() for table in result)
    ):
        return result
    raise NotServed(f"{type(module).__name__} does not return a pair (cos, sin)")
