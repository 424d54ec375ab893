"""Checks of arguments that need only numbers, names and shapes.

Nothing here touches the elements of an array, so the NumPy reference and the composition of torch
operations check with the same code and word their errors alike: "<function>: <argument>: expected
<this>, got <that>", a ValueError for a wrong value, shape or name and a TypeError for a wrong kind
or dtype.
"""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")
FREQUENCY_DTYPES = ("float32", "float64")
INTEGER_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
POSITION_DTYPES = (*INTEGER_DTYPES, "float32", "float64")
SINUSOIDAL_LAYOUTS = ("interleaved", "sin_cos", "cos_sin")
FREQUENCY_LIMIT = (
    2.0**63
)  # radians a position; positions have the same limit, so phases fit 128 bits


def wrong_value(function: str, argument: str, expected: str, got: object) -> NoReturn:
    """Raise the ValueError for an argument whose value, shape or name is wrong."""
    raise ValueError(f"{function}: {argument}: expected {expected}, got {got}")


def wrong_type(function: str, argument: str, expected: str, got: object) -> NoReturn:
    """Raise the TypeError for an argument whose kind or dtype is wrong."""
    raise TypeError(f"{function}: {argument}: expected {expected}, got {got}")


def dtype_name(dtype: object) -> str:
    """Name of a NumPy or torch dtype: ``"float32"``, ``"bfloat16"``, ``"int64"`` ..."""
    return str(dtype).removeprefix("torch.")


def as_array(function: str, argument: str, value: Any) -> np.ndarray[Any, Any]:
    """The value as a plain NumPy array; of an array of any library its memory, without a copy.

    Subclasses of NumPy's (memmap, matrix) and what has ``__array__`` or a buffer (pandas, xarray,
    JAX) are what `np.asarray` makes of them, and what has ``__dlpack__`` alone is read through
    that. Lists and the like become an array.

    Raises:
        TypeError: no array; one on another device, which would be copied here unasked; one with a
            mask, which would be ignored.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ndarray):
        if "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray):
            wrong_type(
                function, argument, "an array without a mask", "a masked one; see its filled()"
            )
        return np.asarray(value)
    exchanges = _has(value, "__dlpack__")
    if exchanges:
        _check_on_cpu(function, argument, value)
    try:
        if exchanges and not _has(value, *_READ_BY_NUMPY):
            return np.from_dlpack(value)
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        # RuntimeError: a tensor that wants a gradient. BufferError: DLPack of an unknown dtype.
        wrong_type(function, argument, "an array", f"{type(value).__name__}: {error}")


def is_array(value: object) -> bool:
    """Whether the value is an array, of whatever library; scalars and lists are none."""
    if isinstance(value, np.generic):
        return False
    return isinstance(value, np.ndarray) or _has(value, *_READ_BY_NUMPY, "__dlpack__")


def _has(value: object, *names: str) -> bool:
    """Whether the class has one of these; an object that torch.fx traces with has any name."""
    return any(hasattr(type(value), name) for name in names)


def as_numbers(function: str, argument: str, value: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """As `as_array` of real numbers of any dtype, in float64."""
    array = as_array(function, argument, value)
    if array.dtype.kind not in "cSUMm":  # which NumPy would cut off, or read as text
        try:
            return np.asarray(array, np.float64)
        except (TypeError, ValueError):
            pass
    wrong_type(function, argument, "real numbers", array.dtype)


def as_operand(function: str, argument: str, value: Any) -> np.ndarray[Any, Any]:
    """As `as_array` of an argument that the result is like: of a list that is a guess."""
    if not is_array(value):
        wrong_type(function, argument, "a NumPy array or a torch tensor", type(value).__name__)
    return as_array(function, argument, value)


def as_operands(
    function: str, q: Any, k: Any, inplace: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """q and k as `as_operand`; those to be overwritten are NumPy's, be it of a subclass."""
    plain_q = as_operand(function, "q", q)
    if is_tensor(k):
        wrong_type(function, "k", "an array, as q is", type(k).__name__)
    plain_k = as_operand(function, "k", k)
    for argument, value in (("q", q), ("k", k)):
        if inplace and not isinstance(value, np.ndarray):
            expected = "a NumPy array or a torch tensor, to be rotated in place"
            wrong_type(function, argument, expected, type(value).__name__)
    return plain_q, plain_k


# How NumPy reads what is no array of its own: without a copy, as DLPack does, but with every dtype.
_READ_BY_NUMPY = ("__array__", "__array_interface__", "__array_struct__")
# Of DLPack's device types those that other libraries have arrays on; 3 and 11 are host memory.
_DEVICES = {2: "CUDA", 8: "Metal", 10: "ROCm", 13: "CUDA (managed)", 14: "oneAPI"}


def _check_on_cpu(function: str, argument: str, value: Any) -> None:
    try:
        kind, index = value.__dlpack_device__()
    except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
        expected = "an array on one device, the CPU"
        wrong_type(function, argument, expected, f"{type(value).__name__}: {error}")
    if kind not in (1, 3, 11):
        place = _DEVICES.get(int(kind), f"a device of DLPack type {int(kind)}")
        expected = "an array on the CPU, or a torch tensor"
        wrong_type(function, argument, expected, f"{type(value).__name__} on {place}:{index}")


def as_dtype(function: str, dtype: object) -> np.dtype[Any]:
    """The NumPy dtype that a name or type stands for."""
    try:
        return np.dtype(dtype)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        wrong_type(function, "dtype", f"one of {', '.join(FLOAT_DTYPES)}", repr(dtype))


def is_tensor(value: object) -> bool:
    """Whether the value is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_torch_dtype(value: object) -> bool:
    """Whether the value is a torch dtype; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.dtype)


def is_symbolic(value: object) -> bool:
    """Whether the value is an int that torch.export keeps open; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.SymInt)


def is_count(value: object) -> bool:
    """Whether the value is an int, of Python, NumPy or torch.export, and no bool."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole or is_symbolic(value)


def check_dtype(function: str, argument: str, dtype: object, allowed: tuple[str, ...]) -> None:
    """TypeError unless the NumPy or torch dtype is one of the names allowed."""
    name = dtype_name(dtype)
    if name not in allowed:
        wrong_type(function, argument, f"a dtype of {', '.join(allowed)}", name)


def check_name(function: str, argument: str, name: object, names: tuple[str, ...]) -> None:
    """TypeError unless the argument is a str, ValueError unless it is one of the names."""
    if not isinstance(name, str):
        wrong_type(function, argument, "a str", type(name).__name__)
    if name not in names:
        wrong_value(function, argument, f"one of {', '.join(names)}", repr(name))


def check_shape(
    function: str, argument: str, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """ValueError unless the two shapes are equal."""
    if tuple(shape) != tuple(expected):
        wrong_value(function, argument, f"shape {list(expected)}", list(shape))


def check_heads(function: str, heads: tuple[int, ...], leading: tuple[int, ...]) -> None:
    """ValueError unless the leading axes of diagonals, heads last, fit those of the scores.

    Batch axes may be missing or of size 1; the heads may not.
    """
    matches = len(heads) <= len(leading) and all(
        size == of_call or (size == 1 and i > 0)
        for i, (size, of_call) in enumerate(zip(heads[::-1], leading[::-1], strict=False))
    )
    if not matches:
        expected = f"leading axes, heads last, that are those of the scores, {list(leading)}"
        wrong_value(function, "diagonals", expected, list(heads))


def check_offset_shape(function: str, shape: tuple[int, ...], leading: tuple[int, ...]) -> None:
    """ValueError unless q_offset has the first of the leading axes."""
    if shape != leading[: len(shape)]:
        expected = f"the first sizes of {list(leading)}"
        wrong_value(function, "q_offset", expected, f"shape {list(shape)}")


def check_byte_count(function: str, shape: tuple[int, ...], item_size: int) -> None:
    """ValueError if a result of this shape has more bytes than any array can have."""
    if math.prod(shape) * item_size >= 2**63:
        wrong_value(function, "result", "fewer than 2^63 bytes", f"shape {list(shape)}")


def size(function: str, argument: str, value: object) -> int:
    """The value as a Python int; it must be an integer >= 0 and no bool."""
    if isinstance(value, bool):
        wrong_type(function, argument, "an int", "bool")
    try:
        result = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        wrong_type(function, argument, "an int", type(value).__name__)
    if not 0 <= result < 2**63:
        wrong_value(function, argument, "an int in 0 .. 2^63 - 1", result)
    return result


def length(function: str, argument: str, value: object) -> int:
    """As `size`; torch.compile and torch.export may keep it open, where they take a `size` for a
    constant.
    """
    if type(value) is int and 0 <= value < 2**63:
        return value
    if is_symbolic(value):
        return value  # type: ignore[return-value]
    return size(function, argument, value)


def even_size(function: str, argument: str, value: object) -> int:
    """The value as a Python int; it must be an even integer >= 0."""
    result = size(function, argument, value)
    if result % 2:
        wrong_value(function, argument, "an even int", result)
    return result


def finite_number(function: str, argument: str, value: object) -> float:
    """The value as a float; it must be a finite real number and no bool."""
    if type(value) is float and -math.inf < value < math.inf:
        return value  # nearly always; asking for numbers.Real takes ten times as long
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        wrong_type(function, argument, "a real number", type(value).__name__)
    result = float(value)
    if not -math.inf < result < math.inf:  # as torch.compile can follow it
        wrong_value(function, argument, "a finite number", result)
    return result


def positive_number(function: str, argument: str, value: object) -> float:
    """The value as a float; it must be a finite real number above 0."""
    result = finite_number(function, argument, value)
    if result <= 0:
        wrong_value(function, argument, "a number > 0", result)
    return result


def numpy_generator(function: str, generator: object) -> np.random.Generator:
    """The argument generator: one of NumPy's, a new one for None."""
    if generator is None:
        return np.random.default_rng()
    if not isinstance(generator, np.random.Generator):
        wrong_type(function, "generator", "a numpy.random.Generator", type(generator).__name__)
    return generator


def frequency_parameters(
    function: str, dim: object, base: object, shift: object, scale: object = 1.0
) -> tuple[int, float, float, float]:
    """``(dim, base, shift, scale)`` for ``scale * base ** (-i / (dim / 2 - shift))``, checked."""
    checked_dim = even_size(function, "dim", dim)
    checked_base = positive_number(function, "base", base)
    checked_shift = finite_number(function, "shift", shift)
    if checked_dim and checked_shift >= checked_dim / 2:
        wrong_value(function, "shift", f"a number < dim / 2 = {checked_dim // 2}", checked_shift)
    return checked_dim, checked_base, checked_shift, finite_number(function, "scale", scale)


def check_sinusoidal_layout(function: str, layout: object) -> None:
    """ValueError unless the layout of a sinusoidal table is one of the three known ones."""
    check_name(function, "layout", layout, SINUSOIDAL_LAYOUTS)


@dataclass(frozen=True)
class RotaryView:
    """How rotary sees a tensor: the letters of its axes, and the dims of the head that are paired.

    layout: one letter an axis in memory order, ``d`` last: b (batch), s (sequence) or t (packed
    tokens), h (heads). The dims ``start .. start + 2 * pairs`` of ``d`` are rotated. They form
    blocks of `block` dims; within a block dim i is paired with dim i + block / 2, and the pairs of
    all blocks, in order, have the `pairs` frequencies.
    """

    shape: tuple[int, ...]
    layout: str
    start: int
    pairs: int
    block: int

    @property
    def tokens(self) -> int:
        """Length of the axis s or t."""
        return self.shape[self.layout.index("t" if "t" in self.layout else "s")]

    @property
    def batch(self) -> int | None:
        """Length of the axis b, None without one."""
        return self.shape[self.layout.index("b")] if "b" in self.layout else None

    @property
    def heads(self) -> int:
        """Length of the axis h, 1 without one."""
        return self.shape[self.layout.index("h")] if "h" in self.layout else 1

    def check_tokens(
        self,
        function: str,
        argument: str,
        shape: tuple[int, ...],
        before: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
    ) -> None:
        """ValueError unless the axes between `before` and `after` are [s] or [b, s] (or [t])."""
        letter = "t" if "t" in self.layout else "s"
        expected = {letter: (*before, self.tokens, *after)}
        if self.batch is not None:
            expected["b, s"] = (*before, self.batch, self.tokens, *after)
        if tuple(shape) not in expected.values():
            choices = " or ".join(
                f"[{', '.join([*'A' * len(before), letters, *'P' * len(after)])}] = {list(choice)}"
                for letters, choice in expected.items()
            )
            wrong_value(function, argument, f"shape {choices}", list(shape))

    def align(self, table: Any, by_head: bool = False) -> Any:
        """Tables of x's tokens, their axes laid to broadcast with x[..., :P].

        An array or tensor ``[s, P]`` or ``[b, s, P]``, with an axis H before P if they are by head.
        """
        letters = ["b"] * (table.ndim - 2 - by_head) + ["t" if "t" in self.layout else "s"]
        letters += ["h"] * by_head + ["d"]
        if by_head and "h" not in self.layout:  # one head
            letters.remove("h")
            table = table[..., 0, :]
        for i, letter in enumerate(letter for letter in self.layout if letter in letters):
            j = letters.index(letter)
            if i != j:
                table = table.swapaxes(i, j)
                letters[i], letters[j] = letters[j], letters[i]
        lengths = dict(zip(letters, table.shape, strict=True))
        return table.reshape([lengths.get(letter, 1) for letter in self.layout])


def rotary_view(
    function: str,
    shape: tuple[int, ...],
    layout: object,
    pairing: object,
    rotary_start: object,
    pairs: int,
    argument: str = "x",
) -> RotaryView:
    """How a tensor of this shape is rotated; ValueError if the arguments do not fit it."""
    letters = _rotary_layout(function, layout)
    if len(shape) != len(letters):
        wrong_value(function, argument, f"{len(letters)} axes ({letters})", f"shape {list(shape)}")
    block = _block_size(function, pairing, pairs)
    start = size(function, "rotary_start", rotary_start)
    if start + 2 * pairs > shape[-1]:
        wrong_value(
            function,
            "rotary_start",
            f"rotary_start + 2 * {pairs} frequencies <= head_dim = {shape[-1]}",
            start,
        )
    return RotaryView(tuple(shape), letters, start, pairs, block)


def check_frequency_axes(function: str, shape: tuple[int, ...]) -> None:
    """ValueError unless inv_freq is [P], [H, P] or [A, H, P]."""
    if not 1 <= len(shape) <= 3 or (len(shape) == 3 and shape[0] == 0):
        wrong_value(function, "inv_freq", "shape [P], [H, P] or [A, H, P]", list(shape))


def check_frequency_heads(
    function: str, shape: tuple[int, ...], views: Mapping[str, RotaryView]
) -> None:
    """ValueError unless inv_freq is the same for all heads, or has one row for each of every x."""
    for name, view in views.items():
        if len(shape) > 1 and shape[-2] not in (1, view.heads):
            expected = f"frequencies for {view.heads} heads of {name}, or the same for all"
            wrong_value(function, "inv_freq", expected, f"shape {list(shape)}")


def rotary_axes(function: str, no_positions: bool, no_axis_map: bool, frequency_axes: int) -> bool:
    """Whether positions have an axis [A, ...]; ValueError where they are missing then."""
    summed = frequency_axes == 3
    if no_positions and (summed or not no_axis_map):
        given = "inv_freq [A, H, P]" if no_axis_map else "axis_map"
        wrong_value(function, "positions", f"shape [A, s] or [A, b, s] with {given}", None)
    if summed and not no_axis_map:
        expected = "None with inv_freq [A, H, P], which says it itself"
        wrong_value(function, "axis_map", expected, "an array")
    return summed or not no_axis_map


def rounds_as_written(function: str, compute: object) -> bool:
    """Whether a rotation by tables rounds after each operation; ValueError for other names."""
    if not isinstance(compute, str):
        wrong_type(function, "compute", "a str", type(compute).__name__)
    if compute not in ("float32", "as_written"):
        wrong_value(function, "compute", "'float32' or 'as_written'", repr(compute))
    return compute == "as_written"


def check_same_tokens(function: str, q: RotaryView, k: RotaryView) -> None:
    """ValueError unless the shapes of q and k are equal but for their heads."""
    for letter, q_length, k_length in zip(q.layout, q.shape, k.shape, strict=True):
        if letter != "h" and q_length != k_length:
            wrong_value(function, "k", f"the shape of q but for h, {list(q.shape)}", list(k.shape))


def _rotary_layout(function: str, layout: object) -> str:
    if not isinstance(layout, str):
        wrong_type(function, "layout", "a str", type(layout).__name__)
    letters = set(layout)
    tokens_once = letters & {"t", "s", "b"} in ({"t"}, {"s"}, {"s", "b"})
    if (
        len(letters) != len(layout)
        or not letters <= set("bshdt")
        or not layout.endswith("d")
        or not tokens_once
    ):
        wrong_value(
            function,
            "layout",
            "distinct letters of b, s, h, d, or t for b and s, with s or t and ending in d",
            repr(layout),
        )
    return layout


def _block_size(function: str, pairing: object, pairs: int) -> int:
    if pairing == "half":
        return max(2 * pairs, 2)
    if pairing == "interleaved":
        return 2
    expected = f"'half', 'interleaved' or an even int that divides {2 * pairs}"
    if isinstance(pairing, str):
        wrong_value(function, "pairing", expected, repr(pairing))
    block = size(function, "pairing", pairing)
    if block == 0 or block % 2 or 2 * pairs % block:
        wrong_value(function, "pairing", expected, block)
    return block
