"""Settings of torchtitan as JSON: flat model arguments, or the whole dump of a trainer.

Source: torchtitan 0.2.2, models/*/model/args.py and model.py; 0.3.0 and commit b5bcd76,
models/common/rope.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from posenc_native.formats.description import Description, Unknown
from posenc_native.formats.form import Format
from posenc_native.formats.settings import (
    Settings,
    check_share,
    grouped,
    refuse_if_none_rotates,
    without_rotation,
)
from posenc_native.spectra.axes import mrope_axis_map

TITLE = "torchtitan settings"
_WORDS = {
    "layer_count": "n_layers",
    "nope_layers": "every_n_layers_nope",
    "head_dim": "dim / n_heads or head_dim",
    "pairing": "the model's code",
    "base": "rope_theta",
    "scaling": "rope_scaling_args, rope_factor",
    "softmax_correction": "mscale",
}
_HALF = ("qwen3", "gpt_oss")
_OWN = {"rope_scaling_args", "every_n_layers_nope", "depth_init", "use_flex_attn", "rope_factor",
        "ntk_alpha", "original_seq_len", "qk_norm"}  # fmt: skip


def _claims(entries: Mapping[str, Any]) -> bool:
    keys = {*entries}
    return "model_spec" in keys or ({"dim", "n_layers"} <= keys and bool(_OWN & keys))


def _read(entries: Mapping[str, Any], source: str, function: str) -> Description:
    if "model_spec" in entries:
        return _of_trainer(entries, source, function)
    return _of_arguments(Settings(function, entries, "settings"), source)


# The flat form, in releases up to 0.2


def _of_arguments(given: Settings, source: str) -> Description:
    name = _model_of(given)
    layers = given.layers("n_layers")
    base = given.positive("rope_theta", _BASES.get(name, 10000.0))
    unknown = []
    if "rope_theta" not in given:
        unknown.append(
            Unknown("base", f"torchtitan's {name} defaults to {_BASES.get(name, 1e4):,.0f}")
        )
    latent = name == "deepseek_v3"
    if latent:
        head_dim = given.heads("qk_rope_head_dim") if "qk_rope_head_dim" in given else 64
    elif "head_dim" in given or name in _HALF:
        head_dim = given.count("head_dim", {"qwen3": 128, "gpt_oss": 64}.get(name), 1 << 13)
    else:
        head_dim = given.count("dim") // given.count("n_heads")
    check_share(given, "n_heads", head_dim, head_dim)
    scaling, scale, correction, remarks = _SCALINGS[name](given)
    rotation: dict[str, Any] = {
        "head_dim": head_dim,
        "base": base,
        "rotary_dim": head_dim,
        "pairing": "half" if name in _HALF else "interleaved",
        "scaling": scaling,
        "scale": scale,
    }
    every = given.count("every_n_layers_nope") if "every_n_layers_nope" in given else 0

    def of_layer(i: int) -> tuple[None, dict[str, Any] | None, float]:
        return (None, None, 1.0) if every and i % every == 0 else (None, rotation, correction)

    groups = grouped(given, layers, of_layer)
    refuse_if_none_rotates(given, groups, "every_n_layers_nope")
    if every:
        remarks.append("torchtitan counts from the first layer: layer 0 does not rotate.")
    return Description(
        source=source,
        format=TITLE,
        engine="torchtitan",
        model_type=name,
        groups=groups,
        layer_count=layers,
        length=given.length("max_seq_len"),
        nope_layers=without_rotation(groups),
        words=_WORDS,
        unknown=tuple(unknown),
        remarks=tuple(remarks),
        latent=latent,
        corrects_softmax=correction != 1,
    )


def _model_of(given: Settings) -> str:
    if "ntk_alpha" in given or "ntk_beta" in given:
        return "gpt_oss"
    if "qk_rope_head_dim" in given or "kv_lora_rank" in given:
        return "deepseek_v3"
    if "every_n_layers_nope" in given or "interleave_moe_layer_step" in given:
        return "llama4"
    return "qwen3" if "qk_norm" in given or "hidden_dim" in given else "llama3"


_Scaling = tuple[dict[str, Any] | None, float, float, list[str]]
_BASES = {"qwen3": 1e6, "gpt_oss": 150000.0}


def _llama(given: Settings, factor: float, high: float) -> _Scaling:
    inner = given.inner("rope_scaling_args")
    scaling = {
        "rope_type": "llama3",
        "factor": inner.positive("scaling_factor", factor),
        "low_freq_factor": inner.positive("low_freq_factor", 1.0),
        "high_freq_factor": inner.positive("high_freq_factor", high),
        "original_max_position_embeddings": inner.count(
            "original_max_position_embeddings", 8192, 1 << 53
        ),
    }
    return scaling, 1.0, 1.0, []


def _llama3(given: Settings) -> _Scaling:
    scaling, scale, correction, remarks = _llama(given, 8.0, 4.0)
    if "rope_scaling_args" not in given:
        remarks.append("torchtitan 0.2 scales every Llama 3; earlier releases did not.")
    return scaling, scale, correction, remarks


def _llama4(given: Settings) -> _Scaling:
    return _llama(given, 16.0, 1.0) if "rope_scaling_args" in given else (None, 1.0, 1.0, [])


def _deepseek(given: Settings) -> _Scaling:
    trained = given.count("original_seq_len", 4096, 1 << 53)
    factor = given.positive("rope_factor", 40.0)
    if given.count("max_seq_len", 16384, 1 << 53) <= trained:
        return (
            None,
            1.0,
            1.0,
            ["max_seq_len is not above original_seq_len, so torchtitan does not scale."],
        )
    grown = 1 + 0.1 * given.weight("mscale", 1.0) * math.log(factor) if factor > 1 else 1.0
    return _yarn(given, factor, trained, ("beta_fast", "beta_slow"), True), 1.0, grown**2, []


def _gpt_oss(given: Settings) -> _Scaling:
    factor = given.positive("rope_factor", 32.0)
    trained = given.count("original_seq_len", 4096, 1 << 53)
    grown = 1 + 0.1 * math.log(factor) if factor > 1 else 1.0
    return _yarn(given, factor, trained, ("ntk_beta", "ntk_alpha"), False), grown, 1.0, []


def _yarn(
    given: Settings, factor: float, trained: int, bounds: tuple[str, str], truncate: bool
) -> dict[str, Any]:
    fast, slow = given.bounds(*bounds)
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": trained,
        "beta_fast": fast,
        "beta_slow": slow,
    }
    return scaling if truncate else {**scaling, "truncate": False}


_SCALINGS = {
    "llama3": _llama3,
    "llama4": _llama4,
    "deepseek_v3": _deepseek,
    "qwen3": lambda given: (None, 1.0, 1.0, []),
    "gpt_oss": _gpt_oss,
}


# A trainer's dump, in 0.3 and later: each layer has its rotation


def _of_trainer(entries: Mapping[str, Any], source: str, function: str) -> Description:
    spec = Settings(function, entries, "settings").inner("model_spec")
    name, model = spec.text("name"), spec.inner("model")
    layers = model["layers"]
    if not isinstance(layers, (list, tuple)) or not 1 <= len(layers) <= 1 << 12:
        model.wrong("layers", "a list of 1 to 4096 layers", type(layers).__name__)
    parts = [Settings(function, layer, model.name("layers")).inner("attention") for layer in layers]
    lengths: list[int | None] = []

    def of_layer(i: int) -> tuple[None, dict[str, Any] | None, float]:
        attention = parts[i]
        rope = attention.inner("rope")
        if not rope.entries:
            return None, None, 1.0
        lengths.append(rope.length("max_context_length", "max_seq_len"))
        return None, *_of_rope(rope, attention, name)

    groups = grouped(spec, len(parts), of_layer)
    if all(group.arguments is None for group in groups):
        model.wrong("layers", "a rope in the attention of some layer", "none")
    return Description(
        source=source,
        format=TITLE,
        engine="torchtitan",
        model_type=name,
        groups=groups,
        layer_count=len(parts),
        length=next(iter(lengths), None),
        nope_layers=without_rotation(groups),
        words={**_WORDS, "base": "rope.theta", "scaling": "rope.scaling", "head_dim": "rope.dim"},
        latent="qk_rope_head_dim" in parts[0],
        corrects_softmax=any(group.softmax_correction != 1 for group in groups),
    )


def _of_rope(rope: Settings, attention: Settings, name: str) -> tuple[dict[str, Any], float]:
    head_dim = check_share(rope, "dim", rope.heads("dim"), rope.heads("dim"))
    kind = rope.one_of("scaling", ("none", "llama", "yarn"), "none")
    scaling: dict[str, Any] | None = None
    correction = 1.0
    if kind == "llama":
        scaling = {
            "rope_type": "llama3",
            "factor": rope.positive("scaling_factor", 8.0),
            "low_freq_factor": rope.positive("low_freq_factor", 1.0),
            "high_freq_factor": rope.positive("high_freq_factor", 4.0),
            "original_max_position_embeddings": rope.count(
                "original_max_position_embeddings", 8192, 1 << 53
            ),
        }
    factor = rope.positive("rope_factor", 1.0)
    if kind == "yarn" and factor > 1:
        trained = rope.count("original_seq_len", 4096, 1 << 53)
        truncate = rope.flag("truncate", True)
        scaling = _yarn(rope, factor, trained, ("beta_fast", "beta_slow"), truncate)
        correction = (1 + 0.1 * attention.weight("mscale", 1.0) * math.log(factor)) ** 2
    half = any(name.startswith(each) for each in (*_HALF, "qwen"))
    arguments: dict[str, Any] = {
        "head_dim": head_dim,
        "base": rope.positive("theta", 10000.0),
        "rotary_dim": head_dim,
        "pairing": "half" if half else "interleaved",
        "scaling": scaling,
        "scale": 1.0,
    }
    section = [int(each) for each in rope.numbers("mrope_section", 4)]
    if section:
        arguments["axis_map"] = mrope_axis_map(section, order="interleaved", pairs=head_dim // 2)
    return arguments, correction


FORMAT = Format("torchtitan", TITLE, _claims, _read)
