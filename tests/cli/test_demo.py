"""The demonstration, and errors of one line."""

from __future__ import annotations

import importlib.resources
import importlib.util
import math
import shutil
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from command_line import output_of, refusal

from posenc_native import cli
from posenc_native.cli import demo
from posenc_native.cli.demo import far, measure, models, show, timing
from posenc_native.core.calls.optional import install_command

# --- demo -----------------------------------------------------------------------------------------


@pytest.fixture
def everything() -> None:
    for name in ("torch", "transformers", "matplotlib"):
        pytest.importorskip(name)


SMALL = measure.Sizes(context=90, rounds=2, seconds=0.0, threads=1)


@pytest.mark.usefixtures("everything")
def test_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole run, as short as will do: what it prints, what it draws, and what it measured."""
    from matplotlib.figure import Figure

    text, picture, kept = tmp_path / "text.txt", tmp_path / "picture.png", []
    text.write_bytes("Ein kurzer Text, nicht nur in ASCII: äöü. ".encode() * 2)
    seen: list[tuple[float, str]] = []
    original = measure.measure

    def measured(*given: Any) -> measure.Figures:
        *most, _ = given
        kept.append(original(*most, lambda done, label: seen.append((done, label))))
        return kept[0]

    drawn: list[Any] = []
    save = Figure.savefig

    def saved(figure: Any, *given: Any, **options: Any) -> None:
        drawn.append(figure)
        save(figure, *given, **options)

    monkeypatch.setattr(Figure, "savefig", saved)
    monkeypatch.setattr(measure, "measure", measured)
    monkeypatch.setattr(measure, "QUICK", SMALL)
    said = output_of(f"demo --quick --tokens 5 --text {text} --out {picture}", capsys)
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
        "Qwen3: norm and rotation in one pass",
        "prefill, 12 tokens",
        "the same, norm apart",
        "Qwen3 before attention",
        "The whole Qwen3",
        "Attention on wrong tokens",
        "--compile also times",
    ):
        assert words in said
    assert max(map(len, said.splitlines()[:-1])) <= 80  # the last one has a path
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.stat().st_size > 20_000
    assert 0.8 < sum(done for done, _ in seen) <= 1.0
    assert "transformers: reading 90 tokens, writing 5" in [label for _, label in seen]

    (figures,) = kept
    assert figures.tokens == 90
    assert figures.same_tokens() == 5
    assert figures.difference < 1e-4 * figures.spread
    theirs, ours = figures.moved
    assert ours < 1e-4 * figures.spread
    assert theirs > 10 * ours
    rotary, whole = figures.times.values()
    before, whole_normed = figures.normed.values()
    assert list(rotary) == list(whole) == [
        "prefill, 90 tokens", "the same, inplace=False", "decode, 1 token",
    ]  # fmt: skip
    assert list(before) == list(whole_normed) == [
        "prefill, 12 tokens", "the same, norm apart", "decode, 1 token",
    ]  # fmt: skip
    for part, total in ((rotary, whole), (before, whole_normed)):
        for what, alone in part.items():
            assert 0 < alone.theirs < total[what].theirs  # a part is less than the whole
            assert alone.low <= alone.ratio <= alone.high
    for position in far.SHOWN_POSITIONS:
        theirs, ours = figures.errors[position]
        assert ours < 1.2e-7
        assert position * 2.0**-27 < theirs < position * 2.0**-22
    shares = []
    for theirs, ours in figures.attention.values():
        assert all(max(row) == row[far.BACK] for row in ours.weights)
        spread = max(max(row) - min(row) for row in zip(*ours.weights, strict=True))
        assert spread < 1e-6  # one line for all tokens
        assert ours.elsewhere < 1e-6
        # What one token lacks, others have: half of all differences.
        apart = np.abs(np.array(theirs.weights) - np.array(ours.weights)).sum(1)
        assert theirs.elsewhere == pytest.approx(apart.mean() / 2, abs=2e-6)
        shares.append(theirs.elsewhere)
    # A panel of attention for each position, with a line for each token and way; below, the errors.
    *panels, errors = drawn[0].axes
    assert [panel.get_title("left") for panel in panels] == [
        f"from {position:,}" for position in figures.attention
    ]
    for panel, (theirs, ours) in zip(panels, figures.attention.values(), strict=True):
        lines = [line.get_ydata().tolist() for line in panel.lines]
        assert lines == [*ours.weights, *theirs.weights]
    curves = [tuple(line.get_ydata()) for line in errors.lines]
    assert curves == list(zip(*figures.errors.values(), strict=True))
    near, _, million, end = shares
    assert near < 1e-4
    assert 1e-3 < million < 1e-2
    assert end > 0.3


@pytest.mark.usefixtures("everything")
def test_one_way_to_norm_is_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from posenc_native.hf import functions, rotation

    # One native call for a layer cannot be counted.
    monkeypatch.setattr(functions, "settled_rotations", lambda *_arguments, **_options: ())
    calls = []
    original = rotation.norm_rotary_qk

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(options)
        return original(*arguments, **options)

    monkeypatch.setattr(rotation, "norm_rotary_qk", counted)
    results, passes = [], []
    for model in models.ways_to_norm():
        calls.clear()
        with torch.no_grad():
            results.append(model(torch.arange(20)[None]).logits)
        passes.append(len(calls))
    assert passes == [0, models.NORMED_LAYERS, 0]
    for result in results[1:]:
        assert float((result - results[0]).abs().max()) < 1e-4 * float(results[0].std())


@pytest.mark.slow  # compiles eight programs
@pytest.mark.usefixtures("everything")
def test_compiled_models_are_timed() -> None:
    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler, and there is no g++")
    figures = measure.measure(b"a short text to read", 2, SMALL, compiled=True)
    compiled = figures.times["The whole model, compiled"]
    assert list(compiled) == ["prefill, 20 tokens", "decode, 1 token"]
    normed = figures.normed["The whole Qwen3, compiled"]
    assert list(normed) == ["prefill, 3 tokens", "decode, 1 token"]
    for time in (*compiled.values(), *normed.values()):
        assert min(time.theirs, time.ours, time.ratio) > 0


@pytest.mark.parametrize(("rounds", "cut"), [(6, 0), (8, 0), (9, 1), (60, 21), (2000, 955)])
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

    clocks = [clock("a", 1.0), clock("b", 2.0), clock("c", 3.0)]
    assert timing.take_turns(clocks, 4) == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    assert "".join(order) == "abcbcacababc"
    assert len(timing.take_turns(clocks, 1, 0.01)[0]) > 4  # more, while there is time


def test_table_says_where_continuations_part_and_what_is_noise() -> None:
    head = far.Attention([[0.5, 0.5]], 0.25)
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
                "f": timing.Timing(1.0, 0.5, 2.0, 0.0, math.inf),
                "g": timing.Timing(1.0, 0.1, 10.0, 2.1, 219.0),
                "h": timing.Timing(1.0, 2.0, 0.5, 0.1, 0.9),
            },
            "Whole": {"x": timing.Timing(1.0, 1.0, 1.0, 0.9, 1.1)},
        },
        normed={"Normed": {"a": timing.Timing(1.0, 0.5, 2.0, 1.96, 2.04)}},
        errors=dict.fromkeys(far.SHOWN_POSITIONS, (0.1, 1e-7)),
        attention=dict.fromkeys(far.SHOWN_POSITIONS, (head, far.Attention([[1.0, 0.0]], 2e-8))),
        facts="",
    )
    same, time, _, elsewhere, errors = show.sections(figures)
    assert [row[3] for row in same.rows] == ["2e-01 of spread", "same up to 2", "2.0× more"]
    assert [row[1:] for row in time.rows] == [
        ("2.5 s", "50 ms", "50× faster"),
        ("2.5 s", "25 µs", "100,000× faster"),
        ("100 µs", "200 µs", "2.0× slower"),
        ("1 s", "900 ms", "no difference seen"),
        ("1 s", "900 ms", "1.11× faster"),
        ("1 s", "500 ms", "no difference seen"),
        ("1 s", "100 ms", "at least 2.1× faster"),
        ("1 s", "2 s", "too noisy to tell"),
    ]
    assert [line.split(":  ")[1].strip() for line in show.headline(figures)] == [
        "50× faster (a)",
        "no difference seen (x)",
        "1,000,000× smaller (at position 1,048,576)",
    ]
    assert show.text_of(figures).splitlines()[1:4] == show.headline(figures)
    (normed,) = show.sections_of_norms(figures)
    assert normed == show.Section("Normed", [("a", "1 s", "500 ms", "2.0× faster")])
    assert elsewhere.rows[0][1:] == ("25.00 %", "< 0.01 %", "")
    assert errors.rows[0] == ("near position 4,096", "1.0e-01", "1.0e-07", "1,000,000× less")


def test_exact_tables_are_exact() -> None:
    torch = pytest.importorskip("torch")
    frequencies = torch.tensor([1.0, 0.8145, 3.1e-5, 2.4e-7])
    for position in (0, 4096, 131073, 1048583, 16777223):
        tables = far.exact_tables(range(position, position + 1), frequencies)[:, 0]
        for frequency, cos, sin in zip(frequencies.tolist(), *tables.tolist(), strict=True):
            with mpmath.workprec(300):
                angle = mpmath.mpf(position) * mpmath.mpf(frequency)
                assert abs(cos - mpmath.cos(angle)) <= 2.0**-52
                assert abs(sin - mpmath.sin(angle)) <= 2.0**-52


def test_text_that_ships() -> None:
    text = (importlib.resources.files(demo) / demo.DEFAULT_TEXT).read_text("ascii")
    assert 1200 <= len(text.split()) <= 2000
    assert len(text) > measure.FULL.context


# --- errors of one line ---------------------------------------------------------------------------


@pytest.mark.usefixtures("everything")
def test_text_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, empty = tmp_path / "no such.txt", tmp_path / "empty"
    empty.touch()
    for path, said in (
        (missing, f"posenc-native demo: cannot read {missing}: No such file or directory\n"),
        (tmp_path, "Is a directory"),
        (empty, "too short"),
    ):
        assert said in refusal(["demo", "--text", str(path)], 1, capsys)
    out = tmp_path / "none" / "picture.png"
    assert f"cannot write {out}: no folder" in refusal(["demo", "--out", str(out)], 2, capsys)


@pytest.mark.usefixtures("everything")
def test_a_text_is_read_as_far_as_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("missing", [("transformers",), ("torch", "transformers"), ("matplotlib",)])
def test_missing_packages(
    missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, *arguments: Any) -> Any:
        return None if name in missing else find_spec(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    line = refusal("demo", 1, capsys)
    assert f"needs {', '.join(missing)}" in line
    assert line.endswith(f"{install_command(*missing)}\n")
