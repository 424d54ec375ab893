"""The causal mask as part of a bias: the bias of a key after its query is -inf.

scaled_dot_product_attention takes either attn_mask or is_causal. A bias as attn_mask
therefore must contain the mask. Kernels need no special case: in a bias made of diagonals, those of
distances above 0 become -inf, and adding them to scores makes these -inf in every dtype.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from posenc_native.core.calls.arguments import is_tensor, wrong_value
from posenc_native.engines.arrays import Arrays

from .distances import Window, spread


def hide_future(values: Any, distances: Any) -> Any:
    """The values if key minus query is at most 0, and -inf elsewhere.

    The distances broadcast to the values. Replaced values get a gradient of 0.
    """
    if is_tensor(values):
        return values.masked_fill(distances > 0, -math.inf)
    return np.where(distances > 0, values.dtype.type(-math.inf), values)


def causal_diagonals(arrays: Arrays, diagonals: Any, window: Window, causal: Any) -> Any:
    """Diagonals [H, D] or [B, H, D] of a window of distances, masked if `causal`."""
    if not arrays.flag("causal", causal):
        return diagonals
    return hide_future(diagonals, spread(arrays, window)[..., None, :])


def causal_entries(
    function: str,
    diagonals: Any,
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    origin: Any,
    causal: Any,
) -> Any:
    """The diagonals of a call; if `causal`, the entries after that of distance 0 are masked."""
    arrays = Arrays(function, diagonals=diagonals)
    if not arrays.flag("causal", causal):
        return diagonals
    if len(q_len) != 1:
        wrong_value(function, "causal", "False if q_len and k_len are tuples", True)
    if origin is None:
        if q_len != k_len:
            wrong_value(
                function, "origin",
                "the entry of distance 0, q_len - 1 + q_offset, for a causal mask if q_len = "
                f"{q_len[0]} and k_len = {k_len[0]} differ", None,
            )  # fmt: skip
        origin = q_len[0] - 1
    first = origin[0] if isinstance(origin, (tuple, list)) else origin
    entries = arrays.floats("diagonals", diagonals)
    return hide_future(entries, arrays.arange(entries.shape[-1]) - first)
