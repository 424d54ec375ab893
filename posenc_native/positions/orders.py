"""Which tokens of a row are on which rank, where a row is cut for context parallelism.

    a row of 2 * ranks chunks, ranks = 2        0 1 2 3
    contiguous    rank 0: 0 1      rank 1: 2 3
    zigzag        rank 0: 0 3      rank 1: 1 2      of packed rows: each sequence by itself
    head_tail     the same of one row; packed sequences are put in that order over all ranks, and
                  the row of them is cut contiguously
    striped       every token whose number is the rank, modulo ranks

Nothing here reads values: a shape depends on lengths alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_value
from posenc_native.engines.arrays import Arrays

if TYPE_CHECKING:
    from posenc_native.base.kinds import ShardOrder

ORDERS = ("contiguous", "zigzag", "striped", "head_tail")
# Orders that give a rank a chunk near the head and one near the tail.
_BALANCED = ("zigzag", "head_tail")


class Share(NamedTuple):
    """Whose part of a row it is."""

    rank: int
    ranks: int
    order: ShardOrder
    # What a length has to be a multiple of. A field, since torch.compile follows no property of a
    # named tuple (torch 2.10).
    parts: int

    def chunks(self, length: int) -> list[slice]:
        """The chunks of a row that are on the rank, in its order."""
        size = length // self.parts
        if self.order == "striped":
            return [slice(self.rank, length, self.ranks)]
        if self.order == "contiguous":
            return [slice(self.rank * size, (self.rank + 1) * size)]
        tail = self.parts - 1 - self.rank
        return [slice(part * size, (part + 1) * size) for part in (self.rank, tail)]


class Tokens(NamedTuple):
    """The tokens of a packed row that are on a rank, in its order.

    indices: where in the whole row they are, int64 ``[t / ranks]``.
    segments: which sequence each belongs to; n for those after the last.
    cu_seqlens: where the sequences begin and the last one ends on this rank, int64 ``[n + 1]``.
    """

    indices: Any
    segments: Any
    cu_seqlens: Any


def share_of(function: str, rank: Any, ranks: Any, order: Any) -> Share:
    """The arguments rank, ranks and order."""
    ranks = arguments.size(function, "ranks", ranks)
    rank = arguments.size(function, "rank", rank)
    if rank >= ranks:
        wrong_value(function, "rank", f"an int below ranks = {ranks}", rank)
    arguments.check_name(function, "order", order, ORDERS)
    return Share(rank, ranks, order, ranks * (2 if order in _BALANCED else 1))


def check_order(function: str, order: Any, *, cut: bool) -> None:
    """ValueError for an unknown order, and for one of tokens that are not cut over ranks."""
    arguments.check_name(function, "order", order, ORDERS)
    if order != "contiguous" and not cut:
        hint = "DTensor.from_local makes one of the tokens of a rank"
        expected = "'contiguous' unless DTensors are cut along tokens"
        wrong_value(function, "order", expected, repr(order), hint)


def shared_length(function: str, argument: str, given: Any, share: Share) -> int:
    """The length of a row that all ranks share; one that they cannot is an error."""
    length: int = arguments.length(function, argument, given)
    if length % share.parts:
        hint = (
            "torch's context_parallel cuts such a row contiguously without a word: pad it, or pass "
            'order="contiguous"'
        )
        expected = f'a multiple of {share.parts} for order="{share.order}"'
        wrong_value(function, argument, expected, length, hint if share.order in _BALANCED else "")
    return length


def packed_tokens(arrays: Arrays, bounds: Any, total: int, share: Share) -> Tokens:
    """bounds: [n + 1] from 0. Tokens after the last sequence are one more."""
    xp, ranks = arrays.xp, share.ranks
    total = shared_length(arrays.function, "total", total, share)
    part = total // ranks
    edges = xp.concatenate([bounds, arrays.arange(1) + total])
    if share.order in _BALANCED:
        _check_lengths(arrays, edges, share)
    own = arrays.arange(part)
    if share.order == "zigzag":
        # Each sequence is cut alike: on each rank all bounds are those of the row / ranks.
        here = edges // ranks
        segments = xp.searchsorted(here[1:], own, side="right")
        chunk = (edges[1:] - edges[:-1])[segments] // share.parts
        place = own - here[segments]
        head = share.rank * chunk + place
        tail = (share.parts - 2 - share.rank) * chunk + place
        indices = edges[segments] + xp.where(place < chunk, head, tail)
        return Tokens(indices, segments, here[:-1])
    if share.order == "striped":
        row = own * ranks + share.rank
        segments = xp.searchsorted(edges[1:], row, side="right")
        return Tokens(row, segments, (bounds + (ranks - 1 - share.rank)) // ranks)
    begin = share.rank * part
    row = own + begin
    segments = xp.searchsorted(edges[1:], row, side="right")
    here = (bounds - begin).clip(0, part)
    if share.order == "head_tail":
        first = edges[segments]
        chunk = (edges[1:] - edges[:-1])[segments] // share.parts
        number = (row - first) // chunk.clip(min=1)
        source = xp.where(number % 2 == 0, number // 2, share.parts - 1 - number // 2)
        row = row + (source - number) * chunk
    return Tokens(row, segments, here)


def _check_lengths(arrays: Arrays, edges: Any, share: Share) -> None:
    """The sequences must be multiples of 2 * ranks, as far as values can be looked at."""
    seen = arrays.seen(edges)
    if seen is None:
        return
    lengths = seen[1:] - seen[:-1]
    if (lengths % share.parts).any():
        wrong_value(
            arrays.function, "cu_seqlens",
            f"sequences, and a rest, of multiples of {share.parts}, of which "
            f'order="{share.order}" makes a head and a tail for each rank',
            f"lengths {shown_values(lengths)}",
        )  # fmt: skip


def shown_values(values: npt.NDArray[Any]) -> str:
    """Values as a message shows them; of many the first ones."""
    shown = values[:8].tolist()
    return f"{shown}" if len(values) <= 8 else f"{shown}, the first of {len(values)}"
