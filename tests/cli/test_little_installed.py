"""The command line with little installed, and on a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

import posenc_native as pn
from posenc_native.base.optional import install_command

# Before it runs the command, Python is told that none of these can be imported.
OPTIONAL = ("torch", "transformers", "matplotlib", "rich", "rich_argparse", "safetensors",
            "ml_dtypes")  # fmt: skip
WITHOUT = f"""
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
"""
BARE = WITHOUT + "from posenc_native.cli import main; sys.exit(main())"


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
    ("command", "package", "install"),
    [
        ("plot heatmap -o h.png", "matplotlib", "pip install matplotlib"),
        ("plot clock -o h.gif", "matplotlib", "pip install matplotlib"),
        ("explain path/to/model --plot h.png", "matplotlib", "pip install matplotlib"),
        (
            "table sinusoidal --dim 8 --positions 5 -o t.safetensors",
            "safetensors",
            "pip install safetensors",
        ),
        (
            "table sinusoidal --dim 8 --positions 5 --dtype bfloat16",
            "ml_dtypes",
            "pip install ml_dtypes",
        ),
        ("demo", "torch", 'pip install "torch>=2.10" transformers matplotlib rich'),
    ],
)
def test_what_is_missing_is_said_in_one_line(command: str, package: str, install: str) -> None:
    result = bare(*command.split())
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "needs" in line
    assert package in line
    assert line.endswith(f": {install}")
    assert not list(Path().glob("*.*"))


_HF = (
    "posenc_native.hf needs torch (and transformers, for a model): "
    'pip install "torch>=2.10" transformers'
)


@pytest.mark.parametrize(
    ("face", "said"),
    [
        ("nn", 'posenc_native.nn needs torch: pip install "torch>=2.10"'),
        ("flex", 'posenc_native.flex needs torch: pip install "torch>=2.10"'),
        ("hf", _HF),
        ("plot", "posenc_native.plot needs matplotlib: pip install matplotlib"),
    ],
)
@pytest.mark.parametrize("way", ["import posenc_native.{}", "import posenc_native as pn; pn.{}"])
def test_what_is_missing_for_a_part_of_the_library(face: str, said: str, way: str) -> None:
    code = f"{WITHOUT}\ntry: {way.format(face)}\nexcept ImportError as error: print(error)\n"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr) == (f"{said}\n", "")


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
