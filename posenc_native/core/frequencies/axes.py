"""The position axis and the frequency of each pair, if tokens have several positions.

mrope_axis_map     text with images: time, height, width share the frequencies of one head
axial_arguments    patches of an image: each axis has its own frequencies
pairs_by_axis      what a map says: the pairs of each axis, and whether axes alternate
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.constants import constant_without_tensors

from .frequencies import FloatArray, frequencies
from .scaling import scaled_frequencies

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import MropeOrder

__all__ = ["axial_arguments", "mrope_axis_map", "pairs_by_axis"]

MOST_PAIRS = arguments.WIDTH_LIMIT // 2

_MROPE_ORDERS = ("sectioned", "interleaved", "spatial_first", "round_robin")
_AXIAL_ORDERS = ("sectioned", "interleaved")
_SPECTRA = ("per_axis", "shared", "rising")


# --- M-RoPE


@constant_without_tensors
def mrope_axis_map(
    section: Sequence[int],
    *,
    order: MropeOrder = "sectioned",
    pairs: int | None = None,
    leftover: int = 0,
) -> npt.NDArray[np.int64]:
    """The position axis that drives each pair, from the number of pairs per axis (M-RoPE).

    Axes are numbered as in positions ``[A, b, s]``: 0 time, 1 height, 2 width.

    Args:
        section: the number of pairs that each axis drives, ``mrope_section`` of a configuration;
            the sum is P.
        order: the order of the axes among the P pairs, whose frequencies fall from first to last:

            ============= ==================================================== ===================
            sectioned     the pairs of axis 0, then those of axis 1 ...        Qwen2-VL, GLM-4V,
                                                                               XD-RoPE (four axes)
            interleaved   axis p mod A drives pair p while p < A * section;    Qwen3-VL, Qwen3.5
                          the other pairs go to axis `leftover`
            spatial_first section is of height, width, time: height and width  ERNIE-4.5-VL
                          alternate, then time (axis 0)
            round_robin   axes take turns; an axis with all its pairs is       GLM in SGLang
                          skipped
            ============= ==================================================== ===================
        pairs: with "interleaved", P itself: the rule is then applied to this number of pairs, even
            if the sections have another sum, as in transformers and timm (``[8, 12, 12]`` with 32
            pairs gives 10, 11 and 11). None requires sections that the rule reproduces exactly.
        leftover: with "interleaved", the axis of the pairs that no section takes. ggml's IMROPE,
            whose positions have a fourth row, gives them that axis: 3. At most one axis more than
            the sections have.

    Returns:
        int64 ``[P]``.

    Raises:
        ValueError: the order is unknown; there are fewer than two sections, or one is negative; the
            order cannot hold the sections ("spatial_first" with unequal height and width,
            "interleaved" with an axis that would run past the last pair); or `leftover` omits axes.
        TypeError: the sections are not integers.

    Source: Wang et al. 2024, "Qwen2-VL"; the text rotary embeddings of Qwen2-VL, Qwen3-VL and
    ERNIE-4.5-VL in transformers; ``mrope_interleaved_glm`` in SGLang; ``ggml_mrope_cache_init``.

    Example:
        >>> import posenc_native as pn
        >>> pn.rotary.mrope_axis_map([2, 3, 3])
        array([0, 0, 1, 1, 1, 2, 2, 2])
        >>> pn.rotary.mrope_axis_map([4, 2, 2], order="interleaved")
        array([0, 1, 2, 0, 1, 2, 0, 0])
        >>> pn.rotary.mrope_axis_map([3, 3, 2], order="spatial_first")
        array([1, 2, 1, 2, 1, 2, 0, 0])
    """
    function = "mrope_axis_map"
    arguments.check_name(function, "order", order, _MROPE_ORDERS)
    try:
        sizes = list(section)
    except TypeError:
        wrong_type(function, "section", "ints", type(section).__name__)
    counts = [arguments.size(function, "section", count) for count in sizes]
    if len(counts) < 2:
        wrong_value(function, "section", "two or more sections", counts)
    for argument, total in (("section", sum(counts)), ("pairs", pairs)):
        if total is not None and arguments.size(function, argument, total) > MOST_PAIRS:
            wrong_value(function, argument, f"at most {MOST_PAIRS} pairs", total)
    leftover = arguments.size(function, "leftover", leftover)
    if leftover > len(counts):
        expected = f"an axis in 0 .. {len(counts)}, at most one more than the sections have"
        wrong_value(function, "leftover", expected, leftover)
    if order == "interleaved":
        return _interleaved_sections(counts, pairs, leftover)
    if leftover:
        wrong_value(function, "leftover", f"0 with order {order!r}", leftover)
    if pairs is not None and arguments.size(function, "pairs", pairs) != sum(counts):
        wrong_value(function, "section", f"{pairs} pairs in total", counts)
    if order == "sectioned":
        return np.repeat(np.arange(len(counts)), counts)
    if order == "spatial_first":
        if len(set(counts[:-1])) > 1:
            wrong_value(function, "section", "as many pairs for height as for width", counts)
        spatial = np.tile(np.arange(1, len(counts)), counts[0])
        return np.concatenate([spatial, np.zeros(counts[-1], np.int64)])
    return _round_robin(counts)


def _interleaved_sections(
    counts: list[int], pairs: int | None, leftover: int
) -> npt.NDArray[np.int64]:
    function = "mrope_axis_map"
    axes = len(counts)
    total = sum(counts) if pairs is None else arguments.size(function, "pairs", pairs)
    for axis, count in enumerate(counts[1:], 1):
        most = len(range(axis, total, axes))
        if pairs is None and count > most:
            expected = f"at most {most} pairs for axis {axis}, one in every {axes}"
            wrong_value(function, "section", expected, counts)
    pair = np.arange(total)
    return np.where(pair < axes * np.array(counts)[pair % axes], pair % axes, leftover)


def _round_robin(counts: list[int]) -> npt.NDArray[np.int64]:
    remaining = list(counts)
    axes = np.zeros(sum(counts), np.int64)
    for pair in range(len(axes)):
        turns = ((pair + turn) % len(remaining) for turn in range(len(remaining)))
        axes[pair] = next(axis for axis in turns if remaining[axis])
        remaining[axes[pair]] -= 1
    return axes


def pairs_by_axis(axis_map: npt.NDArray[np.int64]) -> tuple[list[int], bool]:
    """The number of pairs that each axis drives, and whether those of each are one block."""
    counts: list[int] = np.bincount(axis_map).tolist()
    blocks = 1 + int((np.diff(axis_map) != 0).sum())
    return counts, blocks == np.count_nonzero(counts)


# --- Axial


def axial_arguments(
    head_dim: int,
    axes: int | None = None,
    *,
    axes_dim: Sequence[int] | None = None,
    base: float | Sequence[float] = 10000.0,
    scaling: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    spectrum: str = "per_axis",
    freq_scale: float = 1.0,
    inv_freq: npt.ArrayLike | None = None,
    order: str = "sectioned",
    axis_order: Sequence[int] | None = None,
    pairing: str | int = "half",
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    tiled: bool = False,
) -> dict[str, Any]:
    """The arguments of a rotation for `axial_rotary`: head_dim, inv_freq, axis_map, pairing ...

    Arguments and errors are those of `axial_rotary`. There is one frequency and one axis for each
    pair; with `tiled`, for each dim. ``scale`` and ``rotary_start`` are there if they are not the
    defaults of a rotation.
    """
    function = "axial_rotary"
    head_dim = arguments.size(function, "head_dim", head_dim)
    dims = _dims_of_axes(head_dim, axes, axes_dim, rotary_dim)
    alike = len(set(dims)) == 1
    arguments.check_name(function, "order", order, _AXIAL_ORDERS)
    if order == "interleaved" and not alike:
        wrong_value(function, "order", "'sectioned' with unequal axes_dim", repr(order))
    if pairing == "per_axis":
        if not alike:
            expected = "'interleaved', or 'half' over all axes, with unequal axes_dim"
            wrong_value(function, "pairing", expected, repr(pairing))
        pairing = dims[0] or 2
    of_place = _axis_order(axis_order, len(dims))
    rows, scale = _frequencies_of_places(
        [dims[axis] for axis in of_place],
        [_of_axes("base", base, len(dims))[axis] for axis in of_place],
        [_of_axes("scaling", scaling, len(dims))[axis] for axis in of_place],
        spectrum, freq_scale, inv_freq,
    )  # fmt: skip
    places: list[npt.NDArray[np.int64]] = [
        np.full(len(row), axis, np.int64) for row, axis in zip(rows, of_place, strict=True)
    ]
    if not isinstance(tiled, bool):
        wrong_type(function, "tiled", "a bool", type(tiled).__name__)
    if tiled:
        if order != "sectioned":
            wrong_value(function, "order", "'sectioned' with tiled", repr(order))
        rows, places = [np.tile(row, 2) for row in rows], [np.tile(axis, 2) for axis in places]
    joined = np.stack if order == "interleaved" else np.concatenate
    more = {"scale": scale} if scale != 1.0 else {}
    if rotary_start := arguments.size(function, "rotary_start", rotary_start):
        more["rotary_start"] = rotary_start
    return {
        "head_dim": head_dim,
        "inv_freq": joined(rows).ravel("F"),
        "axis_map": joined(places).ravel("F"),
        "pairing": pairing,
        **more,
    }


def _dims_of_axes(
    head_dim: int, axes: int | None, axes_dim: Sequence[int] | None, rotary_dim: int | None
) -> list[int]:
    """The number of dims that each axis drives."""
    function = "axial_rotary"
    if axes_dim is not None:
        try:
            dims = [arguments.width(function, "axes_dim", dim) for dim in axes_dim]
        except TypeError:
            if not isinstance(axes_dim, (Sequence, np.ndarray)):
                wrong_type(function, "axes_dim", "ints, one for each axis", type(axes_dim).__name__)
            raise
        if not dims or min(dims) < 2:
            wrong_value(function, "axes_dim", "an even int > 0 for each axis", dims)
        if sum(dims) > head_dim:
            expected = f"dims that add up to at most head_dim = {head_dim}"
            wrong_value(function, "axes_dim", expected, f"{dims}, {sum(dims)} in total")
        for argument, value, fitting in (("axes", axes, len(dims)),
                                         ("rotary_dim", rotary_dim, sum(dims))):  # fmt: skip
            if value is not None and arguments.size(function, argument, value) != fitting:
                wrong_value(function, argument, f"{fitting} or none, as axes_dim has it", value)
        return dims
    count = 2 if axes is None else arguments.size(function, "axes", axes)
    if count < 1:
        wrong_value(function, "axes", "an int > 0", count)
    if rotary_dim is None:
        rotary_dim = head_dim // (2 * count) * (2 * count)
        if not rotary_dim:
            expected = f"at least {2 * count}, a pair for each of {count} axes"
            wrong_value(function, "head_dim", expected, head_dim)
    rotary_dim = arguments.width(function, "rotary_dim", rotary_dim)
    if rotary_dim % (2 * count) or rotary_dim > head_dim:
        expected = f"a multiple of 2 * {count} axes, at most head_dim = {head_dim}"
        wrong_value(function, "rotary_dim", expected, rotary_dim)
    return [rotary_dim // count] * count


def _of_axes(argument: str, value: Any, axes: int) -> list[Any]:
    """The value for each axis: those of a sequence, or one value for all."""
    several = isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 1
    if not several:
        return [value] * axes
    if len(value) != axes:
        expected = f"one value, or one for each of {axes} axes"
        wrong_value("axial_rotary", argument, expected, f"{len(value)} values")
    return list(value)


def _frequencies_of_places(
    dims: list[int], bases: list[Any], scalings: list[Any], spectrum: str, freq_scale: float,
    inv_freq: Any,
) -> tuple[list[FloatArray], float]:  # fmt: skip
    """The frequencies of the first axis in a head, the second ...; the factor of all cosines."""
    function = "axial_rotary"
    arguments.check_name(function, "spectrum", spectrum, _SPECTRA)
    alike = len(set(dims)) == 1
    if inv_freq is not None:
        others = (bases, scalings, spectrum, freq_scale)
        if others != ([10000.0] * len(dims), [None] * len(dims), "per_axis", 1.0):
            got = "at least one"
            names = "base, scaling, spectrum, freq_scale"
            wrong_value(function, names, "none beside inv_freq", got)
        if not alike:
            wrong_value(function, "inv_freq", "None with unequal axes_dim", "frequencies")
        row = arguments.as_array(function, "inv_freq", inv_freq)
        arguments.check_dtype(function, "inv_freq", row.dtype, arguments.FREQUENCY_DTYPES)
        arguments.check_shape(function, "inv_freq", row.shape, (dims[0] // 2,))
        return [row.astype(np.float64)] * len(dims), 1.0
    freq_scale = arguments.finite_number(function, "freq_scale", freq_scale)
    bases = [arguments.positive_number(function, "base", base) for base in bases]
    for scaling in scalings:
        if scaling is not None and not isinstance(scaling, Mapping):
            expected = "a mapping, None, or one of them for each axis"
            wrong_type(function, "scaling", expected, type(scaling).__name__)
    if spectrum == "shared":
        if not alike:
            wrong_value(function, "spectrum", "'per_axis' with unequal axes_dim", repr(spectrum))
        if len(set(bases)) > 1 or any(scaling != scalings[0] for scaling in scalings):
            expected = "one base and one scaling with spectrum 'shared'"
            wrong_value(function, "base, scaling", expected, "others for some axes")
        row, factor = scaled_frequencies(function, sum(dims), bases[0], scalings[0])
        return [freq_scale * part for part in row.reshape(-1, len(dims)).T], factor
    if spectrum == "rising":
        if any(scalings):
            wrong_value(function, "scaling", "None with spectrum 'rising'", "a scaling")
        return [freq_scale * _rising(dim // 2, base)
                for dim, base in zip(dims, bases, strict=True)], 1.0  # fmt: skip
    rows = [
        scaled_frequencies(function, dim, base, scaling)
        for dim, base, scaling in zip(dims, bases, scalings, strict=True)
    ]
    factors = [factor for _, factor in rows]
    if len(set(factors)) > 1:
        got = ", ".join(f"{factor:.6g}" for factor in factors)
        hint = "write the same 'attention_factor' into each scaling, such as 1.0"
        expected = "scalings with one attention factor, because all axes share it"
        wrong_value(function, "scaling", expected, got, hint)
    return [freq_scale * row for row, _ in rows], factors[0]


def _rising(count: int, base: float) -> FloatArray:
    """The frequencies ``base ** (i / (n - 1))``, from 1 to the base; 1 alone if n is 1."""
    if count < 2:
        return np.ones(count)
    rising: FloatArray = base * frequencies(2 * count, base, shift=1.0)[::-1]
    return rising


def _axis_order(axis_order: Sequence[int] | None, axes: int) -> list[int]:
    if axis_order is None:
        return list(range(axes))
    order = [arguments.size("axial_rotary", "axis_order", axis) for axis in axis_order]
    if sorted(order) != list(range(axes)):
        wrong_value("axial_rotary", "axis_order", f"each of 0 .. {axes - 1} once", order)
    return order
