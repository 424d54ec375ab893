"""Native rotary encoding against the NumPy reference, in any shape, layout, pairing and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from arrays import aligned_rows, number_views, position_views, unsigned, views
from hypothesis import given
from hypothesis import strategies as st
from oracle import DTYPES, assert_close, assert_same_bits
from rotating import turned_by
from rotations import AXES, LAYOUTS, assert_rotated, double, frequencies, magnitude
from targets import NEEDS_NATIVE, written_past_the_cache

import posenc_native as pn
from posenc_native.engines.plain import arrays as reference

pytestmark = [NEEDS_NATIVE, pytest.mark.usefixtures("low_threshold")]


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
        return pn.apply_rotary_qk(q, k, None, pn.Tables(cos, sin), **options, **more)

    def one(x: np.ndarray) -> np.ndarray:
        return pn.apply_rotary(x, None, pn.Tables(cos, sin), **options)

    assert_pair_rotates_as_each_alone(data, x, options["layout"], pair, one)


@given(data=st.data(), dtype=st.sampled_from(list(DTYPES)))
def test_any_rotation_by_tables(target, data, dtype):
    x, cos, sin, options = data.draw(table_calls(DTYPES[dtype]))
    actual = pn.apply_rotary(x, None, pn.Tables(cos, sin), **options)
    exact = reference.apply_rotary(double(x), *turned_by(double(cos), double(sin), **options), None)
    largest = max(np.abs(double(cos)).max(initial=0), np.abs(double(sin)).max(initial=0), 1.0)
    terms = magnitude(
        x, cos.shape[-1], options["layout"], options["pairing"], options["rotary_start"]
    )
    assert_close(actual, exact, terms * largest)
    out = data.draw(number_views(x.shape, DTYPES[dtype]))
    assert pn.apply_rotary(x, None, pn.Tables(cos, sin), out=out.array, **options) is out.array
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
        angles = None, pn.Tables(*pn.rotary_tables(positions, frequencies(32)))
    else:
        angles = positions, frequencies(32)
    expected = [pn.apply_rotary(x.copy(), *angles, layout="bshd") for x in (q, k)]
    pn.apply_rotary_qk(q, k, *angles, layout="bshd", inplace=True)
    assert_same_bits(q, expected[0])
    assert_same_bits(k, expected[1])
    assert_same_bits(v, values)
    assert not np.array_equal(packed, before)
