"""bench: run the benchmarks, which are part of the repository."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from .parser import CommandError


def repository() -> Path | None:
    """The working copy that contains this package; None if the package is installed elsewhere."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "benchmarks" / "__main__.py").is_file() else None


def bench(*words: str) -> int:
    """Compare with other libraries and the limits of memory, in a working copy.

    Compares this library with others and with the limits of memory. The
    benchmarks are part of the repository: run this in a working copy (git clone,
    then `make bench`, or this command). Missing packages are first installed
    into the working copy's own virtual environment. Options are passed to the
    benchmarks; in a working copy, --help prints the help of the benchmarks.

    Examples:
        $ --list
        $ --quick --filter rotary
    """
    # With this interpreter, or the repository's own if this one lacks a package; in a separate
    # process, because the package imports nothing of the repository around it.
    root = repository()
    if root is None:
        raise CommandError(
            "the benchmarks are part of the repository: run this in a working copy (git clone)"
        )
    python = sys.executable
    if missing := _missing_packages(root / "requirements" / "bench.txt"):
        environment = root / os.environ.get("VENV", ".venv")
        print(f"{', '.join(missing)}: not in {sys.prefix}; setting up {environment}", flush=True)
        setup = str(root / "scripts" / "setup.sh")
        if subprocess.run([setup, "bench", "package"], check=False).returncode:
            raise CommandError("cannot install the missing packages: see above")
        python = str(environment / "bin" / "python")
    # Run in the current folder: paths in options are relative to it.
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    command = [python, "-m", "benchmarks", *words]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


def _missing_packages(requirements: Path) -> list[str]:
    """torch and the packages of a requirements file that this interpreter lacks."""
    lines = requirements.read_text(encoding="utf-8").splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    return [name for name in ("torch", *names) if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
