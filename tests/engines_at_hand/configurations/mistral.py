"""Mistral's params.json, small, with the entries that its rotation reads."""

from __future__ import annotations

from typing import Any

_SMALL = {"dim": 64, "n_layers": 2, "head_dim": 32, "hidden_dim": 64, "n_heads": 2,
          "n_kv_heads": 2, "norm_eps": 1e-5, "vocab_size": 64}  # fmt: skip
_PLAIN = {**_SMALL, "rope_theta": 1000000.0}
_BLOCK = {
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta": 32.0,
    "alpha": 1.0,
    "apply_scale": False,
}
_SCALE = {"original_max_position_embeddings": 16384, "beta": 0.1}


def configurations() -> dict[str, Any]:
    """Every entry of the rotation alone and together."""
    long = {**_PLAIN, "max_position_embeddings": 262144}
    absent = {
        f"yarn without {key}": {**long, "yarn": {k: v for k, v in _BLOCK.items() if k != key}}
        for key in ("beta", "alpha", "apply_scale")
    }
    return {
        "base": _PLAIN,
        "no base": _SMALL,
        "another base": {**_SMALL, "rope_theta": 500000.0},
        "wide heads": {**_PLAIN, "head_dim": 64},
        "four layers": {**_PLAIN, "n_layers": 4},
        "length": long,
        "sliding window": {**_PLAIN, "sliding_window": 1024},
        "windows of layers": {**_PLAIN, "n_layers": 4, "sliding_window": [1024, None]},
        "yarn": {**long, "yarn": _BLOCK},
        "yarn, scaled": {**long, "yarn": {**_BLOCK, "apply_scale": True}},
        "yarn, factor": {**long, "yarn": {**_BLOCK, "factor": 4.0}},
        "yarn, factor 1": {**long, "yarn": {**_BLOCK, "factor": 1.0, "apply_scale": True}},
        "yarn, bands": {**long, "yarn": {**_BLOCK, "beta": 16.0, "alpha": 2.0}},
        "yarn, length": {**long, "yarn": {**_BLOCK, "original_max_position_embeddings": 1024}},
        "yarn, another base": {**long, "rope_theta": 150000.0, "yarn": _BLOCK},
        "yarn, no base": {**_SMALL, "max_position_embeddings": 262144, "yarn": _BLOCK},
        "yarn, queries by position": {**long, "yarn": _BLOCK, "llama_4_scaling": _SCALE},
        "yarn, another entry": {**long, "yarn": {**_BLOCK, "mscale": 0.5}},
        "yarn, scaled, factor": {**long, "yarn": {**_BLOCK, "factor": 8.0, "apply_scale": True}},
        **absent,
    }
