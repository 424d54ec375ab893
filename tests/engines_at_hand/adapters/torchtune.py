"""torchtune: the rotary module of every layer of the model that a builder makes."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from probe import read_rotation, serve

# What a builder needs besides; small, and without effect on the rotation.
_SIZES = {
    "vocab_size": 64, "num_kv_heads": 2, "intermediate_dim": 64, "max_seq_len": 2048,
    "attn_dropout": 0.0, "norm_eps": 1e-6,
}  # fmt: skip


def rotations(configuration: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """The rotation of every layer, from the module that its attention calls."""
    entries = dict(configuration)
    module, _, name = entries.pop("_component_").rpartition(".")
    builder = getattr(importlib.import_module(module), name)
    wanted = inspect.signature(builder).parameters
    sizes = {key: value for key, value in _SIZES.items() if key in wanted}
    with torch.device("meta"):
        model = builder(**{**sizes, **entries})
    read: dict[int, Any] = {}  # layers share a module
    for layer in model.layers:
        rope = layer.attn.pos_embeddings
        if id(rope) not in read:
            read[id(rope)] = _read(layer.attn)
    return [(i, read[id(layer.attn.pos_embeddings)]) for i, layer in enumerate(model.layers)]


def _read(attention: Any) -> Any:
    rope = attention.pos_embeddings
    if rope is None:
        return None
    with torch.device("cpu"):
        rope = rope.to_empty(device="cpu")
        rope.rope_init()

    def rotate(x: Any, positions: Any) -> Any:
        tokens = torch.as_tensor(x)[None, :, None]  # [batch, tokens, heads, dims]
        return rope(tokens, input_pos=torch.as_tensor(positions)[None])[0, :, 0].numpy()

    return read_rotation(rotate, attention.head_dim)


if __name__ == "__main__":
    serve("torchtune", rotations)
