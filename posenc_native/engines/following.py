"""Whether autograd, forward mode, torch.func, torch.compile or an export tracks a computation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from posenc_native.core.calls.constants import constant


def needs_grad(*tensors: Tensor) -> bool:
    """Whether autograd must record an operation on these tensors."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def needs_function(*tensors: Tensor) -> bool:
    """Whether an operator must be called through its Function, for autograd or torch.func."""
    return transformed() or needs_grad(*tensors)


def transformed() -> bool:
    """Whether forward mode or a transform of torch.func is active."""
    return forward_mode() or functorch_active()


def forward_mode() -> bool:
    """Whether forward mode is active, including torch.func's; only plain operations support it.

    A bare operator would lose tangents. A Function would need a ``jvp``, and torch.compile refuses
    any Function with a ``jvp``.
    """
    return forward_ad._current_level >= 0


def tracing() -> bool:
    """Whether torch.compile, torch.export or a transform of torch.func is active."""
    return torch.compiler.is_compiling() or functorch_active()


@constant
def exports_to_onnx() -> bool:
    """Whether torch.onnx.export is tracing: ONNX has none of the operators of this package."""
    # torch.compile would take torch's answer for False, and export traces with it at times.
    return torch.onnx.is_in_onnx_export()


functorch_active: Callable[[], bool] = getattr(
    torch._C, "_are_functorch_transforms_active", lambda: False
)


def is_leaf_for_gradient(x: Tensor) -> bool:
    """Whether x is a leaf that requires a gradient, or a view of such a leaf."""
    base = x if x._base is None else x._base
    return base.is_leaf and base.requires_grad and torch.is_grad_enabled()


def angles_followed(inv_freq: Tensor, *positions: Tensor | None) -> bool:
    """Whether a derivative by positions or frequencies may be needed."""
    angles = [t for t in (*positions, inv_freq) if t is not None and t.is_floating_point()]
    if not transformed():
        return needs_grad(*angles)
    if torch.compiler.is_compiling():  # then plain operations run anyway: library.operators_in_use
        return True
    # Under vmap, only plain operations support frequencies that differ per example.
    return any(map(_followed, angles)) or torch._C._functorch.is_batchedtensor(inv_freq)


def _followed(tensor: Tensor) -> bool:
    """Whether forward mode or a transform of torch.func needs derivatives by this tensor."""
    if needs_grad(tensor):
        return True
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    functorch = torch._C._functorch
    if not functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return _followed(functorch.get_unwrapped(tensor))
