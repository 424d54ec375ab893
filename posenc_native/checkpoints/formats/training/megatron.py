"""Megatron-LM: the arguments of a run, or the model of a NeMo or Megatron-Bridge YAML.

megatron-core's GPTModel is run (tests/engines_at_hand). Defaults of absent arguments are those of
Megatron-LM's parser, megatron/training/arguments.py. Megatron-Bridge and NeMo were read, not run.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any

from posenc_native.checkpoints.formats.description import Description, Ground, Unknown
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.scaling_words import (
    WEIGHTS,
    ScalingWords,
    Word,
    llama3,
    scale_apart,
    yarn,
    yarn_scale,
    yarn_weight,
)
from posenc_native.checkpoints.formats.settings import (
    Layer,
    Settings,
    check_share,
    grouped,
    grouped_except,
    without_rotation,
)
from posenc_native.checkpoints.formats.written import Written, differs, softmax_correction
from posenc_native.core.frequencies.axes import mrope_axis_map, pairs_by_axis
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import LayerGroup
from posenc_native.models.entries import HEAD_LIMIT, LAYER_LIMIT

TITLE = "Megatron-LM arguments"
WORDS = {
    "layer_count": "num_layers",
    "nope_layers": "no_rope_freq",
    "head_dim": "kv_channels",
    "rotary_dim": "rotary_percent",
    "pairing": "rotary_interleaved",
    "base": "rotary_base",
    "scaling": "use_rope_scaling, rotary_scaling_factor",
    "scale": "mscale, mscale_all_dim",
    "softmax_correction": "mscale_all_dim",
    "axis_map": "mrope_section",
    "length": "max_position_embeddings",
}
# The engine of the record, tests/engines_at_hand/records/megatron.json.
_RUN = ("megatron-core", "0.19.2")
_LATENT_WORDS = {**WORDS, "head_dim": "qk_pos_emb_head_dim"}
# NeMo's and Megatron-Bridge's names for Megatron-LM's arguments, if they differ.
_OTHER_NAMES = {
    "rope_scaling": "use_rope_scaling",
    "seq_len_interpolation_factor": "rotary_seq_len_interpolation_factor",
    "rotary_percentage": "rotary_percent",
}


def _yarn_words(prefix: str, **others: Word) -> ScalingWords:
    return yarn(
        Word(f"{prefix}rotary_scaling_factor", 1.0),
        Word(f"{prefix}original_max_position_embeddings", 4096),
        Word(f"{prefix}beta_fast", 32.0),
        Word(f"{prefix}beta_slow", 1.0),
        mscale=Word(f"{prefix}mscale", 1.0),
        mscale_all_dim=Word(f"{prefix}mscale_all_dim", 0.0),
        **others,
    )


# By the prefix of the names, which older releases do not have.
_YARN = {
    prefix: _yarn_words(prefix, truncate=Word(f"{prefix}correction_range_round_to_int", True))
    for prefix in ("yarn_", "")
}
_LATENT_YARN = _yarn_words("")
_LINEAR = ScalingWords("linear", {"factor": Word("rotary_seq_len_interpolation_factor", 1.0)})
_LLAMA3 = llama3(Word("rope_scaling_factor", 8.0))
_LLAMA3_OF_NEMO = llama3(
    Word("scale_factor", 8.0),
    Word("low_freq_factor", 1.0),
    Word("high_freq_factor", 4.0),
    Word("old_context_len", 8192),
)
# NeMo's configurations of this name scale, regardless of the rest of the file.
_SCALED_CLASS = "Llama31Config"


def _model(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model's part, with its nested parts merged into it."""
    for key in ("args", "model", "config"):
        if isinstance(entries.get(key), Mapping):
            entries = entries[key]
    nested: dict[str, Any] = {}
    for key in ("config", "transformer"):
        if isinstance(entries.get(key), Mapping):
            nested |= entries[key]
    # The class of the inner configuration is more specific than the class of the model around it.
    return {**nested, **entries, **{key: nested[key] for key in ("_target_",) if key in nested}}


def _claims(entries: Mapping[str, Any]) -> bool:
    keys = {*_model(entries)}
    own = {"rotary_base", "rotary_percent", "rotary_percentage", "rotary_interleaved",
           "position_embedding_type", "multi_latent_attention", "no_rope_freq",
           "use_rotary_position_embeddings"}  # fmt: skip
    return {"num_layers", "hidden_size"} <= keys and bool(own & keys)


def _read(entries: Mapping[str, Any], source: str, function: str) -> Description:
    named = {_OTHER_NAMES.get(key, key): value for key, value in _model(entries).items()}
    settings = Settings(function, named, "arguments")
    pair = isinstance(settings["rotary_base"], (list, tuple))  # Gemma 3 of Megatron-Bridge
    bridge = pair or "_target_" in settings or "_builder_" in settings
    latent = settings.flag("multi_latent_attention", False)
    kind = settings.text("position_embedding_type", "learned_absolute")
    if settings.flag("use_rotary_position_embeddings", False):
        kind = "rope"
    known = ("rope", "yarn", "mrope")
    if not latent and kind not in known:
        settings.wrong("position_embedding_type", f"one of {', '.join(known)}", repr(kind))
    layers = settings.layers("num_layers")
    if settings.flag("rotary_interleaved", False) and (latent or kind in ("yarn", "mrope")):
        beside = "multi_latent_attention" if latent else f"position_embedding_type {kind}"
        settings.wrong("rotary_interleaved", f"False beside {beside}", True)
    remarks: list[str] = []
    local, base, unknown = _bases(settings)
    if latent:
        rotation, correction = _of_latent(settings, base, bridge)
        skipped = [False] * layers
    else:
        rotation, correction = _of_heads(settings, base, kind, bridge, remarks), 1.0
        skipped = _skipped(settings, layers)
    groups = grouped_except(settings, "no_rope_freq", skipped, rotation, correction)
    if local is not None:
        if latent or any(skipped):
            beside = "multi_latent_attention" if latent else "no_rope_freq"
            settings.wrong("rotary_base", f"one number beside {beside}", settings["rotary_base"])
        groups = _of_gemma(settings, layers, local, rotation)
    return Description(
        source=source,
        format="Megatron-Bridge or NeMo YAML" if bridge else TITLE,
        engine="Megatron",
        ground=_ground(settings, bridge, latent, kind),
        model_type="",
        groups=groups,
        layer_count=layers,
        length=settings.length("max_position_embeddings", "seq_length"),
        nope_layers=without_rotation(groups),
        words=_LATENT_WORDS if latent else WORDS,
        unknown=tuple(unknown),
        remarks=tuple(remarks),
        latent=latent,
        corrects_softmax=correction != 1,
    )


def _ground(settings: Settings, bridge: bool, latent: bool, kind: str) -> Ground:
    engine, version = _RUN
    if bridge:
        return Ground("unknown", engine, why="Megatron-Bridge and NeMo were not run")
    if missing := _without_default(settings, latent, kind):
        why = f"the program that adds the missing {missing} was not run"
        return Ground("unknown", engine, why=why)
    if _both_scalings(settings):
        why = (
            f"{engine} {version} scales by rotary_seq_len_interpolation_factor besides "
            "use_rope_scaling, which is not described here"
        )
        return Ground("unknown", engine, why=why)
    return Ground("run", engine, version)


def _without_default(settings: Settings, latent: bool, kind: str) -> str:
    """An argument that has no default in the engine, or another than in the parser's arguments."""
    needed: tuple[str, ...] = ()
    if latent and settings.text("rope_type", "yarn") == "yarn":
        needed = ("rotary_scaling_factor",)
    elif not latent and kind == "yarn":
        needed = tuple(word.key for word in _YARN["yarn_"].words.values())
    return next((key for key in needed if key not in settings), "")


def _both_scalings(settings: Settings) -> bool:
    linear = settings.positive("rotary_seq_len_interpolation_factor", 1.0)
    return settings.flag("use_rope_scaling", False) and linear != 1


def _bases(settings: Settings) -> tuple[float | None, float, list[Unknown]]:
    """The base of layers with a sliding window, if a pair gives one; the base; what is unknown."""
    if isinstance(settings["rotary_base"], (list, tuple)):
        local, base = settings.numbers("rotary_base", 2, 2)
        for number in (local, base):
            if number <= 0:
                settings.wrong("rotary_base", "two numbers > 0, (local, global)", number)
        return local, base, []
    return None, *settings.base("rotary_base", 10000.0, "Megatron defaults to 10,000")


def _of_gemma(
    settings: Settings, layers: int, local: float, rotation: dict[str, Any]
) -> tuple[LayerGroup, ...]:
    """Megatron-Bridge's Gemma 3: some layers with a sliding window, then some without."""
    sliding, full = (int(n) for n in settings.numbers("interleaved_attn_pattern", 2) or (5, 1))
    if sliding < 1 or full < 1:
        settings.wrong("interleaved_attn_pattern", "two counts of layers", [sliding, full])
    of_window = {**rotation, "base": local, "scaling": None}

    def of_layer(layer: int) -> Layer:
        if layer % (sliding + full) < sliding:
            return "sliding_attention", of_window, 1.0
        return "full_attention", rotation, 1.0

    return grouped(settings, layers, of_layer)


def _of_heads(
    settings: Settings, base: float, kind: str, bridge: bool, remarks: list[str]
) -> dict[str, Any]:
    head_dim = settings.head_dim("kv_channels", "hidden_size", "num_attention_heads")
    rotary_dim = head_dim
    share = settings.positive("rotary_percent", 1.0)
    if share < 1 and kind != "yarn":
        rotary_dim = int(head_dim * share)
    if share > 1:
        settings.wrong("rotary_percent", "a share of the head, at most 1", share)
    check_share(settings, "rotary_percent", rotary_dim, head_dim)
    result: dict[str, Any] = {
        "head_dim": head_dim,
        "base": base,
        "rotary_dim": rotary_dim,
        "pairing": "interleaved" if settings.flag("rotary_interleaved", False) else "half",
        "scaling": None,
    }
    if kind == "mrope":
        section = [int(pairs) for pairs in settings.numbers("mrope_section", 3, 3)]
        if min(section) < 0 or sum(section) != rotary_dim // 2:
            settings.wrong("mrope_section", f"3 numbers with the sum {rotary_dim // 2}", section)
        result["axis_map"] = mrope_axis_map(section, order="sectioned")
    if kind == "yarn":
        newer = any(word.key in settings for word in _YARN["yarn_"].words.values())
        prefix = "yarn_" if newer else ""
        known = {"mscale": 1.0, "mscale_all_dim": 0.0}
        if all(prefix + name in settings for name in known):
            known = {}
        result["scaling"], result["scale"] = scale_apart(_YARN[prefix].read(settings, **known))
        return result
    linear = settings.positive("rotary_seq_len_interpolation_factor", 1.0)
    if settings.flag("use_rope_scaling", False):
        factor = settings.positive("rope_scaling_factor", 1.0 if bridge else 8.0)
        result["scaling"] = _LLAMA3.read(settings, factor=factor)
        if not bridge and factor != 8:
            remarks.append(
                f"rope_scaling_factor is {factor:g}: megatron-core's GPTModel scales by it. "
                "pretrain_gpt was not run: if it does not pass it on, the model was scaled by 8."
            )
    elif isinstance(settings["_target_"], str) and _SCALED_CLASS in settings["_target_"]:
        result["scaling"] = _LLAMA3_OF_NEMO.read(settings)
    elif linear != 1:
        result["scaling"] = {"rope_type": "linear", "factor": linear}
    return result


def _of_latent(settings: Settings, base: float, bridge: bool) -> tuple[dict[str, Any], float]:
    """Multi-head latent attention: YaRN unless rope_type says otherwise."""
    dim = settings.count("qk_pos_emb_head_dim", 64, HEAD_LIMIT)
    check_share(settings, "qk_pos_emb_head_dim", dim, HEAD_LIMIT)
    kind = settings.one_of("rope_type", ("rope", "yarn"), "yarn")
    factor = settings.positive("rotary_scaling_factor", 40.0 if bridge else 1.0)
    share = settings.positive("rotary_percent", 1.0) if kind == "rope" else 1.0
    if share > 1:
        settings.wrong("rotary_percent", "a share of the head, at most 1", share)
    result: dict[str, Any] = {
        "head_dim": dim,
        "rotary_dim": check_share(settings, "rotary_percent", int(dim * share), dim),
        "base": base,
        "pairing": "interleaved",
        "scaling": None,
    }
    if kind == "yarn":
        scaling = _LATENT_YARN.read(settings, factor=factor)
        result["scaling"], result["scale"] = scale_apart(scaling)
    return result, yarn_scale(factor, settings.weight("mscale_all_dim", 0.0)) ** 2


def _skipped(settings: Settings, layers: int) -> list[bool]:
    """Whether a layer does not rotate, by layer: no layer, every n-th, or as a list says."""
    key = "no_rope_freq"
    rule = settings[key]
    if rule is None:
        return [False] * layers
    if isinstance(rule, str):
        rule = _pattern(settings, key, rule)
    if isinstance(rule, int) and not isinstance(rule, bool):
        every = settings.count(key) if isinstance(settings[key], int) else rule
        return [(i + 1) % every == 0 for i in range(layers)]
    if not isinstance(rule, (list, tuple)) or len(rule) != layers:
        got = f"{len(rule)} entries" if isinstance(rule, (list, tuple)) else type(rule).__name__
        settings.wrong(key, f"an int or an entry for each of {layers} layers", got)
    if not all(isinstance(skip, int) for skip in rule):  # a bool is an int
        settings.wrong(key, "0 or 1 for each layer", "other values")
    return [bool(skip) for skip in rule]


def _pattern(settings: Settings, key: str, text: str) -> Any:
    """A number, or sums and products of lists of 0 and 1 ("([0]*3+[1]*1)*8"); runs no code."""
    expected = "a number, or lists of 0 and 1 with + and *"
    if len(text) > 1024:
        settings.wrong(key, expected, f"{len(text)} characters")

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.List):
            return [value(item) for item in node.elts]
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
            left, right = value(node.left), value(node.right)
            are_lists = isinstance(left, list), isinstance(right, list)
            if isinstance(node.op, ast.Add) and all(are_lists):
                layers = left + right
            elif isinstance(node.op, ast.Mult) and any(are_lists) and not all(are_lists):
                whole, times = (left, right) if are_lists[0] else (right, left)
                if not 0 <= times * len(whole) <= LAYER_LIMIT:
                    settings.wrong(key, f"at most {LAYER_LIMIT} layers", "more")
                layers = whole * times
            else:
                settings.wrong(key, expected, repr(text[:64]))
            if len(layers) > LAYER_LIMIT:
                settings.wrong(key, f"at most {LAYER_LIMIT} layers", "more")
            return layers
        return settings.wrong(key, expected, repr(text[:64]))

    try:
        pattern = value(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        if hasattr(error, "fault"):
            raise
        settings.wrong(key, expected, repr(text[:64]))
    if isinstance(pattern, int) and not 1 <= pattern <= LAYER_LIMIT:
        settings.wrong(key, f"a number in 1 .. {LAYER_LIMIT}", pattern)
    return pattern


# Writing


def _write(description: Description, written: Written) -> None:
    rotary = written.one_rotation(description, "Megatron")
    kind = (rotary.scaling or {}).get("rope_type", "default")
    interleaved, whole = rotary.pairing == "interleaved", rotary.rotary_dim == rotary.head_dim
    latent = description.latent and interleaved and kind in ("default", "yarn")
    if latent:
        written.entries |= {"multi_latent_attention": True, "position_embedding_type": "rope"}
        written.entries["rope_type"] = "rope" if kind == "default" else "yarn"
    else:
        written.entries |= {
            "position_embedding_type": "yarn" if kind == "yarn" else "rope",
            "rotary_percent": rotary.rotary_dim / rotary.head_dim,
            "rotary_interleaved": interleaved,
        }
    written.put_sizes(_LATENT_WORDS if latent else WORDS, description, rotary)
    written.put_base(WORDS, rotary)
    _write_scaling(rotary, latent, softmax_correction(description), written)
    written.lose(
        "YaRN with the interleaved pairing, or of a part of the head.",
        when=kind == "yarn" and not latent and (interleaved or not whole),
    )
    if rotary.axis_map is not None:
        counts, in_blocks = pairs_by_axis(rotary.axis_map)
        if len(counts) == 3 and in_blocks and kind != "yarn":
            written.entries |= {"position_embedding_type": "mrope", "mrope_section": counts}
        else:
            written.lose("Position axes beside YaRN, that alternate, or other than 3 of them.")
    written.lose("The rotated dims are the last of a head.", when=rotary.rotary_start > 0)
    count, nope = description.layer_count or 0, {*description.nope_layers}
    if nope and count and not latent:
        written.entries["no_rope_freq"] = [int(i in nope) for i in range(count)]
    else:
        written.lose_layers(description, "Megatron")


def _write_scaling(rotary: Rotary, latent: bool, correction: float, written: Written) -> None:
    yarn_words = _LATENT_YARN if latent else _YARN["yarn_"]
    entries = written.scaling(rotary, _LINEAR, _LLAMA3, yarn_words)
    scaling = rotary.scaling or {}
    kind, factor = scaling.get("rope_type"), scaling.get("factor", 1.0)
    if kind == "llama3":
        entries["use_rope_scaling"] = True
    elif kind == "linear":
        written.lose("A linear factor that is not an int.", when=factor % 1 != 0)
        entries = {key: int(value) for key, value in entries.items()}
    if kind == "yarn":
        root = math.sqrt(correction) if latent else 1.0
        weights = yarn_weight(factor, rotary.scale * root), yarn_weight(factor, root)
        for name, weight in zip(WEIGHTS, weights, strict=True):
            entries[yarn_words.words[name].key] = weight or 0.0
        written.lose_scale(rotary, when=weights[0] is None)
        written.lose("The softmax correction.", when=weights[1] is None)
    else:
        written.lose_scale(rotary, when=differs(rotary.scale, 1.0))
    written.lose_query_scale(rotary)
    written.lose(
        "The softmax correction, outside of latent attention with YaRN.",
        when=correction != 1 and not (latent and kind == "yarn"),
    )
    written.entries |= entries


FORMAT = Format("megatron", TITLE, _claims, _read, write=_write)
