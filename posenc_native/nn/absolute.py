"""Modules of absolute encodings: their base class, and the encodings that a formula defines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from posenc_native.core.calls import arguments
from posenc_native.encodings.absolute.encodings import (
    COMBINATIONS,
    combine,
    linear_positions,
    normalized_positions,
)

from .module import Described
from .placement import device_of, precision_of

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Combination, Device, EmbeddingScale


class PositionalEncoding(Described):
    """The base class of the absolute encodings: ``dropout(combine(x, encoding))``.

    A subclass defines `encoding`, the encodings of positions. Calling the module combines them with
    the embeddings.

    Args:
        d_model: width of the embeddings.
        dropout: probability of dropout after that.
        how: as in `posenc_native.absolute.combine`: "add" and "multiply" keep ``[..., d_model]``,
            "concatenate" makes it wider.
        x_scale: factor of x; "sqrt" is the sqrt(d_model) of the Transformer paper.
        batch_first: x is ``[b, s, d_model]``; otherwise ``[s, b, d_model]``, as in torch's
            tutorial. Without a batch x is ``[s, d_model]`` either way, as in torch's Transformer.

    Shape:
        x ``[b, s, d_model]`` (any leading axes) or ``[s, b, d_model]``; positions None for
        ``start .. start + s - 1``, ``[s]`` or ``[b, s]``; the result is like x, or has width
        d_model + e if an encoding of width e is concatenated.
    """

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        *,
        how: Combination = "add",
        x_scale: EmbeddingScale = 1.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__()
        function = type(self).__name__
        self.d_model: int = arguments.size(function, "d_model", d_model)
        arguments.check_name(function, "how", how, COMBINATIONS)
        self.how: Combination = how
        if isinstance(x_scale, str):
            if x_scale != "sqrt":
                arguments.wrong_value(function, "x_scale", "a number or 'sqrt'", repr(x_scale))
            x_scale = math.sqrt(self.d_model)
        self.x_scale: float = arguments.finite_number(function, "x_scale", x_scale)
        self.batch_first = batch_first
        self.dropout: nn.Dropout = nn.Dropout(dropout)

    def encoding(
        self,
        positions: int | Tensor,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The encodings: ``[s, e]`` for an int s (0 .. s-1), otherwise ``positions.shape + (e,)``.

        device, dtype: of computed encodings; encodings from a table are like its parameter.
        """
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        positions: int | Tensor | None = None,
        *,
        start: int = 0,
        encoding: Tensor | None = None,
    ) -> Tensor:
        """Combine x with the encodings of its positions.

        positions: None for 0 .. s-1, an int p for p .. p + s-1, ``[s]`` or ``[b, s]``.
        start: the position of the first token, without positions.
        encoding: the result of `encoding`, if it has already been computed.
        """
        rows = self._rows(x)
        combined = self._combined(rows, self._points(rows, positions, start), encoding)
        dropped: Tensor = self.dropout(combined.transpose(0, 1) if self._swapped(x) else combined)
        return dropped

    def _rows(self, x: Tensor) -> Tensor:
        """x as ``[..., s, d_model]``."""
        most = x.ndim if self.batch_first else 3
        if not 2 <= x.ndim <= most or x.shape[-1] != self.d_model:
            width = f"d_model = {self.d_model}]"
            expected = f"shape [..., seq, {width}"
            if not self.batch_first:
                expected = f"shape [seq, batch, {width} or [seq, {width}"
            arguments.wrong_value(type(self).__name__, "x", expected, list(x.shape))
        return x.transpose(0, 1) if self._swapped(x) else x

    def _swapped(self, x: Tensor) -> bool:
        """Whether x is ``[s, b, d_model]``."""
        return not self.batch_first and x.ndim == 3

    def _points(self, rows: Tensor, positions: int | Tensor | None, start: int) -> int | Tensor:
        """The positions, or their number from 0."""
        first = type(start) is int and start == 0
        if positions is not None:
            if not first:
                expected = "0 if positions are given"
                arguments.wrong_value(type(self).__name__, "start", expected, start)
            if not arguments.is_count(positions):
                return positions
            begin: Any = positions
            start, first = begin, type(begin) is int and begin == 0
        if first:
            return rows.shape[-2]
        return torch.arange(rows.shape[-2], device=rows.device) + start

    def _combined(self, x: Tensor, points: int | Tensor, encoding: Tensor | None) -> Tensor:
        if encoding is None:
            encoding = self.encoding(points, x.device, precision_of(x))
        combined: Tensor = combine(x, encoding, how=self.how, x_scale=self.x_scale)
        return combined

    def _other_arguments(self) -> dict[str, Any]:
        return {"dropout": self.dropout.p}


class LinearPositionalEncoding(PositionalEncoding):
    """The positions times a factor.

    Args:
        d_model, dropout, how, x_scale, batch_first: as in `PositionalEncoding`; x is
            ``[b, s, d_model]``, of floats.
        dim: number of channels; a single channel is added to all of x.
        scale: factor of the positions.
        origin: an int >= 0 that is subtracted from the positions first.
        learned: the factor is a parameter, one per channel.

    Raises:
        ValueError, TypeError: as in `posenc_native.absolute.linear_positions` and
            `posenc_native.absolute.combine`.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> encode = pnn.LinearPositionalEncoding(4, 0.0, scale=0.01, how="concatenate")
        >>> encode(torch.zeros(1, 3, 4))[0, :, 4]
        tensor([0.0000, 0.0100, 0.0200])
    """

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        *,
        dim: int = 1,
        scale: float = 1.0,
        origin: int = 0,
        learned: bool = False,
        how: Combination = "add",
        x_scale: EmbeddingScale = 1.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__(d_model, dropout, how=how, x_scale=x_scale, batch_first=batch_first)
        self.dim: int = arguments.size("LinearPositionalEncoding", "dim", dim)
        self.origin: int = arguments.size("LinearPositionalEncoding", "origin", origin)
        self.learned = learned
        self.first_scale: float = arguments.finite_number(
            "LinearPositionalEncoding", "scale", scale
        )
        self.scale: float | nn.Parameter = self.first_scale
        if learned:
            self.scale = nn.Parameter(torch.full((self.dim,), self.first_scale))

    def reset_parameters(self) -> None:
        """Reset a learned factor to its initial value."""
        if isinstance(self.scale, nn.Parameter):
            nn.init.constant_(self.scale, self.first_scale)

    def encoding(
        self,
        positions: int | Tensor,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The encodings: ``[s, dim]`` for an int s (0 .. s-1), or ``positions.shape + (dim,)``."""
        values: Tensor = linear_positions(
            positions, self.dim, scale=self.scale, origin=self.origin, dtype=dtype,
            device=device_of(self, device),
        )  # fmt: skip
        return values

    def _other_arguments(self) -> dict[str, Any]:
        return {**super()._other_arguments(), "scale": self.first_scale, "origin": self.origin}


class NormalizedPositionalEncoding(PositionalEncoding):
    """Positions as a fraction of the length, from `low` to `high`.

    Args:
        d_model, dropout, how, x_scale, batch_first: as in `PositionalEncoding`; x is
            ``[b, s, d_model]``, of floats.
        low, high: the values of the first and the last position.
        dim: number of channels, all equal; a single channel is added to all of x.

    Raises:
        ValueError, TypeError: as in `posenc_native.absolute.normalized_positions` and
            `posenc_native.absolute.combine`.

    Source: Liu et al. 2018, "CoordConv", with how "concatenate", low -1 and high 1.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> encode = pnn.NormalizedPositionalEncoding(4, 0.0, how="concatenate")
        >>> mask = torch.tensor([[True, True, True, False]])
        >>> encode(torch.zeros(1, 4, 4), mask=mask)[0, :, 4]
        tensor([0.0000, 0.5000, 1.0000, 0.0000])
    """

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        *,
        low: float = 0.0,
        high: float = 1.0,
        dim: int = 1,
        how: Combination = "add",
        x_scale: EmbeddingScale = 1.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__(d_model, dropout, how=how, x_scale=x_scale, batch_first=batch_first)
        self.options: dict[str, Any] = {"low": low, "high": high, "dim": dim}
        self.encoding(0)  # raises if the configuration is invalid

    def encoding(
        self,
        positions: int | Tensor | None,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        *,
        length: int | Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The encodings: ``[s, dim]`` for an int s (0 .. s-1), or ``positions.shape + (dim,)``.

        length, mask: as in `posenc_native.absolute.normalized_positions`: length an int or numbers
            ``[b]``, mask bools or integers ``[b, s]``, in place of positions.
        """
        values: Tensor = normalized_positions(
            positions, length, mask=mask, dtype=dtype, device=device_of(self, device),
            **self.options,
        )  # fmt: skip
        return values

    def forward(
        self,
        x: Tensor,
        positions: int | Tensor | None = None,
        *,
        start: int = 0,
        length: int | Tensor | None = None,
        mask: Tensor | None = None,
        encoding: Tensor | None = None,
    ) -> Tensor:
        """Combine x with the encodings of its positions.

        start, encoding: as in `PositionalEncoding`: an int, and floats ``[s, e]``.
        length: length of the sequences, an int or ``[b]``; None for s.
        mask: ``[b, s]``, False or 0 for padding, in place of positions and length.
        """
        if encoding is None:
            rows = self._rows(x)
            points: Any = self._points(rows, positions if mask is None else mask, start)
            if mask is not None:
                points = positions
            elif isinstance(length, Tensor) and length.ndim and positions is None:
                points = torch.arange(rows.shape[-2], device=x.device) + start
                points = points.expand(*length.shape, -1)
            encoding = self.encoding(points, x.device, precision_of(x), length=length, mask=mask)
        return super().forward(x, encoding=encoding)

    def _other_arguments(self) -> dict[str, Any]:
        return {**super()._other_arguments(), **self.options}
