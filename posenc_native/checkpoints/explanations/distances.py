"""The distance between two rotations: at some positions, and where it first becomes visible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.checkpoints.formats.description import at_length, trained_length
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import LayerGroup

from .comparison import ErrorAt

# Half of a step of bfloat16 just below 1: a smaller difference of cosines is lost in rounding.
VISIBLE = 2.0**-9

_ROWS = 1 << 12  # positions in one step


def distances_at(
    first: LayerGroup, second: LayerGroup, positions: Sequence[int]
) -> tuple[ErrorAt, ...]:
    """The largest errors of cosines and sines, and of scores, at these positions.

    All axes have the same position, as for text.
    """
    return tuple(ErrorAt(position, *_distance(first, second, position)) for position in positions)


def _distance(first: LayerGroup, second: LayerGroup, position: int) -> tuple[float, float]:
    points = []
    for group in (first, second):
        rotary = Rotary(**at_length(group.arguments or {}, position + 1))
        # Exact angles of a position that all axes share, on a circle whose radius is the scale.
        flat = Rotary(2 * len(rotary.inv_freq), inv_freq=rotary.inv_freq, scale=rotary.scale)
        cos, sin = flat.tables(np.array([position]), dtype=np.float64)
        scores = (cos + 1j * sin) * rotary.scale * group.softmax_correction
        points.append((cos, sin, scores))
    (cos, sin, scores), (second_cos, second_sin, second_scores) = points
    of_tables = max(np.abs(cos - second_cos).max(), np.abs(sin - second_sin).max())
    rest = abs(first.softmax_correction - second.softmax_correction)
    return float(of_tables), float(max(np.abs(scores - second_scores).max(), rest))


def first_visible(first: LayerGroup, second: LayerGroup, longest: int) -> int | None:
    """The first position below `longest` at which a cosine or sine differs by more than VISIBLE."""
    both = [group.arguments or {} for group in (first, second)]
    lengths = map(trained_length, both)
    bounds = sorted({length for length in lengths if length is not None and length < longest})
    places = (_first_between(both, *span) for span in pairwise((0, *bounds, longest)))
    return next((position for position in places if position is not None), None)


def _first_between(both: Sequence[Mapping[str, Any]], start: int, end: int) -> int | None:
    """The same between `start` and `end`, where no scaling begins."""
    dynamic = any(
        length is not None and arguments["scaling"]["rope_type"] == "dynamic" and start >= length
        for arguments, length in zip(both, map(trained_length, both), strict=True)
    )
    if not dynamic:
        return _first_of_fixed(*_rotations(both, start), start, end)
    # Frequencies differ by length, and keep falling: search by bisection.
    low, step = start, 1
    while low < end and not _shows(both, low):
        low, step = min(low + step, end), 2 * step
    if low >= end:
        return None
    before, after = max(start, low - step // 2), low
    while before < after:
        middle = (before + after) // 2
        before, after = (before, middle) if _shows(both, middle) else (middle + 1, after)
    return after


def _rotations(both: Sequence[Mapping[str, Any]], position: int) -> tuple[Rotary, Rotary]:
    """The two rotations of sequences that end at a position."""
    first, second = (Rotary(**at_length(arguments, position + 1)) for arguments in both)
    return first, second


def _shows(both: Sequence[Mapping[str, Any]], position: int) -> bool:
    differences = _largest(*_rotations(both, position), np.array([position], np.float64))
    return bool(differences.max() > VISIBLE)


def _first_of_fixed(first: Rotary, second: Rotary, start: int, end: int) -> int | None:
    """The same for frequencies that do not depend on the length.

    Two points with radii a and b whose angles differ by t are
    sqrt((a - b)^2 + 4 a b sin(t/2)^2) apart, and no coordinate differs by more. So no pair is
    visible before that distance is; from there on every position is tried.
    """
    earliest = _earliest(first, second)
    position = max(start, int(earliest.min(initial=np.inf)) if np.isfinite(earliest).any() else end)
    rows = 1
    while position < end:
        rows = min(2 * rows, _ROWS, end - position)
        positions = np.arange(position, position + rows, dtype=np.float64)
        near = earliest <= position + rows
        visible = np.flatnonzero((_largest(first, second, positions, near) > VISIBLE).any(-1))
        if len(visible):
            return position + int(visible[0])
        position += rows
    return None


def _earliest(first: Rotary, second: Rotary) -> npt.NDArray[np.float64]:
    """Positions before which the points of a pair are at most VISIBLE apart."""
    a, b = first.scale, second.scale
    left = VISIBLE**2 - (a - b) ** 2
    pairs = len(first.inv_freq)
    if left < 0 or a * b == 0:
        return np.zeros(pairs)
    half = math.sqrt(left / (4 * a * b))
    if half >= 1:
        return np.full(pairs, np.inf)
    apart = np.mod(first.inv_freq - second.inv_freq, 2 * math.pi)
    apart = np.minimum(apart, 2 * math.pi - apart)
    with np.errstate(divide="ignore", over="ignore"):
        return np.floor(2 * math.asin(half) / apart)


def _largest(
    first: Rotary,
    second: Rotary,
    positions: npt.NDArray[np.float64],
    pairs: npt.NDArray[np.bool_] | slice = slice(None),
) -> npt.NDArray[np.float64]:
    """The larger of the differences of cosine and sine, [positions, pairs]."""
    t, u = (positions[:, None] * rotary.inv_freq[pairs] for rotary in (first, second))
    a, b = first.scale, second.scale
    cos, sin = np.cos(t) * a - np.cos(u) * b, np.sin(t) * a - np.sin(u) * b
    return np.asarray(np.maximum(np.abs(cos), np.abs(sin)))
