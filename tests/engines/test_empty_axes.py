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
EMPTY = [
    (name, letter)
    for name, one in OPERATIONS.items()
    for letter in one.letters()
    if letter != "E"
    and not (letter == "A" and {"positions", "inv_freq"} <= set(one.operands))
    and not (letter == "W" and "index" in one.operands)
]


def sizes(name: str, letter: str) -> dict[str, int]:
    """Without dims there are no pairs either."""
    none = {letter: 0}
    return none | {"P": 0} if letter == "d" and "P" in OPERATIONS[name].letters() else none


def as_list(results):
    return list(results) if isinstance(results, tuple) else [results]


@pytest.mark.parametrize(("name", "letter"), EMPTY)
def test_an_empty_axis_of_arrays(target, name, letter):
    operation = OPERATIONS[name]
    arrays = operation.arrays(sizes=sizes(name, letter))
    results = as_list(operation.call(**arrays))
    pn.set_backend("reference")
    expected = as_list(operation.call(**operation.arrays(sizes=sizes(name, letter))))
    assert [result.dtype for result in results] == [other.dtype for other in expected]
    for result, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "letter"), EMPTY)
def test_an_empty_axis_of_tensors(native, name, letter):
    torch = pytest.importorskip("torch")
    operation = OPERATIONS[name]
    arrays = operation.arrays(sizes=sizes(name, letter))
    expected = as_list(operation.call(**operation.arrays(sizes=sizes(name, letter))))
    results = as_list(operation.call(**{of: torch.from_numpy(a) for of, a in arrays.items()}))
    for result, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.numpy(), other)


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
