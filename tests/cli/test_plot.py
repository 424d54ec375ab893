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


def npy(header: str, numbers: bytes = b"") -> bytes:
    """A .npy file of version 1.0 with this header, whatever it promises."""
    text = header.ljust(117).encode("ascii") + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + numbers


@pytest.mark.parametrize(
    ("descr", "shape", "said"),
    [
        ("<f4", (2**60,), "is no .npy file of numbers"),
        ("<f4", (2**62, 4), "is no .npy file of numbers"),
        ("<f4", (10**11, 64), "is no .npy file of numbers"),  # 24 TiB
        ("<f4", (-1, 64), "is no .npy file of numbers"),
        ("<f4", (0, 2**60), "has no numbers"),
        ("|O", (1,), "is no .npy file of numbers"),
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
    assert cli.main(shlex.split("plot rotation --head-dim 64 --x x.npy -o x.png")) == 1
    assert said in one_line(capsys)
    assert not Path("x.png").exists()


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000])
def test_json_that_is_too_deep_or_too_long(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert cli.main(["plot", "frequencies", "--head-dim", "64", "--scaling", text]) == 2
    assert "--scaling: expected a JSON object like" in one_line(capsys)
    assert (
        cli.main(
            ["plot", "heatmap", "--preset", "transformer", "--set", f"base={text}", "-o", "x.png"]
        )
        == 2
    )
    assert "--set: expected" in one_line(capsys)
