"""Frequencies and wavelengths against 200-bit arithmetic."""

import math

import mpmath
import numpy as np
import pytest

from posenc_native.core.frequencies.frequencies import frequencies, wavelengths
from posenc_native.core.frequencies.scaling import rotary_frequencies

# The plain formula


@pytest.mark.parametrize("base", [1e4, 5e5, 1e6, 0.5, 3.3])
@pytest.mark.parametrize(("dim", "shift"), [(128, 0.0), (512, 1.0), (6, 0.5), (10, -1.25)])
def test_frequencies_and_wavelengths_are_correctly_rounded(dim, base, shift):
    with mpmath.workprec(200):
        exponent = 1 / (mpmath.mpf(dim) / 2 - mpmath.mpf(shift))
        exact = [mpmath.mpf(base) ** (-i * exponent) for i in range(dim // 2)]
        expected = [float(w) for w in exact]
        expected_wavelengths = [float(2 * mpmath.pi / w) for w in exact]
    np.testing.assert_array_equal(frequencies(dim, base, shift=shift), expected)
    np.testing.assert_array_equal(wavelengths(dim, base, shift=shift), expected_wavelengths)


def test_exact_powers_are_exact():
    np.testing.assert_array_equal(frequencies(8, 1e4), [1.0, 0.1, 0.01, 0.001])
    np.testing.assert_array_equal(frequencies(6, 2.0**30), [1.0, 2.0**-10, 2.0**-20])


def test_empty():
    assert frequencies(0).shape == (0,)
    assert wavelengths(0).dtype == np.float64
    assert rotary_frequencies(0)[0].shape == (0,)


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (ValueError, {"dim": 3}),
        (ValueError, {"dim": -2}),
        (TypeError, {"dim": 4.0}),
        (TypeError, {"dim": True}),
        (ValueError, {"base": 0}),
        (ValueError, {"base": -1e4}),
        (ValueError, {"base": math.nan}),
        (TypeError, {"base": "1e4"}),
        (TypeError, {"base": 1j}),
        (ValueError, {"shift": 4.0}),
        (ValueError, {"shift": math.inf}),
        (ValueError, {"base": 1e-300}),
    ],
    ids=str,
)
def test_bad_arguments(error, arguments):
    values = {"dim": 8, "base": 1e4, "shift": 0.0, **arguments}
    for function in (frequencies, wavelengths):
        with pytest.raises(error, match=rf"^{function.__name__}: .*: expected .*, got "):
            function(values["dim"], values["base"], shift=values["shift"])
