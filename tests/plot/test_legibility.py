"""Pictures are to be read: contrast, grey, no words over others."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from matplotlib import colormaps
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from plot_calls import CALLS, LLAMA, QUERIES, SCALINGS, YARN

from posenc_native.plot import drawing

pytestmark = pytest.mark.usefixtures("figures")


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
    "similarity matrix": lambda: pn.plot.similarity_matrix(LLAMA, np.arange(10**6, 10**6 + 512)),
    "compare": lambda: pn.plot.compare("llama-3", "llama-3.1"),
    "compare, two kinds": lambda: pn.plot.compare("gemma-3-27b", pn.Rotary(128, base=12000.0)),
    "bias 8": lambda: pn.plot.bias(pn.alibi_diagonals(8, 100, 100), q_len=100, k_len=100),
    "bias 32": lambda: pn.plot.bias(
        pn.alibi_diagonals(32, 1024, 4096, q_offset=0), q_len=1024, k_len=4096
    ),
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
