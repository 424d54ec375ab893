"""Where pictures are drawn: a new figure, or axes that are given."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from plot_calls import CALLS

pytestmark = pytest.mark.usefixtures("figures")

PANELS = {name: 2 if name in ("bias", "rotation") else 1 for name in CALLS}


def test_every_function_has_a_call_here():
    assert set(CALLS) | {"clock_animation"} == set(pn.plot.__all__) | {"row"}


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


def test_axes_of_a_part_of_a_figure(tmp_path, figures):
    parts = Figure(figsize=(16, 5), layout="constrained").subfigures(1, 2)
    pn.plot.heatmap(16, ax=parts[0].subplots())
    given = parts[1].subplots()
    assert pn.plot.clock_animation(16, 2, str(tmp_path / "a.GIF"), ax=given) is given
    with Image.open(tmp_path / "a.GIF") as picture:
        assert picture.size == (1600, 500)  # the whole figure
    assert given.get_title(loc="left")
    assert not figures.get_fignums()


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_axes(name):
    with pytest.raises(TypeError, match=r"plot\.\w+: ax: expected .*Axes or None, got "):
        CALLS[name](object())
    with pytest.raises((TypeError, ValueError), match=r"plot\.\w+: ax: expected .*Axes.*, got "):
        CALLS[name](Figure().subplots(1, 3))
