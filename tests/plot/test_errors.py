"""Bad calls of pictures, and what happens without matplotlib."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import posenc_native as pn

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from plot_calls import LEARNED, LLAMA, QUERIES

pytestmark = pytest.mark.usefixtures("figures")


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
    (
        lambda: pn.plot.waves(8, np.arange(2**63 - 5, 2**63 - 1)), ValueError,
        "positions: expected positions that the numbers of an axis can tell apart, got positions 9",
    ),
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
    (lambda: pn.plot.rotation(QUERIES, 128), TypeError, "rope: expected a Rotary"),
    (
        lambda: pn.plot.rotation(QUERIES[None], LLAMA), ValueError,
        r"\[s, 128\], one head as q\[0, 0\]",
    ),
    (lambda: pn.plot.rotation(QUERIES, LLAMA, 5), ValueError, "48 of them, one a token, got 5"),
    (lambda: pn.plot.frequencies(128), TypeError, "scaled: expected a Rotary"),
    (lambda: pn.plot.frequencies(LLAMA, 128), TypeError, "unscaled: expected a Rotary"),
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
    assert run.stdout == ("posenc_native.plot needs matplotlib: pip install matplotlib\n"), (
        run.stderr
    )


def test_matplotlib_is_imported_when_it_is_needed():
    code = (
        "import sys, posenc_native as pn\n"
        "assert 'matplotlib' not in sys.modules\n"
        "pn.plot\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
