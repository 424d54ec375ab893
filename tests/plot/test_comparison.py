"""The picture of two rotations: its curves are errors, its marks where bfloat16 shows them."""

from __future__ import annotations

import numpy as np
import pytest

import posenc_native as pn

pytest.importorskip("matplotlib")


def test_a_curve_is_the_largest_error_so_far() -> None:
    a, b = pn.Rotary(16), pn.Rotary(16, base=12000.0)
    (line, *_) = pn.plot.compare(a, b, 3000).lines
    places, errors = (np.asarray(each) for each in (line.get_xdata(), line.get_ydata()))
    assert places[0] == 1
    assert places[-1] == 2999
    tables = [np.array(each.tables(places.astype(np.int64), dtype=np.float64)) for each in (a, b)]
    apart = np.abs(tables[0] - tables[1]).max((0, 2))
    np.testing.assert_allclose(errors, np.maximum.accumulate(apart), rtol=1e-12)


def test_a_mark_is_the_first_position_that_bfloat16_shows() -> None:
    ax = pn.plot.compare("llama-3", "llama-3.1", 8192)
    (error,) = pn.compare("llama-3", "llama-3.1").errors
    (dots,) = ax.collections
    assert dots.get_offsets()[0].tolist() == [error.first_visible, 2.0**-9]
    assert f"from position {error.first_visible}" in [text.get_text() for text in ax.texts]


def test_a_curve_for_each_kind_of_layer() -> None:
    ax = pn.plot.compare("gemma-3-27b", pn.Rotary(128, base=1e5))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["full_attention", "sliding_attention", "what bfloat16 can show, 1/512"]


def test_a_curve_is_thinner_where_room_is_short() -> None:
    from matplotlib import pyplot

    widths = []
    for size in ((8.0, 4.4), (2.0, 1.6)):
        _, ax = pyplot.subplots(figsize=size)
        widths.append(pn.plot.compare("llama-3", "llama-3.1", 100, ax=ax).lines[0].get_linewidth())
    # The least part of its usual size.
    assert widths[1] == pytest.approx(0.7 * widths[0])


def test_marks_at_one_position_surround_each_other() -> None:
    ax = pn.plot.compare("gemma-3-27b", pn.Rotary(128, base=12000.0))
    outer, inner = ax.collections
    assert outer.get_offsets().tolist() == inner.get_offsets().tolist()
    assert outer.get_sizes()[0] > inner.get_sizes()[0]
    assert [text.get_text() for text in ax.texts] == ["from position 1"]
