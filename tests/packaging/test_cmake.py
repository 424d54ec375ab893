"""What a build finds and chooses: a copy of Highway, and the SIMD targets to compile."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from targets import NATIVE

pytestmark = pytest.mark.skipif(
    shutil.which("cmake") is None, reason="needs CMake: runs where the package can be built"
)
ON_X86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="one target elsewhere than on x86-64"
)
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(asks LANGUAGES {languages})
include({module})
"""
# Without the system's Highway and without a network.
HIGHWAY = """
get_target_property(found Highway::headers INTERFACE_INCLUDE_DIRECTORIES)
message(STATUS "headers: ${found}")
"""
ALONE = ("-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON", "-DFETCHCONTENT_FULLY_DISCONNECTED=ON")


def configure(tmp_path, module, question, *options, languages="NONE"):
    """Status, and what CMake says, of a project that includes a module of cmake/."""
    module = ROOT / "cmake" / module
    project = PROJECT.format(module=module, languages=languages) + question
    (tmp_path / "CMakeLists.txt").write_text(project, encoding="utf-8")
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def highway(tmp_path, *options):
    return configure(tmp_path, "Highway.cmake", HIGHWAY, *ALONE, *options)


def copy_of_highway(folder):
    (folder / "hwy").mkdir(parents=True)
    (folder / "hwy" / "highway.h").touch()
    return folder


def test_a_copy_of_highway_in_the_repository_or_one_that_is_named(tmp_path):
    for copy, options in (
        (tmp_path / ".hwy", ()),
        (tmp_path / "copy", (f"-DPOSENC_HIGHWAY={tmp_path / 'copy'}",)),
    ):
        copy_of_highway(copy)
        status, said = highway(tmp_path, *options)
        assert status == 0, said
        assert f"headers: {copy} " in said
        assert "downloading" not in said


def test_a_copy_of_highway_that_is_none(tmp_path):
    (tmp_path / "empty").mkdir()
    status, said = highway(tmp_path, f"-DPOSENC_HIGHWAY={tmp_path / 'empty'}")
    assert status != 0
    assert f"POSENC_HIGHWAY: no file {tmp_path / 'empty'}/hwy/highway.h" in said


def test_without_highway_what_to_do_is_said_before_the_download(tmp_path):
    said = highway(tmp_path)[1]
    assert "unpack it into .hwy, or set POSENC_HIGHWAY" in said


def targets(tmp_path, *options):
    question = 'message(STATUS "chosen: ${posenc_targets}.")\n'
    return configure(tmp_path, "Targets.cmake", question, *options, languages="CXX")


@ON_X86
@pytest.mark.parametrize(
    ("options", "expected"),
    [((), "AVX3;AVX2;SSE4"), (("-DPOSENC_TARGETS=AVX2",), "AVX2"),
     (("-DPOSENC_TARGETS=AVX3;SSE4",), "AVX3;SSE4")],
)  # fmt: skip
def test_all_targets_or_those_that_are_named(tmp_path, options, expected):
    status, said = targets(tmp_path, *options)
    assert status == 0, said
    assert f"chosen: {expected}." in said


@ON_X86
@pytest.mark.skipif(NATIVE is None, reason="the native module is not built")
def test_the_native_target_is_the_best_that_runs_here(tmp_path):
    """Asked of the compiler; what runs asks the processor."""
    status, said = targets(tmp_path, "-DPOSENC_TARGETS=native")
    assert status == 0, said
    best = NATIVE.available_targets()[0].removesuffix("_BF16")
    assert f"chosen: {best}." in said


@ON_X86
def test_an_unknown_target(tmp_path):
    status, said = targets(tmp_path, "-DPOSENC_TARGETS=AVX9")
    assert status != 0
    assert "POSENC_TARGETS: expected some of AVX3;AVX2;SSE4, or native, got AVX9" in said


def announced(tmp_path, *options, **settings):
    """What a build says at its start, of these targets and options."""
    before = "".join(f'set({name} "{value}")\n' for name, value in settings.items())
    module = ROOT / "cmake" / "Announce.cmake"
    question = f'set(Python_EXECUTABLE "{sys.executable}")\n{before}include({module})\n'
    status, said = configure(tmp_path, "Targets.cmake", question, *options, languages="CXX")
    assert status == 0, said
    return said


@ON_X86
def test_a_build_says_what_it_compiles_for_how_long_and_what_shortens_it(tmp_path):
    cores = len(os.sched_getaffinity(0))
    every = announced(tmp_path, POSENC_TORCH="AUTO", posenc_no_cuda="no GPU")
    assert "CPU kernels and the NumPy module, for AVX-512, AVX2, SSE4" in every
    assert "(POSENC_TARGETS=native compiles for this processor alone)" in every
    assert "no operators for torch: this build sees no torch" in every
    assert "no CUDA kernels" not in every  # they are a part of the operators
    few = announced(tmp_path, "-DPOSENC_TARGETS=AVX2", POSENC_TORCH="OFF")
    assert "for AVX2 -- " in f"{few} -- "
    assert "operators" not in few
    head = rf"takes about ((?:(\d+) min)? ?(?:(\d+) s)?) on {cores} cores:"
    times = [re.search(head, said) for said in (every, few)]
    first, second = (60 * int(of[2] or 0) + int(of[3] or 0) for of in times)
    assert 0 < second < first


CUDA = 'message(STATUS "reason: ${posenc_no_cuda}.")\n'


@pytest.mark.skipif(
    any(Path(name).exists() for name in ("/proc/driver/nvidia/version", "/dev/dxg")),
    reason="this machine has a GPU: runs where there is none",
)
def test_without_a_gpu_cuda_is_compiled_on_request_alone(tmp_path):
    """An nvcc that lies around costs nobody minutes."""
    status, said = configure(tmp_path, "Cuda.cmake", CUDA, "-DPOSENC_CUDA=AUTO", languages="CXX")
    assert status == 0, said
    assert "reason: this machine has no NVIDIA GPU (POSENC_CUDA=ON compiles them" in said
    nowhere = ("-DPOSENC_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={tmp_path / 'nvcc'}")
    status, said = configure(tmp_path, "Cuda.cmake", CUDA, *nowhere, languages="CXX")
    assert status != 0  # the compiler is looked for
    assert str(tmp_path / "nvcc") in said or "there is no CUDA compiler" in said
