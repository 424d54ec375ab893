"""Configurations for mlx-lm: every model type in several forms.

The forms say which entries a model file reads: the base and the scaling at the top, in
rope_parameters or both, the share of the head, the pairing.
"""

from __future__ import annotations

from typing import Any

_SIZES = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 32, "vocab_size": 64, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "quantization": {"bits": 4},
}  # fmt: skip
_TIED = {"tie_word_embeddings": False}  # needed by some
_LAYERS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
_MLA = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 8}  # fmt: skip
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
_LONGCAT = {
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "ffn_hidden_size": 64,
    "moe_topk": 2,
    "expert_ffn_hidden_size": 32,
    "n_routed_experts": 4,
    "zero_expert_num": 1,
    "num_layers": 4,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "routed_scaling_factor": 1.0,
    "attention_bias": False,
}
_LFM2 = {
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "num_dense_layers": 2,
    "full_attn_idxs": [1, 3],
    "block_dim": 32,
    "block_ff_dim": 32,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
}
_MINICPM = {"dim_model_base": 64, "scale_depth": 1.0, "scale_emb": 1.0}
_BAILING = {
    **_MOE,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "layer_group_size": 4,
    "group_norm_size": 2,
    "routed_scaling_factor": 1.0,
}

_GEMMA3N = {"layer_types": _LAYERS, "activation_sparsity_pattern": [0.0] * 4,
            "rope_local_base_freq": 10000.0, "rope_theta": 1e6, "sliding_window": 8,
            "num_kv_shared_layers": 0, "vocab_size_per_layer_input": 64,
            "hidden_size_per_layer_input": 8, "altup_num_inputs": 2, "altup_coef_clip": 1.0,
            "altup_correct_scale": True, "altup_active_idx": 0, "laurel_rank": 4,
            "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 1.0}  # fmt: skip
_LLAMA4 = {"attention_bias": False, "attention_chunk_size": 8, "interleave_moe_layer_step": 2,
           "num_experts_per_tok": 1, "num_local_experts": 2, "rope_scaling": None}  # fmt: skip
_MINIMAX3 = {"num_local_experts": 2, "num_experts_per_tok": 1}

# What the model files need besides.
_MODELS: dict[str, dict[str, Any]] = {
    "Klear": {**_MOE, "attention_bias": False, "mlp_only_layers": [], "decoder_sparse_step": 1,
              "n_shared_experts": 1},
    "afm7": {"hidden_dim": 32, "num_layers": 4, "num_kv_reuse_layers": 1, "num_heads": 4,
             "num_kv_heads": 2},
    "afmoe": {"layer_types": _LAYERS, "num_experts": 4, "num_experts_per_tok": 2,
              "moe_intermediate_size": 32, "num_shared_experts": 1},
    "apertus": {**_TIED, "mlp_bias": False, "attention_bias": False, "post_norm": False,
        "qk_norm": True},
    "baichuan_m1": {"sliding_window": 8, "sliding_window_layers": [1], "conv_window": 2},
    "bailing_hybrid": {**_BAILING, **_MLA},
    "bailing_moe": _BAILING,
    "bailing_moe_linear": _BAILING,
    "bailing_moe_v3": {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8},
    "cohere": {}, "cohere2": {"head_dim": 8},
    "dbrx": {"d_model": 32, "n_heads": 4, "n_layers": 4,
             "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
             "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 300000.0}},
    "deepseek": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                 "first_k_dense_replace": 1},
    "deepseek_v2": {**_MLA, "moe_intermediate_size": 32},
    "deepseek_v3": {**_MLA, "moe_intermediate_size": 32},
    "kimi_k2": {**_MLA, "moe_intermediate_size": 32},
    "joyai_llm_flash": {**_MLA, "moe_intermediate_size": 32},
    "deepseek_v32": {**_MLA, **_INDEX, "moe_intermediate_size": 32},
    "dots1": _ROUTED, "ernie4_5": {**_TIED, "use_bias": False},
    "ernie4_5_moe": {**_TIED, "use_bias": False, "moe_num_experts": 4,
        "moe_intermediate_size": 32, "moe_k": 2},
    "exaone": {"head_dim": 8, "num_layers": 4, "layer_norm_epsilon": 1e-5},
    "exaone4": {**_TIED, "sliding_window": 8, "sliding_window_pattern": "LLLG",
        "rope_scaling": None},
    "exaone_moe": {**_MOE, "num_shared_experts": 1, "sliding_window": 8, "layer_types": _LAYERS,
                   "is_moe_layer": [False, True, True, True]},
    "falcon_h1": {}, "gear": {"layer_types": _LAYERS},
    "gemma": {}, "gemma2": {}, "gemma3_text": {"sliding_window_pattern": 2},
    "gemma4_text": {"layer_types": _LAYERS, "num_kv_shared_layers": 0, "global_head_dim": 16},
    "glm": {}, "glm4": {"attention_bias": False, "partial_rotary_factor": 0.75},
    "glm4_moe": {**_TIED, **_ROUTED, "use_qk_norm": True, "attention_bias": False,
        "rope_scaling": None,
                 "partial_rotary_factor": 0.75},
    "glm4_moe_lite": {**_MLA, "moe_intermediate_size": 32},
    "glm_moe_dsa": {**_TIED, **_MLA, **_ROUTED, **_INDEX, "moe_layer_freq": 1,
        "attention_bias": False,
                    "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "gpt_neox": {"rotary_emb_base": 20000, "rotary_pct": 0.5, "layer_norm_eps": 1e-5},
    "gpt_oss": {"num_local_experts": 4},
    "gptj": {"n_embd": 32, "n_head": 4, "n_layer": 4, "rotary_dim": 4, "n_inner": 64},
    "granite": _GRANITE, "granitemoe": {**_GRANITE, "num_local_experts": 4,
        "num_experts_per_tok": 2},
    "granitemoehybrid": {**_GRANITE, "layer_types": ["attention"] * 4},
    "helium": {**_TIED, "attention_bias": False, "mlp_bias": False},
    "hunyuan": {"attention_bias": False, "moe_topk": 1, "num_experts": 2, "num_shared_expert": 1,
                "use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": False,
                "cla_share_factor": 2},
    "hunyuan_v1_dense": {}, "internlm2": {}, "internlm3": {},     "iquestcoder": {},
    "laguna": {"mlp_layer_types": ["dense"] * 4},
    "lfm2": _LFM2, "lfm2_moe": {**_LFM2, **_MOE, "use_expert_bias": False},
    "lille-130m": {"block_size": 64, "n_embd": 64, "n_head": 4, "n_kv_heads": 2, "n_layer": 4,
                   "layer_norm_eps": 1e-5},
    "llama": {}, "mistral": {}, "xverse": {},
    "llama4_text": {**_TIED, "intermediate_size_mlp": 64, "no_rope_layers": [1, 1, 1, 0],
        "use_qk_norm": True},
    "longcat_flash": {**_LONGCAT, **_MLA},
    "mellum": {**_TIED, **_MOE, "sliding_window": 8, "layer_types": _LAYERS},
    "mimo": {},
    "mimo_v2_flash": {**_ROUTED, "hybrid_layer_pattern": [1, 1, 1, 0], "moe_layer_freq": [0] * 4,
                      "add_swa_attention_sink_bias": False, "add_full_attention_sink_bias": False,
                      "sliding_window_size": 8, "layernorm_epsilon": 1e-5,
                      "swa_rope_theta": 20000.0, "swa_num_attention_heads": 4,
                      "swa_num_key_value_heads": 2, "swa_head_dim": 8, "swa_v_head_dim": 32,
                      "v_head_dim": 32, "partial_rotary_factor": 0.75, "topk_method": "noaux_tc",
                      "scoring_func": "sigmoid"},
    "minicpm": _MINICPM, "minicpm3": {**_MINICPM, **_MLA},
    "minimax": {"num_experts_per_tok": 2, "num_local_experts": 4, "shared_intermediate_size": 32,
                "rotary_dim": 4},
    "minimax_m2": {"num_experts_per_tok": 2, "num_local_experts": 4,
                   "shared_intermediate_size": 32, "rotary_dim": 4},
    "ministral3": {}, "mistral4": {**_MLA, **_ROUTED},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "muse_glimmer": {}, "nanbeige": {}, "nanochat": {},
    "nemotron": {"hidden_act": "relu2", "norm_eps": 1e-5},
    "olmo2": {}, "olmo3": {"sliding_window": 8},
    "olmo_hybrid": {**_TIED, **_LINEAR, "attention_bias": False, "linear_allow_neg_eigval": True},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "phi": {"partial_rotary_factor": 0.75, "layer_norm_eps": 1e-5}, "phi3": {},
        "phimoe": {"num_local_experts": 4},
    "plamo": {"n_shared_head": 2}, "plamo3": {"sliding_window_pattern": 2},
    "qwen": {"kv_channels": 8, "layer_norm_epsilon": 1e-5},
    "qwen2": {}, "qwen2_moe": {**_MOE, "shared_expert_intermediate_size": 32},
    "qwen2_vl": {}, "qwen3": _TIED,
    "qwen3_moe": {**_TIED, **_MOE, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "qwen3_next": {**_MOE, **_LINEAR, "decoder_sparse_step": 1, "mlp_only_layers": [],
                   "shared_expert_intermediate_size": 32, "partial_rotary_factor": 0.75},
    "qwen3_vl": _TIED, "qwen3_5": {},
    "recurrent_gemma": {"attention_bias": False, "conv1d_width": 4, "logits_soft_cap": 30.0,
                        "attention_window_size": 8, "lru_width": 32,
                        "block_types": ["recurrent", "attention"]},
    "seed_oss": {}, "smollm3": {},
    "solar_open": {**_TIED, **_ROUTED, "partial_rotary_factor": 1.0},
    "spark2_5": {"sliding_window": 8},
    "stablelm": {"use_qkv_bias": False, "partial_rotary_factor": 0.75, "layer_norm_eps": 1e-5},
    "starcoder2": {"norm_epsilon": 1e-5},
    "talkie": {}, "telechat3": {},
    "youtu_llm": _MLA,
}  # fmt: skip

# Models with a language part, and its model type.
_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", {}), "gemma3n": ("gemma3n_text", _GEMMA3N),
    "gemma4": ("gemma4_text", {}), "gemma4_unified": ("gemma4_text", {}),
    "kimi_k25": ("kimi_k2", {}), "kimi_vl": ("deepseek_v3", {}),
    "lfm2-vl": ("lfm2", {}), "llama4": ("llama4_text", _LLAMA4), "llava": ("llama", {}),
    "minimax_m3_vl": ("minimax_m3", _MINIMAX3), "mistral3": ("ministral3", {"rope_parameters": {}}),
    "pixtral": ("mistral", {}), "qwen2_5_vl": ("qwen2", {}), "qwen3_5": ("qwen3_5", {}),
    "qwen3_5_moe": ("qwen3_5", {}), "qwen3_vl": ("qwen3", {}), "qwen3_vl_moe": ("qwen3_moe", {}),
}  # fmt: skip
# Parts that need what another model needs.
_LIKE = {"gemma3n": "llama", "minimax_m3_vl": "llama"}

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
    return _scaling(
        "longrope",
        short_factor=[1.0] * pairs,
        long_factor=factors,
        original_max_position_embeddings=8192,
        **numbers,
    )


# Model files that read no scaling: fewer forms.
_PLAIN = {
    "afm7", "baichuan_m1", "cohere", "cohere2", "dbrx", "ernie4_5", "ernie4_5_moe", "gemma",
    "gemma2", "glm", "glm4", "glm4_moe", "gpt_neox", "gptj", "granitemoehybrid", "helium",
    "Klear", "lfm2", "lfm2_moe", "lille-130m", "llama4_text", "mimo_v2_flash", "minimax",
    "minimax_m2", "mixtral", "muse_glimmer", "nanochat", "olmo_hybrid", "phi", "plamo", "plamo3",
    "qwen", "qwen3_moe", "recurrent_gemma", "solar_open", "stablelm", "starcoder2", "talkie",
}  # fmt: skip
_NO_BASE = {"rope_traditional": True}
_PARAMETERS = {"rope_parameters": _V5, "rope_traditional": False, "partial_rotary_factor": 0.5}
_BOTH = {
    **_BASE,
    "rope_scaling": _LINEAR8,
    "rope_parameters": {**_V5, **_LINEAR8, "factor": 2.0},
}
_FORMS: dict[str, dict[str, Any]] = {"no base": _NO_BASE, "both": _BOTH, "parameters": _PARAMETERS}
_SCALED: dict[str, dict[str, Any]] = {
    "no base": _NO_BASE,
    "both": _BOTH,
    "yarn": {**_BASE, "rope_scaling": _YARN4},
    "yarn in parameters": {**_PARAMETERS, "rope_parameters": {**_V5, **_YARN4}},
    "llama3": {**_BASE, "rope_scaling": _LLAMA3},
    "longrope": {**_BASE, "rope_scaling": _longrope(4), "head_dim": 8},
}
# Details of the scalings, for model files that read them.
_DETAILS: dict[str, dict[str, Any]] = {
    "yarn, mscale": {**_YARN4, "mscale": 0.707},
    "yarn, mscale_all_dim": {**_YARN4, "mscale_all_dim": 1.0},
    "yarn, both mscales": {**_YARN4, "mscale": 0.707, "mscale_all_dim": 1.3},
    "yarn, mscale 0": {**_YARN4, "mscale": 0.0, "mscale_all_dim": 1.0},
    "yarn, attention_factor": {**_YARN4, "attention_factor": 1.5, "truncate": False},
    "yarn, no original length": {"rope_type": "yarn", "factor": 16.0},
    "yarn, betas": {**_YARN4, "beta_fast": 8, "beta_slow": 2},
    "yarn, factor below 1": {**_YARN4, "factor": 0.5},
    "yarn, another name": {**_YARN4, "rope_type": "deepseek_yarn"},
    "yarn, no factor": {"rope_type": "yarn"},
    "yarn, type beside": {**_YARN4, "type": "linear"},
    "linear, type alone": {"type": "linear", "factor": 2.0},
    "linear, rope_type alone": {"rope_type": "linear", "factor": 2.0},
    "linear, int": _scaling("linear", factor=2),
    "llama3, no bands": {"rope_type": "llama3", "factor": 8.0},
    "longrope, factor": _longrope(4, factor=32.0),
    "longrope, attention_factor": _longrope(4, attention_factor=1.0),
    "longrope, mscales": _longrope(4, short_mscale=1.1, long_mscale=1.25, factor=4.0),
    "su": {**_longrope(4), "type": "su", "rope_type": "su"},
    "alpha": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    "dynamic": _scaling("dynamic", factor=4.0),
    "proportional": _scaling("proportional", partial_rotary_factor=0.5),
    "mrope": {"type": "mrope", "mrope_section": [2, 1, 1]},
    "unknown": _scaling("wide", factor=4.0),
}
_LINEAR_DETAILS = [
    "linear, type alone",
    "linear, rope_type alone",
    "linear, int",
    "dynamic",
    "alpha",
]
_LONG_DETAILS = [name for name in _DETAILS if name.startswith(("longrope", "su"))]
_DETAILED = {
    **{name: [*_DETAILS] for name in ("llama", "qwen3", "deepseek_v3", "deepseek_v2", "gpt_oss")},
    **dict.fromkeys(
        ("internlm2", "internlm3", "nemotron", "deepseek", "qwen2_moe"), _LINEAR_DETAILS
    ),
    **dict.fromkeys(("phi3", "phimoe", "minicpm3"), _LONG_DETAILS),
    **{name: ["alpha", "dynamic"] for name in ("hunyuan", "hunyuan_v1_dense")},
}
_NO_LONGROPE = {"qwen3_5", "qwen3_next", "bailing_hybrid"}  # they turn another number of dims
_BY_TYPE = {
    "full_attention": {**_V5, **_YARN4, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
}
# Models with layers of several types, and other numbers than the forms above.
_SPECIAL: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{name}, by layer type": (name, {"rope_parameters": _BY_TYPE, "layer_types": _LAYERS})
        for name in ("gemma4_text", "laguna", "mellum", "spark2_5")
    },
    "mellum, linear": ("mellum", {"rope_parameters": {t: {**_V5, **_LINEAR8} for t in _BY_TYPE}}),
    "gemma4_text, defaults": ("gemma4_text", {"layer_types": None, "num_hidden_layers": 5}),
    "gemma3_text, a period of 6": (
        "gemma3_text",
        {
            **_BASE,
            "sliding_window_pattern": 6,
            "num_hidden_layers": 7,
            "rope_scaling": _LINEAR8,
            "rope_local_base_freq": 20000.0,
        },
    ),
    "gpt_oss, published": (
        "gpt_oss",
        {
            "rope_theta": 150000,
            "rope_scaling": {
                **_YARN4,
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
            },
        },
    ),
    "exaone4, no pattern": ("exaone4", {**_BASE, "sliding_window_pattern": None}),
    "exaone_moe, all full": ("exaone_moe", {**_BASE, "layer_types": ["full_attention"] * 4}),
    "smollm3, named layers": ("smollm3", {**_BASE, "no_rope_layers": [0, 1, 1, 0]}),
    "smollm3, every third": ("smollm3", {**_BASE, "no_rope_layer_interval": 3}),
    "bailing_hybrid, 6 layers": ("bailing_hybrid", {**_BASE, "num_hidden_layers": 6}),
    "bailing_moe_linear, 6 layers": ("bailing_moe_linear", {**_BASE, "num_hidden_layers": 6}),
    "bailing_moe, rotary_dim": ("bailing_moe", {**_BASE, "rotary_dim": 4}),
    "bailing_hybrid, halves": ("bailing_hybrid", {**_BASE, "rope_interleave": False}),
    "granitemoehybrid, nope": ("granitemoehybrid", {**_BASE, "position_embedding_type": "nope"}),
    "qwen3_next, every second": ("qwen3_next", {**_BASE, "full_attention_interval": 2}),
    "muse_glimmer, named layers": ("muse_glimmer", {**_BASE, "layer_rope_theta": [0, 1.0, 1.0, 0]}),
    "lfm2, layer types": (
        "lfm2",
        {**_BASE, "full_attn_idxs": None, "layer_types": ["conv", "full_attention"] * 2},
    ),
    **{
        f"{name}, with its own parameters": (
            name,
            {**_BASE, "rope_parameters": {**_V5, **_BETAS, **own}},
        )
        for name in ("ministral3", "mistral4")
        for own in (_YARN4,)
    },
    "mistral4, no base": ("mistral4", {**_BASE, "rope_parameters": {**_YARN4, **_BETAS}}),
    "olmo_hybrid, no base in parameters": (
        "olmo_hybrid",
        {**_BASE, "rope_parameters": {"rope_type": "default"}},
    ),
    "qwen3_5, published": (
        "qwen3_5",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            }
        },
    ),
    "llama, no head_dim": ("llama", {**_BASE, "head_dim": None}),
    "qwen2, another size": ("qwen2", {"hidden_size": 64, "rope_theta": 5e6}),
    "minimax_m3_vl": ("", {}),
    "cohere2, another width": ("cohere2", {"head_dim": 16}),
    "nemotron, int factor": ("nemotron", {"rope_scaling": {"type": "linear", "factor": 4}}),
    "phi3, half": ("phi3", {**_BASE, "partial_rotary_factor": 0.5}),
    "phi3, linear": (
        "phi3",
        {"rope_scaling": _scaling("linear", factor=4.0, long_factor=[1.0] * 4)},
    ),
    "stablelm, half": ("stablelm", {**_BASE, "partial_rotary_factor": 0.5}),
}
del _SPECIAL["minimax_m3_vl"]


def configurations() -> dict[str, Any]:
    """The configurations by name."""
    result = {}
    for name in _MODELS:
        for form, entries in (_FORMS if name in _PLAIN else _SCALED).items():
            if form != "longrope" or name not in _NO_LONGROPE:
                result[f"{name}, {form}"] = _of(name, entries)
    for name, details in _DETAILED.items():
        for detail in details:
            entries = {**_BASE, "rope_scaling": _DETAILS[detail], "head_dim": 8}
            result[f"{name}, {detail}"] = _of(name, entries)
    for label, (name, entries) in _SPECIAL.items():
        result[label] = _of(name, entries)
    for name, (inner, part) in _PARTS.items():
        for form in (
            ("parameters", "yarn") if name not in ("mistral3",) else ("yarn in parameters",)
        ):
            entries = {**part, **{**_FORMS, **_SCALED}[form]}
            result[f"{name}, {form}"] = _nested(name, inner, entries)
    result["mistral3, llama"] = _nested("mistral3", "llama", _BOTH)
    result["gemma3, no part"] = {**_of("gemma3_text", _BASE), "model_type": "gemma3"}
    result["qwen3_vl_moe, no part"] = {**_of("qwen3_moe", _BASE), "model_type": "qwen3_vl_moe"}
    return result


def _of(name: str, entries: dict[str, Any]) -> dict[str, Any]:
    merged = {**_SIZES, "model_type": name, **_MODELS[name], **entries}
    return {key: value for key, value in merged.items() if value is not None or key in _NULLS}


def _nested(name: str, inner: str, entries: dict[str, Any]) -> dict[str, Any]:
    part = _of(_LIKE.get(name, inner), entries)
    return {
        "model_type": name,
        "vocab_size": 64,
        "quantization": part.pop("quantization"),
        "text_config": {**part, "model_type": inner},
    }


# Entries that their model files need, and that may be null.
_NULLS = {"rope_scaling", "sliding_window_pattern", "block_types"}
