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
from .rows import plain_integer, token_mask

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
    spatial_merge_size: int = 2,
    temporal_merge_size: int = 1,
    time_interval: float | npt.ArrayLike | torch.Tensor | None = None,
    split_frames: bool = False,
    padding: int = 0,
) -> tuple[ArrayOrTensor, ArrayOrTensor]:
    """Positions in time, height and width for tokens of text, images and videos (M-RoPE).

    A text token has the next position, the same on all three axes. The tokens of an image or a
    video begin at the next position and count along its grid. The text after it continues from
    there, advanced by the larger of its height and width.

    Args:
        token_types: integers ``[b, s]``: 1 image, 2 video; anything else counts as text. The
            processors of transformers return it as mm_token_type_ids; from tokens it is
            ``(ids == image_token_id) + 2 * (ids == video_token_id)``.
        image_grids, video_grids: integers ``[n, 3]``, time, height and width of each image and each
            video in patches (image_grid_thw, video_grid_thw), in the order of the tokens, row after
            row. Their total number of tokens must match the tokens of their type.
        attention_mask: ``[b, s]`` bools or integers; 0 is padding, on any side.
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
        generated later, counted without padding, has position n + delta on all axes.

    Raises:
        ValueError: the shapes do not fit; a size is negative or not a multiple of its merge size;
            the number of tokens differs from that of the grids; or the tokens of an image, a video
            or a split frame are not next to each other in one row. (On devices other than the CPU,
            and while torch traces, only shapes are checked.)
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
    """
    function = "vision_language_positions"
    arrays = Arrays(
        function,
        token_types=token_types,
        image_grids=image_grids,
        video_grids=video_grids,
        attention_mask=attention_mask,
        time_interval=time_interval,
    )
    types = arrays.integers("token_types", token_types, arguments.INTEGER_DTYPES)
    if types.ndim != 2:
        wrong_value(function, "token_types", "shape [b, s]", list(types.shape))
    if attention_mask is None:
        tokens = arrays.xp.ones_like(types) != 0
    else:
        tokens = token_mask(arrays, attention_mask)
        arguments.check_shape(function, "attention_mask", tokens.shape, types.shape)
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
        _check_together(arrays, tokens, mine, (grid, frame) if split else (grid,))
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
    start = move.cumsum(-1) - since
    positions = arrays.xp.stack([start + of_axis for of_axis in place])
    absent = plain_integer(function, "padding", padding)
    # With a column of -1, so that a row without tokens also has a largest position.
    ends = arrays.xp.where(tokens, positions, -1)
    none = arrays.xp.zeros_like(ends.sum(-1)) - 1
    ends = arrays.xp.concatenate([ends, none[..., None]], -1)
    deltas = arrays.xp.amax(ends, (0, 2)) + 1 - arrays.whole(tokens).sum(-1)
    return arrays.xp.where(tokens, positions, absent), deltas


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


def _check_together(arrays: Arrays, mask: Any, mine: Any, labels: tuple[Any, ...]) -> None:
    """ValueError unless tokens of one image are adjacent, except for padding, in one row.

    labels: arrays like `mine` that are equal for all tokens of one image.
    """
    tokens, present = arrays.seen(mine), arrays.seen(mask)
    if tokens is None or present is None:
        return
    row, column = np.nonzero(tokens)
    nth = present.cumsum(-1)[row, column]
    same_image = np.ones(len(row[1:]), bool)
    for label in labels:
        of_token = np.asarray(label)[row, column]
        same_image &= of_token[1:] == of_token[:-1]
    apart = np.flatnonzero(same_image & ((np.diff(row) != 0) | (np.diff(nth) != 1)))
    if len(apart):
        at = [[int(row[i]), int(column[i])] for i in (apart[0], apart[0] + 1)]
        expected = "tokens of an image or video next to each other in one row"
        wrong_value(arrays.function, "token_types", expected, f"two apart, at {at[0]} and {at[1]}")
