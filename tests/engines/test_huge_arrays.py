"""More than 2^31 elements, more than 2^32 bytes: no index or count of the kernels is too short.

Addresses cost nothing where nothing is written: arrays whose rows lie far apart, in memory that the
system has only promised. The arrays that are written whole are marked slow and take 4 GiB.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from oracle import assert_same_bits
from targets import NEEDS_NATIVE

import posenc_native as pn

pytestmark = [
    NEEDS_NATIVE,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="needs memory that is only promised"
    ),
    pytest.mark.usefixtures("native", "threads"),
]

INV_FREQ = pn.rotary.rotary_frequencies(16)[0]


# --- Rows far apart

# 512 GiB. A step of 2^34 bytes and some: 2^32 elements of float32, 2^31 of float64, and more.
SPARSE = 1 << 39
STEP = (1 << 34) + 4096


@pytest.fixture(scope="module")
def sparse() -> np.ndarray:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    try:
        memory = mmap.mmap(-1, SPARSE, flags=flags)
    except OSError as error:
        pytest.skip(f"the system does not promise 512 GiB: {error}")
    return np.frombuffer(memory, np.uint8)


@pytest.fixture(params=[np.float16, np.float32, np.float64])
def far(request, sparse) -> Callable[..., np.ndarray]:
    """far(shape, axis): an array whose axis has the large step, each time in other memory."""
    taken = 0

    def make(shape: tuple[int, ...], axis: int) -> np.ndarray:
        nonlocal taken
        dtype = np.dtype(request.param)
        inner = [size for i, size in enumerate(shape) if i != axis]
        steps = [int(np.prod(inner[i + 1 :])) * dtype.itemsize for i in range(len(inner))]
        steps.insert(axis, STEP)
        assert shape[axis] * STEP < SPARSE
        begin = sparse[taken:].view(dtype)
        taken += 1 << 20
        array = np.lib.stride_tricks.as_strided(begin, shape, steps)
        array[...] = np.random.default_rng(0).standard_normal(shape)
        return array

    return make


def same_as_near(call: Callable[..., None], *arrays: np.ndarray) -> None:
    """`call` writes to the arrays what it writes to copies of them."""
    near = [np.ascontiguousarray(array) for array in arrays]
    assert all(a is not b for a, b in zip(near, arrays, strict=True))
    call(*near)
    for count in (1, 3):
        pn.set_num_threads(count)
        given = [array.copy() for array in arrays]
        call(*arrays)
        for array, expected, before in zip(arrays, near, given, strict=True):
            assert_same_bits(array, expected)
            array[...] = before


@pytest.mark.parametrize("axis", [0, 1])
def test_far_rows_of_tables(far, axis):
    same_as_near(lambda out: pn.sinusoidal(9, 16, out=out), far((9, 16), axis))


@pytest.mark.parametrize("axis", range(3))
def test_far_rows_of_sums(far, axis):
    shape = (3, 5, 16)
    same_as_near(lambda x: pn.add_sinusoidal(x, out=x), far(shape, axis))
    same_as_near(lambda x, out: pn.add_sinusoidal(x, out=out), far(shape, axis), far(shape, 0))


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_far_rows_of_rotations(far, axis, pairing):
    shape = (2, 3, 5, 16)
    positions = np.arange(5) + 10**6

    def rotate(q: np.ndarray, k: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
        pn.apply_rotary_qk(q, k, positions, INV_FREQ, pairing=pairing, inplace=True)
        pn.apply_rotary(x, None, INV_FREQ, pairing=pairing, out=out)

    same_as_near(rotate, *(far(shape, at) for at in (axis, 0, axis, 1)))
    x = far(shape, axis)
    cos, sin = pn.rotary_tables(5, INV_FREQ, dtype=x.dtype)
    same_as_near(lambda x: pn.apply_rotary(x, None, pn.Tables(cos, sin), pairing=pairing, out=x), x)


@pytest.mark.parametrize("axis", range(3))
def test_far_rows_of_scores(far, axis):
    heads, queries, keys = shape = (2, 7, 9)
    diagonals = far((heads, queries + keys - 1), 0)
    index = pn.relative.clipped_index(queries, keys, 2, q_offset=0)

    def lay(bias: np.ndarray, scores: np.ndarray) -> None:
        pn.toeplitz_bias(diagonals, queries, keys, out=bias)
        pn.add_toeplitz_bias(scores, diagonals, out=scores)

    def look_up(columns: np.ndarray, wide: np.ndarray, out: np.ndarray, other: np.ndarray) -> None:
        pn.relative_gather(columns, index, keys, out=out)
        pn.relative_gather(wide, None, keys, out=other)

    same_as_near(lay, far(shape, axis), far(shape, 0))
    columns, wide = far((heads, queries, 5), axis), far((heads, queries, queries + keys - 1), axis)
    same_as_near(look_up, columns, wide, far(shape, axis), far(shape, 1))
    scores = far(shape, axis)
    near = np.ascontiguousarray(scores)
    for count in (1, 3):
        pn.set_num_threads(count)
        assert_same_bits(pn.diagonal_sums(scores), pn.diagonal_sums(near))
        assert_same_bits(pn.relative_scatter(scores, index, 5), pn.relative_scatter(near, index, 5))


def test_many_rows_that_are_one():
    """More than 2^32 elements are read, from memory of a few."""
    sides = (1 << 16) + 1
    ones = np.broadcast_to(np.float32(1), (1, sides, sides))
    sums = pn.diagonal_sums(ones)
    expected = np.minimum(np.arange(1, 2 * sides), np.arange(2 * sides - 1, 0, -1))
    assert_same_bits(sums, expected.astype(np.float32)[None])


# --- Arrays that are written whole

GIB = 1 << 30
COUNT = (1 << 31) + (1 << 21)  # of float16
UNWRITTEN = np.uint16(0x7E2A)  # a NaN that nothing computes


def available() -> float:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / (1 << 20)
    return 0


@pytest.fixture(scope="module")
def memory() -> np.ndarray:
    if available() < 7:
        pytest.skip(f"needs 7 GiB of free memory, of which {available():.1f} are there")
    return np.empty(COUNT, np.float16)


@pytest.fixture
def whole(memory) -> Callable[..., np.ndarray]:
    """whole(shape, value): most of the memory, full of a value."""

    def make(shape: tuple[int, ...], value: float | None = None) -> np.ndarray:
        memory.view(np.uint16)[:] = UNWRITTEN if value is None else np.float16(value).view("u2")
        array = memory[: int(np.prod(shape))].reshape(shape)
        assert array.size > 1 << 31
        assert array.nbytes > 1 << 32
        return array

    return make


def assert_written(array: np.ndarray) -> None:
    flat = array.reshape(-1).view(np.uint16)
    for begin in range(0, flat.size, 1 << 26):
        assert not (flat[begin : begin + (1 << 26)] == UNWRITTEN).any()


def rows_to_look_at(rows: int) -> list[int]:
    """The first, the last, those around 2^30 and 2^31 elements, some others."""
    row = COUNT // rows
    around = [(1 << power) // row + i for power in (30, 31) for i in (-1, 0, 1)]
    chosen = np.random.default_rng(0).integers(0, rows, 20).tolist()
    return sorted({0, 1, rows - 1, *(n for n in around if n < rows), *chosen})


SLOW = pytest.mark.slow
DIM = 64
TOKENS = (1 << 25) + 1000


@pytest.fixture(params=["arrays", "tensors"])
def given(request) -> Callable[[np.ndarray], object]:
    """What the calls are given: arrays, or tensors of the same memory."""
    if request.param == "arrays":
        return np.asarray
    torch = pytest.importorskip("torch")
    return lambda array: torch.from_numpy(np.ascontiguousarray(array))


@SLOW
def test_a_table_of_more_than_2_31_elements(whole, given):
    out = whole((TOKENS, DIM))
    pn.sinusoidal(TOKENS, DIM, out=given(out))
    assert_written(out)
    rows = rows_to_look_at(TOKENS)
    assert_same_bits(out[rows], pn.sinusoidal(np.array(rows), DIM, dtype=np.float16))


@SLOW
def test_sums_of_more_than_2_31_elements(whole, given):
    x = whole((TOKENS, DIM), 1)
    tensor = given(x)
    pn.add_sinusoidal(tensor, out=tensor)
    rows = rows_to_look_at(TOKENS)
    ones = np.ones((len(rows), DIM), np.float16)
    assert_same_bits(x[rows], pn.add_sinusoidal(ones, np.array(rows)))


@SLOW
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_rotations_of_more_than_2_31_elements(whole, given, layout, pairing):
    heads = 2
    tokens = TOKENS // heads
    shape = (1, heads, tokens, DIM) if layout == "bhsd" else (1, tokens, heads, DIM)
    x = whole(shape, 1)
    inv_freq = pn.rotary.rotary_frequencies(DIM)[0]
    options = {"layout": layout, "pairing": pairing}
    tensor = given(x)
    pn.apply_rotary(tensor, None, given(inv_freq), out=tensor, **options)
    rows = rows_to_look_at(tokens)
    some = x[:, :, rows] if layout == "bhsd" else x[:, rows]
    ones = np.ones(some.shape, np.float16)
    assert_same_bits(some, pn.apply_rotary(ones, np.array(rows), inv_freq, **options))


@SLOW
def test_rotations_by_tables_of_more_than_2_31_elements(whole, given):
    batch, heads, tokens = (1 << 12) + 1, 2, 1 << 12
    x = whole((batch, heads, tokens, DIM), 1)
    cos, sin = pn.rotary_tables(tokens, pn.rotary.rotary_frequencies(DIM)[0], dtype=np.float16)
    tensor = given(x)
    pn.apply_rotary(tensor, None, pn.Tables(given(cos), given(sin)), out=tensor)
    ones = np.ones((1, heads, tokens, DIM), np.float16)
    once = pn.apply_rotary(ones, None, pn.Tables(cos, sin))
    for row in rows_to_look_at(batch):
        assert_same_bits(x[row : row + 1], once)


@SLOW
def test_rotations_of_queries_of_more_than_2_31_elements(whole, given):
    heads = 64
    tokens = TOKENS // heads
    q, k = whole((1, heads, tokens, DIM), 1), np.ones((1, 1, tokens, DIM), np.float16)
    inv_freq = pn.rotary.rotary_frequencies(DIM)[0]
    pn.apply_rotary_qk(given(q), given(k), None, given(inv_freq), inplace=True)
    for head in range(0, heads, 9):
        assert_same_bits(q[0, head], k[0, 0])
    rows = rows_to_look_at(tokens)
    ones = np.ones((1, 1, len(rows), DIM), np.float16)
    assert_same_bits(k[:, :, rows], pn.apply_rotary(ones, np.array(rows), inv_freq))


# Scores of one head, of more than 2^31 elements.
QUERIES, KEYS = 46_400, 46_301


@SLOW
def test_a_bias_of_more_than_2_31_elements(whole, given):
    diagonals = np.random.default_rng(0).standard_normal((1, QUERIES + KEYS - 1)).astype(np.float16)
    out = whole((1, QUERIES, KEYS))
    pn.toeplitz_bias(given(diagonals), QUERIES, KEYS, out=given(out))
    for i in rows_to_look_at(QUERIES):
        assert_same_bits(out[0, i], diagonals[0, QUERIES - 1 - i :][:KEYS])
    assert_written(out)
    tensor = given(whole((1, QUERIES, KEYS), 1))
    pn.add_toeplitz_bias(tensor, given(diagonals), out=tensor)
    for i in rows_to_look_at(QUERIES):
        row = diagonals[0, QUERIES - 1 - i :][:KEYS].astype(np.float32) + 1
        assert_same_bits(out[0, i], row.astype(np.float16))


@SLOW
def test_sums_along_diagonals_of_more_than_2_31_elements(whole, given):
    scores = whole((1, QUERIES, KEYS), 1)
    scores[0, QUERIES - 1] = 2  # the last row, beyond 2^32 bytes
    sums = np.asarray(pn.diagonal_sums(given(scores)))
    entries = np.arange(QUERIES + KEYS - 1)
    expected = np.minimum(np.minimum(entries + 1, entries[::-1] + 1), min(QUERIES, KEYS))
    expected[:KEYS] += 1
    assert_same_bits(sums, expected.astype(np.float32)[None])


@SLOW
def test_look_ups_of_more_than_2_31_elements(whole, given):
    width = 33
    index = np.asarray(pn.relative.clipped_index(QUERIES, KEYS, 16, q_offset=0))
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((1, QUERIES, width)).astype(np.float16)
    out = whole((1, QUERIES, KEYS))
    pn.relative_gather(given(columns), given(index), KEYS, out=given(out))
    assert_written(out)
    rows = rows_to_look_at(QUERIES)
    for i in rows:
        assert_same_bits(out[0, i], columns[0, i, index[QUERIES - 1 - i :][:KEYS]])
    ones = given(whole((1, QUERIES, KEYS), 1))
    sums = np.asarray(pn.relative_scatter(ones, given(index), width))
    for i in rows:
        counts = np.bincount(index[QUERIES - 1 - i :][:KEYS], minlength=width)
        assert_same_bits(sums[0, i], counts.astype(np.float16))


@SLOW
def test_relative_shift_of_more_than_2_31_elements(whole, given):
    """The input is huge as well: a row of it is a distance, and all rows are one."""
    keys = KEYS
    row = np.random.default_rng(0).standard_normal(QUERIES + keys - 1).astype(np.float16)
    out = whole((1, QUERIES, keys))
    if given is np.asarray:
        x = np.broadcast_to(row, (1, QUERIES, row.size))
    else:
        x = given(row).expand(1, QUERIES, row.size)
    pn.relative_gather(x, None, keys, out=given(out))
    assert_written(out)
    for i in rows_to_look_at(QUERIES):
        assert_same_bits(out[0, i], row[QUERIES - 1 - i :][:keys])
