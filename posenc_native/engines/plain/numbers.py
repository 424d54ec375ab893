"""The operations that NumPy and torch spell differently."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from posenc_native.core.calls.arguments import dtype_name, is_tensor


def of(x: Any) -> Any:
    """The namespace of an array: numpy or torch."""
    if not is_tensor(x):
        return np
    import torch

    return torch


def floating(x: Any) -> bool:
    """Whether the elements are floats."""
    return "float" in dtype_name(x.dtype)


def arange(count: Any, like: Any) -> Any:
    """0 .. count - 1 as int64, on the device of another array."""
    xp = of(like)
    return np.arange(count) if xp is np else xp.arange(count, device=like.device)


def zeros(shape: tuple[Any, ...], like: Any) -> Any:
    """Zeros with the dtype and device of another array."""
    return np.zeros(shape, like.dtype) if of(like) is np else like.new_zeros(shape)


def beside(x: Any, like: Any) -> Any:
    """x on the device of another array."""
    return x if of(x) is np else x.to(like.device)


def cast(x: Any, dtype: Any) -> Any:
    """x in another dtype, rounded once."""
    if of(x) is not np:
        return x.to(dtype)
    return round_once(x, np.dtype(dtype)) if x.dtype == np.float64 else x.astype(dtype)


def real(x: Any) -> Any:
    """x in the precision of results: float32, or float64 for float64."""
    xp = of(x)
    return cast(x, xp.float64 if x.dtype == xp.float64 else xp.float32)


def wide(x: Any) -> Any:
    """x in the precision of sums: float64 in NumPy; as `real` in torch, for memory and for MPS."""
    return x.astype(np.float64) if of(x) is np else real(x)


def whole(integers: Any) -> Any:
    """Integers of any dtype as int64; 2^63 and more as the largest."""
    xp = of(integers)
    int64 = cast(integers, xp.int64)
    if dtype_name(integers.dtype) != "uint64":
        return int64
    return xp.where(int64 < 0, 2**63 - 1, int64)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)"""
    return 1 / np.sqrt(x) if of(x) is np else x.rsqrt()


def sums_by(index: Any, values: Any, count: int) -> Any:
    """Sums [..., count] of values [..., n] by their index [..., n]."""
    shape = (*values.shape[:-1], count)
    if of(values) is not np:
        return zeros(shape, values).scatter_add(-1, index, values)
    first = count * np.arange(math.prod(shape[:-1])).reshape(*shape[:-1], 1)
    sums = np.bincount((first + index).ravel(), values.ravel(), math.prod(shape))
    return sums.reshape(shape)


def at_or_below(bounds: Any, values: Any) -> Any:
    """The number of ascending bounds [n] at or below each value, int64."""
    xp = of(values)
    if xp is np:
        return np.asarray(np.searchsorted(bounds, values, side="right"), np.int64)
    if in_onnx(values):  # which has no search
        return (bounds <= values[..., None]).sum(-1)
    return xp.searchsorted(bounds, values.contiguous(), side="right")


def take(x: Any, index: Any, axis: int = -1) -> Any:
    """Elements of x along an axis."""
    return np.take_along_axis(x, index, axis) if of(x) is np else x.gather(axis, index)


def readable(*arrays: Any) -> bool:
    """Whether values can be read: arrays, and plain tensors on the CPU if nothing is traced.

    On other devices, reading would wait for them; there an invalid value gives a wrong result.
    """
    tensors = [x for x in arrays if is_tensor(x)]
    if not tensors:
        return True
    from torch import Tensor

    from posenc_native.engines.following import tracing

    return not tracing() and all(type(x) is Tensor and x.is_cpu for x in tensors)


def in_onnx(x: Any) -> bool:
    """Whether x is a tensor of a model that is exported to ONNX."""
    if not is_tensor(x):
        return False
    from posenc_native.engines.following import exports_to_onnx

    return exports_to_onnx()


def factor_of(x: Any, number: float) -> Any:
    """A number to multiply x by. torch's export to ONNX rounds those of Python to float32."""
    if not in_onnx(x):
        return number
    xp = of(x)
    return xp.tensor(number, dtype=x.dtype, device=x.device)


def followed(x: Any) -> bool:
    """Whether derivatives by x may be needed: by autograd, forward mode or torch.func."""
    if not is_tensor(x) or not floating(x) or in_onnx(x):
        return False
    from posenc_native.engines.following import needs_function

    return needs_function(x)


def round_once(values: Any, dtype: np.dtype[Any]) -> Any:
    """Values rounded to the nearest of dtype, ties to even."""
    with np.errstate(over="ignore", invalid="ignore"):
        exact_enough = _round_to_odd(values) if dtype.name == "bfloat16" else values
        rounded: Any = exact_enough.astype(dtype)
        return rounded


def _round_to_odd(values: Any) -> Any:
    """Round to float32 toward zero, last bit set if inexact: bfloat16 then rounds only once."""
    nearest = values.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= np.abs(nearest) > np.abs(values)
    bits |= nearest != values
    return nearest
