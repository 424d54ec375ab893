"""The rotary encodings of published models, by name.

presets.json has one row per model. The numbers are those of the ``config.json`` published with the
model that its source names, or of the configuration class of transformers 5.23 if the source names
that. `Rotary.preset` makes a `Rotary` from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from posenc_native.core.calls import arguments
from posenc_native.core.frequencies.axes import mrope_axis_map
from posenc_native.core.frequencies.scaling import softmax_correction

from .rows import rows

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import MropeOrder


@dataclass(frozen=True)
class RotaryPreset:
    """The rotary encoding of one published model.

    Attributes:
        head_dim: width of a head; in multi-head latent attention, of its rotated part.
        base: base of the frequencies (rope_theta).
        pairing: "half" or "interleaved".
        rotary_dim: how many dims are rotated; None: the head.
        scaling: as in `rotary_frequencies`.
        query_scale: the factor of queries by position in layers that rotate, as in
            `Rotary.query_factors`.
        mrope: ``(section, order)`` of `mrope_axis_map`, for positions on three axes.
        layers: the values that differ in layers of a type, by that type; empty if none differ.
        length: the longest sequence that the model is meant for, in positions.
        corrects_softmax: whether the model scales its scores by ``softmax_correction(scaling)``.
        nope: layers without rotary encoding, in words; empty: none.
        source: the model whose published configuration this is.
    """

    head_dim: int
    base: float
    length: int
    source: str
    pairing: str = "half"
    rotary_dim: int | None = None
    scaling: Mapping[str, Any] | None = None
    query_scale: Mapping[str, Any] | None = None
    mrope: tuple[tuple[int, ...], MropeOrder] | None = None
    layers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    corrects_softmax: bool = False
    nope: str = ""

    @property
    def softmax_correction(self) -> float:
        """Factor of the softmax scale."""
        return softmax_correction(self.scaling) if self.corrects_softmax else 1.0

    def rotary_arguments(
        self, layer_type: str | None = None, seq_len: int | None = None
    ) -> dict[str, Any]:
        """Arguments of `Rotary`; ValueError if layers differ and the type is not one of them."""
        if layer_type not in (self.layers or (None,)):
            expected = f"one of {', '.join(self.layers) or None}"
            arguments.wrong_value("Rotary.preset", "layer_type", expected, repr(layer_type))
        facts = {
            key: getattr(self, key)
            for key in ("head_dim", "base", "pairing", "rotary_dim", "scaling")
        }
        if self.query_scale is not None:
            facts["query_scale"] = self.query_scale
        facts.update(self.layers.get(layer_type or "", {}))
        scaling = facts["scaling"]
        if seq_len is not None and scaling and scaling["rope_type"] == "longrope":
            facts["scaling"] = {**scaling, "seq_len": arguments.plain(seq_len)}
        if self.mrope is not None:
            section, order = self.mrope
            facts["axis_map"] = mrope_axis_map(section, order=order)
        return facts


def rotary_preset(name: str) -> RotaryPreset:
    """The facts of one model; for an unknown name, a ValueError that lists similar names."""
    presets = rotary_presets()
    arguments.check_known_name("Rotary.preset", "name", name, presets, "Rotary.presets()")
    return presets[name]


@lru_cache(maxsize=1)
def rotary_presets() -> Mapping[str, RotaryPreset]:
    """The facts of each model by its name, read-only."""
    return MappingProxyType({name: _preset(**row) for name, row in rows("presets").items()})


def _preset(mrope: Mapping[str, Any] | None = None, note: str = "", **facts: Any) -> RotaryPreset:
    """The preset of a row; its note is a remark for readers of the file."""
    shared = None if mrope is None else (mrope["section"], mrope["order"])
    return RotaryPreset(mrope=shared, **facts)
