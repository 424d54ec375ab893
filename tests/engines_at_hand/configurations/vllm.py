"""What vLLM is run with: models, their scalings in both forms of the file, and overrides."""

from __future__ import annotations

from typing import Any

from small_models import (
    BASE,
    FILES,
    MODELS,
    OVERRIDES,
    SCALINGS,
    VISIONS,
    YARNS,
    model,
    vision,
    vision_overrides,
)

# The scalings of a model's own checkpoints, or that its readers may treat in their own way.
_ALSO = {
    "llama": [*SCALINGS, *YARNS],
    "qwen2": ["linear", "dynamic", "yarn", "attention_factor"],
    "qwen3": [*SCALINGS, *YARNS],
    "mistral": ["yarn", "llama3"],
    "qwen3_moe": ["yarn", "linear"],
    "phi3": ["longrope", "linear", "yarn"],
    "phimoe": ["longrope"],
    "gemma2": ["linear"],
    "gpt_oss": ["published", "yarn"],
    "deepseek_v2": ["linear", "yarn", "both", "mscale alone", "all_dim alone", "attention_factor"],
    "deepseek_v3": ["linear", "yarn", "both", "all_dim alone"],
    "glm4": ["yarn"],
    "granite": ["yarn", "linear"],
    "llama4_text": ["llama3"],
    "stablelm": ["linear", "yarn"],
    "exaone4": ["llama3"],
    "cohere2": ["yarn"],
}


def _plain() -> dict[str, Any]:
    cases: dict[str, Any] = {}
    for name in MODELS:
        cases[f"{name}: no base"] = {"model": model(name)}
        cases[f"{name}: base"] = {"model": model(name, **BASE)}
        cases[f"{name}: parameters"] = {
            "model": model(name, rope_parameters={"rope_type": "default", **BASE})
        }
        for scaling in _ALSO.get(name, ()):
            parameters = {**SCALINGS, **YARNS}[scaling]
            cases[f"{name}: {scaling}"] = {
                "model": model(name, rope_parameters={**parameters, **BASE})
            }
        for scaling in _ALSO.get(name, ())[:2]:
            parameters = {**SCALINGS, **YARNS}[scaling]
            cases[f"{name}: {scaling}, older form"] = {
                "model": model(name, rope_scaling=parameters, **BASE)
            }
    for name in MODELS:
        cases[f"{name}: share"] = {"model": model(name, partial_rotary_factor=0.25, **BASE)}
    cases["llama: share in parameters"] = {
        "model": model("llama", rope_parameters={"partial_rotary_factor": 0.5, **BASE})
    }
    return cases


def _special() -> dict[str, Any]:
    phi, longrope = {**BASE, "original_max_position_embeddings": 1024}, SCALINGS["longrope"]
    own = {key: longrope[key] for key in ("rope_type", "short_factor", "long_factor")}
    cases: dict[str, Any] = {}
    for length in (None, 512, 1024, 1025, 4096):
        served = {} if length is None else {"max_model_len": length}
        cases[f"phi3: longrope, served {length}"] = {
            "model": model("phi3", rope_scaling=own, **phi), **served
        }  # fmt: skip
        cases[f"llama: longrope, served {length}"] = {
            "model": model("llama", rope_parameters={**longrope, **BASE}), **served
        }  # fmt: skip
        cases[f"llama: dynamic, served {length}"] = {
            "model": model("llama", rope_parameters={**SCALINGS["dynamic"], **BASE}), **served
        }  # fmt: skip
    local = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
    }
    for name in ("gemma3_text",):
        cases[f"{name}: by layer type"] = {"model": model(name, rope_parameters=local)}
    gemma = {"rope_local_base_freq": 20000.0, "rope_theta": 2e6}
    cases["gemma3_text: older form"] = {
        "model": model("gemma3_text", rope_scaling=SCALINGS["linear"], **gemma)
    }
    layers = {"no_rope_layers": [1, 0, 1, 0]}
    cases["llama4_text: no_rope_layers"] = {"model": model("llama4_text", **layers)}
    kinds = {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 256}
    for name in ("cohere2", "exaone4"):
        cases[f"{name}: layer_types"] = {"model": model(name, **kinds)}
    return cases


def _overridden() -> dict[str, Any]:
    cases: dict[str, Any] = {}
    for which, override in OVERRIDES.items():
        for name in ("llama", "qwen3"):
            for kind, entries in FILES.items():
                if name == "llama" or kind == "older form":
                    cases[f"override {which}: {name}, {kind}"] = {
                        "model": model(name, **entries), "hf_overrides": override
                    }  # fmt: skip
        for name in ("phi3", "gemma3_text", "deepseek_v2", "glm4"):
            entries = {} if name == "gemma3_text" else BASE
            if which in ("parameters, base", "scaling", "base"):
                cases[f"override {which}: {name}"] = {
                    "model": model(name, **entries), "hf_overrides": override
                }  # fmt: skip
    for name in MODELS:
        cases[f"override default: {name}"] = {
            "model": model(name, **BASE),
            "hf_overrides": {"rope_parameters": {"rope_type": "default"}},
        }
        cases[f"override linear: {name}"] = {
            "model": model(name), "hf_overrides": {"rope_parameters": SCALINGS["linear"]}
        }  # fmt: skip
    for name, (architecture, section) in VISIONS.items():
        config = vision(name, architecture, rope_parameters={**section, **BASE})
        older = vision(name, architecture, rope_scaling=section, **BASE)
        cases[f"{name}: parameters"] = {"model": config}
        cases[f"{name}: older form"] = {"model": older}
        for which, override in vision_overrides(section).items():
            cases[f"override {which}: {name}"] = {"model": config, "hf_overrides": override}
    return cases


def configurations() -> dict[str, Any]:
    cases = {**_plain(), **_special(), **_overridden()}
    # A server without overrides is written as one with none.
    return {name: {"hf_overrides": {}, **case} for name, case in cases.items()}
