"""Similarity: products of rows and of rotated vectors, the decay, and all pairs of positions."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines.plain import arrays as reference

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from plot_calls import LEARNED, LLAMA, YARN, title

pytestmark = pytest.mark.usefixtures("figures")


def curves(ax):
    return [line for line in ax.lines if not line.get_label().startswith("_")]


def apart(ax):
    return float(title(ax).split(" apart")[0].split()[-1])


@pytest.mark.parametrize("dim", [2, 128, 512])
def test_products_of_rows_depend_on_the_offset_alone(dim):
    """So all first positions have one line, and the title says how far they are apart."""
    ax = pn.plot.similarity(dim, 60)
    expected = np.cos(np.arange(-60, 61)[:, None] * pn.sinusoids.frequencies(dim)).sum(1)
    (line,) = curves(ax)
    # Each row is rounded to float32: 2 * dim products of numbers off by 6e-8.
    assert np.abs(line.get_ydata() - expected).max() < 2 * dim * 1.2e-7
    assert np.array_equal(line.get_xdata(), np.arange(-60, 61))
    assert ax.get_xlabel() == "offset: key - query, positions"
    rows = {p: pn.sinusoidal(np.arange(p - 60, p + 61), dim).astype(float)
            for p in (0, 100, 10**4, 10**6)}  # fmt: skip
    together = np.array([row @ row[60] for row in rows.values()])
    largest = np.ptp(together, 0).max()
    assert largest <= apart(ax) <= 10 * largest
    assert "less than 1e" in title(ax)
    assert "from positions 0, 100, 10k, 1M" in title(ax)


@pytest.mark.parametrize("rope", [pn.Rotary(128), LLAMA, pn.Rotary(64, rotary_dim=32)])
def test_products_of_rotated_vectors_depend_on_the_offset_alone(rope):
    rng = np.random.default_rng(5)
    q, k = rng.standard_normal((2, 7, rope.head_dim))
    steps = np.arange(-40, 41)
    moved = np.broadcast_to(k[:, None], (7, 81, rope.head_dim))
    turned = reference.apply_rotary(
        np.ascontiguousarray(moved), steps, rope.inv_freq, "hsd", rope.pairing, 0, None, 1.0, False,
        None,
    )  # fmt: skip
    expected = np.einsum("nd,nsd->s", q, turned) / 7
    for starts in ([3, 10**9], [3], [10**9]):
        ax = pn.plot.similarity(rope, 40, q=q, k=k, starts=starts)
        (line,) = curves(ax)  # nor is there a bound
        error = np.abs(line.get_ydata() - expected).max()
        assert error < 1e-5 * np.abs(q).max() ** 2 * rope.head_dim
        assert "mean of 7" in title(ax)
    both = pn.plot.similarity(rope, 40, q=q, k=k, starts=[3, 10**9])
    assert apart(both) < 1e-4


@pytest.mark.parametrize(
    "rope",
    [
        pn.Rotary(128),
        pn.Rotary(64, pairing="interleaved", base=500.0),
        pn.Rotary(64, rotary_dim=16, rotary_start=8),
        pn.Rotary(64, scaling=YARN),
    ],
    ids=["half", "interleaved", "partial", "scaled"],
)
def test_the_default_is_the_mean_over_all_queries(rope):
    """Of random directions, key equal to query: their mean product at each offset."""
    ax = pn.plot.similarity(rope, 30)
    mean, _ = curves(ax)
    q = np.random.default_rng(0).standard_normal((4000, rope.head_dim))
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    there = rope.apply(np.repeat(q[:, None], 31, 1), np.arange(31), layout="hsd")
    sampled = np.einsum("nsd,nd->ns", there, there[:, 0])
    error = sampled.std(0) / np.sqrt(len(q))
    shown = mean.get_ydata()[30:]
    # Ten standard errors: 31 offsets, of which one in 1e20 would be outside by chance.
    assert (np.abs(shown - sampled.mean(0)) <= 10 * error + 1e-6).all()
    assert shown[0] == pytest.approx(
        1 + (rope.scale**2 - 1) * rope.rotary_dim / rope.head_dim, rel=1e-6
    )


@pytest.mark.parametrize("base", [100.0, 10000.0, 500000.0])
def test_the_bound_is_that_of_roformer(base):
    """Su et al. 2021, section 3.4.3: the mean of |S_i|, drawn there from 0 to 250 positions.

    Divided by its value at 0, which its name says: so it is no bound of the curve beside it.
    """
    ax = pn.plot.similarity(pn.Rotary(128, base=base), 40)
    mean, bound = curves(ax)
    steps = np.arange(-40, 41)
    theta = base ** (-2 * np.arange(64) / 128)
    sums = [np.mean([abs(sum(np.exp(1j * m * theta[:i]))) for i in range(1, 65)]) for m in steps]
    assert np.allclose(bound.get_ydata(), np.array(sums) / sums[40], rtol=1e-12)
    assert "scaled to 1 at 0" in bound.get_label()
    assert sums[40] == 32.5
    assert (np.abs(mean.get_ydata()) <= np.array(sums) + 1e-6).all()  # before it is scaled


def test_the_long_term_decay_is_seen_by_default():
    ax = pn.plot.similarity(pn.Rotary(128))
    mean, bound = curves(ax)
    assert np.array_equal(mean.get_xdata(), np.arange(-250, 251))
    for line in (mean, bound):
        y = line.get_ydata()
        assert y[250] == pytest.approx(1.0, abs=1e-6)
        assert y[250] == y.max()
        means = [abs(part).mean() for part in np.split(y[251:], 5)]  # 50 positions each
        assert (np.diff(means) < 0).all()
        assert means[-1] < 0.6 * means[0]
        assert np.allclose(y, y[::-1], atol=1e-6)
    # Two lines that are seen to be two.
    assert (bound.get_ydata() < mean.get_ydata()).mean() > 0.9
    assert bound.get_linestyle() != mean.get_linestyle()
    assert bound.get_color() != mean.get_color()


@pytest.mark.parametrize("encoding", [128, pn.Rotary(128), LLAMA, LEARNED])
def test_the_y_axis_begins_at_zero_and_is_used(encoding):
    """At 0, where a product says nothing, or at the least number below."""
    ax = pn.plot.similarity(encoding, 60)
    values = np.concatenate([line.get_ydata() for line in curves(ax)])
    least, largest = min(np.nanmin(values), 0.0), np.nanmax(values)
    low, high = ax.get_ylim()
    assert low <= least
    assert high >= largest
    assert (largest - least) / (high - low) > 0.9


def test_products_of_a_learned_table_differ():
    ax = pn.plot.similarity(LEARNED, 100)
    lines = curves(ax)
    for line, start in zip(lines, (25, 50, 75), strict=True):
        y = line.get_ydata()
        assert line.get_label() == f"from {start}"
        for offset in (-20, 0, 24):
            assert y[100 + offset] == pytest.approx(LEARNED[start] @ LEARNED[start + offset])
        assert np.isnan(y[0])
    assert len({line.get_color() for line in lines}) == 3
    assert len({line.get_marker() for line in lines}) == 3
    assert apart(ax) > 10


def test_a_table_of_sinusoids_is_one_line_as_far_as_any_row_goes():
    ax = pn.plot.similarity(pn.sinusoidal(100, 32), 90, starts=[10, 90])
    (line,) = curves(ax)
    y = line.get_ydata()
    expected = np.cos(np.arange(-90, 91)[:, None] * pn.sinusoids.frequencies(32)).sum(1)
    assert np.isfinite(y).sum() == 90 + 90
    assert np.allclose(y[np.isfinite(y)], expected[np.isfinite(y)], atol=1e-4)


def test_starts_that_share_no_offset():
    ax = pn.plot.similarity(LEARNED[:2], 1, starts=[0, 1])
    assert "at most" in title(ax)  # offset 0 is shared
    assert title(pn.plot.similarity(8, 5, starts=[3])).endswith("from position 3")


def test_a_matrix_of_products():
    # With keys of their own it is not symmetric: rows are queries.
    q, k = np.random.default_rng(0).standard_normal((2, 3, 32))
    rope, places = pn.Rotary(32), np.arange(7, 20)
    ax = pn.plot.similarity_matrix(rope, places, q=q, k=k)
    turned = [
        rope.apply(np.repeat(x[:, None], 13, 1).astype("f"), places, layout="hsd") for x in (q, k)
    ]
    expected = np.einsum("hqd,hkd->qk", *turned) / 3
    np.testing.assert_allclose(ax.images[0].get_array(), expected, rtol=1e-5, atol=1e-5)
    assert ax.images[0].get_extent() == [6.5, 19.5, 19.5, 6.5]
    rows = pn.sinusoidal(9, 16).astype(float)
    shades = pn.plot.similarity_matrix(16, 9).images[0].get_array()
    np.testing.assert_allclose(shades, rows @ rows.T, atol=1e-6)


def test_a_matrix_has_the_numbers_of_the_curve():
    rope = pn.Rotary(32)
    (mean, _) = curves(pn.plot.similarity(rope, 8))
    shades = pn.plot.similarity_matrix(rope, 9).images[0]
    assert np.allclose(shades.get_array()[0], mean.get_ydata()[8:], atol=1e-6)
    low, high = shades.get_clim()
    assert low == -high
    assert high == pytest.approx(1.0, rel=1e-6)
