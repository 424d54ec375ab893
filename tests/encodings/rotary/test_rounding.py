"""How rotations round, and what they make of NaN, of infinity and of empty arrays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from oracle import DTYPES, HALF_DTYPES, PRECISION, assert_same_bits
from rotating import turned_by
from rotations import LAYOUTS, double, frequencies, interleave
from targets import NEEDS_NATIVE

import posenc_native as pn
from posenc_native.engines.plain import arrays as reference

pytestmark = [NEEDS_NATIVE, pytest.mark.usefixtures("low_threshold")]


# Rounding, numbers that are none, and nothing at all


def finite_half_numbers(dtype: np.dtype) -> np.ndarray:
    numbers = np.arange(2**16, dtype=np.uint16)
    infinity = np.array(np.inf, dtype).view(np.uint16)
    return numbers[(numbers & infinity) != infinity].view(dtype)


def rotate_by(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairing: str) -> tuple[Any, Any]:
    """First and second partners of x [n, 2] (a, b), one pair a row, in rows of 24 pairs."""
    count = len(x) // 24 * 24
    a, b = (x[:count, i].reshape(-1, 24) for i in (0, 1))
    pairs = np.concatenate([a, b], axis=1)
    heads = pairs if pairing == "half" else interleave(pairs)
    tables = (table[:count].reshape(-1, 24) for table in (cos, sin))
    rotated = pn.apply_rotary(heads, None, pn.Tables(*tables), layout="sd", pairing=pairing)
    if pairing == "half":
        return rotated[:, :24].ravel(), rotated[:, 24:].ravel()
    return rotated[:, ::2].ravel(), rotated[:, 1::2].ravel()


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_every_half_number_is_read_and_written_right(target, pairing, dtype):
    finite = finite_half_numbers(DTYPES[dtype])
    finite = finite[: len(finite) // 24 * 24]
    x = np.stack([finite, np.zeros_like(finite)], axis=1)
    one, zero = np.ones(len(x), np.float32), np.zeros(len(x), np.float32)
    first, _ = rotate_by(x, one, zero, pairing)
    assert_same_bits(first, finite)
    first, second = rotate_by(x[:, ::-1], one, zero, pairing)
    np.testing.assert_array_equal(second, finite)
    _, second = rotate_by(x, zero, one, pairing)
    np.testing.assert_array_equal(second, finite)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_every_half_number_of_a_table_is_read_right(target, pairing, dtype):
    numbers = np.concatenate([finite_half_numbers(DTYPES[dtype]), [np.inf, -np.inf]])
    numbers = np.resize(numbers, -(-len(numbers) // 24) * 24).astype(DTYPES[dtype])
    zero = np.zeros_like(numbers)
    x = np.tile(np.array([1, 0], np.float32), (len(numbers), 1))
    with np.errstate(invalid="ignore"):
        first, _ = rotate_by(x, numbers, zero, pairing)
        assert_same_bits(first, numbers.astype(np.float32))
        _, second = rotate_by(x, zero, numbers, pairing)
        np.testing.assert_array_equal(second, numbers.astype(np.float32))


def numbers_to_round(dtype: np.dtype) -> np.ndarray:
    """float32: all finite numbers of a 16-bit dtype, midpoints to the next, and just beside."""
    numbers = np.sort(double(finite_half_numbers(dtype)))
    middle = (numbers[1:] + numbers[:-1]) / 2
    exact = np.concatenate([numbers, middle]).astype(np.float32)
    infinity = np.float32(np.inf)
    near = [np.nextafter(exact, infinity), np.nextafter(exact, -infinity)]
    beyond = [65519.996, 65520, 65536, 1e30, 3.38e38, 3.39e38, 3.3962e38, 3.4e38, infinity]
    tiny = np.float32(2.0) ** -np.arange(120, 150, dtype=np.float32)
    others = np.concatenate([beyond, tiny, tiny * 3]).astype(np.float32)
    return np.concatenate([exact, *near, others, -others])


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rounding_to_nearest_even(target, pairing, dtype):
    values = numbers_to_round(DTYPES[dtype])
    values = np.concatenate([values, values[: -len(values) % 24]])
    x = np.tile(np.array([1, 0], DTYPES[dtype]), (len(values), 1))
    first, _ = rotate_by(x, values, np.zeros_like(values), pairing)
    with np.errstate(over="ignore"):
        expected = values.astype(DTYPES[dtype])
    assert_same_bits(first, expected)
    _, second = rotate_by(x, np.zeros_like(values), values, pairing)
    np.testing.assert_array_equal(double(second), double(expected))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy about signaling NaNs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_nan_stays_nan(target, pairing, dtype):
    """Of either sign and any payload, in x or in the tables; and nothing else becomes one."""
    size = DTYPES[dtype].itemsize
    sign = 1 << (8 * size - 1)
    quiet = 1 << (PRECISION[dtype] - 2)
    infinity = sign - 2 * quiet
    payloads = [1, 2, quiet, quiet + 1, 2 * quiet - 1]
    bits = [each + infinity + payload for payload in payloads for each in (0, sign)]
    nans = np.array(bits, f"u{size}").view(DTYPES[dtype])
    nans = np.resize(nans, 48)
    x = np.stack([nans, np.ones_like(nans)], axis=1)
    x[1::3] = 1
    angles = np.full(48, 0.5, np.float32)
    for partners in (x, x[:, ::-1]):
        for result in rotate_by(partners, angles, angles, pairing):
            np.testing.assert_array_equal(np.isnan(double(result)), np.arange(48) % 3 != 1)
    payload = np.uint32(0xFFFFFFFF).reshape(1).view(np.float32)
    for nan in (np.float32(np.nan), payload, -payload):
        tables = np.where(np.arange(48) % 5 == 2, nan, np.float32(0.5)).astype(np.float32)
        for result in rotate_by(np.ones((48, 2), DTYPES[dtype]), tables, tables, pairing):
            np.testing.assert_array_equal(np.isnan(double(result)), np.arange(48) % 5 == 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_infinity_stays_in_its_pair(target, pairing, dtype):
    x = np.ones((48, 2), DTYPES[dtype])
    x[5::7, 0] = np.inf
    x[6::7, 1] = -np.inf
    cos, sin = np.full((2, 48), 0.5, np.float32)
    first, second = map(double, rotate_by(x, cos, sin, pairing))
    at = np.arange(48) % 7
    # (a, b) -> (a/2 - b/2, b/2 + a/2)
    expected = np.zeros(48), np.ones(48)
    for result, plain, of_a, of_b in [
        (first, expected[0], np.inf, np.inf),
        (second, expected[1], np.inf, -np.inf),
    ]:
        np.testing.assert_array_equal(
            result, np.where(at == 5, of_a, np.where(at == 6, of_b, plain))
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_rotated_is_copied_bit_for_bit(target, dtype):
    rng = np.random.default_rng(12)
    raw = rng.integers(0, 256, (5, 4, 50 * DTYPES[dtype].itemsize), dtype=np.uint8)
    x = raw.view(DTYPES[dtype])  # NaNs of all kinds among them
    for view in (x, x[:, :, ::-1], x[::-1, ::2]):
        for start, pairs in [(0, 10), (30, 10), (11, 15), (0, 0), (50, 0), (25, 0)]:
            with np.errstate(all="ignore"):
                actual = pn.apply_rotary(
                    view, None, frequencies(pairs), layout="shd", rotary_start=start
                )
            rest = np.r_[:start, start + 2 * pairs : 50]
            assert_same_bits(actual[..., rest], view[..., rest])


def test_overflow_is_infinity(target):
    quarter = np.array([np.pi / 4])
    for dtype, largest in [("float16", 65504), ("bfloat16", 3.3e38), ("float32", 3.3e38)]:
        x = np.array([[0, 0], [-largest, largest]], DTYPES[dtype])
        first, second = double(pn.apply_rotary(x, None, quarter, layout="sd")[1])
        assert first == -np.inf
        assert abs(second) <= largest * 1e-3


def test_an_int_is_the_position_of_the_first_token(backend):
    x = np.random.default_rng(13).standard_normal((5, 8)).astype(np.float32)
    assert_same_bits(
        pn.apply_rotary(x, 5, frequencies(4), layout="sd"),
        pn.apply_rotary(x, np.arange(5, 10), frequencies(4), layout="sd"),
    )
    assert_same_bits(
        pn.apply_rotary(x, [4, 3, 2, 1, 0], frequencies(4).tolist(), layout="sd"),
        pn.apply_rotary(x, np.arange(5)[::-1], frequencies(4), layout="sd"),
    )


# Rounded as written


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved", 8])
def test_as_written_has_one_result(target, pairing, dtype):
    rng = np.random.default_rng(26)
    sizes = {"b": 2, "h": 5, "s": 7, "t": 9, "d": 55}
    for layout, inverse in itertools.product(LAYOUTS, (False, True)):
        x = (rng.standard_normal([sizes[axis] for axis in layout]) * 3).astype(DTYPES[dtype])
        x = x[..., ::-1] if layout == "bhsd" else x
        shape = (9, 24) if "t" in layout else (2, 7, 24) if "b" in layout else (7, 24)
        cos, sin = rng.standard_normal((2, *shape)).astype(np.float32)
        tables = pn.Tables(cos, sin, compute="as_written")
        actual = pn.apply_rotary(
            x, None, tables, layout=layout, pairing=pairing, rotary_start=3, inverse=inverse
        )
        record = turned_by(cos, sin, layout, pairing, 3, inverse=inverse, compute="as_written")
        expected = reference.apply_rotary(x, *record, None)
        assert_same_bits(actual, expected)
