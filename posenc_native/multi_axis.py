"""Rotary over several position axes as data: which axis turns which pair, at which frequency.

    text with images     positions [A, b, s]: time, height, width     `mrope_axis_map`
    patches of an image  positions [A, s]: height, width              `axial_rotary`

Pairs of two axes h and w in a head, where an axis has two frequencies:

    order            pairing            the 8 dims of a head turn by
    sectioned        "half"             h0 h1 w0 w1 | h0 h1 w0 w1
    interleaved      "half"             h0 w0 h1 w1 | h0 w0 h1 w1
    sectioned        "interleaved"      h0 h0 | h1 h1 | w0 w0 | w1 w1
    sectioned        "per_axis"         h0 h1 | h0 h1 || w0 w1 | w0 w1

All of it is arguments of `apply_rotary`; what vision models chose is one table, `VISION_MODELS`,
read by `vision_rotary`. Builders of positions are in positions.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.base import arguments, views

from .base.arguments import is_tensor, wrong_type, wrong_value
from .base.calls import call
from .engines.arrays import Arrays
from .rotary import Rotary, apply_rotary, apply_rotary_qk
from .spectra.frequencies import frequencies

if TYPE_CHECKING:
    import torch

    from .base.kinds import Number, SupportsArray

__all__ = [
    "VISION_MODELS",
    "FullWidthRotary",
    "axial_rotary",
    "mixed_frequencies",
    "mrope_axis_map",
    "vision_rotary",
]

_MROPE_ORDERS = ("sectioned", "interleaved", "spatial_first", "round_robin")
_AXIAL_ORDERS = ("sectioned", "interleaved")
_SPECTRA = ("per_axis", "shared")


# --- M-RoPE


def mrope_axis_map(
    section: Sequence[int],
    *,
    order: str = "sectioned",
    pairs: int | None = None,
    leftover: int = 0,
) -> npt.NDArray[np.int64]:
    """Which position axis drives each pair, where a configuration gives numbers of pairs.

    Axes are numbered as in positions ``[A, b, s]``: 0 time, 1 height, 2 width.

    Args:
        section: how many pairs each axis drives, ``mrope_section`` of a configuration; together P.
        order: how they lie among the P pairs, whose frequencies fall from first to last:

            ============= ==================================================== ===================
            sectioned     the pairs of axis 0, then those of axis 1 ...        Qwen2-VL, GLM-4V,
                                                                               XD-RoPE (four axes)
            interleaved   pair p drives axis p mod A while p < A * section;    Qwen3-VL, Qwen3.5
                          the rest go to axis `leftover`
            spatial_first section is of height, width, time: height and width  ERNIE-4.5-VL
                          alternate, then time (axis 0)
            round_robin   axes take turns; one that has its pairs is passed    GLM in SGLang
            ============= ==================================================== ===================
        pairs: with "interleaved", P itself: the rule is then applied to as many pairs, whatever the
            sections add up to, as transformers and timm do (``[8, 12, 12]`` of 32 pairs gives 10,
            11 and 11). None wants sections that come out as they say.
        leftover: with "interleaved", the axis of pairs that no section takes. ggml's IMROPE, whose
            positions have a fourth row, gives them that one: 3. At most one axis more than the
            sections have.

    Returns:
        int64 ``[P]``.

    Raises:
        ValueError: an unknown order, fewer than two sections, a negative one, sections that the
            order cannot hold (unequal height and width of "spatial_first", an axis of "interleaved"
            that would run past the last pair), a leftover that leaves axes out.
        TypeError: sections that are not integers.

    Source: Wang et al. 2024, "Qwen2-VL"; the text rotary embeddings of Qwen2-VL, Qwen3-VL and
    ERNIE-4.5-VL in transformers; ``mrope_interleaved_glm`` in SGLang; ``ggml_mrope_cache_init``.

    Example:
        >>> import posenc_native as pn
        >>> pn.mrope_axis_map([2, 3, 3])
        array([0, 0, 1, 1, 1, 2, 2, 2])
        >>> pn.mrope_axis_map([4, 2, 2], order="interleaved")
        array([0, 1, 2, 0, 1, 2, 0, 0])
        >>> pn.mrope_axis_map([3, 3, 2], order="spatial_first")
        array([1, 2, 1, 2, 1, 2, 0, 0])
    """
    function = "mrope_axis_map"
    arguments.check_name(function, "order", order, _MROPE_ORDERS)
    try:
        given = list(section)
    except TypeError:
        wrong_type(function, "section", "ints", type(section).__name__)
    counts = [arguments.size(function, "section", count) for count in given]
    if len(counts) < 2:
        wrong_value(function, "section", "two or more sections", counts)
    leftover = arguments.size(function, "leftover", leftover)
    if leftover > len(counts):
        expected = f"an axis in 0 .. {len(counts)}, at most one more than the sections have"
        wrong_value(function, "leftover", expected, leftover)
    if order == "interleaved":
        return _interleaved_sections(counts, pairs, leftover)
    if leftover:
        wrong_value(function, "leftover", f"0 with order {order!r}", leftover)
    if pairs is not None and arguments.size(function, "pairs", pairs) != sum(counts):
        wrong_value(function, "section", f"{pairs} pairs in all", counts)
    if order == "sectioned":
        return np.repeat(np.arange(len(counts)), counts)
    if order == "spatial_first":
        if len(set(counts[:-1])) > 1:
            wrong_value(function, "section", "as many pairs of height as of width", counts)
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
            expected = f"at most {most} pairs of axis {axis}, one of every {axes}"
            wrong_value(function, "section", expected, counts)
    pair = np.arange(total)
    return np.where(pair < axes * np.array(counts)[pair % axes], pair % axes, leftover)


def _round_robin(counts: list[int]) -> npt.NDArray[np.int64]:
    left = list(counts)
    axes = np.zeros(sum(counts), np.int64)
    for pair in range(len(axes)):
        turns = ((pair + turn) % len(left) for turn in range(len(left)))
        axes[pair] = next(axis for axis in turns if left[axis])
        left[axes[pair]] -= 1
    return axes


# --- Axial


def axial_rotary(
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
) -> Rotary | FullWidthRotary:
    """How a vision model rotates: each axis of a grid turns its share of the pairs.

    Positions are ``[A, s]`` or ``[A, b, s]``: `grid_positions`, `packed_grid_positions`,
    `image_coordinates`. `vision_rotary` knows the arguments of published models.

    Args:
        head_dim: width of a head.
        axes: A, the number of position axes; each turns n pairs.
        base: base of the frequencies.
        spectrum: "per_axis": every axis has the frequencies ``base ** (-i / n)``. "shared": the
            ``base ** (-j / P)`` of a whole head are dealt out, one to each axis in turn.
        freq_scale: factor of the frequencies; 2 pi where a coordinate counts turns (DINOv3).
        inv_freq: the n frequencies of every axis, radians per unit of a coordinate, in place of
            base, spectrum and freq_scale.
        order: "sectioned" or "interleaved"; see the module's head.
        axis_order: which position axis comes first in a head, second ...; default 0, 1 ... With
            positions of height and width, ``(1, 0)`` is width first.
        pairing: "half", "interleaved", an even block size, or "per_axis": one block for each axis.
        rotary_dim: how many dims are rotated; default the largest multiple of 2 A in head_dim. What
            is left passes through.
        tiled: lay the angles of each axis out twice in a row over its dims, as "half" wants them,
            whatever the pairing. With "interleaved" the partners of a pair then turn by unequal
            angles: V-JEPA 2 does so, and its checkpoints have learned it.

    Returns:
        A `Rotary`; a `FullWidthRotary`, which is called the same way but has no ``tables``, where
        `tiled`.

    Raises:
        ValueError: sizes that do not fit, unknown names.
        TypeError: arguments of a wrong kind.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.axial_rotary(64, base=100.0, pairing="per_axis")  # as Gemma 4 has it
        >>> positions = pn.grid_positions([3, 5])  # a row of heights, a row of widths
        >>> q = k = np.ones((1, 4, 15, 64), np.float32)
        >>> q, k = rope(q, k, positions)
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
    rotary_dim = arguments.even_size(function, "rotary_dim", rotary_dim)
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
            wrong_value(function, "order", "'sectioned' where tiled", repr(order))
        return FullWidthRotary.of_dims(
            head_dim,
            np.tile(of_place, 2).ravel(),
            axis_map=np.tile(places, 2).ravel(),
            pairing=pairing,
        )
    if order == "interleaved":
        of_place, places = of_place.T, places.T
    return Rotary(head_dim, inv_freq=of_place.ravel(), axis_map=places.ravel(), pairing=pairing)


def _frequencies_of_places(
    axes: int, count: int, base: float, spectrum: str, freq_scale: float, inv_freq: Any
) -> npt.NDArray[np.float64]:
    """The frequencies [A, n] of the first axis in a head, the second ..."""
    function = "axial_rotary"
    arguments.check_name(function, "spectrum", spectrum, _SPECTRA)
    if inv_freq is not None:
        if (base, spectrum, freq_scale) != (10000.0, "per_axis", 1.0):
            got = "inv_freq and one of them"
            wrong_value(function, "base, spectrum, freq_scale", "no inv_freq", got)
        given = arguments.as_array(function, "inv_freq", inv_freq)
        arguments.check_dtype(function, "inv_freq", given.dtype, arguments.FREQUENCY_DTYPES)
        arguments.check_shape(function, "inv_freq", given.shape, (count,))
        return np.tile(given.astype(np.float64), (axes, 1))
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


@dataclass(frozen=True)
class FullWidthRotary:
    """A rotation whose partners may turn by different angles: one frequency for each dim.

    With cosines and sines "of full width", as many libraries hold them, every dim has its own:

        (a, b)  ->  (a cos s - b sin s,  b cos t + a sin t),    s = t in a true rotation

    Models have come to be trained with s and t unequal: V-JEPA 2 (`axial_rotary` with tiled), and
    HunYuan-VL as transformers 5.23 has it. It is two rotations by exact angles, each of which gives
    one half of the result; gradients are theirs. Immutable, comparable, without buffers.

    With ``inverse`` it is the transpose, as in `apply_rotary`: the map of gradients,

        (a, b)  ->  (a cos s + b sin t,  b cos t - a sin s)

    which, unlike that of a true rotation, does not undo it where s and t differ. It is called as a
    `Rotary` is, but has no ``tables``: those that `apply_rotary_tables` takes have one cosine and
    one sine for both partners.

    Attributes:
        first, second: the `Rotary` of the first partners, by s, and that of the second, by t; alike
            in head_dim, pairing and slice.

    Raises:
        ValueError: two that are not alike.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.FullWidthRotary.of_dims(2, [1.0, 0.0], pairing="interleaved")
        >>> rope.apply(np.ones((1, 2)), np.array([2]), layout="sd").round(4)  # cos 2 - sin 2, 1
        array([[-1.3254,  1.    ]])
    """

    first: Rotary
    second: Rotary

    def __post_init__(self) -> None:
        shapes = [
            (rope.head_dim, rope.pairing, rope.rotary_start, len(rope.inv_freq))
            for rope in (self.first, self.second)
        ]
        if shapes[0] != shapes[1]:
            expected = f"head_dim, pairing, rotary_start and pairs of first, {shapes[0]}"
            wrong_value("FullWidthRotary", "second", expected, shapes[1])

    def __repr__(self) -> str:
        return call(self, first=self.first, second=self.second)

    @classmethod
    def of_dims(
        cls,
        head_dim: int,
        inv_freq: npt.ArrayLike,
        *,
        axis_map: npt.ArrayLike | None = None,
        pairing: str | int = "half",
        rotary_start: int = 0,
        scale: float = 1.0,
    ) -> FullWidthRotary:
        """From one frequency, and one axis, for each rotated dim.

        Args:
            head_dim: width of a head.
            inv_freq: ``[2P]``, radians per position, in the order of the dims.
            axis_map: ``[2P]`` ints, which position axis drives each dim.
            pairing, rotary_start, scale: as in `Rotary`.

        Raises:
            ValueError, TypeError: as in `Rotary`.
        """
        function = "FullWidthRotary"
        head_dim = arguments.size(function, "head_dim", head_dim)
        frequencies_of_dims = arguments.as_array(function, "inv_freq", inv_freq)
        if frequencies_of_dims.ndim != 1 or len(frequencies_of_dims) % 2:
            wrong_value(function, "inv_freq", "shape [2P]", list(frequencies_of_dims.shape))
        view = views.rotary_view(
            function, (1, head_dim), "sd", pairing, rotary_start, len(frequencies_of_dims) // 2
        )
        axes = None
        if axis_map is not None:
            axes = arguments.as_array(function, "axis_map", axis_map)
            arguments.check_shape(function, "axis_map", axes.shape, frequencies_of_dims.shape)

        def of_partner(values: npt.NDArray[Any], partner: int) -> npt.NDArray[Any]:
            return values.reshape(-1, 2, view.block // 2)[:, partner].ravel()

        return cls(
            *(
                Rotary(
                    head_dim,
                    inv_freq=of_partner(frequencies_of_dims, partner),
                    axis_map=None if axes is None else of_partner(axes, partner),
                    pairing=pairing,
                    rotary_start=rotary_start,
                    scale=scale,
                )
                for partner in range(2)
            )
        )

    @overload
    def __call__(
        self, q: npt.NDArray[Number], k: npt.NDArray[Number],
        positions: npt.ArrayLike | torch.Tensor | None = ..., *, layout: str = ...,
        inverse: bool = ..., inplace: bool = ...,
    ) -> tuple[npt.NDArray[Number], npt.NDArray[Number]]: ...  # fmt: skip
    @overload
    def __call__(
        self, q: torch.Tensor, k: torch.Tensor,
        positions: npt.ArrayLike | torch.Tensor | None = ..., *, layout: str = ...,
        inverse: bool = ..., inplace: bool = ...,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
    @overload
    def __call__(
        self, q: SupportsArray, k: SupportsArray,
        positions: npt.ArrayLike | torch.Tensor | None = ..., *, layout: str = ...,
        inverse: bool = ..., inplace: bool = ...,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...  # fmt: skip
    def __call__(
        self,
        q: Any,
        k: Any,
        positions: npt.ArrayLike | torch.Tensor | None = None,
        *,
        layout: str = "bhsd",
        inverse: bool = False,
        inplace: bool = False,
    ) -> tuple[Any, Any]:
        """Rotate queries and keys.

        Args:
            q, k, positions, layout, inplace: as in `apply_rotary_qk`.
            inverse: the transpose, which undoes the rotation only where partners turn alike.
        """
        function, rope = "FullWidthRotary", self.first
        given = q, k
        if not is_tensor(q):
            q, k = arguments.as_operands(function, q, k, inplace)
        q_view, k_view = (
            views.rotary_view(
                function, tuple(x.shape), layout, rope.pairing, rope.rotary_start,
                len(rope.inv_freq), argument,
            )
            for argument, x in (("q", q), ("k", k))
        )  # fmt: skip
        views.check_same_tokens(function, q_view, k_view)
        if q.dtype != k.dtype:
            wrong_type(function, "k", f"the dtype of q, {q.dtype}", k.dtype)
        if inplace and not is_tensor(q):
            # Turns no pair, but refuses what cannot be written, before q has been.
            apply_rotary_qk(q, k, None, np.zeros(0), layout=layout, inplace=True)
        rotated_q = self._rotated(q, positions, layout, inverse)
        rotated_k = self._rotated(k, positions, layout, inverse)
        if not inplace:
            return rotated_q, rotated_k
        _written(q, q, rotated_q, layout)
        _written(k, k, rotated_k, layout)
        return given

    @overload
    def apply(
        self, x: npt.NDArray[Number], positions: npt.ArrayLike | torch.Tensor | None = ..., *,
        layout: str = ..., inverse: bool = ..., out: npt.NDArray[Any] | None = ...,
    ) -> npt.NDArray[Number]: ...  # fmt: skip
    @overload
    def apply(
        self, x: torch.Tensor, positions: npt.ArrayLike | torch.Tensor | None = ..., *,
        layout: str = ..., inverse: bool = ..., out: torch.Tensor | None = ...,
    ) -> torch.Tensor: ...  # fmt: skip
    @overload
    def apply(
        self, x: SupportsArray, positions: npt.ArrayLike | torch.Tensor | None = ..., *,
        layout: str = ..., inverse: bool = ..., out: npt.NDArray[Any] | None = ...,
    ) -> npt.NDArray[Any]: ...  # fmt: skip
    def apply(
        self,
        x: Any,
        positions: npt.ArrayLike | torch.Tensor | None = None,
        *,
        layout: str = "bhsd",
        inverse: bool = False,
        out: Any = None,
    ) -> Any:
        """Rotate one array or tensor.

        Args:
            x, positions, layout, out: as in `apply_rotary`.
            inverse: the transpose, which undoes the rotation only where partners turn alike.
        """
        if not is_tensor(x):
            x = arguments.as_operand("FullWidthRotary", "x", x)
        rotated = self._rotated(x, positions, layout, inverse)
        return rotated if out is None else _written(out, x, rotated, layout)

    def _rotated(self, x: Any, positions: Any, layout: str, inverse: bool) -> Any:
        arguments.check_dtype("FullWidthRotary", "x", x.dtype, arguments.FLOAT_DTYPES)
        arrays = Arrays("FullWidthRotary", x.dtype, None, x=x)
        of_second, where = self._of_second(arrays), arrays.xp.where
        if not inverse:  # each gives the half of the result that turns by its angles
            first = self.first.apply(x, positions, layout=layout)
            second = self.second.apply(x, positions, layout=layout)
            return where(of_second, second, first)
        # Each takes the half of x that its angles have turned.
        x = arrays.real(x)
        first = self.first.apply(where(of_second, 0.0, x), positions, layout=layout, inverse=True)
        second = self.second.apply(where(of_second, x, 0.0), positions, layout=layout, inverse=True)
        return arrays.rounded(first + second)

    def _of_second(self, arrays: Arrays) -> Any:
        """Bools [head_dim]: the second partners. Either will do for dims that do not turn."""
        rope = self.first
        pairs = len(rope.inv_freq)
        block = {"half": 2 * pairs, "interleaved": 2}.get(str(rope.pairing), rope.pairing)
        place = (arrays.arange(rope.head_dim) - rope.rotary_start) % max(int(block), 1)
        return 2 * place >= block


def _written(out: Any, x: Any, result: Any, layout: str) -> Any:
    """The result in `out`, with the checks of `apply_rotary`, of which no pairs make a copy."""
    if out is x and is_tensor(x):
        return x.copy_(result)
    return apply_rotary(result, None, np.zeros(0), layout=layout, out=out)


# What `axial_rotary` is called with for a model, by its names in transformers and timm, where
# positions are height and width (time, height and width with three axes), counted in patches from 0
# if nothing else is said. base is the default of the configuration.
_HEIGHT_WIDTH_HALF: Mapping[str, Any] = {}
_WIDTH_HEIGHT_INTERLEAVED: Mapping[str, Any] = {"axis_order": (1, 0), "pairing": "interleaved"}
VISION_MODELS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_vl_moe",
                "qwen3_omni_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm_ocr",
                "ernie4_5_vl_moe", "paddleocr_vl", "video_llama_3", "mlcd", "exaone4_5",
            ),
            _HEIGHT_WIDTH_HALF,
        ),
        "kimi_k25": {"order": "interleaved", "axis_order": (1, 0)},
        "step3p7": {"axis_order": (1, 0)},
        "pixtral": {"spectrum": "shared"},
        "neomme": {"spectrum": "shared", "order": "interleaved"},
        "gemma4": {"base": 100.0, "pairing": "per_axis"},
        "minimax_m3_vl": {"axes": 3},
        # coordinates in [-1, 1] of image_coordinates; prefix tokens at 0
        "dinov3_vit": {"base": 100.0, "freq_scale": 2 * np.pi},
        "sam2_video": _WIDTH_HEIGHT_INTERLEAVED,  # keys without a place at 0
        "edgetam_video": _WIDTH_HEIGHT_INTERLEAVED,
        "sam3_tracker_video": _WIDTH_HEIGHT_INTERLEAVED,
        # patches counted from 1; other tokens at 0
        "llama4": _WIDTH_HEIGHT_INTERLEAVED,
        "inkling2": _WIDTH_HEIGHT_INTERLEAVED,
        # patches scaled to the grid of the pretraining
        "eva02": {"pairing": "interleaved"},
        "vjepa2": {"axes": 3, "pairing": "interleaved", "tiled": True},
    }
)  # fmt: skip


def vision_rotary(model: str, head_dim: int, **changes: Any) -> Rotary | FullWidthRotary:
    """How the vision encoder of a model rotates.

    ``VISION_MODELS`` of this module has, for each model, what is not the default of `axial_rotary`.
    Positions are height and width, or time, height and width; where a model orders them otherwise,
    the result does so, too.

    Args:
        model: its name, that of its folder in transformers ("qwen2_5_vl", "pixtral", "dinov3_vit")
            or in timm ("eva02").
        head_dim: width of a head.
        changes: arguments of `axial_rotary` that replace those of the model, such as another base.

    Returns:
        A `Rotary`; a `FullWidthRotary`, which is called the same way but has no ``tables``, for
        "vjepa2".

    Raises:
        ValueError: an unknown model, changes that `axial_rotary` does not know, sizes that do not
            fit.
        TypeError: arguments of a wrong kind.

    Source: the vision encoders in transformers and timm.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.vision_rotary("pixtral", 8)
        >>> rope.axis_map, rope.inv_freq.round(4)
        (array([0, 0, 1, 1]), array([1.   , 0.01 , 0.1  , 0.001]))
        >>> pn.vision_rotary("gemma4", 8).pairing
        4
    """
    arguments.check_name("vision_rotary", "model", model, tuple(VISION_MODELS))
    known = [name for name in inspect.signature(axial_rotary).parameters if name != "head_dim"]
    for name in changes:
        if name not in known:
            expected = f"arguments of axial_rotary, {', '.join(known)}"
            wrong_value("vision_rotary", "changes", expected, name)
    return axial_rotary(head_dim, **{**VISION_MODELS[model], **changes})


def mixed_frequencies(
    head_dim: int,
    num_heads: int,
    *,
    base: float = 10.0,
    rotate: bool = True,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """First values of the learned frequencies of RoPE-Mixed, by which both axes turn every pair.

    The angle of a pair is ``x * result[0] + y * result[1]``: `apply_rotary` takes it as inv_freq
    ``[A, H, P]``, with positions of width and height. Pairs are "interleaved" in the original. Each
    head has the frequencies ``base ** (-i / n)``, n = P / 2, in two directions that are at right
    angles, turned by an angle of its own.

    Args:
        head_dim: width of a head, a multiple of 4.
        num_heads: H.
        base: base of the frequencies.
        rotate: False turns no head: the first n pairs are of x alone, the others of y.
        generator: a `numpy.random.Generator` or a `torch.Generator`, from which the angles are
            drawn; None is a new one, or torch's default.
        dtype: float32 (default) or float64, of NumPy or torch.
        device: a torch device makes it a tensor, as a torch dtype or generator does.

    Returns:
        ``[2, H, P]``, P = head_dim / 2.

    Raises:
        ValueError: a head_dim that is no multiple of 4.
        TypeError: impossible dtypes.

    Source: Heo et al. 2024, "Rotary Position Embedding for Vision Transformer";
    ``init_random_2d_freqs`` of timm.

    Example:
        >>> import posenc_native as pn
        >>> pn.mixed_frequencies(8, 1, rotate=False).round(2) + 0.0
        array([[[1.  , 0.32, 0.  , 0.  ]],
        <BLANKLINE>
               [[0.  , 0.  , 1.  , 0.32]]], dtype=float32)
    """
    function = "mixed_frequencies"
    if device is None:
        device = getattr(generator, "device", None)  # which those of NumPy have not
    arrays = Arrays(function, dtype, device)
    if dtype is not None:
        arguments.check_dtype(function, "dtype", arrays.dtype, arguments.FREQUENCY_DTYPES)
    head_dim = arguments.size(function, "head_dim", head_dim)
    if head_dim % 4:
        wrong_value(function, "head_dim", "a multiple of 4", head_dim)
    shape = (arguments.size(function, "num_heads", num_heads), 1)
    size = arrays.constant(frequencies(head_dim // 2, base).tolist())
    if not arrays.flag("rotate", rotate):
        turns = arrays.arange(shape[0])[:, None] * 0
    elif arrays.is_torch:
        turns = arrays.xp.rand(shape, generator=generator, device=arrays.device)
    else:
        turns = arguments.numpy_generator(function, generator).random(shape)
    angle = arrays.wide(turns) * (2 * np.pi)
    x, y = size * arrays.xp.cos(angle), size * arrays.xp.sin(angle)
    # A quarter turn on, cosine and sine are minus the sine and the cosine.
    along_x, along_y = arrays.xp.concatenate([x, -y], -1), arrays.xp.concatenate([y, x], -1)
    return arrays.rounded(arrays.xp.stack([along_x, along_y]))
