"""posenc-native explain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import LLAMA, one_line, run

import posenc_native
from posenc_native import cli


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
        (b"{", "expected JSON, got text that is none: Expecting"),
        (b"\xff\xfe", "expected UTF-8 text"),
        (b'{"model_type": "bert"}', "nothing speaks of a rotary encoding"),
        (b"[]", "expected a JSON object"),
        (b"[" * 100_000, "expected JSON of at most 100 levels"),
        (b'{"%s": 1, "%s": 2}' % (b"x" * 10**6, b"x" * 10**6), "xxx ..."),
        (b'{"model_type": "%s"}' % (b"x" * 10**6), "expected at most 128 printable characters"),
    ):
        config.write_bytes(text)
        assert cli.main(["explain", str(tmp_path)]) == 1
        assert said in one_line(capsys)


def test_what_a_file_says_moves_no_cursor(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "ll\x1b[2Jama \ud800 \u202e é"
    shown = r"ll\x1b[2Jama \ud800 \u202e é"
    name = json.dumps(said)
    (model / "config.json").write_text(f"{{{name}: 1, {name}: 2}}", encoding="utf-8")
    assert cli.main(["explain", str(model)]) == 1
    assert shown in one_line(capsys)
    config = {**LLAMA, "model_type": said}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert cli.main(["explain", str(model)]) == 1
    assert "printable characters" in one_line(capsys)


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
