"""Native rotary encoding against the NumPy reference, and against itself: the same bits every way.

The reference is asked for float64, before the one rounding at the store; see oracle.py for how
far from it a result may be.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from arrays import aligned, aligned_rows, number_views, position_views, unsigned, views
from hypothesis import given
from hypothesis import strategies as st
from oracle import DTYPES, HALF_DTYPES, PRECISION, assert_close, assert_same_bits
from targets import LARGE, NEEDS_NATIVE, written_past_the_cache

import posenc_native as pn
from posenc_native import reference

pytestmark = [NEEDS_NATIVE, pytest.mark.usefixtures("low_threshold")]

AXES = ["sd", "bsd", "hsd", "bhsd", "td", "htd"]
LAYOUTS = ["".join(order) + "d" for axes in AXES for order in itertools.permutations(axes[:-1])]


def frequencies(pairs: int, dtype: str = "float64") -> np.ndarray:
    return (1e4 ** (-np.arange(pairs) / max(pairs, 1))).astype(dtype)


def double(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def magnitude(x: np.ndarray, pairs: int, layout: str, pairing: Any, start: int) -> np.ndarray:
    """|a| + |b| for both partners of a pair, |a| elsewhere."""
    tokens = x.shape[layout.index("t" if "t" in layout else "s")]
    ones = np.ones((tokens, pairs))
    either = [
        reference.apply_rotary_tables(
            np.abs(double(x)), ones, ones, layout, pairing, start, inverse, "float32", None
        )
        for inverse in (False, True)
    ]
    return np.maximum(*either)


def assert_rotated(
    actual: np.ndarray,
    x: np.ndarray,
    positions: Any,
    inv_freq: np.ndarray,
    *,
    layout: str = "bhsd",
    pairing: Any = "half",
    rotary_start: int = 0,
    axis_map: Any = None,
    scale: float = 1.0,
    inverse: bool = False,
) -> None:
    assert actual.dtype == x.dtype
    exact = reference.apply_rotary(
        double(x), positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse,
        None,
    )  # fmt: skip
    terms = magnitude(x, len(inv_freq), layout, pairing, rotary_start) * abs(scale)
    assert_close(actual, exact, terms)
    rotated = slice(rotary_start, rotary_start + 2 * len(inv_freq))
    rest = np.ones(x.shape[-1], bool)
    rest[rotated] = False
    assert_same_bits(actual[..., rest], x[..., rest])


# Native against the reference


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved", 2, 4, 8, 12, 24, 48])
def test_every_layout_and_pairing(target, pairing, dtype):
    rng = np.random.default_rng(1)
    sizes = {"b": 2, "h": 5, "s": 7, "t": 9, "d": 55}
    for layout in LAYOUTS:
        x = rng.standard_normal([sizes[axis] for axis in layout]).astype(DTYPES[dtype])
        tokens = 9 if "t" in layout else 7
        choices: list[Any] = [None, rng.integers(0, 10**6, tokens)]
        if "b" in layout:
            choices.append(rng.integers(-(10**6), 10**6, (2, tokens)))
        for positions in choices:
            options = {"layout": layout, "pairing": pairing, "rotary_start": 3}
            actual = pn.apply_rotary(x, positions, frequencies(24), **options)
            assert_rotated(actual, x, positions, frequencies(24), **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_every_head_size(target, pairing, dtype):
    rng = np.random.default_rng(2)
    for dim in [*range(2, 140), 160, 192, 254, 255, 256, 258, 320, 510, 512, 576, 598, 600]:
        x = rng.standard_normal((2, dim)).astype(DTYPES[dtype])
        inv_freq = frequencies(dim // 2, "float32")
        actual = pn.apply_rotary(x, None, inv_freq, layout="sd", pairing=pairing)
        assert_rotated(actual, x, None, inv_freq, layout="sd", pairing=pairing)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("pairs", "pairing"),
    [(2047, "half"), (2048, "half"), (2049, "half"), (10000, "half"), (2047, "interleaved"),
     (2048, "interleaved"), (2049, "interleaved"), (10000, "interleaved"), (10000, 16),
     (10010, 20), (3 * 2049, 2 * 2049), (3 * 1400, 2800), (8192, 4096)],
)  # fmt: skip
def test_heads_larger_than_the_scratch(target, pairs, pairing, dtype):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 2, 2 * pairs + 7)).astype(DTYPES[dtype])
    positions = rng.integers(0, 10**6, (2, 3))
    axis_map = rng.integers(0, 2, pairs)
    options = {"layout": "shd", "pairing": pairing, "rotary_start": 5, "axis_map": axis_map}
    actual = pn.apply_rotary(x, positions, frequencies(pairs), **options)
    assert_rotated(actual, x, positions, frequencies(pairs), **options)
    inplace = x.copy()
    pn.apply_rotary(inplace, positions, frequencies(pairs), out=inplace, **options)
    assert_same_bits(inplace, actual)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["hsd", "shd", "bshd", "sbhd"])
def test_more_tokens_than_one_block(target, layout, dtype):
    rng = np.random.default_rng(14)
    sizes = {"b": 2, "h": 6, "s": 1100, "d": 9}
    x = rng.standard_normal([sizes[axis] for axis in layout]).astype(DTYPES[dtype])
    for pairing in ("half", "interleaved"):
        options = {"layout": layout, "pairing": pairing, "rotary_start": 1}
        actual = pn.apply_rotary(x, None, frequencies(4), **options)
        assert_rotated(actual, x, None, frequencies(4), **options)


@dataclass
class Call:
    """x, and the arguments of a rotation of it."""

    x: np.ndarray
    positions: Any
    inv_freq: np.ndarray
    options: dict[str, Any]

    def run(self, x: np.ndarray, **more: Any) -> np.ndarray:
        return pn.apply_rotary(x, self.positions, self.inv_freq, **self.options, **more)


@st.composite
def rotary_calls(draw: Any, dtype: np.dtype) -> Call:
    axes = draw(st.sampled_from(AXES)).removesuffix("d")
    layout = "".join(draw(st.permutations(axes))) + "d"
    token = "t" if "t" in layout else "s"
    pairs = draw(st.integers(0, 40))
    blocks = [2 * half for half in range(1, pairs + 1) if pairs % half == 0] or [2, 4]
    pairing = draw(st.sampled_from(["half", "interleaved", draw(st.sampled_from(blocks))]))
    start = draw(st.sampled_from([0, 0, 1, 7, 16]))
    sizes = {
        "b": draw(st.integers(0, 3)),
        "h": draw(st.integers(0, 9)),
        token: draw(st.integers(0, 6) | st.integers(60, 70)),
        "d": start + 2 * pairs + draw(st.sampled_from([0, 0, 1, 8])),
    }
    x = draw(number_views(tuple(sizes[axis] for axis in layout), dtype, expand=True)).array
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    frequency_dtype = draw(st.sampled_from(["float32", "float64"]))
    inv_freq = draw(
        views(
            (pairs,),
            lambda n: (rng.uniform(-4, 4, n) * 10 ** rng.uniform(-7, 0, n)).astype(frequency_dtype),
            expand=True,
        )
    ).array
    per_axis = draw(st.integers(0, 2)) == 0
    shape: tuple[int, ...] = (sizes[token],)
    if "b" in layout and draw(st.booleans()):
        shape = (sizes["b"], sizes[token])
    axis_map = None
    if per_axis:
        count = draw(st.integers(1, 4))
        shape = (count, *shape)
        axis_map = rng.integers(0, count, pairs).astype(draw(st.sampled_from(["i8", "u1", "i4"])))
    no_positions = not per_axis and draw(st.integers(0, 4)) == 0
    positions = None if no_positions else draw(position_views(shape)).array
    options = {
        "layout": layout,
        "pairing": pairing,
        "rotary_start": start,
        "axis_map": axis_map,
        "scale": draw(st.sampled_from([1.0, 1.0, 1.3466, -0.25, 0.0])),
        "inverse": draw(st.booleans()),
    }
    return Call(x, positions, inv_freq, options)


@given(data=st.data(), dtype=st.sampled_from(list(DTYPES)))
def test_any_rotation(target, data, dtype):
    call = data.draw(rotary_calls(DTYPES[dtype]))
    actual = call.run(call.x)
    assert_rotated(actual, call.x, call.positions, call.inv_freq, **call.options)

    # Strided or not, to a new array, to one that is there, or in place: the same bits.
    assert_same_bits(call.run(call.x.copy(order="C")), actual)
    out = data.draw(number_views(call.x.shape, DTYPES[dtype]))
    assert call.run(call.x, out=out.array) is out.array
    assert_same_bits(out.array, actual)
    out.assert_rest_untouched()
    rows = aligned_rows(call.x.shape, DTYPES[dtype], data.draw(st.sampled_from([0, 16, 32, 48])))
    with written_past_the_cache():
        call.run(call.x, out=rows.array)
    assert_same_bits(rows.array, actual)
    rows.assert_rest_untouched()
    place = data.draw(number_views(call.x.shape, DTYPES[dtype]))
    place.array[...] = call.x
    place.before = unsigned(place.base).copy()
    assert call.run(place.array, out=place.array) is place.array
    assert_same_bits(place.array, actual)
    place.assert_rest_untouched()


def assert_pair_rotates_as_each_alone(data: Any, x: np.ndarray, layout: str, pair: Any, one: Any):
    """x with some other heads, pair(q, k) and in place; one(x) gives the bits."""
    shape = list(x.shape)
    if "h" in layout:
        shape[layout.index("h")] = data.draw(st.integers(0, 5))
    key = data.draw(number_views(tuple(shape), x.dtype, expand=True)).array
    actual = pair(x, key)
    for result, alone in zip(actual, (x, key), strict=True):
        assert_same_bits(result, one(alone))
    places = [data.draw(number_views(each.shape, x.dtype)) for each in (x, key)]
    for place, each in zip(places, (x, key), strict=True):
        place.array[...] = each
        place.before = unsigned(place.base).copy()
    q, k = (place.array for place in places)
    result = pair(q, k, inplace=True)
    assert result[0] is q
    assert result[1] is k
    for place, expected in zip(places, actual, strict=True):
        assert_same_bits(place.array, expected)
        place.assert_rest_untouched()


@given(data=st.data(), dtype=st.sampled_from(list(DTYPES)))
def test_any_pair_of_query_and_key(target, data, dtype):
    call = data.draw(rotary_calls(DTYPES[dtype]))

    def pair(q: np.ndarray, k: np.ndarray, **more: Any) -> Any:
        return pn.apply_rotary_qk(q, k, call.positions, call.inv_freq, **call.options, **more)

    assert_pair_rotates_as_each_alone(data, call.x, call.options["layout"], pair, call.run)


@st.composite
def table_calls(
    draw: Any, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """x, cos, sin, options."""
    call = draw(rotary_calls(dtype))
    options = {
        name: call.options[name] for name in ("layout", "pairing", "rotary_start", "inverse")
    }
    layout = options["layout"]
    shape: tuple[int, ...] = (call.x.shape[layout.index("t" if "t" in layout else "s")],)
    if "b" in layout and draw(st.booleans()):
        shape = (call.x.shape[layout.index("b")], *shape)
    table_dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    shape = (*shape, len(call.inv_freq))
    tables = number_views(shape, table_dtype, expand=True, scale=0.6)
    return call.x, draw(tables).array, draw(tables).array, options


@given(data=st.data(), dtype=st.sampled_from(list(DTYPES)))
def test_any_pair_by_tables(target, data, dtype):
    x, cos, sin, options = data.draw(table_calls(DTYPES[dtype]))

    def pair(q: np.ndarray, k: np.ndarray, **more: Any) -> Any:
        return pn.apply_rotary_qk_tables(q, k, cos, sin, **options, **more)

    def one(x: np.ndarray) -> np.ndarray:
        return pn.apply_rotary_tables(x, cos, sin, **options)

    assert_pair_rotates_as_each_alone(data, x, options["layout"], pair, one)


@given(data=st.data(), dtype=st.sampled_from(list(DTYPES)))
def test_any_rotation_by_tables(target, data, dtype):
    x, cos, sin, options = data.draw(table_calls(DTYPES[dtype]))
    actual = pn.apply_rotary_tables(x, cos, sin, **options)
    exact = reference.apply_rotary_tables(
        double(x), double(cos), double(sin), **options, compute="float32", out=None
    )
    largest = max(np.abs(double(cos)).max(initial=0), np.abs(double(sin)).max(initial=0), 1.0)
    terms = magnitude(
        x, cos.shape[-1], options["layout"], options["pairing"], options["rotary_start"]
    )
    assert_close(actual, exact, terms * largest)
    out = data.draw(number_views(x.shape, DTYPES[dtype]))
    assert pn.apply_rotary_tables(x, cos, sin, out=out.array, **options) is out.array
    assert_same_bits(out.array, actual)
    out.assert_rest_untouched()


@pytest.mark.parametrize("by_tables", [False, True], ids=["phases", "tables"])
@pytest.mark.parametrize("name", ["packed", "heads apart", "sliced", "broadcast"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_query_and_key_of_one_buffer(target, dtype, name, by_tables):
    """In place in a packed QKV: the values beside q and k are untouched."""
    rng = np.random.default_rng(4)
    batch, tokens, heads, groups, dim = 2, 70, 8, 2, 64
    shapes = {
        "packed": (batch, tokens, 3, heads, dim),
        "heads apart": (batch, tokens, heads, 3, dim),
        "sliced": (batch, tokens, (heads + 2 * groups) * dim),
        "broadcast": (batch, tokens, 3, heads, dim),
    }
    packed = rng.standard_normal(shapes[name]).astype(DTYPES[dtype])
    if name in ("packed", "broadcast"):
        q, k, v = (packed[:, :, i] for i in range(3))
    elif name == "heads apart":
        q, k, v = (packed[:, :, :, i] for i in range(3))
    else:
        q, k, v = np.split(packed, [heads * dim, (heads + groups) * dim], axis=-1)
        q, k, v = (part.reshape(batch, tokens, -1, dim) for part in (q, k, v))
        assert np.shares_memory(q, packed)
        assert np.shares_memory(k, packed)
    positions = rng.integers(0, 10**6, (batch, tokens))
    if name == "broadcast":
        positions = np.broadcast_to(positions[:1], (batch, tokens))
    before = packed.copy()
    values = v.copy()
    if by_tables:
        one, pair = pn.apply_rotary_tables, pn.apply_rotary_qk_tables
        angles = pn.rotary_tables(positions, frequencies(32))
    else:
        one, pair, angles = pn.apply_rotary, pn.apply_rotary_qk, (positions, frequencies(32))
    expected = [one(x.copy(), *angles, layout="bshd") for x in (q, k)]
    pair(q, k, *angles, layout="bshd", inplace=True)
    assert_same_bits(q, expected[0])
    assert_same_bits(k, expected[1])
    assert_same_bits(v, values)
    assert not np.array_equal(packed, before)


# The same bits


def interleave(x: np.ndarray) -> np.ndarray:
    """Half-split heads as interleaved ones."""
    half = x.shape[-1] // 2
    return np.stack([x[..., :half], x[..., half:]], axis=-1).reshape(x.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairings_are_permutations_of_each_other(target, dtype):
    rng = np.random.default_rng(5)
    for pairs in (1, 2, 3, 8, 15, 32, 64, 100, 5000):
        x = rng.standard_normal((2, 3, 2 * pairs)).astype(DTYPES[dtype])
        positions = rng.integers(0, 10**6, 3)
        half = pn.apply_rotary(x, positions, frequencies(pairs), layout="hsd")
        interleaved = pn.apply_rotary(
            interleave(x), positions, frequencies(pairs), layout="hsd", pairing="interleaved"
        )
        assert_same_bits(interleave(half), interleaved)
        assert_same_bits(
            pn.apply_rotary(x, positions, frequencies(pairs), layout="hsd", pairing=2 * pairs), half
        )
        blocks = np.concatenate([x, x], axis=-1)
        twice = np.concatenate([frequencies(pairs)] * 2)
        rotated = pn.apply_rotary(blocks, positions, twice, layout="hsd", pairing=2 * pairs)
        assert_same_bits(rotated, np.concatenate([half, half], axis=-1))


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved", 6])
def test_half_precision_is_float32_rounded_once(target, pairing, dtype):
    x = np.random.default_rng(6).standard_normal((3, 50, 78)).astype(DTYPES[dtype])
    options = {"layout": "hsd", "pairing": pairing, "rotary_start": 2, "scale": 1.1}
    single = pn.apply_rotary(x.astype(np.float32), None, frequencies(36), **options)
    half = pn.apply_rotary(x, None, frequencies(36), **options)
    assert_same_bits(half, single.astype(DTYPES[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_rotate_to_the_same_bits(target, dtype):
    x = np.random.default_rng(7).standard_normal((3, 50, 80)).astype(DTYPES[dtype])
    positions = np.arange(50) * 12345
    table_dtype = np.float64 if dtype == "float64" else np.float32
    for pairing in ("half", "interleaved", 16):
        cos, sin = pn.rotary_tables(positions, frequencies(40), scale=1.2, dtype=table_dtype)
        by_tables = pn.apply_rotary_tables(x, cos, sin, layout="hsd", pairing=pairing)
        by_phase = pn.apply_rotary(
            x, positions, frequencies(40), layout="hsd", pairing=pairing, scale=1.2
        )
        assert_same_bits(by_tables, by_phase)


def test_axes_of_one_kind_are_no_axes(target):
    x = np.random.default_rng(8).standard_normal((3, 50, 80)).astype(np.float32)
    positions = np.arange(50) * 12345
    expected = pn.apply_rotary(x, positions, frequencies(40), layout="hsd")
    three = np.stack([positions + 1, positions, positions + 2])
    same = pn.apply_rotary(
        x, three, frequencies(40), layout="hsd", axis_map=np.full(40, 1, np.uint8)
    )
    assert_same_bits(same, expected)


@pytest.mark.parametrize("pairing", ["half", "interleaved", 8])
def test_one_axis_of_fractions_among_whole_ones(target, pairing):
    x = np.random.default_rng(15).standard_normal((5, 24)).astype(np.float64)
    fractions, whole = np.arange(5) + 0.3, np.arange(5.0)
    axis_map = np.repeat(np.arange(3), 4)
    for axes in itertools.permutations([fractions, whole, whole]):
        options = {"layout": "sd", "pairing": pairing, "axis_map": axis_map}
        actual = pn.apply_rotary(x, np.stack(axes), frequencies(12), **options)
        assert_rotated(actual, x, np.stack(axes), frequencies(12), **options)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved", 48])
def test_large_outputs_are_the_same_bits(target, pairing, dtype):
    """Written past the cache or not, aligned or not, in place or not, on one thread or more."""
    rng = np.random.default_rng(9)
    size = DTYPES[dtype].itemsize
    dim, heads = 256, 5
    tokens = LARGE // (heads * dim * size)
    x = rng.standard_normal((heads, tokens, dim)).astype(DTYPES[dtype])
    positions = np.arange(tokens) * 977
    options = {"layout": "hsd", "pairing": pairing, "rotary_start": 32}
    inv_freq = frequencies(96)
    expected = np.empty_like(x)
    step = tokens // 8 + 1  # a piece of these is small enough for the cache
    pn.set_num_threads(1)
    for start in range(0, tokens, step):
        part = slice(start, start + step)
        pn.apply_rotary(x[:, part], positions[part], inv_freq, out=expected[:, part], **options)
    some = slice(0, tokens, 500)
    assert_rotated(expected[:, some], x[:, some], positions[some], inv_freq, **options)
    for offset, threads in itertools.product((0, 16, 32, size), (1, 2)):
        pn.set_num_threads(threads)
        out = aligned(x.shape, DTYPES[dtype], offset)
        unsigned(out)[...] = 0x55
        pn.apply_rotary(x, positions, inv_freq, out=out, **options)
        assert np.array_equal(unsigned(out), unsigned(expected))
    out[...] = x
    pn.apply_rotary(out, positions, inv_freq, out=out, **options)
    assert np.array_equal(unsigned(out), unsigned(expected))
    tables = pn.rotary_tables(positions, inv_freq, dtype="f8" if dtype == "float64" else "f4")
    for fresh, key in (
        pn.apply_rotary_qk(x, x[:2], positions, inv_freq, **options),
        pn.apply_rotary_qk_tables(x, x[:2], *tables, **options),
    ):
        assert np.array_equal(unsigned(fresh), unsigned(expected))
        assert np.array_equal(unsigned(key), unsigned(expected[:2]))


@pytest.mark.parametrize("pairs", [3, 20, 33, 40, 48])
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_rows_with_gaps_and_odd_ends(target, dtype, pairs):
    """Streams next to guard bytes: rows begin at multiples of 64 bytes, but end anywhere."""
    tokens = LARGE // (128 * DTYPES[dtype].itemsize) + 1
    x = np.random.default_rng(10).standard_normal((tokens, 128)).astype(DTYPES[dtype])
    for pairing in ("half", "interleaved"):
        memory = aligned((tokens, 192), DTYPES[dtype])
        unsigned(memory)[...] = 0x55
        out = memory[:, 32:160]
        options = {"layout": "sd", "pairing": pairing, "rotary_start": 32}
        pn.apply_rotary(x, None, frequencies(pairs), out=out, **options)
        head = pn.apply_rotary(x[:50], None, frequencies(pairs), **options)
        assert_same_bits(out[:50], head)
        tail = pn.apply_rotary(
            x[-50:], np.arange(tokens - 50, tokens), frequencies(pairs), **options
        )
        assert_same_bits(out[-50:], tail)
        assert np.all(unsigned(memory)[:, :32] == 0x55)
        assert np.all(unsigned(memory)[:, 160:] == 0x55)


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
    rotated = pn.apply_rotary_tables(heads, *tables, layout="sd", pairing=pairing)
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


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy about signalling NaNs
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_arrays(backend, layout):
    for empty in layout:
        shape = [0 if axis == empty else 4 for axis in layout]
        x = np.ones(shape, np.float32)
        inv_freq = frequencies(0 if empty == "d" else 2)
        for out in (None, x, np.empty(shape, np.float32)):
            assert pn.apply_rotary(x, None, inv_freq, layout=layout, out=out).shape == x.shape
        tokens = x.shape[layout.index("t" if "t" in layout else "s")]
        pn.apply_rotary(x, np.arange(tokens), inv_freq, layout=layout)
        table = np.ones((tokens, len(inv_freq)))
        for inplace in (False, True):
            options = {"layout": layout, "inplace": inplace}
            q, k = pn.apply_rotary_qk(x, x.copy(), None, inv_freq, **options)
            assert q.shape == k.shape == x.shape
            q, k = pn.apply_rotary_qk_tables(x, x.copy(), table, table, **options)
            assert q.shape == k.shape == x.shape
        assert pn.apply_rotary_tables(x, table, table, layout=layout).shape == x.shape


def test_an_int_of_positions_counts(backend):
    x = np.random.default_rng(13).standard_normal((5, 8)).astype(np.float32)
    assert_same_bits(
        pn.apply_rotary(x, 5, frequencies(4), layout="sd"),
        pn.apply_rotary(x, None, frequencies(4), layout="sd"),
    )
    assert_same_bits(
        pn.apply_rotary(x, [4, 3, 2, 1, 0], frequencies(4).tolist(), layout="sd"),
        pn.apply_rotary(x, np.arange(5)[::-1], frequencies(4), layout="sd"),
    )


# Frequencies of their own for heads, and sums over position axes


def several_frequencies(kind: str, heads: int, pairs: int, rng: np.random.Generator) -> np.ndarray:
    shape = {"[H, P]": (heads, pairs), "[A, H, P]": (3, heads, pairs), "[A, 1, P]": (3, 1, pairs)}
    return rng.uniform(-1, 1, shape[kind]) * 10.0 ** rng.integers(-4, 1, shape[kind])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved", 8])
@pytest.mark.parametrize("kind", ["[H, P]", "[A, H, P]", "[A, 1, P]"])
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
        actual = pn.apply_rotary_tables(
            x, cos, sin, layout=layout, pairing=pairing, rotary_start=3, inverse=inverse,
            compute="as_written",
        )  # fmt: skip
        expected = reference.apply_rotary_tables(
            x, cos, sin, layout, pairing, 3, inverse, "as_written", None
        )
        assert_same_bits(actual, expected)
