"""The package, what tests import and copies of tests and benchmarks, in a directory of their own.

There the repository's own ./posenc_native, which has no compiled parts, hides nothing. No pip: a
wheel is unpacked, and a build is asked of its backend.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from benchmarks.command import Refused
from benchmarks.gpu import kit, steps
from benchmarks.gpu.kit import ROOT

# Seconds without which no build begins.
LEAST_TO_BUILD = 240


def missing(modules: Sequence[str], site: Path) -> str:
    """Those that programs with `site` on their path do not find, and what brings them."""
    path = [str(site), *sys.path]
    absent = [name for name in modules if PathFinder.find_spec(name, path) is None]
    brings = "bring the folder that  make gpu-kit  makes"
    return f"{sys.executable} has no {', '.join(absent)}: {brings}" if absent else ""


def gpus() -> str:
    """What a build here is for: the GPU here, unless the caller chooses others."""
    return os.environ.get("CUDAARCHS") or "native"


def find_wheel(wheel: Path | None, *, build: bool, folder: Path | None, out: Path) -> Path | None:
    """The wheel to unpack; None if there is none, and one is to be built; Refused if it is old."""
    if build:  # what an earlier call built need not be built again
        wheel = kit.newest([out])
        found = kit.description(wheel) if wheel else {}
        wanted = {"sources": kit.digest(kit.PACKAGE), "gpus": gpus()}
        wheel = wheel if wanted.items() <= found.items() else None
    elif wheel is None:
        wheel = kit.newest(filter(None, (folder, out, ROOT / "dist")))
        made_of = kit.description(wheel).get("sources") if wheel else None
        if made_of not in (None, kit.digest(kit.PACKAGE)):
            raise Refused(
                f"{wheel} was made of other sources than those here: make gpu-kit  makes it anew, "
                "--build  compiles here, --wheel FILE  takes it as it is"
            )
    if wheel and (reason := kit.misfit(wheel)):
        raise Refused(f"{wheel}: {reason}")
    return wheel


def build(folder: Path | None, site: Path, out: Path, limit: float, log: Path) -> steps.Outcome:
    """A wheel in the folder of results: both kinds of kernels, unless the caller chooses others."""
    if limit < LEAST_TO_BUILD:
        said = f"--budget: to build takes {LEAST_TO_BUILD} s or more, and {limit:.0f} are left"
        return steps.Outcome(steps.FAILED, said)
    if said := missing(("scikit_build_core", "pybind11"), site):
        return steps.Outcome(steps.FAILED, said)
    wanted = {"POSENC_TORCH": "ON", "POSENC_CUDA": "ON", "CUDAARCHS": gpus()}
    if folder is not None and (folder / "highway").is_dir():
        wanted["POSENC_HIGHWAY"] = str(folder / "highway")
    nvcc = steps.cuda_tool("nvcc")
    if nvcc and not shutil.which("nvcc"):
        wanted["CUDACXX"] = nvcc
    print(f"    building with {nvcc or 'no nvcc'}", flush=True)
    code = (
        "import sys; from scikit_build_core.build import build_wheel; "
        "print(build_wheel(sys.argv[1], {'build-dir': sys.argv[2]}))"
    )
    # Here, and not in a temporary directory: a build that was interrupted goes on where it stood.
    # One for each choice of GPUs and Python, which it remembers.
    kept = ROOT / "build" / "gpu"
    kept /= f"{sys.implementation.cache_tag}-{re.sub('[^0-9a-z]', '-', gpus())}"
    outcome = steps.run(
        [sys.executable, "-c", code, str(out), str(kept)], cwd=ROOT, limit=limit, log=log,
        environment=wanted | {name: value for name, value in environment(site).items() if value},
    )  # fmt: skip
    if outcome.status == steps.PASSED and (wheel := kit.newest([out])):
        kit.describe(wheel, kit.digest(kit.PACKAGE), gpus(), kit.commit())
    return outcome


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
    # pytest's plugins that happen to be installed there, for other versions perhaps, stay out.
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return variables
