"""An origin that is subtracted from positions first, as times need it.

The oracle is the formula in 200 bits.
"""

from __future__ import annotations

import re

import mpmath
import numpy as np
import pytest

import posenc_native as pn

torch = pytest.importorskip("torch")

from posenc_native import nn as pnn  # noqa: E402

NANOSECONDS = 1_700_000_000_123_456_789


@pytest.mark.parametrize("kind", ["int64", "uint64", "torch"])
def test_an_origin_keeps_the_last_places_of_times(kind, backend):
    """Frequencies are multiples of 2^-64 turns: 0.3 radians at 1.7e18."""
    ahead = np.arange(0, 4000, 7)
    times = NANOSECONDS + ahead
    positions = torch.tensor(times) if kind == "torch" else times.astype(kind)
    spec = pn.SinusoidalSpec(16, scale=1e-3, origin=NANOSECONDS - 5)
    with mpmath.workprec(200):
        steps = [mpmath.mpf(1e-3) * mpmath.mpf(10000) ** (-mpmath.mpf(i) / 8) for i in range(8)]
        exact = [
            [float(f((int(p) + 5) * step)) for step in steps for f in (mpmath.sin, mpmath.cos)]
            for p in ahead
        ]
    dtype = torch.float64 if kind == "torch" else np.float64
    np.testing.assert_allclose(np.asarray(spec(positions, dtype=dtype)), exact, rtol=0, atol=1e-14)
    without = pn.SinusoidalSpec(16, scale=1e-3)
    assert abs(np.asarray(without(positions, dtype=dtype)) - exact).max() > 1e-4
    linear = pn.absolute.linear_positions(positions, origin=NANOSECONDS, scale=0.5)
    np.testing.assert_array_equal(np.asarray(linear)[..., 0], ahead * 0.5)


def test_origins_of_coordinates_of_sizes_and_of_floats():
    spec = pn.SinusoidalSpec(8, axis_order=(0, 1), origin=(3, 0))
    plain = pn.SinusoidalSpec(8, axis_order=(0, 1))
    cells = pn.positions.grid_positions((5, 2)).T
    np.testing.assert_array_equal(spec(cells + np.array([3, 0])), plain(cells))
    np.testing.assert_array_equal(spec(cells + np.array([3.0, 0.0])), plain(cells))
    np.testing.assert_array_equal(spec(sizes=(5, 2))[3:], plain(sizes=(2, 2)))
    module = pnn.LinearPositionalEncoding(2, 0.0, origin=7)
    np.testing.assert_array_equal(module.encoding(torch.tensor([9]))[0], [2.0])


@pytest.mark.parametrize(("origin", "error", "match"), [
    (-1, ValueError, "SinusoidalSpec: origin: expected an int in 0 .. 2^63 - 1, got -1"),
    (0.5, TypeError, "SinusoidalSpec: origin: expected an int, got float"),
    ((1, 2), ValueError, "SinusoidalSpec: origin: expected a number, or 1 numbers"),
])  # fmt: skip
def test_errors_of_an_origin(origin, error, match):
    with pytest.raises(error, match=re.escape(match)):
        pn.SinusoidalSpec(8, origin=origin)


def test_positions_that_no_int64_holds_from_there():
    spec = pn.SinusoidalSpec(8, origin=5)
    with pytest.raises(ValueError, match=r"positions within 2\^63 of the origin, 5"):
        spec([-(2**63)])
