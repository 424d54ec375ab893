"""Pictures show the numbers of the functions that they are of, and say what they show.

That they are good to look at no test can tell; what can be measured of it is at the end.
"""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines.reference import rotary, sinusoids
from posenc_native.spectra.scaling import rotary_blend

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from matplotlib import colormaps, rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from matplotlib.text import Text
from PIL import Image

from posenc_native.plot import drawing

pytestmark = pytest.mark.usefixtures("figures")

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LEARNED = np.random.default_rng(1).standard_normal((100, 128))
QUERIES = np.random.default_rng(2).standard_normal((48, 128))
LLAMA = pn.Rotary.preset("llama-3.1")

# One call of every kind, with room for ax=.
CALLS = {
    "heatmap": lambda ax=None: pn.plot.heatmap(128, ax=ax),
    "waves": lambda ax=None: pn.plot.waves(128, ax=ax),
    "row": lambda ax=None: pn.plot.waves(128, position=50, ax=ax),
    "clock": lambda ax=None: pn.plot.clock(128, 50, ax=ax),
    "similarity": lambda ax=None: pn.plot.similarity(pn.Rotary(128), ax=ax),
    "frequencies": lambda ax=None: pn.plot.frequencies(LLAMA, ax=ax),
    "bias": lambda ax=None: pn.plot.bias(pn.alibi_diagonals(8, 64, 64), q_len=64, k_len=64, ax=ax),
    "rotation": lambda ax=None: pn.plot.rotation(QUERIES, LLAMA, ax=ax),
}
PANELS = {name: 2 if name in ("bias", "rotation") else 1 for name in CALLS}


def title(ax):
    return ax.get_title(loc="left").replace("\n", " ")


def image(ax):
    (one,) = ax.images
    return np.ma.filled(one.get_array(), np.nan)


def test_every_function_has_a_call_here():
    assert set(CALLS) | {"clock_animation"} == set(pn.plot.__all__) | {"row"}


# --- where it is drawn ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_a_new_figure(name, figures):
    made = CALLS[name]()
    axes = np.ravel(made)
    assert isinstance(made, Axes if PANELS[name] == 1 else np.ndarray)
    assert len(axes) == PANELS[name]
    assert all(isinstance(ax, Axes) for ax in axes)
    assert len(figures.get_fignums()) == 1
    assert {ax.get_figure() for ax in axes} == {figures.gcf()}
    figures.gcf().canvas.draw()


@pytest.mark.parametrize("name", CALLS)
def test_axes_given_are_used_and_nothing_else_is_touched(name, figures):
    current, its_axes = figures.subplots()
    settings = dict(rcParams)
    mine = Figure(figsize=(11, 5), layout="constrained")
    given = mine.subplots(1, PANELS[name])
    made = CALLS[name](given)
    assert np.array_equal(np.ravel(made), np.ravel(given))
    assert all(ax.get_title(loc="left") for ax in np.ravel(made))
    assert figures.get_fignums() == [current.number]
    assert figures.gca() is its_axes
    assert not its_axes.lines
    assert not its_axes.images
    assert dict(rcParams) == settings
    mine.canvas.draw()


def test_axes_of_a_part_of_a_figure(tmp_path):
    parts = Figure(figsize=(16, 5), layout="constrained").subfigures(1, 2)
    pn.plot.heatmap(16, ax=parts[0].subplots())
    ax = pn.plot.clock_animation(16, 2, tmp_path / "a.gif", ax=parts[1].subplots())
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.size == (1600, 500)  # the whole figure
    assert ax.get_title(loc="left")


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_axes(name):
    with pytest.raises(TypeError, match=r"plot\.\w+: ax: expected .*Axes or None, got "):
        CALLS[name](object())
    with pytest.raises((TypeError, ValueError), match=r"plot\.\w+: ax: expected .*Axes.*, got "):
        CALLS[name](Figure().subplots(1, 3))


# --- heatmap --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
def test_heatmap_is_the_table(layout):
    ax = pn.plot.heatmap(pn.SinusoidalSpec(64, layout=layout, base=500.0), 30)
    rows = np.arange(30)
    expected = sinusoids.sinusoidal(rows, 64, 500.0, layout, 0.0, 1.0, np.dtype(np.float32), None)
    assert np.allclose(image(ax), expected, rtol=0, atol=2e-7)
    assert ax.images[0].get_clim() == (-1, 1)
    assert list(ax.images[0].get_extent()) == [-0.5, 63.5, 29.5, -0.5]
    assert title(ax) == f"Sinusoidal table dim 64, base 500, {layout}, positions 0 .. 29"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("dimension", "position")
    assert ax.images[0].colorbar.ax.get_ylabel() == "value"


def test_heatmap_of_positions_elsewhere():
    neighbours = pn.plot.heatmap(16, np.arange(1000, 1010))
    assert list(neighbours.images[0].get_extent()) == [-0.5, 15.5, 1009.5, 999.5]
    some = np.array([0, 10, 10**12])
    ax = pn.plot.heatmap(16, some)
    assert np.array_equal(image(ax), pn.sinusoidal(some, 16))
    ax.get_figure().canvas.draw()
    labels = {t.get_position()[1]: t.get_text() for t in ax.get_yticklabels()}
    assert [labels[row] for row in (0, 1, 2)] == ["0", "10", "1,000,000,000,000"]


def test_heatmap_of_cells_of_a_grid():
    grid = pn.GridCoordinates(first=0.5, extent=2 * math.pi)
    spec = pn.SinusoidalSpec(8, grid=grid)
    ax = pn.plot.heatmap(spec, 6)
    assert np.array_equal(image(ax), spec(6))
    assert "positions 0.5236 … 5.76" in title(ax)
    assert np.array_equal(image(pn.plot.heatmap(spec, [0.25])), spec(np.array([0.25])))
    _, dots = curves_and_dots(pn.plot.waves(spec, 6, dimensions=[0]))
    assert np.array_equal(dots[0].get_ydata(), spec(6)[:, 0])
    assert np.array_equal(dots[0].get_xdata(), 2 * math.pi * (np.arange(6) + 0.5) / 6)


def test_heatmap_of_a_rotary():
    ax = pn.plot.heatmap(pn.Rotary(64, base=100.0, scaling=YARN), 20)
    rope = pn.Rotary(64, base=100.0, scaling=YARN)
    assert np.array_equal(image(ax), np.concatenate(rope.tables(20), -1))
    assert ax.images[0].get_clim()[1] == pytest.approx(rope.scale, rel=1e-6)
    assert ax.get_xlabel() == "cosine of pair 0 .. 31, then sine"
    assert "scaling yarn factor 4" in title(ax)


def test_heatmap_of_several_axes():
    rope = pn.Rotary(8, axis_map=[0, 1, 2, 1])
    ax = pn.plot.heatmap(rope, 5)
    assert np.array_equal(image(ax), np.concatenate(rope.tables(np.tile(np.arange(5), (3, 1))), -1))
    assert "equal positions on all axes" in title(ax)


def test_heatmap_of_a_table_shows_at_most_its_rows():
    ax = pn.plot.heatmap(LEARNED, 4096)
    assert np.array_equal(image(ax), LEARNED)
    low, high = ax.images[0].get_clim()
    assert high == -low == np.abs(LEARNED).max()
    assert title(ax) == "Table 100 positions × 128 dims, positions 0 .. 99"


def test_tensors_of_every_kind():
    torch = pytest.importorskip("torch")
    table = torch.randn(10, 8, dtype=torch.bfloat16, requires_grad=True)
    ax = pn.plot.heatmap(table)
    assert np.array_equal(image(ax), table.detach().double().numpy())
    ax = pn.plot.heatmap(8, torch.arange(3, 7))
    assert np.array_equal(image(ax), pn.sinusoidal(np.arange(3, 7), 8))
    q = torch.randn(6, 128, dtype=torch.float16)
    before, after = pn.plot.rotation(q, LLAMA)
    assert np.array_equal(image(before), q.double().numpy())
    assert np.allclose(image(after), LLAMA.apply(q.double(), layout="sd").numpy(), atol=1e-12)
    diagonals = pn.alibi_diagonals(2, 4, 4, device="cpu")
    matrix, _ = pn.plot.bias(diagonals, q_len=4, k_len=4)
    assert np.array_equal(image(matrix), pn.toeplitz_bias(diagonals, 4, 4)[0].numpy())


def test_heatmap_averages_what_a_pixel_cannot_hold():
    """A wave far shorter than a pixel is the shade of its mean, not a pattern of picked rows."""
    figure = Figure(figsize=(2, 2), dpi=50, layout="none")
    canvas = FigureCanvasAgg(figure)
    ax = figure.add_axes((0, 0, 1, 1))
    rows = np.where(np.arange(8000) % 2, 1.0, -1.0)
    pn.plot.heatmap(np.repeat(rows[:, None], 8, 1), 8000, ax=ax)
    ax.images[0].colorbar.remove()
    ax.set_position((0, 0, 1, 1))
    ax.set_axis_off()
    canvas.draw()
    middle = colormaps[drawing.SHADES](0.5)
    shown = np.asarray(canvas.buffer_rgba())[20:80, 20:80] / 255
    assert np.abs(shown - middle).max() < 0.03


# --- waves ----------------------------------------------------------------------------------------


def curves_and_dots(ax):
    smooth = [
        line for line in ax.lines if line.get_marker() == "None" and len(line.get_xdata()) > 2
    ]
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    return smooth, dots


def test_waves_are_columns():
    ax = pn.plot.waves(128, 100, dimensions=[0, 13, 40])
    table = pn.sinusoidal(100, 128)
    smooth, dots = curves_and_dots(ax)
    for curve, dot, column in zip(smooth, dots, (0, 13, 40), strict=True):
        assert np.array_equal(dot.get_xdata(), np.arange(100))
        assert np.array_equal(dot.get_ydata(), table[:, column])
        x = curve.get_xdata()
        assert np.array_equal(curve.get_ydata(), pn.sinusoidal(x, 128)[:, column])
        assert set(range(100)) <= set(x)
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels == ["0, sine", "13, cosine", "40, sine"]


@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_wavelengths_are_marked(base):
    spec = pn.SinusoidalSpec(128, base=base)
    ax = pn.plot.waves(spec, 100, dimensions=[0, 21, 126])
    lengths = 2 * math.pi * base ** (2 * np.array([0, 10, 63]) / 128)
    assert np.allclose(lengths, pn.wavelengths(128, base)[[0, 10, 63]])
    for arrow, text, length in zip(ax.patches, ax.texts, lengths, strict=True):
        (start, _), (end, _) = arrow._posA_posB
        words = text.get_text()
        assert float(words.split()[1].rstrip(",").replace(",", "")) == pytest.approx(
            length, rel=6e-4
        )
        assert ("longer than shown" in words) == (length > 99)
        assert start == 0
        assert end == pytest.approx(min(length, 99))


def test_waves_of_many_positions():
    ax = pn.plot.waves(512, 4096)
    smooth, dots = curves_and_dots(ax)
    assert len(smooth) == 5
    assert not dots
    chosen = [int(text.get_text().split(",")[0]) for text in ax.get_yticklabels()]
    lengths = pn.wavelengths(512)[np.array(chosen) // 2]
    assert (np.diff(lengths) > 0).all()
    assert lengths[0] == pytest.approx(4096 / 20, rel=0.05)  # still to be followed
    assert lengths[-1] > 4096  # and longer than what is shown
    for curve, column in zip(smooth, chosen, strict=True):
        x = curve.get_xdata()
        assert np.array_equal(curve.get_ydata(), pn.sinusoidal(x, 512)[:, column])


def test_waves_of_a_table_have_no_wavelength():
    ax = pn.plot.waves(LEARNED, dimensions=[3, 127])
    smooth, _ = curves_and_dots(ax)
    assert np.array_equal(smooth[1].get_ydata(), LEARNED[:, 127])
    assert not ax.texts
    assert [text.get_text() for text in ax.get_yticklabels()] == ["3", "127"]


def test_waves_of_a_rotary_are_named_by_pair():
    ax = pn.plot.waves(LLAMA, 10, dimensions=[3, 64 + 5])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["3, cosine", "5, sine"]
    assert ax.get_ylabel() == "pair"
    cos, sin = LLAMA.tables(10)
    _, dots = curves_and_dots(ax)
    assert np.array_equal(dots[0].get_ydata(), cos[:, 3])
    assert np.array_equal(dots[1].get_ydata(), sin[:, 5])


def test_waves_of_a_pair_that_stands_still():
    rope = pn.Rotary(8, inv_freq=[1.0, 0.0])
    ax = pn.plot.waves(rope, 10, dimensions=[0, 1])
    assert [text.get_text() for text in ax.texts] == ["wavelength 6.283", "does not turn"]


@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
def test_row_of_a_position(layout):
    spec = pn.SinusoidalSpec(128, layout=layout)
    ax = pn.plot.waves(spec, position=50)
    row = pn.sinusoidal(np.array([50]), 128, layout=layout)[0]
    named = {line.get_label(): line for line in ax.lines}
    for name, function in (("sine", np.sin), ("cosine", np.cos)):
        columns = np.array(named[name].get_xdata())
        assert np.array_equal(named[name].get_ydata(), row[columns])
        # As many, in order, as pairs.
        assert np.allclose(row[columns], function(50 * pn.frequencies(128)), atol=1e-6)
    assert named["sine"].get_linestyle() != named["cosine"].get_linestyle()
    (top,) = ax.child_axes
    pairs = np.array(named["sine"].get_xdata())
    for x, text in zip(top.get_xticks(), top.get_xticklabels(), strict=True):
        length = float(text.get_text().replace("k", "000"))
        nearest = {
            pn.wavelengths(128)[np.abs(np.array(line.get_xdata()) - x).argmin()]
            for line in (named["sine"], named["cosine"])
            if np.abs(np.array(line.get_xdata()) - x).min() <= 1
        }
        assert any(near == pytest.approx(length, rel=0.16) for near in nearest), pairs
    assert len(top.get_xticks()) == (4 if layout == "interleaved" else 8)


# --- clock ----------------------------------------------------------------------------------------


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


def test_animation_in_axes_given(tmp_path, figures):
    figure = Figure()
    given = figure.subplots()
    made = pn.plot.clock_animation(16, 2, str(tmp_path / "a.GIF"), ax=given)
    assert made is given
    assert not figures.get_fignums()


def test_animation_keeps_the_size_of_frames(tmp_path):
    with rc_context({"savefig.bbox": "tight"}):
        ax = pn.plot.clock_animation(16, 3, tmp_path / "a.gif")
        assert rcParams["savefig.bbox"] == "tight"
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.n_frames == 3
        assert picture.size == tuple(int(100 * inches) for inches in ax.figure.get_size_inches())


# --- similarity -----------------------------------------------------------------------------------


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
    turned = rotary.apply_rotary(
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


# --- bias -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "q_len", "k_len"), [(8, 16, 16), (32, 5, 12), (1, 1, 9)])
def test_bias_as_matrix_and_diagonals(heads, q_len, k_len):
    diagonals = pn.alibi_diagonals(heads, q_len, k_len)
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
    diagonals = pn.t5_diagonals(np.random.default_rng(0).standard_normal((32, 3)), 20, 30)
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
    expected = rotary.apply_rotary(
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


# --- frequencies ----------------------------------------------------------------------------------

SCALINGS = {
    "llama3": (LLAMA, None),
    "yarn": (pn.Rotary(128, base=1e6, scaling=YARN), None),
    "yarn, bounds not rounded": (pn.Rotary(64, scaling={**YARN, "truncate": False}), None),
    "step": (pn.Rotary.preset("llama-4-scout"), None),
    "longrope": (pn.Rotary.preset("phi-3.5-mini", seq_len=100_000), None),
    "linear": (pn.Rotary(64, scaling={"rope_type": "linear", "factor": 8.0}), None),
    "ntk": (pn.Rotary(64, scaling={"rope_type": "ntk_alpha", "alpha": 3.0}), None),
    "dynamic": (
        pn.Rotary(64, scaling={
            "rope_type": "dynamic", "factor": 4.0, "max_position_embeddings": 2048, "seq_len": 9000,
        }),
        None,
    ),
    "proportional": (
        pn.Rotary(64, scaling={"rope_type": "proportional", "partial_rotary_factor": 0.25}), None,
    ),
    "axial": (pn.Rotary(64, scaling={"rope_type": "axial", "axes": 2}), None),
    "theta in the scaling": (
        pn.Rotary(64, scaling={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}), None,
    ),
    "frequencies": (pn.Rotary(4, inv_freq=[0.5, 0.25]), pn.Rotary(4, inv_freq=[1.0, 1.0])),
    "none": (pn.Rotary(64), None),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_parts_of_the_unscaled(name):
    scaled, unscaled = SCALINGS[name]
    ax = pn.plot.frequencies(scaled, unscaled)
    if unscaled is None:
        base = (scaled.scaling or {}).get("rope_theta", scaled.base)
        plain = pn.rotary_frequencies(scaled.rotary_dim, base)[0]
    else:
        plain = unscaled.inv_freq
    parts = scaled.inv_freq / plain
    assert np.array_equal(
        ax.lines[0].get_ydata(), np.where(parts > 0, parts, np.nan), equal_nan=True
    )
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("pair", "frequency, scaled / unscaled")
    ax.get_figure().canvas.draw()
    low, high = ax.get_ylim()
    assert low < parts[parts > 0].min()
    assert high > parts.max()


@pytest.mark.parametrize("name", ["llama3", "yarn", "yarn, bounds not rounded", "step"])
def test_bands_are_those_of_the_rule(name):
    scaled, _ = SCALINGS[name]
    ax = pn.plot.frequencies(scaled)
    parts = ax.lines[0].get_ydata()
    bands = {}
    names = [text for text in ax.texts if text.get_text() in ("kept", "blended", "slowed")]
    for text in names:
        bands[text.get_text()] = text.xy[0]
    spans = [
        patch.get_patch_transform().transform_path(patch.get_path()).get_extents()
        for patch in ax.patches
    ]
    assert len(spans) == len(bands)
    for span, (band, middle) in zip(spans, bands.items(), strict=True):
        start, end = span.x0, span.x1
        assert middle == pytest.approx((start + end) / 2)
        inside = parts[max(0, math.ceil(start)) : math.floor(end) + 1]
        if band == "kept":
            assert (inside == 1).all()
        elif band == "slowed":
            assert np.allclose(inside, parts[-1])
        else:
            assert ((inside < 1) & (inside > parts[-1])).all()
    assert ("blended" in bands) == (name != "step")


def test_bounds_are_marked_where_wavelengths_are():
    ax = pn.plot.frequencies(LLAMA)
    marks = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "--"]
    lengths = 2 * math.pi / pn.rotary_frequencies(128, 5e5)[0]
    at = np.exp(np.interp(marks, np.arange(64), np.log(lengths)))
    assert np.allclose(at, [8192 / 4, 8192 / 1], rtol=1e-9)
    words = " ".join(text.get_text() for text in ax.texts)
    assert "4 turns in 8,192 (high_freq_factor)" in words
    assert "1 turn in 8,192 (low_freq_factor)" in words
    assert "first training: 8,192 positions" in words


@pytest.mark.parametrize("name", ["llama3", "yarn", "yarn, bounds not rounded", "step"])
def test_a_blend_is_what_the_frequencies_are_made_of(name):
    rope, _ = SCALINGS[name]
    blend = rotary_blend("test", rope.rotary_dim, rope.base, rope.scaling)
    assert blend is not None
    plain = pn.rotary_frequencies(rope.rotary_dim, rope.base)[0]
    assert np.array_equal(blend.kept + blend.slowed, np.ones(len(plain)))
    assert np.array_equal(blend.of(plain, rope.scaling["factor"]), rope.inv_freq)
    turns = blend.trained * plain / (2 * math.pi)
    if not rope.scaling.get("truncate", name == "yarn"):  # bounds as they are given
        assert ((blend.kept == 1) == (turns >= blend.fast[1])).all()
        assert ((blend.slowed == 1) == (turns <= blend.slow[1])).all()


def test_scalings_that_treat_all_alike_have_no_bands():
    assert rotary_blend("test", 64, 1e4, {"rope_type": "linear", "factor": 2.0}) is None
    assert not pn.plot.frequencies(SCALINGS["linear"][0]).texts


# --- errors ---------------------------------------------------------------------------------------

BAD_CALLS = [
    (lambda: pn.plot.heatmap(7), ValueError, "plot.heatmap: encoding: expected an even int, got 7"),
    (lambda: pn.plot.heatmap(0), ValueError, "encoding: expected a dim > 0"),
    (lambda: pn.plot.heatmap("128"), TypeError, "encoding: expected an int .* got str"),
    (lambda: pn.plot.heatmap(True), TypeError, "encoding: .* got bool"),
    (
        lambda: pn.plot.heatmap(np.zeros(3)), ValueError,
        r"a table \[positions, dim\], got shape \[3\]",
    ),
    (lambda: pn.plot.heatmap(np.zeros((3, 2), complex)), TypeError, "real numbers, got complex128"),
    (lambda: pn.plot.heatmap([["a"]]), TypeError, "encoding: expected real numbers"),
    (lambda: pn.plot.heatmap([["1"]]), TypeError, "encoding: expected real numbers"),
    (lambda: pn.plot.heatmap(pn.Rotary(8, rotary_dim=0)), ValueError, "a Rotary that rotates"),
    (lambda: pn.plot.heatmap(LEARNED, [-1]), ValueError, "rows of the table, 0 .. 99, got -1"),
    (lambda: pn.plot.waves(8, [0.0, np.nan]), ValueError, "positions: expected finite values"),
    (lambda: pn.plot.waves(8, position=np.inf), ValueError, "position: expected finite values"),
    (lambda: pn.plot.clock(8, [5, 6]), ValueError, r"position: .* one position, got shape \[2\]"),
    (lambda: pn.plot.similarity(8, starts=[0.5]), TypeError, "starts: expected a dtype"),
    (lambda: pn.plot.similarity(8, starts=[2**63 - 9]), ValueError, "starts: .* within int64"),
    (lambda: pn.plot.heatmap(8, 0), ValueError, "positions: expected at least one position"),
    (lambda: pn.plot.heatmap(8, np.zeros((2, 2))), ValueError, r"an int or shape \[n\]"),
    (lambda: pn.plot.heatmap(8, [True]), TypeError, "positions: expected a dtype"),
    (
        lambda: pn.plot.heatmap(LEARNED, [5, 100]), ValueError,
        r"rows of the table, 0 .. 99, got 100",
    ),
    (
        lambda: pn.plot.heatmap(pn.SinusoidalSpec(8, axis_order=(0, 1))), ValueError,
        "a spec of one coordinate",
    ),
    (lambda: pn.plot.waves(8, dimensions=[8]), ValueError, r"some of 0 .. 7, got \[8\]"),
    (lambda: pn.plot.waves(8, dimensions=[]), ValueError, r"some of 0 .. 7, got \[\]"),
    (lambda: pn.plot.waves(8, dimensions=[1], position=2), ValueError, "None with position"),
    (lambda: pn.plot.waves(8, [1, 3, 2]), ValueError, "positions that increase"),
    (lambda: pn.plot.clock(LEARNED, 5), ValueError, "one with frequencies, got a table"),
    (lambda: pn.plot.clock(8, 5, pairs=[4]), ValueError, r"some of 0 .. 3, got \[4\]"),
    (lambda: pn.plot.clock_animation(8, 2, "a.mp4"), ValueError, "ends in .gif, got a.mp4"),
    (
        lambda: pn.plot.clock_animation(8, 2, "a.gif", frames_per_second=0), ValueError,
        "frames_per_second: expected a number > 0",
    ),
    (
        lambda: pn.plot.clock_animation(8, 2, "a.gif", frames_per_second=100), ValueError,
        "frames_per_second: expected at most 50",
    ),
    (
        lambda: pn.plot.clock(8, 5, pairs=1), TypeError,
        "pairs: expected a sequence of ints, got int",
    ),
    (
        lambda: pn.plot.similarity(8, starts=3), TypeError,
        "starts: expected a sequence of positions",
    ),
    (lambda: pn.plot.similarity(8, q=np.ones(8)), ValueError, "None with a table"),
    (lambda: pn.plot.similarity(pn.Rotary(8), k=np.ones(8)), ValueError, "q: expected queries"),
    (
        lambda: pn.plot.similarity(pn.Rotary(8), q=np.ones(4)), ValueError,
        r"\[\.\.\., 8\], got \[4\]",
    ),
    (
        lambda: pn.plot.similarity(pn.Rotary(8), q=np.ones(8), k=np.ones((2, 8))), ValueError,
        r"k: expected shape \[8\], got \[2, 8\]",
    ),
    (lambda: pn.plot.bias(np.zeros((2, 7)), q_len=4), ValueError, "both, or none for a matrix"),
    (lambda: pn.plot.bias(np.zeros((2, 7)), q_len=4, k_len=5), ValueError, r"\[H, 8\], got shape"),
    (lambda: pn.plot.bias(np.zeros(7)), ValueError, "or q_len and k_len with it"),
    (
        lambda: pn.plot.bias(np.zeros((2, 4, 4)), head=2), ValueError,
        r"head: expected some of 0 .. 1, got \[2\]",
    ),
    (
        lambda: pn.plot.bias(np.zeros((2, 4, 4)), heads=[2]), ValueError,
        r"some of 0 .. 1, got \[2\]",
    ),
    (lambda: pn.plot.rotation(QUERIES, 128), TypeError, "rope: expected a Rotary, got int"),
    (
        lambda: pn.plot.rotation(QUERIES[None], LLAMA), ValueError,
        r"\[s, 128\], one head as q\[0, 0\]",
    ),
    (lambda: pn.plot.rotation(QUERIES, LLAMA, 5), ValueError, "48 of them, one a token, got 5"),
    (lambda: pn.plot.frequencies(128), TypeError, "scaled: expected a Rotary, got int"),
    (lambda: pn.plot.frequencies(LLAMA, 128), TypeError, "unscaled: expected a Rotary or None"),
    (lambda: pn.plot.frequencies(LLAMA, pn.Rotary(64)), ValueError, "64 pairs, 1 or more, got 32"),
    (
        lambda: pn.plot.frequencies(pn.Rotary(2, inv_freq=[1])), ValueError,
        "a Rotary to compare with",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_errors_say_what_is_wrong(call, kind, words, figures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=r"^plot\.\w+: .*: expected .*, got ") as caught:
        call()
    caught.match(words)
    assert not figures.get_fignums()  # nothing has been begun
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["heatmap", "waves", "clock", "similarity"])
def test_a_table_that_cannot_be_made_leaves_no_figure(kind, figures):
    with pytest.raises(ValueError, match="have a logarithm"):
        getattr(pn.plot, kind)(pn.SinusoidalSpec(8, logarithm=True), 0 if kind == "clock" else 2)
    assert not figures.get_fignums()


def test_a_file_that_cannot_be_written(tmp_path, figures):
    with pytest.raises(
        FileNotFoundError, match=r"^plot\.clock_animation: path: no folder .*nowhere"
    ):
        pn.plot.clock_animation(8, 2, tmp_path / "nowhere" / "a.gif")
    assert not figures.get_fignums()


def test_without_matplotlib():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import posenc_native as pn\n"
        "try: pn.plot\n"
        "except ImportError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert run.stdout == (
        "posenc_native.plot needs matplotlib: pip install 'posenc-native[plot]'\n"
    ), run.stderr


def test_matplotlib_is_imported_when_it_is_needed():
    code = (
        "import sys, posenc_native as pn\n"
        "assert 'matplotlib' not in sys.modules\n"
        "pn.plot\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# --- to be read -----------------------------------------------------------------------------------


def test_shades_are_told_apart_in_grey():
    red, green, blue = colormaps[drawing.SHADES](np.linspace(0, 1, 256))[:, :3].T
    lightness = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    assert (np.diff(lightness) > 0).all()
    assert lightness[-1] - lightness[0] > 0.7


def contrast(one, other):
    """As WCAG 2 has it: 4.5 is wanted of text, 3 of graphics."""
    red, green, blue = np.power([to_rgb(one), to_rgb(other)], 2.2).T
    dark, light = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("style", ["default", "dark_background", "seaborn-v0_8"])
@pytest.mark.parametrize("name", CALLS)
def test_words_and_lines_are_read_in_every_style(name, style, figures):
    with figures.style.context(style):
        axes = np.ravel(CALLS[name]())
        figures.gcf().canvas.draw()
    paper = axes[0].get_figure().get_facecolor()
    words = [one for one in axes[0].get_figure().findobj(Text) if one.get_text()]
    assert words
    assert min(contrast(one.get_color(), paper) for one in words) > 4.5
    for ax in axes:
        named = [one for one in ax.lines if not one.get_label().startswith("_")]
        assert all(contrast(one.get_color(), paper) > 3 for one in named)
        if ax.images:
            assert not any(one.get_visible() for one in ax.get_xgridlines() + ax.get_ygridlines())


@pytest.mark.parametrize("name", ["similarity", "bias"])
def test_lines_are_told_apart_without_colour(name):
    ax = np.ravel(CALLS[name]())[-1]
    named = [line for line in ax.lines if not line.get_label().startswith("_")]
    assert len(named) in (4, 8)
    assert len({str(line._unscaled_dash_pattern) for line in named}) == len(named)
    if name == "similarity":
        dots = [one for one in ax.collections if isinstance(one, PathCollection)]
        shapes = {one.get_paths()[0].vertices.tobytes() for one in dots}
    else:
        shapes = {line.get_marker() for line in named}
    assert len(shapes) == len(named)


REAL = {
    "heatmap 128": lambda: pn.plot.heatmap(128),
    "heatmap 512": lambda: pn.plot.heatmap(pn.SinusoidalSpec(512, layout="sin_cos"), 4096),
    "heatmap llama": lambda: pn.plot.heatmap(LLAMA, np.arange(10**6, 10**6 + 4096)),
    "waves 128": lambda: pn.plot.waves(128),
    "waves 512": lambda: pn.plot.waves(512, 4096),
    "row 128": lambda: pn.plot.waves(128, position=50),
    "row 512": lambda: pn.plot.waves(pn.SinusoidalSpec(512, layout="sin_cos"), position=4096),
    "clock 128": lambda: pn.plot.clock(128, 100),
    "clock llama": lambda: pn.plot.clock(LLAMA, 4096, pairs=range(20)),
    "similarity 128": lambda: pn.plot.similarity(128),
    "similarity 512": lambda: pn.plot.similarity(512, 4096),
    "similarity llama": lambda: pn.plot.similarity(LLAMA, 4096),
    "bias 8": lambda: pn.plot.bias(pn.alibi_diagonals(8, 100, 100), q_len=100, k_len=100),
    "bias 32": lambda: pn.plot.bias(pn.alibi_diagonals(32, 1024, 4096), q_len=1024, k_len=4096),
    "rotation": lambda: pn.plot.rotation(np.tile(QUERIES, (86, 1))[:4096], LLAMA),
    "frequencies llama": lambda: pn.plot.frequencies(LLAMA),
    "frequencies yarn": lambda: pn.plot.frequencies(pn.Rotary(128, base=1e6, scaling=YARN)),
    "frequencies deepseek": lambda: pn.plot.frequencies(pn.Rotary.preset("deepseek-v3")),
    "frequencies phi": lambda: pn.plot.frequencies(SCALINGS["longrope"][0]),
    "frequencies scout": lambda: pn.plot.frequencies(SCALINGS["step"][0]),
}


@pytest.mark.parametrize("name", REAL)
def test_no_words_are_written_over_others_or_cut_off(name):
    axes = np.ravel(REAL[name]())
    figure = axes[0].get_figure()
    figure.canvas.draw()
    words = []
    for ax in figure.axes:
        for every in (ax, *ax.child_axes):
            ticks = [] if not every.axison else [
                label
                for axis in (every.xaxis, every.yaxis)
                for label in [*axis.get_ticklabels(), axis.get_label()]
                if label is axis.get_label()
                or min(axis.get_view_interval()) - 1e-9
                <= label.get_position()[axis is every.yaxis]
                <= max(axis.get_view_interval()) + 1e-9
            ]  # fmt: skip
            titles = [every.title, every._left_title, every._right_title]
            words += [*ticks, *titles, *every.texts]
    # Of an annotation the words alone, without its arrow.
    seen = [(text, Text.get_window_extent(text)) for text in words if text.get_text().strip()]
    assert len(seen) > 5
    for i, (text, box) in enumerate(seen):
        assert figure.bbox.x0 <= box.x0 + 1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert figure.bbox.y0 <= box.y0 + 1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
        for other, its_box in seen[:i]:
            across = min(box.x1, its_box.x1) - max(box.x0, its_box.x0)
            along = min(box.y1, its_box.y1) - max(box.y0, its_box.y0)
            assert across <= 1 or along <= 1, (text, other)
