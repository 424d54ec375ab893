"""`python -m benchmarks.studies.instructions`: what kernels cost in instructions, by valgrind.

Counts do not depend on what else the machine does: they show a change of code where times drown in
noise. They are no times: an instruction may wait for memory, or not at all.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import posenc_native as pn
from benchmarks import command
from benchmarks.clock import limits
from benchmarks.figures import records, report
from posenc_native.engines import backend

ROOT = Path(__file__).parents[2]
_REQUESTS = Path(__file__).with_name("callgrind_requests.cc")

HEAD_DIM = 128
HEADS = 8
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
# Until then Python still chooses faster forms of its own instructions.
_WARMUPS = 20
# A kernel that takes more instructions than this, as a part of what was recorded, has grown.
TOLERANCE = 0.02


# ---------------------------------------------------------------------------------- what is counted


Call = Callable[[], object]


@dataclass(frozen=True)
class Kernel:
    """A call, made for one size and for twice that size: the difference is what an element costs.

    What a call costs besides, Python included, is the same for both and falls out.
    """

    name: str
    make: Callable[[int], Call]  # gets how many tokens, rows or heads
    size: int
    elements: int  # of the result, for each unit of size
    streamed: bool = False  # stored past the cache, as large results are


def _array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Numbers that begin at a cache line, as those of large tensors do."""
    count = int(np.prod(shape))
    room = np.zeros(count + 64, dtype)
    first = -room.ctypes.data % 64 // room.itemsize
    array = room[first : first + count].reshape(shape)
    array[...] = np.random.default_rng(0).standard_normal(shape, np.float32)
    return array


def _rotary() -> Iterator[Kernel]:
    inv_freq = pn.rotary.rotary_frequencies(HEAD_DIM, 500000.0)[0]

    def rotate(dtype: Any, pairing: str, in_place: bool, heads: int, tokens: int) -> Call:
        x = _array((1, heads, tokens, HEAD_DIM), dtype)
        out = x if in_place else _array(x.shape, dtype)
        positions = np.arange(tokens) + 4096
        return lambda: pn.apply_rotary(x, positions, inv_freq, pairing=pairing, out=out)

    def by_tables(dtype: Any, tokens: int) -> Call:
        x = _array((1, HEADS, tokens, HEAD_DIM), dtype)
        cos, sin = pn.rotary_tables(np.arange(tokens), inv_freq)
        return lambda: pn.apply_rotary(x, None, pn.Tables(cos, sin), out=x)

    def by_tables_of_heads(dtype: Any, pairing: str, tokens: int) -> Call:
        x = _array((1, HEADS, tokens, HEAD_DIM), dtype)
        tables = pn.Tables(*(_array((1, HEADS, tokens, HEAD_DIM // 2), np.float32) for _ in "cs"))
        return lambda: pn.apply_rotary(x, None, tables, pairing=pairing, out=x)

    def backward(dtype: Any, tokens: int) -> Call:
        native: Any = backend.native
        grad, x = (_array((1, HEADS, tokens, HEAD_DIM), dtype) for _ in range(2))
        options = ("bhsd", "half", 0, None, 1.0, False, False)
        positions = np.arange(tokens)
        return lambda: native.rotary_backward((grad,), (x,), positions, inv_freq, *options)

    tokens, width = 128, HEADS * HEAD_DIM
    modes = ("in place", "out=", "streamed")
    for name, pairing, mode in itertools.product(DTYPES, ("half", "interleaved"), modes):
        make = functools.partial(rotate, DTYPES[name], pairing, mode == "in place", HEADS)
        label = f"rotary, {name}, {pairing}, {mode}"
        yield Kernel(label, make, tokens, width, streamed=mode == "streamed")
    make = functools.partial(rotate, np.float32, "half", True, 1)
    yield Kernel("rotary, float32, half, in place, one head", make, tokens, HEAD_DIM)
    for name in ("float32", "bfloat16"):
        make = functools.partial(by_tables, DTYPES[name])
        yield Kernel(f"rotary by tables, {name}, half, in place", make, tokens, width)
        for pairing in ("half", "interleaved"):
            make = functools.partial(by_tables_of_heads, DTYPES[name], pairing)
            yield Kernel(f"rotary by tables of each head, {name}, {pairing}", make, tokens, width)
        make = functools.partial(backward, DTYPES[name])
        # Of more tokens, since they are summed in pieces.
        yield Kernel(f"rotary backward to inv_freq, {name}, half", make, 2 * tokens, width)


def _selective() -> Iterator[Kernel]:
    """As benchmarks/cases/selective.py has them: steps of every head, in the dtype of q and k."""
    heads = 8

    def rotate(dtype: Any, pairing: str, mode: str, tokens: int) -> Call:
        q, k = (_array((1, tokens, heads, HEAD_DIM), dtype) for _ in "qk")
        steps = _array((1, tokens, heads, HEAD_DIM // 2), dtype)
        out = (q, k) if mode == "in place" else tuple(_array(q.shape, dtype) for _ in "qk")
        options: dict[str, Any] = {"pairing": pairing, "layout": "bshd", "out": out}
        return lambda: pn.selective_rotary_qk(q, k, steps, **options)

    modes = ("in place", "streamed")
    for name, pairing, mode in itertools.product(DTYPES, ("half", "interleaved"), modes):
        yield Kernel(
            f"rotary by steps, {name}, {pairing}, {mode}",
            functools.partial(rotate, DTYPES[name], pairing, mode),
            64, 2 * heads * HEAD_DIM, streamed=mode == "streamed",
        )  # fmt: skip


def _before_attention() -> Iterator[Kernel]:
    """As benchmarks/cases/qkv.py has them: 32 query and 8 key heads of a packed projection."""
    inv_freq = pn.rotary.rotary_frequencies(HEAD_DIM, 500000.0)[0]
    heads = (32, 8, 8)

    def projected(dtype: Any, tokens: int) -> tuple[list[np.ndarray], np.ndarray, dict[str, Any]]:
        qkv = _array((1, tokens, sum(heads), HEAD_DIM), dtype)
        weight = _array((HEAD_DIM,), dtype)
        parts = np.split(qkv, np.cumsum(heads)[:-1], 2)
        return parts, np.arange(tokens), {"q_weight": weight, "k_weight": weight, "layout": "bshd"}

    def norm(dtype: Any, tokens: int) -> Call:
        (q, k, _), positions, options = projected(dtype, tokens)
        return lambda: pn.norm_rotary_qk(q, k, positions, inv_freq, out=(q, k), **options)

    def append(dtype: Any, tokens: int) -> Call:
        (q, k, v), positions, options = projected(dtype, tokens)
        out = _array(q.shape, dtype)
        caches = [_array((1, tokens, heads[1], HEAD_DIM), dtype) for _ in "kv"]
        options["cache_layout"] = "bshd"
        return lambda: pn.rotary_append(
            q, k, v, positions, inv_freq, *caches, positions, out=out, **options
        )

    for name, dtype in DTYPES.items():
        elements = sum(heads[:2]) * HEAD_DIM
        yield Kernel(
            f"norm and rotation, {name}, in place", functools.partial(norm, dtype), 64, elements
        )
        yield Kernel(
            f"norm, rotation and append, {name}, out=",
            functools.partial(append, dtype), 64, sum(heads) * HEAD_DIM,
        )  # fmt: skip


def _sinusoidal() -> Iterator[Kernel]:
    dim, rows = 512, 256

    def table(dtype: Any, layout: str, rows: int) -> Call:
        out = _array((rows, dim), dtype)
        return lambda: pn.sinusoidal(rows, dim, layout=layout, out=out)

    def add(dtype: Any, rows: int) -> Call:
        x = _array((rows, dim), dtype)
        return lambda: pn.add_sinusoidal(x, out=x)

    for name, layout in (*((name, "interleaved") for name in DTYPES), ("float32", "sin_cos")):
        make = functools.partial(table, DTYPES[name], layout)
        yield Kernel(f"sinusoidal table, {name}, {layout}, out=", make, rows, dim)
    for name, dtype in DTYPES.items():
        make = functools.partial(add, dtype)
        yield Kernel(f"add_sinusoidal, {name}, in place", make, rows, dim)


def _relative() -> Iterator[Kernel]:
    length = 256
    heads, matrix = 2, length * length
    clipped = pn.relative.clipped_index(length, length, 16)

    def bias(dtype: Any, heads: int) -> Call:
        diagonals = _array((heads, 2 * length - 1), dtype)
        out = _array((heads, length, length), dtype)
        return lambda: pn.toeplitz_bias(diagonals, length, length, out=out)

    def add(dtype: Any, heads: int) -> Call:
        diagonals = _array((heads, 2 * length - 1), dtype)
        x = _array((heads, length, length), dtype)
        return lambda: pn.add_toeplitz_bias(x, diagonals, out=x)

    def sums(dtype: Any, heads: int) -> Call:
        grad = _array((heads, length, length), dtype)
        return lambda: pn.diagonal_sums(grad)

    def gather(width: int, index: Any, heads: int) -> Call:
        x = _array((heads, length, width), np.float32)
        out = _array((heads, length, length), np.float32)
        return lambda: pn.relative_gather(x, index, length, out=out)

    def scatter(heads: int) -> Call:
        grad = _array((heads, length, length), np.float32)
        return lambda: pn.relative_scatter(grad, clipped, 33)

    for name in ("float32", "bfloat16"):
        for label, function in (
            (f"toeplitz_bias, {name}, out=", bias),
            (f"add_toeplitz_bias, {name}, in place", add),
            (f"diagonal_sums, {name}", sums),
        ):
            yield Kernel(label, functools.partial(function, DTYPES[name]), heads, matrix)
    shift = functools.partial(gather, 2 * length - 1, None)
    yield Kernel("relative_gather, float32, a shift, out=", shift, heads, matrix)
    by_index = functools.partial(gather, 33, clipped)
    yield Kernel("relative_gather, float32, a clipped index, out=", by_index, heads, matrix)
    yield Kernel("relative_scatter, float32, a clipped index", scatter, heads, matrix)


def kernels(wanted: Sequence[str] = ()) -> list[Kernel]:
    """Those with every text that is wanted in their names."""
    every = (*_rotary(), *_selective(), *_before_attention(), *_sinusoidal(), *_relative())
    return [kernel for kernel in every if all(text in kernel.name for text in wanted)]


# ------------------------------------------------------------------------------- inside of valgrind


def _run_kernels(library: str, wanted: Sequence[str]) -> None:
    """Run every kernel in this process, and have callgrind write a file for each call."""
    requests = ctypes.CDLL(library)
    native: Any = backend.native
    pn.set_num_threads(1)
    gc.disable()
    for _ in range(2):  # what a first count takes besides is no kernel's
        requests.start_counting()
        requests.write_counts(b"nothing")
    for kernel in kernels(wanted):
        native.set_non_temporal_bytes(1 if kernel.streamed else 1 << 40)
        small = kernel.make(1)
        for _ in range(_WARMUPS):
            small()
        for size in (kernel.size, 2 * kernel.size):
            call = kernel.make(size)
            call()  # what is made once
            requests.start_counting()
            call()
            requests.write_counts(f"{size} {kernel.name}".encode())
    print(native.current_target())


# ------------------------------------------------------------------------------ outside of valgrind


def parse(text: str) -> tuple[str, int] | None:
    """The name of a count that was asked for and how many instructions; None for other files."""
    name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
    count = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
    return (name[1], int(count[1])) if name and count else None


def count(wanted: Sequence[str] = ()) -> dict[str, Any]:
    """Instructions of every kernel on the SIMD target that valgrind shows.

    Refused where valgrind is missing, or the kernels fail under it.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise command.Refused(
            "valgrind is not installed: `make instructions` installs it on Debian and Ubuntu, "
            "as does  apt-get install valgrind  by hand"
        )
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = os.environ | single | {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc"}
    if platform.machine() in ("x86_64", "AMD64"):
        environment["POSENC_ISA"] = "AVX2"  # the widest that valgrind knows
    inside = ["-m", "benchmarks.studies.instructions", "--inside", limits.compiled(_REQUESTS)]
    inside += itertools.chain(*(("--filter", text) for text in wanted))
    with tempfile.TemporaryDirectory() as folder:
        counts = f"--callgrind-out-file={folder}/counts"
        done = subprocess.run(
            [valgrind, "--tool=callgrind", counts, "-q", sys.executable, *inside],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise command.Refused(f"the kernels fail under valgrind:\n{done.stdout}{done.stderr}")
        texts = (file.read_text(encoding="utf-8") for file in Path(folder).iterdir())
        found = dict(entry for text in texts if (entry := parse(text)))
    rows = []
    for kernel in kernels(wanted):
        once, twice = (found[f"{kernel.size * factor} {kernel.name}"] for factor in (1, 2))
        each = (twice - once) / (kernel.size * kernel.elements)
        rows.append(
            {
                "kernel": kernel.name,
                "instructions_per_element": each,
                "instructions_of_a_call": 2 * once - twice,
            }
        )
    return {
        "target": done.stdout.strip(),
        "valgrind": report.output(valgrind, "--version"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        # What compiles here; the kernels were, unless they came from elsewhere.
        "compiler": (report.output(limits.compiler(), "--version") or "").partition("\n")[0],
        "kernels": rows,
    }


# --------------------------------------------------------------------------------------- the report


def as_text(counted: dict[str, Any], recorded: dict[str, Any] | None = None) -> str:
    """The counts, for the eye; with those of a record and the change since then."""
    before = _by_name(recorded)
    heading = ["", "an element", "a call"] + ["recorded", "change"] * bool(recorded)
    rows = [heading]
    for row in counted["kernels"]:
        each, name = row["instructions_per_element"], row["kernel"]
        cells = [name, f"{each:.3f}", f"{row['instructions_of_a_call']:,}"]
        if recorded and (old := before.get(name)):
            cells += [f"{old:.3f}", f"{each / old - 1:+.1%}"]
        elif recorded:
            cells.append("not recorded")
        rows.append(cells)
    about = f"instructions on {counted['target']}, {counted['valgrind']}, {counted['compiler']}"
    return "\n".join([about, *report.lined_up(rows)]) + "\n"


def grown(counted: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """The kernels that take more instructions than recorded, beyond TOLERANCE."""
    before = _by_name(recorded)
    return [
        name
        for name, each in _by_name(counted).items()
        if each > (1 + TOLERANCE) * before.get(name, float("inf"))
    ]


def _by_name(recorded: dict[str, Any] | None) -> dict[str, float]:
    rows = recorded["kernels"] if recorded else ()
    return {row["kernel"]: row["instructions_per_element"] for row in rows}


def main(
    filter: Sequence[str] = (),  # noqa: A002
    compare: bool = False,
    json: Path | None = None,
    inside: str | None = None,
) -> None:
    """Count, and record or compare.

    Args:
        filter: only kernels whose name has TEXT; given again, those that have every TEXT
        compare: print the change since the record, and exit with 1 where a kernel grew by more
            than 2 %; nothing is written
        json: the record (default: benchmarks/results/instructions-TARGET.json); the text is
            written beside it
    """
    if inside:
        _run_kernels(inside, filter)
        return
    counted = count(filter)
    path = json or records.RESULTS / f"instructions-{counted['target'].lower()}.json"
    if not compare:
        print(as_text(counted))
        if filter and not json:
            print("part of the kernels: not recorded")
        else:
            print(records.keep(path, counted, as_text(counted)))
        return
    if not path.exists():
        raise command.Refused(f"nothing is recorded in {path}")
    recorded = records.load(path)
    print(as_text(counted, recorded))
    if recorded["compiler"] != counted["compiler"]:
        print(f"the record is of another compiler: {recorded['compiler']}")
    if names := grown(counted, recorded):
        raise command.Refused(f"more instructions than recorded: {'; '.join(names)}")


if __name__ == "__main__":
    command.run(main)
