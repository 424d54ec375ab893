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
        "yarn": _YARN,
        "yarn, base": {**_YARN, "rotary_base": 150000},
        "yarn, mscale": {**_YARN, "yarn_mscale": 0.7},
        "yarn, both": {**_YARN, "yarn_mscale": 1.0, "yarn_mscale_all_dim": 0.5},
        "yarn, bounds": {**_YARN, "yarn_correction_range_round_to_int": False},
        "yarn, betas": {**_YARN, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0},
        "yarn, factor": {**_YARN, "yarn_rotary_scaling_factor": 32.0},
    }
