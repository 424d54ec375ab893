"""Pictures of biases: a matrix, lines against the offset, names that keep apart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies

import posenc_native as pn

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from plot_calls import SIZES, image, title

from posenc_native.plot import drawing
from posenc_native.plot.labels import spread

pytestmark = pytest.mark.usefixtures("figures")


@pytest.mark.parametrize(("heads", "q_len", "k_len"), [(8, 16, 16), (32, 5, 12), (1, 1, 9)])
def test_bias_as_matrix_and_diagonals(heads, q_len, k_len):
    diagonals = pn.relative.alibi_diagonals(heads, q_len, k_len, q_offset=0)
    matrix, lines = pn.plot.bias(diagonals, q_len=q_len, k_len=k_len, head=heads - 1)
    assert np.array_equal(image(matrix), pn.toeplitz_bias(diagonals, q_len, k_len)[-1])
    assert title(matrix) == f"Bias head {heads - 1} of {heads}, {q_len} queries × {k_len} keys"
    labeled = {int(line.get_label()[5:]): line for line in lines.lines[: min(heads, 8)]}
    assert {0, heads - 1} <= set(labeled)
    for head, line in labeled.items():
        assert np.array_equal(line.get_xdata(), np.arange(1 - q_len, k_len))
        assert np.array_equal(line.get_ydata(), diagonals[head])
    assert {text.get_text() for text in lines.texts} <= {f"head {head}" for head in labeled}
    assert ("8 of 32 heads" in title(lines)) == (heads == 32)


def test_bias_of_a_matrix_is_that_of_its_diagonals():
    diagonals = pn.relative.t5_diagonals(
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
    assert matrix.images[0].get_clim() == (-5, 5)
    assert matrix.patch.get_hatch()  # behind the cells that have no number
    mean = lines.lines[0].get_ydata()
    assert np.array_equal(mean[:6], [5.0, 4.5, 4.0, 3.5, 3.0, 2.5])
    assert np.isnan(mean[6:]).all()
    (band,) = lines.collections
    corners = band.get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (0, 5)
    assert "bands" in title(lines)


def test_bias_of_a_decoding_step():
    diagonals = pn.relative.alibi_diagonals(2, 1, 10, q_offset=9)
    matrix, lines = pn.plot.bias(diagonals, q_len=1, k_len=10, q_offset=9)
    assert list(lines.lines[0].get_xdata()) == list(range(-9, 1))
    assert list(lines.lines[0].get_ydata()) == [-0.0625 * i for i in range(9, -1, -1)]
    assert list(matrix.images[0].get_extent()) == [-0.5, 9.5, 9.5, 8.5]


def test_a_name_is_the_first_line_of_the_title():
    diagonals = pn.relative.alibi_diagonals(2, 4, 4)
    matrix, _ = pn.plot.bias(diagonals, q_len=4, k_len=4, name="ALiBi")
    assert title(matrix) == "ALiBi head 0 of 2, 4 queries × 4 keys"


@pytest.mark.parametrize("kind", ["negative", "positive", "both", "zero"])
def test_zero_is_the_middle_of_the_colormap(kind):
    """And the color bar goes no further than the numbers, and 0, do."""
    ramp = np.arange(12.0).reshape(3, 4)
    values = {"negative": -ramp, "positive": ramp, "both": ramp - 4, "zero": 0 * ramp}[kind]
    matrix, _ = pn.plot.bias(values)
    low, high = matrix.images[0].get_clim()
    assert low == -high
    assert matrix.images[0].norm(0.0) == 0.5
    shown = matrix.images[0].colorbar.ax.get_ylim()
    if kind != "zero":
        assert shown == (min(values.min(), 0), max(values.max(), 0))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 8, 32, 100])
@pytest.mark.parametrize("kind", ["alibi", "equal"])
def test_names_of_heads_keep_apart(kind, count, size):
    """At any number of heads, also of lines that end at the same place; as many as fit."""
    diagonals = pn.relative.alibi_diagonals(count, 16, 16) * (kind == "alibi")
    with drawing.sized(SIZES[size][1]):
        _, lines = pn.plot.bias(diagonals, q_len=16, k_len=16, heads=range(count))
    figure = lines.figure
    figure.canvas.draw()
    assert len(lines.lines) == count + 1  # and the one at offset 0
    shown = [text for text in lines.texts if text.get_visible()]
    boxes = sorted((one.get_window_extent() for one in shown), key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
    assert min(boxes[0].x0, boxes[0].y0) >= 0
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert boxes[-1].y1 <= figure.bbox.y1
    assert len(shown) >= min(count, 12)
    # In the order in which lines end, from the lowest to the highest.
    ends = {line.get_label(): line.get_ydata()[-1] for line in lines.lines[:count]}
    up = [ends[one.get_text()] for one in sorted(shown, key=lambda one: one.get_position()[1])]
    assert up == sorted(up)
    assert (up[0], up[-1]) == (min(ends.values()), max(ends.values()))


def test_names_follow_a_figure_that_changes_its_size():
    _, lines = pn.plot.bias(pn.relative.alibi_diagonals(8, 16, 16), q_len=16, k_len=16)
    for height in (4.6, 1.6, 6.0):
        lines.figure.set_size_inches(8, height)
        lines.figure.canvas.draw()
        shown = [text for text in lines.texts if text.get_visible()]
        boxes = sorted((one.get_window_extent() for one in shown), key=lambda box: box.y0)
        assert all(one.y1 <= other.y0 for one, other in pairwise(boxes))
        assert (len(shown) == 8) == (height > 2)


PLACES = strategies.lists(strategies.floats(-0.5, 1.5), min_size=1, max_size=20).map(sorted)


@given(wanted=PLACES, apart=strategies.floats(0.0, 0.2))
def test_places_are_apart_in_order_and_within(wanted, apart):
    places = spread(wanted, apart, 0.0, 1.0)
    least = min(apart, 1 / max(len(wanted) - 1, 1))
    assert (np.diff(places) >= least - 1e-9).all()
    assert min(places) >= -1e-9
    assert max(places) <= 1 + 1e-9


def test_places_that_are_apart_stay():
    assert spread([0.1, 0.5, 0.9], 0.1, 0.0, 1.0) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5, 0.5], 0.1, 0.0, 1.0) == pytest.approx([0.4, 0.5, 0.6])
