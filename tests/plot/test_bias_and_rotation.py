"""Pictures of biases, and of x before and after its rotation."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines import reference

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from plot_calls import LLAMA, QUERIES, YARN, image, title

pytestmark = pytest.mark.usefixtures("figures")


# --- bias -----------------------------------------------------------------------------------------


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


# --- rotation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rotation_before_and_after(pairing):
    rope = pn.Rotary(128, pairing=pairing, scaling=YARN)
    positions = np.arange(100, 148)
    before, after = pn.plot.rotation(QUERIES, rope, positions)
    assert np.array_equal(image(before), QUERIES)
    expected = reference.apply_rotary(
        QUERIES, positions, rope.inv_freq, "sd", pairing, 0, None, rope.scale, False, None
    )
    assert np.allclose(image(after), expected, rtol=0, atol=1e-12)
    assert before.images[0].get_clim() == after.images[0].get_clim()
    assert title(before) == "Before rotary positions 100 .. 147"
    assert "scaling yarn factor 4" in title(after)
    assert f"pairing {pairing}" in title(after)


def test_rotation_is_not_ruled_by_one_dim():
    """A dim a thousand times larger than all others, as trained models have, leaves shades."""
    q = QUERIES.copy()
    q[:, 5] = 1000.0
    before, _ = pn.plot.rotation(q, LLAMA)
    assert before.images[0].get_clim()[1] < 10
    bar = before.images[0].colorbar or before.get_figure().axes[-1]
    assert "2 % are beyond" in bar.get_ylabel()
