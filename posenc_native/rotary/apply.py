"""Rotary position encoding, the verb: turn the pairs of a head by the angle of their position.

    (a, b)  ->  (a cos t - b sin t,  b cos t + a sin t),    t = position * inv_freq[pair]

    pairing of a head of 2P rotated dims
    half            x0 x1 ... | xP xP+1 ...      i with i + P        NeoX, Llama in Hugging Face
    interleaved     x0 x1 | x2 x3 | x4 x5 ...    2i with 2i + 1      GPT-J, Llama as published
    an int b        in each block of b dims, i with i + b/2          several axes, one after another

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
"""

# The functions here are the fast path of decoding, where a call takes about as long as their own
# lines. So they pass the options on by position, one by one, to the native module, which also reads
# small tensors (`at_once`). They make a `Rotation`, the record of the options, only for code that
# looks into it.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from posenc_native.base import arguments
from posenc_native.base.hints import hint_at
from posenc_native.base.rotation import Rotation, TableRotation
from posenc_native.engines import backend, late

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from posenc_native.base.kinds import (
        Array,
        Dtype,
        Number,
        Numbers,
        NumPyDtype,
        OutArray,
        OutTensor,
        Pair,
        SupportsArray,
        Tensor,
        TensorLike,
        TorchDtype,
    )
    from posenc_native.base.rotation import RotationOptions, TableRotationOptions

__all__ = [
    "apply_rotary",
    "apply_rotary_qk",
    "apply_rotary_qk_tables",
    "apply_rotary_tables",
    "rotary_tables",
]


@overload
def rotary_tables(positions: TensorLike, inv_freq: Numbers, *, axis_map: Numbers | None = ...,
                  scale: float = ..., dtype: Dtype = ...) -> Pair[Tensor]: ...  # fmt: skip
@overload
def rotary_tables(positions: npt.ArrayLike, inv_freq: TensorLike, *, axis_map: Numbers | None = ...,
                  scale: float = ..., dtype: Dtype = ...) -> Pair[Tensor]: ...  # fmt: skip
@overload
def rotary_tables(positions: Numbers, inv_freq: Numbers, *, axis_map: Numbers | None = ...,
                  scale: float = ..., dtype: TorchDtype) -> Pair[Tensor]: ...  # fmt: skip
@overload
def rotary_tables(positions: npt.ArrayLike, inv_freq: npt.ArrayLike, *,
    axis_map: Numbers | None = ..., scale: float = ..., dtype: NumPyDtype = ...,
) -> Pair[Array[Any]]: ...  # fmt: skip
def rotary_tables(
    positions: npt.ArrayLike | TensorLike,
    inv_freq: npt.ArrayLike | TensorLike,
    *,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float = 1.0,
    dtype: Any = None,
) -> tuple[Any, Any]:
    """Cosines and sines of ``positions * inv_freq``, exact at every position.

    Args:
        positions: an int n for 0 .. n-1, or an array or tensor of any shape; with `axis_map`, the
            first axis chooses the coordinate: ``[A, ...]``.
        inv_freq: ``[P]``, radians per position, float32 or float64; taken as exact.
        axis_map: ``[P]`` ints, which coordinate drives each pair.
        scale: factor of both (YaRN's attention factor).
        dtype: float16, bfloat16, float32 (default) or float64, of NumPy or torch.

    Returns:
        ``(cos, sin)``, each ``positions.shape + (P,)`` (without the axis A).

    Raises:
        ValueError: shapes that do not fit, positions or frequencies that are not finite.
        TypeError: impossible dtypes.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> cos, sin = pn.rotary_tables(np.array([0, 10**6]), np.array([1.0, 0.01]))
        >>> cos.round(6)
        array([[ 1.      ,  1.      ],
               [ 0.936752, -0.952155]], dtype=float32)
    """
    if (
        arguments.is_tensor(positions)
        or arguments.is_tensor(inv_freq)
        or arguments.is_torch_dtype(dtype)
    ):
        return late.torch_operations().rotary_tables(  # type: ignore[no-any-return]
            positions, inv_freq, axis_map, scale, dtype
        )
    function = "rotary_tables"
    if axis_map is not None and isinstance(positions, (int, np.integer)):
        arguments.wrong_value(function, "positions", "shape [A, ...] with axis_map", "a count")
    if not isinstance(positions, (int, np.integer)):
        positions = arguments.as_positions(function, positions)
    inv_freq = arguments.as_frequencies(function, inv_freq)
    if axis_map is not None:
        axis_map = arguments.as_array(function, "axis_map", axis_map)
    if dtype is not None:
        dtype = arguments.as_dtype(function, dtype)
    return backend.implementation.rotary_tables(  # type: ignore[no-any-return]
        positions, inv_freq, axis_map, scale, dtype
    )


@overload
def apply_rotary(x: TensorLike, positions: Numbers | None, inv_freq: Numbers, *,
    out: OutTensor = ..., **options: Unpack[RotationOptions]) -> Tensor: ...  # fmt: skip
@overload
def apply_rotary(x: SupportsArray[Number], positions: Numbers | None, inv_freq: Numbers, *,
    out: OutArray = ..., **options: Unpack[RotationOptions]) -> Array[Number]: ...  # fmt: skip
def apply_rotary(
    x: Any,
    positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor,
    *,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int = 0,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float = 1.0,
    inverse: bool = False,
    contiguous: bool = False,
    out: Any = None,
) -> Any:
    """Rotate `x` by its positions.

    Args:
        x: float16, bfloat16, float32 or float64, of any strides (slices of a packed QKV,
            transposed and expanded views); of NumPy, torch, or any library whose arrays NumPy can
            read without a copy (JAX with its bfloat16, pandas, memory-mapped files).
        positions: None for 0 .. s-1, ``[s]``, ``[b, s]`` or ``[1, s]`` for any batch (``[t]`` for
            packed tokens); with `axis_map` or three axes of `inv_freq`, ``[A, s]``, ``[A, b, s]``
            or ``[A, 1, s]``. Integers are exact, floats allowed; never of the dtype of `x`.
        inv_freq: radians per position, float32 or float64; see `rotary_frequencies`. ``[P]``, or
            ``[H, P]`` if every head has its own, or ``[A, H, P]`` (H may be 1) if the angle of a
            pair is the sum over the axes of ``positions[a] * inv_freq[a, h, p]``.
        layout: the axes of `x` in memory order, ending in d: b (batch), s (sequence), h (heads),
            d (head_dim), or t for packed tokens: "bhsd", "bshd", "sbhd", "thd", "sd" ...
        pairing: "half", "interleaved" or an even block size; see the module's head.
        rotary_start: the dims ``rotary_start .. rotary_start + 2P`` are rotated, the rest copied.
        axis_map: ``[P]`` ints, which position axis drives each pair.
        scale: factor of cosine and sine.
        inverse: turn the other way (the transpose; it undoes the rotation where scale is 1).
        contiguous: True for a result in C order, which ``view`` can split and join; False for the
            strides of `x` where it is dense, as NumPy and torch do. (One flag, and not torch's
            ``memory_format`` or NumPy's ``order``: it serves both.) An `x` in another order is
            copied first.
        out: where the result goes; `x` itself rotates in place.

    Returns:
        An array or tensor like `x`. Computed in float32 (float64 for float64), rounded once.
        Gradients reach `x`, `inv_freq` and floating `positions` (then without `out`).

    Raises:
        ValueError: shapes, layout or slice that do not fit, an overlapping `out`.
        TypeError: impossible dtypes.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> inv_freq, _ = pn.rotary_frequencies(4)
        >>> x = np.ones((1, 1, 2, 4), np.float32)
        >>> pn.apply_rotary(x, np.array([0, 100]), inv_freq).round(4)[0, 0]
        array([[ 1.    ,  1.    ,  1.    ,  1.    ],
               [ 1.3687, -0.3012,  0.356 ,  1.3818]], dtype=float32)
    """
    try:
        if contiguous:
            x = arguments.in_order("apply_rotary", x, out is not None)
        operations, native = None, backend.implementation
        if type(x) is not ndarray:
            operations = late.operations_on(x)
            if operations is None:
                x = arguments.as_operand("apply_rotary", "x", x)
            else:
                native = operations.at_once(x)
        if operations is None:
            if type(positions) is not ndarray and positions is not None:
                positions = _position_array("apply_rotary", positions, x)
            if type(inv_freq) is not ndarray:
                inv_freq = arguments.as_frequencies("apply_rotary", inv_freq)
            if type(axis_map) is not ndarray and axis_map is not None:
                axis_map = arguments.as_array("apply_rotary", "axis_map", axis_map)
            if out is not None and type(out) is not ndarray:
                arguments.check_no_mask("apply_rotary", "out", out)
        if native is not None:
            result = native.apply_rotary(
                x, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse, out
            )
            if operations is None:
                return result
            if result is not NotImplemented:
                return result
        rotation = Rotation(
            positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse
        )  # fmt: skip
        return operations.apply_rotary(x, rotation, out)
    except (ValueError, TypeError) as error:
        rotation = Rotation(
            positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse
        )
        hint_at(error, rotation, x=x)
        raise


@overload
def apply_rotary_qk(q: TensorLike, k: TensorLike, positions: Numbers | None, inv_freq: Numbers, *,
    inplace: bool = ..., out: Pair[OutTensor] | None = ..., **options: Unpack[RotationOptions],
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def apply_rotary_qk(q: SupportsArray[Number], k: SupportsArray[Number], positions: Numbers | None,
    inv_freq: Numbers, *, inplace: bool = ..., out: Pair[OutArray] | None = ...,
    **options: Unpack[RotationOptions],
) -> Pair[Array[Number]]: ...  # fmt: skip
def apply_rotary_qk(
    q: Any,
    k: Any,
    positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: npt.ArrayLike | torch.Tensor,
    *,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int = 0,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float = 1.0,
    inverse: bool = False,
    contiguous: bool = False,
    inplace: bool = False,
    out: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """Rotate the queries and keys of a layer in one call; angles are computed once for both.

    Args:
        q, k: as x in `apply_rotary`, of one dtype and one shape but for the number of heads.
        inplace: write the results to `q` and `k`.
        out: a pair ``(q_out, k_out)`` of where the results go; `q` and `k` themselves stay where
            they are.
        positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse, contiguous: as
            in `apply_rotary`.

    Returns:
        ``(q, k)`` rotated; the arguments themselves if in place, `out` if it is given.

    Raises:
        ValueError, TypeError: as in `apply_rotary`; nothing has been written then.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> inv_freq, _ = pn.rotary_frequencies(64)
        >>> q, k = np.ones((1, 8, 5, 64), np.float32), np.ones((1, 2, 5, 64), np.float32)
        >>> rotated_q, rotated_k = pn.apply_rotary_qk(q, k, None, inv_freq)
        >>> rotated_k.shape
        (1, 2, 5, 64)
    """
    to: Any = inplace
    try:
        if out is not None:
            to = _outputs("apply_rotary_qk", out, inplace)
        if contiguous:
            q, k = (arguments.in_order("apply_rotary_qk", x, bool(to)) for x in (q, k))
        operations, native, given = None, backend.implementation, None
        if not type(q) is type(k) is ndarray:
            operations = late.operations_on(q)
            if operations is None:
                given = q, k
                q, k = arguments.as_operands("apply_rotary_qk", q, k, inplace)
            else:
                native = operations.at_once(q)
        if operations is None:
            if type(positions) is not ndarray and positions is not None:
                positions = _position_array("apply_rotary_qk", positions, q)
            if type(inv_freq) is not ndarray:
                inv_freq = arguments.as_frequencies("apply_rotary_qk", inv_freq)
            if type(axis_map) is not ndarray and axis_map is not None:
                axis_map = arguments.as_array("apply_rotary_qk", "axis_map", axis_map)
        if native is not None:
            rotated: tuple[Any, Any] = native.apply_rotary_qk(
                q,
                k,
                positions,
                inv_freq,
                layout,
                pairing,
                rotary_start,
                axis_map,
                scale,
                inverse,
                to,
            )
            if operations is None:
                return given if inplace and given else rotated
            if rotated is not NotImplemented:
                return rotated
        rotation = Rotation(
            positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse
        )  # fmt: skip
        return operations.apply_rotary_qk(q, k, rotation, to)  # type: ignore[no-any-return]
    except (ValueError, TypeError) as error:
        rotation = Rotation(
            positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse
        )
        hint_at(error, rotation, q=q, k=k)
        raise


@overload
def apply_rotary_tables(x: TensorLike, cos: Any, sin: Any, *, out: OutTensor = ...,
                        **options: Unpack[TableRotationOptions]) -> Tensor: ...  # fmt: skip
@overload
def apply_rotary_tables(x: SupportsArray[Number], cos: Any, sin: Any, *, out: OutArray = ...,
                        **options: Unpack[TableRotationOptions]) -> Array[Number]: ...  # fmt: skip
def apply_rotary_tables(
    x: Any,
    cos: Any,
    sin: Any,
    *,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int = 0,
    inverse: bool = False,
    compute: str = "float32",
    out: Any = None,
) -> Any:
    """Rotate `x` by ready cosines and sines.

    Args:
        x, layout, pairing, rotary_start, inverse, out: as in `apply_rotary`.
        cos, sin: ``[s, P]``, ``[b, s, P]`` or ``[1, s, P]`` (``[t, P]`` for packed tokens), one
            value a pair, of any of the four float dtypes.
        compute: "float32": all in float32 (float64 for a float64 `x`), rounded once. "as_written":
            rounded as the operations of ``x * cos + rotate_half(x) * sin`` on tensors of x's dtype
            are: cos and sin to that dtype, each product, the sum. That is bit for bit what Llama
            and its kin in transformers compute in eager mode, forwards and backwards.

    Returns:
        An array or tensor like `x`. Gradients reach `x`, and `cos` and `sin` if they ask for them.

    Raises:
        ValueError, TypeError: as in `apply_rotary`.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> inv_freq, _ = pn.rotary_frequencies(4)
        >>> cos, sin = pn.rotary_tables(3, inv_freq)
        >>> x = np.ones((3, 4), np.float32)
        >>> same = pn.apply_rotary(x, None, inv_freq, layout="sd")
        >>> bool((pn.apply_rotary_tables(x, cos, sin, layout="sd") == same).all())
        True
    """
    try:
        operations, native = None, backend.implementation
        if type(x) is not ndarray:
            operations = late.operations_on(x)
            if operations is None:
                x = arguments.as_operand("apply_rotary_tables", "x", x)
            else:
                native = operations.at_once(x)
        if operations is None:
            if type(cos) is not ndarray:
                cos = arguments.as_array("apply_rotary_tables", "cos", cos)
            if type(sin) is not ndarray:
                sin = arguments.as_array("apply_rotary_tables", "sin", sin)
            if out is not None and type(out) is not ndarray:
                arguments.check_no_mask("apply_rotary_tables", "out", out)
        if native is not None:
            result = native.apply_rotary_tables(
                x, cos, sin, layout, pairing, rotary_start, inverse, compute, out
            )
            if operations is None:
                return result
            if result is not NotImplemented:
                return result
        rotation = TableRotation(cos, sin, layout, pairing, rotary_start, inverse, compute)
        return operations.apply_rotary_tables(x, rotation, out)
    except (ValueError, TypeError) as error:
        rotation = TableRotation(cos, sin, layout, pairing, rotary_start, inverse, compute)
        hint_at(error, rotation, x=x)
        raise


@overload
def apply_rotary_qk_tables(q: TensorLike, k: TensorLike, cos: Any, sin: Any, *,
    inplace: bool = ..., out: Pair[OutTensor] | None = ..., **options: Unpack[TableRotationOptions],
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def apply_rotary_qk_tables(q: SupportsArray[Number], k: SupportsArray[Number], cos: Any, sin: Any,
    *, inplace: bool = ..., out: Pair[OutArray] | None = ...,
    **options: Unpack[TableRotationOptions],
) -> Pair[Array[Number]]: ...  # fmt: skip
def apply_rotary_qk_tables(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    *,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int = 0,
    inverse: bool = False,
    compute: str = "float32",
    inplace: bool = False,
    out: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """Rotate the queries and keys of a layer by ready cosines and sines, in one call.

    Args:
        q, k, inplace, out: as in `apply_rotary_qk`.
        cos, sin: as in `apply_rotary_tables`; the same for `q` and `k`.
        layout, pairing, rotary_start, inverse: as in `apply_rotary`.
        compute: as in `apply_rotary_tables`.

    Returns:
        ``(q, k)`` rotated, to the bits of two calls of `apply_rotary_tables`; the arguments
        themselves if in place, `out` if it is given. Gradients reach `q` and `k`, and `cos` and
        `sin` if they ask for them.

    Raises:
        ValueError, TypeError: as in `apply_rotary`; nothing has been written then.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> inv_freq, _ = pn.rotary_frequencies(64)
        >>> cos, sin = pn.rotary_tables(np.array([76, 77]), inv_freq)  # once for all layers
        >>> q, k = np.ones((1, 8, 2, 64), np.float32), np.ones((1, 2, 2, 64), np.float32)
        >>> rotated_q, rotated_k = pn.apply_rotary_qk_tables(q, k, cos, sin)
        >>> bool((rotated_k == pn.apply_rotary_tables(k, cos, sin)).all())
        True
    """
    to: Any = inplace
    try:
        if out is not None:
            to = _outputs("apply_rotary_qk_tables", out, inplace)
        operations, native, given = None, backend.implementation, None
        if not type(q) is type(k) is ndarray:
            operations = late.operations_on(q)
            if operations is None:
                given = q, k
                q, k = arguments.as_operands("apply_rotary_qk_tables", q, k, inplace)
            else:
                native = operations.at_once(q)
        if operations is None:
            if type(cos) is not ndarray:
                cos = arguments.as_array("apply_rotary_qk_tables", "cos", cos)
            if type(sin) is not ndarray:
                sin = arguments.as_array("apply_rotary_qk_tables", "sin", sin)
        if native is not None:
            rotated: tuple[Any, Any] = native.apply_rotary_qk_tables(
                q, k, cos, sin, layout, pairing, rotary_start, inverse, compute, to
            )
            if operations is None:
                return given if inplace and given else rotated
            if rotated is not NotImplemented:
                return rotated
        rotation = TableRotation(cos, sin, layout, pairing, rotary_start, inverse, compute)
        return operations.apply_rotary_qk_tables(q, k, rotation, to)  # type: ignore[no-any-return]
    except (ValueError, TypeError) as error:
        rotation = TableRotation(cos, sin, layout, pairing, rotary_start, inverse, compute)
        hint_at(error, rotation, q=q, k=k)
        raise


def _outputs(function: str, out: Any, inplace: bool) -> tuple[Any, Any]:
    """The argument out for q and k."""
    if not isinstance(out, tuple) or len(out) != 2:
        got = f"{len(out)} of them" if isinstance(out, tuple) else type(out).__name__
        arguments.wrong_type(function, "out", "a pair (q_out, k_out)", got)
    if inplace:
        arguments.wrong_value(function, "inplace", "False where out says where results go", True)
    for i, one in enumerate(out):
        if one is None:
            arguments.wrong_type(function, f"out[{i}]", "memory for the result", None)
        arguments.check_no_mask(function, f"out[{i}]", one)
    return out


def _position_array(function: str, positions: Any, x: Any) -> npt.NDArray[Any]:
    """An int n is 0 .. n-1; anything else becomes an array."""
    if isinstance(positions, (int, np.integer)):
        count = arguments.size(function, "positions", positions)
        if count >= 2**60:  # more than any array can have
            arguments.wrong_value(function, "positions", "a count below 2^60", count)
        if count > max(x.shape, default=0):  # as many as no axis has: refused for their shape
            return np.broadcast_to(np.int64(0), count)
        return np.arange(count)
    return arguments.as_positions(function, positions)
