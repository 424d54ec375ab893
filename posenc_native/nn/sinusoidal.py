"""Modules of sinusoidal encodings."""

from __future__ import annotations

import math

from torch import Tensor, nn

from posenc_native import arguments
from posenc_native.sinusoidal import add_sinusoidal


class SinusoidalPositionalEncoding(nn.Module):
    """Adds sinusoidal positions to embeddings: ``dropout(x * x_scale + table)``.

    Args:
        d_model: width of the embeddings, even.
        dropout: probability of dropout after the sum.
        base, layout, shift, scale: as in `posenc_native.sinusoidal`.
        x_scale: factor of x; "sqrt" is the sqrt(d_model) of the Transformer paper.

    Shape:
        x ``[b, s, d_model]`` (any leading axes), positions None for 0 .. s-1, ``[s]`` or
        ``[b, s]``; the result is like x.

    Raises:
        ValueError, TypeError: as in `posenc_native.add_sinusoidal`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> encode = pnn.SinusoidalPositionalEncoding(8, dropout=0.0)
        >>> encode(torch.zeros(1, 2, 8))[0, 1, :2]
        tensor([0.8415, 0.5403])
    """

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        *,
        base: float = 10000.0,
        layout: str = "interleaved",
        shift: float = 0.0,
        scale: float = 1.0,
        x_scale: float | str = 1.0,
    ) -> None:
        super().__init__()
        function = "SinusoidalPositionalEncoding"
        arguments.check_sinusoidal_layout(function, layout)
        self.d_model, self.base, self.shift, self.scale = arguments.frequency_parameters(
            function, d_model, base, shift, scale
        )
        self.layout = layout
        if isinstance(x_scale, str) and x_scale != "sqrt":
            arguments.wrong_value(function, "x_scale", "a number or 'sqrt'", repr(x_scale))
        self.x_scale = (
            math.sqrt(self.d_model)
            if isinstance(x_scale, str)
            else arguments.finite_number(function, "x_scale", x_scale)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """``dropout(x * x_scale + table)``."""
        if x.ndim < 2 or x.shape[-1] != self.d_model:
            arguments.wrong_value(
                "SinusoidalPositionalEncoding",
                "x",
                f"shape [..., seq, d_model = {self.d_model}]",
                list(x.shape),
            )
        encoded: Tensor = add_sinusoidal(
            x, positions, x_scale=self.x_scale, base=self.base, layout=self.layout,
            shift=self.shift, scale=self.scale,
        )  # fmt: skip
        dropped: Tensor = self.dropout(encoded)
        return dropped

    def extra_repr(self) -> str:
        """The configuration, for print(model)."""
        return (
            f"{self.d_model}, base={self.base}, layout={self.layout!r}, shift={self.shift}, "
            f"scale={self.scale}, x_scale={self.x_scale}"
        )
