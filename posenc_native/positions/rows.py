"""Positions of the tokens of rows: packed, padded, cut for context parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.base.constants import constant_without_tensors
from posenc_native.engines.arrays import Arrays

from .values import seen_values, shown_values

if TYPE_CHECKING:
    import torch

    from posenc_native.base.kinds import (
        Array,
        ArrayOrTensor,
        Device,
        Integers,
        Plain,
        Tensor,
        TensorLike,
    )

__all__ = [
    "context_parallel_positions",
    "packed_positions",
    "packed_segments",
    "padded_positions",
]

_SHARD_ORDERS = ("contiguous", "zigzag", "striped")


@overload
def packed_positions(cu_seqlens: Plain, total: int, *, start: Plain = ...) -> Array[np.int64]: ...
@overload
def packed_positions(cu_seqlens: Integers, total: int, *,
                     start: Integers = ...) -> ArrayOrTensor: ...  # fmt: skip
@constant_without_tensors
def packed_positions(cu_seqlens: Integers, total: int, *, start: Integers = 0) -> Any:
    """Positions of sequences that are packed one after another: each counts from its start.

    Args:
        cu_seqlens: integers ``[n + 1]``, where each of n sequences begins and the last one ends,
            ascending from 0, as variable-length attention takes them. Sequences may be empty.
        total: t, the number of tokens; the length of the axis in ``q``. Tokens after the last
            sequence (padding) count from 0, too.
        start: the first position, one for all or ``[n]``: tokens that are in a cache already.

    Returns:
        int64 ``[t]``.

    Raises:
        ValueError: shapes that do not fit; bounds that do not ascend from 0 to `total` at most,
            where their values can be seen: in NumPy, and on the CPU while torch does not trace.
        TypeError: arguments that are not integers.

    Example:
        >>> import posenc_native as pn
        >>> pn.packed_positions([0, 3, 5], 6)
        array([0, 1, 2, 0, 1, 0])
    """
    function = "packed_positions"
    arrays = Arrays(function, cu_seqlens=cu_seqlens, start=start)
    bounds = _bounds(arrays, cu_seqlens, total)
    tokens, segment = _segments(arrays, bounds, total)
    first = first_positions(arrays, start, bounds.shape[0] - 1)
    if not isinstance(first, int):
        first = arrays.xp.concatenate([first, arrays.arange(1)])[segment]  # 0 after the last
    return tokens - bounds[segment] + first


@overload
def packed_segments(cu_seqlens: TensorLike, total: int) -> Tensor: ...
@overload
def packed_segments(cu_seqlens: npt.ArrayLike, total: int) -> Array[np.int64]: ...
@constant_without_tensors
def packed_segments(cu_seqlens: npt.ArrayLike | TensorLike, total: int) -> Any:
    """Which of the packed sequences each token belongs to; tokens after the last are of number n.

    Args:
        cu_seqlens, total: as in `packed_positions`.

    Returns:
        int64 ``[t]``.

    Raises:
        ValueError, TypeError: as in `packed_positions`.

    Example:
        >>> import posenc_native as pn
        >>> pn.packed_segments([0, 3, 5], 6)
        array([0, 0, 0, 1, 1, 2])
    """
    arrays = Arrays("packed_segments", cu_seqlens=cu_seqlens)
    return _segments(arrays, _bounds(arrays, cu_seqlens, total), total)[1]


@constant_without_tensors
def padded_positions(
    attention_mask: npt.ArrayLike | torch.Tensor, *, padding: int = 0, start: Integers = 0
) -> ArrayOrTensor:
    """Positions of rows with padding, on either side or within: they count the tokens of a row.

    Args:
        attention_mask: ``[b, s]`` bools or integers; what is not 0 is a token.
        padding: position of padding: 0 as in transformers 5, 1 as in its earlier versions.
        start: position of the first token, one for all or ``[b]``. (A mask that covers a cache as
            well needs none: take the last columns of the result.)

    Returns:
        int64 ``[b, s]``.

    Raises:
        ValueError: shapes that do not fit.
        TypeError: impossible dtypes.

    Source: ``GenerationMixin`` of transformers.

    Example:
        >>> import posenc_native as pn
        >>> pn.padded_positions([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
        array([[0, 0, 0, 1, 2],
               [0, 1, 2, 3, 0]])
    """
    function = "padded_positions"
    arrays = Arrays(function, attention_mask=attention_mask, start=start)
    there = token_mask(arrays, attention_mask)
    first = first_positions(arrays, start, there.shape[0])
    count = there.cumsum(-1) - 1 + (first if isinstance(first, int) else first[:, None])
    return arrays.xp.where(there, count, plain_integer(function, "padding", padding))


@overload
def context_parallel_positions(length: int, rank: int, ranks: int, *, order: str = ...,
                               device: None = ...) -> Array[np.int64]: ...  # fmt: skip
@overload
def context_parallel_positions(length: int, rank: int, ranks: int, *, order: str = ...,
                               device: Device) -> Tensor: ...  # fmt: skip
@constant_without_tensors
def context_parallel_positions(
    length: int, rank: int, ranks: int, *, order: str = "zigzag", device: Any = None
) -> Any:
    """Positions that a rank holds where a row is sharded over ranks (context parallelism).

    Args:
        length: of the whole row; a multiple of ranks, of 2 * ranks for "zigzag".
        rank, ranks: which shard, and of how many.
        order: "contiguous": rank r has the r-th part. "zigzag": of 2 * ranks parts it has the r-th
            and the r-th from the end, so that causal attention costs every rank the same (ring
            attention in Megatron-LM, torch, TransformerEngine). "striped": every token whose
            position is r modulo ranks.
        device: a torch device makes it a tensor.

    Returns:
        int64 ``[length / ranks]``. Positions of packed rows or of several axes are sharded by it:
        ``positions[..., result]``.

    Raises:
        ValueError: a length that is no such multiple, a rank that is not below ranks, an unknown
            order.
        TypeError: arguments that are not integers.

    Source: Liu et al. 2023, "Ring Attention"; Brandon et al. 2023, "Striped Attention".

    Example:
        >>> import posenc_native as pn
        >>> pn.context_parallel_positions(8, 0, 2)
        array([0, 1, 6, 7])
    """
    function = "context_parallel_positions"
    arrays = Arrays(function, None, device)
    ranks = arguments.size(function, "ranks", ranks)
    rank = arguments.size(function, "rank", rank)
    if rank >= ranks:
        wrong_value(function, "rank", f"an int below ranks = {ranks}", rank)
    arguments.check_name(function, "order", order, _SHARD_ORDERS)
    length = arguments.length(function, "length", length)
    parts = 2 * ranks if order == "zigzag" else ranks
    if length % parts:
        wrong_value(function, "length", f"a multiple of {parts}", length)
    part = length // parts
    place = arrays.arange(part)
    if order == "striped":
        return place * ranks + rank
    if order == "contiguous":
        return place + rank * part
    return arrays.xp.concatenate([place + rank * part, place + (parts - 1 - rank) * part])


def first_positions(arrays: Arrays, start: Any, count: int) -> Any:
    """The argument start: an int, or integers [count]."""
    if isinstance(start, (int, np.integer)):
        return plain_integer(arrays.function, "start", start)
    first = arrays.integers("start", start, arguments.INTEGER_DTYPES)
    arguments.check_shape(arrays.function, "start", first.shape, (count,))
    return first


def _bounds(arrays: Arrays, cu_seqlens: Any, total: int) -> Any:
    bounds = arrays.integers("cu_seqlens", cu_seqlens, arguments.INTEGER_DTYPES)
    if bounds.ndim != 1 or bounds.shape[0] == 0:
        wrong_value(arrays.function, "cu_seqlens", "shape [n + 1]", list(bounds.shape))
    seen = seen_values(arrays, bounds)
    if seen is not None:
        total = arguments.length(arrays.function, "total", total)
        if seen[0] != 0 or (seen[1:] < seen[:-1]).any() or seen[-1] > total:
            expected = f"bounds that ascend from 0 to at most total = {total}"
            wrong_value(arrays.function, "cu_seqlens", expected, shown_values(seen))
    return bounds


def _segments(arrays: Arrays, bounds: Any, total: int) -> tuple[Any, Any]:
    """The tokens 0 .. total - 1, and how many sequences end at or before each."""
    tokens = arrays.arange(arguments.length(arrays.function, "total", total))
    return tokens, arrays.xp.searchsorted(bounds[1:], tokens, side="right")


def token_mask(arrays: Arrays, mask: Any) -> Any:
    given = arrays.integers("attention_mask", mask, ("bool", *arguments.INTEGER_DTYPES))
    if given.ndim != 2:
        wrong_value(arrays.function, "attention_mask", "shape [b, s]", list(given.shape))
    return given != 0


def plain_integer(function: str, argument: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        wrong_type(function, argument, "an int", type(value).__name__)
    return int(value)
