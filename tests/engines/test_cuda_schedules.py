"""How much of a GPU the launches of a call keep at work, by a model, without a GPU.

A launch is pieces of work; a block does one (more only in grids beyond CUDA's limits). As many
blocks as a GPU has places for begin in the order of their numbers, and the next one where a place
is free. A piece takes the time of the bytes of global memory that its threads read and write, which
posenc_native._cuda_on_host counts for some of the pieces; between these it is interpolated. The
model knows nothing of latency, nor of what caches and neighbors share.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from oracle import DTYPES
from rotations import frequencies
from targets import CUDA_ON_HOST, NEEDS_CUDA_ON_HOST, NOT_SANITIZED

from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.rotation import Rotation

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


# --- The model


@pytest.mark.parametrize(
    ("times", "places", "share"),
    [
        ([1] * 8, 4, 1.0),
        ([1] * 6, 4, 0.75),  # a wave and a half
        ([1] * 3, 4, 0.75),
        ([1, 1, 1, 1, 4], 4, 0.4),  # the longest begins last ...
        ([4, 1, 1, 1, 1], 4, 0.5),  # ... or first
        ([3, 1, 1, 1], 2, 1.0),
        ([3, 1, 1, 1, 2], 2, 0.8),
    ],
)
def test_model_of_a_schedule(times, places, share):
    assert share_at_work(np.array(times, float), places) == share


def test_bytes_between_samples_are_interpolated():
    launch = {"pieces": (5, 3), "sampled": ([0, 2, 4], [0, 2]), "bytes": [0, 4, 0, 2, 6, 2]}
    expected = [[0, 2, 4, 2, 0], [1, 3, 5, 3, 1], [2, 4, 6, 4, 2]]
    np.testing.assert_array_equal(piece_bytes(launch).reshape(3, 5), expected)


def test_bytes_are_those_of_the_tensors():
    """Where every byte of x is read and written once: of all pieces, and of a few of them."""
    for tokens in (40, 5000):
        x = np.empty((tokens, 4, 128), np.float32)
        options = ("thd", "half", 0, None, 1.0, False, x)
        (launch,) = launches(
            lambda x=x, o=options: CUDA_ON_HOST.apply_rotary(x, None, frequencies(64), *o)
        )
        assert abs(piece_bytes(launch).sum() / (2 * x.nbytes) - 1) < 0.02


def test_plans_that_are_remembered_are_those_of_the_call_and_the_gpu():
    """Many shapes, which take each other's places, on GPUs of two sizes. A new thread remembers
    nothing.
    """

    def plan(tokens: int, heads: int, multiprocessors: int) -> list[object]:
        call = rotation(1, tokens, heads, "bfloat16", "bshd", "half")
        (one,) = launches(call, multiprocessors=multiprocessors)
        return [one[name] for name in ("pieces", "grid", "block")]

    def planned_by_a_new_thread(*call: int) -> list[object]:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(plan, *call).result()

    calls = list(itertools.product((1, 2, 3, 17, 100, 1000, 4096), (8, 20, 32), (20, 132)))
    fresh = [planned_by_a_new_thread(*call) for call in calls]
    assert any(small != large for small, large in zip(fresh[::2], fresh[1::2], strict=True))
    for _ in range(2):
        assert [plan(*call) for call in calls] == fresh


def test_calls_that_are_not_run_write_nothing():
    x = np.arange(4 * 128, dtype=np.float32).reshape(4, 1, 128)
    before = x.copy()
    options = ("thd", "half", 0, None, 1.0, False, x)
    for run in ("samples", "nothing"):
        CUDA_ON_HOST.simulate(run=run)
        CUDA_ON_HOST.apply_rotary(x, None, frequencies(64), *options)
        assert len(CUDA_ON_HOST.launches()) == 1
        np.testing.assert_array_equal(x, before)


def test_heads_with_frequencies_of_their_own_take_one_launch():
    x = np.empty((40, 32, 128), np.float32)
    inv_freq = np.broadcast_to(frequencies(64), (32, 64))
    options = ("thd", "half", 0, None, 1.0, False, x)
    assert len(launches(lambda: CUDA_ON_HOST.apply_rotary(x, None, inv_freq, *options))) == 1


# --- The shapes that are timed on a GPU (benchmarks/gpu/rows.py), of memory that nobody touches


def empty(dtype: str, *shape: int) -> np.ndarray:
    return np.empty(shape, DTYPES[dtype])


def rotation(
    batch: int, tokens: int, heads: int, dtype: str, layout: str, pairing: str
) -> Callable[[], object]:
    sizes = {"b": batch, "s": tokens, "t": tokens, "d": 128}
    q, k = (
        empty(dtype, *((sizes | {"h": count})[axis] for axis in layout)) for count in (heads, 8)
    )
    options = (layout, pairing, 0, None, 1.0, False, True)
    return lambda: CUDA_ON_HOST.apply_rotary_qk(q, k, np.arange(tokens), frequencies(64), *options)


@pytest.mark.parametrize(
    ("tokens", "blocks", "threads"), [(1, 2, 160), (64, 64, 160), (256, 128, 224)]
)
def test_few_tokens_take_few_warps(tokens, blocks, threads):
    """32 + 8 heads of 128: of one token the heads are spread out, of many a thread has several."""
    (launch,) = launches(rotation(1, tokens, 32, "bfloat16", "bshd", "half"))
    assert (math.prod(launch["grid"]), math.prod(launch["block"])) == (blocks, threads)


def norm(batch: int, tokens: int, dtype: str) -> Callable[[], object]:
    q, k = (empty(dtype, batch, tokens, heads, 128) for heads in (32, 8))
    options = (*Rotation(np.arange(tokens), frequencies(64), "bshd"), "float32", *Norm(), True)
    return lambda: CUDA_ON_HOST.norm_rotary_qk(q, k, *options)


def backward(batch: int, tokens: int) -> Callable[[], object]:
    tensors = [empty("bfloat16", batch, tokens, heads, 128) for heads in (32, 8, 32, 8)]
    options = ("bshd", "half", 0, None, 1.0, False, False)
    return lambda: CUDA_ON_HOST.rotary_backward(
        tuple(tensors[:2]), tuple(tensors[2:]), np.arange(tokens), frequencies(64), *options
    )


def table(dtype: str) -> Callable[[], object]:
    out = empty(dtype, 131072, 128)
    spec = (128, 1e4, "interleaved", 0.0, 1.0)
    return lambda: CUDA_ON_HOST.sinusoidal(131072, *spec, None, out)


def sum_with_table(dtype: str) -> Callable[[], object]:
    x = empty(dtype, 8, 4096, 4096)
    options = (1.0, 1.0, 1e4, "interleaved", 0.0, 1.0, x)
    return lambda: CUDA_ON_HOST.add_sinusoidal(x, None, *options)


def bias(dtype: str) -> Callable[[], object]:
    diagonals = np.zeros((32, 8191), np.float32)
    options = ((4096,), (4096,), (4095,), None, np.dtype(DTYPES[dtype]), None)
    return lambda: CUDA_ON_HOST.toeplitz_bias(diagonals, *options)


def add_bias(dtype: str, length: int) -> Callable[[], object]:
    scores, diagonals = empty(dtype, 4, 16, length, length), np.zeros((16, 2 * length - 1))
    lengths = ((length,), (length,), (length - 1,), None)
    return lambda: CUDA_ON_HOST.add_toeplitz_bias(scores, diagonals, *lengths, scores)


def diagonal_sums(dtype: str) -> Callable[[], object]:
    scores = empty(dtype, 4, 16, 2048, 2048)
    lengths = ((2048,), (2048,), (2047,), None)
    return lambda: CUDA_ON_HOST.diagonal_sums(scores, (16, 4095), *lengths)


GRID = ((7, 7), (7, 7), (6, 6), None)


def add_to_windows() -> Callable[[], object]:
    scores, bias = empty("bfloat16", 8192, 4, 49, 49), np.zeros((4, 13, 13), np.float32)
    return lambda: CUDA_ON_HOST.add_toeplitz_bias(scores, bias, *GRID, scores)


def sums_of_windows() -> Callable[[], object]:
    scores = empty("bfloat16", 8192, 4, 49, 49)
    return lambda: CUDA_ON_HOST.diagonal_sums(scores, (4, 13, 13), *GRID)


def gather(dtype: str, clip: int | None, with_content: bool = False) -> Callable[[], object]:
    index = None if clip is None else np.clip(np.arange(4095) - 2047, -clip, clip) + clip
    width = 4095 if clip is None else 2 * clip + 1
    x, out = empty(dtype, 4, 16, 2048, width), empty(dtype, 4, 16, 2048, 2048)
    content = out if with_content else None
    options = (2048, 2047, None, None, content, 0.125 if with_content else 1.0, out)
    return lambda: CUDA_ON_HOST.relative_gather(x, index, *options)


def scatter(dtype: str, clip: int | None) -> Callable[[], object]:
    index = None if clip is None else np.clip(np.arange(4095) - 2047, -clip, clip) + clip
    width = 4095 if clip is None else 2 * clip + 1
    out, grad = empty(dtype, 4, 16, 2048, width), empty(dtype, 4, 16, 2048, 2048)
    options = (width, 2047, None, None, 1.0, out)
    return lambda: CUDA_ON_HOST.relative_scatter(grad, index, *options)


def decoding_with_a_bias() -> Callable[[], object]:
    scores, diagonals = empty("bfloat16", 64, 32, 1, 8192), np.zeros((32, 16384), np.float32)
    offsets = np.arange(64) * 128
    options = ((1,), (8192,), (8192,), offsets, scores)
    return lambda: CUDA_ON_HOST.add_toeplitz_bias(scores, diagonals, *options)


def timed() -> Iterator[Any]:
    for batch, tokens, heads, dtype, layout, pairing in (
        (4, 4096, 32, "bfloat16", "bshd", "half"),
        (1, 4096, 32, "bfloat16", "bshd", "half"),
        (16, 8192, 64, "bfloat16", "bshd", "half"),
        (16, 8192, 32, "bfloat16", "bshd", "half"),
        (4, 4096, 64, "bfloat16", "bshd", "half"),
        (1, 4096, 64, "bfloat16", "bshd", "half"),
        (4, 4096, 32, "bfloat16", "bhsd", "half"),
        (16, 8192, 32, "bfloat16", "bhsd", "half"),
        (4, 4096, 32, "bfloat16", "bshd", "interleaved"),
        (4, 4096, 32, "bfloat16", "bhsd", "interleaved"),
        (4, 4096, 32, "float32", "bshd", "half"),
        (4, 4096, 32, "float16", "bshd", "half"),
        (1, 16384, 32, "bfloat16", "thd", "half"),
    ):
        arguments = (batch, tokens, heads, dtype, layout, pairing)
        yield pytest.param(rotation, arguments, id="rotation-" + "-".join(map(str, arguments)))
    for batch, tokens, dtype in (
        (4, 4096, "bfloat16"),
        (16, 8192, "bfloat16"),
        (4, 4096, "float32"),
    ):
        yield pytest.param(norm, (batch, tokens, dtype), id=f"norm-{batch}-{tokens}-{dtype}")
    yield pytest.param(backward, (4, 4096), id="backward")
    for dtype in ("float32", "bfloat16"):
        for make in (table, sum_with_table, bias):
            yield pytest.param(make, (dtype,), id=f"{make.__name__}-{dtype}")
        yield pytest.param(add_bias, (dtype, 2048), id=f"add_bias-{dtype}")
        yield pytest.param(diagonal_sums, (dtype,), id=f"diagonal_sums-{dtype}")
        yield pytest.param(gather, (dtype, None), id=f"shift-{dtype}")
        yield pytest.param(gather, (dtype, None, True), id=f"shift_of_content-{dtype}")
        yield pytest.param(scatter, (dtype, None), id=f"shift_back-{dtype}")
    yield pytest.param(add_bias, ("bfloat16", 2047), id="add_bias-odd")
    yield pytest.param(gather, ("bfloat16", 64), id="gather")
    yield pytest.param(gather, ("bfloat16", 64, True), id="gather_of_content")
    yield pytest.param(scatter, ("bfloat16", 64), id="scatter")
    yield pytest.param(add_to_windows, (), id="add_to_windows")
    yield pytest.param(sums_of_windows, (), id="sums_of_windows")
    yield pytest.param(decoding_with_a_bias, (), id="decoding_with_a_bias")


# Less than this is done before a GPU is full, whoever does what: sums of partial sums. Tokens of
# decoding (5 MB) are timed, but by the time that the host takes.
LITTLE = 16 << 20


@NOT_SANITIZED
@pytest.mark.parametrize("multiprocessors", [108, 132])
@pytest.mark.parametrize(("make", "arguments"), list(timed()))
def test_places_are_at_work(make, arguments, multiprocessors):
    planned = launches(make(*arguments), multiprocessors=multiprocessors)
    assert planned
    for launch in planned:
        times = piece_bytes(launch)
        if times.sum() < LITTLE:
            assert re.search("Sums|Totals", launch["kernel"])
            continue
        assert math.prod(launch["grid"]) == len(times)
        assert share_at_work(times, launch["places"]) >= AT_WORK, launch
