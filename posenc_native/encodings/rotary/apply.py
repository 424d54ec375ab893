"""Apply rotary position encoding: rotate the pairs of each head by the angles of its position.

    (a, b)  ->  (a cos t - b sin t,  b cos t + a sin t),    t = position * inv_freq[pair]

    pairing of a head of 2P rotated dims
    half            x0 x1 ... | xP xP+1 ...      i with i + P        NeoX, Llama in Hugging Face
    interleaved     x0 x1 | x2 x3 | x4 x5 ...    2i with 2i + 1      GPT-J, Llama as published
    an int b        in each block of b dims, i with i + b/2          several axes, one after another

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
"""

# A call with one token takes about as long as the lines here. They therefore pass the options to
# the fast path (`door`) one by one, by position, and make a record only for the general path.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import numpy.typing as npt

from posenc_native.core.calls.pairs import missing_one, outputs
from posenc_native.core.calls.rotation import Rotation
from posenc_native.core.calls.suggestions.vocabulary import (
    MISSING,
    refuse,
    refuse_missing,
    takes_words,
)
from posenc_native.engines import backend
from posenc_native.engines.eight_bit_results import (
    any_eight_bits,
    refuse_scales,
    write_eight_bits,
)
from posenc_native.engines.rotations import Call, outs_of, run
from posenc_native.engines.verbs import APPLY_ROTARY, APPLY_ROTARY_QK

from .rows import with_axes

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from posenc_native.core.calls.kinds import (
        Angles,
        Array,
        FrequencyAxes,
        Item,
        Number,
        Numbers,
        NumbersOfTwo,
        OutArray,
        OutTensor,
        Pair,
        Pairing,
        SupportsArray,
        Tensor,
        TensorLike,
    )
    from posenc_native.core.calls.rotation import (
        RotationOptions,
        RotationOptionsOfTwo,
    )

__all__ = [
    "apply_rotary",
    "apply_rotary_qk",
]


@overload
def apply_rotary(x: TensorLike, positions: Numbers | None, inv_freq: Angles, *,
    out: OutTensor = ..., **options: Unpack[RotationOptions]) -> Tensor: ...  # fmt: skip
@overload
def apply_rotary(x: SupportsArray[Number], positions: Numbers | None, inv_freq: Angles, *,
    out: OutArray = ..., **options: Unpack[RotationOptions]) -> Array[Number]: ...  # fmt: skip
@takes_words
def apply_rotary(
    x: Any,
    positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: Angles,
    more: NoReturn = MISSING,
    layout: str | None = None,
    pairing: Pairing | None = None,
    rotary_start: int | None = None,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float | None = None,
    inverse: bool = False,
    out_pairing: Pairing | Literal["same"] = "same",
    contiguous: bool = False,
    inv_freq_axes: FrequencyAxes | None = None,
    out: Any = None,
    **unknown: NoReturn,
) -> Any:
    """Rotate `x` by the angles of its positions.

    Args:
        x: float16, bfloat16, float32 or float64, with any strides (slices of a packed QKV,
            transposed and expanded views); an array or tensor of NumPy, torch, or any library whose
            arrays NumPy can read without a copy (JAX with its bfloat16, pandas, memory-mapped
            files).
        positions: None for 0 .. s-1, an int p for p .. p + s-1, ``[s]``, ``[b, s]``, or ``[1, s]``
            for any batch (``[t]`` for packed tokens). With `axis_map` or three axes of `inv_freq`:
            ``[A, s]``, ``[A, b, s]`` or ``[A, 1, s]``. Integers are exact; floats are allowed.
            Positions never take the dtype of `x`.
        inv_freq: where the angles come from, besides positions. A `Rotary`, or a module that has
            one: it includes pairing, rotary_start, axis_map and scale, which must not be set
            beside it. `Tables` of cosines and sines, with positions None. Or frequencies in radians
            per position, float32 or float64 (see `rotary_frequencies`): ``[P]``; ``[H, P]`` for
            different frequencies per head; or ``[A, H, P]`` (H may be 1), where the angle of a pair
            is the sum over the axes of ``positions[a] * inv_freq[a, h, p]``.
        layout: the axes of `x` in memory order, ending in d: b (batch), s (sequence), h (heads),
            d (head_dim), or t for packed tokens: "bhsd" (default, unless the `Rotary` has
            another), "bshd", "sbhd", "thd", "sd" ... With g (groups of h heads each), as in
            "sbghd", heads are numbered across the groups.
        pairing: "half" (default), "interleaved" or an even block size; see the module docstring.
        rotary_start: the dims ``rotary_start .. rotary_start + 2P`` are rotated, the others are
            copied; default 0.
        axis_map: ``[P]`` ints, the position axis that drives each pair.
        scale: factor of cosine and sine, such as the attention factor that `rotary_frequencies`
            returns with the frequencies; default 1.
        inverse: rotate by the negative angles (the transpose; it undoes the rotation if scale is
            1).
        out_pairing: "same", or the pairing of the result, whose dims are then reordered to match.
            DeepSeek's and Megatron's MLA use ``pairing="interleaved", out_pairing="half"``.
        contiguous: True for a result in C order, which ``view`` can split and join; False for the
            strides of `x` if it is dense, as in NumPy and torch. (One flag, unlike torch's
            ``memory_format`` or NumPy's ``order``, works for both.) An `x` in another order is
            copied first.
        inv_freq_axes: the axes of `inv_freq`, by letters: "p", "hp" (frequencies of each head),
            "ahp", or "bp" for ``[b, P]``: frequencies of each row of the batch, as `Rotary.rows`
            has. Without it ``[H, P]`` are of heads, also where there are as many rows.
        out: memory for the result; `x` itself rotates in place.

    Returns:
        An array or tensor like `x`. Computed in float32 (float64 for float64), rounded once.
        Gradients reach `x`, `inv_freq` (or its tables) and floating-point `positions` (only without
        `out`).

    Raises:
        ValueError: the shapes, layout or slice do not fit, or `out` overlaps.
        TypeError: a dtype is not supported.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(4)
        >>> x = np.ones((1, 1, 2, 4), np.float32)
        >>> pn.apply_rotary(x, np.array([0, 100]), rope).round(4)[0, 0]
        array([[ 1.    ,  1.    ,  1.    ,  1.    ],
               [ 1.3687, -0.3012,  0.356 ,  1.3818]], dtype=float32)
    """
    if unknown or more is not MISSING:
        refuse(apply_rotary, x, positions, inv_freq, more, **unknown)
    if inv_freq_axes is not None:
        inv_freq = with_axes("apply_rotary", inv_freq, inv_freq_axes)
    if not contiguous:
        result = backend.door.apply_rotary(
            x, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse,
            None, None, out_pairing, out,
        )  # fmt: skip
        if result is not NotImplemented:
            return result
    refuse_missing(apply_rotary, x, positions, inv_freq)
    rotation = Rotation(
        positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse,
        out_pairing=out_pairing,
    )  # fmt: skip
    return run(Call(APPLY_ROTARY, (x,), rotation, None if out is None else (out,)), contiguous)


@overload
def apply_rotary_qk(q: TensorLike, k: TensorLike, positions: NumbersOfTwo,
    inv_freq: Angles, *, inplace: bool = ..., out: Pair[OutTensor] | None = ...,
    q_scale: Any = ..., k_scale: Any = ...,
    **options: Unpack[RotationOptionsOfTwo],
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def apply_rotary_qk(q: SupportsArray[Number], k: SupportsArray[Number],
    positions: NumbersOfTwo, inv_freq: Angles, *, inplace: bool = ...,
    out: Pair[OutArray] | None = ..., q_scale: Any = ..., k_scale: Any = ...,
    **options: Unpack[RotationOptionsOfTwo],
) -> Pair[Array[Number]]: ...  # fmt: skip
@overload
def apply_rotary_qk(q: None, k: Item, positions: NumbersOfTwo, inv_freq: Angles, *,
    inplace: bool = ..., out: tuple[None, Any] | None = ..., k_scale: Any = ...,
    **options: Unpack[RotationOptionsOfTwo],
) -> tuple[None, Item]: ...  # fmt: skip
@overload
def apply_rotary_qk(q: Item, k: None, positions: NumbersOfTwo, inv_freq: Angles, *,
    inplace: bool = ..., out: tuple[Any, None] | None = ..., q_scale: Any = ...,
    **options: Unpack[RotationOptionsOfTwo],
) -> tuple[Item, None]: ...  # fmt: skip
@takes_words
def apply_rotary_qk(
    q: Any,
    k: Any,
    positions: npt.ArrayLike | torch.Tensor | tuple[Any, Any] | None,
    inv_freq: Angles,
    more: NoReturn = MISSING,
    layout: str | None = None,
    pairing: Pairing | None = None,
    rotary_start: int | tuple[int, int] | None = None,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float | None = None,
    inverse: bool = False,
    out_pairing: Pairing | Literal["same"] = "same",
    contiguous: bool = False,
    inv_freq_axes: FrequencyAxes | None = None,
    inplace: bool = False,
    out: tuple[Any, Any] | None = None,
    q_scale: Any = None,
    k_scale: Any = None,
    **unknown: NoReturn,
) -> tuple[Any, Any]:
    """Rotate the queries and keys of a layer in one call; angles are computed once for both.

    Args:
        q, k: as x in `apply_rotary`. They have one dtype and one shape, except for the number of
            heads and for sizes that a pair of `positions` or `rotary_start` makes independent. One
            of them may be None, and is then None in the result.
        positions: as in `apply_rotary`: None, an int, ``[s]``, ``[b, s]`` or ``[1, s]``; or a tuple
            of two, ``(q_positions, k_positions)``: q and k may then differ in length and batch.
            ``(None, None)`` counts each from 0. Two numbers are not a pair: they are the positions
            of two tokens.
        rotary_start: as in `apply_rotary`, or a pair ``(q_start, k_start)``: the heads of q and k
            may then differ in width.
        inplace: write the results to `q` and `k`.
        out: a pair ``(q_out, k_out)`` of memory for the results; `q` and `k` themselves rotate in
            place. Memory of float8_e4m3fn, float8_e5m2 or int8 gets the numbers divided by a scale
            and rounded once, without a gradient.
        q_scale, k_scale: these scales, as in `rotary_append`; default 1.
        inv_freq: as in `apply_rotary`: a `Rotary` (or a module that has one), `Tables`, or
            frequencies ``[P]``. Tables may be pairs for q and k.
        layout, pairing, axis_map, scale, inverse, out_pairing, contiguous, inv_freq_axes: as in
            `apply_rotary`.

    Returns:
        ``(q, k)`` rotated; the arguments themselves if in place, or `out`.

    Raises:
        ValueError, TypeError: as in `apply_rotary`; then nothing has been written.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(64)
        >>> q, k = np.ones((1, 8, 5, 64), np.float32), np.ones((1, 2, 5, 64), np.float32)
        >>> rotated_q, rotated_k = pn.apply_rotary_qk(q, k, None, rope)
        >>> bool((rotated_k[0, 0, 4] == pn.apply_rotary(k[:, :, 4:], 4, rope)[0, 0, 0]).all())
        True
    """
    if unknown or more is not MISSING:
        refuse(apply_rotary_qk, q, k, positions, inv_freq, more, **unknown)
    if inv_freq_axes is not None:
        inv_freq = with_axes("apply_rotary_qk", inv_freq, inv_freq_axes)
    to: Any = inplace
    if out is not None:
        to = outputs("apply_rotary_qk", out, inplace, missing_one(q, k))
    if q_scale is not None or k_scale is not None or (out is not None and any_eight_bits(out)):
        if out is None:
            refuse_scales("apply_rotary_qk", q_scale, k_scale)
        rotation = Rotation(
            positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse,
            out_pairing=out_pairing,
        )  # fmt: skip
        call = Call(APPLY_ROTARY_QK, (q, k), rotation, to)
        return write_eight_bits(call, (q_scale, k_scale))
    if not contiguous:
        rotated = backend.door.apply_rotary_qk(
            q, k, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse,
            None, None, out_pairing, to,
        )  # fmt: skip
        if rotated is not NotImplemented:
            return rotated  # type: ignore[no-any-return]
    refuse_missing(apply_rotary_qk, q, k, positions, inv_freq)
    rotation = Rotation(
        positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse,
        out_pairing=out_pairing,
    )  # fmt: skip
    call = Call(APPLY_ROTARY_QK, (q, k), rotation, outs_of(to, q, k))
    return run(call, contiguous)  # type: ignore[no-any-return]
