"""Launches of the CUDA kernels stay within what CUDA takes, whatever the call.

Calls of any shape, stride and size are planned on the host and not run: arrays are larger than any
memory, and have none. The module checks the plan of every launch too, those that are
run included (csrc/cuda/on_host/blocks.h); test_cuda_launches.py has plans that are not within them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import DTYPES
from targets import CUDA_ON_HOST, NEEDS_CUDA_ON_HOST

from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.rotation import Rotation

Draw = Callable[[Any], Any]
pytestmark = NEEDS_CUDA_ON_HOST


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    CUDA_ON_HOST.simulate()


# Of the number of elements of an array: with gaps and strides, addresses stay within 2^54 bytes.
ELEMENT_BITS = 40


def size(draw: Draw, least: int, bits: int) -> int:
    """A small one, or one around a power of two, up to 2^bits."""
    if draw(st.booleans()):
        return draw(st.integers(least, max(min(70, 2**bits), least)))
    return max(2 ** draw(st.integers(0, bits)) + draw(st.integers(-1, 1)), least)


def shape(draw: Draw, *bits: int) -> tuple[int, ...]:
    """Of axes of up to so many bits each, and of all."""
    sizes: list[int] = []
    for most in bits:
        rest = ELEMENT_BITS - math.ceil(math.log2(math.prod(sizes)))
        sizes.append(size(draw, 1, max(min(most, rest), 0)))
    return tuple(sizes)


class Nowhere:
    """What NumPy makes an array of that has no memory: nobody may look at its elements.

    No strategy makes one, since Hypothesis prints what it has drawn.
    """

    _regions = itertools.count()

    def __init__(self, draw: Draw, shape: tuple[int, ...], itemsize: int) -> None:
        strides, step = [0] * len(shape), itemsize
        axes = list(range(len(shape)))[::-1]
        for axis in draw(st.permutations(axes)) if draw(st.booleans()) else axes:
            step *= draw(st.sampled_from([1, 1, 1, 2, 3]))
            strides[axis] = step
            step = step * shape[axis] + draw(st.sampled_from([0, 0, 0, 1, 8])) * itemsize
        assert step <= 2**54
        address = (1 + next(self._regions) % 100) << 54
        address += draw(st.sampled_from([0, 0, 0, 1, 4])) * itemsize
        self.__array_interface__ = {
            "version": 3, "shape": shape, "strides": tuple(strides), "typestr": f"|V{itemsize}",
            "data": (address, False),
        }  # fmt: skip


def nowhere(draw: Draw, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array that names no byte twice: axes in any order, gaps, any address."""
    dtype = np.dtype(dtype)
    return np.asarray(Nowhere(draw, shape, dtype.itemsize)).view(dtype)


@st.composite
def gpus(draw: st.DrawFn) -> dict[str, int]:
    return {
        "multiprocessors": draw(st.integers(1, 200)),
        "registers": draw(st.sampled_from([32, 40, 72, 96, 128, 168, 255])),
    }


def assert_within_limits(gpu: dict[str, int], call: Callable[[], object]) -> None:
    CUDA_ON_HOST.simulate(run="nothing", **gpu)
    CUDA_ON_HOST.launches()
    call()
    planned = CUDA_ON_HOST.launches()
    assert planned
    for launch in planned:
        (grid_x, grid_y), (x, y, z) = launch["grid"], launch["block"]
        assert 1 <= grid_x <= 2**31 - 1, launch
        assert 1 <= grid_y <= 65535, launch
        assert grid_x <= launch["pieces"][0], launch
        assert grid_y <= launch["pieces"][1], launch
        assert min(x, y, z) >= 1, launch
        assert x * y * z <= 256, launch
        assert z <= 64, launch
        assert launch["shared_bytes"] <= 49152, launch
        assert launch["places"] >= gpu["multiprocessors"], launch


dtypes = st.sampled_from(list(DTYPES.values()))


def angles(draw: Draw, pairs: int, heads: int, tokens: int) -> tuple[Any, np.ndarray]:
    """Positions [s] or [a, 1, s], inv_freq [p], [h, p] or [a, h, p]."""
    own = heads <= 130 and draw(st.booleans())
    inv_freq = np.ones(pairs)
    if draw(st.booleans()):
        axes = draw(st.integers(1, 90))
        inv_freq = np.broadcast_to(inv_freq, (axes, heads if own else 1, pairs))
        return np.broadcast_to(np.int64(3), (axes, 1, tokens)), inv_freq
    return None, np.broadcast_to(inv_freq, (heads, pairs)) if own else inv_freq


@given(gpus(), st.data(), dtypes)
def test_rotations(gpu, data, dtype):
    draw = data.draw
    heads, half, tokens = shape(draw, 20, 12, 34)
    dim = 2 * half + draw(st.integers(0, 1))
    pairs = draw(st.integers(1, half))
    start = draw(st.integers(0, dim - 2 * pairs))
    pairing = draw(st.sampled_from(["half", "interleaved"]))
    x, out = (nowhere(draw, (1, tokens, heads, dim), dtype) for _ in range(2))
    positions, inv_freq = angles(draw, pairs, heads, tokens)
    options = ("bshd", pairing, start, None, 1.0, False, x if draw(st.booleans()) else out)
    assert_within_limits(gpu, lambda: CUDA_ON_HOST.apply_rotary(x, positions, inv_freq, *options))


@given(gpus(), st.data(), dtypes, dtypes)
def test_rotations_by_steps(gpu, data, dtype, of_steps):
    """Packed or not; states have memory, and so have results of gradients."""
    draw = data.draw
    heads, half, tokens = shape(draw, 8, 10, 32)
    dim = 2 * half + draw(st.integers(0, 1))
    pairs = draw(st.integers(1, half))
    pairing = draw(st.sampled_from(["half", "interleaved"]))
    rows, layout, starts = (tokens,), "thd", np.array([0, tokens // 2, tokens])
    if draw(st.booleans()):
        rows, layout, starts = (1, tokens), "bshd", None
    q = nowhere(draw, (*rows, heads, dim), dtype)
    steps, to = (nowhere(draw, (*rows, heads, pairs), of_steps) for _ in range(2))
    given_options = (steps, None, starts, layout, pairing, 0, 1.0, False, "same")
    assert_within_limits(
        gpu, lambda: CUDA_ON_HOST.selective_rotary_qk(q, None, *given_options, True)
    )
    if math.prod(q.shape) > 2**24:
        return
    assert_within_limits(
        gpu,
        lambda: CUDA_ON_HOST.selective_rotary_backward((q,), (q,), *given_options, to),
    )


@given(gpus(), st.data(), dtypes)
def test_gradients_of_angles(gpu, data, dtype):
    """Smaller ones: results and partial sums have memory."""
    draw = data.draw
    heads, half, tokens = shape(draw, 7, 9, 14)
    dim = 2 * half + draw(st.integers(0, 1))
    pairs = draw(st.integers(1, half))
    x, grad = (nowhere(draw, (1, tokens, heads, dim), dtype) for _ in range(2))
    positions, inv_freq = angles(draw, pairs, heads, tokens)
    pairing = draw(st.sampled_from(["half", "interleaved"]))
    options = ("bshd", pairing, 0, None, 1.0, False, draw(st.booleans()))
    assert_within_limits(
        gpu,
        lambda: CUDA_ON_HOST.rotary_backward((grad,), (x,), positions, inv_freq, *options),
    )


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_gradients_of_many_axes(dtype):
    """Each token has a position along each, in shared memory."""
    positions = np.broadcast_to(np.int64(3), (90, 1, 5000))
    for pairs, odd in itertools.product(range(1, 15), (0, 1)):
        x = np.zeros((1, 5000, 1, 2 * pairs + odd), dtype)
        inv_freq = np.broadcast_to(np.ones(pairs), (90, 1, pairs))
        call = ((x,), (x,), positions, inv_freq, "bshd", "half", 0, None, 1.0, False, True)
        assert_within_limits(
            {"multiprocessors": 132, "registers": 128},
            lambda call=call: CUDA_ON_HOST.rotary_backward(*call),
        )


# Of 8 pairs in a vector, or of one; 128 axes have their frequencies in shared memory.
@pytest.mark.parametrize("axes", [128, 129, 384, 5000, 10**6])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("mapped", [False, True])
def test_any_number_of_axes(mapped, dtype, axes):
    """Of one head, or of as many as a block can have rows of threads."""
    positions = np.broadcast_to(np.int64(3), (axes, 1, 600))
    gpu = {"multiprocessors": 132, "registers": 128}
    for heads, dim in ((1, 128), (300, 16), (300, 3)):
        x = np.zeros((1, 600, heads, dim), dtype)
        pairs = dim // 2
        inv_freq = np.ones(pairs) if mapped else np.broadcast_to(np.ones(pairs), (axes, 1, pairs))
        axis_map = np.zeros(pairs, np.int64) if mapped else None
        options = (positions, inv_freq, "bshd", "half", 0, axis_map, 1.0, False)
        assert_within_limits(gpu, lambda call=(x, *options, x): CUDA_ON_HOST.apply_rotary(*call))
        if axes < 10**6:  # its gradients have memory
            call = ((x,), (x,), *options, axes < 1000)
            assert_within_limits(gpu, lambda call=call: CUDA_ON_HOST.rotary_backward(*call))


@given(gpus(), st.data(), dtypes)
def test_norms_and_caches(gpu, data, dtype):
    """In place, so that nothing else has memory; and gradients of smaller ones."""
    draw = data.draw
    heads, half, tokens = shape(draw, 20, 11, 34)
    dim = 2 * half + draw(st.integers(0, 1))
    pairs = draw(st.integers(1, half))
    q, k = (nowhere(draw, (1, tokens, heads, dim), dtype) for _ in range(2))
    pairing = draw(st.sampled_from(["half", "interleaved"]))
    over = draw(st.sampled_from(["head", "token"])) if heads < 1000 else "head"

    def options(positions: Any, inv_freq: np.ndarray) -> tuple[Any, ...]:
        norm = Norm(norm_over=over, norm_first=draw(st.booleans()))
        return (*Rotation(positions, inv_freq, "bshd", pairing), "float32", *norm)

    given_options = options(*angles(draw, pairs, heads, tokens))
    assert_within_limits(gpu, lambda: CUDA_ON_HOST.norm_rotary_qk(q, k, *given_options, True))
    heads, half, tokens = shape(draw, 7, 9, 14)
    pairs = draw(st.integers(1, half))
    tensors = [nowhere(draw, (1, tokens, heads, 2 * half), dtype) for _ in range(4)]
    given_options = options(*angles(draw, pairs, heads, tokens))
    assert_within_limits(gpu, lambda: CUDA_ON_HOST.norm_rotary_backward(*tensors, *given_options))


# A block has a head of the results, or x, its gradient and that of weights, in 49152 bytes, beside
# a number or two of each of 32 lanes.
@pytest.mark.parametrize(
    ("backward", "dtype", "over", "most"),
    [
        (False, np.float32, "head", (49152 - 32 * 4) // 4),
        (False, np.float16, "token", (49152 - (32 + 3 + 2) * 4) // 8 * 2),
        (False, np.float64, "head", (49152 - 32 * 8) // 8),
        (True, np.float32, "head", (49152 - 64 * 4) // 24 * 2),
        (True, np.float64, "token", (49152 - 64 * 8) // 48 * 2),
    ],
)
def test_heads_that_shared_memory_has_no_room_for(most, over, dtype, backward):
    options = (*Rotation(None, np.ones(4), "hsd"), "float32", *Norm(norm_over=over))
    CUDA_ON_HOST.simulate(run="nothing")

    def call(dim: int) -> Any:
        q, k = np.zeros((3, 1, dim), dtype), np.zeros((2, 1, dim), dtype)
        if backward:
            return CUDA_ON_HOST.norm_rotary_backward(q, k, q, k, *options)
        return CUDA_ON_HOST.norm_rotary_qk(q, k, *options, True)

    call(most)
    for dim in (most + 1, 2**20):
        with pytest.raises(ValueError, match=rf"^norm_\w+: q: .* at most {most} on .* got {dim}$"):
            call(dim)


@given(gpus(), st.data(), dtypes)
def test_sinusoids(gpu, data, dtype):
    draw = data.draw
    half, rows, heads, batch = shape(draw, 13, 36, 5, 17)
    layout = draw(st.sampled_from(["interleaved", "sin_cos", "cos_sin"]))
    spec = (2 * half, 1e4, layout, 0.0, 1.0)
    out = nowhere(draw, (rows, 2 * half), dtype)
    assert_within_limits(gpu, lambda: CUDA_ON_HOST.sinusoidal(rows, *spec, None, out))
    x, out = (nowhere(draw, (batch, heads, rows, 2 * half), dtype) for _ in range(2))
    options = (1.0, 1.0, *spec[1:], x if draw(st.booleans()) else out)
    assert_within_limits(gpu, lambda: CUDA_ON_HOST.add_sinusoidal(x, None, *options))


@given(gpus(), st.data(), dtypes, st.integers(1, 3))
def test_biases(gpu, data, dtype, rank):
    draw = data.draw
    grid, planes = shape(draw, *[24 // rank] * 2 * rank), (size(draw, 1, 6), size(draw, 1, 6))
    queries, keys = grid[:rank], grid[rank:]
    origin = tuple(q - 1 for q in queries)
    entries = tuple(q + k - 1 for q, k in zip(queries, keys, strict=True))
    matrices = (*planes, math.prod(queries), math.prod(keys))
    scores, out = (nowhere(draw, matrices, dtype) for _ in range(2))
    diagonals = nowhere(draw, (planes[1], *entries), draw(dtypes))
    options = (diagonals, queries, keys, origin, None, scores if draw(st.booleans()) else out)
    assert_within_limits(gpu, lambda: CUDA_ON_HOST.add_toeplitz_bias(scores, *options))
    sums = (*draw(st.sampled_from([(), planes[:1]])), planes[1], *entries)
    if math.prod(sums) <= 2**24:  # they have memory
        lengths = (queries, keys, origin, None)
        assert_within_limits(gpu, lambda: CUDA_ON_HOST.diagonal_sums(scores, sums, *lengths))


@given(gpus(), st.data(), dtypes, st.booleans())
def test_look_ups(gpu, data, dtype, with_index):
    draw = data.draw
    queries, keys, batch, heads = shape(draw, *([11, 11] if with_index else [20, 20]), 12, 7)
    width = size(draw, 1, 11 if with_index else 20)
    by_column, by_key, content = (
        nowhere(draw, (batch, heads, queries, columns), dtype) for columns in (width, keys, keys)
    )
    index = np.arange(queries + keys - 1) % width if with_index else None
    content = (None, by_key, content)[draw(st.integers(0, 2))]
    options = (keys, queries - 1, None, None, content, 0.5, by_key)
    assert_within_limits(gpu, lambda: CUDA_ON_HOST.relative_gather(by_column, index, *options))
    options = (width, queries - 1, None, None, 0.5, by_column)
    assert_within_limits(gpu, lambda: CUDA_ON_HOST.relative_scatter(by_key, index, *options))
