"""The entries of a configuration that are read, with their types and limits.

A config.json is untrusted, so each entry is checked once, when the configuration is read
(fields.py). Conditions that involve several entries (a head that divides a width) are checked where
they are used.

The limits are far above all models, and low enough that every call returns within a second, even
with the widest head, the most layers and the most kinds of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.frequencies.scaling import ROTARY_SCALINGS

HEAD_LIMIT = 2**13  # dims of a head; published models have up to 576
WIDTH_LIMIT = 2**20  # width of a model, and number of its heads; published widths reach 20,480
LAYER_LIMIT = 2**12  # DeepNet, the deepest, has 1000
KIND_LIMIT = 16  # kinds of layers; published models have up to 3 that rotate
AXIS_LIMIT = 16  # sections of M-RoPE; 3 or 4
LENGTH_LIMIT = 2**53  # positions that float64 can tell apart
NAME_LIMIT = 128  # characters
PART_LIMIT = 8  # levels of nested configurations; published models have 2

_OLD_ROPE_TYPES = {"mrope": "default", "su": "longrope"}

# Raises unless the value is valid. Arguments: function, name of the entry in errors, value.
_Kind = Callable[[str, str, Any], object]


def _count(limit: int) -> _Kind:
    def check(function: str, name: str, value: Any) -> None:
        if isinstance(value, (str, float)):
            wrong_type(function, name, "an int", f"{type(value).__name__} {_shown(value)}")
        if isinstance(value, int) and not 0 <= value <= limit:
            wrong_value(function, name, f"an int in 0 .. {limit}", _shown(value))
        if arguments.size(function, name, value) > limit:
            wrong_value(function, name, f"an int in 0 .. {limit}", value)

    return check


def _shown(value: float | str) -> str:
    """A value in an error; the length of a long value."""
    if isinstance(value, int) and abs(value) >= 10**NAME_LIMIT:
        return f"an int of more than {NAME_LIMIT} digits"
    text = repr(value)
    return text if len(text) <= NAME_LIMIT else f"a value of {len(text)} characters"


def _number(limit: float | None = None) -> _Kind:
    def check(function: str, name: str, value: Any) -> None:
        number = arguments.finite_number(function, name, value)
        if limit is not None and abs(number) > limit:
            wrong_value(function, name, f"a number of at most {limit}", value)

    return check


def _flag(function: str, name: str, value: Any) -> None:
    if not isinstance(value, (bool, np.bool_)):
        wrong_type(function, name, "a bool", type(value).__name__)


def _text(limit: int = NAME_LIMIT) -> _Kind:
    def check(function: str, name: str, value: Any) -> None:
        if not isinstance(value, str):
            wrong_type(function, name, "a str", type(value).__name__)
        if len(value) > limit or not value.isprintable():
            got = repr(value) if len(value) <= limit else f"{len(value)} of them"
            wrong_value(function, name, f"at most {limit} printable characters", got)

    return check


def _one_of(kinds: Mapping[type, _Kind], otherwise: _Kind) -> _Kind:
    """The check for the type of a value."""

    def check(function: str, name: str, value: Any) -> None:
        checks = (kind for of_type, kind in kinds.items() if isinstance(value, of_type))
        next(checks, otherwise)(function, name, value)

    return check


def _list_of(kind: _Kind, limit: int) -> _Kind:
    def check(function: str, name: str, value: Any) -> None:
        if not isinstance(value, (list, tuple)):
            wrong_type(function, name, "a list", type(value).__name__)
        if len(value) > limit:
            wrong_value(function, name, f"at most {limit} entries", len(value))
        for item in value:
            kind(function, name, item)

    return check


def _not_empty(kind: _Kind) -> _Kind:
    """Refuses 0 and an empty list or text, too."""

    def check(function: str, name: str, value: Any) -> None:
        kind(function, name, value)
        if not value:
            wrong_value(function, name, "one or more", repr(value))

    return check


def _pattern_of_nemotron(function: str, name: str, value: Any) -> None:
    """Checks the letters of its layers: Mamba, attention (*), experts, MLP (-)."""
    _text(LAYER_LIMIT)(function, name, value)
    other = next((letter for letter in value if letter not in "M*E-"), None)
    if other is not None:
        wrong_value(function, name, "the letters M, *, E and -", repr(other))


def _listed_or(kind: _Kind) -> _Kind:
    """Also accepts a list, if layers may differ; code that needs one number refuses it."""
    return _one_of({list: _list_of(_number(), LAYER_LIMIT)}, kind)


def _parameters(function: str, name: str, value: Any) -> None:
    """Checks the rotary parameters, or those of each layer type."""
    check_names(function, name, value)
    own = {key: entry for key, entry in value.items() if not isinstance(entry, Mapping)}
    _check(function, own, PARAMETERS, name)
    nested = {key: entry for key, entry in value.items() if isinstance(entry, Mapping)}
    _check_shape(function, name, own, nested)
    if len(nested) > KIND_LIMIT:
        wrong_value(function, name, f"at most {KIND_LIMIT} layer types", len(nested))
    for key, entry in nested.items():
        if key in PARAMETERS:
            _check(function, {key: entry}, PARAMETERS, name)
        _text()(function, name, key)
        check_names(function, name, entry)
        _check(function, entry, PARAMETERS, entry_name(name, key))


def _check_shape(
    function: str, name: str, own: Mapping[str, Any], nested: Mapping[str, Any]
) -> None:
    """ValueError for parameters in a place where they would be ignored."""
    for key in nested:
        if key in ROTARY_SCALINGS or "rope" in key:
            expected = "parameters such as rope_type and factor, or those of each layer type"
            wrong_value(function, name, expected, f"parameters under {key[:NAME_LIMIT]!r}")
    scaled = named_type(own)
    if nested and scaled != "default":
        got = f"both: rope_type {scaled} and {next(iter(nested))[:NAME_LIMIT]!r}"
        wrong_value(function, name, "parameters, or those of each layer type", got)


def named_type(parameters: Mapping[str, Any]) -> str:
    """The type of scaling, under either name."""
    return str(parameters.get("rope_type") or parameters.get("type") or "default")


def named_rope_type(parameters: Mapping[str, Any]) -> str:
    """The type of scaling that these parameters name, under its current name."""
    named = named_type(parameters)
    rope_type = _OLD_ROPE_TYPES.get(named, named)
    if rope_type == "yarn" and "short_factor" in parameters:  # its name in the first Phi-3 files
        rope_type = "longrope"
    return rope_type


def _layers(function: str, name: str, value: Any) -> None:
    """Checks the entries that some layers have, by layer index."""
    if not isinstance(value, Mapping):
        wrong_type(function, name, "a mapping", type(value).__name__)
    if len(value) > LAYER_LIMIT:
        wrong_value(function, name, f"at most {LAYER_LIMIT} entries", len(value))
    for layer, entries in value.items():
        if not str(layer).isdecimal() or len(str(layer)) > len(str(LAYER_LIMIT)):
            wrong_value(function, name, "layer indices as keys", repr(layer))
        check_names(function, name, entries)
        _check(function, entries, _SIZES, entry_name(name, layer))


def _linear_attention(function: str, name: str, value: Any) -> None:
    """Checks Kimi's entries of linear attention; its layers are numbered from 1."""
    check_names(function, name, value)
    _check(
        function,
        value,
        _table(("full_attn_layers kda_layers", _list_of(_LAYER, LAYER_LIMIT))),
        name,
    )


def check_names(function: str, name: str, value: Any) -> None:
    """TypeError unless it is a mapping with text keys."""
    if not isinstance(value, Mapping):
        wrong_type(function, name, "a mapping", type(value).__name__)
    for key in value:
        if not isinstance(key, str):
            wrong_type(function, name, "a mapping with text keys", f"a key of {type(key).__name__}")


def check_plain(function: str, name: str, value: Any) -> None:
    """TypeError unless it is one number, one text or None."""
    if value is not None and not isinstance(value, (bool, int, float, str)):
        wrong_type(function, name, "a number or a str", type(value).__name__)


_HEAD, _WIDTH, _LAYER = (_count(n) for n in (HEAD_LIMIT, WIDTH_LIMIT, LAYER_LIMIT))
_LENGTH = _number(LENGTH_LIMIT)


def _table(*rows: tuple[str, _Kind]) -> dict[str, _Kind]:
    """A check for each name: a row has the names that share one check."""
    return {name: kind for names, kind in rows for name in names.split()}


# The entries that a single layer may have.
_SIZES = _table(
    ("head_dim attention_head_dim kv_channels qk_rope_head_dim global_head_dim rotary_dim",
     _listed_or(_HEAD)),
    ("""hidden_size n_embd d_model embed_dim num_attention_heads n_head n_heads num_heads
     encoder_num_attention_heads memory_attention_hidden_size memory_attention_num_attention_heads
     memory_attention_downsample_rate""", _listed_or(_WIDTH)),
)  # fmt: skip
SIZES = (*_SIZES,)

ENTRIES = _SIZES | _table(
    ("model_type _class_name", _text()),
    ("num_hidden_layers n_layer n_layers num_layers", _listed_or(_LAYER)),
    ("layer_types layers_block_type mlp_layer_types", _list_of(_text(), LAYER_LIMIT)),
    ("block_types", _not_empty(_list_of(_text(), LAYER_LIMIT))),
    ("hybrid_override_pattern", _not_empty(_pattern_of_nemotron)),
    ("layer_group_size", _not_empty(_LAYER)),
    ("attn_layer_indices full_attn_idxs", _list_of(_LAYER, LAYER_LIMIT)),
    ("attn_type_list", _list_of(_LAYER, LAYER_LIMIT)),
    ("linear_attn_config", _linear_attention),
    ("no_rope_layers", _list_of(_one_of({bool: _flag}, _number()), LAYER_LIMIT)),
    ("layer_rope_theta compress_ratios", _list_of(_number(), LAYER_LIMIT)),
    ("rope_scaling_layers", _list_of(_LAYER, LAYER_LIMIT)),
    ("sliding_window_pattern global_attn_every_n_layers",
     _one_of({str: _text(LAYER_LIMIT)}, _LAYER)),
    ("""no_rope_layer_interval prefix_dense_sliding_window_pattern
     full_attention_interval""", _LAYER),
    ("per_layer_config", _layers),
    ("""rope_theta global_rope_theta rotary_emb_base rope_local_base_freq local_rope_theta
     partial_rotary_factor rotary_pct""", _number()),
    ("max_position_embeddings original_max_position_embeddings", _LENGTH),
    ("rope_parameters rope_scaling", _parameters),
    ("rope_interleave", _flag),
)  # fmt: skip

# The entries of rope_parameters and rope_scaling.
PARAMETERS = _table(
    ("rope_type type", _text()),
    ("""rope_theta partial_rotary_factor factor alpha attention_factor beta_fast beta_slow L_test
     high_freq_factor llama_4_scaling_beta long_mscale low_freq_factor mixed_b mscale
     mscale_all_dim short_mscale""", _number()),
    ("max_position_embeddings original_max_position_embeddings", _LENGTH),
    ("k", _HEAD),
    ("short_factor long_factor", _list_of(_number(), HEAD_LIMIT // 2)),
    ("mrope_section", _list_of(_HEAD, AXIS_LIMIT)),
    ("mrope_interleaved truncate", _flag),
)  # fmt: skip


def check_entries(function: str, fields: Mapping[str, Any]) -> None:
    """ValueError or TypeError for an entry that the tables above do not allow."""
    check_names(function, "config", fields)
    _check(function, fields, ENTRIES)
    if len({*(fields.get("layer_types") or ())}) > KIND_LIMIT:
        expected = f"at most {KIND_LIMIT} types"
        wrong_value(function, config_key("layer_types"), expected, "more")


def check_axes(function: str, fields: Mapping[str, Any], dims: str, numbers: str) -> None:
    """ValueError or TypeError unless these entries have an int, or a number, for each axis."""
    _check(function, fields, {dims: _list_of(_HEAD, AXIS_LIMIT)})
    _check(function, fields, {numbers: _list_of(_number(), AXIS_LIMIT)})


def _check(
    function: str, fields: Mapping[str, Any], kinds: Mapping[str, _Kind], place: str = "config"
) -> None:
    """Check the entries that exist; None counts as absent.

    place: the name of the mapping in errors.
    """
    for key, kind in kinds.items():
        value = fields.get(key)
        if value is not None:
            kind(function, entry_name(place, key), value)


def config_key(key: str) -> str:
    """The name of an entry of the configuration in errors."""
    return entry_name("config", key)


def entry_name(place: str, key: object) -> str:
    """The name of an entry in errors; `place` is the name of its mapping."""
    return f"{place}[{key!r}]"
