"""The layers of two descriptions that correspond to each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from posenc_native.checkpoints.formats.description import Description
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import LayerGroup


@dataclass(frozen=True)
class Match:
    """Layers of the first and of the other model that correspond to each other."""

    layers: tuple[int, ...]
    layer_type: str | None
    groups: tuple[LayerGroup, LayerGroup]

    @property
    def rotating(self) -> tuple[Rotary, Rotary] | None:
        """The two rotations, if both rotate."""
        one, other = self.groups
        if one.arguments is None or other.arguments is None:
            return None
        return Rotary(**one.arguments), Rotary(**other.arguments)


class Matching:
    """The layers of two descriptions that correspond to each other.

    Attributes:
        matches: by number if both number their layers, else by type; a single group is compared
            with all groups of the other.
        notes: sentences about layers that were left out.
    """

    def __init__(self, one: Description, other: Description) -> None:
        self.both = (one, other)
        self.notes: list[str] = []
        self.matches = list(self._matches())

    def _matches(self) -> Iterator[Match]:
        by_number = [numbered(each) for each in self.both]
        if all(by_number):
            yield from self._by_number(*by_number)
        elif any(len(each.groups) == 1 for each in self.both):
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
        self, one: dict[int, LayerGroup], other: dict[int, LayerGroup]
    ) -> Iterator[Match]:
        together: dict[tuple[int, int], list[int]] = {}
        ids = [_first_alike(each) for each in self.both]
        for layer in sorted(one.keys() & other.keys()):
            key = ids[0][id(one[layer])], ids[1][id(other[layer])]
            together.setdefault(key, []).append(layer)
        every = len(together) == 1 and len(one) == len(other)
        for layers in together.values():
            groups = one[layers[0]], other[layers[0]]
            kinds = {one[layer].layer_type or other[layer].layer_type for layer in layers}
            label = kinds.pop() if len(kinds) == 1 else None
            yield Match(() if every else tuple(layers), None if every else label, groups)

    def _by_type(self) -> Iterator[Match]:
        one, other = ({group.layer_type: group for group in each.groups} for each in self.both)
        for label in one:
            if label in other:
                yield Match((), label, (one[label], other[label]))


def numbered(description: Description) -> dict[int, LayerGroup]:
    """The group of each layer; empty if layers have no numbers."""
    if not all(group.layers for group in description.groups):
        return {}
    return {layer: group for group in description.groups for layer in group.layers}


def _first_alike(description: Description) -> dict[int, int]:
    """For each group, by its id, the first that rotates alike: some differ only in windows."""
    found: dict[int, int] = {}
    first: list[tuple[LayerGroup, Rotary | None]] = []
    for group in description.groups:
        rotary = None if group.arguments is None else Rotary(**group.arguments)
        alike = next(
            (
                id(known)
                for known, its in first
                if its == rotary and known.softmax_correction == group.softmax_correction
            ),
            None,
        )
        if alike is None:
            first.append((group, rotary))
        found[id(group)] = id(group) if alike is None else alike
    return found
