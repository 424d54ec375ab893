"""Coordinates of a `SinusoidalSpec`: from positions, from the sizes of a grid, or from a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_type, wrong_value
from posenc_native.engines.arrays import Arrays

from .grid import GridCoordinates, point_of, sizes_of

if TYPE_CHECKING:
    from .spec import SinusoidalSpec


def points_of(
    spec: SinusoidalSpec, positions: Any, sizes: Any, mask: Any, dtype: Any, device: Any
) -> tuple[Arrays, list[Any]]:
    """The engine to compute with, and each coordinate."""
    function, axes = "SinusoidalSpec", len(spec.axis_order)
    number = sum(value is not None for value in (positions, sizes, mask))
    if number == 0:
        wrong_type(function, "positions", "positions, or sizes=, or mask=", "none of them")
    if number > 1:
        wrong_value(function, "positions", "one of positions, sizes and mask", "several")
    grid = GridCoordinates() if spec.grid is None else spec.grid
    if sizes is not None or is_shape(positions, axes):
        if sizes is None:
            shape = (positions,) if axes == 1 else tuple(positions)
            if len(shape) != axes:
                wrong_value(function, "positions", f"{axes} sizes", list(shape))
        else:
            shape = sizes_of(function, sizes, axes)
            if device is None and is_tensor(sizes):
                device = sizes.device
        arrays = Arrays(function, dtype, device)
        points = list(grid.of_shape(shape, dtype=dtype, device=device))
    elif mask is not None:
        arrays = Arrays(function, dtype, device, mask=mask)
        points = list(grid.of_mask(point_of(arrays, "mask", mask), axes))
    else:
        arrays, points = _coordinates(spec, positions, dtype, device)
    origins = spec.origin if isinstance(spec.origin, tuple) else (spec.origin,) * axes
    points = [
        arrays.since("positions", point, origin)
        for point, origin in zip(points, origins, strict=True)
    ]
    if spec.logarithm:
        for point in points:
            seen = arrays.seen(point)
            if seen is not None and not (seen > 0).all():
                expected = "coordinates above 0, which have a logarithm"
                wrong_value(function, "positions", expected, "others")
        points = [arrays.xp.log(arrays.wide(point)) for point in points]
    return arrays, points


def _coordinates(
    spec: SinusoidalSpec, positions: Any, dtype: Any, device: Any
) -> tuple[Arrays, list[Any]]:
    """The engine, and each coordinate, of positions that are not ints; bools are a mask."""
    function, axes = "SinusoidalSpec", len(spec.axis_order)
    several = axes > 1 and isinstance(positions, (tuple, list))
    coordinates = list(positions) if several else [positions]
    if several and len(coordinates) != axes:
        wrong_value(function, "positions", f"{axes} coordinates", len(coordinates))
    if axes == 1 and isinstance(positions, tuple) and all(map(arguments.is_count, positions)):
        _refuse_tuple(function, positions)
    named = {f"positions[{i}]" if several else "positions": p for i, p in enumerate(coordinates)}
    arrays = Arrays(function, dtype, device, **named)
    points = [point_of(arrays, name, value) for name, value in named.items()]
    if axes > 1:
        whole = all(arguments.dtype_name(p.dtype) in arguments.INTEGER_DTYPES for p in points)
        ndim = max(p.ndim for p in points)
        if whole and ndim == (0 if several else 1):
            _refuse_one_cell(function, positions, points, axes)
    if several:
        return arrays, points
    if arguments.dtype_name(points[0].dtype) == "bool":
        grid = GridCoordinates() if spec.grid is None else spec.grid
        return arrays, list(grid.of_mask(points[0], axes))
    if axes == 1:
        return arrays, points
    hint = "write mask= for a mask of integers, sizes= for sizes" if whole else ""
    if points[0].ndim == 0 or points[0].shape[-1] != axes:
        expected = f"a last axis of {axes} coordinates"
        wrong_value(function, "positions", expected, list(points[0].shape), hint)
    if whole and spec.grid is not None:
        expected = f"floats, as [..., {axes}] for positions, or a tuple of {axes} arrays"
        got = f"{arguments.dtype_name(points[0].dtype)} {list(points[0].shape)}"
        wrong_value(function, "positions", expected, got, hint)
    return arrays, [points[0][..., axis] for axis in range(axes)]


def is_shape(positions: Any, axes: int) -> bool:
    """Whether these positions, for this number of coordinates, are a size or a shape."""
    if axes == 1:
        return isinstance(positions, (int, np.integer)) and not isinstance(positions, bool)
    return isinstance(positions, (tuple, list)) and all(
        isinstance(n, (int, np.integer)) for n in positions
    )


def _refuse_tuple(function: str, positions: tuple[Any, ...]) -> NoReturn:
    """The error for ints in a tuple, with one coordinate: sizes, as in x.shape, or positions."""
    shown = tuple(map(int, positions))
    expected = f"a list or an array of positions (write {list(shown)})"
    if len(shown) == 1:
        expected += f", or sizes={shown} for {shown[0]} rows"
    elif shown:
        expected += f", or sizes= with a spec of {len(shown)} coordinates for such a grid"
    wrong_value(function, "positions", expected, f"the tuple {shown}")


def _refuse_one_cell(function: str, positions: Any, points: list[Any], axes: int) -> NoReturn:
    """The error for A integers in an array: the sizes of a grid, or the position of one cell."""
    expected = f"positions [n, {axes}] (for one cell [1, {axes}])"
    got = f"{arguments.dtype_name(points[0].dtype)} {list(points[0].shape)}"
    if isinstance(positions, (tuple, list)):
        expected = f"{axes} arrays [n] of positions"
        got = f"{axes} integer arrays without an axis"
    wrong_value(function, "positions", f"{expected}, or sizes= for the sizes of a grid", got)
