"""Weighted sums of rows, along one axis of a table that is resampled.

They are summed by parts that stay in a cache. Sums of whole tables would write a temporary as large
as the result for each tap of the filter. A product with the matrix of all weights is no faster than
parts, and its bits would depend on the library that computes it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.engines import late
from posenc_native.engines.arrays import Arrays

_PART = 2**16  # elements of a part: 256 KB in float32, so that it stays in a cache with its product
# From here on a call of NumPy for each new row costs less than copies: elements of a row that are
# next to each other, and all of them.
_WIDE, _MANY = 512, 8192

# For each tap of the filter, the row that it reads and its weight, for every new row.
Columns = list[npt.NDArray[np.int64]]
Weights = list[npt.NDArray[np.float64]]


def weighted_rows(arrays: Arrays, grid: Any, columns: Columns, weights: Weights) -> Any:
    """Sums of rows of the grid ``[..., old, width]`` times weights: ``[..., new, width]``.

    Products are added in the order of the taps, so the bits are always the same.
    """
    if not arrays.is_torch:
        return _by_parts(grid, columns, weights)
    operations = late.torch_operations()
    if operations.is_eager_on_cpu(grid):
        old = grid.shape[-2]
        return operations.linear_map(
            grid,
            lambda rows: _of_tensor(arrays, rows, columns, weights),
            lambda rows: _of_tensor(arrays, rows, *_transposed(columns, weights, old)),
        )
    # A GPU would start a kernel for each part. A compiler fuses the sum.
    return sum(
        grid[..., arrays.index(column), :] * arrays.real(arrays.constant(weight))[:, None]
        for column, weight in zip(columns, weights, strict=True)
    )


def _of_tensor(arrays: Arrays, grid: Any, columns: Columns, weights: Weights) -> Any:
    # NumPy computes it, on one thread: torch's threads would wait for each other after every part.
    return arrays.xp.from_numpy(_by_parts(grid.detach().numpy(), columns, weights))


def _by_parts(grid: npt.NDArray[Any], columns: Columns, weights: Weights) -> npt.NDArray[Any]:
    *leading, old, width = grid.shape
    count, new = math.prod(leading), len(columns[0])
    grid = grid.reshape(count, old, width)
    by_row = width >= _WIDE and count * width >= _MANY
    sums = (_row_by_row if by_row else _taken)(grid, columns, weights)
    return sums.reshape(*leading, new, width)


def _row_by_row(grid: npt.NDArray[Any], columns: Columns, weights: Weights) -> npt.NDArray[Any]:
    """Each new row of all grids from views of old ones: three passes for two taps."""
    (count, _, width), new = grid.shape, len(columns[0])
    taps = [
        list(zip(column.tolist(), weight.astype(grid.dtype), strict=True))
        for column, weight in zip(columns, weights, strict=True)
    ]
    result = np.empty((count, new, width), grid.dtype)
    part = min(width, _PART)
    grids = max(_PART // part, 1)
    memory = np.empty((min(grids, count), part), grid.dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # as in torch
        for first, start in itertools.product(range(0, count, grids), range(0, width, part)):
            old_rows = grid[first : first + grids, :, start : start + part]
            new_rows = result[first : first + grids, :, start : start + part]
            product = memory[: new_rows.shape[0], : new_rows.shape[2]]
            for row in range(new):
                total = new_rows[:, row]
                for number, tap in enumerate(taps):
                    column, factor = tap[row]
                    out = product if number else total
                    np.multiply(old_rows[:, column], factor, out=out)
                    if number:
                        np.add(total, product, out=total)
    return result


def _taken(grid: npt.NDArray[Any], columns: Columns, weights: Weights) -> npt.NDArray[Any]:
    """Many new rows at once, from copies of old ones: five passes, in few calls of NumPy."""
    (count, _, width), new = grid.shape, len(columns[0])
    grid = np.ascontiguousarray(grid)  # else each take copies it
    factors = [weight.astype(grid.dtype)[:, None] for weight in weights]
    result = np.empty((count, new, width), grid.dtype)
    rows = min(max(_PART // max(width, 1), 1), new)
    grids = max(_PART // max(new * width, 1), 1) if rows == new else 1
    memory = np.empty((grids, rows, width), grid.dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # as in torch
        for first, row in itertools.product(range(0, count, grids), range(0, new, rows)):
            total = result[first : first + grids, row : row + rows]
            product = memory[: total.shape[0], : total.shape[1]]
            for tap, (column, factor) in enumerate(zip(columns, factors, strict=True)):
                chosen, factor = column[row : row + rows], factor[row : row + rows]
                # With mode="raise" take would write to a copy first.
                np.take(grid[first : first + grids], chosen, axis=1, out=product, mode="clip")
                if tap == 0:
                    np.multiply(product, factor, out=total)
                else:
                    np.multiply(product, factor, out=product)
                    np.add(total, product, out=total)
    return result


def _transposed(columns: Columns, weights: Weights, old: int) -> tuple[Columns, Weights]:
    """The taps of the transpose: for every old row, the new rows that read it."""
    taps, new = len(columns), len(columns[0])
    readers, read = np.tile(np.arange(new), taps), np.concatenate(columns)
    order = np.argsort(read, kind="stable")
    counts = np.bincount(read, minlength=old)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    place = np.arange(len(read)) - starts, read[order]
    shape = (int(counts.max()), old)
    of_taps, of_weights = np.zeros(shape, np.int64), np.zeros(shape)
    of_taps[place] = readers[order]
    of_weights[place] = np.concatenate(weights)[order]
    return list(of_taps), list(of_weights)
