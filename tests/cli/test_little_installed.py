"""The command line with little installed, and on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreters import OPTIONAL, WITHOUT_OPTIONAL
from places import ROOT

import posenc_native as pn
from posenc_native.core.calls.optional import install_command

# Runs one command after the other, and says of each how it ended and what it said.
COMMANDS = """
import contextlib, io, json, shlex, sys
from posenc_native.cli import main
found = []
for command in sys.argv[1:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(shlex.split(command))
    found.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(found))
"""


def last_line(code: str, *arguments: str) -> Any:
    """What a program prints, as JSON in its last line; it has nothing to complain of."""
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.usefixtures("model")
def test_numpy_alone_is_enough() -> None:
    commands = (
        "--help", "plot heatmap --help", "info", "explain path/to/model",
        "table rotary --list-presets",
        "table sinusoidal --dim 8 --positions 5 -o t.npy",
        "table rotary --preset llama-3.1 --positions 5 -o t.npz",
        "table sinusoidal --dim 8 --positions 5",
    )  # fmt: skip
    for command, (status, out, err) in zip(
        commands, last_line(WITHOUT_OPTIONAL + COMMANDS, *commands), strict=True
    ):
        assert (status, err) == (0, ""), command
        assert out
    assert np.array_equal(np.load("t.npy"), pn.sinusoidal(5, 8))


MISSING = {
    "plot heatmap -o h.png": "matplotlib",
    "plot clock -o h.gif": "matplotlib",
    "explain path/to/model --plot h.png": "matplotlib",
    "table sinusoidal --dim 8 --positions 5 -o t.safetensors": "safetensors",
    "table sinusoidal --dim 8 --positions 5 --dtype bfloat16": "ml_dtypes",
    "demo": '"torch>=2.10" transformers matplotlib',
}


@pytest.mark.usefixtures("model")
def test_what_is_missing_is_said_in_one_line() -> None:
    found = last_line(WITHOUT_OPTIONAL + COMMANDS, *MISSING)
    for (command, install), (status, _, err) in zip(MISSING.items(), found, strict=True):
        assert status == 1, command
        (line,) = err.splitlines()
        assert re.search(rf"needs \S*({install.split()[-1]}|torch)", line)
        assert line.endswith(f": pip install {install}")
    assert not list(Path().glob("*.*"))


_HF = (
    "posenc_native.hf needs torch (and transformers, for a model): "
    'pip install "torch>=2.10" transformers'
)
FACES = {
    "nn": 'posenc_native.nn needs torch: pip install "torch>=2.10"',
    "flex": 'posenc_native.flex needs torch: pip install "torch>=2.10"',
    "hf": _HF,
}


@pytest.mark.parametrize(
    "way", ["import posenc_native.{}", "from posenc_native import {} as part; part.patch"]
)
def test_what_is_missing_for_a_part_of_the_library(way: str) -> None:
    code = f"""{WITHOUT_OPTIONAL}
import json
found = {{}}
for face in {[*FACES]}:
    try: exec({way!r}.format(face))
    except ImportError as error: found[face] = str(error)
print(json.dumps(found))
"""
    assert last_line(code) == FACES


def test_texts_name_packages_and_versions_of_the_project() -> None:
    """And no extra, which pip finds only where an index has this package."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[project.")[0]
    wanted = {*re.findall(r'"([\w-]+>=[\d.]+)"', section)}
    for package in ("torch", "transformers", "matplotlib", "rich", "safetensors", "ml_dtypes"):
        asked = install_command(package).removeprefix("pip install ").strip('"')
        assert asked in wanted | {name.partition(">")[0] for name in wanted}
    for file in Path(pn.__file__).parent.rglob("*.py"):
        assert "posenc-native[" not in file.read_text(encoding="utf-8"), file


@pytest.mark.usefixtures("model")
def test_nothing_is_imported_in_vain() -> None:
    commands = ("--help", "info", "plot clock --help", "explain path/to/model", "dance",
                "table sinusoidal --dim 8 --positions 5")  # fmt: skip
    said = f"print(json.dumps([name for name in {OPTIONAL} if name in sys.modules]))"
    assert last_line(COMMANDS + said, *commands) == []


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
    colored = on_terminal(*command.split())
    assert "\x1b[" in colored
    plain = on_terminal(*command.split(), NO_COLOR="1")
    assert "\x1b[3" not in plain  # bold may stay
    plain = re.sub(r"\x1b\[[\d;]*m", "", plain)
    assert plain == re.sub(r"\x1b\[[\d;]*m", "", colored)
    if command.startswith("explain"):
        assert max(map(len, plain.splitlines())) <= 60
        assert plain.startswith("Rotary encoding of llama")
