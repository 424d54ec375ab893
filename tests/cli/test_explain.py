"""posenc-native explain: what it says, and files that nobody means."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import LLAMA, output_of, refusal

import posenc_native


def with_entries(**entries: Any) -> bytes:
    return json.dumps({**LLAMA, **entries}).encode()


def test_explain(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = output_of(f"explain {model / 'config.json'}", capsys)
    assert said == f"{posenc_native.explain(LLAMA)}\n"
    assert output_of(f"explain {model}", capsys) == said  # the folder will do
    marked = json.dumps(LLAMA)
    (model / "config.json").write_text(marked, encoding="utf-8-sig")
    assert output_of(f"explain {model}", capsys) == said  # a byte order mark is passed over


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
    "UTF-16": (TEXT.encode("utf-16"), "expected UTF-8 text, got UTF-16 or UTF-32, by its"),
    "nothing": (b"", "expected JSON, got an empty file"),
    "blanks": (b" \n ", "expected JSON, got an empty file"),
    "a list": (b"[]", "expected a JSON object, {...}, got a list"),
    "null": (b"null", "expected a JSON object, {...}, got null"),
    "a scaling in a list": (with_entries(rope_parameters=[1]), "'rope_parameters']: expected a ma"),
    "a scaling in a text": (with_entries(rope_scaling="yarn"), "'rope_scaling']: expected a map"),
    "no JSON": (b"{", "expected JSON, got invalid JSON: Expecting"),
    "another model": (b'{"model_type": "t5"}', "expected an entry about a rotary encoding"),
    "a list of lists": (b"[" * 100_000, "expected JSON of at most 100 levels"),
    "long names": (b'{"%s": 1, "%s": 2}' % (b"x" * 10**6, b"x" * 10**6), "xxx ..."),
    "a long type": (with_entries(model_type="x" * 10**6), "at most 128 printable characters"),
}  # fmt: skip


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("name", FILES)
def test_explain_refuses_a_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, said = FILES[name]
    (tmp_path / "config.json").write_bytes(content)
    assert said in refusal(["explain", str(tmp_path)], 1, capsys)


@pytest.mark.usefixtures("limits")
def test_explain_refuses_what_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder/config.json").mkdir(parents=True)
    for name in ("pipe", "large", "empty"):
        Path(name).mkdir()
    os.mkfifo("pipe/config.json")
    with Path("large/config.json").open("wb") as file:
        file.truncate(10 << 30)  # takes no room on the disk
    hub = "meta-llama/Llama-3.1-8B"
    for path, said in (
        ("folder", "explain: cannot read folder: its config.json is a folder"),
        ("pipe", "expected JSON, got an empty file"),
        ("large", "expected a file of at most 16777216 bytes"),
        ("empty", "cannot read empty: the folder has no config.json"),
        ("no.json", "cannot read no.json: No such file or directory\n"),
        (hub, f"nothing is downloaded here; `hf download {hub} config.json` prints the path"),
        ("lama-3.1", "No such file or directory; did you mean the preset 'llama-3.1'?"),
        (hub, "and the preset 'llama-3.1' describes it"),
        ("https://huggingface.co/Qwen/Qwen3-8B", "`hf download Qwen/Qwen3-8B config.json`"),
        ("x" * 5000, "File name too long"),
        ("/dev/null", "expected JSON, got an empty file"),
    ):
        assert said in refusal(["explain", path], 1, capsys)


def test_a_pipe_with_a_writer_is_read(tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m posenc_native explain /dev/stdin"
    slow = ["sh", "-c", f"(sleep 0.5; cat {shlex.quote(str(tmp_path / 'c.json'))}) | {command}"]
    (tmp_path / "c.json").write_text(TEXT, encoding="utf-8")
    result = subprocess.run(slow, capture_output=True, text=True, check=False, timeout=240)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Rotary encoding of llama")


def test_what_a_file_says_moves_no_cursor(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "ll\x1b[2Jama \ud800 \u202e é"
    name = json.dumps(said)
    (model / "config.json").write_text(f"{{{name}: 1, {name}: 2}}", encoding="utf-8")
    assert r"ll\x1b[2Jama \ud800 \u202e é" in refusal(["explain", str(model)], 1, capsys)
    (model / "config.json").write_bytes(with_entries(model_type=said))
    assert "printable characters" in refusal(["explain", str(model)], 1, capsys)


def test_explain_draws(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    gemma = {
        "model_type": "gemma3_text", "head_dim": 64, "hidden_size": 256, "num_hidden_layers": 12,
        "num_attention_heads": 4, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(gemma), encoding="utf-8")
    said = output_of(f"explain {model} --plot layers.svg", capsys)
    assert said.endswith("\nwrote layers.svg\n")
    picture = Path("layers.svg").read_text(encoding="utf-8")
    assert "sliding_attention" in picture  # a comment of each text of an SVG
    assert "full_attention" in picture
