"""Match the layers of two descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from posenc_native.checkpoints.formats.description import Description
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import LayerGroup


@dataclass(frozen=True)
class Match:
    """Layers of the first model, and the layers of the second that correspond to them."""

    layers: tuple[int, ...]
    layer_type: str | None
    groups: tuple[LayerGroup, LayerGroup]

    @property
    def rotating(self) -> tuple[Rotary, Rotary] | None:
        """The two rotations, if both rotate."""
        first, second = self.groups
        if first.arguments is None or second.arguments is None:
            return None
        return Rotary(**first.arguments), Rotary(**second.arguments)


class Matching:
    """Matches the layers of two descriptions.

    Attributes:
        matches: by number if both number their layers, else by type; a single group is compared
            with all groups of the other description.
        notes: sentences about layers that were left out.
    """

    def __init__(self, first: Description, second: Description) -> None:
        self.both = (first, second)
        self.notes: list[str] = []
        self.matches = list(self._matches())

    def _matches(self) -> Iterator[Match]:
        by_number = [numbered(description) for description in self.both]
        if all(by_number):
            yield from self._by_number(*by_number)
        elif any(len(description.groups) == 1 for description in self.both):
            alone = 0 if len(self.both[0].groups) == 1 else 1
            for group in self.both[1 - alone].groups:
                pair = (self.both[alone].groups[0], group)
                if (pair[0].arguments is None) != (pair[1].arguments is None):
                    without = self.both[1 - alone].source
                    self.notes.append(
                        f"{without} has layers without rotary encoding; {self.both[alone].source} "
                        "does not distinguish layers."
                    )
                    continue
                several = len(self.both[1 - alone].groups) > 1
                label = group.layer_type if several else None
                yield Match(
                    group.layers if several else (), label, pair if alone == 0 else pair[::-1]
                )
        else:
            yield from self._by_type()

    def _by_number(
        self, first: dict[int, LayerGroup], second: dict[int, LayerGroup]
    ) -> Iterator[Match]:
        together: dict[tuple[int, int], list[int]] = {}
        ids = [_first_alike(description) for description in self.both]
        for layer in sorted(first.keys() & second.keys()):
            key = ids[0][id(first[layer])], ids[1][id(second[layer])]
            together.setdefault(key, []).append(layer)
        every = len(together) == 1 and len(first) == len(second)
        for layers in together.values():
            groups = first[layers[0]], second[layers[0]]
            kinds = {first[layer].layer_type or second[layer].layer_type for layer in layers}
            label = kinds.pop() if len(kinds) == 1 else None
            yield Match(() if every else tuple(layers), None if every else label, groups)

    def _by_type(self) -> Iterator[Match]:
        first, second = ({group.layer_type: group for group in side.groups} for side in self.both)
        for label in first:
            if label in second:
                yield Match((), label, (first[label], second[label]))


def numbered(description: Description) -> dict[int, LayerGroup]:
    """The groups by layer; empty if layers have no numbers."""
    if not all(group.layers for group in description.groups):
        return {}
    return {layer: group for group in description.groups for layer in group.layers}


def _first_alike(description: Description) -> dict[int, int]:
    """Ids of groups, and of the first group that rotates alike: some differ only in windows."""
    ids: dict[int, int] = {}
    rotations: list[tuple[LayerGroup, Rotary | None]] = []
    for group in description.groups:
        rotary = None if group.arguments is None else Rotary(**group.arguments)
        alike = (
            id(earlier)
            for earlier, rotation in rotations
            if rotation == rotary and earlier.softmax_correction == group.softmax_correction
        )
        ids[id(group)] = next(alike, id(group))
        rotations.append((group, rotary))
    return ids
