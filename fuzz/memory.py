"""Memory that notices: operands that end at a page nobody may touch, canaries around the others.

A case describes its memory in plain data: windows of bytes, and operands that are views of them.
So it can be laid out again, for another engine, or by the snippet of a finding, which has the
source of `guarded` and of `numbers` in it.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PAGE = mmap.PAGESIZE
REGIONS = 20
REGION_BYTES = 1024 * PAGE
# Between an operand and the end of its window where no guard page is.
PADDING = 192


# Formats of caches of 8 bits, with the largest number of each.
EIGHT_BITS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a name, those of ml_dtypes among them."""
    own = name == "bfloat16" or name.startswith("float8")
    return np.dtype(getattr(ml_dtypes, name) if own else name)


def guarded(size: int) -> Bytes:
    """At least `size` bytes between two pages that cannot be read or written."""
    page = mmap.PAGESIZE
    size = -(-size // page) * page
    mapping = mmap.mmap(-1, size + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    for guard in (address, address + page + size):
        if mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    return np.frombuffer(mapping, np.uint8)[page:-page]


def numbers(kind: str, first: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Numbers of a kind, the same in every process."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(1 << 16) * 3
    if kind == "whole":
        values = np.rint(values)
    elif kind == "special":
        odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 6e-5, 6e-8, 1e-40, 65504.0, 7e4, 3.3e38, -1e308]
        at = rng.random(values.size) < 0.1
        values[at] = rng.choice(odd, int(at.sum()))
    with np.errstate(all="ignore"):
        return np.resize(np.roll(values, -first), count).astype(dtype)


_pools: dict[tuple[str, Any], np.ndarray[Any, Any]] = {}


def _numbers(kind: str, first: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """As `numbers`, from what has been made before."""
    pool = _pools.get((kind, dtype))
    if pool is None:
        pool = _pools[kind, dtype] = numbers(kind, 0, 1 << 17, dtype)
    part: np.ndarray[Any, Any] = pool[first : first + count]
    return part if len(part) == count else numbers(kind, first, count, dtype)


@dataclass
class Window:
    """A piece of a region: at its end, at its beginning or in between."""

    size: int
    place: str  # end, begin, middle
    canary: int = 0xFF

    def slice(self) -> slice:
        """Where it lies in its region."""
        if self.place == "end":
            return slice(REGION_BYTES - self.size, REGION_BYTES)
        start = 0 if self.place == "begin" else 2 * PAGE
        return slice(start, start + self.size)


@dataclass
class Operand:
    """A view of a window, and what it holds: numbers of a kind, or a list."""

    name: str
    window: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    offset: int
    fill: tuple[str, int] | list[Any] | None  # None: left as it is, an alias of another
    read_only: bool = False

    def view(self, memory: Bytes) -> np.ndarray[Any, Any]:
        """The array, in this memory."""
        return np.ndarray(self.shape, dtype_of(self.dtype), memory, self.offset, self.strides)

    def values(self) -> Any:
        """What it holds, to be assigned to the view; None if it holds what is there."""
        if self.fill is None:
            return None
        dtype = dtype_of(self.dtype)
        if isinstance(self.fill, tuple):
            count = int(np.prod(self.shape, dtype=np.int64))
            return _numbers(*self.fill, count, dtype).reshape(self.shape)
        with np.errstate(all="ignore"):
            return np.array(self.fill, dtype).reshape(self.shape)


@dataclass
class Layout:
    """All the memory of a case."""

    windows: list[Window] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)


class Arena:
    """Regions between guard pages, used by one case after the other."""

    def __init__(self) -> None:
        self._regions = [guarded(REGION_BYTES) for _ in range(REGIONS)]
        self._windows: list[Bytes] = []
        self._before: list[Bytes] = []

    def lay(self, layout: Layout) -> dict[int, np.ndarray[Any, Any]]:
        """The operands as arrays, by their id(); the memory is as described."""
        self._windows = []
        for region, window in zip(self._regions, layout.windows, strict=False):
            part = region[window.slice()]
            part[...] = window.canary
            self._windows.append(part)
        arrays = {}
        for operand in layout.operands:
            view = operand.view(self._windows[operand.window])
            values = operand.values()
            if values is not None:
                view[...] = values
            view.flags.writeable = not operand.read_only
            arrays[id(operand)] = view
        self._before = [window.copy() for window in self._windows]
        return arrays

    def window(self, index: int) -> Bytes:
        """The bytes of a window."""
        return self._windows[index]

    def restore(self) -> None:
        """As after `lay`."""
        for window, before in zip(self._windows, self._before, strict=True):
            window[...] = before

    def changed(self, written: list[Operand]) -> str | None:
        """What has been written beside these operands, if anything."""
        for i, (window, before) in enumerate(zip(self._windows, self._before, strict=True)):
            expected = before
            for operand in written:
                if operand.window == i:
                    expected = expected.copy()
                    operand.view(expected)[...] = operand.view(window)
            if not np.array_equal(window, expected):
                at = np.flatnonzero(window != expected)
                return (
                    f"{len(at)} bytes of window {i} ({len(window)} bytes) changed, "
                    f"the first at {at[0]}, the last at {at[-1]}"
                )
        return None
