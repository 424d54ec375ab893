"""mlx-lm: a model of random weights runs; its rotations are those that its layers call.

Whether a layer rotates is often decided where it is called, so a model is called with three tokens
and every call of a rotary module is noted with the layer that makes it.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# In place of this folder, where this file would be the package mlx.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from mlx_lm.utils import _get_classes  # noqa: E402
from probe import read_rotation, serve  # noqa: E402

# The layer that runs now, and what it has called: module, dims of the tensor, other arguments.
_now: list[int] = []
_inside: list[Any] = []
_calls: dict[int, dict[int, tuple[Any, int, dict[str, Any]]]] = {}


def rotations(configuration: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The rotation of every layer with attention."""
    model_class, arguments_class = _get_classes(configuration)
    model = model_class(arguments_class.from_dict(configuration))
    layers = _layers(model)
    for module in _rotary_modules(model):
        _wrap(type(module), _note)
    for layer in {type(layer): layer for layer in layers}.values():
        _wrap(type(layer), _enter)
    for i, layer in enumerate(layers):
        object.__setattr__(layer, "_number", i)
    _calls.clear()
    model(mx.array([[1, 2, 3]]))
    for i, layer in enumerate(layers):
        if i in _calls:
            found = [_rotation(*call) for call in _calls[i].values()]
            assert all(rotation == found[0] for rotation in found), f"layer {i}: several rotations"
            yield i, found[0]
        elif _attends(layer):
            yield i, None


def _layers(model: Any) -> list[Any]:
    """The longest list of layers; the layers of some models are two lists of modules."""
    inner = model
    while True:
        layers = getattr(inner, "layers", None)
        if layers is not None:
            return list(layers)
        inner = next(
            getattr(inner, name)
            for name in ("language_model", "model", "transformer", "backbone")
            if hasattr(inner, name)
        )


def _rotary_modules(model: Any) -> list[Any]:
    modules = []
    for path, module in model.named_modules():
        if re.search("rope|rotary", f"{path.split('.')[-1]} {type(module).__name__}", re.I):
            if not re.fullmatch("rope|rotary_emb", path.split(".")[-1]) and "index" not in path:
                continue  # holds a rotary module
            # An indexer selects keys; its rotation is not the attention's.
            object.__setattr__(module, "_counts", "index" not in path)
            modules.append(module)
    return modules


def _attends(layer: Any) -> bool:
    """Whether a layer without a call of a rotary module has softmax attention."""
    names = [path.split(".")[-1] for path, _ in layer.named_modules()]
    linear = any(
        re.search("conv|mamba|a_log|dt_proj|gate_up_linear|linear_attn", n, re.I) for n in names
    )
    return (
        any("attention" in n or "attn" in n or n in ("q_proj", "wq") for n in names) and not linear
    )


def _rope(x: Any, *rest: Any, **named: Any) -> Any:
    """In place of mx.fast.rope: notes calls outside rotary modules, as if of a module."""
    if _now and not _inside:
        others = {key: value for key, value in named.items() if key != "offset"}

        def module(y: Any, offset: int) -> Any:
            return _fast_rope(y, *rest, **others, offset=offset)

        _calls.setdefault(_now[-1], {})[id(module)] = (module, x.shape[-1], {})
    return _fast_rope(x, *rest, **named)


_fast_rope, mx.fast.rope = mx.fast.rope, _rope


def _wrap(kind: type, wrapper: Any) -> None:
    if not hasattr(kind, "_wrapped"):
        kind.__call__ = functools.wraps(kind.__call__)(wrapper(kind.__call__))
        kind._wrapped = True


def _note(call: Any) -> Any:
    def noted(self: Any, x: Any, *rest: Any, **named: Any) -> Any:
        if _now and not _inside and getattr(self, "_counts", False):
            others = {key: value for key, value in named.items() if key != "offset"}
            _calls.setdefault(_now[-1], {})[id(self)] = (self, x.shape[-1], others)
        _inside.append(self)
        try:
            return call(self, x, *rest, **named)
        finally:
            _inside.pop()

    return noted


def _enter(call: Any) -> Any:
    def entered(self: Any, *rest: Any, **named: Any) -> Any:
        _now.append(self._number)
        try:
            return call(self, *rest, **named)
        finally:
            _now.pop()

    return entered


def _rotation(module: Any, dims: int, others: dict[str, Any]) -> dict[str, Any] | None:
    def rotate(x: Any, positions: Any) -> Any:
        alone = mx.array(x)[:, None, None]  # each row is a sequence of one token
        return np.array(module(alone, offset=int(positions[0]), **others))[:, 0, 0]

    return read_rotation(rotate, dims)


if __name__ == "__main__":
    serve("mlx-lm", rotations)
