"""How a checkpoint rotates, independent of the file format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from posenc_native.core.frequencies.scaling import scaling_in_full
from posenc_native.engines.plain.query_scale import checked_query_scale
from posenc_native.models.config import LayerGroup
from posenc_native.models.unread import UnreadEntry

# Scalings whose frequencies depend on the length of the sequence.
BY_LENGTH = ("dynamic", "longrope")


@dataclass(frozen=True)
class Unknown:
    """A value that is missing from a file, and the value assumed for it.

    Attributes:
        field: as in a ``Difference``.
        assumed: the engine's default, as a sentence; "" if there is none.
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
    "query_scale": "scaling of queries by position",
    "unread": "entry that is not read",
    "axis_map": "position axes",
    "inv_freq": "frequencies",
}


@dataclass(frozen=True)
class Ground:
    """How it is known that an engine rotates as described.

    Attributes:
        kind: "run": this version of the engine rotated a configuration of this kind so
            (tests/engines_at_hand). "derived": the specification of the file format says so.
            "unknown": neither.
        engine: the engine that was run, or that would read the file.
        version: of the engine that was run.
        why: for "derived" the specification, for "unknown" what was not run.
    """

    kind: Literal["run", "derived", "unknown"]
    engine: str = ""
    version: str = ""
    why: str = ""

    def __str__(self) -> str:
        who = " ".join(filter(None, (self.engine, self.version)))
        return f"{self.kind}: {', '.join(filter(None, (who, self.why)))}".removesuffix(": ")

    @property
    def sentence(self) -> str:
        """For readers."""
        if self.kind == "run":
            return (
                f"How this is known: {self.engine} {self.version} was run with configurations of "
                "this kind and rotated so."
            )
        if self.kind == "derived":
            return f"How this is known: derived from {self.why}; no engine was run."
        why = self.why or f"{self.engine or 'no engine'} was not run with such a configuration"
        return f"Unknown: {why}. It is read as described above, which nobody has checked."


TRANSFORMERS = Ground("run", "transformers", "5.23.0")
DIFFUSERS = Ground("run", "diffusers", "0.42.0")


class RoundingError(NamedTuple):
    """How far a rotation may be from the original if a file keeps only rounded cosines and sines.

    Attributes:
        inv_freq: relative errors of the frequencies.
        scale: relative error of the scale.
    """

    inv_freq: tuple[float, ...]
    scale: float


@dataclass(frozen=True)
class Description:
    """How a model rotates, layer by layer.

    Attributes:
        source: the thing that was read, as the caller named it.
        format: the name of the file's format.
        engine: the engine whose defaults apply to values that the file leaves out.
        model_type: as the file names its architecture; "" if it does not.
        groups: the attention layers, grouped by how they rotate; their scalings in full.
        layer_count: the number of all layers; None if the file does not say.
        length: the longest sequence that the model is meant for, in positions; None if the file
            does not say.
        nope_layers: indices of the attention layers without rotary encoding.
        unnumbered_without: types of layers without rotary encoding whose indices cannot be known,
            with the period at which they occur; empty for most files.
        words: the format's names of the fields, by their names in a ``Difference``.
        unknown: values that the file leaves out.
        remarks: sentences that concern only this file.
        unread: entries that seem to concern the rotation, but are not read.
        entries: the file's own entries, if it is a Hugging Face configuration; otherwise empty.
        corrects_softmax: whether the model applies `softmax_correction`.
        latent: whether the rotated dims are a separate tensor (multi-head latent attention).
        sees: whether it is a vision encoder.
        error: errors of rotations known only by rounded values, by their number of pairs.
        permuted_by: the converter that permutes the weights of queries and keys between the half
            pairing of Hugging Face and the interleaved pairing of this format; "" if none does.
        safetensors: whether the weights may be in .safetensors files; if not, they are in the
            described file itself and are not read.
        tells_query_scale: whether the format says how queries are scaled by position.
        nope_query_scale: the factor of queries by position in layers without rotary encoding.
        ground: how the rotation is known.
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
    permuted_by: str = ""
    safetensors: bool = True
    tells_query_scale: bool = False
    nope_query_scale: Mapping[str, Any] | None = None
    ground: Ground = Ground("unknown")

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(map(_in_full, self.groups)))

    @property
    def query_scale(self) -> Mapping[str, Any] | None:
        """The factor of queries by position, in the layers that rotate; None if there is none."""
        all_arguments = (group.arguments for group in self.groups if group.arguments is not None)
        scale = next(all_arguments, {}).get("query_scale")
        return None if scale is None else checked_query_scale("query_scale", scale)

    @property
    def names_a_base(self) -> bool:
        """Whether the base comes from the file, and not from the engine."""
        return all(unknown.field != "base" for unknown in self.unknown)


def _in_full(group: LayerGroup) -> LayerGroup:
    """The same layers, their scaling in full, and the base that it may have beside them."""
    arguments = group.arguments
    if arguments is None or arguments.get("scaling") is None:
        return group
    scaling = arguments["scaling"]
    base = scaling.get("rope_theta")
    own = {} if base is None else {"base": float(base)}
    return replace(group, arguments={**arguments, "scaling": scaling_in_full(scaling), **own})


def at_length(arguments: Mapping[str, Any], seq_len: int) -> dict[str, Any]:
    """Arguments of `Rotary` for sequences of this length; unchanged if it does not matter."""
    scaling = arguments.get("scaling")
    if trained_length(arguments) is None:
        return dict(arguments)
    return {**arguments, "scaling": {**scaling, "seq_len": seq_len}}  # type: ignore[dict-item]


def depends_on_length(arguments: Mapping[str, Any] | None) -> bool:
    """Whether frequencies change with the length of the sequence."""
    scaling = (arguments or {}).get("scaling")
    if not scaling:
        return False
    return scaling["rope_type"] in BY_LENGTH and "alpha" not in scaling


def trained_length(arguments: Mapping[str, Any] | None) -> int | None:
    """The longest sequence for which a scaling by length leaves frequencies unchanged.

    None if frequencies do not change, or if the scaling has no length ("dynamic" may have none).
    """
    if arguments is None or not depends_on_length(arguments):
        return None
    scaling = arguments["scaling"]
    key = "max" if scaling["rope_type"] == "dynamic" else "original_max"
    length = scaling.get(f"{key}_position_embeddings")
    return None if length is None else int(length)
