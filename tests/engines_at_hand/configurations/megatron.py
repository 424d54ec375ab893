"""Arguments of Megatron-LM, with those that its rotation reads."""

from __future__ import annotations

from typing import Any

_SMALL = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "ffn_hidden_size": 64,
    "max_position_embeddings": 2048,
}
_ROPE = {**_SMALL, "position_embedding_type": "rope"}
_YARN = {
    **_SMALL,
    "position_embedding_type": "yarn",
    "yarn_rotary_scaling_factor": 4.0,
    "yarn_original_max_position_embeddings": 512,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_mscale": 1.0,
    "yarn_mscale_all_dim": 0.0,
    "yarn_correction_range_round_to_int": True,
}
_LATENT = {
    **_SMALL,
    "position_embedding_type": "rope",
    "multi_latent_attention": True,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 16,
    "v_head_dim": 16,
}
_LATENT_YARN = {
    **_LATENT,
    "rope_type": "yarn",
    "rotary_scaling_factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
}
_MROPE = {**_SMALL, "position_embedding_type": "mrope"}


def configurations() -> dict[str, Any]:
    """Every argument of the rotation alone, and some together."""
    return {
        "rope": _ROPE,
        "rope by the older flag": {**_SMALL, "use_rotary_position_embeddings": True},
        "base": {**_ROPE, "rotary_base": 500000},
        "wide head": {**_ROPE, "kv_channels": 64},
        "share": {**_ROPE, "rotary_percent": 0.5},
        "a quarter": {**_ROPE, "rotary_percent": 0.25, "rotary_base": 50000},
        "interleaved": {**_ROPE, "rotary_interleaved": True},
        "interleaved, share": {**_ROPE, "rotary_interleaved": True, "rotary_percent": 0.5},
        "linear": {**_ROPE, "rotary_seq_len_interpolation_factor": 4},
        "llama3": {**_ROPE, "use_rope_scaling": True},
        "llama3, base": {**_ROPE, "use_rope_scaling": True, "rotary_base": 500000},
        "llama3, share": {**_ROPE, "use_rope_scaling": True, "rotary_percent": 0.5},
        "every second layer": {**_ROPE, "num_layers": 4, "no_rope_freq": 2},
        "layers by a list": {**_ROPE, "num_layers": 4, "no_rope_freq": [0, 1, 1, 0]},
        "layers by another list": {**_ROPE, "num_layers": 4, "no_rope_freq": [1, 0, 0, 0]},
        "none rotates": {**_ROPE, "no_rope_freq": 1},
        "linear, llama3": {
            **_ROPE,
            "rotary_seq_len_interpolation_factor": 4,
            "use_rope_scaling": True,
        },
        "linear, yarn": {**_YARN, "rotary_seq_len_interpolation_factor": 4},
        "learned": {**_SMALL, "position_embedding_type": "learned_absolute"},
        "by default": _SMALL,
        "mrope": {**_MROPE, "mrope_section": [8, 4, 4]},
        "mrope, two axes": {**_MROPE, "mrope_section": [8, 8, 0]},
        "mrope, base": {**_MROPE, "mrope_section": [4, 6, 6], "rotary_base": 1000000},
        "mrope, share": {**_MROPE, "mrope_section": [4, 2, 2], "rotary_percent": 0.5},
        "mrope, interleaved": {**_MROPE, "mrope_section": [8, 4, 4], "rotary_interleaved": True},
        "mrope, layers": {
            **_MROPE,
            "mrope_section": [8, 4, 4],
            "num_layers": 4,
            "no_rope_freq": 2,
        },
        "mrope, wrong sum": {**_MROPE, "mrope_section": [8, 8, 8]},
        "latent": _LATENT,
        "latent, rope": {**_LATENT, "rope_type": "rope"},
        "latent, rope, base": {**_LATENT, "rope_type": "rope", "rotary_base": 500000},
        "latent, rope, share": {**_LATENT, "rope_type": "rope", "rotary_percent": 0.5},
        "latent, yarn": _LATENT_YARN,
        "latent, yarn, factor": {**_LATENT_YARN, "rotary_scaling_factor": 4.0},
        "latent, yarn, factor 1": {**_LATENT_YARN, "rotary_scaling_factor": 1.0},
        "latent, yarn, mscale": {**_LATENT_YARN, "mscale": 0.7},
        "latent, yarn, all": {**_LATENT_YARN, "mscale_all_dim": 1.0},
        "latent, yarn, both": {**_LATENT_YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
        "latent, yarn, betas": {**_LATENT_YARN, "beta_fast": 16.0, "beta_slow": 2.0},
        "latent, yarn, length": {**_LATENT_YARN, "original_max_position_embeddings": 512},
        "latent, yarn, base": {**_LATENT_YARN, "rotary_base": 50000},
        "latent, yarn, no mscale": {**_LATENT_YARN, "mscale": 0.0},
        "latent, interleaved": {**_LATENT_YARN, "rotary_interleaved": True},
        "latent, yarn, no factor": {
            key: value for key, value in _LATENT_YARN.items() if key != "rotary_scaling_factor"
        },
        "yarn, names of older releases": {
            **_SMALL,
            "position_embedding_type": "yarn",
            "rotary_scaling_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        "yarn, no mscale": {key: value for key, value in _YARN.items() if key != "yarn_mscale"},
        "latent, layers": {**_LATENT_YARN, "num_layers": 4, "no_rope_freq": 2},
        "yarn, share": {**_YARN, "rotary_percent": 0.5},
        "yarn, interleaved": {**_YARN, "rotary_interleaved": True},
        "yarn, factor 1": {**_YARN, "yarn_rotary_scaling_factor": 1.0},
        "yarn, wide head": {**_YARN, "kv_channels": 64},
        "yarn, llama3": {**_YARN, "use_rope_scaling": True},
        "yarn, length": {**_YARN, "yarn_original_max_position_embeddings": 4096},
        "yarn, one value of two": {**_YARN, "yarn_mscale": 1.0, "yarn_mscale_all_dim": 1.0},
        "yarn, layers": {**_YARN, "num_layers": 4, "no_rope_freq": [0, 1, 0, 1]},
        "factor of llama3": {**_ROPE, "use_rope_scaling": True, "rope_scaling_factor": 32.0},
        "yarn": _YARN,
        "yarn, base": {**_YARN, "rotary_base": 150000},
        "yarn, mscale": {**_YARN, "yarn_mscale": 0.7},
        "yarn, both": {**_YARN, "yarn_mscale": 1.0, "yarn_mscale_all_dim": 0.5},
        "yarn, bounds": {**_YARN, "yarn_correction_range_round_to_int": False},
        "yarn, betas": {**_YARN, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0},
        "yarn, factor": {**_YARN, "yarn_rotary_scaling_factor": 32.0},
    }
