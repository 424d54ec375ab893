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

import ctypes
import mmap
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch

import posenc_native as pn
from benchmarks import command
from benchmarks.clock import turns
from benchmarks.figures.report import duration, lined_up
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
    inv_freq: Any = pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0]
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


def _counters() -> tuple[float, int]:
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(library: str, nbytes: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds and faults of a call, by way."""
    ways, calls = _ways(library, nbytes), {}
    for name, run in ways.items():
        run()
        start = time.perf_counter()
        run()
        calls[name] = max(1, int(_SAMPLE / (time.perf_counter() - start)))
    found = turns.medians(ways, calls, rounds, _counters)
    return {name: {"seconds": of[0], "faults": of[1]} for name, of in found.items()}


def _measure_all(allocator: str, mebibytes: Sequence[int], rounds: int) -> dict[str, Any]:
    """In a process of its own: the allocator is set for good."""
    libc = ctypes.CDLL(None)
    for setting, value in ALLOCATORS[allocator].items():
        if not libc.mallopt(setting, value):
            raise command.Refused(f"mallopt({setting}, {value}) is refused")
    torch.set_num_threads(1)
    pn.set_num_threads(1)
    return {
        f"{library}, {size} MiB": measure(library, size << 20, rounds)
        for library in ("NumPy", "torch")
        for size in mebibytes
    }


def text(found: dict[str, dict[str, Any]]) -> str:
    """The table: `found` is by allocator, by library and size, by way."""
    rows = [["", "process", "reused", "copy", "fresh", "faults", "populated", "faults"]]
    for case in next(iter(found.values())):
        for allocator, cases in found.items():
            ways = cases[case]
            reused = ways["reused"]["seconds"]
            times = {name: f"{way['seconds'] / reused:.2f} x" for name, way in ways.items()}
            cells = [case, allocator, duration(reused), times["copy"]]
            for name in ("fresh", "populated"):
                cells += [times[name], f"{ways[name]['faults']:.0f}"]
            rows.append(cells)
    return "\n".join(lined_up(rows, words=2)) + "\n"


def main(mebibytes: Sequence[int] = (1, 4, 16, 64, 256), rounds: int = 11) -> None:
    """Print the table.

    Args:
        mebibytes: sizes of the result (default: 1,4,16,64,256)
        rounds: how often each way has its turn (default: 11)
    """
    found = {}
    for allocator in ALLOCATORS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
            found[allocator] = processes.submit(_measure_all, allocator, mebibytes, rounds).result()
    print(text(found), end="")


if __name__ == "__main__":
    command.run(main)
