"""Checks of arguments that need only numbers, names and shapes.

Nothing here touches the elements of an array. Calls on arrays and on tensors therefore share these
checks and raise the same errors: "<function>: <argument>: expected <this>, got <that>". A wrong
value, shape or name is a ValueError; a wrong type or dtype is a TypeError.
"""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Collection
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np

from .errors import Fault, error_of, names_like

FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")

FREQUENCY_DTYPES = ("float32", "float64")

INTEGER_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

POSITION_DTYPES = (*INTEGER_DTYPES, "float32", "float64")

SINUSOIDAL_LAYOUTS = ("interleaved", "sin_cos", "cos_sin")

# Radians per position; positions have the same limit, so phases fit into 128 bits.
FREQUENCY_LIMIT = 2.0**63

SMALLEST_BASE = sys.float_info.min  # a subnormal number has fewer digits than its logarithm needs


# Limits for numbers that alone decide how much is computed, so that a slip (dim=2**40) is an error
# at once, even if memory could hold the result. A number that is a size of the result needs no
# limit: NumPy or torch fails to allocate the result before any work.
WIDTH_LIMIT = 2**16  # dims whose frequencies a formula makes: 70 digits, 5 microseconds a pair
HEAD_LIMIT = 2**16  # heads whose numbers a formula makes; models have up to 256


def one_of(shape: Any, allowed: Any) -> bool:
    """Whether a shape, or a size, is one of those allowed.

    `in` would not do: torch.compile does not find a symbolic length in a tuple of lengths.
    """
    if not isinstance(shape, tuple):
        return any(shape == size for size in allowed)
    return any(
        len(shape) == len(expected) and all(n == m for n, m in zip(shape, expected, strict=True))
        for expected in allowed
    )


def wrong_value(
    function: str, argument: str, expected: str, got: object, hint: str = ""
) -> NoReturn:
    """Raise the ValueError for an argument whose value, shape or name is wrong."""
    raise error_of(ValueError, Fault(function, argument, expected, _shown(got), hint))


def wrong_type(
    function: str, argument: str, expected: str, got: object, hint: str = ""
) -> NoReturn:
    """Raise the TypeError for an argument whose type or dtype is wrong."""
    raise error_of(TypeError, Fault(function, argument, expected, _shown(got), hint))


_LONG = 10**15  # from here on, numbers are shown with six digits


def _shown(got: object) -> str:
    """A value as errors show it; very long text is cut."""
    if type(got) is list and len(got) <= 64 and all(type(number) is int for number in got):
        return f"[{', '.join(map(_shown, got))}]"  # a shape
    try:
        if type(got) is int and abs(got) >= _LONG:
            text = f"{float(got):g}" if got.bit_length() < 1000 else f"{Decimal(got):.6g}"
        else:
            text = str(got)
    except (ValueError, RecursionError):  # an int of thousands of digits; lists of lists of ...
        text = f"a {type(got).__name__} that is too long to write down"
    return text if len(text) <= 1000 else f"{text[:1000]} ..."


def dtype_name(dtype: object) -> str:
    """Name of a NumPy or torch dtype: ``"float32"``, ``"bfloat16"``, ``"int64"`` ..."""
    return str(dtype).removeprefix("torch.")


def as_array(function: str, argument: str, value: Any) -> np.ndarray[Any, Any]:
    """The value as a plain NumPy array; an array of any library is read without a copy.

    `np.asarray` reads subclasses of NumPy's arrays (memmap, matrix) and objects with ``__array__``
    or a buffer (pandas, xarray, JAX). Objects that have only ``__dlpack__`` are read through it.
    Lists and the like become an array.

    Raises:
        TypeError: the value is no array; it is on another device, from which it would be copied
            silently; or it has a mask, which would be ignored.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ndarray):
        check_no_mask(function, argument, value)
        return np.asarray(value)
    exchanges = _has(value, "__dlpack__")
    if exchanges:
        _check_on_cpu(function, argument, value)
    check_memory(function, argument, value)
    try:
        if exchanges and not _has(value, *_READ_BY_NUMPY):
            return np.from_dlpack(value)
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        # RuntimeError: a tensor that requires a gradient. BufferError: DLPack of an unknown dtype.
        wrong_type(function, argument, "an array", f"{type(value).__name__}: {error}")


def as_integers(function: str, argument: str, value: Any) -> np.ndarray[Any, Any]:
    """As `as_array`, for integers: an empty list, which NumPy reads as float64, is int64."""
    array = as_array(function, argument, value)
    return array.astype(np.int64) if isinstance(value, (list, tuple)) and not array.size else array


def check_no_mask(function: str, argument: str, value: object) -> None:
    """TypeError for a masked array: reading or writing it would ignore its mask."""
    # If numpy.ma is not imported, there are no masked arrays; this check does not import it.
    if "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray):
        wrong_type(function, argument, "an array without a mask", "a masked one; see its filled()")


def is_array(value: object) -> bool:
    """Whether the value is an array of any library; scalars and lists are not."""
    if isinstance(value, np.generic):
        return False
    return isinstance(value, np.ndarray) or _has(value, *_READ_BY_NUMPY, "__dlpack__")


def _has(value: object, *names: str) -> bool:
    """Whether the class has one of these attributes; torch.fx objects claim to have any name."""
    return any(hasattr(type(value), name) for name in names)


def as_numbers(function: str, argument: str, value: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """As `as_array`, for real numbers of any dtype; the result is float64."""
    array = as_array(function, argument, value)
    if array.dtype.kind not in "cSUMm":  # NumPy would drop a part, or read text
        try:
            return np.asarray(array, np.float64)
        except (TypeError, ValueError):
            pass
    wrong_type(function, argument, "real numbers", array.dtype)


def as_positions(
    function: str, value: Any, argument: str = "positions", an_int: str = "a count"
) -> np.ndarray[Any, Any]:
    """As `as_array`, for positions that are not an int; a single float is refused.

    an_int: the meaning of an int here, for the message.

    Raises:
        TypeError: as `as_array`; also for text, and for one float, which could mean a position or
            an int.
    """
    if isinstance(value, (float, np.floating)):
        expected = f"an int ({an_int}) or an array of positions (write [{value}] for one)"
        if math.isfinite(value) and float(value).is_integer():
            number = _shown(int(value))
            expected = f"{an_int} (write {number}) or positions (write [{value}] for one)"
        wrong_type(function, argument, expected, f"the number {value}")
    if isinstance(value, (str, bytes)):
        expected = "an int or an array of an integer dtype, float32 or float64"
        wrong_type(function, argument, expected, type(value).__name__)
    return as_array(function, argument, value)


def check_position_dtype(function: str, argument: str, dtype: object) -> None:
    """TypeError unless positions may have this dtype, NumPy's or torch's."""
    name = dtype_name(dtype)
    if name in POSITION_DTYPES:
        return
    expected = "an integer dtype, float32 or float64"
    if name in ("float16", "bfloat16"):
        expected += " (16-bit floats cannot tell positions apart)"
    elif name == "bool":
        expected += " (padded_positions makes positions from a mask)"
    wrong_type(function, argument, expected, name)


def as_frequencies(function: str, value: Any) -> np.ndarray[Any, Any]:
    """The argument inv_freq as `as_array`; TypeError for the pair of rotary_frequencies."""
    pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], numbers.Real)
    if pair and not isinstance(value[0], numbers.Real):
        wrong_type(
            function, "inv_freq", "frequencies, the first element of what rotary_frequencies "
            "returns", "the pair (inv_freq, factor)", "write inv_freq[0]",
        )  # fmt: skip
    return as_array(function, "inv_freq", value)


def as_operand(function: str, argument: str, value: Any) -> np.ndarray[Any, Any]:
    """As `as_array`, for an argument that determines the dtype of the result; not a list."""
    if not is_array(value):
        wrong_type(function, argument, "a NumPy array or a torch tensor", type(value).__name__)
    return as_array(function, argument, value)


def in_order(function: str, x: Any, overwritten: bool) -> Any:
    """x as the option contiguous needs it: the result has the strides of x."""
    if overwritten:
        wrong_value(function, "contiguous", "False with inplace or out", True)
    if is_tensor(x):
        return x.contiguous()
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) and x.ndim else x


# How NumPy reads arrays of other libraries: like DLPack without a copy, but with every dtype.
_READ_BY_NUMPY = ("__array__", "__array_interface__", "__array_struct__")

# DLPack's device types for arrays of other libraries; 3 and 11 are host memory.
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
        names: tuple[str, ...] = FLOAT_DTYPES
        hint = ""
        if dtype == "bfloat16":  # NumPy itself has none
            names = tuple(name for name in names if name != dtype)
            hint = "import ml_dtypes for NumPy's bfloat16, or write dtype=torch.bfloat16"
        wrong_type(function, "dtype", f"one of {', '.join(names)}", repr(dtype), hint)


def is_tensor(value: object) -> bool:
    """Whether the value is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def check_memory(function: str, argument: str, tensor: Any) -> None:
    """ValueError for a tensor without memory for its elements; nothing while torch traces."""
    torch = sys.modules.get("torch")
    if torch is None or torch.compiler.is_compiling():
        return
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cpu:
        return
    try:
        size = tensor.untyped_storage().nbytes()
        last = sum(s * (n - 1) for s, n in zip(tensor.stride(), tensor.shape, strict=True))
    except RuntimeError:  # of torch.func or sparse, without a storage, or nested, without strides
        return
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    if size < needed and tensor.numel():
        got = f"{size} bytes" if size else "one that has been freed"
        wrong_value(function, argument, f"a storage of at least {needed} bytes", got)


def is_torch_dtype(value: object) -> bool:
    """Whether the value is a torch dtype; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.dtype)


def is_symbolic(value: object) -> bool:
    """Whether the value is a symbolic int of torch.export; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.SymInt)


def is_count(value: object) -> bool:
    """Whether the value is an int of Python, NumPy or torch.export, but not a bool."""
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return integer or is_symbolic(value)


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


def check_known_name(
    function: str, argument: str, name: object, names: Collection[str], listed: str
) -> None:
    """As `check_name`, for more names than a message can hold: it shows the nearest three.

    listed: where all names are listed.
    """
    if not isinstance(name, str):
        wrong_type(function, argument, "a str", type(name).__name__)
    if name not in names:
        near = names_like(name, names, cutoff=0.4)
        expected = f"one of the {len(names)} names in {listed}"
        if near:
            expected = f"one of {', '.join(near)} or other names in {listed}"
        wrong_value(function, argument, expected, repr(name))


def check_shape(
    function: str, argument: str, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """ValueError unless the two shapes are equal."""
    if tuple(shape) != tuple(expected):
        wrong_value(function, argument, f"shape {list(expected)}", list(shape))


def check_row_positions(function: str, shape: tuple[int, ...], x_shape: tuple[int, ...]) -> None:
    """ValueError unless positions are [seq], or one for each row of x [..., seq, dim].

    Axes of size 1 before the last broadcast.
    """
    *leading, length = rows = list(x_shape[:-1])
    full = len(shape) == len(rows) and all(
        n in (1, m) for n, m in zip(shape[:-1], leading, strict=True)
    )
    if shape[-1:] != (length,) or not (full or len(shape) == 1):
        wrong_value(
            function, "positions",
            f"shape [seq] = {[length]} or x.shape[:-1] = {rows} (any axis except seq may be 1)",
            list(shape),
        )  # fmt: skip


def check_heads(function: str, heads: tuple[int, ...], leading: tuple[int, ...]) -> None:
    """ValueError unless the leading axes of diagonals, heads last, fit those of the scores.

    Batch axes may be missing or of size 1; the axis of heads may not.
    """
    matches = len(heads) <= len(leading) and all(
        size == of_call or (size == 1 and i > 0)
        for i, (size, of_call) in enumerate(zip(heads[::-1], leading[::-1], strict=False))
    )
    if not matches:
        expected = f"the leading axes of the scores, heads last: {list(leading)}"
        wrong_value(function, "diagonals", expected, list(heads))


def check_offset_shape(function: str, shape: tuple[int, ...], leading: tuple[int, ...]) -> None:
    """ValueError unless the shape of q_offset begins the leading axes."""
    if shape != leading[: len(shape)]:
        expected = f"the first sizes of {list(leading)}"
        wrong_value(function, "q_offset", expected, f"shape {list(shape)}")


def check_byte_count(function: str, shape: tuple[int, ...], item_size: int) -> None:
    """ValueError if a result of this shape has more bytes than any array can have."""
    if math.prod(shape) * item_size >= 2**63:
        wrong_value(function, "result", "a shape of fewer than 2^63 bytes", list(shape))


def size(function: str, argument: str, value: object) -> int:
    """The value as a Python int; it must be an integer >= 0, not a bool."""
    if isinstance(value, bool):
        wrong_type(function, argument, "an int", "bool")
    try:
        result = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        wrong_type(function, argument, "an int", type(value).__name__)
    if not 0 <= result < 2**63:
        wrong_value(function, argument, "an int in 0 .. 2^63 - 1", result)
    return result


def plain(value: Any) -> Any:
    """A NumPy scalar, or a tensor or array without axes, as a Python number."""
    return value.item() if getattr(value, "shape", None) == () else value


def length(function: str, argument: str, value: object) -> int:
    """As `size`, but torch.compile and torch.export may keep it symbolic.

    They treat a `size` as a constant.
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
    """The value as a float; it must be a finite real number, not a bool."""
    if type(value) is float and -math.inf < value < math.inf:
        return value  # nearly always; the check of numbers.Real takes ten times as long
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        wrong_type(function, argument, "a real number", type(value).__name__)
    try:
        result = float(value)
    except OverflowError:  # an int or a fraction beyond 2^1024
        result = math.inf
    if not -math.inf < result < math.inf:  # written so that torch.compile can follow
        wrong_value(function, argument, "a finite number", result)
    return result


def positive_number(function: str, argument: str, value: object) -> float:
    """The value as a float; it must be a finite real number above 0."""
    result = finite_number(function, argument, value)
    if result <= 0:
        wrong_value(function, argument, "a number > 0", result)
    return result


def factor(function: str, argument: str, value: object, dtype: object) -> float:
    """The argument by which a result of this dtype, NumPy's or torch's, is multiplied.

    All dtypes except float64 are computed in float32, so the factor must be finite there too: 1e300
    would become infinity, and its product with 0 NaN.
    """
    result = finite_number(function, argument, value)
    if not -FLOAT32_END < result < FLOAT32_END and dtype_name(dtype) != "float64":
        wrong_value(function, argument, "a finite number in float32", result)
    return result


FLOAT32_END = 2.0**128 - 2.0**103  # the smallest number that rounds to infinity in float32


def width(function: str, argument: str, value: object) -> int:
    """The number of dims whose frequencies a formula makes: even, at most `WIDTH_LIMIT`."""
    result = even_size(function, argument, value)
    if result > WIDTH_LIMIT:
        wrong_value(function, argument, f"an even int in 0 .. {WIDTH_LIMIT}", result)
    return result


def head_count(function: str, argument: str, value: object) -> int:
    """The number of heads whose numbers a formula makes: at most `HEAD_LIMIT`."""
    result = size(function, argument, value)
    if result > HEAD_LIMIT:
        wrong_value(function, argument, f"an int in 0 .. {HEAD_LIMIT}", result)
    return result


def numpy_generator(function: str, generator: object) -> np.random.Generator:
    """The argument generator: a NumPy generator; None makes a new one."""
    if generator is None:
        return np.random.default_rng()
    if not isinstance(generator, np.random.Generator):
        wrong_type(function, "generator", "a numpy.random.Generator", type(generator).__name__)
    return generator


def frequency_parameters(
    function: str, dim: object, base: object, shift: object, scale: object = 1.0
) -> tuple[int, float, float, float]:
    """``(dim, base, shift, scale)`` for ``scale * base ** (-i / (dim / 2 - shift))``, checked."""
    checked_dim = size(function, "dim", dim)
    if checked_dim % 2:
        wrong_value(function, "dim", "an even int", dim, odd_width(checked_dim, shift))
    checked_base = positive_number(function, "base", base)
    if checked_base < SMALLEST_BASE:
        wrong_value(function, "base", f"a number >= {SMALLEST_BASE}", checked_base)
    checked_shift = finite_number(function, "shift", shift)
    pairs = checked_dim // 2
    if checked_dim and checked_shift >= pairs:
        wrong_value(function, "shift", f"a number < dim / 2 = {pairs}", checked_shift)
    if pairs > 1 and not abs(math.log(checked_base) / (pairs - checked_shift)) < 700.0:
        expected = "a ratio of neighboring frequencies below e^700"
        wrong_value(function, "shift", expected, checked_shift)
    checked_scale = finite_number(function, "scale", scale)
    # Frequencies rise or fall along the pairs, so the two ends bound them all.
    power = -math.log(checked_base) * (pairs - 1) / (pairs - checked_shift) if pairs > 1 else 0.0
    largest = math.exp(max(power, 0.0)) if power < 709.0 else math.inf
    if not abs(checked_scale) * largest < FREQUENCY_LIMIT:
        expected = "frequencies scale * base^(-i / (dim/2 - shift)) below 2^63"
        wrong_value(function, "scale", expected, f"scale = {checked_scale}, base = {checked_base}")
    return checked_dim, checked_base, checked_shift, checked_scale


def odd_width(dim: int, shift: object = 0.0) -> str:
    """The suggestion for an odd width of a sinusoidal table."""
    pairs = shift if isinstance(shift, (int, float)) else 0
    whose = "" if pairs else ", as PyTorch's tutorial does"
    return (
        f'SinusoidalSpec({dim}, remainder="cut", shift={0.5 + pairs:g}) cuts the last cosine{whose}'
        '; other remainders are "zeros" and "drop"'
    )


def check_sinusoidal_layout(function: str, layout: object) -> None:
    """ValueError unless the layout of a sinusoidal table is one of the three known layouts."""
    check_name(function, "layout", layout, SINUSOIDAL_LAYOUTS)
