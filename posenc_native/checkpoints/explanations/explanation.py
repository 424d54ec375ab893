"""The result of `explain`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from posenc_native.checkpoints.formats.description import Description
from posenc_native.core.documents.document import Document
from posenc_native.core.documents.parts import GAP, Part
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.unread import UnreadEntry

from .field_words import shares
from .words import layer_numbers

_INTRODUCTION = (
    "Each pair of numbers in a query or key is turned by an angle that grows with the position of "
    "its token, so that the score of the two depends only on how far apart they are."
)

_NO_DESCRIPTION = Description("", "", "", "", ())
NOPE = "No rotary encoding (NoPE): queries and keys are used unchanged at every position."


@dataclass(frozen=True)
class LayerExplanation:
    """Layers that rotate alike.

    Attributes:
        layer_type: as in the configuration; None if layers do not differ by type.
        layers: their indices, from 0; empty if the configuration does not give them.
        rotary: their rotation; None if they have no rotary encoding.
        softmax_correction: the factor by which the model also multiplies the softmax scale.
        facts: sentences.
        base: the base of the frequencies; None if the file gives only the frequencies.
    """

    layer_type: str | None
    layers: tuple[int, ...]
    rotary: Rotary | None
    softmax_correction: float
    facts: tuple[str, ...]
    base: float | None = None


@dataclass(frozen=True)
class Explanation(Document):
    """The result of `explain`; its ``str()`` is its `text`, which notebooks show as HTML.

    Attributes:
        model_type: of the language model, as in the configuration; "" if it has none.
        layers: an entry for every group of layers that rotate alike.
        nope_layers: indices of the attention layers without rotary encoding. If such layers exist,
            but the configuration does not give their indices, it is empty and a warning says so.
        warnings: points on which engines are known to differ for such a configuration, and advice.
        unread: entries that seem to concern the rotation, but are not read. An entry has its
            ``place``, the similar entry ``near`` it, and ``why``.
        description: the source in the form that all formats share.
    """

    model_type: str
    layers: tuple[LayerExplanation, ...]
    nope_layers: tuple[int, ...]
    warnings: tuple[str, ...]
    unread: tuple[UnreadEntry, ...] = ()
    description: Description | None = None

    def _parts(self) -> Iterator[Part]:
        name = self.model_type or "an unnamed model"
        yield Part("heading", f"Rotary encoding of {name}{self._read_by()}")
        yield Part("paragraph", _INTRODUCTION)
        yield GAP
        for group in self.layers:
            yield Part("heading", _heading(group, len(self.layers) == 1))
            yield from (Part("fact", fact) for fact in group.facts)
            yield GAP
        for heading, items in (("Worth knowing", self.warnings), ("Not read", self.unread)):
            if items:
                yield Part("heading", heading)
                yield from (Part("item", str(item)) for item in items)
                yield GAP
        if self.description is not None:
            yield Part("paragraph", self.description.ground.sentence)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values; numbers are numbers, lists are whole."""
        about = self.description or _NO_DESCRIPTION
        return {
            "model_type": self.model_type,
            "source": about.source,
            "format": about.format,
            "engine": about.engine,
            "ground": asdict(about.ground),
            "layer_count": about.layer_count,
            "length": about.length,
            "layers": [_layers_as_json(group) for group in self.layers],
            "nope_layers": list(self.nope_layers),
            "unknown": [vars(unknown) for unknown in about.unknown],
            "warnings": list(self.warnings),
            "unread": [
                {"place": entry.place, "near": entry.near, "why": entry.why}
                for entry in self.unread
            ],
            "permuted_by": about.permuted_by,
        }

    def _read_by(self) -> str:
        """The format of the file, unless it is Hugging Face's."""
        if self.description is None or self.description.entries:
            return ""
        return f" ({self.description.format})"


def _layers_as_json(group: LayerExplanation) -> dict[str, Any]:
    rotary = group.rotary
    entry: dict[str, Any] = {
        "layer_type": group.layer_type,
        "layers": list(group.layers),
        "softmax_correction": group.softmax_correction,
        "facts": list(group.facts),
        "rotary": None,
    }
    if rotary is not None:
        entry["rotary"] = {
            "head_dim": rotary.head_dim,
            "rotary_dim": rotary.rotary_dim,
            "rotary_start": rotary.rotary_start,
            "pairing": rotary.pairing,
            "base": group.base,
            "scaling": None if rotary.scaling is None else dict(rotary.scaling),
            "scale": rotary.scale,
            "axis_map": None if rotary.axis_map is None else rotary.axis_map.tolist(),
            "inv_freq": rotary.inv_freq.tolist(),
            "factors": _factors_as_json(rotary, group.base),
        }
    return entry


def _factors_as_json(rotary: Rotary, base: float | None) -> list[float | None] | None:
    """The factors of a file that has them by pair; None for a pair that does not turn."""
    if base is None or "inv_freq" not in rotary._given:
        return None
    return [1 / share if share else None for share in shares(rotary, base).tolist()]


# Words


def _heading(group: LayerExplanation, alone: bool) -> str:
    name = f"Layers of type {group.layer_type}" if group.layer_type else "Layers"
    if not group.layers and group.layer_type is None:
        apart = "Layers without rotary encoding" if group.rotary is None else "Layers that rotate"
        return "All layers" if alone else apart
    if not group.layers:
        return name
    return f"{name}: {layer_numbers(group.layers)}"
