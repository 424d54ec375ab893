"""Rotary encoding over several position axes: the axis and the frequency of each pair.

    text with images     positions [A, b, s]: time, height, width     `mrope_axis_map`
    patches of an image  positions [A, s]: height, width              `axial_rotary`

Pairs of two axes h and w in a head, with two frequencies per axis:

    order            pairing            the 8 dims of a head are rotated by
    sectioned        "half"             h0 h1 w0 w1 | h0 h1 w0 w1
    interleaved      "half"             h0 w0 h1 w1 | h0 w0 h1 w1
    sectioned        "interleaved"      h0 h0 | h1 h1 | w0 w0 | w1 w1
    sectioned        "per_axis"         h0 h1 | h0 h1 || w0 w1 | w0 w1

Axes may have shares, bases and scalings of their own: `axial_rotary` with axes_dim.
All of this becomes arguments of `apply_rotary`. `vision_rotary` reads the choices of vision models
from one table, models/vision.json. The functions that make positions are in positions/.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.frequencies.axes import axial_arguments
from posenc_native.core.frequencies.frequencies import frequencies
from posenc_native.engines.arrays import Arrays
from posenc_native.models.facts import vision_axial, vision_models

from .full_width import FullWidthRotary
from .rotary import Rotary

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import ArrayOrTensor, AxialPairing

__all__ = [
    "axial_rotary",
    "mixed_frequencies",
    "vision_rotary",
]


def axial_rotary(
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
    pairing: AxialPairing = "half",
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    tiled: bool = False,
) -> Rotary | FullWidthRotary:
    """How a vision model rotates: each axis of a grid drives its share of the pairs.

    Positions are ``[A, s]`` or ``[A, b, s]``: `grid_positions`, `packed_grid_positions`,
    `image_coordinates`. `vision_rotary` has the arguments of published models.

    Args:
        head_dim: width of a head.
        axes: A, the number of position axes, which share the rotated dims equally; default 2, or
            one for each number of `axes_dim`.
        axes_dim: the number of dims that each axis rotates, even, such as ``(16, 56, 56)`` for
            time, height and width. (Configurations of diffusers have it as axes_dims_rope,
            axes_dims or rope_axes_dim.)
        base: base of the frequencies; a sequence has one for each axis. For NTK by axis
            ("ntk_factor"), multiply the base of this axis by the factor.
        scaling: as in `rotary_frequencies`, applied to the frequencies of each axis; a sequence has
            a mapping or None for each axis. All axes have one factor of cosine and sine.
        spectrum: "per_axis": every axis has the frequencies ``base ** (-i / n)`` of its n pairs.
            "shared": the frequencies ``base ** (-j / P)`` of a whole head go to the axes in turn.
            "rising": every axis has ``base ** (i / (n - 1))``, for coordinates between -1 and 1
            (LTX-Video).
        freq_scale: factor of the frequencies; 2 pi if coordinates are in turns (DINOv3).
        inv_freq: the n frequencies of every axis, radians per unit of a coordinate, in place of
            base, scaling, spectrum and freq_scale.
        order: "sectioned" or "interleaved"; see the module docstring.
        axis_order: the order of the position axes in a head; default 0, 1 ... With positions of
            height and width, ``(1, 0)`` puts width first.
        pairing: "half", "interleaved", an even block size, or "per_axis": one block for each axis.
        rotary_dim: the number of rotated dims; default the largest multiple of 2 A in head_dim. The
            other dims are copied.
        rotary_start: first rotated dim.
        tiled: repeat the angles of each axis twice in a row over its dims, as "half" requires, for
            any pairing. With "interleaved", the partners of a pair are then rotated by unequal
            angles. V-JEPA 2 does this, and its checkpoints are trained with it.

    With unequal `axes_dim`, spectrum is not "shared", order is "sectioned", and pairing is not
    "per_axis".

    Returns:
        A `Rotary`; with `tiled` a `FullWidthRotary`, which is called the same way but has no
        ``tables``.

    Raises:
        ValueError: sizes do not fit, or a name is unknown.
        TypeError: an argument has a wrong type.

    Source: `axes_dim` as in ``FluxPosEmbed`` and ``HunyuanVideoRotaryPosEmbed`` of diffusers.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.rotary.axial_rotary(64, base=100.0, pairing="per_axis")  # as Gemma 4 has it
        >>> positions = pn.positions.grid_positions([3, 5])  # a row of heights, a row of widths
        >>> q = k = np.ones((1, 4, 15, 64), np.float32)
        >>> q, k = rope(q, k, positions)
        >>> rope = pn.rotary.axial_rotary(  # time, height and width; RIFLEx for 66 frames
        ...     128, axes_dim=(16, 56, 56), base=256.0, pairing="interleaved",
        ...     scaling=({"rope_type": "riflex", "k": 4, "L_test": 66}, None, None),
        ... )
        >>> np.bincount(rope.axis_map)
        array([ 8, 28, 28])
    """
    options = axial_arguments(
        head_dim, axes, axes_dim=axes_dim, base=base, scaling=scaling, spectrum=spectrum,
        freq_scale=freq_scale, inv_freq=inv_freq, order=order, axis_order=axis_order,
        pairing=pairing, rotary_dim=rotary_dim, rotary_start=rotary_start, tiled=tiled,
    )  # fmt: skip
    return FullWidthRotary.of_dims(**options) if tiled else Rotary(**options)


def vision_rotary(model: str, head_dim: int, **changes: Any) -> Rotary | FullWidthRotary:
    """How the vision encoder, or the diffusion transformer, of a published model rotates.

    The table VISION_MODELS, posenc_native/models/vision.json, lists for each model the arguments
    that differ from the defaults of `axial_rotary`, and how the model makes positions. The method
    ``grid`` of the result makes them: some models count patches from 1, order them in blocks, have
    coordinates between -1 and 1 or a text beside the patches, so that `grid_positions` are wrong
    for them.

    Args:
        model: the name of its folder in transformers ("qwen2_5_vl", "pixtral", "dinov3_vit"), or of
            a model in timm ("eva02") or diffusers ("flux", "wan", "hunyuan_video", "ltx_video",
            "qwen_image", "cogvideox" ...).
        head_dim: width of a head; for "ltx_video", of all heads together, which it rotates as one.
        changes: arguments of `axial_rotary` that replace those of the model, such as another base.

    Returns:
        A `Rotary` with ``grid``; for "vjepa2" a `FullWidthRotary`, which is called the same way but
        has no ``tables``.

    Raises:
        ValueError: the model or a change is unknown, or sizes do not fit.
        TypeError: an argument has a wrong type.

    Source: the vision encoders in transformers and timm; the transformers in diffusers.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.rotary.vision_rotary("pixtral", 8)
        >>> rope.axis_map, rope.inv_freq.round(4)
        (array([0, 0, 1, 1]), array([1.   , 0.01 , 0.1  , 0.001]))
        >>> pn.rotary.vision_rotary("gemma4", 8).pairing
        4
        >>> q = k = np.ones((1, 2, 15, 8), np.float32)
        >>> q, k = rope(q, k, rope.grid(3, 5))
        >>> flux = pn.rotary.vision_rotary("flux", 128)
        >>> flux.grid(64, 64, text=512).shape  # of text, then of patches
        (3, 4608)
    """
    models = vision_models()
    arguments.check_known_name(
        "vision_rotary", "model", model, models, "posenc_native/models/vision.json"
    )
    names = [name for name in inspect.signature(axial_rotary).parameters if name != "head_dim"]
    for name in changes:
        if name not in names:
            expected = f"arguments of axial_rotary, {', '.join(names)}"
            wrong_value("vision_rotary", "changes", expected, name)
    head_dim = arguments.size("vision_rotary", "head_dim", head_dim)
    settings = vision_axial(model, head_dim, changes)
    options = {**axial_arguments(head_dim, **settings), "vision": model}
    return FullWidthRotary.of_dims(**options) if settings.get("tiled") else Rotary(**options)


def mixed_frequencies(
    head_dim: int,
    num_heads: int,
    *,
    base: float = 10.0,
    rotate: bool = True,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
) -> ArrayOrTensor:
    """Initial values of RoPE-Mixed's learned frequencies, with which both axes drive every pair.

    The angle of a pair is ``x * result[0] + y * result[1]``: `apply_rotary` takes the result as
    inv_freq ``[A, H, P]``, with positions of width and height. Pairs are "interleaved" in the
    original. Each head has the frequencies ``base ** (-i / n)``, n = P / 2, in two perpendicular
    directions, which are rotated by a different random angle for each head.

    Args:
        head_dim: width of a head, a multiple of 4.
        num_heads: H.
        base: base of the frequencies.
        rotate: False rotates no directions: the first n pairs depend on x alone, the others on y.
        generator: a `numpy.random.Generator` or a `torch.Generator` that draws the angles; None is
            a new one, or torch's default.
        dtype: float32 (default) or float64, of NumPy or torch.
        device: a torch device makes the result a tensor, as a torch dtype or generator does.

    Returns:
        ``[2, H, P]``, P = head_dim / 2.

    Raises:
        ValueError: head_dim is not a multiple of 4.
        TypeError: a dtype is not supported.

    Source: Heo et al. 2024, "Rotary Position Embedding for Vision Transformer";
    ``init_random_2d_freqs`` in timm.

    Example:
        >>> import posenc_native as pn
        >>> pn.rotary.mixed_frequencies(8, 1, rotate=False).round(2) + 0.0
        array([[[1.  , 0.32, 0.  , 0.  ]],
        <BLANKLINE>
               [[0.  , 0.  , 1.  , 0.32]]], dtype=float32)
    """
    function = "mixed_frequencies"
    if device is None:
        device = getattr(generator, "device", None)  # NumPy's have none
    arrays = Arrays(function, dtype, device)
    if dtype is not None:
        arguments.check_dtype(function, "dtype", arrays.dtype, arguments.FREQUENCY_DTYPES)
    head_dim = arguments.width(function, "head_dim", head_dim)
    if head_dim % 4:
        wrong_value(function, "head_dim", "a multiple of 4", head_dim)
    shape = (arguments.head_count(function, "num_heads", num_heads), 1)
    size = arrays.constant(frequencies(head_dim // 2, base).tolist())
    if not arrays.flag("rotate", rotate):
        turns = arrays.arange(shape[0])[:, None] * 0
    elif arrays.is_torch:
        turns = arrays.xp.rand(shape, generator=generator, device=arrays.device)
    else:
        turns = arguments.numpy_generator(function, generator).random(shape)
    angle = arrays.wide(turns) * (2 * np.pi)
    x, y = size * arrays.xp.cos(angle), size * arrays.xp.sin(angle)
    # A quarter turn further, cosine and sine become minus the sine and the cosine.
    along_x, along_y = arrays.xp.concatenate([x, -y], -1), arrays.xp.concatenate([y, x], -1)
    return arrays.rounded(arrays.xp.stack([along_x, along_y]))
