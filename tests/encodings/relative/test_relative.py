"""Native relative encodings against plain loops, the NumPy reference, and themselves.

Sums are off by the roundings of their additions. A diagonal of a matrix with n rows in p planes
passes at most 8 additions in its group, 32 in the block of groups, n / 256 + 1 blocks in each
plane, and 64 repetitions and n rows of a grid: see core/toeplitz.h. Each rounds by half a unit in
the last place of the sum of magnitudes at most.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from arrays import INTEGERS, View, number_views, views
from hypothesis import given
from hypothesis import strategies as st
from oracle import DTYPES, assert_same_bits
from relative_numbers import assert_sums, loop_columns, numbers, over_all_threads, sum_dtype
from targets import NEEDS_NATIVE, written_past_the_cache

import posenc_native as pn
from posenc_native.engines.plain import arrays as reference
from posenc_native.engines.plain.numbers import round_once

pytestmark = [NEEDS_NATIVE]


GRIDS = [((7, 7), (7, 7)), ((3, 2), (2, 5)), ((2, 3, 2), (3, 1, 4)), ((1, 40), (2, 33))]


# --- Plain loops: the formulas and the order of sums, element by element


def cells(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, sizes)))


def loop_bias(diagonals: np.ndarray, q_len: tuple[int, ...], k_len: tuple[int, ...]) -> np.ndarray:
    """float64 [H, q, k] of [H, *entries]."""
    bias = np.zeros((diagonals.shape[0], math.prod(q_len), math.prod(k_len)))
    for h in range(diagonals.shape[0]):
        for row, i in enumerate(cells(q_len)):
            for column, j in enumerate(cells(k_len)):
                entry = tuple(b - a + n - 1 for a, b, n in zip(i, j, q_len, strict=True))
                bias[h, row, column] = float(diagonals[(h, *entry)])
    return bias


def loop_sums(grad: np.ndarray, q_len: tuple[int, ...], k_len: tuple[int, ...]) -> np.ndarray:
    """The sums of grad [B, H, q, k] in the order of core/toeplitz.h, to the bit."""
    number = sum_dtype(grad.dtype).type
    batch, heads = grad.shape[:2]
    entries = tuple(q + k - 1 for q, k in zip(q_len, k_len, strict=True))
    result = np.zeros((heads, *entries), number)
    keys = cells(k_len)
    for h in range(heads):
        if len(q_len) == 1:
            for entry in range(entries[0]):
                total = number(0)
                for b in range(batch):
                    for block in range(0, q_len[0], 256):
                        of_block = number(0)
                        for group in range(block, min(block + 256, q_len[0]), 8):
                            of_group = number(0)
                            for i in range(group, min(group + 8, q_len[0])):
                                j = entry - (q_len[0] - 1) + i
                                if 0 <= j < k_len[0]:
                                    of_group += number(grad[b, h, i, j])
                            of_block += of_group
                        total += of_block
                result[h, entry] = total
            continue
        for first in range(0, batch, 64):
            block = np.zeros(entries, number)
            for row, i in enumerate(cells(q_len)):
                for column, j in enumerate(keys):
                    over = number(0)
                    for b in range(first, min(first + 64, batch)):
                        over += number(grad[b, h, row, column])
                    block[tuple(b - a + n - 1 for a, b, n in zip(i, j, q_len, strict=True))] += over
            result[h] += block
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [(1, 1), (1, 9), (9, 1), (5, 7), (20, 3)])
def test_bias_by_plain_loops(target, lengths, dtype):
    q, k = lengths
    rng = np.random.default_rng(q)
    for of_diagonals in DTYPES:
        diagonals = numbers(rng, (3, q + k - 1), DTYPES[of_diagonals])
        exact = loop_bias(diagonals, (q,), (k,))
        result = pn.toeplitz_bias(diagonals, q, k, dtype=DTYPES[dtype])
        assert_same_bits(result, round_once(exact, DTYPES[dtype]))
        scores = numbers(rng, (2, 3, q, k), DTYPES[dtype])
        sums = sum_dtype(scores.dtype)
        expected = (scores.astype(sums) + exact.astype(sums)).astype(scores.dtype)
        assert_same_bits(pn.add_toeplitz_bias(scores, diagonals), expected)


@pytest.mark.parametrize(("q_len", "k_len"), GRIDS)
def test_grids_by_plain_loops(target, q_len, k_len):
    rng = np.random.default_rng(0)
    diagonals = numbers(rng, (2, *(q + k - 1 for q, k in zip(q_len, k_len, strict=True))), "f4")
    expected = loop_bias(diagonals, q_len, k_len).astype(np.float32)
    assert_same_bits(pn.toeplitz_bias(diagonals, q_len, k_len), expected)
    scores = numbers(rng, (3, *expected.shape), np.float32)
    result = pn.add_toeplitz_bias(scores, diagonals, q_len=q_len, k_len=k_len)
    assert_same_bits(result, scores + expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "q_len", "k_len"),
    [
        (1, (1,), (1,)),
        (2, (7,), (9,)),
        (1, (8,), (40,)),
        (3, (33,), (30,)),
        (1, (530,), (3,)),
        (66, (2, 2), (3, 2)),
        (130, (1, 2, 2), (2, 1, 2)),
    ],
)
def test_sums_keep_their_order(target, batch, q_len, k_len, dtype):
    """To the bit: the order is written down, and CUDA keeps it too."""
    rng = np.random.default_rng(0)
    grad = numbers(rng, (batch, 2, math.prod(q_len), math.prod(k_len)), DTYPES[dtype])
    assert_same_bits(
        pn.diagonal_sums(grad, q_len=q_len, k_len=k_len), loop_sums(grad, q_len, k_len)
    )


@pytest.mark.parametrize("missing", [None, -1, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_look_ups_by_plain_loops(target, dtype, missing):
    rng = np.random.default_rng(1)
    queries, keys, width = 6, 70, 11
    index = np.clip(np.arange(queries + keys - 1) // 5 - 2, 0, width - 1)
    index[30:40] = rng.integers(0, width, 10)
    if missing is not None:
        index[20:45:7] = missing
    for chosen in (index, None):
        columns = loop_columns(chosen, queries, keys, queries - 1, width)
        x = numbers(rng, (2, queries, width), DTYPES[dtype])
        grad = numbers(rng, (2, queries, keys), DTYPES[dtype])
        gathered = np.zeros(grad.shape, grad.dtype)
        scattered = np.zeros(x.shape)
        magnitude = np.zeros(x.shape)
        for b, i, j in np.ndindex(grad.shape):
            if columns[i, j] >= 0:
                gathered[b, i, j] = x[b, i, columns[i, j]]
                scattered[b, i, columns[i, j]] += float(grad[b, i, j])
                magnitude[b, i, columns[i, j]] += abs(float(grad[b, i, j]))
        assert_same_bits(pn.relative_gather(x, chosen, keys, missing=missing), gathered)
        result = pn.relative_scatter(grad, chosen, width, missing=missing)
        assert_sums(result, scattered, magnitude, keys)


def test_offsets_that_int64_has_none_of(target):
    """uint64 of 2^63 and more is far after all keys: not the negative number with the same bits."""
    x = numbers(np.random.default_rng(2), (3, 2, 4), np.dtype(np.float32))
    offsets = np.array([2**64 - 1, 2**63, 1], np.uint64)
    gathered = pn.relative_gather(x, None, 5, origin=2, q_offset=offsets)
    np.testing.assert_array_equal(gathered[:2], 0)
    assert_same_bits(gathered[2], pn.relative_gather(x[2], None, 5, origin=1))
    grad = numbers(np.random.default_rng(3), (3, 2, 5), np.dtype(np.float32))
    scattered = pn.relative_scatter(grad, None, 4, origin=2, q_offset=offsets)
    np.testing.assert_array_equal(scattered[:2], 0)


@pytest.mark.parametrize(("origin", "offset"), [(2**61 - 1, -3), (1 - 2**61, 2**61 - 1), (7, 3)])
def test_an_offset_is_taken_off_any_origin(target, origin, offset):
    """Each of them is within 2^61, their difference need not be."""
    x = numbers(np.random.default_rng(2), (2, 9), np.dtype(np.float32))
    gathered = pn.relative_gather(x, None, 5, origin=origin, q_offset=offset)
    scattered = pn.relative_scatter(x, None, 5, origin=origin, q_offset=offset)
    near = abs(origin) < 9
    assert gathered.any() == scattered.any() == near


LENGTHS = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 257, 300])


@st.composite
def leading_axes(draw: Any, at_least: int = 0) -> tuple[int, ...]:
    rank = draw(st.integers(at_least, 3))
    return tuple(
        draw(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 3)) for _ in range(rank)
    )


@st.composite
def lengths_and_entries(draw: Any) -> tuple[tuple[int, ...], ...]:
    """q_len, k_len, entries, origin (the entry of query 0 and key 0)."""
    rank = draw(st.sampled_from([1, 1, 2, 3]))
    lengths = LENGTHS if rank == 1 else st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 6)
    q_len = tuple(draw(lengths) for _ in range(rank))
    k_len = tuple(draw(lengths) for _ in range(rank))
    before = [draw(st.integers(0, 5)) for _ in range(rank)]
    after = [draw(st.integers(0, 5)) for _ in range(rank)]
    entries = tuple(
        max(q + k - 1, 0) + b + a for q, k, b, a in zip(q_len, k_len, before, after, strict=True)
    )
    start = tuple(q - 1 + b for q, b in zip(q_len, before, strict=True))
    return q_len, k_len, entries, start


@st.composite
def offsets_of(
    draw: Any, leading: tuple[int, ...], queries: int, keys: int, entries: int, start: int
) -> np.ndarray | None:
    """q_offset for the first of the leading axes, or none; windows stay within the entries."""
    rank = draw(st.integers(0, len(leading)))
    if rank == 0 or entries < queries + keys - 1 or not queries or not keys:
        return None
    low, high = start - (entries - keys), start - (queries - 1)
    values = draw(st.lists(st.integers(low, high), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from([name for name in INTEGERS if low >= 0 or name[0] == "i"]))
    if np.iinfo(dtype).max < high or np.iinfo(dtype).min > low:
        dtype = "int64"
    pool = np.array(values, dtype)
    return draw(views(leading[:rank], lambda size: rng.choice(pool, size), expand=True)).array


@st.composite
def out_views(draw: Any, shape: tuple[int, ...], dtype: np.dtype) -> View:
    return draw(number_views(shape, dtype))


@given(data=st.data(), dtype=st.sampled_from(sorted(DTYPES)), of=st.sampled_from(sorted(DTYPES)))
def test_bias_and_sums_like_the_reference(target, data, dtype, of):
    dtype, of = DTYPES[dtype], DTYPES[of]
    q_len, k_len, entries, start = data.draw(lengths_and_entries())
    queries, keys = math.prod(q_len), math.prod(k_len)
    leading = data.draw(leading_axes(1))
    own = data.draw(st.integers(0, len(leading)))
    heads = leading[len(leading) - own :] if own else ()
    heads = tuple(
        1 if i + 1 < len(heads) and data.draw(st.booleans()) else n for i, n in enumerate(heads)
    )
    diagonals = data.draw(number_views((*heads, *entries), of, expand=True)).array
    q_offset = None
    if len(q_len) == 1:
        q_offset = data.draw(offsets_of(leading, queries, keys, entries[0], start[0]))
    shape = (*leading, queries, keys)
    # Origin is the entry of distance 0.
    options: dict[str, Any] = {"origin": start if len(q_len) > 1 else start[0]}
    if q_offset is not None:
        options["q_offset"] = q_offset
    grid = {} if len(q_len) == 1 else {"q_len": q_len, "k_len": k_len}

    scores = data.draw(number_views(shape, dtype, expand=True))
    expected = reference.add_toeplitz_bias(
        scores.array, diagonals, q_len, k_len, start, q_offset, None
    )
    out = data.draw(out_views(shape, dtype))
    with written_past_the_cache():
        pn.add_toeplitz_bias(scores.array, diagonals, out=out.array, **options, **grid)
    assert_same_bits(out.array, expected)
    out.assert_rest_untouched()
    scores.assert_untouched()
    in_place = data.draw(number_views(shape, dtype))
    expected = reference.add_toeplitz_bias(
        in_place.array, diagonals, q_len, k_len, start, q_offset, None
    )
    pn.add_toeplitz_bias(in_place.array, diagonals, out=in_place.array, **options, **grid)
    assert_same_bits(in_place.array, expected)
    in_place.assert_rest_untouched()

    size = options | ({"q_offset": q_offset} if q_offset is not None else {})
    if q_offset is None or q_offset.ndim == len(leading) - 1 == own - 1:
        expected = reference.toeplitz_bias(diagonals, q_len, k_len, start, q_offset, dtype, None)
        out = data.draw(out_views(expected.shape, dtype))
        with written_past_the_cache():
            pn.toeplitz_bias(diagonals, q_len, k_len, out=out.array, **size)
        assert_same_bits(out.array, expected)
        out.assert_rest_untouched()

    grad = data.draw(number_views(shape, dtype, expand=True))
    keep = data.draw(st.integers(1, len(leading)))
    result_shape = (*leading[len(leading) - keep :], *entries)
    exact, magnitude = (
        reference.diagonal_sums(values, result_shape, q_len, k_len, start, q_offset)
        for values in (grad.array.astype(np.float64), np.abs(grad.array.astype(np.float64)))
    )
    actual = over_all_threads(
        lambda: pn.diagonal_sums(grad.array, keep=keep, entries=entries, **options, **grid)
    )
    assert_same_bits(actual[0], actual[1])
    copied = pn.diagonal_sums(grad.array.copy(), keep=keep, entries=entries, **options, **grid)
    assert_same_bits(actual[0], copied)
    additions = 8 + 32 + queries // 256 + 64 + queries + math.prod(leading) * (queries // 256 + 1)
    assert_sums(actual[0], exact, magnitude, additions)
    grad.assert_untouched()


@st.composite
def indices(draw: Any, entries: int, width: int) -> tuple[np.ndarray | None, int | None]:
    """An index of stretches of every kind, and what stands for no column in it."""
    kind = draw(st.sampled_from(["none", "stretches", "clipped", "random"]))
    if kind == "none":
        return None, None
    missing = draw(st.sampled_from([None, -1, -7, width])) if width else -1
    if width == 0:
        return np.full(entries, -1), -1
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    if kind == "clipped":
        values = np.clip(np.arange(entries) - draw(st.integers(0, entries)), 0, width - 1)
    elif kind == "random":
        values = rng.integers(0, width, entries)
    else:
        values = np.zeros(entries, np.int64)
        at = 0
        while at < entries:
            n = int(rng.choice([1, 2, 3, 15, 16, 17, 40, 100]))
            first, step = int(rng.integers(0, width)), int(rng.integers(-1, 2))
            values[at : at + n] = np.clip(first + step * np.arange(n), 0, width - 1)[: entries - at]
            at += n
    if missing is not None:
        at = 0
        while at < entries:
            at += int(rng.choice([1, 20, 60]))
            n = int(rng.choice([1, 3, 20]))
            values[at : at + n] = missing
            at += n
    fitting = [
        name for name in INTEGERS
        if np.iinfo(name).min <= values.min(initial=0)
        and np.iinfo(name).max >= values.max(initial=0)
    ]  # fmt: skip
    dtype = draw(st.sampled_from(fitting))
    step = draw(st.sampled_from([1, 1, 2, -1]))
    stored = np.zeros(entries * abs(step), dtype)
    view = stored[::step][:entries]
    view[...] = values.astype(dtype)
    return view, missing


@given(data=st.data(), dtype=st.sampled_from(sorted(DTYPES)))
def test_gather_and_scatter_like_the_reference(target, data, dtype):
    dtype = DTYPES[dtype]
    queries, keys, width = data.draw(LENGTHS), data.draw(LENGTHS), data.draw(LENGTHS)
    leading = data.draw(leading_axes())
    before, after = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    entries = max(queries + keys - 1, 0) + before + after
    index, missing = data.draw(indices(entries, width))
    start = queries - 1 + before
    if index is None:
        start = data.draw(st.integers(-5, 5) | st.integers(-keys, width + queries))
    q_offset = data.draw(offsets_of(leading, queries, keys, entries, queries - 1 + before))
    options: dict[str, Any] = {"origin": start}
    if q_offset is not None:
        options["q_offset"] = q_offset
    scale = data.draw(st.sampled_from([1.0, 1.0, 0.125, -0.3, 0.0]))
    with_content = data.draw(st.booleans())

    x = data.draw(number_views((*leading, queries, width), dtype, expand=True))
    shape = (*leading, queries, keys)
    content = data.draw(number_views(shape, dtype)) if with_content else None
    given = None if content is None else content.array
    expected = reference.relative_gather(
        x.array, index, keys, start, q_offset, missing, given, scale, None
    )
    in_place = content is not None and data.draw(st.booleans())
    out = content if in_place and content is not None else data.draw(out_views(shape, dtype))
    with written_past_the_cache():
        pn.relative_gather(
            x.array, index, keys, content=given, scale=scale, missing=missing, out=out.array,
            **options,
        )  # fmt: skip
    assert_same_bits(out.array, expected)
    out.assert_rest_untouched()
    x.assert_untouched()

    grad = data.draw(number_views(shape, dtype, expand=True))
    exact, magnitude = (
        reference.relative_scatter(
            values, index, width, start, q_offset, missing, factor, None
        )
        for values, factor in (
            (grad.array.astype(np.float64), scale),
            (np.abs(grad.array.astype(np.float64)), abs(scale)),
        )
    )  # fmt: skip
    out = data.draw(out_views((*leading, queries, width), dtype))
    with written_past_the_cache():
        pn.relative_scatter(
            grad.array, index, width, scale=scale, missing=missing, out=out.array, **options
        )
    assert_sums(out.array, exact, magnitude, keys)
    out.assert_rest_untouched()
    grad.assert_untouched()
    copied = pn.relative_scatter(
        grad.array.copy(), index, width, scale=scale, missing=missing, **options
    )
    assert_same_bits(out.array, copied)
