"""On which device and in which precision a module computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["device_of", "precision_of"]


def device_of(module: nn.Module, device: Any) -> torch.device:
    """The one given, or where the module's parameters are."""
    if device is not None:
        return torch.device(device)
    like = next(module.parameters(), None)
    place: torch.device = (torch.empty(0) if like is None else like).device
    return place


def precision_of(x: Tensor) -> torch.dtype:
    """The dtype in which an encoding of x is computed: float32, or float64 where x has it."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
