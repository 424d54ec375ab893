"""posenc-native plot."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path

import pytest
from command_line import commands, one_line

from posenc_native import cli


@pytest.mark.usefixtures("model")
def test_windows_need_a_display(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setattr(matplotlib, "use", lambda backend: None)
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    assert cli.main(["plot", "heatmap"]) == 1
    assert one_line(capsys) == (
        "posenc-native plot heatmap: there is no display to open a window on: -o FILE writes a file"
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


def test_defaults_are_those_of_the_functions() -> None:
    plot = pytest.importorskip("posenc_native.plot", exc_type=ImportError)
    parsers = {parser.prog.split()[-1]: parser for parser in commands()}
    seen = 0
    for kind, function in (
        ("heatmap", plot.heatmap),
        ("waves", plot.waves),
        ("clock", plot.clock),
        ("clock", plot.clock_animation),
        ("similarity", plot.similarity),
        ("bias", plot.bias),
        ("rotation", plot.rotation),
    ):
        for name, parameter in inspect.signature(function).parameters.items():
            default = parameter.default
            if default in (None, parameter.empty) or (kind == "bias" and name == "q_offset"):
                continue
            typed = parsers[kind].get_default(name)
            assert (int(typed) if name == "positions" else typed) == default, (kind, name)
            seen += 1
    assert seen >= 6
