"""What the host can prove of launches of the CUDA kernels, beside their results.

csrc/cuda/on_host runs blocks and threads in an order that its seed shuffles, on shared memory that
ends where the plan says, and looks at each address as a GPU would. Here the same calls are run in
several orders, with what is written to be read at once or only when the launch has ended: the bits
have to be the same, in place too. And each of these checks finds a mistake that is planted.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import DTYPES, assert_same_bits
from places import CSRC
from rotating import turned_by
from rotations import frequencies
from targets import CUDA_ON_HOST, NEEDS_CUDA_ON_HOST

from posenc_native.core.calls.caches import Cache
from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.rotation import Rotation

pytestmark = NEEDS_CUDA_ON_HOST


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    CUDA_ON_HOST.simulate()


# --- Planted mistakes

ORDERS = [(0, "at once"), (1, "at once"), (2, "at once"), (1, "at the end"), (0, "at the end")]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Runs a kernel with a mistake on 64 numbers, which it leaves as they are without one."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or not CSRC.is_dir():
        pytest.skip("needs a C++ compiler and the C++ sources")
    program = tmp_path_factory.mktemp("planted") / "planted_mistakes"
    source = Path(__file__).with_name("planted_mistakes.cc")
    flags = ["-std=c++17", "-O0", "-Wno-unknown-pragmas", "-I", CSRC]
    subprocess.run([compiler, *flags, source, "-o", program], check=True)

    def run(mistake: str, seed: int, writes: str) -> subprocess.CompletedProcess[bytes]:
        # Without a sanitizer's runtime, which would answer signals itself.
        environment = {name: x for name, x in os.environ.items() if name != "LD_PRELOAD"}
        command = [program, mistake, str(seed), writes]
        return subprocess.run(command, capture_output=True, check=False, env=environment)

    return run


def test_without_a_mistake_every_order_is_right(planted):
    for order in ORDERS:
        done = planted("none", *order)
        assert done.returncode == 0, done.stderr
        assert_same_bits(np.frombuffer(done.stdout, np.float32), np.arange(64, dtype=np.float32))


@pytest.mark.parametrize("mistake", ["blocks", "blocks, backwards", "threads", "twice"])
def test_orders_tell_what_depends_on_them(mistake, planted):
    """Each of them has one result where threads run in the order of their numbers."""
    results = {planted(mistake, *order).stdout for order in ORDERS}
    assert len(results) > 1
    assert all(len(result) == 64 * 4 for result in results)


def test_writes_at_the_end_alone_tell_what_blocks_read_of_each_other(planted):
    for mistake in ("blocks, backwards", "twice"):
        assert planted(mistake, 0, "at once").stdout != planted(mistake, 0, "at the end").stdout


def test_threads_go_on_from_piece_to_piece(planted):
    """What a thread keeps of the last piece shows, as on a GPU."""
    done = planted("pieces", 0, "at once")
    assert done.stdout != planted("none", 0, "at once").stdout


@pytest.mark.parametrize(
    ("mistake", "words"),
    {
        "address": "PlantedThread: read_word of 16 bytes: expected an address that is a multiple of"
        " them, got one 4 bytes beyond",
        "shared memory, a packet": "PlantedThread: keep_packet: expected an address in the 32 bytes"
        " of shared memory that the plan has, got byte 32",
        "shared memory, less than 16 bytes on": "PlantedThread: expected threads to write the 28"
        " bytes of shared memory that the plan has, got some that write behind them",
        "no warps": "PlantedThread: add_lanes: expected rows of threads to be warps of 32,"
        " got rows of 8",
        "a mask too small": "PlantedThread: add_lanes: expected all lanes of a warp to take part,"
        " got a mask without lane 2",
        "a lane that left early": "PlantedThread: expected all threads of a block to take the same"
        " steps, got some that do not",
        "a branch": "PlantedThread: expected all threads of a block to take the same steps, got"
        " some that do not",
        "threads along z": "threads of a block along z: expected 1 .. 64, got 65",
        "threads of a block": "threads of a block: expected 1 .. 256, got 272",
        "shared memory": "bytes of shared memory: expected 0 .. 49152, got 49153",
        "grid along y": "blocks of the grid along y: expected 1 .. 65535, got 65536",
        "grid along x": "blocks of the grid along x: expected 1 .. 2147483647, got 2147483648",
        "no grid": "blocks of the grid along x: expected 1 .. 2147483647, got 0",
        "grid beyond the pieces": "blocks along x, of the pieces: expected 1 .. 8, got 9",
    }.items(),
)
def test_mistakes_are_named(mistake, words, planted):
    for order in ORDERS:
        done = planted(mistake, *order)
        assert done.returncode == 1
        assert done.stderr.decode().endswith(words)


@pytest.mark.parametrize("mistake", ["shared memory, next to it", "shared memory, far on"])
def test_shared_memory_is_guarded(mistake, planted):
    for order in ORDERS:
        assert planted(mistake, *order).returncode in (-signal.SIGSEGV, -signal.SIGBUS)


# --- The kernels


def numbers(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(DTYPES[dtype])


def assert_order_does_not_matter(call: Callable[[], Any]) -> None:
    """call() makes its arguments anew, and returns all arrays that it wrote."""
    CUDA_ON_HOST.simulate(seed=0)
    expected = call()
    for seed, late in itertools.product((0, 1, 2), (False, True)):
        CUDA_ON_HOST.simulate(seed=seed, writes_at_the_end=late)
        for ours, one in zip(call(), expected, strict=True):
            assert_same_bits(ours, one)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("dim", "start", "pairs", "pairing"),
    [(64, 0, 32, "half"), (64, 0, 32, "interleaved"), (64, 8, 12, 8), (13, 1, 5, "interleaved")],
)
def test_rotations_in_any_order(dim, start, pairs, pairing, dtype):
    """Of q and k that lie in one piece of memory with v, in place and not, and from tables."""
    inv_freq = frequencies(pairs)
    cos, sin = (function(np.arange(9)[:, None] * inv_freq) for function in (np.cos, np.sin))
    options = {"layout": "bshd", "pairing": pairing, "rotary_start": start}
    angles = Rotation(None, inv_freq, **options)
    tables = turned_by(cos, sin, **options, compute="as_written")
    rearranged = angles._replace(out_pairing="interleaved" if pairing == "half" else "half")

    def rotate(name: str, given: tuple[Any, ...], inplace: bool) -> list[np.ndarray]:
        packed = numbers(dtype, 2, 9, 12, dim)
        q, k = packed[:, :, :7], packed[:, :, 7:10]
        return [packed, *getattr(CUDA_ON_HOST, name)(q, k, *given, inplace)]

    for inplace in (False, True):
        assert_order_does_not_matter(lambda i=inplace: rotate("apply_rotary_qk", angles, i))
        assert_order_does_not_matter(lambda i=inplace: rotate("apply_rotary_qk", rearranged, i))
        assert_order_does_not_matter(lambda i=inplace: rotate("apply_rotary_qk", tables, i))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("tokens", "pairing"), [(5, "half"), (75, "interleaved"), (75, "half")])
def test_rotations_by_steps_in_any_order(tokens, pairing, packed, dtype):
    """In place and not, and their gradients: rows of one segment, and of several."""
    rows = (tokens,) if packed else (2, tokens)
    layout, starts = ("thd", np.array([0, 3, 3, tokens])) if packed else ("bshd", None)
    state = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (3 if packed else 2, 2, 8))
    steps = numbers(dtype, *rows, 2, 8)

    def run(inplace: bool, out: str) -> list[np.ndarray]:
        both = numbers(dtype, *rows, 9, 20)
        q, k = both[..., :4, :], both[..., 4:6, :]
        given = (steps, state, starts, layout, pairing, 2, 1.0, False, out)
        to = np.empty_like(steps)
        back = CUDA_ON_HOST.selective_rotary_backward(
            (q, k), (k[..., [0, 1, 0, 1], :], k), *given, to
        )
        return [to, *back, *CUDA_ON_HOST.selective_rotary_qk(q, k, *given, inplace), both]

    for inplace, out in itertools.product((False, True), ("same", "half")):
        assert_order_does_not_matter(lambda i=inplace, o=out: run(i, o))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_pairing", ["same", "interleaved"])
@pytest.mark.parametrize("shape", [(16,), (6, 16), (2, 1, 16), (130, 1, 16)])
def test_gradients_of_angles_in_any_order(shape, out_pairing, dtype):
    """Their sums too: who sums what, and in which order, is part of the plan."""
    inv_freq = np.random.default_rng(0).uniform(-1, 1, shape)
    axes = shape[:1] if len(shape) == 3 else ()
    positions = np.random.default_rng(1).uniform(-9, 9, (*axes, 2, 70))

    def differentiate() -> list[np.ndarray]:
        tensors = [numbers(dtype, 2, 70, 6, 40 + i)[..., :40] for i in range(4)]
        rotation = Rotation(positions, inv_freq, "bshd", rotary_start=5, out_pairing=out_pairing)
        of_x, *sums = CUDA_ON_HOST.rotary_backward(
            tuple(tensors[:2]), tuple(tensors[2:]), *rotation, True
        )
        return [*tensors, *of_x, *sums]

    assert_order_does_not_matter(differentiate)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("over", ["head", "token"])
@pytest.mark.parametrize(("dim", "pairs", "pairing"), [(66, 32, "half"), (21, 5, "interleaved")])
def test_norms_and_caches_in_any_order(dim, pairs, pairing, over, dtype):
    """With both orders of norm and rotation, in place and not, and their gradients."""
    inv_freq = frequencies(pairs)

    def run(first: bool, inplace: bool) -> list[np.ndarray]:
        packed = numbers(dtype, 2, 9, 12, dim)
        q, k, v = packed[:, :, :7], packed[:, :, 7:10], numbers(dtype, 2, 9, 3, 6)
        weights = numbers("float32", 7, dim), numbers(dtype, 3, dim)
        rotation = Rotation(None, inv_freq, "bshd", pairing, rotary_start=1)
        norm = Norm(*weights, True, 1e-6, over, 0.5, first)
        options = (*rotation, "float32", *norm)
        keys, values = numbers(dtype, 5, 4, 3, dim), numbers(dtype, 5, 4, 3, 6)
        slots = np.arange(18).reshape(2, 9)[:, ::-1] - 1
        caches = Cache(keys, values, slots, "pshd", not inplace)
        grads = numbers(dtype, 2, 9, 7, dim), numbers(dtype, 2, 9, 3, dim)
        back = CUDA_ON_HOST.norm_rotary_backward(*grads, q, k, *options)
        results = CUDA_ON_HOST.rotary_append(q, k, v, *options, *caches, inplace)
        return [*back, *results, packed, keys, values]

    for first, inplace in itertools.product((True, False), (True, False)):
        assert_order_does_not_matter(lambda f=first, i=inplace: run(f, i))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [6, 130, 8194])
def test_sinusoids_in_any_order(dim, dtype):
    spec = (dim, 1e4, "interleaved", 0.0, 1.0)
    assert_order_does_not_matter(
        lambda: [CUDA_ON_HOST.sinusoidal(37, *spec, np.dtype(DTYPES[dtype]), None)]
    )

    def add(inplace: bool) -> list[np.ndarray]:
        x = numbers(dtype, 3, 2, 7, dim)
        options = (3.0, 0.5, 1e4, "sin_cos", 0.0, 1.0)
        return [x, CUDA_ON_HOST.add_sinusoidal(x, None, *options, x if inplace else None)]

    for inplace in (False, True):
        assert_order_does_not_matter(lambda i=inplace: add(i))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("queries", "keys"), [(1, 40), (9, 64), (70, 33)])
def test_biases_and_their_sums_in_any_order(queries, keys, dtype):
    lengths = ((queries,), (keys,), (queries - 1,), None)
    diagonals = numbers("float32", 2, queries + keys - 1)

    def add(inplace: bool) -> list[np.ndarray]:
        scores = numbers(dtype, 3, 2, queries, keys)
        out = scores if inplace else None
        return [scores, CUDA_ON_HOST.add_toeplitz_bias(scores, diagonals, *lengths, out)]

    for inplace in (False, True):
        assert_order_does_not_matter(lambda i=inplace: add(i))
    scores = numbers(dtype, 3, 2, queries, keys)
    for shape in (diagonals.shape, (3, *diagonals.shape)):
        assert_order_does_not_matter(
            lambda s=shape: [CUDA_ON_HOST.diagonal_sums(scores, s, *lengths)]
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inplace", [False, True])
def test_grids_in_any_order(inplace, dtype):
    lengths = ((3, 5), (4, 8), (4, 6), None)
    table = numbers("float32", 2, 9, 15)

    def add() -> list[np.ndarray]:
        scores = numbers(dtype, 5, 2, 15, 32)
        out = scores if inplace else None
        of_table = CUDA_ON_HOST.diagonal_sums(scores, table.shape, *lengths)
        return [of_table, scores, CUDA_ON_HOST.add_toeplitz_bias(scores, table, *lengths, out)]

    assert_order_does_not_matter(add)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("queries", "keys", "width"), [(9, 64, 40), (33, 13, 1), (3, 900, 257), (35, 520, 129)]
)
def test_look_ups_in_any_order(queries, keys, width, dtype):
    """With lists of a column that a thread, a warp and the block sum up; content that is out."""
    rng = np.random.default_rng(keys)
    index = rng.integers(-1, width, queries + keys - 1)

    def gather(columns: np.ndarray | None, inplace: bool) -> list[np.ndarray]:
        x, content = numbers(dtype, 2, queries, width), numbers(dtype, 2, queries, keys)
        options = (keys, queries - 1, None, -1, content, 0.125, content if inplace else None)
        return [content, CUDA_ON_HOST.relative_gather(x, columns, *options)]

    for columns, inplace in itertools.product((index, None), (False, True)):
        assert_order_does_not_matter(lambda c=columns, i=inplace: gather(c, i))
    grad = numbers(dtype, 2, queries, keys)
    for columns in (index, None):
        options = (
            columns,
            width,
            queries - 1,
            None,
            -1 if columns is not None else None,
            0.5,
            None,
        )
        assert_order_does_not_matter(lambda o=options: [CUDA_ON_HOST.relative_scatter(grad, *o)])
