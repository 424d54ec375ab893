"""Calls that must fail, as rows of data, and how every engine is held to them.

A message reads "<function>: <argument>: expected <this>, got <that>"; a row says which function and
argument. A row is a good call but for what is wrong with it:

    rotate = Call("apply_rotary", x=x(), positions=None, inv_freq=FREQ)
    ROWS = [rotate("too few positions", V, "positions", positions=steps(4))]

Each row is called with arrays and with tensors in the memory of these arrays, by every engine that
takes them. Rows are made once: what a call writes in spite of its error is an error itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes  # noqa: F401 - whose dtypes NumPy then has by name
import numpy as np
import pytest
from rotating import as_tuple, computing, public
from targets import NEEDS_CUDA_ON_HOST, NEEDS_NATIVE

from posenc_native.core.calls.errors import fault_of

V, T = ValueError, TypeError
FREQ = np.array([1.0, 0.1])
NAN, INF = float("nan"), float("inf")
BIG_ENDIAN = np.dtype(np.float32).newbyteorder(">")
try:
    from torch_cases import DEVICES
except ImportError:
    DEVICES = []
ARRAYS = {"native": NEEDS_NATIVE, "CUDA": NEEDS_CUDA_ON_HOST, "reference": ()}
TENSORS = ["small", "operators", "plain", "storages"]


# --- Arguments


def x(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """[b, h, s, d] = [2, 3, 5, 8], of ones."""
    return np.ones(shape or (2, 3, 5, 8), dtype)


def steps(*shape: int, dtype: Any = np.int64) -> np.ndarray:
    return np.zeros(shape or (5,), dtype)


def window(memory: np.ndarray, shape: tuple[int, ...], *strides: int) -> np.ndarray:
    """A writable view of memory, with strides in elements."""
    steps = [stride * memory.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(memory, shape, steps)


SHAPE = (2, 3, 5, 8)


def at(memory: np.ndarray, offset: int) -> np.ndarray:
    """[2, 3, 5, 8] that begins there in a long row of numbers."""
    return memory[offset : offset + 240].reshape(SHAPE)


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


@dataclass(frozen=True)
class OfTensors:
    """What tensors alone can be: made of the tensor of an array. None: it stays the array."""

    array: np.ndarray
    make: Callable[[Any], Any] | None


def elsewhere(array: np.ndarray) -> OfTensors:
    """A tensor on a device that no other argument is on."""
    return OfTensors(array, lambda tensor: tensor.to("meta"))


def among_tensors(array: np.ndarray) -> OfTensors:
    """An array that stays one."""
    return OfTensors(array, None)


def followed(array: np.ndarray) -> OfTensors:
    """A tensor that requires a gradient."""
    return OfTensors(array, lambda tensor: tensor.requires_grad_())


def repeated(number: np.ndarray, *shape: int) -> OfTensors:
    """So many numbers in the memory of one."""
    return OfTensors(number, lambda tensor: tensor.expand(shape))


# --- Rows


@dataclass(frozen=True)
class Row:
    """A call, its error (None: it is a good one), and the argument that the error is about.

    The argument is "a|b", and the error a pair, where engines check in different orders. It may go
    on as the message does, "a: expected the width".
    """

    function: str
    what: str
    error: Any
    argument: str
    given: tuple[Any, ...]
    named: dict[str, Any]
    arrays: bool = True  # whether it is a call of arrays
    tensors: bool = True
    anywhere: bool = True  # False: it is a call of tensors on the CPU alone


class Call:
    """A good call by its arguments; called, it gives rows that have some of them changed."""

    def __init__(self, function: str, /, **given: Any) -> None:
        self.function, self.given, self.named = function, given, {}

    def but(self, **changes: Any) -> Call:
        """Another good call: what this one has no argument of is given by name."""
        call = Call(self.function, **{name: changes.pop(name, x) for name, x in self.given.items()})
        call.named = {**self.named, **changes}
        return call

    def __call__(self, what: str, error: Any, argument: str, /, **changes: Any) -> Row:
        call = self.but(**changes)
        given = tuple(call.given.values())
        values = [*_leaves((*given, *call.named.values()))]
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        only_tensors = "device" in changes or any(isinstance(one, OfTensors) for one in values)
        held = bool(arrays) and all(map(_torch_has, arrays))
        # Where the first argument is an array, NumPy computes, and takes tensors on the CPU alone:
        # on a GPU the error would be about whichever of them is looked at first.
        of_numpy = isinstance(given[0], OfTensors) and given[0].make is None
        return Row(
            self.function, what, error, argument, given, call.named,
            arrays=not only_tensors, tensors=only_tensors or held, anywhere=not of_numpy,
        )  # fmt: skip

    def good(self, what: str, /, **changes: Any) -> Row:
        return self(what, None, "", **changes)


def of_tensors(*rows: Row) -> list[Row]:
    return [replace(row, arrays=False, tensors=True) for row in rows]


def of_values(*rows: Row) -> list[Row]:
    """Rows whose error is about values: those on a GPU are not looked at, which needs no wait."""
    return [replace(row, anywhere=False) for row in rows]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


TORCH_HAS = {
    *("bool", "complex64", "complex128", "float16", "bfloat16", "float32", "float64"),
    *("float8_e4m3fn", "float8_e5m2", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
}


def _torch_has(array: np.ndarray) -> bool:
    """Whether there are tensors of this dtype, in such memory."""
    return (
        array.dtype.name in TORCH_HAS
        and array.dtype.isnative
        and array.flags.writeable
        and all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    )


# --- Engines


class Memory:
    """The memory of all arrays of a row, and of their tensors: whether it is as it was."""

    def __init__(self, row: Row, device: str | None) -> None:
        self.device = device  # None: there are no tensors
        leaves = _leaves((*row.given, *row.named.values()))
        arrays = [leaf.array if isinstance(leaf, OfTensors) else leaf for leaf in leaves]
        arrays = [array for array in arrays if isinstance(array, np.ndarray)]
        self.owners = {id(_owner(a)): _owner(a) for a in arrays if a.dtype != object}
        self.before = {of: owner.tobytes() for of, owner in self.owners.items()}
        self.bytes: dict[int, Any] = {}
        self.tensors: dict[int, Any] = {}

    def engine_has(self, value: Any) -> Any:
        """The same values as an engine takes them: one array is one tensor."""
        if self.device is None:
            return value
        if isinstance(value, tuple):
            return tuple(map(self.engine_has, value))
        if isinstance(value, dict):
            return {key: self.engine_has(one) for key, one in value.items()}
        if isinstance(value, OfTensors):
            return value.make(self.tensor(value.array)) if value.make else value.array
        if isinstance(value, np.dtype):
            return getattr(pytest.importorskip("torch"), value.name)
        return self.tensor(value) if isinstance(value, np.ndarray) else value

    def tensor(self, array: np.ndarray) -> Any:
        """A tensor whose storage has all that the owner of the array's memory has."""
        torch = pytest.importorskip("torch")
        if id(array) not in self.tensors:
            owner = _owner(array)
            if id(owner) not in self.bytes:
                whole = torch.from_numpy(owner.reshape(-1).view(np.uint8))
                self.bytes[id(owner)] = whole.to(self.device)
            offset = array.ctypes.data - owner.ctypes.data if array.size else 0
            strides = [stride // array.itemsize for stride in array.strides]
            whole = self.bytes[id(owner)].view(getattr(torch, array.dtype.name))
            tensor = whole.as_strided(array.shape, strides, offset // array.itemsize)
            self.tensors[id(array)] = tensor
        return self.tensors[id(array)]

    def is_as_it_was(self) -> bool:
        return all(
            owner.tobytes() == self.before[of]
            and (of not in self.bytes or self.bytes[of].cpu().numpy().tobytes() == self.before[of])
            for of, owner in self.owners.items()
        )


def _owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def outcome(row: Row, memory: Memory) -> Any:
    """The result of a call, or its exception."""
    given, named = memory.engine_has((row.given, row.named))
    try:
        return public(row.function)(*given, **named)
    except Exception as error:
        return error


def _is_finite(result: Any) -> bool:
    if isinstance(result, Exception):
        return False
    numbers = (y.cpu().double().numpy() if hasattr(y, "cpu") else y for y in as_tuple(result))
    return all(np.isfinite(one.astype(np.float64)).all() for one in numbers)


def problem_of(row: Row, device: str | None) -> str | None:
    """What is wrong with how a call fails, or does not."""
    memory = Memory(row, device)
    result = outcome(row, memory)
    if row.error is None:
        return None if _is_finite(result) else f"{result!r}"
    if not isinstance(result, Exception):
        return "no error"
    kinds = row.error if isinstance(row.error, tuple) else (row.error,)
    begins = [
        re.escape(one) if ": expected " in one else rf"{re.escape(one)}: expected \S"
        for one in row.argument.split("|")
    ]
    form = rf"{row.function.removesuffix(' by tables')}: ({'|'.join(begins)}).*, got \S.*"
    if type(result) not in kinds or not re.fullmatch(form, str(result), re.DOTALL):
        return f"{type(result).__name__}: {result}"
    if result.__cause__ is not None or str(fault_of(result) or result) != str(result):
        return f"{result!r} is of {result.__cause__!r}, with the fault {fault_of(result)}"
    return None if memory.is_as_it_was() else "written in spite of the error"


def by_engine(rows: list[Row]) -> pytest.MarkDecorator:
    """A test of rows, an engine and its device (None: arrays): all rows of a function at once."""
    twice = [name for name, n in Counter((row.function, row.what) for row in rows).items() if n > 1]
    assert not twice, twice
    cases = []
    for function in dict.fromkeys(row.function for row in rows):
        own = [row for row in rows if row.function == function]
        of_arrays = [row for row in own if row.arrays]
        of_tensors = [row for row in own if row.tensors]
        if of_arrays:
            cases += [
                pytest.param(of_arrays, engine, None, marks=marks, id=f"{function}-{engine}")
                for engine, marks in ARRAYS.items()
            ]
        for device in DEVICES if of_tensors else ():
            some = [row for row in of_tensors if row.anywhere or device == "cpu"]
            cases += [
                pytest.param(some, engine, device, id=f"{function}-{engine}-{device}")
                for engine in TENSORS
            ]
    return pytest.mark.parametrize(("rows", "engine", "device"), cases)


def assert_held(rows: list[Row], engine: str, device: str | None) -> None:
    """Bad calls fail with their errors, whose texts have their form, and have written nothing."""
    with (
        computing("plain" if engine == "storages" else engine),
        pytest.MonkeyPatch.context() as patch,
    ):
        if engine == "storages":  # as on devices whose pointers are no addresses
            patch.setattr("posenc_native.engines.torch.results.ADDRESSED", ())
        problems = {row.what: problem_of(row, device) for row in rows}
    assert not any(problems.values()), "\n".join(
        f"{what}: {problem}" for what, problem in problems.items() if problem
    )
