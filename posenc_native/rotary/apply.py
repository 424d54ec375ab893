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

import numpy.typing as npt
from numpy import ndarray

from posenc_native.base import arguments
from posenc_native.base.hints import hint_at
from posenc_native.base.pairs import (
    alone,
    outputs,
    position_array,
    positions_of_each,
    starts_of_each,
)
from posenc_native.base.rotation import Rotation
from posenc_native.engines import backend, late

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from posenc_native.base.kinds import (
        Array,
        Number,
        Numbers,
        NumbersOfTwo,
        OutArray,
        OutTensor,
        Pair,
        SupportsArray,
        Tensor,
        TensorLike,
    )
    from posenc_native.base.rotation import (
        RotationOptions,
        RotationOptionsOfTwo,
    )

__all__ = [
    "apply_rotary",
    "apply_rotary_qk",
]


# Where k has nothing of its own: the fields between `inverse` and `out_pairing`.
_SAME_FOR_K = Rotation(None, None)[Rotation._fields.index("inverse") + 1 : -1]


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
    out_pairing: str | int = "same",
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
            d (head_dim), or t for packed tokens: "bhsd", "bshd", "sbhd", "thd", "sd" ... With g
            (groups of heads, h of a group each), "sbghd", heads are counted through the groups.
        pairing: "half", "interleaved" or an even block size; see the module's head.
        rotary_start: the dims ``rotary_start .. rotary_start + 2P`` are rotated, the rest copied.
        axis_map: ``[P]`` ints, which position axis drives each pair.
        scale: factor of cosine and sine.
        inverse: turn the other way (the transpose; it undoes the rotation where scale is 1).
        out_pairing: "same", or the pairing that the result has: its pairs then lie as that says.
            ``pairing="interleaved", out_pairing="half"`` is what DeepSeek's and Megatron's MLA do.
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
    more: tuple[Any, ...] = ()
    try:
        if out_pairing != "same":
            more = *_SAME_FOR_K, out_pairing
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
                positions = position_array("apply_rotary", positions, x)
            if type(inv_freq) is not ndarray:
                inv_freq = arguments.as_frequencies("apply_rotary", inv_freq)
            if type(axis_map) is not ndarray and axis_map is not None:
                axis_map = arguments.as_array("apply_rotary", "axis_map", axis_map)
            if out is not None and type(out) is not ndarray:
                arguments.check_no_mask("apply_rotary", "out", out)
        if native is not None:
            if not more:
                result = native.apply_rotary(
                    x,
                    positions,
                    inv_freq,
                    layout,
                    pairing,
                    rotary_start,
                    axis_map,
                    scale,
                    inverse,
                    out,
                )
            else:
                result = native.apply_rotary(
                    x, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale,
                    inverse, *more, out,
                )  # fmt: skip
            if operations is None:
                return result
            if result is not NotImplemented:
                return result
        rotation = Rotation(
            positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse, *more
        )  # fmt: skip
        return operations.apply_rotary(x, rotation, out)
    except (ValueError, TypeError) as error:
        rotation = Rotation(
            positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse, *more
        )
        hint_at(error, rotation, x=x)
        raise


@overload
def apply_rotary_qk(q: TensorLike, k: TensorLike, positions: NumbersOfTwo, inv_freq: Numbers, *,
    inplace: bool = ..., out: Pair[OutTensor] | None = ..., **options: Unpack[RotationOptionsOfTwo],
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def apply_rotary_qk(q: SupportsArray[Number], k: SupportsArray[Number], positions: NumbersOfTwo,
    inv_freq: Numbers, *, inplace: bool = ..., out: Pair[OutArray] | None = ...,
    **options: Unpack[RotationOptionsOfTwo],
) -> Pair[Array[Number]]: ...  # fmt: skip
@overload
def apply_rotary_qk(q: TensorLike, k: None, positions: NumbersOfTwo, inv_freq: Numbers, *,
    inplace: bool = ..., out: tuple[OutTensor, None] | None = ...,
    **options: Unpack[RotationOptionsOfTwo],
) -> tuple[Tensor, None]: ...  # fmt: skip
@overload
def apply_rotary_qk(q: None, k: TensorLike, positions: NumbersOfTwo, inv_freq: Numbers, *,
    inplace: bool = ..., out: tuple[None, OutTensor] | None = ...,
    **options: Unpack[RotationOptionsOfTwo],
) -> tuple[None, Tensor]: ...  # fmt: skip
@overload
def apply_rotary_qk(q: SupportsArray[Number], k: None, positions: NumbersOfTwo, inv_freq: Numbers,
    *, inplace: bool = ..., out: tuple[OutArray, None] | None = ...,
    **options: Unpack[RotationOptionsOfTwo],
) -> tuple[Array[Number], None]: ...  # fmt: skip
@overload
def apply_rotary_qk(q: None, k: SupportsArray[Number], positions: NumbersOfTwo, inv_freq: Numbers,
    *, inplace: bool = ..., out: tuple[None, OutArray] | None = ...,
    **options: Unpack[RotationOptionsOfTwo],
) -> tuple[None, Array[Number]]: ...  # fmt: skip
def apply_rotary_qk(
    q: Any,
    k: Any,
    positions: npt.ArrayLike | torch.Tensor | tuple[Any, Any] | None,
    inv_freq: npt.ArrayLike | torch.Tensor,
    *,
    layout: str = "bhsd",
    pairing: str | int = "half",
    rotary_start: int | tuple[int, int] = 0,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float = 1.0,
    inverse: bool = False,
    out_pairing: str | int = "same",
    contiguous: bool = False,
    inplace: bool = False,
    out: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """Rotate the queries and keys of a layer in one call; angles are computed once for both.

    Args:
        q, k: as x in `apply_rotary`, of one dtype and one shape but for the number of heads and for
            what `positions` and `rotary_start` leave free. One of them may be None, and is then in
            the result.
        positions: as in `apply_rotary`, or a pair of such, ``(q_positions, k_positions)``, a tuple:
            q and k then have lengths and batches of their own. ``(None, None)`` counts each from 0.
        rotary_start: as in `apply_rotary`, or a pair ``(q_start, k_start)``: heads then have widths
            of their own.
        inplace: write the results to `q` and `k`.
        out: a pair ``(q_out, k_out)`` of where the results go; `q` and `k` themselves stay where
            they are.
        inv_freq, layout, pairing, axis_map, scale, inverse, out_pairing, contiguous: as in
            `apply_rotary`.

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
    more: tuple[Any, ...] = ()
    start: Any = rotary_start
    try:
        if q is None or k is None:
            return alone(
                "apply_rotary_qk", apply_rotary, q, k, (positions, inv_freq), inplace, out,
                layout=layout, pairing=pairing, rotary_start=rotary_start, axis_map=axis_map,
                scale=scale, inverse=inverse, out_pairing=out_pairing, contiguous=contiguous,
            )  # fmt: skip
        if type(positions) is tuple or type(rotary_start) is tuple or out_pairing != "same":
            positions, k_positions = positions_of_each("apply_rotary_qk", q, k, positions, layout)
            start, k_start = starts_of_each("apply_rotary_qk", rotary_start)
            more = k_positions, k_start, out_pairing
        if out is not None:
            to = outputs("apply_rotary_qk", out, inplace)
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
                positions = position_array("apply_rotary_qk", positions, q)
            if type(inv_freq) is not ndarray:
                inv_freq = arguments.as_frequencies("apply_rotary_qk", inv_freq)
            if type(axis_map) is not ndarray and axis_map is not None:
                axis_map = arguments.as_array("apply_rotary_qk", "axis_map", axis_map)
        if native is not None:
            rotated: tuple[Any, Any]
            if not more:
                rotated = native.apply_rotary_qk(
                    q,
                    k,
                    positions,
                    inv_freq,
                    layout,
                    pairing,
                    start,
                    axis_map,
                    scale,
                    inverse,
                    to,
                )
            else:
                rotated = native.apply_rotary_qk(
                    q, k, positions, inv_freq, layout, pairing, start, axis_map, scale,
                    inverse, *more, to,
                )  # fmt: skip
            if operations is None:
                return given if inplace and given else rotated
            if rotated is not NotImplemented:
                return rotated
        rotation = Rotation(
            positions, inv_freq, layout, pairing, start, axis_map, scale, inverse, *more
        )  # fmt: skip
        return operations.apply_rotary_qk(q, k, rotation, to)  # type: ignore[no-any-return]
    except (ValueError, TypeError) as error:
        rotation = Rotation(
            positions, inv_freq, layout, pairing, start, axis_map, scale, inverse, *more
        )
        hint_at(error, rotation, q=q, k=k)
        raise
