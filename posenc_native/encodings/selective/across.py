"""Sums along tokens on several ranks: the data that each rank needs from the others.

    this rank's tokens ──► pieces of neighbors in the row ──► a total of each piece
    totals of all ranks, gathered ──► in the order of the row ──► summed before and after each piece

A contiguous part is one piece, "zigzag" makes two pieces, "striped" one per token. Each packed row
has separate pieces; a piece is empty if a rank has no tokens of the row. The place of each piece
follows from lengths and the order alone, so only totals are sent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.core.calls.arguments import wrong_value
from posenc_native.encodings.positions.context_parallel import ContextParallel
from posenc_native.encodings.positions.orders import check_order, share_of, shared_length
from posenc_native.engines.arrays import Arrays
from posenc_native.engines.torch.sharded.cut import Cut

__all__ = ["Across", "Begun", "across_ranks"]


class Begun:
    """The phases at which the pieces of a rank begin.

    phases: [pieces, ...], int64. after: [rows, ...], the state after the last token of all ranks.
    wrong: [pieces, ..., 1], whether an earlier step, on another rank, is not a valid angle.
    """

    def __init__(self, phases: Tensor, after: Tensor, wrong: Tensor) -> None:
        self.phases = phases
        self.after = after
        self.wrong = wrong


class Across:
    """The pieces of this rank, and their places among those of all ranks.

    starts: where the pieces begin on this rank and the last piece ends; None for a single piece.
    """

    def __init__(
        self, arrays: Arrays, cut: Cut, name: str, order: str, starts: Tensor | None
    ) -> None:
        function = arrays.function
        self.function = function
        self.cut = cut
        self.name = name
        rank, ranks = cut.ranks(name)
        tokens = cut.sizes[name]
        share = share_of(function, rank, ranks, order)
        part = ContextParallel(rank, ranks, share.order)
        pieces = share.parts  # of a row, on all ranks
        if order == "contiguous":
            if starts is not None:
                begin, count = cut.span(name)
                starts = (starts - begin).clip(0, count)
        else:
            shared_length(function, "order", tokens, share)
            if order == "striped":
                pieces = max(tokens, ranks)
            if starts is None:
                starts = arrays.arange(2) * tokens
            else:
                _check_rows(arrays, starts, order, pieces)
            local = starts // ranks
            length = (starts[1:] - starts[:-1]) // pieces
            inner = arrays.arange(pieces // ranks) * length[:, None]
            starts = torch.cat(((local[:-1, None] + inner).flatten(), local[-1:]))
        self.starts: Tensor | None = starts
        own = pieces // ranks
        self.rows: int = 1 if starts is None else (starts.shape[0] - 1) // own
        # A row with one token per piece gives the place of each piece of each rank.
        places = part.gathered_positions(pieces, device=arrays.device)
        at = places.argsort()
        row = arrays.arange(self.rows)[:, None]
        self._in_order = (at // own * self.rows + row) * own + at % own
        self._here = (row * pieces + places[rank * own : (rank + 1) * own]).flatten()

    def begin(self, totals: Tensor, wrong: Tensor, state: Tensor | None, look: bool) -> Begun:
        """The phases at which the pieces begin.

        totals: [pieces, ...]; wrong: [pieces, ..., 1], the number of steps that are not valid
        angles; state: [rows, ...]; look: whether values can be read, so that these are an error.
        """
        width = totals.shape[-1]
        laid = self._laid(torch.cat((totals, wrong), -1))
        if look and bool(laid[..., width:].any()):
            # An error on one rank is raised on all, so that none waits for another.
            wrong_value(self.function, "steps", "finite radians of at most 2^31",
                        "larger ones or NaN, on one of the ranks")  # fmt: skip
        before = self._before(laid)
        phases, after = before[..., :width], laid[..., :width].sum(1)
        if state is not None:
            phases, after = phases + state[:, None], after + state
        return Begun(self._own(phases), after, self._own(before[..., width:]) > 0)

    def later(self, totals: Tensor) -> Tensor:
        """Sums of what follows each piece in its row, [pieces, ...]; always in the same order."""
        return _Others.apply(totals, self, True)  # type: ignore[no-any-return, no-untyped-call]

    def others(self, totals: Tensor, after: bool) -> Tensor:
        """Sums of the pieces before each piece in its row, or after it."""
        laid = self._laid(totals)
        if not after:
            return self._own(self._before(laid))
        return self._own(self._before(laid.flip(1)).flip(1))

    def _laid(self, x: Tensor) -> Tensor:
        """The values of the pieces of all ranks in the order of the rows: [rows, places, ...]."""
        return self.cut.of_all(x, self.name).flatten(0, 1)[self._in_order]

    def _before(self, laid: Tensor) -> Tensor:
        sums = laid.cumsum(1)
        return torch.cat((torch.zeros_like(sums[:, :1]), sums[:, :-1]), 1)

    def _own(self, laid: Tensor) -> Tensor:
        return laid.flatten(0, 1)[self._here]


class _Others(torch.autograd.Function):
    """`Across.others`, whose derivative sums in the other direction."""

    @staticmethod
    def forward(ctx: Any, totals: Tensor, across: Across, after: bool) -> Tensor:
        ctx.across, ctx.after = across, after
        return across.others(totals, after)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Others.apply(grad, ctx.across, not ctx.after), None, None  # type: ignore[no-untyped-call]


def across_ranks(
    arrays: Arrays, cut: Cut, name: str, order: str, starts: Tensor | None
) -> Across | None:
    """The data that parts along an axis exchange; None if the axis is not sharded.

    starts: those of all tokens, checked.
    """
    if cut.is_cut(name):
        return Across(arrays, cut, name, order, starts)
    check_order(arrays.function, order, cut=False)
    return None


def _check_rows(arrays: Arrays, starts: Tensor, order: str, pieces: int) -> None:
    """ValueError unless an order cuts each packed row separately and evenly."""
    function = arrays.function
    if order != "zigzag":
        expected = "'contiguous', or 'zigzag', which cuts each row separately, with starts"
        wrong_value(function, "order", expected, repr(order))
    seen = arrays.seen(starts)
    if seen is not None and bool(((seen[1:] - seen[:-1]) % pieces).any()):
        expected = f"rows of multiples of {pieces} tokens ('zigzag' makes two pieces a rank)"
        wrong_value(function, "starts", expected, seen.tolist())
