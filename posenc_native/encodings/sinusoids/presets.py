"""The sinusoidal tables of other projects, by name.

A preset is a function. It takes the options of the original project, under their original names,
and returns the arguments of a `SinusoidalSpec`. Its table agrees with the original as far as the
original's angles, mostly float32, are exact.

If the original divides by zero (a single frequency and a shift of 1), the preset uses the first
frequency.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value

from .grid import GridCoordinates

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from posenc_native.core.calls.kinds import AxisPlace, Remainder, SinusoidalLayout

_FUNCTION = "SinusoidalSpec.preset"  # for errors


class SpecArguments(TypedDict, total=False):
    """Arguments of a `SinusoidalSpec`."""

    dim: int
    axis_order: tuple[int, ...]
    base: float | tuple[float, ...]
    scale: float | tuple[float, ...]
    shift: float
    inv_freq: tuple[float, ...]
    layout: SinusoidalLayout
    axis_place: AxisPlace
    remainder: Remainder
    shares: tuple[int, ...]
    include_coordinates: bool
    logarithm: bool
    zero_position: int | None
    zero_rows: int
    grid: GridCoordinates | None


def _spec(**arguments: Unpack[SpecArguments]) -> SpecArguments:
    # torch.compile follows no call of a TypedDict whose keys may be missing.
    return arguments


_PRESETS: dict[str, Callable[..., SpecArguments]] = {}


def described_presets() -> dict[str, str]:
    """The options and the source of each preset, by its name."""
    described = {}
    for name, make in _PRESETS.items():
        _dim, *options = inspect.signature(make).parameters.values()
        shown = ", ".join(str(option.replace(annotation=option.empty)) for option in options)
        source = inspect.getdoc(make) or ""
        described[name] = f"{shown or 'no options'}: {source.splitlines()[0].rstrip('.')}"
    return described


def spec_arguments(name: object, dim: object, options: Mapping[str, Any]) -> SpecArguments:
    """The arguments of a preset by name."""
    arguments.check_known_name(_FUNCTION, "name", name, _PRESETS, "SinusoidalSpec.presets()")
    make = _PRESETS[str(name)]
    _dim, *names = inspect.signature(make).parameters
    for option in options:
        if option not in names:
            expected = f"one of the options of {name}, {', '.join(names) or '(there is none)'}"
            wrong_value(_FUNCTION, "options", expected, option)
    for option, parameter in inspect.signature(make).parameters.items():
        if option in names and parameter.default is parameter.empty and option not in options:
            expected = f"{option}, which {name} needs"
            wrong_value(_FUNCTION, "options", expected, list(options) or None)
    return make(arguments.size(_FUNCTION, "dim", dim), **options)


def _named(*names: str) -> Callable[[Callable[..., SpecArguments]], Callable[..., SpecArguments]]:
    def register(make: Callable[..., SpecArguments]) -> Callable[..., SpecArguments]:
        for name in names:
            _PRESETS[name] = make
        return make

    return register


# --- One coordinate


@_named("transformer")
def _transformer(dim: int, *, base: float = 10000.0) -> SpecArguments:
    """Vaswani et al. 2017, section 3.5; the annotated transformer, ESPnet, NeMo."""
    return _spec(dim=dim, base=base)


@_named("tensor2tensor")
def _tensor2tensor(
    dim: int, *, min_timescale: float = 1.0, max_timescale: float = 10000.0, start_index: int = 0
) -> SpecArguments:
    """tensor2tensor, get_timing_signal_1d.

    It multiplies the frequencies by min_timescale, so this is a timescale only if it is 1.
    """
    return _spec(
        dim=dim, base=max_timescale / min_timescale, scale=min_timescale, shift=1.0,
        layout="sin_cos", remainder="zeros", grid=GridCoordinates(first=start_index),
    )  # fmt: skip


@_named("fairseq", "m2m_100", "speech_to_text")
def _fairseq(dim: int, *, padding_idx: int | None = None) -> SpecArguments:
    """fairseq, SinusoidalPositionalEmbedding; M2M-100 and Speech2Text of transformers.

    Positions of tokens begin at padding_idx + 1, and padding is at padding_idx, a row of zeros:
    ``padded_positions(tokens != padding_idx, padding=padding_idx, start=padding_idx + 1)``.
    """
    return _spec(dim=dim, shift=1.0, layout="sin_cos", remainder="zeros", zero_position=padding_idx)


@_named("marian")
def _marian(dim: int) -> SpecArguments:
    """transformers, MarianSinusoidalPositionalEmbedding; Pegasus, Informer, Autoformer."""
    return _spec(dim=dim, shift=dim % 2 / 2, layout="sin_cos", remainder="cut")


@_named("whisper")
def _whisper(dim: int, *, max_timescale: float = 10000.0) -> SpecArguments:
    """openai/whisper, sinusoids."""
    return _spec(dim=dim, base=max_timescale, shift=1.0, layout="sin_cos")


@_named("keras")
def _keras(dim: int, *, max_wavelength: float = 10000.0, start_index: int = 0) -> SpecArguments:
    """keras-hub, SinePositionEncoding."""
    return _spec(
        dim=dim, base=max_wavelength, shift=dim % 2 / 2, remainder="cut",
        grid=GridCoordinates(first=start_index),
    )  # fmt: skip


@_named("tf_models")
def _tf_models(
    dim: int, *, min_timescale: float = 1.0, max_timescale: float = 10000.0
) -> SpecArguments:
    """tensorflow/models, RelativePositionEmbedding; one column fewer for an odd dim."""
    return _spec(
        dim=dim, base=max_timescale / min_timescale, scale=min_timescale, shift=1.0,
        layout="sin_cos", remainder="drop",
    )  # fmt: skip


@_named("x_transformers")
def _x_transformers(dim: int, *, theta: float = 10000.0) -> SpecArguments:
    """x-transformers, ScaledSinusoidalEmbedding, before its learned factor."""
    return _spec(dim=dim, base=theta, layout="sin_cos")


@_named("transformer_xl", "xlnet")
def _transformer_xl(dim: int, *, last: int = 0) -> SpecArguments:
    """Transformer-XL, PositionalEmbedding; XLNet, Funnel: an int n descends to `last`.

    n keys descend from n - 1 to 0; XLNet's bidirectional k_len + q_len from k_len to 1 - q_len.
    """
    return _spec(dim=dim, layout="sin_cos", grid=GridCoordinates(first=last, descending=True))


# --- Timesteps, noise levels


@_named("diffusers_timestep")
def _diffusers_timestep(
    dim: int,
    *,
    flip_sin_to_cos: bool = False,
    downscale_freq_shift: float = 1.0,
    scale: float = 1.0,
    max_period: float = 10000.0,
) -> SpecArguments:
    """diffusers, get_timestep_embedding."""
    return _spec(
        dim=dim, base=max_period, shift=downscale_freq_shift, scale=scale,
        layout="cos_sin" if flip_sin_to_cos else "sin_cos", remainder="zeros",
    )  # fmt: skip


@_named("dit_timestep")
def _dit_timestep(dim: int, *, max_period: float = 10000.0) -> SpecArguments:
    """DiT, TimestepEmbedder.timestep_embedding; GLIDE."""
    return _spec(dim=dim, base=max_period, layout="cos_sin", remainder="zeros")


@_named("gaussian_fourier")
def _gaussian_fourier(
    dim: int, *, weight: Any, log: bool = True, flip_sin_to_cos: bool = False
) -> SpecArguments:
    """diffusers, GaussianFourierProjection with its weight: dim / 2 numbers, turns a unit."""
    return _spec(
        dim=dim, inv_freq=tuple(float(w) for w in weight), scale=2 * math.pi, logarithm=log,
        layout="cos_sin" if flip_sin_to_cos else "sin_cos",
    )  # fmt: skip


# --- Grids


@_named("tensor2tensor_nd")
def _tensor2tensor_nd(
    dim: int, *, axes: int = 2, min_timescale: float = 1.0, max_timescale: float = 10000.0
) -> SpecArguments:
    """tensor2tensor, add_timing_signal_nd."""
    return _spec(
        dim=dim, axis_order=_order(axes), base=max_timescale / min_timescale,
        scale=min_timescale, shift=1.0, layout="sin_cos", remainder="zeros",
    )  # fmt: skip


@_named("mae")
def _mae(dim: int, *, cls_token: bool = False) -> SpecArguments:
    """MAE, get_2d_sincos_pos_embed; DiT, ViT-MAE of transformers."""
    return _spec(dim=dim, axis_order=(1, 0), layout="sin_cos", zero_rows=1 if cls_token else 0)


@_named("diffusers_2d")
def _diffusers_2d(
    dim: int,
    *,
    cls_token: bool = False,
    extra_tokens: int = 0,
    interpolation_scale: float = 1.0,
    base_size: int = 16,
) -> SpecArguments:
    """diffusers, get_2d_sincos_pos_embed; positions are the (height, width) of the grid."""
    return _spec(
        dim=dim, axis_order=(1, 0), layout="sin_cos", zero_rows=extra_tokens if cls_token else 0,
        grid=GridCoordinates(extent=base_size / interpolation_scale),
    )  # fmt: skip


@_named("diffusers_3d")
def _diffusers_3d(
    dim: int, *, spatial_interpolation_scale: float = 1.0, temporal_interpolation_scale: float = 1.0
) -> SpecArguments:
    """diffusers, get_3d_sincos_pos_embed; positions are (frames, height, width)."""
    spatial = 1 / spatial_interpolation_scale
    return _spec(
        dim=dim, axis_order=(0, 2, 1), shares=(2, 3, 3), layout="sin_cos",
        scale=(1 / temporal_interpolation_scale, spatial, spatial),
    )  # fmt: skip


@_named("transformers_2d")
def _transformers_2d(
    dim: int, *, temperature: float = 10000.0, cls_token: bool = False
) -> SpecArguments:
    """transformers, build_2d_sinusoidal_position_embedding: RT-DETR, AIMv2."""
    return _spec(
        dim=dim, axis_order=(0, 1), base=temperature, layout="sin_cos",
        zero_rows=1 if cls_token else 0,
    )  # fmt: skip


@_named("timm_2d")
def _timm_2d(
    dim: int,
    *,
    temperature: float = 10000.0,
    reverse_coord: bool = False,
    interleave_sin_cos: bool = False,
) -> SpecArguments:
    """timm, build_sincos2d_pos_embed.

    With reverse_coord, timm orders rows by column; here every row stays at its cell.
    """
    return _spec(
        dim=dim, axis_order=(1, 0) if reverse_coord else (0, 1), base=temperature,
        layout="sin_cos", axis_place="outer" if interleave_sin_cos else "middle",
    )  # fmt: skip


@_named("timm_fourier")
def _timm_fourier(
    dim: int,
    *,
    axes: int = 2,
    max_res: float = 224.0,
    linear_bands: bool = True,
    include_grid: bool = True,
    in_pixels: bool = True,
    temperature: float = 10000.0,
) -> SpecArguments:
    """timm, FourierEmbed and build_fourier_pos_embed, pixel_freq_bands."""
    bands = _bands(dim, axes, include_grid)
    if not in_pixels:
        frequencies: dict[str, Any] = {"base": temperature}
    elif linear_bands:
        frequencies = {"inv_freq": _linear(1.0, max_res / 2, bands), "scale": math.pi}
    else:
        frequencies = {"base": 2.0 / max_res, "shift": 1.0, "scale": math.pi}
    return _spec(
        dim=dim, axis_order=_order(axes), layout="sin_cos", axis_place="inner",
        include_coordinates=include_grid, **frequencies,
        grid=GridCoordinates(low=-1.0, extent=2.0, drop=1.0) if in_pixels else None,
    )  # fmt: skip


@_named("detr")
def _detr(
    dim: int, *, temperature: float = 10000.0, normalize: bool = False, scale: float = 2 * math.pi
) -> SpecArguments:
    """DETR, PositionEmbeddingSine; a mask is True where there is an image (DETR's is inverted)."""
    return _sine_of_cells(dim, temperature, scale if normalize else None, first=1.0)


@_named("deformable_detr")
def _deformable_detr(
    dim: int, *, temperature: float = 10000.0, normalize: bool = False, scale: float = 2 * math.pi
) -> SpecArguments:
    """Deformable DETR, PositionEmbeddingSine: DETR's, at the centers of cells if normalized."""
    return _sine_of_cells(dim, temperature, scale if normalize else None, first=0.5)


def _sine_of_cells(
    dim: int, temperature: float, extent: float | None, first: float
) -> SpecArguments:
    """Cells counted from 1, or from `first` if normalized to an extent."""
    grid = GridCoordinates(first=1.0)
    if extent is not None:
        grid = GridCoordinates(first=first, extent=extent, drop=-1e-6)
    return _spec(dim=dim, axis_order=(0, 1), base=temperature, grid=grid)


@_named("positional_encodings")
def _positional_encodings(dim: int, *, axes: int = 1) -> SpecArguments:
    """positional-encodings, PositionalEncoding1D, 2D and 3D by `axes`."""
    return _spec(dim=dim, axis_order=_order(axes), remainder="cut")


# --- Coordinates: boxes, points in space


@_named("detr_boxes")
def _detr_boxes(dim: int, *, axes: int = 4, temperature: float = 10000.0) -> SpecArguments:
    """transformers, encode_sinusoidal_position_embedding: boxes (x, y, w, h) within 0 .. 1."""
    order = (1, 0, *range(2, axes)) if axes > 1 else (0,)
    return _spec(dim=dim, axis_order=order, base=temperature, scale=2 * math.pi)


@_named("gligen")
def _gligen(dim: int, *, axes: int = 4, temperature: float = 100.0) -> SpecArguments:
    """GLIGEN, FourierEmbedder; diffusers, get_fourier_embeds_from_boundingbox."""
    return _spec(dim=dim, axis_order=_order(axes), base=1 / temperature, axis_place="inner")


@_named("nerf")
def _nerf(
    dim: int,
    *,
    axes: int = 3,
    include_input: bool = True,
    log_sampling: bool = True,
    pi: bool = False,
) -> SpecArguments:
    """NeRF, Embedder of run_nerf_helpers; its paper has a factor pi, its code has none.

    The number of frequencies 2^k follows from dim: 63 for three coordinates is ten.
    """
    bands = _bands(dim, axes, include_input)
    top = 2.0 ** min(max(bands - 1, 0), 1000)  # from 2^63 on, SinusoidalSpec refuses it
    frequencies: dict[str, Any] = {"inv_freq": _linear(1.0, top, bands)}
    if log_sampling:
        frequencies = {"base": 1 / top, "shift": 1.0}
    return _spec(
        dim=dim, axis_order=_order(axes), scale=math.pi if pi else 1.0, axis_place="inner",
        include_coordinates=include_input, **frequencies,
    )  # fmt: skip


def _order(axes: int) -> tuple[int, ...]:
    """The axes in their own order; NeRF has 5, for place and direction."""
    if arguments.size(_FUNCTION, "axes", axes) > 64:
        wrong_value(_FUNCTION, "axes", "an int in 0 .. 64", axes)
    return tuple(range(axes))


def _bands(dim: int, axes: int, coordinates: bool) -> int:
    """The number of frequencies that fit; SinusoidalSpec checks that they fit exactly."""
    if arguments.size(_FUNCTION, "dim", dim) > arguments.WIDTH_LIMIT:
        expected = f"an int in 0 .. {arguments.WIDTH_LIMIT}"
        wrong_value(_FUNCTION, "dim", expected, dim)
    return max(dim - (axes if coordinates else 0), 0) // (2 * axes) if axes > 0 else 0


def _linear(low: float, high: float, count: int) -> tuple[float, ...]:
    step = (high - low) / max(count - 1, 1)
    return tuple(low + step * i for i in range(count))
