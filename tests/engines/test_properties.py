"""What the encodings are for, as properties; each holds for the native module and the reference.

Tolerances follow from oracle.py: a component of a rotated pair (a, b) is off by a share
COMPUTATION of |a| + |b| and by one rounding, a sine or cosine by 4e-16 + |position| * 2^-60 in
float64 and 1.2e-7 in float32.
"""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
from oracle import COMPUTATION, DTYPES, assert_same_bits, half_ulp

import posenc_native as pn

pytestmark = pytest.mark.usefixtures("backend")

MILLION = 1_000_000
SINUSOIDAL_LAYOUTS = ["interleaved", "sin_cos", "cos_sin"]
PAIRINGS = ["half", "interleaved", 8]
PAIRS = 32
INV_FREQ = 5e5 ** (-np.arange(PAIRS) / PAIRS)


def heads(dtype: str, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal((*shape, 2 * PAIRS)).astype(DTYPES[dtype])


def partners(x: np.ndarray, pairing: str | int) -> tuple[np.ndarray, np.ndarray]:
    """First and second numbers of all pairs, in float64."""
    block = {"half": 2 * PAIRS, "interleaved": 2}.get(pairing, pairing)
    blocks = x.astype(np.float64).reshape(*x.shape[:-1], -1, 2, block // 2)
    shape = (*x.shape[:-1], PAIRS)
    return blocks[..., 0, :].reshape(shape), blocks[..., 1, :].reshape(shape)


def rotate(x: np.ndarray, position: float, **options: object) -> np.ndarray:
    """All rows of x at one position."""
    positions = np.full(x.shape[0], position)
    return pn.apply_rotary(x, positions, INV_FREQ, layout="sd", **options)


# Sinusoidal


@pytest.mark.parametrize("layout", SINUSOIDAL_LAYOUTS)
@pytest.mark.parametrize("offset", [0, 1, -7, 4096, 0.5, -MILLION])
@pytest.mark.parametrize(
    "options", [{}, {"base": 5e5, "shift": 1.0}, {"scale": -0.3}], ids=["plain", "shift", "scale"]
)
def test_a_table_times_the_shift_matrix_is_the_table_further_on(layout, offset, options):
    positions = np.array([0, 1, 17, 131072, 2**31, -5])
    matrix = pn.sinusoids.shift_matrix(offset, 64, layout=layout, **options)
    assert matrix.shape == (64, 64)
    there = pn.sinusoidal(positions + offset, 64, layout=layout, dtype=np.float64, **options)
    per_position = (np.abs(positions) + abs(offset))[:, None] * oracle.PER_POSITION
    for dtype, of_table in [(np.float64, 4e-16), (np.float32, 1.2e-7)]:
        here = pn.sinusoidal(positions, 64, layout=layout, dtype=dtype, **options)
        moved = here.astype(np.float64) @ matrix
        # Two products of table and matrix, each off by the sum of both errors; the table itself;
        # and the roundings of three operations.
        bound = 2 * (of_table + 4e-16) + 4e-16 + 3 * 2.0**-53 + 5 * per_position
        assert np.all(np.abs(moved - there) <= bound)


def test_shifts_add_up():
    once = pn.sinusoids.shift_matrix(1234, 32)
    np.testing.assert_allclose(once @ once, pn.sinusoids.shift_matrix(2468, 32), rtol=0, atol=1e-14)
    np.testing.assert_allclose(once @ once.T, np.eye(32), rtol=0, atol=2e-15)


def test_frequencies_wavelengths_and_tables_agree():
    for options in ({}, {"base": 5e5}, {"base": 1e4, "shift": 1.0}):
        frequencies = pn.sinusoids.frequencies(64, **options)
        assert frequencies[0] == 1.0
        assert np.all(np.diff(frequencies) < 0)
        wavelengths = pn.sinusoids.wavelengths(64, **options)
        np.testing.assert_allclose(frequencies * wavelengths, 2 * math.pi, rtol=2.0**-51)
        # One wavelength further on all is as it was: the frequency is off by 2^-64 turn, the
        # wavelength by 2^-53 of itself.
        table = pn.sinusoidal(wavelengths, 64, layout="sin_cos", dtype=np.float64, **options)
        own = np.arange(32)
        bound = 4e-16 + 2 * math.pi * 2.0**-53 + wavelengths * oracle.PER_POSITION
        assert np.all(np.abs(table[own, own]) <= bound)
        assert np.all(table[own, 32 + own] == 1.0)
        sines = pn.sinusoidal(np.array([1]), 64, layout="sin_cos", dtype=np.float64, **options)
        np.testing.assert_allclose(sines[0, :32], np.sin(frequencies), rtol=0, atol=1e-15)
        cos, sin = pn.rotary_tables(5000, frequencies, dtype=np.float64)
        table = pn.sinusoidal(5000, 64, layout="cos_sin", dtype=np.float64, **options)
        # The float64 frequency is off by half a unit in the last place.
        bound = 8e-16 + 5000 * 2.0**-53
        np.testing.assert_allclose(np.hstack([cos, sin]), table, rtol=0, atol=bound)


def test_rotary_frequencies_are_those_of_sinusoidal_tables():
    inv_freq, factor = pn.rotary.rotary_frequencies(64, 5e5)
    assert_same_bits(inv_freq, pn.sinusoids.frequencies(64, 5e5))
    assert factor == 1.0


# Rotary


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("position", [0, 1, 4097, MILLION, 2**31, -3, 998.39])
def test_rotary_keeps_norms(position, pairing, dtype):
    x = heads(dtype, 9)
    before = np.hypot(*partners(x, pairing))
    rotated = rotate(x, position, pairing=pairing)
    after = np.hypot(*partners(rotated, pairing))
    # |a| + |b| <= sqrt(2) of the norm, and so much in either component.
    bound = 2 * COMPUTATION[dtype] * before + math.sqrt(2) * half_ulp(rotated.dtype, before)
    assert np.all(np.abs(after - before) <= bound)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("distance", [0, 1, -5, 300, 77_777])
def test_scores_depend_on_the_distance_alone(distance, pairing, dtype):
    """<R(m) q, R(n) k> is a function of m - n: at 0, at a million, and as far as int64 goes."""
    q, k = heads(dtype, 20), heads(dtype, 20)[::-1]

    def score(m: int, n: int) -> np.ndarray:
        rotated_q, rotated_k = rotate(q, m, pairing=pairing), rotate(k, n, pairing=pairing)
        return np.sum(rotated_q.astype(np.float64) * rotated_k.astype(np.float64), axis=-1)

    at_zero = score(distance, 0)
    terms = np.sum(
        np.multiply(*(np.add(*map(np.abs, partners(x, pairing))) for x in (q, k))), axis=-1
    )
    # Two components a pair, two factors in each product; both scores are off.
    bound = 2 * 2 * 2 * (COMPUTATION[dtype] + half_ulp(q.dtype, 1.0)) * terms
    assert np.all(bound < 0.01)
    for origin in (1, 4096, MILLION, -MILLION, 2**31, 2**62):
        assert np.all(np.abs(score(origin + distance, origin) - at_zero) <= bound)
    # And on the distance it does depend.
    assert np.all(np.abs(score(distance + 1, 0) - at_zero) > bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("position", [0, 1, MILLION, 2**40, -17, 0.5])
def test_inverse_undoes(position, pairing, dtype):
    x = heads(dtype, 9)
    rotated = rotate(x, position, pairing=pairing)
    back = rotate(rotated, position, pairing=pairing, inverse=True)
    norm = np.hypot(*partners(x, pairing))
    bound = 2 * math.sqrt(2) * 2 * (COMPUTATION[dtype] * norm + half_ulp(x.dtype, 2 * norm))
    for after, before in zip(partners(back, pairing), partners(x, pairing), strict=True):
        assert np.all(np.abs(after - before) <= bound)
    if position == int(position):  # of others the phase is rounded in its last place
        away = rotate(x, -position, pairing=pairing)
        assert_same_bits(away, rotate(x, position, pairing=pairing, inverse=True))


def test_inverse_of_a_scaled_rotation_is_its_transpose():
    x, y = heads("float64", 6), heads("float64", 7)[:6]
    forward = rotate(x, 1234, scale=1.5)
    backward = rotate(y, 1234, scale=1.5, inverse=True)
    np.testing.assert_allclose(np.sum(forward * y), np.sum(x * backward), rtol=1e-13)
    np.testing.assert_allclose(forward, 1.5 * rotate(x, 1234), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
def test_interleaved_and_half_split_are_permutations_of_each_other(dtype):
    x = heads(dtype, 30)
    order = np.arange(2 * PAIRS).reshape(2, PAIRS).T.ravel()  # half-split to interleaved
    for position in (0, 3, MILLION, 0.25):
        half = rotate(x, position, pairing="half")
        interleaved = rotate(x[:, order], position, pairing="interleaved")
        assert_same_bits(half[:, order], interleaved)


def test_rotations_add_up():
    x = heads("float64", 5)
    for m, n in [(3, 4), (MILLION, -MILLION), (2**40, 2**41), (0.5, 0.25)]:
        np.testing.assert_allclose(rotate(rotate(x, m), n), rotate(x, m + n), rtol=0, atol=1e-14)


def test_a_rotary_description_rotates_as_the_functions_do():
    rope = pn.Rotary(80, base=5e5, rotary_dim=64, rotary_start=8, pairing="interleaved")
    assert_same_bits(rope.inv_freq, pn.sinusoids.frequencies(64, 5e5))
    rng = np.random.default_rng(1)
    q = rng.standard_normal((2, 4, 6, 80)).astype(np.float32)
    k = rng.standard_normal((2, 1, 6, 80)).astype(np.float32)
    positions = rng.integers(0, MILLION, (2, 6))
    options = {"pairing": "interleaved", "rotary_start": 8}
    expected = pn.apply_rotary_qk(q, k, positions, rope.inv_freq, **options)
    for actual, other in zip(rope(q, k, positions), expected, strict=True):
        assert_same_bits(actual, other)
    assert_same_bits(rope.apply(q, positions), expected[0])
    back = rope.apply(expected[0], positions, inverse=True)
    np.testing.assert_allclose(back, q, rtol=0, atol=3e-6)
    cos, sin = rope.tables(positions[0])
    assert_same_bits(cos, pn.rotary_tables(positions[0], rope.inv_freq)[0])
    one = rope.apply(q[:1], positions[0])
    by_tables = pn.apply_rotary(q[:1], None, pn.Tables(cos, sin), **options)
    np.testing.assert_allclose(by_tables, one, rtol=0, atol=3e-6)
    out = np.empty_like(q)
    assert rope.apply(q, positions, out=out) is out
    assert_same_bits(out, expected[0])
    rope(q, k, positions, inplace=True)
    assert_same_bits(q, expected[0])
    assert_same_bits(k, expected[1])
