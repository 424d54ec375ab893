"""The programs in examples/ run in a short form, from an empty folder, and say what is so.

In this process, which has torch already: an interpreter of its own would import it for each.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT

EXAMPLES = ROOT / "examples"
PROGRAMS = (
    "which_encoding",
    "far_positions.py",
    "parity.py",
    "patched_generation.py",
    "vision_transformer.py",
    "time_series.py",
    "export.py",
    "onnx_export.py",
)
# What torchrun starts on several processes.
DISTRIBUTED = ("ring_attention.py", "sharded_training")


@contextlib.contextmanager
def modules_of_its_own() -> Iterator[None]:
    """Modules that a program brings have plain names, such as model: none stays for the next."""
    path, before = list(sys.path), dict(sys.modules)
    own = [name for name, module in before.items() if is_of_an_example(module)]
    for name in own:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.path[:] = path
        for name in [n for n, module in sys.modules.items() if is_of_an_example(module)]:
            del sys.modules[name]
        sys.modules.update({name: before[name] for name in own})


def is_of_an_example(module: Any) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(str(EXAMPLES))


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a command in this folder. Warnings are shown, as they are to a user."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), modules_of_its_own():
        warnings.simplefilter("default")
        patch.chdir(folder)
        patch.setenv("MPLBACKEND", "Agg")
        patch.setattr(sys, "argv", [str(EXAMPLES / program), *arguments])
        # What `python FILE` puts first; runpy does it for a folder.
        patch.syspath_prepend(str((EXAMPLES / program).parent))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                runpy.run_path(str(EXAMPLES / program), run_name="__main__")
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
                if isinstance(end.code, str):
                    err.write(f"{end.code}\n")
    return subprocess.CompletedProcess([program], status, out.getvalue(), err.getvalue())


def need(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(module, reason=f"the example needs {module}, which is not installed")


def output(folder: Path, program: str, *arguments: str) -> str:
    result = run(folder, program, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def on_four_processes(folder: Path, program: str, *arguments: str) -> str:
    """What is printed; a port that is free, since tests run beside each other."""
    need("torch")
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    result = subprocess.run(
        [sys.executable, *start, str(EXAMPLES / program), *arguments],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def error_line(folder: Path, program: str, *arguments: str) -> str:
    result = run(folder, program, *arguments)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    return line


def test_every_example_is_listed_and_tested() -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    there = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "data", "results"}
    there = {name for name in there if not name.endswith(".ipynb")}  # tests/docs/test_notebooks.py
    there -= {"__pycache__", ".mypy_cache", ".ruff_cache"}
    assert there == {*PROGRAMS, *DISTRIBUTED}
    for program in PROGRAMS:
        assert f"python examples/{program}" in readme
    for program in DISTRIBUTED:
        assert f"torchrun --nproc-per-node 4 examples/{program}" in readme


# --- which_encoding -------------------------------------------------------------------------------


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any, Any]]:
    """model, experiment and figure of which_encoding."""
    need("torch")
    with modules_of_its_own():
        monkeypatch.syspath_prepend(str(EXAMPLES / "which_encoding"))
        yield tuple(__import__(name) for name in ("model", "experiment", "figure"))  # type: ignore[misc]


def test_which_encoding_runs(tmp_path: Path) -> None:
    need("torch", "matplotlib")
    out = output(tmp_path, "which_encoding", "--quick", "--out", "a.png", "--seeds", "2")
    rows = [line for line in out.splitlines() if "±" in line]
    assert len(rows) == 8  # the six, and two that were adapted
    (learned,) = (row for row in rows if re.search("learned [^r]*$", row))
    assert learned.count("-") == 3  # a table has no rows for 2x, 4x and beyond
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert len(figures["runs"]) == 12
    again = output(tmp_path, "which_encoding", "--redraw", "a.json", "--out", "b.png")
    assert [line for line in again.splitlines() if "±" in line] == rows
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "a.png").read_bytes()


def test_which_encoding_says_what_is_wrong(tmp_path: Path) -> None:
    need("torch", "matplotlib")
    short = tmp_path / "short.txt"
    short.write_text("too short", encoding="utf-8")
    line = error_line(tmp_path, "which_encoding", "--text", "short.txt")
    assert line == "which_encoding: short.txt: expected at least 5131 characters, got 9"
    line = error_line(tmp_path, "which_encoding", "--out", "nowhere/a.png")
    assert line == "which_encoding: --out: no folder nowhere"
    line = error_line(tmp_path, "which_encoding", "--redraw", "short.txt")
    assert line == "which_encoding: short.txt: expected figures that this program wrote"
    result = run(tmp_path, "which_encoding", "--out", "figures.json")  # where the figures go
    assert result.returncode == 2
    assert "expected a name that ends in .png, .svg or .pdf, got figures.json" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"short.txt"}


def test_models_differ_in_their_encoding_only(modules: tuple[Any, Any, Any]) -> None:
    import torch

    model, _, figure = modules
    weights = []
    for encoding in figure.STYLES:
        torch.manual_seed(0)
        state = model.Transformer(30, 16, encoding, d=16, heads=2, depth=1).state_dict()
        extra = {name for name in state if name.startswith(("at_input", "bias"))}
        assert bool(extra) == (encoding in ("learned", "T5"))
        weights.append({name: state[name] for name in state.keys() - extra})
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=0, atol=0)


def test_vectors_at_the_input_begin_as_large_as_embeddings(modules: tuple[Any, Any, Any]) -> None:
    import torch

    model, _, _ = modules
    torch.manual_seed(0)
    for encoding in ("learned", "sinusoidal"):
        net = model.Transformer(30, 64, encoding, d=64, heads=2, depth=1)
        added = net.at_input(torch.zeros(1, 64, 64))
        ratio = added.square().mean().sqrt() / net.embed.weight.square().mean().sqrt()
        assert 0.6 < ratio < 1.1, encoding


def test_models_see_no_later_characters(modules: tuple[Any, Any, Any]) -> None:
    import torch

    model, _, figure = modules
    tokens = torch.arange(12)[None]
    changed = torch.cat([tokens[:, :7], tokens[:, 7:].flip(1)], 1)
    for encoding in figure.STYLES:
        net = model.Transformer(30, 16, encoding, d=16, heads=2, depth=2).eval()
        with torch.no_grad():
            one, other = net(tokens), net(changed)
        torch.testing.assert_close(one[:, :7], other[:, :7])
        assert not torch.allclose(one[:, 7:], other[:, 7:])


def test_every_length_is_asked_for_the_same_characters(modules: tuple[Any, Any, Any]) -> None:
    import torch
    from torch.nn import functional as F

    _, experiment, _ = modules
    seen = []

    def model(tokens: Any) -> Any:  # knows nothing but the last character; notes what it is shown
        seen.append(tokens.flatten())
        return 5.0 * F.one_hot(tokens, 30).float()

    settings = experiment.Settings(length=8)
    text = torch.randint(30, (8 * 4 * 3 + 17,), generator=torch.Generator().manual_seed(0))
    losses = [experiment.evaluate(model, text, factor, settings)[0] for factor in (1, 2, 4)]
    for tokens in seen:
        assert torch.equal(tokens, text[:96])
    assert losses == [losses[0]] * 3


def test_adapted_models(modules: tuple[Any, Any, Any]) -> None:
    import torch

    model, experiment, _ = modules
    learned = model.Transformer(30, 16, "learned", d=16, heads=2, depth=1)
    assert learned.can_read(16)
    assert not learned.can_read(17)
    longer = experiment.adapt(learned, 4, 16)
    assert longer.at_input.weight.shape == (64, 16)
    assert learned.at_input.weight.shape == (16, 16)
    rotary = model.Transformer(30, 16, "rotary", d=16, heads=2, depth=1)
    stretched = experiment.adapt(rotary, 4, 16)
    ratio = stretched.rope.rope.inv_freq / rotary.rope.rope.inv_freq
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(0.25)
    assert experiment.adapt(model.Transformer(30, 16, "ALiBi", d=16), 4, 16) is None
    tokens = torch.arange(16)[None]
    torch.testing.assert_close(experiment.adapt(rotary, 1, 16)(tokens), rotary(tokens))


def test_committed_figures_are_those_of_the_readme(modules: tuple[Any, Any, Any]) -> None:
    _, experiment, figure = modules
    figures = experiment.load(EXAMPLES / "results" / "which_encoding.json")
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    heads, rows = figure.table(figures)
    for cells in (heads, *rows):
        assert f"| {' | '.join(cells)} |" in readme
    assert (EXAMPLES / "results" / "which_encoding.png").stat().st_size < 200_000


def test_text_is_what_its_note_says() -> None:
    text = (EXAMPLES / "data" / "northanger_abbey.txt").read_bytes()
    assert text.isascii()
    assert not re.search(rb"gutenberg|signet|a note on the text", text, re.I)  # none but Austen
    assert text.startswith(b"NORTHANGER ABBEY")
    assert text.endswith(b"No. 97, Vol. II, Rambler.\n\n")  # her last footnote
    assert len(text) < 450_000


# --- far_positions --------------------------------------------------------------------------------


def test_far_positions_runs(tmp_path: Path) -> None:
    need("torch", "matplotlib")
    out = output(tmp_path, "far_positions.py", "--quick", "--out", "a.png")
    rows = re.findall(r"^ +(\d+[kM]?)  +(\d\.\d+)  +(\d\.\d+)  +(\d\.\d+)  +(\d\.\d+)$", out, re.M)
    assert [row[0] for row in rows][:4] == ["0", "256", "1k", "4k"]
    assert rows[-1][0] == "64M"
    figures = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    exact, float32, *_ = figures["losses"].values()
    assert max(exact) - min(exact) < 1e-5  # whatever a model has learned
    assert abs(float32[0] - exact[0]) < 1e-5
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    again = output(tmp_path, "far_positions.py", "--redraw", "a.json", "--out", "b.png")
    assert again.splitlines()[:-1] == out.splitlines()[-len(rows) - 3 : -1]
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "a.png").read_bytes()


def test_far_positions_says_what_is_wrong(tmp_path: Path) -> None:
    need("torch", "matplotlib")
    short = tmp_path / "short.txt"
    short.write_text("too short", encoding="utf-8")
    for arguments, expected in (
        (["--text", "short.txt"], "short.txt: expected at least 1291 characters, got 9"),
        (["--out", "nowhere/a.png"], "--out: no folder nowhere"),
        (["--redraw", "short.txt"], "short.txt: expected figures that this program wrote"),
    ):
        assert error_line(tmp_path, "far_positions.py", *arguments) == f"far_positions: {expected}"
    result = run(tmp_path, "far_positions.py", "--out", "figures.json")  # where the figures go
    assert result.returncode == 2
    assert "expected a name that ends in .png, .svg or .pdf, got figures.json" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"short.txt"}


def test_far_positions_are_those_of_the_readme_and_show_what_it_says() -> None:
    figures = json.loads((EXAMPLES / "results" / "far_positions.json").read_text(encoding="utf-8"))
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    ways, offsets = figures["losses"], figures["offsets"]
    assert f"| begins at | {' | '.join(ways)} |" in readme
    for place, offset in enumerate(offsets):
        cells = " | ".join(f"{losses[place]:.4f}" for losses in ways.values())
        assert f"| {offset:,} | {cells} |" in readme
    exact, float32, cast, bfloat16 = (
        dict(zip(offsets, losses, strict=True)) for losses in ways.values()
    )
    assert max(exact.values()) - min(exact.values()) < 1e-6
    assert max(abs(cast[offset] - float32[offset]) for offset in offsets) < 1e-3
    assert abs(float32[2**20] - exact[0]) < 1e-4  # a million is not too far for float32
    more = [round(float32[2**power] - exact[0], 3) for power in (22, 23)]
    assert more == [0.001, 0.007]
    assert round(float32[2**24], 2) == 2.23
    assert bfloat16[256] - exact[0] > 0.5
    assert bfloat16[4096] > figures["letters"] > float32[2**26]
    assert f"above {figures['letters']:.2f}" in readme
    assert f"in {figures['windows']} windows" in readme
    assert figures["settings"]["steps"] == 400
    assert (EXAMPLES / "results" / "far_positions.png").stat().st_size < 200_000


# --- parity ---------------------------------------------------------------------------------------


def test_parity_runs(tmp_path: Path) -> None:
    need("torch", "matplotlib")
    out = output(tmp_path, "parity.py", "--quick", "--out", "a.png")
    figures = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    rows = re.findall(r"^ +(\d+k?)(?:  +\d\.\d{3}){6}$", out, re.M)
    assert rows == ["64", "256", "1k", "2k"] * 2
    for shares in figures["shares"].values():
        assert shares["exact"][0] == shares["f32, tokens"][0] == shares["f32, chunks"][0]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    again = output(tmp_path, "parity.py", "--redraw", "a.json", "--out", "b.png")
    assert again.splitlines()[:-1] == out.splitlines()[6:-1]
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "a.png").read_bytes()


def test_parity_says_what_is_wrong(tmp_path: Path) -> None:
    need("torch", "matplotlib")
    line = error_line(tmp_path, "parity.py", "--out", "nowhere/a.png")
    assert line == "parity: --out: no folder nowhere"
    (tmp_path / "short.txt").write_text("too short", encoding="utf-8")
    line = error_line(tmp_path, "parity.py", "--redraw", "short.txt")
    assert line == "parity: short.txt: expected figures that this program wrote"


@pytest.fixture
def parity(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    need("torch", "matplotlib")
    with modules_of_its_own():
        monkeypatch.syspath_prepend(str(EXAMPLES))
        yield __import__("parity")


def test_parity_sums_in_float32_are_what_they_are_called(parity: Any) -> None:
    import torch

    steps = torch.randn(2, 300, 3, generator=torch.Generator().manual_seed(0))
    one_by_one, in_chunks = torch.zeros(2, 3), torch.zeros(2, 3)
    cos, _ = parity.tables_of(steps, "tokens")
    of_chunks, _ = parity.tables_of(steps, "chunks")
    before = torch.zeros(2, 3)
    for token in range(300):
        if token % 128 == 0:
            before, in_chunks = before + in_chunks, torch.zeros(2, 3)
        one_by_one = one_by_one + steps[:, token]
        in_chunks = in_chunks + steps[:, token]
        torch.testing.assert_close(cos[:, token], one_by_one.cos(), rtol=0, atol=1e-6)
        torch.testing.assert_close(
            of_chunks[:, token], (before + in_chunks).cos(), rtol=0, atol=1e-6
        )


def test_parity_model_reads_a_string_in_parts_as_at_once(parity: Any) -> None:
    import torch

    torch.manual_seed(0)
    model = parity.Model("selective", 2)
    tokens = parity.strings(64, 128, 2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        right = model(tokens).argmax(-1) == parity.answers(tokens, 2)
    parts = parity.accuracies(model, tokens, [32, 64, 128], "not rounded")
    whole = [right[:, n - parity.WINDOW : n].double().mean().item() for n in (32, 64, 128)]
    assert parts == pytest.approx(whole, abs=2e-3)  # a tie may fall either way
    assert parity.answers(tokens, 2)[0, -1] == tokens[0, 1:].sum() % 2


def test_parity_figures_are_those_of_the_pages_and_show_what_they_say(parity: Any) -> None:
    figures = parity.load(EXAMPLES / "results" / "parity.json")
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "encodings" / "selective.md").read_text(encoding="utf-8")
    for task in parity.TASKS:
        for cells in parity.table(figures, task):
            assert f"| {' | '.join(cells)} |" in readme
            assert task != "parity" or f"| {' | '.join(cells)} |" in page
    for task, modulus in parity.TASKS.items():
        shares = figures.shares[task]
        assert min(shares["exact"]) > 0.99
        assert shares["not rounded"][0] > 0.99
        assert min(shares["not rounded"]) < 0.7
        for guess in ("fixed rotary", "none"):
            assert max(shares[guess][1:]) < 1 / modulus + 0.06
    assert figures.lengths[-1] == 2**20
    assert figures.settings == json.loads(json.dumps(parity.asdict(parity.Settings())))
    assert (EXAMPLES / "results" / "parity.png").stat().st_size < 200_000


# --- the others -----------------------------------------------------------------------------------


def test_patched_generation(tmp_path: Path) -> None:
    need("torch", "transformers")
    out = output(tmp_path, "patched_generation.py", "--quick")
    assert "5 modules patched, 0 left alone" in out
    assert "patched: 8 of 8 tokens are the same" in out
    assert "undone: 8 of 8 tokens are the same" in out
    assert len(re.findall(r"\d ms a token", out)) == 2
    line = error_line(tmp_path, "patched_generation.py", "--model", "nowhere")
    assert line.startswith("patched_generation: --model: expected a folder with a config.json")


def test_vision_transformer(tmp_path: Path) -> None:
    need("torch")
    out = output(tmp_path, "vision_transformer.py", "--quick")
    errors = [float(e) for e in re.findall(r"^  .*x (?:32|48).* (\d\.\d+)$", out, re.M)]
    assert len(errors) == 4
    assert all(np.isfinite(errors))


def test_time_series(tmp_path: Path) -> None:
    out = output(tmp_path, "time_series.py")
    errors = [float(error) for error in re.findall(r"columns   (\d\.\d\d)$", out, re.M)]
    raw, hour, day, both, week = errors
    assert raw > hour > day > both > week  # every line of the table is better than the one above
    assert week < 0.3
    spreads = [float(s) for s in re.findall(r"times to (\S+)$", out, re.M)]
    assert len(spreads) == 5
    assert max(spreads) < 1e-13
    assert re.search(r"7 days +1\.000", out)
    assert "600 times" in output(tmp_path, "time_series.py", "--quick")


@pytest.mark.parametrize(
    "quick", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["exported", "compiled"]
)
def test_export(tmp_path: Path, quick: bool) -> None:
    need("torch")
    if not quick and not shutil.which("g++"):
        pytest.skip("AOTInductor needs a C++ compiler, and there is no g++")
    out = output(tmp_path, "export.py", "--folder", ".", *(["--quick"] if quick else []))
    assert "posenc_native.rotary_qk" in out
    assert "posenc_native.add_sinusoidal" in out
    names = ["decoder.pt2"] + ([] if quick else ["decoder_aoti.pt2"])
    for name in names:
        assert (tmp_path / name).stat().st_size > 0
        for length in (2, 50, 333):
            assert re.search(rf"{name}: {length} tokens, largest difference", out)
    line = error_line(tmp_path, "export.py", "--folder", "nowhere", "--quick")
    assert line.startswith("export: ")
    assert "nowhere" in line


def test_onnx_export(tmp_path: Path) -> None:
    need("torch", "onnx", "onnxruntime", "onnxscript")
    out = output(tmp_path, "onnx_export.py", "--folder", ".", "--quick")
    assert (tmp_path / "decoder.onnx").stat().st_size > 0
    for length in (2, 50):
        for first in (0, 1_000_000):
            assert f"{length} tokens from {first} on: largest difference" in out
    line = error_line(tmp_path, "onnx_export.py", "--folder", "nowhere", "--quick")
    assert line == "onnx_export: no folder nowhere"


# --- On several processes -------------------------------------------------------------------------


@pytest.mark.slow  # four processes that import torch
def test_ring_attention_is_that_of_one_process(tmp_path: Path) -> None:
    lines = on_four_processes(tmp_path, "ring_attention.py", "--quick").splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "ring, contiguous", "ring, zigzag", "ring, striped", "Ulysses",
    ]  # fmt: skip
    assert all("4 processes, 64 tokens: off by" in line for line in lines)


@pytest.mark.slow
def test_sharded_training_is_that_of_one_process(tmp_path: Path) -> None:
    head, one, *plans = on_four_processes(tmp_path, "sharded_training", "--quick").splitlines()
    assert head.endswith("off by at most")
    assert one.startswith("one process")
    assert len(plans) == 3
    losses = [float(loss) for loss in one.split()[2:-1]]
    assert losses[-1] < losses[0] - 0.5  # it learns
    for plan in plans:
        assert f"{losses[-1]:.6f}" in plan


@pytest.mark.parametrize("program", DISTRIBUTED)
def test_started_alone_they_say_how_to_start_them(tmp_path: Path, program: str) -> None:
    need("torch")
    assert "start it with: torchrun --nproc-per-node 4" in error_line(tmp_path, program)


def test_sharded_training_sees_losses_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("torch")
    with modules_of_its_own():
        monkeypatch.syspath_prepend(str(EXAMPLES / "sharded_training"))
        report = runpy.run_path(str(EXAMPLES / "sharded_training" / "__main__.py"))["report"]
    report({"one process": [1.0, 0.5], "other": [1.0, 0.5 + 1e-14]})
    for off in (1e-9, float("nan")):
        with pytest.raises(SystemExit, match="other: expected losses within"):
            report({"one process": [1.0, 0.5], "other": [1.0, 0.5 + off]})
