"""Pictures of scaled frequencies: parts of the unscaled ones, bands and bounds of the rules."""

from __future__ import annotations

import math

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.core.frequencies.scaling import rotary_blend

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from plot_calls import LLAMA, SCALINGS, title

pytestmark = pytest.mark.usefixtures("figures")


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_parts_of_the_unscaled(name):
    scaled, unscaled = SCALINGS[name]
    ax = pn.plot.frequencies(scaled, unscaled)
    if unscaled is None:
        base = (scaled.scaling or {}).get("rope_theta", scaled.base)
        plain = pn.rotary.rotary_frequencies(scaled.rotary_dim, base)[0]
    else:
        plain = unscaled.inv_freq
    parts = scaled.inv_freq / plain
    assert np.array_equal(
        ax.lines[0].get_ydata(), np.where(parts > 0, parts, np.nan), equal_nan=True
    )
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("pair", "scaled / unscaled")
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
    marks = [line for line in ax.lines if not line.get_label().startswith("_")]
    lengths = 2 * math.pi / pn.rotary.rotary_frequencies(128, 5e5)[0]
    places = [line.get_xdata()[0] for line in marks]
    at = np.exp(np.interp(places, np.arange(64), np.log(lengths)))
    assert np.allclose(at, [8192 / 4, 8192 / 1], rtol=1e-9)
    assert len({line.get_linestyle() for line in marks}) == 2
    first, second = (text.get_text() for text in ax.get_legend().get_texts())
    assert first == "4 turns in 8,192 (high_freq_factor)"
    assert second == "1 turn in 8,192 (low_freq_factor)\nfirst training: 8,192 positions"


@pytest.mark.parametrize("name", ["llama3", "yarn", "yarn, bounds not rounded", "step"])
def test_a_blend_is_what_the_frequencies_are_made_of(name):
    rope, _ = SCALINGS[name]
    blend = rotary_blend("test", rope.rotary_dim, rope.base, rope.scaling)
    assert blend is not None
    plain = pn.rotary.rotary_frequencies(rope.rotary_dim, rope.base)[0]
    assert np.array_equal(blend.kept + blend.slowed, np.ones(len(plain)))
    assert np.array_equal(blend.of(plain, rope.scaling["factor"]), rope.inv_freq)
    turns = blend.trained * plain / (2 * math.pi)
    if not rope.scaling.get("truncate", name == "yarn"):  # bounds as they are given
        assert ((blend.kept == 1) == (turns >= blend.fast[1])).all()
        assert ((blend.slowed == 1) == (turns <= blend.slow[1])).all()


def test_scalings_that_treat_all_alike_have_no_bands():
    assert rotary_blend("test", 64, 1e4, {"rope_type": "linear", "factor": 2.0}) is None
    assert not pn.plot.frequencies(SCALINGS["linear"][0]).texts


def test_a_pair_that_stands_still_has_no_length():
    scaled, unscaled = (pn.Rotary(4, inv_freq=[w, 0.0]) for w in (0.5, 1.0))
    ax = pn.plot.frequencies(scaled, unscaled)
    assert not ax.child_axes
    assert title(ax).endswith("1 pairs do not turn")
