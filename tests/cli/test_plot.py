"""posenc-native plot."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refusal

import posenc_native as pn
from posenc_native import cli, plot
from posenc_native.cli import pictures


@pytest.mark.usefixtures("model")
def test_windows_need_a_display(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setattr(matplotlib, "use", lambda backend: None)
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    said = refusal("plot heatmap", 1, capsys)
    assert said.endswith(
        "heatmap: there is no display to open a window on: write a file with -o FILE\n"
    )


@pytest.mark.usefixtures("model")
def test_pictures() -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    assert cli.main(shlex.split("plot heatmap --size 4x3 --dpi 50 -o h.png")) == 0
    with image.open("h.png") as picture:
        assert picture.size == (200, 150)
    assert cli.main(shlex.split("plot clock --dim 8 --positions 3,5 --pairs 0,1 -o c.gif")) == 0
    with image.open("c.gif") as picture:
        assert picture.n_frames == 2
    assert cli.main(shlex.split("plot bias --kind kerple --r1 1,2 --r2 3,4 -o b.pdf")) == 0
    assert Path("b.pdf").read_bytes().startswith(b"%PDF")
    assert cli.main(shlex.split("plot waves --preset whisper --dim 8 -o w.svg")) == 0


def test_a_command_has_every_option() -> None:
    """But arguments that are objects of Python."""
    missing = set()
    for name in plot.__all__:
        typed = inspect.signature(pictures.Picture(name, positions=3)).parameters
        missing |= {*inspect.signature(getattr(plot, name)).parameters} - {*typed}
    assert missing == {"ax", "bias", "path", "unscaled"}


# A command and the call of posenc_native.plot, of what the files below have.
SAME: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "heatmap": ("heatmap --dim 128", lambda plot: plot.heatmap(128)),
    "heatmap, options": (
        "heatmap --dim 8 --layout sin_cos --positions 5:9 --cmap PuOr",
        lambda plot: plot.heatmap(
            pn.SinusoidalSpec(8, layout="sin_cos"), np.arange(5, 9), cmap="PuOr"
        ),
    ),
    "waves": ("waves --dim 128", lambda plot: plot.waves(128)),
    "waves, a row": ("waves --dim 64 --position 7", lambda plot: plot.waves(64, position=7)),
    "clock": ("clock --head-dim 128", lambda plot: plot.clock(pn.Rotary(128))),
    "clock, options": (
        "clock --dim 64 --position 9 --pairs 0,3",
        lambda plot: plot.clock(64, 9, pairs=[0, 3]),
    ),
    "similarity": ("similarity --head-dim 128", lambda plot: plot.similarity(pn.Rotary(128))),
    "similarity, options": (
        "similarity --head-dim 16 --offsets 9 --starts 3,4 --q q.npy --k k.npy",
        lambda plot: plot.similarity(
            pn.Rotary(16), 9, starts=[3, 4], q=np.load("q.npy"), k=np.load("k.npy")
        ),
    ),
    "similarity_matrix": ("similarity-matrix --dim 32", lambda plot: plot.similarity_matrix(32)),
    "similarity_matrix, options": (
        "similarity-matrix --head-dim 16 --positions 6 --q q.npy --cmap cividis",
        lambda plot: plot.similarity_matrix(pn.Rotary(16), 6, q=np.load("q.npy"), cmap="cividis"),
    ),
    "compare": (
        "compare llama-3 llama-3.1 --positions 4096",
        lambda plot: plot.compare("llama-3", "llama-3.1", 4096),
    ),
    "bias": (
        "bias",
        lambda plot: plot.bias(
            pn.relative.alibi_diagonals(8, 64, 64), q_len=64, k_len=64, name="ALiBi"
        ),
    ),
    "bias, options": (
        (
            "bias --kind t5 --table table.npy --q-len 4 --k-len 9 --q-offset 5 --head 1 --name x "
            "--cmap BrBG --heads 0,1"
        ),
        lambda plot: plot.bias(
            pn.relative.t5_diagonals(np.load("table.npy"), 4, 9, q_offset=5),
            q_len=4, k_len=9, q_offset=5, head=1, heads=[0, 1], name="x", cmap="BrBG",
        ),
    ),
    "rotation": ("rotation", lambda plot: plot.rotation(pn.Rotary(128))),
    "rotation, a base": (
        "rotation --base 500", lambda plot: plot.rotation(pn.Rotary(128, base=500.0)),
    ),
    "rotation, options": (
        "rotation --head-dim 16 --x heads.npy --head 3 --positions 7:12 --pairs 1,2 --tokens 0,4",
        lambda plot: plot.rotation(
            pn.Rotary(16), np.arange(7, 12), x=np.load("heads.npy")[1, 1], pairs=[1, 2],
            tokens=[0, 4],
        ),
    ),
    "frequencies, of nothing": ("frequencies", lambda plot: plot.frequencies(pn.Rotary(128))),
    "frequencies": (
        "frequencies --preset llama-3.1",
        lambda plot: plot.frequencies(pn.Rotary.preset("llama-3.1")),
    ),
}  # fmt: skip


def test_every_picture_is_a_command_that_is_compared() -> None:
    drawn_here = {name.partition(",")[0] for name in SAME}
    assert drawn_here == {picture.__name__ for picture, *_ in pictures.PICTURES}
    assert drawn_here | {"clock_animation"} == {*plot.__all__}


def drawn(figure: Any) -> str:
    """The data, words and colors of a figure, as far as a reader sees them."""
    found: list[Any] = [tuple(figure.get_size_inches())]
    for outer in figure.axes:
        for ax in (outer, *outer.child_axes):
            words = [
                ax._left_title.get_text(),
                ax.xaxis.get_label_text(),
                ax.yaxis.get_label_text(),
            ]
            words += [text.get_text() for text in ax.texts]
            legend = ax.get_legend()
            words += [text.get_text() for text in legend.get_texts()] if legend else []
            found += [words, ax.get_xlim(), ax.get_ylim()]
            found += [(line.get_xydata().tolist(), line.get_color()) for line in ax.lines]
            for image in ax.images:
                shades = (image.cmap.name, image.get_clim(), image.get_extent())
                found += [np.asarray(image.get_array()).tolist(), shades]
            for one in ax.collections:
                found += [np.asarray(one.get_offsets()).tolist(), one.get_facecolor().tolist()]
                found += [(one.U.tolist(), one.V.tolist())] if hasattr(one, "U") else []
            found += [patch.get_path().vertices.tolist() for patch in ax.patches]
    return repr(found)  # where NaN is NaN


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(3)
    shapes = {
        "q": (5, 16), "k": (5, 16), "heads": (2, 2, 5, 16), "table": (32, 2),
    }  # fmt: skip
    for name, shape in shapes.items():
        np.save(name, random.standard_normal(shape))


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("name", SAME)
def test_the_command_draws_what_the_function_draws(
    name: str, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, call = SAME[name]
    with monkeypatch.context() as patch:
        patch.setattr(figures, "close", lambda figure: None)
        assert cli.main(["plot", *shlex.split(command), "-o", "a.svg"]) == 0
    (number,) = figures.get_fignums()
    by_command = figures.figure(number)
    call(plot)
    by_call = figures.gcf()
    assert by_call is not by_command
    by_call.savefig("b.svg")  # which lays out words, as the other was
    assert drawn(by_command) == drawn(by_call)


@pytest.mark.usefixtures("vectors")
def test_an_animation_is_that_of_the_function(figures: Any) -> None:
    command = "plot clock --dim 32 --positions 3 --pairs 0,2 --frames-per-second 5"
    assert cli.main(shlex.split(f"{command} -o a.gif")) == 0
    plot.clock_animation(32, 3, "b.gif", pairs=[0, 2], frames_per_second=5)
    assert Path("a.gif").read_bytes() == Path("b.gif").read_bytes()
    assert cli.main(shlex.split(f"{command} --size 3.3x2.6 -o c.gif")) == 0
    ax = figures.figure(figsize=(3.3, 2.6), layout="constrained").add_subplot()
    plot.clock_animation(32, 3, "d.gif", pairs=[0, 2], frames_per_second=5, ax=ax)
    assert Path("c.gif").read_bytes() == Path("d.gif").read_bytes()


@pytest.mark.usefixtures("vectors")
def test_words_fit_the_size_that_is_asked_for(
    figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of Axes of that size: they are smaller in a column of a paper."""
    with monkeypatch.context() as patch:
        patch.setattr(figures, "close", lambda figure: None)
        assert cli.main(shlex.split("plot waves --dim 8 --size 3.3x2.6 -o a.svg")) == 0
    by_command = figures.gcf().axes[0]
    ax = figures.figure(figsize=(3.3, 2.6), layout="constrained").add_subplot()
    plot.waves(8, ax=ax)
    assert by_command.xaxis.label.get_fontsize() == ax.xaxis.label.get_fontsize() < 8
    assert by_command.get_title(loc="left") == ax.get_title(loc="left")


def npy(header: str, numbers: bytes = b"") -> bytes:
    """A .npy file of version 1.0 with this header, whatever it promises."""
    text = header.ljust(117).encode("ascii") + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + numbers


@pytest.mark.parametrize(
    ("descr", "shape", "said"),
    [
        ("<f4", (2**60,), "is not a .npy file of numbers"),
        ("<f4", (2**62, 4), "is not a .npy file of numbers"),
        ("<f4", (10**11, 64), "is not a .npy file of numbers"),  # 24 TiB
        ("<f4", (-1, 64), "is not a .npy file of numbers"),
        ("<f4", (0, 2**60), "has no numbers"),
        ("|O", (1,), "is not a .npy file of numbers"),
    ],
)
def test_a_head_that_promises_more_than_there_is(
    descr: str, shape: tuple[int, ...], said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    Path("x.npy").write_bytes(npy(header, bytes(8)))
    assert said in refusal("plot rotation --head-dim 64 --x x.npy -o x.png", 1, capsys)
    assert not Path("x.png").exists()


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000])
def test_json_that_is_too_deep_or_too_long(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    said = refusal(f"plot frequencies --head-dim 64 --scaling {text}", 2, capsys)
    assert "--scaling: expected a JSON object like" in said
    command = f"plot heatmap --preset transformer --set base={text} -o x.png"
    assert "--set: expected" in refusal(command, 2, capsys)
