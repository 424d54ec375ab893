"""A copy of the package, of its tests and of its benchmarks in a directory of their own.

There the repository's own ./posenc_native, which has no compiled parts, hides nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_PIP = (sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet",
        "--disable-pip-version-check")  # fmt: skip


def newest_fitting_wheel(directory: Path) -> Path | None:
    """The wheel of this project in a directory that this Python takes; the newest of several."""
    try:
        from packaging.tags import sys_tags
        from packaging.utils import parse_wheel_filename
    except ImportError:  # pip has them too
        from pip._vendor.packaging.tags import sys_tags
        from pip._vendor.packaging.utils import parse_wheel_filename
    fitting = set(sys_tags())
    wheels = [
        path
        for path in directory.glob("posenc_native-*.whl")
        if fitting & parse_wheel_filename(path.name)[3]
    ]
    return max(wheels, key=lambda path: path.stat().st_mtime, default=None)


def wheel_command(wheel: Path, site: Path) -> list[str]:
    """Installs a wheel into `site`."""
    return [*_PIP, "--target", str(site), str(wheel)]


def build_command(site: Path, build: Path) -> list[str]:
    """Builds with what this machine has, in `build`, and installs into `site`."""
    where = f"--config-settings=build-dir={build}"
    return [*_PIP, "--no-build-isolation", where, "--target", str(site), str(ROOT)]


def build_environment() -> dict[str, str]:
    """Both kinds of kernels or an error; for the GPU here, unless the caller chooses others.

    Highway, which the processor's kernels need, is found by CMAKE_PREFIX_PATH or hwy_DIR.
    """
    environment = dict(os.environ)
    wanted = {"POSENC_TORCH": "ON", "POSENC_CUDA": "ON", "CUDAARCHS": "native"}
    environment.update({name: environment.get(name) or value for name, value in wanted.items()})
    if not (environment.get("CUDACXX") or shutil.which("nvcc")) and (nvcc := cuda_tool("nvcc")):
        environment["CUDACXX"] = nvcc
    return environment


def cuda_tool(name: str) -> str | None:
    """A program of the CUDA toolkit: on the path, or where toolkits are installed."""
    if found := shutil.which(name):
        return found
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    homes += sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True)
    for home in filter(None, homes):
        for path in (Path(home, "bin", name), Path(home, "compute-sanitizer", name)):
            if os.access(path, os.X_OK):
                return str(path)
    return None


def copy_tests(work: Path) -> None:
    """tests, benchmarks and their settings, without what they made."""
    ignore = shutil.ignore_patterns("__pycache__", ".cache", "results")
    for name in ("tests", "benchmarks"):
        shutil.copytree(ROOT / name, work / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", work)


def environment(site: Path | None) -> dict[str, str]:
    """For programs that use the package: found in `site`, or as it is installed; as it is built."""
    variables = {k: v for k, v in os.environ.items() if k not in ("POSENC_BACKEND", "POSENC_ISA")}
    if site is not None:
        paths = [str(site), variables.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    variables["PYTHONUNBUFFERED"] = "1"
    return variables
