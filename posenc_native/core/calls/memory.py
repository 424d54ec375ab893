"""The memory of a view, computed from its address, shape and strides, on any device.

csrc/core/view.cc decides the same in the same way for views that the native code takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class View(NamedTuple):
    """A view of memory; address and strides in bytes."""

    address: int
    item_size: int
    shape: Sequence[int]
    strides: Sequence[int]


class _Term(NamedTuple):
    """One term of ``sum of stride * x = target`` with low <= x <= high and stride > 0."""

    stride: int
    low: int
    high: int


def distinct_elements(item_size: int, shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no two indices share memory: a sufficient test, exact for nested strides.

    True if each axis steps over everything that the axes with smaller strides reach.
    """
    if 0 in shape:
        return True
    reach = item_size
    axes = zip(map(abs, strides), shape, strict=True)
    for stride, length in sorted(axis for axis in axes if axis[1] > 1):
        if stride < reach:
            return False
        reach += stride * (length - 1)
    return True


def overlap(a: View, b: View) -> bool:
    """Whether two views have a byte in common.

    This is a bounded Diophantine problem, solved by a search over the strides. Strides are mostly
    nested, which leaves few cases to try. A search that is undecided after as many steps as
    csrc/core takes counts as yes.
    """
    if 0 in a.shape or 0 in b.shape:
        return False
    (low, end), (other_low, other_end) = _bounds(a), _bounds(b)
    if end <= other_low or other_end <= low:
        return False
    # a.address + sum(stride * i) + byte of a = b.address + sum(stride * j) + byte of b, all
    # measured from the lowest address of each view.
    ranges: dict[int, tuple[int, int]] = {}
    for view, sign in ((a, 1), (b, -1)):
        for stride, length in zip(view.strides, view.shape, strict=True):
            if stride and length > 1:
                lowest, highest = ranges.get(abs(stride), (0, 0))
                reach = sign * (length - 1)
                ranges[abs(stride)] = (lowest + min(reach, 0), highest + max(reach, 0))
    terms = [_Term(stride, *ranges[stride]) for stride in sorted(ranges, reverse=True)]
    terms.append(_Term(1, 1 - b.item_size, a.item_size - 1))
    return _solvable(terms, other_low - low, [10000])


def _bounds(view: View) -> tuple[int, int]:
    """The lowest byte of a view that is not empty, and the first beyond it."""
    low = high = view.address
    for stride, length in zip(view.strides, view.shape, strict=True):
        extent = stride * (length - 1)
        low, high = low + min(extent, 0), high + max(extent, 0)
    return low, high + view.item_size


def _solvable(terms: Sequence[_Term], target: int, budget: list[int]) -> bool:
    """Whether the sum has a solution; terms are in order of falling stride."""
    if not terms:
        return target == 0
    budget[0] -= 1
    if budget[0] < 0:
        return True
    term, rest = terms[0], terms[1:]
    rest_low = sum(smaller.stride * smaller.low for smaller in rest)
    rest_high = sum(smaller.stride * smaller.high for smaller in rest)
    first = max(term.low, -((rest_high - target) // term.stride))
    last = min(term.high, (target - rest_low) // term.stride)
    return any(_solvable(rest, target - term.stride * x, budget) for x in range(first, last + 1))
