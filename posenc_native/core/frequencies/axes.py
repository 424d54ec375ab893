"""The position axis and the frequency of each pair, if tokens have several positions.

mrope_axis_map     text with images: time, height, width share the frequencies of one head
axial_arguments    patches of an image: each axis has its own frequencies
pairs_by_axis      what a map says: the pairs of each axis, and whether axes alternate
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.constants import constant_without_tensors

from .frequencies import frequencies

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import MropeOrder

__all__ = ["axial_arguments", "mrope_axis_map", "pairs_by_axis"]

MOST_PAIRS = arguments.WIDTH_LIMIT // 2

_MROPE_ORDERS = ("sectioned", "interleaved", "spatial_first", "round_robin")
_AXIAL_ORDERS = ("sectioned", "interleaved")
_SPECTRA = ("per_axis", "shared")


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
    axes: int = 2,
    *,
    base: float = 10000.0,
    spectrum: str = "per_axis",
    freq_scale: float = 1.0,
    inv_freq: npt.ArrayLike | None = None,
    order: str = "sectioned",
    axis_order: Sequence[int] | None = None,
    pairing: str | int = "half",
    rotary_dim: int | None = None,
    tiled: bool = False,
) -> dict[str, Any]:
    """The arguments of a rotation for `axial_rotary`: head_dim, inv_freq, axis_map and pairing.

    Arguments and errors are those of `axial_rotary`. There is one frequency and one axis for each
    pair; with `tiled`, for each dim.
    """
    function = "axial_rotary"
    head_dim = arguments.size(function, "head_dim", head_dim)
    axes = arguments.size(function, "axes", axes)
    if axes < 1:
        wrong_value(function, "axes", "an int > 0", axes)
    if rotary_dim is None:
        rotary_dim = head_dim // (2 * axes) * (2 * axes)
        if not rotary_dim:
            expected = f"at least {2 * axes}, a pair for each of {axes} axes"
            wrong_value(function, "head_dim", expected, head_dim)
    rotary_dim = arguments.width(function, "rotary_dim", rotary_dim)
    if rotary_dim % (2 * axes) or rotary_dim > head_dim:
        expected = f"a multiple of 2 * {axes} axes, at most head_dim = {head_dim}"
        wrong_value(function, "rotary_dim", expected, rotary_dim)
    arguments.check_name(function, "order", order, _AXIAL_ORDERS)
    count = rotary_dim // (2 * axes)
    of_place = _frequencies_of_places(axes, count, base, spectrum, freq_scale, inv_freq)
    places = np.array(_axis_order(axis_order, axes))[:, None].repeat(count, 1)  # [A, n]
    if pairing == "per_axis":
        pairing = 2 * count or 2
    if not isinstance(tiled, bool):
        wrong_type(function, "tiled", "a bool", type(tiled).__name__)
    if tiled:
        if order != "sectioned":
            wrong_value(function, "order", "'sectioned' with tiled", repr(order))
        of_place, places = np.tile(of_place, 2), np.tile(places, 2)
    elif order == "interleaved":
        of_place, places = of_place.T, places.T
    return {
        "head_dim": head_dim,
        "inv_freq": of_place.ravel(),
        "axis_map": places.ravel(),
        "pairing": pairing,
    }


def _frequencies_of_places(
    axes: int, count: int, base: float, spectrum: str, freq_scale: float, inv_freq: Any
) -> npt.NDArray[np.float64]:
    """The frequencies [A, n] of the first axis in a head, the second ..."""
    function = "axial_rotary"
    arguments.check_name(function, "spectrum", spectrum, _SPECTRA)
    if inv_freq is not None:
        if (base, spectrum, freq_scale) != (10000.0, "per_axis", 1.0):
            got = "at least one"
            wrong_value(function, "base, spectrum, freq_scale", "none beside inv_freq", got)
        row = arguments.as_array(function, "inv_freq", inv_freq)
        arguments.check_dtype(function, "inv_freq", row.dtype, arguments.FREQUENCY_DTYPES)
        arguments.check_shape(function, "inv_freq", row.shape, (count,))
        return np.tile(row.astype(np.float64), (axes, 1))
    freq_scale = arguments.finite_number(function, "freq_scale", freq_scale)
    base = arguments.positive_number(function, "base", base)
    if spectrum == "shared":
        of_places = frequencies(2 * axes * count, base).reshape(count, axes).T
    else:
        of_places = np.tile(frequencies(2 * count, base), (axes, 1))
    scaled: npt.NDArray[np.float64] = freq_scale * of_places
    return scaled


def _axis_order(axis_order: Sequence[int] | None, axes: int) -> list[int]:
    if axis_order is None:
        return list(range(axes))
    order = [arguments.size("axial_rotary", "axis_order", axis) for axis in axis_order]
    if sorted(order) != list(range(axes)):
        wrong_value("axial_rotary", "axis_order", f"each of 0 .. {axes - 1} once", order)
    return order
