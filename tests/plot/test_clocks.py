"""Clocks: hands point to sine and cosine; animations."""

from __future__ import annotations

import math

import numpy as np
import pytest

import posenc_native as pn

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from PIL import Image
from plot_calls import LLAMA, title

pytestmark = pytest.mark.usefixtures("figures")


def hands(ax):
    return [line for line in ax.lines if line.get_marker() == "o"]


def sweep(wedge):
    return (wedge.theta2 - wedge.theta1) % 360


@pytest.mark.parametrize(
    "encoding", [128, pn.SinusoidalSpec(128, layout="cos_sin"), pn.Rotary(128)]
)
def test_hands_point_to_sine_and_cosine(encoding):
    ax = pn.plot.clock(encoding, 50)
    angles = 50 * pn.frequencies(128)[[0, 9, 18, 27, 36, 45, 54, 63]]
    for hand, angle in zip(hands(ax), angles, strict=True):
        (x0, x1), (y0, y1) = hand.get_data()
        length = math.hypot(x1 - x0, y1 - y0)
        assert (x1 - x0) / length == pytest.approx(math.sin(angle), abs=1e-6)
        assert (y1 - y0) / length == pytest.approx(math.cos(angle), abs=1e-6)
    sectors = [patch for patch in ax.patches if isinstance(patch, Wedge)]
    for sector, text, angle in zip(sectors, ax.texts, angles, strict=True):
        assert sweep(sector) == pytest.approx(math.degrees(angle) % 360, abs=1e-3)
        turns = float(text.get_text().splitlines()[2].split()[0])
        assert turns == pytest.approx(angle / (2 * math.pi), abs=6e-4)
    assert "position 50" in title(ax)


@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
def test_clock_without_the_pair_that_is_cut_off(layout):
    ax = pn.plot.clock(pn.SinusoidalSpec(9, layout=layout, remainder="cut"))
    assert [text.get_text().split("\n")[0] for text in ax.texts] == [f"pair {i}" for i in range(4)]


def test_a_position_may_be_a_tensor():
    torch = pytest.importorskip("torch")
    position = torch.tensor(3.0, requires_grad=True)
    assert title(pn.plot.clock(8, position)) == title(pn.plot.clock(8, 3))
    assert title(pn.plot.waves(8, position=position)) == title(pn.plot.waves(8, position=3))


def test_clock_of_chosen_pairs():
    ax = pn.plot.clock(LLAMA, 4096, pairs=[3, 60])
    assert [text.get_text().splitlines()[0] for text in ax.texts] == ["pair 3", "pair 60"]


@pytest.mark.parametrize("rate", [4, 12.5])
def test_animation(tmp_path, figures, rate):
    path = tmp_path / "clock.gif"
    ax = pn.plot.clock_animation(128, 7, path, pairs=[0, 20], frames_per_second=rate)
    with Image.open(path) as picture:
        assert picture.n_frames == 7
        sizes = set()
        for frame in range(7):
            picture.seek(frame)
            assert picture.info["duration"] == 1000 / rate
            sizes.add(picture.size)
            assert picture.convert("RGB").getpixel((1, 1)) == (255, 255, 255)
        assert picture.info["loop"] == 0
        last = np.asarray(picture.convert("L"), float)
    assert len(sizes) == 1
    assert "position 6" in title(ax)
    assert len(figures.get_fignums()) == 1
    # The last frame is the picture that the Axes shows.
    figure = ax.get_figure()
    figure.set_dpi(100)
    figure.canvas.draw()
    drawn = np.asarray(Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("L"), float)
    assert drawn.shape == last.shape
    assert np.abs(drawn - last).mean() < 1


def test_frames_have_the_size_of_the_figure_and_its_colours(tmp_path):
    with rc_context({"savefig.bbox": "tight"}):
        ax = pn.plot.clock_animation(16, 8, tmp_path / "a.gif", pairs=[0])
        assert rcParams["savefig.bbox"] == "tight"
    (sector,) = [patch for patch in ax.patches if isinstance(patch, Wedge)]
    wanted = tuple(round(255 * part) for part in sector.get_facecolor()[:3])
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.n_frames == 8
        assert picture.size == tuple(int(100 * inches) for inches in ax.figure.get_size_inches())
        picture.seek(5)
        assert wanted in {colour for _, colour in picture.convert("RGB").getcolors(1000)}


def test_what_stands_still_is_drawn_once(tmp_path, monkeypatch):
    draws = []
    draw = Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda *given: (draws.append(1), draw(*given))[1])
    counts = []
    for frames in (2, 30):
        draws.clear()
        figure = pn.plot.clock_animation(16, frames, tmp_path / "a.gif").get_figure()
        counts.append(len(draws))
        assert figure.get_layout_engine() is not None
        assert not [each for each in figure.findobj() if each.get_animated()]
    assert counts[0] == counts[1]
