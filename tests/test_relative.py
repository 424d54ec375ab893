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
from arrays import INTEGERS, View, aligned, number_views, unsigned, views
from conftest import NATIVE, NEEDS_NATIVE, written_past_the_cache
from hypothesis import given
from hypothesis import strategies as st
from oracle import BFLOAT16, DTYPES, assert_same_bits, half_ulp

import posenc_native as pn
from posenc_native import backend as implementations
from posenc_native import reference

pytestmark = [NEEDS_NATIVE]

GRIDS = [((7, 7), (7, 7)), ((3, 2), (2, 5)), ((2, 3, 2), (3, 1, 4)), ((1, 40), (2, 33))]


def sum_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return (rng.standard_normal(shape) * 3).astype(dtype)


def starts(q_len: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size - 1 for size in q_len)


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


def loop_columns(index: Any, queries: int, keys: int, start: int, width: int) -> np.ndarray:
    columns = np.full((queries, keys), -1)
    for i in range(queries):
        for j in range(keys):
            column = start + j - i if index is None else int(index[start + j - i])
            if 0 <= column < width:
                columns[i, j] = column
    return columns


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [(1, 1), (1, 9), (9, 1), (5, 7), (20, 3)])
def test_bias_by_plain_loops(target, lengths, dtype):
    q, k = lengths
    rng = np.random.default_rng(q)
    for of_diagonals in DTYPES:
        diagonals = numbers(rng, (3, q + k - 1), DTYPES[of_diagonals])
        exact = loop_bias(diagonals, (q,), (k,))
        result = pn.toeplitz_bias(diagonals, q, k, dtype=DTYPES[dtype])
        assert_same_bits(result, reference._round(exact, DTYPES[dtype]))
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


# --- Against the reference


def assert_sums(
    actual: np.ndarray, exact: np.ndarray, magnitude: np.ndarray, additions: int
) -> None:
    """Sums of `additions` terms, formed in float32 or float64 and rounded once more."""
    rounding = half_ulp(sum_dtype(actual.dtype), 1.0)
    # float64 is the reference's own precision.
    bound = (additions + 2) * rounding * magnitude * (2 if actual.dtype == np.float64 else 1)
    bound = bound + half_ulp(actual.dtype, np.abs(exact) + bound)
    error = np.abs(actual.astype(np.float64) - exact)
    assert np.all(error <= bound), f"off by {(error - bound).max()} more than the bound"


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


def over_all_threads(compute: Any) -> list[Any]:
    results = []
    before = pn.get_num_threads()
    # Small calls are one thread's anyway.
    for count in (1, 3):
        pn.set_num_threads(count)
        results.append(compute())
    pn.set_num_threads(before)
    return results


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


# --- Large calls: tiles, blocks, threads, stores past the cache


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("past_the_cache", [False, True])
@pytest.mark.parametrize("offset", [0, 16, 8])
def test_long_rows(target, dtype, past_the_cache, offset):
    dtype = DTYPES[dtype]
    rng = np.random.default_rng(0)
    heads, q, k = 2, 300, 4200
    diagonals = numbers(rng, (heads, q + k - 1), np.float32)
    scores = numbers(rng, (1, heads, q, k), dtype)
    out = aligned((1, heads, q, k), dtype, offset)
    expected = reference.add_toeplitz_bias(scores, diagonals, (q,), (k,), (q - 1,), None, None)
    with written_past_the_cache(1 if past_the_cache else 1 << 40):
        assert_same_bits(pn.add_toeplitz_bias(scores, diagonals, out=out), expected)
        expected = reference.toeplitz_bias(diagonals, (q,), (k,), (q - 1,), None, dtype, None)
        assert_same_bits(pn.toeplitz_bias(diagonals, q, k, out=out[0]), expected)
        x = numbers(rng, (heads, q, q + k - 1), dtype)
        expected = reference.relative_gather(x, None, k, q - 1, None, None, None, 1.0, None)
        assert_same_bits(pn.relative_gather(x, None, k, out=out[0]), expected)
        sums = over_all_threads(lambda: pn.diagonal_sums(scores))
    assert_same_bits(sums[0], sums[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits_on_every_target(native, dtype, threads):
    assert NATIVE is not None
    rng = np.random.default_rng(0)
    grad = numbers(rng, (3, 2, 300, 310), DTYPES[dtype])
    grid = numbers(rng, (70, 2, 16, 16), DTYPES[dtype])
    one_head = numbers(rng, (1, 1, 900, 1500), DTYPES[dtype])
    index = np.clip(np.arange(609) // 3 - 40, 0, 99)
    content = numbers(rng, grad.shape, DTYPES[dtype])
    x = numbers(rng, (3, 2, 300, 100), DTYPES[dtype])
    results = []
    before = NATIVE.current_target()
    for name in NATIVE.available_targets():
        assert NATIVE.set_target(name)
        for count in (1, 2, 5):
            pn.set_num_threads(count)
            results.append(
                [
                    pn.diagonal_sums(grad),
                    pn.diagonal_sums(grid, q_len=(4, 4), k_len=(4, 4)),
                    pn.diagonal_sums(one_head),
                    pn.relative_scatter(grad, index, 100, scale=0.3),
                    pn.relative_gather(x, index, 310, content=content, scale=0.3),
                ]
            )
    NATIVE.set_target(before)
    for result in results[1:]:
        for actual, expected in zip(result, results[0], strict=True):
            assert_same_bits(actual, expected)


def test_large_grids_go_through_scratch_in_pieces(target):
    """More entries, keys and sums than scratch has room for."""
    rng = np.random.default_rng(0)
    for q_len, k_len in [((1, 2), (3, 9000)), ((2, 3), (130, 140)), ((1, 1, 2), (2, 100, 101))]:
        shape = tuple(q + k - 1 for q, k in zip(q_len, k_len, strict=True))
        diagonals = numbers(rng, (1, *shape), np.float32)
        expected = reference.toeplitz_bias(diagonals, q_len, k_len, starts(q_len), None, None, None)
        assert_same_bits(pn.toeplitz_bias(diagonals, q_len, k_len), expected)
        grad = numbers(rng, (2, *expected.shape), np.float32)
        result = pn.diagonal_sums(grad, q_len=q_len, k_len=k_len)
        exact, magnitude = (
            reference.diagonal_sums(values, (1, *shape), q_len, k_len, starts(q_len), None)
            for values in (grad.astype(np.float64), np.abs(grad.astype(np.float64)))
        )
        assert_sums(result, exact, magnitude, 2 + math.prod(q_len))


def test_float64_diagonals_are_rounded_once(target):
    """Halfway between bfloat16 numbers but for what float32 does not hold."""
    exact = np.array([[1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40, 1e300, -1e300, 2.0**-200]])
    for dtype in (BFLOAT16, np.dtype(np.float16)):
        result = pn.toeplitz_bias(exact, 1, 5, dtype=dtype)[0, 0]
        assert_same_bits(result, reference._round(exact[0], dtype))
    one = pn.toeplitz_bias(exact, 1, 5, dtype=BFLOAT16)[0, 0].astype(np.float64)
    np.testing.assert_array_equal(one, [1 + 2.0**-7, 1.0, np.inf, -np.inf, 0.0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_and_nan(target, dtype):
    """A mask of -inf among the diagonals, NaN in scores: as additions have it."""
    dtype = DTYPES[dtype]
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0] * 9, np.float32)
    # NaNs with every bit of the payload set, which rounding must not carry away.
    special.view(np.uint32)[2] = 0x7FFFFFFF
    special.view(np.uint32)[8] = 0xFFFFFFFF
    q, k = 20, special.size - 19
    scores = np.zeros((1, 1, q, k), dtype)
    scores[..., ::3] = -np.inf
    scores[..., 1::5] = np.nan
    with np.errstate(invalid="ignore"):
        expected = reference.add_toeplitz_bias(
            scores, special[None], (q,), (k,), (q - 1,), None, None
        )
    for array in (scores, np.asfortranarray(scores)):
        np.testing.assert_array_equal(
            pn.add_toeplitz_bias(array, special[None]).astype("f8"), expected.astype("f8")
        )
    np.testing.assert_array_equal(
        pn.toeplitz_bias(special[None], q, k, dtype=dtype).astype("f8"),
        reference.toeplitz_bias(special[None], (q,), (k,), (q - 1,), None, dtype, None).astype(
            "f8"
        ),
    )


def test_copies_keep_every_bit(target):
    rng = np.random.default_rng(0)
    x = np.frombuffer(rng.bytes(4 * 9 * 200), np.uint32).view(np.float32).reshape(9, 200)
    index = np.concatenate([np.arange(100), np.full(50, 7), np.arange(150)[::-1]])
    index = np.concatenate([index, rng.integers(0, 200, 8)])
    result = pn.relative_gather(x, index, 300)
    columns = loop_columns(index, 9, 300, 8, 200)
    np.testing.assert_array_equal(
        unsigned(result), unsigned(np.take_along_axis(x, columns, axis=-1))
    )
    diagonals = x[:1]
    bias = pn.toeplitz_bias(diagonals, 60, 141)
    np.testing.assert_array_equal(unsigned(bias[0, 59]), unsigned(diagonals[0, :141]))


def test_entries_that_nobody_has_are_zero(target):
    for q, k in [(0, 5), (5, 0), (0, 0), (3, 4)]:
        sums = pn.diagonal_sums(np.ones((2, 3, q, k)), entries=20, origin=9)
        assert sums.shape == (3, 20)
        assert sums.sum() == 6 * q * k
        assert not sums[:, :7].any()
        assert not sums[:, 13:].any()
    assert not pn.diagonal_sums(np.ones((0, 3, 2, 2))).any()
    assert pn.diagonal_sums(np.ones((2, 0, 2, 2))).shape == (0, 3)
    assert pn.diagonal_sums(np.ones((1, 1, 0, 1))).shape == (1, 0)


def test_nothing_beyond_a_page_is_read(target):
    """Arrays that end with a page nobody may read."""
    ctypes = pytest.importorskip("ctypes")
    mmap = pytest.importorskip("mmap")
    libc = ctypes.CDLL(None)
    page = mmap.PAGESIZE
    pages = 8
    held = []

    def at_the_end(values: np.ndarray, at_start: bool = False) -> np.ndarray:
        memory = mmap.mmap(-1, (pages + 2) * page)
        held.append(memory)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for guard in (base, base + (pages + 1) * page):
            assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
        whole = np.frombuffer(memory, np.uint8)
        end = (pages + 1) * page
        part = whole[page : page + values.nbytes] if at_start else whole[end - values.nbytes : end]
        array = part.view(values.dtype).reshape(values.shape)
        array[...] = values
        return array

    rng = np.random.default_rng(0)
    assert implementations.implementation is not None
    for dtype, at_start in itertools.product(DTYPES.values(), (False, True)):
        for q, k in [(3, 5), (19, 37), (9, 300)]:
            scores = at_the_end(numbers(rng, (1, 1, q, k), dtype), at_start)
            diagonals = at_the_end(numbers(rng, (1, q + k - 1), dtype), at_start)
            pn.add_toeplitz_bias(scores, diagonals, out=scores)
            pn.toeplitz_bias(diagonals, q, k, out=scores[0])
            pn.diagonal_sums(scores)
            x = at_the_end(numbers(rng, (q, q + k - 1), dtype), at_start)
            for index in (None, np.arange(q + k - 1)[::-1], np.arange(q + k - 1) // 2):
                pn.relative_gather(x, index, k, out=scores[0, 0])
                pn.relative_gather(x, index, k, content=scores[0, 0], scale=0.5)
                pn.relative_scatter(scores[0, 0], index, q + k - 1, out=x)
        grid = at_the_end(numbers(rng, (2, 1, 9, 12), dtype), at_start)
        table = at_the_end(numbers(rng, (1, 5, 6), dtype), at_start)
        pn.add_toeplitz_bias(grid, table, q_len=(3, 3), k_len=(3, 4), out=grid)
        pn.diagonal_sums(grid, q_len=(3, 3), k_len=(3, 4))
