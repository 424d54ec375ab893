"""The simple absolute encodings as functions: linear, normalized, learned, resampled, recurrent."""

from __future__ import annotations

import functools
import math

import numpy as np
import outside
import pytest

import posenc_native as pn

try:
    import torch
except ImportError:  # the tests that need it ask for it
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="torch")
if torch is not None:
    from posenc_native import nn as pnn

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")


U = 2.0**-24


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def tensor(values):
    return torch.from_numpy(np.asarray(values))


def same(array, result):
    """The bits of an array and of a tensor."""
    assert result.dtype == getattr(torch, array.dtype.name)
    np.testing.assert_array_equal(result.detach().numpy(), array)


# --- Linear


def test_linear_positions():
    far = np.array([[0, 1, -7], [2**24 + 1, 2**40 + 3, -(2**52)]])
    result = pn.absolute.linear_positions(far, dtype=np.float64)
    np.testing.assert_array_equal(result[..., 0], far)
    scale = [1.0, 0.125, -3.0]
    result = pn.absolute.linear_positions(far, 3, scale=scale)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, (far[..., None] * np.array(scale)).astype(np.float32))
    np.testing.assert_array_equal(
        pn.absolute.linear_positions(4, 2, scale=0.5)[:, 1], [0, 0.5, 1, 1.5]
    )
    np.testing.assert_array_equal(pn.absolute.linear_positions([0.25, 2]), [[0.25], [2]])
    assert pn.absolute.linear_positions(0).shape == (0, 1)
    assert pn.absolute.linear_positions(3, 0).shape == (3, 0)
    half = pn.absolute.linear_positions(np.array([2049]), dtype=np.float16)  # to even
    assert half.dtype == np.float16
    assert half[0, 0] == 2048


@needs_torch
@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_a_dtype_that_cannot_hold_a_position(engine):
    """They were inf, in silence; 65 519.9 is the last number that float16 does not round to inf."""
    xp = np if engine == "numpy" else pytest.importorskip("torch")
    expected = "positions: expected numbers within 65504 for this dtype, got 65520; write dtype=bf"
    linear, half = pn.absolute.linear_positions, {"dtype": xp.float16}
    assert float(linear([65519], **half)[0, 0]) == float(linear([65519.9], **half)[0, 0]) == 65504
    spec = pn.SinusoidalSpec(3, include_coordinates=True)
    for call in (lambda p: linear(p, **half), lambda p: linear(2 * p, scale=0.5, **half),
                 lambda p: pn.absolute.normalized_positions(p, 2, **half),
                 lambda p: spec(p, **half)):  # fmt: skip
        with pytest.raises(ValueError, match=expected):
            call(xp.asarray([0, 65520]))
    with pytest.raises(ValueError, match=r"numbers within 3.4e\+38 for this dtype, got -1e\+40"):
        linear(xp.asarray([1e20]), scale=-1e20, dtype=xp.float32)
    with pytest.raises(ValueError, match="k_len: expected numbers within 65504"):
        pn.relative.alibi_columns(8, 140_000, **half)
    assert math.isinf(float(linear(xp.asarray([math.inf]), **half)[0, 0]))  # as it came


def test_linear_positions_of_tensors():
    far = np.array([0, 3, 2**24 + 1])
    same(pn.absolute.linear_positions(far, 2, scale=[0.1, 3.0]),
         pn.absolute.linear_positions(tensor(far), 2, scale=[0.1, 3.0]))  # fmt: skip
    assert pn.absolute.linear_positions(3, device="cpu").shape == (3, 1)
    assert pn.absolute.linear_positions(3, dtype=torch.bfloat16).dtype == torch.bfloat16
    points = torch.tensor([0.0, 2.0, 5.0], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda p, s: pn.absolute.linear_positions(p, 2, scale=s, dtype=torch.float64),
        (points, scale),
    )


# --- Normalized


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.25, -3.0), (-1.0, 0.001)])
def test_normalized_positions(low, high):
    for count in (2, 3, 7, 1000):
        values = pn.absolute.normalized_positions(count, low=low, high=high, dtype=np.float64)
        expected = low + (high - low) * np.arange(count) / (count - 1)
        np.testing.assert_allclose(values[:, 0], expected, rtol=0, atol=8 * 2.0**-53)
        assert (values[0, 0], values[-1, 0]) == (low, high)  # exactly
    np.testing.assert_array_equal(pn.absolute.normalized_positions(1, low=low), [[np.float32(low)]])
    assert pn.absolute.normalized_positions(0, dim=3).shape == (0, 3)


def test_normalized_positions_of_lengths_and_masks():
    points = np.array([[0, 1, 2, 3], [5, 4, 3, 2], [0, 1, 2, 3]])
    result = pn.absolute.normalized_positions(points, np.array([4, 6, 1]), dtype=np.float64)[..., 0]
    np.testing.assert_allclose(
        result, [[0, 1 / 3, 2 / 3, 1], [1, 0.8, 0.6, 0.4], [0, 1, 2, 3]], rtol=2.0**-52
    )
    np.testing.assert_array_equal(
        pn.absolute.normalized_positions(4, 7), pn.absolute.normalized_positions(7)[:4]
    )
    np.testing.assert_array_equal(
        pn.absolute.normalized_positions(points, 4)[0], pn.absolute.normalized_positions(points)[0]
    )
    # Padding at the left, at the right, in between, everywhere.
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]])
    for given in (mask, mask.astype(bool), mask.astype(np.uint8)):
        result = pn.absolute.normalized_positions(mask=given, low=-1.0)[..., 0]
        expected = [[-1, -1, -1, 0, 1], [-1, 0, 1, -1, -1], [-1, -1, 0, -1, 1], [-1] * 5]
        np.testing.assert_array_equal(result, expected)


@needs_torch
def test_normalized_positions_of_tensors():
    points, length = np.array([[0, 1, 2], [4, 5, 6]]), np.array([3, 9])
    mask = np.array([[True, False, True], [True, True, True]])
    normalized = pn.absolute.normalized_positions
    same(normalized(points, length, low=-1, dim=2),
         normalized(tensor(points), tensor(length), low=-1, dim=2))  # fmt: skip
    same(normalized(mask=mask, high=7.3), normalized(mask=tensor(mask), high=7.3))
    floats = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    pn.absolute.normalized_positions(floats, 5, low=-1, dtype=torch.float64).sum().backward()
    np.testing.assert_array_equal(floats.grad, [0.5, 0.5])


# --- Learned


def test_learned_positions():
    table = normal(6, 3).astype(np.float32)
    np.testing.assert_array_equal(pn.absolute.learned_positions(table, 4), table[:4])
    np.testing.assert_array_equal(pn.absolute.learned_positions(table, 4, offset=2), table[2:])
    points = np.array([[0, 3], [-2, 1]], np.int8)
    np.testing.assert_array_equal(
        pn.absolute.learned_positions(table, points, offset=2), table[points + 2]
    )
    result = pn.absolute.learned_positions(table, 6)
    result[...] = 0
    assert table.all()
    wrong = [(7, 0, 6), (5, 2, 4), (np.array([6]), 0, 6), (np.array([1, -3]), 2, -3),
             (np.array([-1]), 0, -1)]  # fmt: skip
    for positions, offset, got in wrong:
        expected = f"expected positions in {-offset} .. {5 - offset}, of a table of 6 rows"
        with pytest.raises(ValueError, match=f"{expected}, got {got}"):
            pn.absolute.learned_positions(table, positions, offset=offset)
        if torch is not None:
            on_tensors = positions if isinstance(positions, int) else tensor(positions)
            with pytest.raises(ValueError, match=f"{expected}, got {got}"):
                pn.absolute.learned_positions(tensor(table), on_tensors, offset=offset)


@needs_torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_learned_positions_is_an_embedding(dtype):
    theirs = torch.nn.Embedding(9, 4, padding_idx=1, dtype=getattr(torch, dtype))
    table = theirs.weight.detach().clone().requires_grad_()
    for positions in (torch.tensor([[3, 3, -1], [0, 6, -2]], dtype=torch.int32), 5):
        rows = pn.absolute.learned_positions(table, positions, offset=2, padding_idx=1)
        indices = torch.arange(5) if isinstance(positions, int) else positions
        expected = theirs(indices + 2)
        assert torch.equal(rows, expected)
        weights = tensor(normal(*rows.shape)).to(rows.dtype)
        (actual,) = torch.autograd.grad(rows, table, weights)
        (other,) = torch.autograd.grad(expected, theirs.weight, weights)
        assert torch.equal(actual, other)
        assert not actual[1].any()


@needs_torch
def test_learned_encoding_as_bart_and_opt_have_it():
    outside.module("transformers")
    bart = outside.module("transformers.models.bart.modeling_bart").BartLearnedPositionalEmbedding
    opt = outside.module("transformers.models.opt.modeling_opt").OPTLearnedPositionalEmbedding
    x = tensor(normal(2, 6, 8)).float()
    for embedding in (bart(10, 8), opt(10, 8)):
        ours = pnn.LearnedPositionalEncoding(10, 8, 0.0, offset=2, padding_idx=1)
        ours.load_state_dict(embedding.state_dict())
        if isinstance(embedding, bart):
            assert torch.equal(ours(x), x + embedding(torch.zeros(2, 6)))
            decoded = embedding(torch.zeros(2, 1), past_key_values_length=6)
            assert torch.equal(ours(x[:, :1], torch.tensor([6])), x[:, :1] + decoded)
        else:
            mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
            positions = (mask.cumsum(-1) * mask) - 1  # padding is -1, row 1
            assert torch.equal(ours(x, positions), x + embedding(mask))


@needs_torch
def test_tables_begin_as_asked():
    def table(init, **options):
        torch.manual_seed(0)
        return pnn.LearnedPositionalEncoding(2000, 16, init=init, **options).weight.detach()

    # 32000 draws: the standard deviation is known to 1 / sqrt(64000) = 0.4 % of itself.
    assert table("normal").std().item() == pytest.approx(0.02, rel=0.02)
    assert table("normal", std=1.5).std().item() == pytest.approx(1.5, rel=0.02)
    assert table("truncated_normal").abs().max() <= 0.04
    # A normal distribution that is cut at 2 deviations.
    assert table("truncated_normal").std().item() == pytest.approx(0.02 * 0.8796, rel=0.02)
    uniform = table("uniform")
    assert 0 <= uniform.min() < 0.001
    assert 0.999 < uniform.max() < 1
    assert not table("zeros").any()
    waves = pnn.LearnedPositionalEncoding(50, 16, init="sinusoidal", offset=2, padding_idx=1)
    same(pn.sinusoidal(50, 16), waves.weight[2:])
    same(pn.sinusoidal(np.array([-2]), 16), waves.weight[:1])
    assert not waves.weight[1].any()
    waves.to_empty(device="cpu").reset_parameters()  # as after the meta device
    same(pn.sinusoidal(50, 16), waves.weight[2:])


# --- Resampled


@needs_torch
@pytest.mark.parametrize(
    ("old", "new"),
    [((7, 5), (14, 10)), ((7, 5), (3, 9)), ((14, 14), (16, 16)), ((13, 4), (5, 4)),
     ((24, 3), (7, 1)), ((1, 6), (3, 2)), ((4, 4), (4, 4)), ((40, 1), (11, 1)), ((9, 1), (64, 1))],
)  # fmt: skip
@pytest.mark.parametrize(
    ("interpolation", "antialias", "align_corners"),
    [("cubic", True, False), ("linear", True, False), ("cubic", False, False),
     ("linear", False, False), ("cubic", False, True), ("linear", False, True)],
)  # fmt: skip
def test_resampled_as_torch_interpolates(old, new, interpolation, antialias, align_corners):
    table = normal(math.prod(old), 3)
    options = {"interpolation": interpolation, "antialias": antialias,
               "align_corners": align_corners}  # fmt: skip
    ours = pn.absolute.resample_positions(table, new, old_size=old, **options)
    image = tensor(table).reshape(1, *old, 3).permute(0, 3, 1, 2)
    theirs = torch.nn.functional.interpolate(
        image, new, mode={"cubic": "bicubic", "linear": "bilinear"}[interpolation],
        antialias=antialias, align_corners=align_corners,
    )  # fmt: skip
    expected = theirs.permute(0, 2, 3, 1).reshape(-1, 3).numpy()
    # Both compute in float64; centers up to 64 are off by 64 * 2^-53, weights by a few times that.
    np.testing.assert_allclose(ours, expected, rtol=0, atol=64 * 16 * 2.0**-53)
    same(ours, pn.absolute.resample_positions(tensor(table), new, old_size=old, **options))
    if old[1] == 1 and new[1] == 1:  # a length
        np.testing.assert_array_equal(
            pn.absolute.resample_positions(table, new[0], **options), ours
        )


@needs_torch
@pytest.mark.parametrize("align_corners", [False, True])
def test_resampled_in_one_and_three_dimensions(align_corners):
    options = {"interpolation": "linear", "antialias": False, "align_corners": align_corners}
    table = normal(30, 4)
    theirs = torch.nn.functional.interpolate(
        tensor(table).T[None], 47, mode="linear", align_corners=align_corners
    )
    np.testing.assert_allclose(
        pn.absolute.resample_positions(table, 47, **options), theirs[0].T, rtol=0, atol=1e-12
    )
    theirs = torch.nn.functional.interpolate(
        tensor(table).T.reshape(1, 4, 2, 5, 3), (3, 4, 6), mode="trilinear",
        align_corners=align_corners,
    )  # fmt: skip
    np.testing.assert_allclose(
        pn.absolute.resample_positions(table, (3, 4, 6), old_size=(2, 5, 3), **options),
        theirs.reshape(4, -1).T, rtol=0, atol=1e-12,
    )  # fmt: skip


@needs_torch
@pytest.mark.parametrize("new", [(16, 16), (7, 20), (14, 14)])
@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resampled_as_timm_does(new, prefix, dtype):
    timm = outside.timm_layers("pos_embed")
    table = tensor(normal(1, prefix + 14 * 14, 12)).to(getattr(torch, dtype))
    theirs = timm.resample_abs_pos_embed(table, list(new), num_prefix_tokens=prefix)
    ours = pn.absolute.resample_positions(table, new, prefix=prefix)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours[:, :prefix], theirs[:, :prefix])
    # Their weights are of float32: centers of up to 14 off by 14 u, weights by 1.5 times that at
    # most, four taps on each of two axes; sums of values of up to 4; and one rounding to bfloat16.
    bound = 4 * (8 * 14 * 1.5 * U + 32 * U) + (2.0**-8 * 4 if dtype == "bfloat16" else 0)
    assert (ours.double() - theirs.double()).abs().max() <= bound


def dinov2(pos_embed, new, offset, antialias):
    """interpolate_pos_encoding of facebookresearch/dinov2, models/vision_transformer.py."""
    if pos_embed.shape[1] - 1 == math.prod(new) and new[0] == new[1]:
        return pos_embed
    class_pos_embed, patch_pos_embed = pos_embed[:, :1], pos_embed[:, 1:]
    dim, m = pos_embed.shape[-1], int(math.sqrt(pos_embed.shape[1] - 1))
    if offset:
        size = {"scale_factor": tuple(float(n + offset) / m for n in new)}
    else:
        size = {"size": new}
    patch_pos_embed = torch.nn.functional.interpolate(
        patch_pos_embed.reshape(1, m, m, dim).permute(0, 3, 1, 2),
        mode="bicubic", antialias=antialias, **size,
    )  # fmt: skip
    assert tuple(patch_pos_embed.shape[-2:]) == new
    patches = patch_pos_embed.permute(0, 2, 3, 1).reshape(1, -1, dim)
    return torch.cat((class_pos_embed, patches), dim=1)


@needs_torch
@pytest.mark.parametrize("new", [(16, 16), (37, 37), (16, 20), (9, 37), (8, 64), (50, 5), (64, 41)])
@pytest.mark.parametrize("side", [16, 37])
@pytest.mark.parametrize(("offset", "antialias"), [(0.1, False), (0.0, True), (0.1, True)])
def test_resampled_as_dinov2_does(new, side, offset, antialias):
    """The scale (n + 0.1) / N: what other options make is off by up to a tenth of a patch.

    Also an axis of unchanged length moves then, but not a table of unchanged sizes.
    """
    if offset and antialias and side in new and new != (side, side):
        return  # torch leaves an axis of unchanged length out then; no released model does so
    table = tensor(normal(1, 1 + side * side, 3))
    theirs = dinov2(table, new, offset, antialias)
    options = {"prefix": 1, "antialias": antialias, "interpolate_offset": offset}
    ours = pn.absolute.resample_positions(table, new, **options)
    # Both compute in float64; centers up to 64 are off by 64 * 2^-53, weights by a few times that.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=64 * 16 * 2.0**-53)
    same(pn.absolute.resample_positions(table.numpy(), new, **options), ours)
    if offset and new != (side, side):
        plain = pn.absolute.resample_positions(table, new, prefix=1, antialias=antialias)
        assert (plain - ours).abs().max() > 1e-3


# Windows of trained and of new models, and both sizes of an axis as before.
WINDOWS = [((14, 14), (24, 24)), ((7, 7), (12, 16)), ((14, 14), (7, 7)), ((5, 7), (9, 7)),
           ((3, 3), (40, 40)), ((6, 6), (6, 6))]  # fmt: skip


def distances(window):
    return [2 * size - 1 for size in window]


@needs_torch
@pytest.mark.parametrize(("old", "new"), [*WINDOWS, ((1, 2), (3, 2)), ((2, 1), (2, 4))])
@pytest.mark.parametrize("suffix", [0, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple sequence")
def test_biases_resampled_as_timm_does(old, new, suffix, dtype):
    """Distances in a geometric progression, and rows of a class token at the end.

    With prefix=3 for these rows all others were off by three places.
    """
    timm = outside.timm_layers("pos_embed_rel")
    table = tensor(normal(math.prod(distances(old)) + suffix, 4)).to(getattr(torch, dtype))
    shape = (math.prod(distances(new)) + suffix, 4)
    theirs = timm.resize_rel_pos_bias_table(table, new, shape, old_window_size=old)
    ours = pn.absolute.resample_positions(
        table, distances(new), old_size=distances(old), suffix=suffix, interpolation="linear",
        spacing="geometric",
    )  # fmt: skip
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours[len(ours) - suffix :], table[len(table) - suffix :])
    # Their distances are of float32: up to 40 off by 40 u, between values 8 apart; a rounding.
    bound = 8 * (2 * 40 * U + 16 * U) + (2.0**-8 * 4 if dtype == "bfloat16" else 0)
    assert (ours.double() - theirs.double()).abs().max() <= bound


def beit_points(src, dst):
    """microsoft/unilm, beit/run_class_finetuning.py."""

    def geometric_progression(a, r, n):
        return a * (1.0 - r**n) / (1.0 - r)

    left, right = 1.01, 1.5
    while right - left > 1e-6:
        q = (left + right) / 2.0
        if geometric_progression(1, q, src // 2) > dst // 2:
            right = q
        else:
            left = q
    dis, cur = [], 1
    for i in range(src // 2):
        dis.append(cur)
        cur += q ** (i + 1)
    t = dst // 2.0
    return [-x for x in reversed(dis)] + [0] + dis, np.arange(-t, t + 0.1, 1.0)


@pytest.mark.parametrize(("old", "new"), WINDOWS)
def test_biases_resampled_as_beit_does(old, new):
    """The spline of BEiT's own code; RectBivariateSpline is what SciPy's interp2d was on a grid."""
    interpolate = pytest.importorskip("scipy.interpolate", reason="the spline of BEiT's code")
    old, new = distances(old), distances(new)
    table = normal(math.prod(old) + 3, 2)
    ours = pn.absolute.resample_positions(table, new, old_size=old, suffix=3, spacing="geometric")
    np.testing.assert_array_equal(ours[-3:], table[-3:])
    if old == new:
        np.testing.assert_array_equal(ours, table)
        return
    (y, dy), (x, dx) = (beit_points(*lengths) for lengths in zip(old, new, strict=True))
    for column in range(2):
        values = table[:-3, column].reshape(old)
        theirs = interpolate.RectBivariateSpline(y, x, values, s=0)(dy, dx)
        # Both solve in float64, with a condition below 100 for these points.
        np.testing.assert_allclose(ours[:-3, column], theirs.ravel(), rtol=0, atol=1e4 * 2.0**-53)
    if torch is not None:
        options = {"old_size": old, "suffix": 3, "spacing": "geometric"}
        same(ours, pn.absolute.resample_positions(tensor(table), new, **options))


def test_rows_at_the_end_of_a_table_stay():
    table = normal(2 + 9 + 3, 2)
    ours = pn.absolute.resample_positions(table, (5, 4), prefix=2, suffix=3)
    np.testing.assert_array_equal(ours[:2], table[:2])
    np.testing.assert_array_equal(ours[-3:], table[-3:])
    np.testing.assert_array_equal(ours[2:-3], pn.absolute.resample_positions(table[2:-3], (5, 4)))


def test_what_stays_when_a_table_is_resampled():
    constant = np.full((2, 12, 3), 0.7)
    for interpolation in ("linear", "cubic"):
        for antialias in (True, False):
            result = pn.absolute.resample_positions(
                constant, (7, 2), old_size=(3, 4), interpolation=interpolation, antialias=antialias
            )
            assert result.shape == (2, 14, 3)
            np.testing.assert_allclose(result, 0.7, rtol=32 * 2.0**-53)
    line = np.linspace(3, 4, 11)[:, None]
    longer = pn.absolute.resample_positions(line, 101, antialias=False, align_corners=True,
                                   interpolation="linear")  # fmt: skip
    np.testing.assert_allclose(longer[:, 0], np.linspace(3, 4, 101), rtol=1e-14)
    table = normal(9, 2).astype(np.float32)
    np.testing.assert_array_equal(pn.absolute.resample_positions(table, 9), table)
    np.testing.assert_array_equal(pn.absolute.resample_positions(table, (3, 3)), table)


@needs_torch
def test_gradients_of_resampling():
    table = tensor(normal(1 + 6, 2)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda t: pn.absolute.resample_positions(t, (3, 4), old_size=(3, 2), prefix=1), table
    )
    # Fewer rows than before, rows that none reads, and rows that all read: the transposed taps.
    for options in ({}, {"antialias": False}):
        for old, new in ((6, 2), (1, 3)):
            table = tensor(normal(old, 2)).requires_grad_()
            function = functools.partial(pn.absolute.resample_positions, size=new, **options)
            assert torch.autograd.gradcheck(function, table)
            assert torch.autograd.gradgradcheck(function, table)
            # torch.func takes another way, through operations that torch knows.
            (eager,) = torch.autograd.grad(function(table).square().sum(), table)
            traced = torch.func.grad(lambda t, f=function: f(t).square().sum())(table.detach())
            torch.testing.assert_close(eager, traced, rtol=0, atol=64 * 2.0**-53)


@needs_torch
@pytest.mark.parametrize(
    ("old", "new", "width"),
    [((5, 3), (9, 7), 2**15), ((1, 40), (1, 90), 2**10), ((8, 2), (8, 3), 3)],
)
def test_tables_larger_than_a_part(old, new, width):
    # One row in a part, some rows and a rest, several grids in a part; older tables fit in one.
    table = normal(2, math.prod(old), width).astype(np.float32)
    ours = pn.absolute.resample_positions(table, new, old_size=old)
    image = tensor(table).double().reshape(2, *old, width).movedim(-1, 1)
    theirs = torch.nn.functional.interpolate(image, new, mode="bicubic", antialias=True)
    # Weights, products and sums of float32 on two axes: 16 roundings of values of up to 8.
    expected = theirs.movedim(1, -1).flatten(1, 2)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=0, atol=16 * 8 * U)
    same(ours, pn.absolute.resample_positions(tensor(table), new, old_size=old))
    # The bits of the sum of whole tables, which torch.func takes.
    mapped = torch.func.vmap(lambda t: pn.absolute.resample_positions(t, new, old_size=old))
    same(ours, mapped(tensor(table)))


@needs_torch
def test_resample_positions_compiles():
    """It stopped at a list of weights. A graph has the weights of its sizes, with any options."""

    def call(table, rows, offset):
        sizes = {"size": (rows, 9), "old_size": (5, table.shape[0] // 5)}
        options = (
            {}, {"interpolation": "linear", "antialias": False}, {"spacing": "geometric"},
            {"antialias": False, "interpolate_offset": offset},
        )  # fmt: skip
        return torch.stack([pn.absolute.resample_positions(table, **sizes, **o) for o in options])

    compiled = torch.compile(call, fullgraph=True, backend="eager", dynamic=True)
    for columns, rows, offset in ((7, 7, 0.1), (9, 11, 0.25)):
        table = tensor(normal(5 * columns, 3))
        assert torch.equal(compiled(table, rows, offset), call(table, rows, offset))


# --- Recurrent


def gru_parameters(width=5, dtype=np.float64):
    shapes = ((width,), (3 * width, width), (3 * width,), (3 * width,))
    return [normal(*shape, seed=i).astype(dtype) * 0.5 for i, shape in enumerate(shapes)]


@needs_torch
def test_recurrent_positions_are_those_of_torchs_gru():
    parameters = gru_parameters()
    state, weight, bias_ih, bias_hh = map(tensor, parameters)
    module = torch.nn.GRU(1, 5, dtype=torch.float64)
    with torch.no_grad():
        for parameter, value in zip(
            module.parameters(), (torch.randn(15, 1), weight, bias_ih, bias_hh), strict=True
        ):
            parameter.copy_(value)
        expected, last = module(torch.zeros(40, 1, dtype=torch.float64), state[None])
    ours = pn.absolute.recurrent_positions(40, *parameters, dtype=np.float64)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(ours[-1], ours[-1:].reshape(5))
    result = pn.absolute.recurrent_positions(
        40, state, weight, bias_ih, bias_hh, dtype=torch.float64
    )
    assert torch.equal(result, expected)
    assert torch.equal(result[-1], last[0])
    single = pn.absolute.recurrent_positions(40, state, weight, bias_ih, bias_hh)
    assert single.dtype == torch.float32
    # 40 steps, each a contraction or nearly: float32's rounding, some times over.
    np.testing.assert_allclose(single, ours, rtol=0, atol=100 * U)


def test_recurrent_positions_go_on_from_a_state():
    state, *weights = gru_parameters()
    whole = pn.absolute.recurrent_positions(20, state, *weights, dtype=np.float64)
    first = pn.absolute.recurrent_positions(13, state, *weights, dtype=np.float64)
    rest = pn.absolute.recurrent_positions(7, first[-1], *weights, dtype=np.float64)
    np.testing.assert_array_equal(np.concatenate([first, rest]), whole)
    assert np.abs(np.diff(whole, axis=0)).max(1).min() > 1e-6  # no two alike
    assert pn.absolute.recurrent_positions(0, state, *weights).shape == (0, 5)
    if torch is None:
        return
    tensors = list(map(tensor, weights))
    whole = pn.absolute.recurrent_positions(20, tensor(state), *tensors)
    first = pn.absolute.recurrent_positions(13, tensor(state), *tensors)
    steps = []
    for _ in range(7):
        steps.append(pn.absolute.recurrent_positions(1, (steps or [first])[-1][-1], *tensors))
    # Steps of one are summed by other code than steps of many.
    torch.testing.assert_close(torch.cat([first, *steps]), whole, rtol=0, atol=100 * U)


@needs_torch
def test_gradients_of_recurrent_positions():
    parameters = [tensor(p).requires_grad_() for p in gru_parameters(3)]
    assert torch.autograd.gradcheck(
        lambda *p: pn.absolute.recurrent_positions(4, *p, dtype=torch.float64), parameters
    )
    # Compiled, the backward is an operator of its own.
    compiled = torch.compile(
        lambda *p: pn.absolute.recurrent_positions(4, *p, dtype=torch.float64), fullgraph=True,
        backend="aot_eager",
    )  # fmt: skip
    weights = tensor(normal(4, 3))
    assert torch.equal(
        compiled(*parameters), pn.absolute.recurrent_positions(4, *parameters, dtype=torch.float64)
    )
    expected = torch.autograd.grad(
        pn.absolute.recurrent_positions(4, *parameters, dtype=torch.float64), parameters, weights
    )
    actual = torch.autograd.grad(compiled(*parameters), parameters, weights)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)
    torch._dynamo.reset()


# --- Combined


@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (2, 1, 5, 4), (2, 3, 5, 4), (5, 1)])
def test_combine(shape):
    x, encoding = normal(2, 3, 5, 4), normal(*shape, seed=1)
    np.testing.assert_array_equal(pn.absolute.combine(x, encoding), x + encoding)
    np.testing.assert_array_equal(pn.absolute.combine(x, encoding, x_scale=3.0), x * 3 + encoding)
    np.testing.assert_array_equal(pn.absolute.combine(x, encoding, how="multiply"), x * encoding)
    both = pn.absolute.combine(x, encoding, how="concatenate", x_scale=2.0)
    np.testing.assert_array_equal(both[..., :4], x * 2)
    np.testing.assert_array_equal(both[..., 4:], np.broadcast_to(encoding, (2, 3, 5, shape[-1])))
    if torch is not None:
        for how in ("add", "multiply", "concatenate"):
            same(pn.absolute.combine(x, encoding, how=how),
                 pn.absolute.combine(tensor(x), tensor(encoding), how=how))  # fmt: skip


@needs_torch
def test_combine_rounds_once():
    x, encoding = (tensor(normal(50, 8, seed=i)).bfloat16() for i in (0, 1))
    wide = encoding.float() + 2.0**-12
    for how, exact in (("add", x.float() * 1.7 + wide), ("multiply", x.float() * 1.7 * wide)):
        result = pn.absolute.combine(x, wide, how=how, x_scale=1.7)
        assert torch.equal(result, exact.bfloat16())
        assert not torch.equal(result, pn.absolute.combine(x, encoding, how=how, x_scale=1.7))
    mixed = pn.absolute.combine(tensor(normal(5, 2)), np.zeros((5, 2), np.float32))
    assert mixed.dtype == torch.float64


@needs_torch
@pytest.mark.parametrize("how", ["add", "multiply", "concatenate"])
def test_gradients_of_combine(how):
    x = tensor(normal(2, 3, 4)).requires_grad_()
    encoding = tensor(normal(3, 4, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, e: pn.absolute.combine(x, e, how=how, x_scale=1.5), (x, encoding)
    )


# --- Errors

TABLE = normal(12, 4)
GRU = gru_parameters()


@pytest.mark.parametrize(
    ("kind", "match", "call"),
    [
        (TypeError, "positions: .*padded", lambda: pn.absolute.linear_positions(np.ones(3, bool))),
        (ValueError, "dim: expected an int in", lambda: pn.absolute.linear_positions(3, -1)),
        (ValueError, r"scale: expected shape \[2\], got \[3\]",
         lambda: pn.absolute.linear_positions(3, 2, scale=[1.0, 2.0, 3.0])),
        (ValueError, "scale: expected a finite number",
         lambda: pn.absolute.linear_positions(3, scale=math.nan)),
        (TypeError, "dtype", lambda: pn.absolute.linear_positions(3, dtype=np.int32)),
        (ValueError, "mask: expected positions", lambda: pn.absolute.normalized_positions()),
        (ValueError, "mask: expected positions",
         lambda: pn.absolute.normalized_positions(3, mask=np.ones(3, bool))),
        (ValueError, "mask: expected positions",
         lambda: pn.absolute.normalized_positions(length=3, mask=np.ones(3, bool))),
        (
            TypeError,
            "mask: expected a dtype",
            lambda: pn.absolute.normalized_positions(mask=np.ones(3)),
        ),
        (ValueError, r"length: expected shape \[2\], got \[3\]",
         lambda: pn.absolute.normalized_positions(np.ones((2, 3)), np.array([1, 2, 3]))),
        (
            ValueError,
            "positions: expected shape",
            lambda: pn.absolute.normalized_positions(np.array(3)),
        ),
        (TypeError, "table: expected a dtype",
         lambda: pn.absolute.learned_positions(np.eye(3, dtype=int), 2)),
        (
            ValueError,
            "table: expected two axes",
            lambda: pn.absolute.learned_positions(np.ones(3), 2),
        ),
        (TypeError, "positions: expected a dtype",
         lambda: pn.absolute.learned_positions(TABLE, np.array([0.5]))),
        (ValueError, "offset", lambda: pn.absolute.learned_positions(TABLE, 2, offset=-1)),
        (
            TypeError,
            "table: expected a NumPy array or",
            lambda: pn.absolute.resample_positions([[1.0]], 2),
        ),
        (
            ValueError,
            "table: expected shape",
            lambda: pn.absolute.resample_positions(np.ones(4), 2),
        ),
        (ValueError, "interpolation: expected one of linear, cubic",
         lambda: pn.absolute.resample_positions(TABLE, 3, interpolation="bicubic")),
        (ValueError, "align_corners: expected False with antialias",
         lambda: pn.absolute.resample_positions(TABLE, 3, align_corners=True)),
        (ValueError, "old_size: expected sizes, since 12 rows",
         lambda: pn.absolute.resample_positions(TABLE, (3, 3))),
        (ValueError, "old_size: expected 2 sizes, as many as size has, of a grid of 11 rows",
         lambda: pn.absolute.resample_positions(TABLE, (3, 3), old_size=(3, 4), prefix=1)),
        (
            ValueError,
            "size: expected sizes of at least 1",
            lambda: pn.absolute.resample_positions(TABLE, 0),
        ),
        (ValueError, "old_size", lambda: pn.absolute.resample_positions(TABLE, 3, prefix=12)),
        (ValueError, "prefix", lambda: pn.absolute.resample_positions(TABLE, 3, prefix=13)),
        (ValueError, r"prefix \+ suffix: expected at most the 12 rows of table, got 13",
         lambda: pn.absolute.resample_positions(TABLE, 3, prefix=6, suffix=7)),
        (ValueError, "interpolate_offset: expected a number >= 0 and < 1, got 1.5",
         lambda: pn.absolute.resample_positions(TABLE, 3, interpolate_offset=1.5)),
        (ValueError, "interpolate_offset: expected 0 with align_corners",
         lambda: pn.absolute.resample_positions(
             TABLE, 3, interpolate_offset=0.1, align_corners=True, antialias=False)),
        (ValueError, "spacing: expected one of even, geometric",
         lambda: pn.absolute.resample_positions(TABLE, 3, spacing="log")),
        (ValueError, "interpolate_offset: expected 0 with geometric spacing, got 0.1",
         lambda: pn.absolute.resample_positions(
             TABLE, 3, spacing="geometric", interpolate_offset=0.1)),
        (ValueError, "align_corners: expected False with geometric spacing, got True",
         lambda: pn.absolute.resample_positions(
             TABLE, 3, spacing="geometric", align_corners=True, antialias=False)),
        (ValueError, r"old_size: expected odd sizes, 2w - 1 distances .* got \[12\]",
         lambda: pn.absolute.resample_positions(TABLE, 3, spacing="geometric")),
        (ValueError, r"size: expected odd sizes, .* got \[4, 3\]",
         lambda: pn.absolute.resample_positions(
             TABLE, (4, 3), prefix=3, spacing="geometric")),
        (ValueError, r"at least 5 for a cubic spline, got \[3, 3\]; interpolation='linear'",
         lambda: pn.absolute.resample_positions(
             TABLE, (5, 3), prefix=3, spacing="geometric")),
        (ValueError, r"weight: expected shape \[15, 5\]",
         lambda: pn.absolute.recurrent_positions(3, GRU[0], GRU[1].T, GRU[2], GRU[3])),
        (ValueError, r"bias_hh: expected shape \[15\]",
         lambda: pn.absolute.recurrent_positions(3, *GRU[:3], GRU[3][1:])),
        (ValueError, "count", lambda: pn.absolute.recurrent_positions(-1, *GRU)),
        (TypeError, "x: expected a NumPy array or a torch tensor",
         lambda: pn.absolute.combine([[1.0]], TABLE)),
        (
            TypeError,
            "x: expected a dtype",
            lambda: pn.absolute.combine(np.ones((12, 4), int), TABLE),
        ),
        (ValueError, "how: expected one of add, multiply, concatenate",
         lambda: pn.absolute.combine(TABLE, TABLE, how="sum")),
        (ValueError, r"encoding: expected shape \[..., s, d or 1\] for x",
         lambda: pn.absolute.combine(TABLE, TABLE[:, :2])),
        (ValueError, "encoding: expected shape", lambda: pn.absolute.combine(TABLE, TABLE[:1])),
        (ValueError, "encoding: expected shape", lambda: pn.absolute.combine(TABLE, TABLE[0])),
        (ValueError, "encoding: expected shape", lambda: pn.absolute.combine(TABLE, TABLE[None])),
        (ValueError, "encoding: expected shape",
         lambda: pn.absolute.combine(np.ones((3, 12, 4)), np.ones((2, 12, 4)))),
        (ValueError, "normalized_positions: length: expected an int > 0 if .* got 0",
         lambda: pn.absolute.normalized_positions(3, 0)),
        (ValueError, "normalized_positions: length: expected ints >= 0, got -2",
         lambda: pn.absolute.normalized_positions(np.zeros((2, 3)), np.array([3, -2]))),
        (ValueError, "learned_positions: padding_idx: expected a row in -4 .. 3, .* got 9",
         lambda: pn.absolute.learned_positions(np.ones((4, 2)), 3, padding_idx=9)),
        (TypeError, "learned_positions: padding_idx: expected an int or None",
         lambda: pn.absolute.learned_positions(np.ones((4, 2)), 3, padding_idx=1.0)),
        (ValueError, "resample_positions: prefix: expected at most the 6 rows of table, got 7",
         lambda: pn.absolute.resample_positions(np.ones((6, 2)), 3, prefix=7)),
    ],
)  # fmt: skip
def test_errors(kind, match, call):
    with pytest.raises(kind, match=match):
        call()
