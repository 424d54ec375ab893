"""Distances between patches: Swin's table, Swin v2's coordinates, decomposed relative positions."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_type, wrong_value
from posenc_native.core.calls.constants import constant
from posenc_native.encodings.absolute.resampling import resample_positions
from posenc_native.engines.arrays import Arrays, any_dtensor

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import (
        Array,
        ArrayOrTensor,
        Number,
        SupportsArray,
        Tensor,
        TensorLike,
    )

__all__ = ["decomposed_scores", "swin_diagonals", "swin_v2_coordinates"]


@overload
def swin_diagonals(table: TensorLike, window: Sequence[int]) -> Tensor: ...
@overload
def swin_diagonals(table: SupportsArray[Number], window: Sequence[int]) -> Array[Number]: ...
@overload
def swin_diagonals(table: npt.ArrayLike, window: Sequence[int]) -> Array[Any]: ...
def swin_diagonals(table: npt.ArrayLike | TensorLike, window: Sequence[int]) -> Any:
    """Diagonals of Swin's bias over a window: its table in reverse.

    The index of Swin's table counts query minus key; diagonals count key minus query.

    BEiT's table has three more rows: from the class token, to it, and from it to itself; pass
    ``table[:-3]`` for the patches. Swin v2 has a small network instead of a table:
    ``16 * sigmoid(network(swin_v2_coordinates(window)))``, flattened to ``[-1, H]``.

    Args:
        table: ``[(2h - 1) * (2w - 1), H]``, floats. Gradients reach a tensor.
        window: ``(h, w)``, with tokens row after row; any number of axes (Video Swin has 3).

    Returns:
        ``[H, 2h - 1, 2w - 1]``, in the table's dtype.

    Raises:
        ValueError: a length of the window is 0, or the table does not fit the window.
        TypeError: a dtype is not supported.

    Source: Liu et al. 2021, "Swin Transformer", section 3.2.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.relative.swin_diagonals(np.arange(9.0)[:, None], (2, 2))
        array([[[8., 7., 6.],
                [5., 4., 3.],
                [2., 1., 0.]]])
    """
    function = "swin_diagonals"
    arrays = Arrays(function, table=table)
    lengths = [2 * length - 1 for length in _window(function, "window", window)]
    rows = arrays.table(table)
    expected = 1
    for length in lengths:
        expected *= length
    if rows.shape[0] != expected:
        wrong_value(function, "table", f"{expected} rows, one per distance", rows.shape[0])
    backwards = arrays.xp.flip(rows, (0,))
    if not arrays.is_torch:
        backwards = backwards.copy()  # in NumPy it is a view, through which the table is writable
    return backwards.swapaxes(0, 1).reshape(rows.shape[1], *lengths)


def swin_v2_coordinates(
    window: Sequence[int],
    pretrained_window: Sequence[int] | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
) -> ArrayOrTensor:
    """The input of Swin v2's network: the distances of a window on a logarithmic scale.

    A distance d (query minus key) along an axis of length w becomes ``x = 8 d / (w - 1)``, then
    ``sign(x) * log2(1 + |x|) / 3``.

    Args:
        window: ``(h, w)``, or any number of axes.
        pretrained_window: the window that provides the divisor w, if it differs; 0 means the same.
        dtype, device: of the result; see the docstring of posenc_native.encodings.relative.

    Returns:
        ``[2h - 1, 2w - 1, 2]``, in the order of Swin's table. An axis of length 1 is all 0.

    Raises:
        ValueError: a length is below 1, or the windows have different numbers of axes.
        TypeError: a dtype is not supported.

    Source: Liu et al. 2022, "Swin Transformer V2", section 3.3.

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.swin_v2_coordinates((1, 3)).round(4)[0, :, 1]
        array([-1.0566, -0.774 ,  0.    ,  0.774 ,  1.0566], dtype=float32)
    """
    function = "swin_v2_coordinates"
    arrays = Arrays(function, dtype, device)
    xp = arrays.xp
    lengths = _window(function, "window", window)
    trained = lengths
    if pretrained_window is not None:
        trained = _window(function, "pretrained_window", pretrained_window, 0)
        if len(trained) != len(lengths):
            expected = f"{len(lengths)} lengths, as in window"
            wrong_value(function, "pretrained_window", expected, len(trained))
    axes = []
    for length, reference in zip(lengths, trained, strict=True):
        distances = arrays.wide(arrays.arange(2 * length - 1) - (length - 1))
        scaled = distances * (8 / max((reference or length) - 1, 1))
        axes.append(xp.sign(scaled) * xp.log2(abs(scaled) + 1) / 3)
    return arrays.rounded(xp.stack(xp.meshgrid(*axes, indexing="ij"), -1))


@overload
def decomposed_scores(q: TensorLike, tables: Sequence[Any], q_size: Sequence[int],
                      k_size: Sequence[int] | None = ..., *, content: TensorLike | None = ...,
                      prefix: int = ..., inplace: bool = ...) -> Tensor: ...  # fmt: skip
@overload
def decomposed_scores(q: npt.ArrayLike, tables: Sequence[npt.ArrayLike], q_size: Sequence[int],
                      k_size: Sequence[int] | None = ..., *, content: npt.ArrayLike | None = ...,
                      prefix: int = ..., inplace: bool = ...) -> Array[Any]: ...  # fmt: skip
def decomposed_scores(
    q: Any,
    tables: Sequence[Any],
    q_size: Sequence[int],
    k_size: Sequence[int] | None = None,
    *,
    content: Any = None,
    prefix: int = 0,
    inplace: bool = False,
) -> Any:
    """Decomposed relative positions: for each axis of a grid, the query times the distance's row.

    ``out[..., (y, x), (ky, kx)] = content[..., (y, x), (ky, kx)] + q[..., (y, x)] . Ry[y - ky]
    + q[..., (y, x)] . Rx[x - kx]``, for any number of axes. Segment Anything and MViT v2 add it to
    scaled scores; its own q is not scaled. No ``[q_len, k_len, d]`` is made.

    Along an axis, query y and key ky read row ``floor(y * s - ky * t + (k_len - 1) * t)``, where
    ``s = max(k_len / q_len, 1)`` and ``t = max(q_len / k_len, 1)`` (pooled keys cover the same
    image in longer steps). With equal sizes n, distance 0 has row n - 1 of 2n - 1. A table whose
    number of rows is not 2n - 1, n the larger of the two sizes, is resampled to that, linearly and
    without antialias.

    Args:
        q: ``[..., prefix + q_len, d]``, floats, where q_len is the product of q_size; tokens in C
            order.
        tables: for each axis a table ``[rows, d]`` of floats, which all heads share: ``(rel_pos_h,
            rel_pos_w)``; for a video ``(rel_pos_t, rel_pos_h, rel_pos_w)``.
        q_size: ``(rows, columns)`` of the queries, or any number of axes.
        k_size: of the keys; by default that of the queries.
        content: ``[..., prefix + q_len, prefix + k_len]``, scores to add.
        prefix: number of tokens before the patches, in queries and keys (MViT's class token): their
            rows and columns get nothing added.
        inplace: True to overwrite `content`.

    Returns:
        ``[..., prefix + q_len, prefix + k_len]`` in the dtype of content, or of q. Computed in
        float32 (float64 for float64) and rounded once. The products of q with rows are those of
        NumPy or torch, whose sums have different orders. Gradients reach q, content and the tables.

    Raises:
        ValueError: shapes or sizes do not fit, or `inplace` without content.
        TypeError: a dtype is not supported, or an array is beside a tensor.

    Source: Li et al. 2022, "MViTv2", section 4.1, and its code for pooled keys; Kirillov et al.
    2023, "Segment Anything", whose code resamples the tables.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> q = np.ones((4 * 4, 1), np.float32)
        >>> of_rows, of_columns = np.zeros((7, 1)), np.arange(-3.0, 4.0)[:, None]
        >>> pn.relative.decomposed_scores(q, (of_rows, of_columns), (4, 4))[0, :4]  # x - kx
        array([ 0., -1., -2., -3.], dtype=float32)
        >>> pn.relative.decomposed_scores(q, (of_rows, of_columns), (4, 4), (2, 2))[1]  # pooled
        array([ 0., -2.,  0., -2.], dtype=float32)
    """
    function = "decomposed_scores"
    if isinstance(tables, (np.ndarray, str)) or is_tensor(tables):
        wrong_type(function, "tables", "a tuple, with a table for each axis", type(tables).__name__)
    args = q, tuple(tables), q_size, k_size, content, prefix, inplace
    if not any_dtensor(q, content, *tables):
        return _decomposed_scores(*args)
    from posenc_native.engines.torch.sharded.taken_apart import by_rule, sharded

    rule = sharded().matrices.decomposed_scores
    return by_rule(_decomposed_scores, lambda *args: rule(_decomposed_scores, *args), args)


def _decomposed_scores(
    q: Any, tables: tuple[Any, ...], q_size: Any, k_size: Any, content: Any, prefix: Any,
    inplace: Any,
) -> Any:  # fmt: skip
    """`decomposed_scores` of arrays or plain tensors."""
    function = "decomposed_scores"
    named = {f"tables[{axis}]": table for axis, table in enumerate(tables)}
    if not is_tensor(q):
        q = arguments.as_operand(function, "q", q)
    for argument, value in {"content": content, **named}.items():
        if value is not None and is_tensor(value) != is_tensor(q):
            expected = f"{'a tensor' if is_tensor(q) else 'an array'}, like q"
            wrong_type(function, argument, expected, type(value).__name__)
    if content is not None and not is_tensor(content):
        content = arguments.as_operand(function, "content", content)
    for argument, value in {"q": q, "content": content}.items():
        if value is not None:
            arguments.check_dtype(function, argument, value.dtype, arguments.FLOAT_DTYPES)
    result = Arrays(function, (q if content is None else content).dtype, None, q=q, content=content)
    wide = arguments.dtype_name(q.dtype) == "float64"
    arrays = Arrays(function, q.dtype if wide else result.dtype, None, q=q, **named)
    queries = _window(function, "q_size", q_size, 0)
    keys = queries if k_size is None else _window(function, "k_size", k_size, 0)
    first = arguments.size(function, "prefix", prefix)
    overwrite = arrays.flag("inplace", inplace)
    if len(keys) != len(queries):
        wrong_value(function, "k_size", f"{len(queries)} sizes, as in q_size", len(keys))
    if len(tables) != len(queries):
        wrong_value(function, "tables", f"{len(queries)} tables, one per axis", len(tables))
    length = first + math.prod(queries)
    if q.ndim < 2 or q.shape[-2] != length:
        wrong_value(function, "q", f"shape [..., prefix + q_len = {length}, d]", list(q.shape))
    leading, width = tuple(q.shape[:-2]), q.shape[-1]
    if content is not None:
        shape = (*leading, length, first + math.prod(keys))
        arguments.check_shape(function, "content", tuple(content.shape), shape)
    elif overwrite:
        wrong_value(function, "inplace", "False without content, which it overwrites", True)
    patches = arrays.real(q[..., first:, :])
    patches = patches.reshape((*leading, *queries, width))
    terms = [
        _term(arrays, patches, axis, argument, table, queries, keys)
        for axis, (argument, table) in enumerate(named.items())
    ]
    return _sum(result, terms, content, first, (*leading, *queries, *keys), overwrite)


def _term(
    arrays: Arrays, patches: Any, axis: int, argument: str, table: Any,
    queries: list[int], keys: list[int],
) -> Any:  # fmt: skip
    """Products of queries with the rows of an axis, with an axis of size 1 for the other keys."""
    q_len, k_len, width = queries[axis], keys[axis], patches.shape[-1]
    rows = arrays.floats(argument, table)
    if rows.ndim != 2 or rows.shape[1] != width or not rows.shape[0]:
        expected = f"shape [rows, d = {width}] with at least one row"
        wrong_value(arrays.function, argument, expected, list(rows.shape))
    needed = max(2 * max(q_len, k_len) - 1, 1)
    if rows.shape[0] != needed:
        rows = resample_positions(rows, needed, interpolation="linear", antialias=False)
    index = arrays.index(_rows_between(operator.index(q_len), operator.index(k_len)))
    of_axis = arrays.real(rows)[index]  # [q, k, d]
    place = patches.ndim - 1 - len(queries) + axis
    moved = patches.swapaxes(place, 0)  # one product for each place along the axis
    others = tuple(moved.shape[1:-1])
    products = moved.reshape((q_len, math.prod(others), width)) @ of_axis.swapaxes(1, 2)
    products = arrays.real(products).reshape((q_len, *others, k_len)).swapaxes(place, 0)
    ones = [k_len if other == axis else 1 for other in range(len(keys))]
    return products.reshape((*products.shape[:-1], *ones))


@constant
def _rows_between(q_len: int, k_len: int) -> npt.NDArray[np.int64]:
    """The row of each query and key along an axis, [q_len, k_len].

    In float32, as in the code of MViT v2 and its descendants: with a ratio like 7 / 3, other
    roundings truncate to other rows.
    """
    q_step, k_step = max(k_len / max(q_len, 1), 1.0), max(q_len / max(k_len, 1), 1.0)
    q_places = np.arange(q_len, dtype=np.float32) * np.float32(q_step)
    k_places = np.arange(k_len, dtype=np.float32) * np.float32(k_step)
    last = np.float32((k_len - 1) * k_step)
    rows: npt.NDArray[np.float32] = q_places[:, None] - k_places + last
    return rows.astype(np.int64)


def _sum(
    result: Arrays, terms: list[Any], content: Any, first: int, shape: tuple[int, ...],
    overwrite: bool,
) -> Any:  # fmt: skip
    """Content plus terms; `shape` is (*leading, *queries, *keys), without the first tokens."""
    axes = len(terms)
    lengths = [math.prod(shape[-2 * axes : -axes]), math.prod(shape[-axes:])]
    block: Any = None if content is None else content[..., first:, first:].reshape(shape)
    total = block
    in_place = overwrite and block.dtype == terms[0].dtype
    for term in terms:
        if total is None:
            total = term
        elif in_place:
            total += term
        else:
            total = total + term
            in_place = tuple(total.shape) == shape and not _traced(result)  # it is new memory
    if overwrite:
        if block.dtype != total.dtype:
            block[...] = result.rounded(total)
        return content
    total = result.rounded(total).reshape((*shape[: -2 * axes], *lengths))
    if not first:
        return total
    if content is None:
        zero = result.rounded(result.constant([0.0]))
        size = (*shape[: -2 * axes], *(first + length for length in lengths))
        content = result.xp.broadcast_to(zero, size)
    join = result.xp.concatenate
    total = join([content[..., first:, :first], total], -1)
    return join([content[..., :first, :], total], -2)


def _traced(arrays: Arrays) -> bool:
    if not arrays.is_torch:
        return False
    from posenc_native.engines.following import tracing

    return tracing()


def _window(function: str, argument: str, window: Any, least: int = 1) -> list[int]:
    if not isinstance(window, Sequence) or isinstance(window, str):
        wrong_type(function, argument, "a sequence of ints", type(window).__name__)
    if len(window) > 16:  # with the heads, about the most axes that arrays may have
        wrong_value(function, argument, "at most 16 axes", len(window))
    lengths = [arguments.size(function, argument, length) for length in window]
    if not lengths or min(lengths) < least:
        wrong_value(function, argument, f"lengths >= {least}", lengths)
    return lengths
