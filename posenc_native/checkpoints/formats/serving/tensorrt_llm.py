"""TensorRT-LLM: config.json of a checkpoint, or of an engine, which holds its checkpoint's.

Source: TensorRT-LLM, models/modeling_utils.py (PretrainedConfig), layers/attention.py and
functional.py (PositionEmbeddingType, RotaryScalingType, RopeEmbeddingUtils).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_native.checkpoints.formats.description import Description, Ground
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.scaling_words import (
    ScalingWords,
    Word,
    llama3,
    scale_apart,
    yarn,
    yarn_scale,
)
from posenc_native.checkpoints.formats.settings import Layer, Settings, check_share, grouped
from posenc_native.core.frequencies.axes import mrope_axis_map
from posenc_native.models.config import LayerGroup
from posenc_native.models.entries import HEAD_LIMIT, LENGTH_LIMIT

TITLE = "TensorRT-LLM configuration"
_WORDS = {
    "layer_count": "num_hidden_layers",
    "head_dim": "head_size",
    "rotary_dim": "rotary_pct, rotary_dim",
    "pairing": "position_embedding_type",
    "base": "rotary_base",
    "scaling": "rotary_scaling",
    "scale": "rotary_scaling",
    "softmax_correction": "rotary_scaling.mscale_all_dim",
    "axis_map": "rotary_scaling.mrope_section",
}
_TRAINED = "original_max_position_embeddings"
_LINEAR = ScalingWords("linear", {"factor": Word("factor", 1.0)})
_DYNAMIC = ScalingWords("dynamic", {"factor": Word("factor", 1.0)})
_LLAMA3 = llama3(
    Word("factor", 8.0),
    Word("low_freq_factor", 1.0),
    Word("high_freq_factor", 4.0),
    Word(_TRAINED, 8192),
)
_YARN = yarn(
    Word("factor", 1.0),
    Word(_TRAINED, 4096),
    mscale=Word("mscale", 1.0),
    mscale_all_dim=Word("mscale_all_dim", 0.0),
)
_PAIRINGS = {"rope_gptj": "interleaved", "rope_gpt_neox": "half", "long_rope": "half",
             "mrope": "half"}  # fmt: skip


def _claims(entries: Mapping[str, Any]) -> bool:
    if isinstance(entries.get("pretrained_config"), Mapping):
        return True
    return "position_embedding_type" in entries and isinstance(entries.get("architecture"), str)


def _read(entries: Mapping[str, Any], source: str, function: str) -> Description:
    if isinstance(entries.get("pretrained_config"), Mapping):
        entries = entries["pretrained_config"]
    settings = Settings(function, entries, "config")
    kind = settings.text("position_embedding_type", "learned_absolute")
    if kind not in _PAIRINGS:
        settings.wrong("position_embedding_type", f"one of {', '.join(_PAIRINGS)}", repr(kind))
    pairing = _PAIRINGS[kind]
    remarks = []
    latent = "qk_rope_head_dim" in settings
    if latent:  # head_size is the width of the compressed keys
        head_dim = rotary_dim = check_share(
            settings, "qk_rope_head_dim", settings.heads("qk_rope_head_dim"), HEAD_LIMIT
        )
        pairing = "interleaved"
        remarks.append(
            "The kernels of latent attention rotate neighbors, regardless of "
            "position_embedding_type."
        )
    else:
        head_dim, rotary_dim = _dims(settings)
    base, unknown = settings.base("rotary_base", 10000.0, "TensorRT-LLM defaults to 10,000")
    scaling, scale = _scaling(settings, kind)
    rotation: dict[str, Any] = {
        "head_dim": head_dim,
        "base": base,
        "rotary_dim": rotary_dim,
        "pairing": pairing,
        "scaling": scaling,
    }
    if scale is not None:
        rotation["scale"] = scale
    section = [int(pairs) for pairs in settings.inner("rotary_scaling").numbers("mrope_section", 3)]
    if section:
        if len(section) != 3 or sum(section) != rotary_dim // 2:
            settings.wrong(
                "rotary_scaling", f"an mrope_section with the sum {rotary_dim // 2}", section
            )
        rotation["axis_map"] = mrope_axis_map(section, order="sectioned")
    correction = 1.0
    if latent and scaling is not None and scaling["rope_type"] == "yarn":
        weight = settings.inner("rotary_scaling").weight("mscale_all_dim", 0.0)
        correction = yarn_scale(scaling["factor"], weight) ** 2
    layers = settings.layers("num_hidden_layers")
    return Description(
        source=source,
        format=TITLE,
        engine="TensorRT-LLM",
        model_type=settings.text("architecture", ""),
        groups=_groups(settings, layers, rotation, correction),
        layer_count=layers,
        length=settings.length("max_position_embeddings"),
        words=_WORDS,
        unknown=tuple(unknown),
        remarks=tuple(remarks),
        corrects_softmax=correction != 1,
        latent=latent,
        ground=Ground("unknown", "TensorRT-LLM", why="TensorRT-LLM was not run"),
    )


def _groups(
    settings: Settings, layers: int, rotation: dict[str, Any], correction: float
) -> tuple[LayerGroup, ...]:
    """Layers of Gemma 3 with a sliding window have a base of their own, and no scaling."""
    if "rope_local_base_freq" not in settings:
        return (LayerGroup(None, tuple(range(layers)), rotation, correction),)
    every = settings.count("_sliding_window_pattern", 6)
    local = {**rotation, "base": settings.positive("rope_local_base_freq"), "scaling": None}

    def of_layer(layer: int) -> Layer:
        if (layer + 1) % every == 0:
            return "full_attention", rotation, correction
        return "sliding_attention", local, 1.0

    return grouped(settings, layers, of_layer)


def _dims(settings: Settings) -> tuple[int, int]:
    head_dim = settings.head_dim("head_size", "hidden_size", "num_attention_heads")
    if "rotary_dim" in settings:
        key, rotary_dim = "rotary_dim", settings.count("rotary_dim")
    elif "rotary_pct" in settings:
        key, share = "rotary_pct", settings.positive("rotary_pct")
        if share > 1:
            settings.wrong(key, "a share of the head, at most 1", share)
        rotary_dim = int(head_dim * share)
    else:
        key, rotary_dim = "rotary_embedding_dim", settings.count("rotary_embedding_dim", head_dim)
    return head_dim, check_share(settings, key, rotary_dim, head_dim)


def _scaling(settings: Settings, kind: str) -> tuple[dict[str, Any] | None, float | None]:
    if kind == "long_rope":
        return _longrope(settings)
    inner = settings.inner("rotary_scaling")
    name = inner.text("type", inner.text("rope_type", "none"))
    if name in ("none", "default", "mrope"):
        return None, None
    if name == "linear":
        return _LINEAR.read(inner), None
    if name == "dynamic":
        if "alpha" in inner:
            return {"rope_type": "ntk_alpha", "alpha": inner.positive("alpha")}, None
        length = settings.count("max_position_embeddings", most=LENGTH_LIMIT)
        return _DYNAMIC.read(inner, max_position_embeddings=length), None
    if name == "llama3":
        return _LLAMA3.read(inner), None
    if name == "yarn":
        return scale_apart(_YARN.read(inner))
    known = "none, linear, dynamic, llama3, yarn, mrope"
    return inner.wrong("type", f"one of {known}", repr(name))


def _longrope(settings: Settings) -> tuple[dict[str, Any] | None, float | None]:
    lists = {
        name: settings.numbers(f"longrope_scaling_{name}_factors", HEAD_LIMIT // 2)
        for name in ("short", "long")
    }
    if not all(lists.values()):
        return None, None
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": lists["short"],
        "long_factor": lists["long"],
        _TRAINED: settings.count(_TRAINED, most=LENGTH_LIMIT),
        "max_position_embeddings": settings.length("max_position_embeddings"),
    }
    for name in ("short", "long"):
        if f"longrope_{name}_mscale" in settings:
            scaling[f"{name}_mscale"] = settings.positive(f"longrope_{name}_mscale")
    return scaling, None


FORMAT = Format("tensorrt-llm", TITLE, _claims, _read)
