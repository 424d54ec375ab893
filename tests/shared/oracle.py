"""What results are compared with: exact values (200-bit arithmetic) and one table of tolerances.

An exact value is held as the sum of two float64 numbers, good to about 2^-106 of itself, so that
errors of whole arrays are one NumPy expression.

Tolerances
    A sine or cosine is off by 9e-8 where results are computed in float32 (float16, bfloat16,
    float32) and by 3e-16 where in float64: see csrc/core/phase.h. What follows are at most four
    roundings, each half a unit in the last place of 1: the factors `scale` and `alpha` as numbers
    of the computation, the product with them, the product with x, the sum. All are relative to the
    terms that are summed, so their sum of magnitudes |a| + |b| is what the error is measured by:

        float32   9e-8 + 4 * 2^-24 = 3.3e-7         float64   3e-16 + 4 * 2^-53 = 7.5e-16

    In float64 the reference is off by about as much again (it is exact next to float32). Tables
    in 16-bit formats take angles in two parts and are off by 2e-7 instead of 9e-8. Then comes one
    rounding at the store, half a unit in the last place of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import mpmath
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
HALF_DTYPES = {name: DTYPES[name] for name in ("float16", "bfloat16")}

# Of a computation, relative to the sum of the magnitudes of its terms, before the store.
COMPUTATION = {"float16": 3.3e-7, "bfloat16": 3.3e-7, "float32": 3.3e-7, "float64": 1.5e-15}
# Of a table in a 16-bit format in addition.
IN_TWO_PARTS = 1.1e-7
# Of a sinusoidal table in addition, for each position: frequencies are rounded to 2^-64 turn.
PER_POSITION = 2.0**-60

# Bits of the significand and the smallest exponent of a normal number.
PRECISION = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
SMALLEST = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}


def dtype_name(dtype: Any) -> str:
    """Name of a dtype of NumPy or torch."""
    return str(dtype).removeprefix("torch.")


def half_ulp(dtype: Any, values: Any) -> np.ndarray:
    """Half the distance of neighboring numbers of the dtype around the values."""
    name = dtype_name(dtype)
    _, exponent = np.frexp(np.abs(np.asarray(values, np.float64)))
    return np.ldexp(1.0, np.maximum(exponent - 1, SMALLEST[name]) - PRECISION[name])


def tolerance(dtype: Any, magnitude: Any, exact: Any) -> np.ndarray:
    """How far a result of this dtype may be from `exact`.

    magnitude: the sum of the magnitudes of the terms that were added up, |a| + |b|.
    """
    computed = np.asarray(magnitude, np.float64) * COMPUTATION[dtype_name(dtype)]
    return computed + half_ulp(dtype, np.abs(np.asarray(exact, np.float64)) + computed)


def assert_close(actual: Any, exact: Any, magnitude: Any, more: Any = 0.0) -> None:
    """`actual`, of one of the four dtypes, is as close to float64 values as it should be."""
    exact = np.asarray(exact, np.float64)
    assert actual.shape == exact.shape
    error = np.abs(actual.astype(np.float64) - exact)
    excess = error - tolerance(actual.dtype, magnitude, exact) - more
    assert np.all(excess <= 0), f"off by {error[~(excess <= 0)].max()} ({actual.dtype})"


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Equal arrays to the bit, signs of zeros and payloads of NaNs included."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    unsigned = np.dtype(f"u{actual.dtype.itemsize}")
    bits = [np.ascontiguousarray(values).view(unsigned) for values in (actual, expected)]
    if not np.array_equal(*bits):
        np.testing.assert_array_equal(*bits)  # says where, and takes ten times as long


# Exact values


@dataclass(frozen=True)
class Exact:
    """Real numbers as unevaluated sums high + low."""

    high: np.ndarray
    low: np.ndarray

    @classmethod
    def of(cls, values: Any) -> Exact:
        """From an array of mpmath numbers."""
        values = np.asarray(values, dtype=object)
        high = values.astype(np.float64)
        with mpmath.workprec(200):
            return cls(high, (values - high).astype(np.float64))

    def minus(self, values: Any) -> np.ndarray:
        """high + low - values: exact but for the last rounding where the values are close."""
        return (self.high - values) + self.low

    def error(self, actual: Any) -> np.ndarray:
        return np.abs(self.minus(actual.astype(np.float64)))


def concatenate(parts: list[Exact]) -> Exact:
    """Along the last axis."""
    return Exact(
        np.concatenate([part.high for part in parts], axis=-1),
        np.concatenate([part.low for part in parts], axis=-1),
    )


def exact_frequencies(dim: int, base: float, shift: float = 0.0, scale: float = 1.0) -> list[Any]:
    """scale * base^(-i / (dim / 2 - shift)), radians a position."""
    with mpmath.workprec(200):
        exponent = -1 / (mpmath.mpf(dim) / 2 - mpmath.mpf(shift))
        return [mpmath.mpf(scale) * mpmath.mpf(base) ** (i * exponent) for i in range(dim // 2)]


def exact_sincos(positions: Any, frequencies: Any) -> tuple[Exact, Exact]:
    """Sines and cosines [n, P] of positions [n] times frequencies [P], numbers taken as exact."""
    with mpmath.workprec(200):
        rows = [
            [mpmath.cos_sin(mpmath.mpf(p) * w) for w in map(mpmath.mpf, frequencies)]
            for p in positions
        ]
        table = np.array(rows, dtype=object).reshape(len(rows), len(frequencies), 2)
        return Exact.of(table[..., 1]), Exact.of(table[..., 0])


def fixed_turns(frequency: Any) -> int:
    """The whole number of 2^-64 turns nearest to a frequency in radians."""
    with mpmath.workprec(300):
        return int(mpmath.nint(mpmath.mpf(frequency) / (2 * mpmath.pi) * 2**64))


def exact_sincos_of_turns(positions: Any, turns: list[int]) -> tuple[Exact, Exact]:
    """Likewise from frequencies in 2^-64 turns and integer positions of any size."""
    with mpmath.workprec(200):
        unit = 2 * mpmath.pi / 2**64
        rows = [[mpmath.cos_sin(int(p) * t % 2**64 * unit) for t in turns] for p in positions]
        table = np.array(rows, dtype=object).reshape(len(rows), len(turns), 2)
        return Exact.of(table[..., 1]), Exact.of(table[..., 0])


def distance_to_rounding_interval(actual: np.ndarray, exact: Exact) -> np.ndarray:
    """How far the exact values are outside of what rounds to the actual ones: 0 where right.

    The ends of the interval are the midpoints between `actual` and its neighbors in its dtype,
    which float64 represents exactly for the 16-bit dtypes.
    """
    dtype = actual.dtype
    assert dtype.itemsize == 2
    below, above = (
        np.nextafter(actual, np.full_like(actual, dtype.type(sign * np.inf))).astype(np.float64)
        for sign in (-1, 1)
    )
    middle = actual.astype(np.float64)
    low, high = (below + middle) / 2, (above + middle) / 2
    return np.maximum(np.maximum(-exact.minus(low), exact.minus(high)), 0.0)
