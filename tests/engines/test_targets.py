"""SIMD targets against each other: most tests run on the widest vectors alone (targets.py)."""

from __future__ import annotations

import numpy as np
import pytest
from operations import OPERATIONS
from oracle import DTYPES, assert_same_bits
from targets import NATIVE, NEEDS_NATIVE, TARGETS

UNFUSED = {"SSE2", "SSSE3", "SSE4"}
# Heads, rows and matrices of whole vectors and ends of any width.
SIZES = [{}, {"s": 37, "d": 72, "P": 36, "q": 33, "k": 45, "W": 77}]


@NEEDS_NATIVE
@pytest.mark.usefixtures("native")
@pytest.mark.skipif(len(TARGETS) < 2, reason="one SIMD target only")
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_target_has_the_numbers_of_the_widest(name):
    """The same bits; without fused multiply-add as near as the roundings of single steps are."""
    operation = OPERATIONS[name]
    before = NATIVE.current_target()
    compared = 0
    try:
        for dtype, sizes in [(d, s) for d in DTYPES.values() for s in SIZES]:
            expected = _results(operation, dtype, sizes, TARGETS[0])
            for target in TARGETS[1:]:
                actual = _results(operation, dtype, sizes, target)
                for ours, wanted in zip(actual, expected, strict=True):
                    compared += 1
                    if target not in UNFUSED or ours.dtype == np.int64:  # phases are exact
                        assert_same_bits(ours, wanted)
                    else:
                        _assert_near(ours, wanted)
    finally:
        NATIVE.set_target(before)
    assert compared >= len(DTYPES) * len(SIZES) * (len(TARGETS) - 1)


def _results(operation, dtype, sizes, target):
    """What the call returns, and what it has written."""
    assert NATIVE.set_target(target)
    arrays = operation.arrays(dtype, sizes)
    if "positions" in arrays:
        positions = arrays["positions"]
        positions[...] = np.arange(positions.size).reshape(positions.shape) * 977
    for name, (_, kind) in operation.operands.items():
        if kind == "out":
            arrays[name][...] = 0
    results = operation.call(**arrays)
    results = results if isinstance(results, tuple) else (results,)
    written = [arrays[n] for n, (_, kind) in operation.operands.items() if kind != "integer"]
    return [*(r for r in results if r is not None), *written]


def _assert_near(actual, expected):
    """Terms are below 64, and the widest of sums here has fewer than 256 of them."""
    wide, wanted = actual.astype(np.float64), expected.astype(np.float64)
    itemsize = expected.dtype.itemsize
    unit = {8: 2.0**-52, 4: 2.0**-23}.get(itemsize) or (
        2.0**-10 if expected.dtype == np.float16 else 2.0**-7
    )
    # Angles are of float32 where numbers have 32 bits or fewer; in two parts for 16 bits.
    angles = 2.0**-50 if itemsize == 8 else 2.0**-21
    assert np.all(np.abs(wide - wanted) <= unit * np.abs(wanted) + 256 * angles)
