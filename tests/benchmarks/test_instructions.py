"""Instruction counts: every kernel that is counted runs, and a kernel that grew is noticed."""

import copy
import json
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("ml_dtypes")

from places import ROOT
from targets import NEEDS_NATIVE, NOT_SANITIZED

from benchmarks.studies import instructions

COUNTED = {
    "target": "AVX2",
    "valgrind": "valgrind-3.19.0",
    "compiler": "c++ 12.2.0",
    "kernels": [
        {"kernel": name, "instructions_per_element": 2.5, "instructions_of_a_call": 20_000}
        for name in ("one", "another")
    ],
}


@NEEDS_NATIVE
@pytest.mark.parametrize("kernel", instructions.kernels(), ids=lambda kernel: kernel.name)
def test_every_kernel_runs(kernel):
    kernel.make(1)()


def test_names_are_told_apart():
    names = [kernel.name for kernel in instructions.kernels()]
    assert len(set(names)) == len(names) > 30
    chosen = instructions.kernels(("bfloat16", "in place"))
    assert chosen
    assert all("bfloat16" in kernel.name and "in place" in kernel.name for kernel in chosen)


def test_files_of_callgrind_are_read():
    text = "pid: 1\npart: 3\ndesc: Trigger: Client Request: 64 rotary, half\n\nfn=(1)\n0 5\n"
    assert instructions.parse(text + "totals: 1234\n") == ("64 rotary, half", 1234)
    assert instructions.parse("desc: Trigger: Program termination\ntotals: 99\n") is None


def test_what_grew_is_noticed():
    now = copy.deepcopy(COUNTED)
    now["kernels"][0]["instructions_per_element"] = 2.549
    now["kernels"].append(dict(now["kernels"][0], kernel="a new one"))
    assert instructions.grown(now, COUNTED) == []
    now["kernels"][1]["instructions_per_element"] = 2.551
    assert instructions.grown(now, COUNTED) == ["another"]
    text = instructions.as_text(now, COUNTED)
    assert "not recorded" in text
    assert "+2.0%" in text


@NEEDS_NATIVE
@NOT_SANITIZED
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_a_kernel_is_counted(tmp_path):
    path = tmp_path / "counts.json"
    command = [sys.executable, "-m", "benchmarks.studies.instructions", "--json", str(path)]
    done = subprocess.run(
        [*command, "--filter", "diagonal_sums, float32"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(path.read_text(encoding="utf-8"))["kernels"]
    # Vectors of 4 to 16, a load and an addition each.
    assert 2 / 16 < row["instructions_per_element"] < 4
    assert row["kernel"] in path.with_suffix(".txt").read_text(encoding="utf-8")
