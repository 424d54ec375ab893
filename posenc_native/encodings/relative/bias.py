"""A bias by distance, with one number for each distance between key and query, and its sums.

entry of query i and key j:  e = j - i + q_len - 1                 D = q_len + k_len - 1 entries

    keys ->                     The bias [q_len, k_len] of a head has D numbers, its diagonals: row
    2 3 4 5    queries          i is the window of them that begins at entry q_len - 1 - i.
    1 2 3 4       |
    0 1 2 3       v

The numbers (ALiBi, T5, KERPLE ...) are data: see alibi.py, tables.py, kernels.py, windows.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import (
    as_array,
    as_dtype,
    as_operand,
    is_tensor,
    wrong_type,
    wrong_value,
)
from posenc_native.engines import backend, late

from .causal import causal_entries
from .entries import Lengths, entry_or_default, first_entry, lengths_of, matrix_lengths

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypedDict, Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        Number,
        Numbers,
        OutArray,
        OutTensor,
        SupportsArray,
        Tensor,
        TensorLike,
    )

__all__ = ["add_toeplitz_bias", "diagonal_sums", "toeplitz_bias"]


if TYPE_CHECKING:

    class ReadFrom(TypedDict, total=False):
        """Keywords that select where in the diagonals a call begins."""

        q_offset: Numbers
        origin: Lengths | None

    class OfMatrix(ReadFrom, total=False):
        """Those, and the sizes of a matrix whose tokens are in a grid."""

        q_len: Lengths | None
        k_len: Lengths | None


@overload
def toeplitz_bias(diagonals: TensorLike, q_len: Lengths, k_len: Lengths, *, causal: bool = ...,
                  dtype: Any = ..., out: OutTensor = ...,
                  **read: Unpack[ReadFrom]) -> Tensor: ...  # fmt: skip
@overload
def toeplitz_bias(diagonals: npt.ArrayLike, q_len: Lengths, k_len: Lengths, *,
                  causal: bool = ..., dtype: Any = ..., out: OutArray = ...,
                  **read: Unpack[ReadFrom]) -> Array[Any]: ...  # fmt: skip
def toeplitz_bias(
    diagonals: Any,
    q_len: Lengths,
    k_len: Lengths,
    *,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    origin: Lengths | None = None,
    causal: bool = False,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """Expand diagonals to a bias: ``result[h, i, j] = diagonals[h, j - i + q_len - 1]``.

    Args:
        diagonals: ``[..., H, q_len + k_len - 1]``, float16, bfloat16, float32 or float64, with any
            strides; axes before the heads are batch axes. For tokens in a grid (an image's
            patches), as many last axes as the grid has: ``[..., H, Dy, Dx]``.
        q_len, k_len: number of queries and keys; for a grid (rows, columns), tokens in C order.
        q_offset: position of query 0 among the keys, an int or integers ``[B]``, one per batch row,
            for decoding with a cache. Only with `origin`, for diagonals longer than this call
            needs; diagonals made for the call with its q_offset already include it.
        origin: entry of distance 0 in diagonals that are longer than this call needs, such as a
            table made once for all calls: ``result[h, i, j] = diagonals[h, j - (q_offset + i) +
            origin]``.
        causal: True to include the causal mask: keys after the query, at entries after that of
            distance 0, are -inf. Without an `origin`, distance 0 is at entry q_len - 1, which
            requires equally many queries and keys that begin together; other calls must give the
            origin.
        dtype: of the result; by default that of the diagonals (of `out`).
        out: array or tensor for the result.

    Returns:
        ``[..., H, q_len, k_len]``, with the batch axes of `q_offset` or of the diagonals. Gradients
        reach the diagonals, as `diagonal_sums`.

    Raises:
        ValueError: a length is negative; there are too few diagonals, or too many without an
            `origin`; or `out` does not match or overlaps.
        TypeError: a dtype is not supported.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.toeplitz_bias(np.arange(6.0)[None], 3, 4)
        array([[[2., 3., 4., 5.],
                [1., 2., 3., 4.],
                [0., 1., 2., 3.]]])
    """
    function = "toeplitz_bias"
    bias = backend.door.toeplitz_bias(diagonals, q_len, k_len, q_offset, origin, causal, dtype, out)
    if bias is not NotImplemented:
        return bias
    q_len, k_len = lengths_of(function, "q_len", q_len), lengths_of(function, "k_len", k_len)
    if not is_tensor(diagonals):
        diagonals = as_array(function, "diagonals", diagonals)
    start, offsets = first_entry(function, diagonals.shape, q_len, k_len, q_offset, origin)
    if causal is not False:
        diagonals = causal_entries(function, diagonals, q_len, k_len, origin, causal)
    if is_tensor(diagonals):
        return late.torch_operations().toeplitz_bias(
            diagonals, q_len, k_len, start, offsets, dtype, out
        )
    if offsets is not None and offsets.ndim == 0:
        offsets = np.broadcast_to(offsets, diagonals.shape[: -1 - len(q_len)])
    if dtype is not None:
        dtype = as_dtype(function, dtype)
    if out is not None and type(out) is not np.ndarray:
        arguments.check_no_mask(function, "out", out)
    return backend.implementation.toeplitz_bias(
        diagonals, q_len, k_len, entry_or_default(start, q_len), offsets, dtype, out
    )


@overload
def add_toeplitz_bias(scores: TensorLike, diagonals: Any, *, causal: bool = ...,
                      out: OutTensor = ..., **read: Unpack[OfMatrix]) -> Tensor: ...  # fmt: skip
@overload
def add_toeplitz_bias(scores: SupportsArray[Number], diagonals: Any, *, causal: bool = ...,
                      out: OutArray = ...,
                      **read: Unpack[OfMatrix]) -> Array[Number]: ...  # fmt: skip
def add_toeplitz_bias(
    scores: Any,
    diagonals: Any,
    *,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    origin: Lengths | None = None,
    q_len: Lengths | None = None,
    k_len: Lengths | None = None,
    causal: bool = False,
    out: Any = None,
) -> Any:
    """Add ``toeplitz_bias(diagonals)`` to scores in one pass, without the bias in memory.

    Args:
        scores: ``[..., H, q_len, k_len]``, with any strides and any leading axes.
        diagonals: as in `toeplitz_bias`: floats ``[..., H, q_len + k_len - 1]``, of any float
            dtype. Leading axes (except the heads) that are missing or of size 1 broadcast. If the
            scores are a tensor, the diagonals may be an array, which is moved to their device.
        q_offset, origin: as in `toeplitz_bias`: q_offset an int or integers ``[B]``, for the first
            leading axes of the scores; origin an int, or one for each axis of a grid.
        q_len, k_len: for tokens in a grid, its sizes; otherwise known from the scores.
        causal: as in `toeplitz_bias`: a bool; True makes scores of later keys -inf.
        out: memory for the result; `scores` itself adds in place.

    Returns:
        An array or tensor like `scores`. The sum is formed in float32 (float64 for float64) and
        rounded once. Gradients reach the scores and the diagonals.

    Raises:
        ValueError, TypeError: as in `toeplitz_bias`; or the heads do not match.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> scores = np.ones((1, 2, 3, 3), np.float32)
        >>> pn.add_toeplitz_bias(scores, pn.relative.alibi_diagonals(2, 3, 3), out=scores)[0, 0]
        array([[1.    , 0.9375, 0.875 ],
               [0.9375, 1.    , 0.9375],
               [0.875 , 0.9375, 1.    ]], dtype=float32)
    """
    function = "add_toeplitz_bias"
    result = backend.door.add_toeplitz_bias(
        scores, diagonals, q_len, k_len, q_offset, origin, causal, out
    )
    if result is not NotImplemented:
        return result
    tensors = is_tensor(scores)
    if not tensors:
        scores = as_operand(function, "scores", scores)
    if not is_tensor(diagonals):
        diagonals = as_array(function, "diagonals", diagonals)
        if tensors:  # such as those of alibi_diagonals() without an argument of torch
            diagonals = late.torch_operations().diagonals_tensor(diagonals, scores.device)
    elif not tensors:
        wrong_type(function, "diagonals", "an array, like scores", type(diagonals).__name__)
    rows, columns = matrix_lengths(function, "scores", scores.shape, q_len, k_len)
    start, q_offset = first_entry(function, diagonals.shape, rows, columns, q_offset, origin)
    if causal is not False:
        diagonals = causal_entries(function, diagonals, rows, columns, origin, causal)
    if tensors:
        return late.torch_operations().add_toeplitz_bias(
            scores, diagonals, rows, columns, start, q_offset, out
        )
    if out is not None and type(out) is not np.ndarray:
        arguments.check_no_mask(function, "out", out)
    return backend.implementation.add_toeplitz_bias(
        scores, diagonals, rows, columns, entry_or_default(start, rows), q_offset, out
    )


@overload
def diagonal_sums(grad: TensorLike, *, keep: int = ..., entries: Lengths | None = ...,
                  **read: Unpack[OfMatrix]) -> Tensor: ...  # fmt: skip
@overload
def diagonal_sums(grad: npt.ArrayLike, *, keep: int = ..., entries: Lengths | None = ...,
                  **read: Unpack[OfMatrix]) -> Array[Any]: ...  # fmt: skip
def diagonal_sums(
    grad: Any,
    *,
    keep: int = 1,
    q_len: Lengths | None = None,
    k_len: Lengths | None = None,
    entries: Lengths | None = None,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    origin: Lengths | None = None,
) -> Any:
    """Sums along the diagonals of every head: the gradient, and transpose, of `toeplitz_bias`.

    Args:
        grad: ``[..., H, q_len, k_len]``, with any strides.
        keep: the number of leading axes, counted from the last, that the result keeps; the others
            are summed over too. 1 for one sum per head.
        q_len, k_len: for tokens in a grid, its sizes; otherwise known from `grad`.
        entries, q_offset, origin: the number of entries of the diagonals, by default
            ``q_len + k_len - 1``, and how they were read.

    Returns:
        ``[H, q_len + k_len - 1]`` in float32 (float64 for float64), computed in that precision.
        Entries without a pair of query and key are 0. Results are identical bit for bit on every
        call, for any number of threads.

    Raises:
        ValueError: there are fewer than two axes, lengths do not match, or there are too few
            entries.
        TypeError: a dtype is not supported.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.diagonal_sums(np.ones((1, 3, 4)))
        array([[1., 2., 3., 3., 2., 1.]])
    """
    function = "diagonal_sums"
    sums = backend.door.diagonal_sums(grad, keep, q_len, k_len, entries, q_offset, origin)
    if sums is not NotImplemented:
        return sums
    if not is_tensor(grad):
        grad = as_array(function, "grad", grad)
    rows, columns = matrix_lengths(function, "grad", grad.shape, q_len, k_len)
    leading = tuple(grad.shape[:-2])
    if not 0 <= arguments.size(function, "keep", keep) <= len(leading) and keep != 1:
        wrong_value(function, "keep", f"at most {len(leading)} leading axes", keep)
    if entries is None:
        counts = tuple(max(q + k - 1, 0) for q, k in zip(rows, columns, strict=True))
    else:
        counts = lengths_of(function, "entries", entries)
        if len(counts) != len(rows):
            wrong_value(function, "entries", f"{len(rows)} numbers, as in q_len", list(counts))
    shape = (*leading[max(len(leading) - keep, 0) :], *counts)
    if entries is not None:
        arguments.check_byte_count(function, shape, 8)
    start, q_offset = first_entry(function, shape, rows, columns, q_offset, origin)
    if is_tensor(grad):
        return late.torch_operations().diagonal_sums(grad, shape, rows, columns, start, q_offset)
    return backend.implementation.diagonal_sums(
        grad, shape, rows, columns, entry_or_default(start, rows), q_offset
    )
