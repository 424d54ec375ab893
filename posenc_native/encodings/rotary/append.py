"""A serving step in one pass: rotate queries, rotate keys into a cache, copy values into a cache.

projection ──► q ──(norm)── rotation ──► q                     to attention
           ──► k ──(norm)── rotation ──► keys[slots[token]]    and k, if prefill needs it
           ──► v ──────────────────────► values[slots[token]]

the slot of a token
static cache  "bhsd"   its index in the row of the batch      position
ring          "bhsd"   a window that wraps around             position % window
flat pool     "shd"    an index from an allocator
pages         "pshd"   table[position // size] * size + position % size
padding                -1: nothing is written
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.caches import scale_options
from posenc_native.core.calls.norms import NO_QUERY_SCALE, Norm
from posenc_native.core.calls.pairs import outputs
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
    append_beside_eight_bits,
    refuse_scales,
)
from posenc_native.engines.rotations import Call, outs_of, run
from posenc_native.engines.verbs import ROTARY_APPEND

from .norm import ALIKE
from .rows import with_axes

if TYPE_CHECKING:
    import torch

    from posenc_native.core.calls.kinds import Angles, FrequencyAxes, Pairing

__all__ = ["rotary_append"]


@takes_words
def rotary_append(
    q: Any,
    k: Any,
    v: Any,
    positions: npt.ArrayLike | torch.Tensor | None,
    inv_freq: Angles,
    keys: Any,
    values: Any,
    slots: npt.ArrayLike | torch.Tensor,
    more: NoReturn = MISSING,
    layout: str | None = None,
    cache_layout: str = "bhsd",
    norm: bool | None = None,
    q_weight: npt.ArrayLike | torch.Tensor | None = None,
    k_weight: npt.ArrayLike | torch.Tensor | None = None,
    eps: float = 1e-6,
    norm_over: Literal["head", "token"] = "head",
    weight_offset: float = 0.0,
    norm_first: bool = True,
    pairing: Pairing | None = None,
    rotary_start: int | None = None,
    axis_map: npt.ArrayLike | torch.Tensor | None = None,
    scale: float | None = None,
    compute: Literal["float32", "as_written"] | None = None,
    return_k: bool = False,
    k_scale: Any = None,
    v_scale: Any = None,
    scales: tuple[Any, Any] | None = None,
    inplace: bool = False,
    out: Any = None,
    q_scale: Any = None,
    inv_freq_axes: FrequencyAxes | None = None,
    **unknown: NoReturn,
) -> Any:
    """Rotate `q` and `k`, and write `k` and `v` into caches, in one pass.

    Args:
        q, k: as in `apply_rotary_qk`. Without queries, such as when cross-attention fills its
            cache, q is None in the call and in the result.
        v: values with the shape of `k` except for the width of heads; copied bit for bit.
        keys, values: the caches to write to, arrays or tensors like `k` and `v`, with their dtype
            or of float8_e4m3fn, float8_e5m2 or int8. They share no memory with `q`, `k`, `v` or
            each other. A cache of 8 bits has ``round(x / scale)``, where x is the result in
            float32: rounded once, to nearest even, and saturating. float8 keeps NaN; int8 has 0.
        slots: the destinations of the tokens, integers ``[s]``, ``[b, s]`` or ``[1, s]`` (``[t]``
            for packed tokens), each at most once (per row of the batch, if the cache has rows);
            tokens with slot -1 are not written. Slots of tensors on a GPU are not checked: nothing
            outside the cache is written, and one of the tokens with the same slot remains.
        cache_layout: the axes of the caches in memory order, ending in d. "bhsd" or "bshd": one row
            per batch entry, and a slot is an index along s. "shd" or "hsd": one pool for all.
            "pshd" or "phsd": pages, and a slot is page * size of a page + place in the page.
        norm: whether to apply the norm to `q` and `k`; default True with a weight.
        q_weight, k_weight, eps, norm_over, weight_offset, norm_first, compute: as in
            `norm_rotary_qk`.
        positions: None, an int, ``[s]``, ``[b, s]`` or ``[1, s]``, as in `apply_rotary`.
        inv_freq: a `Rotary`, `Tables`, or radians per position, ``[P]``, float32 or float64, as
            there.
        layout, pairing, rotary_start, axis_map, scale, inv_freq_axes: as in `apply_rotary`.
        k_scale, v_scale: the divisor of the numbers of a cache of 8 bits: a number, or float32
            ``[1]`` or ``[H]``, one for each head. Default 1.
        scales: instead of these, memory ``(k_scales, v_scales)`` for scales that are made here, one
            for each token and head: float32 with the shape of the cache without d. A scale is the
            largest magnitude of the row, divided by that of the format (448, 57,344 or 127), and 0
            for a row of zeros.
        return_k: also return the rotated `k`, to which prefill attends.
        inplace: write the rotated `q` (and `k`, if it is returned) to the arguments.
        out: memory for `q`, or with `return_k` a pair ``(q_out, k_out)``; without a gradient. That
            for `q` may have 8 bits.
        q_scale: the divisor of its numbers then, as `k_scale`.

    Returns:
        `q` rotated, or ``(q, k)``. Gradients reach the results but not the contents of the caches.

    Raises:
        ValueError, TypeError: as in `norm_rotary_qk`; or a slot is outside the cache or used twice,
            or a cache shares memory with an input. Then nothing has been written.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(64)
        >>> window = 4  # a cache of the last four tokens
        >>> keys, values = np.zeros((2, 1, 2, window, 64), np.float32)
        >>> for position in range(6):
        ...     q = np.full((1, 8, 1, 64), position, np.float32)
        ...     k = v = np.full((1, 2, 1, 64), position, np.float32)
        ...     q = pn.rotary_append(
        ...         q, k, v.copy(), position, rope, keys, values, [position % window]
        ...     )
        >>> values[0, 0, :, 0]
        array([4., 5., 2., 3.], dtype=float32)
    """
    if unknown or more is not MISSING:
        refuse(rotary_append, q, k, v, positions, inv_freq, keys, values, slots, more, **unknown)
    if inv_freq_axes is not None:
        inv_freq = with_axes("rotary_append", inv_freq, inv_freq_axes)
    to = inplace if out is None else _outputs("rotary_append", q, out, inplace, return_k)
    if norm is None:
        norm = q_weight is not None or k_weight is not None
    of_norm = q_weight, k_weight, norm, eps, norm_over, weight_offset, norm_first
    of_scales = _NO_SCALES
    if k_scale is not None or v_scale is not None or scales is not None:
        of_scales = scale_options("rotary_append", k_scale, v_scale, scales)
    cache = keys, values, slots, cache_layout, return_k, *of_scales
    if q_scale is not None or (type(to) is tuple and any_eight_bits(to[:1])):
        if out is None:
            refuse_scales("rotary_append", q_scale, None)
        rotation = Rotation(positions, inv_freq, layout, pairing, rotary_start, axis_map, scale)
        places = outs_of(to, q)
        call = Call(ROTARY_APPEND, (q, k, v), rotation, places, (compute,), Norm(*of_norm), cache)
        results = append_beside_eight_bits(call, q_scale)
        return results if return_k else results[0]
    results = backend.door.rotary_append(
        q, k, v, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, *ALIKE,
        compute, *of_norm, *NO_QUERY_SCALE, *cache, to,
    )  # fmt: skip
    if results is NotImplemented:
        refuse_missing(rotary_append, q, k, v, positions, inv_freq, keys, values, slots)
        rotation = Rotation(positions, inv_freq, layout, pairing, rotary_start, axis_map, scale)
        places = outs_of(to, q, k) if return_k else outs_of(to, q)
        call = Call(ROTARY_APPEND, (q, k, v), rotation, places, (compute,), Norm(*of_norm), cache)
        results = run(call)
    return results if return_k else results[0]


_NO_SCALES = scale_options("rotary_append", None, None, None)


def _outputs(function: str, q: Any, out: Any, inplace: bool, return_k: bool) -> tuple[Any, ...]:
    """The argument out as a tuple with one element per result."""
    if return_k:
        return outputs(function, out, inplace, None if q is not None else 0)
    if q is None:
        arguments.wrong_type(function, "out", "None, as q is", type(out).__name__)
    if inplace:
        arguments.wrong_value(function, "inplace", "False if out is given", True)
    if isinstance(out, tuple):
        arguments.wrong_type(function, "out", "memory for q (a pair with return_k=True)", "a tuple")
    arguments.check_no_mask(function, "out", out)
    return (out,)
