"""Modules of learned absolute encodings: a table, and the states of a GRU."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from posenc_native.core.calls import arguments
from posenc_native.encodings.absolute.encodings import learned_positions, recurrent_positions
from posenc_native.encodings.absolute.resampling import resample_positions
from posenc_native.encodings.sinusoids.tables import sinusoidal

# Imported here: inside torch.compile, a first call would import it too late.
from posenc_native.engines.torch.recurrent import recurrent as _recurrent  # noqa: F401

from .absolute import PositionalEncoding
from .initial import initialize, reset_layers
from .placement import precision_of

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Combination, Device, EmbeddingScale, InitialTable


class LearnedPositionalEncoding(PositionalEncoding):
    """A learned vector for each position.

    Args:
        num_positions: the positions 0 .. num_positions - 1 have a vector; others are an error.
        d_model, dropout, how, x_scale, batch_first: as in `PositionalEncoding`; x is
            ``[b, s, d_model]``, of floats.
        offset, padding_idx: as in `posenc_native.absolute.learned_positions`: ints, 2 and 1 in OPT,
            BART and RoBERTa. The row of padding is initialized to 0.
        init: initial table: "normal" with standard deviation `std` (BERT and GPT-2: 0.02),
            "truncated_normal" at two standard deviations (ViT), "uniform" in 0 .. 1 (DETR),
            "zeros", or "sinusoidal", the Transformer paper's table.
        std: standard deviation of "normal" and "truncated_normal".

    The parameter ``weight`` ``[offset + num_positions, d_model]`` has the same name and rows as in
    an nn.Embedding.

    Raises:
        ValueError, TypeError: as in `posenc_native.absolute.learned_positions` and
            `posenc_native.absolute.combine`.

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
        init: InitialTable = "normal",
        std: float = 0.02,
        how: Combination = "add",
        x_scale: EmbeddingScale = 1.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__(d_model, dropout, how=how, x_scale=x_scale, batch_first=batch_first)
        function = "LearnedPositionalEncoding"
        self.num_positions: int = arguments.size(function, "num_positions", num_positions)
        self.offset: int = arguments.size(function, "offset", offset)
        rows = self.offset + self.num_positions
        if padding_idx is not None:
            padding_idx = arguments.size(function, "padding_idx", padding_idx)
            if padding_idx >= rows:
                arguments.wrong_value(function, "padding_idx", f"a row below {rows}", padding_idx)
        self.padding_idx = padding_idx
        arguments.check_name(function, "init", init, tuple(_INITIAL_TABLES))
        self.init: InitialTable = init
        self.std: float = arguments.finite_number(function, "std", std)
        self.weight: nn.Parameter = nn.Parameter(torch.empty(rows, self.d_model))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset the table to its initial values."""
        table = torch.empty(self.weight.shape, device=self.weight.device)
        _INITIAL_TABLES[self.init](table, self)
        if self.padding_idx is not None:
            table[self.padding_idx].zero_()
        initialize(self.weight, table)

    def encoding(
        self,
        positions: int | Tensor,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """``[s, d_model]`` for an int s (0 .. s-1), otherwise ``positions.shape + (d_model,)``."""
        rows: Tensor = learned_positions(
            self.weight, positions, offset=self.offset, padding_idx=self.padding_idx
        )
        return rows

    def resampled(
        self, size: int | Sequence[int], *, prefix: int = 0, **options: Any
    ) -> LearnedPositionalEncoding:
        """A module like this one for another length or grid, with a resampled table.

        size, prefix, options: as in `posenc_native.absolute.resample_positions`: size an int, or
            the ints of a grid; prefix an int. The rows before position 0 and the `prefix` rows
            after them stay unchanged. For DINOv2 without registers:
            ``prefix=1, antialias=False, interpolate_offset=0.1``.
        """
        weight = resample_positions(
            self.weight.detach(), size, prefix=self.offset + prefix, **options
        )
        module = copy.deepcopy(self)
        module.num_positions = weight.shape[0] - self.offset
        module.weight = nn.Parameter(weight, self.weight.requires_grad)
        return module


def _sinusoidal_rows(table: Tensor, module: LearnedPositionalEncoding) -> None:
    positions = torch.arange(-module.offset, module.num_positions, device=table.device)
    table.copy_(sinusoidal(positions, module.d_model, dtype=torch.float32))


_INITIAL_TABLES: dict[str, Callable[[Tensor, LearnedPositionalEncoding], Any]] = {
    "normal": lambda table, module: table.normal_(0.0, module.std),
    "truncated_normal": lambda table, module: nn.init.trunc_normal_(
        table, std=module.std, a=-2 * module.std, b=2 * module.std
    ),
    "uniform": lambda table, _: table.uniform_(),
    "zeros": lambda table, _: table.zero_(),
    "sinusoidal": _sinusoidal_rows,
}


class RecurrentPositionalEncoding(PositionalEncoding):
    """States of a GRU that runs from position to position without input.

    The states are those of `posenc_native.absolute.recurrent_positions`, from a learned start. A
    linear layer maps them to d_model if their width differs. Lengths are not limited; the quality
    beyond the trained lengths depends on the task.

    Args:
        d_model, dropout, how, x_scale, batch_first: as in `PositionalEncoding`; x is
            ``[b, s, d_model]``, of floats.
        hidden: width of the state; None for d_model.
        num_positions: the number of steps to run beside positions, which are looked up in the
            states. Not needed without positions.

    In decoding, `states` with the last state makes the next encoding with a single step. A call
    with positions runs all steps again.

    Raises:
        ValueError, TypeError: as in `posenc_native.absolute.recurrent_positions` and
            `posenc_native.absolute.combine`.

    Source: see `posenc_native.absolute.recurrent_positions`.

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
        how: Combination = "add",
        x_scale: EmbeddingScale = 1.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__(d_model, dropout, how=how, x_scale=x_scale, batch_first=batch_first)
        function = "RecurrentPositionalEncoding"
        hidden = None if hidden is None else arguments.size(function, "hidden", hidden)
        self.hidden: int | None = hidden
        width = self.d_model if self.hidden is None else self.hidden
        if num_positions is not None:
            num_positions = arguments.size(function, "num_positions", num_positions)
        self.num_positions = num_positions
        self.start: nn.Parameter = nn.Parameter(torch.empty(width))
        self.weight_hh: nn.Parameter = nn.Parameter(torch.empty(3 * width, width))
        self.bias_ih: nn.Parameter = nn.Parameter(torch.empty(3 * width))
        self.bias_hh: nn.Parameter = nn.Parameter(torch.empty(3 * width))
        self._draw()
        self.output: nn.Linear | None = (
            nn.Linear(width, self.d_model) if width != self.d_model else None
        )

    def reset_parameters(self) -> None:
        """Draw parameters and start uniformly in +-1 / sqrt(hidden), like torch.nn.GRU."""
        self._draw()
        if self.output is not None:
            reset_layers(self.output)

    def _draw(self) -> None:
        bound = 1 / math.sqrt(max(len(self.start), 1))
        for parameter in (self.start, self.weight_hh, self.bias_ih, self.bias_hh):
            values = torch.empty(parameter.shape, device=parameter.device)
            initialize(parameter, nn.init.uniform_(values, -bound, bound))

    def states(self, count: int, state: Tensor | None = None) -> Tensor:
        """The next `count` states: ``[count, hidden]`` float32 (float64 for float64 parameters).

        state: ``[hidden]``, the state before them; None for the start.
        """
        states: Tensor = recurrent_positions(
            count, self.start if state is None else state, self.weight_hh, self.bias_ih,
            self.bias_hh, dtype=precision_of(self.start),
        )  # fmt: skip
        return states

    def projected(self, states: Tensor) -> Tensor:
        """The encodings ``[..., d_model]`` of states ``[..., hidden]``."""
        if self.output is None:
            return states
        weight, bias = self.output.weight, self.output.bias
        return nn.functional.linear(states, weight.to(states.dtype), bias.to(states.dtype))

    def encoding(
        self,
        positions: int | Tensor,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """``[s, d_model]`` for an int s (0 .. s-1), otherwise ``positions.shape + (d_model,)``."""
        if not isinstance(positions, Tensor):
            return self.projected(self.states(positions))
        if self.num_positions is None:
            expected = "an int in the module, the number of states to look up positions in"
            arguments.wrong_value(type(self).__name__, "num_positions", expected, None)
        rows: Tensor = learned_positions(self.states(self.num_positions), positions)
        return self.projected(rows)
