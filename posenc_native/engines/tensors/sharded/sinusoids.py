"""Sinusoidal tables of DTensors: each row stands by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.engines.tensors import sinusoids as plain
from posenc_native.engines.tensors.following import needs_grad
from posenc_native.engines.tensors.inputs import position_tensor
from posenc_native.engines.tensors.results import no_output_for_gradient

from .cut import Cut, Names, mesh_of, overwritten, whole
from .errors import NotThePart


def sinusoidal(
    positions: Any,
    dim: int,
    base: float,
    layout: str,
    shift: float,
    scale: float,
    dtype: Any,
    device: Any,
    out: Any,
) -> Tensor:
    """A table is cut as positions are."""
    function = "sinusoidal"
    given: Any = position_tensor(function, positions, device if out is None else out.device)
    axes: Names = tuple(f"n{axis}" for axis in range(given.ndim))
    options = (dim, base, layout, shift, scale, dtype, device)
    if out is None:
        cut = Cut(whole(given, mesh_of((given,))), axes, axes)
        return cut.join(plain.sinusoidal(cut.local(given), *options, None), (*axes, "d"))
    cut = Cut(whole(out, mesh_of((given, out))), (*axes, "d"), axes)
    no_output_for_gradient(function, given)
    place = cut.place(function, "out", out, "positions")
    plain.sinusoidal(cut.part(given, axes), *options, place)
    overwritten(out)
    return out  # type: ignore[no-any-return]


def add_sinusoidal(
    x: Any,
    positions: Any,
    x_scale: float,
    alpha: float,
    base: float,
    layout: str,
    shift: float,
    scale: float,
    out: Any,
) -> Tensor:
    """x [..., s, d], cut along all but d."""
    function = "add_sinusoidal"
    numbers = (x_scale, alpha, base, layout, shift, scale)
    x = whole(x, mesh_of((x, positions)))
    names: Names = (*(f"n{axis}" for axis in range(x.ndim - 2)), "s", "d")
    cut = Cut(x, names, names[:-1])
    if positions is not None:
        positions = position_tensor(function, positions, x.device)
        if not 1 <= positions.ndim < x.ndim:
            raise NotThePart
        positions = cut.part(positions, names[-1 - positions.ndim : -1])
    elif cut.is_cut("s"):
        begin, count = cut.span("s")
        positions = position_tensor(function, count, x.device) + begin
    read = [t for t in (x, positions) if t is not None]
    if out is None:
        room = None if needs_grad(*read) else cut.room(x)
        if room is not None:
            with torch.no_grad():
                plain.add_sinusoidal(x.to_local(), positions, *numbers, room.to_local())
                return room
        return cut.join(plain.add_sinusoidal(cut.local(x), positions, *numbers, None), names)
    if out is x and needs_grad(*read):
        cut.place(function, "out", out, "x")
        return x.copy_(add_sinusoidal(x, positions, *numbers, None))  # type: ignore[no-any-return]
    no_output_for_gradient(function, *read)
    place = cut.place(function, "out", out, "x")
    plain.add_sinusoidal(place if out is x else cut.local(x), positions, *numbers, place)
    overwritten(out)
    return out  # type: ignore[no-any-return]
