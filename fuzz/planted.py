"""Bugs on purpose: does the fuzzer find them, and how soon?

Each patch of `planted/` is put on a copy of the sources, of which only the NumPy module is built,
for one SIMD target. Nothing outside of the copy changes.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .engines import TARGETS

ROOT = Path(__file__).parents[1]
PATCHES = sorted((ROOT / "fuzz" / "planted").glob("*.patch"))
# What a copy has of the repository.
NEEDED = ("CMakeLists.txt", "cmake", "csrc", "fuzz", "posenc_native", "tests/shared")
SECONDS = 120


def copy_with(patch: Path) -> tuple[Path, list[str]]:
    """The sources with a patch, built: where they are, and the functions that it is in.

    The place stays, so that the next time only what has changed is compiled.
    """
    place = ROOT / "build" / "planted" / patch.stem
    with tempfile.TemporaryDirectory(prefix="posenc-planted-") as scratch:
        fresh = Path(scratch)
        for name in NEEDED:
            source, to = ROOT / name, fresh / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, to, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
            else:
                shutil.copy(source, to)
        subprocess.run(["patch", "-s", "-p1", "-i", str(patch)], cwd=fresh, check=True)
        for file in (path for path in fresh.rglob("*") if path.is_file()):
            to = place / file.relative_to(fresh)
            if not to.exists() or to.read_bytes() != file.read_bytes():
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, to)
    build(place)
    described = re.search(r"^Functions: (.*)$", patch.read_text("utf-8"), re.MULTILINE)
    assert described is not None, f"{patch.name} does not name its functions"
    return place, described[1].split()


def build(place: Path) -> None:
    """Only _core, for AVX2 where there is it."""
    import pybind11

    options = ["-DPOSENC_TORCH=OFF", "-DPOSENC_CUDA=OFF", "-DCMAKE_BUILD_TYPE=Release"]
    options += ["-DSKBUILD_PROJECT_NAME=posenc_native", "-DSKBUILD_PROJECT_VERSION=0.0.0"]
    options += [
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
    ]
    if platform.machine() in ("x86_64", "AMD64"):
        options.append(f"-DPOSENC_TARGETS={'AVX2' if 'AVX2' in TARGETS else 'SSE4'}")
    for command in (
        ["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *options],
        ["cmake", "--build", "build", "--target", "_core"],
    ):
        done = subprocess.run(command, cwd=place, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    for module in (place / "build").glob("_core*.so"):
        shutil.copy(module, place / "posenc_native" / module.name)


def environment() -> dict[str, str]:
    """That of a process which takes the copy in its working directory and nothing installed."""
    return {**os.environ, "PYTHONPATH": "."}


def find_planted_bugs() -> int:
    """Builds with each, looks for it, prints how soon it was found; 0 if each one was."""
    missed = 0
    for patch in PATCHES:
        began = time.monotonic()
        place, functions = copy_with(patch)
        built = time.monotonic() - began
        command = [sys.executable, "-m", "fuzz", "--seconds", str(SECONDS), "--until-found"]
        done = subprocess.run(
            [*command, "--first", "0"], cwd=place, env=environment(), capture_output=True, text=True
        )
        found = re.search(r"^found after .*$", done.stdout, re.MULTILINE)
        first = re.search(r"^# (\w+), .*$", done.stdout, re.MULTILINE)
        if found is None or first is None or first[1] not in functions:
            missed += 1
            print(f"{patch.stem:10}NOT found:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            continue
        print(f"{patch.stem:10}{found[0]} (built in {built:.0f} s)\n{'':10}{first[0]}", flush=True)
    return int(missed > 0)
