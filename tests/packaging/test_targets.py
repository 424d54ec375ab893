"""Which SIMD targets a build compiles: all, those that it is told, or the one of this processor."""

from __future__ import annotations

import platform
import shutil
import subprocess

import pytest
from places import ROOT
from targets import NATIVE

pytestmark = [
    pytest.mark.skipif(
        shutil.which("cmake") is None, reason="needs CMake: runs where the package can be built"
    ),
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "AMD64"), reason="one target elsewhere than on x86-64"
    ),
]
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(chooses_targets LANGUAGES CXX)
include({module})
message(STATUS "chosen: ${{posenc_targets}}.")
"""


def chosen(tmp_path, *options):
    """Status, and what CMake says."""
    module = ROOT / "cmake" / "Targets.cmake"
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(module=module), encoding="utf-8")
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), "AVX3;AVX2;SSE4"), (("-DPOSENC_TARGETS=AVX2",), "AVX2"),
     (("-DPOSENC_TARGETS=AVX3;SSE4",), "AVX3;SSE4")],
)  # fmt: skip
def test_all_or_those_that_are_named(tmp_path, options, expected):
    status, said = chosen(tmp_path, *options)
    assert status == 0, said
    assert f"chosen: {expected}." in said


@pytest.mark.skipif(NATIVE is None, reason="the native module is not built")
def test_native_is_the_best_that_runs_here(tmp_path):
    """Asked of the compiler; what runs asks the processor."""
    status, said = chosen(tmp_path, "-DPOSENC_TARGETS=native")
    assert status == 0, said
    best = NATIVE.available_targets()[0].removesuffix("_BF16")
    assert f"chosen: {best}." in said


def test_an_unknown_one(tmp_path):
    status, said = chosen(tmp_path, "-DPOSENC_TARGETS=AVX9")
    assert status != 0
    assert "POSENC_TARGETS: expected some of AVX3;AVX2;SSE4, or native, got AVX9" in said
