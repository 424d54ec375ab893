"""The commands: version, help, examples, command lines that make no sense, closed output."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import commands, output_of, refusal, run
from places import ROOT

import posenc_native
import posenc_native as pn
from posenc_native import cli
from posenc_native.checkpoints.formats.reading import read
from posenc_native.checkpoints.formats.writing import write
from posenc_native.cli import bench, demo, info, plot
from posenc_native.engines import configuration

NO = subprocess.CompletedProcess("", 0)


def examples() -> list[str]:
    found = []
    for parser in commands():
        _, _, text = parser.format_help().partition("\nexamples:\n")
        lines = text.partition("\n\n")[0].splitlines()
        found += [line.strip() for line in lines]
    return [*dict.fromkeys(found)]


def test_version_and_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of("--version", capsys) == f"posenc_native {posenc_native.__version__}\n"
    said = output_of("info", capsys)
    for word in ("posenc_native", "SIMD target", "backend", "threads", "torch"):
        assert word in said


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    entries = json.loads(output_of("info --json", capsys))
    assert "--check" in entries.pop("not tried")
    assert entries.pop("plugin for vLLM").startswith(("active", "off: "))
    assert entries == configuration.configuration(ask_torch=False)


def test_info_checks_the_operators(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    if pn.engines.backend.torch_library() is None:
        pytest.skip("the operators were not built")
    entries = json.loads(output_of("info --check --json", capsys))
    assert entries["tried on cpu"] == "a table matches NumPy's, bit for bit"
    assert "not imported" not in json.dumps(entries)

    def other_of_numpy(positions: Any, dim: int) -> Any:
        numpy = isinstance(positions, np.ndarray)
        return np.zeros((4, dim), np.float32) if numpy else pn.sinusoidal(positions, dim)

    monkeypatch.setattr(info, "sinusoidal", other_of_numpy)
    assert cli.main(["info", "--check"]) == 1
    assert "a table differs from NumPy's" in capsys.readouterr().out


@pytest.mark.parametrize("parser", [*commands()], ids=lambda parser: parser.prog)
def test_help_teaches(
    parser: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "repository", lambda: None)  # the benchmarks have help of their own
    out = output_of(f"{parser.prog.partition(' ')[2]} --help", capsys)
    assert "examples:" in out
    assert len(out) > 400
    assert all(action.help for action in parser._actions if action.option_strings), out
    assert "default: False" not in " ".join(out.split())  # of what is typed to be true
    described, _, rest = out.partition("\nexamples:\n")
    # Examples are to be copied: they stay whole.
    for line in (described + rest.partition("\n\n")[2]).splitlines()[1:]:
        assert len(line) < 80, line


def test_help_names_every_command_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    out = output_of("--help", capsys)
    for word in ("info", "explain", "plot", "table", "demo", "bench", "130", "NO_COLOR"):
        assert word in out


@pytest.mark.parametrize("command", [[], ["plot"], ["table"]])
def test_no_command_shows_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert "examples:" in captured.err


@pytest.mark.parametrize("example", examples())
def test_examples_run(
    example: str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if " plot " in example or " --plot " in example:
        pytest.importorskip("matplotlib")
    if "args.json" in example:
        entries = write(read(model, "test"), "megatron").entries
        Path("args.json").write_text(json.dumps({**entries, "hidden_size": 64}), encoding="utf-8")
    if "model.gguf" in example:
        write_gguf(Path("model.gguf"), model)
    np.save("q.npy", np.zeros((1, 4, 8, 128), np.float32))
    Path("book.txt").write_text("a book", encoding="ascii")
    run_with = []
    monkeypatch.setattr(demo.measure, "measure", lambda *given: run_with.append(given))
    monkeypatch.setattr(demo.picture, "draw", lambda *given: None)
    monkeypatch.setattr(demo.show, "text_of", str)
    monkeypatch.setattr(bench, "repository", lambda: ROOT)  # whatever is installed
    monkeypatch.setattr(bench, "_missing_packages", lambda path: [])
    process = SimpleNamespace(run=lambda *given, **how: run_with.append(given) or NO)
    monkeypatch.setattr(bench, "subprocess", process)
    # The other 67 MB are not for tests, nor are fine pictures.
    example = example.replace("0:131072", "0:1311").replace("--positions 30", "--positions 3")
    monkeypatch.setattr(plot, "DPI", 30)
    _, *arguments = shlex.split(example.partition("|")[0])
    if "frequencies" in arguments and "-o" not in arguments:
        arguments += ["-o", "a_file_instead_of_a_window.png"]
    # Of different bases, and of entries that another engine does not have.
    different = arguments[:1] == ["compare"] and "megatron:args.json" not in arguments
    assert cli.main(arguments) == int(different and "model.gguf" not in arguments)
    captured = capsys.readouterr()
    assert not captured.err
    assert captured.out or run_with
    if "-o" in arguments and not run_with:
        file = Path(arguments[arguments.index("-o") + 1])
        assert file.stat().st_size > 100
        assert f"wrote {file}" in captured.out


def write_gguf(path: Path, model: Path) -> None:
    """The file of a model as llama.cpp's converter would write it."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    config = json.loads((model / "config.json").read_text())
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_key_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


NO_SENSE = [
    ("dance", ": COMMAND: invalid choice: 'dance'"),
    ("--json info", " info: unrecognized arguments: --json (write them after the command: `"),
    ("--json=1 info", " info: unrecognized arguments: --json=1 (write them after the command: `"),
    ("explain --preset llama-9", " explain: --preset: expected a preset like llama-"),
    ("info --loud", " info: unrecognized arguments: --loud"),
    ("info --js", " info: unrecognized arguments: --js"),  # no abbreviations
    ("explain", " explain: expected a path or --preset, got neither"),
    ("demo --tokens 0", " demo: --tokens: expected 1 or more, got 0"),
    ("demo --tokens many", " demo: --tokens: expected an int, got 'many'"),
    ("table sinusoidal --positions 3", " table sinusoidal: the following arguments are"),
    ("table sinusoidal --dim 7 --positions 3", ": --dim: expected a multiple of 2, got 7"),
    ("table sinusoidal --dim 8 --positions x", ": --positions: expected a count, START:STOP,"),
    ("table sinusoidal --dim 8 --positions 1:2:0", ": --positions: expected a step other"),
    ("table sinusoidal --dim 8 --positions 1:2:3:4", ": --positions: expected a count,"),
    ("table sinusoidal --dim 8 --positions 9223372036854775808", ": --positions: expected"),
    ("table sinusoidal --dim 8 --positions 3 --base 0", ": --base: expected a number > 0"),
    ("table sinusoidal --dim 8 --positions 3 --layout x", ": --layout: invalid choice"),
    ("table sinusoidal --dim 8 --positions 3 --set a=1", ": --set: requires --preset"),
    ("table sinusoidal --dim 8 --positions 3 --preset llama-3", ": --preset: expected a sin"),
    ("table sinusoidal --dim 8 --positions 3 --preset detr", ": --preset: expected one with"),
    ("table sinusoidal --dim 8 --positions 9007199254740993,0.5", ": --positions: expected in"),
    ("table sinusoidal --dim 8 --positions 9007199254740993:9007199254740995,0.5", " of at most"),
    ("table sinusoidal --dim 8 --positions 3 --preset whisper --set a=1", ": --set: expected one"),
    (
        "table sinusoidal --dim 8 --positions 3 --preset whisper --set max_timescale=a",
        ": --set: expected a real number, got str",
    ),
    (
        "table sinusoidal --dim 7 --positions 3 --preset whisper --set max_timescale=5",
        ": --dim: expected a multiple of 2, got 7",
    ),
    (
        "table sinusoidal --dim 8 --positions 3 --preset whisper --base 5",
        ": --base: not allowed with --preset; use --set",
    ),
    (
        "table sinusoidal --dim 8 --positions 3 -o t.txt",
        ": -o/--out: expected a name that ends in .npy, .npz, .csv or .safetensors, got",
    ),
    ("table sinusoidal --dim 8 --positions 3 -o no/t.npy", ": -o/--out: cannot write no/t.npy"),
    (
        "table sinusoidal --dim 8 --positions 3 --dtype bfloat16 -o t.npy",
        ": --dtype: expected one of float16, float32, float64 for .npy, got bfloat16",
    ),
    ("table rotary --positions 3", " table rotary: expected one of --preset, --config, --head"),
    ("table rotary --positions 3 --head-dim 8 --preset llama-3", " expected one of --preset,"),
    ("table rotary --positions 3 --preset llama-3 --base 5", ": --base: not allowed with --preset"),
    ("table rotary --positions 3 --preset lama-3", ": --preset: expected a preset like llama"),
    (
        "table rotary --positions 3 --preset meta-llama/Llama-3.1-8B",
        ": --preset: expected a preset like llama-3.1, llama-3, got",
    ),
    ("table rotary --positions 3 --preset ?", ": --preset: expected one of --list-presets"),
    ("table rotary --positions 3 --preset gemma-4", ": --layer-type: expected one of full_att"),
    ("table rotary --positions 3 --head-dim 8 --scaling yarn", ": --scaling: expected a JSON"),
    (
        'table rotary --positions 3 --head-dim 8 --scaling \'{"rope_type": "linear"}\'',
        ": --scaling: factor: expected a value (linear requires one), got none",
    ),
    ("plot heatmap --dim 8 --head-dim 8", ": --dim: does not apply to a rotary encoding"),
    ("plot heatmap --size 0.1x0.1", ": --size: too small for the picture"),
    ("plot heatmap --size 900x1 --dpi 100000", ": --size, --dpi: expected at most 268,435,456 p"),
    ("plot clock --dpi 50 -o c.gif", ": --dpi: a .gif always has 100"),
    ("plot similarity --dim 8 --q q.npy", ": --q, --k: expected a rotary encoding with them, "),
    ("plot waves --position 3 --dimensions 2", ": --dimensions: expected None with position"),
    ("plot rotation --head-dim 8 --x x.npy --head -1", ": --head: expected an int in 0 .. 2^"),
    ("plot rotation --head-dim 8 --x x.npy --head 1", ": --head: expected some of 0 .. 0, got [1]"),
    ("plot rotation --layer 3", ": expected one of --preset, --config, --head-dim, got none"),
    ("plot bias --causal", ": --causal: does not apply to --kind alibi"),
    ("plot bias --kind t5 --num-heads 4", ": --num-heads: does not apply to --kind t5"),
    ("plot heatmap --size large", ": --size: expected inches like 8x5, got 'large'"),
    ("plot clock -o clock.mp4", ": -o/--out: expected a name that ends in .png, .svg, .pdf or"),
]  # fmt: skip
TABLE = "table sinusoidal --dim 512 --positions "
TOO_MUCH = [
    (f"{TABLE}1600000000000 -o t.npy", 1, "the table needs 3.28 PB of disk space, but only"),
    (f"{TABLE}1600000000000 -o t.npz", 1, "the table needs 3.28 PB of disk space"),
    (f"{TABLE}1600000000000 -o t.csv", 1, "the table needs at least 1.64 PB of disk space"),
    (f"{TABLE}1600000000000 -o t.safetensors", 1, "the table needs 3.28 PB of disk space"),
    (f"{TABLE}{','.join(['0:1000000000000000000'] * 20)} -o t.npy", 1, "of disk space"),
    ("table sinusoidal --dim 1000000000000 --positions 3", 2, "--dim: expected an int in 0 .."),
    ("table rotary --head-dim 1000000000000 --positions 3", 2, "--head-dim: expected an even"),
    (f"{TABLE}0:10:0", 2, "--positions: expected a step other than 0, got '0:10:0'"),
    (f"{TABLE}5:1", 2, "expected START below STOP (the range is empty), got '5:1'"),
    (f"{TABLE}1:5:-1", 2, "expected START above STOP (the range is empty), got '1:5:-1'"),
    (f"{TABLE}1e3", 2, "expected 1000 for a count or 1000:1001 for this one position, got '1e3'"),
    (f"{TABLE}0:1e3", 2, "--positions: expected a count, START:STOP,"),
    (f"{TABLE}{'9' * 5000}", 2, "--positions: expected a count, START:STOP,"),
    (f"{TABLE}3 -o no/t.npy", 2, "cannot write no/t.npy: no folder no"),
    (f"{TABLE}3 -o {'x' * 300}.npy", 1, "File name too long"),
    (f"{TABLE}3 --dimm 8", 2, "unrecognized arguments: --dimm 8 (did you mean --dim?)"),
    ("tabel", 2, "did you mean table?"),
    ("plot heatmap --positions 1000000000000", 2, "--positions: expected at most 524,288 in a"),
    ("plot waves --positions 1000000000000", 2, "--positions: expected at most 524,288 in a"),
    ("plot rotation --head-dim 128 --positions 1000000000", 2, "--positions: expected at most"),
    ("plot similarity --offsets 1000000000000", 2, "--offsets: expected at most 262,144 in a"),
    ("plot bias --q-len 1000000000000", 2, "--q-len: expected at most 67,108,864 in a picture"),
    ("plot bias --q-len 10000000 --k-len 10000000", 2, "--k-len: expected at most 6 in a pict"),
    ("plot bias --kind t5 --num-buckets 1000000000000", 2, "--num-buckets: expected at most"),
    ("plot heatmap --dpi 999999999999999999", 2, "--size, --dpi: expected at most 268,435,456 p"),
    ("plot heatmap --size 999x999", 2, "--size, --dpi: expected at most 268,435,456 pixels, got"),
    ("plot clock --positions 100000000 -o c.gif", 2, "--positions: expected at most 2,522 fra"),
    ("plot clock --size 300x300 -o c.gif", 2, "--size, --dpi: expected at most 268,435,456 pix"),
    ("plot heatmp", 2, "did you mean heatmap?"),
    ("plot decay", 2, "did you mean similarity?"),
    ("plot Similarity_Matrix", 2, "did you mean similarity-matrix?"),
    ("plot sinusoidal", 2, "did you mean heatmap or waves?"),
    ("diff a b", 2, "did you mean compare?"),
]  # fmt: skip


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(
    ("command", "status", "said"), [*((command, 2, said) for command, said in NO_SENSE), *TOO_MUCH]
)
def test_command_lines_that_are_refused(
    command: str,
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "bfloat16" in command:
        pytest.importorskip("ml_dtypes")
    monkeypatch.chdir(tmp_path)
    if command.startswith("plot"):
        pytest.importorskip("matplotlib")
        command += "" if " -o " in command else " -o picture.png"
        for name in re.findall(r"\w\.npy", command):
            np.save(name, np.zeros((3, 8), np.float32))
    assert said in refusal(command, status, capsys)
    assert not {path.name for path in tmp_path.iterdir()} - {"q.npy", "x.npy"}


def test_errors_of_our_own_making_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise ValueError("something else")

    monkeypatch.setattr(pn.engines.configuration, "configuration", broken)
    with pytest.raises(ValueError, match="something else"):
        cli.main(["info"])


@pytest.mark.skipif(os.name != "posix", reason="needs a shell that closes files")
def test_closed_output() -> None:
    command = (
        f"{shlex.quote(sys.executable)} -m posenc_native table sinusoidal --dim 2 --positions 1"
    )
    result = subprocess.run(
        ["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_backend_that_matplotlib_does_not_know(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    environment = {**os.environ, "MPLBACKEND": "foo"}
    result = run("plot", "heatmap", "-o", str(tmp_path / "h.png"), env=environment)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "backend: 'foo' is not a valid value" in line


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(configuration, "configuration", interrupted)
    assert refusal("info", 130, capsys) == "posenc-native info: interrupted\n"


def test_broken_pipe_is_quiet() -> None:
    command = [sys.executable, "-m", "posenc_native", "table", "sinusoidal", "--dim", "8"]
    with subprocess.Popen(
        [*command, "--positions", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"position,dim_0")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, of Linux")
def test_full_disk() -> None:
    with open("/dev/full", "w", encoding="ascii") as full:
        result = subprocess.run(
            [sys.executable, "-m", "posenc_native", "table", "sinusoidal", "--dim", "8",
             "--positions", "5"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "python -m posenc_native table sinusoidal: cannot use the output: No space left on device"
    ]
