"""posenc-native plot."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path

import pytest
from command_line import refusal

from posenc_native import cli
from posenc_native.cli import pictures
from posenc_native.cli.positions import Positions

PICTURES = [function.__name__ for function, *_ in pictures.PICTURES] + ["clock_animation"]


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
        "heatmap: there is no display to open a window on: -o FILE writes a file\n"
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


@pytest.mark.parametrize("name", PICTURES)
def test_defaults_are_those_of_the_functions(name: str) -> None:
    plot = pytest.importorskip("posenc_native.plot", exc_type=ImportError)
    theirs = inspect.signature(getattr(plot, name)).parameters
    ours = inspect.signature(getattr(pictures, name)).parameters
    for option in {*theirs} & {*ours}:
        default, expected = ours[option].default, theirs[option].default
        found = default.count if isinstance(default, Positions) else default
        # The length of a bias and the positions of an animation have a default here alone.
        assert found == expected or expected in (None, inspect.Parameter.empty), option


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
    assert said in refusal("plot rotation --head-dim 64 --x x.npy -o x.png", 1, capsys)
    assert not Path("x.png").exists()


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000])
def test_json_that_is_too_deep_or_too_long(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    said = refusal(f"plot frequencies --head-dim 64 --scaling {text}", 2, capsys)
    assert "--scaling: expected a JSON object like" in said
    command = f"plot heatmap --preset transformer --set base={text} -o x.png"
    assert "--set: expected" in refusal(command, 2, capsys)
