"""Axes of no elements, at every place of every operation: nothing to do, and nothing written."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from operations import OPERATIONS
from targets import NATIVE, NEEDS_NATIVE

import posenc_native as pn

# Every axis of every operation but those of which there must be one: position axes and columns
# that an index leads to, and the entries, whose number follows from queries and keys.
EMPTY = {
    name: [
        letter
        for letter in one.letters()
        if letter != "E"
        and not (letter == "A" and {"positions", "inv_freq"} <= set(one.operands))
        and not (letter == "W" and "index" in one.operands)
    ]
    for name, one in OPERATIONS.items()
}


def sizes(name: str, letter: str) -> dict[str, int]:
    """Without dims there are no pairs either."""
    none = {letter: 0}
    return none | {"P": 0} if letter == "d" and "P" in OPERATIONS[name].letters() else none


def called(name: str, letter: str, kind=np.asarray) -> list[np.ndarray]:
    operation = OPERATIONS[name]
    arrays = operation.arrays(sizes=sizes(name, letter))
    results = operation.call(**{of: kind(a) for of, a in arrays.items()})
    return [np.asarray(r) for r in (results if isinstance(results, tuple) else (results,))]


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_axis_of_arrays(target, name, subtests):
    results = {letter: called(name, letter) for letter in EMPTY[name]}
    pn.set_backend("reference")
    for letter, of_target in results.items():
        with subtests.test(letter):
            for result, other in zip(of_target, called(name, letter), strict=True):
                assert result.dtype == other.dtype
                np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_axis_of_tensors(native, name, subtests):
    torch = pytest.importorskip("torch")
    for letter in EMPTY[name]:
        with subtests.test(letter):
            of_tensors, expected = (called(name, letter, k) for k in (torch.from_numpy, np.asarray))
            for result, other in zip(of_tensors, expected, strict=True):
                np.testing.assert_array_equal(result, other)


def test_tables_of_no_pairs_may_have_no_axes(backend):
    x, axes = np.ones((1, 4, 2), np.float32), np.zeros(0, np.int32)
    cos, two = np.ones((0, 4, 0), np.float32), np.ones((2, 4, 0), np.float32)
    of_none = pn.Tables(cos, cos, axis_map=axes)
    np.testing.assert_array_equal(pn.apply_rotary(x, None, of_none, layout="hsd"), x)
    with pytest.raises(ValueError, match="sin"):
        pn.apply_rotary(x, None, of_none._replace(sin=two), layout="hsd")


@NEEDS_NATIVE
@pytest.mark.parametrize("shape", [(8, 0, 5, 4, 4), (0, 2, 3, 4, 4), (2, 3, 0, 4, 4)])
def test_sums_for_no_diagonals_write_nothing(shape):
    """NumPy gives an empty array one byte of memory, which must stay as it was."""
    grad = np.zeros(shape)
    for _ in range(3):
        # NumPy gives the memory of the last small arrays to the next ones of their size.
        kept = [np.full(1, 77, np.uint8) for _ in range(7)]
        del kept
        result = NATIVE.diagonal_sums(grad, (*shape[:3], 7), (4,), (4,), (3,), None)
        assert result.size == 0
        assert ctypes.c_uint8.from_address(result.ctypes.data).value == 77
