"""How much of a GPU the launches of a call keep at work, by a model, without a GPU.

A launch is pieces of work; a block does one (more only in grids beyond CUDA's limits). So many blocks
as a GPU has places for begin in the order of their numbers, the next one when a place is free. A
piece takes the time of the bytes of global memory that its threads read and write, which
posenc_native._cuda_on_host counts on some of the pieces; between these it is interpolated. The model
knows nothing of latency, nor of what caches and neighbours share.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from oracle import DTYPES
from targets import CUDA_ON_HOST, NEEDS_CUDA_ON_HOST

pytestmark = NEEDS_CUDA_ON_HOST

AT_WORK = 0.85  # of all places, from the first block to the end of the last


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    CUDA_ON_HOST.simulate()


def share_at_work(times: np.ndarray, places: int) -> float:
    """Of `places`, which take up pieces of these times one after the other."""
    busy = [0.0] * min(places, len(times))
    for time in times.tolist():
        heapq.heapreplace(busy, busy[0] + time)
    return float(times.sum()) / (places * max(busy))


def piece_bytes(launch: dict[str, Any]) -> np.ndarray:
    """Of all pieces, in the order of their blocks."""
    (columns, rows), (xs, ys) = launch["pieces"], launch["sampled"]
    sampled = np.reshape(np.array(launch["bytes"], float), (len(ys), len(xs)))
    along_x = np.array([np.interp(np.arange(columns), xs, row) for row in sampled])
    at = np.interp(np.arange(rows), ys, np.arange(len(ys)))
    low, part = np.floor(at).astype(int), at % 1
    high = np.minimum(low + 1, len(ys) - 1)
    return (along_x[low] * (1 - part[:, None]) + along_x[high] * part[:, None]).reshape(-1)


def launches(call: Callable[[], object], **gpu: int) -> list[dict[str, Any]]:
    CUDA_ON_HOST.simulate(run="samples", **gpu)
    CUDA_ON_HOST.launches()
    call()
    return CUDA_ON_HOST.launches()
