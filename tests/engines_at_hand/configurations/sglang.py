"""What SGLang is run with: models, their scalings, and overrides."""

from __future__ import annotations

from typing import Any

from small_models import (
    BASE,
    FILES,
    OVERRIDES,
    SCALINGS,
    VISIONS,
    YARNS,
    model,
    vision,
    vision_overrides,
)

_MODELS = ("llama", "mistral", "qwen2", "qwen3")


def configurations() -> dict[str, Any]:
    cases: dict[str, Any] = {}
    for name in _MODELS:
        cases[f"{name}: no base"] = {"model-path": model(name)}
        cases[f"{name}: base"] = {"model-path": model(name, **BASE)}
        cases[f"{name}: share"] = {"model-path": model(name, partial_rotary_factor=0.25, **BASE)}
        for scaling, parameters in {**SCALINGS, **YARNS}.items():
            if name in ("llama", "qwen3") or scaling in ("linear", "yarn"):
                config = model(name, rope_parameters={**parameters, **BASE})
                cases[f"{name}: {scaling}"] = {"model-path": config}
    for which, override in OVERRIDES.items():
        for name in ("llama", "qwen3"):
            for kind, entries in FILES.items():
                cases[f"override {which}: {name}, {kind}"] = {
                    "model-path": model(name, **entries),
                    "json-model-override-args": override,
                }
    name, (architecture, section) = "qwen3_vl", VISIONS["qwen3_vl"]
    config = vision(name, architecture, rope_parameters={**section, **BASE})
    cases[f"{name}: parameters"] = {"model-path": config}
    for which, override in vision_overrides(section).items():
        cases[f"override {which}: {name}"] = {
            "model-path": config,
            "json-model-override-args": override,
        }
    return cases
