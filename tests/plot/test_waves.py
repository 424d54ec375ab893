"""Waves are columns of a table, or rows of a position."""

from __future__ import annotations

import math

import numpy as np
import pytest

import posenc_native as pn

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from plot_calls import LEARNED, LLAMA, curves_and_dots

pytestmark = pytest.mark.usefixtures("figures")


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
