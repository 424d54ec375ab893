"""Builders of positions, from what a model is given: packed rows, masks, grids, images among text.

    sequences packed in a row       `packed_positions`, `packed_segments`     [t]
    rows with padding               `padded_positions`                        [b, s]
    a shard of a long row           `context_parallel_positions`              [s / ranks]
    patches of an image, a video    `grid_positions`, `packed_grid_positions` [A, s]
    the same as coordinates         `image_coordinates`, `augment_coordinates`
    text, images and videos         `vision_language_positions`               [3, b, s]

Results are what `apply_rotary` takes as positions (several axes with its axis_map). Integers of any
width come in, int64 goes out. Nothing depends on the values of an argument but the values of the
result, and errors where values can be seen (NumPy, tensors on the CPU that no one traces): lengths
are given or are those of the arguments, so that torch.compile(fullgraph=True) and torch.export take
all of it. Tensors in, tensors on their device out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.base import arguments

from .base.arguments import is_tensor, wrong_type, wrong_value
from .engines.arrays import Arrays

if TYPE_CHECKING:
    import torch

    from .base.kinds import Device

    Integers = int | npt.ArrayLike | torch.Tensor

__all__ = [
    "add_unrotated_tokens",
    "augment_coordinates",
    "context_parallel_positions",
    "grid_positions",
    "image_coordinates",
    "packed_grid_positions",
    "packed_positions",
    "packed_segments",
    "padded_positions",
    "vision_language_positions",
]

_SHARD_ORDERS = ("contiguous", "zigzag", "striped")
_COORDINATES = ("index", "corners", "centers")
_NORMALIZATIONS = ("separate", "min", "max")


# --- Rows of tokens


def packed_positions(cu_seqlens: Integers, total: int, *, start: Integers = 0) -> Any:
    """Positions of sequences that are packed one after another: each counts from its start.

    Args:
        cu_seqlens: integers ``[n + 1]``, where each of n sequences begins and the last one ends,
            ascending from 0, as variable-length attention takes them. Sequences may be empty.
        total: t, the number of tokens; the length of the axis in ``q``. Tokens after the last
            sequence (padding) count from 0, too.
        start: the first position, one for all or ``[n]``: tokens that are in a cache already.

    Returns:
        int64 ``[t]``.

    Raises:
        ValueError: shapes that do not fit; bounds that do not ascend from 0 to `total` at most,
            where their values can be seen: in NumPy, and on the CPU while torch does not trace.
        TypeError: arguments that are not integers.

    Example:
        >>> import posenc_native as pn
        >>> pn.packed_positions([0, 3, 5], 6)
        array([0, 1, 2, 0, 1, 0])
    """
    function = "packed_positions"
    arrays = Arrays(function, cu_seqlens=cu_seqlens, start=start)
    bounds = _bounds(arrays, cu_seqlens, total)
    tokens, segment = _segments(arrays, bounds, total)
    first = _first(arrays, start, bounds.shape[0] - 1)
    if not isinstance(first, int):
        first = arrays.xp.concatenate([first, arrays.arange(1)])[segment]  # 0 after the last
    return tokens - bounds[segment] + first


def packed_segments(cu_seqlens: Integers, total: int) -> Any:
    """Which of the packed sequences each token belongs to; tokens after the last are of number n.

    Args:
        cu_seqlens, total: as in `packed_positions`.

    Returns:
        int64 ``[t]``.

    Raises:
        ValueError, TypeError: as in `packed_positions`.

    Example:
        >>> import posenc_native as pn
        >>> pn.packed_segments([0, 3, 5], 6)
        array([0, 0, 0, 1, 1, 2])
    """
    arrays = Arrays("packed_segments", cu_seqlens=cu_seqlens)
    return _segments(arrays, _bounds(arrays, cu_seqlens, total), total)[1]


def padded_positions(
    attention_mask: npt.ArrayLike | torch.Tensor, *, padding: int = 0, start: Integers = 0
) -> Any:
    """Positions of rows with padding, on either side or within: they count the tokens of a row.

    Args:
        attention_mask: ``[b, s]`` bools or integers; what is not 0 is a token.
        padding: position of what is none: 0 as in transformers 5, 1 as in its earlier versions.
        start: position of the first token, one for all or ``[b]``. (A mask that covers a cache as
            well needs none: take the last columns of the result.)

    Returns:
        int64 ``[b, s]``.

    Raises:
        ValueError: shapes that do not fit.
        TypeError: impossible dtypes.

    Source: ``GenerationMixin`` of transformers.

    Example:
        >>> import posenc_native as pn
        >>> pn.padded_positions([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
        array([[0, 0, 0, 1, 2],
               [0, 1, 2, 3, 0]])
    """
    function = "padded_positions"
    arrays = Arrays(function, attention_mask=attention_mask, start=start)
    there = _mask(arrays, attention_mask)
    first = _first(arrays, start, there.shape[0])
    count = there.cumsum(-1) - 1 + (first if isinstance(first, int) else first[:, None])
    return arrays.xp.where(there, count, _integer(function, "padding", padding))


@overload
def context_parallel_positions(
    length: int, rank: int, ranks: int, *, order: str = ..., device: None = ...,
) -> npt.NDArray[np.int64]: ...  # fmt: skip
@overload
def context_parallel_positions(
    length: int, rank: int, ranks: int, *, order: str = ..., device: Device,
) -> torch.Tensor: ...  # fmt: skip
def context_parallel_positions(
    length: int, rank: int, ranks: int, *, order: str = "zigzag", device: Any = None
) -> Any:
    """Positions that a rank holds where a row is sharded over ranks (context parallelism).

    Args:
        length: of the whole row; a multiple of ranks, of 2 * ranks for "zigzag".
        rank, ranks: which shard, and of how many.
        order: "contiguous": rank r has the r-th part. "zigzag": of 2 * ranks parts it has the r-th
            and the r-th from the end, so that causal attention costs every rank the same (ring
            attention in Megatron-LM, torch, TransformerEngine). "striped": every token whose
            position is r modulo ranks.
        device: a torch device makes it a tensor.

    Returns:
        int64 ``[length / ranks]``. Positions of packed rows or of several axes are sharded by it:
        ``positions[..., result]``.

    Raises:
        ValueError: a length that does not divide, a rank that is none, an unknown order.
        TypeError: arguments that are not integers.

    Source: Liu et al. 2023, "Ring Attention"; Brandon et al. 2023, "Striped Attention".

    Example:
        >>> import posenc_native as pn
        >>> pn.context_parallel_positions(8, 0, 2)
        array([0, 1, 6, 7])
    """
    function = "context_parallel_positions"
    arrays = Arrays(function, None, device)
    ranks = arguments.size(function, "ranks", ranks)
    rank = arguments.size(function, "rank", rank)
    if rank >= ranks:
        wrong_value(function, "rank", f"an int below ranks = {ranks}", rank)
    arguments.check_name(function, "order", order, _SHARD_ORDERS)
    length = arguments.length(function, "length", length)
    parts = 2 * ranks if order == "zigzag" else ranks
    if length % parts:
        wrong_value(function, "length", f"a multiple of {parts}", length)
    part = length // parts
    place = arrays.arange(part)
    if order == "striped":
        return place * ranks + rank
    if order == "contiguous":
        return place + rank * part
    return arrays.xp.concatenate([place + rank * part, place + (parts - 1 - rank) * part])


def _first(arrays: Arrays, start: Any, count: int) -> Any:
    """The argument start: an int, or integers [count]."""
    if isinstance(start, (int, np.integer)):
        return _integer(arrays.function, "start", start)
    first = arrays.integers("start", start, arguments.INTEGER_DTYPES)
    arguments.check_shape(arrays.function, "start", first.shape, (count,))
    return first


def _bounds(arrays: Arrays, cu_seqlens: Any, total: int) -> Any:
    bounds = arrays.integers("cu_seqlens", cu_seqlens, arguments.INTEGER_DTYPES)
    if bounds.ndim != 1 or bounds.shape[0] == 0:
        wrong_value(arrays.function, "cu_seqlens", "shape [n + 1]", list(bounds.shape))
    seen = _seen(arrays, bounds)
    if seen is not None:
        total = arguments.length(arrays.function, "total", total)
        if seen[0] != 0 or (seen[1:] < seen[:-1]).any() or seen[-1] > total:
            expected = f"bounds that ascend from 0 to at most total = {total}"
            wrong_value(arrays.function, "cu_seqlens", expected, _shown(seen))
    return bounds


def _seen(arrays: Arrays, values: Any) -> npt.NDArray[Any] | None:
    """The values as an array where they can be looked at without a wait, else None."""
    if not arrays.is_torch:
        return np.asarray(values)
    if not arrays.readable or type(values) is not arrays.xp.Tensor:
        return None
    return values.numpy()  # type: ignore[no-any-return]


def _shown(values: npt.NDArray[Any]) -> str:
    """Values in a message; of many the first ones."""
    shown = values[:8].tolist()
    return f"{shown}" if len(values) <= 8 else f"{shown}, the first of {len(values)}"


def _segments(arrays: Arrays, bounds: Any, total: int) -> tuple[Any, Any]:
    """The tokens 0 .. total - 1, and how many sequences end at or before each."""
    tokens = arrays.arange(arguments.length(arrays.function, "total", total))
    return tokens, arrays.xp.searchsorted(bounds[1:], tokens, side="right")


def _mask(arrays: Arrays, mask: Any) -> Any:
    given = arrays.integers("attention_mask", mask, ("bool", *arguments.INTEGER_DTYPES))
    if given.ndim != 2:
        wrong_value(arrays.function, "attention_mask", "shape [b, s]", list(given.shape))
    return given != 0


def _integer(function: str, argument: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        wrong_type(function, argument, "an int", type(value).__name__)
    return int(value)


# --- Grids


@overload
def grid_positions(
    sizes: Sequence[int], *, merge_size: int = ..., device: None = ...,
) -> npt.NDArray[np.int64]: ...  # fmt: skip
@overload
def grid_positions(
    sizes: Sequence[int], *, merge_size: int = ..., device: Device,
) -> torch.Tensor: ...  # fmt: skip
def grid_positions(sizes: Sequence[int], *, merge_size: int = 1, device: Any = None) -> Any:
    """Positions of the cells of a grid, the last axis running fastest.

    Args:
        sizes: how many cells each of A axes has: height and width, or time, height and width.
        merge_size: m: cells come in blocks of m by m of the last two axes, block after block, as
            vision encoders want them that merge m * m patches into one token (Qwen-VL).
        device: a torch device makes it a tensor.

    Returns:
        int64 ``[A, N]``, N the product of the sizes.

    Raises:
        ValueError: a negative size, sizes that merge_size does not divide, more cells than any
            array can have.
        TypeError: sizes that are not integers.

    Example:
        >>> import posenc_native as pn
        >>> pn.grid_positions([2, 3])
        array([[0, 0, 0, 1, 1, 1],
               [0, 1, 2, 0, 1, 2]])
        >>> pn.grid_positions([2, 4], merge_size=2)
        array([[0, 0, 1, 1, 0, 0, 1, 1],
               [0, 1, 0, 1, 2, 3, 2, 3]])
    """
    function = "grid_positions"
    arrays = Arrays(function, None, device)
    lengths = _lengths(function, "sizes", sizes)
    merge = _positive_size(function, "merge_size", merge_size)
    if merge > 1 and len(lengths) < 2:
        expected = "sizes of two axes or more where merge_size > 1"
        wrong_value(function, "sizes", expected, lengths)
    if any(length % merge for length in lengths[-2:]):
        wrong_value(function, "sizes", f"multiples of merge_size = {merge}", lengths)
    cell = arrays.arange(math.prod(lengths))
    return arrays.xp.stack(_places(cell, lengths, merge))


def _lengths(function: str, argument: str, sizes: Any) -> list[int]:
    """How many cells each axis of a grid has."""
    try:
        given = list(sizes)
    except TypeError:
        wrong_type(function, argument, "ints, one for each axis", type(sizes).__name__)
    lengths = [arguments.length(function, argument, size) for size in given]
    if not lengths:
        wrong_value(function, argument, "a size for each axis", lengths)
    if not any(arguments.is_symbolic(length) for length in lengths):
        bytes_of_result = 8 * len(lengths) * math.prod(lengths)
        if bytes_of_result >= 2**63:
            wrong_value(function, argument, "a grid of fewer than 2^63 bytes", lengths)
    return lengths


def _positive_size(function: str, argument: str, value: object) -> int:
    result = arguments.size(function, argument, value)
    if result < 1:
        wrong_value(function, argument, "an int > 0", result)
    return result


def packed_grid_positions(
    grid_sizes: Integers, total: int, *, merge_size: int = 1, time: bool = False
) -> Any:
    """Positions of the patches of several images and videos, packed one after another.

    Args:
        grid_sizes: integers ``[n, 3]``, time, height and width of each in patches
            (``grid_thw``).
        total: t, the number of patches, of all together.
        merge_size: as in `grid_positions`.
        time: True for three axes. False has height and width alone, which begin anew with each
            frame.

    Returns:
        int64 ``[2, t]``, ``[3, t]`` with time.

    Raises:
        ValueError: shapes that do not fit; sizes that are negative or that merge_size does not
            divide, and another number of patches than `total`, where values can be seen: in NumPy,
            and on the CPU while torch does not trace.
        TypeError: arguments that are not integers.

    Source: ``get_vision_position_ids`` of transformers, for Qwen2-VL and its kin.

    Example:
        >>> import posenc_native as pn
        >>> pn.packed_grid_positions([[1, 2, 2], [1, 1, 3]], 7)
        array([[0, 0, 1, 1, 0, 0, 0],
               [0, 1, 0, 1, 0, 1, 2]])
    """
    function = "packed_grid_positions"
    arrays = Arrays(function, grid_sizes=grid_sizes)
    merge = _positive_size(function, "merge_size", merge_size)
    grids = _grids(arrays, "grid_sizes", grid_sizes, (1, merge, merge))
    total = arguments.length(function, "total", total)
    seen = _seen(arrays, grids)
    if seen is not None and total != (patches := sum(map(math.prod, seen.tolist()))):
        wrong_value(function, "total", f"the {patches} patches of grid_sizes", total)
    cells = arrays.arange(total)
    if grids.shape[0] == 0:
        return arrays.xp.stack([cells * 0] * (3 if time else 2))
    grid, cell = _nth_of(arrays, grids.prod(-1), cells)
    # A grid without patches has none to place, but must not be divided by.
    sizes = [grids[grid, axis].clip(min=merge) for axis in range(3)]
    places = _places(cell, sizes, merge)
    return arrays.xp.stack(places if arrays.flag("time", time) else places[1:])


@overload
def image_coordinates(
    sizes: Sequence[int], *, grid: str = ..., normalize: str = ..., offset: float = ...,
    reference: Sequence[int] | None = ..., dtype: npt.DTypeLike | None = ..., device: None = ...,
) -> npt.NDArray[Any]: ...  # fmt: skip
@overload
def image_coordinates(
    sizes: Sequence[int], *, grid: str = ..., normalize: str = ..., offset: float = ...,
    reference: Sequence[int] | None = ..., dtype: torch.dtype, device: Any = ...,
) -> torch.Tensor: ...  # fmt: skip
@overload
def image_coordinates(
    sizes: Sequence[int], *, grid: str = ..., normalize: str = ..., offset: float = ...,
    reference: Sequence[int] | None = ..., dtype: Any = ..., device: Device,
) -> torch.Tensor: ...  # fmt: skip
def image_coordinates(
    sizes: Sequence[int],
    *,
    grid: str = "centers",
    normalize: str = "separate",
    offset: float = 0.0,
    reference: Sequence[int] | None = None,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Coordinates of the cells of a grid, as vision models have them, the last axis fastest.

    Args:
        sizes: how many cells each of A axes has.
        grid: how cell i of n is placed.

            ========= =========================================== ==============================
            centers   ``2 (i + 0.5 + offset) / n - 1``            DINOv3; n according to normalize
            corners   ``2 i / (n - 1) - 1`` (-1 where n is 1)     timm with in_pixels
            index     ``i + offset``                              timm without, EVA
            ========= =========================================== ==============================
        normalize: with "centers", n is that of each axis ("separate"), the smallest ("min") or the
            largest ("max").
        offset: cells to add.
        reference: sizes of another grid, of the pretraining, which this one is stretched onto:
            coordinates are multiplied by reference / size, those of "centers" before they are
            doubled.
        dtype: float32 (default) or float64, of NumPy or torch.
        device: a torch device makes it a tensor.

    Returns:
        ``[A, N]``. (timm's grid_indexing "xy" has the axes in the other order: ``result[::-1]``.)

    Raises:
        ValueError: sizes that do not fit, unknown names.
        TypeError: impossible dtypes.

    Source: Siméoni et al. 2025, "DINOv3"; ``RotaryEmbeddingCat`` of timm.

    Example:
        >>> import posenc_native as pn
        >>> pn.image_coordinates([1, 4])
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
        others = _lengths(function, "reference", reference)
        if len(others) != len(lengths) or min(others) < 1:
            wrong_value(function, "reference", f"{len(lengths)} sizes of at least 1", others)
        scales = [other / max(length, 1) for other, length in zip(others, lengths, strict=True)]
    unit = {"min": min(lengths), "max": max(lengths)}.get(normalize)
    cell = arrays.arange(math.prod(lengths))
    coordinates = []
    places = _places(cell, lengths, 1)
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


def augment_coordinates(
    coordinates: Any,
    *,
    shift: float | None = None,
    jitter: float | None = None,
    rescale: float | None = None,
    generator: Any = None,
    training: bool = True,
) -> Any:
    """Shift and stretch coordinates at random, as DINOv3 does in training; all cells alike.

    Args:
        coordinates: floats ``[A, N]``, of `image_coordinates`.
        shift: each axis is shifted by a number from ``[-shift, shift]``.
        jitter: then each is multiplied by a number from ``[1 / jitter, jitter]``, its logarithm
            being uniform.
        rescale: then all are multiplied by one from ``[1 / rescale, rescale]``, likewise.
        generator: a `numpy.random.Generator` or a `torch.Generator`; the same state gives the same
            numbers. None is a new one, or torch's default. Nothing is drawn for what is None.
        training: False returns the coordinates as they are: ``training=self.training``.

    Returns:
        As `coordinates`.

    Raises:
        ValueError: a negative shift, a jitter or rescale below 1, a wrong shape.
        TypeError: impossible dtypes.

    Source: Siméoni et al. 2025, "DINOv3". In torch the numbers are those of transformers and timm.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> coordinates = pn.image_coordinates([2, 2])
        >>> generator = np.random.default_rng(0)
        >>> pn.augment_coordinates(coordinates, shift=0.5, generator=generator).round(2)
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


def add_unrotated_tokens(positions: Any, *, before: int = 0, after: int = 0) -> Any:
    """Positions with tokens around them that rotary leaves as they are: their position is 0.

    For what stands beside the patches of an image: the class and register tokens of DINOv3
    (before), the class token of Llama 4 (after), the object pointers among SAM 2's keys (after).

    Args:
        positions: ``[..., N]``, integers or floats.
        before, after: numbers of tokens.

    Returns:
        ``[..., before + N + after]``, of the same dtype.

    Raises:
        ValueError: a negative number, positions without an axis.
        TypeError: impossible dtypes.

    Example:
        >>> import posenc_native as pn
        >>> pn.add_unrotated_tokens(pn.grid_positions([1, 3]) + 1, before=1)
        array([[0, 1, 1, 1],
               [0, 1, 2, 3]])
    """
    function = "add_unrotated_tokens"
    arrays = Arrays(function, positions=positions)
    if not is_tensor(positions):
        positions = arguments.as_array(function, "positions", positions)
    arguments.check_dtype(function, "positions", positions.dtype, arguments.POSITION_DTYPES)
    if positions.ndim == 0:
        wrong_value(function, "positions", "shape [..., N]", [])
    leading = tuple(positions.shape[:-1])
    options = {"dtype": positions.dtype, **({"device": arrays.device} if arrays.is_torch else {})}
    around = [
        arrays.xp.zeros((*leading, arguments.length(function, argument, count)), **options)
        for argument, count in (("before", before), ("after", after))
    ]
    return arrays.xp.concatenate([around[0], positions, around[1]], -1)


def _grids(arrays: Arrays, argument: str, value: Any, merges: tuple[int, int, int]) -> Any:
    """Sizes [n, 3] of grids of which so many cells of each axis are merged."""
    grids = arrays.integers(argument, value, arguments.INTEGER_DTYPES)
    if grids.ndim != 2 or grids.shape[1] != 3:
        wrong_value(arrays.function, argument, "shape [n, 3]", list(grids.shape))
    seen = _seen(arrays, grids)
    if seen is not None:
        wrong = seen[((seen < 0) | (seen % merges != 0)).any(1)]
        if len(wrong):
            expected = f"sizes >= 0, multiples of {', '.join(map(str, merges))} along the axes"
            wrong_value(arrays.function, argument, expected, wrong[0].tolist())
    return grids


def _nth_of(arrays: Arrays, counts: Any, nth: Any) -> tuple[Any, Any]:
    """Of things that hold counts [n] each: which one holds the nth, and as which of its own.

    What comes after the last counts on in it. n > 0.
    """
    ends = counts.cumsum(0)
    thing = arrays.xp.searchsorted(ends, nth, side="right").clip(max=counts.shape[0] - 1)
    return thing, nth - (ends - counts)[thing]


def _places(cell: Any, sizes: Sequence[Any], merge: int) -> list[Any]:
    """Coordinates of the cells of a grid, merged in blocks; sizes of one grid or of each cell's."""
    if merge > 1:
        blocks = [*sizes[:-2], sizes[-2] // merge, sizes[-1] // merge]
        *outer, row, column = _places(cell // merge**2, blocks, 1)
        inner = cell % merge**2
        return [*outer, row * merge + inner // merge, column * merge + inner % merge]
    places = []
    for size in reversed(sizes[1:]):
        places.append(cell % size)
        cell = cell // size
    return [cell, *reversed(places)]


# --- Text, images and videos


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
) -> tuple[Any, Any]:
    """Positions in time, height and width of tokens of text, images and videos (M-RoPE).

    A token of text has the next position, the same on all three axes. The tokens of an image or a
    video begin at the next position and count along its grid; the text after it goes on from there
    by the larger of its height and width.

    Args:
        token_types: integers ``[b, s]``: 1 image, 2 video; what else there is counts as text. The
            processors of transformers give it as mm_token_type_ids; from tokens it is
            ``(ids == image_token_id) + 2 * (ids == video_token_id)``.
        image_grids, video_grids: integers ``[n, 3]``, time, height and width of each image and each
            video in patches (image_grid_thw, video_grid_thw), in the order in which they come,
            row after row. Together they are as long as the tokens of their type.
        attention_mask: ``[b, s]`` bools or integers; what is 0 is padding, on any side.
        spatial_merge_size: patches along height and width that make one token.
        temporal_merge_size: frames of a video that make one token (ERNIE-4.5-VL).
        time_interval: positions from one frame of a video to the next, one for all or ``[n]``;
            None is 1. Qwen2.5-VL: ``tokens_per_second * second_per_grid_ts``. It is multiplied in
            float32 and cut off, as models were trained.
        split_frames: True where every frame of a video is an image of its own, after a timestamp in
            text: Qwen3-VL, GLM-4V.
        padding: position of padding.

    Returns:
        ``(positions, deltas)``, int64 ``[3, b, s]`` and ``[b]``. Token n of a row, counted without
        padding and generated later, has position n + delta on all axes.

    Raises:
        ValueError: shapes that do not fit; sizes that are negative or that merging does not divide;
            tokens that are not as many as the grids have, or those of an image, a video or one of
            its split frames that are not next to each other in one row. (On other devices than the
            CPU and while torch traces, only shapes are seen.)
        TypeError: impossible dtypes.

    Source: Wang et al. 2024, "Qwen2-VL"; Bai et al. 2025, "Qwen2.5-VL"; ``get_rope_index`` of both,
    of Qwen3-VL, GLM-4V and ERNIE-4.5-VL in transformers.

    Example:
        >>> import posenc_native as pn
        >>> positions, deltas = pn.vision_language_positions(
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
        there = arrays.xp.ones_like(types) != 0
    else:
        there = _mask(arrays, attention_mask)
        arguments.check_shape(function, "attention_mask", there.shape, types.shape)
    merge = arguments.size(function, "spatial_merge_size", spatial_merge_size)
    frames = arguments.size(function, "temporal_merge_size", temporal_merge_size)
    if not merge or not frames:
        wrong_value(
            function, "spatial_merge_size, temporal_merge_size", "ints > 0", [merge, frames]
        )
    split_frames = arrays.flag("split_frames", split_frames)

    # By how much the next position moves at a token: 1 at text, the extent of its grid at the first
    # token of an image, 0 at its others and at padding.
    move = arrays.whole(there)
    # What has been added since the place that a token counts from, itself included.
    since = arrays.xp.ones_like(move)
    place = [arrays.xp.zeros_like(move)] * 3
    for argument, given, kind, merges, interval, split in (
        ("image_grids", image_grids, 1, (1, merge, merge), None, False),
        ("video_grids", video_grids, 2, (frames, merge, merge), time_interval, split_frames),
    ):
        mine = there & (types == kind)
        grids = None if given is None else _grids(arrays, argument, given, merges)
        if grids is None or grids.shape[0] == 0:
            _check_count(arrays, argument, mine, 0)
            continue
        sizes = [grids[:, axis] // merges[axis] for axis in range(3)]
        counts = sizes[0] * sizes[1] * sizes[2]
        _check_count(arrays, argument, mine, counts.sum())
        nth = (arrays.whole(mine).reshape(-1).cumsum(0) - 1).clip(min=0).reshape(mine.shape)
        grid, cell = _nth_of(arrays, counts, nth)
        frame, row, column = _places(cell, [size[grid].clip(min=1) for size in sizes], 1)
        _check_together(arrays, there, mine, (grid, frame) if split else (grid,))
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
            arrays.xp.where(mine, in_grid, other)
            for in_grid, other in zip((frame, row, column), place, strict=True)
        ]
    start = move.cumsum(-1) - since
    positions = arrays.xp.stack([start + of_axis for of_axis in place])
    absent = _integer(function, "padding", padding)
    # With a column of -1, so that a row without tokens has a largest position, too.
    ends = arrays.xp.where(there, positions, -1)
    none = arrays.xp.zeros_like(ends.sum(-1)) - 1
    ends = arrays.xp.concatenate([ends, none[..., None]], -1)
    deltas = arrays.xp.amax(ends, (0, 2)) + 1 - arrays.whole(there).sum(-1)
    return arrays.xp.where(there, positions, absent), deltas


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
    """ValueError unless as many tokens are of a type, where values can be seen without a wait."""
    seen = _seen(arrays, mine)
    if seen is None:
        return
    tokens, expected = int(seen.sum()), int(count)
    if tokens != expected:
        wanted = f"grids of as many tokens as are of that type, {tokens}"
        wrong_value(arrays.function, argument, wanted, expected)


def _check_together(arrays: Arrays, there: Any, mine: Any, things: tuple[Any, ...]) -> None:
    """ValueError unless tokens of one image are next to each other, but for padding, in one row.

    things: arrays like `mine` that are all equal for tokens of one image.
    """
    tokens, present = _seen(arrays, mine), _seen(arrays, there)
    if tokens is None or present is None:
        return
    row, column = np.nonzero(tokens)
    nth = present.cumsum(-1)[row, column]
    of_one = np.ones(len(row[1:]), bool)
    for thing in things:
        of_token = np.asarray(thing)[row, column]
        of_one &= of_token[1:] == of_token[:-1]
    apart = np.flatnonzero(of_one & ((np.diff(row) != 0) | (np.diff(nth) != 1)))
    if len(apart):
        at = [[int(row[i]), int(column[i])] for i in (apart[0], apart[0] + 1)]
        expected = "tokens of an image or video next to each other in one row"
        wrong_value(arrays.function, "token_types", expected, f"two apart, at {at[0]} and {at[1]}")
