"""Sinusoidal tables: computed, added to activations, shifted.

row of position p, dim = 2P, w_i = scale * base^(-i / (P - shift))

interleaved   sin(p w0) cos(p w0) sin(p w1) cos(p w1) ...     "Attention Is All You Need"
sin_cos       sin(p w0) sin(p w1) ... cos(p w0) cos(p w1) ... tensor2tensor, fairseq, Whisper
cos_sin       cos(p w0) cos(p w1) ... sin(p w0) sin(p w1) ... DiT, GLIDE

Other conventions, with one or several coordinates, are a `SinusoidalSpec`, which combines such
tables (spec.py); presets.py has the conventions of other projects by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import as_dtype, as_operand, is_tensor, is_torch_dtype
from posenc_native.core.calls.errors import add_hint, fault_of
from posenc_native.core.calls.pairs import FIRST, consecutive
from posenc_native.core.calls.suggestions.vocabulary import MISSING, refuse, takes_words
from posenc_native.engines import backend, late

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypedDict, Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        Device,
        Dtype,
        Number,
        Numbers,
        NumPyDtype,
        OutArray,
        OutTensor,
        SinusoidalLayout,
        SupportsArray,
        Tensor,
        TensorLike,
        TorchDtype,
    )

__all__ = ["add_sinusoidal", "shift_matrix", "sinusoidal"]


if TYPE_CHECKING:

    class Waves(TypedDict, total=False):
        """Keywords of sinusoidal tables."""

        base: float
        layout: SinusoidalLayout
        shift: float
        scale: float

    class AddedWaves(Waves, total=False):
        """Keywords of tables that are added."""

        x_scale: float
        alpha: float


@overload
def sinusoidal(positions: TensorLike, dim: int, *, dtype: Dtype = ..., device: Device | None = ...,
               out: OutTensor = ..., **options: Unpack[Waves]) -> Tensor: ...  # fmt: skip
@overload
def sinusoidal(positions: npt.ArrayLike, dim: int, *, dtype: TorchDtype, out: OutTensor = ...,
               device: Device | None = ..., **options: Unpack[Waves]) -> Tensor: ...  # fmt: skip
@overload
def sinusoidal(positions: npt.ArrayLike, dim: int, *, dtype: Dtype = ..., device: Device,
               out: OutTensor = ..., **options: Unpack[Waves]) -> Tensor: ...  # fmt: skip
@overload
def sinusoidal(positions: npt.ArrayLike, dim: int, *, dtype: NumPyDtype = ..., device: None = ...,
               out: OutArray = ..., **options: Unpack[Waves]) -> Array[Any]: ...  # fmt: skip
@takes_words
def sinusoidal(
    positions: npt.ArrayLike | TensorLike,
    dim: int,
    more: NoReturn = MISSING,
    base: float = 10000.0,
    layout: SinusoidalLayout = "interleaved",
    shift: float = 0.0,
    scale: float = 1.0,
    dtype: Any = None,
    device: Any = None,
    out: Any = None,
    **unknown: NoReturn,
) -> Any:
    """Table of sines and cosines, exact at every position.

    The angle of pair i at position p is ``p * scale * base ** (-i / (dim / 2 - shift))`` radians.
    Positions are integers of up to 64 bits or floats of magnitude below 2^63. Results at position p
    are within ``1.2e-7 + 2^-62 |p|`` of the true value in float32 (the second term matters from
    2^38 on), correctly rounded in float16 and bfloat16 (except if the true value is within 2e-7 of
    a rounding boundary), and within ``4e-16 + 2^-60 |p|`` in float64. Beyond a scale of 2^38 the
    second term is ``2^-98 |scale p|``, the precision of the frequencies.

    Args:
        positions: an int n for 0 .. n-1, or an array or tensor of any shape. The angles of an
            integer p are within 1.7e-19 p radians of the formula; for times in nanoseconds, see the
            origin of a `SinusoidalSpec`.
        dim: width of the table, even. For odd widths see the remainder of a `SinusoidalSpec`:
            PyTorch's tutorial has ``SinusoidalSpec(29, remainder="cut", shift=0.5)``.
        base: ratio of the longest to the shortest wavelength, > 0.
        layout: "interleaved", "sin_cos" or "cos_sin"; see the module docstring.
        shift: 0 for the paper's exponent 2i/dim, 1 for tensor2tensor's i/(dim/2 - 1).
        scale: factor of the angle.
        dtype: float16, bfloat16, float32 (default) or float64, of NumPy or torch. A torch dtype
            makes the result a tensor.
        device: torch device of the result; makes it a tensor.
        out: array or tensor ``positions.shape + (dim,)`` for the result.

    Returns:
        ``positions.shape + (dim,)``: an array, or a tensor for tensors. Gradients reach
        floating-point positions (timesteps, boxes): ``w cos`` and ``-w sin``, as exact as the
        table, summed in float32 (float64 for float64), of any order.

    Raises:
        ValueError: dim is odd, layout is unknown, base <= 0, shift >= dim / 2, positions are not
            finite, `out` does not match or overlaps, `out` comes with positions that require a
            gradient, or no memory can hold the result.
        TypeError: positions have a bool, complex or 16-bit float dtype, or a dtype is not
            supported.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5; the shift is from
    tensor2tensor's ``get_timing_signal_1d``.

    Example:
        >>> import posenc_native as pn
        >>> pn.sinusoidal(2, 4).round(4)
        array([[0.    , 1.    , 0.    , 1.    ],
               [0.8415, 0.5403, 0.01  , 1.    ]], dtype=float32)
    """
    if unknown or dim is MISSING or more is not MISSING:
        refuse(sinusoidal, positions, dim, more, **unknown)
    if device is None:
        table = backend.door.sinusoidal(positions, dim, base, layout, shift, scale, dtype, out)
        if table is not NotImplemented:
            return table
    if type(dim) is int and dim % 2:
        arguments.frequency_parameters("sinusoidal", dim, base, shift, scale)  # raises
    if device is not None or is_tensor(positions) or is_tensor(out) or is_torch_dtype(dtype):
        return late.torch_operations().sinusoidal(
            positions, dim, base, layout, shift, scale, dtype, device, out
        )
    if type(positions) is not np.ndarray and not isinstance(positions, (int, np.integer)):
        positions = arguments.as_positions("sinusoidal", positions)
    if dtype is not None:
        dtype = as_dtype("sinusoidal", dtype)
    if out is not None and type(out) is not np.ndarray:
        arguments.check_no_mask("sinusoidal", "out", out)
    return backend.implementation.sinusoidal(positions, dim, base, layout, shift, scale, dtype, out)


@overload
def add_sinusoidal(x: TensorLike, positions: Numbers | None = ..., *, out: OutTensor = ...,
                   **options: Unpack[AddedWaves]) -> Tensor: ...  # fmt: skip
@overload
def add_sinusoidal(x: SupportsArray[Number], positions: Numbers | None = ..., *,
    out: OutArray = ..., **options: Unpack[AddedWaves]) -> Array[Number]: ...  # fmt: skip
@takes_words
def add_sinusoidal(
    x: Any,
    positions: npt.ArrayLike | torch.Tensor | None = None,
    more: NoReturn = MISSING,
    x_scale: float = 1.0,
    alpha: float = 1.0,
    base: float = 10000.0,
    layout: SinusoidalLayout = "interleaved",
    shift: float = 0.0,
    scale: float = 1.0,
    out: Any = None,
    **unknown: NoReturn,
) -> Any:
    """Add a sinusoidal table in one pass, never in memory: ``x * x_scale + alpha * table``.

    Args:
        x: ``[..., seq, dim]``, float16, bfloat16, float32 or float64, with any strides; dim is
            even. To an x of an odd width add the table of a `SinusoidalSpec`.
        positions: None for 0 .. seq-1, an int p for p .. p + seq-1, ``[seq]``, or one for each row,
            ``x.shape[:-1]``, where all axes except the last may be 1 to broadcast.
        x_scale: factor of x (sqrt(dim) in the Transformer paper).
        alpha: factor of the table.
        base, layout, shift, scale: as in `sinusoidal`: numbers, layout a name.
        out: memory for the result; `x` itself adds in place.

    Returns:
        An array or tensor like `x`. The sum is computed in float32 (float64 for float64) and
        rounded once. Gradients reach `x` and floating-point positions.

    Raises:
        ValueError, TypeError: as in `sinusoidal`; or `x` has fewer than two axes.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> x = np.ones((1, 2, 4), np.float32)
        >>> pn.add_sinusoidal(x, alpha=0.5).round(4)
        array([[[1.    , 1.5   , 1.    , 1.5   ],
                [1.4207, 1.2702, 1.005 , 1.5   ]]], dtype=float32)
    """
    if unknown or x is MISSING or more is not MISSING:
        refuse(add_sinusoidal, x, positions, more, **unknown)
    result = backend.door.add_sinusoidal(
        x, positions, x_scale, alpha, base, layout, shift, scale, out
    )
    if result is not NotImplemented:
        return result
    operations = None if type(x) is np.ndarray else late.operations_on(x)
    if operations is None:
        x = as_operand("add_sinusoidal", "x", x)
    if arguments.is_count(positions):
        tokens = x.shape[-2] if x.ndim > 1 else 0  # which is another error
        positions = consecutive("add_sinusoidal", positions, tokens, x)  # type: ignore[arg-type]
    try:
        if operations is not None:
            return operations.add_sinusoidal(
                x, positions, x_scale, alpha, base, layout, shift, scale, out
            )
        if positions is not None:
            positions = arguments.as_positions("add_sinusoidal", positions, an_int=FIRST)
        if out is not None and type(out) is not np.ndarray:
            arguments.check_no_mask("add_sinusoidal", "out", out)
        return backend.implementation.add_sinusoidal(
            x, positions, x_scale, alpha, base, layout, shift, scale, out
        )
    except ValueError as error:
        fault = fault_of(error)
        if fault is not None and fault.argument == "dim" and x.shape[-1] % 2:
            add_hint(error, arguments.odd_width(x.shape[-1], shift))
        raise


def shift_matrix(
    offset: float,
    dim: int,
    *,
    base: float = 10000.0,
    layout: SinusoidalLayout = "interleaved",
    shift: float = 0.0,
    scale: float = 1.0,
) -> npt.NDArray[np.float64]:
    """The linear map that moves a sinusoidal table by `offset` positions.

    It rotates each pair by its angle at `offset`. This is why attention can learn to look a fixed
    distance away: ``sinusoidal(p, ...) @ shift_matrix(k, ...) == sinusoidal(p + k, ...)``.

    Args:
        offset: number of positions, an integer or not.
        dim, base, layout, shift, scale: as in `sinusoidal`: dim an even int, layout a name,
            the others numbers.

    Returns:
        float64 ``[dim, dim]``.

    Raises:
        ValueError, TypeError: as in `sinusoidal`.

    Source: Vaswani et al. 2017, section 3.5, written out.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> table = pn.sinusoidal(np.array([3, 5]), 8, dtype=np.float64)
        >>> bool(np.allclose(table[0] @ pn.sinusoids.shift_matrix(2, 8), table[1]))
        True
    """
    function = "shift_matrix"
    arguments.check_sinusoidal_layout(function, layout)
    arguments.frequency_parameters(function, dim, base, shift, scale)
    if not abs(arguments.finite_number(function, "offset", offset)) < 2.0**63:
        arguments.wrong_value(function, "offset", "a magnitude below 2^63", offset)
    point = np.asarray(offset)
    from posenc_native.engines.plain import arrays

    row = arrays.sinusoidal(point, dim, base, layout, shift, scale, np.float64, None)
    pairs = (
        np.arange(dim).reshape(-1, 2)
        if layout == "interleaved"
        else np.arange(dim).reshape(2, -1).T
    )
    sines, cosines = pairs.T[::-1] if layout == "cos_sin" else pairs.T
    matrix = np.zeros((dim, dim))
    # sin(a + b) = sin a cos b + cos a sin b      cos(a + b) = cos a cos b - sin a sin b
    matrix[sines, sines] = row[cosines]
    matrix[cosines, sines] = row[sines]
    matrix[cosines, cosines] = row[cosines]
    matrix[sines, cosines] = -row[sines]
    return matrix
