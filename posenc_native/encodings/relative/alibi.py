"""ALiBi: the slope of each head times the distance.

Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input
Length Extrapolation".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.constants import constant_without_tensors
from posenc_native.encodings.positions.rows import counted_in_samples, sample_numbers
from posenc_native.encodings.relative.heads import Heads, heads_of
from posenc_native.engines.arrays import Arrays, of_wholes

from .causal import causal_diagonals
from .distances import wide_distances, window_of

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypedDict, Unpack

    from posenc_native.core.calls.kinds import (
        AlibiRounding,
        Array,
        ArrayOrTensor,
        Device,
        Dtype,
        Numbers,
        NumPyDtype,
        Plain,
        Tensor,
    )

__all__ = ["alibi_columns", "alibi_diagonals", "alibi_slopes"]


if TYPE_CHECKING:
    Input = TypeVar("Input")  # the type of the numbers a caller passes

    class Alibi(TypedDict, Generic[Input], total=False):
        """Keywords of diagonals."""

        symmetric: bool
        causal: bool
        heads: Heads
        q_offset: Input | None
        slopes: Input | None

    class Columns(TypedDict, Generic[Input], total=False):
        """Keywords of columns."""

        key_mask: Input | None
        slopes: Input | None
        rounding: AlibiRounding


@constant_without_tensors
def alibi_slopes(
    num_heads: int, *, max_bias: float = 8.0, heads: Heads = None
) -> npt.NDArray[np.float64]:
    """Slopes of ALiBi, one per head: the reference rule, for any number of heads.

    If the number of heads is a power of two n, the slopes are ``2 ** (-max_bias * (h + 1) / n)``.
    Other numbers take the slopes of the power of two below, then every second slope of the power
    above. (Many libraries use the first formula for all; with 12 heads it is off by a factor of up
    to 45.)

    Args:
        num_heads: H.
        max_bias: minus the exponent of the last slope; 8 in the paper, ``alibi_bias_max`` in MPT.
        heads: the heads of this rank, if tensor parallelism splits all H: a range or slice of
            consecutive heads, or (rank, ranks) for an equal share.

    Returns:
        float64 ``[H]``, or one slope for each of `heads`.

    Raises:
        ValueError: num_heads < 0 or > 65,536, or max_bias <= 0.
        TypeError: an argument is not a number.

    Source: Press et al. 2022, "Train Short, Test Long", and its code's ``get_slopes``.

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.alibi_slopes(6).round(4)
        array([0.25  , 0.0625, 0.0156, 0.0039, 0.5   , 0.125 ])
    """
    function = "alibi_slopes"
    count = arguments.head_count(function, "num_heads", num_heads)
    bias = arguments.positive_number(function, "max_bias", max_bias)
    return np.array(_slopes_of(heads_of(function, heads, count), count, bias), np.float64)


@overload
def alibi_diagonals(num_heads: int, q_len: int, k_len: int, *, dtype: NumPyDtype = ...,
    device: None = ..., **options: Unpack[Alibi[Plain]]) -> Array[Any]: ...  # fmt: skip
# What the first does not match has a tensor, or a dtype or device of torch.
@overload
def alibi_diagonals(num_heads: int, q_len: int, k_len: int, *, dtype: Dtype = ...,
    device: Device | None = ..., **options: Unpack[Alibi[Plain | Tensor]],
) -> Tensor: ...  # fmt: skip
@constant_without_tensors
@of_wholes
def alibi_diagonals(
    num_heads: int,
    q_len: int,
    k_len: int,
    *,
    symmetric: bool = True,
    causal: bool = False,
    q_offset: int | npt.ArrayLike | torch.Tensor | None = None,
    slopes: npt.ArrayLike | torch.Tensor | None = None,
    heads: Heads = None,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Diagonals of ALiBi: minus slope times distance.

    Args:
        num_heads: H.
        q_len, k_len, q_offset: see the docstring of posenc_native.encodings.relative.
        symmetric: True for ``-m * |key - query|``. False for ``m * (key - query)`` on every
            diagonal, for causal attention only: future keys then get a positive bias, which the
            causal mask must remove.
        causal: True to include the causal mask: keys after the query are -inf.
        slopes: None for `alibi_slopes`, or ``[H]`` or ``[B, H]``. Gradients reach a tensor.
        heads: as in `alibi_slopes`: a range or slice of the H heads, or (rank, ranks); slopes are
            then only for these heads.
        dtype, device: of the result; see the docstring of posenc_native.encodings.relative.

    Returns:
        ``[H, D]``, or ``[B, H, D]`` if slopes or q_offset have an axis B.

    Raises:
        ValueError: a length is negative, or the shapes do not fit.
        TypeError: a dtype is not supported.

    Source: Press et al. 2022, "Train Short, Test Long".

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.alibi_diagonals(2, 2, 3, q_offset=0)
        array([[-0.0625    ,  0.        , -0.0625    , -0.125     ],
               [-0.00390625,  0.        , -0.00390625, -0.0078125 ]],
              dtype=float32)
    """
    function = "alibi_diagonals"
    arrays = Arrays(function, dtype, device, q_offset=q_offset, slopes=slopes)
    symmetric = arrays.flag("symmetric", symmetric)
    weights = _slopes(arrays, num_heads, slopes, heads)
    window = window_of(arrays, q_len, k_len, q_offset)
    distances = wide_distances(arrays, window)
    check_batches(function, "slopes", weights, distances)
    values = 0.0 - abs(distances) if symmetric else distances  # 0 at distance 0, not -0
    diagonals = arrays.rounded(weights[..., None] * values[..., None, :])
    return causal_diagonals(arrays, diagonals, window, causal)


@overload
def alibi_columns(num_heads: int, k_len: int, *, dtype: NumPyDtype = ..., device: None = ...,
    **options: Unpack[Columns[Plain]]) -> Array[Any]: ...  # fmt: skip
@overload
def alibi_columns(num_heads: int, k_len: int, *, dtype: Dtype = ..., device: Device | None = ...,
    **options: Unpack[Columns[Numbers]]) -> ArrayOrTensor: ...  # fmt: skip
@constant_without_tensors
@of_wholes
def alibi_columns(
    num_heads: int,
    k_len: int,
    *,
    key_mask: npt.ArrayLike | torch.Tensor | None = None,
    slopes: npt.ArrayLike | torch.Tensor | None = None,
    rounding: AlibiRounding = None,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """ALiBi as slope times position of the key, the same for all queries: BLOOM, Falcon.

    It differs from the causal form of `alibi_diagonals` by a constant per row, which cancels in the
    softmax. With a mask, positions count only the keys that are present.

    Args:
        num_heads: H.
        k_len: number of keys.
        key_mask: ``[B, k_len]``, bools or integers: the keys that are present. Several numbers in a
            row are those of packed samples, as in `posenc_native.positions.padded_positions`: each
            sample counts from 0.
        slopes: None for `alibi_slopes`, or ``[H]`` or ``[B, H]``. Gradients reach a tensor.
        rounding: None computes in float64. "float32" and "bfloat16" round slopes, positions and
            products to that format, as in the training of models: BLOOM's "float32" and Falcon's
            "bfloat16" match transformers bit for bit. (From NumPy, a float32 slope may differ in
            the last bit from torch's power function.) Falcon adds the result divided by
            ``sqrt(head_dim)``.
        dtype, device: of the result; see the docstring of posenc_native.encodings.relative.

    Returns:
        ``[H, 1, k_len]``, or ``[B, H, 1, k_len]`` if mask or slopes have an axis B.

    Raises:
        ValueError: the length is negative, rounding is unknown, the shapes do not fit, numbers of
            samples descend, or the dtype cannot hold a product (float16 from 65 520 on; of tensors,
            only if values can be read: on the CPU, while torch does not trace).
        TypeError: a dtype is not supported.

    Source: ``build_alibi_tensor`` for BLOOM and for Falcon in transformers.

    Example:
        >>> import posenc_native as pn
        >>> pn.relative.alibi_columns(1, 4, key_mask=[[0, 1, 1, 1]])
        array([[[[0.        , 0.        , 0.00390625, 0.0078125 ]]]],
              dtype=float32)
    """
    function = "alibi_columns"
    arrays = Arrays(function, dtype, device, key_mask=key_mask, slopes=slopes)
    if rounding not in (None, "float32", "bfloat16"):
        wrong_value(function, "rounding", "None, 'float32' or 'bfloat16'", repr(rounding))
    length = arguments.length(function, "k_len", k_len)
    weights = _slopes(arrays, num_heads, slopes, as_trained=rounding is not None)
    positions = arrays.arange(length)
    if key_mask is not None:
        numbers = sample_numbers(arrays, "key_mask", key_mask)
        if numbers.ndim != 2 or numbers.shape[1] != length:
            expected = f"shape [B, k_len] = [B, {length}]"
            wrong_value(function, "key_mask", expected, list(numbers.shape))
        positions = counted_in_samples(arrays, numbers) * arrays.whole(numbers != 0)
    positions = arrays.through(arrays.wide(positions), rounding)
    check_batches(function, "slopes", weights, positions)
    weights = arrays.through(weights, rounding)
    products = weights[..., None] * positions[..., None, :]
    return arrays.held("k_len", arrays.through(products, rounding))[..., None, :]


def _slopes_of(own: range, num_heads: int, max_bias: float) -> list[float]:
    """The slopes of some heads: 2 to the power of minus their exponents."""
    if num_heads == 0:
        return []
    below = 1 << (num_heads.bit_length() - 1)
    exponents = [max_bias * (h + 1) / below for h in range(below)]
    exponents += [max_bias * (2 * h + 1) / (2 * below) for h in range(num_heads - below)]
    return [2.0**-exponent for exponent in exponents[own.start : own.stop]]


def _slopes(
    arrays: Arrays, num_heads: int, slopes: Any, heads: Heads = None, as_trained: bool = False
) -> Any:
    """The slopes in float64, [H] or [B, H]; as_trained: from float32 powers of a float32 base."""
    function = arrays.function
    count = arguments.head_count(function, "num_heads", num_heads)
    own = heads_of(function, heads, count)
    if slopes is not None:
        parameter = arrays.parameter("slopes", slopes)
        if parameter.ndim not in (1, 2) or parameter.shape[-1] != len(own):
            expected = f"shape [H] = [{len(own)}] or [B, H] = [B, {len(own)}]"
            wrong_value(function, "slopes", expected, list(parameter.shape))
        return parameter
    if not as_trained or count == 0:
        return arrays.constant(_slopes_of(own, count, 8.0))
    below = 1 << (count.bit_length() - 1)
    first = arrays.float32_powers(2.0 ** (-8.0 / below), list(range(1, below + 1)))
    exponents = list(range(1, 2 * (count - below), 2))
    if not exponents:
        return first
    second = arrays.float32_powers(2.0 ** (-4.0 / below), exponents)
    return arrays.xp.concatenate([first, second])


def check_batches(function: str, argument: str, weights: Any, values: Any) -> None:
    """ValueError if weights [B, H] and values [B, D] differ in B."""
    if weights.ndim == values.ndim == 2 and weights.shape[0] != values.shape[0]:
        expected = f"shape [B, H] = [{values.shape[0]}, {weights.shape[1]}]"
        arguments.wrong_value(function, argument, expected, list(weights.shape))
