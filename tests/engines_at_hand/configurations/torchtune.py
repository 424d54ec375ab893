"""Builders of torchtune with the arguments of their rotation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_SMALL = {"embed_dim": 128, "num_heads": 4, "num_layers": 2}
_BUILDERS = {
    "llama2": "torchtune.models.llama2.llama2",
    "llama3": "torchtune.models.llama3.llama3",
    "llama3_1": "torchtune.models.llama3_1.llama3_1",
    "llama3_2": "torchtune.models.llama3_2.llama3_2",
    "mistral": "torchtune.models.mistral.mistral",
    "qwen2": "torchtune.models.qwen2.qwen2",
    "gemma": "torchtune.models.gemma.gemma",
    "gemma2": "torchtune.models.gemma2.gemma2",
    "phi3": "torchtune.models.phi3.phi3",
}
_FAMILIES = (*_BUILDERS, "qwen2_5", "code_llama2", "llama3_3", "phi4")
# Builders with sizes of their own: all that explain knows.
_ROOT = Path(__file__).resolve().parents[3]
_WHOLE = _ROOT / "posenc_native/checkpoints/formats/training/torchtune.json"
_ADAPTERS = {"lora_attn_modules": ["q_proj", "v_proj"]}


def configurations() -> dict[str, Any]:
    """Every builder with and without a base, and with factors where it scales."""
    made: dict[str, Any] = {}
    for name, builder in _BUILDERS.items():
        plain = {"_component_": builder, **_SMALL}
        if name.startswith("gemma"):
            plain["head_dim"] = 32
        made[f"{name}: as it is"] = plain
        made[f"{name}: base"] = {**plain, "rope_base": 500000}
        made[f"{name}: four layers"] = {**plain, "num_layers": 4, "embed_dim": 256}
    for model in json.loads(_WHOLE.read_text()):
        family = max((name for name in _FAMILIES if model.startswith(name)), key=len)
        made[model] = {"_component_": f"torchtune.models.{family}.{model}"}
    for model in ("llama3_1_8b", "phi3_mini", "gemma2_2b"):
        for prefix in ("lora", "qlora"):
            builder = made[model]["_component_"].replace(model, f"{prefix}_{model}")
            made[f"{prefix}_{model}"] = {"_component_": builder, **_ADAPTERS}
    for name in ("llama3_1", "llama3_2"):
        plain = made[f"{name}: base"]
        for factor in (4, 8, 32):
            made[f"{name}: factor {factor}"] = {**plain, "scale_factor": factor}
    return made
