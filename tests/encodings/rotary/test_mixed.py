"""RoPE-Mixed: learned frequencies of both axes for every head, against timm.

With u = 2^-24: theirs adds two float32 products, each off by u of itself, and rounds the sum, so
that their angle is off by 2u (|x fx| + |y fy|); sine and cosine and the rotation as in
test_outside_oracles.py, 9u (|a| + |b|).
"""

from __future__ import annotations

import numpy as np
import pytest
from outside import module, timm_layers

import posenc_native as pn

U = 2.0**-24


@pytest.fixture
def torch():
    return module("torch")


@pytest.mark.parametrize(("head_dim", "num_heads"), [(8, 1), (64, 12)])
def test_first_frequencies(head_dim, num_heads, torch):
    theirs = timm_layers("pos_embed_sincos").init_random_2d_freqs
    for rotate in (False, True):
        torch.manual_seed(5)
        expected = theirs(head_dim, 1, num_heads, rotate=rotate)[:, 0]
        ours = pn.rotary.mixed_frequencies(
            head_dim, num_heads, rotate=rotate, generator=torch.Generator().manual_seed(5)
        )
        assert ours.dtype == torch.float32
        assert ours.shape == (2, num_heads, head_dim // 2)
        # Their angle of up to 2 pi and a quarter turn more is rounded three times; a power.
        assert (ours - expected).abs().max() <= (3 * 2.5 * np.pi + 4) * U
        from_numpy = pn.rotary.mixed_frequencies(
            head_dim, num_heads, rotate=rotate, dtype=np.float64, generator=np.random.default_rng(0)
        )
        assert from_numpy.dtype == np.float64
        # Two directions at right angles, of the same lengths in every head.
        first, second = np.split(from_numpy, 2, -1)
        lengths = 10.0 ** (-np.arange(head_dim // 4) / (head_dim // 4))
        for direction in (first, second):
            np.testing.assert_allclose(np.hypot(*direction), np.tile(lengths, (num_heads, 1)))
        np.testing.assert_allclose((first * second).sum(0), 0, atol=1e-15)
        again = pn.rotary.mixed_frequencies(
            head_dim, num_heads, rotate=rotate, dtype=np.float64, generator=np.random.default_rng(0)
        )
        np.testing.assert_array_equal(again, from_numpy)
        assert (np.ptp(from_numpy, axis=1).max() > 0.1) == (rotate and num_heads > 1)


@pytest.mark.parametrize("grid", [[3, 5], [7, 1]])
def test_rotation_of_timm(grid, torch):
    timm = timm_layers("pos_embed_sincos")
    torch.manual_seed(0)
    heads, head_dim, depth = 4, 16, 3
    mixed = timm.RotaryEmbeddingMixed(heads * head_dim, depth, heads)
    positions = torch.from_numpy(pn.positions.grid_positions(grid))[[1, 0]]  # width, height
    x = torch.randn(2, heads, positions.shape[1], head_dim)
    for block in range(depth):
        inv_freq = mixed.freqs[:, block].detach()
        theirs = timm.apply_rot_embed_cat(x, mixed.get_embed(grid)[block].detach())
        size = positions[:, None, :, None] * inv_freq[:, :, None].abs()  # [A, h, s, P]
        pairs = x.unflatten(-1, (-1, 2)).abs().sum(-1)
        bound = ((2 * U * size.sum(0) + 9 * U) * pairs).repeat_interleave(2, -1)
        for given in ((x, positions, inv_freq), (x.numpy(), positions.numpy(), inv_freq.numpy())):
            ours = pn.apply_rotary(*given, pairing="interleaved")
            assert type(ours) is type(given[0])
            assert (np.abs(np.asarray(ours) - theirs.numpy()) <= bound.numpy()).all()
        swapped = pn.apply_rotary(x, positions.flip(0), inv_freq, pairing="interleaved")
        assert (swapped - theirs).abs().max() > 0.1


def test_frequencies_learn_as_in_timm(torch):
    timm = timm_layers("pos_embed_sincos")
    torch.manual_seed(1)
    heads, head_dim, grid = 2, 8, [4, 3]
    mixed = timm.RotaryEmbeddingMixed(heads * head_dim, 1, heads)
    positions = torch.from_numpy(pn.positions.grid_positions(grid))[[1, 0]]
    x, weights = torch.randn(2, 2, heads, 12, head_dim).unbind()
    theirs = timm.apply_rot_embed_cat(x, mixed.get_embed(grid)[0])
    (expected,) = torch.autograd.grad((theirs * weights).sum(), mixed.freqs)
    inv_freq = mixed.freqs.detach()[:, 0].requires_grad_()
    ours = pn.apply_rotary(x, positions, inv_freq, pairing="interleaved")
    (gradient,) = torch.autograd.grad((ours * weights).sum(), inv_freq)
    # A sum over batch and tokens of position * weight * rotated x: each term is off by the angle's
    # error (of up to 3 + 2, twice 2u of it) and a dozen roundings, the sums by one a term.
    terms = (weights.abs().sum() * x.abs().max() * 2 * positions.max()).item()
    assert (gradient - expected[:, 0]).abs().max() <= (20 + 12 + 24) * U * terms
    assert gradient.abs().max() > 0.1
