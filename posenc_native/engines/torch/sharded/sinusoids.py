"""Sinusoidal tables for DTensors, whose rows are independent."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from posenc_native.engines.torch import sinusoids as plain
from posenc_native.engines.torch.inputs import position_tensor
from posenc_native.engines.torch.results import no_output_for_gradient

from .cut import Cut, Names, mesh_of, overwritten, result_like, whole
from .errors import NotThePart


def sinusoidal(positions: Any, *rest: Any) -> Tensor:
    """A table is sharded like positions."""
    function = "sinusoidal"
    *options, device, out = rest
    positions = position_tensor(function, positions, device if out is None else out.device)
    axes: Names = tuple(f"n{axis}" for axis in range(positions.ndim))
    if out is None:
        cut = Cut(whole(positions, mesh_of((positions,))), axes, axes)
        return cut.join(
            plain.sinusoidal(cut.local(positions), *options, device, None), (*axes, "d")
        )
    cut = Cut(whole(out, mesh_of((positions, out))), (*axes, "d"), axes)
    no_output_for_gradient(function, positions)
    place = cut.place(function, "out", out, "positions")
    plain.sinusoidal(cut.part(positions, axes), *options, device, place)
    overwritten(out)
    return out  # type: ignore[no-any-return]


def add_sinusoidal(x: Any, positions: Any, *rest: Any) -> Tensor:
    """x [..., s, d] may be sharded along all axes except d."""
    function = "add_sinusoidal"
    *numbers, out = rest
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

    def add(part: Tensor, to: Tensor | None) -> Tensor:
        return plain.add_sinusoidal(part, positions, *numbers, to)

    return result_like(function, cut, "x", x, out, read, add)
