"""Rotations of tensors, by positions and by tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.rotation import Rotation, TableRotation, of_pair
from posenc_native.core.calls.views import PAIRINGS, rounds_as_written
from posenc_native.engines.following import angles_followed, forward_mode, needs_grad, transformed
from posenc_native.engines.plain import rotary as plain_rotary

from . import cuda
from .gradients import angles as angle_gradients
from .gradients import rotary as rotary_gradients
from .gradients.functions import Differentiable, one_tensor
from .inputs import (
    AnyRotation,
    composable,
    frequency_tensors,
    integer_tensor,
    of_schema,
    position_tensor,
    same_device,
    table_dtype,
)
from .library import call, operators_in_use, operators_take, ops, raise_ours
from .results import check_output, check_writable, copy_out, no_output_for_gradient, pair_results
from .small import increment_version
from .turns import frequency_turns


def rotary_tables(
    positions: Any, inv_freq: Any, axis_map: Any, scale: float, dtype: Any
) -> tuple[Tensor, Tensor]:
    """`posenc_native.rotary_tables` for tensors."""
    function = "rotary_tables"
    device = next((t.device for t in (positions, inv_freq) if isinstance(t, Tensor)), None)
    positions = position_tensor(function, positions, device)
    inv_freq, axis_map = frequency_tensors(function, positions, inv_freq, axis_map)
    dtype = table_dtype(function, dtype, None)
    scale = arguments.factor(function, "scale", scale, dtype)
    if inv_freq.ndim != 1:
        wrong_value(function, "inv_freq", "shape [P]", list(inv_freq.shape))
    if not angles_followed(inv_freq, positions) and operators_take(positions, inv_freq, axis_map):
        return call(  # type: ignore[no-any-return]
            ops.rotary_tables.default, positions, inv_freq, axis_map, scale, dtype
        )
    composable(function, positions=positions, inv_freq=inv_freq, axis_map=axis_map)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = plain_rotary.tables(function, positions, inv_freq, axis_map, real, frequency_turns)
    return (cos * scale).to(dtype), (sin * scale).to(dtype)


_DEFAULTS = {kind: tuple(kind._field_defaults.values())[2:] for kind in (Rotation, TableRotation)}


def apply_rotary(x: Tensor, rotation: Rotation, out: Tensor | None) -> Tensor:
    """`posenc_native.apply_rotary` for tensors."""
    function = "apply_rotary"
    rotation = read_rotation(function, x, rotation)
    check_output(function, out, x)
    rotation = of_schema(function, rotation)
    angles = (rotation.positions, rotation.inv_freq)
    learned = angles_followed(rotation.inv_freq, rotation.positions)
    if learned and out is not None:
        no_output_for_gradient(function, *angles)
    native = operators_take(x, *angles, rotation.axis_map, out)
    native = native and not forward_mode() and not (learned and _in_groups(rotation))
    if learned and native and not transformed():
        return angle_gradients.LEARNED_ROTARY(x, *rotation)  # type: ignore[no-any-return]
    if learned or not native:
        _composable(function, rotation, x=x, out=out)
        result: Tensor
        (result,) = plain_rotary.apply_rotary(function, (x,), rotation, frequency_turns)
        if out is None:
            return result
        return copy_out(function, out, result, x, *angles, rotation.axis_map)
    return one_tensor(rotary_gradients.ROTARY, function, x, rotation, out)


# Outputs for q and k: new tensors (False), q and k themselves (True), or two other tensors.
_To = bool | tuple[Any, Any]


def apply_rotary_qk(q: Tensor, k: Tensor, rotation: Rotation, to: _To) -> tuple[Tensor, Tensor]:
    """`posenc_native.apply_rotary_qk` for tensors."""
    function = "apply_rotary_qk"
    # The checks take about as long as the rotation of one token. Those for decoding therefore come
    # first, and others run only for arguments of unusual types.
    if not isinstance(k, Tensor):
        wrong_type(function, "k", "a tensor, as q is", type(k).__name__)
    if to:
        to = _checked_outputs(function, q, k, to)
    positions, inv_freq = rotation.positions, rotation.inv_freq
    k_positions = rotation.k_positions
    plain = True
    if (
        type(inv_freq) is not Tensor
        or rotation.axis_map is not None
        or k_positions is not None
        or not (positions is None or isinstance(positions, Tensor))
        or type(rotation.scale) is not float
        or rotation.scale != 1.0
    ):
        rotation = read_rotation(function, q, rotation)
        positions, inv_freq = rotation.positions, rotation.inv_freq
        k_positions = rotation.k_positions
        plain = rotation.axis_map is None and k_positions is None
    rotation = _of_schema_if_needed(function, rotation)
    if (
        (positions is not None and positions.requires_grad)
        or inv_freq.requires_grad
        or k_positions is not None
        or transformed()
    ) and angles_followed(inv_freq, positions, k_positions):
        return _learned_qk(function, q, k, rotation, to)
    result = _two_tensors(rotary_gradients.ROTARY_QK, q, k, rotation, to, plain)
    if result is not None:
        return result
    _composable(function, rotation, q=q, k=k)
    rotated = plain_rotary.apply_rotary(function, (q, k), rotation, frequency_turns)
    read = positions, inv_freq, rotation.axis_map, rotation.k_positions
    return pair_results(function, q, k, rotated, to, *read)


def apply_rotary_tables(x: Tensor, rotation: TableRotation, out: Tensor | None) -> Tensor:
    """`posenc_native.apply_rotary_tables` for tensors."""
    function = "apply_rotary_tables"
    cos, sin = rotation.cos, rotation.sin
    for name, table in (("cos", cos), ("sin", sin)):
        if not isinstance(table, Tensor):
            wrong_type(function, name, "a tensor, as x is", type(table).__name__)
    check_output(function, out, x)
    rounds_as_written(function, rotation.compute)
    rotation = of_schema(function, table_indices(function, x, rotation))
    read = {"cos": cos, "sin": sin, "rows": rotation.rows, "axis_map": rotation.axis_map}
    if needs_grad(cos, sin) or forward_mode() or not operators_take(x, *read.values(), out):
        composable(function, x=x, **read, out=out)
        (result,) = plain_rotary.apply_rotary_tables(function, (x,), rotation)
        return result if out is None else copy_out(function, out, result, x, *read.values())
    return one_tensor(rotary_gradients.FROM_TABLES, function, x, rotation, out)


def table_indices(function: str, x: Tensor, rotation: TableRotation) -> TableRotation:
    """The rotation with rows and axis_map as tensors on the device of x."""
    if rotation.rows is None and rotation.axis_map is None and rotation.k_rows is None:
        return rotation
    given = rotation._asdict()
    read: dict[str, Any] = {}
    for name, i in (("rows", 0), ("k_rows", 1), ("axis_map", 0)):
        option = name.removeprefix("k_")
        with of_pair(rotation, i):
            read[name] = integer_tensor(function, option, given[name], x.device)
            same_device(function, x, **{option: read[name]})
    return rotation._replace(**read)


def apply_rotary_qk_tables(
    q: Tensor, k: Tensor, rotation: TableRotation, to: _To
) -> tuple[Tensor, Tensor]:
    """`posenc_native.apply_rotary_qk_tables` for tensors."""
    function = "apply_rotary_qk_tables"
    cos, sin = rotation.cos, rotation.sin
    # As in apply_rotary_qk, only the checks that decoding needs.
    if not isinstance(k, Tensor):
        wrong_type(function, "k", "a tensor, as q is", type(k).__name__)
    plain = (
        rotation.rows is None
        and rotation.axis_map is None
        and rotation.k_cos is None
        and rotation.k_rows is None
    )
    usual = plain and isinstance(cos, Tensor) and isinstance(sin, Tensor)
    tables = {"cos": cos, "sin": sin} if usual else _tables_of(function, rotation)
    if to:
        to = _checked_outputs(function, q, k, to)
    if not usual:
        rotation = table_indices(function, q, rotation)
    indices = rotation.rows, rotation.k_rows, rotation.axis_map
    rotation = _of_schema_if_needed(function, rotation)
    if rotation.compute != "float32":
        rounds_as_written(function, rotation.compute)
    if usual:
        learned = (cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled()
    else:
        learned = needs_grad(*tables.values())
    if not learned:
        result = _two_tensors(rotary_gradients.QK_FROM_TABLES, q, k, rotation, to, plain)
        if result is not None:
            return result
    by_name = {"rows": indices[0], "rows[1]": indices[1], "axis_map": indices[2]}
    composable(function, q=q, k=k, **tables, **by_name)
    rotated = plain_rotary.apply_rotary_tables(function, (q, k), rotation)
    if learned and isinstance(to, tuple):
        no_output_for_gradient(function, *tables.values())
    return pair_results(function, q, k, rotated, to, *tables.values(), *indices)


def _tables_of(function: str, rotation: TableRotation) -> dict[str, Tensor]:
    """cos and sin, and those of k, by their names in errors."""
    tables = {"cos": rotation.cos, "sin": rotation.sin}
    if rotation.k_cos is not None:
        named = (("cos", rotation.cos, rotation.k_cos), ("sin", rotation.sin, rotation.k_sin))
        tables = {f"{name}[{i}]": pair[i] for name, *pair in named for i in (0, 1)}
    for name, table in tables.items():
        if not isinstance(table, Tensor):
            wrong_type(function, name, "a tensor, as q is", type(table).__name__)
    return tables


def read_rotation(function: str, x: Tensor, rotation: Rotation) -> Rotation:
    """The rotation with its arrays as tensors on the device of x, and a checked scale."""
    k_positions = rotation.k_positions
    if k_positions is None:
        positions = _read_positions(function, x, rotation.positions)
    else:
        with of_pair(rotation, 0):
            positions = _read_positions(function, x, rotation.positions)
        with of_pair(rotation, 1):
            k_positions = _read_positions(function, x, k_positions)
    inv_freq, axis_map = frequency_tensors(function, x, rotation.inv_freq, rotation.axis_map)
    scale = arguments.factor(function, "scale", rotation.scale, x.dtype)
    return rotation._replace(
        positions=positions,
        inv_freq=inv_freq,
        axis_map=axis_map,
        scale=scale,
        k_positions=k_positions,
    )


def _read_positions(function: str, x: Tensor, positions: Any) -> Tensor | None:
    if positions is None or isinstance(positions, Tensor):
        return positions
    return position_tensor(function, positions, x.device)


def _composable(function: str, rotation: Rotation, **tensors: Tensor | None) -> None:
    """`composable` for these tensors and those of the rotation, named by its fields."""
    for name in ("positions", "inv_freq", "axis_map"):
        tensors[name] = getattr(rotation, name)
    tensors["positions[1]"] = rotation.k_positions
    composable(function, **tensors)


def _of_schema_if_needed(function: str, rotation: AnyRotation) -> AnyRotation:
    """As `of_schema`, skipped for the usual rotations, whose types are already right."""
    if (
        type(rotation.rotary_start) is int
        and type(rotation.layout) is str
        and rotation.pairing in PAIRINGS
        and rotation.rotary_start == 0
        and rotation.out_pairing == "same"
        and type(rotation.inverse) is bool
    ):
        return rotation
    return of_schema(function, rotation)


def _in_groups(rotation: Rotation) -> bool:
    """Whether heads may have two strides, for which no kernel sums gradients of angles."""
    return "g" in rotation.layout


def _checked_outputs(function: str, q: Tensor, k: Tensor, to: _To) -> _To:
    """The checked outputs for q and k; True if both are rotated in place."""
    if not isinstance(to, tuple):
        check_writable(q, k)
        return to
    for i, (name, x) in enumerate((("q", q), ("k", k))):
        check_output(function, to[i], x, f"out[{i}]", name)
    if to[0] is q and to[1] is k:
        return True
    if needs_grad(q, k):
        expected = "no out, or (q, k) themselves, if a gradient is required"
        wrong_value(function, "out", expected, "other tensors")
    return to


def _learned_qk(
    function: str, q: Tensor, k: Tensor, rotation: Rotation, to: _To
) -> tuple[Tensor, Tensor]:
    """`apply_rotary_qk` if frequencies or positions require a gradient."""
    positions, inv_freq = rotation.positions, rotation.inv_freq
    k_positions = rotation.k_positions
    if isinstance(to, tuple):
        no_output_for_gradient(function, positions, inv_freq, k_positions)
    if to and not forward_mode():
        expected = "False if frequencies or positions require a gradient"
        wrong_value(function, "inplace", expected, True)
    read = positions, inv_freq, rotation.axis_map, k_positions
    if operators_take(q, k, *read) and not transformed() and not _in_groups(rotation):
        return angle_gradients.LEARNED_ROTARY_QK(q, k, *rotation)  # type: ignore[no-any-return]
    _composable(function, rotation, q=q, k=k)
    rotated = plain_rotary.apply_rotary(function, (q, k), rotation, frequency_turns)
    return pair_results(function, q, k, rotated, to, *read)


def _two_tensors(
    operator: Differentiable,
    q: Tensor,
    k: Tensor,
    rotation: Rotation | TableRotation,
    to: _To,
    plain: bool,
) -> tuple[Tensor, Tensor] | None:
    """The operator in the form for `to`; None if the tensors need plain operations.

    plain: no option of the rotation is a tensor.
    """
    # `operators_take`, inlined to save its call. The first is positions (or None) or cos, the
    # second inv_freq or sin.
    first, second = rotation[0], rotation[1]
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
    if not (together and operators_in_use()) or forward_mode():
        return None
    if isinstance(to, tuple):
        if not operators_take(q, *to):
            return None
        out_q, out_k = to
        call(
            getattr(ops, f"{operator.name}_out").default, q, k, *rotation, out_q=out_q, out_k=out_k
        )
        increment_version(to)
        return to
    wants_grad = (q.requires_grad or k.requires_grad) and torch.is_grad_enabled()
    if wants_grad or transformed():
        return (operator.in_place if to else operator)(q, k, *rotation)  # type: ignore[no-any-return]
    functional, in_place = operator.bare
    # Options with the schema's defaults are omitted: reading one takes torch 0.1 microseconds.
    given = 2 if rotation.layout == "bhsd" and rotation.pairing == "half" else 4
    # Tuples that hold tensors are not compared: torch.compile cannot do it (torch 2.11).
    if not plain or rotation[4:] != _DEFAULTS[type(rotation)]:
        given = len(rotation) - (rotation.out_pairing == "same")
    try:
        if not to:
            return functional(q, k, *rotation[:given])  # type: ignore[no-any-return]
        in_place(q, k, *rotation[:given])
    except RuntimeError as error:
        raise_ours(error)
    increment_version((q, k))
    return q, k
