"""Similarity curves: products of rows and of rotated vectors."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines import reference

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from plot_calls import LEARNED, LLAMA, title

pytestmark = pytest.mark.usefixtures("figures")


def shared(ax, count):
    return np.array([line.get_ydata() for line in ax.lines[:count]])


@pytest.mark.parametrize("dim", [2, 128, 512])
def test_products_of_rows_depend_on_the_offset_alone(dim):
    ax = pn.plot.similarity(dim, 60)
    curves = shared(ax, 4)
    expected = np.cos(np.arange(-60, 61)[:, None] * pn.frequencies(dim)).sum(1)
    # Each row is rounded to float32: 2 * dim products of numbers off by 6e-8.
    assert np.abs(curves - expected).max() < 2 * dim * 1.2e-7
    assert np.array_equal(ax.lines[0].get_xdata(), np.arange(-60, 61))
    assert ax.get_xlabel() == "offset, positions"
    apart = float(title(ax).split("at most ")[1].split()[0])
    assert apart == pytest.approx((curves.max(0) - curves.min(0)).max(), rel=0.06)


@pytest.mark.parametrize("rope", [pn.Rotary(128), LLAMA, pn.Rotary(64, rotary_dim=32)])
def test_products_of_rotated_vectors_depend_on_the_offset_alone(rope):
    rng = np.random.default_rng(5)
    q, k = rng.standard_normal((2, 7, rope.head_dim))
    ax = pn.plot.similarity(rope, 40, q=q, k=k, starts=[3, 10**9])
    curves = shared(ax, 2)
    steps = np.arange(-40, 41)
    moved = np.broadcast_to(k[:, None], (7, 81, rope.head_dim))
    turned = reference.apply_rotary(
        np.ascontiguousarray(moved), steps, rope.inv_freq, "hsd", rope.pairing, 0, None, 1.0, False,
        None,
    )  # fmt: skip
    expected = np.einsum("nd,nsd->s", q, turned) / 7
    assert np.abs(curves - expected).max() < 1e-5 * np.abs(q).max() ** 2 * rope.head_dim
    assert np.abs(curves[0] - curves[1]).max() < 1e-4
    assert "mean of 7" in title(ax)


def test_products_of_a_learned_table_differ():
    ax = pn.plot.similarity(LEARNED, 100)
    curves = shared(ax, 3)
    for curve, start in zip(curves, (25, 50, 75), strict=True):
        for offset in (-20, 0, 24):
            assert curve[100 + offset] == pytest.approx(LEARNED[start] @ LEARNED[start + offset])
        assert np.isnan(curve[0])
    apart = float(title(ax).split("at most ")[1].split()[0])
    assert apart > 10


def test_one_start_is_one_curve():
    assert title(pn.plot.similarity(8, 5, starts=[3])).endswith("one curve")
