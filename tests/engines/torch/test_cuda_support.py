"""Whether the CUDA kernels are used, and what is said where they cannot be; needs no GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch_cases import needs_operators  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.engines.torch import cuda, library  # noqa: E402

pytestmark = needs_operators


@pytest.fixture
def machine(monkeypatch):
    """A machine as the kernels see it: what they were built with, its driver, its GPU."""
    found = SimpleNamespace(
        architectures="80-real,90-real,120", versions=(13000, 13000), failure=""
    )
    operators = SimpleNamespace(
        cuda_architectures=lambda: found.architectures,
        cuda_versions=lambda: found.versions,
        cuda_failure=lambda device: found.failure,
    )
    monkeypatch.setattr(cuda, "_ops", operators)
    monkeypatch.setattr(cuda, "_usable", {})
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda="13.0", hip=None))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    return found


def test_a_machine_that_can(machine):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cuda.problem(0) == ""
        assert cuda.usable(0)
        machine.versions = (12080, 12020)  # one major version: a newer driver is not needed
        assert cuda.problem(0) == ""


def test_a_driver_that_is_too_old(machine):
    machine.versions = (13000, 12040)
    expected = "the kernels need a driver for CUDA 13.0, this one supports 12.4"
    assert cuda.problem(0) == expected
    with pytest.warns(RuntimeWarning, match=r"cannot run on cuda:0: the kernels need .*12\.4"):
        assert not cuda.usable(0)
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        assert not cuda.usable(0)


def test_no_driver(machine):
    machine.versions = (13000, 0)
    assert cuda.problem(0).endswith("this one supports none")


def test_a_gpu_that_was_not_compiled_for(machine):
    machine.failure = "no kernel image is available for execution on the device"
    with pytest.warns(RuntimeWarning, match=r"cuda:1: no kernel image .* capability 7\.5; .*120"):
        assert not cuda.usable(1)


def test_a_build_without_cuda_says_so_once(machine):
    machine.architectures = ""
    with pytest.warns(RuntimeWarning, match=r"cannot run on cuda:0: they were not built .*nvcc"):
        assert not cuda.usable(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not cuda.usable(0)
    assert cuda.configuration() == {
        "CUDA kernels": "not built: CUDA tensors are computed by compositions of operations"
    }


def test_a_torch_without_cuda(machine, monkeypatch):
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None, hip=None))
    assert cuda.problem(0) == "this build of torch has no CUDA"


def test_show_config_names_kernels_driver_and_devices(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert cuda.configuration() == {
        "CUDA kernels": "built for 80-real,90-real,120 with CUDA 13.0",
        "CUDA driver": "supports 13.0",
    }
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    assert cuda.configuration()["cuda:1"] == "GPU 1: in use"
    machine.versions = (13000, 12040)
    assert "need a driver for CUDA 13.0" in cuda.configuration()["cuda:0"]


def test_show_config_of_this_machine(capsys):
    pn.show_config()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("CUDA kernels ") for line in lines) == 1


def test_tensors_that_the_kernels_cannot_serve_take_the_composition(machine):
    """Shown on fake tensors, which say that they are on a GPU where there is none."""
    machine.versions = (13000, 12040)
    with FakeTensorMode():
        x = torch.empty(2, 3, 5, 8, device="cuda")
        f = torch.empty(4, device="cuda", dtype=torch.float64)
        with pytest.warns(RuntimeWarning, match="cannot run on cuda:0"):
            native = library.operators_take(x, f)
        assert not native


def test_which_tensors_the_kernels_serve(machine):
    with FakeTensorMode():
        x = torch.empty(2, 3, 5, 8, device="cuda")
        f = torch.empty(4, device="cuda", dtype=torch.float64)
        assert library.operators_take(x, f, None)
        assert not library.operators_take(x, torch.empty(4))
        assert not library.operators_take(torch.empty(4), f)
        assert library.operators_take(torch.empty(4), torch.empty(4), None)
        rotated = pn.apply_rotary(x, None, f)
        assert (rotated.device, rotated.shape) == (x.device, x.shape)
        q, k = pn.apply_rotary_qk(x, torch.empty(2, 1, 5, 8, device="cuda"), None, f)
        assert (q.device, k.shape) == (x.device, (2, 1, 5, 8))
        q, k = pn.apply_rotary_qk(
            q, k, None, pn.Tables(*torch.empty(2, 5, 4, device="cuda")), inplace=True
        )
        assert (q.device, k.shape) == (x.device, (2, 1, 5, 8))
        table = pn.sinusoidal(7, 8, device="cuda")
        assert (table.device.type, table.shape) == ("cuda", (7, 8))


@pytest.mark.parametrize("elsewhere", ["positions", "inv_freq"])
def test_tensors_on_several_devices_are_refused(machine, elsewhere):
    with FakeTensorMode():
        where = {"positions": "cuda", "inv_freq": "cuda"} | {elsewhere: "cpu"}
        x = torch.empty(2, 3, 5, 8, device="cuda")
        positions = torch.empty(5, dtype=torch.long, device=where["positions"])
        f = torch.empty(4, dtype=torch.float64, device=where["inv_freq"])
        for call in (
            lambda: pn.apply_rotary(x, positions, f),
            lambda: pn.apply_rotary_qk(x, x, positions, f),
        ):
            with pytest.raises(ValueError, match=f"{elsewhere}: expected a tensor on cuda:0"):
                call()


STAND_IN_FOR_LIBCUDA = """
#include <cstdlib>
extern "C" int cuDriverGetVersion(int* version) { *version = 12040; return 0; }
// Whatever else the CUDA runtime wants of a driver, it asks for by this, or begins with that.
extern "C" int cuInit(unsigned) { abort(); }
extern "C" int cuGetProcAddress(const char*, void**, int, unsigned long long) { abort(); }
extern "C" int cuGetProcAddress_v2(const char*, void**, int, unsigned long long, int*) { abort(); }
"""


@pytest.mark.skipif(
    not torch.ops.posenc_native.cuda_architectures(), reason="built without CUDA kernels"
)
def test_the_driver_is_asked_for_its_version_without_being_initialised(tmp_path):
    """Processes forked after show_config() can still use CUDA."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, library = tmp_path / "libcuda.cc", tmp_path / "libcuda.so.1"
    source.write_text(STAND_IN_FOR_LIBCUDA)
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    code = "import torch, posenc_native as pn; pn.show_config()"
    shown = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True,
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
    ).stdout  # fmt: skip
    assert re.search(r"^CUDA driver +supports 12\.4$", shown, re.MULTILINE)


def test_importing_does_not_touch_the_gpu():
    code = (
        "import torch, posenc_native as pn, posenc_native.nn, posenc_native.engines.torch;"
        "pn.Rotary(8)(torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 2, 8));"
        "pn.show_config(); assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
