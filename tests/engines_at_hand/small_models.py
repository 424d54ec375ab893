"""Small models for servers, and scalings of all kinds, as in a config.json."""

from __future__ import annotations

from typing import Any

BASE = {"rope_theta": 500000.0}
_SECTION = {"mrope_section": [4, 6, 6]}
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
}
WITHOUT_HEAD_DIM = {key: value for key, value in SIZES.items() if key != "head_dim"}
_LATENT = {
    **WITHOUT_HEAD_DIM,
    "num_key_value_heads": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
}
_EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "embed_dim": 32,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [],
}
_FACTORS = {
    "short_factor": [1.0 + i / 64 for i in range(16)],
    "long_factor": [1.0 + i for i in range(16)],
}

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "dynamic, alpha": {"rope_type": "dynamic", "alpha": 1000.0},
    "ntk": {"rope_type": "ntk", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn, no original": {"rope_type": "yarn", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "longrope": {
        "rope_type": "longrope",
        **_FACTORS,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
}
YARN = SCALINGS["yarn"]
YARNS = {
    "attention_factor": {**YARN, "attention_factor": 1.25},
    "mscale alone": {**YARN, "mscale": 0.7},
    "all_dim alone": {**YARN, "mscale_all_dim": 0.7},
    "both": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    "beta": {**YARN, "beta_fast": 16, "beta_slow": 2},
    "truncate false": {**YARN, "truncate": False},
    "published": {**YARN, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
}

# model_type -> class, and the entries beside the sizes.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", SIZES),
    "mistral": ("MistralForCausalLM", SIZES),
    "qwen2": ("Qwen2ForCausalLM", WITHOUT_HEAD_DIM),
    "qwen3": ("Qwen3ForCausalLM", SIZES),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {**WITHOUT_HEAD_DIM, **_EXPERTS, "shared_expert_intermediate_size": 32},
    ),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**SIZES, **_EXPERTS}),
    "mixtral": ("MixtralForCausalLM", {**WITHOUT_HEAD_DIM, **_EXPERTS}),
    "phi3": ("Phi3ForCausalLM", WITHOUT_HEAD_DIM),
    "phimoe": ("PhiMoEForCausalLM", {**WITHOUT_HEAD_DIM, **_EXPERTS}),
    "stablelm": ("StableLmForCausalLM", WITHOUT_HEAD_DIM),
    "gemma": ("GemmaForCausalLM", SIZES),
    "gemma2": ("Gemma2ForCausalLM", {**SIZES, "query_pre_attn_scalar": 32}),
    "gemma3_text": ("Gemma3ForCausalLM", {**SIZES, "num_hidden_layers": 6}),
    "gpt_oss": ("GptOssForCausalLM", {**SIZES, **_EXPERTS}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", _LATENT),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {**_LATENT, "q_lora_rank": 32}),
    "glm4": ("Glm4ForCausalLM", SIZES),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        {
            **SIZES,
            **_EXPERTS,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "cohere": ("CohereForCausalLM", WITHOUT_HEAD_DIM),
    "cohere2": ("Cohere2ForCausalLM", {**SIZES, "num_hidden_layers": 4}),
    "llama4_text": (
        "Llama4ForCausalLM",
        {**SIZES, **_EXPERTS, "num_hidden_layers": 4, "intermediate_size_mlp": 64},
    ),
    "granite": ("GraniteForCausalLM", WITHOUT_HEAD_DIM),
    "exaone4": (
        "Exaone4ForCausalLM",
        {**SIZES, "num_hidden_layers": 4, "sliding_window": 256, "sliding_window_pattern": 4},
    ),
    "nemotron": ("NemotronForCausalLM", SIZES),
    "ernie4_5": ("Ernie4_5ForCausalLM", SIZES),
}
VISIONS = {
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", {"rope_type": "default", **_SECTION}),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", {"type": "mrope", **_SECTION}),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]},
    ),
}


def model(name: str, **more: Any) -> dict[str, Any]:
    architecture, entries = MODELS[name]
    return {"model_type": name, "architectures": [architecture], **entries, **more}


def vision(name: str, architecture: str, **text: Any) -> dict[str, Any]:
    sizes = SIZES if name.startswith("qwen3") else WITHOUT_HEAD_DIM
    return {
        "model_type": name,
        "architectures": [architecture],
        "text_config": {**sizes, **text, "model_type": f"{name}_text"},
        "vision_config": _VISION,
    }


OVERRIDES: dict[str, dict[str, Any]] = {
    "parameters": {"rope_parameters": YARN},
    "parameters, base": {"rope_parameters": {**YARN, "rope_theta": 1e6}},
    "parameters, share": {"rope_parameters": {**SCALINGS["linear"], "partial_rotary_factor": 0.5}},
    "parameters, base alone": {"rope_parameters": {"rope_theta": 1e6}},
    "scaling": {"rope_scaling": YARN},
    "scaling, base": {"rope_scaling": {**YARN, "rope_theta": 1e6}},
    "yarn, no original": {"rope_parameters": SCALINGS["yarn, no original"]},
    "old name": {"rope_parameters": {"type": "linear", "factor": 4.0}},
    "base": {"rope_theta": 1e6},
    "base and parameters": {"rope_theta": 1e6, "rope_parameters": SCALINGS["linear"]},
    "base and scaling": {"rope_theta": 1e6, "rope_scaling": SCALINGS["linear"]},
    "share": {"partial_rotary_factor": 0.5},
    "longer": {"max_position_embeddings": 8192},
    "nothing": {"rope_parameters": {}},
    "no parameters": {"rope_parameters": None},
    "no scaling": {"rope_scaling": None},
}
# What a file has before it is overridden.
FILES: dict[str, dict[str, Any]] = {
    "older form": {"rope_scaling": SCALINGS["linear"], **BASE},
    "parameters": {"rope_parameters": {"rope_type": "default", **BASE}},
    "share": {"partial_rotary_factor": 0.25, **BASE},
    "plain": {},
}


def vision_overrides(section: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Overrides at the top of a model that sees, and in its text_config."""
    every = {**YARN, **section, "rope_type": "yarn", "rope_theta": 1e6}
    every.pop("type", None)
    return {
        "top, parameters": {"rope_parameters": YARN},
        "top, all parameters": {"rope_parameters": every},
        "top, scaling": {"rope_scaling": YARN},
        "top, base": {"rope_theta": 1e6},
        "text, parameters": {"text_config": {"rope_parameters": YARN}},
        "text, all parameters": {"text_config": {"rope_parameters": every}},
        "text, base in parameters": {"text_config": {"rope_parameters": {"rope_theta": 1e6}}},
        "text, base": {"text_config": {"rope_theta": 1e6}},
        "text, scaling": {"text_config": {"rope_scaling": YARN}},
    }
