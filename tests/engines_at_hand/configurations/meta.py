"""Meta's params.json of Llama 2 and 3, small."""

from __future__ import annotations

from typing import Any

_SMALL = {"dim": 64, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "vocab_size": 64,
          "multiple_of": 32, "norm_eps": 1e-5}  # fmt: skip


def configurations() -> dict[str, Any]:
    """Every entry of the rotation alone and together."""
    return {
        "base": {**_SMALL, "rope_theta": 500000.0},
        "another base": {**_SMALL, "rope_theta": 10000.0},
        "scaled": {**_SMALL, "rope_theta": 500000.0, "use_scaled_rope": True},
        "scaled, another base": {**_SMALL, "rope_theta": 20000.0, "use_scaled_rope": True},
        "no base": _SMALL,
        "no base, scaled": {**_SMALL, "use_scaled_rope": True},
        "not scaled": {**_SMALL, "rope_theta": 500000.0, "use_scaled_rope": False},
        "wide heads": {**_SMALL, "dim": 128, "rope_theta": 500000.0, "use_scaled_rope": True},
        "four layers": {**_SMALL, "n_layers": 4, "rope_theta": 500000.0},
    }
