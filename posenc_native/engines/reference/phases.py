"""Phases in turns, 64-bit fixed point, and their cosines and sines in float64.

With a frequency of T / 2^64 turns per position, the integer position p has phase p * T mod 2^64:
one integer product, whose overflow removes the whole turns. The only error is the rounding of T,
which moves the angle by at most |p| * 2^-65 turns.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from posenc_native.spectra.frequencies import EXACT, TWO_PI

from .checks import Array, FloatArray

PhaseArray = npt.NDArray[np.uint64]  # one turn is 2^64

TURN = 2**64
LOW_HALF = 2**32 - 1


@lru_cache(maxsize=64)
def fixed_point(frequencies: tuple[float | Decimal, ...]) -> tuple[int, ...]:
    """Frequencies in radians per position as turns per position, rounded to units of 2^-64."""
    with decimal.localcontext(EXACT):
        return tuple(
            int((Decimal(frequency) * TURN / TWO_PI).to_integral_value())
            for frequency in frequencies
        )


def phases_at(positions: Array, frequencies: Sequence[float | Decimal]) -> PhaseArray:
    """The phase of every position at the frequency with the same last index; both broadcast."""
    turns = fixed_point(tuple(frequencies))
    fraction_of_turn = np.array([t % TURN for t in turns], dtype=np.uint64)
    if positions.dtype.kind in "iu":
        products: PhaseArray = positions.astype(np.uint64) * fraction_of_turn
        return products
    # p * T = whole * T + sign * |frac| * T; the second product needs the whole turns of T too.
    frac, whole = np.modf(positions.astype(np.float64))
    frac_fixed = np.rint(np.abs(frac) * float(TURN)).astype(np.uint64)
    whole_turns = np.array([t // TURN % TURN for t in turns], dtype=np.uint64)
    extra = _high_product(frac_fixed, fraction_of_turn) + frac_fixed * whole_turns
    phase: PhaseArray = whole.astype(np.int64).astype(np.uint64) * fraction_of_turn
    return np.where(frac < 0, phase - extra, phase + extra)


def _high_product(a: PhaseArray, b: PhaseArray) -> PhaseArray:
    """The upper 64 bits of the 128-bit products a * b."""
    a_high, a_low = a >> 32, a & LOW_HALF
    b_high, b_low = b >> 32, b & LOW_HALF
    middle = a_high * b_low + ((a_low * b_low) >> 32)
    carry = (a_low * b_high + (middle & LOW_HALF)) >> 32
    product: PhaseArray = a_high * b_high + (middle >> 32) + carry
    return product


def cos_sin(phase: PhaseArray) -> tuple[FloatArray, FloatArray]:
    """Cosine and sine of phases."""
    # Subtracting the nearest quarter turn as an integer keeps the digits of angles close to it.
    quarter = (phase + 2**61) >> 62
    angle = (phase - (quarter << 62)).view(np.int64) * (2 * math.pi / TURN)
    cos, sin = np.cos(angle), np.sin(angle)
    odd, negative = quarter % 2 == 1, quarter >= 2
    cos, sin = np.where(odd, -sin, cos), np.where(odd, cos, sin)
    return np.where(negative, -cos, cos), np.where(negative, -sin, sin)
