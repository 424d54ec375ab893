"""Norm and rotation of queries and keys in one pass, between projection and attention.

    y = R(x / sqrt(mean(x^2) + eps) * (weight + weight_offset))

    one reading of x:   x ──► sum of squares ──► r ──► x * r * w ──► rotated by position ──► rounded

If each step goes through memory, models that norm queries and keys spend many times the cost of the
rotation on the norm. Here a head is read once, normed and rotated in registers, and rounded once.

    of a head, w            Qwen3, EXAONE 4, LFM2, GLM-4-MoE         norm_over="head"
    of a head, 1 + w        Gemma 3, Qwen3-Next, T5Gemma 2           weight_offset=1.0
    of all heads            OLMo 2 and 3, OLMoE, MiniMax-M2          norm_over="token"
    after the rotation      HunYuan, TimesFM 2.5; Llama 4 (no w)     norm_first=False

Sources: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; Henry et al. 2020,
"Query-Key Normalization for Transformers"; Su et al. 2021, "RoFormer".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import numpy.typing as npt

from posenc_native.core.calls.norms import NO_QUERY_SCALE, Norm
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
from posenc_native.engines.verbs import NORM_ROTARY_QK

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
        OutArray,
        OutTensor,
        Pair,
        Pairing,
        SupportsArray,
        Tensor,
        TensorLike,
    )
    from posenc_native.core.calls.norms import NormedRotationOptions

__all__ = ["norm_rotary_qk"]


@overload
def norm_rotary_qk(q: TensorLike, k: TensorLike, positions: Numbers | None,
    inv_freq: Angles, *, inplace: bool = ..., out: Pair[OutTensor] | None = ...,
    **options: Unpack[NormedRotationOptions],
) -> Pair[Tensor]: ...  # fmt: skip
@overload
def norm_rotary_qk(q: SupportsArray[Number], k: SupportsArray[Number],
    positions: Numbers | None, inv_freq: Angles, *, inplace: bool = ...,
    out: Pair[OutArray] | None = ...,
    **options: Unpack[NormedRotationOptions],
) -> Pair[Array[Number]]: ...  # fmt: skip
@overload
def norm_rotary_qk(q: None, k: Item, positions: Numbers | None, inv_freq: Angles, *,
    inplace: bool = ..., out: tuple[None, Any] | None = ...,
    **options: Unpack[NormedRotationOptions],
) -> tuple[None, Item]: ...  # fmt: skip
@overload
def norm_rotary_qk(q: Item, k: None, positions: Numbers | None, inv_freq: Angles, *,
    inplace: bool = ..., out: tuple[Any, None] | None = ...,
    **options: Unpack[NormedRotationOptions],
) -> tuple[Item, None]: ...  # fmt: skip
@takes_words
def norm_rotary_qk(
    q: Any,
    k: Any,
    positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: Angles,
    more: NoReturn = MISSING,
    q_weight: npt.ArrayLike | torch.Tensor | None = None,
    k_weight: npt.ArrayLike | torch.Tensor | None = None,
    eps: float = 1e-6,
    norm_over: Literal["head", "token"] = "head",
    weight_offset: float = 0.0,
    norm_first: bool = True,
    layout: str | None = None,
    pairing: Pairing | None = None,
    rotary_start: int | None = None,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float | None = None,
    compute: Literal["float32", "as_written"] | None = None,
    inplace: bool = False,
    out: tuple[Any, Any] | None = None,
    q_scale: Any = None,
    k_scale: Any = None,
    inv_freq_axes: FrequencyAxes | None = None,
    **unknown: NoReturn,
) -> tuple[Any, Any]:
    """RMS norm and rotation of queries and keys in one pass.

    Args:
        q, k: as in `apply_rotary_qk`. The norm applies to the whole head, even if only a slice is
            rotated. One of them may be None, and is then None in the result: for cross-attention,
            where q and k differ in length, make a separate call for each tensor.
        q_weight, k_weight: weights of any of the four float dtypes: ``[D]``, or ``[H, D]`` for
            different weights per head; with ``norm_over="token"`` ``[H, D]`` or ``[H * D]``. None
            for no weights.
        eps: added to the mean of the squares.
        norm_over: the mean is over a "head", or over all heads of a "token". (If the heads of a
            token are on several devices, the mean over all of them needs a sum across devices,
            which these functions do not compute.)
        weight_offset: a number that is added to the weights; 1.0 for Gemma's ``1 + w``.
        norm_first: False applies the norm after the rotation.
        positions: None, an int, ``[s]``, ``[b, s]`` or ``[1, s]``, as in `apply_rotary`.
        inv_freq: a `Rotary`, `Tables`, or radians per position, ``[P]``, float32 or float64, as
            there.
        layout, pairing, rotary_start, axis_map, scale, inv_freq_axes: as in `apply_rotary`.
        compute: "float32" (default): everything in float32 (float64 for float64), rounded once.
            Tables have theirs, which is that of the norm, too. "as_written": rounded where the code
            of transformers rounds, including cosine, sine, products and sum of the rotation. With
            weights in the dtype of `q` and no offset, the norm is ``w * round(x * r)`` (Llama's
            norm, Qwen3); otherwise ``round(x * r * (w + offset))`` (Gemma; pass ``weight.float()``
            for models that multiply in float32). Results match bit for bit if ``r`` is the same:
            torch sums squares in another order, and the last bit of the float32 sum shows in a few
            elements of a million. Not available with different frequencies per head, for which no
            library has tables.
        inplace: write the results to `q` and `k`. Not allowed if a gradient is required: it needs
            the values that would be overwritten.
        out: a pair ``(q_out, k_out)`` of memory for the results, without a gradient. For a long
            prompt, memory that is kept between calls saves the time that the operating system takes
            to provide it, which is longer than the call itself. Memory of 8 bits as in
            `apply_rotary_qk`.
        q_scale, k_scale: scales of results of 8 bits, as there.

    Returns:
        ``(q, k)``; the arguments themselves if in place, or `out`. Gradients reach `q`,
        `k`, the weights, `inv_freq` and floating-point `positions`; only the arguments are kept for
        them.

    Raises:
        ValueError, TypeError: as in `apply_rotary_qk`; then nothing has been written.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(64)
        >>> q, k = np.ones((1, 8, 5, 64), np.float32), np.ones((1, 2, 5, 64), np.float32)
        >>> weight = np.full(64, 3.0, np.float32)
        >>> q, k = pn.norm_rotary_qk(q * 100, k, None, rope, q_weight=weight)
        >>> float(np.sqrt(np.mean(q**2)).round(3)), float(np.sqrt(np.mean(k**2)).round(3))
        (3.0, 1.0)
    """
    if unknown or more is not MISSING:
        refuse(norm_rotary_qk, q, k, positions, inv_freq, more, **unknown)
    if inv_freq_axes is not None:
        inv_freq = with_axes("norm_rotary_qk", inv_freq, inv_freq_axes)
    to = inplace if out is None else outputs("norm_rotary_qk", out, inplace, missing_one(q, k))
    if q_scale is not None or k_scale is not None or (out is not None and any_eight_bits(out)):
        if out is None:
            refuse_scales("norm_rotary_qk", q_scale, k_scale)
        rotation = Rotation(positions, inv_freq, layout, pairing, rotary_start, axis_map, scale)
        norm = Norm(q_weight, k_weight, True, eps, norm_over, weight_offset, norm_first)
        call = Call(NORM_ROTARY_QK, (q, k), rotation, outs_of(to, q, k), (compute,), norm)
        return write_eight_bits(call, (q_scale, k_scale))
    results = backend.door.norm_rotary_qk(
        q, k, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, *ALIKE, compute,
        q_weight, k_weight, True, eps, norm_over, weight_offset, norm_first, *NO_QUERY_SCALE, to,
    )  # fmt: skip
    if results is not NotImplemented:
        return results  # type: ignore[no-any-return]
    refuse_missing(norm_rotary_qk, q, k, positions, inv_freq)
    rotation = Rotation(positions, inv_freq, layout, pairing, rotary_start, axis_map, scale)
    norm = Norm(q_weight, k_weight, True, eps, norm_over, weight_offset, norm_first)
    call = Call(NORM_ROTARY_QK, (q, k), rotation, outs_of(to, q, k), (compute,), norm)
    return run(call)  # type: ignore[no-any-return]


# Defaults for options that a norm and an append lack: the inverse rotation, separate options for k,
# and pairs that move.
ALIKE = Rotation(None, None)[Rotation._fields.index("scale") + 1 :]
