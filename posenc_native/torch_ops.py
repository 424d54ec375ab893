"""Operations on torch tensors: native operators, or a composition of torch operations.

The operators in C++ (``torch.ops.posenc_native.*``) have a schema and kernels for CPU and CUDA,
nothing more. torch_tracing.py lets torch trace and batch them, torch_autograd.py differentiates
them. A call pays for autograd only if a gradient is needed: registered with the dispatcher,
autograd would cost every call several microseconds. The dispatcher itself takes longer than a small
rotation: those that nobody follows are left to the NumPy module (`_small`). Tensors on devices
without a kernel, and all tensors under ``set_backend("reference")``, take the composition
(torch_composed.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import (
    arguments,
    backend,
    buckets,
    reference,
    torch_autograd,
    torch_composed,
    torch_cuda,
    torch_tracing,
)
from .arguments import wrong_type, wrong_value
from .rotary import Rotary
from .torch_autograd import call, functorch_active, needs_grad, raise_ours, transformed

_LIBRARY = backend.torch_library()
if _LIBRARY is not None:
    torch.ops.load_library(str(_LIBRARY))
    torch_tracing.register()
_ops = torch.ops.posenc_native
# Looked up once, functional and in place: they are what decoding calls.
_PAIRS: dict[str, tuple[Any, Any]] = {
    name: (getattr(_ops, name).default, getattr(_ops, f"{name}_").default)
    for name in ("rotary_qk", "rotary_qk_from_tables")
    if _LIBRARY is not None
}

for _constant in (Rotary._prepare, Rotary._differs, buckets.t5_steps, buckets.deberta_steps):
    torch.compiler.assume_constant_result(_constant)
# That of torch.autograd.graph, which calls this one, takes half as long again.
_increment_version = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)

# The NumPy module, if it can read tensors: where torch has the exchange of DLPack 1.3.
# Of a small call it does what an operator does, unless somebody follows what operators do: who
# traces, counts or profiles them (but not ExecutionTraceObserver, which cannot be asked),
# torch.func, forward mode, autograd. It returns NotImplemented then, and where tensors are not
# plain ones on the CPU or are worth several threads.
_small: Any = backend.native
if (
    _LIBRARY is None
    or _small is None
    or not _small.use_tensors(
        Tensor,
        torch.empty_like,
        torch.is_grad_enabled,
        (
            functorch_active,
            torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack,
            torch._C._is_tracing,
            torch._C._autograd._profiler_enabled,
            # With profile_all_threads this one alone knows.
            partial(vars(torch.autograd.profiler).get, "_is_profiler_enabled"),
        ),
        vars(forward_ad),
    )
):
    _small = None
is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_PAIRINGS = ("half", "interleaved")
_FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_INTEGER_DTYPES = (
    torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


# --- Sinusoidal


def sinusoidal(
    positions: Any,
    dim: int,
    base: float,
    layout: str,
    shift: float,
    scale: float,
    dtype: Any,
    device: Any,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.sinusoidal` for tensors."""
    function = "sinusoidal"
    if out is not None:
        if not isinstance(out, Tensor):
            wrong_type(function, "out", "a tensor", type(out).__name__)
        _no_gradient_of_output(function, out)
        device = out.device if device is None else torch.device(device)
        if out.device != device:
            wrong_value(function, "out", f"a tensor on {device}", out.device)
    dtype = _table_dtype(function, dtype, out)
    spec = (dim, base, layout, shift, scale)
    if isinstance(positions, (int, np.integer)):
        count = arguments.size(function, "positions", positions)
        shape = (count, arguments.even_size(function, "dim", dim))
        arguments.check_byte_count(function, shape, dtype.itemsize)
        result = torch.empty(shape, dtype=dtype, device=device) if out is None else out
        if _native(result):  # counts by itself: no positions in memory
            arguments.check_shape(function, "out", result.shape, shape)
            fresh = out is None
            operator = _ops.sinusoidal_out.default
            call(operator, None, *_spec(function, *spec), out=result, fresh=fresh)
            return result if fresh else _written(result)
    positions = _position_tensor(function, positions, device)
    if out is not None:
        _no_output_for_gradient(function, positions)
    if _native(positions, out) and forward_ad._current_level < 0:
        if out is None:
            return torch_autograd.sinusoidal(positions, *_spec(function, *spec), dtype)
        call(_ops.sinusoidal_out.default, positions, *_spec(function, *spec), out=out)
        return _written(out)
    table = torch_composed.sinusoidal(function, positions, spec, dtype)
    return table if out is None else _copy_out(function, out, table, positions)


def add_sinusoidal(
    x: Tensor,
    positions: Any,
    x_scale: float,
    alpha: float,
    base: float,
    layout: str,
    shift: float,
    scale: float,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.add_sinusoidal` for tensors."""
    function = "add_sinusoidal"
    if positions is not None:
        positions = _position_tensor(function, positions, x.device)
    _check_output(function, out, x)
    _same_device(function, x, positions=positions, out=out)
    x_scale = arguments.finite_number(function, "x_scale", x_scale)
    alpha = arguments.finite_number(function, "alpha", alpha)
    if not _native(x, positions, out) or forward_ad._current_level >= 0:
        result = torch_composed.add_sinusoidal(
            function, x, positions, x_scale, alpha, base, layout, shift, scale
        )
        return result if out is None else _copy_out(function, out, result, x, positions)
    options = (x_scale, alpha, *_spec(function, None, base, layout, shift, scale))
    learned = positions is not None and needs_grad(positions)
    return _one_tensor("add_sinusoidal", function, x, (positions, *options), out, learned)


# --- Rotary


def rotary_tables(
    positions: Any, inv_freq: Any, axis_map: Any, scale: float, dtype: Any
) -> tuple[Tensor, Tensor]:
    """`posenc_native.rotary_tables` for tensors."""
    function = "rotary_tables"
    device = next((t.device for t in (positions, inv_freq) if isinstance(t, Tensor)), None)
    positions = _position_tensor(function, positions, device)
    inv_freq, axis_map = _frequency_tensors(function, positions, inv_freq, axis_map)
    dtype = _table_dtype(function, dtype, None)
    scale = arguments.finite_number(function, "scale", scale)
    if inv_freq.ndim != 1:
        wrong_value(function, "inv_freq", "shape [P]", list(inv_freq.shape))
    if not _learned(positions, inv_freq) and _native(positions, inv_freq, axis_map):
        return call(  # type: ignore[no-any-return]
            _ops.rotary_tables.default, positions, inv_freq, axis_map, scale, dtype
        )
    real = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = torch_composed.tables(function, positions, inv_freq, axis_map, real)
    return (cos * scale).to(dtype), (sin * scale).to(dtype)


def apply_rotary(
    x: Tensor,
    positions: Any,
    inv_freq: Any,
    layout: str,
    pairing: str | int,
    rotary_start: int,
    axis_map: Any,
    scale: float,
    inverse: bool,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.apply_rotary` for tensors."""
    function = "apply_rotary"
    if _at_once(x):
        result = _small.apply_rotary(
            x, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse, out
        )
        if result is not NotImplemented:
            return result if out is None else _written(out)
    if positions is not None and not isinstance(positions, Tensor):
        positions = _position_tensor(function, positions, x.device)
    inv_freq, axis_map = _frequency_tensors(function, x, inv_freq, axis_map)
    scale = arguments.finite_number(function, "scale", scale)
    _check_output(function, out, x)
    options = (positions, inv_freq, *_layout(function, layout, pairing, rotary_start), axis_map,
               scale, inverse)  # fmt: skip
    learned = _learned(positions, inv_freq)
    if learned and out is not None:
        _no_output_for_gradient(function, positions, inv_freq)
    native = _native(x, positions, inv_freq, axis_map, out)
    if learned and native and not transformed():
        return torch_autograd.learned_rotary(x, *options)
    if learned or not native:
        _same_device(function, x, positions=positions, out=out)
        (result,) = torch_composed.apply_rotary(function, (x,), options)
        return (
            result
            if out is None
            else _copy_out(function, out, result, x, positions, inv_freq, axis_map)
        )
    return _one_tensor("rotary", function, x, options, out)


def apply_rotary_qk(
    q: Tensor,
    k: Tensor,
    positions: Any,
    inv_freq: Any,
    layout: str,
    pairing: str | int,
    rotary_start: int,
    axis_map: Any,
    scale: float,
    inverse: bool,
    inplace: bool,
) -> tuple[Tensor, Tensor]:
    """`posenc_native.apply_rotary_qk` for tensors."""
    function = "apply_rotary_qk"
    if _at_once(q):
        rotated = _small.apply_rotary_qk(
            q, k, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse,
            inplace,
        )  # fmt: skip
        if rotated is not NotImplemented:
            if inplace:
                _increment_version(rotated)
            return rotated  # type: ignore[no-any-return]
    # The checks here take about as long as the rotation of one token: in the order of what decoding
    # needs, and no more.
    if not isinstance(k, Tensor):
        wrong_type(function, "k", "a tensor, as q is", type(k).__name__)
    if type(inv_freq) is not Tensor or axis_map is not None:
        inv_freq, axis_map = _frequency_tensors(function, q, inv_freq, axis_map)
    if positions is not None and not isinstance(positions, Tensor):
        positions = _position_tensor(function, positions, q.device)
    if (
        type(rotary_start) is not int
        or type(layout) is not str
        or pairing not in _PAIRINGS
        or rotary_start != 0
        or scale != 1.0
    ):
        scale = arguments.finite_number(function, "scale", scale)
        layout, pairing, rotary_start = _layout(function, layout, pairing, rotary_start)
    options = (positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse)
    if (
        (positions is not None and positions.requires_grad)
        or inv_freq.requires_grad
        or transformed()
    ) and _learned(positions, inv_freq):
        return _learned_qk(function, q, k, options, inplace)
    given = 2 if layout == "bhsd" and pairing == "half" else 4
    if rotary_start != 0 or axis_map is not None or scale != 1.0 or inverse:
        given = len(options)
    result = _two_tensors("rotary_qk", q, k, options, given, inplace)
    if result is not None:
        return result
    _same_device(function, q, k=k, positions=positions, inv_freq=inv_freq)
    rotated = torch_composed.apply_rotary(function, (q, k), options)
    return _pair(function, q, k, rotated, inplace, positions, inv_freq, axis_map)


def apply_rotary_tables(
    x: Tensor,
    cos: Any,
    sin: Any,
    layout: str,
    pairing: str | int,
    rotary_start: int,
    inverse: bool,
    compute: str,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.apply_rotary_tables` for tensors."""
    function = "apply_rotary_tables"
    if _at_once(x):
        result = _small.apply_rotary_tables(
            x, cos, sin, layout, pairing, rotary_start, inverse, compute, out
        )
        if result is not NotImplemented:
            return result if out is None else _written(out)
    for name, table in (("cos", cos), ("sin", sin)):
        if not isinstance(table, Tensor):
            wrong_type(function, name, "a tensor, as x is", type(table).__name__)
    _check_output(function, out, x)
    arguments.rounds_as_written(function, compute)
    options = (cos, sin, *_layout(function, layout, pairing, rotary_start), inverse, compute)
    learned = needs_grad(cos, sin)
    if learned or not _native(x, cos, sin, out):
        _same_device(function, x, cos=cos, sin=sin, out=out)
        (result,) = torch_composed.apply_rotary_tables(function, (x,), options)
        return result if out is None else _copy_out(function, out, result, x, cos, sin)
    return _one_tensor("rotary_from_tables", function, x, options, out)


def apply_rotary_qk_tables(
    q: Tensor,
    k: Tensor,
    cos: Any,
    sin: Any,
    layout: str,
    pairing: str | int,
    rotary_start: int,
    inverse: bool,
    compute: str,
    inplace: bool,
) -> tuple[Tensor, Tensor]:
    """`posenc_native.apply_rotary_qk_tables` for tensors."""
    function = "apply_rotary_qk_tables"
    if _at_once(q):
        rotated = _small.apply_rotary_qk_tables(
            q, k, cos, sin, layout, pairing, rotary_start, inverse, compute, inplace
        )
        if rotated is not NotImplemented:
            if inplace:
                _increment_version(rotated)
            return rotated  # type: ignore[no-any-return]
    # As in apply_rotary_qk: what decoding needs, and no more.
    for name, tensor in (("k", k), ("cos", cos), ("sin", sin)):
        if not isinstance(tensor, Tensor):
            wrong_type(function, name, "a tensor, as q is", type(tensor).__name__)
    if (
        type(rotary_start) is not int
        or type(layout) is not str
        or pairing not in _PAIRINGS
        or rotary_start != 0
    ):
        layout, pairing, rotary_start = _layout(function, layout, pairing, rotary_start)
    if compute != "float32":
        arguments.rounds_as_written(function, compute)
    options = (cos, sin, layout, pairing, rotary_start, inverse, compute)
    learned = (cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled()
    if not learned:
        given = 2 if layout == "bhsd" and pairing == "half" else 4
        if rotary_start != 0 or inverse or compute != "float32":
            given = len(options)
        result = _two_tensors("rotary_qk_from_tables", q, k, options, given, inplace)
        if result is not None:
            return result
    _same_device(function, q, k=k, cos=cos, sin=sin)
    rotated = torch_composed.apply_rotary_tables(function, (q, k), options)
    return _pair(function, q, k, rotated, inplace, cos, sin)


# --- Relative


def toeplitz_bias(
    diagonals: Tensor,
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...] | None,
    q_offset: Any,
    dtype: Any,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.toeplitz_bias` for tensors."""
    function = "toeplitz_bias"
    _check_floats(function, "diagonals", diagonals)
    _check_output(function, out, diagonals)
    dtype = diagonals.dtype if dtype is None and out is None else dtype
    dtype = _table_dtype(function, dtype, out)
    q_offset = _integer_tensor(function, "q_offset", q_offset, diagonals.device)
    heads = tuple(diagonals.shape[: diagonals.ndim - len(q_len)])
    if q_offset is not None and q_offset.ndim == 0:
        q_offset = q_offset.expand(heads[:-1])
    leading = (*(heads[:-1] if q_offset is None else tuple(q_offset.shape)), *heads[-1:])
    shape = (*leading, math.prod(q_len), math.prod(k_len))
    arguments.check_byte_count(function, shape, 8)
    options = (q_len, k_len, start, q_offset)
    if not _relative_native(diagonals, q_offset, out):
        _same_device(function, diagonals, q_offset=q_offset, out=out)
        bias = torch_composed.toeplitz_bias(function, diagonals, leading, dtype, *options)
        if out is None:
            return bias
        return _copy_out(function, out, bias, q_offset, apart=diagonals)
    if out is None:
        return torch_autograd.toeplitz_bias(diagonals, shape, dtype, _grid(*options))
    _no_output_for_gradient(function, diagonals)
    arguments.check_shape(function, "out", tuple(out.shape), shape)
    call(_ops.toeplitz_bias_out.default, diagonals, *_grid(*options), out=out)
    return _written(out)


def add_toeplitz_bias(
    scores: Tensor,
    diagonals: Tensor,
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...] | None,
    q_offset: Any,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.add_toeplitz_bias` for tensors."""
    function = "add_toeplitz_bias"
    # As in apply_rotary_qk: what decoding needs, and no more.
    _check_floats(function, "scores", scores)
    _check_floats(function, "diagonals", diagonals)
    if q_offset is not None:
        q_offset = _integer_tensor(function, "q_offset", q_offset, scores.device)
    _check_output(function, out, scores)
    options = (q_len, k_len, start, q_offset)
    if not _relative_native(scores, diagonals, q_offset, out):
        _same_device(function, scores, diagonals=diagonals, q_offset=q_offset, out=out)
        result = torch_composed.add_toeplitz_bias(function, scores, diagonals, *options)
        if out is None:
            return result
        return _copy_out(function, out, result, scores, q_offset, apart=diagonals)
    grid = _grid(*options)
    if needs_grad(scores, diagonals):
        if out is None:
            return torch_autograd.add_toeplitz_bias(scores, diagonals, *grid)
        if out is not scores:
            expected = "no out, or scores itself, where a gradient is required"
            wrong_value(function, "out", expected, "another tensor")
        return torch_autograd.add_toeplitz_bias_(scores, diagonals, *grid)  # type: ignore[no-any-return]
    # Defaults of the schema are left out: reading each takes torch 0.2 microseconds.
    given = grid if q_offset is not None else grid[:3] if start or grid[0] else ()
    if out is None:
        return call(_ops.add_toeplitz_bias.default, scores, diagonals, *given)  # type: ignore[no-any-return]
    if out is scores:
        call(_ops.add_toeplitz_bias_.default, scores, diagonals, *given)
    else:
        call(_ops.add_toeplitz_bias_out.default, scores, diagonals, *given, out=out)
    return _written(out)


def diagonal_sums(
    grad: Tensor,
    shape: tuple[int, ...],
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...] | None,
    q_offset: Any,
) -> Tensor:
    """`posenc_native.diagonal_sums` for tensors."""
    function = "diagonal_sums"
    _check_floats(function, "grad", grad)
    q_offset = _integer_tensor(function, "q_offset", q_offset, grad.device)
    options = (q_len, k_len, start, q_offset)
    if not _relative_native(grad, q_offset):
        _same_device(function, grad, q_offset=q_offset)
        return torch_composed.diagonal_sums(function, grad, shape, *options)
    return torch_autograd.diagonal_sums(grad, shape, _grid(*options))


def relative_gather(
    x: Tensor,
    index: Any,
    k_len: int,
    start: int | None,
    q_offset: Any,
    missing: int | None,
    content: Tensor | None,
    scale: float,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.relative_gather` for tensors."""
    function = "relative_gather"
    _check_floats(function, "x", x)
    index = _integer_tensor(function, "index", index, x.device)
    q_offset = _integer_tensor(function, "q_offset", q_offset, x.device)
    scale = arguments.finite_number(function, "scale", scale)
    shape = (*x.shape[:-1], k_len)
    arguments.check_byte_count(function, shape, 8)
    if content is not None:
        if not isinstance(content, Tensor):
            wrong_type(function, "content", "a tensor, as x is", type(content).__name__)
        if content.dtype != x.dtype:
            wrong_type(function, "content", f"the dtype of x, {x.dtype}", content.dtype)
        arguments.check_shape(function, "content", tuple(content.shape), shape)
    _check_output(function, out, content if content is not None else x)
    options = (index, start, q_offset, missing, scale)
    if not _relative_native(x, index, q_offset, content, out):
        _same_device(function, x, index=index, q_offset=q_offset, content=content, out=out)
        result = torch_composed.relative_gather(function, x, content, k_len, *options)
        if out is None:
            return result
        return _copy_out(function, out, result, content, index, q_offset, apart=x)
    if out is None:
        return torch_autograd.relative_gather(x, content, k_len, *options)
    _no_output_for_gradient(function, x, content)
    arguments.check_shape(function, "out", tuple(out.shape), shape)
    call(_ops.relative_gather_out.default, x, *options[:-1], content, scale, out=out)
    return _written(out)


def relative_scatter(
    grad: Tensor,
    index: Any,
    width: int,
    start: int | None,
    q_offset: Any,
    missing: int | None,
    scale: float,
    out: Tensor | None,
) -> Tensor:
    """`posenc_native.relative_scatter` for tensors."""
    function = "relative_scatter"
    _check_floats(function, "grad", grad)
    index = _integer_tensor(function, "index", index, grad.device)
    q_offset = _integer_tensor(function, "q_offset", q_offset, grad.device)
    scale = arguments.finite_number(function, "scale", scale)
    arguments.check_byte_count(function, (*grad.shape[:-1], width), 8)
    _check_output(function, out, grad)
    options = (index, start, q_offset, missing, scale)
    if not _relative_native(grad, index, q_offset, out):
        _same_device(function, grad, index=index, q_offset=q_offset, out=out)
        result = torch_composed.relative_scatter(function, grad, width, *options)
        if out is None:
            return result
        return _copy_out(function, out, result, index, q_offset, apart=grad)
    if out is None:
        return torch_autograd.relative_scatter(grad, width, *options)
    _no_output_for_gradient(function, grad)
    arguments.check_shape(function, "out", tuple(out.shape), (*grad.shape[:-1], width))
    torch_autograd.scatter_into(out, grad, *options)
    return _written(out)


def diagonals_tensor(diagonals: Any, device: torch.device) -> Tensor:
    """An array of diagonals as a tensor on the device."""
    function = "add_toeplitz_bias"
    arguments.check_dtype(function, "diagonals", diagonals.dtype, arguments.FLOAT_DTYPES)
    if arguments.dtype_name(diagonals.dtype) == "bfloat16":  # NumPy's is unknown to torch
        return torch.as_tensor(diagonals.astype(np.float32), device=device)
    return _from_array(diagonals, device)


def _relative_native(x: Tensor, *others: Tensor | None) -> bool:
    """`_native`, but that torch.func and forward mode follow the composition."""
    return not functorch_active() and forward_ad._current_level < 0 and _native(x, *others)


def _grid(
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    start: tuple[int, ...] | None,
    q_offset: Tensor | None,
) -> torch_autograd.Grid:
    """These as the operators take them: the lengths of plain matrices are those of the tensors."""
    starts = None if start is None else list(start)
    if len(q_len) == 1:
        return None, None, starts, q_offset
    return list(q_len), list(k_len), starts, q_offset


def _integer_tensor(function: str, argument: str, value: Any, device: torch.device) -> Any:
    """A tensor of integers; arrays are moved to the device, tensors must be there."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        array = arguments.as_array(function, argument, value)
        arguments.check_dtype(function, argument, array.dtype, arguments.INTEGER_DTYPES)
        return _from_array(array, device)
    if value.dtype not in _INTEGER_DTYPES:
        arguments.check_dtype(function, argument, value.dtype, arguments.INTEGER_DTYPES)
    return value


def _check_floats(function: str, argument: str, tensor: Tensor) -> None:
    if tensor.dtype not in _FLOAT_DTYPES:
        arguments.check_dtype(function, argument, tensor.dtype, arguments.FLOAT_DTYPES)


def _no_output_for_gradient(function: str, *inputs: Tensor | None) -> None:
    if needs_grad(*(x for x in inputs if x is not None)):
        wrong_value(function, "out", "no out where a gradient is required", "a tensor")


def _learned(positions: Tensor | None, inv_freq: Tensor) -> bool:
    """Whether anybody may want a derivative with respect to what makes the angles."""
    angles = [t for t in (positions, inv_freq) if t is not None and t.is_floating_point()]
    if not transformed():
        return needs_grad(*angles)
    if torch.compiler.is_compiling():  # the composition in any case: _operators_in_use
        return True
    # The composition is also what takes frequencies of every example, under vmap.
    return any(map(_followed, angles)) or torch._C._functorch.is_batchedtensor(inv_freq)


def _followed(tensor: Tensor) -> bool:
    """Whether forward mode or a transform of torch.func wants derivatives by this tensor."""
    if needs_grad(tensor):
        return True
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    functorch = torch._C._functorch
    if not functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return _followed(functorch.get_unwrapped(tensor))


def _learned_qk(
    function: str, q: Tensor, k: Tensor, options: tuple[Any, ...], inplace: bool
) -> tuple[Tensor, Tensor]:
    """`apply_rotary_qk` where frequencies or positions want a gradient."""
    positions, inv_freq, axis_map = options[0], options[1], options[5]
    if inplace:
        expected = "False where frequencies or positions require a gradient"
        wrong_value(function, "inplace", expected, True)
    if _native(q, k, positions, inv_freq, axis_map) and not transformed():
        return torch_autograd.learned_rotary_qk(q, k, *options)
    _same_device(function, q, k=k, positions=positions, inv_freq=inv_freq)
    rotated = torch_composed.apply_rotary(function, (q, k), options)
    return rotated[0], rotated[1]


def _one_tensor(
    name: str,
    function: str,
    x: Tensor,
    options: tuple[Any, ...],
    out: Tensor | None,
    learned: bool = False,
) -> Tensor:
    """The operator as ``name``, ``name_`` (in place) or ``name_out``, as `out` asks for.

    learned: an option requires a gradient.
    """
    if out is None:
        return getattr(torch_autograd, name)(x, *options)  # type: ignore[no-any-return]
    if learned or needs_grad(x):
        if out is not x:
            expected = "no out, or x itself, where a gradient is required"
            wrong_value(function, "out", expected, "another tensor")
        return getattr(torch_autograd, f"{name}_")(x, *options)  # type: ignore[no-any-return]
    if out is x:
        call(getattr(_ops, f"{name}_").default, x, *options)
    else:
        call(getattr(_ops, f"{name}_out").default, x, *options, out=out)
    return _written(out)


def _two_tensors(
    name: str, q: Tensor, k: Tensor, options: tuple[Any, ...], given: int, inplace: bool
) -> tuple[Tensor, Tensor] | None:
    """The operator as ``name`` or ``name_`` (in place); None where the tensors need a composition.

    given: how many options the call has to say; the others are the defaults of the schema, and
        reading one takes torch 0.1 microseconds.
    """
    # `_native`, spelled out; the first is None or positions, or cos.
    first, second = options[0], options[1]
    if q.is_cpu:
        together = k.is_cpu and second.is_cpu and (first is None or first.is_cpu)
    else:
        together = (
            q.is_cuda
            and k.is_cuda
            and second.is_cuda
            and (first is None or first.is_cuda)
            and torch_cuda.usable(q.get_device())
        )
    if not (together and _operators_in_use()):
        return None
    wants_grad = (q.requires_grad or k.requires_grad) and torch.is_grad_enabled()
    if wants_grad or transformed():
        return getattr(torch_autograd, f"{name}_" if inplace else name)(q, k, *options)  # type: ignore[no-any-return]
    functional, in_place = _PAIRS[name]
    try:
        if not inplace:
            return functional(q, k, *options[:given])  # type: ignore[no-any-return]
        in_place(q, k, *options[:given])
    except RuntimeError as error:
        raise_ours(error)
    _increment_version((q, k))
    return q, k


# --- Arguments


def _at_once(x: object) -> bool:
    """Whether the NumPy module may be asked: of torch.compile it can know nothing."""
    return not is_dynamo_compiling() and type(x) is Tensor and backend.implementation is _small


def _operators_in_use() -> bool:
    """Whether the operators are built and not switched off."""
    if _LIBRARY is None or backend.implementation is reference:
        return False
    # A compiled torch.func.grad ignores the backward of Functions (torch 2.13); the composition is
    # right there.
    return not (functorch_active() and torch.compiler.is_compiling())


def _native(x: Tensor, *others: Tensor | None) -> bool:
    """Whether the operators take these tensors: all on the CPU, or all on CUDA."""
    if not _operators_in_use():
        return False
    if x.is_cpu:
        for t in others:  # a loop: all() of a generator takes three times as long
            if t is not None and not t.is_cpu:
                return False
        return True
    return (
        x.is_cuda
        and all(t is None or t.is_cuda for t in others)
        and torch_cuda.usable(x.get_device())
    )


def _position_tensor(function: str, positions: Any, device: Any) -> Tensor:
    if isinstance(positions, Tensor):
        if device is not None and positions.device != torch.device(device):
            wrong_value(function, "positions", f"a tensor on {device}", positions.device)
        return positions
    if isinstance(positions, (int, np.integer)):
        count = arguments.size(function, "positions", positions)
        arguments.check_byte_count(function, (count,), 8)
        return torch.arange(count, device=device)
    array = arguments.as_array(function, "positions", positions)
    arguments.check_dtype(function, "positions", array.dtype, arguments.POSITION_DTYPES)
    return _from_array(array, device)


def _from_array(array: Any, device: Any) -> Tensor:
    """A copy: what is read-only or has negative strides cannot be shared with a tensor."""
    return torch.as_tensor(np.array(array), device=device)


def _frequency_tensors(
    function: str, like: Tensor, inv_freq: Any, axis_map: Any
) -> tuple[Tensor, Tensor | None]:
    """inv_freq and axis_map where `like` is; arrays are moved there, tensors must be there."""
    if not isinstance(inv_freq, Tensor):
        array = arguments.as_array(function, "inv_freq", inv_freq)
        arguments.check_dtype(function, "inv_freq", array.dtype, arguments.FREQUENCY_DTYPES)
        # Read-only arrays (those of Rotary) cannot be shared with a tensor.
        inv_freq = torch.tensor(array, device=like.device)
    if axis_map is not None and not isinstance(axis_map, Tensor):
        array = arguments.as_array(function, "axis_map", axis_map)
        arguments.check_dtype(function, "axis_map", array.dtype, arguments.INTEGER_DTYPES)
        axis_map = torch.tensor(array, device=like.device)
    _same_device(function, like, inv_freq=inv_freq, axis_map=axis_map)
    return inv_freq, axis_map


def _same_device(function: str, x: Tensor, **others: Tensor | None) -> None:
    for name, tensor in others.items():
        if tensor is not None and tensor.device != x.device:
            wrong_value(function, name, f"a tensor on {x.device}", tensor.device)


def _check_output(function: str, out: object, x: Tensor) -> None:
    if out is None or out is x:
        return
    if not isinstance(out, Tensor):
        wrong_type(function, "out", "a tensor, as x is", type(out).__name__)
    _no_gradient_of_output(function, out)


def _no_gradient_of_output(function: str, out: Tensor) -> None:
    if out.requires_grad and torch.is_grad_enabled():
        wrong_value(function, "out", "a tensor that requires no gradient", "one that does")


def _table_dtype(function: str, dtype: Any, out: Tensor | None) -> torch.dtype:
    if dtype is None:
        if out is not None and out.dtype not in _FLOAT_DTYPES:
            arguments.check_dtype(function, "out", out.dtype, arguments.FLOAT_DTYPES)
        return torch.float32 if out is None else out.dtype
    if not isinstance(dtype, torch.dtype):
        name = str(arguments.as_dtype(function, dtype))
        if name not in arguments.FLOAT_DTYPES:
            arguments.check_dtype(function, "dtype", name, arguments.FLOAT_DTYPES)
        dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    if dtype not in _FLOAT_DTYPES:
        arguments.check_dtype(function, "dtype", dtype, arguments.FLOAT_DTYPES)
    if out is not None and out.dtype != dtype:
        wrong_type(function, "out", f"the dtype asked for, {dtype}", out.dtype)
    return dtype


def _spec(
    function: str, dim: int | None, base: float, layout: str, shift: float, scale: float
) -> tuple[Any, ...]:
    """(dim,) base, layout, shift, scale, of the kinds that the schema has."""
    if not isinstance(layout, str):
        wrong_type(function, "layout", "a str", type(layout).__name__)
    head = () if dim is None else (arguments.even_size(function, "dim", dim),)
    numbers = tuple(
        arguments.finite_number(function, name, value)
        for name, value in (("base", base), ("shift", shift), ("scale", scale))
    )
    return *head, numbers[0], layout, *numbers[1:]


def _layout(function: str, layout: Any, pairing: Any, rotary_start: Any) -> tuple[str, str, int]:
    """layout, pairing, rotary_start of the kinds that the schema has."""
    if not isinstance(layout, str):
        wrong_type(function, "layout", "a str", type(layout).__name__)
    if not isinstance(pairing, str):
        pairing = str(arguments.size(function, "pairing", pairing))
    elif pairing not in _PAIRINGS:
        wrong_value(function, "pairing", "'half', 'interleaved' or an int", repr(pairing))
    if isinstance(rotary_start, bool) or not isinstance(rotary_start, (int, np.integer)):
        wrong_type(function, "rotary_start", "an int", type(rotary_start).__name__)
    if not 0 <= rotary_start < 2**63:
        wrong_value(function, "rotary_start", "an int in 0 .. 2^63 - 1", rotary_start)
    return layout, pairing, int(rotary_start)


# --- Results


def _written(out: Tensor) -> Tensor:
    # Autograd must notice what an operator of the stable ABI has overwritten.
    _increment_version((out,))
    return out


def _copy_out(
    function: str,
    out: Tensor,
    result: Tensor,
    *inputs: Tensor | None,
    apart: Tensor | None = None,
) -> Tensor:
    """The result in `out`, which may be one of the inputs, but not the one to stay apart from."""
    _check_copy(function, "out", out, result, *inputs)
    if apart is not None and torch_composed.concrete(out, apart) and _overlap(out, apart):
        wrong_value(function, "out", "no memory in common with the inputs", "an overlap")
    return out.copy_(result)


def _pair(
    function: str,
    q: Tensor,
    k: Tensor,
    rotated: tuple[Tensor, ...],
    inplace: bool,
    *others: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What a composition made of q and k; written over them if in place."""
    rotated_q, rotated_k = rotated
    if not inplace:
        return rotated_q, rotated_k
    for name, x, other in (("q", q, k), ("k", k, q)):
        if torch_composed.concrete(x, other) and _overlap(x, other):
            wrong_value(function, name, "no memory in common with the other", "an overlap")
    _check_copy(function, "q", q, rotated_q, *others)
    _check_copy(function, "k", k, rotated_k, *others)
    return q.copy_(rotated_q), k.copy_(rotated_k)


def _check_copy(
    function: str, name: str, out: Tensor, result: Tensor, *inputs: Tensor | None
) -> None:
    if out.dtype != result.dtype:
        wrong_type(function, name, str(result.dtype), out.dtype)
    arguments.check_shape(function, name, tuple(out.shape), tuple(result.shape))
    axes = zip(out.stride(), out.shape, strict=True)
    if out.numel() and any(stride == 0 and size > 1 for stride, size in axes):
        wrong_value(function, name, "memory of its own for every element", "an expanded tensor")
    if torch_composed.concrete(out, *inputs):
        for x in inputs:
            if x is not None and not _same_view(out, x) and _overlap(out, x):
                wrong_value(function, name, "no memory in common with the inputs", "an overlap")


def _same_view(a: Tensor, b: Tensor) -> bool:
    same_memory = a.data_ptr() == b.data_ptr() and a.dtype == b.dtype
    return same_memory and a.shape == b.shape and a.stride() == b.stride()


def _overlap(a: Tensor, b: Tensor) -> bool:
    # As integers: bfloat16 is none of NumPy's dtypes.
    first, second = (t.detach().view(_WORDS[t.element_size()]).numpy() for t in (a, b))
    return np.shares_memory(first, second)


_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
