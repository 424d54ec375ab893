"""`python -m benchmarks.studies.fresh`: what fresh results cost, and what would make them cheaper.

A result in new memory pays for its pages, unless the allocator has some at hand. The same rotation,
of one to 256 MiB, on one thread, has its result

    fresh      as the library gives it, freed before the next call
    reused     in out=, always the same memory: a pool of freed pages could bring no more
    populated  in out=, pages mapped for each call, huge, asked for at once (MADV_POPULATE_WRITE)

in processes of three kinds, since the allocator's settings are a process's own:

    as it is   glibc's settings, which move: what is mapped and freed raises the bound, to 32 MiB
    fixed      blocks to 32 MiB kept, as `python -m benchmarks` has it
    kept       nothing mapped and nothing given back: glibc itself is the pool, without a bound

Times are medians of the processor's time, so that other work on the machine counts little, as
multiples of *reused*; beside them, how often a call faulted. Linux and glibc alone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import posenc_native as pn
from benchmarks.figures.report import duration
from benchmarks.peers.contestants import BASE, HEAD_DIM

_HEADS = 32
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _MMAP_MAX = -3, -1, -4
ALLOCATORS = {
    "as it is": {},
    "fixed": {_MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20},
    "kept": {_MMAP_MAX: 0, _TRIM_THRESHOLD: (1 << 31) - 1},
}
# Since Linux 5.14; the module mmap does not name it.
_POPULATE_WRITE = 23
# A sample takes about so long, in seconds, so that small calls are many.
_SAMPLE = 2e-3


def _ways(library: str, nbytes: int) -> dict[str, Callable[[], object]]:
    """A call of each way."""
    shape = (1, _HEADS, nbytes // (_HEADS * HEAD_DIM * 4), HEAD_DIM)
    x: Any = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    positions: Any = np.arange(shape[2])
    inv_freq: Any = pn.rotary_frequencies(HEAD_DIM, BASE)[0]
    if library == "torch":
        x = torch.from_numpy(x).clone()
        positions, inv_freq = torch.from_numpy(positions), torch.from_numpy(inv_freq)
    reused = x.clone() if library == "torch" else x.copy()

    def copy() -> None:
        if library == "torch":
            reused.copy_(x)
        else:
            np.copyto(reused, x)

    def populated() -> None:
        with mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
            pages.madvise(mmap.MADV_HUGEPAGE)
            pages.madvise(_POPULATE_WRITE)
            flat: Any = (
                torch.frombuffer(pages, dtype=torch.float32)
                if library == "torch"
                else np.frombuffer(pages, np.float32)
            )
            out = flat.reshape(shape)
            pn.apply_rotary(x, positions, inv_freq, out=out)
            del flat, out  # or the pages could not be given back

    return {
        "copy": copy,
        "reused": lambda: pn.apply_rotary(x, positions, inv_freq, out=reused),
        "fresh": lambda: pn.apply_rotary(x, positions, inv_freq),
        "populated": populated,
    }


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(library: str, nbytes: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds and faults of a call, by way; in every round each has its turn."""
    ways = _ways(library, nbytes)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    calls = {}
    for name, run in ways.items():
        run()
        start = time.perf_counter()
        run()
        calls[name] = max(1, int(_SAMPLE / (time.perf_counter() - start)))
    order = list(ways)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            run, before, start = ways[name], _faults(), time.process_time()
            for _ in range(calls[name]):
                run()
            seconds = time.process_time() - start
            samples[name].append((seconds / calls[name], (_faults() - before) / calls[name]))
    return {
        name: {
            "seconds": statistics.median(seconds for seconds, _ in of),
            "faults": statistics.median(faults for _, faults in of),
        }
        for name, of in samples.items()
    }


def _in_process(allocator: str, sizes: list[int], rounds: int) -> dict[str, Any]:
    """measure, in a process with that allocator."""
    command = [sys.executable, "-m", "benchmarks.studies.fresh", "--process", allocator]
    command += ["--mebibytes", ",".join(map(str, sizes)), "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def text(found: dict[str, dict[str, Any]]) -> str:
    """The table: `found` is by allocator, by library and size, by way."""
    headings = ("reused", "copy", "fresh", "faults", "populated", "faults")
    widths = (9, 10, 10, 8, 12, 8)
    line = "".join(f"{word:>{width}}" for word, width in zip(headings, widths, strict=True))
    lines = [f"{'':<20}{'process':<10}{line}"]
    for case in next(iter(found.values())):
        for allocator, cases in found.items():
            ways = cases[case]
            reused = ways["reused"]["seconds"]
            times = {name: f"{way['seconds'] / reused:.2f} x" for name, way in ways.items()}
            faults = {name: f"{way['faults']:.0f}" for name, way in ways.items()}
            cells = (
                *(duration(reused), times["copy"], times["fresh"], faults["fresh"]),
                *(times["populated"], faults["populated"]),
            )
            line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            lines.append(f"{case:<20}{allocator:<10}{line}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.fresh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mebibytes", default="1,4,16,64,256", metavar="N,N", help="%(default)s")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--process", choices=ALLOCATORS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.mebibytes.split(",")]
    if options.process is None:
        found = {name: _in_process(name, sizes, options.rounds) for name in ALLOCATORS}
        print(text(found), end="")
        return
    libc = ctypes.CDLL(None)
    for setting, value in ALLOCATORS[options.process].items():
        if not libc.mallopt(setting, value):
            sys.exit(f"mallopt({setting}, {value}) is refused")
    torch.set_num_threads(1)
    pn.set_num_threads(1)
    found = {
        f"{library}, {size} MiB": measure(library, size << 20, options.rounds)
        for library in ("NumPy", "torch")
        for size in sizes
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
