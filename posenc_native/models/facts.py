"""Facts about models: what their code knows and their configurations do not say.

Which dims of a head pair up, what holds where a config.json is silent, which layers have no rotary
encoding, how the pairs are shared out among position axes. The names are the ``model_type`` of
Hugging Face configurations.

Source: ``configuration_*.py`` and ``modeling_*.py`` of transformers 5.23; the tests hold every
table against the classes there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Models published under a name of their own that are another model to transformers.
ALIASES = {"kimi_k2": "deepseek_v3"}

# Models that pair neighbouring dims; all others pair dim i with dim i + rotary_dim / 2. Where a
# configuration has rope_interleave, that decides. (Models with latent attention then store the
# rotated dims in another order, in q and k alike, which no attention score can tell.)
INTERLEAVED = frozenset(
    {
        "axk1",
        "axk2",
        "bailing_hybrid",
        "blt_global_transformer",
        "blt_local_decoder",
        "blt_local_encoder",
        "blt_patcher",
        "codegen",
        "cohere",
        "cohere2",
        "cohere2_moe",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "dots3_note_text",
        "ernie4_5",
        "ernie4_5_moe",
        "ernie4_5_vl_moe_text",
        "glm",
        "glm4",
        "glm4_moe_lite",
        "glm4v_text",
        "glm_moe_dsa",
        "glm_ocr_text",
        "gptj",
        "helium",
        "llama4_text",
        "longcat_flash",
        "mistral4",
        "mistral_large4_text",
        "moonshine",
        "moonshine_streaming",
        "openai_privacy_filter",
        "pe_audio_encoder",
        "pe_audio_video_encoder",
        "pe_video_encoder",
        "roformer",
        "youtu",
    }
)

# Models that turn the other way: by minus the angle.
BACKWARD = frozenset({"nanochat"})

# Models that rotate the last dims of a head instead of the first.
TRAILING = frozenset({"deepseek_v4"})

# Rotary models with base 10000, the whole head and no scaling by default.
_PLAIN = (
    "afmoe",
    "arcee",
    "aria_text",
    "axk1",
    "axk2",
    "blt_patcher",
    "chameleon",
    "codegen",
    "cohere2",
    "cohere2_moe",
    "dbrx",
    "deepseek_ocr2_encoder",
    "deepseek_ocr2_text",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "dia_decoder",
    "dia_encoder",
    "diffllama",
    "doge",
    "dots1",
    "esm",
    "esmc",
    "eurobert",
    "exaone4",
    "exaone_moe",
    "falcon",
    "falcon_h1",
    "flint",
    "gemma",
    "gemma2",
    "glm4_moe_lite",
    "glm4v_text",
    "glm_image_text",
    "glm_moe_dsa",
    "glm_ocr_text",
    "gpt_neox_japanese",
    "gptj",
    "gradium_phonon_tts",
    "granite",
    "granite4_vision_text",
    "granite_docling_text",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoeshared",
    "hrm_text",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hunyuan_vl_text",
    "hy_v4",
    "hyperclovax",
    "idefics",
    "internlm3",
    "iquestcoder",
    "jais2",
    "jetmoe",
    "kolibri1",
    "kyutai_speech_to_text",
    "lasr_encoder",
    "llama",
    "mimi",
    "mimi_decoder",
    "mimi_encoder",
    "minicpm3",
    "ministral",
    "mistral",
    "molmo2_text",
    "moshi",
    "muse_glimmer_text",
    "nanochat",
    "nemotron3_diarization_audio",
    "neucodec",
    "olmo",
    "olmo2",
    "olmo_hybrid",
    "olmoe",
    "phi3",
    "phi4_multimodal",
    "pocket_tts",
    "pocket_tts_audio_tokenizer",
    "pocket_tts_audio_tokenizer_decoder",
    "pocket_tts_audio_tokenizer_encoder",
    "qwen2",
    "qwen2_5_omni_dit",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_omni_moe_talker_code_predictor",
    "qwen3_omni_moe_talker_text",
    "qwen4_exp_text",
    "roformer",
    "seed_oss",
    "starcoder2",
    "t5_gemma_module",
    "timesfm2_5",
    "unlimited_ocr_text",
    "vaultgemma",
    "voxtral_realtime_encoder",
    "voxtral_realtime_text",
    "xcodec2",
    "youtu",
    "zamba2",
)

# Parameters of the rotary encoding in force where a configuration does not give them, by layer type
# where layers differ. Base and share of the head hold for configurations that leave out just these;
# a scaling only if the configuration says nothing of any. Not listed is what is true of most: base
# 10000, the whole head, no scaling.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(_PLAIN, MappingProxyType[str, Any]({})),
    "apertus": {
        "rope_type": "llama3",
        "rope_theta": 1.2e7,
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
    "bailing_hybrid": {"rope_theta": 6e6},
    "bamba": {"partial_rotary_factor": 0.5},
    "beam": {"full_attention": None, "sliding_attention": {}},
    "bitnet": {"rope_theta": 5e5},
    "blt_global_transformer": {"rope_theta": 5e5},
    "blt_local_decoder": {"rope_theta": 5e5},
    "blt_local_encoder": {"rope_theta": 5e5},
    "cohere": {"rope_theta": 5e5},
    "cosmos3_edge_text": {"rope_theta": 1e8},
    "csm": {"rope_theta": 5e5},
    "csm_depth_decoder_model": {"rope_theta": 5e5},
    "cwm": {
        "rope_type": "llama3",
        "rope_theta": 1e6,
        "factor": 16.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
    "deepseek_v4": {
        # Cosines and sines are not scaled, whatever YaRN says.
        "compress": {
            "rope_theta": 1.6e5,
            "partial_rotary_factor": 0.125,
            "attention_factor": 1.0,
        },
        "main": {"partial_rotary_factor": 0.125},
    },
    "diffusion_gemma_text": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {},
    },
    "dots3_note_audio_encoder": {"partial_rotary_factor": 0.5},
    "dots3_note_text": {
        "indexed_attention": {"rope_theta": 8e7, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_theta": 5e4, "partial_rotary_factor": 0.25},
    },
    "embedding_gemma2_text": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {}},
    "emu3_text_model": {"rope_theta": 1e6},
    "ernie4_5": {"rope_theta": 5e5},
    "ernie4_5_moe": {"rope_theta": 5e5},
    "ernie4_5_vl_moe_text": {"rope_theta": 5e5},
    "evolla": {"rope_theta": 5e5},
    "flex_olmo": {"rope_theta": 5e5},
    "gemma3_text": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {}},
    "gemma3n_text": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {}},
    "gemma4_text": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {},
    },
    "gemma4_unified_text": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {},
    },
    "glm": {"partial_rotary_factor": 0.5},
    "glm4": {"partial_rotary_factor": 0.5},
    "glm4_moe": {"partial_rotary_factor": 0.5},
    "glm4v_moe_text": {"partial_rotary_factor": 0.5},
    "glmasr_encoder": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"partial_rotary_factor": 0.25},
    "gpt_oss": {
        "rope_type": "yarn",
        "rope_theta": 1.5e5,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "gte": {"rope_theta": 1.6e5},
    "helium": {"rope_theta": 1e5},
    "higgs_audio_v2": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "high_freq_factor": 0.5,
        "low_freq_factor": 0.125,
        "original_max_position_embeddings": 1024,
    },
    "hy_v3": {"rope_theta": 11158840.0},
    "jina_embeddings_v3": {"rope_theta": 2e4},
    "laguna": {
        "full_attention": {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
        "sliding_attention": {},
    },
    "lfm2": {"rope_theta": 1e6},
    "lfm2_moe": {"rope_theta": 1e6},
    "lfm3": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.5,
        },
        "sliding_attention": {},
    },
    "llama4_text": {"rope_theta": 5e5},
    "longcat_flash": {"rope_theta": 1e7},
    "mellum": {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {}},
    "mimo_v2_flash": {
        "full_attention": {"rope_theta": 5e6, "partial_rotary_factor": 0.334},
        "sliding_attention": {"partial_rotary_factor": 0.334},
    },
    "minimax": {"rope_theta": 1e6},
    "minimax_m2": {"rope_theta": 5e6},
    "minimax_m3_vl_text": {"rope_theta": 5e6},
    "ministral3": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16384,
    },
    "mistral4": {
        "rope_type": "yarn",
        "partial_rotary_factor": 0.5,
        "factor": 128.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 8192,
    },
    "mistral_large4_text": {
        "rope_type": "yarn",
        "factor": 2048.0,
        "attention_factor": 1.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 512,
    },
    "mixtral": {"rope_theta": 1e6},
    "mllama_text_model": {"rope_theta": 5e5},
    "modernbert": {"full_attention": {"rope_theta": 1.6e5}, "sliding_attention": {}},
    "modernbert-decoder": {"full_attention": {"rope_theta": 1.6e5}, "sliding_attention": {}},
    "moonshine": {"partial_rotary_factor": 0.9},
    "moonshine_streaming": {"partial_rotary_factor": 0.8},
    "muse_glimmer_assistant": {"rope_theta": 5e5},
    "muse_spark_text": {"rope_theta": 5e5},
    "nemotron": {"partial_rotary_factor": 0.5},
    "nemotron3_5_transcribe_asr_audio": {"partial_rotary_factor": 0.5},
    "nemotron3_5_transcribe_word_timestamp": {"partial_rotary_factor": 0.5},
    "neomme": {
        "full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {},
    },
    "nomic_bert": {"rope_theta": 1000.0},
    "olmo3": {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 5e5}},
    "openai_privacy_filter": {
        "rope_type": "yarn",
        "rope_theta": 1.5e5,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "paddleocr_vl_text": {"rope_theta": 5e5},
    "pe_audio_encoder": {"rope_theta": 2e4},
    "pe_audio_video_encoder": {"rope_theta": 2e4},
    "pe_video_encoder": {"rope_theta": 2e4},
    "persimmon": {"partial_rotary_factor": 0.5},
    "phi": {"partial_rotary_factor": 0.5},
    "phimoe": {"rope_theta": 1e6},
    "qwen2_5_omni_talker": {"rope_theta": 1e6},
    "qwen2_5_omni_text": {"rope_theta": 1e6},
    "qwen2_5_vl_text": {"rope_theta": 1e6},
    "qwen2_vl_text": {"rope_theta": 1e6},
    "qwen3_5_moe_text": {"partial_rotary_factor": 0.25},
    "qwen3_5_text": {"partial_rotary_factor": 0.25},
    "qwen3_next": {"partial_rotary_factor": 0.25},
    "qwen3_omni_moe_text": {"rope_theta": 1e6},
    "qwen3_vl_moe_text": {"rope_theta": 5e5},
    "qwen3_vl_text": {"rope_theta": 5e5},
    "recurrent_gemma": {"partial_rotary_factor": 0.5},
    "smollm3": {"rope_theta": 2e6},
    "solar_open": {"rope_theta": 1e6},
    "stablelm": {"partial_rotary_factor": 0.25},
    "step3p5": {"full_attention": {}},
    "t5gemma2_decoder": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {}},
    "t5gemma2_text": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {}},
    "ultrabert": {"full_attention": {"rope_theta": 2.56e6}, "sliding_attention": {}},
    "zaya": {
        "hybrid": {"rope_theta": 5e6, "partial_rotary_factor": 0.5},
        "hybrid_sliding": {"partial_rotary_factor": 0.5},
    },
}

# Models of whose parameters by default none is left once a configuration has a rope_scaling.
ALL_OR_NOTHING = frozenset(
    {"higgs_audio_v2", "ministral3", "muse_spark_text", "nemotron3_5_transcribe_asr_audio"}
)

# Models whose parameters differ by layer type, though their older configurations have one, flat
# rope_scaling: for each entry whether that is its scaling, and which key has its base.
FLAT: Mapping[str, Mapping[str, tuple[bool, str | None]]] = {
    **dict.fromkeys(
        ("gemma3_text", "gemma3n_text", "t5gemma2_decoder", "t5gemma2_text"),
        MappingProxyType(
            {
                "full_attention": (True, "rope_theta"),
                "sliding_attention": (False, "rope_local_base_freq"),
            }
        ),
    ),
    **dict.fromkeys(
        ("modernbert", "modernbert-decoder"),
        MappingProxyType(
            {
                "full_attention": (True, "global_rope_theta"),
                "sliding_attention": (True, "local_rope_theta"),
            }
        ),
    ),
    "olmo3": {"full_attention": (True, "rope_theta"), "sliding_attention": (False, None)},
    "deepseek_v4": {"main": (False, "rope_theta"), "compress": (True, "compress_rope_theta")},
}

# Models whose layers of full attention have wider heads: global_head_dim by default.
GLOBAL_HEAD_DIM = {
    "diffusion_gemma_text": 512,
    "embedding_gemma2_text": 512,
    "gemma4_text": 512,
    "gemma4_unified_text": 512,
}

# The types of layers that older DeepSeek-V4 configurations name by compress_ratios.
COMPRESS_RATIOS = {
    0: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}

# Where the entries of rope_parameters are not named after layer types: the entry of each.
ROPE_LABELS = {
    "deepseek_v4": {
        "sliding_attention": "main",
        "compressed_sparse_attention": "compress",
        "heavily_compressed_attention": "compress",
    },
}

# Models whose tokens have a position on several axes (time, height, width): the order in which the
# pairs are shared out (see `mrope_axis_map`), and the number of pairs of each axis by default.
MROPE: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "cohere_compass_text": ("interleaved", (24, 20, 20)),
    "cosmos3_edge_text": ("interleaved", (24, 20, 20)),
    "ernie4_5_vl_moe_text": ("spatial_first", (22, 22, 20)),
    "glm4v_moe_text": ("sectioned", (8, 12, 12)),
    "glm4v_text": ("sectioned", (8, 12, 12)),
    "glm_image_text": ("sectioned", (8, 12, 12)),
    "glm_ocr_text": ("sectioned", (8, 12, 12)),
    "paddleocr_vl_text": ("sectioned", (16, 24, 24)),
    "qwen2_5_omni_talker": ("sectioned", (16, 24, 24)),
    "qwen2_5_omni_text": ("sectioned", (16, 24, 24)),
    "qwen2_5_vl": ("sectioned", (16, 24, 24)),
    "qwen2_5_vl_text": ("sectioned", (16, 24, 24)),
    "qwen2_vl": ("sectioned", (16, 24, 24)),
    "qwen2_vl_text": ("sectioned", (16, 24, 24)),
    "qwen3_5_moe_text": ("interleaved", (11, 11, 10)),
    "qwen3_5_text": ("interleaved", (11, 11, 10)),
    "qwen3_omni_moe_talker_text": ("interleaved", (24, 20, 20)),
    "qwen3_omni_moe_text": ("interleaved", (24, 20, 20)),
    "qwen3_vl_moe_text": ("interleaved", (24, 20, 20)),
    "qwen3_vl_text": ("interleaved", (24, 20, 20)),
    "qwen4_exp_text": ("interleaved", (11, 11, 10)),
}

# Models whose tokens have a row and a column, which drive the pairs in turn.
ROWS_AND_COLUMNS = frozenset({"neomme"})

# Models with a mixture of layer types whose older configurations give a period instead: every n-th
# layer has full attention, the others a sliding window.
PERIODS = {
    "afmoe": 4,
    "cohere2": 4,
    "cohere2_moe": 4,
    "cohere_compass_text": 4,
    "exaone4": 4,
    "exaone_moe": 4,
    "gemma3_text": 6,
    "kolibri1": 5,
    "olmo3": 4,
    "t5gemma2_decoder": 6,
    "t5gemma2_text": 6,
}

# Models whose layers of full attention have no rotary encoding ...
FULL_ATTENTION_WITHOUT = frozenset({"afmoe", "cohere2", "cohere2_moe", "flint"})
# ... if there are layers with a sliding window beside them.
FULL_ATTENTION_WITHOUT_BESIDE_WINDOWS = frozenset(
    {"exaone4", "exaone4_5", "exaone_moe", "kolibri1"}
)

# Models of which every n-th layer has no rotary encoding unless no_rope_layers says otherwise;
# those with a negative number count from the last layer, and layer_rope_theta decides.
EVERY_NTH_WITHOUT = {
    "llama4_text": 4,
    "mistral_large4_text": 4,
    "muse_glimmer_text": -4,
    "muse_spark_text": -4,
    "smollm3": 4,
}

# Models that are rotary only if an entry of their configuration has this value; the third is what
# holds without the entry.
ROTARY_IF: Mapping[str, tuple[str, Any, Any]] = {
    "esm": ("position_embedding_type", "rotary", "absolute"),
    "falcon": ("alibi", False, False),
    "granitemoehybrid": ("position_embedding_type", "rope", None),
    "kimi_linear": ("mla_use_nope", False, True),
    "zamba2": ("use_mem_rope", True, False),
}

# Models that correct the softmax scale as `softmax_correction` says.
SOFTMAX_CORRECTED = frozenset(
    {
        "axk1",
        "axk2",
        "bailing_hybrid",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "hy_v4",
        "longcat_flash",
        "minicpm3",
        "mistral4",
        "mistral_large4_text",
        "youtu",
    }
)

# Models whose rotation a configuration, or the arguments of Rotary, cannot express.
REFUSED = {
    "hunyuan_vl_text": "gives the two dims of a pair different axes",
    "mistral_large4_text": "has frequencies of its own in every checkpoint",
    "qwen2_5_omni_dit": "rotates one head of many",
}
