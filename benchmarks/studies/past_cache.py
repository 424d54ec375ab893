"""`python -m benchmarks.studies.past_cache`: from which size on results go past the cache.

Each call writes its result past the cache and through it in turn, on buffers that are

    cold   used again only after everything else: read from memory, wanted by nobody soon
    hot    those of the call before: in the cache, as far as they fit

What is written past the cache is not read into it first, a third of what moves through memory; but
buffers that were in the cache leave it. The figures are times past the cache, as multiples of those
through it: below 1, past it is faster. One thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import posenc_native as pn
from benchmarks import command
from benchmarks.figures.report import lined_up
from benchmarks.peers.contestants import HEAD_DIM
from posenc_native.engines import backend

_HEADS = 32
_COLD_BYTES = 512 << 20
_NEVER = 1 << 60
_BUFFERS = ("cold", "hot")


def _rotation(dtype: Any, nbytes: int) -> tuple[Callable[[int], object], int]:
    """A call on the buffers of a number, and how many there are."""
    tokens = nbytes // (_HEADS * HEAD_DIM * np.dtype(dtype).itemsize)
    count = _COLD_BYTES // (2 * nbytes) + 1
    given = np.ones((count, 1, _HEADS, tokens, HEAD_DIM), dtype)
    results = np.ones_like(given)
    tables = pn.rotary_tables(tokens, pn.rotary.rotary_frequencies(HEAD_DIM)[0])
    return lambda i: pn.apply_rotary(given[i], None, pn.Tables(*tables), out=results[i]), count


def _sinusoids(dtype: Any, nbytes: int) -> tuple[Callable[[int], object], int]:
    width = 1024
    count = _COLD_BYTES // nbytes + 1
    results = np.ones((count, nbytes // (width * np.dtype(dtype).itemsize), width), dtype)
    return lambda i: pn.sinusoidal(results.shape[1], width, out=results[i]), count


CALLS = {"apply_rotary by tables": _rotation, "sinusoidal": _sinusoids}


def measure(call: Callable[[int], object], count: int, seconds: float) -> dict[str, float]:
    """Median times past the cache as multiples of those through it."""
    native: Any = backend.native
    times: dict[tuple[str, int], list[float]] = {}

    def timed(buffers: str, threshold: int, i: int) -> None:
        begun = time.perf_counter()
        call(i)
        times.setdefault((buffers, threshold), []).append(time.perf_counter() - begun)

    end, i = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        for threshold in (1, _NEVER):
            native.set_non_temporal_bytes(threshold)
            i = (i + 1) % count
            timed("cold", threshold, i)
            call(i)
            timed("hot", threshold, i)
    native.set_non_temporal_bytes(0)
    median = {key: statistics.median(some) for key, some in times.items()}
    return {of: median[of, 1] / median[of, _NEVER] for of in _BUFFERS}


def main(mebibytes: Sequence[int] = (1, 2, 4, 6, 8, 12, 16, 32), seconds: float = 2.0) -> None:
    """Print the table.

    Args:
        mebibytes: sizes of the result (default: 1,2,4,6,8,12,16,32)
        seconds: how long each size is measured (default: 2)
    """
    pn.set_num_threads(1)
    rows = [["", "", *(f"{size} MiB" for size in mebibytes)]]
    for function, prepare in CALLS.items():
        for name, dtype in (("float32", np.float32), ("bfloat16", ml_dtypes.bfloat16)):
            found = [measure(*prepare(dtype, size << 20), seconds) for size in mebibytes]
            for buffers in _BUFFERS:
                figures = [f"{ratios[buffers]:.2f}" for ratios in found]
                rows.append([f"{function}, {name}", buffers, *figures])
    print("\n".join(lined_up(rows, words=2)))


if __name__ == "__main__":
    command.run(main)
