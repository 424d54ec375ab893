"""A learned table for another length or another grid: interpolation as in timm and torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_value
from posenc_native.core.calls.constants import constant
from posenc_native.engines.arrays import Arrays

from .taps import Columns, Weights, weighted_rows

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        Interpolation,
        Number,
        Spacing,
        SupportsArray,
        Tensor,
        TensorLike,
    )

__all__ = ["resample_positions"]

INTERPOLATIONS = ("linear", "cubic")
SPACINGS = ("even", "geometric")


if TYPE_CHECKING:

    class Resampling(TypedDict, total=False):
        """Keywords for the interpolation of a table."""

        old_size: int | Sequence[int] | None
        prefix: int
        suffix: int
        interpolation: Interpolation
        antialias: bool
        align_corners: bool
        interpolate_offset: float
        spacing: Spacing


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
    suffix: int = 0,
    interpolation: Interpolation = "cubic",
    antialias: bool = True,
    align_corners: bool = False,
    interpolate_offset: float = 0.0,
    spacing: Spacing = "even",
) -> Any:
    """Resample a learned table to another length, or to another grid of patches.

    Each axis is resampled separately, with weights computed in float64. They are the weights of
    ``torch.nn.functional.interpolate``, also for NumPy and for any number of axes. If the table
    shrinks, `antialias` widens the filter by the same factor. Cubic is Keys' kernel with a = -0.5
    if `antialias` (as in Pillow), otherwise with -0.75 (as in OpenCV).

    A bias by distance, of Swin or BEiT, is a table for a grid of distances: for a window (h, w) the
    sizes are (2h - 1, 2w - 1). BEiT's has three more rows after them, so ``suffix=3``;
    ``posenc_native.nn.SwinRelativeBias`` has a method ``resampled`` for both.

    Args:
        table: ``[..., rows, dim]``; rows are `prefix` tokens, then a grid whose last axis varies
            fastest, then `suffix` tokens.
        size: new length, or sizes of the axes of the new grid, (height, width) for images.
        old_size: the same for the unchanged table; None for a length, or a grid of equal sides.
        prefix: number of leading rows that stay unchanged (class tokens, rows of padding).
        suffix: number of rows at the end that stay unchanged (BEiT's three of the class token).
        interpolation: "cubic" or "linear".
        antialias: False for the plain kernel, which skips rows when it shrinks a table, and repeats
            the row at the edge where the kernel extends beyond it.
        align_corners: the first and last positions stay first and last; only without `antialias`.
        interpolate_offset: a number of at least 0 and below 1, which is added to a new size to
            define the scale, ``(size + interpolate_offset) / old_size``. DINOv2 without registers
            has 0.1, and ``antialias=False``; with registers 0, and `antialias`. A table with all
            sizes as before stays unchanged.
        spacing: "geometric" for a grid of distances in BEiT's way: old distances become 1, 1 + r,
            1 + r + r^2 ... so that the last is the last of the new grid, and rows in between are
            interpolated by a cubic spline, as in BEiT's code, or linearly, as in timm's
            ``resize_rel_pos_bias_table``. All sizes are odd; `antialias` has no effect.

    Returns:
        ``[..., prefix + new rows + suffix, dim]``, like `table`. Computed in float32 (float64 for
        float64), rounded once. Gradients reach `table`.

    Raises:
        ValueError: sizes do not fit the table, prefix and suffix exceed the rows, a name is
            unknown, an axis has size 0, or options exclude each other.
        TypeError: a dtype is not supported.

    Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 3.2; the default is
    timm's ``resample_abs_pos_embed``. Oquab et al. 2023, "DINOv2", for interpolate_offset; Bao et
    al. 2022, "BEiT", for "geometric" (``load_state_dict`` of its fine-tuning code).

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> table = np.arange(4, dtype=np.float32)[:, None]
        >>> pn.absolute.resample_positions(table, 7, interpolation="linear", antialias=False,
        ...                       align_corners=True)[:, 0]
        array([0. , 0.5, 1. , 1.5, 2. , 2.5, 3. ], dtype=float32)
        >>> pn.absolute.resample_positions(np.zeros((1 + 14 * 14, 8)), (16, 24), prefix=1).shape
        (385, 8)
        >>> bias = np.zeros((27 * 27 + 3, 12), np.float32)  # BEiT's of a window of (14, 14)
        >>> pn.absolute.resample_positions(bias, (47, 47), suffix=3, spacing="geometric").shape
        (2212, 12)
    """
    function = "resample_positions"
    if not is_tensor(table):
        table = arguments.as_operand(function, "table", table)
    if table.ndim < 2:
        wrong_value(function, "table", "shape [..., rows, dim]", list(table.shape))
    arguments.check_name(function, "interpolation", interpolation, INTERPOLATIONS)
    arguments.check_name(function, "spacing", spacing, SPACINGS)
    if antialias and align_corners:
        wrong_value(function, "align_corners", "False with antialias", True)
    extra = arguments.finite_number(function, "interpolate_offset", interpolate_offset)
    if not 0 <= extra < 1:
        wrong_value(function, "interpolate_offset", "a number >= 0 and < 1", interpolate_offset)
    if spacing == "geometric" and align_corners:
        wrong_value(function, "align_corners", "False with geometric spacing", True)
    if spacing == "geometric" and extra:
        wrong_value(function, "interpolate_offset", "0 with geometric spacing", extra)
    if extra and align_corners:
        expected = "0 with align_corners, which defines the scale"
        wrong_value(function, "interpolate_offset", expected, interpolate_offset)
    arrays = Arrays(function, table.dtype, None, table=table)
    prefix = arguments.size(function, "prefix", prefix)
    suffix = arguments.size(function, "suffix", suffix)
    rows = table.shape[-2] - prefix - suffix
    if rows < 0:
        name, got = ("prefix", prefix) if not suffix else ("prefix + suffix", prefix + suffix)
        wrong_value(function, name, f"at most the {table.shape[-2]} rows of table", got)
    new = _sizes(function, "size", size)
    arguments.check_byte_count(function, (*table.shape[:-2], *new, table.shape[-1], 8), 8)
    old = _old_sizes(function, old_size, rows, len(new))
    if spacing == "geometric":
        for name, sizes in (("size", new), ("old_size", old)):
            if not all(length % 2 for length in sizes):
                expected = "odd sizes, 2w - 1 distances of a window w, with geometric spacing"
                wrong_value(function, name, expected, list(sizes))
        if interpolation == "cubic" and min(old) < 5:
            expected = "sizes of at least 5 for a cubic spline"
            wrong_value(function, "old_size", expected, list(old), "interpolation='linear' fits")
    end = table.shape[-2] - suffix
    grid = arrays.real(table[..., prefix:end, :])
    leading, dim = tuple(table.shape[:-2]), table.shape[-1]
    ratio = extra.as_integer_ratio()
    before, after = 1, math.prod(old)
    for old_length, new_length in zip(old, new, strict=True):
        after //= old_length
        # An axis of the same length changes too if others do and the scale is not 1.
        if old_length != new_length or (old != new and (extra or spacing == "geometric")):
            # Constants, also where torch.compile has symbols: it makes a graph for each size.
            lengths = operator.index(old_length), operator.index(new_length)
            if spacing == "geometric":
                columns, weights = _geometric_taps(*lengths, interpolation)
            else:
                flags = bool(antialias), bool(align_corners)
                columns, weights = _taps(*lengths, interpolation, *flags, ratio)
            grid = grid.reshape((*leading, before, old_length, after * dim))
            grid = weighted_rows(arrays, grid, columns, weights)
        before *= new_length
    resampled = arrays.rounded(grid.reshape((*leading, math.prod(new), dim)))
    if old != new and math.prod(old) == table.shape[-2]:  # new memory, and no other rows
        return resampled
    parts = [table[..., :prefix, :], resampled, table[..., end:, :]]
    return arrays.xp.concatenate(parts, -2)


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


@constant
def _taps(
    old: int, new: int, interpolation: str, antialias: bool, align_corners: bool,
    extra: tuple[int, int],
) -> tuple[Columns, Weights]:  # fmt: skip
    """The row that each tap of the filter reads, and its weight, for each new position."""
    points = np.arange(new, dtype=np.float64)
    step = old / (new + extra[0] / extra[1])
    if align_corners:
        centers = points * ((old - 1) / (new - 1) if new > 1 else 0.0)
    else:
        centers = (points + 0.5) * step - 0.5
    stretch = max(step, 1.0) if antialias else 1.0
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


@constant
def _geometric_taps(old: int, new: int, interpolation: str) -> tuple[Columns, Weights]:
    """As `_taps`, of old distances in a geometric progression: BEiT's code, step by step."""
    # Bisected as there: another number would be as good, but not the same table.
    left, right, ratio = 1.01, 1.5, 1.01
    while right - left > 1e-6:
        ratio = (left + right) / 2
        if (1 - ratio ** (old // 2)) / (1 - ratio) > new // 2:
            right = ratio
        else:
            left = ratio
    beyond = np.cumsum(ratio ** np.arange(old // 2))
    points = np.concatenate([-beyond[::-1], [0.0], beyond])
    # Distances beyond the last have its value.
    at = np.clip(np.arange(new, dtype=np.float64) - new // 2, points[0], points[-1])
    if interpolation == "linear":
        weights = np.stack([np.interp(at, points, row) for row in np.eye(old)])
    else:
        weights = _spline(points, at)
    columns = [np.full(new, row, np.int64) for row in range(old)]
    return columns, list(weights)


def _spline(points: npt.NDArray[np.float64], at: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Weights [points, at] of the cubic spline without knots at the second point from each end.

    De Boor 1978, "A Practical Guide to Splines"; the spline of FITPACK, hence of SciPy's interp2d.
    """
    knots = np.concatenate([np.full(4, points[0]), points[2:-2], np.full(4, points[-1])])

    def basis(x: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        spans = np.searchsorted(knots, x, "right").clip(4, len(points)) - 1
        values: npt.NDArray[Any] = (np.arange(len(knots) - 1)[:, None] == spans) * 1.0
        for degree in (1, 2, 3):
            widths = knots[degree:] - knots[:-degree]
            rise = (x - knots[:-degree, None]) / np.where(widths > 0, widths, np.inf)[:, None]
            fall = 1 - rise
            fall[widths == 0] = 0.0
            values = rise[:-1] * values[:-1] + fall[1:] * values[1:]
        return values

    weights: npt.NDArray[np.float64] = np.linalg.solve(basis(points), basis(at))
    return weights
