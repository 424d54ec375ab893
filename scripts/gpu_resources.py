"""What CUDA kernels take of a GPU, as the compiler says it: no GPU is needed.

    scripts/gpu_resources.py [DIRECTORY]

It compiles every CUDA source as the build in DIRECTORY does (by default the newest below build/),
prints what each kernel takes, and exits with 1, saying what was expected and what came, if one

    spills        keeps registers in memory
    blocks        leaves room for fewer blocks on a multiprocessor than it is launched for
    instructions  is longer than LIMITS has it
    loads         reads its data in fewer accesses of full width than its unrolled loops have, or so
                  that the compiler does not know whether memory is global
    stores        writes less at once than it was made for, or not through packet.cuh, where tests
                  on the host see it
    non-coherent  reads what it may write, in place, through a cache that does not see writes
    float64       computes in float64 what is not float64: GPUs do very little of that
    barriers      has threads of a block wait for each other more often than LIMITS has it, for each
                  time that they go through a loop within a piece
    waits         does not wait for the kernel before it, where it may be launched while that one
                  still runs
"""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
BYTES = {"Float16": 2, "BFloat16": 2, "float": 4, "double": 8, "long": 8}
PTX_TARGET = re.compile(r"^\.target sm_(\d+)", re.MULTILINE)
PTX_ENTRY = re.compile(r"\.entry (\w+)\(.*?\n\}\n", re.DOTALL)
THREADS = re.compile(r"\.maxntid (\d+)")
BLOCKS = re.compile(r"\.minnctapersm (\d+)")
# packet.cuh spells its stores out; others are the compiler's.
SPELLED_OUT = re.compile(r"// begin inline asm\n(.*?)// end inline asm", re.DOTALL)
STORE = re.compile(r"\bst(?:\.global)?(?:\.v(\d))?\.[a-z](\d+)\b")
LOAD = re.compile(r"\bld\.global(?:\.v(\d))?\.[a-z](\d+)\b")
# From global to shared memory, past the registers.
COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global \[.*?\], \[.*?\], (\d+);")
GENERIC_LOAD = re.compile(r"\bld(?:\.v\d)?\.[a-z]\d+\b")
NON_COHERENT = re.compile(r"\bld\.global\.nc\b")
# Loading, storing and converting are not arithmetic: scale and inv_freq come as float64.
DOUBLE_ARITHMETIC = re.compile(r"\b(?:add|sub|mul|fma|div|rcp|sqrt|min|max|set\w*)\.[\w.]*f64\b")
INSTRUCTION_BYTES = 16  # since compute capability 7.0
PTX_LABEL = re.compile(r"(\$\w+):")
BRANCH = re.compile(r"(@\S+\s+)?bra(?:\.uni)?\s+(\$\w+);")
END = re.compile(r"(@\S+\s+)?(?:ret|exit|trap);")
BARRIER = re.compile(r"\b(?:bar|barrier)(?:\.cta)?\.(?:sync|red|arrive)\b")
WAITS = re.compile(r"\bgriddepcontrol\.wait\b")
FIRST_TO_WAIT = 90  # compute capability, times 10
PIECE_LOOPS = 2  # of launch.cuh: those of for_each_piece, around all that a block does


@dataclass
class Code:
    """What PTX says of a kernel. Loads and stores are counted by their bytes.

    Loads of up to 8 bytes may be of positions and frequencies; those of 16 are of data.
    """

    threads: int
    blocks: int
    loads: Counter[int]
    stores: Counter[int]
    other_stores: int
    generic_loads: int
    non_coherent: int
    double_arithmetic: int
    loop_barriers: int
    waits: int


@dataclass
class Kernel:
    """One kernel on one architecture."""

    name: str
    architecture: str
    registers: int
    stack: int
    spilled: int
    instructions: int
    code: Code

    @property
    def blocks(self) -> int:
        """Of them on a multiprocessor, as far as registers decide: warps take them by 256."""
        of_warp = -(-self.registers * 32 // 256) * 256
        return 65536 // of_warp // (self.code.threads // 32)

    @property
    def may_wait(self) -> bool:
        return capability(self.architecture) >= FIRST_TO_WAIT

    def faults(self, policy: dict[str, int]) -> Iterator[str]:
        """What is wrong with it: what, then what was expected and what came."""
        name = self.name.replace("Thread<", "<")
        match = re.fullmatch(r"\w+<(\w+), (\d+)(?:, (\w+))?(?:, (\w+))?(?:, \w+)*>", name)
        limits = next((one for one in LIMITS if re.match(one.names, name)), None)
        if match is None or limits is None:
            yield "limits: expected some in LIMITS of scripts/gpu_resources.py, got none"
            return
        dtype, vector, code = match[1], int(match[2]), self.code
        wide = BYTES[dtype] * vector
        variant = Variant(policy, vector, match[3] == "true", match[4] == "true")
        for what, least, got, most in (
            ("bytes of registers in memory", 0, self.spilled, 0),
            ("blocks on a multiprocessor", code.blocks, self.blocks, None),
            ("instructions", 0, self.instructions, limits.instructions),
            (f"loads of {wide} bytes", limits.loads(variant), code.loads[wide], None),
            (f"stores of {wide} bytes", int(limits.wide_stores), code.stores[wide], None),
            ("stores that packet.cuh does not make", 0, code.other_stores, 0),
            ("loads from memory of any kind", 0, code.generic_loads, 0),
            ("non-coherent loads", 0, code.non_coherent, 0),
            ("float64 operations", 0, code.double_arithmetic, None if dtype == "double" else 0),
            ("barriers in loops of a piece", 0, code.loop_barriers, limits.loop_barriers),
            ("waits for the kernel before", int(limits.waits and self.may_wait), code.waits, None),
        ):
            if got < least or (most is not None and got > most):
                expected = f"at least {least}" if got < least else f"at most {most}"
                yield f"{what}: expected {expected}, got {got}"


@dataclass(frozen=True)
class Variant:
    """The arguments of a kernel's template, and the constants of csrc/cuda/policy.h."""

    policy: dict[str, int]
    vector: int
    third: bool
    fourth: bool

    @property
    def words(self) -> int:
        """Accesses for the pairs of a thread, where the third argument is kInterleaved."""
        return 1 if self.third else 2


@dataclass(frozen=True)
class Limits:
    """What kernels whose names begin so may take."""

    names: str  # a pattern
    instructions: int  # a tenth more than the longest of them has on sm_90
    # Accesses of full width in all places that read data, each with its loop unrolled.
    loads: Callable[[Variant], int] = lambda _: 0
    wide_stores: bool = True
    loop_barriers: int = 0
    waits: bool = False  # launched with kWaits


def _of_rotary(v: Variant) -> int:
    """Before the angles; in either of two loops."""
    return 3 * v.policy["kHeads"] * v.words


def _of_rotary_gradient(v: Variant) -> int:
    """Of x and of the gradient, in two places."""
    return 2 * 2 * v.policy["kGradientHeads"] * v.words


def _of_sinusoids(v: Variant) -> int:
    """Before the angles and in the loop, for plain rows and for others."""
    return 4 * v.policy["kSumWords"] if v.fourth else 0


def _of_diagonals(v: Variant) -> int:
    """A group of 8 rows, inside and at the edge; that of row r begins r numbers further on."""
    if v.third:
        return 8
    return 2 * (8 + (8 - 8 // v.vector if v.vector > 1 else 0))


# The first that fits counts.
LIMITS = [
    # A vector of 16 bit has twice the pairs, and where they are apart a thread has 8.
    Limits(r"Rotary<B?Float16, 8, false>", 3900, _of_rotary, waits=True),
    Limits(r"Rotary<", 3500, _of_rotary, waits=True),
    # Single numbers also convert frequencies where they are needed, and take axes in slices.
    Limits(r"RotaryGradient<\w+, 1, false>", 4100, _of_rotary_gradient, loop_barriers=1),
    Limits(r"RotaryGradient<", 4100, _of_rotary_gradient, loop_barriers=1),  # a round of tokens
    # Norms have about 500 instructions for the factor of queries, with logarithms in float64, in a
    # function that is called once a token where there is one.
    # Two words of each of two heads at once. Half of the rest is of angles, once a token.
    Limits(r"NormRotaryWarp<", 5270, lambda _: 4, waits=True),
    # Tables and weights of any dtype, read where they are needed, and caches of 8 bits: long, and
    # mostly not gone through.
    Limits(r"NormRotary<", 10080, loop_barriers=10, waits=True),
    Limits(r"NormGradientWarp<", 3125, lambda _: 4),  # x and the gradient of out, near and far
    Limits(r"NormGradient<", 8230, loop_barriers=7),
    # Heads of the first token and of others, and what is copied.
    Limits(r"Selective<", 2400, lambda v: v.policy["kHeads"] * (2 * v.words + 1)),
    Limits(
        r"SelectiveGradient<",
        2500,
        lambda v: 4 * v.policy["kGradientHeads"] * v.words + v.policy["kHeads"],  # x likewise
    ),
    # Totals are 64 bits wide. Four steps of float64 take two accesses.
    Limits(r"SelectiveTotals<float", 3250, lambda v: v.policy["kStepReads"], wide_stores=False),
    Limits(r"SelectiveTotals<", 3200, wide_stores=False),
    # Gradients of steps, of any dtype.
    Limits(r"SelectiveSteps<", 2600, wide_stores=False),
    Limits(r"SelectiveScan<", 1650, lambda _: 16),  # segments at once, in two places
    Limits(r"SelectiveCarry<", 1350, lambda _: 16),
    # Phases are 64 bits wide.
    Limits(r"Phases<", 2830, lambda v: v.policy["kStepReads"], wide_stores=False),
    Limits(r"PhaseTables<", 200),
    # One number for each column, in float64 whatever the parts are in.
    Limits(r"ColumnSums<", 370),
    Limits(r"Sinusoidal<B?Float16, 8, false", 7650, _of_sinusoids),  # two sincos for 8 pairs
    Limits(r"Sinusoidal<B?Float16, 8, true", 5400, _of_sinusoids),  # and for 4
    Limits(r"Sinusoidal<", 4950, _of_sinusoids),
    Limits(r"ToeplitzTile<", 3200, lambda v: 2 * v.policy["kTileRows"]),
    Limits(r"ToeplitzLine<", 3500, lambda v: v.policy["kLineReads"]),
    # Index arithmetic of grids for every query. Sums are few, and written one by one.
    Limits(r"DiagonalSums<\w+, 1, true>", 5250, _of_diagonals, wide_stores=False, loop_barriers=1),
    Limits(r"DiagonalSums<", 2600, _of_diagonals, wide_stores=False, loop_barriers=1),
    Limits(r"BlockTotals<", 1650, lambda _: 8),  # of an entry, at once
    # The content of a tile.
    Limits(r"GatherWarp<", 1670, lambda v: min(v.policy["kGatherWarpRows"], v.vector)),
    Limits(r"Gather<", 3030, lambda v: v.policy["kTileRows"]),  # of content
    # A row, and sums one by one.
    Limits(r"ScatterWarp<", 1970, lambda v: v.policy["kScatterReads"], wide_stores=False),
    # Numbers one by one: several entries for 8 rows, in four places.
    Limits(r"Scatter<", 6250, loop_barriers=4),  # a tile of columns, and lists of the whole block
    Limits(
        r"Shift<",
        1700,
        # Two words or a number where bits are copied; where not, half as many, and content there
        # and beside zeros.
        lambda v: (4 if v.vector > 1 else 2) * v.policy["kShiftReads"],
    ),
]


def constants() -> dict[str, int]:
    """Those of csrc/cuda/policy.h."""
    text = (ROOT / "csrc/cuda/policy.h").read_text()
    found = re.findall(r"static constexpr \w+ (k\w+) = (\d+);", text)
    return {name: int(value) for name, value in found}


def capability(architecture: str) -> int:
    """Times 10, of sm_90."""
    return int(architecture.removeprefix("sm_"))


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


def code_of(entry: str) -> Code:
    """Of the PTX of a kernel."""

    def by_bytes(pattern: re.Pattern[str], text: str) -> Counter[int]:
        return Counter(int(n or 1) * int(bits) // 8 for n, bits in pattern.findall(text))

    spelled_out = by_bytes(STORE, "\n".join(SPELLED_OUT.findall(entry)))
    threads, blocks = THREADS.search(entry), BLOCKS.search(entry)
    return Code(
        threads=int(threads[1]) if threads else 1024,
        blocks=int(blocks[1]) if blocks else 1,
        loads=by_bytes(LOAD, entry) + Counter(map(int, COPY.findall(entry))),
        stores=spelled_out,
        other_stores=len(STORE.findall(entry)) - spelled_out.total(),
        generic_loads=len(GENERIC_LOAD.findall(entry)),
        non_coherent=len(NON_COHERENT.findall(entry)),
        double_arithmetic=len(DOUBLE_ARITHMETIC.findall(entry)),
        loop_barriers=sum(depth > PIECE_LOOPS for depth in barrier_depths(entry)),
        waits=len(WAITS.findall(entry)),
    )


def strong_components(edges: dict[int, set[int]]) -> list[set[int]]:
    """Nodes that reach each other, by Kosaraju's algorithm."""
    order: list[int] = []
    seen: set[int] = set()
    for root in edges:
        stack = [(root, iter(edges[root]))] if root not in seen else []
        seen.add(root)
        while stack:
            node, following = stack[-1]
            one = next((other for other in following if other not in seen), None)
            if one is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(one)
                stack.append((one, iter(edges[one])))
    before: dict[int, set[int]] = {node: set() for node in edges}
    for node, following in edges.items():
        for other in following:
            before[other].add(node)
    components, taken = [], set[int]()
    for root in reversed(order):
        if root in taken:
            continue
        component, left = set[int](), [root]
        while left:
            node = left.pop()
            if node not in taken:
                taken.add(node)
                component.add(node)
                left += before[node]
        components.append(component)
    return components


def loop_depths(edges: dict[int, set[int]]) -> dict[int, int]:
    """In how many loops, one in the other, each node of a graph is; of loops that are entered at
    one place.
    """
    depths = dict.fromkeys(edges, 0)

    def go_into(nodes: set[int]) -> None:
        for loop in strong_components({node: edges[node] & nodes for node in nodes}):
            if len(loop) == 1 and not loop & edges[min(loop)]:
                continue
            for node in loop:
                depths[node] += 1
            entered = {
                other
                for node, following in edges.items()
                if node not in loop
                for other in following & loop
            } or {min(loop)}
            for node in loop:
                edges[node] -= entered
            go_into(loop)

    edges = {node: set(following) for node, following in edges.items()}
    go_into(set(edges))
    return depths


def barrier_depths(entry: str) -> list[int]:
    """In how many loops each barrier of a kernel's PTX is."""
    edges: dict[int, set[int]] = {0: set()}
    labels: dict[str, int] = {}
    branches, barriers, block, falls = [], [], 0, True  # falls: into the block that follows
    for line in entry.splitlines():
        if label := PTX_LABEL.match(line.strip()):
            edges[block + 1] = set()
            if falls:
                edges[block].add(block + 1)
            block, falls = block + 1, True
            labels[label[1]] = block
        if BARRIER.search(line):
            barriers.append(block)
        jump, end = BRANCH.search(line), END.search(line)
        if jump:
            branches.append((block, jump[2]))
        if jump or end:
            falls = bool((jump or end)[1])  # under a condition
            edges[block + 1] = set()
            if falls:
                edges[block].add(block + 1)
            block += 1
    for node, label in branches:
        edges[node].add(labels[label])
    depths = loop_depths(edges)
    return [depths[node] for node in barriers]


def code_bytes(cubin: bytes) -> dict[tuple[str, str], int]:
    """Bytes of machine code by kernel and architecture: of an ELF file of 64 bits."""
    (flags,) = struct.unpack_from("<I", cubin, 48)
    architecture = f"sm_{(flags >> 8 if cubin[8] >= 8 else flags) & 0xFF}"  # 8: CUDA 13
    (table,) = struct.unpack_from("<Q", cubin, 40)
    entry_bytes, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    sections = []
    for i in range(count):
        name, _, _, _, offset, size = struct.unpack_from("<IIQQQQ", cubin, table + i * entry_bytes)
        sections.append((name, offset, size))
    names = sections[names_at][1]
    found = {}
    for name, _, size in sections:
        text = cubin[names + name : cubin.index(b"\0", names + name)].decode()
        if text.startswith(".text."):
            found[text.removeprefix(".text."), architecture] = size
    return found


def kernels(command: list[str]) -> list[Kernel]:
    with tempfile.TemporaryDirectory() as scratch:
        result = subprocess.run(
            [*command, "-o", f"{scratch}/kernel.o", "-Xptxas=-v", "--keep", "--keep-dir", scratch],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=scratch,
        )  # fmt: skip
        if result.returncode:
            sys.exit(result.stdout)
        codes = {}
        for path in Path(scratch).glob("*.ptx"):
            text = path.read_text()
            [made_for] = PTX_TARGET.findall(text)
            for entry in PTX_ENTRY.finditer(text):
                codes[entry[1], int(made_for)] = code_of(entry[0])
        sizes: dict[tuple[str, str], int] = {}
        for path in Path(scratch).glob("*.cubin"):
            sizes |= code_bytes(path.read_bytes())
    found, name, architecture, stack, spilled = [], "", "", 0, 0
    for line in result.stdout.splitlines():
        if match := ENTRY.search(line):
            name, architecture = match[1], match[2]
        elif match := STACK.search(line):
            stack, spilled = int(match[1]), int(match[2]) + int(match[3])
        elif (match := USED.search(line)) and name:
            instructions = sizes[name, architecture] // INSTRUCTION_BYTES
            gpu = capability(architecture)
            ptx = max(ptx for kernel, ptx in codes if kernel == name and ptx <= gpu)
            code = codes[name, ptx]
            found.append(
                Kernel(name, architecture, int(match[1]), stack, spilled, instructions, code)
            )
            name = ""
    for kernel, text in zip(found, readable([kernel.name for kernel in found]), strict=True):
        kernel.name = text
    return found


def accesses(counts: Counter[int]) -> str:
    """As 4 x 16 + 2 x 2 bytes."""
    return " + ".join(f"{count} x {size}" for size, count in sorted(counts.items(), reverse=True))


def main(arguments: list[str]) -> int:
    build = Path(arguments[0]) if arguments else newest_build()
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        every = [kernel for found in pool.map(kernels, commands(build)) for kernel in found]
    if not every:
        sys.exit(f"gpu_resources: no CUDA kernels in {build}: was it built with POSENC_CUDA=OFF?")
    width = max(len(kernel.name) for kernel in every)
    print(
        f"{'kernel':{width}}  GPU     registers  blocks  spilled  instructions  barriers"
        "  loads x bytes       stores x bytes"
    )
    policy, faulty = constants(), 0
    for kernel in every:
        line = (
            f"{kernel.name:{width}}  {kernel.architecture:7} {kernel.registers:9}"
            f"  {kernel.blocks:6}  {kernel.spilled:7}  {kernel.instructions:12}"
            f"  {kernel.code.loop_barriers:8}"
            f"  {accesses(kernel.code.loads):18}  {accesses(kernel.code.stores)}"
        )
        print(line.rstrip())
        faults = list(kernel.faults(policy))
        for fault in faults:
            print(f"{'':{width}}  {fault}")
        faulty += bool(faults)
    print(f"{len(every)} kernels, {faulty} not as they should be")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
