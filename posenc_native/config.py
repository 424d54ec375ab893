"""Hugging Face model configurations as the arguments of `Rotary`.

What configurations leave to the code of their models (pairing, defaults of older files, position
axes) stands in the tables below. transformers itself is not needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from . import arguments
from .frequencies import ROTARY_SCALINGS

_FUNCTION = "rotary_arguments"

# Models that pair neighbouring dims; all others pair dim i with dim i + rotary_dim / 2. Where a
# configuration has rope_interleave, that decides. (Models with latent attention then store the
# rotated dims in another order, in q and k alike, which no attention score can tell.)
INTERLEAVED = frozenset(
    {
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
        "deepseek_v32",
        "deepseek_v4",
        "dots3_note_text",
        "ernie4_5",
        "ernie4_5_moe",
        "glm",
        "glm4",
        "glm4v_text",
        "glm_moe_dsa",
        "glm_ocr_text",
        "gptj",
        "helium",
        "llama4_text",
        "longcat_flash",
        "mistral_large4_text",
        "moonshine",
        "moonshine_streaming",
        "openai_privacy_filter",
    }
)

# Models that rotate the last dims of a head instead of the first.
TRAILING = frozenset({"deepseek_v4"})

# Share of the head that is rotated, where the configuration does not say and it is not all.
ROTARY_SHARE = {
    "bamba": 0.5,
    "glm": 0.5,
    "glm4": 0.5,
    "glm4_moe": 0.5,
    "gpt_neox": 0.25,
    "moonshine": 0.9,
    "nemotron": 0.5,
    "persimmon": 0.5,
    "phi": 0.5,
    "qwen3_5_moe_text": 0.25,
    "qwen3_5_text": 0.25,
    "qwen3_next": 0.25,
    "recurrent_gemma": 0.5,
    "stablelm": 0.25,
}

# Base of the frequencies, where the configuration does not say and it is not 10000.
BASE = {
    "cwm": 1e6,
    "ernie4_5": 5e5,
    "ernie4_5_moe": 5e5,
    "flex_olmo": 5e5,
    "gemma3_text": 1e6,
    "lfm2": 1e6,
    "llama4_text": 5e5,
    "longcat_flash": 1e7,
    "mixtral": 1e6,
    "mllama_text_model": 5e5,
    "modernbert": 160000.0,
    "qwen2_5_omni_talker": 1e6,
    "qwen2_5_omni_text": 1e6,
    "qwen2_5_vl_text": 1e6,
    "qwen3_omni_moe_text": 1e6,
    "qwen3_vl_moe_text": 5e5,
    "qwen3_vl_text": 5e5,
    "smollm3": 2e6,
}

# Models whose sliding-window layers have a base of their own, and what it is by default.
LOCAL_BASE = {"gemma3_text": 10000.0, "modernbert": 10000.0}

# Models whose tokens have a position on each of three axes (time, height, width), and the number of
# pairs an axis drives by default. The pairs of one axis lie together ...
SECTIONS = {
    "glm4v_moe_text": (8, 12, 12),
    "glm4v_text": (8, 12, 12),
    "glm_image_text": (8, 12, 12),
    "glm_ocr_text": (8, 12, 12),
    "paddleocr_vl_text": (16, 24, 24),
    "qwen2_5_omni_talker": (16, 24, 24),
    "qwen2_5_omni_text": (16, 24, 24),
    "qwen2_5_vl": (16, 24, 24),
    "qwen2_5_vl_text": (16, 24, 24),
    "qwen2_vl": (16, 24, 24),
    "qwen2_vl_text": (16, 24, 24),
}
# ... or the axes take turns, and time has what is left when the others are done.
ALTERNATING_SECTIONS = {
    "cohere_compass_text": (24, 20, 20),
    "cosmos3_edge_text": (24, 20, 20),
    "qwen3_5_moe_text": (11, 11, 10),
    "qwen3_5_text": (11, 11, 10),
    "qwen3_omni_moe_talker_text": (24, 20, 20),
    "qwen3_omni_moe_text": (24, 20, 20),
    "qwen3_vl_moe_text": (24, 20, 20),
    "qwen3_vl_text": (24, 20, 20),
    "qwen4_exp_text": (11, 11, 10),
}

# Models whose rotation the arguments of Rotary cannot express.
REFUSED = {
    "ernie4_5_vl_moe_text": "shares out the frequencies among axes in an order of its own",
    "hunyuan_vl_text": "gives the two dims of a pair different axes",
    "neomme": "rotates by rows and columns",
    "phimoe": "scales cos and sin by the length of the sequence",
    "qwen2_5_omni_dit": "rotates one head of many",
}

_OLD_ROPE_TYPES = {"mrope": "default", "su": "longrope"}


def rotary_arguments(config: Any, layer_type: str | None = None) -> dict[str, Any]:
    """Arguments of `Rotary` for the attention layers of a Hugging Face model.

    Args:
        config: a configuration object of transformers, the mapping that a config.json holds, or the
            path of that file or of its folder. Of a model for several modalities the
            ``text_config`` is read. The rotary parameters may be in ``rope_parameters``, flat or by
            layer type, or in ``rope_theta`` and ``rope_scaling``.
        layer_type: which layers, such as "full_attention" or "sliding_attention", where they
            differ.

    Returns:
        ``head_dim``, ``base``, ``rotary_dim``, ``pairing``, ``scaling``, ``axis_map`` (int64
        [rotary_dim // 2] or None) and ``rotary_start``. In multi-head latent attention, where the
        rotated dims are a tensor of their own, head_dim is the width of that tensor.

    Raises:
        ValueError: no rotary encoding, an entry that is missing or nonsense, a layer_type that is
            missing or unknown, a model whose rotation these arguments cannot express.
        TypeError: config or an entry of the wrong kind.
        OSError: a file that cannot be read.

    Example:
        >>> rotary_arguments({"hidden_size": 64, "num_attention_heads": 4, "rope_theta": 5e5})
        ... # doctest: +NORMALIZE_WHITESPACE
        {'head_dim': 16, 'base': 500000.0, 'rotary_dim': 16, 'pairing': 'half', 'scaling': None,
         'axis_map': None, 'rotary_start': 0}

    A config.json may leave out whatever its model's class has a default for. A size that is missing
    so is an error; ``transformers.AutoConfig.from_pretrained`` gives the complete object.

    Source: ``configuration_*.py``, ``modeling_*.py`` and ``modeling_rope_utils.py`` of
    transformers 5.23. Unlike there, "truncate" of YaRN counts in the entry of a layer type too.
    """
    fields = _language_model(_mapping(config))
    model_type = str(fields.get("model_type"))
    if model_type in REFUSED:
        got = f"{model_type}, which {REFUSED[model_type]}"
        _wrong("model_type", "a model that rotates pairs by position alone", got)
    if "image_size" in fields and "vocab_size" not in fields:
        _wrong("model_type", "a language model", f"{model_type}, which sees images")
    parameters = _rope_parameters(fields, model_type, layer_type)
    rope_type = _rope_type(parameters)
    head_dim = _head_dim(fields, model_type, layer_type)
    rotary_dim = _rotary_dim(fields, model_type, parameters, head_dim)
    interleaved = fields.get("rope_interleave", model_type in INTERLEAVED)
    return {
        "head_dim": head_dim,
        "base": arguments.positive_number(_FUNCTION, _name("rope_theta"), parameters["rope_theta"]),
        "rotary_dim": head_dim if rope_type == "proportional" else rotary_dim,
        "pairing": "interleaved" if interleaved else "half",
        "scaling": _scaling(fields, parameters, rope_type),
        "axis_map": _axis_map(model_type, parameters, rotary_dim // 2),
        "rotary_start": head_dim - rotary_dim if model_type in TRAILING else 0,
    }


def _mapping(config: Any) -> Mapping[str, Any]:
    if isinstance(config, (str, os.PathLike)):
        path = Path(config)
        file = path / "config.json" if path.is_dir() else path
        config = json.loads(file.read_text(encoding="utf-8"))
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        expected = "a configuration object, a mapping or a path"
        arguments.wrong_type(_FUNCTION, "config", expected, type(config).__name__)
    return config


def _language_model(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = fields.get("text_config")
    return inner if isinstance(inner, Mapping) else fields


def _rope_parameters(
    fields: Mapping[str, Any], model_type: str, layer_type: str | None
) -> dict[str, Any]:
    """What holds for the layer type, in the form of today; rope_theta is always there."""
    given = _first(fields, "rope_parameters", "rope_scaling") or {}
    if not isinstance(given, Mapping):
        arguments.wrong_type(_FUNCTION, _name("rope_scaling"), "a mapping", type(given).__name__)
    base = _first(fields, "rope_theta", "global_rope_theta", "rotary_emb_base")
    # The first configurations of these models say nothing at all about their rotary encoding.
    rotary = {"llama", *BASE, *ROTARY_SHARE}
    silent = not given and base is None and not {"rope_scaling", "rotary_dim"} & {*fields}
    if silent and model_type not in rotary:
        _wrong("rope_parameters", "this, rope_scaling or rope_theta", "none of them")
    if base is None:
        base = BASE.get(model_type, 10000.0)
    local_base = _first(fields, "rope_local_base_freq", "local_rope_theta")
    if local_base is None:
        local_base = LOCAL_BASE.get(model_type)

    layers = {key: value for key, value in given.items() if isinstance(value, Mapping)}
    if not layers and local_base is not None:
        layers = {"full_attention": given, "sliding_attention": {"rope_theta": local_base}}
    if layer_type is None and len(layers) == 1:
        (layer_type,) = layers
    known = [*layers] if layers else [None, *(fields.get("layer_types") or ())]
    if layer_type not in known:
        expected = f"one of {', '.join(map(str, known))}"
        arguments.wrong_value(_FUNCTION, "layer_type", expected, layer_type)
    chosen = layers[layer_type] if layers else given
    return {"rope_theta": base, **{key: v for key, v in chosen.items() if v is not None}}


def _rope_type(parameters: Mapping[str, Any]) -> str:
    named = str(parameters.get("rope_type") or parameters.get("type") or "default")
    rope_type = _OLD_ROPE_TYPES.get(named, named)
    if rope_type == "yarn" and "short_factor" in parameters:  # so the first Phi-3 files name it
        rope_type = "longrope"
    if rope_type not in ROTARY_SCALINGS:
        _wrong("rope_type", f"one of {', '.join(ROTARY_SCALINGS)}", rope_type)
    return rope_type


def _head_dim(fields: Mapping[str, Any], model_type: str, layer_type: str | None) -> int:
    """Width of what is rotated: the head, or the part that latent attention splits off."""
    latent = fields.get("qk_rope_head_dim") if model_type not in TRAILING else None
    value = latent or _of_layer(fields, layer_type).get("head_dim")
    value = value or _first(fields, "head_dim", "attention_head_dim", "kv_channels")
    if value is None:
        width = _size(fields, "hidden_size", "n_embd", "d_model")
        heads = ("num_attention_heads", "n_head", "n_heads", "encoder_num_attention_heads")
        value = width // _size(fields, *heads)
    return arguments.even_size(_FUNCTION, _name("head_dim"), value)


def _of_layer(fields: Mapping[str, Any], layer_type: str | None) -> Mapping[str, Any]:
    """What the configuration says of the first layer of this type alone."""
    layer_types = fields.get("layer_types") or ()
    for index, values in (fields.get("per_layer_config") or {}).items():
        if layer_types[int(index)] == layer_type:
            return values  # type: ignore[no-any-return]
    return {}


def _rotary_dim(
    fields: Mapping[str, Any], model_type: str, parameters: Mapping[str, Any], head_dim: int
) -> int:
    if fields.get("qk_rope_head_dim") == head_dim:
        return head_dim
    share = parameters.get("partial_rotary_factor")
    if share is None:
        share = _first(fields, "partial_rotary_factor", "rotary_pct")
    if share is None and not fields.get("rope_parameters") and fields.get("rotary_dim"):
        rotary_dim = arguments.size(_FUNCTION, _name("rotary_dim"), fields["rotary_dim"])
    else:
        share = ROTARY_SHARE.get(model_type, 1.0) if share is None else share
        name = _name("partial_rotary_factor")
        rotary_dim = int(head_dim * arguments.positive_number(_FUNCTION, name, share))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        _wrong("partial_rotary_factor", f"an even rotary_dim in 2 .. {head_dim}", rotary_dim)
    return rotary_dim


def _scaling(
    fields: Mapping[str, Any], parameters: Mapping[str, Any], rope_type: str
) -> dict[str, Any] | None:
    """The parameters that rotary_frequencies reads for this type, lengths included."""
    if rope_type == "default":
        return None
    known = {**parameters}
    length = fields.get("max_position_embeddings")
    trained = fields.get("original_max_position_embeddings")
    known["max_position_embeddings"] = length
    known["original_max_position_embeddings"] = (
        trained or parameters.get("original_max_position_embeddings") or length
    )
    keys = ROTARY_SCALINGS[rope_type].keys
    return {
        "rope_type": rope_type,
        **{key: known[key] for key in keys if known.get(key) is not None},
    }


def _axis_map(
    model_type: str, parameters: Mapping[str, Any], pairs: int
) -> npt.NDArray[np.int64] | None:
    default = SECTIONS.get(model_type) or ALTERNATING_SECTIONS.get(model_type)
    sections = parameters.get("mrope_section", default)
    if sections is None:
        return None
    name = _name("mrope_section")
    counts = [arguments.size(_FUNCTION, name, count) for count in sections]
    if len(counts) != 3:
        _wrong("mrope_section", "3 numbers", sections)
    if parameters.get("mrope_interleaved") or model_type in ALTERNATING_SECTIONS:
        axis_map = np.zeros(pairs, dtype=np.int64)
        for axis in (1, 2):
            axis_map[axis : 3 * counts[axis] : 3] = axis
        return axis_map
    if sum(counts) != pairs:
        _wrong("mrope_section", f"numbers with the sum {pairs}", sections)
    return np.repeat(np.arange(3), counts)


def _first(fields: Mapping[str, Any], *keys: str) -> Any:
    """The first of these entries that is there and not None."""
    return next((fields[key] for key in keys if fields.get(key) is not None), None)


def _size(fields: Mapping[str, Any], *keys: str) -> int:
    value = _first(fields, *keys)
    if value is None:
        _wrong(keys[0], "a number", "none (see transformers.AutoConfig)")
    result = arguments.size(_FUNCTION, _name(keys[0]), value)
    if result == 0:
        _wrong(keys[0], "a number > 0", result)
    return result


def _name(key: str) -> str:
    return f"config[{key!r}]"


def _wrong(key: str, expected: str, got: object) -> NoReturn:
    arguments.wrong_value(_FUNCTION, _name(key), expected, got)
