"""Positions as they are typed: a count, ranges, lists; never all in memory at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


class _Senseless(ValueError):
    """Numbers that can be parsed but are invalid; the message says what would be valid."""


@dataclass(frozen=True)
class Positions:
    """Positions, in order.

    Attributes:
        parts: ranges and lists of numbers, one after another.
        count: n if they are 0 .. n-1, typed as one int; otherwise None.
    """

    parts: tuple[range | list[int | float], ...]
    count: int | None = None

    @classmethod
    def read(cls, text: str) -> Positions:
        """Parse what was typed; ValueError if it is invalid."""
        try:
            if text.isdecimal():
                return cls((_bounded(range(_whole_number(text))),), int(text))
            positions = cls(tuple(map(_part, text.split(","))))
        except _Senseless as error:
            raise ValueError(f"expected {error}, got {text!r}") from None
        except (ValueError, TypeError) as error:
            form = "a count, START:STOP, START:STOP:STEP or a list with commas"
            raise ValueError(f"expected {form}, of 64-bit integers, got {text!r}") from error
        if positions._fractional and any(
            isinstance(end, int) and int(float(end)) != end
            for part in positions.parts
            if part
            for end in (part[0], part[-1])
        ):
            raise ValueError(
                f"expected integers of at most 2^53 together with fractions, got {text!r}"
            )
        return positions

    def __str__(self) -> str:
        return str(self.count) if self.count is not None else repr(self)

    @property
    def _fractional(self) -> bool:
        return any(isinstance(p, list) and isinstance(p[0], float) for p in self.parts)

    @property
    def total(self) -> int:
        """How many there are; several ranges may have more than `len` can return."""
        return sum(map(len, self.parts))

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Arrays of at most so many positions: int64, or float64 if any position is a fraction."""
        kind = np.dtype(np.float64 if self._fractional else np.int64)
        for part in self.parts:
            for start in range(0, len(part), rows):
                piece = part[start : start + rows]
                if isinstance(piece, range):
                    yield np.arange(piece.start, piece.stop, piece.step).astype(kind)
                else:
                    yield np.array(piece, kind)

    def array(self) -> npt.NDArray[Any]:
        """All of them."""
        return np.concatenate([np.empty(0, np.int64), *self.blocks(2**16)])


def _part(text: str) -> range | list[int | float]:
    """A range, or one position."""
    if ":" in text:
        return _range(*text.split(":"))
    try:
        return [_whole_number(text)]
    except ValueError:
        value = float(text)
        if not abs(value) < 2.0**63:
            raise
        if "e" in text.lower() and value.is_integer():
            n = int(value)
            raise _Senseless(f"{n} for a count or {n}:{n + 1} for this one position") from None
        return [value]


def _range(*ends: str) -> range:
    first, *rest = map(_whole_number, ends)
    if len(rest) == 2 and rest[1] == 0:
        raise _Senseless("a step other than 0")
    values = range(first, *rest)
    if rest and not values:
        way = "above" if len(rest) == 2 and rest[1] < 0 else "below"
        raise _Senseless(f"START {way} STOP (the range is empty)")
    return _bounded(values)


def _bounded(values: range) -> range:
    if values and (values[-1] - values[0]) // values.step >= 2**60:
        raise ValueError("more than any array can have")
    return values


def _whole_number(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise ValueError("beyond 64 bits")
    return value
