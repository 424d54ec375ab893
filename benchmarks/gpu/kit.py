"""A folder with what a bare machine lacks, and wheels without pip.

    python -m benchmarks.gpu.kit digest
    python -m benchmarks.gpu.kit check FOLDER DIGEST CUDAARCHS

The first prints the digest of what the package is built of. The second reads what `make gpu-kit`
has put into a folder as `make gpu` will, with the Python that it is for, and writes down beside the
package's wheel which sources, and for which GPUs, it was made of.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.command import Refused

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "gpu-kit"
# What the package is built of.
PACKAGE = ("CMakeLists.txt", "cmake", "csrc", "posenc_native", "pyproject.toml")
OURS = "posenc_native-*.whl"


def digest(names: Iterable[str], root: Path = ROOT, *, compiled: bool = False) -> str:
    """Of names and contents of files, and of those in folders; of what was compiled on demand.

    What holds for the same files need not be found out again.
    """
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


def misfit(wheel: Path) -> str:
    """Why this Python cannot take the wheel, by its name; "" if it can."""
    # pytest needs it: it is installed, or in the kit, from where it can be imported as it lies.
    sys.path += {str(path) for path in wheel.parent.glob("packaging-*.whl")} - set(sys.path)
    from packaging.tags import sys_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        tags = parse_wheel_filename(wheel.name)[3]
    except InvalidWheelFilename as error:
        return str(error)
    if tags.isdisjoint(sys_tags()):
        here = f"Python {_version()} on {platform.platform()}"
        return f"it is for {', '.join(sorted(map(str, tags)))}, and this is {here}"
    return ""


def _version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def check(folder: Path) -> None:
    """Refused if this Python cannot take one of its wheels: a part of a kit would be no help."""
    for wheel in sorted(folder.glob("*.whl")):
        if reason := misfit(wheel):
            makes = f"make gpu-kit KIT_PYTHON={_version()}  makes the kit for it"
            raise Refused(f"{wheel}: {reason}; {makes}")


def newest(folders: Iterable[Path]) -> Path | None:
    """The wheel of this project that fits, of the first folder that has one; the newest there."""
    for folder in folders:
        fitting = [path for path in folder.glob(OURS) if not misfit(path)]
        if fitting:
            return max(fitting, key=lambda path: path.stat().st_mtime)
    return None


def unpack(wheel: Path, site: Path) -> None:
    """What can be imported of a wheel into a folder."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".data/purelib/" in name or ".data/platlib/" in name:
                raise Refused(f"{wheel}: {name} does not lie where it is imported from")
        archive.extractall(site)


def _note(wheel: Path) -> Path:
    return wheel.with_name(f"{wheel.name}.json")


def describe(wheel: Path, sources: str, gpus: str, of: str | None) -> None:
    """Write down beside a wheel of this project what it was made of, for what, of which commit."""
    text = json.dumps({"sources": sources, "gpus": gpus, "commit": of}, indent=1)
    _note(wheel).write_text(text + "\n", encoding="utf-8")


def description(wheel: Path) -> dict[str, Any]:
    """What a wheel was made of and for; empty where nobody wrote it down."""
    path = _note(wheel)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def complete(folder: Path, sources: str, gpus: str) -> None:
    """Refused where something is wrong with a new kit; else its package gets its description."""
    ours = sorted(folder.glob(OURS))
    if len(ours) != 1:
        raise Refused(f"{folder}: expected one {OURS}, got {len(ours)}")
    check(folder)
    if not (folder / "highway" / "hwy" / "highway.h").exists():
        raise Refused(f"{folder}: no file highway/hwy/highway.h")
    if sources != digest(PACKAGE):
        raise Refused(f"{ours[0]}: sources were changed while it was built: once more")
    describe(ours[0], sources, gpus, commit())


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["digest"]:
                print(digest(PACKAGE))
            case ["check", kit, made_of, built_for]:
                complete(Path(kit), made_of, built_for)
            case _:
                sys.exit(__doc__)
    except Refused as refused:
        sys.exit(str(refused))
