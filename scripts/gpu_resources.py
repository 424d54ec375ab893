"""What CUDA kernels take of a GPU: registers, memory for spilled ones, width of stores, float64.

    scripts/gpu_resources.py [DIRECTORY]

It compiles every CUDA source as the build in DIRECTORY does (by default the newest below build/),
and prints the assembler's report of each kernel. It exits with 1 if a kernel keeps registers in
memory, writes (sums: reads) less at once than it was made for, or computes in float64 what is not
float64: GPUs do very little of that.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
BYTES = {"Float16": 2, "BFloat16": 2, "float": 4, "double": 8}
PTX_ENTRY = re.compile(r"\.entry (\w+)\(.*?\n\}\n", re.DOTALL)
STORE = re.compile(r"\bst\.global(?:\.v(\d))?\.[a-z](\d+)\b")
LOAD = re.compile(r"\bld\.global(?:\.nc)?(?:\.v(\d))?\.[a-z](\d+)\b")
# Loading, storing and converting are not arithmetic: scale and inv_freq come as float64.
DOUBLE_ARITHMETIC = re.compile(r"\b(?:add|sub|mul|fma|div|rcp|sqrt|min|max|set\w*)\.[\w.]*f64\b")


@dataclass
class Kernel:
    """One kernel on one architecture."""

    name: str
    architecture: str
    registers: int
    stack: int
    spilled: int
    store_bytes: int
    load_bytes: int
    double_arithmetic: int

    @property
    def faults(self) -> str:
        """What is wrong with it, or nothing."""
        match = re.search(r"<(\w+), (\d+)", self.name)
        if match is None:
            return "unknown"
        dtype, vector = match[1], int(match[2])
        sums = self.name.startswith("DiagonalSums")  # few, written one by one
        wide = BYTES[dtype] * vector
        found = {
            "spills": self.spilled > 0,
            "narrow stores": not sums and self.store_bytes < wide,
            "narrow loads": sums and self.load_bytes < wide,
            "float64": self.double_arithmetic > 0 and dtype != "double",
        }
        return ", ".join(name for name, present in found.items() if present)


def newest_build() -> Path:
    builds = sorted(
        (path.parent for path in ROOT.glob("build/*/compile_commands.json")),
        key=lambda path: path.stat().st_mtime,
    )
    if not builds:
        sys.exit("gpu_resources: nothing is built here yet: run `make gpu-resources`")
    return builds[-1]


def commands(build: Path) -> list[list[str]]:
    """The command that compiles each kernel file, without its output."""
    entries = json.loads((build / "compile_commands.json").read_text())
    found = []
    for entry in entries:
        if Path(entry["file"]).suffix != ".cu":
            continue
        command = shlex.split(entry["command"])
        found.append(command[: command.index("-o")])
    return found


def readable(names: list[str]) -> list[str]:
    """Names as in the source, where c++filt is there to tell."""
    try:
        output = subprocess.run(
            ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError:
        return names
    thread = re.compile(r"cuda::(\w+Thread<[^<>]*>) ?[,>]")
    return [
        match[1].replace("posenc::", "") if (match := thread.search(line)) else line
        for line in output.splitlines()
    ]


def kernels(command: list[str]) -> list[Kernel]:
    with tempfile.TemporaryDirectory() as scratch:
        result = subprocess.run(
            [*command, "-o", f"{scratch}/kernel.o", "-Xptxas=-v", "--keep", "--keep-dir", scratch],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=scratch,
        )  # fmt: skip
        if result.returncode:
            sys.exit(result.stdout)
        counted: dict[str, tuple[int, int, int]] = {}
        for path in Path(scratch).glob("*.ptx"):
            for entry in PTX_ENTRY.finditer(path.read_text()):
                store, load = (
                    max((int(n or 1) * int(bits) // 8 for n, bits in found), default=0)
                    for found in (STORE.findall(entry[0]), LOAD.findall(entry[0]))
                )
                counted[entry[1]] = store, load, len(DOUBLE_ARITHMETIC.findall(entry[0]))
    found, name, architecture, stack, spilled = [], "", "", 0, 0
    for line in result.stdout.splitlines():
        if match := ENTRY.search(line):
            name, architecture = match[1], match[2]
        elif match := STACK.search(line):
            stack, spilled = int(match[1]), int(match[2]) + int(match[3])
        elif (match := USED.search(line)) and name:
            kernel = Kernel(name, architecture, int(match[1]), stack, spilled, *counted[name])
            found.append(kernel)
            name = ""
    for kernel, text in zip(found, readable([kernel.name for kernel in found]), strict=True):
        kernel.name = text
    return found


def main(arguments: list[str]) -> int:
    build = Path(arguments[0]) if arguments else newest_build()
    every = [kernel for command in commands(build) for kernel in kernels(command)]
    if not every:
        sys.exit(f"gpu_resources: no CUDA kernels in {build}: was it built with POSENC_CUDA=OFF?")
    width = max(len(kernel.name) for kernel in every)
    print(
        f"{'kernel':{width}}  GPU     registers  stack  spilled  store bytes  load bytes"
        "  float64 operations"
    )
    for kernel in every:
        line = (
            f"{kernel.name:{width}}  {kernel.architecture:7} {kernel.registers:9}"
            f"  {kernel.stack:5}  {kernel.spilled:7}  {kernel.store_bytes:11}"
            f"  {kernel.load_bytes:10}  {kernel.double_arithmetic:7}  {kernel.faults}"
        )
        print(line.rstrip())
    faulty = sum(bool(kernel.faults) for kernel in every)
    print(f"{len(every)} kernels, {faulty} not as they should be")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
