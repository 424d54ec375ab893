"""How a checkpoint rotates, whatever file says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from posenc_native.models.config import LayerGroup
from posenc_native.models.unread import UnreadEntry

# Scalings whose frequencies depend on the length of the sequence.
BY_LENGTH = ("dynamic", "longrope")

# What a description says of each group of layers, under the names of `Rotary`'s arguments where it
# has one; a format says what it calls them in its words.
FIELDS = (
    "layer_count", "layer_types", "nope_layers", "head_dim", "rotary_dim", "rotary_start",
    "pairing", "base", "scaling", "scale", "softmax_correction", "axis_map", "inv_freq",
)  # fmt: skip


@dataclass(frozen=True)
class Unknown:
    """What a file does not say, and what is taken for it.

    Attributes:
        field: as in a ``Difference``.
        assumed: what the engine takes; "" if nobody takes anything.
    """

    field: str
    assumed: str = ""

    def __str__(self) -> str:
        name = NAMES[self.field]
        return f"{name}: not in the file" + (f"; {self.assumed}" if self.assumed else "")


NAMES = {
    "layer_count": "number of layers",
    "layer_types": "types of layers",
    "nope_layers": "rotary encoding",
    "head_dim": "head dimension",
    "rotary_dim": "rotated dims",
    "rotary_start": "first rotated dim",
    "pairing": "pairing",
    "base": "base",
    "scaling": "scaling",
    "scale": "attention factor",
    "softmax_correction": "softmax correction",
    "axis_map": "position axes",
    "inv_freq": "frequencies",
}


class RoundingError(NamedTuple):
    """How far a rotation may be from that of which a file keeps rounded cosines and sines.

    Attributes:
        inv_freq: relative, of each frequency.
        scale: relative.
    """

    inv_freq: tuple[float, ...]
    scale: float


@dataclass(frozen=True)
class Description:
    """How a model rotates, layer by layer.

    Attributes:
        source: what was read, as the caller named it.
        format: whose form of a file it is.
        engine: whose rules stand in for what the file leaves out.
        model_type: as the file names its architecture; "" if it does not.
        groups: the attention layers, those that rotate alike together.
        layer_count: of all layers; None where the file does not say.
        length: longest sequence that the model is meant for, in positions; None where the file does
            not say.
        nope_layers: numbers of the attention layers without rotary encoding.
        unnumbered_without: kinds of layers without rotary encoding whose numbers cannot be known,
            and every which layer they are; empty for most files.
        words: what the format calls a field, by its name in a ``Difference``.
        unknown: what the file leaves out.
        remarks: sentences about this file alone.
        unread: entries that look as if they spoke of the rotation, and are not read.
        entries: the file's own entries, if it is a Hugging Face configuration; else empty.
        corrects_softmax: whether the model applies `softmax_correction`.
        latent: whether the rotated dims are a tensor of their own (multi-head latent attention).
        sees: whether it is a vision encoder.
        error: of rotations that are known by their rounded values alone, by their number of pairs.
    """

    source: str
    format: str
    engine: str
    model_type: str
    groups: tuple[LayerGroup, ...]
    layer_count: int | None = None
    length: int | None = None
    nope_layers: tuple[int, ...] = ()
    unnumbered_without: Mapping[str | None, int] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[Unknown, ...] = ()
    remarks: tuple[str, ...] = ()
    unread: tuple[UnreadEntry, ...] = ()
    entries: Mapping[str, Any] = field(default_factory=dict)
    corrects_softmax: bool = False
    latent: bool = False
    sees: bool = False
    error: Mapping[int, RoundingError] = field(default_factory=dict)

    @property
    def names_a_base(self) -> bool:
        """Whether it is the file, and not the engine, that has the base."""
        return all(unknown.field != "base" for unknown in self.unknown)


def at_length(arguments: Mapping[str, Any], seq_len: int) -> dict[str, Any]:
    """Arguments of `Rotary` for sequences of this length; as they are where it does not matter."""
    scaling = arguments.get("scaling")
    if not depends_on_length(arguments):
        return dict(arguments)
    return {**arguments, "scaling": {**scaling, "seq_len": seq_len}}  # type: ignore[dict-item]


def depends_on_length(arguments: Mapping[str, Any] | None) -> bool:
    """Whether frequencies change with the length of the sequence."""
    scaling = (arguments or {}).get("scaling")
    if not scaling:
        return False
    return scaling["rope_type"] in BY_LENGTH and "alpha" not in scaling


def trained_length(arguments: Mapping[str, Any]) -> int:
    """The longest sequence for which a scaling by length leaves frequencies as they are."""
    scaling = arguments["scaling"]
    key = "max" if scaling["rope_type"] == "dynamic" else "original_max"
    length = scaling.get(f"{key}_position_embeddings") or scaling["max_position_embeddings"]
    return int(length)
