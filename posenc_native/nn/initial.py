"""Initial values of parameters on one device or sharded over several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def initialize(parameter: Tensor, values: Tensor) -> None:
    """Write all values into a parameter; for a DTensor, those of rank 0."""
    target: Any = parameter
    if type(target).__name__ == "DTensor":
        from torch.distributed.tensor import distribute_tensor

        values = distribute_tensor(
            values.to(target.dtype), target.device_mesh, list(target.placements)
        )
    target.copy_(values)


def initialize_heads(module: nn.Module, name: str, values: Tensor) -> None:
    """Write the values of local heads into a parameter, from values for all heads of a layer."""
    parameter = getattr(module, name)
    if values.shape != parameter.shape:  # a DTensor has the shape for all heads
        axes: Any = module.head_axes
        heads: Any = module.heads
        values = values.narrow(axes[name], heads.start, len(heads))
    initialize(parameter, values)


def reset_layers(network: nn.Module) -> None:
    """Reset torch's layers inside a network, in their order.

    Linear layers are drawn as a whole, on any placement of the weights: torch draws each part of a
    DTensor separately, and on the CPU gives the parts the same numbers.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            weight = layer.weight
            fresh = nn.Linear(
                layer.in_features, layer.out_features, layer.bias is not None,
                device=weight.device, dtype=weight.dtype,
            )  # fmt: skip
            for name, values in fresh.named_parameters():
                initialize(getattr(layer, name), values)
            continue
        reset = getattr(layer, "reset_parameters", None)
        if reset is not None:
            reset()
