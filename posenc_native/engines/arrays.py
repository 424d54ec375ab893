"""A common interface to NumPy and torch, for functions that make small arrays of numbers.

Such a function is written once. It calls operations that the two share through `Arrays.xp`; methods
of `Arrays` cover the operations that differ.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, is_torch_dtype, wrong_type, wrong_value

from . import late
from .plain.numbers import at_or_below, readable

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def any_dtensor(*values: Any) -> bool:
    """Whether any value is a DTensor."""
    if "torch.distributed.tensor" not in sys.modules:  # without this import there is no DTensor
        return False
    return any(type(value).__name__ == "DTensor" for value in values)


def of_wholes(function: AnyFunction) -> AnyFunction:
    """Let the function take DTensors: every rank computes the whole result from whole tensors.

    For small functions whose operations torch cannot shard.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        if not any_dtensor(*values):
            return function(*args, **kwargs)
        from .torch.sharded.cut import gathered, mesh_of, whole

        mesh = mesh_of(values)
        wholes = {name: gathered(value, mesh) for name, value in kwargs.items()}
        results = function(*(gathered(value, mesh) for value in args), **wholes)
        if not isinstance(results, tuple):
            return whole(results, mesh)
        joined = [whole(result, mesh) for result in results]
        return type(results)._make(joined) if hasattr(results, "_make") else tuple(joined)

    return call  # type: ignore[return-value]


class Arrays:
    """NumPy, or torch on a device: the engine of a call, which also reads its arguments."""

    def __init__(self, function: str, dtype: Any = None, device: Any = None, /, **values: Any):
        """values: arguments by name. A tensor among them, a torch dtype or a device means torch."""
        self.function = function
        self.xp: Any = np
        tensors = {argument: value for argument, value in values.items() if is_tensor(value)}
        # len: torch.compile cannot follow bool of a dict (torch 2.11).
        self.is_torch: bool = len(tensors) > 0 or device is not None or is_torch_dtype(dtype)
        if self.is_torch:
            late.torch_operations()
            import torch

            self.xp = torch
            device = self._common_device(tensors, None if device is None else torch.device(device))
            for argument, tensor in tensors.items():
                arguments.check_memory(function, argument, tensor)
        sharded = [t for t in tensors.values() if type(t).__name__ == "DTensor"]
        self._mesh: Any = sharded[0].device_mesh if sharded else None
        self.device = device
        self.int64: Any = self.xp.int64
        self.float64: Any = self.xp.float64
        if device is not None and device.type == "mps":  # it has no wider dtype
            self.float64 = self.xp.float32
        self.dtype: Any = self._result_dtype(dtype)

    def of_parts(self) -> Arrays:
        """The engine for the local parts of DTensors, which are plain tensors."""
        other = copy.copy(self)
        other._mesh = None
        return other

    def flag(self, argument: str, value: object) -> bool:
        """An argument that is a bool."""
        if not isinstance(value, (bool, np.bool_)):
            wrong_type(self.function, argument, "a bool", type(value).__name__)
        return bool(value)

    def arange(self, count: int) -> Any:
        """0 .. count - 1."""
        if type(count) is int:  # not a symbolic int of torch.export
            arguments.check_byte_count(self.function, (count,), 8)
        if self.is_torch:
            return self._beside(self.xp.arange(count, device=self.device))
        return np.arange(count, dtype=np.int64)

    def constant(self, values: list[float] | npt.NDArray[np.float64]) -> Any:
        """A list or an array of numbers in float64, not to be written to."""
        if self.is_torch:  # as_tensor: torch.compile refuses to copy a tensor by `tensor`
            numbers = self.xp.as_tensor(values, dtype=self.float64, device=self.device)
            return self._beside(numbers)
        return np.array(values, np.float64)

    def one(self, argument: str, value: Any) -> Any:
        """The magnitude of a parameter with a single number, float64 []."""
        if arguments.is_array(value):
            parameter = self.parameter(argument, value)
            if tuple(parameter.shape) not in ((), (1,)):
                wrong_value(self.function, argument, "one number", f"shape {list(parameter.shape)}")
            return abs(parameter.reshape(()))
        number = arguments.positive_number(self.function, argument, value)
        if self.is_torch:
            return self._beside(self.xp.full((), number, dtype=self.float64, device=self.device))
        return np.float64(number)

    def positions(self, argument: str, value: Any) -> Any:
        """Positions in their own dtype, if it is allowed; an int n is 0 .. n - 1."""
        if arguments.is_count(value):
            return self.arange(arguments.length(self.function, argument, value))
        if not is_tensor(value):
            value = arguments.as_positions(self.function, value, argument)
        arguments.check_position_dtype(self.function, argument, value.dtype)
        return self._read(argument, value, arguments.POSITION_DTYPES)

    def points(self, argument: str, value: Any) -> Any:
        """Positions in float64."""
        return self.wide(self.positions(argument, value))

    def since(self, argument: str, points: Any, origin: int) -> Any:
        """Positions less an origin: integers exactly, in int64; others in float64."""
        if origin == 0:
            return points
        if arguments.dtype_name(points.dtype) not in arguments.INTEGER_DTYPES:
            return self.wide(points) - float(origin)
        seen = self.seen(points)
        if seen is not None and seen.size:
            for extreme in (int(seen.min()), int(seen.max())):
                if not -(2**63) <= extreme - origin < 2**63:
                    expected = f"positions within 2^63 of the origin, {origin}"
                    wrong_value(self.function, argument, expected, extreme)
        return self.whole(points) - origin  # uint64 wraps around, and back

    def integers(self, argument: str, value: Any, dtypes: tuple[str, ...]) -> Any:
        """An argument of these dtypes as int64; larger values become the largest int64."""
        integers = self._read(argument, value, dtypes)
        wide = self._cast(integers, self.int64)
        if arguments.dtype_name(integers.dtype) == "uint64":
            wide = self.xp.where(wide < 0, 2**63 - 1, wide)
        return wide

    def broadcast(self, *values: Any) -> Any:
        """Values broadcast to a common shape."""
        if self.is_torch:
            return self.xp.broadcast_tensors(*values)
        return np.broadcast_arrays(*values)

    def floats(self, argument: str, value: Any) -> Any:
        """An argument of floats in its own dtype."""
        return self._read(argument, value, arguments.FLOAT_DTYPES)

    def parameter(self, argument: str, value: Any) -> Any:
        """An argument of floats in float64."""
        return self._cast(self.floats(argument, value), self.float64)

    def table(self, value: Any) -> Any:
        """The argument table in its own dtype, [W, H]."""
        table = self.floats("table", value)
        if table.ndim != 2:
            wrong_value(self.function, "table", "two axes, [rows, H]", list(table.shape))
        return table

    def wide(self, values: Any) -> Any:
        """The values in float64."""
        return self._cast(values, self.float64)

    def whole(self, values: Any) -> Any:
        """The values, bools or numbers, truncated to int64."""
        return self._cast(values, self.int64)

    def real(self, values: Any) -> Any:
        """The values in the dtype for the computation: float64 for float64, otherwise float32."""
        double = self.dtype == self.xp.float64
        return self._cast(values, self.xp.float64 if double else self.xp.float32)

    def index(self, values: npt.NDArray[np.int64]) -> Any:
        """An array of integers as an index, not to be written to."""
        if not self.is_torch:
            return values
        return self._beside(self.xp.as_tensor(values, device=self.device))

    def rounded(self, values: Any) -> Any:
        """The values in the dtype of the result."""
        if self.dtype in (self.xp.float32, self.xp.float64):
            return self._cast(values, self.dtype)
        return self._cast(self._cast(values, self.xp.float32), self.dtype)

    def held(self, argument: str, values: Any) -> Any:
        """The values of an argument as `rounded`; ValueError if that makes a number infinite.

        Checked only if the values can be read without a wait.
        """
        result = self.rounded(values)
        if values.dtype == self.dtype:  # nothing was rounded
            return result
        seen = self.seen(values)
        if seen is not None:
            lost = np.asarray(self.xp.isinf(result) & self.xp.isfinite(values))
            if lost.any():
                half = self.dtype == self.xp.float16
                expected = f"numbers within {'65504' if half else '3.4e+38'} for this dtype"
                wider = "bfloat16 or float32" if half else "float64"
                got = f"{seen[lost][0]:g}"
                wrong_value(self.function, argument, expected, got, f"write dtype={wider}")
        return result

    @property
    def readable(self) -> bool:
        """Whether elements can be read without a wait: not on a GPU, not under tracing."""
        if not self.is_torch:
            return True
        from .following import tracing

        return self.device is None or (self.device.type == "cpu" and not tracing())

    def seen(self, values: Any) -> npt.NDArray[Any] | None:
        """The values as an array if they can be read without a wait, otherwise None."""
        if not self.is_torch:
            return np.asarray(values)
        seen: npt.NDArray[Any] | None = values.detach().numpy() if readable(values) else None
        return seen

    def through(self, values: Any, rounding: str | None) -> Any:
        """Values rounded to a format and converted back to float64."""
        if rounding is None:
            return values
        narrow = self._cast(values, self.xp.float32)
        if rounding == "bfloat16":
            narrow = narrow.to(self.xp.bfloat16) if self.is_torch else _to_bfloat16(narrow)
        return self._cast(narrow, self.float64)

    def float32_powers(self, base: float, exponents: list[int]) -> Any:
        """Powers of a number in float32, computed as in transformers."""
        if self.is_torch:
            options = {"device": self.device}
            single = self.xp.full((), base, dtype=self.xp.float32, **options)
            powers = self.xp.tensor(exponents, dtype=self.xp.int32, **options)
            return self._cast(self.xp.pow(single, powers), self.float64)
        single = float(np.float32(base))
        return np.array([single**e for e in exponents]).astype(np.float32).astype(np.float64)

    def running_max(self, values: Any) -> Any:
        """The largest value so far, along the last axis."""
        if not self.is_torch:
            return np.maximum.accumulate(values, -1)
        axis = values.ndim - 1
        if self._mesh is None:
            return values.cummax(axis).values
        from torch.distributed.tensor import Replicate

        from .torch.sharded.cut import elementwise

        # torch's rule for DTensors gathers rows that are cut into uneven parts.
        placements = [Replicate() if p.is_shard(axis) else p for p in values.placements]
        rows = values.redistribute(placements=placements)
        return elementwise(lambda part: part.cummax(axis).values, rows)

    def largest_of_each(self, values: Any, numbers: Any, count: int, least: int) -> Any:
        """The largest of values [t] for each of their numbers [t], 0 .. count - 1, or `least`."""
        if self.is_torch:
            return values.new_full((count,), least).scatter_reduce(0, numbers, values, "amax")
        largest = np.full(count, least)
        np.maximum.at(largest, numbers, values)
        return largest

    def steps(self, steps: list[int], values: Any) -> Any:
        """The number of ascending steps at or below each value, int64."""
        if not self.is_torch:
            return at_or_below(np.array(steps), values)
        bounds = self.xp.tensor(steps, device=self.device)
        if self._mesh is None:
            return at_or_below(bounds, values)
        from .torch.sharded.cut import elementwise

        return elementwise(lambda x: at_or_below(bounds, x), values)  # torch has no DTensor rule

    def _cast(self, values: Any, dtype: Any) -> Any:
        if self.is_torch:
            return values.to(dtype)
        with np.errstate(over="ignore"):  # gives infinity, as in torch
            return values.astype(dtype)

    def _beside(self, tensor: Any) -> Any:
        """A tensor beside DTensors, marked for torch as the same on every rank."""
        if self._mesh is None:
            return tensor
        from .torch.sharded.cut import summed

        return summed(tensor, self._mesh)

    def _read(self, argument: str, value: Any, dtypes: tuple[str, ...]) -> Any:
        if is_tensor(value):
            arguments.check_dtype(self.function, argument, value.dtype, dtypes)
            return self._beside(value)
        array = arguments.as_array(self.function, argument, value)
        arguments.check_dtype(self.function, argument, array.dtype, dtypes)
        if not self.is_torch:
            return array
        if array.dtype.char in "qQ":  # NumPy has two names for 64-bit integers; torch knows one
            array = array.view(np.dtype(array.dtype.name))
        return self._beside(self.xp.tensor(array, device=self.device))

    def _common_device(self, tensors: dict[str, Any], device: Any) -> Any:
        """The common device of all tensors and the requested device, if any; "cuda" is any GPU."""
        for argument, tensor in tensors.items():
            here = tensor.device
            if device is None or (device.index is None and device.type == here.type):
                device = here
            elif here != device:
                wrong_value(self.function, argument, f"a tensor on {device}", f"a tensor on {here}")
        return device

    def _result_dtype(self, dtype: Any) -> Any:
        if dtype is None:
            return self.xp.float32
        if not is_torch_dtype(dtype):
            dtype = arguments.as_dtype(self.function, dtype)
        arguments.check_dtype(self.function, "dtype", dtype, arguments.FLOAT_DTYPES)
        return getattr(self.xp, arguments.dtype_name(dtype)) if self.is_torch else dtype


def _to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round to the nearest bfloat16, ties to even, in a float32 array: NumPy has no bfloat16."""
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded: npt.NDArray[np.uint32] = (bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)
