"""The demonstration, and errors of one line."""

from __future__ import annotations

import importlib.resources
import importlib.util
import itertools
import math
import shutil
from pathlib import Path
from typing import Any

import mpmath
import pytest
from command_line import one_line, run

from posenc_native import cli
from posenc_native.base.optional import install_command
from posenc_native.cli import demo
from posenc_native.cli.demo import measure, models, show, timing
from posenc_native.cli.demo.attention import BACK, Attention, attention
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
        "near position 16,777,216",
        "Time of rotary, 4 layers",
        "Time of the whole model",
        "Norm and rotation of Qwen3, in one pass",
        "prefill, 12 tokens",
        "the same, norm apart",
        "Qwen3 before attention",
        "The whole Qwen3",
        "Attention gone elsewhere",
        "--compile tells",
        "100 %",
    ):
        assert words in result.stdout
    assert "…" not in result.stdout  # nothing is cut at the 80 columns of a plain terminal
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.stat().st_size > 20_000


SMALL = measure.Sizes(context=16, rounds=2, steps=3)


def test_figures_of_a_small_run() -> None:
    needs_everything()
    seen: list[float] = []
    figures = measure.measure(
        b"a short text to read", 5, SMALL, report=lambda _, fraction: seen.append(fraction)
    )
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(seen))
    assert 0.0 <= seen[0] < 0.5 < 0.8 < seen[-1] <= 1.0 + 1e-9
    assert figures.tokens == 16
    assert figures.same_tokens() == 5
    assert figures.difference < 1e-4 * figures.spread
    theirs, ours = figures.moved
    assert ours < 1e-4 * figures.spread
    assert theirs > 10 * ours
    rotary, whole = figures.times.values()
    assert list(rotary) == list(whole)
    for what, alone in rotary.items():
        assert 0 < alone.theirs < whole[what].theirs  # a part is less than the whole
        assert alone.low <= alone.ratio <= alone.high
    before, whole = figures.normed.values()
    assert list(before) == list(whole) == [
        "prefill, 2 tokens", "the same, norm apart", "decode, 1 token",
    ]  # fmt: skip
    for what, alone in before.items():
        assert 0 < alone.theirs < whole[what].theirs
    for position in models.SHOWN_POSITIONS:
        theirs, ours = figures.errors[position]
        assert ours < 1.2e-7
        assert position * 2.0**-27 < theirs < position * 2.0**-22


def test_one_way_to_norm_is_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_everything()
    import torch

    from posenc_native.hf import rotation

    calls = []
    original = rotation.norm_rotary_qk_tables

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(options)
        return original(*arguments, **options)

    monkeypatch.setattr(rotation, "norm_rotary_qk_tables", counted)
    ways = models.ways_to_norm(models.small_qwen3())
    results, passes = [], []
    for model in ways:
        calls.clear()
        with torch.no_grad():
            results.append(model(torch.arange(20)[None]).logits)
        passes.append(len(calls))
    assert passes == [0, models.NORMED_LAYERS, 0]
    for result in results[1:]:
        assert float((result - results[0]).abs().max()) < 1e-4 * float(results[0].std())


@pytest.mark.slow  # compiles eight programs
def test_compiled_models_are_timed() -> None:
    needs_everything()
    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler, and there is no g++")
    figures = measure.measure(b"a short text to read", 2, SMALL, compiled=True)
    compiled = figures.times["The whole model, compiled"]
    assert list(compiled) == ["prefill, 16 tokens", "decode, 1 token"]
    normed = figures.normed["The whole Qwen3, compiled"]
    assert list(normed) == ["prefill, 2 tokens", "decode, 1 token"]
    for time in (*compiled.values(), *normed.values()):
        assert min(time.theirs, time.ours, time.ratio) > 0


def test_attention_of_a_head_that_looks_back() -> None:
    needs_everything()
    ways = models.both_ways(models.small_llama())
    shares = []
    for position in models.SHOWN_POSITIONS:
        theirs, ours = attention(ways.theirs, position), attention(ways.ours, position)
        assert all(max(row) == row[BACK] for row in ours.weights)
        spread = max(max(row) - min(row) for row in zip(*ours.weights, strict=True))
        assert spread < 1e-6  # one line for all tokens
        assert ours.elsewhere < 1e-6
        shares.append(theirs.elsewhere)
    near, _, million, far = shares
    assert near < 1e-4
    assert 1e-3 < million < 1e-2
    assert far > 0.3


@pytest.mark.parametrize(("rounds", "cut"), [(6, 0), (8, 0), (9, 1), (60, 21)])
def test_interval_of_a_ratio(rounds: int, cut: int) -> None:
    """As tables of the sign test have it: n and the number that is left out at either end."""
    ratios = [1.0 + i / 100 for i in range(rounds)]
    time = timing.compare([2 * ratio for ratio in ratios], [2.0] * rounds)
    assert time.ours == 2.0
    assert time.theirs == pytest.approx(2 * time.ratio)
    assert (time.low, time.high) == pytest.approx((ratios[cut], ratios[-1 - cut]))


def test_too_few_rounds_have_no_interval() -> None:
    time = timing.compare([2.0] * 5, [1.0] * 5)  # five heads in a row: 6 %
    assert (time.low, time.high) == (0.0, math.inf)


def test_ways_take_turns() -> None:
    order = []

    def clock(name: str, seconds: float) -> timing.Clock:
        return lambda: order.append(name) or seconds  # type: ignore[func-returns-value]

    times = timing.take_turns([clock("a", 1.0), clock("b", 2.0), clock("c", 3.0)], 4)
    assert "".join(order) == "abcbcacababc"
    assert times == [[1.0] * 4, [2.0] * 4, [3.0] * 4]


def test_table_says_where_continuations_part_and_what_is_noise() -> None:
    head = Attention([[0.5, 0.5]], 0.25)
    figures = measure.Figures(
        tokens=1000,
        spread=2.0,
        difference=0.5,
        continuation=([1, 2, 3, 4], [1, 2, 5, 4]),
        moved=(0.5, 1.0),
        times={
            "Time": {
                "a": timing.Timing(2.5, 0.05, 50.0, 48.9, 51.2),
                "b": timing.Timing(2.5, 25e-6, 1e5, 1e5, 1e5),
                "c": timing.Timing(1e-4, 2e-4, 0.5, 0.45, 0.625),
                "d": timing.Timing(1.0, 0.9, 1.11, 0.99, 1.21),
                "e": timing.Timing(1.0, 0.9, 1.11, 1.05, 1.21),
                "f": timing.Timing(1.0, 0.5, 2.0, 1.96, 2.04),
                "g": timing.Timing(1.0, 0.5, 2.0, 0.0, math.inf),
                "h": timing.Timing(1.0, 0.1, 10.0, 2.1, 219.0),
            }
        },
        normed={"Normed": {"a": timing.Timing(1.0, 0.5, 2.0, 1.96, 2.04)}},
        errors=dict.fromkeys(models.SHOWN_POSITIONS, (0.1, 1e-7)),
        attention=dict.fromkeys(models.SHOWN_POSITIONS, (head, Attention([[1.0, 0.0]], 2e-8))),
        facts="",
    )
    same, time, elsewhere, _ = show.sections(figures)
    assert [row[3] for row in same.rows] == ["2e-01 of spread", "same up to 2", "2.0× more"]
    assert [row[1:] for row in time.rows] == [
        ("2.5 s", "50 ms", "49–51× faster"),
        ("2.5 s", "25 µs", "100,000× faster"),
        ("100 µs", "200 µs", "1.6–2.2× slower"),
        ("1 s", "900 ms", "0.99–1.21×: noise"),
        ("1 s", "900 ms", "1.05–1.21× faster"),
        ("1 s", "500 ms", "2.0× faster"),
        ("1 s", "500 ms", "too few rounds"),
        ("1 s", "100 ms", "too noisy to tell"),
    ]
    (normed,) = show.sections_of_norms(figures)
    assert normed == show.Section("Normed", [("a", "1 s", "500 ms", "2.0× faster")])
    assert elsewhere.rows[0][1:] == ("25.00 %", "< 0.01 %", "")


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

    def stop(data: bytes, *_: object) -> None:
        seen.append(data)
        raise Stop

    monkeypatch.setattr(measure, "measure", stop)
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
