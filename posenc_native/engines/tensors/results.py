"""Where results go: what may be written to, and how autograd learns of it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value

from .composed import phases as composed_phases
from .following import needs_grad
from .small import increment_version


def no_output_for_gradient(function: str, *inputs: Tensor | None) -> None:
    """ValueError where an input requires a gradient, which a result in `out` would not pass on."""
    if needs_grad(*(x for x in inputs if x is not None)):
        wrong_value(function, "out", "no out where a gradient is required", "a tensor")


def check_output(function: str, out: object, x: Tensor) -> None:
    """TypeError or ValueError unless `out` may take a result like x."""
    if out is None or out is x:
        return
    if not isinstance(out, Tensor):
        wrong_type(function, "out", "a tensor, as x is", type(out).__name__)
    no_gradient_of_output(function, out)


def no_gradient_of_output(function: str, out: Tensor) -> None:
    """ValueError where autograd would record what is written to `out`."""
    if out.requires_grad and torch.is_grad_enabled():
        wrong_value(function, "out", "a tensor that requires no gradient", "one that does")


def written(out: Tensor) -> Tensor:
    """`out`, after telling autograd that it was overwritten: operators of the stable ABI do not."""
    increment_version((out,))
    return out


def copy_out(
    function: str,
    out: Tensor,
    result: Tensor,
    *inputs: Tensor | None,
    apart: Tensor | None = None,
) -> Tensor:
    """Copy the result to `out`, which may be one of the inputs but must not overlap `apart`."""
    _check_copy(function, "out", out, result, *inputs)
    if apart is not None and composed_phases.concrete(out, apart) and overlap(out, apart):
        wrong_value(function, "out", "no memory in common with the inputs", "an overlap")
    return out.copy_(result)


def pair_results(
    function: str,
    q: Tensor,
    k: Tensor,
    rotated: tuple[Tensor, ...],
    inplace: bool,
    *others: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The results of a composition for q and k, written over these if in place."""
    rotated_q, rotated_k = rotated
    if not inplace:
        return rotated_q, rotated_k
    for name, x, other in (("q", q, k), ("k", k, q)):
        if composed_phases.concrete(x, other) and overlap(x, other):
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
    if composed_phases.concrete(out, *inputs):
        for x in inputs:
            if x is not None and not _same_view(out, x) and overlap(out, x):
                wrong_value(function, name, "no memory in common with the inputs", "an overlap")


def _same_view(a: Tensor, b: Tensor) -> bool:
    same_memory = a.data_ptr() == b.data_ptr() and a.dtype == b.dtype
    return same_memory and a.shape == b.shape and a.stride() == b.stride()


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors on the CPU share memory."""
    # As integers, because NumPy has no bfloat16.
    first, second = (t.detach().view(_WORDS[t.element_size()]).numpy() for t in (a, b))
    return np.shares_memory(first, second)


_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
