"""Rotations of tensors, by positions and by tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.pairs import in_place
from posenc_native.core.calls.rotation import Rotation, by_tables, flat, of_pair, schema
from posenc_native.core.calls.tables import Tables
from posenc_native.core.calls.views import PAIRINGS, rounds_as_written
from posenc_native.engines.following import angles_followed, forward_mode, needs_grad, transformed
from posenc_native.engines.plain import rotary as plain_rotary
from posenc_native.engines.plain.numbers import factor_of
from posenc_native.engines.verbs import Outs

from . import cuda
from .door import increment_version
from .gradients import angles as angle_gradients
from .gradients import rotary as rotary_gradients
from .gradients.functions import Differentiable, one_tensor
from .inputs import (
    composable,
    frequency_tensors,
    integer_tensor,
    of_schema,
    position_tensor,
    same_device,
    table_dtype,
)
from .library import call, operators_in_use, operators_take, ops, raise_ours
from .results import check_output, copy_out, no_output_for_gradient, pair_results
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
    factor = factor_of(cos, scale)
    return (cos * factor).to(dtype), (sin * factor).to(dtype)


# Options behind the fourth, by whether tables have the angles.
_DEFAULTS = {
    tables: flat(Rotation(None, Tables(0.0, 0.0) if tables else None))[4:]
    for tables in (False, True)
}  # fmt: skip


def apply_rotary(x: Tensor, rotation: Rotation, out: Tensor | None) -> Tensor:
    """`posenc_native.apply_rotary` for tensors."""
    function, tables = "apply_rotary", by_tables(rotation)
    rotation = read_rotation(function, x, rotation)
    check_output(function, out, x)
    rotation = of_schema(function, rotation)
    angles = angle_tensors(rotation)
    learned = _learned(rotation)
    if learned and out is not None and not tables:
        no_output_for_gradient(function, rotation.positions, rotation.inv_freq)
    native = operators_take(x, *angles.values(), out) and not forward_mode()
    if not (learned and (tables or transformed() or _in_groups(rotation))) and native:
        if learned:
            return angle_gradients.LEARNED_ROTARY(x, *rotation)  # type: ignore[no-any-return]
        return one_tensor(rotary_gradients.ROTARY[tables], function, x, flat(rotation), out)
    composable(function, x=x, out=out, **angles)
    result: Tensor
    (result,) = plain_rotary.apply_rotary(function, (x,), rotation, frequency_turns)
    return result if out is None else copy_out(function, out, result, x, *angles.values())


def apply_rotary_qk(q: Tensor, k: Tensor, rotation: Rotation, outs: Outs) -> tuple[Tensor, Tensor]:
    """`posenc_native.apply_rotary_qk` for tensors."""
    function, tables = "apply_rotary_qk", by_tables(rotation)
    if not isinstance(k, Tensor):
        wrong_type(function, "k", "a tensor, as q is", type(k).__name__)
    if outs is not None:
        _check_outputs(function, q, k, outs)
    read = _tables_of_two if tables else _angles_of_two
    rotation, plain, learned = read(function, q, rotation)
    if learned:
        return _learned_qk(function, q, k, rotation, outs)
    operator = rotary_gradients.ROTARY_QK[tables]
    result = _two_tensors(operator, q, k, rotation, outs, plain)
    return _plain_qk(function, q, k, rotation, outs) if result is None else result


# The checks take about as long as the rotation of one token. Those for decoding therefore come
# first, and others run only for arguments of unusual types. Both functions return the rotation with
# its arrays as tensors, whether there are no others than the first two, and whether a derivative by
# them may be needed.


def _angles_of_two(function: str, q: Tensor, rotation: Rotation) -> tuple[Rotation, bool, bool]:
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
    learned = (
        (positions is not None and positions.requires_grad)
        or inv_freq.requires_grad
        or k_positions is not None
        or transformed()
    ) and angles_followed(inv_freq, positions, k_positions)
    return rotation, plain, learned


def _tables_of_two(function: str, q: Tensor, rotation: Rotation) -> tuple[Rotation, bool, bool]:
    cos, sin, rows, axis_map, compute = rotation.inv_freq
    plain = rows is None and axis_map is None and type(cos) is not tuple
    if plain and isinstance(cos, Tensor) and isinstance(sin, Tensor):
        learned = (cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled()
    else:
        rotation = read_rotation(function, q, rotation)
        learned = _learned(rotation)
    rotation = _of_schema_if_needed(function, rotation)
    if compute != "float32":
        rounds_as_written(function, compute)
    return rotation, plain, learned


def _learned(rotation: Rotation) -> bool:
    """Whether a derivative by the tensors that angles come from may be needed."""
    if not by_tables(rotation):
        return angles_followed(rotation.inv_freq, rotation.positions, rotation.k_positions)
    return needs_grad(*(t for t in angle_tensors(rotation).values() if t is not None))


def angle_tensors(rotation: Rotation) -> dict[str, Tensor | None]:
    """The tensors that angles come from, by their names in errors."""
    names = schema(by_tables(rotation))
    return {
        f"{name[2:]}[1]" if name.startswith("k_") else name: value
        for name, value in zip(names, flat(rotation), strict=True)
        if name.removeprefix("k_") in _TENSORS
    }


_TENSORS = ("positions", "inv_freq", "axis_map", "cos", "sin", "rows")


def read_rotation(function: str, x: Tensor, rotation: Rotation) -> Rotation:
    """The rotation with its arrays as tensors on the device of x, and a checked scale."""
    if by_tables(rotation):
        tables = _read_tables(function, x, rotation, rotation.inv_freq)
        return rotation._replace(inv_freq=tables)
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


def _read_tables(function: str, x: Tensor, rotation: Rotation, tables: Tables) -> Tables:
    """Tables with rows and axis_map as tensors; cos and sin must be tensors."""
    rounds_as_written(function, tables.compute)
    for name in ("cos", "sin"):
        table = getattr(tables, name)
        pair = type(table) is tuple
        for i, tensor in enumerate(table if pair else (table,)):
            if not isinstance(tensor, Tensor):
                like = "x" if function == "apply_rotary" else "q"
                argument = f"{name}[{i}]" if pair else name
                wrong_type(function, argument, f"a tensor, as {like} is", type(tensor).__name__)
    rows: Any = tables.rows
    if type(rows) is tuple:
        read = []
        for i, own in enumerate(rows):
            with of_pair(rotation, i):
                read.append(_read_integers(function, "rows", own, x))
        rows = tuple(read)
    else:
        rows = _read_integers(function, "rows", rows, x)
    axis_map = _read_integers(function, "axis_map", tables.axis_map, x)
    return Tables(tables.cos, tables.sin, rows, axis_map, tables.compute)


def _read_integers(function: str, name: str, value: Any, x: Tensor) -> Tensor | None:
    integers: Tensor | None = integer_tensor(function, name, value, x.device)
    same_device(function, x, **{name: integers})
    return integers


def _read_positions(function: str, x: Tensor, positions: Any) -> Tensor | None:
    if positions is None or isinstance(positions, Tensor):
        return positions
    return position_tensor(function, positions, x.device)


def _of_schema_if_needed(function: str, rotation: Rotation) -> Rotation:
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


def _check_outputs(function: str, q: Tensor, k: Tensor, outs: tuple[Any, ...]) -> None:
    for i, (name, x) in enumerate((("q", q), ("k", k))):
        check_output(function, outs[i], x, f"out[{i}]", name)
    if needs_grad(q, k) and not in_place(outs, (q, k)):
        expected = "no out, or (q, k) themselves, if a gradient is required"
        wrong_value(function, "out", expected, "other tensors")


def _learned_qk(
    function: str, q: Tensor, k: Tensor, rotation: Rotation, outs: Outs
) -> tuple[Tensor, Tensor]:
    """`apply_rotary_qk` if frequencies, positions or tables require a gradient."""
    angles = angle_tensors(rotation)
    overwrites = in_place(outs, (q, k))
    if outs is not None and not overwrites:
        no_output_for_gradient(function, *angles.values())
    if by_tables(rotation):
        return _plain_qk(function, q, k, rotation, outs)
    if overwrites and not forward_mode():
        expected = "False if frequencies or positions require a gradient"
        wrong_value(function, "inplace", expected, True)
    if operators_take(q, k, *angles.values()) and not transformed() and not _in_groups(rotation):
        return angle_gradients.LEARNED_ROTARY_QK(q, k, *rotation)  # type: ignore[no-any-return]
    return _plain_qk(function, q, k, rotation, outs)


def _plain_qk(
    function: str, q: Tensor, k: Tensor, rotation: Rotation, outs: Outs
) -> tuple[Tensor, Tensor]:
    angles = angle_tensors(rotation)
    composable(function, q=q, k=k, **angles)
    rotated = plain_rotary.apply_rotary(function, (q, k), rotation, frequency_turns)
    return pair_results(function, q, k, rotated, outs, *angles.values())


def _two_tensors(
    operator: Differentiable, q: Tensor, k: Tensor, rotation: Rotation, outs: Outs, plain: bool
) -> tuple[Tensor, Tensor] | None:
    """The operator in the form for `outs`; None if the tensors need plain operations.

    plain: no option of the rotation is a tensor.
    """
    # `operators_take`, inlined to save its call. The first is positions (or None) or cos, the
    # second inv_freq or sin.
    options = flat(rotation)
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
    if not (together and operators_in_use()) or forward_mode():
        return None
    overwrites = outs is not None and outs[0] is q and outs[1] is k
    if outs is not None and not overwrites:
        if not operators_take(q, *outs):
            return None
        out_q, out_k = outs
        call(operator.bare.to_out, q, k, *options, out_q=out_q, out_k=out_k)
        increment_version(outs)
        return out_q, out_k
    wants_grad = (q.requires_grad or k.requires_grad) and torch.is_grad_enabled()
    if wants_grad or transformed():
        return (operator.in_place if overwrites else operator)(q, k, *options)  # type: ignore[no-any-return]
    # Options with the schema's defaults are omitted: an option takes torch 0.1 microseconds.
    count = 2 if rotation.layout == "bhsd" and rotation.pairing == "half" else 4
    # Tuples that hold tensors are not compared: torch.compile cannot do it (torch 2.11).
    if not plain or options[4:] != _DEFAULTS[by_tables(rotation)]:
        count = len(options) - (rotation.out_pairing == "same")
    try:
        if not overwrites:
            return operator.bare.new(q, k, *options[:count])  # type: ignore[no-any-return]
        operator.bare.in_place(q, k, *options[:count])
    except RuntimeError as error:
        raise_ours(error)
    increment_version((q, k))
    return q, k
