"""Checks of calls on NumPy arrays, and rounding and storing of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments, memory
from posenc_native.core.calls.arguments import wrong_type, wrong_value

Array = npt.NDArray[Any]
# Memory for results: new arrays (False), the inputs (True), or other arrays.
To = bool | tuple[Any, ...]


def store(result: Array, out: Array | None) -> Array:
    """The result, in `out` unless that is None."""
    if out is None:
        return result
    out[...] = result
    return out


def check_array(
    function: str, argument: str, value: object, dtypes: tuple[str, ...] | None
) -> None:
    """TypeError unless it is an array, of these dtypes if there are any."""
    if not isinstance(value, np.ndarray):
        wrong_type(function, argument, "a NumPy array", type(value).__name__)
    if dtypes is not None:
        arguments.check_dtype(function, argument, value.dtype, dtypes)


def check_float_array(function: str, argument: str, value: object) -> None:
    """TypeError unless it is an array of floats."""
    check_array(function, argument, value, arguments.FLOAT_DTYPES)


def position_array(function: str, positions: object, row_bytes: int = 1) -> Array:
    """Positions as an array; an int n means 0 .. n-1. A position adds row_bytes to the result."""
    if isinstance(positions, (int, np.integer)):
        count = arguments.size(function, "positions", positions)
        arguments.check_byte_count(function, (count, 8), max(row_bytes, 1))
        return np.arange(count, dtype=np.int64)
    if not isinstance(positions, np.ndarray):
        wrong_type(function, "positions", "an int or an array", type(positions).__name__)
    arguments.check_position_dtype(function, "positions", positions.dtype)
    if positions.dtype.kind == "f" and not np.all(np.abs(positions) < 2.0**63):
        wrong_value(function, "positions", "finite values of magnitude below 2^63", "larger or NaN")
    return positions


def table_dtype(function: str, dtype: npt.DTypeLike | None, out: Array | None) -> np.dtype[Any]:
    """Dtype of a table: the requested dtype, otherwise that of out, otherwise float32."""
    if dtype is not None:
        result = np.dtype(dtype)
    elif isinstance(out, np.ndarray):
        result = out.dtype
    else:
        result = np.dtype(np.float32)
    arguments.check_dtype(function, "dtype", result, arguments.FLOAT_DTYPES)
    return result


def check_out(
    function: str,
    out: object,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    inputs: Sequence[Array | None],
    replaceable: Array | None = None,
    name: str = "out",
) -> None:
    """Check the output: it may be `replaceable` itself but must overlap no other input."""
    if out is None:
        return
    if not isinstance(out, np.ndarray):
        wrong_type(function, name, "a NumPy array", type(out).__name__)
    if out.dtype != dtype:
        wrong_type(function, name, f"dtype {dtype}", out.dtype)
    arguments.check_shape(function, name, out.shape, shape)
    if replaceable is not None and not _same_memory(out, replaceable):
        inputs = [*inputs, replaceable]
    check_writable(function, name, out, inputs)


def check_writable(
    function: str, argument: str, array: Array, inputs: Sequence[Array | None]
) -> None:
    """ValueError unless results can be stored there: writable memory that no input shares."""
    if not array.flags.writeable:
        wrong_value(function, argument, "a writable array", "a read-only one")
    if not memory.distinct_elements(array.itemsize, array.shape, array.strides):
        got = f"strides {list(array.strides)}"
        wrong_value(function, argument, "separate memory for every element", got)
    if any(other is not None and np.shares_memory(array, other) for other in inputs):
        wrong_value(function, argument, "no partial overlap with an input", "shared memory")


def check_outputs(
    function: str, inputs: dict[str, Array], to: To, read: Sequence[Array | None], count: int = 2
) -> Sequence[Array | None]:
    """The outputs for the first `count` inputs: each in place, or in memory shared with nothing.

    None stands for a new array.
    """
    if not to:
        return [None] * count
    outs = to if isinstance(to, tuple) else tuple(inputs.values())[:count]
    for i, (out, (name, x)) in enumerate(zip(outs, inputs.items(), strict=False)):
        others = [other for other_name, other in inputs.items() if other_name != name]
        if out is x:
            check_writable(function, name, x, [*others, *read])
        else:
            called = "out" if count == 1 else f"out[{i}]"
            apart = [*others, *read, *outs[:i]]
            check_out(function, out, x.shape, x.dtype, apart, replaceable=x, name=called)
    return outs


def _same_memory(a: Array, b: Array) -> bool:
    """Whether two views of equal shape and dtype have the same memory in the same order."""
    return a.ctypes.data == b.ctypes.data and all(
        length == 1 or a_stride == b_stride
        for length, a_stride, b_stride in zip(a.shape, a.strides, b.strides, strict=True)
    )
