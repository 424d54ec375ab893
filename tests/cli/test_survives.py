"""Command lines and files that nobody means: one line on stderr, little memory, little time."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import LLAMA

resource = pytest.importorskip("resource", reason="limits of memory are those of POSIX")

# The child only sets its limits before it becomes another program, which JAX does not know.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")

MEMORY = 4 << 30  # of addresses: NumPy, matplotlib and their libraries take a part
SECONDS = 60  # of the processor


def limited(arguments: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

    command = [sys.executable, "-m", "posenc_native", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, preexec_fn=limits,
        stdin=subprocess.DEVNULL, **settings,
    )  # fmt: skip


def refused(result: subprocess.CompletedProcess[str], status: int, said: str) -> None:
    assert "Traceback" not in result.stderr
    assert result.returncode == status, result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert said in result.stderr
    assert not result.stdout


def with_entries(**entries: Any) -> bytes:
    return json.dumps({**LLAMA, **entries}).encode()


TEXT = json.dumps(LLAMA)
FILES = {
    "a wide head": (with_entries(head_dim=10**11), "'head_dim']: expected an int in 0 .. 8192"),
    "many layers": (with_entries(num_hidden_layers=10**12), "expected an int in 0 .. 4096, got 1"),
    "less than no layers": (with_entries(num_hidden_layers=-3), "an int in 0 .. 4096, got -3"),
    "layers in quotes": (with_entries(num_hidden_layers="32"), "expected an int, got str '32'"),
    "half a layer": (with_entries(num_hidden_layers=3.5), "expected an int, got float 3.5"),
    "few types": (with_entries(layer_types=["full_attention"]), "an entry for each of 2 layers"),
    "types that are ints": (with_entries(layer_types=[1, 2]), "'layer_types']: expected a str"),
    "types in one text": (with_entries(layer_types="full"), "'layer_types']: expected a list"),
    "400 digits": (TEXT.replace("500000.0", "1" * 400).encode(), "'rope_theta']: expected a fin"),
    "NaN": (with_entries(rope_theta=float("nan")), "'rope_theta']: expected a finite number, got"),
    "Infinity": (with_entries(rope_theta=float("inf")), "'rope_theta']: expected a finite number"),
    "lists in lists": (with_entries(rope_theta=[[1]]), "'rope_theta']: expected a real number"),
    "depth": (b'{"a":' * 10**6, "expected JSON of at most 100 levels, got more"),
    "twice": (b'{"head_dim": 64, "head_dim": 65}', "expected each name once, got 'head_dim'"),
    "no text": (bytes(range(128, 256)), "expected UTF-8 text"),
    "UTF-16": (TEXT.encode("utf-16"), "expected UTF-8 text, got UTF-16 or UTF-32, by its mark"),
    "nothing": (b"", "expected JSON, got an empty file"),
    "blanks": (b" \n ", "expected JSON, got an empty file"),
    "a list": (b"[]", "expected a JSON object, {...}, got a list"),
    "null": (b"null", "expected a JSON object, {...}, got null"),
    "a scaling in a list": (with_entries(rope_parameters=[1]), "'rope_parameters']: expected a ma"),
    "a scaling in a text": (with_entries(rope_scaling="yarn"), "'rope_scaling']: expected a map"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_explain_refuses_a_file(name: str, tmp_path: Path) -> None:
    content, said = FILES[name]
    (tmp_path / "config.json").write_bytes(content)
    refused(limited(["explain", str(tmp_path)]), 1, said)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_text(TEXT, encoding="utf-8")
    (tmp_path / "marked.json").write_text(TEXT, encoding="utf-8-sig")
    plain, marked = (limited(["explain", str(tmp_path / f"{name}.json")])
                     for name in ("plain", "marked"))  # fmt: skip
    assert (marked.returncode, marked.stderr) == (0, "")
    assert marked.stdout == plain.stdout != ""


def test_explain_refuses_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder" / "config.json").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.json")
    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "config.json").open("wb") as file:
        file.truncate(10 << 30)  # takes no room on the disk
    (tmp_path / "empty").mkdir()
    hub = "meta-llama/Llama-3.1-8B"
    for path, said in (
        ("folder", "cannot read folder: its config.json is a folder"),
        ("pipe", "expected JSON, got an empty file"),
        ("large", "expected a file of at most 16777216 bytes"),
        ("empty", "cannot read empty: the folder has no config.json"),
        ("no.json", "cannot read no.json: No such file or directory\n"),
        (hub, f"nothing is downloaded here, `hf download {hub} config.json` prints the path"),
        (hub, "and the preset 'llama-3.1' is of it"),
        ("https://huggingface.co/Qwen/Qwen3-8B", "`hf download Qwen/Qwen3-8B config.json`"),
        ("x" * 5000, "File name too long"),
        ("/dev/null", "expected JSON, got an empty file"),
    ):
        refused(limited(["explain", path], cwd=tmp_path), 1, said)


def test_a_pipe_with_a_writer_is_read(tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m posenc_native explain /dev/stdin"
    slow = ["sh", "-c", f"(sleep 0.5; cat {shlex.quote(str(tmp_path / 'c.json'))}) | {command}"]
    (tmp_path / "c.json").write_text(TEXT, encoding="utf-8")
    result = subprocess.run(slow, capture_output=True, text=True, check=False, timeout=240)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Rotary encoding of llama")


TABLE = "table sinusoidal --dim 512 --positions "
COMMANDS = [
    (f"{TABLE}1600000000000 -o t.npy", 1, "the table takes 3.28 PB of the disk, and there are"),
    (f"{TABLE}1600000000000 -o t.npz", 1, "the table takes 3.28 PB of the disk"),
    (f"{TABLE}1600000000000 -o t.csv", 1, "the table takes at least 1.64 PB of the disk"),
    (f"{TABLE}1600000000000 -o t.safetensors", 1, "the table takes 3.28 PB of the disk"),
    (f"{TABLE}{','.join(['0:1000000000000000000'] * 20)} -o t.npy", 1, "of the disk"),
    ("table sinusoidal --dim 1000000000000 --positions 3", 2, "--dim: expected an int in 0 .."),
    ("table rotary --head-dim 1000000000000 --positions 3", 2, "--head-dim: expected an even"),
    (f"{TABLE}0:10:0", 2, "--positions: expected a step other than 0, got '0:10:0'"),
    (f"{TABLE}5:1", 2, "expected START below STOP, or there are no positions, got '5:1'"),
    (f"{TABLE}1:5:-1", 2, "expected START above STOP, or there are no positions, got '1:5:-1'"),
    (f"{TABLE}1e3", 2, "expected 1000 for a count, 1000:1001 for this one position, got '1e3'"),
    (f"{TABLE}0:1e3", 2, "--positions: expected a count, START:STOP,"),
    (f"{TABLE}{'9' * 5000}", 2, "--positions: expected a count, START:STOP,"),
    (f"{TABLE}3 -o no/t.npy", 2, "cannot write no/t.npy: no folder no"),
    (f"{TABLE}3 -o {'x' * 300}.npy", 1, "File name too long"),
    (f"{TABLE}3 --dimm 8", 2, "unrecognized arguments: --dimm 8 (did you mean --dim?)"),
    ("tabel", 2, "did you mean table?"),
]  # fmt: skip
PICTURES = [
    ("plot heatmap --positions 1000000000000", 2, "--positions: expected at most 524,288 in a"),
    ("plot waves --positions 1000000000000", 2, "--positions: expected at most 524,288 in a"),
    ("plot rotation --head-dim 128 --positions 1000000000", 2, "--positions: expected at most"),
    ("plot similarity --offsets 1000000000000", 2, "--offsets: expected at most 262,144 in a"),
    ("plot bias --q-len 1000000000000", 2, "--q-len: expected at most 67,108,864 in a picture"),
    ("plot bias --q-len 10000000 --k-len 10000000", 2, "--k-len: expected at most 6 in a pict"),
    ("plot bias --kind t5 --num-buckets 1000000000000", 2, "--num-buckets: expected at most"),
    ("plot heatmap --dpi 999999999999999999", 2, "--size, --dpi: expected at most 268,435,456 p"),
    ("plot heatmap --size 999x999", 2, "--size, --dpi: expected at most 268,435,456 pixels, got"),
    ("plot clock --positions 100000000 -o c.gif", 2, "--positions: expected at most 2,522 of t"),
    ("plot clock --size 300x300 -o c.gif", 2, "--size, --dpi: expected at most 268,435,456 pix"),
    ("plot heatmp", 2, "did you mean heatmap?"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "status", "said"), [*COMMANDS, *PICTURES])
def test_commands(command: str, status: int, said: str, tmp_path: Path) -> None:
    arguments = command.split()
    if arguments[0] == "plot":
        pytest.importorskip("matplotlib")
        arguments += [] if "-o" in arguments else ["-o", "p.png"]
    refused(limited(arguments, cwd=tmp_path), status, said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv", "safetensors"])
def test_a_disk_that_is_full_midway_leaves_nothing(suffix: str, tmp_path: Path) -> None:
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    code = (
        "import resource, signal, sys; from posenc_native import cli; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000)); sys.exit(cli.main())"
    )
    command = [*f"{TABLE}1000 -o t.{suffix}".split()]
    result = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    refused(result, 1, "cannot write ")
    assert "too large" in result.stderr  # as the system says for this limit
    assert not list(tmp_path.iterdir())
