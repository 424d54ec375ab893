"""Phases in turns, 64-bit fixed point, and their cosines and sines.

With a frequency of T / 2^64 turns per position, the integer position p has phase p * T mod 2^64:
one integer product, whose overflow removes the whole turns. The only error is the rounding of T,
which moves the angle by at most |p| * 2^-65 turns. As csrc/core/phase.h, on int64, which wraps.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.frequencies.frequencies import EXACT, TWO_PI, checked_frequencies

from .numbers import cast, factor_of, floating, in_onnx, of, readable

# Makes the turns of frequencies: a function below for arrays, or of torch/turns.py for tensors.
Turns = Callable[..., Any]
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


def _turns(frequencies: Sequence[float | Decimal]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The fractions and the whole turns of frequencies, [2, P], as 64-bit patterns."""
    turns = fixed_point(tuple(frequencies))
    words = [[t >> shift & (TURN - 1) for t in turns] for shift in (0, 64)]
    return np.array(words, np.uint64).reshape(2, -1).view(np.int64)


def frequency_turns(function: str, inv_freq: Any) -> Any:
    """The fractions and the whole turns of frequencies in an array, [2, *inv_freq.shape]."""
    if not np.all(np.abs(inv_freq) < arguments.FREQUENCY_LIMIT):
        wrong_value(function, "inv_freq", "finite values of magnitude below 2^63", "larger or NaN")
    return _turns(inv_freq.ravel().tolist()).reshape(2, *inv_freq.shape)


def sinusoidal_turns(function: str, dim: int, base: float, shift: float, scale: float) -> Any:
    """The fractions and the whole turns of the frequencies of a table, [2, dim / 2]."""
    return _turns(checked_frequencies(function, dim, base, shift, scale))


def _inverse_of_turn() -> list[float]:
    """1 / (2 pi) in five parts of 24 bits."""
    with decimal.localcontext(EXACT):
        bits = int(Decimal(2) ** 120 / TWO_PI)
    return [math.ldexp(bits >> 24 * (4 - i) & (2**24 - 1), -24 * (i + 1)) for i in range(5)]


_INVERSE_OF_TURN = _inverse_of_turn()


def turns_by_products(radians: Any) -> tuple[Any, Any]:
    """The fractions, in units of 2^-64, and the whole turns of radians below 2^63, as int64.

    For graphs, of values that are not known when they are made. A float32 has 24 bits, as each part
    of 1 / (2 pi), so that all products are exact in float64; a float64 is the sum of three float32.
    The fraction is rounded to nearest: all but ties within 2^-40 units.
    """
    xp = of(radians)
    rest, parts = cast(radians, xp.float64), []
    for _ in range(3 if radians.dtype == xp.float64 else 1):
        parts.append(cast(cast(rest, xp.float32), xp.float64))
        rest = rest - parts[-1]
    terms = xp.stack([part * inverse for part in parts for inverse in _INVERSE_OF_TURN], -1)
    # The whole turns of each product, two words of 32 bits after the point, and the rest.
    words = []
    for _ in range(3):
        words.append(cast(terms, xp.int64))
        terms = (terms - cast(words[-1], xp.float64)) * 2.0**32
    whole_turns, high, low = (word.sum(-1) for word in words)
    low = low + cast(xp.round(terms.sum(-1) * 2.0**-32), xp.int64)
    high = high + (low >> 32)
    return high * 2**32 + (low & LOW_HALF), whole_turns + (high >> 32)


def check_points(function: str, positions: Any, axis_map: Any = None) -> None:
    """ValueError for positions that are not finite and unknown axes, if values can be read."""
    if not readable(positions, axis_map):
        return
    if floating(positions) and not bool((abs(positions) < 2.0**63).all()):
        expected = "finite values of magnitude below 2^63"
        wrong_value(function, "positions", expected, "larger or NaN")
    if axis_map is not None:
        axes = positions.shape[0]
        if bool(((axis_map < 0) | (axis_map >= axes)).any()):
            wrong_value(function, "axis_map", f"values in 0 .. {axes - 1}", axis_map.tolist())


def phases_at(points: Any, fraction: Any, whole_turns: Any) -> Any:
    """The phase of every position at the frequency with the same last index; both broadcast."""
    xp = of(points)
    if xp is not np:
        points = points.detach()
    if not floating(points):
        return cast(points, xp.int64) * fraction
    # By magnitude, since 1 - p would round for a small negative p.
    magnitude = abs(points)
    floor = xp.floor(magnitude)
    # The fraction of a position as two 32-bit halves, and its product with the frequency.
    scaled = (magnitude - floor) * 2.0**32
    high = xp.floor(scaled)
    low = cast(xp.floor((scaled - high) * 2.0**32), xp.int64)
    high = cast(high, xp.int64)
    f_high, f_low = fraction >> 32 & LOW_HALF, fraction & LOW_HALF
    cross1 = high * f_low + (low * f_low >> 32 & LOW_HALF)
    cross2 = low * f_high + (cross1 & LOW_HALF)
    product = high * f_high + (cross1 >> 32 & LOW_HALF) + (cross2 >> 32 & LOW_HALF)
    phase = cast(floor, xp.int64) * fraction + product + (high << 32 | low) * whole_turns
    return xp.where(points < 0, -phase, phase)


def cos_sin(phase: Any, real: Any) -> tuple[Any, Any]:
    """Cosine and sine of phases, in this dtype."""
    xp = of(phase)
    if in_onnx(phase):
        # ONNX shifts signed integers by seven operations, and its runtimes have float64.
        angle = cast(phase, xp.float64)
        angle = angle * factor_of(angle, 2 * math.pi / TURN)
        return cast(xp.cos(angle), real), cast(xp.sin(angle), real)
    # Subtracting the nearest quarter turn as an integer keeps the digits of angles close to it.
    quarter = phase + (1 << 61) >> 62
    angle = cast(phase - (quarter << 62), real) * (2 * math.pi / TURN)
    cos, sin = xp.cos(angle), xp.sin(angle)
    odd = (quarter & 1) != 0
    cos, sin = xp.where(odd, sin, cos), xp.where(odd, cos, sin)
    cos = xp.where((quarter + 1 & 2) != 0, -cos, cos)
    return cos, xp.where((quarter & 2) != 0, -sin, sin)


def moving(cos: Any, sin: Any, angle: Any) -> tuple[Any, Any]:
    """cos and sin of phases that depend on the angle, for derivatives of any order.

    A phase is an integer and has no derivative. The results are cos(phase + d) and sin(phase + d)
    for a d that is 0 but has the derivatives of the angle. This also works in forward mode and
    torch.func.
    """
    d = angle - angle.detach()
    return cos * d.cos() - sin * d.sin(), sin * d.cos() + cos * d.sin()
