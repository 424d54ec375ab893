"""Axial rotary whose axes have shares, bases and scalings of their own."""

from __future__ import annotations

import numpy as np
import pytest
from axes_cases import U, normal
from outside import module

import posenc_native as pn

DIMS = (16, 24, 40)
POSITIONS = np.stack([np.arange(9), 3 * np.arange(9) - 5, 400 - np.arange(9)])
RIFLEX = {"rope_type": "riflex", "k": 4, "L_test": 66}


def of_diffusers(dim, positions, theta=10000.0, **factors):
    """Cosines and sines of an axis, one column a pair, from angles in float64."""
    torch = module("torch")
    embeddings = module("diffusers.models.embeddings")
    tables = embeddings.get_1d_rotary_pos_embed(
        dim, torch.from_numpy(positions), theta, use_real=True, freqs_dtype=torch.float64, **factors
    )
    return [table[:, ::2].numpy() for table in tables]


def check_tables(rope, positions, theirs):
    """Ours are within 1.5 u and theirs within u / 2, plus the angle of float64."""
    for table, parts in zip(rope.tables(positions), zip(*theirs, strict=True), strict=True):
        np.testing.assert_allclose(table, np.concatenate(parts, -1), rtol=0, atol=2.5 * U)


@pytest.mark.parametrize("order", [None, (2, 0, 1)])
def test_unequal_axes_with_bases_and_factors_of_their_own(order):
    """The shares of FluxPosEmbed and HunyuanVideo; Lumina's ntk_factor and linear_factor."""
    bases, ntk, linear = (256.0, 10000.0, 5000.0), (1.0, 2.5, 7.0), (1.0, 1.0, 3.0)
    rope = pn.rotary.axial_rotary(
        96, axes_dim=DIMS, base=[b * f for b, f in zip(bases, ntk, strict=True)],
        scaling=[None, None, {"rope_type": "linear", "factor": 3.0}], axis_order=order,
        pairing="interleaved", rotary_start=8,
    )  # fmt: skip
    theirs = [
        of_diffusers(DIMS[a], POSITIONS[a], bases[a], ntk_factor=ntk[a], linear_factor=linear[a])
        for a in order or range(3)
    ]
    check_tables(rope, POSITIONS, theirs)
    assert (rope.rotary_start, rope.rotary_dim) == (8, 80)

    torch = module("torch")
    x = normal(1, 2, 9, 96)
    tables = [np.concatenate(parts, -1).repeat(2, -1) for parts in zip(*theirs, strict=True)]
    turned = module("diffusers.models.embeddings").apply_rotary_emb(
        torch.from_numpy(x[..., 8:88]), [torch.from_numpy(table) for table in tables]
    )
    # Two products and a sum, of tables that differ by 2.5 u.
    ours = rope.apply(x, POSITIONS)
    np.testing.assert_allclose(ours[..., 8:88], turned, rtol=0, atol=2 * 4 * U * np.abs(x).max())
    np.testing.assert_array_equal(np.delete(ours, range(8, 88), -1), np.delete(x, range(8, 88), -1))


def test_riflex_for_the_axis_of_time():
    """Zhao et al. 2025: pair k, from 1, makes 0.9 of a turn in L_test frames; others are kept."""
    plain = pn.rotary.axial_rotary(128, axes_dim=(16, 56, 56), base=256.0)
    longer = pn.rotary.axial_rotary(
        128, axes_dim=(16, 56, 56), base=256.0, scaling=(RIFLEX, None, None)
    )
    expected = plain.inv_freq.copy()
    assert expected[3] * 66 > 2 * np.pi  # it repeated
    expected[3] = 0.9 * 2 * np.pi / 66
    np.testing.assert_allclose(longer.inv_freq, expected, rtol=2**-52)
    np.testing.assert_array_equal(longer.axis_map, plain.axis_map)


def test_a_scaling_of_all_axes_is_that_of_each():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    rope = pn.rotary.axial_rotary(80, axes_dim=DIMS, scaling=yarn)
    each = [pn.rotary.rotary_frequencies(dim, scaling=yarn) for dim in DIMS]
    np.testing.assert_array_equal(rope.inv_freq, np.concatenate([row for row, _ in each]))
    assert rope.scale == each[0][1] != 1.0
    # A head whose axes share one spectrum is scaled as one head, before it is shared out.
    shared = pn.rotary.axial_rotary(80, spectrum="shared", scaling=yarn)
    whole, scale = pn.rotary.rotary_frequencies(80, scaling=yarn)
    np.testing.assert_array_equal(shared.inv_freq, np.concatenate([whole[::2], whole[1::2]]))
    assert shared.scale == scale
    # Angles of a block for each axis, and of both partners.
    tiled = pn.rotary.axial_rotary(80, axes_dim=DIMS, tiled=True, pairing="interleaved")
    assert tiled.first.axis_map.tolist() == np.repeat([0, 1, 2], np.array(DIMS) // 2).tolist()


def test_rising_frequencies():
    rope = pn.rotary.axial_rotary(24, spectrum="rising", base=(100.0, 7.0), freq_scale=np.pi / 2)
    for base, row in zip((100.0, 7.0), rope.inv_freq.reshape(2, 6), strict=True):
        np.testing.assert_allclose(row, np.pi / 2 * base ** np.linspace(0, 1, 6), rtol=1e-15)
    assert pn.rotary.axial_rotary(4, spectrum="rising").inv_freq.tolist() == [1.0, 1.0]


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
BAD = [
    (ValueError, "axes_dim: expected dims that add up to at most head_dim = 64, got .*128 in total",
     {"axes_dim": (16, 56, 56)}),
    (ValueError, "axes_dim", {"axes_dim": (16, 15)}),
    (ValueError, "axes_dim: expected an even int > 0 for each axis", {"axes_dim": (16, 0)}),
    (ValueError, "axes_dim: expected an even int > 0", {"axes_dim": ()}),
    (TypeError, "axes_dim: expected ints, one for each axis, got int", {"axes_dim": 16}),
    (TypeError, "axes_dim: expected an int, got float", {"axes_dim": (16, 8.0)}),
    (ValueError, "axes: expected 3 or none", {"axes_dim": (8, 8, 16), "axes": 2}),
    (ValueError, "rotary_dim: expected 32 or none", {"axes_dim": (8, 8, 16), "rotary_dim": 64}),
    (ValueError, "rotary_start", {"axes_dim": (8, 8, 16), "rotary_start": 40}),
    (ValueError, "order: expected 'sectioned' with unequal",
     {"axes_dim": (8, 16), "order": "interleaved"}),
    (ValueError, "pairing: expected 'interleaved', or 'half'",
     {"axes_dim": (8, 16), "pairing": "per_axis"}),
    (ValueError, "spectrum: expected 'per_axis'", {"axes_dim": (8, 16), "spectrum": "shared"}),
    (ValueError, "inv_freq: expected None", {"axes_dim": (8, 16), "inv_freq": [1.0] * 4}),
    (ValueError, "base: expected one value, or one for each of 2 axes, got 3 values",
     {"base": (1.0, 2.0, 3.0)}),
    (TypeError, "base", {"base": (1e4, "1")}),
    (ValueError, "scaling: expected one value, or one for each of 3",
     {"axes": 3, "scaling": [None]}),
    (TypeError, "scaling: expected a mapping, None, or", {"scaling": ["yarn", None]}),
    (ValueError, r"scaling: expected scalings with one attention factor.*; write the same",
     {"scaling": [YARN, None]}),
    (ValueError, "scaling: expected None with spectrum 'rising'",
     {"spectrum": "rising", "scaling": YARN}),
    (ValueError, "base, scaling: expected one base", {"spectrum": "shared", "base": (1e4, 1e3)}),
    (ValueError, r"scaling\['L_test'\]: expected more than 5.65", {"scaling": {
        "rope_type": "riflex", "k": 1, "L_test": 5}}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "match", "options"), BAD)
def test_bad_calls_say_what_to_write(error, match, options):
    with pytest.raises(error, match=match):
        pn.rotary.axial_rotary(64, **options)
