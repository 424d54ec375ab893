"""Relative encodings: one number for each distance between key and query, or a look-up by it.

entry of query i and key j:  e = j - i + q_len - 1                 D = q_len + k_len - 1 entries

    keys ->                     A bias [q_len, k_len] of a head is D numbers, its diagonals: row i
    2 3 4 5    queries          is the window of them that begins at entry q_len - 1 - i.
    1 2 3 4       |
    0 1 2 3       v

What the numbers are (ALiBi, T5, KERPLE ...) and which columns distances look up (Shaw,
Transformer-XL, DeBERTa ...) is data, made by the functions of `posenc_native.distances`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.base import arguments
from posenc_native.engines import backend, late

from .base.arguments import as_array, as_dtype, as_operand, is_tensor, wrong_type, wrong_value

if TYPE_CHECKING:
    import torch

    from .base.kinds import Number, SupportsArray

__all__ = [
    "add_toeplitz_bias",
    "diagonal_sums",
    "relative_gather",
    "relative_scatter",
    "toeplitz_bias",
]

Lengths = int | Sequence[int]


@overload
def toeplitz_bias(
    diagonals: npt.NDArray[Any], q_len: Lengths, k_len: Lengths, *,
    q_offset: int | npt.ArrayLike | torch.Tensor = ..., origin: Lengths | None = ...,
    dtype: Any = ..., out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
@overload
def toeplitz_bias(
    diagonals: torch.Tensor, q_len: Lengths, k_len: Lengths, *,
    q_offset: int | npt.ArrayLike | torch.Tensor = ..., origin: Lengths | None = ...,
    dtype: Any = ..., out: torch.Tensor | None = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def toeplitz_bias(
    diagonals: npt.ArrayLike, q_len: Lengths, k_len: Lengths, *,
    q_offset: int | npt.ArrayLike | torch.Tensor = ..., origin: Lengths | None = ...,
    dtype: Any = ..., out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
def toeplitz_bias(
    diagonals: Any,
    q_len: Lengths,
    k_len: Lengths,
    *,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    origin: Lengths | None = None,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """Diagonals laid down as a bias: ``result[h, i, j] = diagonals[h, j - i + q_len - 1]``.

    Args:
        diagonals: ``[..., H, q_len + k_len - 1]``, float16, bfloat16, float32 or float64, of any
            strides; leading axes before the heads are those of a batch. For tokens in a grid (an
            image's patches), as many last axes as the grid has: ``[..., H, Dy, Dx]``.
        q_len, k_len: how many queries and keys; for a grid (rows, columns), tokens in C order.
        q_offset: position of query 0 among the keys, an int or integers ``[B]``, one for each
            batch row: decoding with a cache. Only with `origin`, for diagonals longer than this
            call needs; those made for the call with its q_offset have it in them already.
        origin: entry of distance 0 in diagonals that are longer than this call needs, as a table
            made once for all calls is: ``result[h, i, j] = diagonals[h, j - (q_offset + i) +
            origin]``.
        dtype: of the result; by default that of the diagonals (of `out`).
        out: array or tensor to write the result to.

    Returns:
        ``[..., H, q_len, k_len]``, of the batch axes of `q_offset` or of the diagonals. Gradients
        reach the diagonals, as `diagonal_sums`.

    Raises:
        ValueError: negative lengths; too few diagonals, or too many without an `origin`; a
            mismatched or overlapping `out`.
        TypeError: an impossible dtype.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.toeplitz_bias(np.arange(6.0)[None], 3, 4)
        array([[[2., 3., 4., 5.],
                [1., 2., 3., 4.],
                [0., 1., 2., 3.]]])
    """
    function = "toeplitz_bias"
    q_len, k_len = _lengths(function, "q_len", q_len), _lengths(function, "k_len", k_len)
    if is_tensor(diagonals):
        start, q_offset = _start(function, diagonals.shape, q_len, k_len, q_offset, origin)
        return late.torch_operations().toeplitz_bias(
            diagonals, q_len, k_len, start, q_offset, dtype, out
        )
    diagonals = as_array(function, "diagonals", diagonals)
    start, offsets = _start(function, diagonals.shape, q_len, k_len, q_offset, origin)
    if offsets is not None and offsets.ndim == 0:
        offsets = np.broadcast_to(offsets, diagonals.shape[: -1 - len(q_len)])
    if dtype is not None:
        dtype = as_dtype(function, dtype)
    return backend.implementation.toeplitz_bias(
        diagonals, q_len, k_len, _first(start, q_len), offsets, dtype, out
    )


@overload
def add_toeplitz_bias(
    scores: npt.NDArray[Number], diagonals: Any, *,
    q_offset: int | npt.ArrayLike | torch.Tensor = ..., origin: Lengths | None = ...,
    q_len: Lengths | None = ..., k_len: Lengths | None = ..., out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Number]: ...  # fmt: skip
@overload
def add_toeplitz_bias(
    scores: torch.Tensor, diagonals: Any, *, q_offset: int | npt.ArrayLike | torch.Tensor = ...,
    origin: Lengths | None = ..., q_len: Lengths | None = ..., k_len: Lengths | None = ...,
    out: torch.Tensor | None = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def add_toeplitz_bias(
    scores: SupportsArray, diagonals: Any, *, q_offset: int | npt.ArrayLike | torch.Tensor = ...,
    origin: Lengths | None = ..., q_len: Lengths | None = ..., k_len: Lengths | None = ...,
    out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
def add_toeplitz_bias(
    scores: Any,
    diagonals: Any,
    *,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    origin: Lengths | None = None,
    q_len: Lengths | None = None,
    k_len: Lengths | None = None,
    out: Any = None,
) -> Any:
    """``scores + toeplitz_bias(diagonals)`` in one pass; the bias is never in memory.

    Args:
        scores: ``[..., H, q_len, k_len]``, of any strides and any leading axes.
        diagonals: as in `toeplitz_bias`; leading axes that it has not, or of size 1 (but for the
            heads), repeat. An array will do where the scores are a tensor: it is moved there.
        q_offset, origin: as in `toeplitz_bias`; q_offset for the first leading axes of the scores.
        q_len, k_len: for tokens in a grid, its sizes; otherwise known from the scores.
        out: where the result goes; `scores` itself adds in place.

    Returns:
        An array or tensor like `scores`. The sum is formed in float32 (float64 for float64) and
        rounded once. Gradients reach the scores and the diagonals.

    Raises:
        ValueError, TypeError: as in `toeplitz_bias`; also for heads that do not match.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> scores = np.ones((1, 2, 3, 3), np.float32)
        >>> pn.add_toeplitz_bias(scores, pn.alibi_diagonals(2, 3, 3), out=scores)[0, 0]
        array([[1.    , 0.9375, 0.875 ],
               [0.9375, 1.    , 0.9375],
               [0.875 , 0.9375, 1.    ]], dtype=float32)
    """
    function = "add_toeplitz_bias"
    tensors = is_tensor(scores)
    if not tensors:
        scores = as_operand(function, "scores", scores)
    if not is_tensor(diagonals):
        diagonals = as_array(function, "diagonals", diagonals)
        if tensors:  # such as alibi_diagonals() makes where nothing says torch
            diagonals = late.torch_operations().diagonals_tensor(diagonals, scores.device)
    elif not tensors:
        wrong_type(function, "diagonals", "an array, as scores are", type(diagonals).__name__)
    rows, columns = _matrix_lengths(function, "scores", scores.shape, q_len, k_len)
    start, q_offset = _start(function, diagonals.shape, rows, columns, q_offset, origin)
    if tensors:
        return late.torch_operations().add_toeplitz_bias(
            scores, diagonals, rows, columns, start, q_offset, out
        )
    return backend.implementation.add_toeplitz_bias(
        scores, diagonals, rows, columns, _first(start, rows), q_offset, out
    )


@overload
def diagonal_sums(
    grad: npt.NDArray[Any], *, keep: int = ..., q_len: Lengths | None = ...,
    k_len: Lengths | None = ..., entries: Lengths | None = ...,
    q_offset: int | npt.ArrayLike | torch.Tensor = ..., origin: Lengths | None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
@overload
def diagonal_sums(
    grad: torch.Tensor, *, keep: int = ..., q_len: Lengths | None = ...,
    k_len: Lengths | None = ..., entries: Lengths | None = ...,
    q_offset: int | npt.ArrayLike | torch.Tensor = ..., origin: Lengths | None = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def diagonal_sums(
    grad: npt.ArrayLike, *, keep: int = ..., q_len: Lengths | None = ...,
    k_len: Lengths | None = ..., entries: Lengths | None = ...,
    q_offset: int | npt.ArrayLike | torch.Tensor = ..., origin: Lengths | None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
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
    """Sums along the diagonals of every head: the gradient of `toeplitz_bias`, its transpose.

    Args:
        grad: ``[..., H, q_len, k_len]``, of any strides.
        keep: how many of the leading axes, counted from the last, the result has; the sums are
            also over the others. 1 for one sum a head.
        q_len, k_len: for tokens in a grid, its sizes; otherwise known from `grad`.
        entries, q_offset, origin: as many entries as the diagonals had, and how they were read;
            by default ``q_len + k_len - 1``.

    Returns:
        ``[H, q_len + k_len - 1]`` in float32 (float64 for float64), formed in that precision.
        Entries that no query and key have are 0. The same bits on every call, whatever the number
        of threads.

    Raises:
        ValueError: fewer than two axes, lengths that do not match, too few entries.
        TypeError: an impossible dtype.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.diagonal_sums(np.ones((1, 3, 4)))
        array([[1., 2., 3., 3., 2., 1.]])
    """
    function = "diagonal_sums"
    if not is_tensor(grad):
        grad = as_array(function, "grad", grad)
    rows, columns = _matrix_lengths(function, "grad", grad.shape, q_len, k_len)
    leading = tuple(grad.shape[:-2])
    if not 0 <= arguments.size(function, "keep", keep) <= len(leading) and keep != 1:
        wrong_value(function, "keep", f"at most {len(leading)} leading axes", keep)
    if entries is None:
        counts = tuple(max(q + k - 1, 0) for q, k in zip(rows, columns, strict=True))
    else:
        counts = _lengths(function, "entries", entries)
        if len(counts) != len(rows):
            wrong_value(function, "entries", f"{len(rows)} numbers, as q_len has", list(counts))
    shape = (*leading[max(len(leading) - keep, 0) :], *counts)
    start, q_offset = _start(function, shape, rows, columns, q_offset, origin)
    if is_tensor(grad):
        return late.torch_operations().diagonal_sums(grad, shape, rows, columns, start, q_offset)
    return backend.implementation.diagonal_sums(
        grad, shape, rows, columns, _first(start, rows), q_offset
    )


@overload
def relative_gather(
    x: npt.NDArray[Number], index: npt.ArrayLike | torch.Tensor | None, k_len: int, *,
    content: Any = ..., scale: float = ..., q_offset: int | npt.ArrayLike | torch.Tensor = ...,
    origin: int | None = ..., missing: int | None = ..., out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Number]: ...  # fmt: skip
@overload
def relative_gather(
    x: torch.Tensor, index: npt.ArrayLike | torch.Tensor | None, k_len: int, *, content: Any = ...,
    scale: float = ..., q_offset: int | npt.ArrayLike | torch.Tensor = ...,
    origin: int | None = ..., missing: int | None = ..., out: torch.Tensor | None = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def relative_gather(
    x: npt.ArrayLike, index: npt.ArrayLike | torch.Tensor | None, k_len: int, *, content: Any = ...,
    scale: float = ..., q_offset: int | npt.ArrayLike | torch.Tensor = ...,
    origin: int | None = ..., missing: int | None = ..., out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
def relative_gather(
    x: Any,
    index: npt.ArrayLike | torch.Tensor | None,
    k_len: int,
    *,
    content: Any = None,
    scale: float = 1.0,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    origin: int | None = None,
    missing: int | None = None,
    out: Any = None,
) -> Any:
    """For every query the columns that its distances to the keys look up.

    ``out[..., i, j] = (content[..., i, j] + x[..., i, index[j - i + q_len - 1]]) * scale``

    With ``x = q @ table.T``, all inner products of queries with the rows of a table, these are the
    position scores of Shaw (`clipped_index`), DeBERTa (`deberta_index`), Transformer-XL and the
    Conformer (no index; rows of the table by falling distance query - key) and the Music
    Transformer (no index, ``origin=M - 1`` for M rows that end with distance 0).

    Args:
        x: ``[..., q_len, width]``, float16, bfloat16, float32 or float64, of any strides.
        index: integers ``[q_len + k_len - 1]``, the column of each distance. None: entry e is
            column e (the "relative shift" of Transformer-XL), and distances that x has no column
            for read zero.
        k_len: how many keys.
        content: ``[..., q_len, k_len]``, scores to add in the same pass.
        scale: factor of the sum.
        q_offset: position of query 0 among the keys, an int or integers for the first leading axes
            of x; only with `origin`, as in `toeplitz_bias`.
        origin: entry of distance 0 in an index longer than this call needs; with index None, the
            column of distance 0. By default q_len - 1.
        missing: the index that stands for no column, such as -1: it reads zero.
        out: where the result goes; `content` itself for a result in place.

    Returns:
        ``[..., q_len, k_len]`` like x; formed in float32 (float64 for float64) and rounded once.
        Gradients reach x (as `relative_scatter`) and content.

    Raises:
        ValueError: an index outside 0 .. width - 1, too few entries, a negative k_len, shapes that
            do not match, a mismatched or overlapping `out`.
        TypeError: an impossible dtype.

    Source: Shaw et al. 2018, "Self-Attention with Relative Position Representations"; Dai et al.
    2019, "Transformer-XL", appendix B; Huang et al. 2018, "Music Transformer".

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> x = np.arange(10.0).reshape(2, 5)
        >>> pn.relative_gather(x, [0, 1, 2, 2], 3)  # distances -1, 0, 1, 2; 2 looks up 1's
        array([[1., 2., 2.],
               [5., 6., 7.]])
        >>> pn.relative_gather(x, None, 4)
        array([[1., 2., 3., 4.],
               [5., 6., 7., 8.]])
    """
    function = "relative_gather"
    if not is_tensor(x):
        x = as_array(function, "x", x)
    keys = arguments.length(function, "k_len", k_len)
    if len(x.shape) < 2:
        wrong_value(function, "x", "shape [..., q_len, width]", list(x.shape))
    index, start, q_offset = _columns(function, index, x.shape[-2], keys, q_offset, origin)
    missing = _missing(function, missing)
    if is_tensor(x):
        return late.torch_operations().relative_gather(
            x, index, keys, start, q_offset, missing, content, scale, out
        )
    if is_tensor(content):
        wrong_type(function, "content", "an array, as x is", type(content).__name__)
    if content is not None:
        content = as_operand(function, "content", content)
    start = x.shape[-2] - 1 if start is None else start
    return backend.implementation.relative_gather(
        x, index, keys, start, q_offset, missing, content, scale, out
    )


@overload
def relative_scatter(
    grad: npt.NDArray[Number], index: npt.ArrayLike | torch.Tensor | None, width: int, *,
    scale: float = ..., q_offset: int | npt.ArrayLike | torch.Tensor = ...,
    origin: int | None = ..., missing: int | None = ..., out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Number]: ...  # fmt: skip
@overload
def relative_scatter(
    grad: torch.Tensor, index: npt.ArrayLike | torch.Tensor | None, width: int, *,
    scale: float = ..., q_offset: int | npt.ArrayLike | torch.Tensor = ...,
    origin: int | None = ..., missing: int | None = ..., out: torch.Tensor | None = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def relative_scatter(
    grad: npt.ArrayLike, index: npt.ArrayLike | torch.Tensor | None, width: int, *,
    scale: float = ..., q_offset: int | npt.ArrayLike | torch.Tensor = ...,
    origin: int | None = ..., missing: int | None = ..., out: npt.NDArray[Any] | None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
def relative_scatter(
    grad: Any,
    index: npt.ArrayLike | torch.Tensor | None,
    width: int,
    *,
    scale: float = 1.0,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    origin: int | None = None,
    missing: int | None = None,
    out: Any = None,
) -> Any:
    """The transpose of `relative_gather`: for every query, sums over keys by column.

    ``out[..., i, w] = scale * sum of grad[..., i, j] with index[j - i + q_len - 1] == w``

    With attention probabilities for `grad`, ``result @ table`` is what a table of position values
    adds to the output (Shaw's values), no ``[q_len, k_len, dim]`` in memory.

    Args:
        grad: ``[..., q_len, k_len]``, float16, bfloat16, float32 or float64, of any strides.
        index: as in `relative_gather`.
        width: number of columns of the result.
        scale, q_offset, origin, missing: as in `relative_gather`.
        out: where the result goes.

    Returns:
        ``[..., q_len, width]`` like grad; summed in float32 (float64 for float64), rounded once.
        Gradients reach `grad`, as `relative_gather`.

    Raises:
        ValueError, TypeError: as in `relative_gather`.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.relative_scatter(np.ones((2, 3)), [0, 1, 2, 2], 3)
        array([[0., 1., 2.],
               [1., 1., 1.]])
    """
    function = "relative_scatter"
    if not is_tensor(grad):
        grad = as_array(function, "grad", grad)
    columns = arguments.length(function, "width", width)
    if len(grad.shape) < 2:
        wrong_value(function, "grad", "shape [..., q_len, k_len]", list(grad.shape))
    queries, keys = grad.shape[-2:]
    index, start, q_offset = _columns(function, index, queries, keys, q_offset, origin)
    missing = _missing(function, missing)
    if is_tensor(grad):
        return late.torch_operations().relative_scatter(
            grad, index, columns, start, q_offset, missing, scale, out
        )
    start = queries - 1 if start is None else start
    return backend.implementation.relative_scatter(
        grad, index, columns, start, q_offset, missing, scale, out
    )


def _lengths(function: str, argument: str, value: Any) -> tuple[int, ...]:
    """An int, or one for each axis of a grid."""
    if isinstance(value, (tuple, list)):
        if not 1 <= len(value) <= 3:
            wrong_value(function, argument, "an int, or 1 to 3 of them", list(value))
        return tuple(arguments.length(function, argument, length) for length in value)
    return (arguments.length(function, argument, value),)


def _matrix_lengths(
    function: str, argument: str, shape: Sequence[int], q_len: Any, k_len: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """q_len and k_len, where they are not given those of the matrices."""
    if len(shape) < 2:
        wrong_value(function, argument, "shape [..., H, q_len, k_len]", list(shape))
    if q_len is None and k_len is None:
        return (shape[-2],), (shape[-1],)
    rows = (shape[-2],) if q_len is None else _lengths(function, "q_len", q_len)
    columns = (shape[-1],) if k_len is None else _lengths(function, "k_len", k_len)
    if len(rows) != len(columns):
        wrong_value(function, "k_len", f"{len(rows)} numbers, as q_len has", list(columns))
    if (math.prod(rows), math.prod(columns)) != (shape[-2], shape[-1]):
        wrong_value(
            function, argument,
            f"shape [..., q_len = {math.prod(rows)}, k_len = {math.prod(columns)}]", list(shape),
        )  # fmt: skip
    return rows, columns


def _start(
    function: str,
    shape: Sequence[int],
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    q_offset: Any,
    origin: Any,
) -> tuple[tuple[int, ...] | None, Any]:
    """The entry of query 0 and key 0, and the q_offset that is taken off it, if it is an array.

    None is the entry ``q_len - 1`` of diagonals that are made for the call.
    """
    rank = len(q_len)
    if len(k_len) != rank:
        wrong_value(function, "k_len", f"{rank} numbers, as q_len has", list(k_len))
    if len(shape) < rank:
        expected = f"a leading axis of heads and {rank} of entries"
        wrong_value(function, "diagonals", expected, f"shape {list(shape)}")
    q_offset = _q_offset(function, q_offset)
    if origin is None:
        for queries, keys, count in zip(q_len, k_len, shape[len(shape) - rank :], strict=True):
            if count != max(queries + keys - 1, 0):
                wrong_value(
                    function, "diagonals",
                    f"q_len + k_len - 1 = {max(queries + keys - 1, 0)} entries, or the origin of "
                    "longer ones", count,
                )  # fmt: skip
        _no_offset_without_origin(function, q_offset)
        return None, None
    first = tuple(
        _signed(function, "origin", entry)
        for entry in (origin if isinstance(origin, (tuple, list)) else (origin,))
    )
    if len(first) != rank:
        wrong_value(function, "origin", f"{rank} numbers, as q_len has", list(first))
    if not isinstance(q_offset, int):
        return first, q_offset
    if q_offset and rank > 1:
        wrong_value(function, "q_offset", "none where q_len and k_len are tuples", q_offset)
    return (first[0] - q_offset, *first[1:]), None


def _first(start: tuple[int, ...] | None, q_len: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(queries - 1 for queries in q_len) if start is None else start


def _columns(
    function: str, index: Any, queries: int, keys: int, q_offset: Any, origin: Any
) -> tuple[Any, int | None, Any]:
    """The index as an array or tensor, and `_start` for it."""
    if index is not None and not is_tensor(index):
        index = as_array(function, "index", index)
    q_offset = _q_offset(function, q_offset)
    if origin is not None:
        first = _signed(function, "origin", origin)
        if isinstance(q_offset, int):
            return index, first - q_offset, None
        return index, first, q_offset
    if index is not None and (
        len(index.shape) != 1 or index.shape[0] != max(queries + keys - 1, 0)
    ):
        wrong_value(
            function, "index",
            f"shape [q_len + k_len - 1] = [{max(queries + keys - 1, 0)}], or the origin of a "
            "longer one", list(index.shape),
        )  # fmt: skip
    _no_offset_without_origin(function, q_offset)
    return index, None, None


def _no_offset_without_origin(function: str, q_offset: Any) -> None:
    if not isinstance(q_offset, int) or q_offset != 0:
        wrong_value(function, "origin", "the entry of distance 0, to take q_offset off", None)


def _q_offset(function: str, q_offset: Any) -> Any:
    """An int, or an array or tensor of them."""
    if is_tensor(q_offset):
        return q_offset
    if arguments.is_count(q_offset) or np.isscalar(q_offset) or q_offset is None:
        return _signed(function, "q_offset", q_offset)
    return as_array(function, "q_offset", q_offset)


def _missing(function: str, value: Any) -> int | None:
    if value is None or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    number = _index(function, "missing", value)
    if not -(2**63) <= number < 2**63:
        wrong_value(function, "missing", "an int of 64 bits", number)
    return number


def _signed(function: str, argument: str, value: Any) -> int:
    number = value if type(value) is int else _index(function, argument, value)
    if not -(2**61) < number < 2**61:
        wrong_value(function, argument, "an int within 2^61", number)
    return number


def _index(function: str, argument: str, value: Any) -> int:
    if isinstance(value, bool):
        wrong_type(function, argument, "an int", "bool")
    try:
        return operator.index(value)
    except TypeError:
        wrong_type(function, argument, "an int", type(value).__name__)
