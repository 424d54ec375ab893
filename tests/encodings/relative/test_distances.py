"""Variants of relative encodings, against their formulas in plain loops; NumPy alone."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import posenc_native as pn
from posenc_native.encodings.relative import buckets

LENGTHS = [(1, 1), (1, 7), (5, 1), (4, 6), (6, 4), (0, 0), (0, 3), (3, 0), (1, 0), (0, 1)]
each_length = pytest.mark.parametrize(("q_len", "k_len"), LENGTHS)
each_offset = pytest.mark.parametrize("q_offset", [0, 3, -2, 10**12])


def laid(diagonals: np.ndarray, q_len: int, k_len: int) -> np.ndarray:
    """[..., q_len, k_len], by the definition."""
    result = np.empty((*diagonals.shape[:-1], q_len, k_len), diagonals.dtype)
    for i in range(q_len):
        for j in range(k_len):
            result[..., i, j] = diagonals[..., j - i + q_len - 1]
    return result


def by_pairs(q_len: int, k_len: int, q_offset: int, value: Callable[[int, int], Any]) -> np.ndarray:
    """[q_len, k_len] (and the shape of value), of value(query position, key position)."""
    rows = [[value(i + q_offset, j) for j in range(k_len)] for i in range(q_len)]
    return np.array(rows, np.float64)


def assert_rounded(actual: np.ndarray, exact: np.ndarray, steps: float = 0.0) -> None:
    """Within half a unit of float32, and `steps` roundings of float64 before."""
    assert actual.dtype == np.float32
    slack = steps * 2.0**-53 * np.abs(exact)
    half_unit = np.spacing(np.abs(exact.astype(np.float32))).astype(np.float64) / 2
    np.testing.assert_array_less(np.abs(actual - exact), half_unit + slack + 1e-300)


@each_length
@each_offset
def test_positions(q_len, k_len, q_offset):
    actual = pn.relative.relative_positions(q_len, k_len, q_offset=q_offset)
    assert actual.dtype == np.int64
    assert actual.shape == (max(q_len + k_len - 1, 0),)
    for i in range(q_len):
        for j in range(k_len):
            assert actual[j - i + q_len - 1] == j - (i + q_offset)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
def test_an_offset_for_every_row(dtype):
    offsets = np.array([0, 5, 100], dtype)
    rows = pn.relative.relative_positions(2, 4, q_offset=offsets)
    assert rows.shape == (3, 5)
    for row, offset in zip(rows, offsets, strict=True):
        np.testing.assert_array_equal(
            row, pn.relative.relative_positions(2, 4, q_offset=int(offset))
        )
    first = pn.relative.relative_positions(2, 4, q_offset=np.array(5, dtype))
    np.testing.assert_array_equal(first, rows[1])


TABLE = np.random.default_rng(0).standard_normal((32, 3))
BATCHED = {
    "alibi": lambda o: pn.relative.alibi_diagonals(3, 2, 4, q_offset=o),
    "t5": lambda o: pn.relative.t5_diagonals(TABLE, 2, 4, q_offset=o),
    "kerple": lambda o: pn.relative.kerple_diagonals([1.0, 2.0], [0.5, 1.0], 2, 4, q_offset=o),
    "sandwich": lambda o: pn.relative.sandwich_diagonals(3, 2, 4, q_offset=o),
    "clipped": lambda o: pn.relative.clipped_diagonals(TABLE[:5], 2, 4, q_offset=o),
    "index": lambda o: pn.relative.clipped_index(2, 4, 1, q_offset=o),
    "deberta": lambda o: pn.relative.deberta_index(
        2, 4, bucket_size=8, max_position=16, q_offset=o
    ),
    "fire": lambda o: pn.relative.fire_bias(
        2, 4, lambda x: np.concatenate([x, -x], -1), q_offset=o
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHED)
def test_rows_of_a_batch_are_as_they_are_alone(name):
    make = BATCHED[name]
    together = make([0, 7, 31])
    assert together.shape == (3, *make(0).shape)
    for row, offset in zip(together, (0, 7, 31), strict=True):
        np.testing.assert_array_equal(row, make(offset))


# --- ALiBi


def reference_slopes(n: int) -> list[float]:
    """The rule of the paper's code, as it recurses."""
    if n & (n - 1) == 0:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start ** (h + 1) for h in range(n)]
    below = 2 ** math.floor(math.log2(n))
    return reference_slopes(below) + reference_slopes(2 * below)[0::2][: n - below]


@pytest.mark.parametrize("heads", [*range(1, 66), 71, 112, 128, 200])
def test_slopes_are_those_of_the_reference(heads):
    slopes = pn.relative.alibi_slopes(heads)
    assert slopes.dtype == np.float64
    np.testing.assert_allclose(slopes, reference_slopes(heads), rtol=1e-14)


def test_slopes_that_are_powers_of_two_are_exact():
    assert pn.relative.alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]
    assert pn.relative.alibi_slopes(4, max_bias=16).tolist() == [
        2.0 ** (-4 * h) for h in range(1, 5)
    ]
    assert pn.relative.alibi_slopes(0).shape == (0,)


@each_length
@each_offset
@pytest.mark.parametrize("symmetric", [True, False])
def test_alibi(q_len, k_len, q_offset, symmetric):
    heads = 6
    diagonals = pn.relative.alibi_diagonals(
        heads, q_len, k_len, symmetric=symmetric, q_offset=q_offset
    )
    assert diagonals.shape == (heads, max(q_len + k_len - 1, 0))
    for m, head in zip(pn.relative.alibi_slopes(heads), laid(diagonals, q_len, k_len), strict=True):
        exact = by_pairs(
            q_len, k_len, q_offset, lambda i, j, m=m: -m * abs(j - i) if symmetric else m * (j - i)
        ).reshape(q_len, k_len)
        assert_rounded(head, exact)


def test_alibi_with_slopes_of_each_row():
    slopes = np.random.default_rng(0).random((2, 3)).astype(np.float32)
    together = pn.relative.alibi_diagonals(3, 4, 5, slopes=slopes, q_offset=[1, 2])
    for row, own, offset in zip(together, slopes, (1, 2), strict=True):
        alone = pn.relative.alibi_diagonals(3, 4, 5, slopes=own, q_offset=offset)
        np.testing.assert_array_equal(row, alone)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_dtypes(dtype):
    exact = pn.relative.alibi_diagonals(6, 40, 50, dtype=np.float64, q_offset=0)
    actual = pn.relative.alibi_diagonals(6, 40, 50, dtype=dtype, q_offset=0)
    assert actual.dtype == dtype
    np.testing.assert_array_equal(
        actual,
        exact.astype(dtype) if dtype == np.float64 else exact.astype(np.float32).astype(dtype),
    )


def test_no_negative_zero():
    for diagonals in (
        pn.relative.alibi_diagonals(2, 3, 3),
        pn.relative.kerple_diagonals([1.0], [1.0], 3, 3),
        pn.relative.kerple_diagonals([1.0], [1.0], 3, 3, kind="power"),
    ):
        assert not np.signbit(diagonals[diagonals == 0]).any()


def to_bfloat16(value: float) -> float:
    return float(np.float32(value).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("rounding", [None, "float32", "bfloat16"])
def test_alibi_of_columns(rounding):
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]], bool)
    actual = pn.relative.alibi_columns(12, 5, key_mask=mask, rounding=rounding)
    assert actual.shape == (4, 12, 1, 5)
    assert actual.dtype == np.float32
    through = {None: float, "float32": np.float32, "bfloat16": to_bfloat16}[rounding]
    slopes = pn.relative.alibi_slopes(12)
    if rounding is not None:  # powers of a base that is rounded to float32 itself
        slopes[8:] = [np.float32(float(np.float32(2**-0.5)) ** k) for k in (1, 3, 5, 7)]
    for b in range(4):
        for h in range(12):
            seen = 0
            for j in range(5):
                position = seen if mask[b, j] else 0
                seen += mask[b, j]
                product = through(float(through(slopes[h])) * float(through(position)))
                assert actual[b, h, 0, j] == np.float32(product)


def test_columns_differ_from_the_diagonals_by_a_constant_a_row():
    columns = pn.relative.alibi_columns(8, 9)
    assert columns.shape == (8, 1, 9)
    diagonals = pn.relative.alibi_diagonals(8, 4, 9, symmetric=False, q_offset=5)
    difference = columns - laid(diagonals, 4, 9)
    np.testing.assert_array_equal(difference, np.broadcast_to(difference[..., :1], (8, 4, 9)))


def test_rounding_to_bfloat16_without_ml_dtypes():
    """Every float32 that is a tie or next to one; by ml_dtypes for comparison."""
    from posenc_native.engines.arrays import _to_bfloat16

    upper = np.arange(0x0000, 0x7F80, dtype=np.uint32) << 16
    bits = (upper[:, None] + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)).ravel()
    values = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(_to_bfloat16(values).view(np.uint32), expected.view(np.uint32))


# --- T5


def t5_bucket(relative: int, bidirectional: bool, num_buckets: int, max_distance: int) -> int:
    """The definition in whole numbers: a power for a logarithm."""
    base = 0
    if bidirectional:
        num_buckets //= 2
        base, n = (num_buckets if relative > 0 else 0), abs(relative)
    else:
        n = max(-relative, 0)
    exact = num_buckets // 2
    if n < exact:
        return base + n
    ratio, steps = Fraction(max_distance, exact), num_buckets - exact
    k = 0
    while k < steps - 1 and Fraction(n, exact) ** steps >= ratio ** (k + 1):
        k += 1
    return base + exact + k


T5_CONFIGURATIONS = [(32, 128), (32, 1024), (320, 800), (64, 256), (4, 3), (8, 5), (32, 17)]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), T5_CONFIGURATIONS)
def test_t5_buckets(bidirectional, num_buckets, max_distance):
    options = bidirectional, num_buckets, max_distance
    near = np.arange(-max_distance - 3, max_distance + 4)
    expected = [t5_bucket(int(r), *options) for r in near]
    actual = pn.relative.relative_position_bucket(near, *options)
    assert actual.dtype == np.int64
    np.testing.assert_array_equal(actual, expected)


def test_t5_thresholds_are_the_known_ones():
    assert buckets.t5_steps(16, 128)[8:] == [12, 16, 23, 32, 46, 64, 91]
    assert buckets.t5_steps(32, 128)[16:] == [
        19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113,
    ]  # fmt: skip
    assert buckets.t5_steps(16, 1024)[8:] == [15, 27, 50, 91, 166, 305, 559]
    # A whole power of the ratio, where a logarithm a unit too low takes the bucket before.
    assert pn.relative.relative_position_bucket([-15, -16, -31, -32, -63, -64]).tolist() == [
        9, 10, 11, 12, 13, 14,
    ]  # fmt: skip


@pytest.mark.parametrize("bidirectional", [True, False])
def test_any_integer_has_a_bucket(bidirectional):
    last = 15 if bidirectional else 31
    after = 31 if bidirectional else 0
    for dtype in map(np.dtype, ["int8", "int16", "int32", "int64"]):
        ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        actual = pn.relative.relative_position_bucket(ends, bidirectional)
        assert actual.tolist() == [last, after]
        largest = np.iinfo(f"u{dtype}").max
        one = pn.relative.relative_position_bucket(np.array(largest, f"u{dtype}"), bidirectional)
        assert one.shape == ()
        assert one == after
    widest = pn.relative.relative_position_bucket(
        [-(2**63), 2**63 - 1], bidirectional, 32, 2**63 - 1
    )
    assert widest.tolist() == [last, after]
    assert pn.relative.relative_position_bucket(np.zeros((2, 0, 3), np.int32)).shape == (2, 0, 3)


@each_length
@each_offset
def test_t5(q_len, k_len, q_offset):
    table = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    for bidirectional in (True, False):
        diagonals = pn.relative.t5_diagonals(
            table, q_len, k_len, bidirectional=bidirectional, q_offset=q_offset
        )
        assert diagonals.dtype == np.float32
        assert diagonals.shape == (3, max(q_len + k_len - 1, 0))
        bias = laid(diagonals, q_len, k_len)
        for i in range(q_len):
            for j in range(k_len):
                bucket = t5_bucket(j - i - q_offset, bidirectional, 32, 128)
                np.testing.assert_array_equal(bias[:, i, j], table[bucket])


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (4, 3), (32, 2**15)])
def test_t5_at_an_offset_is_as_in_a_batch(bidirectional, num_buckets, max_distance):
    """Of an int only the near distances are looked at, of a batch all."""
    table = np.random.default_rng(1).standard_normal((num_buckets, 2))
    how = {"bidirectional": bidirectional, "max_distance": max_distance}
    for q_len, k_len in [*LENGTHS, (1, 300), (300, 1), (200, 300)]:
        for offset in (0, 1, 150, -150, 299, 2**61, -(2**61)):
            alone = pn.relative.t5_diagonals(table, q_len, k_len, q_offset=offset, **how)
            batch = pn.relative.t5_diagonals(table, q_len, k_len, q_offset=[offset], **how)
            np.testing.assert_array_equal(alone, batch[0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_tables_keep_their_dtype(dtype):
    table = np.random.default_rng(0).standard_normal((9, 2)).astype(dtype)
    assert pn.relative.clipped_diagonals(table, 3, 4, q_offset=0).dtype == dtype
    assert pn.relative.swin_diagonals(table, (2, 2)).dtype == dtype
    assert pn.relative.t5_diagonals(table[:8], 3, 4, q_offset=0).dtype == dtype


# --- KERPLE, Sandwich


@each_length
@each_offset
@pytest.mark.parametrize("kind", ["log", "power"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_kerple(q_len, k_len, q_offset, kind, symmetric):
    r1, r2 = np.array([0.5, 1.25, 0.01]), np.array([0.01, 1.5, 0.75])

    def value(i, j, h):
        d = abs(i - j) if symmetric else max(i - j, 0)
        return -r1[h] * (math.log1p(r2[h] * d) if kind == "log" else d ** r2[h])

    diagonals = pn.relative.kerple_diagonals(
        r1, r2, q_len, k_len, kind=kind, symmetric=symmetric, q_offset=q_offset
    )
    for h, head in enumerate(laid(diagonals, q_len, k_len)):
        exact = by_pairs(q_len, k_len, q_offset, lambda i, j, h=h: value(i, j, h))
        assert_rounded(head, exact.reshape(q_len, k_len), steps=8)


@pytest.mark.parametrize("dim", [2, 64, 128])
def test_sandwich_is_the_product_of_sinusoidal_rows(dim):
    heads, length = 5, 12
    rows = pn.sinusoidal(length, dim, dtype=np.float64)
    products = rows @ rows.T
    bias = laid(pn.relative.sandwich_diagonals(heads, length, length, dim=dim), length, length)
    for h in range(heads):
        # A sum of dim products of magnitude 1 at most, in two orders.
        np.testing.assert_allclose(
            bias[h], products * heads / (8 * (h + 1)), rtol=2**-24, atol=2 * dim * 2e-16 * heads
        )


def test_sandwich_is_exact_far_away():
    near = pn.relative.sandwich_diagonals(2, 3, 1, dim=2, base=1.0, q_offset=10**6 - 2)
    far = [math.cos(10**6), math.cos(10**6 - 1), math.cos(10**6 - 2)]
    np.testing.assert_allclose(near[0], np.array(far) / 4, rtol=2**-24)


# --- Clipped distances


@each_length
@each_offset
@pytest.mark.parametrize(("left", "right"), [(2, None), (0, 0), (3, 1), (0, 4)])
def test_clipped(q_len, k_len, q_offset, left, right):
    index = pn.relative.clipped_index(q_len, k_len, left, right, q_offset=q_offset)
    after = left if right is None else right
    assert index.dtype == np.int64
    expected = [
        min(max(int(r), -left), after) + left
        for r in pn.relative.relative_positions(q_len, k_len, q_offset=q_offset)
    ]
    assert index.tolist() == expected
    table = np.random.default_rng(0).standard_normal((left + after + 1, 2))
    diagonals = pn.relative.clipped_diagonals(table, q_len, k_len, left=left, q_offset=q_offset)
    np.testing.assert_array_equal(diagonals, table[expected].reshape(-1, 2).T)
    if right is None:
        default = pn.relative.clipped_diagonals(table, q_len, k_len, q_offset=q_offset)
        np.testing.assert_array_equal(default, diagonals)


# --- Swin


def block_laid(diagonals: np.ndarray, window: tuple[int, ...]) -> np.ndarray:
    """[H, tokens, tokens], by the definition: token j's coordinates minus token i's."""
    tokens = list(np.ndindex(*window))
    result = np.empty((diagonals.shape[0], len(tokens), len(tokens)), diagonals.dtype)
    for i, query in enumerate(tokens):
        for j, key in enumerate(tokens):
            at = tuple(k - q + w - 1 for q, k, w in zip(query, key, window, strict=True))
            result[:, i, j] = diagonals[(slice(None), *at)]
    return result


@pytest.mark.parametrize("window", [(1, 1), (1, 3), (2, 3), (4, 4), (2, 3, 2), (5,)])
def test_swin(window):
    count = math.prod(2 * w - 1 for w in window)
    table = np.random.default_rng(0).standard_normal((count, 3)).astype(np.float32)
    bias = block_laid(pn.relative.swin_diagonals(table, window), window)
    tokens = list(np.ndindex(*window))
    for i, query in enumerate(tokens):
        for j, key in enumerate(tokens):
            row = 0
            for q, k, w in zip(query, key, window, strict=True):
                row = row * (2 * w - 1) + q - k + w - 1
            np.testing.assert_array_equal(bias[:, i, j], table[row])


@pytest.mark.parametrize("pretrained", [None, (8, 12), (0, 0), (1, 5)])
@pytest.mark.parametrize("window", [(1, 1), (1, 3), (4, 7)])
def test_swin_v2(window, pretrained):
    actual = pn.relative.swin_v2_coordinates(window, pretrained)
    assert actual.shape == (2 * window[0] - 1, 2 * window[1] - 1, 2)
    exact = np.zeros(actual.shape)
    for at in np.ndindex(*actual.shape[:2]):
        for axis in range(2):
            trained = (pretrained or window)[axis] or window[axis]
            x = 8 * (at[axis] - window[axis] + 1) / max(trained - 1, 1)
            exact[(*at, axis)] = math.copysign(math.log2(abs(x) + 1) / 3, x)
    assert_rounded(actual, exact, steps=8)


# --- DeBERTa


def deberta_bucket(relative: int, bucket_size: int, max_position: int) -> int:
    """The definition in whole numbers, up to the clamp."""
    middle = bucket_size // 2
    n, sign = abs(relative), (relative > 0) - (relative < 0)
    if n <= middle:
        return relative
    ratio, steps = Fraction(max_position - 1, middle), middle - 1
    k = 0  # ceil of the logarithm
    while middle + k < bucket_size and Fraction(n, middle) ** steps > ratio**k:
        k += 1
    return sign * (middle + k)


@pytest.mark.parametrize(
    ("bucket_size", "max_position"), [(256, 512), (32, 128), (255, 512), (5, 20), (4, 8), (2, 9)]
)
def test_deberta_buckets(bucket_size, max_position):
    near = np.arange(-2 * max_position, 2 * max_position + 1)
    actual = pn.relative.deberta_bucket(near, bucket_size, max_position)
    assert actual.dtype == np.int64
    expected = [deberta_bucket(int(r), bucket_size, max_position) for r in near]
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(actual, -actual[::-1])
    if bucket_size > 3:
        ends = pn.relative.deberta_bucket([-(2**63), 2**63 - 1], bucket_size, max_position)
        assert ends.tolist() == [-bucket_size, bucket_size]


@each_length
@each_offset
@pytest.mark.parametrize("bucket_size", [8, None])
def test_deberta_index(q_len, k_len, q_offset, bucket_size):
    options = {"bucket_size": bucket_size, "max_position": 20, "q_offset": q_offset}
    index = pn.relative.deberta_index(q_len, k_len, **options)
    other = pn.relative.deberta_index(q_len, k_len, transposed=True, **options)
    span = bucket_size or 20
    for i in range(q_len):
        for j in range(k_len):
            r = i + q_offset - j
            bucket = r if bucket_size is None else deberta_bucket(r, bucket_size, 20)
            expected = min(max(bucket + span, 0), 2 * span - 1)
            assert index[j - i + q_len - 1] == expected
            assert other[i - j + k_len - 1] == expected


def test_deberta_index_with_another_span():
    index = pn.relative.deberta_index(9, 9, bucket_size=None, max_position=100, span=3)
    assert index.tolist() == [5] * 7 + [4, 3, 2, 1, 0] + [0] * 5


# --- FIRE


@each_length
@pytest.mark.parametrize("q_offset", [0, 3, -2, 1000])
@pytest.mark.parametrize("threshold", [4.0, 512.0])
def test_fire(q_len, k_len, q_offset, threshold):
    c, eps = 0.1, 1e-6
    seen = []

    def network(x):
        seen.append(x)
        return np.concatenate([x, x * x], -1)

    bias = pn.relative.fire_bias(
        q_len, k_len, network, c=c, threshold=threshold, eps=eps, q_offset=q_offset
    )
    assert bias.shape == (2, q_len, k_len)
    assert seen[0].shape == (q_len, k_len, 1)

    def value(i, j):
        return math.log(1 + c * abs(i - j)) / (math.log(1 + c * max(i, threshold)) + eps)

    exact = by_pairs(q_len, k_len, q_offset, value).reshape(q_len, k_len)
    assert_rounded(bias[0], exact, steps=16)


def test_arrays_need_no_torch():
    code = """
import sys
import posenc_native as pn
pn.relative.t5_diagonals([[0.5]] * 32, 3, 3)
pn.relative.alibi_columns(3, 4, rounding="bfloat16")
pn.relative.fire_bias(2, 2, lambda x: x)
assert "torch" not in sys.modules and "ml_dtypes" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
