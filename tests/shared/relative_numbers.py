"""Numbers and sums for tests of relative encodings."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle import half_ulp

import posenc_native as pn


def sum_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return (rng.standard_normal(shape) * 3).astype(dtype)


def loop_columns(index: Any, queries: int, keys: int, start: int, width: int) -> np.ndarray:
    columns = np.full((queries, keys), -1)
    for i in range(queries):
        for j in range(keys):
            column = start + j - i if index is None else int(index[start + j - i])
            if 0 <= column < width:
                columns[i, j] = column
    return columns


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


def over_all_threads(compute: Any) -> list[Any]:
    results = []
    before = pn.get_num_threads()
    # Small calls use one thread anyway.
    for count in (1, 3):
        pn.set_num_threads(count)
        results.append(compute())
    pn.set_num_threads(before)
    return results
