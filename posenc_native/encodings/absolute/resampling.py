"""A learned table for another length or another grid: interpolation as in timm and torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_value
from posenc_native.engines.arrays import Arrays

from .taps import Columns, Weights, weighted_rows

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        Interpolation,
        Number,
        SupportsArray,
        Tensor,
        TensorLike,
    )

__all__ = ["resample_positions"]

INTERPOLATIONS = ("linear", "cubic")


if TYPE_CHECKING:

    class Resampling(TypedDict, total=False):
        """Keywords for the interpolation of a table."""

        old_size: int | Sequence[int] | None
        prefix: int
        interpolation: Interpolation
        antialias: bool
        align_corners: bool


@overload
def resample_positions(table: TensorLike, size: int | Sequence[int],
                       **options: Unpack[Resampling]) -> Tensor: ...  # fmt: skip
@overload
def resample_positions(table: SupportsArray[Number], size: int | Sequence[int],
                       **options: Unpack[Resampling]) -> Array[Number]: ...  # fmt: skip
def resample_positions(
    table: Any,
    size: int | Sequence[int],
    *,
    old_size: int | Sequence[int] | None = None,
    prefix: int = 0,
    interpolation: Interpolation = "cubic",
    antialias: bool = True,
    align_corners: bool = False,
) -> Any:
    """Resample a learned table to another length, or to another grid of patches.

    Each axis is resampled separately, with weights computed in float64. They are the weights of
    ``torch.nn.functional.interpolate``, also for NumPy and for any number of axes. If the table
    shrinks, `antialias` widens the filter by the same factor. Cubic is Keys' kernel with a = -0.5
    if `antialias` (as in Pillow), otherwise with -0.75 (as in OpenCV).

    Args:
        table: ``[..., rows, dim]``; rows are `prefix` tokens, then a grid whose last axis varies
            fastest.
        size: new length, or sizes of the axes of the new grid, (height, width) for images.
        old_size: the same for the unchanged table; None for a length, or a grid of equal sides.
        prefix: number of leading rows that stay unchanged (class tokens, rows of padding).
        interpolation: "cubic" or "linear".
        antialias: False for the plain kernel, which skips rows when it shrinks a table, and repeats
            the row at the edge where the kernel extends beyond it.
        align_corners: the first and last positions stay first and last; only without `antialias`.

    Returns:
        ``[..., prefix + new rows, dim]``, like `table`. Computed in float32 (float64 for float64),
        rounded once. Gradients reach `table`.

    Raises:
        ValueError: sizes do not fit the table, prefix exceeds the rows, a name is unknown, or an
            axis has size 0.
        TypeError: a dtype is not supported.

    Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 3.2; the default is
    timm's ``resample_abs_pos_embed``.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> table = np.arange(4, dtype=np.float32)[:, None]
        >>> pn.absolute.resample_positions(table, 7, interpolation="linear", antialias=False,
        ...                       align_corners=True)[:, 0]
        array([0. , 0.5, 1. , 1.5, 2. , 2.5, 3. ], dtype=float32)
        >>> pn.absolute.resample_positions(np.zeros((1 + 14 * 14, 8)), (16, 24), prefix=1).shape
        (385, 8)
    """
    function = "resample_positions"
    if not is_tensor(table):
        table = arguments.as_operand(function, "table", table)
    if table.ndim < 2:
        wrong_value(function, "table", "shape [..., rows, dim]", list(table.shape))
    arguments.check_name(function, "interpolation", interpolation, INTERPOLATIONS)
    if antialias and align_corners:
        wrong_value(function, "align_corners", "False with antialias", True)
    arrays = Arrays(function, table.dtype, None, table=table)
    prefix = arguments.size(function, "prefix", prefix)
    rows = table.shape[-2] - prefix
    if rows < 0:
        wrong_value(function, "prefix", f"at most the {table.shape[-2]} rows of table", prefix)
    new = _sizes(function, "size", size)
    arguments.check_byte_count(function, (*table.shape[:-2], *new, table.shape[-1], 8), 8)
    old = _old_sizes(function, old_size, rows, len(new))
    grid = arrays.real(table[..., prefix:, :])
    leading, dim = tuple(table.shape[:-2]), table.shape[-1]
    before, after = 1, math.prod(old)
    for old_length, new_length in zip(old, new, strict=True):
        after //= old_length
        if old_length != new_length:
            columns, weights = _taps(
                old_length, new_length, interpolation, bool(antialias), bool(align_corners)
            )
            grid = grid.reshape((*leading, before, old_length, after * dim))
            grid = weighted_rows(arrays, grid, columns, weights)
        before *= new_length
    resampled = arrays.rounded(grid.reshape((*leading, math.prod(new), dim)))
    if old != new and math.prod(old) == table.shape[-2]:  # new memory, and no other rows
        return resampled
    prefix_rows = table[..., :prefix, :]
    return arrays.xp.concatenate([prefix_rows, resampled], -2)


def _sizes(function: str, argument: str, value: Any) -> tuple[int, ...]:
    """One or more ints, each at least 1."""
    values = (value,) if isinstance(value, (int, np.integer)) else tuple(value)
    sizes = tuple(arguments.size(function, argument, v) for v in values)
    if not sizes or 0 in sizes:
        wrong_value(function, argument, "sizes of at least 1", list(sizes))
    return sizes


def _old_sizes(function: str, old_size: Any, rows: int, axes: int) -> tuple[int, ...]:
    if old_size is None:
        side = round(max(rows, 0) ** (1 / axes))
        if side**axes != rows or not rows:
            expected = f"sizes, since {rows} rows are no grid with {axes} equal sides"
            wrong_value(function, "old_size", expected, None)
        return (side,) * axes
    sizes = _sizes(function, "old_size", old_size)
    if len(sizes) != axes or math.prod(sizes) != rows:
        expected = f"{axes} sizes, as many as size has, of a grid of {rows} rows"
        wrong_value(function, "old_size", expected, list(sizes))
    return sizes


def _taps(
    old: int, new: int, interpolation: str, antialias: bool, align_corners: bool
) -> tuple[Columns, Weights]:
    """The row that each tap of the filter reads, and its weight, for each new position."""
    points = np.arange(new, dtype=np.float64)
    if align_corners:
        centers = points * ((old - 1) / (new - 1) if new > 1 else 0.0)
    else:
        centers = (points + 0.5) * (old / new) - 0.5
    stretch = max(old / new, 1.0) if antialias else 1.0
    reach = (1 if interpolation == "linear" else 2) * stretch
    first = np.floor(centers - reach).astype(np.int64) + 1
    columns = first[:, None] + np.arange(math.ceil(2 * reach))
    distances = np.abs(columns - centers[:, None]) / stretch
    if interpolation == "linear":
        weights = np.maximum(1 - distances, 0)
    else:
        weights = _cubic(distances, -0.5 if antialias else -0.75)
    if antialias:  # the part beyond the edge is omitted
        weights = np.where((columns >= 0) & (columns < old), weights, 0)
        weights /= weights.sum(1, keepdims=True)
    return list(columns.clip(0, old - 1).T), list(weights.T)


def _cubic(distances: npt.NDArray[np.float64], a: float) -> npt.NDArray[np.float64]:
    """Keys 1981, "Cubic convolution interpolation for digital image processing"."""
    d = distances
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
