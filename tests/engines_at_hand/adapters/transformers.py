"""transformers: a small model of every configuration, run on three tokens.

The function with which a layer rotates its queries is called once more, with unit vectors for
heads, on the cosines and sines that the layer has given it.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from probe import read_rotation, serve

POSITIONS = [0, 1, 1000]  # as read_rotation asks for them, and 0 for the order of the dims
_MOST_WEIGHTS = 30_000_000
_ROTATES = re.compile(r"^_?(apply_\w*rot|apply_rope)", re.I)
_ATTENDS = re.compile(r"Attention")
_LINEAR = re.compile(r"Linear|Lightning|Delta|Mamba|SSM|Conv|Recurrent|Rwkv", re.I)


def rotations(configuration: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """The rotation of every attention layer of the language model."""
    raw = copy.deepcopy(dict(configuration))  # classes write into it
    kind = transformers.CONFIG_MAPPING[raw["model_type"]]
    config = kind.from_dict(raw)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        size = sum(
            weight.numel()
            for weight in transformers.AutoModelForCausalLM.from_config(config).parameters()
        )
    if size > _MOST_WEIGHTS:
        raise MemoryError(f"{size} weights: make the configuration smaller")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    layers = _layers(model)
    with _watching(model, layers) as seen, torch.no_grad():
        options = {"use_cache": False} if hasattr(config, "use_cache") else {}
        model(
            input_ids=torch.tensor([[3, 4, 5]]), position_ids=torch.tensor([POSITIONS]), **options
        )
    return [
        (number, seen.get(number))
        for number, layer in enumerate(layers)
        if number in seen or _has_attention(layer)
    ]


def _layers(model: Any) -> list[Any]:
    lists = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    inside = [part for part in lists if any(map(_has_attention, part)) or len(part)]
    return list(inside[0])


def _has_attention(layer: Any) -> bool:
    names = [type(part).__name__ for part in layer.modules()]
    return any(_ATTENDS.search(name) and not _LINEAR.search(name) for name in names)


@contextmanager
def _watching(model: Any, layers: list[Any]) -> Iterator[dict[int, Any]]:
    """Reads the rotation of each layer, in place of its function."""
    seen: dict[int, Any] = {}
    current: list[int | None] = [None]

    def enter(number: int) -> Any:
        return lambda *_: current.__setitem__(0, number)

    hooks = [layer.register_forward_pre_hook(enter(i)) for i, layer in enumerate(layers)]
    modules = {sys.modules[type(part).__module__] for part in model.modules()}
    replaced = []
    for module in modules:
        for name, function in [*vars(module).items()]:
            if _ROTATES.search(name) and inspect.isfunction(function):
                replaced.append((module, name, function))
                setattr(module, name, _spy(function, seen, current))
    try:
        yield seen
    finally:
        for module, name, function in replaced:
            setattr(module, name, function)
        for hook in hooks:
            hook.remove()


def _spy(function: Any, seen: dict[int, Any], current: list[int | None]) -> Any:
    def spied(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        number = current[0]
        if number is not None and number not in seen:
            seen[number] = _read(function, args, kwargs)
        return result

    return spied


def _read(function: Any, args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(function).bind(*args, **kwargs)
    names = list(bound.arguments)
    q = bound.arguments[names[0]]
    dims = q.shape[-1]
    tokens = next(axis for axis in (2, 1) if q.shape[axis] == len(POSITIONS) and q.ndim == 4)
    units = torch.eye(dims, dtype=q.dtype)  # heads are unit vectors
    x = units[None, :, None].expand(1, dims, len(POSITIONS), dims)
    x = x.contiguous() if tokens == 2 else x.transpose(1, 2).contiguous()
    for name in names[:2]:  # q, and k if the function rotates both
        if getattr(bound.arguments[name], "ndim", 0) == q.ndim and name not in ("cos", "sin"):
            bound.arguments[name] = x.clone()
    rotated = function(*bound.args, **bound.kwargs)
    rotated = (rotated[0] if isinstance(rotated, tuple) else rotated).double().numpy()[0]
    rows = rotated if tokens == 2 else rotated.swapaxes(0, 1)  # [unit, token, dim]
    # Some functions write the dims in another order, for q and k alike: scores against position 0
    # are in the order of the input.
    start = rows[:, 0]
    magnitude = np.sqrt(np.einsum("ij,ij->i", start, start)).max()

    def rotate(_: Any, positions: Any) -> Any:
        return rows[:, POSITIONS.index(int(positions[0]))] @ start.T / magnitude

    return read_rotation(rotate, dims)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    serve("transformers", rotations)
