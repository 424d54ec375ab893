"""Calls that must fail, and what their errors say.

A message reads "<function>: <argument>: expected <this>, got <that>"; tables of bad calls say which
function and argument. They hold for the native module and for the NumPy reference alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import posenc_native as pn

V, T = ValueError, TypeError
FREQ = np.array([1.0, 0.1])
NAN, INF = float("nan"), float("inf")
BIG_ENDIAN = np.dtype(np.float32).newbyteorder(">")


def x(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """[b, h, s, d] = [2, 3, 5, 8], of ones."""
    return np.ones(shape or (2, 3, 5, 8), dtype)


def steps(*shape: int, dtype: Any = np.int64) -> np.ndarray:
    return np.zeros(shape or (5,), dtype)


def expanded(array: np.ndarray) -> np.ndarray:
    """A writable view with stride 0 along the first axis."""
    return np.lib.stride_tricks.as_strided(array, array.shape, (0, *array.strides[1:]))


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same numbers one byte off."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    view = memory[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def shifted_out() -> tuple[np.ndarray, np.ndarray]:
    """x and an out that begins one step further on in the same memory."""
    memory = x(3, 3, 5, 8)
    return memory[:2], memory[1:]


@dataclass
class Bad:
    """A call that must fail: a function, its arguments, the error, the argument it is about.

    The argument is "a|b" where the implementations check in different orders.
    """

    function: str
    call: Callable[[], tuple[Any, ...]]  # fresh arguments; a dict at the end has those by name
    error: type[Exception]
    argument: str

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arguments = self.call()
        if isinstance(arguments[-1], dict):
            return arguments[:-1], arguments[-1]
        return arguments, {}


def owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def arrays_in(values: Any) -> list[np.ndarray]:
    """The arrays among values, and in tuples of them."""
    found = []
    for value in values:
        if isinstance(value, tuple):
            found += arrays_in(value)
        elif isinstance(value, np.ndarray):
            found.append(value)
    return found


def memory_of(arguments: tuple[Any, ...], named: dict[str, Any]) -> list[tuple[np.ndarray, bytes]]:
    arrays = arrays_in((*arguments, *named.values()))
    return [(owner(array), owner(array).tobytes()) for array in arrays if array.dtype != object]


def assert_refused(bad: Bad, convert: Callable[[Any], Any] = lambda values: values) -> None:
    """The call fails with its error, whose text has its form, and nothing has been written.

    convert: makes of all arguments those of another engine, in the same memory.
    """
    arguments, named = bad.arguments()
    before = memory_of(arguments, named)
    arguments, named = convert((arguments, named))
    with pytest.raises((ValueError, TypeError)) as caught:
        getattr(pn, bad.function)(*arguments, **named)
    message = str(caught.value)
    form = rf"{bad.function}: ({bad.argument}): expected \S.*, got \S.*"
    assert re.fullmatch(form, message, re.DOTALL), message
    assert caught.type is bad.error, message
    for array, content in before:
        assert array.tobytes() == content
