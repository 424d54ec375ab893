"""Native sinusoidal tables, written down and added to x, against the NumPy reference.

The reference is asked for float64, before the one rounding at the store; see oracle.py for how
far from it a result may be. Whatever writes the same numbers another way gives the same bits.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import oracle
import pytest
from arrays import aligned, aligned_rows, number_views, position_views, unsigned
from hypothesis import given
from hypothesis import strategies as st
from matrices import product
from oracle import DTYPES, HALF_DTYPES, assert_close, assert_same_bits
from targets import LARGE, NEEDS_NATIVE, written_past_the_cache

import posenc_native as pn
from posenc_native.engines.plain import arrays as reference

pytestmark = [NEEDS_NATIVE, pytest.mark.usefixtures("low_threshold")]

LAYOUTS = ["interleaved", "sin_cos", "cos_sin"]
OFFSETS = st.sampled_from([0, 16, 32, 48])  # bytes, of rows from multiples of 64


def exact_table(positions: Any, dim: int, **options: Any) -> np.ndarray:
    values = {"base": 1e4, "layout": "interleaved", "shift": 0.0, "scale": 1.0, **options}
    return reference.sinusoidal(positions, dim, *values.values(), np.float64, None)


def assert_table(actual: np.ndarray, positions: Any, dim: int, **options: Any) -> None:
    exact = exact_table(positions, dim, **options)
    points = np.arange(positions) if isinstance(positions, int) else positions
    more = np.abs(points.astype(np.float64))[..., None] * oracle.PER_POSITION
    assert_close(actual, exact, 1.0, more + in_two_parts(actual.dtype))


def in_two_parts(dtype: Any) -> float:
    return oracle.IN_TWO_PARTS if np.dtype(dtype).itemsize == 2 else 0.0


# Native against the reference


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_width_of_a_row(target, layout, dtype):
    # Widths around multiples of the vectors, and around what the scratch of the kernel holds.
    positions = np.array([0, 1, 77, -5, 123456])
    for dim in [*range(0, 140, 2), 254, 256, 258, 510, 514, 600, 4094, 4096, 4098, 20000]:
        actual = pn.sinusoidal(positions, dim, layout=layout, dtype=DTYPES[dtype])
        assert actual.dtype == DTYPES[dtype]
        assert_table(actual, positions, dim, layout=layout)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_add_at_every_width_of_a_row(target, layout, dtype):
    rng = np.random.default_rng(1)
    for dim in [*range(0, 140, 2), 510, 600, 4096, 4098, 20000]:
        x = rng.standard_normal((3, dim)).astype(DTYPES[dtype])
        actual = pn.add_sinusoidal(x, x_scale=1.7, alpha=0.3, layout=layout)
        table = exact_table(3, dim, layout=layout)
        exact = x.astype(np.float64) * 1.7 + table * 0.3
        magnitude = np.abs(x.astype(np.float64)) * 1.7 + 0.3
        assert_close(actual, exact, magnitude, 0.3 * in_two_parts(x.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_to_long_sequences_of_a_batch(target, dtype):
    x = np.random.default_rng(5).standard_normal((3, 5000, 10)).astype(DTYPES[dtype])
    points = np.random.default_rng(6).integers(0, 10**6, 5000)
    of_each_row = np.stack([points, points + 1, points - 1])
    for positions in (None, points, of_each_row, points[::-1] + 0.5):
        given = np.arange(5000) if positions is None else positions
        exact = x.astype(np.float64) + exact_table(given, 10)
        more = np.abs(given)[..., None] * oracle.PER_POSITION + in_two_parts(x.dtype)
        actual = pn.add_sinusoidal(x, positions)
        assert_close(actual, exact, np.abs(x.astype(np.float64)) + 1, more)


@st.composite
def table_calls(draw: Any) -> tuple[Any, int, dict[str, Any]]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    if draw(st.integers(0, 4)) == 0:
        positions: Any = draw(st.integers(0, 40))
    else:
        positions = draw(position_views(shape)).array
    dim = 2 * draw(st.integers(0, 40))
    options = {
        "base": draw(st.sampled_from([1e4, 5e5, 1e6, 2.0, 1.0, 0.25])),
        "layout": draw(st.sampled_from(LAYOUTS)),
        "shift": draw(st.sampled_from([0.0, 0.0, 0.5, -1.0])),
        "scale": draw(st.sampled_from([1.0, 1.0, -0.5, 3.7, 0.0])),
    }
    return positions, dim, options


@given(data=st.data(), call=table_calls(), dtype=st.sampled_from(list(DTYPES)))
def test_any_table(target, data, call, dtype):
    positions, dim, options = call
    actual = pn.sinusoidal(positions, dim, dtype=DTYPES[dtype], **options)
    assert_table(actual, positions, dim, **options)
    out = data.draw(number_views(actual.shape, DTYPES[dtype]))
    assert pn.sinusoidal(positions, dim, out=out.array, **options) is out.array
    assert_same_bits(out.array, actual)
    out.assert_rest_untouched()
    rows = aligned_rows(actual.shape, DTYPES[dtype], data.draw(OFFSETS))
    with written_past_the_cache():
        pn.sinusoidal(positions, dim, out=rows.array, **options)
    assert_same_bits(rows.array, actual)
    rows.assert_rest_untouched()


@given(data=st.data(), dtype=st.sampled_from(list(DTYPES)))
def test_any_addition(target, data, dtype):
    leading = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    shape = (*leading, data.draw(st.integers(0, 6)), 2 * data.draw(st.integers(0, 40)))
    x = data.draw(number_views(shape, DTYPES[dtype], expand=True)).array
    positions = None
    if data.draw(st.booleans()):
        of_each_row = data.draw(st.booleans())
        positions = data.draw(position_views(shape[:-1] if of_each_row else shape[-2:-1])).array
    x_scale, alpha = data.draw(st.sampled_from([(1.0, 1.0), (22.6, 1.0), (-0.7, 0.0), (0.0, 3.0)]))
    options = {"layout": data.draw(st.sampled_from(LAYOUTS)), "base": 5e5, "scale": 0.9}

    actual = pn.add_sinusoidal(x, positions, x_scale=x_scale, alpha=alpha, **options)
    points = np.arange(shape[-2]) if positions is None else positions
    wide = x.astype(np.float64)
    exact = wide * x_scale + alpha * exact_table(points, shape[-1], **options)
    more = np.abs(points.astype(np.float64))[..., None] * oracle.PER_POSITION
    more = alpha * (more + in_two_parts(x.dtype))
    assert_close(actual, exact, np.abs(wide * x_scale) + abs(alpha), more)

    out = data.draw(number_views(shape, DTYPES[dtype]))
    arguments = {"x_scale": x_scale, "alpha": alpha, **options}
    assert pn.add_sinusoidal(x, positions, out=out.array, **arguments) is out.array
    assert_same_bits(out.array, actual)
    out.assert_rest_untouched()
    rows = aligned_rows(shape, DTYPES[dtype], data.draw(OFFSETS))
    with written_past_the_cache():
        pn.add_sinusoidal(x, positions, out=rows.array, **arguments)
    assert_same_bits(rows.array, actual)
    rows.assert_rest_untouched()
    place = data.draw(number_views(shape, DTYPES[dtype]))
    place.array[...] = x
    place.before = unsigned(place.base).copy()
    assert pn.add_sinusoidal(place.array, positions, out=place.array, **arguments) is place.array
    assert_same_bits(place.array, actual)
    place.assert_rest_untouched()


# The same bits


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_are_permutations_of_each_other(target, dtype):
    for dim in (2, 6, 30, 64, 130, 4100):
        interleaved, sin_cos, cos_sin = (
            pn.sinusoidal(7, dim, layout=layout, dtype=DTYPES[dtype]) for layout in LAYOUTS
        )
        assert_same_bits(sin_cos[:, : dim // 2], interleaved[:, ::2])
        assert_same_bits(sin_cos[:, dim // 2 :], interleaved[:, 1::2])
        assert_same_bits(cos_sin, np.roll(sin_cos, dim // 2, axis=1))


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_half_precision_is_float32_rounded_once(target, dtype):
    """Where float32 is not as near to a boundary of rounding as the errors of both together."""
    rng = np.random.default_rng(2)
    positions = rng.integers(0, 2**20, 50)
    fractions = positions + rng.integers(1, 64, 50) / 64
    x = rng.standard_normal((50, 66)).astype(DTYPES[dtype])
    for layout in LAYOUTS:
        single = pn.sinusoidal(positions, 66, layout=layout)
        half = pn.sinusoidal(positions, 66, layout=layout, dtype=DTYPES[dtype])
        assert distance_to_rounding(half, single) <= 2e-7 + 9e-8
        single = pn.sinusoidal(fractions, 66, layout=layout)
        half = pn.sinusoidal(fractions, 66, layout=layout, dtype=DTYPES[dtype])
        assert_same_bits(half, single.astype(DTYPES[dtype]))
        single = pn.add_sinusoidal(x.astype(np.float32), positions, layout=layout, x_scale=8.1)
        half = pn.add_sinusoidal(x, positions, layout=layout, x_scale=8.1)
        sum_rounding = 2 * oracle.half_ulp("float32", single).max()
        assert distance_to_rounding(half, single) <= 2e-7 + 9e-8 + sum_rounding


def distance_to_rounding(actual: np.ndarray, exact: np.ndarray) -> Any:
    wide = exact.astype(np.float64)
    return oracle.distance_to_rounding_interval(actual, oracle.Exact(wide, 0 * wide)).max()


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_are_of_the_position_alone(target, layout, dtype):
    """The parts of an angle in 16-bit formats are of the position, not of the table."""
    options = {"layout": layout, "dtype": DTYPES[dtype]}
    for dim in (6, 64, 130, 1090):
        for first in (0, -13, 2**40 + 5, -(2**62) - 3):
            positions = np.int64(first) + np.arange(37, dtype=np.int64)
            table = pn.sinusoidal(positions, dim, **options)
            for start in (1, 3, 8, 30):
                assert_same_bits(pn.sinusoidal(positions[start:], dim, **options), table[start:])
            order = np.random.default_rng(0).permutation(37)
            assert_same_bits(pn.sinusoidal(positions[order], dim, **options), table[order])
            rows = [pn.sinusoidal(positions[i : i + 1], dim, **options) for i in range(37)]
            assert_same_bits(np.concatenate(rows), table)
            zeros = np.zeros((3, 37, dim), DTYPES[dtype])
            added = pn.add_sinusoidal(zeros, positions, layout=layout)
            # 0 + -0 is 0.
            assert_same_bits(added, np.broadcast_to(table, zeros.shape) + zeros)
            assert_same_bits(pn.add_sinusoidal(zeros[0], positions, layout=layout), added[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_axis_for_each_pair_has_the_bits_of_one_for_all(target, dtype):
    rng = np.random.default_rng(7)
    inv_freq = 1e4 ** (-np.arange(35) / 35)
    whole = rng.integers(-(10**6), 10**6, (2, 20))
    fractions = whole + rng.choice([0.0, 0.25], whole.shape)
    for positions in (whole, fractions):
        one = [pn.rotary_tables(axis, inv_freq, dtype=DTYPES[dtype]) for axis in positions]
        axis_map = np.arange(35) % 2
        mixed = pn.rotary_tables(positions, inv_freq, axis_map=axis_map, dtype=DTYPES[dtype])
        for of_axes, tables in zip(zip(*one, strict=True), mixed, strict=True):
            for axis, table in enumerate(of_axes):
                assert_same_bits(tables[:, axis::2], table[:, axis::2])


@pytest.mark.parametrize("scale", [1.0, 2.0**-9, 1e-38, -3e-40])
def test_small_factors_keep_subnormal_numbers(target, scale):
    positions, inv_freq = np.arange(40), 1e4 ** (-np.arange(24) / 24)
    exact = reference.rotary_tables(positions, inv_freq, None, scale, np.float64)
    bfloat16 = DTYPES["bfloat16"]
    tables = pn.rotary_tables(positions, inv_freq, scale=scale, dtype=bfloat16)
    for actual, expected in zip(tables, exact, strict=True):
        assert_close(actual, expected, abs(scale), abs(scale) * oracle.IN_TWO_PARTS + 2.0**-149)


def test_integer_and_floating_positions_are_the_same(target):
    positions = np.array([0, 1, 2, 127, 5, 66])
    expected = pn.sinusoidal(positions, 32)
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64", "float32",
                  "float64", np.longlong, np.ulonglong):  # fmt: skip
        assert_same_bits(pn.sinusoidal(positions.astype(dtype), 32), expected)
    assert_same_bits(pn.sinusoidal(positions.tolist(), 32), expected)
    assert_same_bits(pn.sinusoidal(6, 32), pn.sinusoidal(np.arange(6), 32))
    assert_same_bits(pn.sinusoidal(np.int32(6), 32), pn.sinusoidal(6, 32))
    assert_same_bits(pn.sinusoidal(np.array(5), 32), expected[4])


@pytest.mark.usefixtures("threads")
@product(dim=[128, 136, 130], layout=LAYOUTS, dtype=DTYPES)
def test_large_outputs_are_the_same_bits(target, dim, layout, dtype):
    """Written past the cache or not, aligned or not, on one thread or more."""
    rows = LARGE // (dim * DTYPES[dtype].itemsize)
    size = DTYPES[dtype].itemsize
    options = {"layout": layout, "scale": 0.01}
    positions = np.arange(rows) * 977
    x = np.random.default_rng(3).standard_normal((1, dim)).astype(DTYPES[dtype])
    x = np.broadcast_to(x, (rows, dim))
    pn.set_num_threads(1)
    step = rows // 8 + 1  # a piece of these is small enough for the cache
    table, total = np.empty((2, rows, dim), DTYPES[dtype])
    for start in range(0, rows, step):
        part = slice(start, start + step)
        pn.sinusoidal(positions[part], dim, out=table[part], **options)
        pn.add_sinusoidal(x[part], positions[part], out=total[part], **options)
    assert_table(table[::1000], positions[::1000], dim, **options)
    for offset, threads in itertools.product((0, 16, 32, size), (1, 2)):
        pn.set_num_threads(threads)
        out = aligned((rows, dim), DTYPES[dtype], offset)
        for run, expected in [
            (lambda out=out: pn.sinusoidal(positions, dim, out=out, **options), table),
            (lambda out=out: pn.add_sinusoidal(x, positions, out=out, **options), total),
        ]:
            unsigned(out)[...] = 0x55
            run()
            assert np.array_equal(unsigned(out), unsigned(expected))
        out[...] = x
        pn.add_sinusoidal(out, positions, out=out, **options)
        assert np.array_equal(unsigned(out), unsigned(total))


def test_large_rows_with_gaps(target):
    rows = LARGE // 512 + 1
    memory = aligned((rows, 192), DTYPES["float32"])
    memory[...] = 7
    pn.sinusoidal(rows, 128, out=memory[:, 16:144])
    for part in (slice(50), slice(rows - 50, rows)):
        expected = pn.sinusoidal(np.arange(rows)[part], 128)
        assert_same_bits(memory[part, 16:144], expected)
    assert np.all(memory[:, :16] == 7)
    assert np.all(memory[:, 144:] == 7)


# Numbers that are none, and nothing at all


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_and_infinity_stay_where_they_are(target, layout, dtype):
    clean = np.ones((40, 70), DTYPES[dtype])
    x = clean.copy()
    rng = np.random.default_rng(4)
    special = rng.choice([0, 1, 2, 3], x.shape, p=[0.85, 0.05, 0.05, 0.05])
    for code, value in enumerate([np.nan, np.inf, -np.inf], start=1):
        x[special == code] = value
    actual = pn.add_sinusoidal(x, layout=layout)
    assert np.all(np.isnan(actual[special == 1]))
    assert np.all(actual[special == 2] == np.inf)
    assert np.all(actual[special == 3] == -np.inf)
    expected = pn.add_sinusoidal(clean, layout=layout)
    assert_same_bits(actual[special == 0], expected[special == 0])


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_overflow_of_half_precision_is_infinity(target, dtype):
    largest = 3.3e38 if dtype == "bfloat16" else 65504
    x = np.array([[largest, -largest]] * 3, DTYPES[dtype])
    actual = pn.add_sinusoidal(x, x_scale=1.06).astype(np.float64)
    assert np.array_equal(actual, [[np.inf, -np.inf]] * 3)


# Rotary tables


@given(data=st.data(), dtype=st.sampled_from(list(DTYPES)))
def test_any_rotary_tables(target, data, dtype):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    pairs = data.draw(st.integers(0, 40))
    inv_freq = (rng.uniform(-4, 4, pairs) * 10.0 ** rng.uniform(-7, 0, pairs)).astype(
        data.draw(st.sampled_from([np.float32, np.float64]))
    )
    shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=3)))
    axis_map = None
    if data.draw(st.booleans()):
        axes = data.draw(st.integers(1, 4))
        shape = (axes, *shape)
        axis_map = rng.integers(0, axes, pairs).astype(data.draw(st.sampled_from(["i8", "u1"])))
    positions = data.draw(position_views(shape)).array
    scale = data.draw(st.sampled_from([1.0, 1.0, 1.25, -0.1]))
    options = {"axis_map": axis_map, "scale": scale}
    tables = pn.rotary_tables(positions, inv_freq, dtype=DTYPES[dtype], **options)
    exact = reference.rotary_tables(positions, inv_freq, axis_map, scale, np.float64)
    for actual, expected in zip(tables, exact, strict=True):
        assert actual.dtype == DTYPES[dtype]
        assert_close(actual, expected, abs(scale), abs(scale) * in_two_parts(actual.dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("dim", [64, 100, 4200])
@pytest.mark.parametrize(("first", "step"), [(0, 1), (-77, 3), (2**62, -(2**55) - 1), (5, 0)])
def test_equal_steps_have_the_bits_of_products(
    first: int, step: int, dim: int, dtype: str, target: str
) -> None:
    # In equal steps phases are sums; in any other order each is a product. More rows than a block,
    # in one go and in pieces.
    positions = np.int64(first) + np.int64(step) * np.arange(150, dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(positions))
    products = np.empty((len(positions), dim), dtype)
    products[order] = pn.sinusoidal(positions[order], dim, dtype=dtype)
    assert_same_bits(pn.sinusoidal(positions, dim, dtype=dtype), products)
    pieces = np.concatenate(
        [pn.sinusoidal(positions[a:b], dim, dtype=dtype) for a, b in [(0, 3), (3, 40), (40, 150)]]
    )
    assert_same_bits(pieces, products)


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_floats_have_the_bits_of_integers(dtype: str, target: str) -> None:
    def table(positions: np.ndarray) -> np.ndarray:
        return pn.sinusoidal(positions, 64, dtype=DTYPES[dtype])

    positions = np.arange(100)
    expected = table(positions)
    assert_same_bits(table(positions.astype(np.float32)), expected)
    positions = positions.astype(np.float64)
    positions[70] += 0.5  # its block is computed with fractions
    without = np.arange(100) != 70
    assert_same_bits(table(positions)[without], expected[without])


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_coordinates_written_to_their_columns(layout, dtype):
    # Coordinates of one shape are written to the result; those that broadcast, and tensors that
    # need a gradient, are tables that are merged.
    torch = pytest.importorskip("torch")
    spec = pn.SinusoidalSpec(
        21, axis_order=(2, 0, 1), layout=layout, axis_place="inner", base=(50.0, 20.0, 1e4),
        scale=(1.0, -3.0, 0.5), include_coordinates=True,
    )  # fmt: skip
    points = np.random.default_rng(3).uniform(-90, 90, (4, 5, 3)).astype(np.float32)
    written = spec(points, dtype=DTYPES[dtype])
    merged = spec([points[None, ..., 0], points[..., 1], points[..., 2]], dtype=DTYPES[dtype])
    assert_same_bits(written, merged[0])
    tensors = torch.from_numpy(points)
    named = getattr(torch, dtype)
    result = spec(tensors, dtype=named)
    assert result.dtype == named
    # Every number of these dtypes is one of float64.
    assert_same_bits(result.double().numpy(), written.astype(np.float64))
    followed = spec(tensors.clone().requires_grad_(), dtype=named).detach()
    assert_same_bits(followed.double().numpy(), written.astype(np.float64))
    assert spec(points[:0]).shape == (0, 5, 21)
