"""Coordinates for the cells of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, overload

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_type, wrong_value
from posenc_native.core.calls.suggestions.vocabulary import answer_methods
from posenc_native.core.documents.reprs import call
from posenc_native.engines.arrays import Arrays

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Unpack

    from posenc_native.core.calls.kinds import Array, OfNumPy, OfTorch, Tensor, TensorLike

__all__ = ["GridCoordinates"]


@answer_methods
@dataclass(frozen=True, kw_only=True)
class GridCoordinates:
    """How cell i of the n cells of an axis becomes a coordinate.

    ``low + extent * (i + first) / (n - drop)``, or ``low + i + first`` without an extent.

    Args:
        first: the value of the first cell: 0, 1 (DETR), 0.5 (centers of cells).
        extent: the length that n cells are stretched to, one for all axes or one for each; None
            counts cells.
        low: the coordinate to begin at.
        drop: the number of cells not counted in n: 1 if the ends are at the first and the last
            cell, a small negative number if the source guards a division.
        descending: count from the last cell (Transformer-XL).

    Raises:
        ValueError, TypeError: an argument is not such a number.

    Example:
        >>> import posenc_native as pn
        >>> rows, columns = pn.sinusoids.GridCoordinates(low=-1, extent=2, drop=1).of_shape((2, 3))
        >>> rows.shape, columns
        ((2, 1), array([[-1.,  0.,  1.]]))
    """

    first: float = 0.0
    extent: float | tuple[float, ...] | None = None
    low: float = 0.0
    drop: float = 0.0
    descending: bool = False

    def __post_init__(self) -> None:
        function = "GridCoordinates"
        for name in ("first", "low", "drop"):
            arguments.finite_number(function, name, getattr(self, name))
        if isinstance(self.extent, (tuple, list)):
            extents = [arguments.finite_number(function, "extent", x) for x in self.extent]
            object.__setattr__(self, "extent", tuple(extents))
        elif self.extent is not None:
            arguments.finite_number(function, "extent", self.extent)

    def __repr__(self) -> str:
        return call(self, **{field.name: getattr(self, field.name) for field in fields(self)})

    @overload
    def of_shape(self, shape: Sequence[int], **made: Unpack[OfNumPy]) -> tuple[Array[Any], ...]: ...
    @overload
    def of_shape(self, shape: Sequence[int], **made: Unpack[OfTorch]) -> tuple[Any, ...]: ...
    def of_shape(
        self, shape: Sequence[int], *, dtype: Any = None, device: Any = None
    ) -> tuple[Any, ...]:
        """Coordinates of a grid of this shape: one array per axis, which broadcast to the shape.

        shape: the sizes of the axes, ints, or an integer array or tensor ``[A]``.

        They are int64 if whole cells are counted, otherwise float64. A torch dtype or a device
        makes them tensors; apart from that, the dtype only applies to the table made from them.
        """
        function = "GridCoordinates"
        arrays = Arrays(function, dtype, device)
        lengths = sizes_of(function, shape, argument="shape")
        placed = []
        for axis, n in enumerate(lengths):
            along = (1,) * axis + (n,) + (1,) * (len(lengths) - 1 - axis)
            divisor = n - self.drop
            place = self._place(arrays, axis, arrays.arange(n), n, divisor or 1.0)
            placed.append(place.reshape(along))
        return tuple(placed)

    @overload
    def of_mask(self, mask: TensorLike, axes: int) -> tuple[Tensor, ...]: ...
    @overload
    def of_mask(self, mask: npt.ArrayLike, axes: int) -> tuple[Array[Any], ...]: ...
    def of_mask(self, mask: Any, axes: int) -> tuple[Any, ...]:
        """Coordinates ``mask.shape`` of the cells in a mask, along each of the last `axes`.

        mask: bools, True for cells that are present, or the integers 1 and 0. Along every line of
        cells, i counts these cells and n is their number.
        """
        function = "GridCoordinates"
        arrays = Arrays(function, mask=mask)
        mask = point_of(arrays, "mask", mask)
        name = arguments.dtype_name(mask.dtype)
        if name in arguments.INTEGER_DTYPES:
            seen = arrays.seen(mask)
            if seen is not None and ((seen != 0) & (seen != 1)).any():
                wrong_value(function, "mask", "the integers 0 and 1", "other integers")
            mask = mask != 0
        elif name != "bool":
            wrong_type(function, "mask", "bools, or the integers 0 and 1", name)
        if mask.ndim < axes:
            wrong_value(function, "mask", f"at least {axes} axes", f"shape {list(mask.shape)}")
        placed = []
        for axis in range(axes):
            counted = arrays.xp.cumsum(mask, axis - axes)
            last = (..., slice(-1, None), *(slice(None),) * (axes - 1 - axis))
            n = counted[last]
            divisor = n - self.drop
            divisor = arrays.xp.where(divisor == 0, 1, divisor)
            placed.append(self._place(arrays, axis, counted - 1, n, divisor))
        return tuple(placed)

    def _place(self, arrays: Arrays, axis: int, i: Any, n: Any, divisor: Any) -> Any:
        if self.descending:
            i = n - 1 - i
        if self.extent is None:
            offset = self.first + self.low
            return i + int(offset) if offset == int(offset) else arrays.wide(i) + offset
        extent = self.extent
        if isinstance(extent, tuple):
            if axis >= len(extent):
                wrong_value("GridCoordinates", "extent", "one per axis", extent)
            extent = extent[axis]
        return (arrays.wide(i) + self.first) * extent / divisor + self.low


def sizes_of(
    function: str, sizes: Any, axes: int | None = None, argument: str = "sizes"
) -> tuple[int, ...]:
    """The sizes of a grid: ints, or integers [A] of an array or tensor, whose numbers are read."""
    expected = "ints, one for each axis" if axes is None else f"{axes} ints, one for each axis"
    if axes == 1 and arguments.is_count(sizes):
        sizes = (sizes,)
    elif arguments.is_array(sizes) or is_tensor(sizes):
        if len(sizes.shape) != 1:
            wrong_value(function, argument, expected, f"shape {list(sizes.shape)}")
        if arguments.dtype_name(sizes.dtype) not in arguments.INTEGER_DTYPES:
            wrong_type(function, argument, expected, arguments.dtype_name(sizes.dtype))
        sizes = sizes.tolist() if hasattr(sizes, "tolist") else [*sizes]
    elif not isinstance(sizes, (tuple, list)):
        wrong_type(function, argument, expected, type(sizes).__name__)
    lengths = tuple(arguments.length(function, argument, n) for n in sizes)
    if axes is not None and len(lengths) != axes:
        wrong_value(function, argument, expected, list(lengths))
    return lengths


def point_of(arrays: Arrays, argument: str, value: Any) -> Any:
    """A coordinate, or a mask, as an array or tensor."""
    if is_tensor(value):
        return value
    array = arguments.as_positions(arrays.function, value, argument)
    if array.dtype.kind != "b":
        arguments.check_position_dtype(arrays.function, argument, array.dtype)
    return arrays.xp.tensor(array, device=arrays.device) if arrays.is_torch else array
