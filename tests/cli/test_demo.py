"""The demonstration, and errors of one line."""

from __future__ import annotations

import importlib.resources
import importlib.util
import itertools
from pathlib import Path
from typing import Any

import mpmath
import pytest
from command_line import one_line, run

from posenc_native import cli
from posenc_native.base.optional import install_command
from posenc_native.cli import demo
from posenc_native.cli.demo import measure, show
from posenc_native.cli.demo.exact import exact_cos_sin

# --- demo -----------------------------------------------------------------------------------------


def needs_everything() -> None:
    for name in ("torch", "transformers", "matplotlib", "rich"):
        pytest.importorskip(name)


def test_demo(tmp_path: Path) -> None:
    needs_everything()
    text, picture = tmp_path / "text.txt", tmp_path / "picture.png"
    text.write_bytes("Ein kurzer Text, nicht nur in ASCII: äöü. ".encode() * 2)
    result = run("demo", "--quick", "--tokens", "3", "--text", str(text), "--out", str(picture))
    assert result.returncode == 0, result.stderr
    for words in (
        "greedy continuation",
        "the same",
        "prefill, 90 tokens",
        "decode, 1 token",
        "near position 4,096",
        "near position 131,072",
        "near position 1,048,576",
        "100 %",
    ):
        assert words in result.stdout
    assert "…" not in result.stdout  # nothing is cut at the 80 columns of a plain terminal
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.stat().st_size > 20_000


def test_figures_of_a_small_run() -> None:
    needs_everything()
    seen: list[float] = []
    figures = measure.both_ways(
        b"a short text to read",
        5,
        measure.Sizes(context=16, moved=8, prefill_repeats=2, decode_repeats=3),
        lambda _, fraction: seen.append(fraction),
    )
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(seen))
    assert 0.0 <= seen[0] < 0.5 < 0.9 < seen[-1] <= 1.0 + 1e-9
    assert figures.tokens == 16
    assert figures.same_tokens() == 5
    assert figures.difference < 1e-4 * figures.spread
    theirs, ours = figures.moved
    assert ours < 1e-4 * figures.spread
    assert theirs > 10 * ours
    assert all(seconds > 0 for seconds in (*figures.prefill, *figures.decode))
    for position in measure.SHOWN_POSITIONS:
        theirs, ours = figures.errors[position]
        assert ours < 1.2e-7
        assert position * 2.0**-27 < theirs < position * 2.0**-22


def test_table_says_where_continuations_part() -> None:
    figures = measure.Figures(
        tokens=1000,
        spread=2.0,
        difference=0.5,
        continuation=([1, 2, 3, 4], [1, 2, 5, 4]),
        moved=(0.5, 1.0),
        prefill=(2.5, 0.05, 25e-6),
        decode=(1e-4, 2e-4, 1e-4),
        errors=dict.fromkeys(measure.SHOWN_POSITIONS, (0.1, 1e-7)),
        facts="",
    )
    same, time, _ = show.sections(figures)
    assert [row[3] for row in same.rows] == ["2e-01 of spread", "same up to 2", "2.0× more"]
    assert [row[1:] for row in time.rows] == [
        ("2.5 s", "50 ms", "50× faster"),
        ("2.5 s", "25 µs", "100,000× faster"),
        ("100 µs", "200 µs", "2.0× slower"),
    ]


def test_exact_cos_sin_is_exact() -> None:
    with mpmath.workprec(300):
        for position in (0, 1, 4096, 131073, 1048583):
            for frequency in (1.0, 0.8145, 3.1e-5, 2.4e-7):
                cos, sin = exact_cos_sin(position, frequency)
                angle = mpmath.mpf(position) * mpmath.mpf(frequency)
                assert abs(cos - mpmath.cos(angle)) <= 2.0**-53
                assert abs(sin - mpmath.sin(angle)) <= 2.0**-53


def test_text_that_ships() -> None:
    text = (importlib.resources.files(demo) / demo.DEFAULT_TEXT).read_text("ascii")
    assert 1200 <= len(text.split()) <= 2000
    assert len(text) > measure.FULL.context


# --- errors of one line ---------------------------------------------------------------------------


def test_text_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_everything()
    missing = tmp_path / "no such.txt"
    assert cli.main(["demo", "--text", str(missing)]) == 1
    assert one_line(capsys) == (
        f"posenc-native demo: cannot read {missing}: No such file or directory"
    )
    assert cli.main(["demo", "--text", str(tmp_path)]) == 1
    assert "Is a directory" in one_line(capsys)
    (tmp_path / "empty").touch()
    assert cli.main(["demo", "--text", str(tmp_path / "empty")]) == 1
    assert "too short" in one_line(capsys)


def test_a_text_is_read_as_far_as_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_everything()
    seen = []

    class Stop(Exception):
        pass

    def both_ways(data: bytes, *_: object) -> None:
        seen.append(data)
        raise Stop

    monkeypatch.setattr(measure, "both_ways", both_ways)
    text = tmp_path / "long.txt"
    with text.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(Stop):
        cli.main(["demo", "--text", str(text), "-o", str(tmp_path / "picture.png")])
    assert seen == [bytes(measure.FULL.context)]


def test_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "none" / "picture.png"
    assert cli.main(["demo", "--out", str(out)]) == 2
    assert f"cannot write {out}: no folder" in one_line(capsys)


@pytest.mark.parametrize("missing", [("transformers",), ("torch", "transformers"), ("matplotlib",)])
def test_missing_packages(
    missing: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, *arguments: Any) -> Any:
        return None if name in missing else find_spec(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert cli.main(["demo"]) == 1
    line = one_line(capsys)
    assert f"needs {', '.join(missing)}" in line
    assert line.endswith(install_command(*missing))
