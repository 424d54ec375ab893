"""Layers of a model: their number and types, and those without rotary encoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from posenc_native.core.calls import arguments

from .entries import check_plain, config_key
from .facts import ModelFacts, facts_of
from .fields import ConfigFields, first_value, read_fields

_Read = TypeVar("_Read", bound="ConfigLayers")

# Entries that say for each layer whether it rotates.
_LISTS_BY_LAYER = ("no_rope_layers", "layer_rope_theta")

_FULL, _LINEAR = "full_attention", "linear_attention"

# The layer types behind the compress_ratios of older DeepSeek-V4 configurations.
_TYPES_OF_COMPRESS_RATIOS = {
    0: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}


def nope_layers(config: Any) -> tuple[int, ...]:
    """Indices of the attention layers that have no rotary encoding ("NoPE").

    Some models have no rotary encoding in every fourth layer or so (Llama 4, SmolLM3), or in the
    layers without a sliding window (Cohere 2, EXAONE 4), to do better at lengths beyond training.

    Args:
        config: as in `Rotary.from_config`.

    Returns:
        Their indices, from 0; empty for most models. Layers without attention (state space, linear
        attention) are not included.

    Raises:
        ValueError: the model has such layers, but the configuration does not give the number of
            layers or their types; and as in `Rotary.from_config`.
        TypeError, OSError: as in `Rotary.from_config`.

    Example:
        >>> nope_layers({"model_type": "smollm3", "num_hidden_layers": 8})
        (3, 7)
    """
    return ConfigLayers.read(config, "nope_layers").nope_layers()


@dataclass(frozen=True)
class ConfigLayers(ConfigFields):
    """The layers that a configuration gives its language model."""

    layer_types: tuple[str, ...]  # one per layer, or empty

    @classmethod
    def read(cls: type[_Read], config: Any, function: str) -> _Read:
        """Read an object, a mapping or a path."""
        fields = read_fields(config, function)
        model_type = str(fields.get("model_type"))  # also "None": such a model has no facts
        model_type = facts_of(model_type).same_as or model_type
        model = cls(function, fields, model_type, _layer_types(fields, facts_of(model_type)))
        model._check_lists()
        return model

    def _check_lists(self) -> None:
        """ValueError for a list by layer that is shorter than the number of layers."""
        lists = {
            "layer_types": self.layer_types,
            "layer_rope_theta": self.fields.get("layer_rope_theta"),
        }
        for key, values in lists.items():
            if values and len(values) < (self.layer_count or 0):
                self._wrong(key, f"an entry for each of {self.layer_count} layers", len(values))

    @property
    def layer_count(self) -> int | None:
        """Number of layers; None if the configuration does not say."""
        count = first_value(self.fields, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if count is not None and not isinstance(count, list):
            return int(count)
        per_layer = self.layer_types or first_value(self.fields, *_LISTS_BY_LAYER)
        return (len(per_layer) or None) if isinstance(per_layer, (list, tuple)) else None

    def nope_layers(self) -> tuple[int, ...]:
        """Attention layers without rotary encoding; ValueError if their indices are unknown."""
        known = self._numbered_without
        if self.unnumbered_without:
            if self.layer_count is None:
                self._without_count()
            expected = "the type of each layer, as some have no rotary encoding"
            self._wrong("layer_types", expected, "none")
        return known

    @cached_property  # read for each layer, of up to thousands
    def _numbered_without(self) -> tuple[int, ...]:
        """The layers without rotary encoding whose indices the configuration gives."""
        if not self._is_rotary():
            return ()
        without = self._every_nth_without()
        types = [
            name
            for name in dict.fromkeys(self.layer_types)
            if "attention" in name and self._type_is_without(name)
        ]
        by_type = {i for i, name in enumerate(self.layer_types) if name in types}
        return tuple(sorted((without | by_type) - self._forced()))

    @property
    def unnumbered_without(self) -> dict[str | None, int]:
        """Types of layers without rotary encoding whose indices cannot be known.

        The keys are layer types, or None for a rule that does not depend on the type. The value n
        means every n-th layer (below 0: counted back from the last); 0 if the period is unknown.
        """
        if not self._is_rotary() or self.layer_types:
            return {}
        every = self._interval_without()
        if every:
            return {None: every} if self.layer_count is None else {}
        entries = self.rotary_parameters or self.facts.defaults or {}
        types = ("full_attention", *(key for key in entries if key.endswith("_attention")))
        period = _period(self.fields, self.facts)
        return {
            name: period if isinstance(period, int) and name == "full_attention" else 0
            for name in types
            if self._type_is_without(name)
        }

    def _is_rotary(self) -> bool:
        rule = self.facts.rotary_if
        if rule is None:
            return True
        value = self.fields.get(rule["entry"], rule["default"])
        check_plain(self.function, config_key(rule["entry"]), value)
        return bool(value == rule["value"])

    def _type_of(self, layer: int, layer_type: str | None) -> str | None:
        """The type of a layer."""
        count = self.layer_count
        number = arguments.size(self.function, "layer", layer)
        if layer_type is not None:
            self._wrong_argument("layer", "no layer_type together with it", repr(layer_type))
        if count is None:
            self._without_count()
        if number >= count:
            self._wrong_argument("layer", f"a layer in 0 .. {count - 1}", number)
        return self.layer_types[number] if self.layer_types else None

    def _without_count(self) -> NoReturn:
        self._wrong("num_hidden_layers", "a number, to tell the layers apart", "none")

    def _check_rotary(self, layer_type: str | None, layer: int | None) -> None:
        """ValueError if none of the selected layers has a rotary encoding."""
        nope = set(self._numbered_without if layer is None else self.nope_layers())
        if layer is not None:
            meant, name = {layer}, f"layer {layer}"
        else:
            types = self.layer_types or ("",) * (self.layer_count or 0)
            meant = {
                number
                for number, kind in enumerate(types)
                if layer_type in (None, kind) and (not kind or has_attention(kind))
            }
            name = "the model" if layer_type is None else f"layers of type {layer_type}"
        without = bool(meant) and meant <= nope
        if layer_type is not None and not meant:
            without = self._type_is_without(layer_type)
        if without:
            argument = "layer_type" if layer is None else "layer"
            self._wrong_argument(argument, "layers with a rotary encoding", f"{name} (NoPE)")

    def _type_is_without(self, layer_type: str) -> bool:
        """Whether no layer of this type has a rotary encoding, judged by the type alone."""
        entries = self.rotary_parameters or self.facts.defaults or {}
        if self._label(layer_type) in entries:
            return entries[self._label(layer_type)] is None
        if layer_type == "sliding_attention":
            return False
        nope = self.facts.full_attention_nope
        if nope == "beside_windows":
            return self.fields.get("sliding_window", 1) is not None
        return nope == "always"

    def _every_nth_without(self) -> set[int]:
        """Layers that the configuration lists, or that a rule of the model gives."""
        count = self.layer_count or 0
        for key in _LISTS_BY_LAYER:
            flags = self.fields.get(key)
            if flags:
                return {layer for layer, value in enumerate(flags) if not value}
        every = self._interval_without()
        if every < 0:
            return {layer for layer in range(count) if (count - 1 - layer) % -every == 0}
        return {layer for layer in range(count) if every and (layer + 1) % every == 0}

    def _interval_without(self) -> int:
        """The fact nope_every, or the interval that the configuration gives instead."""
        every = self.facts.nope_every
        if any(self.fields.get(key) for key in _LISTS_BY_LAYER):
            return 0
        if every <= 0:
            return every
        interval = self.fields.get("no_rope_layer_interval", every)
        return arguments.size(self.function, config_key("no_rope_layer_interval"), interval)

    def _forced(self) -> set[int]:
        """Layers of Cohere 2 MoE that rotate regardless of their type."""
        kinds = self.fields.get("mlp_layer_types") or ()
        if self.model_type != "cohere2_moe":
            return set()
        if self.fields.get("prefix_dense_sliding_window_pattern", 1) != 1:
            return set()
        return {layer for layer, kind in enumerate(kinds) if kind == "dense"}


def _layer_types(fields: Mapping[str, Any], facts: ModelFacts) -> tuple[str, ...]:
    """The type of each layer, as listed or by the period of the model."""
    types = first_value(fields, "layer_types", "layers_block_type")
    if types:
        return tuple(map(str, types))
    if facts.layers:
        return _types_by_rule(fields, facts.layers)
    if fields.get("attn_type_list"):  # code published with MiniMax's models
        return tuple(_FULL if flag else _LINEAR for flag in fields["attn_type_list"])
    ratios = fields.get("compress_ratios")
    if ratios and all(ratio in _TYPES_OF_COMPRESS_RATIOS for ratio in ratios):
        types = [_TYPES_OF_COMPRESS_RATIOS[ratio] for ratio in ratios]
        return tuple(types[: _hidden_layers(fields)])
    period, count = _period(fields, facts), _hidden_layers(fields)
    if period is None or count is None:
        return ()
    if isinstance(period, str):  # one letter per layer: L(ocal) or G(lobal)
        windows = [letter == "L" for letter in period]
    else:
        windows = [True] * (period - 1)
        windows = [False, *windows] if facts.full_first else [*windows, False]
    no_windows = fields.get("sliding_window", 1) is None
    if no_windows and facts.full_attention_nope == "beside_windows":
        windows = [False]
    other = "linear_attention" if facts.others_linear else "sliding_attention"
    kinds = [other if window else "full_attention" for window in windows]
    return tuple(kinds[layer % len(kinds)] for layer in range(count))


def _types_by_rule(fields: Mapping[str, Any], rule: Mapping[str, Any]) -> tuple[str, ...]:
    """The type of each layer by the fact `layers`."""
    count, holds = _hidden_layers(fields), rule.get("holds")
    value: Any = fields
    for key in rule.get("entry", "").split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is not None and holds == "letters":
        return tuple(rule["letters"][letter] for letter in value)
    if rule.get("whole"):
        return tuple(rule["pattern"])
    if count is None:
        return ()
    if value is not None and holds in ("indices", "every"):
        start = rule.get("from", 0)
        full = range(value - 1, count, value) if holds == "every" else [i - start for i in value]
        return tuple(_FULL if layer in full else _LINEAR for layer in range(count))
    first, pattern = rule.get("first", ()), rule["pattern"]
    if value is not None:
        first, pattern = (), value
    types = [*first, *pattern * (count // len(pattern) + 1)]
    types = [*map(str, types[:count])]
    last = rule.get("last") or (rule.get("some") if rule.get("some") not in types else None)
    if last and types:
        types[-1] = last
    return tuple(types)


def _hidden_layers(fields: Mapping[str, Any]) -> int | None:
    count = fields.get("num_hidden_layers")
    return None if count is None or isinstance(count, list) else int(count)


def _period(fields: Mapping[str, Any], facts: ModelFacts) -> Any:
    """n if every n-th layer has full attention; or the period as text, one letter per layer."""
    keys = ["sliding_window_pattern", "global_attn_every_n_layers"]
    if facts.others_linear:
        keys = ["full_attention_interval"]
    period = first_value(fields, *keys)
    known = facts.full_attention_every
    return known if period is None else period or known or 1


def has_attention(layer_type: str) -> bool:
    """Whether layers of this type have attention with positions."""
    without = (_LINEAR, "mamba", "conv", "recurrent", "moe", "mlp")
    return layer_type not in without
