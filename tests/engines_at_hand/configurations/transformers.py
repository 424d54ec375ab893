"""Every causal language model of transformers, small, with entries of its rotation changed.

`configurations` is a cover of `everything`: each model has three of the changes, in turn. The
whole runs weekly (test_every_configuration.py).
"""

from __future__ import annotations

import copy
import zlib
from typing import Any

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
_FULL = {"rope_type": "default", "rope_theta": 2e4}
_SLIDING = {"rope_type": "default", "rope_theta": 1e4}
# Entries that a user changes: today's form, the older one, and what people write by mistake.
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "base": {"rope_theta": 5e5},
    "base in parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "two bases": {
        "rope_theta": 2e4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    },
    "older base": {"rotary_emb_base": 2e4},
    "linear": {"rope_theta": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "linear by its older key": {"rope_scaling": {"type": "linear", "factor": 8.0}},
    "linear in parameters": {
        "rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e4}
    },
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "yarn": {"rope_theta": 2e4, "rope_scaling": _YARN},
    "yarn with truncate null": {"rope_parameters": {**_YARN, "rope_theta": 2e4, "truncate": None}},
    "yarn with mscale": {"rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    "yarn with a factor of attention": {
        "rope_parameters": {**_YARN, "rope_theta": 2e4, "attention_factor": 1.5}
    },
    "llama3": {"rope_scaling": _LLAMA3, "rope_theta": 5e5},
    "share of the head": {"partial_rotary_factor": 0.25},
    "share in parameters": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 2e4,
            "partial_rotary_factor": 0.25,
        }
    },
    "four layers": {"num_hidden_layers": 4},
    **{
        f"by layer type{more}": {
            "num_hidden_layers": 6,
            "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
        }
        for more, full, sliding in (
            ("", _FULL, _SLIDING),
            (", linear", {**_FULL, "rope_type": "linear", "factor": 8.0}, _SLIDING),
            (", share", {**_FULL, "partial_rotary_factor": 0.25}, _SLIDING),
            (", truncate", {**_YARN, "rope_theta": 2e4, "truncate": False}, _SLIDING),
            (", no base", {"rope_type": "linear", "factor": 8.0}, {"rope_type": "default"}),
        )
    },
}
# What shrinking by names does not get right.
# roformer's attention rotates by a method; the others do not become small by their names.
_LEFT_OUT = (
    "dots1",
    "dots3_note_text",
    "gemma3n_text",
    "longcat_flash",
    "phi4_multimodal",
    "roformer",
)
_SIZES: dict[str, dict[str, Any]] = {
    "ernie4_5_moe": {"moe_k": 2},
    "gemma4_text": {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "qwen4_exp": {"num_attention_heads": 4, "hidden_size": 64},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "use_mem_rope": True},
    "zaya": {"num_experts_per_tok": 1},
}


def configurations() -> dict[str, Any]:
    """A part of everything, in which every model and every change occurs."""
    every = everything()
    models = [*dict.fromkeys(name.partition(": ")[0] for name in every)]
    changes = [*CHANGES]
    return {
        name: every[name]
        for model in models
        # By its name, so that a new model changes no other's.
        for turn in (zlib.crc32(model.encode()),)
        for change in {changes[0], *(changes[(turn + k) % len(changes)] for k in range(2))}
        if (name := f"{model}: {change}") in every
    }


def everything() -> dict[str, Any]:
    """Every model with every change."""
    from hf_every import modeling_files, shrunk
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    rotating = {name.partition(".")[0] for name in modeling_files()}
    made: dict[str, Any] = {}
    for model_type in sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {*_LEFT_OUT}):
        sizes = shrunk(CONFIG_MAPPING[model_type])
        plain = {key: value for key, value in sizes.items() if isinstance(value, (int, float, str))}
        if "kv_lora_rank" in plain:
            plain["num_key_value_heads"] = 4
        plain |= _SIZES.get(model_type, {})
        rotates = model_type_to_module_name(model_type) in rotating
        for change, entries in CHANGES.items() if rotates else [("base", CHANGES["base"])]:
            if model_type == "deepseek_v4" and change.startswith("by layer type"):
                continue  # it has other names of its types
            whole = {"model_type": model_type, **plain, **entries}
            made[f"{model_type}: {change}"] = copy.deepcopy(whole)
    return made
