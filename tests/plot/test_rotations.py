"""Pictures of a rotation: arrows in the plane of a pair, before and after."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines.plain import arrays as reference

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from plot_calls import LLAMA, QUERIES, SIZES, YARN, arrows, title

from posenc_native.plot import drawing

pytestmark = pytest.mark.usefixtures("figures")

# The dims of pairs 0, 1 and 2 of 8 in a head of 16.
DIMS = {
    "half": [(0, 8), (1, 9), (2, 10)],
    "interleaved": [(0, 1), (2, 3), (4, 5)],
    4: [(0, 2), (1, 3), (4, 6)],
}


@pytest.mark.parametrize("pairing", DIMS)
@pytest.mark.parametrize("rope", [{}, {"scaling": YARN}], ids=["plain", "scaled"])
def test_arrows_are_the_pairs_before_and_after(pairing, rope):
    """Each pair at the scale of its longest arrow, which both panels share."""
    rope = pn.Rotary(16, pairing=pairing, **rope)
    positions = np.arange(100, 148)
    x = QUERIES[:, :16]
    before, after = pn.plot.rotation(rope, positions, x=x, pairs=[0, 1, 2], tokens=[0, 7, 47])
    expected = reference.apply_rotary(
        x, positions, rope.inv_freq, "sd", pairing, 0, None, rope.scale, False, None
    )
    for i, dims in enumerate(DIMS[pairing]):
        old, new = (each[[0, 7, 47]][:, dims] for each in (x, expected))
        longest = max(np.linalg.norm(old, axis=1).max(), np.linalg.norm(new, axis=1).max())
        assert np.allclose(arrows(before)[i], old / longest, atol=1e-12)
        assert np.allclose(arrows(after)[i], new / longest, atol=1e-12)
    assert title(before) == "Before rotary encoding positions 100 … 147"
    assert f"pairing {pairing}" in title(after)
    labels = [text.get_text() for text in before.texts]
    assert [f"pair {i} (dims {a}, {b})" in labels for i, (a, b) in enumerate(DIMS[pairing])]


def test_a_part_of_a_head():
    rope = pn.Rotary(16, rotary_dim=4, rotary_start=6)
    before, _ = pn.plot.rotation(rope, x=QUERIES[:, :16])
    labels = [text.get_text() for text in before.texts]
    assert "pair 0 (dims 6, 8)" in labels
    assert "pair 1 (dims 7, 9)" in labels


@pytest.mark.parametrize("rope", [pn.Rotary(128), LLAMA, pn.Rotary(6, pairing="interleaved")])
def test_the_default_turns_one_vector(rope):
    """The same at all positions before; after, at position times frequency from the first axis."""
    before, after = pn.plot.rotation(rope)
    old, new = arrows(before), arrows(after)
    assert (old == [1.0, 0.0]).all()
    degrees = [
        float(text.get_text().split("°")[0]) for text in after.texts if "°" in text.get_text()
    ]
    assert degrees == sorted(degrees, reverse=True)
    turned = np.exp(1j * np.radians(np.outer(degrees, np.arange(6))))
    assert np.allclose(new, np.stack([turned.real, turned.imag], -1), atol=5e-3)
    assert np.allclose(np.linalg.norm(new, axis=-1), 1.0)
    assert degrees[0] == pytest.approx(np.degrees(rope.inv_freq.max()), rel=1e-3)
    assert degrees[-1] == pytest.approx(np.degrees(rope.inv_freq.min()), rel=1e-3)
    if len(degrees) == 4:  # those between turn visibly, and less than once
        assert all(30 < 5 * degree < 150 for degree in degrees[1:3])


def test_arrows_are_arrows_from_the_center_of_a_circle():
    _, after = pn.plot.rotation(pn.Rotary(16), pairs=[0, 3])
    (quiver,) = after.collections
    after.figure.canvas.draw()
    centers = {patch.center for patch in after.patches}
    assert {(x, y) for x, y in quiver.get_offsets()} == centers
    # In data, an arrow of length 1 reaches the circle.
    radius = {patch.radius for patch in after.patches}
    assert 1 / quiver.scale == radius.pop()
    assert quiver.angles == quiver.scale_units == "xy"
    colors = quiver.get_facecolor()
    assert len(np.unique(colors, axis=0)) == 6  # from gray to full color, by token


@pytest.mark.parametrize("size", SIZES)
def test_positions_are_written_at_tips(size):
    with drawing.sized(SIZES[size][1]):
        before, after = pn.plot.rotation(pn.Rotary(64), np.arange(40, 46), pairs=[0, 31])
    assert len({text.get_text() for text in before.texts} & {"40–45"}) == 1
    labels = [text.get_text() for text in after.texts]
    assert {"40", "41", "42", "43", "44", "45", "40–45"} <= set(labels)
    after.figure.canvas.draw()
    center = next(patch.center for patch in after.patches)
    for text in after.texts:
        if text.get_text().isdigit():  # of pair 0, in the direction of its arrow
            at = np.array(text.get_position()) - center
            angle = float(text.get_text()) % (2 * np.pi)
            assert np.allclose(at / np.hypot(*at), [np.cos(angle), np.sin(angle)], atol=0.05)


def test_vectors_that_are_not_there():
    x = np.ones((3, 4))
    x[1] = np.nan
    x[2] = 0.0
    before, after = pn.plot.rotation(pn.Rotary(4), x=x)
    assert np.isnan(arrows(before)[:, 1]).all()
    assert (arrows(after)[:, 2] == 0).all()
    before.figure.canvas.draw()


@pytest.mark.parametrize(
    ("pairs", "size", "least"),
    [(4, None, 0.4), (4, "slide", 0.4), (4, "paper", 0.15), (9, "slide", 0.25), (9, "paper", 0.1)],
)
def test_circles_use_the_space(pairs, size, least):
    """This part of the area of each panel. Squares filled by circles would have 0.79."""
    with drawing.sized(SIZES[size][1] if size else None):
        axes = pn.plot.rotation(LLAMA, pairs=range(0, 7 * pairs, 7))
    axes[0].figure.canvas.draw()
    for ax in axes:
        circles = [patch.get_window_extent() for patch in ax.patches]
        area = sum(np.pi / 4 * circle.width * circle.height for circle in circles)
        assert area > least * ax.bbox.width * ax.bbox.height


@pytest.mark.parametrize("kind", ["rotation", "clock"])
def test_limits_that_are_set_stay(kind):
    """Cells choose the limits for each layout, unless they were changed."""
    ax = np.ravel(getattr(pn.plot, kind)(pn.Rotary(16)))[0]
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.figure.canvas.draw()
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    assert min(right - left, high - low) < 1.5  # nearly, for circles that are round
