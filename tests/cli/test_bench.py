"""posenc-native bench: in the repository, and out of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import one_line

from posenc_native import cli
from posenc_native.cli import bench


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
