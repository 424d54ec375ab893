"""Rotations of tensors, by positions and by tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.base.views import rounds_as_written

from . import cuda
from .composed import rotary as composed_rotary
from .following import angles_followed, needs_grad, transformed
from .gradients import angles as angle_gradients
from .gradients import rotary as rotary_gradients
from .gradients.functions import Differentiable, one_tensor
from .inputs import (
    PAIRINGS,
    frequency_tensors,
    head_layout,
    position_tensor,
    same_device,
    table_dtype,
)
from .library import call, operators_in_use, operators_take, ops, raise_ours
from .results import check_output, copy_out, no_output_for_gradient, pair_results, written
from .small import at_once, increment_version


def rotary_tables(
    positions: Any, inv_freq: Any, axis_map: Any, scale: float, dtype: Any
) -> tuple[Tensor, Tensor]:
    """`posenc_native.rotary_tables` for tensors."""
    function = "rotary_tables"
    device = next((t.device for t in (positions, inv_freq) if isinstance(t, Tensor)), None)
    positions = position_tensor(function, positions, device)
    inv_freq, axis_map = frequency_tensors(function, positions, inv_freq, axis_map)
    dtype = table_dtype(function, dtype, None)
    scale = arguments.finite_number(function, "scale", scale)
    if inv_freq.ndim != 1:
        wrong_value(function, "inv_freq", "shape [P]", list(inv_freq.shape))
    if not angles_followed(positions, inv_freq) and operators_take(positions, inv_freq, axis_map):
        return call(  # type: ignore[no-any-return]
            ops.rotary_tables.default, positions, inv_freq, axis_map, scale, dtype
        )
    real = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = composed_rotary.tables(function, positions, inv_freq, axis_map, real)
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
    if (numpy_module := at_once(x)) is not None:
        result = numpy_module.apply_rotary(
            x, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse, out
        )
        if result is not NotImplemented:
            return result if out is None else written(out)
    if positions is not None and not isinstance(positions, Tensor):
        positions = position_tensor(function, positions, x.device)
    inv_freq, axis_map = frequency_tensors(function, x, inv_freq, axis_map)
    scale = arguments.finite_number(function, "scale", scale)
    check_output(function, out, x)
    options = (positions, inv_freq, *head_layout(function, layout, pairing, rotary_start), axis_map,
               scale, inverse)  # fmt: skip
    learned = angles_followed(positions, inv_freq)
    if learned and out is not None:
        no_output_for_gradient(function, positions, inv_freq)
    native = operators_take(x, positions, inv_freq, axis_map, out)
    if learned and native and not transformed():
        return angle_gradients.learned_rotary(x, *options)
    if learned or not native:
        same_device(function, x, positions=positions, out=out)
        (result,) = composed_rotary.apply_rotary(function, (x,), options)
        return (
            result
            if out is None
            else copy_out(function, out, result, x, positions, inv_freq, axis_map)
        )
    return one_tensor(rotary_gradients.ROTARY, function, x, options, out)


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
    if (numpy_module := at_once(q)) is not None:
        rotated = numpy_module.apply_rotary_qk(
            q, k, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse,
            inplace,
        )  # fmt: skip
        if rotated is not NotImplemented:
            if inplace:
                increment_version(rotated)
            return rotated  # type: ignore[no-any-return]
    # The checks here take about as long as the rotation of one token: in the order of what decoding
    # needs, and no more.
    if not isinstance(k, Tensor):
        wrong_type(function, "k", "a tensor, as q is", type(k).__name__)
    if type(inv_freq) is not Tensor or axis_map is not None:
        inv_freq, axis_map = frequency_tensors(function, q, inv_freq, axis_map)
    if positions is not None and not isinstance(positions, Tensor):
        positions = position_tensor(function, positions, q.device)
    if (
        type(rotary_start) is not int
        or type(layout) is not str
        or pairing not in PAIRINGS
        or rotary_start != 0
        or scale != 1.0
    ):
        scale = arguments.finite_number(function, "scale", scale)
        layout, pairing, rotary_start = head_layout(function, layout, pairing, rotary_start)
    options = (positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse)
    if (
        (positions is not None and positions.requires_grad)
        or inv_freq.requires_grad
        or transformed()
    ) and angles_followed(positions, inv_freq):
        return _learned_qk(function, q, k, options, inplace)
    given = 2 if layout == "bhsd" and pairing == "half" else 4
    if rotary_start != 0 or axis_map is not None or scale != 1.0 or inverse:
        given = len(options)
    result = _two_tensors(rotary_gradients.ROTARY_QK, q, k, options, given, inplace)
    if result is not None:
        return result
    same_device(function, q, k=k, positions=positions, inv_freq=inv_freq)
    rotated = composed_rotary.apply_rotary(function, (q, k), options)
    return pair_results(function, q, k, rotated, inplace, positions, inv_freq, axis_map)


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
    if (numpy_module := at_once(x)) is not None:
        result = numpy_module.apply_rotary_tables(
            x, cos, sin, layout, pairing, rotary_start, inverse, compute, out
        )
        if result is not NotImplemented:
            return result if out is None else written(out)
    for name, table in (("cos", cos), ("sin", sin)):
        if not isinstance(table, Tensor):
            wrong_type(function, name, "a tensor, as x is", type(table).__name__)
    check_output(function, out, x)
    rounds_as_written(function, compute)
    options = (cos, sin, *head_layout(function, layout, pairing, rotary_start), inverse, compute)
    learned = needs_grad(cos, sin)
    if learned or not operators_take(x, cos, sin, out):
        same_device(function, x, cos=cos, sin=sin, out=out)
        (result,) = composed_rotary.apply_rotary_tables(function, (x,), options)
        return result if out is None else copy_out(function, out, result, x, cos, sin)
    return one_tensor(rotary_gradients.FROM_TABLES, function, x, options, out)


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
    if (numpy_module := at_once(q)) is not None:
        rotated = numpy_module.apply_rotary_qk_tables(
            q, k, cos, sin, layout, pairing, rotary_start, inverse, compute, inplace
        )
        if rotated is not NotImplemented:
            if inplace:
                increment_version(rotated)
            return rotated  # type: ignore[no-any-return]
    # As in apply_rotary_qk: what decoding needs, and no more.
    for name, tensor in (("k", k), ("cos", cos), ("sin", sin)):
        if not isinstance(tensor, Tensor):
            wrong_type(function, name, "a tensor, as q is", type(tensor).__name__)
    if (
        type(rotary_start) is not int
        or type(layout) is not str
        or pairing not in PAIRINGS
        or rotary_start != 0
    ):
        layout, pairing, rotary_start = head_layout(function, layout, pairing, rotary_start)
    if compute != "float32":
        rounds_as_written(function, compute)
    options = (cos, sin, layout, pairing, rotary_start, inverse, compute)
    learned = (cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled()
    if not learned:
        given = 2 if layout == "bhsd" and pairing == "half" else 4
        if rotary_start != 0 or inverse or compute != "float32":
            given = len(options)
        result = _two_tensors(rotary_gradients.QK_FROM_TABLES, q, k, options, given, inplace)
        if result is not None:
            return result
    same_device(function, q, k=k, cos=cos, sin=sin)
    rotated = composed_rotary.apply_rotary_tables(function, (q, k), options)
    return pair_results(function, q, k, rotated, inplace, cos, sin)


def _learned_qk(
    function: str, q: Tensor, k: Tensor, options: tuple[Any, ...], inplace: bool
) -> tuple[Tensor, Tensor]:
    """`apply_rotary_qk` where frequencies or positions want a gradient."""
    positions, inv_freq, axis_map = options[0], options[1], options[5]
    if inplace:
        expected = "False where frequencies or positions require a gradient"
        wrong_value(function, "inplace", expected, True)
    if operators_take(q, k, positions, inv_freq, axis_map) and not transformed():
        return angle_gradients.learned_rotary_qk(q, k, *options)
    same_device(function, q, k=k, positions=positions, inv_freq=inv_freq)
    rotated = composed_rotary.apply_rotary(function, (q, k), options)
    return rotated[0], rotated[1]


def _two_tensors(
    operator: Differentiable,
    q: Tensor,
    k: Tensor,
    options: tuple[Any, ...],
    given: int,
    inplace: bool,
) -> tuple[Tensor, Tensor] | None:
    """The operator, functional or in place; None where the tensors need a composition.

    given: how many options the call has to say; the others are the defaults of the schema, and
        reading one takes torch 0.1 microseconds.
    """
    # `operators_take`, spelled out; the first is None or positions, or cos.
    first, second = options[0], options[1]
    if q.is_cpu:
        together = k.is_cpu and second.is_cpu and (first is None or first.is_cpu)
    else:
        together = (
            q.is_cuda
            and k.is_cuda
            and second.is_cuda
            and (first is None or first.is_cuda)
            and cuda.usable(q.get_device())
        )
    if not (together and operators_in_use()):
        return None
    wants_grad = (q.requires_grad or k.requires_grad) and torch.is_grad_enabled()
    if wants_grad or transformed():
        return (operator.in_place if inplace else operator.functional)(q, k, *options)  # type: ignore[no-any-return]
    functional, in_place = operator.bare  # type: ignore[misc]
    try:
        if not inplace:
            return functional(q, k, *options[:given])  # type: ignore[no-any-return]
        in_place(q, k, *options[:given])
    except RuntimeError as error:
        raise_ours(error)
    increment_version((q, k))
    return q, k
