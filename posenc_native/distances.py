"""Variants of relative encodings as data: what a distance is worth, or which column it takes.

    diagonals   [H, D]     bias[h, i, j] = diagonals[h, j - i + q_len - 1]        ALiBi, T5, KERPLE
    columns     int64 [D]  out[..., i, j] = x[..., i, columns[j - i + q_len - 1]]  Shaw, DeBERTa

D = q_len + k_len - 1. Entry e of both is about the distance, key minus query,
``e - (q_len - 1) - q_offset``: queries are at q_offset .. q_offset + q_len - 1, keys at 0 ..
k_len - 1. A decoding step has q_len 1 and q_offset k_len - 1. Where every row of a batch has its
own offset, q_offset is ``[B]`` and results have a first axis B.

Results are arrays; they are tensors if an argument is a tensor or a torch dtype, or if a device is
given. Numbers are computed in float64 and rounded at the end, to float32 unless `dtype` is float16,
bfloat16 or float64 (to 16 bits by way of float32); gradients reach every tensor of numbers. What a
table holds keeps its dtype.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.base import arguments

from .base.arguments import wrong_type, wrong_value
from .buckets import deberta_bucket, deberta_bucket_of, relative_position_bucket, t5_bucket
from .engines.arrays import Arrays
from .relative import relative_gather, toeplitz_bias
from .sinusoidal import sinusoidal

if TYPE_CHECKING:
    import torch

    from .base.kinds import Device, Number

__all__ = [
    "alibi_columns",
    "alibi_diagonals",
    "alibi_slopes",
    "clipped_diagonals",
    "clipped_index",
    "deberta_bucket",
    "deberta_index",
    "fire_bias",
    "kerple_diagonals",
    "relative_position_bucket",
    "relative_positions",
    "sandwich_diagonals",
    "swin_diagonals",
    "swin_v2_coordinates",
    "t5_diagonals",
]

_OFFSET_LIMIT = 2**62  # so that no distance overflows int64


def relative_positions(
    q_len: int, k_len: int, *, q_offset: int | npt.ArrayLike | torch.Tensor = 0, device: Any = None
) -> Any:
    """The distance, key minus query, that each diagonal is about.

    Args:
        q_len, k_len: numbers of queries and keys.
        q_offset: position of the first query, an int or integers ``[B]``.
        device: of the result; see the module's head.

    Returns:
        int64 ``[D]`` or ``[B, D]``, D = q_len + k_len - 1 (0 where both lengths are).

    Raises:
        ValueError: a negative length, an offset of wrong shape or size.
        TypeError: an argument that is not an integer.

    Example:
        >>> from posenc_native import distances
        >>> distances.relative_positions(2, 3)
        array([-1,  0,  1,  2])
        >>> distances.relative_positions(1, 4, q_offset=3)  # decoding the last of four
        array([-3, -2, -1,  0])
    """
    arrays = Arrays("relative_positions", None, device, q_offset=q_offset)
    return _distances(arrays, q_len, k_len, q_offset)


# --- ALiBi


def alibi_slopes(num_heads: int, *, max_bias: float = 8.0) -> npt.NDArray[np.float64]:
    """Slopes of ALiBi, one a head: the reference rule, for any number of heads.

    A power of two n has ``2 ** (-max_bias * (h + 1) / n)``. Other numbers take the slopes of the
    power of two below, then every second one of the power above. (Many libraries use the first
    formula for all; with 12 heads that is off by a factor of up to 45.)

    Args:
        num_heads: H.
        max_bias: minus the exponent of the last slope; 8 in the paper, ``alibi_bias_max`` in MPT.

    Returns:
        float64 ``[H]``.

    Raises:
        ValueError: num_heads < 0, max_bias <= 0.
        TypeError: an argument that is not a number.

    Source: Press et al. 2022, "Train Short, Test Long", and its code's ``get_slopes``.

    Example:
        >>> from posenc_native import distances
        >>> distances.alibi_slopes(6).round(4)
        array([0.25  , 0.0625, 0.0156, 0.0039, 0.5   , 0.125 ])
    """
    function = "alibi_slopes"
    count = arguments.size(function, "num_heads", num_heads)
    bias = arguments.positive_number(function, "max_bias", max_bias)
    return np.array([2.0**-exponent for exponent in _slope_exponents(count, bias)], np.float64)


@overload
def alibi_diagonals(
    num_heads: int, q_len: int, k_len: int, *, symmetric: bool = ...,
    q_offset: int | npt.NDArray[Any] | Sequence[int] = ...,
    slopes: npt.NDArray[Any] | Sequence[float] | None = ..., dtype: npt.DTypeLike | None = ...,
    device: None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
@overload
def alibi_diagonals(
    num_heads: int, q_len: int, k_len: int, *, symmetric: bool = ...,
    q_offset: int | npt.ArrayLike | torch.Tensor = ..., slopes: torch.Tensor, dtype: Any = ...,
    device: Any = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def alibi_diagonals(
    num_heads: int, q_len: int, k_len: int, *, symmetric: bool = ..., q_offset: torch.Tensor,
    slopes: npt.ArrayLike | torch.Tensor | None = ..., dtype: Any = ..., device: Any = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def alibi_diagonals(
    num_heads: int, q_len: int, k_len: int, *, symmetric: bool = ...,
    q_offset: int | npt.ArrayLike | torch.Tensor = ...,
    slopes: npt.ArrayLike | torch.Tensor | None = ..., dtype: torch.dtype, device: Any = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def alibi_diagonals(
    num_heads: int, q_len: int, k_len: int, *, symmetric: bool = ...,
    q_offset: int | npt.ArrayLike | torch.Tensor = ...,
    slopes: npt.ArrayLike | torch.Tensor | None = ..., dtype: Any = ..., device: Device,
) -> torch.Tensor: ...  # fmt: skip
def alibi_diagonals(
    num_heads: int,
    q_len: int,
    k_len: int,
    *,
    symmetric: bool = True,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    slopes: npt.ArrayLike | torch.Tensor | None = None,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Diagonals of ALiBi: minus slope times distance.

    Args:
        num_heads: H.
        q_len, k_len, q_offset: see the module's head.
        symmetric: True for ``-m * |key - query|``. False for ``m * (key - query)`` on every
            diagonal: for causal attention only, since keys of the future get a bonus, which the
            causal mask has to take away.
        slopes: None for `alibi_slopes`, or ``[H]`` or ``[B, H]``. Gradients reach a tensor.
        dtype, device: of the result; see the module's head.

    Returns:
        ``[H, D]``, or ``[B, H, D]`` if slopes or q_offset have an axis B.

    Raises:
        ValueError: negative lengths, shapes that do not fit.
        TypeError: impossible dtypes.

    Source: Press et al. 2022, "Train Short, Test Long".

    Example:
        >>> from posenc_native import distances
        >>> distances.alibi_diagonals(2, 2, 3)
        array([[-0.0625    ,  0.        , -0.0625    , -0.125     ],
               [-0.00390625,  0.        , -0.00390625, -0.0078125 ]],
              dtype=float32)
    """
    function = "alibi_diagonals"
    arrays = Arrays(function, dtype, device, q_offset=q_offset, slopes=slopes)
    symmetric = arrays.flag("symmetric", symmetric)
    weights = _slopes(arrays, num_heads, slopes)
    distances = _distances(arrays, q_len, k_len, q_offset)
    _check_batches(function, "slopes", weights, distances)
    values = arrays.wide(-abs(distances) if symmetric else distances)
    return arrays.rounded(weights[..., None] * values[..., None, :])


def alibi_columns(
    num_heads: int,
    k_len: int,
    *,
    key_mask: npt.ArrayLike | torch.Tensor | None = None,
    slopes: npt.ArrayLike | torch.Tensor | None = None,
    rounding: str | None = None,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """ALiBi as slope times position of the key, the same for all queries: BLOOM, Falcon.

    It differs from the causal form of `alibi_diagonals` by a constant a row, which the softmax
    takes out again. With a mask, positions count the keys that are there.

    Args:
        num_heads: H.
        k_len: number of keys.
        key_mask: ``[B, k_len]``, bools or integers: which keys are there.
        slopes: None for `alibi_slopes`, or ``[H]`` or ``[B, H]``. Gradients reach a tensor.
        rounding: None computes in float64. "float32" and "bfloat16" round slopes, positions and
            products to that format, as models were trained: BLOOM's "float32" and Falcon's
            "bfloat16" have the bits of transformers. (From NumPy, a float32 slope may differ in the
            last bit from torch's power function.) Falcon adds the result divided by
            ``sqrt(head_dim)``.
        dtype, device: of the result; see the module's head.

    Returns:
        ``[H, 1, k_len]``, or ``[B, H, 1, k_len]`` if mask or slopes have an axis B.

    Raises:
        ValueError: a negative length, an unknown rounding, shapes that do not fit.
        TypeError: impossible dtypes.

    Source: ``build_alibi_tensor`` of BLOOM and of Falcon in transformers.

    Example:
        >>> from posenc_native import distances
        >>> distances.alibi_columns(1, 4, key_mask=[[0, 1, 1, 1]])
        array([[[[0.        , 0.        , 0.00390625, 0.0078125 ]]]],
              dtype=float32)
    """
    function = "alibi_columns"
    arrays = Arrays(function, dtype, device, key_mask=key_mask, slopes=slopes)
    if rounding not in (None, "float32", "bfloat16"):
        wrong_value(function, "rounding", "None, 'float32' or 'bfloat16'", repr(rounding))
    length = arguments.length(function, "k_len", k_len)
    weights = _slopes(arrays, num_heads, slopes, rounding is not None)
    positions = arrays.arange(length)
    if key_mask is not None:
        kinds = ("bool", *arguments.INTEGER_DTYPES)
        mask = arrays.integers("key_mask", key_mask, kinds)
        if mask.ndim != 2 or mask.shape[1] != length:
            expected = f"shape [B, k_len] = [B, {length}]"
            wrong_value(function, "key_mask", expected, list(mask.shape))
        positions = (mask.cumsum(-1) - 1) * mask
    positions = arrays.through(arrays.wide(positions), rounding)
    _check_batches(function, "slopes", weights, positions)
    weights = arrays.through(weights, rounding)
    products = weights[..., None] * positions[..., None, :]
    return arrays.rounded(arrays.through(products, rounding))[..., None, :]


def _slope_exponents(num_heads: int, max_bias: float) -> list[float]:
    """Slope h is 2 to the power of minus exponent h."""
    if num_heads == 0:
        return []
    below = 1 << (num_heads.bit_length() - 1)
    exponents = [max_bias * (h + 1) / below for h in range(below)]
    return exponents + [max_bias * (2 * h + 1) / (2 * below) for h in range(num_heads - below)]


def _slopes(arrays: Arrays, num_heads: int, slopes: Any, as_trained: bool = False) -> Any:
    """The slopes in float64, [H] or [B, H]; as_trained: float32 powers of a float32 base."""
    function = arrays.function
    count = arguments.size(function, "num_heads", num_heads)
    if slopes is not None:
        given = arrays.parameter("slopes", slopes)
        if given.ndim not in (1, 2) or given.shape[-1] != count:
            expected = f"shape [H] = [{count}] or [B, H] = [B, {count}]"
            wrong_value(function, "slopes", expected, list(given.shape))
        return given
    if not as_trained:
        return arrays.constant([2.0**-exponent for exponent in _slope_exponents(count, 8.0)])
    if count == 0:
        return arrays.constant([])
    below = 1 << (count.bit_length() - 1)
    first = arrays.float32_powers(2.0 ** (-8.0 / below), list(range(1, below + 1)))
    others = list(range(1, 2 * (count - below), 2))
    if not others:
        return first
    second = arrays.float32_powers(2.0 ** (-4.0 / below), others)
    return arrays.xp.concatenate([first, second])


# --- T5


@overload
def t5_diagonals(
    table: npt.NDArray[Number], q_len: int, k_len: int, *, bidirectional: bool = ...,
    max_distance: int = ..., q_offset: int | npt.ArrayLike | torch.Tensor = ...,
) -> npt.NDArray[Number]: ...  # fmt: skip
@overload
def t5_diagonals(
    table: torch.Tensor, q_len: int, k_len: int, *, bidirectional: bool = ...,
    max_distance: int = ..., q_offset: int | npt.ArrayLike | torch.Tensor = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def t5_diagonals(
    table: npt.ArrayLike, q_len: int, k_len: int, *, bidirectional: bool = ...,
    max_distance: int = ..., q_offset: int | npt.ArrayLike | torch.Tensor = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
def t5_diagonals(
    table: npt.ArrayLike | torch.Tensor,
    q_len: int,
    k_len: int,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
) -> Any:
    """Diagonals of T5's learned bias.

    In transformers (buckets / max_distance):

    - T5, mT5, LongT5, Switch, UDOP: 32 / 128, bidirectional in the encoder; the table of layer 0 is
      that of all layers. UMT5: a table a layer. Pix2Struct's text: not bidirectional.
    - MPNet: 32 / 128, bidirectional. CPM-Ant: 512 / 2048, bidirectional, and segments besides.
    - WavLM: 320 / 800, bidirectional; the bias is then gated by the query.
    - LayoutLMv2 and v3: 32 / 128 of position_ids and 64 / 256 of the coordinates of boxes,
      bidirectional; boxes have no diagonals, `relative_position_bucket` serves them.

    T5, mT5 and UMT5 do not divide scores by ``sqrt(head_dim)``. LayoutLM's tables are the weights
    of a Linear, ``[H, num_buckets]``: transpose them.

    Args:
        table: ``[num_buckets, H]``, floats. Gradients reach a tensor.
        q_len, k_len, q_offset: see the module's head.
        bidirectional, max_distance: as in `relative_position_bucket`.

    Returns:
        ``[H, D]`` or ``[B, H, D]``, of the table's dtype.

    Raises:
        ValueError, TypeError: as in `relative_position_bucket`; also for a table of wrong rank.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1.

    Example:
        >>> import numpy as np
        >>> from posenc_native import distances
        >>> table = np.arange(32, dtype=np.float32)[:, None]  # one head, worth the bucket's number
        >>> distances.t5_diagonals(table, 3, 4)
        array([[ 2.,  1.,  0., 17., 18., 19.]], dtype=float32)
    """
    arrays = Arrays("t5_diagonals", table=table, q_offset=q_offset)
    rows = arrays.table(table)
    distances = _distances(arrays, q_len, k_len, q_offset)
    count = rows.shape[0]
    return _look_up(rows, t5_bucket(arrays, distances, bidirectional, count, max_distance))


# --- KERPLE, Sandwich


def kerple_diagonals(
    r1: npt.ArrayLike | torch.Tensor,
    r2: npt.ArrayLike | torch.Tensor,
    q_len: int,
    k_len: int,
    *,
    kind: str = "log",
    symmetric: bool = False,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Diagonals of KERPLE: ``-r1 * ln(1 + r2 * d)`` or ``-r1 * d ** r2``.

    Args:
        r1, r2: ``[H]``, positive (r2 at most 2 for "power"); gradients reach tensors. The authors'
            code calls them p and a for "log", a and p for "power", and keeps them at 0.01 and more.
        q_len, k_len, q_offset: see the module's head.
        kind: "log" or "power".
        symmetric: what d is. False, as in the authors' code: query minus key, 0 for keys of the
            future. True, as in the paper: the absolute difference.
        dtype, device: of the result; see the module's head.

    Returns:
        ``[H, D]`` or ``[B, H, D]``.

    Raises:
        ValueError: an unknown kind, negative lengths, shapes that do not fit.
        TypeError: impossible dtypes.

    Source: Chi et al. 2022, "KERPLE: Kernelized Relative Positional Embedding", section 4.

    Example:
        >>> from posenc_native import distances
        >>> distances.kerple_diagonals([1.0], [2.0], 3, 2).round(4)
        array([[-1.6094, -1.0986,  0.    ,  0.    ]], dtype=float32)
    """
    function = "kerple_diagonals"
    arrays = Arrays(function, dtype, device, r1=r1, r2=r2, q_offset=q_offset)
    xp = arrays.xp
    if kind not in ("log", "power"):
        wrong_value(function, "kind", "'log' or 'power'", repr(kind))
    symmetric = arrays.flag("symmetric", symmetric)
    weight, shape = arrays.parameter("r1", r1), arrays.parameter("r2", r2)
    if weight.ndim != 1:
        wrong_value(function, "r1", "shape [H]", list(weight.shape))
    arguments.check_shape(function, "r2", shape.shape, weight.shape)
    distances = _distances(arrays, q_len, k_len, q_offset)
    apart = abs(distances) if symmetric else xp.clip(-distances, 0, None)
    apart = arrays.wide(apart)[..., None, :]
    if kind == "log":
        kernel = xp.log1p(shape[:, None] * apart)
    else:  # 1 in the place of 0, whose power has no derivative
        kernel = xp.where(apart > 0, xp.clip(apart, 1, None) ** shape[:, None], 0.0)
    return arrays.rounded(0.0 - weight[:, None] * kernel)  # 0 at distance 0, not -0


def sandwich_diagonals(
    num_heads: int,
    q_len: int,
    k_len: int,
    *,
    dim: int = 128,
    base: float = 10000.0,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Diagonals of Sandwich: the inner product of two sinusoidal rows, weaker from head to head.

    Head h has ``H / (8 (h + 1)) * sum over i < dim/2 of cos(distance * base ** (-2i / dim))``,
    exact at any distance, as `sinusoidal` is.

    Args:
        num_heads: H.
        q_len, k_len, q_offset: see the module's head.
        dim: width of the sinusoidal rows, even; whatever the width of the model is.
        base: as in `sinusoidal`.
        dtype, device: of the result; see the module's head.

    Returns:
        ``[H, D]`` or ``[B, H, D]``.

    Raises:
        ValueError: negative lengths, odd dim, base <= 0.
        TypeError: impossible dtypes.

    Source: Chi et al. 2023, "Dissecting Transformer Length Extrapolation via the Lens of Receptive
    Field Analysis", section 5 and the code of its appendix.

    Example:
        >>> from posenc_native import distances
        >>> distances.sandwich_diagonals(2, 1, 3).round(3)
        array([[16.   , 15.523, 14.345],
               [ 8.   ,  7.762,  7.173]], dtype=float32)
    """
    function = "sandwich_diagonals"
    arrays = Arrays(function, dtype, device, q_offset=q_offset)
    count = arguments.size(function, "num_heads", num_heads)
    width = arguments.even_size(function, "dim", dim)
    base = arguments.positive_number(function, "base", base)
    distances = _distances(arrays, q_len, k_len, q_offset)
    rows = sinusoidal(distances, width, base=base, layout="cos_sin", dtype=arrays.float64)
    products = rows[..., : width // 2].sum(-1)
    weights = arrays.constant([count / (8 * (h + 1)) for h in range(count)])
    return arrays.rounded(weights[:, None] * products[..., None, :])


# --- Clipped distances


def clipped_index(
    q_len: int,
    k_len: int,
    left: int,
    right: int | None = None,
    *,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    device: Any = None,
) -> Any:
    """The row of a table that each distance takes: ``clip(key - query, -left, right) + left``.

    Args:
        q_len, k_len, q_offset: see the module's head.
        left, right: how far keys before and after the query are told apart; right is left by
            default. The table has left + right + 1 rows.
        device: of the result; see the module's head.

    Returns:
        int64 ``[D]`` or ``[B, D]``.

    Raises:
        ValueError: a negative number, an offset of wrong shape.
        TypeError: an argument that is not an integer.

    Source: Shaw et al. 2018, "Self-Attention with Relative Position Representations", section 3.2.

    Example:
        >>> from posenc_native import distances
        >>> distances.clipped_index(3, 4, 1)
        array([0, 0, 1, 2, 2, 2])
    """
    function = "clipped_index"
    arrays = Arrays(function, None, device, q_offset=q_offset)
    before = arguments.size(function, "left", left)
    after = before if right is None else arguments.size(function, "right", right)
    distances = _distances(arrays, q_len, k_len, q_offset)
    return arrays.xp.clip(distances, -before, after) + before


@overload
def clipped_diagonals(
    table: npt.NDArray[Number], q_len: int, k_len: int, *, left: int | None = ...,
    q_offset: int | npt.ArrayLike | torch.Tensor = ...,
) -> npt.NDArray[Number]: ...  # fmt: skip
@overload
def clipped_diagonals(
    table: torch.Tensor, q_len: int, k_len: int, *, left: int | None = ...,
    q_offset: int | npt.ArrayLike | torch.Tensor = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def clipped_diagonals(
    table: npt.ArrayLike, q_len: int, k_len: int, *, left: int | None = ...,
    q_offset: int | npt.ArrayLike | torch.Tensor = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
def clipped_diagonals(
    table: npt.ArrayLike | torch.Tensor,
    q_len: int,
    k_len: int,
    *,
    left: int | None = None,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
) -> Any:
    """Diagonals of a learned bias with one row a distance, the outermost for all beyond.

    Args:
        table: ``[left + right + 1, H]``, floats, from the farthest key before the query to the
            farthest after it. Gradients reach a tensor.
        q_len, k_len, q_offset: see the module's head.
        left: the row of distance 0; the middle one by default.

    Returns:
        ``[H, D]`` or ``[B, H, D]``, of the table's dtype.

    Raises:
        ValueError: a table without a middle row and no left, left outside of the table, negative
            lengths.
        TypeError: impossible dtypes.

    Example:
        >>> import numpy as np
        >>> from posenc_native import distances
        >>> table = np.array([[-1.0], [0.0], [1.0]])
        >>> distances.clipped_diagonals(table, 2, 4)
        array([[-1.,  0.,  1.,  1.,  1.]])
    """
    function = "clipped_diagonals"
    arrays = Arrays(function, table=table, q_offset=q_offset)
    rows = arrays.table(table)
    count = rows.shape[0]
    if count == 0 or (left is None and count % 2 == 0):
        wrong_value(function, "table", "an odd number of rows, or any with left", count)
    before = count // 2 if left is None else arguments.size(function, "left", left)
    if before >= count:
        wrong_value(function, "left", f"a row of the table, < {count}", before)
    distances = _distances(arrays, q_len, k_len, q_offset)
    return _look_up(rows, arrays.xp.clip(distances, -before, count - 1 - before) + before)


# --- Swin


@overload
def swin_diagonals(table: npt.NDArray[Number], window: Sequence[int]) -> npt.NDArray[Number]: ...
@overload
def swin_diagonals(table: torch.Tensor, window: Sequence[int]) -> torch.Tensor: ...
@overload
def swin_diagonals(table: npt.ArrayLike, window: Sequence[int]) -> npt.NDArray[Any]: ...
def swin_diagonals(table: npt.ArrayLike | torch.Tensor, window: Sequence[int]) -> Any:
    """Diagonals of Swin's bias over a window: its table, backwards.

    The index of Swin's table counts query minus key, diagonals count key minus query.

    BEiT's table has three more rows: from the class token, to it, and from it to itself; give
    ``table[:-3]`` for the patches. Swin v2 has a small network for a table:
    ``16 * sigmoid(network(swin_v2_coordinates(window)))``, flattened to ``[-1, H]``.

    Args:
        table: ``[(2h - 1) * (2w - 1), H]``, floats. Gradients reach a tensor.
        window: ``(h, w)``, tokens in rows, row after row; any number of axes (Video Swin has 3).

    Returns:
        ``[H, 2h - 1, 2w - 1]``, of the table's dtype.

    Raises:
        ValueError: a window of length 0, a table that does not fit it.
        TypeError: impossible dtypes.

    Source: Liu et al. 2021, "Swin Transformer", section 3.2.

    Example:
        >>> import numpy as np
        >>> from posenc_native import distances
        >>> distances.swin_diagonals(np.arange(9.0)[:, None], (2, 2))
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
        wrong_value(function, "table", f"{expected} rows, one a distance", rows.shape[0])
    backwards = arrays.xp.flip(rows, (0,))
    if not arrays.is_torch:
        backwards = backwards.copy()  # NumPy's is a view, through which the table could be written
    return backwards.swapaxes(0, 1).reshape(rows.shape[1], *lengths)


def swin_v2_coordinates(
    window: Sequence[int],
    pretrained_window: Sequence[int] | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """What Swin v2's network sees: the distances of a window on a logarithmic scale.

    A distance d (query minus key) along an axis of length w is ``x = 8 d / (w - 1)``, then
    ``sign(x) * log2(1 + |x|) / 3``.

    Args:
        window: ``(h, w)``, or any number of axes.
        pretrained_window: the window whose w is divided by, if another; 0 means the same.
        dtype, device: of the result; see the module's head.

    Returns:
        ``[2h - 1, 2w - 1, 2]``, in the order of Swin's table. An axis of length 1 is all 0.

    Raises:
        ValueError: a length below 1, windows of different numbers of axes.
        TypeError: impossible dtypes.

    Source: Liu et al. 2022, "Swin Transformer V2", section 3.3.

    Example:
        >>> from posenc_native import distances
        >>> distances.swin_v2_coordinates((1, 3)).round(4)[0, :, 1]
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
            expected = f"{len(lengths)} lengths, as many as window has"
            wrong_value(function, "pretrained_window", expected, len(trained))
    axes = []
    for length, reference in zip(lengths, trained, strict=True):
        distances = arrays.wide(arrays.arange(2 * length - 1) - (length - 1))
        scaled = distances * (8 / max((reference or length) - 1, 1))
        axes.append(xp.sign(scaled) * xp.log2(abs(scaled) + 1) / 3)
    return arrays.rounded(xp.stack(xp.meshgrid(*axes, indexing="ij"), -1))


def _window(function: str, argument: str, window: Any, least: int = 1) -> list[int]:
    if not isinstance(window, Sequence) or isinstance(window, str):
        wrong_type(function, argument, "a sequence of ints", type(window).__name__)
    lengths = [arguments.size(function, argument, length) for length in window]
    if not lengths or min(lengths) < least:
        wrong_value(function, argument, f"lengths >= {least}", lengths)
    return lengths


# --- DeBERTa


def deberta_index(
    q_len: int,
    k_len: int,
    *,
    bucket_size: int | None = 256,
    max_position: int = 512,
    span: int | None = None,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    transposed: bool = False,
    device: Any = None,
) -> Any:
    """The columns of DeBERTa's disentangled attention: ``clamp(bucket(query - key) + span)``.

    For content to position, gather from ``q @ pos_k.T``, rows queries and columns distances. For
    position to content, gather from ``k @ pos_q.T``, rows keys: with `transposed`, and the result
    is transposed to rows of queries again. Both have 2 * span columns.

    Args:
        q_len, k_len, q_offset: see the module's head.
        bucket_size, max_position: as in `deberta_bucket`. bucket_size None: distances as they are
            (DeBERTa v1; ``position_buckets`` -1 in v2).
        span: half the number of columns; by default bucket_size, or without it max_position.
        transposed: whether rows are keys and columns queries.
        device: of the result; see the module's head.

    Returns:
        int64 ``[D]`` or ``[B, D]``, in 0 .. 2 * span - 1.

    Raises:
        ValueError: bucket_size, max_position or span out of range, negative lengths.
        TypeError: an argument that is not an integer.

    Source: He et al. 2021, "DeBERTa", section 3; ``disentangled_attention_bias`` in transformers.

    Example:
        >>> from posenc_native import distances
        >>> distances.deberta_index(3, 3, bucket_size=4, max_position=8)
        array([6, 5, 4, 3, 2])
        >>> distances.deberta_index(3, 3, bucket_size=4, max_position=8, transposed=True)
        array([2, 3, 4, 5, 6])
    """
    function = "deberta_index"
    arrays = Arrays(function, None, device, q_offset=q_offset)
    flipped = arrays.flag("transposed", transposed)
    buckets = -_distances(arrays, q_len, k_len, q_offset)
    if bucket_size is not None:
        buckets = deberta_bucket_of(arrays, buckets, bucket_size, max_position)
    if span is None:
        span = max_position if bucket_size is None else bucket_size
    half = arguments.size(function, "span", span)
    if half == 0:
        wrong_value(function, "span", "an int >= 1", 0)
    index = arrays.xp.clip(buckets, -half, half - 1) + half
    # Query minus key of (row key, column query) is that of (row query, column key), in reverse.
    return arrays.xp.flip(index, (-1,)) if flipped else index


# --- FIRE


def fire_bias(
    q_len: int,
    k_len: int,
    function: Callable[[Any], Any],
    *,
    c: float | npt.ArrayLike | torch.Tensor = 0.1,
    threshold: float | npt.ArrayLike | torch.Tensor = 512.0,
    eps: float = 1e-6,
    q_offset: int | npt.ArrayLike | torch.Tensor = 0,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """FIRE's bias: a function of the distance relative to the position of the query.

    ``function(log(1 + c * |i - j|) / (log(1 + c * max(i, threshold)) + eps))`` for query i and
    key j. Every row has its own divisor, so this is no matter of diagonals.

    Args:
        q_len, k_len, q_offset: see the module's head.
        function: from ``[..., 1]`` to ``[..., H]``, of arrays or tensors: a small network. If it is
            a torch module with parameters, these say the device, and the dtype that it is given.
        c, threshold: positive numbers, or arrays or tensors of one number, whose magnitude counts;
            gradients reach tensors.
        eps: what the authors' code adds to the divisor; the paper has none.
        dtype: what `function` is given: float16, bfloat16, float32 (default) or float64.
        device: torch device; makes the call one of torch.

    Returns:
        What `function` makes of it, ``[H, q_len, k_len]`` or ``[B, H, q_len, k_len]``.

    Raises:
        ValueError: negative lengths, c or threshold not above 0, a function whose result has
            another shape.
        TypeError: impossible dtypes, a function that cannot be called.

    Source: Li et al. 2024, "Functional Interpolation for Relative Positions Improves Long Context
    Transformers", section 3.

    Example:
        >>> from posenc_native import distances
        >>> distances.fire_bias(2, 3, lambda x: x, threshold=4.0).round(4)
        array([[[0.    , 0.2833, 0.5419],
                [0.2833, 0.    , 0.2833]]], dtype=float32)
    """
    name = "fire_bias"
    if not callable(function):
        wrong_type(name, "function", "a callable", type(function).__name__)
    weight = _first_parameter(function)
    if dtype is None and weight is not None:
        dtype = weight.dtype
    given = {"c": c, "threshold": threshold, "q_offset": q_offset, "function": weight}
    arrays = Arrays(name, dtype, device, **given)
    scale, least = arrays.one("c", c), arrays.one("threshold", threshold)
    addend = arguments.finite_number(name, "eps", eps)
    apart = arrays.wide(abs(_distances(arrays, q_len, k_len, q_offset)))
    queries = arrays.wide(arrays.arange(q_len) + _offset(arrays, q_offset))
    divisor = arrays.xp.log1p(scale * arrays.xp.maximum(queries, least)) + addend
    # As many heads as batch rows: one each, and no other.
    numerators = toeplitz_bias(arrays.xp.log1p(scale * apart), q_len, k_len)
    relative = numerators / divisor[..., None]
    result = function(arrays.rounded(relative)[..., None])
    if tuple(result.shape[:-1]) != tuple(relative.shape):
        expected = f"a result of shape {[*relative.shape, 'H']}"
        wrong_value(name, "function", expected, list(result.shape))
    # Not moveaxis for both, which torch.vmap does not know.
    return result.movedim(-1, -3) if arrays.is_torch else np.moveaxis(result, -1, -3)


def _first_parameter(function: object) -> Any:
    """Of a torch module; None if it has none, or is something else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(function, torch.nn.Module):
        return None
    return next(function.parameters(), None)


# --- What they share


def _distances(arrays: Arrays, q_len: int, k_len: int, q_offset: Any) -> Any:
    """Key minus query, int64 [D] or [B, D]."""
    queries = arguments.length(arrays.function, "q_len", q_len)
    keys = arguments.length(arrays.function, "k_len", k_len)
    count = max(queries + keys - 1, 0)
    arguments.check_byte_count(arrays.function, (count,), 8)
    return arrays.arange(count) - (queries - 1) - _offset(arrays, q_offset)


def _offset(arrays: Arrays, q_offset: Any) -> Any:
    """The first query's position: an int, or int64 [1] or [B, 1]."""
    function, argument = arrays.function, "q_offset"
    if isinstance(q_offset, (bool, float, complex, str)):
        wrong_type(function, argument, "an int or integers [B]", type(q_offset).__name__)
    if isinstance(q_offset, (int, np.integer)):
        if not -_OFFSET_LIMIT < q_offset < _OFFSET_LIMIT:
            wrong_value(function, argument, "a magnitude below 2^62", q_offset)
        return int(q_offset)
    offsets = arrays.integers(argument, q_offset, arguments.INTEGER_DTYPES)
    if offsets.ndim > 1:
        wrong_value(function, argument, "an int or shape [B]", f"shape {list(offsets.shape)}")
    return offsets[..., None]


def _look_up(table: Any, index: Any) -> Any:
    """The rows of a table [W, H] at index [D] or [B, D], as diagonals [H, D] or [B, H, D].

    The operation that has a deterministic gradient: as if from a single query, whose distances are
    the entries of the index.
    """
    count = math.prod(index.shape)
    columns = table.swapaxes(0, 1)[:, None, :]
    rows = relative_gather(columns, index.reshape(-1), count, origin=0)[:, 0]
    if index.ndim == 1:
        return rows
    return rows.reshape(rows.shape[0], *index.shape).swapaxes(0, 1)


def _check_batches(function: str, argument: str, weights: Any, values: Any) -> None:
    """ValueError if weights [B, H] and values [B, D] have two different B."""
    if weights.ndim == values.ndim == 2 and weights.shape[0] != values.shape[0]:
        expected = f"shape [B, H] = [{values.shape[0]}, {weights.shape[1]}]"
        arguments.wrong_value(function, argument, expected, list(weights.shape))
