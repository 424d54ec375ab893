"""Tiny checkpoints with random weights: transformers' configurations of a dozen architectures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

COMMON = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 16, "long_factor": [1.0 + i / 4 for i in range(16)],
}  # fmt: skip
DEEPSEEK = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32, "beta_slow": 1,
    "original_max_position_embeddings": 512, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
WINDOW = {"sliding_window": 32, "max_position_embeddings": 2**21}

# name: (transformers' configuration, its arguments besides COMMON)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama 3.1": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "qwen 2": ("Qwen2Config", {}),
    "qwen 3": ("Qwen3Config", {}),
    "gemma 3": (
        "Gemma3TextConfig",
        {"sliding_window": 16, "query_pre_attn_scalar": 32,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi 3 long rope": ("Phi3Config", {"rope_parameters": LONG}),
    "deepseek v3": (
        "DeepseekV3Config",
        {"q_lora_rank": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
         "v_head_dim": 128, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
         "topk_group": 1, "first_k_dense_replace": 2, "num_key_value_heads": 4,
         "moe_intermediate_size": 32, "rope_parameters": DEEPSEEK, "head_dim": 64},
    ),
    "gpt-j": (
        "GPTJConfig",
        {"n_embd": 128, "n_head": 4, "n_layer": 2, "rotary_dim": 16, "n_positions": 2048,
         "n_inner": 192},
    ),
    # The first GLM is no model of vLLM: vLLM runs it by transformers, which rotates.
    "glm 4": ("Glm4Config", {"partial_rotary_factor": 0.5}),
    "qwen 2 vl": ("Qwen2VLConfig", {}),
    # Its last token sees 64 others, however many there are.
    "mistral": ("MistralConfig", WINDOW),
    "mistral, 128 dims": ("MistralConfig", {**WINDOW, "head_dim": 128}),
}  # fmt: skip

# Options of vLLM for a model.
NEEDED: dict[str, dict[str, Any]] = {"qwen 2 vl": {"limit_mm_per_prompt": {"image": 0, "video": 0}}}


def made(name: str, folder: Path, **changes: Any) -> Path:
    """The folder of a checkpoint, written if it is not there."""
    path = folder / "_".join(name.replace(",", "").split())
    if (path / "config.json").exists():
        return path
    kind, options = MODELS[name]
    options = {**COMMON, **options, **changes}
    if kind == "GPTJConfig":
        options = {k: v for k, v in options.items() if k not in COMMON or k == "vocab_size"}
        options |= {"bos_token_id": 1, "eos_token_id": 2}
    make: Any = transformers.AutoModelForCausalLM.from_config
    if kind == "Qwen2VLConfig":
        make = transformers.Qwen2VLForConditionalGeneration
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
        vision = {"depth": 1, "embed_dim": 32, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2}
        options = {"text_config": {**options, "rope_parameters": rope}, "vision_config": vision,
                   "image_token_id": 250, "video_token_id": 251,
                   "vision_start_token_id": 252, "vision_end_token_id": 253}  # fmt: skip
    torch.manual_seed(0)
    model = make(getattr(transformers, kind)(**options))
    for parameter in model.parameters():  # attention that is far from uniform
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.12)
    model.save_pretrained(path)
    return path


def adapted(model: Path) -> Path:
    """A folder with a LoRA adapter of the queries and keys of a Llama."""
    folder = model.with_name(f"{model.name}_adapter")
    folder.mkdir(exist_ok=True)
    described = {
        "peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj"],
        "base_model_name_or_path": str(model), "task_type": "CAUSAL_LM", "bias": "none",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(described))
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for layer in range(COMMON["num_hidden_layers"]):
        for name, heads in (("q_proj", 4), ("k_proj", 2)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("A", (8, 128)), ("B", (32 * heads, 8))):
                values = torch.randn(shape, generator=generator) * 0.1
                weights[f"{at}.lora_{part}.weight"] = values
    save_file(weights, folder / "adapter_model.safetensors")
    return folder
