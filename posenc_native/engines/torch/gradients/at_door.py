"""Training by the fast path: autograd records a call of the door, and its gradient is another.

The general path records an operator, for every kind of call. In a step of a few tokens most of its
time is Python that settles options. Here autograd keeps them as the caller wrote them, and the
gradient of a rotation is the inverse rotation with the same options.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls.descriptions import description_in, learned_in
from posenc_native.core.calls.rotation import Rotation
from posenc_native.core.calls.tables import Tables
from posenc_native.engines.following import forward_mode, tracing
from posenc_native.engines.rotations import Call, run
from posenc_native.engines.verbs import RotaryVerb

from .functions import per_gradient


def rotate(verb: RotaryVerb, inputs: tuple[Any, ...], rotation: Rotation) -> Any:
    """New tensors, recorded by autograd; NotImplemented for calls of the general path.

    rotation: as the caller wrote it. Arrays and lists may change before the backward, and autograd
    would not notice it: the general path takes them.
    """
    if not torch.is_grad_enabled() or tracing() or forward_mode():
        return NotImplemented
    wanted = False
    for x in inputs:
        if type(x) is not Tensor:
            return NotImplemented
        wanted = wanted or x.requires_grad
    if not wanted or rotation.out_pairing != "same":
        return NotImplemented
    positions, source = rotation.positions, rotation.inv_freq
    if type(source) is Tables:
        options: tuple[Any, ...] = source
    elif type(source) is Tensor:
        options = positions, source, rotation.axis_map
    else:
        described = description_in(source)
        if described is None or learned_in(source) is not None:
            return NotImplemented
        if described is not source:
            rotation = rotation._replace(inv_freq=described)
        options = (positions,)
    for option in options:
        if option is not None and type(option) not in _STEADY:
            return NotImplemented
        if type(option) is Tensor and option.requires_grad:
            return NotImplemented
    try:
        return _Eager.apply(verb, rotation, *inputs)  # type: ignore[no-untyped-call]
    except _NotMineError:
        return NotImplemented


# Types of options that do not change, or whose change autograd notices.
_STEADY = (Tensor, int, str)


class _NotMineError(Exception):
    """The door has not taken the call."""


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, verb: RotaryVerb, rotation: Rotation, *inputs: Tensor) -> Any:
        results = verb.door(*inputs, *rotation, None if len(inputs) == 1 else False)
        if results is NotImplemented:
            raise _NotMineError
        ctx.call = verb, rotation
        source = rotation.inv_freq
        kept = source if type(source) is Tables else (rotation.positions, source, rotation.axis_map)
        # Only to notice changes: the rotation has them, too.
        ctx.save_for_backward(*[option for option in kept if type(option) is Tensor])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        _ = ctx.saved_tensors  # raises if one of them was overwritten
        verb, rotation = ctx.call
        back = rotation.turned_back()

        def rotated_back(*grads: Tensor) -> Any:
            results = verb.door(*grads, *back, None if len(grads) == 1 else False)
            if results is NotImplemented:
                results = run(Call(verb, grads, back, None))
            return (results,) if len(grads) == 1 else results

        return None, None, *per_gradient(rotated_back, grads)
