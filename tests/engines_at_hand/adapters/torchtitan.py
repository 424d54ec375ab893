"""torchtitan: the attention of every layer in a trainer's dump, run with unit vectors as queries.

The attention is the engine's own; its projections and its scores are replaced.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from probe import read_rotation, serve

_MODULES = {"kimi_k2_5": "kimi_k2_7"}
_PROJECTIONS = ("qkv_linear", "wq", "wkv_a", "kv_norm", "wkv_b", "wo", "inner_attention")


def rotations(configuration: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """The rotation of every layer, from the forward pass of its attention."""
    spec = configuration["model_spec"]
    name = spec["name"]
    models = importlib.import_module(f"torchtitan.models.{_MODULES.get(name, name)}")
    base = models.model_registry("debugmodel").model.layers[0].attention
    return [(i, _read(base, layer["attention"])) for i, layer in enumerate(spec["model"]["layers"])]


def _read(base: Any, entries: Mapping[str, Any]) -> Any:
    given = {key: value for key, value in entries.items() if key != "rope"}
    stubs = {key: _Stub() for key in _PROJECTIONS if hasattr(base, key)}
    absent = {key: None for key in ("qk_norm", "o_gate") if hasattr(base, key)}
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(base)
        if field.name in ("use_rope", "mscale") and field.default is not dataclasses.MISSING
    }
    rope = type(base.rope)(**entries["rope"])
    config = dataclasses.replace(base, **{**defaults, **given, **absent, **stubs, "rope": rope})
    attention = config.build()
    nope = getattr(config, "qk_nope_head_dim", 0)
    dims = config.rope.dim
    seen: dict[str, Any] = {}

    def scores(q: Any, k: Any, v: Any, scale: float | None = None, **_: Any) -> Any:
        seen["correction"] = 1.0 if scale is None else scale * math.sqrt(q.shape[-1])
        seen["rotated"] = q[0, :, 0, nope:]
        return v

    attention.inner_attention.function = scores
    attention.wo.function = lambda x: x

    def rotate(x: Any, positions: Any) -> Any:
        units = torch.zeros(1, len(x), 1, nope + dims)
        units[..., nope:] = torch.as_tensor(x)[None, :, None]
        if nope:  # latent attention
            latent = attention.kv_lora_rank
            attention.wq.function = lambda _: units.flatten(2)
            attention.wkv_a.function = lambda _: torch.zeros(1, len(x), latent + dims)
            attention.kv_norm.function = lambda kv: kv
            width = nope + attention.v_head_dim
            attention.wkv_b.function = lambda _: torch.zeros(1, len(x), width)
        else:
            attention.qkv_linear.function = lambda _: (units, units, units)
        hidden = torch.zeros(1, len(x), config.dim)
        attention(hidden, None, positions=torch.as_tensor(positions)[None])
        return seen["rotated"].numpy()

    with torch.no_grad():
        rotation = read_rotation(rotate, dims)
    return rotation and {**rotation, "softmax_correction": round(seen["correction"], 6)}


class _Stub(torch.nn.Module):
    """In the place of a part and of its configuration; does what its function says."""

    function: Any = None

    def build(self) -> Any:
        return _Stub()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


if __name__ == "__main__":
    serve("torchtitan", rotations)
