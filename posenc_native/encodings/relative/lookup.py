"""Look-ups by distance: the distance between a query and a key selects a column.

The columns (Shaw, Transformer-XL, DeBERTa ...) are data: see columns.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import (
    as_array,
    as_operand,
    is_tensor,
    wrong_type,
    wrong_value,
)
from posenc_native.engines import backend, late

from .entries import index_and_entry, missing_column

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

__all__ = ["relative_gather", "relative_scatter"]


if TYPE_CHECKING:

    class LookUp(TypedDict, total=False):
        """Keywords of look-ups by distance."""

        scale: float
        q_offset: Numbers
        origin: int | None
        missing: int | None

    class Gather(LookUp, total=False):
        """Keywords of look-ups that add to other scores."""

        content: Any


@overload
def relative_gather(x: TensorLike, index: Numbers | None, k_len: int, *,
                    out: OutTensor = ..., **how: Unpack[Gather]) -> Tensor: ...  # fmt: skip
@overload
def relative_gather(x: SupportsArray[Number], index: Numbers | None, k_len: int, *,
                    out: OutArray = ..., **how: Unpack[Gather]) -> Array[Number]: ...  # fmt: skip
@overload
def relative_gather(x: npt.ArrayLike, index: Numbers | None, k_len: int, *,
                    out: OutArray = ..., **how: Unpack[Gather]) -> Array[Any]: ...  # fmt: skip
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
    """For every query, look up the columns that its distances to the keys select.

    ``out[..., i, j] = (content[..., i, j] + x[..., i, index[j - i + q_len - 1]]) * scale``

    With ``x = q @ table.T``, all inner products of queries with the rows of a table, these are the
    position scores of Shaw (`clipped_index`), DeBERTa (`deberta_index`), Transformer-XL and the
    Conformer (no index; rows of the table by falling distance query - key) and the Music
    Transformer (no index, ``origin=M - 1`` for M rows that end with distance 0).

    Args:
        x: ``[..., q_len, width]``, float16, bfloat16, float32 or float64, with any strides.
        index: integers ``[q_len + k_len - 1]``, the column of each distance. None: entry e is
            column e (the "relative shift" of Transformer-XL), and distances without a column in x
            read zero.
        k_len: number of keys.
        content: ``[..., q_len, k_len]``, scores to add in the same pass.
        scale: factor of the sum.
        q_offset: position of query 0 among the keys, an int or integers for the first leading axes
            of x; only with `origin`, as in `toeplitz_bias`.
        origin: entry of distance 0 in an index longer than this call needs; with index None, the
            column of distance 0. By default q_len - 1.
        missing: the index value that stands for no column, such as -1: it reads zero.
        out: memory for the result; `content` itself for a result in place.

    Returns:
        ``[..., q_len, k_len]`` like x; computed in float32 (float64 for float64) and rounded once.
        Gradients reach x (as `relative_scatter`) and content.

    Raises:
        ValueError: an index is outside 0 .. width - 1, there are too few entries, k_len is
            negative, the shapes do not match, or `out` does not match or overlaps.
        TypeError: a dtype is not supported.

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
    result = backend.door.relative_gather(
        x, index, k_len, content, scale, q_offset, origin, missing, out
    )
    if result is not NotImplemented:
        return result
    if not is_tensor(x):
        x = as_array(function, "x", x)
    keys = arguments.length(function, "k_len", k_len)
    if len(x.shape) < 2:
        wrong_value(function, "x", "shape [..., q_len, width]", list(x.shape))
    index, start, q_offset = index_and_entry(function, index, x.shape[-2], keys, q_offset, origin)
    missing = missing_column(function, missing)
    if is_tensor(x):
        return late.torch_operations().relative_gather(
            x, index, keys, start, q_offset, missing, content, scale, out
        )
    if is_tensor(content):
        wrong_type(function, "content", "an array, like x", type(content).__name__)
    if content is not None:
        content = as_operand(function, "content", content)
    start = x.shape[-2] - 1 if start is None else start
    if out is not None:
        arguments.check_no_mask(function, "out", out)
    return backend.implementation.relative_gather(
        x, index, keys, start, q_offset, missing, content, scale, out
    )


@overload
def relative_scatter(grad: TensorLike, index: Numbers | None, width: int, *, out: OutTensor = ...,
                     **how: Unpack[LookUp]) -> Tensor: ...  # fmt: skip
@overload
def relative_scatter(grad: SupportsArray[Number], index: Numbers | None, width: int, *,
                     out: OutArray = ..., **how: Unpack[LookUp]) -> Array[Number]: ...  # fmt: skip
@overload
def relative_scatter(grad: npt.ArrayLike, index: Numbers | None, width: int, *, out: OutArray = ...,
                     **how: Unpack[LookUp]) -> Array[Any]: ...  # fmt: skip
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

    With attention probabilities as `grad`, ``result @ table`` is the contribution of a table of
    position values to the output (Shaw's values), without ``[q_len, k_len, dim]`` in memory.

    Args:
        grad: ``[..., q_len, k_len]``, float16, bfloat16, float32 or float64, with any strides.
        index: as in `relative_gather`: integers ``[q_len + k_len - 1]`` or more, or None.
        width: number of columns of the result.
        scale, q_offset, origin, missing: as in `relative_gather`: scale a number, q_offset an int
            or integers ``[B]``, origin and missing ints or None.
        out: memory for the result.

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
    result = backend.door.relative_scatter(
        grad, index, width, scale, q_offset, origin, missing, out
    )
    if result is not NotImplemented:
        return result
    if not is_tensor(grad):
        grad = as_array(function, "grad", grad)
    columns = arguments.length(function, "width", width)
    if len(grad.shape) < 2:
        wrong_value(function, "grad", "shape [..., q_len, k_len]", list(grad.shape))
    queries, keys = grad.shape[-2:]
    index, start, q_offset = index_and_entry(function, index, queries, keys, q_offset, origin)
    missing = missing_column(function, missing)
    if is_tensor(grad):
        return late.torch_operations().relative_scatter(
            grad, index, columns, start, q_offset, missing, scale, out
        )
    start = queries - 1 if start is None else start
    if out is not None:
        arguments.check_no_mask(function, "out", out)
    return backend.implementation.relative_scatter(
        grad, index, columns, start, q_offset, missing, scale, out
    )
