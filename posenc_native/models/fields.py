"""The entries of a model's configuration: their places and names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from posenc_native.core.calls import arguments

from .diffusion import CLASS, diffusion_fields
from .entries import (
    HEAD_LIMIT,
    PART_LIMIT,
    check_entries,
    check_names,
    config_key,
    entry_name,
)
from .facts import ModelFacts, facts_of, model_facts
from .files import read_configuration

# Entries that name the base of the frequencies.
BASES = ("rope_theta", "global_rope_theta", "rotary_emb_base")
LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta")  # of layers with a sliding window

# Entries with the width of a head; without them it is the width of the model over its heads.
HEAD_WIDTHS = ("head_dim", "attention_head_dim", "kv_channels")
WIDTHS = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads", "encoder_num_attention_heads")

# Entries of configurations of diffusers, beside the class.
_OF_DIFFUSERS = {"_diffusers_version", "_use_default_values"}

# Entries that hold the language model in configurations of several modalities.
_INNER = ("text_config", "thinker_config", "language_config", "llm_config")


@dataclass(frozen=True)
class ConfigFields:
    """The entries of one configuration. Errors begin with the name of `function`."""

    function: str
    fields: Mapping[str, Any]
    model_type: str

    @property
    def facts(self) -> ModelFacts:
        """The facts that the configuration leaves to the code of its model."""
        return facts_of(self.model_type)

    @property
    def rotary_parameters(self) -> Mapping[str, Any]:
        """The rotary parameters as the configuration has them, flat or by layer type."""
        return self.fields.get(self.parameters_key) or {}

    def _bases(self) -> tuple[Any, Any]:
        """The base that the configuration names, and the base of its sliding-window layers."""
        base = first_value(self.fields, *self.bases_read)
        return base, first_value(self.fields, *LOCAL_BASES)

    @property
    def is_known(self) -> bool:
        """Whether there are facts about the model."""
        return self.model_type in model_facts()

    @property
    def parameters_key(self) -> str:
        """The entry with the rotary parameters that the class of the model reads; "" for none."""
        facts = self.facts
        keys = () if facts.fixed else ("rope_scaling", "rope_parameters")[facts.parameters_only :]
        return next((key for key in keys if self.fields.get(key)), "")

    @property
    def bases_read(self) -> tuple[str, ...]:
        """The entries in which the class of the model looks for a base."""
        facts = self.facts
        if facts.fixed or (facts.own_parameters and not self.rotary_parameters):
            return ()
        if self.facts.base:
            return (self.facts.base,)
        return BASES[:2] if self.is_known else BASES

    def _label(self, layer_type: str) -> str:
        """The entry of rope_parameters for a layer type."""
        return self.facts.labels.get(layer_type, layer_type)

    def _size(self, fields: Mapping[str, Any], *keys: str) -> int:
        """The first of these entries that exists, a number > 0."""
        value = first_value(fields, *keys)
        if value is None:
            self._wrong(keys[0], "a number", "none (see transformers.AutoConfig)")
        result = arguments.size(self.function, config_key(keys[0]), value)
        if result == 0:
            self._wrong(keys[0], "a number > 0", result)
        return result

    def _head_size(self, value: object) -> int:
        """The width of a head, stated or divided from other widths."""
        head_dim = arguments.size(self.function, config_key("head_dim"), value)
        if not 2 <= head_dim <= HEAD_LIMIT:
            self._wrong_head(f"2 dims or more, at most {HEAD_LIMIT}", head_dim)
        return head_dim

    def _wrong_head(self, expected: str, head_dim: int) -> NoReturn:
        """Raise the error about the width of a head, which names the entries that give it."""
        sizes = [
            (key, self.fields[key])
            for keys in (WIDTHS, HEADS)
            for key in [next((key for key in keys if self.fields.get(key) is not None), None)]
            if key is not None and isinstance(self.fields[key], int)
        ]
        named = first_value(self.fields, *HEAD_WIDTHS, "qk_rope_head_dim")
        if named is None and len(sizes) == 2:
            (width, dims), (heads, count) = sizes
            if count > 0 and dims // count == head_dim:
                expected = f"{expected} as the width of a head, {width} // {heads}"
                hint = "if a head has another width, add 'head_dim'"
                self._wrong(width, expected, f"{dims} // {count} = {head_dim}", hint)
        self._wrong("head_dim", expected, head_dim)

    @property
    def nope_query_scale(self) -> dict[str, Any] | None:
        """The factor of queries in layers without a rotation; None for most models."""
        fields = self.fields
        tuned = fields.get("attn_temperature_tuning", True)
        if self.facts.query_scale != "nope" or not tuned or fields.get("attn_scale") == 0:
            return None
        known = {
            "beta": ("attn_scale", 0.1),
            "original_max_position_embeddings": ("floor_scale", 8192),
        }
        values = {key: self._positive(name, fields.get(name, default))
                  for key, (name, default) in known.items()}  # fmt: skip
        return {**values, "shift": 1}

    def _query_scale(self, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
        """The factor of queries in layers that rotate; None for most models."""
        beta = parameters.get("llama_4_scaling_beta")
        if not beta or self.facts.query_scale != "rotating":
            return None
        key = "original_max_position_embeddings"
        length = self._positive(key, parameters.get(key))
        return {"beta": arguments.finite_number(self.function, "llama_4_scaling_beta", beta),
                key: length}  # fmt: skip

    def _positive(self, key: str, value: object) -> float:
        return arguments.positive_number(self.function, self._place(key, value), value)

    def _wrong(self, key: str, expected: str, got: object, hint: str = "") -> NoReturn:
        self._wrong_argument(self._place(key, got), expected, got, hint)

    def _wrong_argument(
        self, argument: str, expected: str, got: object, hint: str = ""
    ) -> NoReturn:
        arguments.wrong_value(self.function, argument, expected, got, hint)

    def _place(self, key: str, value: object) -> str:
        """The name of an entry in errors: the entry with this value, else the first of its name."""
        places = {config_key(key): self.fields}
        for name in ("rope_parameters", "rope_scaling"):
            parameters = self.fields.get(name)
            if isinstance(parameters, Mapping):
                places[entry_name(config_key(name), key)] = parameters
                for label, entry in by_layer_type(parameters).items():
                    places[entry_name(entry_name(config_key(name), label), key)] = entry
        named = [name for name, entries in places.items() if entries.get(key) is not None]
        same = [name for name in named if places[name][key] is value]
        return next(iter((*same, *named)), config_key(key))


def read_fields(config: Any, function: str) -> Mapping[str, Any]:
    """The checked entries of an object, mapping or file; of several parts, the language part's.

    Raises:
        ValueError, TypeError: not a configuration, or an entry of the wrong type or size
            (entries.py).
        OSError: a file that cannot be read.
    """
    if isinstance(config, (str, os.PathLike)):
        config = read_configuration(config, function)
    own = getattr(config, "config", None)
    if isinstance(own, Mapping):  # a model of diffusers: its configuration lacks the class
        config = {**own, CLASS: type(config).__name__}
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        expected = "a configuration object, a mapping or a path"
        arguments.wrong_type(function, "config", expected, type(config).__name__)
    if config.get(CLASS) is not None:
        return diffusion_fields(config, function)
    if _OF_DIFFUSERS & {*config}:
        hint = f"pass the model itself, or {{**model.config, {CLASS!r}: 'FluxTransformer2DModel'}}"
        expected = "the name of the model's class, as config.json has it"
        arguments.wrong_value(function, config_key(CLASS), expected, "none", hint)
    fields = _language_model(config, function)
    check_entries(function, fields)
    return fields


def _language_model(config: Mapping[str, Any], function: str) -> Mapping[str, Any]:
    """The part of a configuration for the language model, at any depth."""
    depth, fields = 0, config
    check_names(function, "config", fields)
    while True:
        key = next((key for key in _INNER if fields.get(key) is not None), None)
        if key is None:
            return fields
        if depth == PART_LIMIT:
            expected = f"at most {PART_LIMIT} nested parts"
            arguments.wrong_value(function, "config", expected, "more")
        check_names(function, config_key(key), fields[key])
        depth, fields = depth + 1, fields[key]


def by_layer_type(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary parameters that are mappings, each the parameters of one layer type."""
    return {key: value for key, value in parameters.items() if isinstance(value, Mapping)}


def first_value(fields: Mapping[str, Any], *keys: str) -> Any:
    """The first of these entries that exists and is not None."""
    return next((fields[key] for key in keys if fields.get(key) is not None), None)
