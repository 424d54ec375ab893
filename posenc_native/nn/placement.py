"""The device, the precision and the heads that a module computes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Device


def device_of(module: nn.Module, device: Device | None) -> torch.device:
    """The device argument, or the device of the module's parameters."""
    if device is not None:
        return torch.device(device)
    like = next(module.parameters(), None)
    place: torch.device = (torch.empty(0) if like is None else like).device
    return place


def precision_of(x: Tensor) -> torch.dtype:
    """The dtype in which an encoding of x is computed: float32, or float64 if x is float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def local_heads(module: nn.Module, parameter: Tensor) -> Tensor:
    """The parameter; if `HeadParallel` has sharded it, the part for local heads.

    A parameter that all heads share is whole: each rank has the gradient of its heads, and the
    gradients are summed over the ranks. A DTensor sharded by others (FSDP, outside of forward)
    stays unchanged.
    """
    # First: to look for an attribute that a module lacks takes a microsecond.
    if type(parameter).__name__ != "DTensor":
        return parameter
    sharded: Any = parameter
    if sharded.device_mesh != getattr(module, "head_mesh", None):
        return parameter
    from torch.distributed.tensor import Partial

    own = [Partial() if p.is_replicate() else p for p in sharded.placements]
    part: Tensor = sharded.to_local(grad_placements=own)
    return part


def local_network(module: nn.Module, network: nn.Module) -> Callable[[Tensor], Tensor]:
    """A network of the module, with `local_heads` applied to its parameters."""
    if getattr(module, "head_mesh", None) is None:
        return network
    own = {name: local_heads(module, p) for name, p in network.named_parameters()}
    return lambda x: torch.func.functional_call(network, own, (x,))
