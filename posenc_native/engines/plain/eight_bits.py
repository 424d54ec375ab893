"""Numbers of 8 bits: divided by a scale, rounded to nearest even, saturating."""

from __future__ import annotations

from typing import Any

from posenc_native.core.calls.arguments import dtype_name
from posenc_native.core.calls.caches import EIGHT_BITS, Scale

from .numbers import cast, of


def quantized(x: Any, scale: Scale, dtype: Any) -> tuple[Any, Any]:
    """Rows of heads ``[..., h, d]`` as the bytes of a format, and the scales of the rows.

    The scales are None unless they are made.
    """
    xp = of(x)
    x = cast(x, xp.float32)
    name = dtype_name(dtype)
    largest = EIGHT_BITS[name]
    made = None
    if scale.made is not None:
        most = xp.amax(xp.abs(x), -1) if x.shape[-1] else xp.abs(x).sum(-1)
        made = most / largest
        divisor = xp.where(made == 0, xp.ones_like(made), made)[..., None]
    elif scale.of_heads is not None:
        divisor = scale.of_heads.reshape(-1, 1)
    else:
        divisor = xp.asarray(scale.number, dtype=xp.float32)
    x = x / divisor
    if name == "int8":
        numbers = xp.nan_to_num(xp.clip(xp.round(x), -128, 127), nan=0.0)
        return cast(numbers, xp.int8).view(xp.uint8), made
    # One NaN for all, without a sign.
    numbers = xp.where(xp.isnan(x), xp.full_like(x, float("nan")), xp.clip(x, -largest, largest))
    return cast(numbers, dtype).view(xp.uint8), made
