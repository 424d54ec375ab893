"""Positions of tokens in packed and padded rows.

A mask numbers the samples that a trainer packed in a row: ``[1, 1, 2, 2, 2, 0]``, 0 for padding
(LLaMA-Factory, axolotl). A mask of bools is such a mask with one sample in each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.constants import constant_without_tensors
from posenc_native.engines.arrays import Arrays, of_wholes
from posenc_native.engines.plain.numbers import at_or_below

from .orders import packed_tokens, share_of, shown_values

if TYPE_CHECKING:
    import torch

    from posenc_native.core.calls.kinds import (
        Array,
        ArrayOrTensor,
        Integers,
        Plain,
        ShardOrder,
        Tensor,
        TensorLike,
    )

__all__ = ["packed_positions", "packed_segments", "padded_positions"]


@overload
def packed_positions(cu_seqlens: Plain, total: int, *, start: Plain = ..., rank: int = ...,
                     ranks: int = ..., order: ShardOrder = ...) -> Array[np.int64]: ...  # fmt: skip
@overload
def packed_positions(cu_seqlens: Integers, total: int, *, start: Integers = ..., rank: int = ...,
                     ranks: int = ..., order: ShardOrder = ...) -> ArrayOrTensor: ...  # fmt: skip
@constant_without_tensors
@of_wholes
def packed_positions(
    cu_seqlens: Integers,
    total: int,
    *,
    start: Integers = 0,
    rank: int = 0,
    ranks: int = 1,
    order: ShardOrder = "zigzag",
) -> Any:
    """Positions of sequences that are packed one after another: each counts from its start.

    Args:
        cu_seqlens: integers ``[n + 1]``, where each of n sequences begins and the last one ends,
            ascending from 0, as for variable-length attention. Sequences may be empty.
        total: t, the number of tokens; the length of the axis in ``q``. Tokens after the last
            sequence (padding) also count from 0.
        start: the first position, one for all sequences or ``[n]``: the number of tokens already in
            a cache.
        rank, ranks, order: only the tokens of a rank under context parallelism, as in
            `ContextParallel.packed`.

    Returns:
        int64 ``[t / ranks]``.

    Raises:
        ValueError: the shapes do not fit. Also, if values can be read (in NumPy, and on the CPU
            while torch does not trace): the bounds do not ascend from 0 to at most `total`, or the
            ranks cannot divide the sequences.
        TypeError: an argument is not an integer.

    Example:
        >>> import posenc_native as pn
        >>> pn.positions.packed_positions([0, 3, 5], 6)
        array([0, 1, 2, 0, 1, 0])
        >>> pn.positions.packed_positions([0, 4, 12], 12, rank=0, ranks=2)
        array([0, 3, 0, 1, 6, 7])
    """
    function = "packed_positions"
    arrays = Arrays(function, cu_seqlens=cu_seqlens, start=start)
    share = share_of(function, rank, ranks, order)
    bounds = packed_bounds(arrays, cu_seqlens, total)
    if share.ranks == 1:
        tokens, segments = _segments(arrays, bounds, total)
    else:
        tokens, segments, _ = packed_tokens(arrays, bounds, total, share)
    return positions_within(arrays, bounds, tokens, segments, start)


@overload
def packed_segments(cu_seqlens: TensorLike, total: int) -> Tensor: ...
@overload
def packed_segments(cu_seqlens: npt.ArrayLike, total: int) -> Array[np.int64]: ...
@constant_without_tensors
@of_wholes
def packed_segments(cu_seqlens: npt.ArrayLike | TensorLike, total: int) -> Any:
    """The number of the packed sequence that each token belongs to; n after the last sequence.

    Args:
        cu_seqlens, total: as in `packed_positions`: integers ``[n + 1]`` and an int.

    Returns:
        int64 ``[t]``.

    Raises:
        ValueError, TypeError: as in `packed_positions`.

    Example:
        >>> import posenc_native as pn
        >>> pn.positions.packed_segments([0, 3, 5], 6)
        array([0, 0, 0, 1, 1, 2])
    """
    arrays = Arrays("packed_segments", cu_seqlens=cu_seqlens)
    return _segments(arrays, packed_bounds(arrays, cu_seqlens, total), total)[1]


@constant_without_tensors
def padded_positions(
    attention_mask: npt.ArrayLike | torch.Tensor, *, padding: int = 0, start: Integers = 0
) -> ArrayOrTensor:
    """Positions of rows with padding on either side or within: they count only the tokens.

    Args:
        attention_mask: ``[b, s]`` bools or integers, 0 for padding. Several numbers in a row are
            those of packed samples, in ascending order, and each sample counts from its start:
            1, 1, 2, 2, 2, 0.
        padding: position of padding: 0 as in transformers 5, 1 as in its earlier versions.
        start: position of the first token of a sample, one for all rows or ``[b]``. (A mask that
            also covers a cache does not need it: take the last columns of the result.)

    Returns:
        int64 ``[b, s]``.

    Raises:
        ValueError: the shapes do not fit. Also, if values can be read (in NumPy, and on the CPU
            while torch does not trace): numbers in a row of the mask are negative or descend.
        TypeError: a dtype is not supported.

    Source: ``GenerationMixin`` in transformers.

    Example:
        >>> import posenc_native as pn
        >>> pn.positions.padded_positions([[0, 0, 1, 1, 1], [1, 1, 2, 2, 0]])
        array([[0, 0, 0, 1, 2],
               [0, 1, 0, 1, 0]])
    """
    function = "padded_positions"
    arrays = Arrays(function, attention_mask=attention_mask, start=start)
    numbers = sample_numbers(arrays, "attention_mask", attention_mask)
    if numbers.ndim != 2:
        wrong_value(function, "attention_mask", "shape [b, s]", list(numbers.shape))
    first = first_positions(arrays, start, numbers.shape[0])
    count = counted_in_samples(arrays, numbers) + (
        first if isinstance(first, int) else first[:, None]
    )
    return arrays.xp.where(numbers != 0, count, plain_integer(function, "padding", padding))


def first_positions(arrays: Arrays, start: Any, count: int) -> Any:
    """The argument start: an int, or integers [count]."""
    if isinstance(start, (int, np.integer)):
        return plain_integer(arrays.function, "start", start)
    first = arrays.integers("start", start, arguments.INTEGER_DTYPES)
    arguments.check_shape(arrays.function, "start", first.shape, (count,))
    return first


def positions_within(arrays: Arrays, bounds: Any, tokens: Any, segments: Any, start: Any) -> Any:
    """Positions of tokens of a packed row within their sequences, each of which begins at start."""
    first = first_positions(arrays, start, bounds.shape[0] - 1)
    if not isinstance(first, int):
        first = arrays.xp.concatenate([first, arrays.arange(1)])[segments]  # 0 after the last
    return tokens - bounds[segments] + first


def packed_bounds(arrays: Arrays, cu_seqlens: Any, total: int) -> Any:
    """The argument cu_seqlens, int64 [n + 1]."""
    bounds = arrays.integers("cu_seqlens", cu_seqlens, arguments.INTEGER_DTYPES)
    if bounds.ndim != 1 or bounds.shape[0] == 0:
        wrong_value(arrays.function, "cu_seqlens", "shape [n + 1]", list(bounds.shape))
    seen = arrays.seen(bounds)
    if seen is not None:
        total = arguments.length(arrays.function, "total", total)
        if seen[0] != 0 or (seen[1:] < seen[:-1]).any() or seen[-1] > total:
            expected = f"bounds that ascend from 0 to at most total = {total}"
            wrong_value(arrays.function, "cu_seqlens", expected, shown_values(seen))
    return bounds


def _segments(arrays: Arrays, bounds: Any, total: int) -> tuple[Any, Any]:
    """The tokens 0 .. total - 1, and the number of sequences that end at or before each."""
    tokens = arrays.arange(arguments.length(arrays.function, "total", total))
    return tokens, at_or_below(bounds[1:], tokens)


# --- samples in a row by a mask that numbers them


def sample_numbers(arrays: Arrays, argument: str, mask: Any) -> Any:
    """A mask as int64 [..., s]: 0 for padding, otherwise the number of the sample."""
    numbers = arrays.integers(argument, mask, ("bool", *arguments.INTEGER_DTYPES))
    seen = arrays.seen(numbers)
    if seen is not None and seen.ndim and not _single(seen):
        wrong = (seen < np.maximum.accumulate(seen, -1)) & (seen != 0) | (seen < 0)
        if wrong.any():
            row = seen.reshape(-1, seen.shape[-1])[wrong.any(-1).argmax()]
            expected = "0 for padding and in each row ascending numbers of samples"
            hint = f"write {argument} != 0 for one sample in each row"
            wrong_value(arrays.function, argument, expected, shown_values(row), hint)
    return numbers


def _single(numbers: npt.NDArray[Any]) -> bool:
    """Whether all numbers are 0 and 1, as in the usual mask, which takes a sixth of the time."""
    return bool(numbers.min(initial=0) >= 0 and numbers.max(initial=0) <= 1)


def before_samples(arrays: Arrays, numbers: Any, counted: Any) -> Any:
    """The sum of `counted`, all [..., s], over the tokens before the sample of each token."""
    seen = arrays.seen(numbers)
    if seen is not None and _single(seen):
        return 0
    axis = numbers.ndim - 1  # torch's DTensors sum along the wrong axis if counted from the end
    so_far = arrays.running_max(numbers)
    # A slice of s - 1 columns would make torch.export ask for lengths other than 2.
    none = arrays.xp.zeros_like(so_far.sum(axis))[..., None]
    begins = numbers > arrays.xp.concatenate([none, so_far], axis)[..., :-1]
    return arrays.running_max(arrays.xp.where(begins, counted.cumsum(axis) - counted, 0))


def counted_in_samples(arrays: Arrays, numbers: Any) -> Any:
    """The number of tokens of its sample before each token, int64 [..., s]."""
    tokens = arrays.whole(numbers != 0)
    return tokens.cumsum(numbers.ndim - 1) - 1 - before_samples(arrays, numbers, tokens)


def counted_to_end(arrays: Arrays, numbers: Any) -> Any:
    """The number of tokens of its sample after each token, int64 [..., s]."""
    axes = (numbers.ndim - 1,)
    largest = arrays.running_max(numbers)[..., -1:]
    # Numbered from the end of the row, samples ascend from there.
    from_end = arrays.xp.flip(arrays.xp.where(numbers != 0, largest + 1 - numbers, 0), axes)
    return arrays.xp.flip(counted_in_samples(arrays, from_end), axes)


def plain_integer(function: str, argument: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        wrong_type(function, argument, "an int", type(value).__name__)
    return int(value)


# --- rows of packed tokens by where they begin


class Rows:
    """Where rows of packed tokens begin, and the row of each token."""

    def __init__(self, arrays: Arrays, starts: Any, tokens: int) -> None:
        function = arrays.function
        seen = arrays.seen(starts)
        if seen is not None and not (
            len(seen) > 1
            and seen[0] == 0
            and seen[-1] == tokens
            and bool((np.diff(seen) >= 0).all())
        ):
            expected = f"rising integers from 0 to {tokens}, the number of tokens"
            wrong_value(function, "starts", expected, seen.tolist())
        self.count: int = starts.shape[0] - 1
        self.starts: Any = starts
        starts = starts.clip(0, tokens)
        self.first: Any = starts[:-1]
        self.last: Any = starts[1:]
        numbers = arrays.arange(tokens)
        self.of_tokens: Any = at_or_below(self.last, numbers).clip(0, self.count - 1)


def checked_rows(arrays: Arrays, starts: Any, tokens: int) -> Rows | None:
    """The rows that starts describes, checked."""
    if starts is None:
        return None
    if arrays._mesh is not None:  # all ranks read all of them
        from posenc_native.engines.torch.sharded.cut import gathered

        starts, arrays = gathered(starts, arrays._mesh), arrays.of_parts()
    bounds = arrays.integers("starts", starts, arguments.INTEGER_DTYPES)
    if bounds.ndim != 1:
        wrong_value(arrays.function, "starts", "shape [rows + 1]", f"shape {list(bounds.shape)}")
    return Rows(arrays, bounds, tokens)
