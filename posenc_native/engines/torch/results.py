"""Outputs: checks of tensors to write to, and notification of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls import arguments, memory
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.engines.following import (
    functorch_active,
    is_leaf_for_gradient,
    needs_grad,
    tracing,
)
from posenc_native.engines.verbs import Outs

from .door import increment_version


def no_output_for_gradient(function: str, *inputs: Tensor | None) -> None:
    """ValueError if an input requires a gradient, which a result in `out` would not propagate."""
    if needs_grad(*(x for x in inputs if x is not None)):
        wrong_value(function, "out", "no out if a gradient is required", "a tensor")


def check_output(function: str, out: object, x: Tensor, name: str = "out", like: str = "x") -> None:
    """TypeError or ValueError unless `out` can hold a result like x; messages call x `like`."""
    if out is None:
        return
    if not isinstance(out, Tensor):
        wrong_type(function, name, f"a tensor, as {like} is", type(out).__name__)
    if out is not x:
        no_gradient_of_output(function, out, name)
    check_writable(out)


def no_gradient_of(function: str, argument: str, *tensors: Tensor) -> None:
    """ValueError for an in-place argument if an input requires a gradient and must be kept."""
    if needs_grad(*tensors):
        wrong_value(function, argument, "False if a gradient is required", True)


def no_gradient_of_output(function: str, out: Tensor, name: str = "out") -> None:
    """ValueError if autograd would record writes to `out`."""
    if out.requires_grad and torch.is_grad_enabled():
        wrong_value(function, name, "a tensor that requires no gradient", "one that does")


def check_writable(*outputs: Tensor) -> None:
    """torch's RuntimeError for an inference tensor, without a version, outside inference mode."""
    if tracing() or torch.is_inference_mode_enabled():  # in this order: dynamo refuses the second
        return
    for out in outputs:
        if out.is_inference():
            # torch raises after it has written; here there is nothing to write.
            out.as_strided((0,), (1,)).zero_()


def check_no_leaf(*outputs: Tensor) -> None:
    """torch's RuntimeError for a leaf that requires a gradient, before anything is written."""
    if not tracing() and any(map(is_leaf_for_gradient, outputs)):
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation."
        )


def written(out: Tensor) -> Tensor:
    """Notify autograd that `out` was overwritten, which operators of the stable ABI do not."""
    increment_version((out,))
    return out


def copy_out(
    function: str, out: Tensor, result: Tensor, *inputs: Tensor | None, apart: Tensor | None = None
) -> Tensor:
    """Copy the result to `out`, which may be an input but must not overlap `apart`."""
    check_copy(function, "out", out, result, *inputs)
    if apart is not None and overlap(out, apart):
        wrong_value(function, "out", "no memory in common with the inputs", "an overlap")
    return out.copy_(result)


def pair_results(
    function: str,
    q: Tensor,
    k: Tensor,
    rotated: tuple[Tensor, ...],
    outs: Outs,
    *others: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The results of plain operations for q and k, or the tensors that they were written to."""
    rotated_q, rotated_k = rotated
    if outs is None:
        return rotated_q, rotated_k
    check_no_leaf(*outs)
    names = [
        name if out is x else f"out[{i}]"
        for i, (name, x, out) in enumerate(zip("qk", (q, k), outs, strict=True))
    ]
    for name, out, x, result in zip(names, outs, (q, k), rotated, strict=True):
        check_copy(function, name, out, result, x, *others)
    for at, out, other in ((0, outs[0], k), (1, outs[1], q), (1, outs[1], outs[0])):
        if overlap(out, other):
            wrong_value(function, names[at], "no memory in common with the other", "an overlap")
    return outs[0].copy_(rotated_q), outs[1].copy_(rotated_k)


def check_copy(
    function: str, name: str, out: Tensor, result: Tensor, *inputs: Tensor | None
) -> None:
    """TypeError or ValueError unless the result may be copied to `out`, which no input overlaps."""
    if out.dtype != result.dtype:
        wrong_type(function, name, str(result.dtype), out.dtype)
    if _comes_from_outside(out, result):
        expected = "a tensor that was passed to, or made in, the transform of torch.func"
        wrong_value(function, name, expected, "a tensor from outside")
    arguments.check_shape(function, name, tuple(out.shape), tuple(result.shape))
    check_elements_apart(function, name, out)
    for x in inputs:
        if x is not None and overlap(out, x) and not same_view(out, x):
            wrong_value(function, name, "no memory in common with the inputs", "an overlap")


def _comes_from_outside(out: Tensor, result: Tensor) -> bool:
    """Whether torch refuses to write the result there, inside a transform of torch.func.

    Checked before anything is written: torch may refuse one of q and k after the other is written.
    """
    if torch.compiler.is_compiling() or not functorch_active():
        return False
    functorch = torch._C._functorch
    current = functorch.peek_interpreter_stack()
    if functorch.maybe_get_level(out) == current.level():
        return False
    batches = current.key() == functorch.TransformType.Vmap
    return not batches or functorch.maybe_get_level(result) == current.level()


def check_elements_apart(function: str, name: str, out: Tensor) -> None:
    """ValueError unless every element has separate memory."""
    if out.numel() and not _elements_apart(out):
        wrong_value(
            function, name, "separate memory for every element", f"strides {list(out.stride())}"
        )


def _elements_apart(out: Tensor) -> bool:
    axes = zip(out.stride(), out.shape, strict=True)
    if any(stride == 0 and size > 1 for stride, size in axes):
        return False
    # torch.compile makes no such tensors, and sorting strides would make them constants.
    return tracing() or memory.distinct_elements(1, out.shape, out.stride())


def same_view(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same view of the same memory; an axis of size 1 has no stride."""
    if a.data_ptr() != b.data_ptr() or a.dtype != b.dtype or a.shape != b.shape:
        return False
    strides = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(size == 1 or stride == other for size, stride, other in strides)


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share memory, on any device with memory; unknown while tracing.

    Nothing is read, so nothing waits for a GPU.
    """
    if tracing() or not all(type(t) in _PLAIN and not t.is_meta for t in (a, b)):
        return False
    (space, view), (other_space, other) = _place(a), _place(b)
    return space == other_space and memory.overlap(view, other)


_PLAIN = (Tensor, torch.nn.Parameter)  # subclasses may have no memory

ADDRESSED = ("cpu", "cuda")  # devices on which data_ptr() is an address


def _place(x: Tensor) -> tuple[object, memory.View]:
    """The device of a tensor, and its view of the memory there.

    On devices where a pointer may not be an address, the view is relative to the storage.
    """
    size = x.element_size()
    space: object = x.device
    address: Any = x.data_ptr()
    if x.device.type not in ADDRESSED:
        space = x.device, x.untyped_storage().data_ptr()
        address = x.storage_offset() * size
    return space, memory.View(address, size, x.shape, [size * stride for stride in x.stride()])
