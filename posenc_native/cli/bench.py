"""bench: the benchmarks, which are part of the repository."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from .parser import CommandError


def repository() -> Path | None:
    """The working copy that this package is in; None if it is installed elsewhere."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "benchmarks" / "__main__.py").is_file() else None


def bench(*words: str) -> int:
    """Compare with other libraries and the limits of memory, in a working copy.

    Compares this library with others and with the limits of memory. The
    benchmarks are part of the repository: run this in a working copy (git clone,
    then `make bench`, or this command). What is missing is installed into the
    copy's own virtual environment first. Options are those of the benchmarks,
    which their own --help, printed here in a working copy, explains.

    Examples:
        $ --list
        $ --quick --filter rotary
    """
    # With this interpreter, or the repository's own if this lacks a part; in a process of their
    # own, since the package imports nothing of the repository around it.
    root = repository()
    if root is None:
        raise CommandError("the benchmarks are part of the repository, which is not here")
    python = sys.executable
    if missing := _missing_packages(root / "requirements" / "bench.txt"):
        environment = root / os.environ.get("VENV", ".venv")
        print(f"{', '.join(missing)}: not in {sys.prefix}; setting up {environment}", flush=True)
        setup = str(root / "scripts" / "setup.sh")
        if subprocess.run([setup, "bench", "package"], check=False).returncode:
            raise CommandError("cannot set up what is needed: see above")
        python = str(environment / "bin" / "python")
    # Not in the repository's folder: files that options name are where they are typed.
    found = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    command = [python, "-m", "benchmarks", *words]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": found}, check=False).returncode


def _missing_packages(requirements: Path) -> list[str]:
    """The packages of a file of requirements that this interpreter does not have, and torch."""
    lines = requirements.read_text(encoding="utf-8").splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    return [name for name in ("torch", *names) if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
