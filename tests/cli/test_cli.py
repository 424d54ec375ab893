"""The command line and the demonstration behind it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.resources
import importlib.util
import inspect
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from places import ROOT

import posenc_native
import posenc_native as pn
from posenc_native import cli, demo
from posenc_native.cli import bench, table
from posenc_native.cli.positions import Positions

LLAMA = {
    "model_type": "llama",
    "head_dim": 64,
    "rope_theta": 500000.0,
    "num_hidden_layers": 2,
    "max_position_embeddings": 131072,
}


def run(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "posenc_native", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err.rstrip("\n")


def commands(parser: Any = None) -> Iterator[Any]:
    """Every parser: of the program, of its commands, of theirs."""
    parser = parser or cli._parser("posenc-native")
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from commands(one)


def examples() -> list[str]:
    found = []
    for parser in commands():
        _, _, text = parser.format_help().partition("\nexamples:\n")
        lines = text.partition("\n\n")[0].splitlines()
        found += [line.strip() for line in lines]
    return found


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model as the examples have it, in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "path" / "to" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return folder


# --- commands -------------------------------------------------------------------------------------


def test_version_and_info(tmp_path: Path) -> None:
    result = run("--version", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, f"posenc_native {posenc_native.__version__}\n")
    result = run("info", cwd=tmp_path)
    assert result.returncode == 0
    for word in ("posenc_native", "SIMD target", "backend", "threads", "torch"):
        assert word in result.stdout
    assert not result.stderr


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == pn.backend.configuration()


@pytest.mark.parametrize("parser", [*commands()], ids=lambda parser: parser.prog)
def test_help_teaches(
    parser: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        bench, "repository", lambda: None
    )  # whose benchmarks have help of their own
    assert cli.main([*parser.prog.split()[1:], "--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert len(out) > 400
    assert all(action.help for action in parser._actions if action.option_strings), out
    described, _, rest = out.partition("\nexamples:\n")
    # Examples are to be copied: they stay whole.
    for line in (described + rest.partition("\n\n")[2]).splitlines()[1:]:
        assert len(line) < 80, line


def test_help_names_every_command_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
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
    np.save("q.npy", np.zeros((1, 4, 8, 128), np.float32))
    Path("book.txt").write_text("a book", encoding="ascii")
    run_with = []
    monkeypatch.setattr(demo, "run", lambda *given: run_with.append(given))
    monkeypatch.setattr(bench, "_run", lambda options: run_with.append(options.more))
    # The other 67 MB are not for tests.
    example = example.replace("0:131072", "0:1311")
    _, *arguments = shlex.split(example.partition("|")[0])
    if "frequencies" in arguments and "-o" not in arguments:
        arguments += ["-o", "a_file_instead_of_a_window.png"]
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert not captured.err
    assert captured.out or run_with
    if "-o" in arguments and not run_with:
        file = Path(arguments[arguments.index("-o") + 1])
        assert file.stat().st_size > 100
        assert f"wrote {file}" in captured.out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("dance", ": COMMAND: invalid choice: 'dance'"),
        ("info --loud", " info: unrecognized arguments: --loud"),
        ("info --js", " info: unrecognized arguments: --js"),  # no abbreviations
        ("explain", " explain: the following arguments are required: PATH"),
        ("demo --tokens 0", " demo: --tokens: expected 1 or more, got 0"),
        ("demo --tokens many", " demo: --tokens: expected an int, got 'many'"),
        ("table sinusoidal --positions 3", " table sinusoidal: the following arguments are"),
        ("table sinusoidal --dim 7 --positions 3", ": --dim: expected a multiple of 2, got 7"),
        ("table sinusoidal --dim 8 --positions x", ": --positions: expected a count, START:STOP,"),
        ("table sinusoidal --dim 8 --positions 1:2:0", ": --positions: expected a count,"),
        ("table sinusoidal --dim 8 --positions 1:2:3:4", ": --positions: expected a count,"),
        ("table sinusoidal --dim 8 --positions 9223372036854775808", ": --positions: expected"),
        ("table sinusoidal --dim 8 --positions 3 --base 0", ": --base: expected a number > 0"),
        ("table sinusoidal --dim 8 --positions 3 --layout x", ": --layout: invalid choice"),
        ("table sinusoidal --dim 8 --positions 3 --set a=1", ": --set: goes with --preset"),
        ("table sinusoidal --dim 8 --positions 3 --preset llama-3", ": --preset: expected a sin"),
        ("table sinusoidal --dim 8 --positions 3 --preset detr", ": --preset: expected one of one"),
        ("table sinusoidal --dim 8 --positions 9007199254740993,0.5", ": --positions: expected in"),
        (
            "table sinusoidal --dim 8 --positions 9007199254740993:9007199254740995,0.5",
            " of at most",
        ),
        (
            "table sinusoidal --dim 8 --positions 3 --preset whisper --set a=1",
            ": --set: expected one",
        ),
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
            ": --base: not beside --preset",
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
        ("table rotary --positions 3 --preset llama-3 --base 5", ": --base: not beside --preset"),
        ("table rotary --positions 3 --preset lama-3", ": --preset: expected a preset like llama"),
        ("table rotary --positions 3 --preset ?", ": --preset: expected one of --list-presets"),
        ("table rotary --positions 3 --preset gemma-4", ": --layer-type: expected one of full_att"),
        ("table rotary --positions 3 --head-dim 8 --scaling yarn", ": --scaling: expected a JSON"),
        (
            'table rotary --positions 3 --head-dim 8 --scaling \'{"rope_type": "linear"}\'',
            ": --scaling: factor: expected a value, which linear needs, got none",
        ),
        ("plot heatmap --dim 8 --head-dim 8", ": --dim: is not of a rotary encoding"),
        ("plot heatmap --size 0.1x0.1", ": --size: there is no room for the picture"),
        ("plot heatmap --size 900x1 --dpi 100000", ": --size, --dpi: Image size of 90000000x"),
        ("plot clock --dpi 50 -o c.gif", ": --dpi: a .gif always has 100"),
        ("plot similarity --dim 8 --q q.npy", ": --q: is not of a sinusoidal encoding, which"),
        ("plot rotation --head-dim 8 --x x.npy --head -1", ": --head: expected 0 .. 0, got -1"),
        ("plot rotation --head-dim 8 --x x.npy --head 1", ": --head: expected 0 .. 0, got 1"),
        ("plot bias --causal", ": --causal: is not of alibi, which this is"),
        ("plot bias --kind t5 --num-heads 4", ": --num-heads: is not of t5, which this is"),
        ("plot heatmap --size large", ": --size: expected inches like 8x5, got 'large'"),
        ("plot clock -o clock.mp4", ": -o/--out: expected a name that ends in .png, .svg, .pdf or"),
    ],
)
def test_command_lines_that_make_no_sense(
    arguments: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "bfloat16" in arguments:
        pytest.importorskip("ml_dtypes")
    monkeypatch.chdir(tmp_path)
    if arguments.startswith("plot"):
        pytest.importorskip("matplotlib")
        if " -o " not in arguments:
            arguments += " -o picture.png"
        for name in re.findall(r"\w\.npy", arguments):
            np.save(name, np.zeros((3, 8), np.float32))
    assert cli.main(shlex.split(arguments)) == 2
    said = one_line(capsys)
    assert said.startswith("posenc-native")
    assert line in said
    assert not {path.name for path in tmp_path.iterdir()} - {"q.npy", "x.npy"}


def test_errors_of_our_own_making_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("something else")

    monkeypatch.setattr(pn.backend, "configuration", broken)
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
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupted)
    assert cli.main(["demo"]) == 130
    assert one_line(capsys) == "posenc-native demo: interrupted"


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


# --- with little installed, and on a terminal -----------------------------------------------------

# What Python is told before it runs the command: nothing of these can be imported.
OPTIONAL = ("torch", "transformers", "matplotlib", "rich", "rich_argparse", "safetensors",
            "ml_dtypes")  # fmt: skip
BARE = f"""
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
import importlib.util
find_spec = importlib.util.find_spec
def found(name, *more):
    return None if name in {OPTIONAL} else find_spec(name, *more)
importlib.util.find_spec = found
sys.meta_path.insert(0, Blocked())
from posenc_native.cli import main
sys.exit(main())
"""


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BARE, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.usefixtures("model")
def test_numpy_alone_is_enough() -> None:
    for command in (
        "--help", "plot heatmap --help", "info", "explain path/to/model",
        "table rotary --list-presets",
        "table sinusoidal --dim 8 --positions 5 -o t.npy",
        "table rotary --preset llama-3.1 --positions 5 -o t.npz",
        "table sinusoidal --dim 8 --positions 5",
    ):  # fmt: skip
        result = bare(*command.split())
        assert (result.returncode, result.stderr) == (0, ""), command
        assert result.stdout
    assert np.array_equal(np.load("t.npy"), pn.sinusoidal(5, 8))


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("plot heatmap -o h.png", "matplotlib", "plot"),
        ("plot clock -o h.gif", "matplotlib", "plot"),
        ("explain path/to/model --plot h.png", "matplotlib", "plot"),
        ("table sinusoidal --dim 8 --positions 5 -o t.safetensors", "safetensors", "safetensors"),
        ("table sinusoidal --dim 8 --positions 5 --dtype bfloat16", "ml_dtypes", "half"),
        ("demo", "torch", "demo"),
    ],
)
def test_what_is_missing_is_said_in_one_line(command: str, package: str, extra: str) -> None:
    result = bare(*command.split())
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "needs" in line
    assert package in line
    assert line.endswith(f"pip install 'posenc-native[{extra}]'")
    assert not list(Path().glob("*.*"))


def test_extras_that_texts_name_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[project.")[0]
    extras = {*re.findall(r"^(\w+) = \[", section, re.MULTILINE)}
    named = {
        extra
        for file in Path(pn.__file__).parent.rglob("*.py")
        for names in re.findall(r"posenc-native\[([\w,]+)\]", file.read_text(encoding="utf-8"))
        for extra in names.split(",")
    }
    assert {"plot", "cli", "safetensors", "demo"} <= named <= extras


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "plot clock --help",
        "table sinusoidal --dim 8 --positions 5",
        "explain path/to/model",
    ],
)
def test_nothing_is_imported_in_vain(command: str) -> None:
    code = (
        "import sys; from posenc_native.cli import main; main(); "
        f"print([name for name in {OPTIONAL} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *command.split()], capture_output=True, text=True, check=False
    )
    assert result.stderr == "[]\n"


def on_terminal(*arguments: str, **environment: str) -> str:
    """What a terminal of 60 columns gets."""
    pty = pytest.importorskip("pty")
    pytest.importorskip("rich_argparse")
    leader, follower = pty.openpty()
    settings = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    settings.update(TERM="xterm", COLUMNS="60", **environment)
    with subprocess.Popen(
        [sys.executable, "-m", "posenc_native", *arguments], stdin=subprocess.DEVNULL,
        stdout=follower, stderr=follower, env=settings,
    ) as process:  # fmt: skip
        os.close(follower)
        found = b""
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while piece := os.read(leader, 4096):
                found += piece
        os.close(leader)
    assert process.returncode == 0
    return found.decode()


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("command", ["--help", "explain path/to/model"])
def test_terminal(command: str) -> None:
    coloured = on_terminal(*command.split())
    assert "\x1b[" in coloured
    plain = on_terminal(*command.split(), NO_COLOR="1")
    assert "\x1b[3" not in plain  # bold may stay
    plain = re.sub(r"\x1b\[[\d;]*m", "", plain)
    assert plain == re.sub(r"\x1b\[[\d;]*m", "", coloured)
    if command.startswith("explain"):
        assert max(map(len, plain.splitlines())) <= 60
        assert plain.startswith("Rotary encoding of llama")


def test_bench_needs_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "posenc_native" / "cli" / "bench.py"))
    assert cli.main(["bench", "--filter", "rotary"]) == 1
    assert one_line(capsys).endswith("the benchmarks are part of the repository, which is not here")
    assert cli.main(["bench", "--help"]) == 0
    assert "git clone" in capsys.readouterr().out


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose benchmarks print their options, and whose set-up makes an environment."""
    files = {
        "benchmarks/__init__.py": "",
        "benchmarks/__main__.py": "import sys\n"
        "def main(arguments): print(arguments)\n"
        "if __name__ == '__main__': print('over there', sys.argv[1:], flush=True); sys.exit(3)\n",
        "requirements/bench.txt": "# some\nnumpy\n\n",
        "scripts/setup.sh": "#!/bin/sh\necho set up: $*\ntest ! -e refuse\n",
        ".venv/bin/python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "posenc_native" / "cli" / "bench.py"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("VENV", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("repository")
def test_bench_passes_its_options_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    with monkeypatch.context() as patched:
        for name in [n for n in sys.modules if n.partition(".")[0] == "benchmarks"]:
            patched.delitem(sys.modules, name)
        try:
            assert cli.main(["bench", "--filter", "rotary", "--help"]) == 0
        finally:
            for name in ("benchmarks", "benchmarks.__main__"):
                sys.modules.pop(name, None)
    assert capsys.readouterr().out == "['--filter', 'rotary', '--help']\n"


def test_bench_sets_up_what_is_missing(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (repository / "requirements" / "bench.txt").open("a", encoding="utf-8") as file:
        file.write("no-such-package\n")
    assert cli.main(["bench", "--filter", "rotary"]) == 3
    first, *rest = capfd.readouterr().out.splitlines()
    assert first.endswith(f"no-such-package: not in {sys.prefix}; setting up {repository}/.venv")
    assert rest == ["set up: bench package", "over there ['--filter', 'rotary']"]
    (repository / "refuse").touch()
    assert cli.main(["bench"]) == 1
    assert capfd.readouterr().err.endswith("bench: cannot set up what is needed: see above\n")


# --- explain --------------------------------------------------------------------------------------


def test_explain(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run("explain", str(model / "config.json"))
    assert (result.returncode, result.stdout) == (0, f"{posenc_native.explain(LLAMA)}\n")
    assert not result.stderr
    assert cli.main(["explain", str(model)]) == 0  # the folder will do
    assert capsys.readouterr().out == result.stdout


def test_what_cannot_be_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, config = tmp_path / "no such.json", tmp_path / "config.json"
    assert cli.main(["explain", str(missing)]) == 1
    assert one_line(capsys) == (
        f"posenc-native explain: cannot read {missing}: No such file or directory"
    )
    for text, said in (
        (b"{", "is no JSON: Expecting"),
        (b"\xff\xfe", "is no text"),
        (b'{"model_type": "bert"}', "nothing speaks of a rotary encoding"),
        (b"[]", "expected a configuration object"),
        (b"[" * 100_000, "nested too deeply"),
    ):
        config.write_bytes(text)
        assert cli.main(["explain", str(tmp_path)]) == 1
        assert said in one_line(capsys)


def test_explain_draws(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    gemma = {
        "model_type": "gemma3_text", "head_dim": 64, "hidden_size": 256, "num_hidden_layers": 12,
        "num_attention_heads": 4, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(gemma), encoding="utf-8")
    assert cli.main(["explain", str(model), "--plot", "layers.svg"]) == 0
    assert capsys.readouterr().out.endswith("\nwrote layers.svg\n")
    picture = Path("layers.svg").read_text(encoding="utf-8")
    assert "sliding_attention" in picture  # a comment of each text of an SVG
    assert "full_attention" in picture


# --- table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", [0, 1, 2, 3]),
        ("0", []),
        ("3:6", [3, 4, 5]),
        ("-2:5:3", [-2, 1, 4]),
        ("5:2:-1", [5, 4, 3]),
        ("7,", None),
        ("5,9,7", [5, 9, 7]),
        ("0:2,10:12,99", [0, 1, 10, 11, 99]),
        ("1,2.5", [1.0, 2.5]),
        ("9223372036854775806:9223372036854775807", [2**63 - 2]),
        ("nan", None),
        ("0:9223372036854775807", None),  # more than any array can have
        ("a:b", None),
    ],
)
def test_positions(text: str, expected: list[float] | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="expected a count"):
            Positions.read(text)
        return
    found = Positions.read(text)
    assert found.array().tolist() == expected
    assert len(found) == len(expected)
    blocks = list(found.blocks(2))
    assert all(1 <= len(block) <= 2 for block in blocks)
    assert len({block.dtype for block in blocks}) <= 1
    assert (found.count is None) == (not text.isdecimal())


def test_negative_positions_are_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(shlex.split("table sinusoidal --dim 2 --positions -2:0")) == 0
    assert [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "-2",
        "-1",
    ]


def written(command: str, *files: str) -> None:
    for file in files:
        assert cli.main([*shlex.split(f"table {command}"), "-o", file]) == 0


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("block", [1 << 22, 64])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sinusoidal_tables(dtype: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_BLOCK_BYTES", block)
    written(
        f"sinusoidal --dim 12 --positions 0:40:3,1000000 --layout sin_cos --dtype {dtype}",
        "t.npy", "t.npz", "t.csv",
    )  # fmt: skip
    positions = np.array([*range(0, 40, 3), 1000000])
    expected = pn.sinusoidal(positions, 12, layout="sin_cos", dtype=dtype)
    found = np.load("t.npy")
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    with np.load("t.npz") as archive:
        assert {*archive} == {"table", "positions", "encoding"}
        assert np.array_equal(archive["table"], expected)
        assert np.array_equal(archive["positions"], positions)
        assert "sin_cos" in str(archive["encoding"])
    header, *rows = Path("t.csv").read_text(encoding="ascii").splitlines()
    assert header.split(",") == ["position", *(f"dim_{i}" for i in range(12))]
    read = np.array([row.split(",")[1:] for row in rows]).astype(dtype)
    assert np.array_equal(read, expected)  # every bit, through text
    assert [int(row.partition(",")[0]) for row in rows] == positions.tolist()


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("block", [1 << 22, 64])
def test_rotary_tables(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_BLOCK_BYTES", block)
    rope = pn.Rotary.preset("gpt-oss")  # YaRN: an attention factor that is not 1
    written("rotary --preset gpt-oss --positions 100:120", "r.npy", "r.npz", "r.csv")
    expected = rope.tables(np.arange(100, 120))
    cos, sin = np.load("r.npy")
    assert np.array_equal([cos, sin], expected)
    with np.load("r.npz") as archive:
        assert np.array_equal([archive["cos"], archive["sin"]], expected)
        assert np.array_equal(archive["inv_freq"], rope.inv_freq)
        assert archive["attention_factor"] == rope.scale != 1
        assert archive["positions"].tolist() == [*range(100, 120)]
    read = np.loadtxt("r.csv", delimiter=",", skiprows=1, dtype=np.float32)
    assert np.array_equal(read[:, 1:], np.concatenate(expected, 1))


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_safetensors(dtype: str) -> None:
    safetensors = pytest.importorskip("safetensors")
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    written(f"rotary --config path/to/model --positions 9 --dtype {dtype}", "r.safetensors")
    rope = pn.Rotary.from_config(LLAMA)
    with safetensors.safe_open("r.safetensors", "pt") as file:
        assert file.metadata()["encoding"] == repr(rope)
        cos, sin = rope.tables(torch.arange(9), dtype=getattr(torch, dtype))
        assert torch.equal(file.get_tensor("cos"), cos)
        assert torch.equal(file.get_tensor("sin"), sin)
        assert file.get_tensor("attention_factor").item() == 1
    # For everyone who may read other new files.
    Path("other").touch()
    assert Path("r.safetensors").stat().st_mode == Path("other").stat().st_mode


@pytest.mark.usefixtures("model")
def test_tables_of_presets(capsys: pytest.CaptureFixture[str]) -> None:
    written("sinusoidal --preset whisper --dim 16 --positions 20", "w.npy")
    assert np.array_equal(np.load("w.npy"), pn.sinusoidal_preset("whisper", 20, 16))
    # An int is what the project makes of it: here it counts down.
    written("sinusoidal --preset transformer_xl --dim 6 --positions 4", "x.npy")
    assert np.array_equal(np.load("x.npy"), pn.sinusoidal_preset("transformer_xl", 4, 6))
    written("sinusoidal --preset whisper --set max_timescale=100 --dim 8 --positions 3", "m.npy")
    expected = pn.sinusoidal_preset("whisper", 3, 8, max_timescale=100)
    assert np.array_equal(np.load("m.npy"), expected)
    # Several axes: the same position on each.
    written("rotary --preset qwen2-vl --positions 5", "q.npy")
    rope = pn.Rotary.preset("qwen2-vl")
    assert np.array_equal(np.load("q.npy"), rope.tables(np.stack([np.arange(5)] * 3)))
    capsys.readouterr()
    for kind, names in (("sinusoidal", pn.sinusoidal_presets()), ("rotary", pn.rotary_presets())):
        assert cli.main(["table", kind, "--list-presets"]) == 0
        listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert listed == [*names]


@pytest.mark.usefixtures("model")
def test_interrupted_run_leaves_no_half_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("t.npy").write_text("what was here", encoding="ascii")
    Path("link.npy").symlink_to("t.npy")

    def interrupted(*_: object) -> None:
        assert list(Path().glob("*.part.npy"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(table, "_blocks", interrupted)
        command = ["table", "sinusoidal", "--dim", "8", "--positions", "5", "-o", "link.npy"]
        assert cli.main(command) == 130
    assert {path.name for path in Path().glob("*.npy")} == {"t.npy", "link.npy"}
    assert Path("t.npy").read_text(encoding="ascii") == "what was here"
    assert cli.main(command) == 0
    assert Path("link.npy").is_symlink()
    assert np.array_equal(np.load("t.npy"), pn.sinusoidal(5, 8))


# --- plot -----------------------------------------------------------------------------------------


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
    figures = demo.measure(
        b"a short text to read",
        5,
        demo.Sizes(context=16, moved=8, prefill_repeats=2, decode_repeats=3),
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
    for position in demo.SHOWN_POSITIONS:
        theirs, ours = figures.errors[position]
        assert ours < 1.2e-7
        assert position * 2.0**-27 < theirs < position * 2.0**-22


def test_table_says_where_continuations_part() -> None:
    figures = demo.Figures(
        tokens=1000,
        spread=2.0,
        difference=0.5,
        continuation=([1, 2, 3, 4], [1, 2, 5, 4]),
        moved=(0.5, 1.0),
        prefill=(2.5, 0.05, 25e-6),
        decode=(1e-4, 2e-4, 1e-4),
        errors=dict.fromkeys(demo.SHOWN_POSITIONS, (0.1, 1e-7)),
        facts="",
    )
    same, time, _ = demo.sections(figures)
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
                cos, sin = demo.exact_cos_sin(position, frequency)
                angle = mpmath.mpf(position) * mpmath.mpf(frequency)
                assert abs(cos - mpmath.cos(angle)) <= 2.0**-53
                assert abs(sin - mpmath.sin(angle)) <= 2.0**-53


def test_text_that_ships() -> None:
    text = (importlib.resources.files(posenc_native) / "data" / demo.DEFAULT_TEXT).read_text(
        "ascii"
    )
    assert 1200 <= len(text.split()) <= 2000
    assert len(text) > demo.FULL.context


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
    assert "pip install 'posenc-native[demo]'" in line
