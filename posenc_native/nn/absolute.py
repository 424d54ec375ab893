"""Modules of the simple absolute encodings."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc_native.absolute.encodings import (
    COMBINATIONS,
    combine,
    learned_positions,
    linear_positions,
    normalized_positions,
    recurrent_positions,
)
from posenc_native.absolute.resampling import resample_positions
from posenc_native.base import arguments
from posenc_native.base.calls import call_arguments

# Not inside torch.compile, where a first call might import it too late.
from posenc_native.engines.tensors.recurrent import recurrent as _recurrent  # noqa: F401
from posenc_native.sinusoids.tables import sinusoidal

from .relative import _device


class PositionalEncoding(nn.Module):
    """Embeddings with their positions: ``dropout(combine(x, encoding))``; what the absolute
    encodings have in common.

    A subclass says what the positions are worth: `encoding`. Calling the module brings it and the
    embeddings together.

    Args:
        d_model: width of the embeddings.
        dropout: probability of dropout after that.
        how: "add", "multiply" or "concatenate", as in `posenc_native.combine`.
        x_scale: factor of x; "sqrt" is the sqrt(d_model) of the Transformer paper.
        batch_first: x is ``[b, s, d_model]``; otherwise ``[s, b, d_model]``, as in torch's own
            tutorial.

    Shape:
        x ``[b, s, d_model]`` (any leading axes) or ``[s, b, d_model]``; positions None for
        ``start .. start + s - 1``, ``[s]`` or ``[b, s]``; the result is like x, or of width
        d_model + e where an encoding of width e is concatenated.
    """

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        *,
        how: str = "add",
        x_scale: float | str = 1.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__()
        function = type(self).__name__
        self.d_model = arguments.size(function, "d_model", d_model)
        arguments.check_name(function, "how", how, COMBINATIONS)
        self.how = how
        if isinstance(x_scale, str):
            if x_scale != "sqrt":
                arguments.wrong_value(function, "x_scale", "a number or 'sqrt'", repr(x_scale))
            x_scale = math.sqrt(self.d_model)
        self.x_scale = arguments.finite_number(function, "x_scale", x_scale)
        self.batch_first = batch_first
        self.dropout = nn.Dropout(dropout)

    def encoding(
        self, positions: int | Tensor, device: Any = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """``[s, e]`` of an int s for 0 .. s-1, else ``positions.shape + (e,)``.

        device, dtype: for what is computed; what is looked up is where and what the parameters are.
        """
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        *,
        start: int = 0,
        encoding: Tensor | None = None,
    ) -> Tensor:
        """x with its positions.

        start: the position of the first token, where there are no positions.
        encoding: that of `encoding`, where it is there already.
        """
        rows = self._rows(x)
        combined = self._combined(rows, self._points(rows, positions, start), encoding)
        dropped: Tensor = self.dropout(combined if self.batch_first else combined.transpose(0, 1))
        return dropped

    def _rows(self, x: Tensor) -> Tensor:
        """x as ``[..., s, d_model]``."""
        rank = 2 if self.batch_first else 3
        if x.ndim < rank or (rank == 3 and x.ndim > 3) or x.shape[-1] != self.d_model:
            axes = "..., seq" if self.batch_first else "seq, batch"
            expected = f"shape [{axes}, d_model = {self.d_model}]"
            arguments.wrong_value(type(self).__name__, "x", expected, list(x.shape))
        return x if self.batch_first else x.transpose(0, 1)

    def _points(self, rows: Tensor, positions: Tensor | None, start: int) -> int | Tensor:
        """The positions, or how many there are from 0."""
        first = type(start) is int and start == 0
        if positions is not None:
            if not first:
                expected = "0 where there are positions"
                arguments.wrong_value(type(self).__name__, "start", expected, start)
            return positions
        if first:
            return rows.shape[-2]
        return torch.arange(rows.shape[-2], device=rows.device) + start

    def _combined(self, x: Tensor, points: int | Tensor, encoding: Tensor | None) -> Tensor:
        if encoding is None:
            encoding = self.encoding(points, x.device, _precision(x))
        combined: Tensor = combine(x, encoding, how=self.how, x_scale=self.x_scale)
        return combined

    def extra_repr(self) -> str:
        """The call, for print(model)."""
        return call_arguments(type(self), **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        return {
            "d_model": self.d_model, "dropout": self.dropout.p, "how": self.how,
            "x_scale": self.x_scale, "batch_first": self.batch_first,
        }  # fmt: skip


class LinearPositionalEncoding(PositionalEncoding):
    """Positions themselves, times a factor.

    Args:
        d_model, dropout, how, x_scale, batch_first: as in `PositionalEncoding`.
        dim: number of channels; with one it is added to all of x.
        scale: factor of the positions.
        learned: the factor is a parameter, one for each channel.

    Raises:
        ValueError, TypeError: as in `posenc_native.linear_positions` and `posenc_native.combine`.

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
        learned: bool = False,
        how: str = "add",
        x_scale: float | str = 1.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__(d_model, dropout, how=how, x_scale=x_scale, batch_first=batch_first)
        self.dim = arguments.size("LinearPositionalEncoding", "dim", dim)
        scale = arguments.finite_number("LinearPositionalEncoding", "scale", scale)
        self.scale: float | nn.Parameter = scale
        if learned:
            self.scale = nn.Parameter(torch.full((self.dim,), scale))

    def encoding(
        self, positions: int | Tensor, device: Any = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """``[s, dim]`` of an int s for 0 .. s-1, else ``positions.shape + (dim,)``."""
        values: Tensor = linear_positions(
            positions, self.dim, scale=self.scale, dtype=dtype, device=_device(self, device)
        )
        return values

    def _arguments(self) -> dict[str, Any]:
        learned = isinstance(self.scale, nn.Parameter)
        scale = {"learned": True} if learned else {"scale": self.scale}
        return {**super()._arguments(), "dim": self.dim, **scale}


class NormalizedPositionalEncoding(PositionalEncoding):
    """Positions as a share of the length, from `low` to `high`.

    Args:
        d_model, dropout, how, x_scale, batch_first: as in `PositionalEncoding`.
        low, high: of the first and of the last position.
        dim: number of channels, all alike; with one it is added to all of x.

    Raises:
        ValueError, TypeError: as in `posenc_native.normalized_positions` and
            `posenc_native.combine`.

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
        how: str = "add",
        x_scale: float | str = 1.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__(d_model, dropout, how=how, x_scale=x_scale, batch_first=batch_first)
        self.options: dict[str, Any] = {"low": low, "high": high, "dim": dim}
        self.encoding(0)  # an impossible configuration shows here

    def encoding(
        self,
        positions: int | Tensor | None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        length: int | Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """``[s, dim]`` of an int s for 0 .. s-1, else ``positions.shape + (dim,)``.

        length, mask: as in `posenc_native.normalized_positions`; with a mask no positions.
        """
        values: Tensor = normalized_positions(
            positions, length, mask=mask, dtype=dtype, device=_device(self, device), **self.options
        )
        return values

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        *,
        start: int = 0,
        length: int | Tensor | None = None,
        mask: Tensor | None = None,
        encoding: Tensor | None = None,
    ) -> Tensor:
        """x with its positions.

        start, encoding: as in `PositionalEncoding`.
        length: of the sequences, an int or ``[b]``; None for s.
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
            encoding = self.encoding(points, x.device, _precision(x), length=length, mask=mask)
        return super().forward(x, encoding=encoding)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), **self.options}


class LearnedPositionalEncoding(PositionalEncoding):
    """A learned vector for each position.

    Args:
        num_positions: the positions 0 .. num_positions - 1 have one; others are an error.
        d_model, dropout, how, x_scale, batch_first: as in `PositionalEncoding`.
        offset: rows of the table before that of position 0, for positions from -offset on: 2 in
            OPT, BART and RoBERTa, where padding has position -1.
        padding_idx: a row of the table that is 0 at first and gets no gradient: 1 in those.
        init: how the table begins: "normal" of standard deviation `std` (BERT and GPT-2: 0.02),
            "truncated_normal" at two of them (ViT), "uniform" in 0 .. 1 (DETR), "zeros", or
            "sinusoidal", the Transformer paper's table.
        std: of "normal" and "truncated_normal".

    The parameter ``weight`` ``[offset + num_positions, d_model]`` has the name and the rows that it
    has in an nn.Embedding.

    Raises:
        ValueError, TypeError: as in `posenc_native.learned_positions` and `posenc_native.combine`.

    Source: Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3.1.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> encode = pnn.LearnedPositionalEncoding(512, 64)
        >>> encode(torch.zeros(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> longer = encode.resampled(1024)  # for longer sequences, to be trained further
        >>> longer.weight.shape
        torch.Size([1024, 64])
    """

    def __init__(
        self,
        num_positions: int,
        d_model: int,
        dropout: float = 0.1,
        *,
        offset: int = 0,
        padding_idx: int | None = None,
        init: str = "normal",
        std: float = 0.02,
        how: str = "add",
        x_scale: float | str = 1.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__(d_model, dropout, how=how, x_scale=x_scale, batch_first=batch_first)
        function = "LearnedPositionalEncoding"
        self.num_positions = arguments.size(function, "num_positions", num_positions)
        self.offset = arguments.size(function, "offset", offset)
        rows = self.offset + self.num_positions
        if padding_idx is not None:
            padding_idx = arguments.size(function, "padding_idx", padding_idx)
            if padding_idx >= rows:
                arguments.wrong_value(function, "padding_idx", f"a row below {rows}", padding_idx)
        self.padding_idx = padding_idx
        arguments.check_name(function, "init", init, tuple(_INITS))
        self.init, self.std = init, arguments.finite_number(function, "std", std)
        self.weight = nn.Parameter(torch.empty(rows, self.d_model))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The table as it begins."""
        _INITS[self.init](self)
        if self.padding_idx is not None:
            self.weight[self.padding_idx].zero_()

    def encoding(
        self, positions: int | Tensor, device: Any = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """``[s, d_model]`` of an int s for 0 .. s-1, else ``positions.shape + (d_model,)``."""
        rows: Tensor = learned_positions(
            self.weight, positions, offset=self.offset, padding_idx=self.padding_idx
        )
        return rows

    def resampled(
        self, size: int | Sequence[int], *, prefix: int = 0, **options: Any
    ) -> LearnedPositionalEncoding:
        """A module like this one for another length or grid, its table resampled.

        size, prefix, options: as in `posenc_native.resample_positions`; the rows before position 0
            stay as they are, and so do `prefix` more.
        """
        weight = resample_positions(
            self.weight.detach(), size, prefix=self.offset + prefix, **options
        )
        module = copy.deepcopy(self)
        module.num_positions = weight.shape[0] - self.offset
        module.weight = nn.Parameter(weight, self.weight.requires_grad)
        return module

    def _arguments(self) -> dict[str, Any]:
        return {
            "num_positions": self.num_positions, **super()._arguments(), "offset": self.offset,
            "padding_idx": self.padding_idx, "init": self.init, "std": self.std,
        }  # fmt: skip


class RecurrentPositionalEncoding(PositionalEncoding):
    """States of a GRU that runs from position to position without an input.

    The states are those of `posenc_native.recurrent_positions`, from a learned start; a linear
    layer makes them d_model wide if they are not. Lengths are not limited: what it does beyond
    those that it was trained on is for the task to say.

    Args:
        d_model, dropout, how, x_scale, batch_first: as in `PositionalEncoding`.
        hidden: width of the state; None for d_model.
        num_positions: how many positions to run through where positions are given, which are
            looked up in them. Not needed without positions.

    In decoding, `states` with the last state makes one more encoding from one more step, where
    Positions run through all of them again.

    Raises:
        ValueError, TypeError: as in `posenc_native.recurrent_positions` and
            `posenc_native.combine`.

    Source: see `posenc_native.recurrent_positions`.

    Example:
        >>> import torch
        >>> from posenc_native import nn as pnn
        >>> encode = pnn.RecurrentPositionalEncoding(64, 0.0, hidden=16)
        >>> whole = encode(torch.zeros(2, 11, 64))
        >>> states = encode.states(10)
        >>> step = encode.states(1, states[-1])  # position 10
        >>> last = encode(torch.zeros(2, 1, 64), encoding=encode.projected(step))
        >>> torch.allclose(last, whole[:, 10:], atol=1e-6)
        True
    """

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        *,
        hidden: int | None = None,
        num_positions: int | None = None,
        how: str = "add",
        x_scale: float | str = 1.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__(d_model, dropout, how=how, x_scale=x_scale, batch_first=batch_first)
        function = "RecurrentPositionalEncoding"
        width = self.d_model if hidden is None else arguments.size(function, "hidden", hidden)
        if num_positions is not None:
            num_positions = arguments.size(function, "num_positions", num_positions)
        self.num_positions = num_positions
        self.start = nn.Parameter(torch.empty(width))
        self.weight_hh = nn.Parameter(torch.empty(3 * width, width))
        self.bias_ih = nn.Parameter(torch.empty(3 * width))
        self.bias_hh = nn.Parameter(torch.empty(3 * width))
        self.output = nn.Linear(width, self.d_model) if width != self.d_model else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1 / sqrt(hidden), as in torch.nn.GRU, the start like the weights."""
        bound = 1 / math.sqrt(max(len(self.start), 1))
        for parameter in (self.start, self.weight_hh, self.bias_ih, self.bias_hh):
            nn.init.uniform_(parameter, -bound, bound)
        if self.output is not None:
            self.output.reset_parameters()

    def states(self, count: int, state: Tensor | None = None) -> Tensor:
        """``[count, hidden]`` float32 (float64 for float64 parameters): `count` more states.

        state: ``[hidden]``, the last one before them; None for the start.
        """
        wide = self.start.dtype == torch.float64
        states: Tensor = recurrent_positions(
            count, self.start if state is None else state, self.weight_hh, self.bias_ih,
            self.bias_hh, dtype=torch.float64 if wide else torch.float32,
        )  # fmt: skip
        return states

    def projected(self, states: Tensor) -> Tensor:
        """The encodings ``[..., d_model]`` of states ``[..., hidden]``."""
        if self.output is None:
            return states
        weight, bias = self.output.weight, self.output.bias
        return nn.functional.linear(states, weight.to(states.dtype), bias.to(states.dtype))

    def encoding(
        self, positions: int | Tensor, device: Any = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """``[s, d_model]`` of an int s for 0 .. s-1, else ``positions.shape + (d_model,)``."""
        if not isinstance(positions, Tensor):
            return self.projected(self.states(positions))
        if self.num_positions is None:
            expected = "given to the module, to look up positions in so many states"
            arguments.wrong_value(type(self).__name__, "num_positions", expected, None)
        rows: Tensor = learned_positions(self.states(self.num_positions), positions)
        return self.projected(rows)

    def _arguments(self) -> dict[str, Any]:
        hidden = {} if self.output is None else {"hidden": len(self.start)}
        return {**super()._arguments(), **hidden, "num_positions": self.num_positions}


def _precision(x: Tensor) -> torch.dtype:
    """What an encoding of x is computed in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _truncated_normal(module: LearnedPositionalEncoding) -> None:
    nn.init.trunc_normal_(module.weight, std=module.std, a=-2 * module.std, b=2 * module.std)


def _sinusoidal(module: LearnedPositionalEncoding) -> None:
    positions = torch.arange(-module.offset, module.num_positions, device=module.weight.device)
    module.weight.copy_(sinusoidal(positions, module.d_model, dtype=torch.float32))


_INITS: dict[str, Any] = {
    "normal": lambda module: nn.init.normal_(module.weight, std=module.std),
    "truncated_normal": _truncated_normal,
    "uniform": lambda module: nn.init.uniform_(module.weight),
    "zeros": lambda module: nn.init.zeros_(module.weight),
    "sinusoidal": _sinusoidal,
}
