"""The result of `compare`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from posenc_native.checkpoints.formats.description import NAMES, Ground
from posenc_native.core.documents.document import Document
from posenc_native.core.documents.parts import GAP, Part

from .words import layer_numbers, number


@dataclass(frozen=True)
class Difference:
    """A field in which two descriptions differ.

    Attributes:
        field: "base", "scaling", "pairing", "nope_layers" ...: see `posenc_native.compare`.
        sources: the two that differ, as the caller named them.
        values: the two values: numbers, names, lists, and mappings for scalings; for "nope_layers"
            whether the layers are rotated.
        words: the two values in the words of their formats.
        layers: indices of the layers concerned; empty for all, or if layers have no numbers.
        layer_type: the type of these layers, if layers are distinguished by type.
        comment: the consequence; may be empty.
        expected: whether a correct conversion has this difference. This is a pairing to which the
            converter of either format permutes the weights of queries and keys. The
            descriptions do not show whether the weights were permuted.
    """

    field: str
    sources: tuple[str, str]
    values: tuple[Any, Any]
    words: tuple[str, str]
    layers: tuple[int, ...] = ()
    layer_type: str | None = None
    comment: str = ""
    expected: bool = False

    def __str__(self) -> str:
        where = _where(self.layers, self.layer_type)
        first, second = self.words
        comment = f" {self.comment}" if self.comment else ""
        return f"{NAMES[self.field]}{where}: {first} against {second}.{comment}"


class ErrorAt(NamedTuple):
    """How far apart two rotations are at a position.

    Attributes:
        position: the position, or the distance of a query and a key.
        cos_sin: the largest difference of a cosine or sine at this position.
        score: the largest difference of a score between a query and a key of length 1 that many
            positions apart, softmax correction included.
    """

    position: int
    cos_sin: float
    score: float


@dataclass(frozen=True)
class LayerError:
    """How far apart two rotations are.

    Attributes:
        sources: the two that differ, as the caller named them.
        layers, layer_type: as in `Difference`.
        at: an `ErrorAt` for every requested position.
        first_visible: the first position at which a cosine or sine differs by more than 2^-9, which
            bfloat16 can show (half of its step just below 1); None if there is none up to
            `searched`.
        searched: the last position that was checked.
    """

    sources: tuple[str, str]
    layers: tuple[int, ...]
    layer_type: str | None
    at: tuple[ErrorAt, ...]
    first_visible: int | None
    searched: int


@dataclass(frozen=True)
class Comparison(Document):
    """The result of `compare`, true if there is a difference; a check asks for its `alike`.

    Its ``str()`` is its `text`, which notebooks show as HTML.

    It is also true if the only difference is expected (see `verdict`), because the
    descriptions do not show whether the weights were permuted. If the ground of a description is
    unknown, only `verdict` and `alike` say so.

    Attributes:
        sources: the compared sources, as the caller named them.
        formats: their formats, in the same order.
        differences: the differences of the others from the first.
        errors: how far apart differing rotations are, by pair of rotations.
        notes: values that could not be compared, and other remarks.
        grounds: how each rotation is known, in the order of the sources.
        assume: whether descriptions of unknown ground are taken as right.
    """

    sources: tuple[str, ...]
    formats: tuple[str, ...]
    differences: tuple[Difference, ...]
    errors: tuple[LayerError, ...] = ()
    notes: tuple[str, ...] = ()
    grounds: tuple[Ground, ...] = ()
    assume: bool = False

    def __bool__(self) -> bool:
        return bool(self.differences)

    @property
    def alike(self) -> bool:
        """Whether all of them rotate alike, on grounds that are known."""
        return self.verdict == "alike"

    @property
    def verdict(self) -> str:
        """One of "alike", "alike if permuted", "different" and "unknown".

        "alike if permuted" means that only the expected permutation differs: they rotate alike if
        the weights of queries and keys were permuted, as a converter between their formats does.
        Compare with ``permuted=True`` to say that they were, or with ``weights`` to check.
        "unknown" means that nobody ran the engine of a source with such a file, and no
        specification says what it does: differences are those of the descriptions, which may be
        wrong. Compare with ``assume=True`` to take them as right.
        """
        return "unknown" if self._doubtful(*self.sources) else _verdict(self.differences)

    def _doubtful(self, *sources: str) -> list[str]:
        """Those of the sources whose rotation is unknown, unless it is assumed."""
        grounds = dict(zip(self.sources, self.grounds, strict=False))
        unknown = {source for source, ground in grounds.items() if ground.kind == "unknown"}
        return [] if self.assume else [source for source in sources if source in unknown]

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values: numbers are numbers, errors have names."""
        values = {"alike": self.alike, "verdict": self.verdict, **asdict(self)}
        for error in values["errors"]:
            error["at"] = [distance._asdict() for distance in error["at"]]
        return values

    def _parts(self) -> Iterator[Part]:
        first, *others = self.sources
        for other in others:
            pair = (first, other)
            between = [difference for difference in self.differences if difference.sources == pair]
            yield Part("heading", f"{first} and {other}{self._heading(pair, between)}")
            yield from (Part("item", str(difference)) for difference in between)
            for error in self.errors:
                if error.sources == pair:
                    yield from _parts_of_error(error)
            yield GAP
        said = dict.fromkeys(self.sources, "") | {
            source: f" ({ground})"
            for source, ground in zip(self.sources, self.grounds, strict=False)
        }
        for source, form in zip(self.sources, self.formats, strict=True):
            yield Part("entry", f"{source}: {form}{said[source]}")
        if self.notes:
            yield GAP
            yield Part("heading", "Worth knowing")
            yield from (Part("item", note) for note in self.notes)

    def _heading(self, pair: tuple[str, str], between: Sequence[Difference]) -> str:
        doubtful = " and ".join(self._doubtful(*pair))
        if not doubtful:
            return _verdict_words(between)
        named = ", ".join(dict.fromkeys(NAMES[difference.field] for difference in between))
        read = f"they differ as read: {named}" if named else "as read they rotate alike"
        return f": unknown, nobody ran the engine of {doubtful} (--assume); {read}"


def _verdict(differences: Sequence[Difference]) -> str:
    if not differences:
        return "alike"
    expected = all(difference.expected for difference in differences)
    return "alike if permuted" if expected else "different"


def _verdict_words(differences: Sequence[Difference]) -> str:
    if not differences:
        return " rotate alike"
    expected = "the expected permutation"
    named = dict.fromkeys(
        expected if difference.expected else NAMES[difference.field]
        for difference in sorted(differences, key=lambda difference: difference.expected)
    )
    if [*named] == [expected]:
        return f": only {expected} differs (--permuted)"
    return f" differ: {', '.join(named)}"


def _parts_of_error(error: LayerError) -> Iterator[Part]:
    where = _where(error.layers, error.layer_type)
    if error.first_visible is None:
        said = f"in bfloat16 cosines and sines look the same up to position {error.searched:,}"
    else:
        said = f"in bfloat16 cosines or sines differ from position {error.first_visible:,} on"
    yield GAP
    yield Part("remark", f"How far apart{where}: {said}.")
    if error.at:
        rows = ((f"{p:,}", number(c), number(s)) for p, c, s in error.at)
        yield Part("table", rows=(("position", "cos and sin", "score"), *rows))


def _where(layers: tuple[int, ...], layer_type: str | None) -> str:
    kind = f"{layer_type} " if layer_type else ""
    if layers:
        return f", {kind}layer{'s' if len(layers) > 1 else ''} {layer_numbers(layers)}"
    return f", {kind}layers" if kind else ""
