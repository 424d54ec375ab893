"""Settings of torchtitan as JSON: flat model arguments, or the whole dump of a trainer.

A trainer's dump is checked against torchtitan 0.3.0, which is run (tests/engines_at_hand). The flat
arguments of earlier releases are read as models/*/model/args.py of 0.2.2, which was not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_native.checkpoints.formats.description import Description, Ground
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.scaling_words import Word, llama3, yarn, yarn_scale
from posenc_native.checkpoints.formats.settings import (
    Settings,
    check_share,
    grouped,
    grouped_except,
    without_rotation,
)
from posenc_native.core.frequencies.axes import mrope_axis_map
from posenc_native.models.entries import HEAD_LIMIT, LAYER_LIMIT, LENGTH_LIMIT

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
_LOW, _HIGH = Word("low_freq_factor", 1.0), Word("high_freq_factor", 4.0)
_TRAINED = Word("original_max_position_embeddings", 8192)
_LENGTH = Word("original_seq_len", 4096)
_LLAMA = llama3(Word("scaling_factor", 8.0), _LOW, _HIGH, _TRAINED)
_LLAMA4 = llama3(Word("scaling_factor", 16.0), _LOW, Word("high_freq_factor", 1.0), _TRAINED)
_DEEPSEEK = yarn(Word("rope_factor", 40.0), _LENGTH)
_GPT_OSS = yarn(
    Word("rope_factor", 32.0),
    _LENGTH,
    Word("ntk_beta", 32.0),
    Word("ntk_alpha", 1.0),
    truncate=False,
)
_YARN = yarn(Word("rope_factor", 1.0), _LENGTH, truncate=Word("truncate", True))
_HALF = ("qwen3", "gpt_oss")
# Models of a trainer's dump that were run: their pairing, and YaRN's weight of the softmax scale (a
# number, the entry of the attention that has it, or None: YaRN leaves the softmax scale as it is).
_RUN: dict[str, tuple[str, str | float | None]] = {
    "llama3": ("interleaved", None),
    "muse_glimmer": ("interleaved", None),
    "qwen3": ("half", None),
    "gpt_oss": ("half", 1.0),
    "deepseek_v3": ("interleaved", "mscale"),
    "kimi_k2_5": ("interleaved", "mscale"),
}
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


def _of_arguments(settings: Settings, source: str) -> Description:
    name = _model_of(settings)
    layers = settings.layers("n_layers")
    default = _BASES.get(name, 10000.0)
    assumed = f"torchtitan's {name} defaults to {default:,.0f}"
    base, unknown = settings.base("rope_theta", default, assumed)
    latent = name == "deepseek_v3"
    if latent:
        head_dim = settings.heads("qk_rope_head_dim") if "qk_rope_head_dim" in settings else 64
    elif "head_dim" in settings or name in _HALF:
        head_dim = settings.count("head_dim", {"qwen3": 128, "gpt_oss": 64}.get(name), HEAD_LIMIT)
    else:
        head_dim = settings.count("dim") // settings.count("n_heads")
    check_share(settings, "n_heads", head_dim, head_dim)
    scaling, scale, correction, remarks = _SCALINGS[name](settings)
    rotation: dict[str, Any] = {
        "head_dim": head_dim,
        "base": base,
        "pairing": "half" if name in _HALF else "interleaved",
        "scaling": scaling,
        "scale": scale,
    }
    every = settings.count("every_n_layers_nope") if "every_n_layers_nope" in settings else 0
    skipped = [every > 0 and i % every == 0 for i in range(layers)]
    groups = grouped_except(settings, "every_n_layers_nope", skipped, rotation, correction)
    if every:
        remarks.append("torchtitan counts from the first layer: layer 0 does not rotate.")
    return Description(
        source=source,
        format=TITLE,
        engine="torchtitan",
        ground=Ground("unknown", "torchtitan", why="torchtitan before 0.3 was not run"),
        model_type=name,
        groups=groups,
        layer_count=layers,
        length=settings.length("max_seq_len"),
        nope_layers=without_rotation(groups),
        words=_WORDS,
        unknown=tuple(unknown),
        remarks=tuple(remarks),
        latent=latent,
        corrects_softmax=correction != 1,
    )


def _model_of(settings: Settings) -> str:
    if "ntk_alpha" in settings or "ntk_beta" in settings:
        return "gpt_oss"
    if "qk_rope_head_dim" in settings or "kv_lora_rank" in settings:
        return "deepseek_v3"
    if "every_n_layers_nope" in settings or "interleave_moe_layer_step" in settings:
        return "llama4"
    return "qwen3" if "qk_norm" in settings or "hidden_dim" in settings else "llama3"


_Scaling = tuple[dict[str, Any] | None, float, float, list[str]]
_BASES = {"qwen3": 1e6, "gpt_oss": 150000.0}


def _llama3(settings: Settings) -> _Scaling:
    remarks = []
    if "rope_scaling_args" not in settings:
        remarks.append("rope_scaling_args is absent: read as Llama 3.1's scaling.")
    return _LLAMA.read(settings.inner("rope_scaling_args")), 1.0, 1.0, remarks


def _llama4(settings: Settings) -> _Scaling:
    if "rope_scaling_args" not in settings:
        return None, 1.0, 1.0, []
    return _LLAMA4.read(settings.inner("rope_scaling_args")), 1.0, 1.0, []


def _deepseek(settings: Settings) -> _Scaling:
    scaling = _DEEPSEEK.read(settings)
    trained = scaling["original_max_position_embeddings"]
    if settings.count("max_seq_len", 16384, LENGTH_LIMIT) <= trained:
        remark = "max_seq_len is not above original_seq_len, so torchtitan does not scale."
        return None, 1.0, 1.0, [remark]
    return scaling, 1.0, yarn_scale(scaling["factor"], settings.weight("mscale", 1.0)) ** 2, []


def _gpt_oss(settings: Settings) -> _Scaling:
    scaling = _GPT_OSS.read(settings)
    return scaling, yarn_scale(scaling["factor"]), 1.0, []


_SCALINGS = {
    "llama3": _llama3,
    "llama4": _llama4,
    "deepseek_v3": _deepseek,
    "qwen3": lambda settings: (None, 1.0, 1.0, []),
    "gpt_oss": _gpt_oss,
}


# A trainer's dump, in 0.3 and later: layers have their own rotation


def _of_trainer(entries: Mapping[str, Any], source: str, function: str) -> Description:
    spec = Settings(function, entries, "settings").inner("model_spec")
    name, model = spec.text("name"), spec.inner("model")
    layers = model["layers"]
    if not isinstance(layers, (list, tuple)) or not 1 <= len(layers) <= LAYER_LIMIT:
        model.wrong("layers", f"a list of 1 to {LAYER_LIMIT} layers", type(layers).__name__)
    parts = [Settings(function, layer, model.name("layers")).inner("attention") for layer in layers]
    lengths: list[int | None] = []

    def of_layer(i: int) -> tuple[None, dict[str, Any] | None, float]:
        attention = parts[i]
        rope = attention.inner("rope")
        if not rope.entries or not attention.flag("use_rope", True):
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
        ground=_ground(name, parts),
        model_type=name,
        groups=groups,
        layer_count=len(parts),
        length=next(iter(lengths), None),
        nope_layers=without_rotation(groups),
        words={**_WORDS, "base": "rope.theta", "scaling": "rope.scaling", "head_dim": "rope.dim"},
        latent="qk_rope_head_dim" in parts[0],
        corrects_softmax=any(group.softmax_correction != 1 for group in groups),
    )


def _ground(name: str, parts: list[Settings]) -> Ground:
    if name not in _RUN:
        return Ground("unknown", "torchtitan", why=f"torchtitan's model {name} was not run")
    others = {
        "max_context_length": any("max_context_length" in part.inner("rope") for part in parts),
        "mscale": _RUN[name][1] != "mscale" and any("mscale" in part for part in parts),
    }
    for entry in (entry for entry, present in others.items() if present):
        why = f"{name} of torchtitan 0.3.0 has no {entry}, and no other release was run"
        return Ground("unknown", "torchtitan", why=why)
    return Ground("run", "torchtitan", "0.3.0")


def _of_rope(rope: Settings, attention: Settings, name: str) -> tuple[dict[str, Any], float]:
    rotary_dim = rope.heads("dim")
    head_dim = attention.heads("head_dim") if "rotary_dim" in attention else rotary_dim
    check_share(rope, "dim", rotary_dim, head_dim)
    half = any(name.startswith(prefix) for prefix in (*_HALF, "qwen"))
    pairing, weight = _RUN.get(name, ("half" if half else "interleaved", "mscale"))
    refuses_llama = name in _RUN and pairing == "half"
    kinds = ("none", "yarn") if refuses_llama else ("none", "llama", "yarn")
    kind = rope.one_of("scaling", kinds, "none")
    scaling: dict[str, Any] | None = None
    correction = 1.0
    if kind == "llama":
        scaling = _LLAMA.read(rope)
    factor = rope.positive("rope_factor", 1.0)
    if kind == "yarn" and factor > 1:
        scaling = _YARN.read(rope)
        if isinstance(weight, str):
            weight = attention.weight(weight, 1.0)
        correction = 1.0 if weight is None else yarn_scale(factor, weight) ** 2
    arguments: dict[str, Any] = {
        "head_dim": head_dim,
        "rotary_dim": rotary_dim,
        "base": rope.positive("theta", 10000.0),
        "pairing": pairing,
        "scaling": scaling,
        "scale": 1.0,
    }
    section = [int(pairs) for pairs in rope.numbers("mrope_section", 4)]
    if section:
        arguments["axis_map"] = mrope_axis_map(section, order="interleaved", pairs=rotary_dim // 2)
    return arguments, correction


FORMAT = Format("torchtitan", TITLE, _claims, _read)
