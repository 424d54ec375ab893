"""Instruction counts: every kernel that is counted runs, and a kernel that grew is noticed."""

import copy
import shutil
import sys

import pytest

pytest.importorskip("ml_dtypes")

from targets import NEEDS_NATIVE, NOT_SANITIZED

from benchmarks import command
from benchmarks.figures import records
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


ONE = "diagonal_sums, float32"
VALGRIND = f"""#!{sys.executable}
import pathlib, sys
if sys.argv[1] == "--version":
    print("valgrind-0")
    sys.exit()
counts = pathlib.Path(sys.argv[2].partition("=")[2])
for size in (2, 4):
    text = f"desc: Trigger: Client Request: {{size}} {ONE}\\n\\ntotals: {{100 + size * 65536}}\\n"
    counts.with_suffix(f".{{size}}").write_text(text)
print("AVX2")
"""


def test_counts_are_recorded_and_compared(tmp_path, monkeypatch, capsys):
    """By a program in the place of valgrind, which counts an instruction an element."""
    fake = tmp_path / "valgrind"
    fake.write_text(VALGRIND, encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(fake))
    monkeypatch.setattr(instructions.limits, "compiled", lambda source: "library.so")
    path = tmp_path / "counts.json"
    with pytest.raises(command.Refused, match="nothing is recorded"):
        instructions.main([ONE], compare=True, json=path)
    instructions.main([ONE], json=path)
    counted = records.load(path)
    (row,) = counted["kernels"]
    assert (row["instructions_per_element"], row["instructions_of_a_call"]) == (1, 100)
    assert ONE in path.with_suffix(".txt").read_text(encoding="utf-8")
    instructions.main([ONE], compare=True, json=path)
    row["instructions_per_element"] = 0.97
    records.write(path, counted | {"compiler": "another"})
    with pytest.raises(command.Refused, match=f"more instructions than recorded: {ONE}"):
        instructions.main([ONE], compare=True, json=path)
    assert "+3.1%\n\nthe record is of another compiler: another\n" in capsys.readouterr().out


@pytest.mark.slow
@NEEDS_NATIVE
@NOT_SANITIZED
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_valgrind_counts_a_kernel(tmp_path):
    path = tmp_path / "counts.json"
    instructions.main([ONE], json=path)
    (row,) = records.load(path)["kernels"]
    # Vectors of 4 to 16, a load and an addition each.
    assert 2 / 16 < row["instructions_per_element"] < 4
