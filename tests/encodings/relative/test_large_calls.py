"""Relative encodings of large scores: tiles, blocks, threads, stores past the cache."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from arrays import aligned, unsigned
from matrices import product
from oracle import BFLOAT16, DTYPES, assert_same_bits
from relative_numbers import assert_sums, loop_columns, numbers, over_all_threads
from targets import NATIVE, NEEDS_NATIVE, written_past_the_cache

import posenc_native as pn
from posenc_native.engines import backend as implementations
from posenc_native.engines.plain import arrays as reference
from posenc_native.engines.plain.numbers import round_once

pytestmark = [NEEDS_NATIVE]


def starts(q_len: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size - 1 for size in q_len)


# --- Large calls: tiles, blocks, threads, stores past the cache


@dataclass
class LongRows:
    """Inputs of one dtype, and what the reference makes of them."""

    diagonals: np.ndarray
    scores: np.ndarray
    x: np.ndarray
    added: np.ndarray
    bias: np.ndarray
    gathered: np.ndarray


@pytest.fixture(scope="module")
def long_rows() -> Callable[[str], LongRows]:
    """Of a dtype; the reference takes far longer than the kernels, so each is made once."""

    @functools.cache
    def make(name: str) -> LongRows:
        dtype = DTYPES[name]
        rng = np.random.default_rng(0)
        heads, q, k = 2, 300, 4200
        diagonals = numbers(rng, (heads, q + k - 1), np.float32)
        scores = numbers(rng, (1, heads, q, k), dtype)
        x = numbers(rng, (heads, q, q + k - 1), dtype)
        return LongRows(
            diagonals,
            scores,
            x,
            reference.add_toeplitz_bias(scores, diagonals, (q,), (k,), (q - 1,), None, None),
            reference.toeplitz_bias(diagonals, (q,), (k,), (q - 1,), None, dtype, None),
            reference.relative_gather(x, None, k, q - 1, None, None, None, 1.0, None),
        )

    return make


@product(offset=[0, 16, 8], past_the_cache=[False, True], dtype=DTYPES)
def test_long_rows(target, dtype, past_the_cache, offset, long_rows):
    rows = long_rows(dtype)
    _, _, q, k = rows.scores.shape
    out = aligned(rows.scores.shape, DTYPES[dtype], offset)
    with written_past_the_cache(1 if past_the_cache else 1 << 40):
        assert_same_bits(pn.add_toeplitz_bias(rows.scores, rows.diagonals, out=out), rows.added)
        assert_same_bits(pn.toeplitz_bias(rows.diagonals, q, k, out=out[0]), rows.bias)
        assert_same_bits(pn.relative_gather(rows.x, None, k, out=out[0]), rows.gathered)
        sums = over_all_threads(lambda: pn.diagonal_sums(rows.scores))
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
        assert_same_bits(result, round_once(exact[0], dtype))
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
