"""The distance between two rotations: at given positions, and where it first becomes visible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    one: LayerGroup, other: LayerGroup, positions: Sequence[int]
) -> tuple[ErrorAt, ...]:
    """For each position the largest errors of cosines and sines, and of scores.

    All axes have the same position, as for text.
    """
    return tuple(ErrorAt(position, *_distance(one, other, position)) for position in positions)


def _distance(one: LayerGroup, other: LayerGroup, position: int) -> tuple[float, float]:
    points = []
    for group in (one, other):
        rotary = Rotary(**at_length(group.arguments or {}, position + 1))
        # Exact angles of one position on all axes, on a circle whose radius is the scale.
        flat = Rotary(2 * len(rotary.inv_freq), inv_freq=rotary.inv_freq, scale=rotary.scale)
        cos, sin = flat.tables(np.array([position]), dtype=np.float64)
        scores = (cos + 1j * sin) * rotary.scale * group.softmax_correction
        points.append((cos, sin, scores))
    (cos, sin, scores), (other_cos, other_sin, other_scores) = points
    of_tables = max(np.abs(cos - other_cos).max(), np.abs(sin - other_sin).max())
    rest = abs(one.softmax_correction - other.softmax_correction)
    return float(of_tables), float(max(np.abs(scores - other_scores).max(), rest))


def first_visible(one: LayerGroup, other: LayerGroup, longest: int) -> int | None:
    """The first position below `longest` at which a cosine or sine differs by more than VISIBLE."""
    given = [group.arguments or {} for group in (one, other)]
    lengths = {trained_length(each) for each in given}
    bounds = sorted(length for length in lengths if length is not None and length < longest)
    start = 0
    for end in (*bounds, longest):
        found = _first_between(given, start, end)
        if found is not None:
            return found
        start = end
    return None


def _first_between(given: Sequence[Mapping[str, Any]], start: int, end: int) -> int | None:
    """The same between `start` and `end`, where no scaling begins."""
    dynamic = any(
        length is not None and each["scaling"]["rope_type"] == "dynamic" and start >= length
        for each, length in ((each, trained_length(each)) for each in given)
    )
    if not dynamic:
        one, other = (Rotary(**at_length(each, start + 1)) for each in given)
        return _first_of_fixed(one, other, start, end)
    # Each length has different frequencies, which keep falling: search by bisection.
    low, step = start, 1
    while low < end and not _shows(given, low):
        low, step = min(low + step, end), 2 * step
    if low >= end:
        return None
    before, after = max(start, low - step // 2), low
    while before < after:
        middle = (before + after) // 2
        before, after = (before, middle) if _shows(given, middle) else (middle + 1, after)
    return after


def _shows(given: Sequence[Mapping[str, Any]], position: int) -> bool:
    one, other = (Rotary(**at_length(each, position + 1)) for each in given)
    return bool(_largest(one, other, np.array([position], np.float64)).max() > VISIBLE)


def _first_of_fixed(one: Rotary, other: Rotary, start: int, end: int) -> int | None:
    """The same for frequencies that do not depend on the length.

    Two points with radii a and b whose angles differ by t are
    sqrt((a - b)^2 + 4 a b sin(t/2)^2) apart, and no coordinate differs by more. So no pair is
    visible before that distance is; from there on each position is tried.
    """
    earliest = _earliest(one, other)
    first = max(start, int(earliest.min(initial=np.inf)) if np.isfinite(earliest).any() else end)
    rows = 1
    while first < end:
        rows = min(2 * rows, _ROWS, end - first)
        positions = np.arange(first, first + rows, dtype=np.float64)
        near = earliest <= first + rows
        found = np.flatnonzero((_largest(one, other, positions, near) > VISIBLE).any(-1))
        if len(found):
            return first + int(found[0])
        first += rows
    return None


def _earliest(one: Rotary, other: Rotary) -> npt.NDArray[np.float64]:
    """For each pair a position before which its points are at most VISIBLE apart."""
    a, b = one.scale, other.scale
    left = VISIBLE**2 - (a - b) ** 2
    pairs = len(one.inv_freq)
    if left < 0 or a * b == 0:
        return np.zeros(pairs)
    half = math.sqrt(left / (4 * a * b))
    if half >= 1:
        return np.full(pairs, np.inf)
    apart = np.mod(one.inv_freq - other.inv_freq, 2 * math.pi)
    apart = np.minimum(apart, 2 * math.pi - apart)
    with np.errstate(divide="ignore", over="ignore"):
        return np.floor(2 * math.asin(half) / apart)


def _largest(
    one: Rotary,
    other: Rotary,
    positions: npt.NDArray[np.float64],
    pairs: npt.NDArray[np.bool_] | slice = slice(None),
) -> npt.NDArray[np.float64]:
    """The larger of the differences of cosine and sine, [positions, pairs]."""
    angles = [positions[:, None] * each.inv_freq[pairs] for each in (one, other)]
    cos = [np.cos(t) * r.scale for t, r in zip(angles, (one, other), strict=True)]
    sin = [np.sin(t) * r.scale for t, r in zip(angles, (one, other), strict=True)]
    return np.asarray(np.maximum(np.abs(cos[0] - cos[1]), np.abs(sin[0] - sin[1])))
