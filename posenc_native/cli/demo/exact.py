"""Cosines and sines by decimal arithmetic: what the tables of both ways are compared with."""

from __future__ import annotations

import decimal
from decimal import Decimal

__all__ = ["exact_cos_sin"]


def exact_cos_sin(position: int, frequency: float) -> tuple[float, float]:
    """cos and sin of ``position * frequency``, correctly rounded but for ties, by Taylor's series.

    Decimal arithmetic with 60 digits: the product of a position and a float32 is exact in it.
    """
    with decimal.localcontext() as context:
        context.prec = 60
        angle = Decimal(position) * Decimal(frequency) % (2 * _pi())
        sums = [Decimal(0), Decimal(0)]  # the even terms are those of cos, the odd those of sin
        term, n = Decimal(1), 0
        while n < 8 or abs(term) > Decimal("1e-30"):
            sums[n % 2] += term if n % 4 < 2 else -term
            n += 1
            term *= angle / n
        return float(sums[0]), float(sums[1])


def _pi() -> Decimal:
    """pi to 60 digits, by Machin's formula in integers."""

    def arctangent_of_inverse(n: int, unit: int) -> int:
        power = total = unit // n
        for k in range(1, 100):
            power //= n * n
            total += (-power if k % 2 else power) // (2 * k + 1)
        return total

    unit = 10**70
    return Decimal(
        4 * (4 * arctangent_of_inverse(5, unit) - arctangent_of_inverse(239, unit))
    ) / Decimal(unit)
