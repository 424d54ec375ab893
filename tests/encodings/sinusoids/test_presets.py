"""Sinusoids by name, against the projects that they are from.

Owners compute angles in float32, mostly: a sine of theirs is off by the angle times the relative
roundings of their frequencies and of the product, 2^-24 each. An exponent of up to ln(base) whose
own roundings are relative multiplies them. Owners that are not installed are written out in
float64.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import outside
import pytest
from oracle import assert_same_bits
from targets import NEEDS_NATIVE

import posenc_native as pn

UNIT = 2.0**-24
# Of two float32 sines: ours is off by 9e-8 and a rounding, theirs by a unit and a rounding.
SINES = 4 * UNIT
LN_BASE = math.log(1e4)
IN_FLOAT64 = 2.0**-20  # an owner who computes angles in float64 has next to no roundings


def by_exponential(divisions: int = 1) -> float:
    """Roundings of an angle whose frequency is exp(i * -(ln(base) / n)): those of the exponent, of
    exp and of the product."""
    return (1 + divisions) * LN_BASE + 3


def by_power() -> float:
    """Likewise of 1 / base ** (i / n): of i / n, the power, the reciprocal and the product."""
    return LN_BASE + 4


def numbers(table: Any) -> np.ndarray:
    """A tensor or an array as float64."""
    return np.asarray(table.detach().numpy() if hasattr(table, "detach") else table, np.float64)


def assert_agrees(ours: np.ndarray, owner: Any, angle: float, roundings: float) -> None:
    """Equal to the owner's table, whose largest angle has so many roundings."""
    theirs = numbers(owner)
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=angle * roundings * UNIT + SINES)


def owner(name: str, function: str) -> Any:
    return getattr(outside.module(name), function)


# --- One coordinate


@pytest.mark.parametrize("dim", [8, 9, 64, 7])
@pytest.mark.parametrize(
    ("name", "owner_class"),
    [
        ("m2m_100", "m2m_100.modeling_m2m_100.M2M100SinusoidalPositionalEmbedding"),
        (
            "speech_to_text",
            "speech_to_text.modeling_speech_to_text.Speech2TextSinusoidalPositionalEmbedding",
        ),
    ],
)
def test_fairseq_in_transformers(name, owner_class, dim):
    module, _, class_name = owner_class.rpartition(".")
    theirs = owner(f"transformers.models.{module}", class_name).get_embedding(40, dim, 1)
    ours = pn.SinusoidalSpec.preset(name, dim, padding_idx=1)(40)
    assert_agrees(ours, theirs, 39, by_exponential())
    assert not ours[1].any()
    assert np.array_equal(pn.SinusoidalSpec.preset("fairseq", dim, padding_idx=1)(40), ours)


def test_tokens_with_padding_as_m2m_100_has_them():
    torch = pytest.importorskip("torch")
    Embedding = owner(
        "transformers.models.m2m_100.modeling_m2m_100", "M2M100SinusoidalPositionalEmbedding"
    )
    embed = Embedding(20, 16, padding_idx=1)
    tokens = torch.tensor([[5, 6, 7, 1, 1], [1, 1, 4, 9, 3], [5, 1, 7, 1, 8]])
    for past in (0, 3):
        positions = pn.positions.padded_positions(tokens != 1, padding=1, start=2 + past)
        assert torch.equal(positions, embed.create_position_ids_from_input_ids(tokens, 1, past))
        ours = pn.SinusoidalSpec.preset("m2m_100", 16, padding_idx=1)(positions)
        assert_agrees(ours.numpy(), embed(tokens, past_key_values_length=past), 9, by_exponential())


@pytest.mark.parametrize("dim", [8, 9, 3, 1])
def test_marian(dim):
    Embedding = owner(
        "transformers.models.marian.modeling_marian", "MarianSinusoidalPositionalEmbedding"
    )
    theirs = Embedding(40, dim).create_weight()
    assert_agrees(pn.SinusoidalSpec.preset("marian", dim)(40), theirs, 39, IN_FLOAT64)


@pytest.mark.parametrize("max_timescale", [1e4, 500.0])
def test_whisper(max_timescale):
    theirs = owner("transformers.models.whisper.modeling_whisper", "sinusoids")(
        40, 64, max_timescale
    )
    ours = pn.SinusoidalSpec.preset("whisper", 64, max_timescale=max_timescale)(40)
    assert_agrees(ours, theirs, 39, by_exponential())
    with pytest.raises(ValueError, match="dim"):
        pn.SinusoidalSpec.preset("whisper", 63)(40)


def test_x_transformers():
    torch = pytest.importorskip("torch")
    embed = owner("x_transformers.x_transformers", "ScaledSinusoidalEmbedding")(32, theta=500)
    theirs = embed(torch.zeros(1, 40, 32), offset=7) / embed.scale
    ours = pn.SinusoidalSpec.preset("x_transformers", 32, theta=500)(np.arange(7, 47))
    # Their product with 1 / sqrt(32) and the quotient here are two more roundings of the result.
    assert_agrees(ours, theirs, 46 + 2 / by_power(), by_power())


def test_transformer_xl_and_xlnet():
    transformers = outside.module("transformers")
    outside.module("torch")
    for attn_type in ("bi", "uni"):
        config = transformers.XLNetConfig(
            d_model=16, n_head=2, n_layer=1, d_inner=8, vocab_size=9, attn_type=attn_type
        )
        model = transformers.XLNetModel(config)
        theirs = model.relative_positional_encoding(5, 12)[:, 0]
        last = 1 - 5 if attn_type == "bi" else 0
        ours = pn.SinusoidalSpec.preset("xlnet", 16, last=last)(len(theirs))
        assert_agrees(ours, theirs, 12, by_power())
    descending = pn.SinusoidalSpec.preset("transformer_xl", 16)(6)
    assert_same_bits(descending, pn.sinusoidal(np.arange(6)[::-1], 16, layout="sin_cos"))


# Written out


def angles(count: int, start: float, frequencies: np.ndarray) -> np.ndarray:
    return np.arange(start, start + count)[:, None] * frequencies


def tensor2tensor(count, dim, start=0.0, low=1.0, high=1e4):
    """get_timing_signal_1d of common_attention.py."""
    pairs = dim // 2
    step = math.log(high / low) / max(pairs - 1, 1)
    scaled = angles(count, start, low * np.exp(np.arange(pairs) * -step))
    return np.pad(np.concatenate([np.sin(scaled), np.cos(scaled)], 1), [(0, 0), (0, dim % 2)])


def tensor2tensor_nd(shape, dim, low=1.0, high=1e4):
    """add_timing_signal_nd of common_attention.py, added to zeros."""
    pairs = dim // (2 * len(shape))
    rates = low * np.exp(np.arange(pairs) * -(math.log(high / low) / (pairs - 1)))
    x = np.zeros((*shape, dim))
    for axis, length in enumerate(shape):
        scaled = angles(length, 0, rates)
        signal = np.concatenate([np.sin(scaled), np.cos(scaled)], 1)
        before = axis * 2 * pairs
        signal = np.pad(signal, [(0, 0), (before, dim - 2 * pairs - before)])
        shaped = [1] * len(shape)
        shaped[axis] = length
        x = x + signal.reshape(*shaped, dim)
    return x


def keras(count, dim, start=0.0, longest=1e4):
    """SinePositionEncoding of keras-hub."""
    exponent = 2 * (np.arange(dim) // 2) / dim
    scaled = angles(count, start, (1 / longest) ** exponent)
    odd = np.arange(dim) % 2
    return np.sin(scaled) * (1 - odd) + np.cos(scaled) * odd


def tf_models(count, dim, low=1.0, high=1e4):
    """RelativePositionEmbedding of official/nlp/modeling/layers/position_embedding.py."""
    pairs = dim // 2
    step = math.log(high / low) / (pairs - 1)
    scaled = angles(count, 0, low * np.exp(np.arange(pairs) * -step))
    return np.concatenate([np.sin(scaled), np.cos(scaled)], 1)


def nerf(points, bands, include=True, log=True, pi=False):
    """Embedder of run_nerf_helpers.py; the factor pi is that of the paper, equation 4."""
    top = bands - 1
    if log:
        rates = 2.0 ** np.linspace(0.0, top, bands)
    else:
        rates = np.linspace(2.0**0.0, 2.0**top, bands)
    parts = [points] if include else []
    for rate in rates * (math.pi if pi else 1.0):
        parts += [np.sin(points * rate), np.cos(points * rate)]
    return np.concatenate(parts, -1)


def transformer(count, dim, base=1e4):
    """Vaswani et al. 2017, section 3.5."""
    table = np.zeros((count, dim))
    for position, i in itertools.product(range(count), range(dim // 2)):
        angle = position / base ** (2 * i / dim)
        table[position, 2 * i : 2 * i + 2] = math.sin(angle), math.cos(angle)
    return table


POINTS = np.random.default_rng(0).uniform(-1, 1, (5, 2, 3))
WRITTEN: dict[str, tuple[tuple[Any, ...], dict[str, Any], Callable[[], np.ndarray]]] = {
    "transformer": (("transformer", 40, 8), {"base": 500.0}, lambda: transformer(40, 8, 500.0)),
    **{
        f"tensor2tensor {dim}": (("tensor2tensor", 40, dim), {}, lambda d=dim: tensor2tensor(40, d))
        for dim in (8, 9, 2, 3)
    },
    "tensor2tensor options": (("tensor2tensor", 40, 10),
                              {"min_timescale": 2.0, "max_timescale": 300.0, "start_index": 5},
                              lambda: tensor2tensor(40, 10, 5, 2.0, 300.0)),
    "tensor2tensor_nd": (("tensor2tensor_nd", (4, 5, 6), 15), {"axes": 3},
                         lambda: tensor2tensor_nd((4, 5, 6), 15)),
    "tensor2tensor_nd options": (
        ("tensor2tensor_nd", (7, 5), 16), {"min_timescale": 2.0, "max_timescale": 300.0},
        lambda: tensor2tensor_nd((7, 5), 16, 2.0, 300.0),
    ),
    "tensor2tensor_nd of two": (
        ("tensor2tensor_nd", (7, 5), 16), {}, lambda: tensor2tensor_nd((7, 5), 16)
    ),
    "keras": (("keras", 40, 8), {}, lambda: keras(40, 8)),
    "keras odd": (("keras", 40, 9), {"max_wavelength": 300.0, "start_index": 4},
                  lambda: keras(40, 9, 4, 300.0)),
    "tf_models": (("tf_models", 40, 8), {}, lambda: tf_models(40, 8)),
    "tf_models odd": (("tf_models", 40, 9), {"min_timescale": 2.0, "max_timescale": 300.0},
                      lambda: tf_models(40, 9, 2.0, 300.0)),
    "nerf": (("nerf", POINTS, 63), {}, lambda: nerf(POINTS, 10)),
    "nerf with pi": (("nerf", POINTS, 24), {"pi": True, "include_input": False},
                     lambda: nerf(POINTS, 4, include=False, pi=True)),
    "nerf linear": (("nerf", POINTS, 33), {"log_sampling": False},
                    lambda: nerf(POINTS, 5, log=False)),
    "nerf of one coordinate": (
        ("nerf", POINTS[..., 0], 3), {"axes": 1}, lambda: nerf(POINTS[..., :1], 1)
    ),
}  # fmt: skip


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("call", "options", "formula"), WRITTEN.values(), ids=WRITTEN)
def test_presets_written_out(call, options, formula):
    expected = formula()
    name, positions, dim = call
    spec = pn.SinusoidalSpec.preset(name, dim, **options)
    wide = spec(positions, dtype=np.float64)
    assert wide.shape == expected.shape
    # Angles reach 44 (NeRF 512 pi) and have some ten roundings of 2^-53 there, ln(base) times two
    # of them in the exponent.
    np.testing.assert_allclose(wide, expected, rtol=0, atol=2000 * 30 * 2.0**-53)
    np.testing.assert_allclose(spec(positions), expected, rtol=UNIT, atol=3 * UNIT)


# --- Timesteps, noise levels

TIMESTEPS = np.array([0.0, 1.0, 998.39, 17.5, 999.0], np.float32)


@pytest.mark.parametrize("dim", [8, 9, 320])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("shift", [0.0, 1.0, 0.5])
def test_diffusers_timestep(dim, flip, shift):
    torch = pytest.importorskip("torch")
    options = {"flip_sin_to_cos": flip, "downscale_freq_shift": shift, "scale": 0.5}
    get = owner("diffusers.models.embeddings", "get_timestep_embedding")
    theirs = get(torch.from_numpy(TIMESTEPS), dim, max_period=5000, **options)
    ours = pn.SinusoidalSpec.preset("diffusers_timestep", dim, max_period=5000, **options)(
        TIMESTEPS
    )
    assert_agrees(ours, theirs, 500, by_exponential() + 1)
    if flip and not shift:
        theirs = get(torch.from_numpy(TIMESTEPS), dim, flip_sin_to_cos=True, downscale_freq_shift=0)
        ours = pn.SinusoidalSpec.preset("dit_timestep", dim)(TIMESTEPS)
        assert_agrees(ours, theirs, 999, by_exponential())


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("flip", [False, True])
def test_gaussian_fourier(log, flip):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    Projection = owner("diffusers.models.embeddings", "GaussianFourierProjection")
    project = Projection(16, scale=4.0, log=log, flip_sin_to_cos=flip)
    levels = torch.tensor([0.01, 0.3, 1.0, 17.0, 80.0])
    ours = pn.SinusoidalSpec.preset(
        "gaussian_fourier", 32, weight=project.weight, log=log, flip_sin_to_cos=flip
    )(levels)
    largest = levels.log().abs().max() if log else levels.max()
    angle = float(largest * project.weight.abs().max() * 2 * math.pi)
    assert_agrees(ours.numpy(), project(levels), angle, 5)


# --- Grids


@pytest.mark.parametrize("cls_token", [False, True])
def test_transformers_2d_and_mae(cls_token):
    torch = pytest.importorskip("torch")
    build = owner(
        "transformers.models.rt_detr_v2.modeling_rt_detr_v2",
        "build_2d_sinusoidal_position_embedding",
    )
    theirs = build(5, 7, 16, temperature=500.0, cls_token=cls_token)
    ours = pn.SinusoidalSpec.preset("transformers_2d", 16, temperature=500.0, cls_token=cls_token)(
        (5, 7)
    )
    assert_agrees(ours if cls_token else ours.reshape(35, 16), theirs, 6, IN_FLOAT64)
    # MAE's is the same with halves exchanged: transformers' ViT-MAE rolls it.
    theirs = torch.roll(build(5, 7, 16, cls_token=cls_token), 8, dims=1)
    ours = pn.SinusoidalSpec.preset("mae", 16, cls_token=cls_token)((5, 7))
    assert_agrees(ours if cls_token else ours.reshape(35, 16), theirs, 6, IN_FLOAT64)
    for name in ("mae", "transformers_2d"):
        with pytest.raises(ValueError, match="dim"):
            pn.SinusoidalSpec.preset(name, 18)((5, 7))


@pytest.mark.parametrize("extra", [0, 3])
def test_diffusers_2d(extra):
    options = {"base_size": 8, "interpolation_scale": 1.5, "cls_token": bool(extra)}
    theirs = owner("diffusers.models.embeddings", "get_2d_sincos_pos_embed")(
        16, (5, 7), extra_tokens=extra, **options
    )
    ours = pn.SinusoidalSpec.preset("diffusers_2d", 16, extra_tokens=extra, **options)((5, 7))
    # The coordinates are float32: two quotients.
    assert_agrees(ours if extra else ours.reshape(35, 16), theirs, 6, 3)


def test_diffusers_3d():
    theirs = owner("diffusers.models.embeddings", "get_3d_sincos_pos_embed")(
        32, (7, 5), 3, spatial_interpolation_scale=1.875, temporal_interpolation_scale=1.25
    )
    ours = pn.SinusoidalSpec.preset(
        "diffusers_3d", 32, spatial_interpolation_scale=1.875, temporal_interpolation_scale=1.25
    )((3, 5, 7))
    assert_agrees(ours.reshape(3, 35, 32), theirs, 4, 2)
    with pytest.raises(ValueError, match="dim"):
        pn.SinusoidalSpec.preset("diffusers_3d", 24)((3, 5, 7))


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_timm_2d(reverse, interleave):
    build = outside.timm_layers("pos_embed_sincos").build_sincos2d_pos_embed
    theirs = numbers(
        build([5, 7], 16, 500.0, reverse_coord=reverse, interleave_sin_cos=interleave)
    ).reshape((7, 5, 16) if reverse else (5, 7, 16))
    ours = pn.SinusoidalSpec.preset(
        "timm_2d", 16, temperature=500.0, reverse_coord=reverse, interleave_sin_cos=interleave
    )((5, 7))
    assert_agrees(ours, theirs.swapaxes(0, 1) if reverse else theirs, 6, by_power())


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 2), (1, 6)])
def test_timm_fourier(shape):
    torch = pytest.importorskip("torch")
    timm = outside.timm_layers("pos_embed_sincos")
    axes = len(shape)
    dim = axes * 13
    ours = pn.SinusoidalSpec.preset("timm_fourier", dim, axes=axes, max_res=64)(shape)
    bands = timm.pixel_freq_bands(6, 64)
    parts = timm.build_fourier_pos_embed(list(shape), bands, include_grid=True)
    # Bands, pi, a coordinate, the product.
    theirs = torch.cat(parts, -1).transpose(-1, -2).flatten(axes)
    assert_agrees(ours, theirs, 32 * math.pi, 6)
    if axes == 2:
        theirs = timm.FourierEmbed(max_res=64, num_bands=6)(torch.zeros(1, 0, *shape))
        assert_agrees(ours.reshape(1, -1, dim), theirs, 32 * math.pi, 6)
    for in_pixels in (True, False):
        grid, sin, cos = timm.build_fourier_pos_embed(
            list(shape), num_bands=6, max_res=64, temperature=100.0, include_grid=True,
            in_pixels=in_pixels,
        )  # fmt: skip
        theirs = torch.cat([grid, sin, cos], -1).transpose(-1, -2).flatten(axes)
        ours = pn.SinusoidalSpec.preset(
            "timm_fourier",
            dim,
            axes=axes,
            max_res=64,
            linear_bands=False,
            in_pixels=in_pixels,
            temperature=100.0,
        )(shape)
        assert_agrees(ours, theirs, 32 * math.pi if in_pixels else 7, by_power() + 2)
        ours = pn.SinusoidalSpec.preset(
            "timm_fourier",
            dim - axes,
            axes=axes,
            linear_bands=False,
            max_res=64,
            include_grid=False,
            in_pixels=in_pixels,
            temperature=100.0,
        )(shape)
        assert_agrees(ours, theirs[..., axes:], 32 * math.pi if in_pixels else 7, by_power() + 2)


DETRS = {"detr": "Detr", "deformable_detr": "DeformableDetr"}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", DETRS)
def test_detr_with_and_without_masks(name, normalize):
    torch = pytest.importorskip("torch")
    module = f"transformers.models.{name}.modeling_{name}"
    Embedding = owner(module, f"{DETRS[name]}SinePositionEmbedding")

    def theirs(mask):
        embedding = Embedding.build_sine_position_embedding(
            (2, 3, 5, 7), "cpu", torch.float32, 8, normalize, 2 * math.pi, 300, mask
        )
        return embedding.movedim(1, -1)

    options = {"normalize": normalize, "temperature": 300.0}
    # The last cell is at 2 pi; a sum with 1e-6, a quotient, a product before the frequency.
    angle, roundings = (2 * math.pi, by_power() + 3) if normalize else (7, by_power())
    ours = pn.SinusoidalSpec.preset(name, 16, **options)((5, 7))
    assert_agrees(ours, theirs(None)[0], angle, roundings)
    mask = np.zeros((2, 5, 7), bool)
    mask[0, :3, :6] = True
    mask[1, :5, :2] = True
    expected = theirs(torch.from_numpy(mask))
    ours = pn.SinusoidalSpec.preset(name, 16, **options)(mask)
    # What is no image may have coordinates without an end: lines of nothing, divided by 1e-6.
    shown = mask if normalize else np.ones_like(mask)
    assert_agrees(ours[shown], expected[torch.from_numpy(shown)], angle, roundings)
    as_tensor = pn.SinusoidalSpec.preset(name, 16, **options)(torch.from_numpy(mask))
    np.testing.assert_allclose(as_tensor.numpy()[shown], ours[shown], rtol=0, atol=SINES)


@pytest.mark.parametrize("dim", [12, 10, 9, 7, 1])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_positional_encodings(axes, dim):
    torch = pytest.importorskip("torch")
    shape = (4, 3, 5)[:axes]
    encodings = outside.module("positional_encodings.torch_encodings")
    encode = getattr(encodings, f"PositionalEncoding{axes}D")(dim)
    theirs = encode(torch.zeros(1, *shape, dim))[0]
    positions = shape if axes > 1 else shape[0]
    ours = pn.SinusoidalSpec.preset("positional_encodings", dim, axes=axes)(positions)
    assert_agrees(ours, theirs, 4, by_power())


@pytest.mark.parametrize("dim", [29, 7, 3, 1])
def test_odd_widths_as_pytorchs_tutorial_has_them(dim):
    """The oracle is the tutorial's code with one cosine fewer; "cut" alone has other exponents."""
    torch = pytest.importorskip("torch")
    position = torch.arange(50, dtype=torch.float64)[:, None]
    div_term = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim)).double()
    pe = torch.zeros(50, dim, dtype=torch.float64)
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)[:, : dim // 2]
    spec = pn.SinusoidalSpec(dim, remainder="cut", shift=0.5)
    assert_agrees(spec(50), pe, 50, by_exponential())
    if dim > 3:
        assert np.abs(pn.SinusoidalSpec(dim, remainder="cut")(50) - pe.numpy()).max() > 0.01
    # Every error about an odd width names this spec.
    write = f'SinusoidalSpec({dim}, remainder="cut", shift=0.5) cuts the last cosine'
    x = np.zeros((1, 3, dim), np.float32)
    from posenc_native import nn as pnn

    for argument, call in (
        ("dim: expected an even int", lambda: pn.sinusoidal(3, dim)),
        ("dim: expected an even int", lambda: pn.sinusoidal(torch.arange(3), dim)),
        ("dim: expected an even", lambda: pn.add_sinusoidal(x)),
        ("dim: expected an even", lambda: pn.add_sinusoidal(torch.from_numpy(x))),
        ("dim: expected an even int", lambda: pn.sinusoids.frequencies(dim)),
        ("dim: expected a multiple of 2", lambda: pn.SinusoidalSpec(dim)),
        ("dim: expected a multiple of 2", lambda: pnn.SinusoidalEmbedding(dim)),
        ("d_model: expected an even int", lambda: pnn.SinusoidalPositionalEncoding(dim)),
    ):
        with pytest.raises(ValueError, match=f"{argument}.*, got {dim}; .*{re.escape(write)}"):
            call()
    module = pnn.SinusoidalEmbedding(dim, spec)
    assert_agrees(module(50).numpy(), pe, 50, by_exponential())
    with pytest.raises(ValueError, match=r"shift=1.5\) cuts"):
        pn.sinusoidal(3, dim, shift=1.0)
    with pytest.raises(ValueError, match='write remainder="zeros", "drop" or "cut"'):
        pn.SinusoidalSpec(dim, axis_order=(0, 1))


# --- Coordinates


@pytest.mark.parametrize("axes", [1, 2, 4])
def test_detr_boxes(axes):
    torch = pytest.importorskip("torch")
    encode = owner(
        "transformers.models.conditional_detr.modeling_conditional_detr",
        "encode_sinusoidal_position_embedding",
    )
    boxes = np.random.default_rng(1).uniform(0, 1, (2, 6, axes)).astype(np.float32)
    theirs = encode(torch.from_numpy(boxes), 8, 300)
    given = boxes if axes > 1 else boxes[..., 0]
    ours = pn.SinusoidalSpec.preset("detr_boxes", 8 * axes, axes=axes, temperature=300.0)(given)
    assert_agrees(ours, theirs, 2 * math.pi, by_power() + 2)


def test_gligen():
    torch = pytest.importorskip("torch")
    boxes = np.random.default_rng(2).uniform(0, 1, (2, 6, 4)).astype(np.float32)
    get = owner("diffusers.models.embeddings", "get_fourier_embeds_from_boundingbox")
    theirs = get(8, torch.from_numpy(boxes))
    assert_agrees(pn.SinusoidalSpec.preset("gligen", 64)(boxes), theirs, 100, by_power())


# --- Names


def test_every_preset_is_tested_and_described():
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    for name, described in pn.SinusoidalSpec.presets().items():
        assert f'"{name}"' in text, f"{name} has no owner here"
        assert ": " in described


def test_unknown_names_and_options():
    with pytest.raises(
        ValueError,
        match=r"name: expected one of the [0-9]+ names in SinusoidalSpec.presets\(\).*'vit'",
    ):
        pn.SinusoidalSpec.preset("vit", 8)
    with pytest.raises(TypeError, match="name"):
        pn.SinusoidalSpec.preset(None, 8)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"options: .* of mae, cls_token, got temperature"):
        pn.SinusoidalSpec.preset("mae", 8, temperature=2.0)
    with pytest.raises(TypeError, match="dim"):
        pn.SinusoidalSpec.preset("mae", 8.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dim"):
        pn.SinusoidalSpec.preset("nerf", 62)
    with pytest.raises(ValueError, match="inv_freq"):
        pn.SinusoidalSpec.preset("gaussian_fourier", 8, weight=[1.0, 2.0])
    match = (
        "SinusoidalSpec.preset: options: expected weight, which gaussian_fourier needs, got None"
    )
    with pytest.raises(ValueError, match=match):
        pn.SinusoidalSpec.preset("gaussian_fourier", 16)


@NEEDS_NATIVE
@pytest.mark.parametrize("name", ["fairseq", "mae", "nerf", "detr", "timm_2d", "timm_fourier"])
def test_tensors_have_the_bits_of_arrays(name):
    torch = pytest.importorskip("torch")
    spec = pn.SinusoidalSpec.preset(name, {"nerf": 63, "timm_fourier": 66}.get(name, 64))
    if name == "nerf":
        given, tensor = POINTS, torch.from_numpy(POINTS)
    elif name == "fairseq":
        given, tensor = np.arange(5)[None] + 3, torch.arange(5)[None] + 3
    else:
        given = tensor = (4, 6)
    for dtype in ("float16", "float32", "float64"):
        array = spec(given, dtype=dtype)
        result = spec(tensor, dtype=getattr(torch, dtype), device="cpu")
        assert_same_bits(result.numpy(), array)
