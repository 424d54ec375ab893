"""Modules of rotary encodings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from posenc_native.rotary import Rotary


class RotaryEmbedding(nn.Module):
    """Rotates queries and keys by their positions.

    Args:
        head_dim, base, rotary_dim, pairing, scaling, axis_map, rotary_start: as in
            `posenc_native.Rotary`.

    Shape:
        q, k as `layout` says; they may differ in heads. positions None for 0 .. s-1, ``[s]`` or
        ``[b, s]``.

    Raises:
        ValueError, TypeError: as in `posenc_native.apply_rotary_qk`.

    Source: Su et al. 2021, "RoFormer".

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> rope = pnn.RotaryEmbedding(64, base=500000.0)
        >>> q, k = rope(torch.randn(1, 8, 5, 64), torch.randn(1, 2, 5, 64))
        >>> q.shape
        torch.Size([1, 8, 5, 64])
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        pairing: str | int = "half",
        scaling: Mapping[str, Any] | None = None,
        axis_map: npt.ArrayLike | None = None,
        rotary_start: int = 0,
    ) -> None:
        super().__init__()
        self.rope = Rotary(
            head_dim, base=base, rotary_dim=rotary_dim, pairing=pairing, scaling=scaling,
            axis_map=axis_map, rotary_start=rotary_start,
        )  # fmt: skip

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        positions: Tensor | None = None,
        layout: str = "bhsd",
        inplace: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """q and k, rotated."""
        return self.rope(q, k, positions, layout=layout, inplace=inplace)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        """With the model to its device go the frequencies, ahead of tracing and graph capture."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = fn(torch.empty(0)).device
        if device.type != "meta":
            self.rope._torch(device)
        return self

    def extra_repr(self) -> str:
        """The configuration, for print(model)."""
        return repr(self.rope)
