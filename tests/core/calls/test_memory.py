"""Which views of memory have a byte in common, by addresses alone: NumPy's exact search says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_native.core.calls.memory import View, distinct_elements, overlap

MEMORY = np.zeros(4096, np.uint8)


def view_of(array: np.ndarray[Any, Any]) -> View:
    return View(array.ctypes.data, array.itemsize, array.shape, array.strides)


@st.composite
def views(draw: Any) -> np.ndarray[Any, Any]:
    """A view of MEMORY, of any strides."""
    item = draw(st.sampled_from([1, 2, 4, 8]))
    shape, strides = [], []
    low, high = 0, item  # of what is reached, from the first element on
    for _ in range(draw(st.integers(0, 4))):
        stride = item * draw(st.integers(-40, 40))
        most = max((2000 - (high - low)) // max(abs(stride), 1), 0)
        length = draw(st.integers(0, min(most, 12) + 1))
        shape.append(length)
        strides.append(stride)
        extent = stride * max(length - 1, 0)
        low, high = low + min(extent, 0), high + max(extent, 0)
    first = item * draw(st.integers(-low // item, (MEMORY.nbytes - high) // item))
    return np.ndarray(shape, f"u{item}", MEMORY, first, strides)


@settings(max_examples=500, deadline=None)
@given(views(), views())
def test_overlap_is_exact(a, b):
    assert overlap(view_of(a), view_of(b)) == np.shares_memory(a, b)


@settings(max_examples=300, deadline=None)
@given(views())
def test_elements_said_to_be_apart_are(a):
    if not distinct_elements(a.itemsize, a.shape, a.strides):
        return
    counts = np.zeros(MEMORY.nbytes, np.int64)
    offset = a.ctypes.data - MEMORY.ctypes.data
    first = np.ndarray(a.shape, np.uint8, MEMORY, offset, a.strides)
    at = sum(
        (np.arange(n).reshape(-1, *(1,) * (a.ndim - 1 - i)) * s
         for i, (n, s) in enumerate(zip(a.shape, a.strides, strict=True))),
        start=np.zeros(first.shape, int) + offset,
    )  # fmt: skip
    for byte in range(a.itemsize):
        np.add.at(counts, np.asarray(at) + byte, 1)
    assert counts.max(initial=0) <= 1


@pytest.mark.parametrize("item", [1, 2, 4, 8])
def test_plain_arrays_have_elements_apart(item):
    a = np.zeros((2, 3, 4), f"u{item}")
    for view in (a, a[::-1, :, ::2], a.transpose(2, 0, 1), a[:, :0]):
        assert distinct_elements(view.itemsize, view.shape, view.strides)
    assert not distinct_elements(item, (2, 4), (0, item))
    assert not distinct_elements(item, (3, 4), (2 * item, item))


def test_far_addresses_cost_nothing():
    shape, strides = (2**40, 2**20), (2**23, 4)
    a, b = View(2**46, 4, shape, strides), View(2**46 + 2**22, 4, shape, strides)
    assert not overlap(a, b)  # columns of one packed buffer
    assert overlap(a, View(2**46 + 4, 4, shape, strides))
