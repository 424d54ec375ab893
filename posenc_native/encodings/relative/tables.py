"""Learned tables with a row per distance or bucket of distances, as diagonals: T5, clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.engines.arrays import Arrays

from .buckets import t5_bucket_of_window
from .causal import causal_diagonals
from .distances import look_up, spread, window_of

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypedDict, Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        Number,
        Numbers,
        SupportsArray,
        Tensor,
        TensorLike,
    )

__all__ = ["clipped_diagonals", "t5_diagonals"]


if TYPE_CHECKING:

    class T5(TypedDict, total=False):
        """Keywords of T5's diagonals."""

        bidirectional: bool
        max_distance: int
        causal: bool
        q_offset: Numbers | None

    class Clipped(TypedDict, total=False):
        """Keywords of clipped diagonals."""

        left: int | None
        causal: bool
        q_offset: Numbers | None


@overload
def t5_diagonals(table: TensorLike, q_len: int, k_len: int, **how: Unpack[T5]) -> Tensor: ...
@overload
def t5_diagonals(table: SupportsArray[Number], q_len: int, k_len: int,
                 **how: Unpack[T5]) -> Array[Number]: ...  # fmt: skip
@overload
def t5_diagonals(table: npt.ArrayLike, q_len: int, k_len: int, **how: Unpack[T5]) -> Array[Any]: ...
def t5_diagonals(
    table: npt.ArrayLike | TensorLike,
    q_len: int,
    k_len: int,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    causal: bool = False,
    q_offset: int | npt.ArrayLike | torch.Tensor | None = None,
) -> Any:
    """Diagonals of T5's learned bias.

    In transformers (buckets / max_distance):

    - T5, mT5, LongT5, Switch, UDOP: 32 / 128, bidirectional in the encoder; all layers share the
      table of layer 0. UMT5: a table per layer. Pix2Struct's text: not bidirectional.
    - MPNet: 32 / 128, bidirectional. CPM-Ant: 512 / 2048, bidirectional, with additional segments.
    - WavLM: 320 / 800, bidirectional; the query then gates the bias.
    - LayoutLMv2 and v3: 32 / 128 for position_ids and 64 / 256 for the coordinates of boxes,
      bidirectional; boxes have no diagonals, so use `relative_position_bucket`.

    T5, mT5 and UMT5 do not divide scores by ``sqrt(head_dim)``. LayoutLM's tables are the weights
    of a Linear, ``[H, num_buckets]``: transpose them.

    Args:
        table: ``[num_buckets, H]``, floats. Gradients reach a tensor.
        q_len, k_len, q_offset: see the docstring of posenc_native.encodings.relative.
        bidirectional, max_distance: as in `relative_position_bucket`: a bool and an int.
        causal: True to include the causal mask: keys after the query are -inf. (`bidirectional`
            False gives them bucket 0.)

    Returns:
        ``[H, D]`` or ``[B, H, D]``, in the table's dtype.

    Raises:
        ValueError, TypeError: as in `relative_position_bucket`; or the table has a wrong rank.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> table = np.arange(32, dtype=np.float32)[:, None]  # one head, worth the bucket's number
        >>> pn.relative.t5_diagonals(table, 3, 4, q_offset=0)
        array([[ 2.,  1.,  0., 17., 18., 19.]], dtype=float32)
    """
    arrays = Arrays("t5_diagonals", table=table, q_offset=q_offset)
    rows = arrays.table(table)
    window = window_of(arrays, q_len, k_len, q_offset)
    count = rows.shape[0]
    index = t5_bucket_of_window(arrays, window, bidirectional, count, max_distance)
    return causal_diagonals(arrays, look_up(rows, index), window, causal)


@overload
def clipped_diagonals(table: TensorLike, q_len: int, k_len: int,
                      **how: Unpack[Clipped]) -> Tensor: ...  # fmt: skip
@overload
def clipped_diagonals(table: SupportsArray[Number], q_len: int, k_len: int,
                      **how: Unpack[Clipped]) -> Array[Number]: ...  # fmt: skip
@overload
def clipped_diagonals(table: npt.ArrayLike, q_len: int, k_len: int,
                      **how: Unpack[Clipped]) -> Array[Any]: ...  # fmt: skip
def clipped_diagonals(
    table: npt.ArrayLike | TensorLike,
    q_len: int,
    k_len: int,
    *,
    left: int | None = None,
    causal: bool = False,
    q_offset: int | npt.ArrayLike | torch.Tensor | None = None,
) -> Any:
    """Diagonals of a learned bias with one row per distance; the outermost rows cover all beyond.

    Args:
        table: ``[left + right + 1, H]``, floats, from the farthest key before the query to the
            farthest after it. Gradients reach a tensor.
        q_len, k_len, q_offset: see the docstring of posenc_native.encodings.relative.
        left: the row of distance 0; by default the middle row.
        causal: True to include the causal mask: keys after the query are -inf.

    Returns:
        ``[H, D]`` or ``[B, H, D]``, in the table's dtype.

    Raises:
        ValueError: the table has no middle row and left is None, left is outside the table, or
            a length is negative.
        TypeError: a dtype is not supported.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> table = np.array([[-1.0], [0.0], [1.0]])
        >>> pn.relative.clipped_diagonals(table, 2, 4, q_offset=0)
        array([[-1.,  0.,  1.,  1.,  1.]])
    """
    function = "clipped_diagonals"
    arrays = Arrays(function, table=table, q_offset=q_offset)
    rows = arrays.table(table)
    count = rows.shape[0]
    if count == 0 or (left is None and count % 2 == 0):
        wrong_value(function, "table", "an odd number of rows without left", count)
    before = count // 2 if left is None else arguments.size(function, "left", left)
    if before >= count:
        wrong_value(function, "left", f"a row of the table, below {count}", before)
    window = window_of(arrays, q_len, k_len, q_offset)
    index = arrays.xp.clip(spread(arrays, window), -before, count - 1 - before) + before
    return causal_diagonals(arrays, look_up(rows, index), window, causal)
