"""Entries in the words of a format, and facts that these cannot express."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc_native.encodings.rotary.rotary import Rotary

from .description import Description
from .scaling_words import ScalingWords


@dataclass
class Written:
    """Entries of a file, and facts that they cannot express.

    Attributes:
        entries: names and values, as in the format.
        lost: sentences about facts of the description that the format cannot express.
        permuted: whether the weights of queries and keys are permuted to match the format's
            pairing, so that a pairing that it cannot express is not lost.
    """

    entries: dict[str, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    permuted: bool = False

    def lose(self, sentence: str, when: bool = True) -> None:
        """Say that the format cannot express a fact, if the model has it."""
        if when:
            self.lost.append(sentence)

    def lose_pairing(self, sentence: str, when: bool) -> None:
        """Say that the format has another pairing, unless the weights are permuted to match."""
        self.lose(sentence, when and not self.permuted)

    def put(self, words: Mapping[str, str], **values: Any) -> None:
        """Write the values that are known, under the format's words for these fields."""
        self.entries |= {words.get(name, name): value for name, value in values.items() if value}

    def put_sizes(self, words: Mapping[str, str], description: Description, rotary: Rotary) -> None:
        """Write the width of a head, the number of layers and the longest sequence."""
        layers, length = description.layer_count, description.length
        self.put(words, head_dim=rotary.head_dim, layer_count=layers, length=length)

    def put_base(self, words: Mapping[str, str], rotary: Rotary) -> None:
        """Write the base, which frequencies of a file do not have."""
        if "inv_freq" in rotary._given:
            self.lose_frequencies()
        else:
            self.put(words, base=rotary.base)

    def scaling(self, rotary: Rotary, *known: ScalingWords) -> dict[str, Any]:
        """The entries for the scaling; none if the format does not have it."""
        scaling = rotary.scaling or {}
        kind = scaling.get("rope_type", "default")
        words = next((declared for declared in known if declared.rope_type == kind), None)
        if words is None:
            self.lose(f"The scaling {kind}.", when=kind != "default")
            return {}
        self.lost += words.lost(scaling)
        return words.write(scaling)

    def lose_frequencies(self) -> None:
        """Say that the format has no entry for frequencies."""
        self.lose("Frequencies that no base and scaling give.")

    def lose_scale(self, rotary: Rotary, when: bool = True) -> None:
        """Say that the entries give another factor of cosines and sines."""
        self.lose(f"The factor {rotary.scale:g} of cosines and sines.", when)

    def lose_query_scale(self, rotary: Rotary) -> None:
        """Say that the entries do not scale queries."""
        self.lose("The factor of queries by position.", when=rotary.query_scale is not None)

    def one_rotation(self, description: Description, form: str) -> Rotary:
        """The rotation of the first layers, for a format without rotations by layer."""
        first, *others = rotations(description).values()
        self.lose(
            f"{form} has one rotation for all layers; the first layer's is written.",
            when=any(rotary != first for rotary in others),
        )
        return first

    def lose_layers(self, description: Description, form: str) -> None:
        """Say that the format cannot name the layers without rotation or attention."""
        self.lose(
            f"{form} cannot say which layers do not rotate: the engine's code decides.",
            when=bool(description.nope_layers or description.unnumbered_without),
        )
        self.lose(
            f"{form} cannot say which layers have attention: the engine's code decides.",
            when=only_some_attend(description),
        )


def differs(number: float, expressed: float) -> bool:
    """Whether entries express another number; NaN expresses none."""
    return not math.isclose(number, expressed, rel_tol=1e-9)


def rotations(description: Description) -> dict[str | None, Rotary]:
    """The rotation of the first layers of a type, for types that rotate."""
    first: dict[str | None, Rotary] = {}
    for group in description.groups:
        if group.arguments is not None:
            first.setdefault(group.layer_type, Rotary(**group.arguments))
    return first


def softmax_correction(description: Description) -> float:
    """The largest of the layers' softmax corrections."""
    return max(group.softmax_correction for group in description.groups)


def only_some_attend(description: Description) -> bool:
    """Whether the layers with attention are known, and are not all layers."""
    numbers = {i for group in description.groups for i in group.layers}
    return bool(numbers) and len(numbers) != description.layer_count


def layer_types(description: Description) -> list[str]:
    """The types of the layers; empty if all have the same."""
    names = {
        i: group.layer_type
        for group in description.groups
        for i in group.layers
        if group.layer_type
    }
    count = description.layer_count
    if not count or not names or (len({*names.values()}) == 1 and len(names) == count):
        return []
    return [names.get(i) or "linear_attention" for i in range(count)]
