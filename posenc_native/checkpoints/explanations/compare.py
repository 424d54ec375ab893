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
from posenc_native.core.calls.errors import named
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
    query_scale_words,
    scaling_words,
    shares,
    texts,
)
from .matching import Match, Matching, numbered
from .words import layer_numbers, number

_MOST_POSITIONS = 1 << 10  # in a call
_MOST_CHARACTERS = 64  # of the value of an unread entry


def compare(
    first: Any,
    second: Any,
    *more: Any,
    at: Sequence[int] | None = None,
    permuted: bool = False,
    weights: Sequence[str | os.PathLike[str] | None] | None = None,
    assume: bool = False,
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
        weights: for every source the path of a .safetensors file, or None: checks whether the
            weights of queries and keys look like its pairing (`guess_pairing`). If they do for
            both, a different pairing is no difference. If weights look like another pairing than
            their source's, that is a difference. Weights in GGUF and ONNX files are not read.
        assume: take a description as right even if nobody ran its engine with such a file.

    Returns:
        A ``Comparison``, which is true if there is a difference; a check in CI asks whether it is
        ``alike``, which is false if a rotation is unknown: ``assert compare(a, b).alike``. Its
        ``verdict`` is "alike", "different", "unknown" (nobody ran the engine of a source), or
        "alike if permuted": only the pairing differs, and the converter between the formats
        permutes the weights of queries and keys to match. It is true then, too, because the
        descriptions do not show that the weights were permuted. Each of its ``differences`` has a
        field: "pairing", "base", "scaling", "scale" (the attention factor), "softmax_correction",
        "head_dim", "rotary_dim", "rotary_start", "axis_map", "inv_freq" (frequencies that no base
        and scaling explain), "layer_count", "layer_types" or "nope_layers"; of files of Hugging
        Face and Mistral also "query_scale", and "unread" (an entry about the rotation that is not
        read). ``errors`` say how far apart cosines, sines and scores
        are, and from which position on bfloat16 shows it. ``print(compare(a, b))`` shows all of it.

    Numbers that float32 cannot tell apart count as equal. If a file leaves a value out, its
    engine's default is compared. A value without a default is not compared; ``notes`` lists it.

    Raises:
        ValueError, TypeError, OSError: a source cannot be read, as in `explain`.

    Example:
        >>> import posenc_native as pn
        >>> comparison = pn.compare(pn.Rotary(64), pn.Rotary(64, base=500000.0))
        >>> [difference.field for difference in comparison.differences]
        ['base']
        >>> bool(pn.compare("llama-3.1", "llama-3.3"))
        False
    """
    function = "compare"
    positions = None if at is None else _positions(function, at)
    with named(function):
        descriptions = _with_names([read(source, function) for source in (first, second, *more)])
        guesses = _guesses(function, descriptions, weights)
        differences: list[Difference] = []
        errors: list[LayerError] = []
        notes: list[str] = []
        for other in descriptions[1:]:
            pair = _Pair(descriptions[0], other, positions, permuted, guesses)
            differences += pair.differences()
            errors += pair.errors()
            notes += pair.notes()
        return Comparison(
            tuple(description.source for description in descriptions),
            tuple(description.format for description in descriptions),
            tuple(differences),
            tuple(errors),
            tuple(dict.fromkeys(notes)),
            tuple(description.ground for description in descriptions),
            assume,
        )


def rotations_apart(
    first: Any, second: Any, function: str
) -> tuple[Description, Description, list[Match], int]:
    """Two descriptions, the layers that rotate in both but differ, and the longest sequence.

    If none differs, all layers that rotate in both. Layers whose numbers of rotated dims differ are
    left out.
    """
    descriptions = _with_names([read(source, function) for source in (first, second)])
    pair = _Pair(descriptions[0], descriptions[1], None, permuted=True, guesses={})
    matches = pair.comparable()
    differing = [match for match in matches if pair.is_apart(match)]
    return descriptions[0], descriptions[1], differing or matches, pair.longest


def _guesses(
    function: str,
    descriptions: Sequence[Description],
    weights: Sequence[str | os.PathLike[str] | None] | None,
) -> dict[str, PairingEvidence]:
    """The pairing that the weights of a source look like, by the name of the source."""
    if weights is None:
        return {}
    if len(weights) != len(descriptions):
        expected = f"{len(descriptions)} paths, one per source (None for no weights)"
        arguments.wrong_value(function, "weights", expected, len(weights))
    return {
        description.source: evidence_of(path, description, function)
        for description, path in zip(descriptions, weights, strict=True)
        if path is not None
    }


def _positions(function: str, at: Sequence[int]) -> tuple[int, ...]:
    positions = arguments.as_array(function, "at", at)
    arguments.check_dtype(function, "at", positions.dtype, arguments.INTEGER_DTYPES)
    if positions.ndim != 1 or len(positions) > _MOST_POSITIONS:
        expected = f"at most {_MOST_POSITIONS} positions"
        arguments.wrong_value(function, "at", expected, list(positions.shape))
    if (positions < 0).any() or (positions >= 2**53).any():
        arguments.wrong_value(function, "at", "positions from 0 to 2^53 - 1", "a position outside")
    return tuple(int(position) for position in positions)


def _with_names(descriptions: list[Description]) -> list[Description]:
    """Give all of them different names, so that a reader can tell them apart."""
    counts: dict[str, int] = {}
    named = []
    for description in descriptions:
        source = description.source
        counts[source] = counts.get(source, 0) + 1
        suffix = f" ({counts[source]})" if counts[source] > 1 else ""
        named.append(dataclasses.replace(description, source=f"{source}{suffix}"))
    return named


class _Pair:
    """The first description and another."""

    def __init__(
        self,
        first: Description,
        second: Description,
        positions: tuple[int, ...] | None,
        permuted: bool,
        guesses: dict[str, PairingEvidence],
    ) -> None:
        self.both, self.permuted, self.guesses = (first, second), permuted, guesses
        self.sources = (first.source, second.source)
        lengths = [description.length for description in self.both if description.length]
        self.longest = min(max(lengths, default=1 << 20), 1 << 24)
        usual = [1 << power for power in (10, 12, 14, 16, 18, 20) if 1 << power < self.longest]
        self.positions = (*usual, self.longest - 1) if positions is None else positions
        self.unknown = {
            unknown.field
            for description in self.both
            for unknown in description.unknown
            if not unknown.assumed
        }
        matching = Matching(first, second)
        self.matches, self.notes_of_layers = matching.matches, matching.notes

    # Layers

    def _layer_differences(self) -> Iterator[Difference]:
        layers = [numbered(description) for description in self.both]
        if all(layers):
            counts = tuple(
                description.layer_count or len(numbers)
                for description, numbers in zip(self.both, layers, strict=True)
            )
            if counts[0] != counts[1]:
                yield self._difference("layer_count", counts)
            else:
                alone = [tuple(sorted({*numbers} - {*layers[1 - i]}))
                         for i, numbers in enumerate(layers)]  # fmt: skip
                if any(alone):
                    said = [f"attention in {layer_numbers(n)}" if n else "none" for n in alone]
                    yield self._difference("layer_types", alone, words=said)
            return
        if any(len(description.groups) == 1 for description in self.both):
            return
        kinds = [{str(group.layer_type) for group in side.groups} for side in self.both]
        if kinds[0] != kinds[1]:
            names = [*map(sorted, kinds)]
            yield self._difference("layer_types", names, words=[*map(", ".join, names)])

    # Fields

    def differences(self) -> list[Difference]:
        """All differences, those of layers first."""
        of_matches = (difference for match in self.matches for difference in self._of(match))
        of_entries = (*self._query_scale(), *self._unread())
        return [*self._layer_differences(), *of_matches, *of_entries]

    def _query_scale(self) -> Iterator[Difference]:
        """A difference in the factor of queries, which few formats tell."""
        told = all(side.entries or side.tells_query_scale for side in self.both)
        scales = [side.query_scale for side in self.both]
        if told and scales[0] != scales[1]:
            words = [*map(query_scale_words, scales)]
            yield self._difference("query_scale", scales, words=words)

    def _unread(self) -> Iterator[Difference]:
        """Entries of two Hugging Face files that nothing reads, and that differ."""
        if not all(side.entries for side in self.both):
            return
        both = [{_as_read(e.place): e for e in side.unread if e.may_matter and not e.why}
                for side in self.both]  # fmt: skip
        for place in dict.fromkeys((*both[0], *both[1])):
            entries = [side.get(place) for side in both]
            values = [None if entry is None else entry.value for entry in entries]
            if values[0] != values[1]:
                named = next(entry.place for entry in entries if entry is not None)
                words = ["none" if v is None else f"{named} = {_short(v)}" for v in values]
                yield self._difference("unread", values, comment=_UNREAD, words=words)

    def _of(self, match: Match) -> Iterator[Difference]:
        both = match.rotating
        if both is None:
            rotates = [group.arguments is not None for group in match.groups]
            if rotates[0] != rotates[1]:
                words = ["rotated" if rotated else "not rotated" for rotated in rotates]
                yield self._difference("nope_layers", rotates, match, words=words)
            return
        first, second = both
        for name in ("head_dim", "rotary_dim", "rotary_start", "pairing"):
            values = getattr(first, name), getattr(second, name)
            if values[0] == values[1] or name in self.unknown:
                continue
            if name != "pairing":
                yield self._difference(name, values, match)
            elif not self._are_permuted(values):
                yield self._pairing_difference(values, match)
        yield from self._against_weights(match, both)
        if not _same_axes(first, second):
            maps = [None if rotary.axis_map is None else rotary.axis_map.tolist()
                    for rotary in both]  # fmt: skip
            yield self._difference("axis_map", maps, match, words=[*map(axes, both)])
        if first.rotary_dim == second.rotary_dim:
            yield from self._frequencies(match, first, second)
        if self._are_balanced(match, first, second):
            return
        if not close(first.scale, second.scale, self._error(first)[1]):
            yield self._difference("scale", (first.scale, second.scale), match, _SCALE)
        corrections = [group.softmax_correction for group in match.groups]
        if not close(*corrections) and "softmax_correction" not in self.unknown:
            yield self._difference(
                "softmax_correction", corrections, match,
                "The softmax scale is multiplied by it, apart from the rotation.",
            )  # fmt: skip

    def _are_balanced(self, match: Match, first: Rotary, second: Rotary) -> bool:
        """Whether one model scales the softmax by the other model's factor of cosine and sine."""
        corrections = [group.softmax_correction for group in match.groups]
        whole = all(rotary.rotary_dim == rotary.head_dim for rotary in (first, second))
        latent = any(description.latent for description in self.both)
        if not whole or latent or close(first.scale, second.scale):
            return False
        scores = [
            rotary.scale**2 * correction
            for rotary, correction in zip((first, second), corrections, strict=True)
        ]
        return not close(*corrections) and close(*scores)

    def _pairing_difference(self, pairings: tuple[Any, Any], match: Match) -> Difference:
        """A difference of pairings; it is expected if the converter of a format makes it."""
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
        looks = map(self.guesses.get, self.sources)
        return all(
            look is not None and look.pairing == pairing
            for look, pairing in zip(looks, pairings, strict=True)
        )

    def _against_weights(self, match: Match, both: tuple[Rotary, Rotary]) -> Iterator[Difference]:
        """Differences where weights look like another pairing than their description says."""
        for rotary, source in zip(both, self.sources, strict=True):
            look = self.guesses.get(source)
            if look is None or look.pairing in (None, rotary.pairing):
                continue
            looks, does = look.pairing, rotary.pairing
            comment = f"The weights of {source} look like {looks}, but it rotates {does}."
            yield self._difference("pairing", (both[0].pairing, both[1].pairing), match, comment)

    def is_apart(self, match: Match) -> bool:
        """Whether a difference between these layers has a measurable size."""
        return any(difference.field in _MEASURED for difference in self._of(match))

    def _frequencies(self, match: Match, first: Rotary, second: Rotary) -> Iterator[Difference]:
        error = self._error(first)[0]
        if not _same(first.inv_freq, second.inv_freq, error):
            named = False
            by_formula = "inv_freq" not in first._given and "inv_freq" not in second._given
            its, theirs = map(base_of, match.groups, (first, second))
            if its is not None and theirs is not None and not close(its, theirs):
                # Frequencies that files give by factors may differ by more than the bases.
                named = by_formula or _same(shares(first, its), shares(second, theirs), error)
                yield self._difference("base", (its, theirs), match)
            if by_formula:
                words = scaling_words(first.scaling, second.scaling)
                if words is not None:
                    named = True
                    yield self._difference("scaling", _scalings(first, second), match, words=words)
            if not named:
                values = [rotary.inv_freq.tolist() for rotary in (first, second)]
                words = frequency_words(first, second)
                yield self._difference("inv_freq", values, match, words=words)
            return
        beyond = self._beyond(match)
        if beyond is not None:
            length, words = beyond
            comment = f"Alike for sequences of up to {length}, different beyond."
            yield self._difference("scaling", _scalings(first, second), match, comment, words)

    def _beyond(self, match: Match) -> tuple[str, tuple[str, str]] | None:
        """The length beyond which frequencies that depend on the length differ."""
        keywords = [group.arguments or {} for group in match.groups]
        lengths = sorted({n for n in map(trained_length, keywords) if n is not None})
        words = scaling_words(keywords[0].get("scaling"), keywords[1].get("scaling"))
        if any(map(_has_unknown_length, match.groups)):
            # Without the length nothing can be computed beyond it: only the scalings are compared.
            return words and ("the trained length", words)
        if not lengths:
            return None
        short = [Rotary(**entry) for entry in keywords]
        same_scale = close(short[0].scale, short[1].scale, self._error(short[0])[1])
        for length in (*lengths, *(2 * trained for trained in lengths), 8 * lengths[-1]):
            first, second = (Rotary(**at_length(entry, length + 1)) for entry in keywords)
            by, by_scale = self._error(first)
            # A scale that differs at every length is a separate difference.
            scales_part = same_scale and not close(first.scale, second.scale, by_scale)
            if scales_part or not _same(first.inv_freq, second.inv_freq, by):
                return f"{lengths[0]:,} positions", words or frequency_words(first, second)
        return None

    def _error(self, rotary: Rotary) -> tuple[Any, float]:
        """By how much equal frequencies and equal scales may differ."""
        pairs = len(rotary.inv_freq)
        errors = [side.error[pairs] for side in self.both if pairs in side.error]
        frequencies = [np.asarray(error.inv_freq) for error in errors]
        scale = max((error.scale for error in errors), default=SAME)
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
        first, second = texts(values) if words is None else words
        said = in_words(self.both[0], name, first), in_words(self.both[1], name, second)
        layers, label = ((), None) if match is None else (match.layers, match.layer_type)
        return Difference(
            name, self.sources, (values[0], values[1]), said, layers, label, comment, expected
        )

    # Distances

    def comparable(self) -> list[Match]:
        """The layers that rotate the same number of dims in both."""
        return [
            match
            for match in self.matches
            if match.rotating and match.rotating[0].rotary_dim == match.rotating[1].rotary_dim
        ]

    def errors(self) -> Iterator[LayerError]:
        """How far apart the differing rotations are."""
        for match in self.comparable():
            if self.is_apart(match) and not any(map(_has_unknown_length, match.groups)):
                at = distances_at(*match.groups, self.positions)
                seen = first_visible(*match.groups, self.longest)
                layers, last = (match.layers, match.layer_type), self.longest - 1
                yield LayerError(self.sources, *layers, at, seen, last)

    def notes(self) -> list[str]:
        """Values that were not compared, and those that a file leaves to its engine."""
        said = list(self.notes_of_layers)
        for side in self.both:
            said += [f"{side.source}: {unknown}." for unknown in side.unknown]
            said += [f"{side.source}: {remark}" for remark in side.remarks]
            said += [f"{side.source}: not read: {entry}" for entry in side.unread]
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
        if any(its != theirs and self._are_permuted((its, theirs)) for its, theirs in pairings):
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
_UNREAD = "It is not read here, so it may change the rotation or not."
_SCALE = "Cosines and sines are multiplied by it, so scores grow by its square."


def _has_unknown_length(group: LayerGroup) -> bool:
    """Whether frequencies depend on the length, but not from which length on."""
    return depends_on_length(group.arguments) and trained_length(group.arguments) is None


def _as_read(place: str) -> str:
    """The place of an entry, under either name of the rotary parameters."""
    return place.replace("config['rope_parameters']", "config['rope_scaling']")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"a value of {len(text)} characters"


def _scalings(first: Rotary, second: Rotary) -> list[dict[str, Any] | None]:
    return [None if side.scaling is None else dict(side.scaling) for side in (first, second)]


def _same(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], error: Any) -> bool:
    """Whether all numbers are equal within a relative error."""
    return bool((np.abs(a - b) <= error * np.maximum(np.abs(a), np.abs(b))).all())


def _same_axes(first: Rotary, second: Rotary) -> bool:
    if first.axis_map is None and second.axis_map is None:
        return True
    maps = [
        np.zeros(len(rotary.inv_freq), np.int64) if rotary.axis_map is None else rotary.axis_map
        for rotary in (first, second)
    ]
    return np.array_equal(maps[0], maps[1])
