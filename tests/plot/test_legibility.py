"""Pictures are to be read: contrast, color blindness, gray, no words over others."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from plot_calls import CALLS, LEARNED, LLAMA, QUERIES, SCALINGS, SIZES, YARN

from posenc_native.plot import colors, drawing
from posenc_native.plot.encodings import DIVERGING

pytestmark = pytest.mark.usefixtures("figures")


def linear(srgb):
    srgb = np.asarray(srgb, float)
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def cielab(light):
    """Linear light of sRGB as CIELAB, D65: distances near 1 are just noticed."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
         [0.0193339, 0.1191920, 0.9503041]]
    )  # fmt: skip
    xyz = np.asarray(light) @ to_xyz.T / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


# What linear light becomes for eyes without one kind of cones: Machado et al. 2009, table 1,
# severity 1.
EYES = {
    "all cones": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}  # fmt: skip


def seen(srgb, eyes):
    return cielab(np.clip(linear(srgb) @ np.array(EYES[eyes]).T, 0, 1))


def least_distance(points):
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    return apart[np.triu_indices(len(points), 1)].min()


PALETTES = {"light": colors._ON_LIGHT, "dark": colors._ON_DARK}


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("paper", PALETTES)
def test_colors_of_lines_are_told_apart(paper, eyes):
    """Ten times what is just noticed; in gray three times, and there lines have dashes too."""
    points = seen([to_rgb(color) for color in PALETTES[paper]], eyes)
    assert len(points) == 8
    assert least_distance(points) > 10
    if eyes == "all cones":
        assert least_distance(points[:, :1]) > 3


@pytest.mark.parametrize(
    ("paper", "behind"), [("light", "#ffffff"), ("light", "#eaeaf2"), ("dark", "#000000")]
)
def test_colors_of_lines_stand_out(paper, behind):
    assert min(contrast(color, behind) for color in PALETTES[paper]) > 3


def test_sixty_four_lines_are_told_apart():
    palette = colors.palette(pn.plot.heatmap(8))
    looks = [palette.line(i) for i in range(64)]
    assert len({(color, str(dashes)) for color, dashes, _ in looks}) == 64
    for part in range(3):
        assert len({str(look[part]) for look in looks[:8]}) == 8


def test_a_heat_map_is_white_at_zero_and_alike_on_both_sides():
    """Numbers of the same size have the same weight, and never the color of another one's."""
    shades = colormaps[DIVERGING](np.linspace(0, 1, 256))[:, :3]
    lightness, red_green, blue_yellow = seen(shades, "all cones").T
    assert (lightness[127:129] > 95).all()
    assert (np.hypot(red_green, blue_yellow)[127:129] < 2).all()  # neutral
    assert (np.diff(lightness[:128]) > 0).all()
    assert (np.diff(lightness[128:]) < 0).all()
    assert np.abs(lightness - lightness[::-1]).max() < 6
    for eyes in EYES:
        points = seen(shades, eyes)
        sides = np.linalg.norm(points - points[::-1], axis=-1)
        assert (sides[:102] > 10).all()  # from a fifth of the largest number on


def test_the_colormap_for_gray_grows_lighter_all_the_way():
    """As the documentation of heatmap says."""
    lightness = seen(colormaps["cividis"](np.linspace(0, 1, 256))[:, :3], "all cones")[:, 0]
    assert (np.diff(lightness) > 0).all()
    assert lightness[-1] - lightness[0] > 70


def contrast(one, other):
    """As WCAG 2 has it: 4.5 is wanted of text, 3 of graphics."""
    dark, light = sorted(linear([to_rgb(one), to_rgb(other)]) @ [0.2126, 0.7152, 0.0722])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("style", ["default", "dark_background", "seaborn-v0_8", "grayscale"])
@pytest.mark.parametrize("name", CALLS)
def test_words_lines_and_arrows_are_read_in_every_style(name, style, figures):
    with figures.style.context(style):
        axes = np.ravel(CALLS[name]())
        figures.gcf().canvas.draw()
    paper = axes[0].get_figure().get_facecolor()
    words = [one for one in axes[0].get_figure().findobj(Text) if one.get_text()]
    assert words
    assert min(contrast(one.get_color(), paper) for one in words) > 4.5
    for ax in axes:
        inside = ax.get_facecolor()
        named = [one for one in ax.lines if not one.get_label().startswith("_")]
        hands = [one for one in ax.lines if one.get_marker() == "o"]
        assert all(contrast(one.get_color(), inside) > 3 for one in [*named, *hands])
        if name == "rotation":
            (arrows,) = ax.collections
            assert all(contrast(color, inside) > 3 for color in arrows.get_facecolor())
        if ax.images:
            assert not any(one.get_visible() for one in ax.get_xgridlines() + ax.get_ygridlines())


def test_words_have_the_color_of_the_style(figures):
    with figures.style.context({"text.color": "#224466", "axes.facecolor": "#fff8e8"}):
        ax = pn.plot.waves(8, position=3)
        look = colors.palette(ax)
    assert ax.get_title(loc="left")
    assert ax._left_title.get_color() == look.ink == "#224466"
    assert look.paper == "#fff8e8"


@pytest.mark.parametrize("background", ["none", "#ffffff"])
def test_a_transparent_figure_is_what_its_words_are_for(background, figures):
    with figures.style.context({"axes.facecolor": "none", "figure.facecolor": background}):
        assert colors.palette(figures.figure().add_subplot()).colors == colors._ON_LIGHT
    with figures.style.context(["dark_background", {"axes.facecolor": "none"}]):
        assert colors.palette(figures.figure().add_subplot()).colors == colors._ON_DARK


@pytest.mark.parametrize("name", ["similarity", "bias"])
def test_lines_are_told_apart_without_color(name):
    ax = np.ravel(CALLS[name]())[-1]
    named = [line for line in ax.lines if not line.get_label().startswith("_")]
    assert len(named) == (2 if name == "similarity" else 8)
    assert len({str(line._unscaled_dash_pattern) for line in named}) == len(named)
    if name == "bias":
        assert len({line.get_marker() for line in named}) == len(named)


@pytest.mark.parametrize(("wide", "points"), [(3.3, 7.1), (6.4, 10.0), (10.0, 10.0)])
def test_words_fit_a_column_of_a_paper(wide, points, figures):
    """At 3.3 inches 7 points; and never less than a style asks for, or 6.5."""
    ax = figures.figure(figsize=(wide, 0.78 * wide), layout="constrained").add_subplot()
    pn.plot.waves(128, position=50, ax=ax)
    assert ax.xaxis.label.get_fontsize() == pytest.approx(points, abs=0.2)
    sizes = [one.get_fontsize() for one in ax.figure.findobj(Text) if one.get_text()]
    assert min(sizes) >= 6.5
    with figures.style.context({"font.size": 6}):
        small = figures.figure(figsize=(3.3, 2.5)).add_subplot()
        pn.plot.waves(128, position=50, ax=small)
    assert small.xaxis.label.get_fontsize() == 6.0


REAL = {
    "heatmap 128": lambda: pn.plot.heatmap(128),
    "heatmap 512": lambda: pn.plot.heatmap(pn.SinusoidalSpec(512, layout="sin_cos"), 4096),
    "heatmap llama": lambda: pn.plot.heatmap(LLAMA, np.arange(10**6, 10**6 + 4096)),
    "waves 128": lambda: pn.plot.waves(128),
    "waves 512": lambda: pn.plot.waves(512, 4096),
    "row 128": lambda: pn.plot.waves(128, position=50),
    "row 512": lambda: pn.plot.waves(pn.SinusoidalSpec(512, layout="sin_cos"), position=4096),
    "heatmap rows with names": lambda: pn.plot.heatmap(16, [0, 10, 10**6, 10**12]),
    "clock 128": lambda: pn.plot.clock(128),
    "clock 128 at 100": lambda: pn.plot.clock(128, 100),
    "clock llama": lambda: pn.plot.clock(LLAMA, 4096, pairs=range(20)),
    "similarity 128": lambda: pn.plot.similarity(128),
    "similarity 512": lambda: pn.plot.similarity(512, 4096),
    "similarity llama": lambda: pn.plot.similarity(LLAMA, 4096),
    "similarity learned": lambda: pn.plot.similarity(LEARNED),
    "similarity matrix": lambda: pn.plot.similarity_matrix(LLAMA, np.arange(10**6, 10**6 + 512)),
    "compare": lambda: pn.plot.compare("llama-3", "llama-3.1"),
    "compare, two kinds": lambda: pn.plot.compare("gemma-3-27b", pn.Rotary(128, base=12000.0)),
    "bias 8": lambda: pn.plot.bias(pn.relative.alibi_diagonals(8, 100, 100), q_len=100, k_len=100),
    "bias 32": lambda: pn.plot.bias(
        pn.relative.alibi_diagonals(32, 1024, 4096, q_offset=0), q_len=1024, k_len=4096
    ),
    "bias 32, all": lambda: pn.plot.bias(
        pn.relative.alibi_diagonals(32, 64, 64), q_len=64, k_len=64, heads=range(32), name="ALiBi"
    ),
    "bias t5": lambda: pn.plot.bias(
        pn.relative.t5_diagonals(np.zeros((32, 12)), 64, 64), q_len=64, k_len=64, heads=range(12)
    ),
    "rotation": lambda: pn.plot.rotation(pn.Rotary(128)),
    "rotation of queries": lambda: pn.plot.rotation(LLAMA, x=np.tile(QUERIES, (86, 1))[:4096]),
    "rotation, eight pairs": lambda: pn.plot.rotation(LLAMA, 6, pairs=range(0, 64, 9)),
    "frequencies llama": lambda: pn.plot.frequencies(LLAMA),
    "frequencies yarn": lambda: pn.plot.frequencies(pn.Rotary(128, base=1e6, scaling=YARN)),
    "frequencies deepseek": lambda: pn.plot.frequencies(pn.Rotary.preset("deepseek-v3")),
    "frequencies phi": lambda: pn.plot.frequencies(SCALINGS["longrope"][0]),
    "frequencies scout": lambda: pn.plot.frequencies(SCALINGS["step"][0]),
}


@pytest.mark.parametrize("size", [None, "paper", pytest.param("slide", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", REAL)
def test_no_words_are_written_over_others_or_cut_off(name, size):
    two = name.startswith(("bias", "rotation"))
    with drawing.sized(SIZES[size][two] if size else None):
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
            if every.get_legend() is not None:
                words += every.get_legend().get_texts()
    # Of an annotation the words alone, without its arrow.
    shown = [text for text in words if text.get_text().strip() and text.get_visible()]
    seen = [(text, Text.get_window_extent(text)) for text in shown]
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
