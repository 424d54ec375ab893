"""Compare how models rotate: whether they do so alike, and where they differ."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.checkpoints.formats.description import (
    Description,
    at_length,
    depends_on_length,
    trained_length,
)
from posenc_native.checkpoints.formats.reading import read
from posenc_native.checkpoints.weights import PairingEvidence
from posenc_native.core.calls import arguments
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import LayerGroup

from .comparison import Comparison, Difference, LayerError
from .distances import distances_at, first_visible
from .evidence import evidence_of
from .field_words import (
    SAME,
    axes,
    base_of,
    close,
    frequency_words,
    in_words,
    scaling_words,
    shares,
    texts,
)
from .matching import Match, Matching, numbered
from .words import layer_numbers, number

_MOST_POSITIONS = 1 << 10  # in one call


def compare(
    first: Any,
    second: Any,
    *more: Any,
    at: Sequence[int] | None = None,
    permuted: bool = False,
    weights: Sequence[str | os.PathLike[str] | None] | None = None,
) -> Comparison:
    """Say whether checkpoints, configurations or descriptions rotate alike, and what differs.

    Args:
        first, second: anything that `explain` takes: the path of a file in any format that it
            reads, a mapping, a configuration object, the name of a preset, or a `Rotary`.
        more: others to compare with the first.
        at: positions at which to say how far apart two differing rotations are; by default some,
            up to the longest sequence that the models are meant for.
        permuted: the weights of queries and keys were permuted to match the pairing, as converters
            do; a different pairing is then no difference. Nothing checks it: `weights` does.
        weights: for each of them the path of a .safetensors file, or None: checks whether the
            weights of queries and keys look like its pairing (`guess_pairing`). If they do for
            both, a different pairing is no difference. If weights look like another pairing than
            the one described, that is a difference. Weights in GGUF and ONNX files are not read.

    Returns:
        A ``Comparison``, which is true if there is a difference: ``assert not compare(a, b)``. Its
        ``verdict`` is "alike", "different", or "alike if permuted": only the pairing differs, and
        the converter between the formats permutes the weights of queries and keys to match. It is
        true then, too, because the descriptions do not show that the weights were permuted. Each of
        its ``differences`` has a field: "pairing", "base", "scaling", "scale" (the attention
        factor), "softmax_correction", "head_dim", "rotary_dim", "rotary_start", "axis_map",
        "inv_freq" (frequencies that no base and scaling explain), "layer_count", "layer_types" or
        "nope_layers". ``errors`` say how far apart cosines, sines and scores are, and from which
        position on bfloat16 shows it. ``print(compare(a, b))`` shows all of it.

    Numbers that float32 cannot tell apart count as equal. If a file leaves a value out, its
    engine's default is compared. A value without a default is not compared; ``notes`` lists it.

    Raises:
        ValueError, TypeError, OSError: one of them cannot be read, as in `explain`.

    Example:
        >>> import posenc_native as pn
        >>> found = pn.compare(pn.Rotary(64), pn.Rotary(64, base=500000.0))
        >>> [difference.field for difference in found.differences]
        ['base']
        >>> bool(pn.compare("llama-3.1", "llama-3.3"))
        False
    """
    function = "compare"
    positions = None if at is None else _positions(function, at)
    base, *others = _with_names([read(source, function) for source in (first, second, *more)])
    guesses = _guesses(function, (base, *others), weights)
    differences: list[Difference] = []
    errors: list[LayerError] = []
    notes: list[str] = []
    for other in others:
        pair = _Pair(base, other, positions, permuted, guesses)
        differences += pair.differences()
        errors += pair.errors()
        notes += pair.notes()
    everybody = (base, *others)
    return Comparison(
        tuple(each.source for each in everybody),
        tuple(each.format for each in everybody),
        tuple(differences),
        tuple(errors),
        tuple(dict.fromkeys(notes)),
    )


def rotations_apart(
    first: Any, second: Any, function: str
) -> tuple[Description, Description, list[Match], int]:
    """Two descriptions, the layers that rotate in both but differ, and the longest sequence.

    If none differs, all layers that rotate in both. Layers whose numbers of rotated dims differ are
    left out.
    """
    one, other = _with_names([read(source, function) for source in (first, second)])
    pair = _Pair(one, other, None, permuted=True, guesses={})
    matches = [
        match
        for match in pair.matches
        if match.rotating and match.rotating[0].rotary_dim == match.rotating[1].rotary_dim
    ]
    differing = [match for match in matches if pair.fields_of(match) & _MEASURED]
    return one, other, differing or matches, pair.longest


def _guesses(
    function: str,
    descriptions: Sequence[Description],
    weights: Sequence[str | os.PathLike[str] | None] | None,
) -> dict[str, PairingEvidence]:
    """The pairing that the weights of each source look like, by the name of the source."""
    if weights is None:
        return {}
    if len(weights) != len(descriptions):
        expected = f"{len(descriptions)} paths, one per source (None for no weights)"
        arguments.wrong_value(function, "weights", expected, len(weights))
    return {
        each.source: evidence_of(path, each, function)
        for each, path in zip(descriptions, weights, strict=True)
        if path is not None
    }


def _positions(function: str, at: Sequence[int]) -> tuple[int, ...]:
    given = arguments.as_array(function, "at", at)
    arguments.check_dtype(function, "at", given.dtype, arguments.INTEGER_DTYPES)
    if given.ndim != 1 or len(given) > _MOST_POSITIONS:
        expected = f"at most {_MOST_POSITIONS} positions"
        arguments.wrong_value(function, "at", expected, list(given.shape))
    if (given < 0).any() or (given >= 2**53).any():
        arguments.wrong_value(function, "at", "positions from 0 to 2^53 - 1", "a position outside")
    return tuple(int(position) for position in given)


def _with_names(descriptions: list[Description]) -> list[Description]:
    """Give all of them different names, so that a reader can tell them apart."""
    seen: dict[str, int] = {}
    named = []
    for each in descriptions:
        seen[each.source] = seen.get(each.source, 0) + 1
        count = seen[each.source]
        source = each.source if count == 1 else f"{each.source} ({count})"
        named.append(dataclasses.replace(each, source=source))
    return named


class _Pair:
    """The first description and one other."""

    def __init__(
        self,
        one: Description,
        other: Description,
        positions: tuple[int, ...] | None,
        permuted: bool,
        guesses: dict[str, PairingEvidence],
    ) -> None:
        self.one, self.other, self.permuted = one, other, permuted
        self.guesses = guesses
        self.sources = (one.source, other.source)
        self.both = (one, other)
        lengths = [each.length for each in self.both if each.length]
        self.longest = min(max(lengths, default=1 << 20), 1 << 24)
        usual = [1 << power for power in (10, 12, 14, 16, 18, 20) if 1 << power < self.longest]
        self.positions = (*usual, self.longest - 1) if positions is None else positions
        self.unknown = {
            each.field for side in self.both for each in side.unknown if not each.assumed
        }
        matching = Matching(one, other)
        self.matches, self.notes_found = matching.matches, matching.notes

    # Layers

    def _layer_differences(self) -> Iterator[Difference]:
        layers = [numbered(each) for each in self.both]
        if all(layers):
            counts = tuple(
                each.layer_count or len(known)
                for each, known in zip(self.both, layers, strict=True)
            )
            if counts[0] != counts[1]:
                yield self._difference("layer_count", counts)
            else:
                alone = [tuple(sorted({*known} - {*layers[1 - i]}))
                         for i, known in enumerate(layers)]  # fmt: skip
                if any(alone):
                    said = [f"attention in {layer_numbers(n)}" if n else "none" for n in alone]
                    yield self._difference("layer_types", alone, words=said)
            return
        if any(len(each.groups) == 1 for each in self.both):
            return
        kinds = [{group.layer_type for group in each.groups} for each in self.both]
        if kinds[0] != kinds[1]:
            names = [sorted(str(kind) for kind in each) for each in kinds]
            yield self._difference("layer_types", names, words=[*map(", ".join, names)])

    # Fields

    def differences(self) -> list[Difference]:
        """All differences, those of layers first."""
        found = list(self._layer_differences())
        for match in self.matches:
            found += self._of(match)
        return found

    def _of(self, match: Match) -> Iterator[Difference]:
        both = match.rotating
        if both is None:
            rotates = [group.arguments is not None for group in match.groups]
            if rotates[0] != rotates[1]:
                words = ["rotated" if each else "not rotated" for each in rotates]
                yield self._difference("nope_layers", rotates, match, words=words)
            return
        one, other = both
        for name in ("head_dim", "rotary_dim", "rotary_start", "pairing"):
            values = getattr(one, name), getattr(other, name)
            if values[0] == values[1] or name in self.unknown:
                continue
            if name != "pairing":
                yield self._difference(name, values, match)
            elif not self._are_permuted(values):
                yield self._pairing_difference(values, match)
        yield from self._against_weights(match, both)
        if not _same_axes(one, other):
            maps = [None if each.axis_map is None else each.axis_map.tolist() for each in both]
            yield self._difference("axis_map", maps, match, words=[*map(axes, both)])
        if one.rotary_dim == other.rotary_dim:
            yield from self._frequencies(match, one, other)
        if self._are_balanced(match, one, other):
            return
        if not close(one.scale, other.scale, self._error(one)[1]):
            yield self._difference("scale", (one.scale, other.scale), match, _SCALE)
        corrections = [group.softmax_correction for group in match.groups]
        if not close(*corrections) and "softmax_correction" not in self.unknown:
            yield self._difference(
                "softmax_correction", corrections, match,
                "The softmax scale is multiplied by it, apart from the rotation.",
            )  # fmt: skip

    def _are_balanced(self, match: Match, one: Rotary, other: Rotary) -> bool:
        """Whether one scales the softmax by the factor that the other has in cosines and sines."""
        corrections = [group.softmax_correction for group in match.groups]
        whole = all(each.rotary_dim == each.head_dim for each in (one, other))
        if not whole or any(each.latent for each in self.both) or close(one.scale, other.scale):
            return False
        scores = [
            rotary.scale**2 * correction
            for rotary, correction in zip((one, other), corrections, strict=True)
        ]
        return not close(*corrections) and close(*scores)

    def _pairing_difference(self, pairings: tuple[Any, Any], match: Match) -> Difference:
        """A difference of pairings; it is expected if the converter of one format makes it."""
        converter = next(
            (
                side.permuted_by
                for side, its, theirs in zip(self.both, pairings, pairings[::-1], strict=True)
                if side.permuted_by and (its, theirs) == ("interleaved", "half")
            ),
            "",
        )
        sealed = [side.format for side in self.both if not side.safetensors]
        how = _NOT_CHECKED.format(sealed[0]) if sealed else _CHECKED
        comment = _EXPECTED.format(converter, how) if converter else _PAIRING
        return self._difference("pairing", pairings, match, comment, expected=bool(converter))

    def _are_permuted(self, pairings: tuple[Any, Any]) -> bool:
        """Whether the weights match the different pairings: as told, or by their appearance."""
        if self.permuted:
            return True
        looks = [self.guesses.get(each) for each in self.sources]
        return all(
            look is not None and look.pairing == pairing
            for look, pairing in zip(looks, pairings, strict=True)
        )

    def _against_weights(self, match: Match, both: tuple[Rotary, Rotary]) -> Iterator[Difference]:
        """Differences where weights look like another pairing than the one described."""
        for rotary, source in zip(both, self.sources, strict=True):
            look = self.guesses.get(source)
            if look is None or look.pairing in (None, rotary.pairing):
                continue
            looks, does = look.pairing, rotary.pairing
            comment = f"The weights of {source} look like {looks}, but it rotates {does}."
            yield self._difference("pairing", (both[0].pairing, both[1].pairing), match, comment)

    def fields_of(self, match: Match) -> set[str]:
        """The fields in which the layers of a match differ."""
        return {each.field for each in self._of(match)}

    def _frequencies(self, match: Match, one: Rotary, other: Rotary) -> Iterator[Difference]:
        error = self._error(one)[0]
        if not _same(one.inv_freq, other.inv_freq, error):
            named = False
            by_formula = "inv_freq" not in one._given and "inv_freq" not in other._given
            its, theirs = map(base_of, match.groups, (one, other))
            if its is not None and theirs is not None and not close(its, theirs):
                # Frequencies that files give by factors may differ by more than the bases.
                named = by_formula or _same(shares(one, its), shares(other, theirs), error)
                yield self._difference("base", (its, theirs), match)
            if by_formula:
                words = scaling_words(one.scaling, other.scaling)
                if words is not None:
                    named = True
                    yield self._difference("scaling", _scalings(one, other), match, words=words)
            if not named:
                found = [each.inv_freq.tolist() for each in (one, other)]
                yield self._difference("inv_freq", found, match, words=frequency_words(one, other))
            return
        beyond = self._beyond(match)
        if beyond is not None:
            length, words = beyond
            comment = f"Alike for sequences of up to {length}, different beyond."
            yield self._difference("scaling", _scalings(one, other), match, comment, words)

    def _beyond(self, match: Match) -> tuple[str, tuple[str, str]] | None:
        """The length beyond which frequencies that depend on the length differ."""
        given = [group.arguments or {} for group in match.groups]
        lengths = sorted({each for each in map(trained_length, given) if each is not None})
        if any(map(_has_unknown_length, match.groups)):
            # Without the length nothing can be computed beyond it: only the scalings are compared.
            words = scaling_words(given[0].get("scaling"), given[1].get("scaling"))
            return words and ("the trained length", words)
        if not lengths:
            return None
        short = [Rotary(**each) for each in given]
        same_scale = close(short[0].scale, short[1].scale, self._error(short[0])[1])
        for length in (*lengths, *(2 * each for each in lengths), 8 * lengths[-1]):
            one, other = (Rotary(**at_length(each, length + 1)) for each in given)
            by, by_scale = self._error(one)
            # A scale that differs at every length is a separate difference.
            scales_part = same_scale and not close(one.scale, other.scale, by_scale)
            if scales_part or not _same(one.inv_freq, other.inv_freq, by):
                words = scaling_words(given[0].get("scaling"), given[1].get("scaling"))
                return f"{lengths[0]:,} positions", words or frequency_words(one, other)
        return None

    def _error(self, rotary: Rotary) -> tuple[Any, float]:
        """By how much equal frequencies and equal scales may differ."""
        pairs = len(rotary.inv_freq)
        known = [each.error[pairs] for each in self.both if pairs in each.error]
        frequencies = [np.asarray(each.inv_freq) for each in known]
        scale = max((each.scale for each in known), default=SAME)
        return np.max([np.full(pairs, SAME), *frequencies], 0), max(scale, SAME)

    def _difference(
        self,
        name: str,
        values: Sequence[Any],
        match: Match | None = None,
        comment: str = "",
        words: Sequence[str] | None = None,
        expected: bool = False,
    ) -> Difference:
        one, other = texts(values) if words is None else words
        said = in_words(self.one, name, one), in_words(self.other, name, other)
        layers, label = ((), None) if match is None else (match.layers, match.layer_type)
        return Difference(
            name, self.sources, (values[0], values[1]), said, layers, label, comment, expected
        )

    # Distances

    def errors(self) -> list[LayerError]:
        """How far apart the differing rotations are."""
        found = []
        for match in self.matches:
            both = match.rotating
            if both is None or both[0].rotary_dim != both[1].rotary_dim:
                continue
            if not self.fields_of(match) & _MEASURED:
                continue
            if any(map(_has_unknown_length, match.groups)):
                continue
            one, other = match.groups
            at = distances_at(one, other, self.positions)
            seen = first_visible(one, other, self.longest)
            found.append(
                LayerError(self.sources, match.layers, match.layer_type, at, seen, self.longest - 1)
            )
        return found

    def notes(self) -> list[str]:
        """Values that were not compared, and those that each file leaves to its engine."""
        said = list(self.notes_found)
        for each in self.both:
            said += [f"{each.source}: {unknown}." for unknown in each.unknown]
            said += [f"{each.source}: {remark}" for remark in each.remarks]
            said += [f"{each.source}: not read: {entry}" for entry in each.unread]
        for source in self.sources:
            look = self.guesses.get(source)
            if look is not None:
                scores = ", ".join(f"{k} {number(v)}" for k, v in look.scores.items())
                said.append(
                    f"{source}: its weights look like {look.pairing or 'neither'} ({scores})."
                )
        if any(m.rotating is not None and self._are_balanced(m, *m.rotating) for m in self.matches):
            said.append(
                "One multiplies cosines and sines by the attention factor, the other multiplies "
                "the softmax scale by its square: the scores are equal."
            )
        pairings = [
            (match.rotating[0].pairing, match.rotating[1].pairing)
            for match in self.matches
            if match.rotating is not None
        ]
        if any(one != other and self._are_permuted((one, other)) for one, other in pairings):
            how = "are said to be" if self.permuted else "look"
            said.append(
                f"Pairings differ, but the weights {how} permuted to match: the scores are equal."
            )
        return said


# The fields whose differences have a measurable size.
_MEASURED = {"base", "scaling", "scale", "softmax_correction", "inv_freq"}

_PAIRING = (
    "With the same weights one of them is wrong, although nothing fails. If a converter permuted "
    "the weights of queries and keys to match, say so (--permuted)."
)
_EXPECTED = (
    "Expected: for this architecture {} permutes the weights of queries and keys to match. The "
    "descriptions do not show whether it did: say so with --permuted (permuted=True){}. If they "
    "were not permuted, attention is wrong, although nothing fails."
)
_CHECKED = ", or check the weights with --weights"
_NOT_CHECKED = "; weights in the {} file cannot be checked"
_SCALE = "Cosines and sines are multiplied by it, so scores grow by its square."


def _has_unknown_length(group: LayerGroup) -> bool:
    """Whether frequencies depend on the length, but not from which length on."""
    return depends_on_length(group.arguments) and trained_length(group.arguments) is None


def _scalings(one: Rotary, other: Rotary) -> list[dict[str, Any] | None]:
    return [None if each.scaling is None else dict(each.scaling) for each in (one, other)]


def _same(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], error: Any) -> bool:
    """Whether all numbers are equal within a relative error."""
    return bool((np.abs(a - b) <= error * np.maximum(np.abs(a), np.abs(b))).all())


def _same_axes(one: Rotary, other: Rotary) -> bool:
    if one.axis_map is None and other.axis_map is None:
        return True
    maps = [
        np.zeros(len(each.inv_freq), np.int64) if each.axis_map is None else each.axis_map
        for each in (one, other)
    ]
    return np.array_equal(maps[0], maps[1])
