"""Rows sharded over ranks (context parallelism): the tokens, keys and distances of each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_value
from posenc_native.core.calls.constants import constant_without_tensors
from posenc_native.core.calls.suggestions.vocabulary import answer_methods
from posenc_native.core.documents.reprs import call
from posenc_native.engines.arrays import Arrays, of_wholes

from .orders import packed_tokens, share_of, shared_length
from .rows import packed_bounds, plain_integer, positions_within

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Array, Device, Integers, ShardOrder, Tensor

__all__ = ["ContextParallel"]


@constant_without_tensors
def _own_positions(
    length: int, rank: int, ranks: int, order: ShardOrder, *, device: Any = None
) -> Any:
    function = "ContextParallel.positions"
    share = share_of(function, rank, ranks, order)
    length = shared_length(function, "length", length, share)
    return _concatenated(Arrays(function, None, device), share.chunks(length))


@constant_without_tensors
def _gathered_positions(length: int, ranks: int, order: ShardOrder, *, device: Any = None) -> Any:
    function = "ContextParallel.gathered_positions"
    shares = [share_of(function, rank, ranks, order) for rank in range(ranks)]
    length = shared_length(function, "length", length, shares[0])
    chunks = [chunk for share in shares for chunk in share.chunks(length)]
    return _concatenated(Arrays(function, None, device), chunks)


class PackedPart(NamedTuple):
    """The tokens of a packed row that are on a rank, in its order.

    indices: their places in the row, ``[t / ranks]``: ``x[part.indices]`` selects them.
    positions: their positions in their sequences.
    segments: the sequence of each token, numbered as in `posenc_native.positions.packed_segments`.
    cu_seqlens: ``[n + 1]``, where the sequences begin and the last sequence ends on this rank.
    """

    indices: Any
    positions: Any
    segments: Any
    cu_seqlens: Any


class Rectangle(NamedTuple):
    """Scores of evenly spaced queries and keys, in a step of ring attention.

    queries, keys: slices of the last two axes of that step's scores.
    diagonals: slice of the entries that these scores need, from a bias for the whole row.
    first_query, first_key: the positions of their first tokens.
    """

    queries: slice
    keys: slice
    diagonals: slice
    first_query: int
    first_key: int


@answer_methods
@dataclass(frozen=True, repr=False)
class ContextParallel:
    """One rank's part of the rows that context parallelism shards: one object for q, k and biases.

    Attention over a row on several devices sees the place of each token in its part; a position
    encoding needs its place in the row. All results depend only on lengths, so nothing is read from
    a device, and torch.compile and torch.export support all methods.

    Args:
        rank, ranks: the number of this part, and the number of parts: ``mesh.get_local_rank()`` and
            ``mesh.size()`` of the mesh dimension that shards rows.
        order: the tokens that a rank holds.

            ============  ====================================  ===================================
            order         a row                                 packed rows (`packed`)
            ============  ====================================  ===================================
            contiguous    the r-th of `ranks` parts             the same, regardless of packing
            zigzag        of 2 * ranks parts the r-th and the   the same of each sequence
                          r-th from the end
            head_tail     the same                              each sequence put in that order over
                                                                all ranks, then the r-th of `ranks`
                                                                parts
            striped       r, r + ranks, r + 2 * ranks, ...      the same, regardless of packing
            ============  ====================================  ===================================

            Megatron-LM and TransformerEngine use "zigzag", and so does torch for single rows; its
            context_parallel silently switches to "contiguous" if 2 * ranks does not divide the
            length. "head_tail" is torch's load balancer per document; "contiguous" is torch without
            load balancing.

    Raises:
        ValueError: rank is not below ranks, or order is unknown; in the methods, a length cannot be
            divided among the ranks.
        TypeError: a number is not an integer.

    Source: Liu et al. 2023, "Ring Attention"; Brandon et al. 2023, "Striped Attention"; the orders
    of packed rows: ``thd`` of TransformerEngine, ``_PerDocumentHeadTailLoadBalancer`` of torch.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> part = pn.positions.ContextParallel(rank=0, ranks=2)
        >>> part.positions(8)
        array([0, 1, 6, 7])
        >>> part.shard(np.arange(80, 88), 0)  # what comes as a whole
        array([80, 81, 86, 87])
        >>> keys = part.of_rank(1)
        >>> part.restore(np.concatenate([part.positions(8), keys.positions(8)]), 0)
        array([0, 1, 2, 3, 4, 5, 6, 7])
    """

    rank: int
    ranks: int
    order: ShardOrder = "zigzag"

    def __post_init__(self) -> None:
        share = share_of("ContextParallel", self.rank, self.ranks, self.order)
        for name, value in share._asdict().items():  # NumPy's integers become ints
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return call(self, rank=self.rank, ranks=self.ranks, order=self.order)

    def of_rank(self, rank: int) -> ContextParallel:
        """The part of another rank, such as the one whose keys are here in ring attention."""
        return ContextParallel(rank, self.ranks, self.order)

    @overload
    def positions(self, length: int, *, device: None = ...) -> Array[np.int64]: ...
    @overload
    def positions(self, length: int, *, device: Device) -> Tensor: ...
    def positions(self, length: int, *, device: Any = None) -> Any:
        """Positions of this part of a row, int64 ``[length / ranks]``.

        Args:
            length: length of the whole row: a multiple of ranks, or of 2 * ranks for "zigzag" and
                "head_tail".
            device: a torch device makes the result a tensor.

        It also shards positions of several axes: ``positions[..., result]``, as `shard` does.

        Raises:
            ValueError: length is not such a multiple.
            TypeError: length is not an integer.

        Example:
            >>> import posenc_native as pn
            >>> pn.positions.ContextParallel(0, 2).positions(8)
            array([0, 1, 6, 7])
        """
        return _own_positions(length, self.rank, self.ranks, self.order, device=device)

    def gathered_positions(self, length: int, *, device: Any = None) -> Any:
        """Positions of all parts in order of rank, int64 ``[length]``, for all-gathered keys."""
        return _gathered_positions(length, self.ranks, self.order, device=device)

    def shard(self, x: Any, axis: int) -> Any:
        """This part of a whole row: tokens, or positions ``[3, b, s]``, along one of its axes."""
        xp, x, axis = _of_axis("ContextParallel.shard", x, axis)
        share = share_of("ContextParallel", self.rank, self.ranks, self.order)
        length = shared_length("ContextParallel.shard", f"x.shape[{axis}]", x.shape[axis], share)
        before = (slice(None),) * axis
        chunks = [x[before + (chunk,)] for chunk in share.chunks(length)]  # noqa: RUF005
        return chunks[0] if len(chunks) == 1 else xp.concatenate(chunks, axis)

    @of_wholes
    def restore(self, x: Any, axis: int) -> Any:
        """The whole row in its original order, from all parts in order of rank (all-gathered)."""
        xp, x, axis = _of_axis("ContextParallel.restore", x, axis)
        device = x.device if is_tensor(x) else None
        order = self.gathered_positions(x.shape[axis], device=device)
        back = xp.argsort(order)
        return x.index_select(axis, back) if is_tensor(x) else np.take(x, back, axis)

    @of_wholes
    def packed(self, cu_seqlens: Integers, total: int, *, start: Integers = 0) -> PackedPart:
        """This part of a packed row: the places and positions of its tokens, and its cu_seqlens.

        Args:
            cu_seqlens, total, start: values for the whole row, as in
                `posenc_native.positions.packed_positions`: cu_seqlens integers ``[n + 1]``, total
                an int, start an int or integers ``[n]``. For "zigzag" and "head_tail", the length
                of each sequence, and of the rest after the last one, must be a multiple of 2 *
                ranks.

        Returns:
            ``(indices, positions, segments, cu_seqlens)``, int64.

        Raises:
            ValueError, TypeError: as `posenc_native.positions.packed_positions`.

        Example:
            >>> import posenc_native as pn
            >>> part = pn.positions.ContextParallel(rank=0, ranks=2).packed([0, 4, 12], 12)
            >>> part.indices
            array([ 0,  3,  4,  5, 10, 11])
            >>> part.positions
            array([0, 3, 0, 1, 6, 7])
            >>> part.cu_seqlens
            array([0, 2, 6])
        """
        function = "ContextParallel.packed"
        arrays = Arrays(function, cu_seqlens=cu_seqlens, start=start)
        share = share_of(function, self.rank, self.ranks, self.order)
        bounds = packed_bounds(arrays, cu_seqlens, total)
        indices, segments, own_bounds = packed_tokens(arrays, bounds, total, share)
        positions = positions_within(arrays, bounds, indices, segments, start)
        return PackedPart(indices, positions, segments, own_bounds)

    def rectangles(self, length: int, keys: int) -> list[Rectangle]:
        """The parts of a whole row's bias for the scores of this part with the keys of a rank.

        Such scores are rectangles with evenly spaced queries and keys: four for "zigzag", otherwise
        one. For a rectangle, ``diagonals[..., rectangle.diagonals]`` is a bias by distance. An
        index of columns is sliced the same way.

        Args:
            length: length of the whole row.
            keys: the rank that the keys come from.

        Returns:
            Rectangles with the slices ``queries`` and ``keys`` of the scores' last axes, the slice
            ``diagonals``, and ``first_query`` and ``first_key``, the positions they begin at.

        Raises:
            ValueError: the ranks cannot divide the length, or there is no such rank.

        Example:
            >>> import numpy as np
            >>> import posenc_native as pn
            >>> diagonals = pn.relative.alibi_diagonals(1, 8, 8)  # falls by 1 / 256 a token
            >>> scores = np.zeros((1, 4, 4), np.float32)  # queries 0 1 6 7, keys 2 3 4 5
            >>> for r in pn.positions.ContextParallel(0, 2).rectangles(8, keys=1):
            ...     some = scores[:, r.queries, r.keys]
            ...     some = pn.add_toeplitz_bias(some, diagonals[:, r.diagonals], out=some)
            >>> scores[0] * 256
            array([[-2., -3., -4., -5.],
                   [-1., -2., -3., -4.],
                   [-4., -3., -2., -1.],
                   [-5., -4., -3., -2.]], dtype=float32)
        """
        function = "ContextParallel.rectangles"
        share = share_of(function, self.rank, self.ranks, self.order)
        length = shared_length(function, "length", length, share)
        with_keys = share_of(function, keys, self.ranks, self.order).chunks(length)
        rectangles = []
        for i, queries in enumerate(share.chunks(length)):
            for j, key_chunk in enumerate(with_keys):
                rectangles.append(_rectangle(length, i, queries, j, key_chunk))
        return rectangles


def _rectangle(length: int, i: int, queries: slice, j: int, keys: slice) -> Rectangle:
    """The rectangle of the i-th chunk of queries and the j-th of keys, all of one length."""
    rows = range(queries.start, queries.stop, queries.step or 1)
    columns = range(keys.start, keys.stop, keys.step or 1)
    count, step = len(rows), rows.step
    # Entry length - 1 is distance 0; the first entry needed is that of the last query, first key.
    first = length - 1 + columns.start - (rows.start + (count - 1) * step)
    entries = max(2 * count - 1, 0)
    return Rectangle(
        slice(i * count, (i + 1) * count),
        slice(j * count, (j + 1) * count),
        slice(first, first + (entries - 1) * step + 1, step) if entries else slice(0, 0, 1),
        rows.start,
        columns.start,
    )


def _concatenated(arrays: Arrays, chunks: list[slice]) -> Any:
    """The positions in chunks of a row."""
    runs = []
    for chunk in chunks:
        numbers = range(chunk.start, chunk.stop, chunk.step or 1)
        runs.append(arrays.arange(len(numbers)) * numbers.step + numbers.start)
    return arrays.xp.concatenate(runs)


def _of_axis(function: str, x: Any, axis: Any) -> tuple[Any, Any, int]:
    """The engine for x, x as an array or a tensor, and the axis counted from the first."""
    arrays = Arrays(function, x=x)
    x = x if arrays.is_torch else arguments.as_array(function, "x", x)
    axis = plain_integer(function, "axis", axis)
    if not -x.ndim <= axis < x.ndim:
        wrong_value(function, "axis", f"an axis of x, which has {x.ndim} axes", axis)
    return arrays.xp, x, axis % x.ndim
