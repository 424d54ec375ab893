"""Diffusion transformers by the class that diffusers names in a configuration.

diffusers.json has a row for each class: the rows of vision.json that it may rotate by, and the
entries that say which. The tests compare every row with the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from posenc_native.core.calls.arguments import wrong_value

from .entries import check_axes, check_entries, check_names, config_key
from .rows import rows

CLASS = "_class_name"
# A class has layers of several kinds; how many there are does not matter here.
_COUNTS = ("num_layers", "n_layers")


@dataclass(frozen=True)
class DiffusionFacts:
    """A row of diffusers.json.

    Attributes:
        source: the code that the row was read from.
        models: the names of rows of vision.json, each with the values of entries that choose it.
        grid: for such a row the values of entries without which its positions are others.
        defaults: the defaults of all entries that are read.
        axes_dim, base: the entries with these arguments of `axial_rotary`.
        scaling: the ``entry`` with a number for each axis, and the ``rope_type`` with the ``key``
            that takes it.
        width: the entries with the width of the model and the number of heads; otherwise
            attention_head_dim is the width of a head.
        all_heads: the entry with the number of heads, if all are rotated as one.
        beside: entries that sound like the rotation and do not change it.
        refused: why a `Rotary` cannot express its rotation.
        unrotated: it has no rotary encoding.
    """

    source: str
    models: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
    grid: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    axes_dim: str = ""
    base: str = ""
    scaling: Mapping[str, str] = field(default_factory=dict)
    width: tuple[str, ...] = ()
    all_heads: str = ""
    beside: tuple[str, ...] = ()
    refused: str = ""
    unrotated: bool = False


@lru_cache(maxsize=1)
def diffusion_models() -> Mapping[str, DiffusionFacts]:
    """All rows of diffusers.json, by class."""
    return MappingProxyType(
        {name: DiffusionFacts(**row) for name, row in rows("diffusers").items()}
    )


def diffusion_fields(config: Mapping[str, Any], function: str) -> dict[str, Any]:
    """The checked entries of a configuration of diffusers; its class is their model_type.

    Raises:
        ValueError, TypeError: the class has no rotation that is known here, or an entry has the
            wrong type or size.
    """
    check_names(function, "config", config)
    fields = {key: value for key, value in config.items() if key not in _COUNTS}
    check_entries(function, fields)
    name, known = config[CLASS], diffusion_models()
    facts = known.get(name)
    if facts is None:
        rotating = [each for each, row in known.items() if row.models]
        expected = f"a class of diffusers that is known here ({', '.join(rotating)})"
        hint = "posenc_native.rotary.axial_rotary has an argument for each choice of such a model"
        wrong_value(function, config_key(CLASS), expected, name, hint)
    if facts.unrotated:
        wrong_value(function, config_key(CLASS), "a model with a rotary encoding", name)
    if facts.refused:
        expected = "a model that rotates as its configuration says"
        wrong_value(function, config_key(CLASS), expected, f"{name}, which {facts.refused}")
    fields["model_type"] = name
    check_axes(function, fields, facts.axes_dim, facts.scaling.get("entry", ""))
    return fields
