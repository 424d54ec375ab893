"""posenc-native table: positions, files, presets."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import numpy as np
import pytest
from command_line import LLAMA, refusal

import posenc_native as pn
from posenc_native import cli
from posenc_native.cli import table
from posenc_native.cli.positions import Positions


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
    assert found.total == len(expected)
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
    assert np.array_equal(np.load("w.npy"), pn.SinusoidalSpec.preset("whisper", 16)(20))
    # An int is what the project makes of it: here it counts down.
    written("sinusoidal --preset transformer_xl --dim 6 --positions 4", "x.npy")
    assert np.array_equal(np.load("x.npy"), pn.SinusoidalSpec.preset("transformer_xl", 6)(4))
    written("sinusoidal --preset whisper --set max_timescale=100 --dim 8 --positions 3", "m.npy")
    expected = pn.SinusoidalSpec.preset("whisper", 8, max_timescale=100)(3)
    assert np.array_equal(np.load("m.npy"), expected)
    # Several axes: the same position on each.
    written("rotary --preset qwen2-vl --positions 5", "q.npy")
    rope = pn.Rotary.preset("qwen2-vl")
    assert np.array_equal(np.load("q.npy"), rope.tables(np.stack([np.arange(5)] * 3)))
    capsys.readouterr()
    for kind, names in (
        ("sinusoidal", pn.SinusoidalSpec.presets()),
        ("rotary", pn.Rotary.presets()),
    ):
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


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv", "safetensors"])
def test_a_disk_that_is_full_midway_leaves_nothing(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resource = pytest.importorskip("resource", reason="limits of files are those of POSIX")
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        said = refusal(f"table sinusoidal --dim 512 --positions 1000 -o t.{suffix}", 1, capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "cannot write " in said
    assert "too large" in said  # as the system says for this limit
    assert not list(tmp_path.iterdir())


def test_an_entry_that_is_not_read_has_to_be_ignored(tmp_path: Path, capsys) -> None:
    (tmp_path / "config.json").write_text('{"head_dim": 8, "rope_theta": 1e4, "rope_ratio": 5}')
    table = ["table", "rotary", "--config", str(tmp_path), "--positions", "4"]
    table += ["-o", str(tmp_path / "table.npz")]
    said = refusal(table, 1, capsys)
    assert "config['rope_ratio']" in said
    assert said.rstrip().endswith("write --ignore rope_ratio")
    assert cli.main([*table, "--ignore", "rope_ratio"]) == 0


def test_a_name_twice_in_a_scaling(capsys) -> None:
    twice = '{"rope_type": "linear", "factor": 2, "factor": 4}'
    said = refusal(["table", "rotary", "--head-dim", "8", "--scaling", twice], 2, capsys)
    assert "--scaling: expected each name once, got 'factor' twice" in said
