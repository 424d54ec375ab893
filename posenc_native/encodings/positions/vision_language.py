"""Positions of text, images and videos in one sequence (M-RoPE)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.constants import constant_without_tensors
from posenc_native.engines.arrays import Arrays, of_wholes

from .grids import nth_of, places_of, read_grids
from .rows import Rows, before_samples, checked_rows, plain_integer, sample_numbers

if TYPE_CHECKING:
    import torch

    from posenc_native.core.calls.kinds import ArrayOrTensor

__all__ = ["vision_language_positions"]


@constant_without_tensors
@of_wholes
def vision_language_positions(
    token_types: npt.ArrayLike | torch.Tensor,
    image_grids: npt.ArrayLike | torch.Tensor | None = None,
    video_grids: npt.ArrayLike | torch.Tensor | None = None,
    *,
    attention_mask: npt.ArrayLike | torch.Tensor | None = None,
    starts: npt.ArrayLike | torch.Tensor | None = None,
    spatial_merge_size: int = 2,
    temporal_merge_size: int = 1,
    time_interval: float | npt.ArrayLike | torch.Tensor | None = None,
    split_frames: bool = False,
    padding: int = 0,
) -> tuple[ArrayOrTensor, ArrayOrTensor]:
    """Positions in time, height and width for tokens of text, images and videos (M-RoPE).

    A text token has the next position, the same on all three axes. The tokens of an image or a
    video begin at the next position and count along its grid. The text after it continues from
    there, advanced by the larger of its height and width. Several samples may be packed in one row:
    each counts from 0, as in a call of its own.

    Args:
        token_types: integers ``[b, s]``: 1 image, 2 video; anything else counts as text. The
            processors of transformers return it as mm_token_type_ids; from tokens it is
            ``(ids == image_token_id) + 2 * (ids == video_token_id)``. With `starts`, ``[t]`` or
            ``[1, t]``.
        image_grids, video_grids: integers ``[n, 3]``, time, height and width of each image and each
            video in patches (image_grid_thw, video_grid_thw), in the order of the tokens, row after
            row. Their total number of tokens must match the tokens of their type.
        attention_mask: like token_types, bools or integers; 0 is padding, on any side. Several
            other numbers in a row are those of packed samples, in ascending order, as in the masks
            of LLaMA-Factory and axolotl: 1, 1, 2, 2, 2, 0. If they have another meaning, write
            ``attention_mask != 0``.
        starts: ``[rows + 1]`` integers from 0 to the number of tokens, where rows of packed tokens
            begin (cu_seqlens). A mask beside it only says what is padding.
        spatial_merge_size: number of patches along height and along width that make one token.
        temporal_merge_size: number of frames of a video that make one token (ERNIE-4.5-VL).
        time_interval: positions from one frame of a video to the next, one for all or ``[n]``;
            None is 1. Qwen2.5-VL: ``tokens_per_second * second_per_grid_ts``. It is multiplied in
            float32 and truncated, as in the training of these models.
        split_frames: True if every frame of a video is a separate image, after a timestamp in text:
            Qwen3-VL, GLM-4V.
        padding: position of padding.

    Returns:
        ``(positions, deltas)``, int64 ``[3, b, s]`` and ``[b]``. A token n of a row that is
        generated later, counted without padding, has position n + delta on all axes. With several
        samples in a row, delta is that of the last one, in which n counts. With `starts`, positions
        are ``[3, t]`` or ``[3, 1, t]``, and deltas ``[rows]``: one for each packed row.

    Raises:
        ValueError: the shapes do not fit; a size is negative or not a multiple of its merge size;
            the number of tokens differs from that of the grids; the tokens of an image, a video or
            a split frame are not next to each other in one row and sample; numbers of samples
            descend in a row; or starts do not rise from 0 to the number of tokens. (On devices
            other than the CPU, and while torch traces, only shapes are checked.)
        TypeError: a dtype is not supported.

    Source: Wang et al. 2024, "Qwen2-VL"; Bai et al. 2025, "Qwen2.5-VL"; ``get_rope_index`` of both
    and of Qwen3-VL, GLM-4V and ERNIE-4.5-VL in transformers.

    Example:
        >>> import posenc_native as pn
        >>> positions, deltas = pn.positions.vision_language_positions(
        ...     [[0, 1, 1, 1, 1, 1, 1, 0]], [[1, 4, 6]]  # 4 x 6 patches, 2 x 3 tokens
        ... )
        >>> positions[:, 0]
        array([[0, 1, 1, 1, 1, 1, 1, 4],
               [0, 1, 1, 1, 2, 2, 2, 4],
               [0, 1, 2, 3, 1, 2, 3, 4]])
        >>> deltas
        array([-3])

        Two samples in a row, and padding, by a mask; the same by starts, with a delta for each.

        >>> types, grids = [0, 1, 1, 0, 0, 1, 1, 0], [[1, 2, 4], [1, 4, 2]]
        >>> positions, _ = pn.positions.vision_language_positions(
        ...     [types], grids, attention_mask=[[1, 1, 1, 1, 2, 2, 2, 0]]
        ... )
        >>> positions[:, 0]
        array([[0, 1, 1, 3, 0, 1, 1, 0],
               [0, 1, 1, 3, 0, 1, 2, 0],
               [0, 1, 2, 3, 0, 1, 1, 0]])
        >>> _, deltas = pn.positions.vision_language_positions(types[:7], grids, starts=[0, 4, 7])
        >>> deltas
        array([0, 0])
    """
    function = "vision_language_positions"
    arrays = Arrays(
        function,
        token_types=token_types,
        image_grids=image_grids,
        video_grids=video_grids,
        attention_mask=attention_mask,
        starts=starts,
        time_interval=time_interval,
    )
    types = arrays.integers("token_types", token_types, arguments.INTEGER_DTYPES)
    shape = tuple(types.shape)
    if starts is None and len(shape) != 2:
        wrong_value(function, "token_types", "shape [b, s]", list(shape))
    if attention_mask is None:
        numbers = arrays.xp.ones_like(types)
    else:
        numbers = sample_numbers(arrays, "attention_mask", attention_mask)
        arguments.check_shape(function, "attention_mask", numbers.shape, shape)
    tokens = numbers != 0
    rows = None
    if starts is not None:
        rows = _packed(arrays, types, numbers, starts)
        types, tokens = types.reshape(1, -1), tokens.reshape(1, -1)
        numbers = arrays.whole(tokens) * (rows.of_tokens + 1)
    merge = arguments.size(function, "spatial_merge_size", spatial_merge_size)
    frames = arguments.size(function, "temporal_merge_size", temporal_merge_size)
    if not merge or not frames:
        wrong_value(
            function, "spatial_merge_size, temporal_merge_size", "ints > 0", [merge, frames]
        )
    split_frames = arrays.flag("split_frames", split_frames)

    # How much the next position advances at a token: 1 at text, the extent of the grid at the first
    # token of an image, 0 at its other tokens and at padding.
    move = arrays.whole(tokens)
    # How much has been added since the place from which a token counts, its own move included.
    since = arrays.xp.ones_like(move)
    place = [arrays.xp.zeros_like(move)] * 3
    for argument, cells, kind, merges, interval, split in (
        ("image_grids", image_grids, 1, (1, merge, merge), None, False),
        ("video_grids", video_grids, 2, (frames, merge, merge), time_interval, split_frames),
    ):
        mine = tokens & (types == kind)
        grids = None if cells is None else read_grids(arrays, argument, cells, merges)
        if grids is None or grids.shape[0] == 0:
            _check_count(arrays, argument, mine, 0)
            continue
        sizes = [grids[:, axis] // merges[axis] for axis in range(3)]
        counts = sizes[0] * sizes[1] * sizes[2]
        _check_count(arrays, argument, mine, counts.sum())
        nth = (arrays.whole(mine).reshape(-1).cumsum(0) - 1).clip(min=0).reshape(mine.shape)
        grid, cell = nth_of(arrays, counts, nth)
        frame, row, column = places_of(cell, [size[grid].clip(min=1) for size in sizes], 1)
        _check_together(arrays, numbers, mine, grid, frame if split else grid)
        if split:
            frame = arrays.xp.zeros_like(frame)
        first = (frame == 0) & (row == 0) & (column == 0)
        if interval is not None:
            steps = _interval(arrays, interval, grids.shape[0], grid)
            frame = arrays.whole(arrays.rounded(frame) * steps)
        extent = arrays.xp.maximum(sizes[1], sizes[2])[grid]
        move = arrays.xp.where(mine, arrays.whole(first) * extent, move)
        since = arrays.xp.where(mine, extent, since)
        place = [
            arrays.xp.where(mine, in_grid, before)
            for in_grid, before in zip((frame, row, column), place, strict=True)
        ]
    start = move.cumsum(-1) - since - before_samples(arrays, numbers, move)
    positions = arrays.xp.stack([start + of_axis for of_axis in place])
    absent = plain_integer(function, "padding", padding)
    deltas = _deltas(arrays, numbers, arrays.xp.amax(positions, 0), rows)
    return arrays.xp.where(tokens, positions, absent).reshape(3, *shape), deltas


def _packed(arrays: Arrays, types: Any, numbers: Any, starts: Any) -> Rows:
    """The rows of packed tokens, of which `numbers` only say what is padding."""
    function, shape = arrays.function, tuple(types.shape)
    if len(shape) != 1 and (len(shape) != 2 or shape[0] != 1):
        hint = "number the samples of several rows in attention_mask: 1, 1, 2, 2, 2, 0"
        wrong_value(function, "token_types", "shape [t] or [1, t] with starts", list(shape), hint)
    seen = arrays.seen(numbers)
    several = [] if seen is None else np.unique(seen[seen != 0]).tolist()
    if len(several) > 1:
        hint = "write attention_mask != 0, or omit starts if these are the numbers of samples"
        expected = "no more than one number other than 0 beside starts"
        wrong_value(function, "attention_mask", expected, several, hint)
    rows = checked_rows(arrays, starts, shape[-1])
    assert rows is not None
    return rows


def _deltas(arrays: Arrays, numbers: Any, positions: Any, rows: Rows | None) -> Any:
    """The position after the largest less the number of tokens: of rows, or of last samples."""
    xp = arrays.xp
    if rows is None:
        last = (numbers == _largest(arrays, numbers, 0)[..., None]) & (numbers != 0)
        ends = _largest(arrays, xp.where(last, positions, -1), -1)
        return ends + 1 - arrays.whole(last).sum(-1)
    tokens = (numbers != 0).reshape(-1)
    ends = xp.where(tokens, positions.reshape(-1), -1)
    ends = arrays.largest_of_each(ends, rows.of_tokens, rows.count, -1)
    counts = xp.concatenate([arrays.arange(1), arrays.whole(tokens).cumsum(0)])
    return ends + 1 - (counts[rows.last] - counts[rows.first])


def _largest(arrays: Arrays, values: Any, least: int) -> Any:
    """The largest of values [b, s] in each row, `least` without tokens."""
    column = arrays.xp.zeros_like(values.sum(-1)) + least
    return arrays.xp.amax(arrays.xp.concatenate([values, column[..., None]], -1), -1)


def _interval(arrays: Arrays, value: Any, count: int, grid: Any) -> Any:
    """Positions from one frame to the next, for each token: one number, or float32."""
    function, argument = arrays.function, "time_interval"
    if isinstance(value, (int, float)):
        return arguments.finite_number(function, argument, value)
    intervals = arrays.rounded(arrays.parameter(argument, value))
    if intervals.ndim == 0:
        return intervals
    arguments.check_shape(function, argument, intervals.shape, (count,))
    return intervals[grid]


def _check_count(arrays: Arrays, argument: str, mine: Any, count: Any) -> None:
    """ValueError unless `count` tokens have the type, if values can be read without a wait."""
    seen = arrays.seen(mine)
    if seen is None:
        return
    tokens, expected = int(seen.sum()), int(count)
    if tokens != expected:
        wanted = f"grids with as many tokens as that type has, {tokens}"
        wrong_value(arrays.function, argument, wanted, expected)


def _check_together(arrays: Arrays, numbers: Any, mine: Any, grid: Any, frame: Any) -> None:
    """ValueError unless tokens of one grid are in one sample, those of its frame adjacent.

    numbers: those of samples, 0 for padding, which may be between adjacent tokens.
    """
    tokens, of_samples = arrays.seen(mine), arrays.seen(numbers)
    if tokens is None or of_samples is None:
        return
    row, column = np.nonzero(tokens)
    steps = [np.diff(np.asarray(x)[row, column]) for x in (grid, frame, of_samples)]
    same_grid, same_frame, same_sample = (step == 0 for step in steps)
    nth = (of_samples != 0).cumsum(-1)[row, column]
    away = ~same_sample | (np.diff(row) != 0)
    apart = np.flatnonzero(same_grid & (away | same_frame & (np.diff(nth) != 1)))
    if len(apart):
        at = [[int(row[i]), int(column[i])] for i in (apart[0], apart[0] + 1)]
        expected = "tokens of an image or video next to each other in one row and sample"
        wrong_value(arrays.function, "token_types", expected, f"two apart, at {at[0]} and {at[1]}")
