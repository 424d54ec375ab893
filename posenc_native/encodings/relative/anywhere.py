"""A bias by distance for arbitrary positions: left-padded and packed rows, trees of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.engines.arrays import Arrays

from .causal import hide_future

if TYPE_CHECKING:
    import torch

    from posenc_native.core.calls.kinds import ArrayOrTensor

__all__ = ["bias_at_positions"]


def bias_at_positions(
    diagonals: npt.ArrayLike | torch.Tensor,
    q_positions: npt.ArrayLike | torch.Tensor,
    k_positions: npt.ArrayLike | torch.Tensor,
    *,
    origin: int | None = None,
    causal: bool = False,
) -> ArrayOrTensor:
    """The bias for keys and queries at any positions, from the diagonals of any encoding.

    ``result[b, h, i, j] = diagonals[h, k_positions[b, j] - q_positions[b, i] + origin]``. If
    positions are consecutive, `toeplitz_bias` with a ``q_offset`` per row gives the same at memory
    speed. The diagonals may come from `alibi_diagonals`, `t5_diagonals`, `kerple_diagonals` ... for
    n queries and n keys, which cover all distances below n.

    Args:
        diagonals: ``[H, D]`` or ``[B, H, D]``, floats, one entry per distance. Gradients reach a
            tensor.
        q_positions, k_positions: integers ``[q]`` and ``[k]``, or ``[B, q]`` and ``[B, k]``.
        origin: the entry of distance 0; by default the middle entry, (D - 1) / 2.
        causal: True to include the causal mask: keys at later positions than the query are -inf,
            and their distances need no entry.

    Returns:
        ``[H, q, k]``, or ``[B, H, q, k]`` if an argument has an axis B; in the dtype of diagonals.

    Raises:
        ValueError: the shapes do not fit, D is even without an origin, or a distance has no entry
            (if values cannot be read, on a GPU or while torch traces, the outermost entry is used
            instead).
        TypeError: a dtype is not supported.

    Source: positions are counted in padded rows as in ``build_alibi_tensor`` of BLOOM and MPT.

    Example:
        >>> import posenc_native as pn
        >>> diagonals = pn.relative.alibi_diagonals(1, 8, 8)
        >>> positions = pn.positions.padded_positions([[0, 1, 1, 1]])  # padding: 0, as the first
        >>> pn.relative.bias_at_positions(diagonals, positions[:, -1:], positions) * 256
        array([[[[-2., -2., -1.,  0.]]]], dtype=float32)
    """
    function = "bias_at_positions"
    arrays = Arrays(function, diagonals=diagonals, q_positions=q_positions, k_positions=k_positions)
    entries = arrays.floats("diagonals", diagonals)
    causal = arrays.flag("causal", causal)
    if entries.ndim not in (2, 3):
        wrong_value(function, "diagonals", "shape [H, D] or [B, H, D]", list(entries.shape))
    batches = [("diagonals", entries.shape[0])] if entries.ndim == 3 else []
    places = []
    for argument, value in (("q_positions", q_positions), ("k_positions", k_positions)):
        points = arrays.integers(argument, value, arguments.INTEGER_DTYPES)
        if points.ndim not in (1, 2):
            wrong_value(function, argument, "shape [n] or [B, n]", list(points.shape))
        if points.ndim == 2:
            batches.append((argument, points.shape[0]))
        places.append(points)
    for argument, batch in batches:
        if batch != batches[0][1]:
            expected = f"{batches[0][1]} rows, as in {batches[0][0]}"
            wrong_value(function, argument, expected, batch)
    count = entries.shape[-1]
    if origin is None:
        if count % 2 == 0:
            wrong_value(function, "diagonals", "an odd number of entries without origin", count)
        origin = count // 2
    first = arguments.size(function, "origin", origin)
    if first >= count:
        wrong_value(function, "origin", f"an entry below {count}", first)
    distances = places[1][..., None, :] - places[0][..., :, None]
    index = (distances.clip(None, 0) if causal else distances) + first
    seen = arrays.seen(index)
    if seen is not None and seen.size:
        low, high = int(seen.min()), int(seen.max())
        if low < 0 or high >= count:
            expected = f"entries for distances {low - first} to {high - first}"
            wrong_value(function, "diagonals", expected, f"for {-first} to {count - 1 - first}")
    index = index.clip(0, count - 1)
    heads = arrays.arange(entries.shape[-2])[:, None, None]
    if index.ndim == 3:
        index, distances = index[:, None], distances[:, None]
    if entries.ndim == 2:
        bias = entries[heads, index]
    else:
        bias = entries[arrays.arange(entries.shape[0])[:, None, None, None], heads, index]
    return hide_future(bias, distances) if causal else bias
