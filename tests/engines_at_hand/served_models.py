"""What the attention layers of a server's model do to their queries: vLLM and SGLang.

Both build a module for each attention, with a ``rotary_emb`` and an operator that attends. The
module's forward is run up to the call of one of them; then unit vectors go through ``rotary_emb``.
"""

from __future__ import annotations

import importlib.machinery
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from probe import read_rotation

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)")
_TOKENS = 3


def stand_in(*packages: str) -> None:
    """For packages that an engine imports, but does not need for language models.

    Import transformers before: it looks for them, too.
    """
    for name in packages:
        spec = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = MagicMock(name=name, __path__=[], __spec__=spec)


def attention_rotations(
    model: torch.nn.Module,
    operator: type[torch.nn.Module],
    hidden_size: int,
    prepare: Callable[[torch.nn.Module], None] = lambda module: None,
) -> Iterator[tuple[int, Any]]:
    """(layer, rotation) of every attention layer of the language model.

    Args:
        model: with random weights.
        operator: the engine's class that attends; its forward is never run.
        hidden_size: of the input of an attention.
        prepare: makes the linear layers of an attention callable.
    """
    found = {}
    for name, module in model.named_modules():
        layer = _LAYER.search(name)
        owns = any(isinstance(inner, operator) for inner in module.children())
        if owns and layer is not None and "vis" not in name:
            found[int(layer.group(1))] = module
    for layer, attention in sorted(found.items()):
        prepare(attention)
        yield layer, _rotation(attention, operator, hidden_size)


def _rotation(
    attention: torch.nn.Module, operator: type[torch.nn.Module], hidden_size: int
) -> Mapping[str, Any] | None:
    """What the attention's forward does to its queries; None if it calls no rotary_emb."""
    rotary = getattr(attention, "rotary_emb", None)
    axes = len(rotary.mrope_section) if getattr(rotary, "mrope_section", None) else 1
    shape = _query_shape(attention, rotary, operator, hidden_size, axes)
    if shape is None or rotary is None:
        return None
    dims = rotary.head_size
    heads = int(np.prod(shape)) // dims
    native = getattr(rotary, "forward_native", rotary.forward)

    def rotate(x: Any, positions: Any) -> Any:
        query = torch.from_numpy(np.repeat(x[:, None, :], heads, axis=1)).contiguous()
        key = query.clone()[:, :1]
        tokens = x.shape[0]
        if len(shape) == 1:
            query, key = query.reshape(tokens, -1), key.reshape(tokens, -1)
        rotated, _ = native(torch.from_numpy(positions), query, key)
        return rotated.reshape(tokens, heads, dims)[:, 0].numpy()

    return read_rotation(rotate, dims, axes)


class _Called(Exception):
    """Stops a forward at its rotary_emb, or at its operator."""


def _query_shape(
    attention: torch.nn.Module,
    rotary: torch.nn.Module | None,
    operator: type[torch.nn.Module],
    hidden_size: int,
    axes: int,
) -> tuple[int, ...] | None:
    """The shape of a token's query in the call of rotary_emb; None if it is not called."""
    if type(attention).__module__.startswith("transformers."):
        raise NotImplementedError("the engine has no class of its own, and runs transformers'")

    def stop(module: Any, values: tuple[Any, ...]) -> None:
        raise _Called(tuple(values[1].shape[1:]) if module is rotary else None)

    positions = torch.zeros((axes, _TOKENS) if axes > 1 else _TOKENS, dtype=torch.long)
    values = {
        "positions": positions,
        "position_ids": positions,
        "llama_4_scaling": None,
        "forward_batch": MagicMock(),
    }
    names = inspect.signature(attention.forward).parameters
    arguments = {
        name: values.get(name, torch.zeros(_TOKENS, hidden_size))
        for name, parameter in names.items()
        if parameter.default is parameter.empty and parameter.kind != parameter.VAR_KEYWORD
    }
    ends = [inner for inner in attention.children() if isinstance(inner, operator)]
    hooks = [module.register_forward_pre_hook(stop) for module in [*ends, rotary] if module]
    try:
        attention(**arguments)
    except _Called as called:
        return called.args[0]
    finally:
        for hook in hooks:
            hook.remove()
    raise RuntimeError(f"{type(attention).__name__} called neither rotary_emb nor its operator")
