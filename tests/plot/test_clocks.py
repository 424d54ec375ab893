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


FIRST_TURN = 1 / 16  # what a hand has to turn by at least to be seen to


def hands(ax):
    """The hands of each dial, in order: the last first, then those before it."""
    return [line for line in ax.lines if line.get_marker() == "o"]


def dials(ax):
    """Angles of the hands of each dial, clockwise from 12 o'clock, in degrees; increasing steps."""
    found = {}
    for line in hands(ax):
        (x0, x1), (y0, y1) = line.get_data()
        angle = math.degrees(math.atan2(x1 - x0, y1 - y0)) % 360
        found.setdefault((float(x0), float(y0)), []).append((line.get_linewidth(), angle))
    return [[angle for _, angle in sorted(each)] for each in found.values()]


def sweep(wedge):
    return (wedge.theta2 - wedge.theta1) % 360


def facts(ax):
    return [text.get_text().splitlines() for text in ax.texts]


@pytest.mark.parametrize(
    "encoding", [128, pn.SinusoidalSpec(128, layout="cos_sin"), pn.Rotary(128)]
)
def test_hands_point_to_sine_and_cosine(encoding):
    pairs = [0, 9, 18, 27, 36, 45, 54, 63]
    ax = pn.plot.clock(encoding, 50, pairs=pairs)
    angles = 50 * pn.sinusoids.frequencies(128)[pairs]
    for hand, angle in zip(hands(ax), angles, strict=True):
        (x0, x1), (y0, y1) = hand.get_data()
        length = math.hypot(x1 - x0, y1 - y0)
        assert (x1 - x0) / length == pytest.approx(math.sin(angle), abs=1e-6)
        assert (y1 - y0) / length == pytest.approx(math.cos(angle), abs=1e-6)
    sectors = [patch for patch in ax.patches if isinstance(patch, Wedge)]
    for sector, (*_, words), angle in zip(sectors, facts(ax), angles, strict=True):
        assert sweep(sector) == pytest.approx(math.degrees(angle) % 360, abs=1e-3)
        assert float(words.split()[0]) == pytest.approx(angle / (2 * math.pi), abs=6e-4)
    assert "position 50" in title(ax)


def test_the_sector_of_a_pair_that_turns_backward_lies_on_the_other_side():
    ax = pn.plot.clock(pn.Rotary(4, inv_freq=[1.0, -1.0]), 1, pairs=[0, 1])
    forward, backward = (patch for patch in ax.patches if isinstance(patch, Wedge))
    # A wedge goes counterclockwise from theta1 to theta2, and 90 degrees is 12 o'clock.
    turned = math.degrees(1)
    assert (forward.theta1, forward.theta2) == (pytest.approx(90 - turned), 90)
    assert (backward.theta1, backward.theta2) == (90, pytest.approx(90 + turned))


def place(word):
    word, factors = word.replace(",", ""), {"k": 1e3, "M": 1e6, "G": 1e9}
    return float(word[:-1]) * factors[word[-1]] if word[-1] in factors else float(word)


@pytest.mark.parametrize("encoding", [128, pn.SinusoidalSpec(512), LLAMA, pn.Rotary(16)])
def test_every_hand_moves_between_the_positions_of_its_dial(encoding):
    """From an eleventh of a turn to a fifth: seen at a glance, and none overtakes the first."""
    ax = pn.plot.clock(encoding)
    if isinstance(encoding, pn.Rotary):
        frequencies = encoding.inv_freq
    else:
        dim = encoding if isinstance(encoding, int) else encoding.dim
        frequencies = pn.sinusoids.frequencies(dim)
    found = dials(ax)
    assert len(found) == 8
    for angles, (pair, length, words) in zip(found, facts(ax), strict=True):
        step, last = place(words.split()[2]), place(words.split()[4])
        assert last == 4 * step
        turned = math.degrees(step * frequencies[int(pair.split()[1])])
        assert np.allclose(angles, turned * np.arange(5), atol=1e-2)
        assert 360 / 13 < turned < 72
        assert place(length.split()[1]) == pytest.approx(360 * step / turned, rel=6e-4)
    chosen = [int(pair.split()[1]) for pair, *_ in facts(ax)]
    assert (chosen[0], chosen[-1]) == (0, len(frequencies) - 1)


@pytest.mark.parametrize(("encoding", "position"), [(128, 50), (128, 3), (LLAMA, 4096)])
def test_every_hand_of_one_position_has_left_the_start(encoding, position):
    ax = pn.plot.clock(encoding, position)
    assert all(float(words.split()[0].replace(",", "")) >= FIRST_TURN for *_, words in facts(ax))
    assert facts(pn.plot.clock(128, 0))[-1][0] == "pair 63"  # where none has, all


def test_every_hand_of_an_animation_moves(tmp_path):
    ax = pn.plot.clock_animation(128, 21, tmp_path / "a.gif")
    last = [float(words.split()[0]) for *_, words in facts(ax)]
    assert len(last) == 8
    assert min(last) >= FIRST_TURN
    far = pn.plot.clock_animation(128, [10**6, 10**6 + 20], tmp_path / "b.gif")
    assert [words[0] for words in facts(far)] == [words[0] for words in facts(ax)]


def test_a_dial_that_does_not_turn():
    rope = pn.Rotary(8, inv_freq=[1.0, 0.5, 0.0])
    assert [words[0] for words in facts(pn.plot.clock(rope))] == ["pair 0", "pair 1"]
    still = pn.plot.clock(rope, pairs=[2])
    assert facts(still) == [["pair 2", "wavelength ∞", "does not turn"]]
    assert len(hands(still)) == 1


def test_steps_between_whole_positions():
    grid = pn.sinusoids.GridCoordinates(first=0.5, extent=2 * math.pi)
    ax = pn.plot.clock(pn.SinusoidalSpec(8, grid=grid))
    assert facts(ax)[0][2] == "positions 0, 1 .. 4"
    assert dials(ax)[0] == pytest.approx([math.degrees(i) for i in range(5)], abs=1e-3)
    fast = pn.SinusoidalSpec(8, grid=grid, scale=20.0)
    assert facts(pn.plot.clock(fast))[0][2] == "positions 0, 0.05 .. 0.2"


def test_turns_of_a_logarithm():
    spec = pn.SinusoidalSpec(8, logarithm=True)
    ax = pn.plot.clock(spec, 1000, pairs=[0])
    assert facts(ax)[0][2] == f"{math.log(1000) / (2 * math.pi):.3f} turns"


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


def test_frames_have_the_size_of_the_figure_and_its_colors(tmp_path):
    with rc_context({"savefig.bbox": "tight"}):
        ax = pn.plot.clock_animation(16, 8, tmp_path / "a.gif", pairs=[0])
        assert rcParams["savefig.bbox"] == "tight"
    (sector,) = [patch for patch in ax.patches if isinstance(patch, Wedge)]
    wanted = tuple(round(255 * part) for part in sector.get_facecolor()[:3])
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.n_frames == 8
        assert picture.size == tuple(int(100 * inches) for inches in ax.figure.get_size_inches())
        picture.seek(5)
        assert wanted in {color for _, color in picture.convert("RGB").getcolors(1000)}


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
