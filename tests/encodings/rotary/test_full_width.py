"""Rotations whose partners turn by unequal angles: the width of a head."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from axes_cases import blocks, joined, normal
from outside import module

import posenc_native as pn


@pytest.mark.parametrize("pairing", ["half", "interleaved", 4])
@pytest.mark.parametrize("start", [0, 3])
def test_full_width_formula(pairing, start):
    rng = np.random.default_rng(0)
    inv_freq, positions = rng.normal(size=8), rng.integers(-50, 50, (2, 3, 5))
    axis_map = rng.integers(0, 2, 8)
    x = rng.normal(size=(3, 5, 2, 12))
    rope = pn.rotary.FullWidthRotary.of_dims(
        12, inv_freq, axis_map=axis_map, pairing=pairing, rotary_start=start, scale=1.5
    )
    angle = (positions[axis_map].transpose(1, 2, 0) * inv_freq)[:, :, None]
    (a, b), (s, t) = blocks(x[..., start : start + 8], pairing), blocks(angle, pairing)
    expected = x.copy()
    expected[..., start : start + 8] = 1.5 * joined(
        a * np.cos(s) - b * np.sin(s), b * np.cos(t) + a * np.sin(t), pairing
    )
    # float64: angles of up to 50 * 3, rounded once.
    np.testing.assert_allclose(
        rope.apply(x, positions, layout="bshd"), expected, rtol=0, atol=1e-12
    )
    equal = pn.rotary.FullWidthRotary(rope.first, rope.first)
    np.testing.assert_array_equal(
        equal.apply(x, positions, layout="bshd"), rope.first.apply(x, positions, layout="bshd")
    )


@pytest.mark.parametrize("pairing", ["half", "interleaved", 4])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_inverse_of_full_width_is_the_transpose(pairing, kind):
    rng = np.random.default_rng(1)
    inv_freq, positions = rng.normal(size=8), rng.integers(-50, 50, 5)
    rope = pn.rotary.FullWidthRotary.of_dims(
        12, inv_freq, pairing=pairing, rotary_start=3, scale=1.5
    )
    x = rng.normal(size=(5, 2, 12))
    angle = (positions[:, None] * inv_freq)[:, None]
    (a, b), (s, t) = blocks(x[..., 3:11], pairing), blocks(angle, pairing)
    expected = x.copy()
    expected[..., 3:11] = 1.5 * joined(
        a * np.cos(s) + b * np.sin(t), b * np.cos(t) - a * np.sin(s), pairing
    )
    given = x.copy()
    if kind == "torch":
        torch = module("torch")
        given, positions = torch.from_numpy(given), torch.from_numpy(positions)
    result = rope.apply(given, positions, layout="thd", inverse=True)
    # float64: angles of up to 50 * 3, rounded once.
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)
    both = rope(given, given[:, :1], positions, layout="thd", inverse=True)
    np.testing.assert_array_equal(both[0], result)
    np.testing.assert_array_equal(both[1], result[:, :1])
    # <R x, y> = <x, R' y>, and for equal angles it undoes the rotation.
    y = rng.normal(size=x.shape)
    other = y if kind == "numpy" else torch.from_numpy(y)
    rotated = np.asarray(rope.apply(other, positions, layout="thd"))
    assert (rotated * x).sum() == pytest.approx((y * np.asarray(result)).sum(), rel=1e-12)
    alike = pn.Rotary(12)
    undone = pn.rotary.FullWidthRotary(alike, alike).apply(
        alike.apply(given, positions, layout="thd"), positions, layout="thd", inverse=True
    )
    np.testing.assert_allclose(undone, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_full_width_results_in_place(inverse, kind, dtype):
    rope = pn.rotary.vision_rotary("vjepa2", 12)
    x = normal(1, 2, 12, 12).astype(dtype)
    positions = pn.positions.grid_positions([2, 2, 3])
    if kind == "torch":
        torch = module("torch")
        x, positions = torch.from_numpy(x), torch.from_numpy(positions)
    copied = x.clone if kind == "torch" else x.copy
    expected = rope.apply(x, positions, inverse=inverse)
    assert expected.dtype == x.dtype
    out = copied()
    assert rope.apply(x, positions, inverse=inverse, out=out) is out
    np.testing.assert_array_equal(out, expected)
    own = copied()
    assert rope.apply(own, positions, inverse=inverse, out=own) is own
    np.testing.assert_array_equal(own, expected)
    q, k = copied(), copied()[:, :1]
    rotated = rope(q, k, positions, inverse=inverse, inplace=True)
    assert rotated[0] is q
    assert rotated[1] is k
    np.testing.assert_array_equal(q, expected)
    np.testing.assert_array_equal(k, expected[:, :1])


def test_full_width_gradients_and_compiling():
    torch = module("torch")
    rope = pn.rotary.vision_rotary("vjepa2", 12)
    positions = torch.from_numpy(pn.positions.grid_positions([2, 2, 3]))
    x = torch.from_numpy(normal(1, 2, 12, 12)).double().requires_grad_()
    for inverse in (False, True):
        options = {"inverse": inverse}
        assert torch.autograd.gradcheck(lambda x, o=options: rope.apply(x, positions, **o), x)
        compiled = torch.compile(
            lambda q, k, p, o=options: rope(q, k, p, **o), fullgraph=True, backend="eager"
        )
        q, k = x.detach().to(torch.bfloat16), x.detach()[:, :1].to(torch.bfloat16)
        expected = rope(q, k, positions, **options)
        for ours, other in zip(compiled(q, k, positions), expected, strict=True):
            assert ours.dtype == torch.bfloat16
            np.testing.assert_array_equal(ours.float(), other.float())


def test_full_width_rotary_is_a_value():
    rope = pn.rotary.vision_rotary("vjepa2", 24)
    assert rope == pn.rotary.vision_rotary("vjepa2", 24)
    assert rope != pn.rotary.vision_rotary("vjepa2", 24, base=50.0)
    assert pickle.loads(pickle.dumps(rope)) == rope
    assert hash(rope) == hash(pn.rotary.vision_rotary("vjepa2", 24))
    with pytest.raises(AttributeError):
        rope.first = rope.second
