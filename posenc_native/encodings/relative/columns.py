"""The table column that each distance looks up: Shaw's clipped distances, DeBERTa's buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.engines.arrays import Arrays

from .buckets import deberta_bucket_of
from .distances import distances_of

if TYPE_CHECKING:
    import torch

    from posenc_native.core.calls.kinds import ArrayOrTensor

__all__ = ["clipped_index", "deberta_index"]


# --- Clipped distances


def clipped_index(
    q_len: int,
    k_len: int,
    left: int,
    right: int | None = None,
    *,
    q_offset: int | npt.ArrayLike | torch.Tensor | None = None,
    device: Any = None,
) -> ArrayOrTensor:
    """The row of a table for each distance: ``clip(key - query, -left, right) + left``.

    Args:
        q_len, k_len, q_offset: see the docstring of posenc_native.encodings.relative.
        left, right: the largest distances before and after the query with separate rows; by
            default right equals left. The table has left + right + 1 rows.
        device: of the result; see the docstring of posenc_native.encodings.relative.

    Returns:
        int64 ``[D]`` or ``[B, D]``.

    Raises:
        ValueError: a number is negative, or the offset has a wrong shape.
        TypeError: an argument is not an integer.

    Source: Shaw et al. 2018, "Self-Attention with Relative Position Representations", section 3.2.

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.clipped_index(3, 4, 1, q_offset=0)
        array([0, 0, 1, 2, 2, 2])
    """
    function = "clipped_index"
    arrays = Arrays(function, None, device, q_offset=q_offset)
    before = arguments.size(function, "left", left)
    after = before if right is None else arguments.size(function, "right", right)
    distances = distances_of(arrays, q_len, k_len, q_offset)
    return arrays.xp.clip(distances, -before, after) + before


# --- DeBERTa


def deberta_index(
    q_len: int,
    k_len: int,
    *,
    bucket_size: int | None = 256,
    max_position: int = 512,
    span: int | None = None,
    q_offset: int | npt.ArrayLike | torch.Tensor | None = None,
    transposed: bool = False,
    device: Any = None,
) -> ArrayOrTensor:
    """The columns of DeBERTa's disentangled attention: ``clamp(bucket(query - key) + span)``.

    For content to position, gather from ``q @ pos_k.T``, whose rows are queries and whose columns
    are distances. For position to content, gather from ``k @ pos_q.T``, whose rows are keys, with
    `transposed`, and transpose the result back to rows of queries. Both have 2 * span columns.

    Args:
        q_len, k_len, q_offset: see the docstring of posenc_native.encodings.relative.
        bucket_size, max_position: as in `deberta_bucket`: ints. bucket_size None: unbucketed
            distances (DeBERTa v1; ``position_buckets`` -1 in v2).
        span: half the number of columns; by default bucket_size, or max_position without it.
        transposed: whether rows are keys and columns queries.
        device: of the result; see the docstring of posenc_native.encodings.relative.

    Returns:
        int64 ``[D]`` or ``[B, D]``, in 0 .. 2 * span - 1.

    Raises:
        ValueError: bucket_size, max_position or span is out of range, or a length is negative.
        TypeError: an argument is not an integer.

    Source: He et al. 2021, "DeBERTa", section 3; ``disentangled_attention_bias`` in transformers.

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.deberta_index(3, 3, bucket_size=4, max_position=8)
        array([6, 5, 4, 3, 2])
        >>> pn.relative.deberta_index(3, 3, bucket_size=4, max_position=8, transposed=True)
        array([2, 3, 4, 5, 6])
    """
    function = "deberta_index"
    arrays = Arrays(function, None, device, q_offset=q_offset)
    flipped = arrays.flag("transposed", transposed)
    buckets = -distances_of(arrays, q_len, k_len, q_offset)
    if bucket_size is not None:
        buckets = deberta_bucket_of(arrays, buckets, bucket_size, max_position)
    if span is None:
        span = max_position if bucket_size is None else bucket_size
    half = arguments.size(function, "span", span)
    if half == 0:
        wrong_value(function, "span", "an int >= 1", 0)
    index = arrays.xp.clip(buckets, -half, half - 1) + half
    # Query minus key of (row key, column query) equals that of (row query, column key) in reverse.
    return arrays.xp.flip(index, (-1,)) if flipped else index
