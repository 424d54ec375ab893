"""What is installed: libraries that load anywhere, metadata that agree with the project."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from pathlib import Path

import pytest
from places import ROOT
from targets import NOT_SANITIZED

import posenc_native as pn
from posenc_native.engines import backend

pytest.importorskip("elftools", reason="needs pyelftools to read libraries")
import libraries  # scripts/libraries.py

PYPROJECT = ROOT / "pyproject.toml"
CPUINFO = Path("/proc/cpuinfo")


def installed(name: str) -> Path:
    if name == "_core":
        path = backend.native and backend.native.__file__
    else:
        path = backend.torch_library()
    if not path:
        pytest.skip(f"{name} is not built")
    return Path(path)


# --- libraries ------------------------------------------------------------------------------------


@NOT_SANITIZED
@pytest.mark.parametrize("name", ["_core", "_torch_ops"])
def test_libraries_need_and_show_no_more_than_they_have_to(name):
    path = installed(name)
    assert libraries.faults(libraries.read(path.name, path.read_bytes())) == []


def test_the_operators_keep_to_the_stable_abi_of_the_oldest_torch():
    pytest.importorskip("torch_abi_audit", reason="needs torch-abi-audit")
    assert libraries.torch_faults(str(installed("_torch_ops"))) == []


def test_the_oldest_torch_is_the_one_that_the_metadata_name():
    wanted = importlib.metadata.requires("posenc-native") or []
    [torch] = [each for each in wanted if re.match(r"torch\b.*extra == .torch.", each)]
    assert re.search(r">=(\d+\.\d+)", torch)[1] + ".0" == libraries.MINIMUM_TORCH


def test_what_is_wrong_with_a_library_is_seen():
    good = libraries.Library(
        name="_torch_ops.so",
        needed=("libtorch_cpu.so", "libstdc++.so.6", "libc.so.6", "ld-linux-x86-64.so.2"),
        search_paths=(),
        exported=frozenset(),
        imported=frozenset({"memcpy", "aoti_torch_get_dim"}),
    )
    assert libraries.faults(good) == []
    for change, words in [
        ({"needed": (*good.needed, "libcudart.so.12")}, "needs libcudart.so.12"),
        ({"needed": (*good.needed, "libhwy.so.1")}, "needs libhwy.so.1"),
        ({"needed": ("libc.so.6",)}, "does not need libtorch_cpu.so"),
        ({"search_paths": ("/home/me/torch/lib",)}, "looks for libraries in /home/me/torch/lib"),
        ({"exported": frozenset({"_ZN6posenc3cpu6rotaryEv"})}, "exports"),
        ({"imported": frozenset({"PyErr_SetString"})}, "is for one Python: ['PyErr_SetString']"),
        ({"imported": frozenset({"_Py_Dealloc"})}, "is for one Python: ['_Py_Dealloc']"),
    ]:
        [fault] = libraries.faults(libraries.dataclasses.replace(good, **change))
        assert words in fault
    # What the operators need, the module for NumPy must not.
    name = "_core.cpython-311-x86_64-linux-gnu.so"
    as_module = libraries.dataclasses.replace(good, name=name, exported=frozenset({"PyInit__core"}))
    assert libraries.faults(as_module) == ["needs libtorch_cpu.so"]


# --- SIMD targets ---------------------------------------------------------------------------------


@pytest.mark.skipif(backend.native is None, reason="the native module is not built")
@pytest.mark.skipif(
    platform.machine() != "x86_64" or not CPUINFO.exists(),
    reason="needs an x86-64 processor that Linux describes",
)
@NOT_SANITIZED  # one target at a time
def test_the_targets_are_those_of_the_processor():
    has = set(re.search(r"^flags\s*:(.*)", CPUINFO.read_text(), re.M)[1].split())
    avx2 = {"avx2", "fma", "bmi1", "bmi2", "f16c"} <= has
    avx3 = avx2 and {f"avx512{each}" for each in ("f", "vl", "bw", "dq", "cd")} <= has
    bfloat16 = avx3 and "avx512_bf16" in has
    assert backend.native.available_targets() == [
        *["AVX3_BF16"] * bfloat16,
        *["AVX3"] * avx3,
        *["AVX2"] * avx2,
        "SSE4",
    ]


# --- data -----------------------------------------------------------------------------------------


def test_the_tables_of_models_are_installed():
    files = {str(file) for file in importlib.metadata.files("posenc-native") or []}
    if "posenc_native/__init__.py" not in files:
        pytest.skip("an editable installation has the files where they are written")
    for name in ("facts", "presets", "vision"):
        assert f"posenc_native/models/{name}.json" in files


# --- metadata -------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_project():
    version = re.search(r'^version = "(.+)"$', PYPROJECT.read_text(encoding="utf-8"), re.M)[1]
    assert importlib.metadata.version("posenc-native") == version == pn.__version__


def test_numpy_is_all_that_an_installation_requires():
    wanted = importlib.metadata.requires("posenc-native") or []
    assert [each for each in wanted if "extra ==" not in each] == ["numpy>=1.26"]
