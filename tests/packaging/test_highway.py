"""Where a build finds Highway: a copy that it is told of, or one that lies in the repository."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from places import ROOT

pytestmark = pytest.mark.skipif(
    shutil.which("cmake") is None, reason="needs CMake: runs where the package can be built"
)
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(finds_highway LANGUAGES NONE)
include({module})
get_target_property(found Highway::headers INTERFACE_INCLUDE_DIRECTORIES)
message(STATUS "headers: ${{found}}")
"""


def configure(tmp_path, *options):
    """What CMake says, in a project without the system's Highway and without a network."""
    module = ROOT / "cmake" / "Highway.cmake"
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(module=module), encoding="utf-8")
    alone = ("-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON", "-DFETCHCONTENT_FULLY_DISCONNECTED=ON")
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", *alone, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def copy_of_highway(folder):
    (folder / "hwy").mkdir(parents=True)
    (folder / "hwy" / "highway.h").touch()
    return folder


def test_a_copy_that_is_named(tmp_path):
    copy_of_highway(tmp_path / ".hwy")
    copy = copy_of_highway(tmp_path / "copy")
    status, said = configure(tmp_path, f"-DPOSENC_HIGHWAY={copy}")
    assert status == 0, said
    assert f"headers: {copy} " in said


def test_a_copy_in_the_repository(tmp_path):
    copy = copy_of_highway(tmp_path / ".hwy")
    status, said = configure(tmp_path)
    assert status == 0, said
    assert f"headers: {copy} " in said
    assert "downloading" not in said


def test_a_copy_that_is_none(tmp_path):
    (tmp_path / "empty").mkdir()
    status, said = configure(tmp_path, f"-DPOSENC_HIGHWAY={tmp_path / 'empty'}")
    assert status != 0
    assert f"POSENC_HIGHWAY: no file {tmp_path / 'empty'}/hwy/highway.h" in said


def test_without_any_what_to_do_is_said_before_the_download(tmp_path):
    said = configure(tmp_path)[1]
    assert "unpack it into .hwy, or set POSENC_HIGHWAY" in said
