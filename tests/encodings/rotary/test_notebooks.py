"""What notebooks show of a `Rotary`."""

from __future__ import annotations

import inspect
import re
from html import unescape

import pytest

import posenc_native as pn

AXIAL = {"rope_type": "axial", "axes": 2}


@pytest.mark.parametrize(
    "rope",
    [
        pn.Rotary(64, rotary_dim=16, rotary_start=8, base=500.0, pairing=4, layout="bshd"),
        pn.Rotary.preset("phi-3.5-mini", seq_len=100_000),
        pn.Rotary(64, scaling=AXIAL, axis_map=[0] * 16 + [1] * 16, scale=0.5),
        pn.Rotary(8, inv_freq=[1.0, 0.5]),
    ],
    ids=["partial", "scaled", "axes", "frequencies"],
)
def test_a_table_has_each_argument(rope):
    page = rope._repr_html_()
    rows = dict(re.findall("<tr><td>(.*?)</td><td>(.*?)</td></tr>", page))
    rows = {unescape(name): unescape(value) for name, value in rows.items()}
    missing = {*inspect.signature(pn.Rotary).parameters} - {*rows}
    if rope.scaling:
        assert missing == {"scaling"}
        assert {name for name in rows if "[" in name} == {f"scaling[{k!r}]" for k in rope.scaling}
    else:  # of explicit frequencies there are neither base nor scaling
        assert missing == (set() if "base" in rows else {"base", "scaling"})
    for name in ("head_dim", "rotary_dim", "rotary_start", "pairing", "layout", "scale"):
        assert rows[name] == repr(getattr(rope, name))
    assert rows["inv_freq"].startswith(f"({rope.inv_freq[0]:.6g}"[:6])
    assert "'" not in page  # quotes are escaped, as all words are
