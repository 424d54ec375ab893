"""The entries of a model's configuration: where they stand, under which names, of which kinds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from posenc_native.base import arguments

from .facts import ModelFacts, facts_of

# Entries that name the base of the frequencies.
BASES = ("rope_theta", "global_rope_theta", "rotary_emb_base")

# Entries under which configurations of several modalities keep that of the language model.
_INNER = ("text_config", "thinker_config", "language_config", "llm_config")


@dataclass(frozen=True)
class ConfigFields:
    """The entries of one configuration. Errors begin with the name of `function`."""

    function: str
    fields: Mapping[str, Any]
    model_type: str

    @property
    def facts(self) -> ModelFacts:
        """What the configuration leaves to the code of its model."""
        return facts_of(self.model_type)

    def _given(self) -> Mapping[str, Any]:
        """The rotary parameters as they stand there, flat or by layer type."""
        given = first_given(self.fields, "rope_parameters", "rope_scaling") or {}
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            arguments.wrong_type(self.function, config_key("rope_scaling"), "a mapping", kind)
        return given

    def _bases(self) -> tuple[Any, Any]:
        """The base that the configuration names, and that of its sliding-window layers."""
        base = first_given(self.fields, *BASES)
        return base, first_given(self.fields, "rope_local_base_freq", "local_rope_theta")

    def _label(self, layer_type: str) -> str:
        """The entry of rope_parameters for a layer type."""
        return self.facts.labels.get(layer_type, layer_type)

    def _size(self, fields: Mapping[str, Any], *keys: str) -> int:
        """The first of these entries that is given, a number > 0."""
        value = first_given(fields, *keys)
        if value is None:
            self._wrong(keys[0], "a number", "none (see transformers.AutoConfig)")
        result = arguments.size(self.function, config_key(keys[0]), value)
        if result == 0:
            self._wrong(keys[0], "a number > 0", result)
        return result

    def _positive(self, key: str, value: object) -> float:
        return arguments.positive_number(self.function, config_key(key), value)

    def _wrong(self, key: str, expected: str, got: object) -> NoReturn:
        arguments.wrong_value(self.function, config_key(key), expected, got)


def read_fields(config: Any, function: str) -> Mapping[str, Any]:
    """The entries of an object, a mapping or a file; of several parts, those of language."""
    if isinstance(config, (str, os.PathLike)):
        import json
        from pathlib import Path

        path = Path(config)
        file = path / "config.json" if path.is_dir() else path
        config = json.loads(file.read_text(encoding="utf-8"))
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        expected = "a configuration object, a mapping or a path"
        arguments.wrong_type(function, "config", expected, type(config).__name__)
    return _language_model(config)


def _language_model(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in _INNER:
        if isinstance(fields.get(key), Mapping):
            return _language_model(fields[key])
    return fields


def by_layer_type(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the rotary parameters that are mappings: the parameters of one layer type each."""
    return {key: value for key, value in parameters.items() if isinstance(value, Mapping)}


def first_given(fields: Mapping[str, Any], *keys: str) -> Any:
    """The first of these entries that is there and not None."""
    return next((fields[key] for key in keys if fields.get(key) is not None), None)


def config_key(key: str) -> str:
    """How an error names an entry."""
    return f"config[{key!r}]"
