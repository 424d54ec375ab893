"""First values of parameters, wherever these are: on a device, sharded over several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def initialize(parameter: Tensor, values: Tensor) -> None:
    """Write the values, the whole of them, into a parameter; of a DTensor rank 0 has the say."""
    target: Any = parameter
    if type(target).__name__ == "DTensor":
        from torch.distributed.tensor import distribute_tensor

        values = distribute_tensor(
            values.to(target.dtype), target.device_mesh, list(target.placements)
        )
    target.copy_(values)


def initialize_heads(module: nn.Module, name: str, values: Tensor) -> None:
    """Write values for all heads of a layer into a parameter, which has those that are here."""
    parameter = getattr(module, name)
    if values.shape != parameter.shape:  # a DTensor has the shape of all of them
        axes: Any = module.head_axes
        heads: Any = module.heads
        values = values.narrow(axes[name], heads.start, len(heads))
    initialize(parameter, values)


def reset_layers(network: nn.Module) -> None:
    """Give torch's layers within new values, in their order.

    Those of linear layers are drawn whole, wherever the weights are: torch draws for each part of a
    DTensor, and on the CPU gives parts the same numbers.
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
