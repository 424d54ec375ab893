"""Heatmaps show the table; waves are its columns, or the row of a position."""

from __future__ import annotations

import math

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines.plain import arrays as reference

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from plot_calls import LEARNED, LLAMA, YARN, arrows, curves_and_dots, image, title

from posenc_native.plot.encodings import DIVERGING

pytestmark = pytest.mark.usefixtures("figures")


@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
def test_heatmap_is_the_table(layout):
    ax = pn.plot.heatmap(pn.SinusoidalSpec(64, layout=layout, base=500.0), 30)
    rows = np.arange(30)
    expected = reference.sinusoidal(rows, 64, 500.0, layout, 0.0, 1.0, np.dtype(np.float32), None)
    assert np.allclose(image(ax), expected, rtol=0, atol=2e-7)
    assert ax.images[0].get_clim() == (-1, 1)
    assert list(ax.images[0].get_extent()) == [-0.5, 63.5, 29.5, -0.5]
    assert title(ax) == f"Sinusoidal table dim 64, base 500, {layout}, positions 0 .. 29"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("dimension", "position")
    assert ax.images[0].colorbar.ax.get_ylabel() == "value"


def test_heatmap_of_positions_elsewhere():
    neighbors = pn.plot.heatmap(16, np.arange(1000, 1010))
    assert list(neighbors.images[0].get_extent()) == [-0.5, 15.5, 1009.5, 999.5]
    # Where none is near 1: one shade is one number, in every picture of sines and cosines.
    assert pn.plot.heatmap(2, [1]).images[0].get_clim() == (-1.0, 1.0)
    some = np.array([0, 10, 10**12])
    ax = pn.plot.heatmap(16, some)
    assert np.array_equal(image(ax), pn.sinusoidal(some, 16))
    ax.get_figure().canvas.draw()
    labels = {t.get_position()[1]: t.get_text() for t in ax.get_yticklabels()}
    assert [labels[row] for row in (0, 1, 2)] == ["0", "10", "1,000,000,000,000"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "positions",
    [
        np.arange(2**63 - 5, 2**63 - 1),
        np.arange(4, dtype=np.uint64) + np.uint64(2**64 - 4),
        np.arange(-(2**63), -(2**63) + 4),
        np.array([2**63 - 1, -(2**63)]),
        np.array([2**63 - 1]),
    ],
    ids=["last", "unsigned", "first", "ends", "one"],
)
def test_heatmap_of_positions_that_float64_cannot_tell_apart(positions):
    """Its rows have names in place of a scale."""
    ax = pn.plot.heatmap(16, positions)
    FigureCanvasAgg(ax.figure).draw()
    assert list(ax.images[0].get_extent()) == [-0.5, 15.5, len(positions) - 0.5, -0.5]
    assert np.allclose(image(ax), pn.sinusoidal(positions, 16, dtype=np.float64), atol=2e-7)
    names = [label.get_text() for label in ax.get_yticklabels() if label.get_text()]
    assert names == [f"{position:,}" for position in positions]


def test_heatmap_of_cells_of_a_grid():
    grid = pn.sinusoids.GridCoordinates(first=0.5, extent=2 * math.pi)
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
    before, after = pn.plot.rotation(LLAMA, x=q, pairs=[3])
    for ax, rows in ((before, q.double()), (after, LLAMA.apply(q.double(), layout="sd"))):
        pair = rows.numpy()[:, [3, 67]]
        expected = pair / np.linalg.norm(pair, axis=1).max()
        assert np.allclose(arrows(ax)[0], expected, atol=1e-12)
    diagonals = pn.relative.alibi_diagonals(2, 4, 4, device="cpu")
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
    middle = colormaps[DIVERGING](0.5)
    shown = np.asarray(canvas.buffer_rgba())[20:80, 20:80] / 255
    assert np.abs(shown - middle).max() < 0.03


@pytest.mark.parametrize("encoding", [128, LLAMA, LEARNED])
def test_zero_is_the_middle_of_the_colormap(encoding):
    shades = pn.plot.heatmap(encoding).images[0]
    low, high = shades.get_clim()
    assert low == -high
    red, green, blue, _ = shades.cmap(shades.norm(0.0))
    assert max(red, green, blue) - min(red, green, blue) < 0.01  # neutral
    assert min(red, green, blue) > 0.95


@pytest.mark.parametrize("cmap", ["PuOr", "cividis", colormaps["BrBG"]])
def test_a_colormap_is_chosen(cmap):
    expected = colormaps[cmap] if isinstance(cmap, str) else cmap
    drawn = [
        pn.plot.heatmap(8, 5, cmap=cmap),
        pn.plot.similarity_matrix(pn.Rotary(8), 5, cmap=cmap),
        pn.plot.bias(pn.relative.alibi_diagonals(2, 4, 4), q_len=4, k_len=4, cmap=cmap)[0],
    ]
    for ax in drawn:
        assert ax.images[0].cmap == expected
        assert ax.images[0].norm(0.0) == 0.5


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


@pytest.mark.parametrize(
    ("base", "scale", "first"), [(1e4, 1.0, 0), (100.0, 1.0, 0), (1e4, 0.5, 0), (1e4, 1.0, 300)]
)
def test_wavelengths_are_marked(base, scale, first):
    spec = pn.SinusoidalSpec(128, base=base, scale=scale)
    ax = pn.plot.waves(spec, np.arange(first, first + 100), dimensions=[0, 21, 126])
    lengths = 2 * math.pi * base ** (2 * np.array([0, 10, 63]) / 128) / scale
    assert np.allclose(lengths * scale, pn.sinusoids.wavelengths(128, base)[[0, 10, 63]])
    for arrow, text, length in zip(ax.patches, ax.texts, lengths, strict=True):
        (start, _), (end, _) = arrow._posA_posB
        words = text.get_text()
        assert float(words.split()[1].rstrip(",").replace(",", "")) == pytest.approx(
            length, rel=6e-4
        )
        assert ("longer than shown" in words) == (length > 99)
        assert start == first
        assert end == pytest.approx(first + min(length, 99))


def test_columns_of_sines_are_behind_the_coordinate():
    spec = pn.SinusoidalSpec(9, include_coordinates=True)
    ax = pn.plot.waves(spec, 10, dimensions=[0, 1, 2])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0", "1, sine", "2, cosine"]


def test_waves_of_many_positions():
    ax = pn.plot.waves(512, 4096)
    smooth, dots = curves_and_dots(ax)
    assert len(smooth) == 5
    assert not dots
    chosen = [int(text.get_text().split(",")[0]) for text in ax.get_yticklabels()]
    lengths = pn.sinusoids.wavelengths(512)[np.array(chosen) // 2]
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
        assert np.allclose(row[columns], function(50 * pn.sinusoids.frequencies(128)), atol=1e-6)
    assert named["sine"].get_linestyle() != named["cosine"].get_linestyle()
    low, high = ax.get_ylim()
    assert 2 / (high - low) > 0.8  # from -1 to 1, above the legend
    (top,) = ax.child_axes
    pairs = np.array(named["sine"].get_xdata())
    for x, text in zip(top.get_xticks(), top.get_xticklabels(), strict=True):
        length = float(text.get_text().replace("k", "000"))
        nearest = {
            pn.sinusoids.wavelengths(128)[np.abs(np.array(line.get_xdata()) - x).argmin()]
            for line in (named["sine"], named["cosine"])
            if np.abs(np.array(line.get_xdata()) - x).min() <= 1
        }
        assert any(near == pytest.approx(length, rel=0.16) for near in nearest), pairs
    assert len(top.get_xticks()) == (4 if layout == "interleaved" else 8)
