"""Positions and slots in a list: what is read of it is all that it has.

The door reads up to eight ints of a list by itself, to spare a token the way over NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from targets import NEEDS_NATIVE

import posenc_native as pn
from posenc_native.engines import backend

INV_FREQ = pn.Rotary(8).inv_freq


def heads(tokens: int) -> np.ndarray:
    return np.random.default_rng(tokens).standard_normal((1, 2, tokens, 8), np.float32)


@NEEDS_NATIVE
@pytest.mark.parametrize("tokens", [1, 8, 9, 64])
def test_the_native_functions_read_all_of_a_list(tokens: int, answers: Any) -> None:
    x, positions = heads(tokens), list(range(5, 5 + tokens))
    expected = pn.apply_rotary(x, np.array(positions), INV_FREQ)
    answers.clear()
    options = (INV_FREQ, "bhsd", "half", 0, None, 1.0, False)
    native: Any = backend.native
    np.testing.assert_array_equal(native.apply_rotary(x, positions, *options, None), expected)
    q, k = native.apply_rotary_qk(x, x, positions, *options, False)
    np.testing.assert_array_equal(q, expected)
    np.testing.assert_array_equal(k, expected)
    np.testing.assert_array_equal(pn.apply_rotary(x, positions, INV_FREQ), expected)
    assert [took for _, took in answers] == [tokens <= 8]


@pytest.mark.parametrize("positions", [[1 << 64, 0], [0, -(1 << 64)], [2**63, 1]], ids=str)
def test_an_int_beyond_64_bits_is_refused(positions: list[int]) -> None:
    with pytest.raises((ValueError, TypeError), match="apply_rotary: positions: expected"):
        pn.apply_rotary(heads(2), positions, INV_FREQ)


def test_other_numbers_are_what_numpy_makes_of_them() -> None:
    expected = pn.apply_rotary(heads(2), np.array([1.5, 2.0]), INV_FREQ)
    np.testing.assert_array_equal(pn.apply_rotary(heads(2), [1.5, 2.0], INV_FREQ), expected)
    with pytest.raises(TypeError, match=r"positions: expected .*, got bool"):
        pn.apply_rotary(heads(2), [True, False], INV_FREQ)
