"""posenc-native bench: in the repository, and out of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from command_line import output_of, refusal

from posenc_native import cli
from posenc_native.cli import bench


def test_bench_needs_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "posenc_native" / "cli" / "bench.py"))
    said = refusal("bench --filter rotary", 1, capsys)
    assert said.endswith("part of the repository: run this in a working copy (git clone)\n")
    assert "git clone" in output_of("bench --help", capsys)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose benchmarks print their options, and whose set-up makes an environment."""
    files = {
        "benchmarks/__init__.py": "",
        "benchmarks/__main__.py": "import sys\n"
        "print('over there', sys.argv[1:], flush=True); sys.exit(3)\n",
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
    monkeypatch.delenv("VENV", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("repository")
def test_bench_passes_its_options_on(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert cli.main(["bench", "--filter", "rotary", "--help"]) == 3
    assert capfd.readouterr().out == "over there ['--filter', 'rotary', '--help']\n"


def test_bench_stays_where_it_is_started(
    tmp_path: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Files that options name are those of the folder where they are typed."""
    pytest.importorskip("torch")
    main = repository / "benchmarks" / "__main__.py"
    main.write_text("import os, sys; print(os.getcwd(), *sys.path, sep='\\n')", encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    mine = str(tmp_path / "modules of the caller")
    monkeypatch.setenv("PYTHONPATH", mine, prepend=os.pathsep)
    assert cli.main(["bench"]) == 0
    where, *searched = capfd.readouterr().out.splitlines()
    assert where == str(tmp_path / "elsewhere")
    assert mine in searched


def test_bench_sets_up_what_is_missing(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (repository / "requirements" / "bench.txt").open("a", encoding="utf-8") as file:
        file.write("no-such-package\n")
    assert cli.main(["bench", "--filter", "rotary"]) == 3
    first, *rest = capfd.readouterr().out.splitlines()
    assert first.endswith(f"no-such-package: not in {sys.prefix}; setting up {repository}/.venv")
    assert rest == ["set up: bench package", "over there ['--filter', 'rotary']"]
    (repository / "refuse").touch()
    assert cli.main(["bench"]) == 1
    assert capfd.readouterr().err.endswith("cannot install the missing packages: see above\n")
