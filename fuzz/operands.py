"""Arrays as users have them and as they should not: shapes, strides, places in memory, contents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .choices import Choices
from .memory import PADDING, REGION_BYTES, REGIONS, Layout, Operand, Window, dtype_of

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
OTHERS = ("bool", "complex64", ">f4", "S4", ">i8", "int64", "float32", "float16")
# Around lanes, tiles, and blocks of rows.
EDGES = (7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 70)


class Builder:
    """Draws the operands of one case."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.layout = Layout()
        self.faults: list[str] = []  # what was made wrong on purpose, or may be
        kind = choices.below(100)
        self.elements = 24_000 if kind < 2 else 1500 if kind < 30 else 300

    def size(self) -> int:
        """A length: small, in 0 .. 70, or around a number of lanes."""
        kind = self.choices.below(20)
        if kind < 12:
            return self.choices.integer(1, 5)
        if kind == 12:
            return 0
        return self.choices.integer(0, 70) if kind < 17 else self.choices.one_of(EDGES)

    def sizes(self, count: int, within: int | None = None) -> list[int]:
        """Lengths, of so many elements together."""
        budget = self.elements if within is None else within
        result = []
        for _ in range(count):
            length = min(self.size(), max(budget, 1))
            budget //= max(length, 1)
            result.append(length)
        return self.choices.shuffled(result)

    def fault(self, percent: float, name: str) -> bool:
        """Whether to make something wrong, of which the case then knows."""
        if not self.choices.chance(percent):
            return False
        self.faults.append(name)
        return True

    # --- Strides

    def strides(
        self, shape: Sequence[int], item: int, repeats: bool
    ) -> tuple[tuple[int, ...], int, int]:
        """Strides in bytes, and how far elements reach below and above the first one.

        repeats: axes may have stride 0, or overlap the elements of another.
        """
        choices, rank = self.choices, len(shape)
        style = choices.weighted(plain=45, padded=15, steps=15, any=25)
        order = list(range(rank))[::-1]
        if style == "any":
            order = choices.shuffled(order)
        strides, reach = [0] * rank, 1
        for place, axis in enumerate(order):
            stride = reach
            if style == "padded" and place <= 1:
                stride += choices.one_of((0, 1, 3, 16, 64)) * place
            elif style in ("steps", "any"):
                stride *= choices.one_of((1, 1, 1, 2, 3))
                stride += choices.one_of((0, 0, 0, 1, 5))
            if style in ("steps", "any") and choices.chance(20):
                stride = -stride
            if repeats and style == "any" and choices.chance(15):
                stride = choices.one_of((0, 0, 1, -1, stride - 1))
            strides[axis] = stride
            if shape[axis] == 1 and choices.chance(5):
                strides[axis] = choices.one_of((0, -3, 2**40, -(2**55)))
            elif shape[axis] > 1:
                reach = max(reach, abs(stride) * shape[axis])
        if reach * item > REGION_BYTES // 4:
            return self._contiguous(shape, item)
        return self._in_bytes(shape, [stride * item for stride in strides])

    def _contiguous(self, shape: Sequence[int], item: int) -> tuple[tuple[int, ...], int, int]:
        strides = [item * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return self._in_bytes(shape, strides)

    @staticmethod
    def _in_bytes(shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], int, int]:
        if 0 in shape:
            return tuple(strides), 0, 0
        below = -sum(min(s, 0) * (n - 1) for s, n in zip(strides, shape, strict=True))
        above = sum(max(s, 0) * (n - 1) for s, n in zip(strides, shape, strict=True))
        return tuple(strides), below, above

    # --- Operands

    def operand(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        fill: tuple[str, int] | list[Any] | None = None,
        output: bool = False,
    ) -> Operand:
        """An operand in a window of its own; now and then one that is wrong."""
        shape = list(shape)
        if self.fault(0.8, f"{name}: shape"):
            self._reshape(shape)
            fill = self.numbers() if isinstance(fill, list) else fill
        if self.fault(0.8, f"{name}: dtype"):
            dtype = self.choices.one_of((*FLOATS, *INTEGERS, *OTHERS))
            fill = ("whole", 0)
        item = dtype_of(dtype).itemsize
        repeats = not output or self.fault(1, f"{name}: repeats")
        strides, below, above = self.strides(shape, item, repeats)
        odd = 0
        if item > 1 and self.fault(0.5, f"{name}: unaligned"):
            odd = self.choices.integer(1, item - 1)
            if shape and self.choices.chance(30):
                strides, below, above = self._in_bytes(shape, [s + odd for s in strides])
                odd = 0
        size = below + above + item if 0 not in shape else 0
        return self._place(name, shape, dtype, strides, below, size, odd, fill)

    def _reshape(self, shape: list[int]) -> None:
        kind = self.choices.below(4)
        if kind == 0 or not shape:
            shape.insert(self.choices.below(len(shape) + 1), self.choices.integer(0, 2))
        elif kind == 1:
            shape.pop(self.choices.below(len(shape)))
        else:
            axis = self.choices.below(len(shape))
            shape[axis] = max(shape[axis] + self.choices.one_of((-1, 1)), 0)

    def _place(
        self, name: str, shape: Sequence[int], dtype: str, strides: tuple[int, ...], below: int,
        size: int, odd: int, fill: tuple[str, int] | list[Any] | None,
    ) -> Operand:  # fmt: skip
        place = self.choices.weighted(end=60, begin=20, middle=20)
        item = dtype_of(dtype).itemsize
        before = 0 if place == "begin" else PADDING
        after = 0 if place == "end" else PADDING
        total = before + size + after
        if place == "end":
            total += -total % 64 if size % item else 0
        else:
            before += item * self.choices.below(9) if place == "middle" else 0
            total += 128
        # The end of a window is the end of a page: aligned, as is what ends there.
        start = (total - size if place == "end" else before) + (odd if place != "end" else -odd)
        operand = Operand(
            name, self._window(total, place), dtype, tuple(shape), strides, start + below,
            self.numbers() if fill is None else fill, self.fault(0.3, f"{name}: read only"),
        )  # fmt: skip
        self.layout.operands.append(operand)
        return operand

    def _window(self, size: int, place: str) -> int:
        assert len(self.layout.windows) < REGIONS
        canary = self.choices.one_of((0xFF, 0xFF, 0xA5, 0x00))
        self.layout.windows.append(Window(size, place, canary))
        return len(self.layout.windows) - 1

    def numbers(self) -> tuple[str, int]:
        """Contents of floats: normal ones, now and then with infinities, NaN and huge ones."""
        kind = "special" if self.choices.chance(4) else "normal"
        return kind, self.choices.below(1 << 12)

    # --- Two operands in one window

    def apart(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]], dtype: str, axis: int
    ) -> list[Operand] | None:
        """Operands that share a buffer and no element, as slices of packed ones along an axis.

        None where their shapes differ along other axes too.
        """
        lengths = [shape[axis] for shape in shapes]
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in map(tuple, shapes)}
        if len(others) > 1 or any(0 in shape for shape in shapes):
            return None
        item, count = dtype_of(dtype).itemsize, len(names)
        interleaved = len(set(lengths)) == 1 and self.choices.chance(30)
        whole = list(shapes[0])
        whole[axis] = sum(lengths)
        strides = list(self._contiguous(whole, item)[0])
        starts = [i if interleaved else sum(lengths[:i]) for i in range(count)]
        offsets = [start * strides[axis] for start in starts]
        if interleaved:
            strides[axis] *= count
        size = math.prod(whole) * item
        if size > REGION_BYTES // 4:
            return None
        first = self._place(names[0], shapes[0], dtype, tuple(strides), 0, size, 0, None)
        result = [first]
        for name, shape, offset in zip(names[1:], shapes[1:], offsets[1:], strict=True):
            at = first.offset + offset
            result.append(
                Operand(name, first.window, dtype, tuple(shape), tuple(strides), at, self.numbers())
            )
            self.layout.operands.append(result[-1])
        return result

    def again(self, like: Operand, name: str) -> Operand:
        """Another operand that is seen by the same strides, in a window of its own."""
        strides, below, above = self._in_bytes(like.shape, like.strides)
        size = below + above + dtype_of(like.dtype).itemsize if 0 not in like.shape else 0
        return self._place(name, like.shape, like.dtype, strides, below, size, 0, None)

    def out(
        self, like: Operand, shape: Sequence[int], dtype: str, replaceable: bool,
        name: str = "out", needed: bool = False,
    ) -> Any:  # fmt: skip
        """Where a result goes: nowhere, a place of its own, `like` itself, or some way into it.

        needed: somewhere.
        """
        choices = self.choices
        kind = choices.weighted(
            none=0 if needed else 30, own=40, same=20, shifted=4, anywhere=3, same_view=3, flipped=2
        )
        same = tuple(shape) == like.shape and dtype == like.dtype
        if kind == "none":
            return None
        if kind in ("same", "same_view") and same and replaceable:
            if self.faults or self._repeats(like) or like.read_only:
                self.faults.append(f"{name}: the input, which may not do")
            return (
                like
                if kind == "same"
                else self._add(name, like.window, like.dtype, like.shape, like.strides, like.offset)
            )
        if kind == "shifted" and same and like.shape:
            strides = like.strides
            step = choices.one_of([s for s in strides if s] or [dtype_of(dtype).itemsize])
            alias = self._alias(like, name, strides, choices.one_of((-1, 1, 2)) * step)
            if alias is not None:
                return alias
        if kind == "flipped" and same and any(length > 1 for length in shape):
            axis = choices.one_of([a for a, length in enumerate(shape) if length > 1])
            strides = tuple(-s if a == axis else s for a, s in enumerate(like.strides))
            alias = self._alias(like, name, strides, like.strides[axis] * (shape[axis] - 1))
            if alias is not None:
                return alias
        if kind == "anywhere":
            strides, _, above = self._contiguous(shape, dtype_of(dtype).itemsize)
            length = above + dtype_of(dtype).itemsize if 0 not in shape else 0
            room = self.layout.windows[like.window].size - length
            if room > 0:
                at = choices.below(room + 1) // 8 * 8
                at += (self.layout.windows[like.window].size % 8) % 8
                if at + length <= self.layout.windows[like.window].size:
                    self.faults.append(f"{name}: anywhere in the input's memory")
                    return self._add(name, like.window, dtype, shape, strides, at)
        return self.operand(name, shape, dtype, output=True)

    @staticmethod
    def _repeats(operand: Operand) -> bool:
        reach = dtype_of(operand.dtype).itemsize
        for stride, length in sorted(
            (abs(stride), length)
            for stride, length in zip(operand.strides, operand.shape, strict=True)
            if length > 1
        ):
            if stride < reach:
                return True
            reach += stride * (length - 1)
        return False

    def _alias(
        self, like: Operand, name: str, strides: tuple[int, ...], shift: int
    ) -> Operand | None:
        _, below, above = self._in_bytes(like.shape, strides)
        first = like.offset + shift
        last = first + above + dtype_of(like.dtype).itemsize
        if first - below < 0 or last > self.layout.windows[like.window].size:
            return None
        self.faults.append(f"{name}: an alias")
        return self._add(name, like.window, like.dtype, like.shape, strides, first)

    def _add(
        self, name: str, window: int, dtype: str, shape: Sequence[int],
        strides: tuple[int, ...], offset: int,
    ) -> Operand:  # fmt: skip
        operand = Operand(name, window, dtype, tuple(shape), strides, offset, None)
        self.layout.operands.append(operand)
        return operand

    def move_into(self, operand: Operand, other: Operand) -> None:
        """Put an operand somewhere into the window of another one, over what is there."""
        _, below, above = self._in_bytes(operand.shape, operand.strides)
        item = dtype_of(operand.dtype).itemsize
        room = self.layout.windows[other.window].size - below - above - item
        if room < 0 or 0 in operand.shape:
            return
        self.faults.append(f"{operand.name}: in the memory of {other.name}")
        at = self.choices.below(room + 1)
        size = self.layout.windows[other.window].size
        # Whole elements from the end of the window, which is aligned.
        at = size - (size - at) // item * item
        operand.window, operand.offset = other.window, min(at, room) + below
        operand.fill = operand.fill if isinstance(operand.fill, list) else None
        self.layout.operands.remove(operand)
        self.layout.operands.append(operand)

    # --- Positions and integers

    def positions(self, count: int, dtype: str) -> list[Any]:
        """Numbers of a dtype of positions, among them the largest."""
        choices = self.choices
        if dtype.startswith("float"):
            kind = choices.weighted(whole=30, fractions=30, wide=30, edge=10)
            some = [self._position(kind) for _ in range(min(count, 12))]
            return (some * (count // 12 + 1))[:count]
        bits = int(dtype.removeprefix("u").removeprefix("int"))
        low, high = (
            (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
        if choices.chance(60):
            first = choices.below(100)
            return [min(first + i % 29, high) for i in range(count)]
        edges = (low, high, 0, 1, high - 1, low // 3, high // 7)
        pool = [
            choices.one_of(edges) if choices.chance(40) else low + choices.below(high - low + 1)
            for _ in range(min(count, 12))
        ]
        return ([min(max(p, low), high) for p in pool] * (count // 12 + 1))[:count]

    def _position(self, kind: str) -> float:
        choices = self.choices
        if kind == "whole":
            return float(choices.integer(-5000, 5000))
        if kind == "fractions":
            return choices.integer(-(2**20), 2**20) / 1024 + 2.0 ** -choices.integer(1, 80)
        sign = choices.one_of((1.0, -1.0))
        if kind == "wide":
            return sign * (1 + choices.below(1 << 20) / (1 << 20)) * 2.0 ** choices.integer(-70, 61)
        edges = (0.0, -0.0, 2.0**62, 1.5 * 2.0**62, 2.0**62 * 1.9999, 1e-30, 1e-40, 2.0**-64)
        return sign * choices.one_of(edges)
