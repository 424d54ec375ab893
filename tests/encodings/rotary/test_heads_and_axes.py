"""Frequencies of their own for heads, and sums over position axes."""

from __future__ import annotations

import numpy as np
import pytest
from matrices import product
from oracle import DTYPES, assert_close, assert_same_bits
from rotations import LAYOUTS, double, magnitude
from targets import NEEDS_NATIVE

import posenc_native as pn
from posenc_native.engines.plain import arrays as reference

pytestmark = [NEEDS_NATIVE, pytest.mark.usefixtures("low_threshold")]


# Frequencies of their own for heads, and sums over position axes


def several_frequencies(kind: str, heads: int, pairs: int, rng: np.random.Generator) -> np.ndarray:
    shape = {"[H, P]": (heads, pairs), "[A, H, P]": (3, heads, pairs), "[A, 1, P]": (3, 1, pairs)}
    return rng.uniform(-1, 1, shape[kind]) * 10.0 ** rng.integers(-4, 1, shape[kind])


@product(
    kind=["[H, P]", "[A, H, P]", "[A, 1, P]"], pairing=["half", "interleaved", 8], dtype=DTYPES
)
def test_frequencies_of_heads_and_axes(target, kind, pairing, dtype):
    rng = np.random.default_rng(21)
    sizes = {"b": 2, "h": 5, "s": 7, "t": 9, "d": 55}
    for layout in LAYOUTS:
        heads = sizes["h"] if "h" in layout else 1
        x = rng.standard_normal([sizes[axis] for axis in layout]).astype(DTYPES[dtype])
        inv_freq = several_frequencies(kind, heads, 24, rng)
        axes = (3,) if "A" in kind else ()
        tokens = (9,) if "t" in layout else (2, 7) if "b" in layout else (7,)
        for positions in (
            rng.integers(-(10**6), 10**6, axes + tokens),
            rng.uniform(-100, 100, axes + tokens[-1:]),
        ):
            options = {"layout": layout, "pairing": pairing, "rotary_start": 3, "scale": 1.5}
            actual = pn.apply_rotary(x, positions, inv_freq, **options)
            exact = reference.apply_rotary(
                double(x), positions, inv_freq, layout, pairing, 3, None, 1.5, False, None
            )
            assert_close(actual, exact, magnitude(x, 24, layout, pairing, 3) * 1.5)


def test_a_row_for_every_head_is_a_call_for_every_head(target):
    rng = np.random.default_rng(22)
    q, k = rng.standard_normal((2, 4, 6, 20)), rng.standard_normal((2, 4, 6, 20))
    inv_freq = rng.uniform(0, 1, (4, 10))
    axis_map = np.array([0, 1] * 5)
    positions = rng.integers(0, 10**5, (2, 6))
    rotated = pn.apply_rotary_qk(q, k, positions, inv_freq, axis_map=axis_map)
    for head in range(4):
        for x, y in zip((q, k), rotated, strict=True):
            one = pn.apply_rotary(
                x[:, head], positions, inv_freq[head], layout="bsd", axis_map=axis_map
            )
            assert_same_bits(y[:, head], one)


def test_an_axis_map_is_a_sum_over_axes(target):
    rng = np.random.default_rng(23)
    x = rng.standard_normal((2, 4, 6, 20)).astype(np.float32)
    inv_freq, axis_map = rng.uniform(0, 1, 10), rng.integers(0, 3, 10)
    positions = rng.integers(-(2**40), 2**40, (3, 2, 6))
    of_axes = np.where(axis_map == np.arange(3)[:, None], inv_freq, 0.0)[:, None]
    assert_same_bits(
        pn.apply_rotary(x, positions, of_axes),
        pn.apply_rotary(x, positions, inv_freq, axis_map=axis_map),
    )


def test_a_sum_over_axes_is_one_rotation_after_the_other(target):
    rng = np.random.default_rng(24)
    x = rng.standard_normal((3, 5, 16))
    inv_freq, positions = rng.uniform(-1, 1, (2, 3, 8)), rng.uniform(-50, 50, (2, 5))
    at_once = pn.apply_rotary(x, positions, inv_freq, layout="hsd")
    first = pn.apply_rotary(x, positions[0], inv_freq[0], layout="hsd")
    then = pn.apply_rotary(first, positions[1], inv_freq[1], layout="hsd")
    assert_close(at_once, then, 4 * magnitude(x, 8, "hsd", "half", 0))


def test_many_pairs_summed_over_axes(target):
    rng = np.random.default_rng(25)
    x = rng.standard_normal((3, 9000)).astype(np.float32)
    inv_freq, positions = rng.uniform(-1, 1, (2, 1, 4500)), rng.integers(-99, 99, (2, 3))
    actual = pn.apply_rotary(x, positions, inv_freq, layout="sd")
    exact = reference.apply_rotary(
        double(x), positions, inv_freq, "sd", "half", 0, None, 1.0, False, None
    )
    assert_close(actual, exact, magnitude(x, 4500, "sd", "half", 0))
