"""Rotary over several position axes as data: which axis turns which pair, at which frequency.

    text with images     positions [A, b, s]: time, height, width     `mrope_axis_map`
    patches of an image  positions [A, s]: height, width              `axial_rotary`

Pairs of two axes h and w in a head, where an axis has two frequencies:

    order            pairing            the 8 dims of a head turn by
    sectioned        "half"             h0 h1 w0 w1 | h0 h1 w0 w1
    interleaved      "half"             h0 w0 h1 w1 | h0 w0 h1 w1
    sectioned        "interleaved"      h0 h0 | h1 h1 | w0 w0 | w1 w1
    sectioned        "per_axis"         h0 h1 | h0 h1 || w0 w1 | w0 w1

All of it is arguments of `apply_rotary`; what vision models chose is one table, models/vision.json,
read by `vision_rotary`. Builders of positions are in positions.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.base import arguments, views

from .base.arguments import is_tensor, wrong_type, wrong_value
from .base.calls import call
from .engines.arrays import Arrays
from .models.facts import vision_models
from .rotary import Rotary, apply_rotary, apply_rotary_qk
from .spectra.axes import axial_arguments
from .spectra.frequencies import frequencies

if TYPE_CHECKING:
    import torch

    from .base.kinds import Number, SupportsArray

__all__ = [
    "FullWidthRotary",
    "axial_rotary",
    "mixed_frequencies",
    "vision_rotary",
]


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
    given = axial_arguments(
        head_dim, axes, base=base, spectrum=spectrum, freq_scale=freq_scale, inv_freq=inv_freq,
        order=order, axis_order=axis_order, pairing=pairing, rotary_dim=rotary_dim, tiled=tiled,
    )  # fmt: skip
    return FullWidthRotary.of_dims(**given) if tiled else Rotary(**given)


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


def vision_rotary(model: str, head_dim: int, **changes: Any) -> Rotary | FullWidthRotary:
    """How the vision encoder of a model rotates.

    The table VISION_MODELS, posenc_native/models/vision.json, has for each model what is not the
    default of `axial_rotary`. Positions are height and width, or time, height and width; where a
    model orders them otherwise, the result does so, too.

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
    known_models = vision_models()
    arguments.check_name("vision_rotary", "model", model, tuple(known_models))
    known = [name for name in inspect.signature(axial_rotary).parameters if name != "head_dim"]
    for name in changes:
        if name not in known:
            expected = f"arguments of axial_rotary, {', '.join(known)}"
            wrong_value("vision_rotary", "changes", expected, name)
    return axial_rotary(head_dim, **{**known_models[model], **changes})


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
