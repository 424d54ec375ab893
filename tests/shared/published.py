"""Configurations of models as they were published, by the names of our presets."""

from __future__ import annotations

from posenc_native.models.presets import rotary_preset

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
LLAMA3["original_max_position_embeddings"] = 8192
DEEPSEEK = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
MINISTRAL = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
    "llama_4_scaling_beta": 0.1,
}
QWEN_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def sizes(hidden, heads, theta=None, length=None, **others):
    """The entries that nearly every config.json has."""
    named = {"rope_theta": theta, "max_position_embeddings": length}
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        **{key: value for key, value in named.items() if value is not None},
        **others,
    }


def latent(model_type, theta, length, scaling):
    return {
        "model_type": model_type,
        **sizes(7168, 128, theta, length, qk_rope_head_dim=64, qk_nope_head_dim=128),
        "rope_scaling": scaling,
    }


def phi(name, hidden, heads, **others):
    """The lists are the preset's own: what is checked is everything around them."""
    scaling = rotary_preset(name).scaling
    lists = {key: list(scaling[key]) for key in ("short_factor", "long_factor")}
    return {
        "model_type": "phi3",
        **sizes(hidden, heads, 1e4, 131072, original_max_position_embeddings=4096, pad_token_id=0),
        "rope_scaling": {"type": "longrope", **lists},
        **others,
    }


def gemma3(head_dim, length, factor):
    scaling = None if factor is None else {"rope_type": "linear", "factor": factor}
    return {
        "model_type": "gemma3_text",
        **sizes(2560, 8, 1e6, length, head_dim=head_dim),
        "rope_local_base_freq": 10000.0,
        "rope_scaling": scaling,
    }


# As in the config.json of the model, of which only what has to do with positions is given.
PUBLISHED = {
    "roformer": {"model_type": "roformer", **sizes(768, 12, None, 1536)},
    "gpt-j": {
        "model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64, "n_positions": 2048,
        "max_position_embeddings": 2048,
    },
    "gpt-neox-20b": {
        "model_type": "gpt_neox", **sizes(6144, 64, None, 2048),
        "rotary_pct": 0.25, "rotary_emb_base": 10000,
    },
    "llama-2": {"model_type": "llama", **sizes(4096, 32, None, 4096), "rope_scaling": None},
    "llama-3": {"model_type": "llama", **sizes(4096, 32, 5e5, 8192)},
    "llama-3.1": {
        "model_type": "llama", **sizes(4096, 32, 5e5, 131072),
        "rope_scaling": {**LLAMA3, "factor": 8.0},
    },
    "llama-3.2-1b": {
        "model_type": "llama", **sizes(2048, 32, 5e5, 131072, head_dim=64),
        "rope_scaling": {**LLAMA3, "factor": 32.0},
    },
    "llama-3.2-3b": {
        "model_type": "llama", **sizes(3072, 24, 5e5, 131072, head_dim=128),
        "rope_scaling": {**LLAMA3, "factor": 32.0},
    },
    "llama-3.3": {
        "model_type": "llama", **sizes(8192, 64, 5e5, 131072, head_dim=128),
        "rope_scaling": {**LLAMA3, "factor": 8.0},
    },
    "llama-4-scout": {
        "model_type": "llama4_text", **sizes(5120, 40, 5e5, 10485760, head_dim=128),
        "num_hidden_layers": 48, "no_rope_layers": [1, 1, 1, 0] * 12,
        "rope_scaling": {**LLAMA3, "factor": 16.0, "high_freq_factor": 1.0},
    },
    "llama-4-maverick": {
        "model_type": "llama4_text", **sizes(5120, 40, 5e5, 1048576, head_dim=128),
        "num_hidden_layers": 48, "no_rope_layers": [], "rope_scaling": None,
    },
    "mistral-7b-v0.1": {"model_type": "mistral", **sizes(4096, 32, 1e4, 32768)},
    "mistral-7b-v0.3": {"model_type": "mistral", **sizes(4096, 32, 1e6, 32768)},
    "mixtral-8x7b": {"model_type": "mixtral", **sizes(4096, 32, 1e6, 32768)},
    "mistral-nemo": {"model_type": "mistral", **sizes(5120, 32, 1e6, 131072, head_dim=128)},
    "mistral-small-3.1": {"model_type": "mistral", **sizes(5120, 32, 1e9, 131072, head_dim=128)},
    "ministral-3": {
        "model_type": "ministral3", **sizes(4096, 32, None, 262144, head_dim=128),
        "rope_parameters": MINISTRAL,
    },
    "mistral-4": {
        "model_type": "mistral4", **sizes(4096, 32, None, 1048576, qk_rope_head_dim=64),
        "rope_parameters": {
            **MINISTRAL, "rope_theta": 1e4, "factor": 128.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen2.5": {"model_type": "qwen2", **sizes(3584, 28, 1e6, 32768)},
    "qwen2.5-yarn": {
        "model_type": "qwen2", **sizes(3584, 28, 1e6, 131072), "rope_scaling": QWEN_YARN,
    },
    "qwen2-vl": {
        "model_type": "qwen2_vl_text", **sizes(3584, 28, 1e6, 32768),
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    },
    "qwen2.5-vl": {
        "model_type": "qwen2_5_vl_text", **sizes(3584, 28, 1e6, 128000),
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    },
    "qwen3": {"model_type": "qwen3", **sizes(4096, 32, 1e6, 40960, head_dim=128)},
    "qwen3-yarn": {
        "model_type": "qwen3", **sizes(4096, 32, 1e6, 131072, head_dim=128),
        "rope_scaling": {**QWEN_YARN, "rope_type": "yarn"},
    },
    "qwen3-next": {
        "model_type": "qwen3_next", **sizes(2048, 16, 1e7, 262144, head_dim=256),
        "partial_rotary_factor": 0.25, "rope_scaling": None,
    },
    "qwen3-vl": {
        "model_type": "qwen3_vl_text", **sizes(4096, 32, 5e6, 262144, head_dim=128),
        "rope_scaling": {
            "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
        },
    },
    "deepseek-v2": latent("deepseek_v2", 1e4, 163840, DEEPSEEK),
    "deepseek-v2-lite": latent(
        "deepseek_v2", 1e4, 163840, {**DEEPSEEK, "mscale": 0.707, "mscale_all_dim": 0.707}
    ),
    "deepseek-v3": latent("deepseek_v3", 1e4, 163840, DEEPSEEK),
    "deepseek-r1": latent("deepseek_v3", 1e4, 163840, DEEPSEEK),
    "kimi-k2": latent(
        "kimi_k2", 5e4, 131072, {**DEEPSEEK, "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0}
    ),
    "phi-2": {
        "model_type": "phi", **sizes(2560, 32, 1e4, 2048), "partial_rotary_factor": 0.4,
    },
    "phi-3-mini-4k": {"model_type": "phi3", **sizes(3072, 32, 1e4, 4096, pad_token_id=0)},
    "phi-3-mini-128k": phi("phi-3-mini-128k", 3072, 32),
    "phi-3-vision-128k": phi("phi-3-vision-128k", 3072, 32),
    "phi-3.5-mini": phi("phi-3.5-mini", 3072, 32),
    "phi-4": {"model_type": "phi3", **sizes(5120, 40, 2.5e5, 16384, pad_token_id=0)},
    "phi-4-mini": phi("phi-4-mini", 3072, 24, partial_rotary_factor=0.75),
    "gpt-oss": {
        "model_type": "gpt_oss", **sizes(2880, 64, 1.5e5, 131072, head_dim=64),
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4096,
        },
    },
    "gemma-3-1b": gemma3(256, 32768, None),
    "gemma-3-4b": gemma3(256, 131072, 8.0),
    "gemma-3-12b": gemma3(256, 131072, 8.0),
    "gemma-3-27b": gemma3(128, 131072, 8.0),
    "gemma-4": {
        "model_type": "gemma4_text", **sizes(2816, 16, None, 131072, head_dim=256),
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "global_head_dim": 512,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "glm-4": {
        "model_type": "glm4", **sizes(4096, 32, 1e4, 32768, head_dim=128, pad_token_id=0),
        "partial_rotary_factor": 0.5,
    },
    "glm-4.5": {
        "model_type": "glm4_moe", **sizes(5120, 96, 1e6, 131072, head_dim=128),
        "partial_rotary_factor": 0.5,
    },
    "command-r": {"model_type": "cohere", **sizes(8192, 64, 8e6, 131072)},
    "olmo-3": {
        "model_type": "olmo3", **sizes(4096, 32, 5e5, 65536),
        "rope_scaling": {
            "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 8192, "attention_factor": 1.2079441541679836,
        },
    },
    "smollm3": {
        "model_type": "smollm3", **sizes(2048, 16, 5e6, 65536), "num_hidden_layers": 36,
        "no_rope_layers": [1, 1, 1, 0] * 9,
    },
    "modernbert": {
        "model_type": "modernbert", **sizes(768, 12, None, 8192),
        "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
    },
}  # fmt: skip
