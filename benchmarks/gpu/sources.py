"""Which files something was made of: what holds for the same files need not be found out again.

    python -m benchmarks.gpu.sources

prints the digest of what the package is built of.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What the package is built of.
PACKAGE = ("CMakeLists.txt", "cmake", "csrc", "posenc_native", "pyproject.toml")


def digest(names: Iterable[str], root: Path = ROOT, *, compiled: bool = False) -> str:
    """Of names and contents of files, and of those in folders; of what was compiled on demand."""
    total = hashlib.sha256()
    for name in names:
        path = root / name
        if not path.exists():
            raise FileNotFoundError(f"no file or folder {path}")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if not file.is_file() or "__pycache__" in file.parts:
                continue
            if file.suffix == ".so" and not compiled:
                continue
            total.update(f"{file.relative_to(root)}\n{file.stat().st_size}\n".encode())
            total.update(file.read_bytes())
    return total.hexdigest()[:16]


def commit() -> str | None:
    """The commit that is checked out, and whether files differ from it; None without git."""
    command = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


if __name__ == "__main__":
    print(digest(PACKAGE))
