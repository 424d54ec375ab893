"""The result of `compare`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from posenc_native.formats.description import NAMES

from .words import WIDTH, layer_numbers, number, wrapped


@dataclass(frozen=True)
class Difference:
    """One field in which two descriptions differ.

    Attributes:
        field: "base", "scaling", "pairing", "nope_layers" ...: see `posenc_native.compare`.
        sources: the two that differ, as the caller named them.
        values: the two values, in the words of each format.
        layers: indices of the layers concerned; empty for all, or if layers have no numbers.
        layer_type: the type of these layers, if layers are distinguished by type.
        comment: the consequence; may be empty.
    """

    field: str
    sources: tuple[str, str]
    values: tuple[str, str]
    layers: tuple[int, ...] = ()
    layer_type: str | None = None
    comment: str = ""

    def __str__(self) -> str:
        where = _where(self.layers, self.layer_type)
        one, other = self.values
        comment = f" {self.comment}" if self.comment else ""
        return f"{NAMES[self.field]}{where}: {one} against {other}.{comment}"


@dataclass(frozen=True)
class LayerError:
    """How far apart two rotations are.

    Attributes:
        sources: the two that differ, as the caller named them.
        layers, layer_type: as in `Difference`.
        at: for each requested position ``(position, error of cos and sin, error of a score)``. The
            first error is the largest difference of a cosine or sine there. The second is the
            largest difference of a score between a query and a key of length 1 that many positions
            apart, softmax correction included.
        first_visible: the first position at which a cosine or sine differs by more than 2^-9, which
            bfloat16 can show (half of its step just below 1); None if there is none up to
            `searched`.
        searched: the last position that was checked.
    """

    sources: tuple[str, str]
    layers: tuple[int, ...]
    layer_type: str | None
    at: tuple[tuple[int, float, float], ...]
    first_visible: int | None
    searched: int


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`, true if there is a difference: ``assert not compare(a, b)``.

    Attributes:
        sources: the compared sources, as the caller named them.
        formats: the format of each of them.
        differences: the differences of each of the others from the first.
        errors: for each pair of differing rotations, how far apart they are.
        notes: values that could not be compared, and other remarks.
    """

    sources: tuple[str, ...]
    formats: tuple[str, ...]
    differences: tuple[Difference, ...]
    errors: tuple[LayerError, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.differences)

    def __str__(self) -> str:
        return self.text()

    @property
    def alike(self) -> bool:
        """Whether all of them rotate alike."""
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {"alike": self.alike, **asdict(self)}

    def text(self, width: int = WIDTH) -> str:
        """All of it, in lines of at most `width` characters."""
        first, *others = self.sources
        lines = []
        for source, form in zip(self.sources, self.formats, strict=True):
            lines += wrapped(f"{source}: {form}", width, "", "  ")
        for other in others:
            pair = (first, other)
            found = [each for each in self.differences if each.sources == pair]
            what = "rotate alike" if not found else "differ"
            lines += ["", *wrapped(f"{first} and {other} {what}", width, "", "")]
            for difference in found:
                lines += wrapped(str(difference), width, "  - ", "    ")
            for error in self.errors:
                if error.sources == pair:
                    lines += _error_lines(error, width)
        if self.notes:
            lines += ["", "Worth knowing"]
            for note in self.notes:
                lines += wrapped(note, width, "  - ", "    ")
        return "\n".join(lines)


def _error_lines(error: LayerError, width: int) -> list[str]:
    where = _where(error.layers, error.layer_type)
    if error.first_visible is None:
        said = f"in bfloat16 cosines and sines look the same up to position {error.searched:,}"
    else:
        said = f"in bfloat16 cosines or sines differ from position {error.first_visible:,} on"
    lines = ["", *wrapped(f"How far apart{where}: {said}.", width, "  ", "  ")]
    if error.at:
        lines.append("     position   cos and sin         score")
        lines += [
            f"  {position:>11,}{cosine:>14}{score:>14}"
            for position, cosine, score in ((p, number(c), number(s)) for p, c, s in error.at)
        ]
    return lines


def _where(layers: tuple[int, ...], layer_type: str | None) -> str:
    kind = f"{layer_type} " if layer_type else ""
    if layers:
        return f", {kind}layer{'s' if len(layers) > 1 else ''} {layer_numbers(layers)}"
    return f", {kind}layers" if kind else ""
