"""The tokens of each rank if context parallelism shards a row.

    a row of 2 * ranks chunks, ranks = 2        0 1 2 3
    contiguous    rank 0: 0 1      rank 1: 2 3
    zigzag        rank 0: 0 3      rank 1: 1 2      in packed rows: each sequence by itself
    head_tail     the same for one row; packed sequences are put in that order over all ranks, and
                  the resulting row is cut contiguously
    striped       every token whose number is the rank, modulo ranks

Nothing here reads values: shapes depend on lengths alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.engines.arrays import Arrays
from posenc_native.engines.plain.numbers import at_or_below

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import ShardOrder

ORDERS = ("contiguous", "zigzag", "striped", "head_tail")
# Orders that give a rank a chunk near the head and a chunk near the tail.
_BALANCED = ("zigzag", "head_tail")


class Share(NamedTuple):
    """The rank that a part of a row belongs to, and how rows are cut."""

    rank: int
    ranks: int
    order: ShardOrder
    # Lengths must be multiples of this. It is a field because torch.compile cannot follow a
    # property of a named tuple (torch 2.10).
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

    indices: their places in the whole row, int64 ``[t / ranks]``.
    segments: the sequence of each token; n for tokens after the last sequence.
    cu_seqlens: where sequences begin and the last sequence ends on this rank, int64 ``[n + 1]``.
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
    """ValueError for an unknown order, or for any but contiguous without sharded tokens."""
    arguments.check_name(function, "order", order, ORDERS)
    if order != "contiguous" and not cut:
        hint = "DTensor.from_local makes a DTensor from the tokens of a rank"
        expected = "'contiguous' unless DTensors are cut along tokens"
        wrong_value(function, "order", expected, repr(order), hint)


def shared_length(function: str, argument: str, value: Any, share: Share) -> int:
    """The length of a row; ValueError if the ranks cannot divide it evenly."""
    length: int = arguments.length(function, argument, value)
    if length % share.parts:
        hint = (
            "torch's context_parallel silently cuts such a row contiguously: pad it, or write "
            'order="contiguous"'
        )
        expected = f'a multiple of {share.parts} for order="{share.order}"'
        wrong_value(function, argument, expected, length, hint if share.order in _BALANCED else "")
    return length


def packed_tokens(arrays: Arrays, bounds: Any, total: int, share: Share) -> Tokens:
    """The tokens of a rank; bounds: [n + 1] from 0. Tokens after the last are one more sequence."""
    xp, ranks = arrays.xp, share.ranks
    total = shared_length(arrays.function, "total", total, share)
    part = total // ranks
    edges = xp.concatenate([bounds, arrays.arange(1) + total])
    if share.order in _BALANCED:
        _check_lengths(arrays, edges, share)
    own = arrays.arange(part)
    if share.order == "zigzag":
        # Each sequence is cut alike, so the bounds on each rank are those of the row / ranks.
        local_bounds = edges // ranks
        segments = at_or_below(local_bounds[1:], own)
        chunk = (edges[1:] - edges[:-1])[segments] // share.parts
        place = own - local_bounds[segments]
        head = share.rank * chunk + place
        tail = (share.parts - 2 - share.rank) * chunk + place
        indices = edges[segments] + xp.where(place < chunk, head, tail)
        return Tokens(indices, segments, local_bounds[:-1])
    if share.order == "striped":
        row = own * ranks + share.rank
        segments = at_or_below(edges[1:], row)
        return Tokens(row, segments, (bounds + (ranks - 1 - share.rank)) // ranks)
    begin = share.rank * part
    row = own + begin
    segments = at_or_below(edges[1:], row)
    local_bounds = (bounds - begin).clip(0, part)
    if share.order == "head_tail":
        first = edges[segments]
        chunk = (edges[1:] - edges[:-1])[segments] // share.parts
        number = (row - first) // chunk.clip(min=1)
        source = xp.where(number % 2 == 0, number // 2, share.parts - 1 - number // 2)
        row = row + (source - number) * chunk
    return Tokens(row, segments, local_bounds)


def _check_lengths(arrays: Arrays, edges: Any, share: Share) -> None:
    """ValueError unless sequence lengths are multiples of 2 * ranks, if values can be read."""
    seen = arrays.seen(edges)
    if seen is None:
        return
    lengths = seen[1:] - seen[:-1]
    if (lengths % share.parts).any():
        wrong_value(
            arrays.function, "cu_seqlens",
            f"sequences, and a rest after them, with lengths that are multiples of {share.parts}: "
            f'order="{share.order}" gives each rank a part from the head and one from the tail',
            f"lengths {shown_values(lengths)}",
        )  # fmt: skip


def shown_values(values: npt.NDArray[Any]) -> str:
    """Values as messages show them; of many values, only the first."""
    shown = values[:8].tolist()
    return f"{shown}" if len(values) <= 8 else f"{shown}, the first of {len(values)}"
