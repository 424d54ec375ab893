"""Rotations of DTensors, sharded along batch, tokens and heads; the dims of a head are whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from posenc_native.core.calls.pairs import in_place
from posenc_native.core.calls.rotation import Rotation, by_tables, of_each
from posenc_native.core.calls.tables import Tables
from posenc_native.engines import backend
from posenc_native.engines.following import needs_grad
from posenc_native.engines.rotations import to_of
from posenc_native.engines.torch import rotary as plain
from posenc_native.engines.torch.inputs import frequency_tensors, integer_tensor, position_tensor
from posenc_native.engines.torch.results import no_output_for_gradient
from posenc_native.engines.verbs import Outs

from .cut import Cut, Names, mesh_of, must_be_traced, overwritten, result_like, whole
from .errors import NotThePart
from .recorded import linear


def rotate(x: Any, rotation: Rotation, out: Any) -> Tensor:
    """`apply_rotary`."""
    function = "apply_rotary"
    x = whole(x, mesh_of((x, rotation)))
    cut = cut_of(x, rotation.layout)
    own = part_of(function, cut, rotation)
    if out is not None:
        no_output_for_gradient(function, *tensors_of(rotation))
    read = tensors_of(own)
    if out is None and not must_be_traced(*read):
        return _new([cut], [x], [own], read)[0]
    read = tensors_of(x, rotation)
    return result_like(
        function, cut, "x", x, out, read, lambda t, to: plain.apply_rotary(t, own, to)
    )


def rotate_two(q: Any, k: Any, rotation: Rotation, outs: Outs) -> tuple[Tensor, Tensor]:
    """`apply_rotary_qk`."""
    function = "apply_rotary_qk"
    mesh = mesh_of((q, k, rotation))
    both = whole(q, mesh), whole(k, mesh)
    cuts = [cut_of(x, rotation.layout) for x in both]
    if outs is not None and needs_grad(*tensors_of(q, k, rotation)):
        if not in_place(outs, (q, k)):
            no_output_for_gradient(function, *tensors_of(q, k, rotation))
        for name, cut, x in zip("qk", cuts, both, strict=True):
            cut.place(function, name, x, name)
        rotated = rotate_two(q, k, rotation, None)
        return overwrite(q, rotated[0]), overwrite(k, rotated[1])
    places = None if outs is None else places_of(function, cuts, (q, k), both, outs)
    rotations = _rotations(cuts, rotation)
    if outs is not None and places is not None:
        with torch.no_grad():
            parts = [
                places[i] if outs[i] is x else cuts[i].local(both[i]) for i, x in enumerate((q, k))
            ]
            _rotate_parts(rotations, parts, places)
        overwritten(*outs)
        return outs[0], outs[1]
    read = tensors_of(*rotations)
    if not must_be_traced(*read):
        return _new(cuts, both, rotations, read)  # type: ignore[return-value]
    parts = [cut.local(x) for cut, x in zip(cuts, both, strict=True)]
    rotated = _rotate_parts(rotations, parts, None)
    joined = [cut.join(part, cut.names) for cut, part in zip(cuts, rotated, strict=True)]
    return joined[0], joined[1]


def rotary_tables(
    positions: Any, inv_freq: Any, axis_map: Any, scale: float, dtype: Any
) -> tuple[Tensor, Tensor]:
    """Tables are sharded like positions."""
    function = "rotary_tables"
    mesh = mesh_of((positions, inv_freq, axis_map))
    device = next(t.device for t in (positions, inv_freq, axis_map) if isinstance(t, DTensor))
    positions = whole(position_tensor(function, positions, device), mesh)
    coordinates = 0 if axis_map is None else 1
    names: Names = tuple(f"n{axis}" for axis in range(positions.ndim))
    cut = Cut(positions, names, names[coordinates:])
    axis_map = cut.part(integer_tensor(function, "axis_map", axis_map, device), ("P",))
    frequencies = _frequencies(function, cut, inv_freq)
    tables = plain.rotary_tables(cut.local(positions), frequencies, axis_map, scale, dtype)
    joined = [cut.join(table, (*names[coordinates:], "P")) for table in tables]
    return joined[0], joined[1]


def cut_of(x: DTensor, layout: Any, whole_axes: str = "d") -> Cut:
    """The cut of q or k, which must not be sharded along some axes."""
    names = tuple(layout) if isinstance(layout, str) else ()
    return Cut(x, names, tuple(name for name in names if name not in whole_axes))


def part_of(function: str, cut: Cut, rotation: Rotation, k_cut: Cut | None = None) -> Rotation:
    """The rotation for the part of x, or of q and, with its own cut, of k."""
    rule = _by_tables if by_tables(rotation) else _by_positions
    return rule(function, cut, rotation, k_cut)


def tensors_of(*values: Any) -> list[Tensor]:
    """All tensors, including those in records."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, tuple):
            tensors += tensors_of(*value)
    return tensors


def places_of(
    function: str, cuts: list[Cut], inputs: Any, whole_inputs: Any, outs: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """The local parts of the outputs. A plain input that is overwritten holds the whole value."""
    places = []
    for i, out in enumerate(outs):
        name, of_input = "qk"[i], out is inputs[i]
        argument = name if of_input else f"out[{i}]" if len(outs) > 1 else "out"
        target = whole_inputs[i] if of_input else out
        places.append(cuts[i].place(function, argument, target, name))
    return tuple(places)


def _rotations(cuts: Sequence[Cut], rotation: Rotation) -> list[Rotation]:
    """The rotation of both parts, or of each if q and k are sharded in different ways."""
    if cuts[0].lies_as(cuts[1]):
        return [part_of("apply_rotary_qk", cuts[0], rotation, cuts[1])]
    each = zip(cuts, of_each(rotation), strict=True)
    return [part_of("apply_rotary", cut, own) for cut, own in each]


def _new(
    cuts: Sequence[Cut], inputs: Sequence[DTensor], rotations: list[Rotation], read: list[Tensor]
) -> tuple[DTensor, ...]:
    """New DTensors; the transpose of a rotation is the inverse rotation."""

    def rotate_back(parts: Sequence[Tensor], places: Outs) -> Any:
        return _rotate_parts([own.turned_back() for own in rotations], parts, places)

    return linear(
        cuts, inputs, read, lambda parts, to: _rotate_parts(rotations, parts, to), rotate_back
    )


def _rotate_parts(rotations: list[Rotation], parts: Sequence[Tensor], places: Outs) -> Any:
    """Rotate the parts of x, or of q and k, in one call if both have one rotation."""
    if len(rotations) == len(parts):
        to = places or [None] * len(parts)
        return tuple(map(_rotate_part, parts, rotations, to))
    (own,), (q, k) = rotations, parts
    rotated = backend.door.apply_rotary_qk(q, k, *own, to_of(places, (q, k)))
    if rotated is not NotImplemented:
        return rotated
    return plain.apply_rotary_qk(q, k, own, places)


def _rotate_part(part: Tensor, own: Rotation, place: Tensor | None) -> Tensor:
    rotated: Any = backend.door.apply_rotary(part, *own, place)
    if rotated is not NotImplemented:
        return rotated  # type: ignore[no-any-return]
    return plain.apply_rotary(part, own, place)


def overwrite(x: Any, rotated: Any) -> Tensor:
    """Overwrite x; a plain x beside a DTensor gets the whole values."""
    result: Tensor = x.copy_(rotated if isinstance(x, DTensor) else rotated.full_tensor())
    return result


def _tokens(cut: Cut) -> str:
    return "t" if "t" in cut.names else "s"


def _heads(cut: Cut) -> str:
    return "g h" if "g" in cut.names else "h"


def token_names(cut: Cut, t: Tensor, before: int) -> Names:
    """Axes of positions, rows of tables and slots: [s] or [b, s], after the coordinates."""
    axes = t.ndim - before
    if not 1 <= axes <= 2:
        raise NotThePart
    names = ("b", _tokens(cut))[2 - axes :]
    if "b" in names and "b" not in cut.names:
        raise NotThePart
    return ("A",) * before + names


def _by_positions(function: str, cut: Cut, rotation: Rotation, k_cut: Cut | None) -> Rotation:
    frequencies = _frequencies(function, cut, rotation.inv_freq)
    axis_map = integer_tensor(function, "axis_map", rotation.axis_map, cut.device)
    several = int(axis_map is not None or frequencies.ndim == 3)

    def positions_of(positions: Any, by: Cut) -> Any:
        if positions is None:
            tokens = _tokens(by)
            if tokens not in by.by:
                return None
            begin, count = by.span(tokens)
            return torch.arange(begin, begin + count, device=by.device)
        positions = position_tensor(function, positions, by.device)
        return by.part(positions, token_names(by, positions, several))

    k_positions = rotation.k_positions
    if k_positions is not None:
        k_positions = positions_of(k_positions, k_cut or cut)
    return rotation._replace(
        positions=positions_of(rotation.positions, cut),
        inv_freq=frequencies,
        axis_map=cut.part(axis_map, ("P",)),
        k_positions=k_positions,
    )


def _frequencies(function: str, cut: Cut, inv_freq: Any) -> Any:
    if not isinstance(inv_freq, Tensor):
        here = torch.empty(0, device=cut.device)
        inv_freq, _ = frequency_tensors(function, here, inv_freq, None)
    if not 1 <= inv_freq.ndim <= 3:
        raise NotThePart
    return cut.part(inv_freq, ("A", _heads(cut), "P")[3 - inv_freq.ndim :])


def _by_tables(function: str, cut: Cut, rotation: Rotation, k_cut: Cut | None) -> Rotation:
    tables = rotation.inv_freq
    axis_map = integer_tensor(function, "axis_map", tables.axis_map, cut.device)
    several = int(axis_map is not None)

    def table(angles: Any, by: Cut) -> Any:
        if not isinstance(angles, Tensor):
            raise TypeError
        axes = angles.ndim - several - 1
        if tables.rows is not None:
            names: Names = ("n",)
        elif axes == 1:
            names = (_tokens(by),)
        elif axes == 2:
            names = ("b" if "b" in by.names else _heads(by), _tokens(by))
        else:
            names = ("b", _heads(by), _tokens(by))
        return by.part(angles, ("A",) * several + names + ("P",))

    def rows_of(rows: Any, by: Cut) -> Any:
        rows = integer_tensor(function, "rows", rows, by.device)
        return None if rows is None else by.part(rows, token_names(by, rows, 0))

    def part(value: Any, rule: Any) -> Any:
        if type(value) is tuple:
            return rule(value[0], cut), rule(value[1], k_cut or cut)
        return rule(value, cut)

    own = Tables(
        part(tables.cos, table),
        part(tables.sin, table),
        part(tables.rows, rows_of),
        cut.part(axis_map, ("P",)),
        tables.compute,
    )
    return rotation._replace(inv_freq=own)
