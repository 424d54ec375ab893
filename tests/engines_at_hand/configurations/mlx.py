"""Configurations for mlx-lm: every model type in several forms.

The forms say which entries a model file reads: the base and the scaling at the top, in
rope_parameters or both, the share of the head, the pairing.
"""

from __future__ import annotations

from typing import Any

_SIZES = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 64, "vocab_size": 64, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "quantization": {"group_size": 64, "bits": 4},
}  # fmt: skip
_LAYERS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
_MLA = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
        "v_head_dim": 16}  # fmt: skip
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": True}  # fmt: skip
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
           "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
           "norm_topk_prob": True, "first_k_dense_replace": 1}  # fmt: skip
_INDEX = {"index_head_dim": 32, "index_n_heads": 2, "index_topk": 8}
_GRANITE = {"logits_scaling": 1.0, "attention_multiplier": 1.0, "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0, "attention_bias": False, "mlp_bias": False}  # fmt: skip
_LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 32,
           "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4}  # fmt: skip
_LONGCAT = {"attention_method": "MLA", "zero_expert_type": "identity", "ffn_hidden_size": 64,
            "moe_topk": 2, "expert_ffn_hidden_size": 32, "n_routed_experts": 4,
            "zero_expert_num": 1, "num_layers": 4, "mla_scale_q_lora": True,
            "mla_scale_kv_lora": True, "routed_scaling_factor": 1.0, "attention_bias": False}
_LFM2 = {"norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3, "num_dense_layers": 2,
         "full_attn_idxs": [1, 3], "block_dim": 64, "block_ff_dim": 64, "block_multiple_of": 8,
         "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False}
_MINICPM = {"dim_model_base": 64, "scale_depth": 1.0, "scale_emb": 1.0}
_BAILING = {**_MOE, "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
            "topk_group": 1, "layer_group_size": 4, "group_norm_size": 2, "routed_scaling_factor": 1.0}

# What the model files need besides.
_MODELS: dict[str, dict[str, Any]] = {
    "Klear": {**_MOE, "attention_bias": False, "mlp_only_layers": [], "decoder_sparse_step": 1,
              "n_shared_experts": 1},
    "afm7": {"hidden_dim": 64, "num_layers": 4, "num_kv_reuse_layers": 1, "num_heads": 4,
             "num_kv_heads": 2},
    "afmoe": {"layer_types": _LAYERS, "num_experts": 4, "num_experts_per_tok": 2,
              "moe_intermediate_size": 32, "num_shared_experts": 1},
    "apertus": {"mlp_bias": False, "attention_bias": False, "post_norm": False, "qk_norm": True},
    "baichuan_m1": {"sliding_window": 8, "sliding_window_layers": [1], "conv_window": 2},
    "bailing_hybrid": {**_BAILING, **_MLA},
    "bailing_moe": _BAILING,
    "bailing_moe_linear": _BAILING,
    "bailing_moe_v3": {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 16},
    "cohere": {}, "cohere2": {"head_dim": 16}, 
    "dbrx": {"d_model": 64, "n_heads": 4, "n_layers": 4,
             "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
             "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 300000.0}},
    "deepseek": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                 "first_k_dense_replace": 1},
    "deepseek_v2": {**_MLA, "moe_intermediate_size": 32},
    "deepseek_v3": {**_MLA, "moe_intermediate_size": 32},
    "kimi_k2": {**_MLA, "moe_intermediate_size": 32},
    "deepseek_v32": {**_MLA, **_INDEX, "moe_intermediate_size": 32},
    "dots1": _ROUTED, "ernie4_5": {"use_bias": False},
    "ernie4_5_moe": {"use_bias": False, "moe_num_experts": 4, "moe_intermediate_size": 32, "moe_k": 2},
    "exaone": {"head_dim": 16, "num_layers": 4, "layer_norm_epsilon": 1e-5},
    "exaone4": {"sliding_window": 8, "sliding_window_pattern": "LLLG", "rope_scaling": None},
    "exaone_moe": {**_MOE, "num_shared_experts": 1, "sliding_window": 8, "layer_types": _LAYERS,
                   "is_moe_layer": [False, True, True, True]},
    "falcon_h1": {}, "gear": {"layer_types": _LAYERS},
    "gemma": {}, "gemma2": {}, "gemma3_text": {"sliding_window_pattern": 2},
    "gemma4_text": {"layer_types": _LAYERS, "num_kv_shared_layers": 0, "global_head_dim": 32},
    "glm": {}, "glm4": {"attention_bias": False, "partial_rotary_factor": 0.75},
    "glm4_moe": {**_ROUTED, "use_qk_norm": True, "attention_bias": False, "rope_scaling": None,
                 "partial_rotary_factor": 0.75},
    "glm4_moe_lite": {**_MLA, "moe_intermediate_size": 32},
    "glm_moe_dsa": {**_MLA, **_ROUTED, **_INDEX, "moe_layer_freq": 1, "attention_bias": False,
                    "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "gpt_neox": {"rotary_emb_base": 20000, "rotary_pct": 0.25, "layer_norm_eps": 1e-5},
    "gpt_oss": {"num_local_experts": 4},
    "gptj": {"n_embd": 64, "n_head": 4, "n_layer": 4, "rotary_dim": 8, "n_inner": 64},
    "granite": _GRANITE, "granitemoe": {**_GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoehybrid": {**_GRANITE, "layer_types": ["attention"] * 4},
    "helium": {"attention_bias": False, "mlp_bias": False},
    "hunyuan": {"attention_bias": False, "moe_topk": 1, "num_experts": 2, "num_shared_expert": 1,
                "use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": False,
                "cla_share_factor": 2},
    "hunyuan_v1_dense": {}, "internlm2": {}, "internlm3": {},     "iquestcoder": {},
    "laguna": {"mlp_layer_types": ["dense"] * 4},
    "lfm2": _LFM2, "lfm2_moe": {**_LFM2, **_MOE, "use_expert_bias": False},
    "lille-130m": {"block_size": 64, "n_embd": 64, "n_head": 4, "n_kv_heads": 2, "n_layer": 4,
                   "layer_norm_eps": 1e-5},
    "llama": {}, "mistral": {}, "xverse": {},
    "llama4_text": {"intermediate_size_mlp": 64, "no_rope_layers": [1, 1, 1, 0], "use_qk_norm": True},
    "longcat_flash": {**_LONGCAT, **_MLA}, 
    "mellum": {**_MOE, "sliding_window": 8, "layer_types": _LAYERS},
    "mimo": {}, 
    "mimo_v2_flash": {**_ROUTED, "hybrid_layer_pattern": [1, 1, 1, 0], "moe_layer_freq": [0] * 4,
                      "add_swa_attention_sink_bias": False, "add_full_attention_sink_bias": False,
                      "sliding_window_size": 8, "layernorm_epsilon": 1e-5,
                      "swa_rope_theta": 20000.0, "swa_num_attention_heads": 4,
                      "swa_num_key_value_heads": 2, "swa_head_dim": 32, "swa_v_head_dim": 32,
                      "v_head_dim": 32, "partial_rotary_factor": 0.75, "topk_method": "noaux_tc",
                      "scoring_func": "sigmoid"},
    "minicpm": _MINICPM, "minicpm3": {**_MINICPM, **_MLA},
    "minimax": {"num_experts_per_tok": 2, "num_local_experts": 4, "shared_intermediate_size": 32,
                "rotary_dim": 8},
    "minimax_m2": {"num_experts_per_tok": 2, "num_local_experts": 4,
                   "shared_intermediate_size": 32, "rotary_dim": 8},
    "ministral3": {}, "mistral4": {**_MLA, **_ROUTED},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "muse_glimmer": {}, "nanbeige": {}, "nanochat": {},
    "nemotron": {"hidden_act": "relu2", "norm_eps": 1e-5},
    "olmo2": {}, "olmo3": {"sliding_window": 8},
    "olmo_hybrid": {**_LINEAR, "attention_bias": False, "linear_allow_neg_eigval": True},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "phi": {"partial_rotary_factor": 0.75, "layer_norm_eps": 1e-5}, "phi3": {}, "phimoe": {"num_local_experts": 4},
    "phi3small": {"dense_attention_every_n_layers": 2, "ff_intermediate_size": 64,
                  "gegelu_limit": 20.0, "layer_norm_epsilon": 1e-5},
    "plamo": {"n_shared_head": 2}, "plamo2": {"hidden_size_per_head": 16}, "plamo3": {"sliding_window_pattern": 2},
    "qwen": {"kv_channels": 16, "layer_norm_epsilon": 1e-5},
    "qwen2": {}, "qwen2_moe": {**_MOE, "shared_expert_intermediate_size": 32},
    "qwen2_vl": {}, "qwen3": {},
    "qwen3_moe": {**_MOE, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "qwen3_next": {**_MOE, **_LINEAR, "decoder_sparse_step": 1, "mlp_only_layers": [],
                   "shared_expert_intermediate_size": 32, "partial_rotary_factor": 0.75},
    "qwen3_vl": {}, "qwen3_5": {},
    "recurrent_gemma": {"attention_bias": False, "conv1d_width": 4, "logits_soft_cap": 30.0,
                        "attention_window_size": 8, "lru_width": 64,
                        "block_types": ["recurrent", "attention"]},
    "seed_oss": {}, "smollm3": {},
    "solar_open": {**_ROUTED, "partial_rotary_factor": 1.0},
    "spark2_5": {"sliding_window": 8},
    "stablelm": {"use_qkv_bias": False, "partial_rotary_factor": 0.75, "layer_norm_eps": 1e-5},
    "starcoder2": {"norm_epsilon": 1e-5},
    "step3p5": {"num_attention_groups": 2}, "talkie": {}, "telechat3": {},
    "youtu_llm": _MLA,
}  # fmt: skip

# Models with a language part: its model type and what it needs.
_PARTS = {
    "gemma3": ("gemma3_text", {}), "gemma3n": ("gemma3n_text", {}), "gemma4": ("gemma4_text", {}),
    "lfm2-vl": ("lfm2", {}), "llava": ("llama", {}), "mistral3": ("ministral3", {}), "pixtral": ("llama", {}),
    "qwen2_5_vl": ("qwen2", {}), "qwen3_vl": ("qwen3_vl_text", {}), "qwen3_vl_moe": ("qwen3_moe", {}),
    "qwen3_5": ("qwen3_5_text", {}), "qwen3_5_moe": ("qwen3_5", {}), "kimi_vl": ("deepseek_v3", {}), "kimi_k25": ("deepseek_v3", {}),
    "llama4": ("llama4_text", {}),
}

_BETAS = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 8192}


def _scaling(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"type": kind, "rope_type": kind, **numbers}


_LINEAR8 = _scaling("linear", factor=8.0)
_YARN4 = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
_LLAMA3 = _scaling("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=8192)  # fmt: skip
_BASE = {"rope_theta": 300000.0}
_V5 = {"rope_type": "default", "rope_theta": 700000.0}


def _longrope(pairs: int, **numbers: Any) -> dict[str, Any]:
    factors = [round(1 + i / 4, 2) for i in range(pairs)]
    return _scaling("longrope", short_factor=[1.0] * pairs, long_factor=factors,
                    original_max_position_embeddings=8192, **numbers)


_FORMS: dict[str, dict[str, Any]] = {
    "no base": {},
    "top": {**_BASE, "rope_traditional": True},
    "parameters": {"rope_parameters": _V5, "rope_traditional": False, "partial_rotary_factor": 0.5},
    "both": {**_BASE, "rope_scaling": _LINEAR8, "rope_parameters": {**_V5, **_LINEAR8, "factor": 2.0}},
    "linear": {**_BASE, "rope_scaling": _LINEAR8},
    "yarn": {**_BASE, "rope_scaling": _YARN4},
    "yarn in parameters": {"rope_parameters": {**_V5, **_YARN4}},
    "llama3": {**_BASE, "rope_scaling": _LLAMA3},
    "longrope": {**_BASE, "rope_scaling": _longrope(8)},
}


def configurations() -> dict[str, Any]:
    result = {}
    for name, needs in _MODELS.items():
        for form, entries in _FORMS.items():
            result[f"{name}, {form}"] = {**_SIZES, "model_type": name, **needs, **entries}
    return result
