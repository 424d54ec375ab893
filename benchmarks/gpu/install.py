"""The package, what tests import and copies of tests and benchmarks, in a directory of their own.

There the repository's own ./posenc_native, which has no compiled parts, hides nothing. No pip: a
wheel is unpacked, and a build is asked of its backend.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from benchmarks.gpu import sources, wheels
from benchmarks.gpu.device import cuda_tool
from benchmarks.gpu.sources import ROOT

# Here, and not in a temporary directory: a build that was interrupted goes on where it stood. One
# for each choice of GPUs and Python, which it remembers.
_BUILD = ROOT / "build" / "gpu"


def prebuilt(folders: list[Path]) -> Path | None:
    """The package's wheel to take from these folders; ValueError if the sources are others now."""
    wheel = wheels.newest(folders)
    made_of = wheels.description(wheel).get("sources") if wheel else None
    if made_of not in (None, sources.digest(sources.PACKAGE)):
        raise ValueError(
            f"{wheel} was made of other sources than those here: make gpu-kit  makes it anew, "
            "--build  compiles here, --wheel FILE  takes it as it is"
        )
    return wheel


def gpus() -> str:
    """What a build here is for: the GPU here, unless the caller chooses others."""
    return os.environ.get("CUDAARCHS") or "native"


def build_command(folder: Path) -> list[str]:
    """Builds a wheel with what this machine has, into a folder."""
    code = (
        "import sys; from scikit_build_core.build import build_wheel; "
        "print(build_wheel(sys.argv[1], {'build-dir': sys.argv[2]}))"
    )
    build = _BUILD / f"{sys.implementation.cache_tag}-{re.sub('[^0-9a-z]', '-', gpus())}"
    return [sys.executable, "-c", code, str(folder), str(build)]


def build_environment(environment: dict[str, str], highway: Path | None) -> dict[str, str]:
    """Both kinds of kernels or an error, unless the caller chooses otherwise."""
    wanted = {"POSENC_TORCH": "ON", "POSENC_CUDA": "ON", "CUDAARCHS": gpus()}
    if highway is not None:
        wanted["POSENC_HIGHWAY"] = str(highway)
    environment = environment | {
        name: environment.get(name) or value for name, value in wanted.items()
    }
    if not (environment.get("CUDACXX") or shutil.which("nvcc")) and (nvcc := cuda_tool("nvcc")):
        environment["CUDACXX"] = nvcc
    return environment


def copy_tests(work: Path) -> None:
    """tests, benchmarks and their settings, without what they made."""
    ignore = shutil.ignore_patterns("__pycache__", ".cache", "results")
    for name in ("tests", "benchmarks"):
        shutil.copytree(ROOT / name, work / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", work)


def environment(site: Path) -> dict[str, str]:
    """For programs that use the package: found in `site` first; as it is built."""
    variables = {k: v for k, v in os.environ.items() if k not in ("POSENC_BACKEND", "POSENC_ISA")}
    paths = [str(site), variables.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    variables["PYTHONUNBUFFERED"] = "1"
    return variables
