"""Distances between keys and queries, and look-ups by distance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.constants import constant_without_tensors
from posenc_native.engines.arrays import Arrays

from .lookup import relative_gather

if TYPE_CHECKING:
    import torch

    from posenc_native.core.calls.kinds import ArrayOrTensor

__all__ = ["relative_positions"]

OFFSET_LIMIT = 2**62  # so that no distance overflows int64
_FLOAT64_LIMIT = 2**52  # so that every distance is a float64


@constant_without_tensors
def relative_positions(
    q_len: int,
    k_len: int,
    *,
    q_offset: int | npt.ArrayLike | torch.Tensor | None = None,
    device: Any = None,
) -> ArrayOrTensor:
    """The distance, key minus query, of each diagonal.

    Args:
        q_len, k_len: numbers of queries and keys.
        q_offset: position of the first query, an int or integers ``[B]``; None is 0 if q_len and
            k_len are equal.
        device: of the result; see the docstring of posenc_native.encodings.relative.

    Returns:
        int64 ``[D]`` or ``[B, D]``, D = q_len + k_len - 1 (0 if both lengths are 0).

    Raises:
        ValueError: a length is negative, the offset has a wrong shape or size, or the lengths
            differ without an offset.
        TypeError: an argument is not an integer.

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.relative_positions(2, 3, q_offset=0)
        array([-1,  0,  1,  2])
        >>> pn.relative.relative_positions(1, 4, q_offset=3)  # decoding the last of four
        array([-3, -2, -1,  0])
    """
    arrays = Arrays("relative_positions", None, device, q_offset=q_offset)
    return distances_of(arrays, q_len, k_len, q_offset)


def distances_of(arrays: Arrays, q_len: int, k_len: int, q_offset: Any) -> Any:
    """Key minus query, int64 [D] or [B, D]."""
    return spread(arrays, window_of(arrays, q_len, k_len, q_offset))


def wide_distances(arrays: Arrays, window: Window) -> Any:
    """The distances of a window in float64."""
    if not window.known(arrays) or abs(window.before) > _FLOAT64_LIMIT:
        return arrays.wide(spread(arrays, window))
    first, options = -window.before, {"device": arrays.device} if arrays.is_torch else {}
    return arrays.xp.arange(first, first + window.entries, dtype=arrays.float64, **options)


class Window(NamedTuple):
    """Consecutive distances; they are not known in a traced call or for a batch of offsets."""

    before: Any  # minus the first distance: an int, or int64 [1] or [B, 1]
    entries: int  # the number of distances

    def known(self, arrays: Arrays) -> bool:
        """Whether all distances are known, as ints."""
        return type(self.before) is int and type(self.entries) is int and arrays.readable


def window_of(arrays: Arrays, q_len: int, k_len: int, q_offset: Any) -> Window:
    """The distances of a call."""
    queries = arguments.length(arrays.function, "q_len", q_len)
    keys = arguments.length(arrays.function, "k_len", k_len)
    count = max(queries + keys - 1, 0)
    arguments.check_byte_count(arrays.function, (count,), 8)
    q_offset = first_query(arrays.function, queries, keys, q_offset)
    return Window(queries - 1 + _offset_of(arrays, q_offset), count)


def spread(arrays: Arrays, window: Window) -> Any:
    """The distances of a window, int64 [D] or [B, D]."""
    return arrays.arange(window.entries) - window.before


def first_query(function: str, q_len: int, k_len: int, q_offset: Any) -> Any:
    """The argument q_offset; None is 0 for equally many queries and keys, otherwise an error.

    If the numbers differ, queries may begin where the keys do or be the last of them (decoding). No
    default fits both cases, and no shape would reveal a wrong offset.
    """
    if q_offset is not None:
        return q_offset
    if q_len != k_len:
        wrong_value(
            function, "q_offset",
            f"the position of the first of {q_len} queries among {k_len} keys: q_offset=0 if both "
            f"begin together, q_offset={k_len - q_len} if they end together (decoding)", None,
        )  # fmt: skip
    return 0


def _offset_of(arrays: Arrays, q_offset: Any) -> Any:
    """The first query's position: an int, or int64 [1] or [B, 1]."""
    function, argument = arrays.function, "q_offset"
    if isinstance(q_offset, (bool, float, complex, str)):
        wrong_type(function, argument, "an int or integers [B]", type(q_offset).__name__)
    if arguments.is_symbolic(q_offset):
        return q_offset
    if isinstance(q_offset, (int, np.integer)):
        if not -OFFSET_LIMIT < q_offset < OFFSET_LIMIT:
            wrong_value(function, argument, "a magnitude below 2^62", q_offset)
        return int(q_offset)
    offsets = arrays.integers(argument, q_offset, arguments.INTEGER_DTYPES)
    if offsets.ndim > 1:
        wrong_value(function, argument, "an int or shape [B]", f"shape {list(offsets.shape)}")
    return offsets[..., None]


def look_up(table: Any, index: Any) -> Any:
    """The rows of a table [W, H] at index [D] or [B, D], as diagonals [H, D] or [B, H, D].

    This uses `relative_gather`, because its gradient is deterministic, as if for a single query
    whose distances are the entries of the index.
    """
    count = math.prod(index.shape)
    columns = table.swapaxes(0, 1)[:, None, :]
    rows = relative_gather(columns, index.reshape(-1), count, origin=0)[:, 0]
    if index.ndim == 1:
        return rows
    return rows.reshape(rows.shape[0], *index.shape).swapaxes(0, 1)
