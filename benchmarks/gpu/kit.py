"""A folder with what a bare machine lacks: `make gpu-kit` makes it, `make gpu` finds it.

    python -m benchmarks.gpu.kit FOLDER --sources DIGEST --gpus CUDAARCHS

reads one with the Python that it is for, and writes down which sources its package was made of.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.gpu import sources, wheels

FOLDER = sources.ROOT / "build" / "gpu-kit"
_OURS = "posenc_native-*.whl"


class Misfit(Exception):
    """The kit was made for another Python or machine."""


def packages(folder: Path) -> list[Path]:
    """The wheels of other projects."""
    return sorted(set(folder.glob("*.whl")) - set(folder.glob(_OURS)))


def check(folder: Path) -> None:
    """Misfit if this Python cannot take one of its wheels: a part of a kit would be no help."""
    for wheel in sorted(folder.glob("*.whl")):
        if reason := wheels.misfit(wheel):
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            raise Misfit(
                f"{wheel}: {reason}; make gpu-kit KIT_PYTHON={version}  makes the kit for it"
            )


def highway(folder: Path) -> Path | None:
    """Highway's headers, for a build."""
    path = folder / "highway"
    return path if (path / "hwy" / "highway.h").exists() else None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.kit", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sources", required=True, help="their digest before the build began")
    parser.add_argument("--gpus", required=True, help="CUDAARCHS of the build")
    options = parser.parse_args(arguments)
    folder = options.folder
    ours = sorted(folder.glob(_OURS))
    if len(ours) != 1:
        sys.exit(f"{folder}: expected one posenc_native-*.whl, got {len(ours)}")
    try:
        check(folder)
    except Misfit as misfit:
        sys.exit(str(misfit))
    if highway(folder) is None:
        sys.exit(f"{folder}: no file highway/hwy/highway.h")
    if options.sources != sources.digest(sources.PACKAGE):
        sys.exit(f"{ours[0]}: sources were changed while it was built: once more")
    wheels.describe(ours[0], options.sources, options.gpus, sources.commit())


if __name__ == "__main__":
    main()
