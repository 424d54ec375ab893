"""Simple absolute encodings, the baselines for others, and how they are combined with embeddings.

    linear        p * scale                                       one or more numbers per position
    normalized    low + (high - low) * p / (n - 1)                the same for every length n
    learned       row p of a table
    recurrent     the p-th state of a GRU that has no input       learned, for any length

`combine` adds, multiplies or concatenates embeddings with one of them, or with a sinusoidal table.
`posenc_native.nn` has a module for each encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_type, wrong_value
from posenc_native.encodings.positions.rows import (
    counted_in_samples,
    counted_to_end,
    sample_numbers,
)
from posenc_native.engines.arrays import Arrays, of_wholes

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        ArrayOrTensor,
        ByDtype,
        Combination,
        Number,
        Numbers,
        OfNumPy,
        OfTorch,
        OnDevice,
        SupportsArray,
        Tensor,
        TensorLike,
    )

__all__ = [
    "combine",
    "learned_positions",
    "linear_positions",
    "normalized_positions",
    "recurrent_positions",
]

COMBINATIONS = ("add", "multiply", "concatenate")


@overload
def linear_positions(positions: TensorLike, dim: int = ..., *, scale: Numbers = ...,
                     origin: int = ..., **made: Unpack[OfTorch]) -> Tensor: ...  # fmt: skip
@overload
def linear_positions(positions: npt.ArrayLike, dim: int = ..., *, scale: Numbers = ...,
                     origin: int = ..., **made: Unpack[ByDtype]) -> Tensor: ...  # fmt: skip
@overload
def linear_positions(positions: npt.ArrayLike, dim: int = ..., *, scale: Numbers = ...,
                     origin: int = ..., **made: Unpack[OnDevice]) -> Tensor: ...  # fmt: skip
@overload
def linear_positions(positions: npt.ArrayLike, dim: int = ..., *, scale: npt.ArrayLike = ...,
                     origin: int = ..., **made: Unpack[OfNumPy]) -> Array[Any]: ...  # fmt: skip
def linear_positions(
    positions: npt.ArrayLike | TensorLike,
    dim: int = 1,
    *,
    scale: float | npt.ArrayLike | torch.Tensor = 1.0,
    origin: int = 0,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """The positions themselves, times a factor.

    Args:
        positions: an int n for 0 .. n-1, or an array or tensor of any shape.
        dim: number of channels.
        scale: factor of the positions, a number, or ``[dim]`` for one per channel.
        origin: an int >= 0 that is subtracted from the positions first: exactly, of integers, so
            that times in nanoseconds since 1970 keep their last places.
        dtype: float16, bfloat16, float32 (default) or float64, of NumPy or torch.
        device: torch device of the result; makes it a tensor.

    Returns:
        ``positions.shape + (dim,)``, computed in float64 and rounded once. Gradients reach
        floating-point positions and the scale.

    Raises:
        ValueError: the scale has another shape; or the dtype cannot hold a product, as float16
            cannot from 65 520 on (of tensors, only if values can be read: on the CPU, while torch
            does not trace).
        TypeError: a dtype is not supported.

    Source: Liu et al. 2018, "CoordConv", which concatenates coordinates as channels.

    Example:
        >>> import posenc_native as pn
        >>> pn.absolute.linear_positions(3, 2, scale=[1.0, -0.5])
        array([[ 0. , -0. ],
               [ 1. , -0.5],
               [ 2. , -1. ]], dtype=float32)
    """
    function = "linear_positions"
    arrays = Arrays(function, dtype, device, positions=positions, scale=scale)
    origin = arguments.size(function, "origin", origin)
    points = arrays.since("positions", arrays.positions("positions", positions), origin)
    dim = arguments.size(function, "dim", dim)
    if isinstance(scale, (int, float, np.number)):
        factors = arrays.constant([arguments.finite_number(function, "scale", scale)] * dim)
    else:
        if not is_tensor(scale):  # ints too
            scale = arguments.as_numbers(function, "scale", scale)
        factors = arrays.parameter("scale", scale)
        arguments.check_shape(function, "scale", tuple(factors.shape), (dim,))
    return arrays.held("positions", arrays.wide(points)[..., None] * factors)


def normalized_positions(
    positions: int | npt.ArrayLike | torch.Tensor | None = None,
    length: int | npt.ArrayLike | torch.Tensor | None = None,
    *,
    mask: npt.ArrayLike | torch.Tensor | None = None,
    low: float = 0.0,
    high: float = 1.0,
    dim: int = 1,
    dtype: Any = None,
    device: Any = None,
) -> ArrayOrTensor:
    """Positions as a fraction of the length: ``low + (high - low) * p / (n - 1)``.

    The first position becomes `low` and the last `high`, for any length; a single position becomes
    `low`. Positions beyond the length continue linearly.

    Args:
        positions: an int n for 0 .. n-1, or an array or tensor ``[..., s]``.
        length: n, an int or integers ``positions.shape[:-1]``, one per row; None for s.
        mask: ``[..., s]`` bools or integers, 0 for padding, in place of positions and length: the
            tokens of each row are counted from 0, with padding on any side, and n is their number.
            Padding becomes `low`. Several numbers in a row are those of packed samples, as in
            `posenc_native.positions.padded_positions`: each sample is a row of its own.
        low, high: the first and the last value; -1 and 1 are also usual.
        dim: number of channels, all equal.
        dtype, device: as in `linear_positions`: float16, bfloat16, float32 (default) or float64.

    Returns:
        ``positions.shape + (dim,)``, computed in float64 and rounded once. Gradients reach
        floating-point positions.

    Raises:
        ValueError: both or neither of positions and mask are arguments; the shapes do not fit; or a
            length is negative, or 0 although there are positions; or the dtype cannot hold a result
            (of tensors, only if values can be read: on the CPU, while torch does not trace).
        TypeError: a dtype is not supported.

    Source: Liu et al. 2018, "CoordConv", section 3, with low -1 and high 1.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.absolute.normalized_positions(5)[:, 0]
        array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
        >>> mask = np.array([[0, 1, 1, 1], [1, 1, 0, 0]], bool)
        >>> pn.absolute.normalized_positions(mask=mask, low=-1)[..., 0]
        array([[-1., -1.,  0.,  1.],
               [-1.,  1., -1., -1.]], dtype=float32)
    """
    function = "normalized_positions"
    arrays = Arrays(function, dtype, device, positions=positions, length=length, mask=mask)
    low = arguments.finite_number(function, "low", low)
    high = arguments.finite_number(function, "high", high)
    dim = arguments.size(function, "dim", dim)
    if (positions is None) == (mask is None) or (mask is not None and length is not None):
        wrong_value(function, "mask", "positions (and a length), or a mask alone", "another choice")
    if mask is not None:
        numbers = sample_numbers(arrays, "mask", mask)
        if not numbers.ndim:
            wrong_value(function, "mask", "shape [..., s]", [])
        tokens = arrays.whole(numbers != 0)
        points = counted_in_samples(arrays, numbers) * tokens  # padding is also 0
        count = arrays.wide(points + 1 + counted_to_end(arrays, numbers))
        points = arrays.wide(points)
    else:
        points = arrays.points("positions", positions)
        if not points.ndim:
            wrong_value(function, "positions", "shape [..., s]", [])
        if length is None:
            length = points.shape[-1]
        if arguments.is_count(length):
            if type(length) is int and length == 0 and 0 not in tuple(points.shape):
                wrong_value(function, "length", "an int > 0 if there are positions", length)
            count = arrays.constant([1.0]) * arguments.length(function, "length", length)
        else:
            numbers = arrays.integers("length", length, arguments.INTEGER_DTYPES)
            seen = arrays.seen(numbers)
            if seen is not None and (seen < 0).any():
                wrong_value(function, "length", "ints >= 0", int(seen.min()))
            count = arrays.wide(numbers)
            arguments.check_shape(function, "length", tuple(count.shape), tuple(points.shape[:-1]))
            count = count[..., None]
    share = points / (count - 1).clip(min=1)
    # The ends are exact: products with 0 and with 1.
    values = low * (1 - share) + high * share
    argument = "positions" if mask is None else "mask"
    return arrays.held(argument, values[..., None] * arrays.constant([1.0] * dim))


@overload
def learned_positions(table: TensorLike, positions: Numbers, *, offset: int = ...,
                      padding_idx: int | None = ...) -> Tensor: ...  # fmt: skip
@overload
def learned_positions(table: SupportsArray[Number], positions: Numbers, *, offset: int = ...,
                      padding_idx: int | None = ...) -> Array[Number]: ...  # fmt: skip
def learned_positions(
    table: Any,
    positions: int | npt.ArrayLike | torch.Tensor,
    *,
    offset: int = 0,
    padding_idx: int | None = None,
) -> Any:
    """Rows of a learned table.

    Args:
        table: ``[rows, dim]``, float16, bfloat16, float32 or float64.
        positions: an int n for 0 .. n-1, or integers of any shape.
        offset: row of position 0. BERT and GPT-2 use 0; OPT, BART and RoBERTa use 2, where padding
            has position -1 and therefore row 1.
        padding_idx: a row that no gradient reaches (for tensors); a negative one counts from the
            end.

    Returns:
        ``positions.shape + (dim,)``, an array or tensor with the dtype of `table`. Gradients reach
        `table`.

    Raises:
        ValueError: the table has other axes, it has no row for a position, or padding_idx is not
            one of its rows. (For positions on a GPU, or traced by torch.compile, torch raises its
            own error.)
        TypeError: a dtype is not supported.

    Source: Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3.1.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> table = np.arange(8, dtype=np.float32).reshape(4, 2)
        >>> pn.absolute.learned_positions(table, np.array([1, 0, -1]), offset=2)
        array([[6., 7.],
               [4., 5.],
               [2., 3.]], dtype=float32)
    """
    function = "learned_positions"
    arrays = Arrays(function, None, None, table=table, positions=positions)
    table = arrays.table(table)
    offset = arguments.size(function, "offset", offset)
    count = table.shape[0]
    if padding_idx is not None:
        if not arguments.is_count(padding_idx):
            wrong_type(function, "padding_idx", "an int or None", type(padding_idx).__name__)
        if not -count <= padding_idx < count:
            expected = f"a row in {-count} .. {count - 1}, of a table of {count} rows"
            wrong_value(function, "padding_idx", expected, padding_idx)
    if arguments.is_count(positions):
        number = arguments.length(function, "positions", positions)
        if number + offset > count:
            _no_such_row(number - 1, offset, count)
        rows = arrays.arange(number) + offset
    else:
        rows = arrays.integers("positions", positions, arguments.INTEGER_DTYPES)
        if arrays.seen(rows) is not None and 0 not in rows.shape:
            # The caller's numbers: neither truncated to int64 nor moved past its end by the offset.
            numbers: Any = positions
            if is_tensor(numbers):
                numbers = numbers.numpy()
            numbers = arguments.as_array(function, "positions", numbers)
            for extreme in (int(numbers.min()), int(numbers.max())):
                if not 0 <= extreme + offset < count:
                    _no_such_row(extreme, offset, count)
        rows = rows + offset
    if not arrays.is_torch:
        return table[rows]
    return arrays.xp.nn.functional.embedding(rows, table, padding_idx)


def _no_such_row(position: int, offset: int, count: int) -> None:
    expected = f"positions in {-offset} .. {count - offset - 1}, of a table of {count} rows"
    wrong_value("learned_positions", "positions", expected, position)


@of_wholes
def recurrent_positions(
    count: int, state: Any, weight: Any, bias_ih: Any, bias_hh: Any, *, dtype: Any = None
) -> ArrayOrTensor:
    """States of a GRU without input: each position is computed from the previous one.

        r = sigmoid(bias_ih[0:h] + (weight @ s + bias_hh)[0:h])
        z = sigmoid(bias_ih[h:2h] + (weight @ s + bias_hh)[h:2h])
        n = tanh(bias_ih[2h:3h] + r * (weight @ s + bias_hh)[2h:3h])
        s, for the next position  =  (1 - z) * n + z * s

    The encoding of position p is the state p + 1 steps after `state`. The last row of a result is
    therefore the state to continue from: a table can be extended to any length, and a decoding step
    is a call with count 1.

    Args:
        count: number of positions.
        state: ``[h]``, learned, or the last row of the previous positions.
        weight: ``[3 h, h]``, the gates r, z, n in the order of torch.nn.GRU's weight_hh.
        bias_ih, bias_hh: ``[3 h]``; bias_ih is the only remaining part of the input. There are two
            biases because n treats them differently.
        dtype: float32 (default) or float64 to keep states exactly, or float16 or bfloat16.

    Returns:
        ``[count, h]``: an array, or a tensor if an argument is a tensor. NumPy computes in float64;
        torch's GRU computes tensors in float32, or in float64 if `dtype` is float64. Gradients
        reach all tensors.

    Raises:
        ValueError, TypeError: shapes or dtypes do not fit.

    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", for the
    GRU. Positions as states of a learned system are the idea of Liu et al. 2020, "Learning to
    Encode Position for Transformer with Continuous Dynamical Model". Neishi and Yoshinaga 2019, "On
    the Relation between Position Information and Sentence Length in Neural Machine Translation",
    replace the encoding by a recurrent layer that also reads the embeddings; this one does not.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> weight, bias = np.zeros((3, 1)), np.array([0.0, 0.0, 20.0])
        >>> pn.absolute.recurrent_positions(3, np.array([-1.0]), weight, bias, bias * 0)[:, 0]
        array([0.  , 0.5 , 0.75], dtype=float32)
    """
    function = "recurrent_positions"
    parameters = {"state": state, "weight": weight, "bias_ih": bias_ih, "bias_hh": bias_hh}
    arrays = Arrays(function, dtype, None, **parameters)
    count = arguments.length(function, "count", count)
    inputs = [arrays.floats(argument, value) for argument, value in parameters.items()]
    width = inputs[0].shape[0] if inputs[0].ndim else 0
    shapes = ((width,), (3 * width, width), (3 * width,), (3 * width,))
    for argument, value, shape in zip(parameters, inputs, shapes, strict=True):
        arguments.check_shape(function, argument, tuple(value.shape), shape)
    arguments.check_byte_count(function, (count, width), 8)
    if arrays.is_torch:
        from posenc_native.engines.torch.recurrent import recurrent

        return arrays.rounded(recurrent(count, *(arrays.real(value) for value in inputs)))
    current, weight, bias_ih, bias_hh = (arrays.wide(value) for value in inputs)
    rows = np.empty((count, width))
    for row in rows:
        r, z, n = np.split(weight @ current + bias_hh, 3)
        reset, update = (
            1 / (1 + np.exp(-np.clip(gate, -500, 500)))
            for gate in (bias_ih[:width] + r, bias_ih[width : 2 * width] + z)
        )
        new = np.tanh(bias_ih[2 * width :] + reset * n)
        current = row[:] = (1 - update) * new + update * current
    return arrays.rounded(rows)


@overload
def combine(x: TensorLike, encoding: Any, *, how: Combination = ...,
            x_scale: float = ...) -> Tensor: ...  # fmt: skip
@overload
def combine(x: SupportsArray[Number], encoding: Any, *, how: Combination = ...,
            x_scale: float = ...) -> Array[Number]: ...  # fmt: skip
def combine(x: Any, encoding: Any, *, how: Combination = "add", x_scale: float = 1.0) -> Any:
    """Combine embeddings with their position encodings.

    Args:
        x: ``[..., s, d]``, float16, bfloat16, float32 or float64.
        encoding: ``[s, e]``, optionally after axes of size 1 or those of `x`, of any of these
            dtypes.
        how: "add" for ``x * x_scale + encoding`` or "multiply" for ``x * x_scale * encoding``,
            where e is d or 1; "concatenate" for both side by side.
        x_scale: factor of x (sqrt(d) in the Transformer paper).

    Returns:
        An array or tensor like `x`, ``[..., s, d]``, or ``[..., s, d + e]`` if concatenated.
        Computed in float32 (float64 for float64), rounded once. Gradients reach both.

    Raises:
        ValueError: the shapes do not fit, or a name is unknown.
        TypeError: a dtype is not supported.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> x = np.ones((1, 3, 2), np.float32)
        >>> pn.absolute.combine(x, pn.absolute.linear_positions(3), how="concatenate")[0, :, 2]
        array([0., 1., 2.], dtype=float32)
    """
    function = "combine"
    if not is_tensor(x):
        x = arguments.as_operand(function, "x", x)
    arguments.check_dtype(function, "x", x.dtype, arguments.FLOAT_DTYPES)
    arrays = Arrays(function, x.dtype, x.device if is_tensor(x) else None, x=x, encoding=encoding)
    x = arrays.floats("x", x)
    arguments.check_name(function, "how", how, COMBINATIONS)
    x_scale = arguments.factor(function, "x_scale", x_scale, x.dtype)
    encoding = arrays.real(arrays.floats("encoding", encoding))
    shape, sizes = tuple(x.shape), tuple(encoding.shape)
    fits = (
        2 <= len(sizes) <= len(shape)
        and sizes[-2] == shape[-2]
        and (how == "concatenate" or sizes[-1] == shape[-1] or sizes[-1] == 1)
        and all(n == m or n == 1 for n, m in zip(sizes[-3::-1], shape[-3::-1], strict=False))
    )
    if not fits:
        width = "e" if how == "concatenate" else "d or 1"
        expected = f"shape [..., s, {width}] for x [..., s, d] of shape {list(shape)}"
        wrong_value(function, "encoding", expected, list(sizes))
    scaled = arrays.real(x) * x_scale
    if how == "add":
        return arrays.rounded(scaled + encoding)
    if how == "multiply":
        return arrays.rounded(scaled * encoding)
    encoding = arrays.xp.broadcast_to(encoding, (*shape[:-1], sizes[-1]))
    return arrays.rounded(arrays.xp.concatenate([scaled, encoding], -1))
