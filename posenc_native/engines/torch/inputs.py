"""Arguments for the operators: tensors on one device, other values in the schema's types."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.rotation import Rotation
from posenc_native.core.calls.suggestions.vocabulary import value_hint
from posenc_native.core.calls.views import PAIRINGS
from posenc_native.engines.distances import Lengths

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGER_DTYPES = (
    torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


def diagonals_tensor(diagonals: Any, device: torch.device) -> Tensor:
    """An array of diagonals as a tensor on the device."""
    function = "add_toeplitz_bias"
    arguments.check_dtype(function, "diagonals", diagonals.dtype, arguments.FLOAT_DTYPES)
    if arguments.dtype_name(diagonals.dtype) == "bfloat16":  # torch cannot read NumPy's bfloat16
        return torch.as_tensor(diagonals.astype(np.float32), device=device)
    return from_array(diagonals, device)


def grid_arguments(
    q_len: Lengths, k_len: Lengths, start: Lengths | None, q_offset: Tensor | None
) -> tuple[Any, ...]:
    """A `Grid` for the operators, which read the lengths of plain matrices from the tensors.

    A compiled call is therefore valid for every length.
    """
    starts = None if start is None else list(start)
    if len(q_len) == 1:
        return None, None, starts, q_offset
    return list(q_len), list(k_len), starts, q_offset


def integer_tensor(function: str, argument: str, value: Any, device: torch.device) -> Any:
    """A tensor of integers; arrays are moved to the device, tensors must be on it."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        array = arguments.as_integers(function, argument, value)
        arguments.check_dtype(function, argument, array.dtype, arguments.INTEGER_DTYPES)
        return from_array(array, device)
    if value.dtype not in INTEGER_DTYPES:
        arguments.check_dtype(function, argument, value.dtype, arguments.INTEGER_DTYPES)
    return value


def check_floats(function: str, argument: str, tensor: Tensor) -> None:
    """TypeError unless the tensor has a dtype of FLOAT_DTYPES."""
    if tensor.dtype not in FLOAT_DTYPES:
        arguments.check_dtype(function, argument, tensor.dtype, arguments.FLOAT_DTYPES)


def position_tensor(function: str, positions: Any, device: Any) -> Tensor:
    """Positions as a tensor on the device; an int n means 0 .. n - 1."""
    if isinstance(positions, Tensor):
        if device is not None and positions.device != torch.device(device):
            wrong_value(function, "positions", f"a tensor on {device}", positions.device)
        return positions
    if arguments.is_count(positions):
        count = arguments.length(function, "positions", positions)
        arguments.check_byte_count(function, (count,), 8)
        return torch.arange(count, device=device)
    array = arguments.as_positions(function, positions)
    arguments.check_position_dtype(function, "positions", array.dtype)
    return from_array(array, device)


def from_array(array: Any, device: Any) -> Tensor:
    """A copy as a tensor, which cannot share memory that is read-only or has negative strides."""
    copy = np.array(array)
    # NumPy has two names for 64-bit integers; torch knows one of them.
    return torch.as_tensor(copy.view(np.dtype(copy.dtype.name)), device=device)


def frequency_tensors(
    function: str, like: Tensor, inv_freq: Any, axis_map: Any
) -> tuple[Tensor, Tensor | None]:
    """inv_freq and axis_map on the device of `like`; arrays are moved, tensors must be on it."""
    if not isinstance(inv_freq, Tensor):
        array = arguments.as_frequencies(function, inv_freq)
        arguments.check_dtype(function, "inv_freq", array.dtype, arguments.FREQUENCY_DTYPES)
        inv_freq = from_array(array, like.device)
    if axis_map is not None and not isinstance(axis_map, Tensor):
        array = arguments.as_array(function, "axis_map", axis_map)
        arguments.check_dtype(function, "axis_map", array.dtype, arguments.INTEGER_DTYPES)
        axis_map = from_array(array, like.device)
    same_device(function, like, inv_freq=inv_freq, axis_map=axis_map)
    return inv_freq, axis_map


def same_device(function: str, x: Tensor, **others: Tensor | None) -> None:
    """ValueError unless all tensors are on the device of x."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != x.device:
            wrong_value(function, name, f"a tensor on {x.device}", tensor.device)


def composable(function: str, **tensors: Tensor | None) -> None:
    """ValueError unless all are on the device of the first, with memory for their elements.

    Operators check this themselves.
    """
    device = next(t.device for t in tensors.values() if t is not None)
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.device != device:
            wrong_value(function, name, f"a tensor on {device}", tensor.device)
        arguments.check_memory(function, name, tensor)


def table_dtype(function: str, dtype: Any, out: Tensor | None) -> torch.dtype:
    """The requested dtype, of NumPy or torch; by default that of `out`, or float32."""
    if dtype is None:
        if out is not None and out.dtype not in FLOAT_DTYPES:
            arguments.check_dtype(function, "out", out.dtype, arguments.FLOAT_DTYPES)
        return torch.float32 if out is None else out.dtype
    if not isinstance(dtype, torch.dtype):
        name = str(arguments.as_dtype(function, dtype))
        if name not in arguments.FLOAT_DTYPES:
            arguments.check_dtype(function, "dtype", name, arguments.FLOAT_DTYPES)
        dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    if dtype not in FLOAT_DTYPES:
        arguments.check_dtype(function, "dtype", dtype, arguments.FLOAT_DTYPES)
    if out is not None and out.dtype != dtype:
        wrong_type(function, "out", f"the dtype asked for, {dtype}", out.dtype)
    return dtype


def table_spec(
    function: str, base: float, layout: str, shift: float, scale: float
) -> tuple[float, str, float, float]:
    """base, layout, shift and scale in the schema's types."""
    if not isinstance(layout, str):
        wrong_type(function, "layout", "a str", type(layout).__name__)
    base, shift, scale = (
        arguments.finite_number(function, name, value)
        for name, value in (("base", base), ("shift", shift), ("scale", scale))
    )
    return base, layout, shift, scale


def of_schema(function: str, rotation: Rotation) -> Rotation:
    """The rotation with layout, pairings and rotary_start in the schema's types."""
    layout, rotary_start, out_pairing = rotation.layout, rotation.rotary_start, rotation.out_pairing
    if not isinstance(layout, str):
        wrong_type(function, "layout", "a str", type(layout).__name__)
    pairing = _pairing_text(function, "pairing", rotation.pairing)
    if out_pairing != "same":
        out_pairing = _pairing_text(function, "out_pairing", out_pairing)
    if isinstance(rotary_start, bool) or not isinstance(rotary_start, (int, np.integer)):
        wrong_type(function, "rotary_start", "an int", type(rotary_start).__name__)
    if not 0 <= rotary_start < 2**63:
        wrong_value(function, "rotary_start", "an int in 0 .. 2^63 - 1", rotary_start)
    return rotation._replace(
        pairing=pairing,
        rotary_start=int(rotary_start),
        inverse=bool(rotation.inverse),
        out_pairing=out_pairing,
    )


def _pairing_text(function: str, argument: str, pairing: Any) -> str:
    if not isinstance(pairing, str):
        return str(arguments.size(function, argument, pairing))
    if pairing not in PAIRINGS:
        same = "'same', " if argument == "out_pairing" else ""
        expected = f"{same}'half', 'interleaved' or an even int"
        wrong_value(function, argument, expected, repr(pairing), value_hint(pairing, PAIRINGS))
    return pairing
