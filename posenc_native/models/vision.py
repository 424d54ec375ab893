"""Configurations of vision models: which row of vision.json rotates so, with which arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from posenc_native.core.frequencies.axes import axial_arguments

from .diffusion import CLASS, DiffusionFacts, diffusion_models
from .facts import vision_axial, vision_grid_name, vision_models
from .fields import first_value
from .layers import ConfigLayers


@dataclass(frozen=True)
class VisionConfig(ConfigLayers):
    """A configuration that may be that of a vision encoder or of a diffusion transformer."""

    @property
    def sees(self) -> bool:
        """Whether it is a vision model of vision.json."""
        if self.diffusion is not None:
            return True
        return self._of_images() and self._vision_name in vision_models()

    @cached_property
    def diffusion(self) -> DiffusionFacts | None:
        """The facts of its class in diffusers; None for a model of transformers."""
        known = self.fields.get(CLASS) is not None
        return diffusion_models()[self.model_type] if known else None

    @property
    def _vision_name(self) -> str:
        return re.sub("_vision(_encoder|_model)?$", "", self.model_type)

    def _of_images(self) -> bool:
        return "vocab_size" not in self.fields and bool(
            {"image_size", "patch_size"} & {*self.fields}
        )

    def _vision_arguments(self, layer_type: str | None, layer: int | None) -> dict[str, Any]:
        """Arguments of Rotary for a vision model, all of whose layers are alike."""
        if layer_type is not None or layer is not None:
            expected, got = "none for a vision encoder", layer_type or layer
            self._wrong_argument("layer_type, layer", expected, got)
        if self.diffusion is not None:
            return self._diffusion_arguments(self.diffusion)
        fields, name = self.fields, self._vision_name
        head_dim = fields.get("head_dim")
        if head_dim is None and "memory_attention_hidden_size" in fields:
            rate = self._size(fields, "memory_attention_downsample_rate")
            heads = rate * self._size(fields, "memory_attention_num_attention_heads")
            head_dim = self._size(fields, "memory_attention_hidden_size") // heads
        elif head_dim is None:
            width = self._size(fields, "embed_dim", "hidden_size")
            head_dim = width // self._size(fields, "num_heads", "num_attention_heads")
        head_dim = self._head_size(head_dim)
        base = first_value({**fields, **self.rotary_parameters}, "rope_theta")
        changes = {} if base is None else {"base": self._positive("rope_theta", base)}
        axial = vision_axial(name, head_dim, changes)
        result = axial_arguments(head_dim, **axial)
        if axial.get("tiled"):
            got = f"{self.model_type}: see vision_rotary({name!r}, {head_dim})"
            self._wrong("model_type", "a model with one angle per pair", got)
        return {**result, "vision": vision_grid_name(name, fields)}

    def _diffusion_arguments(self, facts: DiffusionFacts) -> dict[str, Any]:
        """Arguments of Rotary for a class of diffusers."""
        stated = {key: value for key, value in self.fields.items() if value is not None}
        fields = {**facts.defaults, **stated}
        name = self._chosen(facts, fields)
        if facts.width:
            head_dim = self._size(fields, facts.width[0]) // self._size(fields, facts.width[1])
        else:
            head_dim = self._size(fields, "attention_head_dim")
        if facts.all_heads:
            head_dim *= self._size(fields, facts.all_heads)
        head_dim = self._head_size(head_dim)
        changes: dict[str, Any] = {}
        if facts.axes_dim:
            dims = changes["axes_dim"] = tuple(fields[facts.axes_dim])
            if sum(dims) != head_dim:
                expected = f"dims that add up to the width of a head, {head_dim}"
                self._wrong(facts.axes_dim, expected, f"{[*dims]}, {sum(dims)} in total")
        if facts.base:
            changes["base"] = self._positive(facts.base, fields[facts.base])
        if facts.scaling:
            entry, kind, key = (facts.scaling[word] for word in ("entry", "rope_type", "key"))
            changes["scaling"] = [{"rope_type": kind, key: value} for value in fields[entry]]
        result = axial_arguments(head_dim, **vision_axial(name, head_dim, changes))
        with_grid = not _unlike(fields, facts.grid.get(name, {}))
        return {**result, "vision": name if with_grid else None}

    def _chosen(self, facts: DiffusionFacts, fields: Mapping[str, Any]) -> str:
        """The row of vision.json whose conditions hold; an error about the nearest if none."""
        failing = {name: _unlike(fields, values) for name, values in facts.models.items()}
        name = min(failing, key=lambda each: len(failing[each]))
        for entry in failing[name]:
            values = " or ".join(map(repr, facts.models[name][entry]))
            expected = f"{values}, with which the rotation of {self.model_type} is known"
            self._wrong(entry, expected, repr(fields.get(entry)))
        return name


def _unlike(fields: Mapping[str, Any], conditions: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """The entries that have none of the values of a condition."""

    def plain(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    return [key for key, values in conditions.items() if plain(fields.get(key)) not in values]
