"""Arrays as users have them: strided views of larger ones, in every way that NumPy knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def unsigned(array: np.ndarray) -> np.ndarray:
    """The bits of an array: comparable, whatever it holds."""
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


@dataclass
class View:
    """A view of `base`, and how it was taken."""

    base: np.ndarray
    take: Callable[[np.ndarray], np.ndarray]

    def __post_init__(self) -> None:
        self.array = self.take(self.base)
        self.before = unsigned(self.base).copy()

    def assert_rest_untouched(self) -> None:
        """Whatever of `base` the view does not show is as it was."""
        changed = unsigned(self.base) != self.before
        if self.array.size:
            self.take(changed)[...] = False
        assert not changed.any(), np.argwhere(changed)[:9]

    def assert_untouched(self) -> None:
        changed = unsigned(self.base) != self.before
        assert not changed.any(), np.argwhere(changed)[:9]


@st.composite
def views(
    draw: Any, shape: tuple[int, ...], fill: Callable[[tuple[int, ...]], Any], expand: bool = False
) -> View:
    """A view of the shape: axes in any memory order, padded, with steps of either sign.

    fill: makes the base array of a shape. expand: axes may have stride 0 (inputs only).
    """
    rank = len(shape)
    plain = draw(st.booleans())
    order = list(range(rank)) if plain else draw(st.permutations(range(rank)))
    expanded = [expand and draw(st.integers(0, 4)) == 0 for _ in range(rank)]
    slices, lengths = [], []
    for axis in order:
        count = 1 if expanded[axis] else shape[axis]
        step = 1 if plain else draw(st.sampled_from([1, 1, 1, 2, -1, -2, 3]))
        before, after = (0, 0) if plain else (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
        used = (count - 1) * abs(step) + 1 if count else 0
        lengths.append(before + used + after)
        part = slice(before, before + used, abs(step))
        slices.append((part, slice(None, None, 1 if step > 0 else -1)))

    def take(array: np.ndarray) -> np.ndarray:
        for i, (part, direction) in enumerate(slices):
            at = (slice(None),) * i
            array = array[(*at, part)][(*at, direction)]
        array = array.transpose(np.argsort(order)) if rank else array
        return np.broadcast_to(array, shape) if any(expanded) else array

    return View(fill(tuple(lengths)), take)


@st.composite
def number_views(
    draw: Any, shape: tuple[int, ...], dtype: np.dtype, expand: bool = False, scale: float = 3.0
) -> View:
    """Normally distributed numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    # Drawn in what they are rounded to or little more: making them takes longer than the kernels.
    drawn = np.float64 if dtype.itemsize == 8 else np.float32

    def fill(size: tuple[int, ...]) -> np.ndarray:
        numbers = rng.standard_normal(size, drawn)
        numbers *= drawn(scale)
        return numbers.astype(dtype, copy=False)

    return draw(views(shape, fill, expand=expand))


@st.composite
def position_views(draw: Any, shape: tuple[int, ...]) -> View:
    """Positions of any dtype, small and large, whole and fractional."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = np.dtype(draw(st.sampled_from([*INTEGERS, "float32", "float64"])))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        numbers = st.integers(int(info.min), int(info.max)) | st.integers(0, 127)
    else:
        width = 8 * dtype.itemsize
        numbers = (
            st.floats(-(2.0**40), 2.0**40, width=width)
            | st.floats(-1, 1, width=width)
            | st.integers(-(2**20), 2**20).map(float)
        )
    pool = np.array(draw(st.lists(numbers, min_size=1, max_size=5)), dtype)
    return draw(views(shape, lambda size: rng.choice(pool, size), expand=True))


def aligned(shape: tuple[int, ...], dtype: np.dtype, offset: int = 0) -> np.ndarray:
    """An uninitialized array `offset` bytes past a multiple of 64."""
    count = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(count + 64 + offset, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + count].view(dtype).reshape(shape)


def aligned_rows(shape: tuple[int, ...], dtype: np.dtype, offset: int = 0) -> View:
    """Rows that begin `offset` bytes past multiples of 64, with a gap after each."""
    width = -(-(shape[-1] + 1) // 64) * 64 if shape[-1] else 0
    memory = aligned((*shape[:-1], width), dtype, offset)
    unsigned(memory)[...] = 0x55
    return View(memory, lambda array: array[..., : shape[-1]])
