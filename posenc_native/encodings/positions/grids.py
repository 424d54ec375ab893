"""Positions of the cells of grids: images, videos, coordinates within them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_type, wrong_value
from posenc_native.core.calls.constants import constant_without_tensors
from posenc_native.engines.arrays import Arrays, of_wholes
from posenc_native.engines.plain.numbers import at_or_below

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        ArrayOrTensor,
        CellCount,
        CellPlace,
        Device,
        Dtype,
        Integers,
        NumPyDtype,
        Tensor,
        TensorLike,
        TorchDtype,
    )

__all__ = [
    "add_unrotated_tokens",
    "augment_coordinates",
    "grid_positions",
    "image_coordinates",
    "packed_grid_positions",
]

_COORDINATES = ("index", "corners", "centers")

_NORMALIZATIONS = ("separate", "min", "max")


if TYPE_CHECKING:

    class Placement(TypedDict, total=False):
        """Keywords for the coordinates of cells."""

        grid: CellPlace
        normalize: CellCount
        offset: float
        reference: Sequence[int] | None

    class Augmentation(TypedDict, total=False):
        """Keywords for the augmentation of coordinates in training."""

        shift: float | None
        jitter: float | None
        rescale: float | None
        generator: Any
        training: bool


@overload
def grid_positions(sizes: Sequence[int], *, merge_size: int = ...,
                   device: None = ...) -> Array[np.int64]: ...  # fmt: skip
@overload
def grid_positions(sizes: Sequence[int], *, merge_size: int = ..., device: Device) -> Tensor: ...
@constant_without_tensors
def grid_positions(sizes: Sequence[int], *, merge_size: int = 1, device: Any = None) -> Any:
    """Positions of the cells of a grid; the last axis varies fastest.

    Args:
        sizes: the number of cells along each of A axes: height and width, or time, height and
            width.
        merge_size: m: cells are ordered in blocks of m by m of the last two axes, block after
            block, as required by vision encoders that merge m * m patches into one token (Qwen-VL).
        device: a torch device makes the result a tensor.

    Returns:
        int64 ``[A, N]``, N the product of the sizes.

    Raises:
        ValueError: a size is negative or not a multiple of merge_size, or there are more cells than
            any array can have.
        TypeError: a size is not an integer.

    Example:
        >>> import posenc_native as pn
        >>> pn.positions.grid_positions([2, 3])
        array([[0, 0, 0, 1, 1, 1],
               [0, 1, 2, 0, 1, 2]])
        >>> pn.positions.grid_positions([2, 4], merge_size=2)
        array([[0, 0, 1, 1, 0, 0, 1, 1],
               [0, 1, 0, 1, 2, 3, 2, 3]])
    """
    function = "grid_positions"
    arrays = Arrays(function, None, device)
    lengths = _lengths(function, "sizes", sizes)
    merge = positive_size(function, "merge_size", merge_size)
    if merge > 1 and len(lengths) < 2:
        expected = "sizes of at least two axes with merge_size > 1"
        wrong_value(function, "sizes", expected, lengths)
    if any(length % merge for length in lengths[-2:]):
        wrong_value(function, "sizes", f"multiples of merge_size = {merge}", lengths)
    cell = arrays.arange(math.prod(lengths))
    return arrays.xp.stack(places_of(cell, lengths, merge))


def _lengths(function: str, argument: str, sizes: Any) -> list[int]:
    """The number of cells along each axis of a grid."""
    try:
        counts = list(sizes)
    except TypeError:
        wrong_type(function, argument, "ints, one for each axis", type(sizes).__name__)
    lengths = [arguments.length(function, argument, size) for size in counts]
    if not lengths:
        wrong_value(function, argument, "a size for each axis", lengths)
    if not any(arguments.is_symbolic(length) for length in lengths):
        bytes_of_result = 8 * len(lengths) * math.prod(lengths)
        if bytes_of_result >= 2**63:
            wrong_value(function, argument, "a grid of fewer than 2^63 bytes", lengths)
    return lengths


def positive_size(function: str, argument: str, value: object) -> int:
    result = arguments.size(function, argument, value)
    if result < 1:
        wrong_value(function, argument, "an int > 0", result)
    return result


@constant_without_tensors
@of_wholes
def packed_grid_positions(
    grid_sizes: Integers, total: int, *, merge_size: int = 1, time: bool = False
) -> ArrayOrTensor:
    """Positions of the patches of several images and videos, packed one after another.

    Args:
        grid_sizes: integers ``[n, 3]``, time, height and width of each grid in patches
            (``grid_thw``).
        total: t, the total number of patches.
        merge_size: as in `grid_positions`: an int > 0, the side of the blocks of cells.
        time: True for three axes. False for height and width alone, which start again with each
            frame.

    Returns:
        int64 ``[2, t]``, or ``[3, t]`` with time.

    Raises:
        ValueError: the shapes do not fit. Also, if values can be read (in NumPy, and on the CPU
            while torch does not trace): a size is negative or not a multiple of merge_size, or the
            number of patches is not `total`.
        TypeError: an argument is not an integer.

    Source: ``get_vision_position_ids`` in transformers, for Qwen2-VL and similar models.

    Example:
        >>> import posenc_native as pn
        >>> pn.positions.packed_grid_positions([[1, 2, 2], [1, 1, 3]], 7)
        array([[0, 0, 1, 1, 0, 0, 0],
               [0, 1, 0, 1, 0, 1, 2]])
    """
    function = "packed_grid_positions"
    arrays = Arrays(function, grid_sizes=grid_sizes)
    merge = positive_size(function, "merge_size", merge_size)
    grids = read_grids(arrays, "grid_sizes", grid_sizes, (1, merge, merge))
    total = arguments.length(function, "total", total)
    seen = arrays.seen(grids)
    if seen is not None and total != (patches := sum(map(math.prod, seen.tolist()))):
        wrong_value(function, "total", f"the {patches} patches of grid_sizes", total)
    cells = arrays.arange(total)
    if grids.shape[0] == 0:
        return arrays.xp.stack([cells * 0] * (3 if time else 2))
    grid, cell = nth_of(arrays, grids.prod(-1), cells)
    # A grid without patches has nothing to place, but its sizes must not be divided by.
    sizes = [grids[grid, axis].clip(min=merge) for axis in range(3)]
    places = places_of(cell, sizes, merge)
    return arrays.xp.stack(places if arrays.flag("time", time) else places[1:])


@overload
def image_coordinates(sizes: Sequence[int], *, dtype: TorchDtype, device: Device | None = ...,
                      **options: Unpack[Placement]) -> Tensor: ...  # fmt: skip
@overload
def image_coordinates(sizes: Sequence[int], *, dtype: Dtype = ..., device: Device,
                      **options: Unpack[Placement]) -> Tensor: ...  # fmt: skip
@overload
def image_coordinates(sizes: Sequence[int], *, dtype: NumPyDtype = ..., device: None = ...,
                      **options: Unpack[Placement]) -> Array[Any]: ...  # fmt: skip
@constant_without_tensors
def image_coordinates(
    sizes: Sequence[int],
    *,
    grid: CellPlace = "centers",
    normalize: CellCount = "separate",
    offset: float = 0.0,
    reference: Sequence[int] | None = None,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Coordinates of the cells of a grid, as in vision models; the last axis varies fastest.

    Args:
        sizes: the number of cells along each of A axes.
        grid: the coordinate of cell i of n.

            ========= =========================================== ==============================
            centers   ``2 (i + 0.5 + offset) / n - 1``            DINOv3; n according to normalize
            corners   ``2 i / (n - 1) - 1`` (-1 if n is 1)        timm with in_pixels
            index     ``i + offset``                              timm without, EVA
            ========= =========================================== ==============================
        normalize: with "centers", n is the size of each axis ("separate"), the smallest size
            ("min") or the largest ("max").
        offset: cells to add.
        reference: sizes of the pretraining grid, onto which this grid is stretched: coordinates are
            multiplied by reference / size, those of "centers" before they are doubled.
        dtype: float32 (default) or float64, of NumPy or torch.
        device: a torch device makes the result a tensor.

    Returns:
        ``[A, N]``. (timm's grid_indexing "xy" has the axes in the other order: ``result[::-1]``.)

    Raises:
        ValueError: sizes do not fit, or a name is unknown.
        TypeError: a dtype is not supported.

    Source: Siméoni et al. 2025, "DINOv3"; ``RotaryEmbeddingCat`` in timm.

    Example:
        >>> import posenc_native as pn
        >>> pn.positions.image_coordinates([1, 4])
        array([[ 0.  ,  0.  ,  0.  ,  0.  ],
               [-0.75, -0.25,  0.25,  0.75]], dtype=float32)
    """
    function = "image_coordinates"
    arrays = Arrays(function, dtype, device)
    if dtype is not None:
        arguments.check_dtype(function, "dtype", arrays.dtype, arguments.FREQUENCY_DTYPES)
    arguments.check_name(function, "grid", grid, _COORDINATES)
    arguments.check_name(function, "normalize", normalize, _NORMALIZATIONS)
    offset = arguments.finite_number(function, "offset", offset)
    lengths = _lengths(function, "sizes", sizes)
    scales = [1.0] * len(lengths)
    if reference is not None:
        references = _lengths(function, "reference", reference)
        if len(references) != len(lengths) or min(references) < 1:
            wrong_value(function, "reference", f"{len(lengths)} sizes of at least 1", references)
        scales = [
            target / max(length, 1) for target, length in zip(references, lengths, strict=True)
        ]
    unit = {"min": min(lengths), "max": max(lengths)}.get(normalize)
    cell = arrays.arange(math.prod(lengths))
    coordinates = []
    places = places_of(cell, lengths, 1)
    for place, length, scale in zip(places, lengths, scales, strict=True):
        index = arrays.wide(place)
        if grid == "centers":
            cells = max(length if unit is None else unit, 1)
            coordinate = 2.0 * ((index + (0.5 + offset)) / cells * scale) - 1.0
        elif grid == "corners":
            coordinate = (2.0 * index / max(length - 1, 1) - 1.0) * scale
        else:
            coordinate = (index + offset) * scale
        coordinates.append(coordinate)
    return arrays.rounded(arrays.xp.stack(coordinates))


@overload
def augment_coordinates(coordinates: TensorLike, **how: Unpack[Augmentation]) -> Tensor: ...
@overload
def augment_coordinates(coordinates: npt.ArrayLike, **how: Unpack[Augmentation]) -> Array[Any]: ...
@constant_without_tensors
def augment_coordinates(
    coordinates: Any,
    *,
    shift: float | None = None,
    jitter: float | None = None,
    rescale: float | None = None,
    generator: Any = None,
    training: bool = True,
) -> Any:
    """Shift and stretch coordinates at random, as DINOv3 does in training; the same for all cells.

    Args:
        coordinates: floats ``[A, N]``, from `image_coordinates`.
        shift: each axis is shifted by a number from ``[-shift, shift]``.
        jitter: then each axis is multiplied by a number from ``[1 / jitter, jitter]`` with a
            uniform logarithm.
        rescale: then all axes are multiplied by one such number from ``[1 / rescale, rescale]``.
        generator: a `numpy.random.Generator` or a `torch.Generator`; the same state gives the same
            numbers. None is a new one, or torch's default. For an option that is None, nothing is
            drawn.
        training: False returns the coordinates unchanged: ``training=self.training``.

    Returns:
        As `coordinates`.

    Raises:
        ValueError: shift is negative, jitter or rescale is below 1, or the shape is wrong.
        TypeError: a dtype is not supported.

    Source: Siméoni et al. 2025, "DINOv3". In torch the numbers are those of transformers and timm.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> coordinates = pn.positions.image_coordinates([2, 2])
        >>> generator = np.random.default_rng(0)
        >>> pn.positions.augment_coordinates(coordinates, shift=0.5, generator=generator).round(2)
        array([[-0.36, -0.36,  0.64,  0.64],
               [-0.73,  0.27, -0.73,  0.27]], dtype=float32)
    """
    function = "augment_coordinates"
    arrays = Arrays(function, coordinates=coordinates)
    if not is_tensor(coordinates):
        coordinates = arguments.as_array(function, "coordinates", coordinates)
    arguments.check_dtype(function, "coordinates", coordinates.dtype, arguments.FREQUENCY_DTYPES)
    if coordinates.ndim != 2:
        wrong_value(function, "coordinates", "shape [A, N]", list(coordinates.shape))
    ranges = {}
    for argument, value, lowest in (("shift", shift, 0), ("jitter", jitter, 1),
                                    ("rescale", rescale, 1)):  # fmt: skip
        if value is not None:
            ranges[argument] = arguments.finite_number(function, argument, value)
            if ranges[argument] < lowest:
                wrong_value(function, argument, f"a number >= {lowest}", value)
    if not arrays.flag("training", training):
        return coordinates
    if not arrays.is_torch:
        generator = arguments.numpy_generator(function, generator)
    elif isinstance(generator, np.random.Generator):
        wrong_type(function, "generator", "a torch.Generator for a tensor", "NumPy's")

    def uniform(limit: float, count: int) -> Any:
        if not arrays.is_torch:
            return generator.uniform(-limit, limit, (count, 1)).astype(coordinates.dtype)
        drawn = coordinates.new_empty((count, 1))
        return drawn.uniform_(-limit, limit, generator=generator)

    axes = coordinates.shape[0]
    if "shift" in ranges:
        coordinates = coordinates + uniform(ranges["shift"], axes)
    if "jitter" in ranges:
        coordinates = coordinates * arrays.xp.exp(uniform(math.log(ranges["jitter"]), axes))
    if "rescale" in ranges:
        coordinates = coordinates * arrays.xp.exp(uniform(math.log(ranges["rescale"]), 1))
    return coordinates


@constant_without_tensors
@of_wholes
def add_unrotated_tokens(positions: Any, *, before: int = 0, after: int = 0) -> ArrayOrTensor:
    """Add tokens with position 0, which rotary leaves unchanged, before and after positions.

    This serves tokens beside the patches of an image: the class and register tokens of DINOv3
    (before), the class token of Llama 4 (after), the object pointers among SAM 2's keys (after).

    Args:
        positions: ``[..., N]``, integers or floats.
        before, after: numbers of tokens.

    Returns:
        ``[..., before + N + after]``, of the same dtype.

    Raises:
        ValueError: a number is negative, or positions have no axis.
        TypeError: a dtype is not supported.

    Example:
        >>> import posenc_native as pn
        >>> pn.positions.add_unrotated_tokens(pn.positions.grid_positions([1, 3]) + 1, before=1)
        array([[0, 1, 1, 1],
               [0, 1, 2, 3]])
    """
    function = "add_unrotated_tokens"
    arrays = Arrays(function, positions=positions)
    if not is_tensor(positions):
        positions = arguments.as_positions(function, positions)
    arguments.check_position_dtype(function, "positions", positions.dtype)
    if positions.ndim == 0:
        wrong_value(function, "positions", "shape [..., N]", [])
    leading = tuple(positions.shape[:-1])
    options = {"dtype": positions.dtype, **({"device": arrays.device} if arrays.is_torch else {})}
    counts = [
        arguments.length(function, argument, count)
        for argument, count in (("before", before), ("after", after))
    ]
    arguments.check_byte_count(function, (*leading, sum(counts)), 8)
    around = [arrays.xp.zeros((*leading, count), **options) for count in counts]
    return arrays.xp.concatenate([around[0], positions, around[1]], -1)


def read_grids(arrays: Arrays, argument: str, value: Any, merges: tuple[int, int, int]) -> Any:
    """Sizes [n, 3] of grids, of which `merges` cells along each axis are merged."""
    grids = arrays.integers(argument, value, arguments.INTEGER_DTYPES)
    if grids.ndim != 2 or grids.shape[1] != 3:
        wrong_value(arrays.function, argument, "shape [n, 3]", list(grids.shape))
    seen = arrays.seen(grids)
    if seen is not None:
        wrong = seen[((seen < 0) | (seen % merges != 0)).any(1)]
        if len(wrong):
            expected = f"sizes >= 0, multiples of {', '.join(map(str, merges))} along the axes"
            wrong_value(arrays.function, argument, expected, wrong[0].tolist())
    return grids


def nth_of(arrays: Arrays, counts: Any, nth: Any) -> tuple[Any, Any]:
    """The index of the grid that has the nth cell, and the cell's number within it.

    counts: the numbers of cells of n > 0 grids. Cells after the last grid count as part of it.
    """
    ends = counts.cumsum(0)
    grid = at_or_below(ends, nth).clip(max=counts.shape[0] - 1)
    return grid, nth - (ends - counts)[grid]


def places_of(cell: Any, sizes: Sequence[Any], merge: int) -> list[Any]:
    """Coordinates of cells, in blocks; sizes are those of one grid, or of the grid of each cell."""
    if merge > 1:
        blocks = [*sizes[:-2], sizes[-2] // merge, sizes[-1] // merge]
        *outer, row, column = places_of(cell // merge**2, blocks, 1)
        inner = cell % merge**2
        return [*outer, row * merge + inner // merge, column * merge + inner % merge]
    places = []
    for size in reversed(sizes[1:]):
        places.append(cell % size)
        cell = cell // size
    return [cell, *reversed(places)]
