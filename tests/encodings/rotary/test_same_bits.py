"""The bits of a rotation are the same whichever way it is called, small or large."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from arrays import aligned, unsigned
from matrices import product
from oracle import DTYPES, HALF_DTYPES, assert_same_bits
from rotations import assert_rotated, frequencies, interleave
from targets import LARGE, NEEDS_NATIVE, written_past_the_cache

import posenc_native as pn

pytestmark = [NEEDS_NATIVE, pytest.mark.usefixtures("low_threshold")]


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
        by_tables = pn.apply_rotary(x, None, pn.Tables(cos, sin), layout="hsd", pairing=pairing)
        by_phase = pn.apply_rotary(
            x, positions, frequencies(40), layout="hsd", pairing=pairing, scale=1.2
        )
        assert_same_bits(by_tables, by_phase)


@product(
    dtype=DTYPES,
    pairing=["half", "interleaved", 64],
    head_dim=[64, 128, 8192],
    place=["in place", "out", "past the cache"],
    compute=["float32", "as_written"],
    inverse=[False, True],
    batch=[3, 4],
    shared=[False, True],
)
def test_tables_of_one_head_are_read_where_they_are(
    target, dtype, pairing, head_dim, place, compute, inverse, batch, shared
):
    """Rows of neighbors are, and heads that follow each other are one; rows of numbers with gaps
    cannot be, nor heads with gaps. NaNs have payloads and signs."""
    rng = np.random.default_rng(16)
    table_dtype = np.float64 if dtype == "float64" else np.float32
    batch_of_tables = 1 if shared else batch
    x = aligned((batch, 2, 7, head_dim), DTYPES[dtype])
    x[...] = rng.standard_normal(x.shape)
    tables = rng.standard_normal((2, batch_of_tables, 2, 7, head_dim // 2)).astype(table_dtype)
    bits = unsigned(tables).reshape(-1)
    nans = unsigned(np.array([np.nan, -np.nan], table_dtype)).repeat(20)
    bits[rng.integers(0, bits.size, 40)] = nans + rng.integers(0, 1000, 40).astype(bits.dtype)
    cos, with_gaps = tables[0], np.zeros((2, batch_of_tables, 2, 8, head_dim), table_dtype)
    with_gaps = with_gaps[..., :7, ::2]
    with_gaps[...] = tables
    sin = np.zeros((batch_of_tables, 2, 7, head_dim), table_dtype)[..., : head_dim // 2]
    sin[...] = tables[1]
    options = {"layout": "bhsd", "pairing": pairing, "inverse": inverse}
    expected = np.concatenate(
        [
            pn.apply_rotary(row[None], None, pn.Tables(*given[:, None], compute=compute), **options)
            for row, given in zip(x, itertools.cycle(with_gaps.swapaxes(0, 1)), strict=False)
        ]
    )
    out = x.copy() if place == "in place" else np.empty_like(x)
    given = pn.Tables(cos, sin, compute=compute)
    with contextlib.nullcontext() if place != "past the cache" else written_past_the_cache():
        pn.apply_rotary(out if place == "in place" else x, None, given, out=out, **options)
    assert np.array_equal(unsigned(out), unsigned(expected))
    assert np.isnan(out.astype(np.float64)).any()


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
        pn.apply_rotary_qk(x, x[:2], None, pn.Tables(*tables), **options),
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


@product(
    dtype=DTYPES,
    pairing=["half", "interleaved"],
    heads=[1, 3, 8, 13],
    pairs=[20, 32],
    room=[1 << 30, 1 << 13, 1 << 10],
)
def test_slices_of_a_packed_projection(target, dtype, pairing, heads, pairs, room):
    """In place, as if in a near cache, in a far one, or in none."""
    x = np.random.default_rng(11).standard_normal((19, heads + 4, 64)).astype(DTYPES[dtype])
    q, k = x[:, :heads], x[:, heads : heads + 2]
    options = {"layout": "thd", "pairing": pairing}
    expected = pn.apply_rotary_qk(q.copy(), k.copy(), None, frequencies(pairs), **options)
    rest = x[:, heads + 2 :].copy()
    with written_past_the_cache(room):
        pn.apply_rotary_qk(q, k, None, frequencies(pairs), inplace=True, **options)
    for ours, theirs in zip((q, k, x[:, heads + 2 :]), (*expected, rest), strict=True):
        assert_same_bits(np.ascontiguousarray(ours), theirs)
