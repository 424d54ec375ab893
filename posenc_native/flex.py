"""score_mod functions for torch's flex_attention, built from the same data as relative biases.

flex_attention compiles ``score_mod(score, batch, head, q_idx, kv_idx)`` into its kernel. That gives
attention with a relative encoding and without any ``[q_len, k_len]`` matrix.

    t5 = pnn.T5RelativeBias(num_heads=8)
    bias = flex.toeplitz_score_mod(t5.diagonals(q_len, k_len), q_len, k_len)
    out = flex_attention(q, k, v, score_mod=bias, scale=1.0)

flex_attention scales the inner products before it calls score_mod. Models with these biases scale
in the same order (T5 has no scale: ``scale=1.0``).

A score_mod gets the indices of a query and a key within q and k. If these are parts of a row
(context parallelism) or are reordered, pass their positions: torch rewrites mask_mod for that, but
leaves score_mod unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .core.calls.optional import absent, install_command

if absent("torch"):
    raise ImportError(f"posenc_native.flex needs torch: {install_command('torch')}")

import numpy as np
import torch
from torch import Tensor

from .core.calls.arguments import (
    FLOAT_DTYPES,
    INTEGER_DTYPES,
    check_dtype,
    factor,
    length,
    wrong_type,
    wrong_value,
)
from .encodings.relative.entries import (
    Lengths,
    entry_or_default,
    first_entry,
    index_and_entry,
    lengths_of,
)
from .engines.plain.numbers import readable

__all__ = ["gather_score_mod", "toeplitz_score_mod"]

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def toeplitz_score_mod(
    diagonals: Tensor,
    q_len: Lengths,
    k_len: Lengths,
    *,
    q_offset: int | Tensor = 0,
    origin: Lengths | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
) -> ScoreMod:
    """A score_mod that adds the same bias as `posenc_native.add_toeplitz_bias`.

    Args:
        diagonals: ``[H, entries]`` or ``[B, H, entries]``; for tokens in a grid, one axis of
            entries for each axis of the grid. Gradients reach it if flex_attention supports that.
        q_len, k_len, q_offset, origin: as in `posenc_native.toeplitz_bias`: ints, or tuples of ints
            for a grid; q_offset is an int or integers ``[B]``.
        q_positions, k_positions: integers ``[queries]`` and ``[keys]``: which of the q_len queries
            and k_len keys flex_attention's q and k hold; None if they hold all of them.
            See `posenc_native.positions.ContextParallel`, ``positions`` and ``gathered_positions``.

    Returns:
        A score_mod.

    Raises:
        ValueError: as in `posenc_native.toeplitz_bias`; diagonals with other axes.
        TypeError: unsupported types and dtypes.

    Example:
        >>> import torch
        >>> from posenc_native import flex
        >>> bias = flex.toeplitz_score_mod(torch.tensor([[-2.0, -1.0, 0.0, -1.0, -2.0]]), 3, 3)
        >>> batch, head, query, key = torch.tensor([0, 0, 2, 0])
        >>> bias(torch.tensor(10.0), batch, head, query, key)
        tensor(8.)
    """
    function = "toeplitz_score_mod"
    _check_float_tensor(function, "diagonals", diagonals)
    rows, columns = lengths_of(function, "q_len", q_len), lengths_of(function, "k_len", k_len)
    start, offsets = first_entry(function, diagonals.shape, rows, columns, q_offset, origin)
    first = entry_or_default(start, rows)
    rank = len(rows)
    heads = diagonals.ndim - rank
    if heads not in (1, 2):
        wrong_value(function, "diagonals", "shape [H, ...] or [B, H, ...]", list(diagonals.shape))
    offsets = _batch_offsets(function, offsets, diagonals.device)
    counts = diagonals.shape[heads:]
    for axis in range(rank):
        _check_windows(function, "diagonals", counts[axis], rows[axis], columns[axis], first[axis],
                       offsets)  # fmt: skip
    # One flat axis of entries: a lookup with as few indices as possible.
    flat = diagonals.flatten(heads)
    queries = _positions(function, "q_positions", q_positions, math.prod(rows), diagonals.device)
    keys = _positions(function, "k_positions", k_positions, math.prod(columns), diagonals.device)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        query = q if queries is None else queries[q]
        key = k if keys is None else keys[k]
        entry: Any = 0
        for axis in range(rank):
            i, j = query, key
            for size in rows[axis + 1 :]:
                i = i // size
            for size in columns[axis + 1 :]:
                j = j // size
            if axis:
                i, j = i % rows[axis], j % columns[axis]
            entry = entry * counts[axis] + (first[axis] + j - i)
        if offsets is not None:
            # Offsets whose values could not be checked must not index outside the entries.
            entry = (entry - (offsets[b] if offsets.ndim else offsets)).clamp(0, counts[0] - 1)
        return score + (flat[h, entry] if heads == 1 else flat[b, h, entry])

    return score_mod


def gather_score_mod(
    x: Tensor,
    index: Tensor | None,
    k_len: int,
    *,
    scale: float = 1.0,
    q_offset: int | Tensor = 0,
    origin: int | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
) -> ScoreMod:
    """A score_mod that adds what `posenc_native.relative_gather` looks up.

    It returns ``score + scale * x[b, h, q, column]``.

    Args:
        x: ``[B, H, q_len, width]``, inner products of queries with a table.
        index, k_len, q_offset, origin: as in `posenc_native.relative_gather`: index is integers
            ``[q_len + k_len - 1]`` or None, q_offset an int or integers ``[B]``. A column that
            does not exist (an index outside 0 .. width - 1, or none for the distance) adds
            nothing.
        scale: factor of x.
        q_positions, k_positions: integers ``[q_len]`` and ``[keys]``: the positions of x's queries
            and of the keys in the whole row, which k_len and origin describe. With q_positions,
            origin is required: the entry of distance 0, which is q_len - 1 of the whole row if
            index covers that row.

    Returns:
        A score_mod.

    Raises:
        ValueError: an index with too few entries; shapes that do not match.
        TypeError: unsupported types and dtypes.

    Example:
        >>> import torch
        >>> from posenc_native import flex
        >>> shift = flex.gather_score_mod(torch.arange(15.0).view(1, 1, 3, 5), None, 3)
        >>> batch, head, query, key = torch.tensor([0, 0, 2, 0])
        >>> shift(torch.tensor(0.0), batch, head, query, key)
        tensor(10.)
    """
    function = "gather_score_mod"
    _check_float_tensor(function, "x", x)
    if x.ndim != 4:
        wrong_value(function, "x", "shape [B, H, q_len, width]", list(x.shape))
    queries, width = x.shape[-2:]
    keys = length(function, "k_len", k_len)
    scale = factor(function, "scale", scale, x.dtype)
    if q_positions is not None and origin is None:
        wrong_value(function, "origin", "the entry of distance 0 with q_positions", None)
    columns, start, offsets = index_and_entry(function, index, queries, keys, q_offset, origin)
    first = queries - 1 if start is None else start
    offsets = _batch_offsets(function, offsets, x.device)
    rows = queries if q_positions is None else first + 1  # of the whole row
    q_at = _positions(function, "q_positions", q_positions, rows, x.device)
    k_at = _positions(function, "k_positions", k_positions, keys, x.device)
    if q_at is not None and tuple(q_at.shape) != (queries,):
        wrong_value(
            function, "q_positions", f"shape [{queries}], one per row of x", list(q_at.shape)
        )
    if columns is not None:
        columns = _integers(function, "index", columns, x.device)
        if columns.ndim != 1:
            wrong_value(function, "index", "shape [q_len + k_len - 1]", list(columns.shape))
        _check_windows(function, "index", columns.shape[0], rows, keys, first, offsets)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        column = first + (k if k_at is None else k_at[k]) - (q if q_at is None else q_at[q])
        if offsets is not None:
            column = column - (offsets[b] if offsets.ndim else offsets)
        if columns is not None:
            column = columns[column.clamp(0, columns.shape[0] - 1)]
        inside = (column >= 0) & (column < width)
        value = x[b, h, q, torch.where(inside, column, 0)]
        return score + scale * torch.where(inside, value, 0)

    return score_mod


def _check_float_tensor(function: str, argument: str, value: object) -> None:
    if not isinstance(value, Tensor):
        wrong_type(function, argument, "a tensor", type(value).__name__)
    check_dtype(function, argument, value.dtype, FLOAT_DTYPES)


def _integers(function: str, argument: str, value: Any, device: torch.device) -> Tensor:
    """As int64, because torch does not index by every integer dtype."""
    check_dtype(function, argument, value.dtype, INTEGER_DTYPES)
    if not isinstance(value, Tensor):
        value = torch.as_tensor(np.array(value))
    wide: Tensor = value.to(device, torch.int64)
    return wide


def _positions(
    function: str, argument: str, value: Any, size: int, device: torch.device
) -> Tensor | None:
    """Positions 0 .. size - 1, checked if their values can be read."""
    if value is None:
        return None
    places = _integers(function, argument, value, device)
    if places.ndim != 1:
        wrong_value(function, argument, "one axis", f"shape {list(places.shape)}")
    if places.numel() and readable(places):
        low, high = int(places.min()), int(places.max())
        if low < 0 or high >= size:
            wrong_value(function, argument, f"positions 0 .. {size - 1}", f"{low} .. {high}")
        return places
    # Values that could not be checked must not index outside the entries.
    return places.clamp(0, max(size - 1, 0))


def _batch_offsets(function: str, q_offset: Any, device: torch.device) -> Tensor | None:
    if q_offset is None:
        return None
    offsets = _integers(function, "q_offset", q_offset, device)
    if offsets.ndim > 1:
        wrong_value(function, "q_offset", "an int or shape [B]", f"shape {list(offsets.shape)}")
    return offsets


def _check_windows(
    function: str,
    argument: str,
    entries: int,
    queries: int,
    keys: int,
    first: int,
    offsets: Tensor | None,
) -> None:
    """ValueError if distances fall outside the entries, checked if the values can be read."""
    if not queries or not keys:
        return
    low = high = first
    if offsets is not None and offsets.numel() and readable(offsets):
        low, high = first - int(offsets.max()), first - int(offsets.min())
    if not (queries - 1 <= low and high <= entries - keys):
        wrong_value(
            function, argument, f"entries for all distances, at least {queries + keys - 1}",
            f"{entries} with query 0 and key 0 at entry {low}",
        )  # fmt: skip
