"""Operators for data-dependent angles: phases from steps, tables from phases, and rotations.

They run on the CPU and on CUDA. For calls under torch.func or forward mode, and on other devices,
these functions return None: a composition (phases.py, angles.py) computes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.errors import blame, fault_of
from posenc_native.core.calls.pairs import missing_one, outputs
from posenc_native.engines.following import needs_grad, transformed
from posenc_native.engines.torch.inputs import of_schema
from posenc_native.engines.torch.library import call, operators_take, ops
from posenc_native.engines.torch.results import check_output, overlap, written

if TYPE_CHECKING:
    from .angles import Angles

__all__ = ["accumulated_phases", "checked_places", "phase_tables", "rotated", "rotated_back"]


def accumulated_phases(steps: Tensor, state: Tensor | None) -> Tensor | None:
    """Sums of steps, in turns, along the second-to-last axis, starting from a state."""
    if not _takes(steps, state):
        return None
    return call(ops.accumulated_phases.default, steps.detach(), state)  # type: ignore[no-any-return]


def phase_tables(phases: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """Cosines and sines of phases."""
    if not _takes(phases):
        return None
    return call(ops.phase_tables.default, phases.contiguous(), dtype)  # type: ignore[no-any-return]


def rotated(
    q: Any, k: Any, angles: Angles, starts: Tensor | None, to: dict[str, Any]
) -> tuple[Any, Any, Tensor] | None:
    """q and k rotated, and the state after them.

    starts: as in the call. to: the keywords `inplace` and `out`, if the call has them.
    """
    tensors = [x for x in (q, k) if x is not None]
    if needs_grad(*tensors) or not _takes_call(angles, starts, *tensors):
        return None
    function = angles.arrays.function
    places = checked_places(q, k, angles, starts, to)
    name = "rotary_by_steps" if len(tensors) == 1 else "rotary_qk_by_steps"
    options = _options(function, angles, tensors)
    args = (*tensors, angles.steps.detach(), angles.state, starts, *options)
    try:
        results, state = _run(name, args, tensors, places)
    except (ValueError, TypeError) as error:
        fault, at = fault_of(error), int(q is None)
        if len(tensors) == 1 and fault is not None and fault.argument in ("x", "out"):
            blame(error, argument="qk"[at] if fault.argument == "x" else f"out[{at}]")
        raise
    of_q, of_k = (next(iter(results)) if x is tensors[0] else results[-1]  # both may be one tensor
                  for x in (tensors[0], tensors[-1]))  # fmt: skip
    return None if q is None else of_q, None if k is None else of_k, state


def _run(
    name: str, args: tuple[Any, ...], tensors: list[Tensor], places: Any
) -> tuple[Any, Tensor]:
    """The results and the state, from the variant of the operator for these places."""
    if places is None:
        *results, state = call(getattr(ops, name).default, *args)
        return results, state
    results = [place for place in places if place is not None]
    if all(place is x for place, x in zip(results, tensors, strict=True)):
        state = call(getattr(ops, f"{name}_").default, *args)
    else:
        names = ("out",) if len(tensors) == 1 else ("out_q", "out_k")
        outs = dict(zip(names, results, strict=True))
        state = call(getattr(ops, f"{name}_out").default, *args, **outs)
    for place in results:
        written(place)
    return results, state


def rotated_back(
    grads: tuple[Any, Any], q: Any, k: Any, angles: Angles, starts: Tensor | None
) -> tuple[Any, Any, Tensor] | None:
    """Gradients of q, k and the steps; angles are those of the forward rotation."""
    tensors = [x for x in (q, k) if x is not None]
    own = [grad for grad, x in zip(grads, (q, k), strict=True) if x is not None]
    steps = angles.steps.detach()
    if torch.is_grad_enabled() or not _takes_call(angles, starts, *tensors, *own):
        return None
    name = "rotary_by_steps_backward" if len(tensors) == 1 else "rotary_qk_by_steps_backward"
    options = _options(angles.arrays.function, angles, tensors)
    of_steps = torch.empty(steps.shape, dtype=steps.dtype, device=steps.device)
    args = (*own, *tensors, of_steps, steps, angles.state, starts, *options)
    gradients = call(getattr(ops, name).default, *args)
    if len(tensors) == 2:
        return (*gradients, of_steps)
    return None if q is None else gradients, None if k is None else gradients, of_steps


def _takes(x: Tensor, *tensors: Tensor | None) -> bool:
    return not transformed() and operators_take(x, *tensors)


def _takes_call(angles: Angles, starts: Any, *tensors: Tensor) -> bool:
    if not isinstance(starts, Tensor) and starts is not None:
        return False
    # Pieces of rows that continue on other ranks have states by batch and head.
    pieces = starts is not None and "b" in angles.options.layout
    return not pieces and _takes(angles.steps, *tensors, angles.state, starts)


def _options(function: str, angles: Angles, tensors: list[Tensor]) -> tuple[Any, ...]:
    """The options of a rotation, in the order and with the types of the schemas."""
    selective: Any = angles.options  # with the fields of a rotation that of_schema reads
    options: Any = of_schema(function, selective)
    scale = arguments.factor(function, "scale", options.scale, tensors[0].dtype)
    return tuple(options._replace(scale=scale))


def checked_places(
    q: Any, k: Any, angles: Angles, starts: Any, to: dict[str, Any]
) -> tuple[Any, Any] | None:
    """The checked outputs for q and k; None for new memory."""
    function = angles.arrays.function
    out, inplace = to.get("out"), angles.arrays.flag("inplace", to.get("inplace", False))
    if out is None and not inplace:
        return None
    places: tuple[Any, Any] = (q, k)
    if out is not None:
        places = outputs(function, out, inplace, missing_one(q, k))
    for i, (name, x, place) in enumerate(zip("qk", (q, k), places, strict=True)):
        if x is None:
            continue
        called = name if place is x else f"out[{i}]"
        check_output(function, place, x, called, name)
        for field, read in (("steps", angles.steps), ("state", angles.state), ("starts", starts)):
            if isinstance(read, Tensor) and overlap(place, read):
                wrong_value(function, called, f"no memory in common with {field}", "an overlap")
    return places
