"""`python -m benchmarks.studies.turns_of_steps`: every float32 as a step, against integers.

A step becomes turns times 2^64, rounded to the nearest (csrc/cpu/step_sums.cc). For all numbers
from 2^-64 to 2^8 it is told how near an exact product comes to the middle between two integers,
where an error would round it the other way, and whether the SIMD target in use has the nearest.
"""

from __future__ import annotations

import decimal
from decimal import Decimal

import numpy as np

import posenc_native as pn
from posenc_native.core.frequencies.frequencies import EXACT, TWO_PI
from posenc_native.engines import backend

WORD = np.uint64(2**32 - 1)
FIRST, LAST = -64, 8  # exponents of 2


def turns(exponent: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turns times 2^64 of numbers * 2^exponent, and their 64 bits behind the point."""
    with decimal.localcontext(EXACT):
        unit = int(Decimal(2) ** (exponent + 128) / TWO_PI)
    carry = np.zeros_like(numbers)
    words = []
    for i in range(4):  # of a product modulo 2^64 turns, from the lowest
        carry = (carry >> np.uint64(32)) + numbers * np.uint64(unit >> 32 * i & 2**32 - 1)
        words.append(carry & WORD)
    low, high = (words[i] | words[i + 1] << np.uint64(32) for i in (0, 2))
    return high, low


def main() -> None:
    """Try them all: two minutes."""
    mantissas = np.arange(2**23, 2**24, dtype=np.uint64)
    nearest, wrong = 1.0, 0
    for exponent in range(FIRST, LAST):
        exact, rest = turns(exponent - 23, mantissas)
        distance = np.abs(rest.astype(np.float64) * 2.0**-64 - 0.5).min()
        nearest = min(nearest, float(distance))
        steps = np.ldexp(mantissas.astype(np.float32), exponent - 23).astype(np.float32)
        found = pn.selective.accumulated_phases(steps.reshape(1, -1), axis=0)[0].view(np.uint64)
        wrong += int((found != exact + (rest >> np.uint64(63))).sum())
    target = "reference" if backend.native is None else backend.native.current_target()
    count = (LAST - FIRST) << 23
    print(f"{target}: {count:,} steps, {wrong} not the nearest;", end=" ")
    print(f"the middle is 2^{np.log2(nearest):.1f} away at least")


if __name__ == "__main__":
    main()
