"""Bad calls of pictures, and what happens without matplotlib."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import posenc_native as pn

pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is not installed")

from plot_calls import LEARNED, LLAMA, QUERIES

from posenc_native import plot

pytestmark = pytest.mark.usefixtures("figures")

SMALL = pn.Rotary(8)
ENDS_AT_THE_LAST = np.arange(2**63 - 5, 2**63 - 1)

WRONG_VALUES = [
    (lambda: plot.heatmap(7), "^plot.heatmap: encoding: expected an even int, got 7"),
    (lambda: plot.heatmap(0), "encoding: expected a dim > 0"),
    (lambda: plot.heatmap(np.zeros(3)), r"a table \[positions, dim\], got shape \[3\]"),
    (lambda: plot.heatmap(pn.Rotary(8, rotary_dim=0)), "a Rotary that rotates"),
    (lambda: plot.heatmap(pn.SinusoidalSpec(8, axis_order=(0, 1))), "a spec of one coordinate"),
    (lambda: plot.heatmap(8, 0), "positions: expected at least one position"),
    (lambda: plot.heatmap(8, np.zeros((2, 2))), r"an int or shape \[n\]"),
    (lambda: plot.heatmap(8, cmap="rdbu"), "cmap: expected a colormap of matplotlib, .* 'rdbu'"),
    (lambda: plot.similarity_matrix(8, cmap=""), "a colormap of matplotlib"),
    (lambda: plot.bias(np.zeros((2, 4, 4)), cmap="hot_r_r"), "a colormap of matplotlib"),
    (lambda: plot.heatmap(LEARNED, [-1]), "rows of the table, 0 .. 99, got -1"),
    (lambda: plot.heatmap(LEARNED, [5, 100]), "rows of the table, 0 .. 99, got 100"),
    (lambda: plot.waves(8, [0.0, np.nan]), "positions: expected finite values"),
    (lambda: plot.waves(8, position=np.inf), "position: expected finite values"),
    (lambda: plot.waves(8, [1, 3, 2]), "positions that increase"),
    (lambda: plot.waves(8, ENDS_AT_THE_LAST), "an axis can tell apart, got positions 9"),
    (lambda: plot.waves(8, dimensions=[8]), r"some of 0 .. 7, got \[8\]"),
    (lambda: plot.waves(8, dimensions=[]), r"some of 0 .. 7, got \[\]"),
    (lambda: plot.waves(8, dimensions=[1], position=2), "None with position"),
    (lambda: plot.clock(8, [5, 6]), r"position: .* one position, got shape \[2\]"),
    (lambda: plot.clock(LEARNED, 5), "one with frequencies, got a table"),
    (lambda: plot.clock(8, 5, pairs=[4]), r"some of 0 .. 3, got \[4\]"),
    (
        lambda: plot.clock(pn.SinusoidalSpec(8, logarithm=True)),
        "position: expected a position: steps of a logarithm",
    ),
    (lambda: plot.clock_animation(8, 2, "a.mp4"), "ends in .gif, got a.mp4"),
    (
        lambda: plot.clock_animation(8, 2, "a.gif", frames_per_second=0),
        "frames_per_second: expected a number > 0",
    ),
    (
        lambda: plot.clock_animation(8, 2, "a.gif", frames_per_second=100),
        "frames_per_second: expected at most 50",
    ),
    (lambda: plot.similarity(8, starts=[2**63 - 9]), "starts: .* within int64"),
    (lambda: plot.similarity(8, q=np.ones(8)), "rotary encoding with them, got a sinusoidal table"),
    (lambda: plot.similarity(SMALL, k=np.ones(8)), "q: expected queries"),
    (lambda: plot.similarity(SMALL, q=np.ones(4)), r"\[\.\.\., 8\], got \[4\]"),
    (
        lambda: plot.similarity(SMALL, q=np.ones(8), k=np.ones((2, 8))),
        r"k: expected shape \[8\], got \[2, 8\]",
    ),
    (lambda: plot.similarity_matrix(LEARNED, k=np.ones(8)), "q, k: .* got a table"),
    (lambda: plot.similarity_matrix(SMALL, 5, k=np.ones(8)), "q: expected queries"),
    (lambda: plot.compare(LLAMA, LLAMA, 1), "positions: expected a count in 2"),
    (lambda: plot.compare(LLAMA, SMALL), "first, second: expected layers that rotate in both"),
    (lambda: plot.bias(np.zeros((2, 7)), q_len=4), "both, or none for a matrix"),
    (lambda: plot.bias(np.zeros((2, 7)), q_len=4, k_len=5), r"\[H, 8\], got shape"),
    (lambda: plot.bias(np.zeros(7)), "or q_len and k_len with it"),
    (lambda: plot.bias(np.zeros((2, 4, 4)), head=2), r"head: expected some of 0 .. 1, got \[2\]"),
    (lambda: plot.bias(np.zeros((2, 4, 4)), heads=[2]), r"some of 0 .. 1, got \[2\]"),
    (lambda: plot.rotation(LLAMA, x=QUERIES[0]), r"\[s, 128\], or with axes in front, got \[128\]"),
    (lambda: plot.rotation(LLAMA, x=QUERIES[None], head=1), r"head: .* some of 0 .. 0, got \[1\]"),
    (lambda: plot.rotation(LLAMA, x=np.zeros((2, 0, 128))), r"x: .* got \[2, 0, 128\]"),
    (lambda: plot.rotation(LLAMA, 5, x=QUERIES), "48 of them, one a token, got 5"),
    (lambda: plot.rotation(LLAMA, x=QUERIES, pairs=[64]), r"pairs: expected some of 0 .. 63, got"),
    (lambda: plot.rotation(LLAMA, x=QUERIES, tokens=[48]), r"tokens: .* some of 0 .. 47, got"),
    (lambda: plot.rotation(LLAMA, 2, tokens=[2]), r"tokens: expected some of 0 .. 1, got"),
    (lambda: plot.rotation(pn.Rotary(8, rotary_dim=0)), "rope: expected a Rotary that"),
    (lambda: plot.frequencies(LLAMA, pn.Rotary(64)), "64 pairs, 1 or more, got 32"),
    (lambda: plot.frequencies(pn.Rotary(2, inv_freq=[1])), "a Rotary to compare with"),
]

WRONG_KINDS = [
    (lambda: plot.heatmap("128"), "encoding: expected an int .* got str"),
    (lambda: plot.heatmap(True), "encoding: .* got bool"),
    (lambda: plot.heatmap(np.zeros((3, 2), complex)), "real numbers, got complex128"),
    (lambda: plot.heatmap([["a"]]), "encoding: expected real numbers"),
    (lambda: plot.heatmap([["1"]]), "encoding: expected real numbers"),
    (lambda: plot.heatmap(8, cmap=None), "cmap: expected the name of a colormap.* got NoneType"),
    (lambda: plot.bias(np.zeros((4, 4)), name=8), "name: expected a str or None, got int"),
    (lambda: plot.rotation(128), "rope: expected a Rotary"),
    (lambda: plot.heatmap(8, [True]), "positions: expected a dtype"),
    (lambda: plot.clock(8, 5, pairs=1), "pairs: expected a sequence of ints, got int"),
    (lambda: plot.similarity(8, starts=[0.5]), "starts: expected a dtype"),
    (lambda: plot.similarity(8, starts=3), "starts: expected a sequence of positions"),
    (lambda: plot.rotation(128, x=QUERIES), "rope: expected a Rotary"),
    (lambda: plot.frequencies(128), "scaled: expected a Rotary"),
    (lambda: plot.frequencies(LLAMA, 128), "unscaled: expected a Rotary"),
]

BAD_CALLS = [
    *((ValueError, *each) for each in WRONG_VALUES),
    *((TypeError, *each) for each in WRONG_KINDS),
]


@pytest.mark.parametrize(("kind", "call", "words"), BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_errors_say_what_is_wrong(kind, call, words, figures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=r"^plot\.\w+: .*: expected .*, got ") as caught:
        call()
    caught.match(words)
    assert not figures.get_fignums()  # nothing has been begun
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["heatmap", "waves", "clock", "similarity"])
def test_a_table_that_cannot_be_made_leaves_no_figure(kind, figures):
    with pytest.raises(ValueError, match=r"positions: expected .* above 0, .* logarithm"):
        getattr(plot, kind)(pn.SinusoidalSpec(8, logarithm=True), 0 if kind == "clock" else 2)
    assert not figures.get_fignums()


def test_a_file_that_cannot_be_written(tmp_path, figures):
    words = r"^plot\.clock_animation: path: no folder .*nowhere"
    with pytest.raises(FileNotFoundError, match=words):
        plot.clock_animation(8, 2, tmp_path / "nowhere" / "a.gif")
    assert not figures.get_fignums()


def test_other_names_of_a_picture():
    for name, like in (("decay", "similarity"), ("heat_map", "heatmap"), ("gif", "clock or clock")):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; did you mean {like}"):
            getattr(plot, name)


def test_matplotlib_is_imported_when_a_picture_is_drawn():
    """And where there is none, the error says what to install."""
    code = (
        "import inspect, sys, posenc_native as pn\n"
        "assert inspect.signature(pn.plot.heatmap).parameters['cmap'].default\n"
        "assert 'matplotlib' not in sys.modules\n"
        "sys.modules['matplotlib'] = None\n"
        "try: pn.plot.heatmap(8)\n"
        "except ImportError as error: print(error)\n"
        "del sys.modules['matplotlib']\n"
        "from matplotlib.figure import Figure\n"
        "pn.plot.heatmap(8, ax=Figure().add_subplot())\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert run.stdout == "posenc_native.plot needs matplotlib: pip install matplotlib\n", run.stderr
    assert not run.returncode, run.stderr
