"""GGUF files for llama.cpp: architectures, scalings, factors, layers of several kinds.

A configuration has the file's ``metadata``, its ``tensors`` of factors, and ``seq_len``, the length
of the context, if it is not llama.cpp's default.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_ROWS = Path(__file__).parents[3] / "posenc_native/checkpoints/formats/binary/llama_cpp.json"

# Heads of 16 dims: few numbers in the record.
_SIZES = {
    "block_count": 2, "context_length": 4096, "embedding_length": 64, "attention.head_count": 4,
}  # fmt: skip
_BASE = {"rope.freq_base": 50000.0}
_YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 1024,
}  # fmt: skip
_KINDS: dict[str, dict[str, Any]] = {
    "base": _BASE,
    "linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    "yarn": {**_BASE, **_YARN},
}
# Keys that the others do not have.
_LATENT = {
    "attention.key_length": 80, "attention.value_length": 64, "rope.dimension_count": 16,
    "attention.key_length_mla": 48, "attention.value_length_mla": 32, "attention.kv_lora_rank": 64,
    "attention.head_count_kv": 1,
}  # fmt: skip
_PATTERN = {"attention.sliding_window_pattern": [True, False, True, True, False, True]}
_HYBRID = {"attention.head_count_kv": [4, 0], "attention.head_count": 4, "block_count": 2}
# No small file of zeros was found that llama.cpp takes.
_NOT_RUN = (
    "bailingmoe3", "chameleon", "cogvlm", "deepseek2-ocr", "deepseek32", "deepseek4", "dflash",
    "dots3note", "eagle3", "falcon-h1", "gemma4-assistant", "glm-dsa", "granitehybrid",
    "graniteswitch", "hrm_text", "hy_v4", "laguna", "minimax-m3", "plamo2", "plm", "qwen4exp",
)  # fmt: skip
_EVERY_2 = {"full_attention_interval": 2}
_OWN: dict[str, dict[str, Any]] = {
    "baichuan": {"block_count": 32},
    **dict.fromkeys(
        ["granite_swa", "maple", "mimo2", "spark2_5", "step35"],
        _PATTERN,
    ),
    "gemma4": {**_PATTERN, "attention.key_length_swa": 16, "attention.value_length_swa": 16},
    "minicpm3": {
        "attention.head_count_kv": 4,
        "attention.key_length": 48,
        "attention.value_length": 32,
    },
    **dict.fromkeys(["lfm2", "lfm2moe"], _HYBRID),
    **dict.fromkeys(["qwen3next", "qwen35", "qwen35moe", "minimax-01"], _EVERY_2),
    "cohere2moe": {"leading_dense_block_count": 1},
}


_LONG_ROPE = {"rope.scaling.original_context_length": 1024, "rope.scaling.attn_factor": 1.25}
_FACTORS = {"rope_freqs.weight": [1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 8.0]}
_BY_LENGTH = {
    "rope_factors_short.weight": [1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 2.0, 2.0],
    "rope_factors_long.weight": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 16.0],
}
# Name, architectures, keys besides, tensors, length of the context.
_MORE: list[tuple[str, list[str], dict[str, Any], dict[str, Any], int | None]] = [
    ("no base", ["llama", "qwen3"], {}, {}, None),
    (
        "no scaling, a factor",
        ["llama"],
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {},
        None,
    ),
    ("a factor alone", ["llama", "gemma3"], {"rope.scaling.factor": 4.0}, {}, None),
    ("scale_linear", ["llama"], {"rope.scale_linear": 4.0}, {}, None),
    (
        "attn_factor",
        ["llama", "qwen3", "gemma2", "gpt-oss"],
        {"rope.scaling.attn_factor": 1.5},
        {},
        None,
    ),
    (
        "yarn, attn_factor",
        ["llama", "qwen3", "gemma2", "gpt-oss", "mistral3"],
        {**_YARN, "rope.scaling.attn_factor": 1.5},
        {},
        None,
    ),
    (
        "yarn, yarn_attn_factor",
        ["llama", "qwen3", "grok", "mistral3"],
        {**_YARN, "rope.scaling.yarn_attn_factor": 1.5},
        {},
        None,
    ),
    (
        "yarn, bounds",
        ["llama", "qwen3", "gpt-oss", "grok", "mistral3", "deepseek2"],
        {**_YARN, "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0},
        {},
        None,
    ),
    (
        "yarn, no length",
        ["llama"],
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0},
        {},
        None,
    ),
    (
        "yarn, ext_factor 0",
        ["llama", "grok", "mistral3"],
        {**_YARN, "rope.scaling.yarn_ext_factor": 0.0},
        {},
        None,
    ),
    (
        "yarn, log_multiplier",
        ["deepseek2", "mistral3", "mistral4", "qwen3"],
        {**_YARN, "rope.scaling.yarn_log_multiplier": 0.1},
        {},
        None,
    ),
    (
        "yarn, small log_multiplier",
        ["deepseek2", "mistral3", "mistral4"],
        {**_YARN, "rope.scaling.yarn_log_multiplier": 0.0707},
        {},
        None,
    ),
    ("alpha", ["hunyuan-dense", "hunyuan_vl", "llama"], {"rope.scaling.alpha": 100.0}, {}, None),
    (
        "some dims, yarn",
        ["gptneox", "phi3", "glm4moe"],
        {"rope.dimension_count": 8, **_BASE, **_YARN},
        {},
        None,
    ),
    (
        "wide heads",
        ["llama", "qwen3", "gemma", "gemma3"],
        {"attention.key_length": 32, "attention.value_length": 32},
        {},
        None,
    ),
    (
        "base of sliding layers",
        [
            "gemma2",
            "gemma3",
            "llama4",
            "olmo2",
            "gpt-oss",
            "mimo2",
            "step35",
            "plamo3",
            "mellum",
            "smallthinker",
            "cohere2",
        ],
        {**_BASE, "rope.freq_base_swa": 500.0},
        {},
        None,
    ),
    (
        "no sliding window",
        ["gemma2", "gemma3", "olmo2", "cohere2", "smallthinker"],
        {**_BASE, "attention.sliding_window": 0},
        {},
        None,
    ),
    (
        "a pattern of three",
        ["gemma2", "gemma3", "olmo2", "cohere2", "gpt-oss", "exaone4"],
        {**_BASE, "attention.sliding_window_pattern": 3},
        {},
        None,
    ),
    (
        "sections",
        ["qwen2vl", "qwen3vl", "qwen3vlmoe", "paddleocr", "glm4", "glm4moe", "hunyuan_vl"],
        {**_BASE, "rope.dimension_sections": [4, 2, 2, 0]},
        {},
        None,
    ),
    (
        "few sections",
        ["qwen2vl", "qwen3vl"],
        {**_BASE, "rope.dimension_sections": [2, 2, 1, 0]},
        {},
        None,
    ),
    (
        "factors, linear",
        ["llama", "exaone"],
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
        _FACTORS,
        None,
    ),
    ("factors, yarn", ["llama", "exaone"], {**_BASE, **_YARN}, _FACTORS, None),
    ("factors that are not read", ["qwen3", "gemma2"], {}, _FACTORS, None),
]


def configurations() -> dict[str, Any]:
    rows = {
        name: row
        for name, row in json.loads(_ROWS.read_text()).items()
        if row["rope"] != "none" and name not in _NOT_RUN
    }
    made = {}
    for name, row in rows.items():
        factors = _FACTORS if name == "gemma4" else {}
        for kind, given in _KINDS.items():
            made[f"{name}, {kind}"] = _file(name, row, given, factors)
        if "latent" not in row:
            some = {**_BASE, "rope.dimension_count": 8}
            if "mrope" in row["rope"]:
                some["rope.dimension_sections"] = [1, 2, 1, 0]
            made[f"{name}, some dims"] = _file(name, row, some, factors)
        if "rope_freqs" in row:
            made[f"{name}, factors"] = _file(name, row, _BASE, _FACTORS)
        if "long_factors" in row:
            given = {**_BASE, **_LONG_ROPE}
            if row["long_factors"] == "longrope":
                given["rope.scaling.type"] = "longrope"
            for length in (512, 2048):
                made[f"{name}, factors for {length}"] = _file(name, row, given, _BY_LENGTH, length)
    for kind, names, given, tensors, length in _MORE:
        for name in names:
            made[f"{name}, {kind}"] = _file(name, rows[name], given, tensors, length)
    return made


def _file(
    name: str,
    row: dict[str, Any],
    given: dict[str, Any],
    tensors: dict[str, Any],
    length: int | None = None,
) -> dict[str, Any]:
    own = dict(_OWN.get(name, {}))
    if "window" in row:
        own = {"attention.sliding_window": 16, "block_count": 6} | own
    if row.get("latent"):
        own = _LATENT | own
    if "mrope" in row["rope"]:
        own = {"rope.dimension_sections": [2, 3, 3, 0]} | own
    keys = {**_SIZES, **own, **given}
    metadata = {"general.architecture": name} | {f"{name}.{key}": keys[key] for key in keys}
    return (
        {"metadata": metadata}
        | ({"tensors": tensors} if tensors else {})
        | ({"seq_len": length} if length else {})
    )
