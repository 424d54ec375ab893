"""Pictures of biases; similarity curves: products of rows and of rotated vectors."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines import reference

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from plot_calls import LEARNED, LLAMA, image, title

pytestmark = pytest.mark.usefixtures("figures")


@pytest.mark.parametrize(("heads", "q_len", "k_len"), [(8, 16, 16), (32, 5, 12), (1, 1, 9)])
def test_bias_as_matrix_and_diagonals(heads, q_len, k_len):
    diagonals = pn.alibi_diagonals(heads, q_len, k_len, q_offset=0)
    matrix, lines = pn.plot.bias(diagonals, q_len=q_len, k_len=k_len, head=heads - 1)
    assert np.array_equal(image(matrix), pn.toeplitz_bias(diagonals, q_len, k_len)[-1])
    assert title(matrix).startswith(f"Bias of head {heads - 1} of {heads}")
    labelled = {int(line.get_label()[5:]): line for line in lines.lines[: min(heads, 8)]}
    assert {0, heads - 1} <= set(labelled)
    for head, line in labelled.items():
        assert np.array_equal(line.get_xdata(), np.arange(1 - q_len, k_len))
        assert np.array_equal(line.get_ydata(), diagonals[head])
    assert {text.get_text() for text in lines.texts} <= {f"head {head}" for head in labelled}
    assert ("8 of 32 heads" in title(lines)) == (heads == 32)


def test_bias_of_a_matrix_is_that_of_its_diagonals():
    diagonals = pn.t5_diagonals(
        np.random.default_rng(0).standard_normal((32, 3)), 20, 30, q_offset=0
    )
    ready = pn.toeplitz_bias(diagonals, 20, 30)
    _, lines = pn.plot.bias(ready, heads=[2, 0])
    assert [line.get_label() for line in lines.lines[:2]] == ["head 2", "head 0"]
    assert np.allclose(lines.lines[0].get_ydata(), diagonals[2], rtol=1e-12)
    assert not lines.collections  # no bands: it is constant along them
    one, _ = pn.plot.bias(ready[1])
    assert np.array_equal(image(one), ready[1])


def test_bias_that_varies_along_diagonals_and_a_mask():
    rows = np.arange(6.0)[:, None] + np.zeros((6, 6))
    matrix, lines = pn.plot.bias(np.where(np.tri(6, dtype=bool), rows, -np.inf))
    assert np.isnan(image(matrix)[0, 1:]).all()
    assert matrix.images[0].get_clim() == (0, 5)
    mean = lines.lines[0].get_ydata()
    assert np.array_equal(mean[:6], [5.0, 4.5, 4.0, 3.5, 3.0, 2.5])
    assert np.isnan(mean[6:]).all()
    (band,) = lines.collections
    corners = band.get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (0, 5)
    assert "bands" in title(lines)


def test_bias_of_a_decoding_step():
    diagonals = pn.alibi_diagonals(2, 1, 10, q_offset=9)
    matrix, lines = pn.plot.bias(diagonals, q_len=1, k_len=10, q_offset=9)
    assert list(lines.lines[0].get_xdata()) == list(range(-9, 1))
    assert list(lines.lines[0].get_ydata()) == [-0.0625 * i for i in range(9, -1, -1)]
    assert list(matrix.images[0].get_extent()) == [-0.5, 9.5, 9.5, 8.5]


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
