"""Move keys that are already rotated to other positions or frequencies.

    stored    R(old position * old frequency) k * old scale
    wanted    R(new position * new frequency) k * new scale
    so turn   by new position * new frequency - old position * old frequency
              and multiply by new scale / old scale

The difference is computed from exact phases. A key may therefore be moved any distance, again and
again; the only error is the rounding of its format. The move is one rotation by twice as many axes:
forward by the new positions, backward by the old ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.pairs import positions_in
from posenc_native.core.calls.views import rotary_view
from posenc_native.engines.arrays import Arrays

from .apply import apply_rotary
from .rotary import rotary_of

if TYPE_CHECKING:
    import torch

    from posenc_native.core.calls.kinds import (
        Array,
        Number,
        Numbers,
        OutArray,
        OutTensor,
        SupportsArray,
        SupportsRotary,
        Tensor,
        TensorLike,
    )

__all__ = [
    "rerotate",
]


@overload
def rerotate(keys: TensorLike, positions: Numbers | None, new_positions: Numbers | None,
    rope: SupportsRotary, new_rope: SupportsRotary | None = ..., *, layout: str = ...,
    out: OutTensor = ...,
) -> Tensor: ...  # fmt: skip
@overload
def rerotate(keys: SupportsArray[Number], positions: Numbers | None, new_positions: Numbers | None,
    rope: SupportsRotary, new_rope: SupportsRotary | None = ..., *, layout: str = ...,
    out: OutArray = ...,
) -> Array[Number]: ...  # fmt: skip
def rerotate(
    keys: Any,
    positions: npt.ArrayLike | torch.Tensor | None,
    new_positions: npt.ArrayLike | torch.Tensor | None,
    rope: SupportsRotary,
    new_rope: SupportsRotary | None = None,
    *,
    layout: str | None = None,
    out: Any = None,
) -> Any:
    """Rotate cached keys from their old positions to new positions.

    This serves a cache whose oldest tokens are dropped (the others move up), a prefix that is
    reused at another place, and a model that changes its frequencies with the length of the
    sequence (LongRoPE, dynamic NTK): with `new_rope` the keys get its frequencies and scale too.

    Args:
        keys: keys rotated by ``rope``, float16, bfloat16, float32 or float64, with any strides.
        positions: the positions that the keys were rotated by: None for 0 .. s-1, an int p for
            p .. p + s-1, ``[s]``, ``[b, s]`` or ``[1, s]``; with an axis_map ``[A, s]``,
            ``[A, b, s]`` or ``[A, 1, s]``. Integers are exact.
        new_positions: the positions that the keys will have, in the same forms.
        rope: the rotation of the keys so far, a `Rotary` or a module that has a `Rotary`
            (`posenc_native.nn.RotaryEmbedding`).
        new_rope: the rotation that the keys will have; default the same. It must rotate the same
            dims in the same pairs by the same axes.
        layout: as in `apply_rotary`; default that of `rope`.
        out: memory for the result; `keys` itself updates the cache in place.

    Returns:
        An array or tensor like `keys`: within one additional rounding of keys that were rotated
        directly by the new positions.

    Raises:
        ValueError: the two rotations do not rotate the same pairs, a scale is 0, or a reason of
            `apply_rotary`.
        TypeError: as in `apply_rotary`.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(64)
        >>> k = np.random.default_rng(0).standard_normal((1, 2, 10, 64), np.float32)
        >>> cache = rope.apply(k)
        >>> cache = cache[:, :, 4:]                                 # the first four tokens go
        >>> _ = pn.rerotate(cache, np.arange(4, 10), None, rope, out=cache)
        >>> bool(np.allclose(cache, rope.apply(k[:, :, 4:]), atol=1e-6))
        True

    Source: rotations add up (Su et al. 2021, arXiv:2104.09864); "context shift" in llama.cpp.
    """
    function = "rerotate"
    rope = rotary_of(function, "rope", rope)
    new_rope = rope if new_rope is None else rotary_of(function, "new_rope", new_rope)
    layout = rope.layout if layout is None else layout
    differs = rope._differs(new_rope)
    if differs is not None and differs != "inv_freq":
        wrong_value(
            function, "new_rope", f"the {differs} of rope, {getattr(rope, differs)}",
            getattr(new_rope, differs),
        )  # fmt: skip
    if rope.scale == 0:
        wrong_value(function, "rope", "a scale that is not 0", rope)
    if not arguments.is_tensor(keys):
        keys = arguments.as_operand(function, "keys", keys)
    rope._check_width(function, "keys", keys)
    xp = Arrays(function, keys=keys, positions=positions, new_positions=new_positions)
    old, new = (
        _moved_positions(xp, name, value, keys, layout, rope.axis_map is not None)
        for name, value in (("positions", positions), ("new_positions", new_positions))
    )
    if rope.axis_map is not None and old.shape[0] != new.shape[0]:
        got = list(new.shape)
        wrong_value(function, "new_positions", f"{old.shape[0]} axes, as positions have", got)
    # Positions without a batch axis are the same for the whole batch.
    old, new = (
        points if points.ndim == max(old.ndim, new.ndim) else points[..., None, :]
        for points in (old, new)
    )
    floating = [not _is_integer(points) for points in (old, new)]
    if any(floating):
        old, new = xp.wide(old), xp.wide(new)
    options: dict[str, Any] = {
        "layout": layout,
        "pairing": rope.pairing,
        "rotary_start": rope.rotary_start,
        "scale": new_rope.scale / rope.scale,
        "out": out,
    }
    inv_freq, axis_map = rope._of(keys)
    new_inv_freq, _ = new_rope._of(keys)
    if differs is None and not any(floating):
        return apply_rotary(keys, new - old, inv_freq, axis_map=axis_map, **options)
    if axis_map is None:
        old, new = old[None], new[None]
        axes = xp.xp.ones_like(inv_freq[None], dtype=bool)
    else:
        axes = axis_map == xp.arange(len(old))[:, None]
    # Phases of two rotations, forward and backward, are the phases of a sum over twice the axes.
    old, new = xp.broadcast(old, new)
    frequencies = xp.xp.concatenate([xp.xp.where(axes, f, 0.0) for f in (new_inv_freq, -inv_freq)])
    return apply_rotary(keys, xp.xp.concatenate([new, old]), frequencies[:, None], **options)


def _moved_positions(
    xp: Arrays, name: str, positions: Any, keys: Any, layout: str, by_axis: bool
) -> Any:
    """Positions as an int64 array or tensor; floating-point positions are unchanged."""
    view = rotary_view(xp.function, tuple(keys.shape), layout, "half", 0, 0, "keys")
    if positions is None or arguments.is_count(positions):
        positions = positions_in(xp.function, positions or 0, keys, layout)
    points = xp.positions(name, positions)
    before = tuple(points.shape[:1]) if by_axis else ()
    view.check_tokens(xp.function, name, tuple(points.shape), before=before)
    return xp.integers(name, points, arguments.INTEGER_DTYPES) if _is_integer(points) else points


def _is_integer(points: Any) -> bool:
    return arguments.dtype_name(points.dtype) in arguments.INTEGER_DTYPES
