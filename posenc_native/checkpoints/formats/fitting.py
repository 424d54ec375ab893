"""Recover bases and scalings from frequencies, for files that keep only the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.frequencies.frequencies import rounded_frequencies
from posenc_native.core.frequencies.scaling import rotary_frequencies

FloatArray = npt.NDArray[np.float64]

# Original context lengths that published scalings name.
_LENGTHS = tuple(1 << power for power in range(10, 19))
_MOST_DIGITS = 8


def as_llama3(
    plain: FloatArray, frequencies: FloatArray, length: int | None, error: float | FloatArray = 1e-5
) -> dict[str, Any] | None:
    """The scaling "llama3" that turns plain frequencies into these; None if there is none.

    Args:
        length: another candidate for the original context length.
        error: relative error, by frequency or of all.
    """
    error = np.broadcast_to(error, frequencies.shape)
    ratio = plain / np.where(frequencies > 0, frequencies, np.inf)
    if ratio[-1] <= 1 + error[-1] or abs(ratio.min() - 1) > error[ratio.argmin()]:
        return None
    lengths = (8192, *_LENGTHS) if length is None else (8192, *_LENGTHS, length)
    candidates = (
        {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": trained,
        }
        for factor in nice(ratio[-1], error[-1])
        for low, high in ((1.0, 4.0), (1.0, 1.0))
        for trained in lengths
    )
    return _first_that_fits(candidates, plain, frequencies, error)


def explained(
    frequencies: FloatArray, error: FloatArray, length: int | None = None
) -> tuple[float, dict[str, Any] | None] | None:
    """The base and the scaling that give these frequencies, within relative errors; or None.

    Tries no scaling, "linear", "llama3" and "yarn" with the bounds of published models, in this
    order, and returns the first that fits, which is the simplest.

    Args:
        length: the longest sequence that the model is meant for. YaRN's rounded bounds fit several
            original context lengths; a length that divides this length is tried first.
    """
    if len(frequencies) < 2 or not (np.isfinite(frequencies).all() and (frequencies > 0).all()):
        return None
    first = frequencies[0] if abs(frequencies[0] - 1) > error[0] else 1.0
    if first > 1:
        return None
    for base in _bases(frequencies / first, error):
        plain = rounded_frequencies(2 * len(frequencies), base)
        ratio = plain / frequencies
        if (abs(ratio - 1) <= error).all():
            return base, None
        if first < 1:
            for factor in nice(1 / first, error[0]):
                if (abs(ratio - factor) <= factor * error).all():
                    return base, {"rope_type": "linear", "factor": factor}
        else:
            scaling = as_llama3(plain, frequencies, None, error) or _as_yarn(
                plain, frequencies, length, error
            )
            if scaling is not None:
                return base, scaling
    return None


def _as_yarn(
    plain: FloatArray, frequencies: FloatArray, length: int | None, error: FloatArray
) -> dict[str, Any] | None:
    ratio = plain / frequencies
    if ratio[-1] <= 1 + error[-1]:
        return None
    candidates = (
        {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": trained,
            **rounding,
        }
        for factor in nice(ratio[-1], error[-1])
        for rounding in ({}, {"truncate": False})
        for trained in sorted(_LENGTHS, key=lambda n: n != round((length or 0) / factor))
    )
    return _first_that_fits(candidates, plain, frequencies, error)


def _first_that_fits(
    candidates: Iterator[dict[str, Any]],
    plain: FloatArray,
    frequencies: FloatArray,
    error: FloatArray,
) -> dict[str, Any] | None:
    # This is the base of `plain` except for rounding, which is far below the error.
    base = float(plain[-1] ** (-len(plain) / (len(plain) - 1))) if len(plain) > 1 else 1e4
    for scaling in candidates if base > 1 else ():
        scaled, _ = rotary_frequencies(2 * len(plain), base, scaling)
        if (abs(scaled / frequencies - 1) <= error).all():
            return scaling
    return None


def _bases(frequencies: FloatArray, error: FloatArray) -> Iterator[float]:
    """Bases that the frequencies may have; the first frequency is 1.

    Every pair bounds the base from both sides, later pairs more tightly. A scaling by bands leaves
    the first pairs unchanged, so as many of them are used as agree.
    """
    pairs = np.arange(1, len(frequencies))
    share = len(frequencies) / pairs
    logs, errors = -np.log(frequencies[1:]) * share, (error[1:] + error[0]) * share
    low, high = np.maximum.accumulate(logs - errors), np.minimum.accumulate(logs + errors)
    agreeing = int(np.argmin(low <= high)) or len(pairs) if low[0] <= high[0] else 0
    if agreeing and low[agreeing - 1] < 30 and high[agreeing - 1] > 0:
        middle, half = np.exp((low + high) / 2), (high - low) / 2
        yield from nice(middle[agreeing - 1], half[agreeing - 1])


def nice(value: float, error: float) -> Iterator[float]:
    """Numbers within this error: those with few digits first, the number itself last."""
    before = None
    for digits in range(1, _MOST_DIGITS + 1):
        rounded = float(f"{value:.{digits - 1}e}")
        if abs(rounded - value) <= error * abs(value) and rounded != before:
            yield rounded
            before = rounded
    yield float(value)
