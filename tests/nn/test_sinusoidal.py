"""posenc_native.nn.sinusoidal: modules of sinusoids, against the projects that have the like."""

from __future__ import annotations

import copy
import doctest
import importlib
import io
import math

import numpy as np
import outside
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import assert_same_bits, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

device = torch_cases.device


def test_examples():
    results = doctest.testmod(importlib.import_module("posenc_native.nn.sinusoidal"))
    assert results.attempted > 10
    assert results.failed == 0  # what differs is in the captured output


# --- Checkpoints of originals


class Tutorial(torch.nn.Module):
    """PositionalEncoding of PyTorch's tutorial "Language Modeling with nn.Transformer"."""

    def __init__(self, d_model, max_len=5000, batch_first=False):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)[:, : d_model // 2]
        self.register_buffer("pe", pe[None] if batch_first else pe[:, None])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [2, 16, 29, 512])
def test_a_checkpoint_of_the_tutorial_loads_strictly(width, dtype, batch_first):
    """The key was unexpected: models with the module could not take their old checkpoints."""
    old = torch.nn.Sequential(torch.nn.Linear(3, width), Tutorial(width, batch_first=batch_first))
    cut = pn.SinusoidalSpec(29, remainder="cut", shift=0.5)
    module = (
        pnn.SinusoidalEmbedding(29, cut) if width % 2 else pnn.SinusoidalPositionalEncoding(width)
    )
    new = torch.nn.Sequential(torch.nn.Linear(3, width), module)
    state = old.to(dtype).state_dict()
    assert "1.pe" in state
    kept = {name: values.clone() for name, values in state.items()}
    result = new.load_state_dict(state)
    assert not result.missing_keys
    assert not result.unexpected_keys
    assert list(new.state_dict()) == ["0.weight", "0.bias"]
    assert all(torch.equal(state[name], values) for name, values in kept.items())
    # As one tensor of rows, as fairseq's module saves, and where there are no values.
    module.load_state_dict({"pe": state["1.pe"].reshape(-1, width), "_float_tensor": torch.ones(1)})
    module.load_state_dict({"pe": state["1.pe"].to("meta")})


def test_another_table_in_a_checkpoint_is_an_error():
    """Strict or not: the model was trained with other numbers than the module adds."""
    encode, table = pnn.SinusoidalPositionalEncoding(16), Tutorial(16).pe
    other = pn.sinusoidal(5000, 16, layout="sin_cos", shift=1.0, dtype=torch.float32)
    fairseq = pnn.SinusoidalPositionalEncoding(16, layout="sin_cos", shift=1.0)
    fairseq.load_state_dict({"pe": other})
    wrong = {
        r"expected shape \[n, 16\], \[n, 1, 16\] or \[1, n, 16\], got \[5000, 2, 16\]":
            table.expand(-1, 2, -1),
        r"expected shape .* got \[5000, 1, 8\]": table[..., :8],
        r"expected the table of this module from position 0 on \(.* at \[\d+, \d+\]\), got "
        r".*; layout='sin_cos', shift=1 makes the table that came": other,
        r"expected the table .* \(0 at \[0, 0\]\), got 0.841\d*$": table[1:2],
        "expected the table .* got nan": torch.where(table > 0.5, torch.nan, table),
        "expected floating-point numbers, got int64": table.long(),
        "expected a tensor, got list": table.tolist(),
    }  # fmt: skip
    holder = torch.nn.ModuleDict({"x": encode})
    for words, value in wrong.items():
        with pytest.raises(RuntimeError, match=f"Encoding.load_state_dict: x.pe: {words}"):
            holder.load_state_dict({"x.pe": value}, strict=False)
    base = pnn.SinusoidalPositionalEncoding(16, base=10010.0)
    with pytest.raises(RuntimeError, match="expected the table"):
        base.load_state_dict({"pe": table})
    with pytest.raises(RuntimeError, match=r"_float_tensor: expected shape \[1\], got \[2\]"):
        encode.load_state_dict({"_float_tensor": torch.ones(2)})
    # Several coordinates have no "pe"; other names are unexpected as before.
    grid = pnn.SinusoidalEmbedding(16, "mae")
    for module, name in (
        (grid, "pe"),
        (encode, "pos"),
        (pnn.LearnedPositionalEncoding(3, 4), "pe"),
    ):
        with pytest.raises(RuntimeError, match="Unexpected key"):
            module.load_state_dict({**module.state_dict(), name: table})


def test_a_buffer_of_a_subclass_loads_as_any_other():
    class Own(pnn.SinusoidalPositionalEncoding):
        def __init__(self):
            super().__init__(4)
            self.register_buffer("pe", torch.zeros(3))

    module = Own()
    module.load_state_dict({"pe": torch.arange(3.0)})
    assert module.pe.tolist() == [0, 1, 2]


# --- SinusoidalPositionalEncoding


@pytest.mark.usefixtures("backend")
def test_start_is_where_a_sequence_goes_on(device):
    encode = pnn.SinusoidalPositionalEncoding(16, 0.0, x_scale="sqrt")
    x = random((2, 9, 16), device=device)
    whole = encode(x)
    assert_same_bits(torch.cat([encode(x[:, :5]), encode(x[:, 5:], start=5)], 1), whole)
    at = torch.tensor(5, device=device)
    assert_same_bits(encode(x[:, 5:], start=at), whole[:, 5:])
    assert_same_bits(encode(x, torch.arange(9, device=device)), whole)
    with pytest.raises(ValueError, match="start: expected 0 if positions are given"):
        encode(x, torch.arange(9, device=device), start=5)


@pytest.mark.usefixtures("backend")
def test_sequence_first(device):
    options = {"layout": "sin_cos", "x_scale": 2.0}
    encode = pnn.SinusoidalPositionalEncoding(16, 0.0, **options)
    other = pnn.SinusoidalPositionalEncoding(16, 0.0, batch_first=False, **options)
    x = random((9, 2, 16), device=device)
    each = torch.stack([torch.arange(9), torch.arange(9) + 70]).to(device)
    for positions, start in ((None, 0), (None, 4), (each[1], 0), (each, 0)):
        result = other(x, positions, start=start)
        expected = encode(x.transpose(0, 1).contiguous(), positions, start=start)
        assert_same_bits(result, expected.transpose(0, 1))
        assert result.is_contiguous()
    # Without a batch.
    for positions in (None, each[1]):
        assert_same_bits(other(x[:, 0], positions), encode(x[:, 0].contiguous(), positions))
    with pytest.raises(ValueError, match=r"x: expected shape \[seq, batch, d_model = 16\]"):
        other(x[0, 0])


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", torch_cases.FLOATS, ids=torch_cases.dtype_id)
def test_alpha_is_a_number_or_learned(dtype, device):
    fixed = pnn.SinusoidalPositionalEncoding(16, 0.0, x_scale=3.0, alpha=0.25).to(device, dtype)
    learned = pnn.SinusoidalPositionalEncoding(
        16, 0.0, x_scale=3.0, alpha=0.25, learned_alpha=True
    ).to(device, dtype)
    assert not list(fixed.parameters())
    assert [name for name, _ in learned.named_parameters()] == ["alpha"]
    x = random((2, 9, 16), dtype, device, requires_grad=True)
    positions = torch.arange(9, device=device) + 3
    results = [module(x, positions) for module in (fixed, learned)]
    torch.testing.assert_close(results[1], results[0])
    assert_same_bits(fixed(x, positions), pn.add_sinusoidal(x, positions, x_scale=3.0, alpha=0.25))
    weight = random((2, 9, 16), dtype, device, 1)
    grads = torch.autograd.grad((results[1] * weight).sum(), (x, learned.alpha))
    torch.testing.assert_close(grads[0], 3 * weight)
    table = pn.sinusoidal(positions, 16, dtype=torch.float64)
    # 288 terms of at most 4 are rounded to dtype where the gradient enters, and summed in float32.
    rounding = torch.finfo(dtype).eps * 288 * 4
    expected = (weight.double() * table).sum().item()
    assert abs(grads[1].item() - expected) <= rounding + 288 * 4 * 2.0**-23


def test_espnet_and_x_transformers_scale_so(device):
    """ESPnet: x + alpha * pe; x-transformers adds what its module returns."""
    x_transformers = outside.module("x_transformers.x_transformers")
    theirs = x_transformers.ScaledSinusoidalEmbedding(16).to(device)
    ours = pnn.SinusoidalPositionalEncoding(
        16, 0.0, layout="sin_cos", alpha=16**-0.5, learned_alpha=True
    ).to(device)
    x = random((2, 9, 16), device=device)
    # Angles up to 8 have some fourteen roundings in theirs.
    torch.testing.assert_close(ours(x), x + theirs(x), rtol=2.0**-22, atol=8 * 14 * 2.0**-24)
    table = pnn.SinusoidalEmbedding(16, "x_transformers", learned_scale=16**-0.5).to(device)
    result = table(torch.arange(9, device=device))
    torch.testing.assert_close(result, theirs(x), rtol=2.0**-22, atol=8 * 14 * 2.0**-24)
    grads = [torch.autograd.grad((t**3).sum(), p)[0] for t, p in
             ((result, table.scale), (theirs(x), theirs.scale))]  # fmt: skip
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


# --- SinusoidalEmbedding, TimestepEmbedding


def test_embedding_is_the_preset(device):
    t = torch.tensor([0.5, 998.39, 7.0], device=device)
    embed = pnn.SinusoidalEmbedding(33, "diffusers_timestep", flip_sin_to_cos=True)
    expected = pn.SinusoidalSpec.preset("diffusers_timestep", 33, flip_sin_to_cos=True)(t)
    assert_same_bits(embed(t), expected)
    assert embed(t, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert_same_bits(embed.half()(t), expected)  # nothing to cast
    assert not embed.state_dict()
    spec = pn.SinusoidalSpec(dim=8, axis_order=(1, 0))
    embed = pnn.SinusoidalEmbedding(8, spec, channels_first=True)
    assert_same_bits(embed((3, 4), device=device), spec((3, 4), device=device).permute(2, 0, 1))
    sizes = torch.tensor([3, 4], device=device)
    assert_same_bits(embed(sizes=sizes), embed((3, 4), device=device))  # on the device of the sizes
    assert embed(sizes=torch.Size([3, 4])).shape == (8, 3, 4)
    with pytest.raises(ValueError, match=r"or sizes=\(3,\) for 3 rows"):
        pnn.SinusoidalEmbedding(8)(torch.ones(1, 3, 8).shape[1:-1])
    mask = torch.ones(2, 3, 4, dtype=torch.bool, device=device)
    assert_same_bits(embed(mask=mask.int()), embed(mask))
    assert_same_bits(embed(mask), spec(mask).permute(0, 3, 1, 2))
    assert embed((3, 4), device="meta").shape == (8, 3, 4)
    for bad, options in ((9, {}), (8, {"scale": 2.0})):
        with pytest.raises(ValueError, match="SinusoidalEmbedding: dim"):
            pnn.SinusoidalEmbedding(bad, spec, **options)
    with pytest.raises(ValueError, match="name: expected one of"):
        pnn.SinusoidalEmbedding(8, "sinus")


def test_detr_module_is_detr():
    detr = outside.module("transformers.models.detr.modeling_detr")
    theirs = detr.DetrSinePositionEmbedding(16, normalize=True)
    ours = pnn.SinusoidalEmbedding(32, "detr", normalize=True, channels_first=True)
    mask = torch.zeros(2, 5, 7, dtype=torch.bool)
    mask[0, :5, :6] = True
    mask[1] = True
    expected = theirs((2, 3, 5, 7), "cpu", torch.float32, mask)
    shown = mask[:, None].expand(-1, 32, -1, -1)
    # Angles up to 2 pi: three roundings of the coordinate, ln(1e4) + 4 of the frequency.
    bound = (2 * math.pi * (math.log(1e4) + 7) + 4) * 2.0**-24
    torch.testing.assert_close(ours(mask)[shown], expected.view(2, 32, 5, 7)[shown],
                               rtol=0, atol=bound)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=torch_cases.dtype_id)
def test_timestep_embedding_is_that_of_diffusers(dtype, device):
    embeddings = outside.module("diffusers.models.embeddings")
    project = embeddings.Timesteps(64, flip_sin_to_cos=True, downscale_freq_shift=0)
    theirs = embeddings.TimestepEmbedding(64, 24).to(device, dtype)
    ours = pnn.TimestepEmbedding(24, 64).to(device, dtype)
    names = {"mlp.0": theirs.linear_1, "mlp.2": theirs.linear_2}
    ours.load_state_dict(
        {f"{n}.{k}": v for n, m in names.items() for k, v in m.state_dict().items()}
    )
    t = torch.tensor([0.0, 17.0, 999.0], device=device, requires_grad=True)
    expected = theirs(project(t).to(dtype))
    result = ours(t)
    # Sines of theirs are off by up to 999 * 22 * 2^-24 = 1.3e-3; weights of 64 inputs are below
    # 1/8 and sum such errors to 64 / 8 as much at worst, the second layer likewise with 24 of 1/5.
    error = 999 * 22 * 2.0**-24 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(result, expected, rtol=0.02, atol=error * 8)
    (grad,) = torch.autograd.grad((result.float() ** 2).sum(), t)
    assert grad.shape == t.shape
    assert grad.abs().min() > 0


# --- FourierFeatures


@pytest.mark.parametrize("layout", ["sin_cos", "cos_sin", "interleaved"])
@pytest.mark.parametrize("log", [False, True])
def test_fourier_features_written_out(layout, log, device):
    features = pnn.FourierFeatures(
        3, 10, std=4.0, layout=layout, log=log, amplitude=0.5
    ).to(device)  # fmt: skip
    x = torch.rand(2, 6, 3, device=device) + 0.01
    inputs = x.double().log() if log else x.double()
    angle = 2 * math.pi * inputs @ features.weight.double().T
    sin, cos = angle.sin() / 2, angle.cos() / 2
    expected = {
        "sin_cos": torch.cat([sin, cos], -1),
        "cos_sin": torch.cat([cos, sin], -1),
        "interleaved": torch.stack([sin, cos], -1).flatten(-2),
    }[layout]
    # The angle, up to pi, is rounded once to float32; the sine, up to 1, has an error of two units.
    bound = (math.pi + 2) * 2.0**-24
    result = features(x)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=bound)
    half = features(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert_same_bits(half, features(x.bfloat16().float()).bfloat16())


def test_gaussian_projection_of_diffusers(device):
    embeddings = outside.module("diffusers.models.embeddings")
    for log, flip in ((True, False), (False, True)):
        theirs = embeddings.GaussianFourierProjection(16, 4.0, log=log, flip_sin_to_cos=flip)
        theirs = theirs.to(device)
        ours = pnn.FourierFeatures(1, 32, log=log, layout="cos_sin" if flip else "sin_cos")
        ours.load_state_dict({"weight": theirs.weight.detach()[:, None]})
        levels = torch.tensor([0.02, 0.5, 1.0, 60.0], device=device)
        largest = (levels.log().abs() if log else levels).max() * theirs.weight.abs().max()
        bound = (2 * math.pi * largest.item() * 6 + 4) * 2.0**-24
        torch.testing.assert_close(
            ours.to(device)(levels[:, None]), theirs(levels), rtol=0, atol=bound
        )


def test_gradients_reach_inputs_and_learned_frequencies(device):
    features = pnn.FourierFeatures(2, 6, learned=True, layout="cos_sin", amplitude=6**-0.5)
    features = features.to(device).double()
    weight = features.weight.detach().clone().requires_grad_()
    x = random((3, 2), torch.float64, device, requires_grad=True)

    def run(x, weight):
        return torch.func.functional_call(features, {"weight": weight}, (x,))

    assert torch.autograd.gradcheck(run, (x, weight))
    assert torch.autograd.gradgradcheck(run, (x, weight))
    assert [name for name, _ in features.named_parameters()] == ["weight"]
    assert not list(pnn.FourierFeatures(2, 6).parameters())
    assert list(pnn.FourierFeatures(2, 6).state_dict()) == ["weight"]
    torch.manual_seed(0)
    many = pnn.FourierFeatures(4, 20000, std=3.0).weight
    # 40 000 draws: five standard deviations of their mean, and of their standard deviation.
    assert abs(many.mean().item()) < 5 * 3 / 200
    assert abs(many.std().item() - 3) < 5 * 3 / math.sqrt(80000)


def octaves(axes, bands, unit):
    """Features of NeRF's frequencies: 2^k times the unit in turns, of each axis."""
    features = pnn.FourierFeatures(axes, 2 * axes * bands)
    weight = unit * 2.0 ** torch.arange(bands)[:, None, None] * torch.eye(axes)
    features.load_state_dict({"weight": weight.flatten(0, 1)})
    return features


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 2.75, 4.0, 7.0])
def test_the_window_of_barf(alpha, device):
    """Equation 14, frequency by frequency; at the ends of a band it is 0 and 1 exactly."""
    bands, x = 4, random((5, 3), device=device) / 4
    result = octaves(3, bands, 0.5).to(device)(x, alpha=alpha)
    expected = []
    for k in range(bands):
        weight = 0.0 if alpha < k else 1.0
        if 0 <= alpha - k < 1:
            weight = (1 - math.cos((alpha - k) * math.pi)) / 2
        angle = 2**k * math.pi * x.double()
        expected += [(weight * angle.sin(), weight * angle.cos())]
    expected = torch.cat([*(sin for sin, _ in expected), *(cos for _, cos in expected)], -1)
    # The angle, its sine and the weight are rounded, and their product.
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=(math.pi + 4) * 2.0**-24)
    assert torch.equal(result == 0, expected == 0)
    tensor = torch.tensor(alpha, device=device)
    close = {"rtol": 0, "atol": 4 * 2.0**-24}  # alpha was rounded to float32
    features = octaves(3, bands, 0.5).to(device)
    torch.testing.assert_close(features(x, alpha=tensor), result, **close)
    assert torch.equal(features(x, alpha=float(bands)), features(x))


def test_a_window_of_a_frequency_of_0():
    features = pnn.FourierFeatures(1, 6)
    features.load_state_dict({"weight": torch.tensor([[0.0], [-3.0], [12.0]])})
    result = features(torch.tensor([[0.1]]), alpha=2.5)
    assert pnn.FourierFeatures(1, 0)(torch.ones(4, 1), torch.ones(4, 1), alpha=1.0).shape == (4, 0)
    assert result[0, 3] == 1  # always there
    window = result / features(torch.tensor([[0.1]]))
    torch.testing.assert_close(window[0, 4:], torch.tensor([1.0, 0.5]))


@pytest.mark.parametrize("full", [False, True])
def test_the_integrated_encoding_of_mip_nerf(full, device):
    """The mean over a normal distribution by quadrature, and equation 14 for diagonals."""
    features = octaves(2, 5, 0.5 / math.pi).to(device).double()
    rng = np.random.default_rng(0)
    mean = rng.standard_normal((4, 2))
    root = rng.standard_normal((4, 2, 2)) * 0.2
    covariance = root @ root.transpose(0, 2, 1)
    if not full:
        covariance *= np.eye(2)
    variance = covariance if full else covariance.diagonal(axis1=1, axis2=2)
    given = [torch.tensor(a, device=device) for a in (mean, variance)]
    result = features(*given).cpu().numpy()
    weight = 2 * math.pi * features.weight.cpu().numpy()
    points, shares = np.polynomial.hermite_e.hermegauss(120)
    angle = mean @ weight.T
    spread = np.sqrt(np.einsum("pi,nij,pj->np", weight, covariance, weight))
    turned = angle[..., None] + spread[..., None] * points
    shares = shares / shares.sum()
    expected = np.concatenate([np.sin(turned) @ shares, np.cos(turned) @ shares], -1)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-11)  # angles of up to 50
    if not full:
        factor = np.exp(-0.5 * np.tile(4.0 ** np.arange(5)[:, None] * variance[:, None], 1))
        factor = factor.reshape(4, 10)
        equation = np.concatenate([np.sin(angle) * factor, np.cos(angle) * factor], -1)
        # The frequencies in turns are rounded to float32.
        np.testing.assert_allclose(result, equation, rtol=0, atol=2.0**-20)
    x, v = (t.clone().requires_grad_() for t in given)
    if full:  # symmetric, as covariances are
        run = lambda x, v: features(x, v @ v.mT, alpha=2.5)  # noqa: E731
    else:
        run = lambda x, v: features(x, v, alpha=2.5)  # noqa: E731
    assert torch.autograd.gradcheck(run, (x, v))


def test_attenuation_of_other_dtypes_and_none():
    features = pnn.FourierFeatures(2, 16)
    x = random((5, 2))
    assert torch.equal(features(x, torch.zeros(5, 2)), features(x))
    variance = torch.rand(5, 2) / 8
    half = features(x.bfloat16(), variance.bfloat16())
    wide = features(x.bfloat16().float(), variance.bfloat16().float())
    assert_same_bits(half, wide.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(features(x, variance), features.eval()(x, variance))
    for options, text in (
        (
            {"variance": variance[:1]},
            r"variance: expected shape \[5, 2\], as x, or \[5, 2, 2\]",
        ),
        ({"alpha": torch.ones(2)}, r"alpha: expected shape \[\], got \[2\]"),
        ({"alpha": math.nan}, "alpha: expected a finite number"),
    ):
        with pytest.raises(ValueError, match=f"^FourierFeatures: {text}"):
            features(x, **options)
    with pytest.raises(ValueError, match="variance: expected None with log"):
        pnn.FourierFeatures(2, 16, log=True)(x.abs(), variance)


@pytest.mark.parametrize("learned", [False, True])
def test_the_phase_of_fourier_features_is_exact(learned, device):
    # Thousands of turns, as of Segment Anything's frequencies for points in pixels. In float32 they
    # are off by 2e-4 turns; the other tests have a few turns.
    features = pnn.FourierFeatures(2, 64, std=3.0, learned=learned).to(device)
    x = 2048 * torch.rand(50, 2, device=device)
    angle = 2 * math.pi * (x.double() @ features.weight.detach().double().T)
    expected = torch.cat([angle.sin(), angle.cos()], -1)
    # The angle, up to pi, is rounded to float32, and its sine has an error of two units. Turns of
    # up to 2^16 are off by 2^-37 in float64, which is far below that.
    bound = (math.pi + 2) * 2.0**-24 + 2.0**-33
    torch.testing.assert_close(features(x).double(), expected, rtol=0, atol=bound)


def test_autocast_does_not_round_the_phase(device):
    features = pnn.FourierFeatures(2, 16, std=30.0).to(device)
    x = torch.rand(5, 2, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        under = features(x)
    assert_same_bits(under, features(x))


def test_what_fourier_features_cannot_be():
    for options, match in (
        ({"in_features": 0, "dim": 8}, "in_features"),
        ({"in_features": 2, "dim": 7}, "dim"),
        ({"in_features": 2, "dim": 8, "std": 0.0}, "std"),
        ({"in_features": 2, "dim": 8, "layout": "sin"}, "layout"),
    ):
        with pytest.raises(ValueError, match=match):
            pnn.FourierFeatures(**options)
    with pytest.raises(ValueError, match=r"x: expected shape \[..., in_features = 2\]"):
        pnn.FourierFeatures(2, 8)(torch.ones(5, 3))


# --- All


MODULES = {
    "encoding": (
        lambda: pnn.SinusoidalPositionalEncoding(16, 0.0, learned_alpha=True, batch_first=False),
        lambda: random((5, 2, 16)),
    ),
    "embedding": (lambda: pnn.SinusoidalEmbedding(15, "fairseq", padding_idx=1, learned_scale=0.5),
                  lambda: torch.tensor([[2, 3, 1], [1, 2, 3]])),
    "timesteps": (lambda: pnn.TimestepEmbedding(8, 16), lambda: torch.tensor([0.5, 900.0])),
    "fourier": (lambda: pnn.FourierFeatures(2, 8, learned=True), lambda: random((5, 2))),
}  # fmt: skip


@pytest.mark.parametrize(("make", "given"), MODULES.values(), ids=MODULES)
def test_modules_compile_save_and_copy(make, given):
    module, x = make(), given()
    expected = module(x)
    for again in (copy.deepcopy(module), make()):
        file = io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        again.load_state_dict(torch.load(file))
        assert_same_bits(again(x).detach(), expected.detach())
    assert type(module).__name__ in repr(module)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(x).detach(), expected.detach())
    for result in (expected, compiled(x)):
        grads = torch.autograd.grad((result**3).sum(), list(module.parameters()))
        assert all(grad.abs().max() > 0 for grad in grads)
