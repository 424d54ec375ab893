"""The CUDA kernels on the host: what a GPU's threads do, one after another.

posenc_native._cuda_on_host is the native module with the kernels of csrc/cuda in the place of the
CPU's (csrc/cuda/on_host, which the C++ compiler takes): the same checks before them, the same
launch geometry, on a grid so small that blocks do several pieces, and shared memory that is not a
number until it is written. All tests with the `target` fixture run over it too. Here are the shapes
where such kernels break, compared bit by bit with the CPU's kernels.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import View, aligned, aligned_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import product
from oracle import DTYPES, assert_close, assert_same_bits
from places import CSRC
from rotating import turned_by
from rotations import frequencies
from targets import CUDA_ON_HOST, NATIVE, NEEDS_CUDA_ON_HOST, NEEDS_NATIVE, TARGETS

from posenc_native.core.calls.caches import Cache
from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.rotation import Rotation

pytestmark = [NEEDS_NATIVE, NEEDS_CUDA_ON_HOST]
FUSED = [target for target in TARGETS if target not in ("SSE2", "SSSE3", "SSE4")]


@pytest.fixture(autouse=True)
def fused_multiply_add():
    """The CPU on a target that fuses multiplications and additions, as the GPU does."""
    if not FUSED:
        pytest.skip("this processor has no fused multiply-add, which GPUs have")
    before = NATIVE.current_target()
    assert NATIVE.set_target(FUSED[0])
    yield
    NATIVE.set_target(before)


def numbers(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(DTYPES[dtype])


def both(name: str, *arguments: Any) -> tuple[Any, Any]:
    """What the CUDA kernels and the CPU's give, each from its own copy of the arguments."""
    results = []
    for module in (CUDA_ON_HOST, NATIVE):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        results.append(getattr(module, name)(*copies))
    return results[0], results[1]


def assert_agree(name: str, *arguments: Any) -> None:
    """Both give the same bits."""
    results = [given if isinstance(given, tuple) else (given,) for given in both(name, *arguments)]
    for ours, theirs in zip(*results, strict=True):
        assert_same_bits(ours, theirs)


def assert_rotations_agree(
    q: np.ndarray, k: np.ndarray, positions: Any, inv_freq: np.ndarray, layout: str, pairing: Any,
    start: int = 0, axis_map: Any = None, scale: float = 1.0, inverse: bool = False,
) -> None:  # fmt: skip
    """q with k, q alone, from tables; functional and in place."""
    options = (layout, pairing, start, axis_map, scale, inverse)
    for inplace in (False, True):
        assert_agree("apply_rotary_qk", q, k, positions, inv_freq, *options, inplace)
    assert_agree("apply_rotary", q, positions, inv_freq, *options, None)
    if positions is not None:
        for dtype in (np.float16, np.float32, np.float64):
            cos, sin = NATIVE.rotary_tables(positions, inv_freq, axis_map, scale, np.dtype(dtype))
            for compute in ("float32", "as_written"):
                tables = turned_by(
                    cos, sin, layout, pairing, start, inverse=inverse, compute=compute
                )
                assert_agree("apply_rotary", q, *tables, None)
                for inplace in (False, True):
                    assert_agree("apply_rotary_qk", q, k, *tables, inplace)


@product(
    dim=[32, 36, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576],
    pairing=["half", "interleaved"],
    dtype=DTYPES,
)
def test_head_sizes(dim, pairing, dtype):
    q, k = numbers(dtype, 1, 5, 4, dim), numbers(dtype, 1, 5, 1, dim)
    positions = np.array([0, 7, 131072, 2**31, -3])
    assert_rotations_agree(q, k, positions, frequencies(dim // 2), "bshd", pairing)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("q_heads", "k_heads"), [(1, 1), (32, 8), (7, 3), (130, 1), (1, 64), (3, 0)]
)
@pytest.mark.parametrize("tokens", [1, 3, 17])
def test_numbers_of_heads_and_tokens(tokens, q_heads, k_heads, dtype):
    q, k = numbers(dtype, q_heads, tokens, 64), numbers(dtype, k_heads, tokens, 64)
    assert_rotations_agree(q, k, None, frequencies(32), "hsd", "half")


@product(heads=[2, 5, 33], axes=[0, 2], pairing=["half", "interleaved"], dtype=DTYPES)
def test_frequencies_of_each_head(heads, axes, pairing, dtype):
    q, k = numbers(dtype, 2, heads, 19, 64), numbers(dtype, 2, heads, 19, 64) + 1
    shape = (axes, heads, 24) if axes else (heads, 24)
    inv_freq = np.random.default_rng(0).uniform(0, 1, shape)
    positions = np.arange(2 * 19).reshape(2, 19) * 1001
    if axes:
        positions = np.stack([positions, positions[::-1]])
    for inplace in (False, True):
        assert_agree(
            "apply_rotary_qk",
            q,
            k,
            positions,
            inv_freq,
            "bhsd",
            pairing,
            4,
            None,
            0.5,
            False,
            inplace,
        )


SLICES = [(0, 16), (32, 16), (48, 8), (8, 24), (5, 12), (0, 4), (64, 0), (2, 31)]
PAIRINGS = ["half", "interleaved", 8, 4]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("start", "pairs", "pairing"),
    [
        (start, pairs, pairing)
        for (start, pairs), pairing in itertools.product(SLICES, PAIRINGS)
        if isinstance(pairing, str) or 2 * pairs % pairing == 0
    ],
)
def test_slices_of_a_head(start, pairs, pairing, dtype):
    q, k = numbers(dtype, 2, 9, 3, 64), numbers(dtype, 2, 9, 2, 64)
    positions = np.arange(18).reshape(2, 9) * 1001
    assert_rotations_agree(q, k, positions, frequencies(pairs), "bshd", pairing, start)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rows_at_any_address(pairing, dtype):
    for offset in range(0, 17, DTYPES[dtype].itemsize):
        shape = (3, 11, 64)
        views = [aligned_rows(shape, DTYPES[dtype], offset) for _ in range(2)]
        x = numbers(dtype, *shape)
        for view, module in zip(views, (CUDA_ON_HOST, NATIVE), strict=True):
            view.array[...] = x
            out = view.array
            module.apply_rotary(
                out, None, frequencies(32), "hsd", pairing, 0, None, 1.0, False, out
            )
            view.assert_rest_untouched()
        assert_same_bits(views[0].array, views[1].array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(dtype):
    base = numbers(dtype, 2, 9, 5, 140)
    cases = [
        base[:, :, :, :128],
        base[:, ::-1, :, 3:131],
        base[..., 0:128:2],
        base[..., ::-1][..., :128],
        base.transpose(0, 2, 1, 3)[:, :, :, 8:136],
        np.broadcast_to(base[:1, :, :, :64], (2, 9, 5, 64)),
    ]
    for x, pairing in itertools.product(cases, ["half", "interleaved"]):
        arguments = (None, frequencies(x.shape[-1] // 2), "bshd", pairing, 0, None, 1.0, False)
        results = [
            module.apply_rotary(x, *arguments, np.empty(x.shape, x.dtype))
            for module in (CUDA_ON_HOST, NATIVE)
        ]
        assert_same_bits(*results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes_dtype", ["int8", "int64", "uint16"])
def test_an_axis_for_each_pair(axes_dtype, dtype):
    rng = np.random.default_rng(1)
    q, k = numbers(dtype, 2, 6, 4, 64), numbers(dtype, 2, 6, 2, 64)
    axis_map = rng.integers(0, 3, 32).astype(axes_dtype)
    for positions in (rng.integers(-(10**9), 10**9, (3, 2, 6)), rng.uniform(-1e4, 1e4, (3, 6))):
        assert_rotations_agree(
            q, k, positions, frequencies(32), "bshd", "half", 0, axis_map, 0.7, True
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        (4, 32),
        (1, 32),
        (2, 4, 32),
        (3, 1, 32),
        (90, 4, 32),
        (12, 1, 32),
        (129, 4, 32),
        (3100, 1, 32),
    ],
)
def test_frequencies_of_heads_and_axes(shape, dtype):
    """Of many axes, fewer pairs at a time have room in shared memory; of more than 128, none."""
    rng = np.random.default_rng(1)
    q, k = numbers(dtype, 2, 6, 4, 70), numbers(dtype, 2, 6, 4, 70)
    axes = shape[:1] if len(shape) == 3 else ()
    inv_freq = rng.uniform(-1, 1, shape)
    for positions in (rng.integers(-(10**9), 10**9, (*axes, 2, 6)), rng.uniform(-9, 9, (*axes, 6))):
        for pairing in ("half", "interleaved"):
            options = ("bshd", pairing, 3, None, 0.7, True)
            assert_agree("apply_rotary_qk", q, k, positions, inv_freq, *options, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(16,), (1, 16), (6, 16), (2, 1, 16), (2, 6, 16)])
def test_gradients_of_angles_in_whole_numbers(shape, dtype):
    """Their sums are exact in any order: the same bits as the CPU's. What turns nothing keeps them
    whole.
    """
    q, k, grad_q, grad_k = (
        np.round(np.random.default_rng(i).standard_normal((2, 300, 6, 40)) * 4).astype(
            DTYPES[dtype]
        )
        for i in range(4)
    )
    axes = shape[:1] if len(shape) == 3 else ()
    positions = np.arange(math.prod(axes) * 600).reshape(*axes, 2, 300) % 9
    frequencies = (np.arange(math.prod(shape)) % 7.0).reshape(shape)
    for points, inv_freq in ((0 * positions, frequencies), (positions, 0 * frequencies)):
        for pairing, inverse in (("half", False), ("interleaved", True)):
            options = ("bshd", pairing, 5, None, 1.0, inverse, True)
            for tensors in (((grad_q, grad_k), (q, k)), ((grad_q,), (q,))):
                (ours, *our_sums), (theirs, *their_sums) = both(
                    "rotary_backward", *tensors, points, inv_freq, *options
                )
                for a, b in zip((*ours, *our_sums), (*theirs, *their_sums), strict=True):
                    assert_same_bits(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("axes", "heads"), [(128, 1), (129, 6), (1600, 1)])
@pytest.mark.parametrize("mapped", [False, True])
def test_gradients_of_very_many_axes(mapped, axes, heads, dtype):
    """Exact, as above; a piece has those of 128 axes."""
    q, k, grad_q, grad_k = (
        np.round(np.random.default_rng(i).standard_normal((2, 5, 6, 21)) * 4).astype(DTYPES[dtype])
        for i in range(4)
    )
    positions = np.arange(axes * 10).reshape(axes, 2, 5) % 9
    axis_map = np.random.default_rng(0).integers(0, axes, 8) if mapped else None
    shape = (heads, 8) if mapped else (axes, heads, 8)
    inv_freq = (np.arange(math.prod(shape)) % 7.0).reshape(shape)
    for points, turns in ((0 * positions, inv_freq), (positions, 0 * inv_freq)):
        for with_positions in (False, True):
            options = ("bshd", "half", 2, axis_map, 1.0, False, with_positions)
            results = both("rotary_backward", (grad_q, grad_k), (q, k), points, turns, *options)
            (ours, *our_sums), (theirs, *their_sums) = results
            for a, b in zip((*ours, *our_sums), (*theirs, *their_sums), strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    assert_same_bits(a, b)


@product(
    dim=[2, 6, 16, 30, 126, 512, 4098, 8192, 8194, 20000],
    layout=["interleaved", "sin_cos", "cos_sin"],
    dtype=DTYPES,
)
def test_tables(dim, layout, dtype):
    """Wide ones take two launches: a sequence of frequencies has 4096 pairs at most."""
    spec = (dim, 1e4, layout, 1.0 if dim > 2 else 0.0, -0.3, np.dtype(DTYPES[dtype]), None)
    for positions in (37, np.array([[2**40, -5, 0], [1, 2, 10**6]]), np.array([0.25, -1e6])):
        assert_agree("sinusoidal", positions, *spec)
    x = numbers(dtype, 3, 2, 7, dim)
    options = (3.0, 0.5, 1e4, layout, 0.0, 1.0, None)
    for positions in (None, np.arange(7) * 99, np.arange(42).reshape(3, 2, 7)):
        assert_agree("add_sinusoidal", x, positions, *options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_and_many_repetitions(dtype):
    table = (64, 1e4, "interleaved", 0.0, 1.0, np.dtype(DTYPES[dtype]), None)
    assert_agree("sinusoidal", 5001, *table)
    options = (1.0, 1.0, 1e4, "sin_cos", 0.0, 1.0, None)
    assert_agree("add_sinusoidal", numbers(dtype, 301, 1, 32), None, *options)
    assert_agree("add_sinusoidal", numbers(dtype, 2, 1, 301, 16), None, *options)


@pytest.mark.parametrize("tokens", [9, 4099])
def test_an_append_ends_with_the_last_token(tokens):
    """Beyond it lie the tokens of another batch, with slots of their own."""
    q, k, v = (numbers("float32", 2, tokens, 3, 8)[:1] for _ in range(3))
    slots = np.arange(2 * tokens).reshape(2, tokens)[:1]
    caches = [[np.full((2, 2 * tokens, 3, 8), 7, np.float32) for _ in "kv"] for _ in "ab"]
    for module, (keys, values) in zip((CUDA_ON_HOST, NATIVE), caches, strict=True):
        rotation = Rotation(None, frequencies(4), "bshd")
        cache = Cache(keys, values, slots, "pshd")
        module.rotary_append(q, k, v, *rotation, "float32", *Norm(), *cache, False)
    for ours, theirs in zip(*caches, strict=True):
        assert_same_bits(ours, theirs)


@pytest.fixture
def as_before() -> Any:
    """Launches are run as in the beginning again."""
    yield
    CUDA_ON_HOST.simulate()


@pytest.fixture
def kernels_of(as_before) -> Any:
    """The kernels that a call launches."""

    def kernels(call: Any) -> list[str]:
        CUDA_ON_HOST.simulate(run="nothing")
        CUDA_ON_HOST.launches()
        call()
        return [launch["kernel"] for launch in CUDA_ON_HOST.launches()]

    return kernels


# Dims of a head, pairs and how these lie, as kWarpShapes of norm_rotary_warp.cuh.
WARP_SHAPES = [
    (64, 32, "half"), (128, 64, "half"), (256, 128, "half"), (128, 32, "half"), (256, 32, "half"),
    (64, 32, "interleaved"), (128, 64, "interleaved"),
]  # fmt: skip


# Queries multiplied by a factor of their positions.
QUERIES_SCALED = [
    Norm(query_scale="llama4", query_beta=0.25, query_length=1000.0, query_shift=1.0),
    Norm(norm=False, query_scale="logn", query_length=30.0),
]


def factors_of(norm: Norm, positions: np.ndarray, layout: str) -> np.ndarray:
    """Of llama4, with the axes of q."""
    steps = np.floor((positions + norm.query_shift) / norm.query_length).clip(0)
    factors = 1 + norm.query_beta * np.log1p(steps)
    return factors[:, :, None, None] if layout == "bshd" else factors[:, None, :, None]


@product(
    shape=WARP_SHAPES, dtype=["float16", "bfloat16", "float32"], layout=["bshd", "bhsd"],
    heads=[(1, 1), (3, 0), (8, 2), (32, 8), (33, 5)], tokens=[1, 7, 8, 61],
    norm=[Norm(), Norm(norm=False), Norm(weight_offset=1.0, eps=1e-3), *QUERIES_SCALED],
    weights=[None, "float32", "bfloat16"], seed=[0, 5], multiprocessors=[1, 132],
)  # fmt: skip
def test_norm_and_rotation_by_warps(
    as_before, shape, dtype, layout, heads, tokens, norm, weights, seed, multiprocessors
):
    """Norm, rotation and append; by positions, and by tables as written.

    On one multiprocessor each warp has several tokens, and a share of those that are left.
    """
    dim, pairs, pairing = shape
    CUDA_ON_HOST.simulate(seed=seed, writes_at_the_end=seed > 0, multiprocessors=multiprocessors)

    def tensor(count: int, at: int) -> np.ndarray:
        sizes = (2, tokens, count, dim) if layout == "bshd" else (2, count, tokens, dim)
        array = aligned(sizes, np.dtype(DTYPES[dtype]), 0)
        array[...] = np.random.default_rng(at).standard_normal(sizes).astype(array.dtype)
        return array

    q, k, v = tensor(heads[0], 0), tensor(heads[1], 1), tensor(max(heads[1], 1), 2)
    if weights is not None and norm.norm:
        norm = norm._replace(q_weight=numbers(weights, dim), k_weight=numbers(weights, dim)[::-1])
    positions = np.arange(2 * tokens).reshape(2, tokens) * 1001 - 5
    rotation = Rotation(
        positions, frequencies(pairs), layout, pairing, scale=0.5, inverse=bool(seed)
    )
    cos, sin = NATIVE.rotary_tables(positions, frequencies(pairs), None, 1.0, np.dtype(np.float32))
    tables = turned_by(cos, sin, layout, pairing, compute="as_written")
    scales = norm.query_scale != "none"
    for inplace in (False, True) if norm.norm or scales else ():
        assert_agree("norm_rotary_qk", q, k, *rotation, "float32", *norm, inplace)
    if norm.norm and not scales:
        assert_agree("norm_rotary_qk", q, k, *tables, None, *norm, False)
    slots = np.random.default_rng(3).permutation(tokens + 3)[:tokens]
    slots[tokens // 2] = -1
    if heads[1]:
        cache = (2, heads[1], tokens + 3, dim)
        results = []
        for module in (CUDA_ON_HOST, NATIVE):
            kv = [aligned(cache, q.dtype, 0) for _ in range(2)]
            for one in kv:
                one[...] = 7
            of_cache = Cache(*kv, slots, "bhsd", True)
            given = (q, k, v, *rotation, "float32", *norm, *of_cache)
            results.append((*module.rotary_append(*given, False), *kv))
        for ours, theirs in zip(*results, strict=True):
            assert_same_bits(ours, theirs)


@product(
    shape=WARP_SHAPES, dtype=["float16", "bfloat16", "float32"], layout=["bshd", "bhsd"],
    heads=[(1, 1), (3, 2), (8, 2), (33, 5)], tokens=[1, 7, 61, 5000],
    weights=[None, "float32", "bfloat16"], seed=[0, 5], scaled=[False, True],
)  # fmt: skip
def test_gradients_by_warps(as_before, shape, dtype, layout, heads, tokens, weights, seed, scaled):
    """The bits of dx; sums for the weights, of which every warp has some in float32."""
    dim, pairs, pairing = shape
    if tokens == 5000:
        heads = (2, 1)  # several rounds of 32 tokens in a piece
    CUDA_ON_HOST.simulate(seed=seed, writes_at_the_end=seed > 0)
    tensors = []
    for at, count in enumerate((*heads, *heads)):
        sizes = (2, tokens, count, dim) if layout == "bshd" else (2, count, tokens, dim)
        array = aligned(sizes, np.dtype(DTYPES[dtype]), 0)
        array[...] = np.random.default_rng(at).standard_normal(sizes).astype(array.dtype)
        array[:, :1] = 0  # sums of zeros have a sign
        tensors.append(array)
    norm = (QUERIES_SCALED[0] if scaled else Norm())._replace(weight_offset=0.5)
    if weights is not None:
        norm = norm._replace(q_weight=numbers(weights, dim), k_weight=numbers(weights, dim)[::-1])
    positions = np.arange(2 * tokens).reshape(2, tokens) * 1001 - 5
    rotation = Rotation(
        positions, frequencies(pairs), layout, pairing, scale=0.5, inverse=bool(seed)
    )
    options = (*rotation, "float32", *norm)
    ours = CUDA_ON_HOST.norm_rotary_backward(*tensors, *options)
    on_cpu = NATIVE.norm_rotary_backward(*tensors, *options)
    for tensor in range(2):
        g, x = (tensors[i].astype(np.float64) for i in (tensor, tensor + 2))
        assert_same_bits(ours[tensor], on_cpu[tensor])
        sums, expected = ours[2 + tensor], on_cpu[2 + tensor]
        assert (sums is None) == (expected is None) == (weights is None)
        if sums is None:
            continue
        # Cauchy and Schwarz for the sum of |h x r|; a pair of h has the length of g's, halved.
        normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps)
        if scaled and tensor == 0:
            g = g * factors_of(norm, positions, layout)
        of_h, of_x = ((v**2).sum((0, 1, 2)).max() for v in (g, normed))
        most = np.sqrt(0.5 * of_h * of_x)
        additions = (2 * tokens // (256 * 8) + 1) * heads[tensor] + 5
        np.testing.assert_allclose(sums, expected, rtol=0, atol=additions * 2.0**-24 * most)


def test_which_calls_take_warps(kernels_of):
    """What is not aligned or of other widths goes by blocks, alike."""

    def kernel(*shape: int, before: int = 0, dtype: str = "bfloat16", **options: Any) -> str:
        itemsize = np.dtype(DTYPES[dtype]).itemsize
        q = aligned(shape, np.dtype(DTYPES[dtype]), before * itemsize)
        rotation = {"positions": None, "inv_freq": frequencies(shape[-1] // 2), "layout": "bshd"}
        rotation |= {name: o for name, o in options.items() if name in Rotation._fields}
        norm = Norm(**{name: o for name, o in options.items() if name in Norm._fields})
        call = (q, q.copy(), *Rotation(**rotation), "float32", *norm, True)
        (name,) = kernels_of(lambda: CUDA_ON_HOST.norm_rotary_qk(*call))
        return name.partition("Thread")[0]

    assert kernel(1, 5, 3, 128) == "NormRotaryWarp"
    assert kernel(1, 5, 3, 64, dtype="float32", weight_offset=1.0) == "NormRotaryWarp"
    for dims, pairs, pairing in WARP_SHAPES:
        options = {"inv_freq": frequencies(pairs), "pairing": pairing}
        assert kernel(1, 5, 3, dims, **options) == "NormRotaryWarp"
    for options in (
        {"pairing": 32}, {"norm_first": False}, {"norm_over": "token"},
        {"inv_freq": frequencies(32), "rotary_start": 64},
        {"before": 1}, {"dtype": "float64"}, {"inv_freq": frequencies(48)},
        {"q_weight": np.ones((3, 128))},
    ):  # fmt: skip
        assert kernel(1, 5, 3, 128, **options) == "NormRotary", options
    assert kernel(1, 5, 3, 96) == "NormRotary"


# Relative encodings


def assert_relative_agree(
    planes: tuple[int, int], queries: int, keys: int, dtype: str, of: str = "float32"
) -> None:
    """Everything on diagonals [H, D] or [B, H, D] and on matrices [B, H, q, k]."""
    batch, heads = planes
    entries, lengths = queries + keys - 1, ((queries,), (keys,), (queries - 1,))
    scores = numbers(dtype, batch, heads, queries, keys)
    for shape in ((heads, entries), (batch, heads, entries)):
        diagonals = numbers(of, *shape)
        for out in (None, np.empty_like(scores)):
            assert_agree("add_toeplitz_bias", scores, diagonals, *lengths, None, out)
        assert_agree("toeplitz_bias", diagonals, *lengths, None, np.dtype(DTYPES[dtype]), None)
        assert_agree("diagonal_sums", scores, shape, *lengths, None)


@product(
    queries=[1, 7, 8, 9, 33, 257], keys=[1, 7, 8, 16, 64, 72, 136, 512, 520, 1040], dtype=DTYPES
)
def test_toeplitz_sizes(queries, keys, dtype):
    assert_relative_agree((1, 2), queries, keys, dtype)


@product(planes=[(1, 1), (3, 2), (70, 1), (9, 5)], dtype=DTYPES, of=DTYPES)
def test_toeplitz_planes(planes, dtype, of):
    for queries, keys in ((16, 24), (2, 40), (11, 5)):
        assert_relative_agree(planes, queries, keys, dtype, of)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("queries", "keys"), [(2050, 8), (8, 4104), (700, 700)])
def test_large_matrices(queries, keys, dtype):
    assert_relative_agree((1, 1), queries, keys, dtype)


def placed(shape: tuple[int, ...], dtype: np.dtype, gap: int, before: int) -> View:
    """Rows `gap` numbers apart, that begin `before` numbers past an aligned one."""
    width = shape[-1] + gap
    count = math.prod(shape[:-1]) * width
    memory = aligned((count + 64,), dtype, 0)
    memory.view(np.uint8)[...] = 0x55
    return View(
        memory,
        lambda array: array[before : before + count].reshape(*shape[:-1], width)[..., : shape[-1]],
    )


def assert_lines_agree(
    scores: np.ndarray, diagonals: np.ndarray, lengths: tuple[Any, ...], gap: int, before: int
) -> None:
    """The bias alone, added, and added in place, where scores and sums are equally aligned; and
    added where they are not.
    """
    bias = NATIVE.toeplitz_bias(diagonals, *lengths, None, scores.dtype, None)
    summed = NATIVE.add_toeplitz_bias(scores, diagonals, *lengths, None, None)
    there, out, other = (placed(scores.shape, scores.dtype, gap, before + i) for i in (0, 0, 1))
    there.array[...] = scores
    if bias.shape == scores.shape:
        CUDA_ON_HOST.toeplitz_bias(diagonals, *lengths, None, None, out.array)
        assert_same_bits(out.array, bias)
    for to in (out, other, there):
        CUDA_ON_HOST.add_toeplitz_bias(there.array, diagonals, *lengths, None, to.array)
        assert_same_bits(to.array, summed)
        to.assert_rest_untouched()


@product(
    queries=[1, 7, 33],
    keys=[1, 2, 3, 7, 8, 9, 15, 31, 49, 63, 129, 257, 513],
    gap=[0, 1, 8],
    dtype=DTYPES,
)
def test_rows_of_any_length(queries, keys, gap, dtype):
    """At every misalignment; a vector may have numbers of several rows, or none of a row."""
    diagonals = numbers("float32", 3, queries + keys - 1)
    lengths = ((queries,), (keys,), (queries - 1,))
    for planes in ((3,), (9, 3)) if keys < 100 else ((3,),):
        scores = numbers(dtype, *planes, queries, keys)
        for before in range(16 // scores.itemsize) if keys < 100 else (0, 1):
            assert_lines_agree(scores, diagonals, lengths, gap, before)


@product(planes=[(1, 1), (16, 3), (2, 5, 3), (70, 4)], gap=[0, 3], dtype=DTYPES)
def test_windows_of_49_cells(planes, gap, dtype):
    """Of odd size, and so their repetitions: of a grid, and of rank 1."""
    scores = numbers(dtype, *planes, 49, 49)
    for diagonals, lengths in (
        (numbers("float32", planes[-1], 13, 13), ((7, 7), (7, 7), (6, 6))),
        (numbers(dtype, planes[-1], 97), ((49,), (49,), (48,))),
    ):
        for before in (0, 1, 5):
            assert_lines_agree(scores, diagonals, lengths, gap, before)


@product(keys=[1000, 1003, 4104, 9001], planes=[(3,), (5, 2)], dtype=DTYPES)
def test_bias_of_decoding(keys, planes, dtype):
    for queries in (1, 2, 5, 7, 9):
        diagonals = numbers("float64", planes[-1], keys + 9)
        lengths = ((queries,), (keys,), (9,))
        assert_lines_agree(numbers(dtype, *planes, queries, keys), diagonals, lengths, 0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("q_len", "k_len"),
    [
        ((7, 7), (7, 7)),
        ((8, 8), (8, 8)),
        ((3, 5), (4, 8)),
        ((1, 9), (9, 1)),
        ((2, 3, 4), (4, 2, 4)),
    ],
)
@pytest.mark.parametrize("batch", [1, 5, 130])
def test_toeplitz_grids(batch, q_len, k_len, dtype):
    entries = tuple(q + k + 2 for q, k in zip(q_len, k_len, strict=True))
    start = tuple(q + 1 for q in q_len)
    scores = numbers(dtype, batch, 2, math.prod(q_len), math.prod(k_len))
    lengths = (q_len, k_len, start, None)
    for of in ("float32", dtype):
        diagonals = numbers(of, 2, *entries)
        assert_agree("add_toeplitz_bias", scores, diagonals, *lengths, None)
        bias = ("toeplitz_bias", diagonals, *lengths, np.dtype(DTYPES[dtype]), None)
        assert_agree(*bias)
    assert_agree("diagonal_sums", scores, (2, *entries), *lengths)
    assert_agree("diagonal_sums", scores, (batch, 2, *entries), *lengths)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("queries", "keys"), [(1, 24), (8, 24), (20, 24), (7, 264)])
def test_windows_of_each_plane(queries, keys, dtype):
    """q_offset of batch rows, and of heads, whose sums are then over different windows."""
    rng = np.random.default_rng(queries)
    entries = keys + 66
    scores = numbers(dtype, 3, 2, queries, keys)
    x = numbers(dtype, 3, 2, queries, entries)
    origin = entries - keys
    index = rng.integers(0, 40, entries)
    for shape in ((3,), (3, 2)):
        q_offset = rng.integers(0, origin - queries + 2, shape)
        lengths = ((queries,), (keys,), (origin,), q_offset)
        for diagonals in (numbers("float32", 2, entries), numbers("float32", 3, 2, entries)):
            assert_agree("add_toeplitz_bias", scores, diagonals, *lengths, None)
            assert_agree("diagonal_sums", scores, diagonals.shape, *lengths)
        assert_agree(
            "toeplitz_bias",
            numbers("float32", 2, entries),
            (queries,),
            (keys,),
            (origin,),
            q_offset.reshape(3, -1)[:, 0],
            np.dtype(DTYPES[dtype]),
            None,
        )
        for columns in (None, index):
            options = (origin, q_offset, None, scores, 0.5, None)
            assert_agree("relative_gather", x, columns, keys, *options)
        assert_agree("relative_scatter", scores, None, entries, origin, q_offset, None, 0.5, None)
        assert_scatters_agree(scores, index, 40, origin, q_offset)


def assert_scatters_agree(
    grad: np.ndarray, index: np.ndarray, width: int, start: int, q_offset: Any = None
) -> None:
    """As near as sums in another order are; and to the bit what they were the last time."""
    options = (index, width, start, q_offset, -1, 0.5, None)
    ours, theirs = both("relative_scatter", grad, *options)
    assert_same_bits(ours, CUDA_ON_HOST.relative_scatter(grad, *options))
    of_magnitudes = (np.abs(grad.astype(np.float64)), *options)
    assert_close(ours, theirs, 64 * NATIVE.relative_scatter(*of_magnitudes))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 8, 33])
@pytest.mark.parametrize(
    ("keys", "width"),
    [(8, 8), (64, 100), (72, 79), (13, 1), (300, 331), (256, 256), (264, 17), (1032, 700)],
)
def test_gather_and_shift_sizes(keys, width, queries, dtype):
    x, content = numbers(dtype, 2, queries, width), numbers(dtype, 2, queries, keys)
    rng = np.random.default_rng(keys)
    index = rng.integers(-1, width, queries + keys - 1)
    for added, scale in ((None, 1.0), (None, 0.3), (content, 0.125)):
        options = (None, -1, added, scale, None)
        for columns, start in ((index, queries - 1), (None, queries - 1), (None, -3)):
            assert_agree("relative_gather", x, columns, keys, start, *options)
        options = (None, width, queries - 1, None, None, scale, None)
        assert_agree("relative_scatter", content, *options)


@product(
    dtype=DTYPES, keys=[64, 72, 200, 512], width=[1, 9, 33, 129, 400], queries=[1, 8, 9, 41],
    before=[0, 1, 5], kind=["clipped", "down", "far", "none", "steps"], scale=[1.0, 0.3],
)  # fmt: skip
def test_windows_of_one_column_and_of_neighbours(dtype, keys, width, queries, before, kind, scale):
    """Read by a number or by a word for each row, of rows that begin at any place; or from rows
    that a warp keeps.
    """
    distance = np.arange(queries + keys - 1) - (queries + keys - 1) // 2
    index = {
        "clipped": np.clip(distance + width // 2, 0, width - 1),
        "down": np.clip(width // 2 - distance, 0, width - 1),
        "far": np.where(distance < 0, width - 1, -1),
        "none": np.full(len(distance), -1),
        "steps": np.clip(distance // 20 + width // 2, 0, width - 1),
    }[kind]
    x = placed((2, queries, width), np.dtype(DTYPES[dtype]), 0, before)
    x.array[...] = numbers(dtype, 2, queries, width)
    for content in (None, numbers(dtype, 2, queries, keys)):
        options = (queries - 1, None, -1, content, scale, None)
        assert_agree("relative_gather", x.array, index, keys, *options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 40, 257, 600])
def test_lists_of_every_length(width, dtype):
    """A thread's, a warp's, the block's: most columns once, and what is clipped in two of them."""
    for queries, keys in ((1, 900), (20, 700), (700, 9)):
        entries = queries + keys - 1
        grad = numbers(dtype, 2, queries, keys)
        clipped = np.clip(np.arange(entries) - entries // 2 + width // 2, 0, width - 1)
        rng = np.random.default_rng(width)
        for index in (clipped, rng.integers(-1, width, entries)):
            assert_scatters_agree(grad, index, width, queries - 1)


def in_order(terms: np.ndarray) -> np.ndarray:
    """Sums along the first axis."""
    total = np.zeros(terms.shape[1:], terms.dtype)
    for term in terms:
        total = total + term
    return total


def sum_of_list(terms: np.ndarray) -> np.ndarray:
    """Of a short list in order; of a long one, 32 sums of every 32nd term, of which every 4th is
    added up, and then those; of a very long one likewise 256, and every 16th.
    """
    length = len(terms)
    if length <= 16:
        return in_order(terms)
    parts, folds = (32, 4) if length <= 512 else (256, 16)
    rounds = -(-length // parts)
    padded = np.zeros((rounds * parts, *terms.shape[1:]), terms.dtype)
    padded[:length] = terms
    sums = in_order(padded.reshape(rounds, parts, *terms.shape[1:]))
    return in_order(in_order(sums.reshape(parts // folds, folds, *terms.shape[1:])))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("keys", "width"),
    [(60, 7), (127, 3), (128, 3), (300, 9), (520, 40), (1024, 1), (2000, 129), (7000, 5)],
)
@pytest.mark.parametrize("kind", ["clipped", "down", "mixed", "round", "some", "few"])
@pytest.mark.parametrize("begins", [0, 1])
def test_order_of_lists(begins, kind, keys, width, dtype):
    """Of entries beside each other and of any; of rows that are aligned or not; by whatever kernel:
    two rows of 7000 numbers are more than the shared memory of a block.

    Entries that are not in a row's window are zeros.
    """
    queries, origin = 9, 11
    distance = np.arange(keys + 20) - keys // 2
    rng = np.random.default_rng(keys)
    index = {
        "clipped": np.clip(distance + width // 2, 0, width - 1),
        "down": np.clip(width // 2 - distance, 0, width - 1),
        "mixed": rng.integers(-1, width, len(distance)),
        "round": np.arange(len(distance)) % width,
        "some": np.where(distance % 3 == 0, np.clip(distance // 20 + width // 2, 0, width - 1), -1),
        "few": rng.integers(0, min(width, 2), len(distance)),
    }[kind]
    there = placed((queries, keys), np.dtype(dtype), 0, begins)
    grad = there.array
    grad[...] = numbers(dtype, queries, keys)
    entries = np.zeros((len(index), queries), grad.dtype)
    for query in range(queries):
        entries[origin - query :][:keys, query] = grad[query]
    expected = np.stack([sum_of_list(entries[index == column]) for column in range(width)], -1)
    result = CUDA_ON_HOST.relative_scatter(grad, index, width, origin, None, -1, 1.0, None)
    assert_same_bits(result, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_relative_rows_at_any_address(dtype):
    lengths = ((9,), (24,), (8,), None)
    x, diagonals = numbers(dtype, 2, 9, 24), numbers("float64", 2, 32)
    wide, index = numbers(dtype, 2, 9, 32), np.arange(32)[::-1] // 2
    for offset in range(0, 17, DTYPES[dtype].itemsize):
        there = aligned_rows(x.shape, DTYPES[dtype], offset)
        there.array[...] = x
        source = aligned_rows(wide.shape, DTYPES[dtype], offset)
        source.array[...] = wide
        for name, arguments in {
            "diagonal_sums": (there.array, (2, 32), *lengths),
            "relative_gather": (source.array, None, 24, 8, None, None, None, 1.0),
            "relative_scatter": (there.array, None, 32, 8, None, None, 1.0),
        }.items():
            more = () if name == "diagonal_sums" else (None,)
            ours, theirs = (getattr(m, name)(*arguments, *more) for m in (CUDA_ON_HOST, NATIVE))
            assert_same_bits(ours, theirs)
        out = aligned_rows(x.shape, DTYPES[dtype], offset)
        for name, arguments in {
            "toeplitz_bias": (diagonals, *lengths, None),
            "add_toeplitz_bias": (x, diagonals, *lengths),
            "relative_gather": (source.array, index, 24, 8, None, None, there.array, 2.0),
        }.items():
            expected = getattr(NATIVE, name)(*arguments, np.empty_like(x))
            getattr(CUDA_ON_HOST, name)(*arguments, out.array)
            assert_same_bits(out.array, expected)
        out.assert_rest_untouched()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("gap", "start"), [(0, 4), (1, 1500), (3, -2000)])
def test_shifts_of_long_rows(as_before, gap, start, dtype):
    """On a GPU so small that a thread copies many vectors of a row that begins at any address."""
    CUDA_ON_HOST.simulate(multiprocessors=1)
    shapes = (2, 5, 3000), (2, 5, 5000)
    x, grad = (placed(shape, np.dtype(DTYPES[dtype]), gap, 1) for shape in shapes)
    for there in (x, grad):
        there.array[...] = numbers(dtype, *there.array.shape)
    for scale in (1.0, 0.3):
        options = (start, None, None, None, scale)
        out = placed(shapes[1], x.array.dtype, gap, 2)
        CUDA_ON_HOST.relative_gather(x.array, None, 5000, *options, out.array)
        expected = NATIVE.relative_gather(x.array, None, 5000, *options, None)
        assert_same_bits(out.array, expected)
        out.assert_rest_untouched()
        options = (start, None, None, scale)
        out = placed(shapes[0], x.array.dtype, gap, 2)
        CUDA_ON_HOST.relative_scatter(grad.array, None, 3000, *options, out.array)
        expected = NATIVE.relative_scatter(grad.array, None, 3000, *options, None)
        assert_same_bits(out.array, expected)
        out.assert_rest_untouched()


@pytest.mark.parametrize("dtype", DTYPES)
def test_relative_with_any_strides(dtype):
    base = numbers(dtype, 3, 2, 20, 60)
    lengths = ((20,), (24,), (21,), None)
    diagonals = numbers("float32", 2, 100)[:, ::-2]
    index = (np.arange(200)[::-4] % 24)[:50]
    for x in (
        base[..., 3:27],
        base[..., ::-2][..., :24],
        base[::-1, :, ::-1, 8:32],
        base.transpose(1, 0, 2, 3)[[0, 1]].transpose(1, 0, 2, 3)[..., :24],
        base[:, :, :, 0:24].copy().transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2),
        np.broadcast_to(base[:1, :, :1, :24], (3, 2, 20, 24)),
    ):
        calls = {
            "add_toeplitz_bias": (x, diagonals, *lengths, None),
            "diagonal_sums": (x, diagonals.shape, *lengths),
            "relative_gather": (x, None, 30, 19, None, None, None, 1.0, None),
            "relative_scatter": (x, None, 40, 21, None, None, 0.5, None),
        }
        for name, arguments in calls.items():
            ours, theirs = (getattr(module, name)(*arguments) for module in (CUDA_ON_HOST, NATIVE))
            assert_same_bits(ours, theirs)
        arguments = (x, index, 30, 20, None, None, None, 1.0, None)
        ours, theirs = (module.relative_gather(*arguments) for module in (CUDA_ON_HOST, NATIVE))
        assert_same_bits(ours, theirs)
        assert_scatters_agree(x, index, 24, 21)


# Index ranges beyond 2^31, without memory for them


def far_rows(directory: Path, dtype: str, rows: int, stride: int) -> np.ndarray:
    """[rows, 64] of zeros, the rows `stride` elements apart in a file that is mostly a hole."""
    itemsize = DTYPES[dtype].itemsize
    path = directory / "far"
    path.touch()
    os.truncate(path, ((rows - 1) * stride + 64) * itemsize)
    memory = np.memmap(path, np.uint8, "r+").view(DTYPES[dtype])
    return np.lib.stride_tricks.as_strided(memory, (rows, 64), (stride * itemsize, itemsize))


@pytest.mark.parametrize("rows", ["tokens", "heads"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_more_than_two_to_the_31_elements_apart(rows, dtype, tmp_path):
    x = numbers(dtype, 3, 64)
    far = far_rows(tmp_path, dtype, 3, 2**31 + 24)
    far[...] = x
    layout, near, there = ("sd", x, far) if rows == "tokens" else ("hsd", x[:, None], far[:, None])
    options = (layout, "half", 0, None, 1.0, False)
    expected = NATIVE.apply_rotary(near, None, frequencies(32), *options, None)
    CUDA_ON_HOST.apply_rotary(there, None, frequencies(32), *options, there)
    assert_same_bits(there.copy(), expected)
    spec = (64, 1e4, "interleaved", 0.0, 1.0)
    CUDA_ON_HOST.sinusoidal(3, *spec, None, far)
    assert_same_bits(far.copy(), NATIVE.sinusoidal(3, *spec, np.dtype(DTYPES[dtype]), None))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_relative_rows_more_than_two_to_the_31_elements_apart(dtype, tmp_path):
    x, diagonals = numbers(dtype, 9, 64), numbers("float32", 72)
    far = far_rows(tmp_path, dtype, 9, 2**31 + 24)
    far[...] = x
    lengths, options = ((9,), (64,), (8,), None), (8, None, None)
    expected = NATIVE.diagonal_sums(x, (72,), *lengths)
    assert_same_bits(CUDA_ON_HOST.diagonal_sums(far, (72,), *lengths), expected)
    index = np.arange(72) % 64
    for columns in (None, index):
        ours, theirs = (
            module.relative_gather(there, columns, 64, *options, None, 1.0, None)
            for module, there in ((CUDA_ON_HOST, far), (NATIVE, x))
        )
        assert_same_bits(ours, theirs)
        ours, theirs = (
            module.relative_scatter(there, columns, 64, *options, 1.0, None)
            for module, there in ((CUDA_ON_HOST, far), (NATIVE, x))
        )
        assert_close(ours, theirs, 8 * np.abs(theirs.astype(np.float64)) + 1)
    CUDA_ON_HOST.add_toeplitz_bias(far, diagonals, *lengths, far)
    assert_same_bits(far.copy(), NATIVE.add_toeplitz_bias(x, diagonals, *lengths, None))


@pytest.mark.slow  # half a minute of compiling
def test_pieces_beyond_the_two_to_the_31st(tmp_path):
    """The last piece of a launch of 2^33 + 5 rows, all of which lie in the same place."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or not CSRC.is_dir():
        pytest.skip("needs a C++ compiler and the C++ sources")
    program = tmp_path / "last_piece"
    source = Path(__file__).with_name("last_piece.cc")
    core = [CSRC / "core" / name for name in ("angles.cc", "sinusoidal.cc", "view.cc")]
    flags = ["-std=c++17", "-O0", "-ffp-contract=off", "-Wno-unknown-pragmas", "-I", CSRC]
    subprocess.run([compiler, *flags, source, *core, "-o", program], check=True)
    output = subprocess.run([program], stdout=subprocess.PIPE, check=True).stdout
    numbers = np.frombuffer(output, np.float32)
    rotated, table = numbers[:128].reshape(2, 64)
    last = np.array([2**33 + 4])
    x = np.arange(64, dtype=np.float32)[None]
    options = ("sd", "half", 0, None, 1.0, False)
    inv_freq = 1.0 / (1.0 + np.arange(32))
    assert_same_bits(rotated[None], NATIVE.apply_rotary(x, last, inv_freq, *options, None))
    spec = (64, 1e4, "interleaved", 0.0, 1.0)
    assert_same_bits(table[None], NATIVE.sinusoidal(last, *spec, np.dtype(np.float32), None))
    # x is the same in all rows, and so is what a piece of n of them sums up, but for positions.
    turned, sums = numbers[128:192], numbers[192:224]
    n, of_position = int(numbers[224]), numbers[225]
    assert 0 < n <= 512
    rows, grad = (np.broadcast_to(row, (n, 64)) for row in (x, x[:, ::-1]))
    places = np.arange(2**33 + 5 - n, 2**33 + 5)
    options = ("sd", "half", 0, None, 1.0, False, True)
    (of_x,), of_frequencies, of_positions = NATIVE.rotary_backward(
        (grad,), (rows,), places, inv_freq, *options
    )
    assert_same_bits(turned, of_x[-1])
    magnitude = 2 * 63.0 * 63.0 * 2  # of a cross product, at most
    assert np.abs(sums - of_frequencies).max() < magnitude * 2**33 * n * (n + 8) * 2**-24
    assert abs(of_position - of_positions[0, 0, -1]) < magnitude * inv_freq.sum() * 40 * 2**-24
    rest = numbers[226:]
    by_tiles, by_lines, shifted, gathered = rest[: 4 * 320].reshape(4, 1, 5, 64)
    scattered, sums = rest[4 * 320 : -64].reshape(5, 80), rest[-64:]
    # The last of 2048 rows of 80 numbers are the last five of the call.
    base = (np.arange(2048 * 80) % 4099).astype(np.float32)
    x = base.reshape(2048, 80)[-5:]
    grid = ((5,), (64,), (4,))
    expected = NATIVE.add_toeplitz_bias(
        np.ascontiguousarray(x[None, :, :64]), base[None, :68], *grid, None, None
    )
    assert_same_bits(by_tiles, expected)
    assert_same_bits(by_lines, expected)
    options = (4, None, None, None, 1.0, None)
    assert_same_bits(shifted[0], NATIVE.relative_gather(x, None, 64, *options))
    index = 79 - np.arange(68) % 80
    assert_same_bits(gathered[0], NATIVE.relative_gather(x, index, 64, *options))
    index = np.arange(68)
    expected = NATIVE.relative_scatter(x[:, :64], index, 80, 4, None, None, 1.0, None)
    assert_same_bits(scattered, expected)
    grad = base.reshape(2048, 80)[None, :64, :64]
    expected = NATIVE.diagonal_sums(grad, (1, 127), (64,), (64,), (63,), None)
    assert_same_bits(sums, expected[0, -64:])


# --- Rotations by steps: rows cut into segments of 8 tokens, or of 16 or 32 in large calls


def steps_as(dtype: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Most of them of less than a turn, and some of many."""
    steps = rng.standard_normal(shape) * np.exp2(rng.integers(-20, 8, shape))
    return steps.astype(DTYPES[dtype])


def states(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-(2**63), 2**63 - 1, shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_turns_of_steps(dtype):
    """Of every exponent, both ends of it among them, and every one that is no angle."""
    rng = np.random.default_rng(0)
    mantissa, bits = np.finfo(dtype).nmant, 8 * np.dtype(dtype).itemsize
    word = np.dtype(f"u{bits // 8}").type
    exponents = np.arange(2 ** (bits - 1 - mantissa), dtype=word) << word(mantissa)
    fractions = rng.integers(0, 2**mantissa, (len(exponents), 2000), word)
    fractions[:, :4] = [0, 1, 2**mantissa - 1, 2 ** (mantissa - 1)]
    steps = (exponents[:, None] | fractions).reshape(-1).view(dtype)
    steps = np.concatenate((steps, -steps))
    angles = np.abs(steps) <= 2.0**31  # false of NaN
    expected = NATIVE.accumulated_phases(np.where(angles, steps, 0)[:, None, None], None)
    assert np.array_equal(CUDA_ON_HOST.turns_of_steps(steps), expected.reshape(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [(0, False), (5, True)])
def test_phases_of_any_shape_and_stride(dtype, order, as_before):
    """Rows and pairs that do not fill a block, fewer tokens than threads and many more."""
    rng = np.random.default_rng(0)
    CUDA_ON_HOST.simulate(*order)
    for shape in [(1, 1), (2, 31, 8), (3, 2, 33, 9), (2, 300, 20), (1, 0, 4), (2, 5, 0), (0, 4, 3)]:
        whole = steps_as(dtype, rng, (*shape[:-1], 2 * shape[-1]))
        before = states(rng, *shape[:-2], 2 * shape[-1])
        for steps, state in (
            (whole[..., : shape[-1]], None),
            (whole[..., ::-2], before[..., ::2]),
            (np.moveaxis(np.moveaxis(whole, -2, 0).copy(), 0, -2)[..., ::2], before[..., 1::2]),
        ):
            ours, theirs = (m.accumulated_phases(steps, state) for m in (CUDA_ON_HOST, NATIVE))
            assert_same_bits(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_of_phases_at_any_address(dtype, as_before):
    phases = states(np.random.default_rng(0), 1100)
    for count, first in ((0, 0), (1, 0), (4, 0), (1100, 0), (1097, 0), (1096, 1), (8, 4)):
        some = phases[first : first + count]
        results = (module.phase_tables(some, DTYPES[dtype]) for module in (CUDA_ON_HOST, NATIVE))
        for ours, theirs in zip(*results, strict=True):
            assert_same_bits(ours, theirs)


def tensors_by_steps(
    layout: str, rng: np.random.Generator, dtype: str, steps: str, tokens: int,
    heads: tuple[int, int, int], dim: int, pairs: int,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """q, k and steps of a layout; heads: of each."""
    sizes = {"b": 2, "s": tokens, "t": tokens, "d": dim}
    shapes = [tuple({**sizes, "h": h}[letter] for letter in layout) for h in heads]
    q, k = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes[:2])
    return q, k, steps_as(steps, rng, (*shapes[2][:-1], pairs))


def starts_of(layout: str, rng: np.random.Generator, tokens: int) -> np.ndarray | None:
    """Of five packed rows, empty ones among them."""
    if "t" not in layout:
        return None
    return np.sort(np.concatenate(([0, 0], rng.integers(0, tokens + 1, 3), [tokens])))


CASES_BY_STEPS = st.fixed_dictionaries({
    "dtype": st.sampled_from(sorted(DTYPES)),
    "steps": st.sampled_from(sorted(DTYPES)),
    "layout": st.sampled_from(["bshd", "bhsd", "thd", "sd", "htd"]),
    "tokens": st.sampled_from([1, 8, 15, 16, 17, 24, 25, 256, 512, 519]) | st.integers(1, 90),
    "heads": st.sampled_from([(1, 1, 1), (4, 2, 2), (6, 2, 1), (9, 0, 3), (5, 5, 5)]),
    "turned": st.sampled_from(
        [(64, 32, 0), (40, 16, 5), (12, 3, 3), (8, 4, 0), (18, 0, 0), (72, 32, 8), (16, 8, 0)]
    ),
    "pairing": st.sampled_from(["half", "interleaved", "blocks"]),
    "out": st.sampled_from(["same", "same", "interleaved", "half"]),
    "options": st.sampled_from([(1.0, False), (0.5, True)]),
    "state": st.booleans(),
    "order": st.sampled_from([(0, False), (5, True)]),
})  # fmt: skip


class ByTheSteps:
    """The tensors and options of one of these cases."""

    def __init__(
        self, dtype: str, steps: str, layout: str, tokens: int, heads: tuple[int, int, int],
        turned: tuple[int, int, int], pairing: Any, out: str, options: tuple[float, bool],
        state: bool, order: tuple[int, bool],
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(tokens)
        dim, pairs, start = turned
        if pairing == "blocks":
            pairing = 16 if pairs % 8 == 0 and pairs else 2
        self.heads = heads = heads if "h" in layout else (1, 1, 1)
        self.q, self.k, angles = tensors_by_steps(
            layout, rng, dtype, steps, tokens, heads, dim, pairs
        )
        self.grads = tuple(rng.standard_normal(x.shape).astype(x.dtype) for x in (self.q, self.k))
        starts = starts_of(layout, rng, tokens)
        rows = [2] if "b" in layout else [] if starts is None else [len(starts) - 1]
        of_heads = [heads[2]] if "h" in layout else []
        before = states(rng, *rows, *of_heads, pairs) if state else None
        self.given = (angles, before, starts, layout, pairing, start, *options, out)
        self.order = order


@settings(max_examples=100)
@given(CASES_BY_STEPS)
def test_rotations_by_steps(drawn):
    """Where segments begin and end, in new memory and in place."""
    case = ByTheSteps(**drawn)
    q, k, given_options = case.q, case.k, case.given
    CUDA_ON_HOST.simulate(*case.order)
    try:
        for in_place in (False, True):
            assert_agree("selective_rotary_qk", q, k, *given_options, in_place)
        ours, theirs = both("selective_rotary_qk", q, None, *given_options, False)
        assert_same_bits(ours[0], theirs[0])
        assert_same_bits(ours[2], theirs[2])
    finally:
        CUDA_ON_HOST.simulate()


@pytest.mark.parametrize(("tokens", "length"), [(1700, 16), (3400, 32)])
def test_longer_segments_have_the_same_bits(kernels_of, tokens, length):
    rng = np.random.default_rng(length)
    q, k, steps = tensors_by_steps("thd", rng, "bfloat16", "float32", tokens, (16, 16, 16), 128, 64)
    starts = np.array([0, 5, 5, 1200, tokens])
    given = (q, k, steps, states(rng, 4, 16, 64), starts, "thd", "half", 0, 1.0, False, "same")
    launches = kernels_of(lambda: CUDA_ON_HOST.selective_rotary_qk(*given, False))
    assert launches == [
        "SelectiveTotalsThread<float, 4>", "SelectiveScanThread<long int, 1>",
        "SelectiveThread<BFloat16, 4, false, float>",
    ]  # fmt: skip
    CUDA_ON_HOST.simulate()
    ours, theirs = (module.selective_rotary_qk(*given, False) for module in (CUDA_ON_HOST, NATIVE))
    for one, other in zip(ours, theirs, strict=True):
        assert_same_bits(one, other)


def test_few_tokens_take_one_launch(kernels_of):
    rng = np.random.default_rng(0)
    for tokens in (0, 1, 16, 17):
        q, k, steps = tensors_by_steps("bshd", rng, "float32", "float32", tokens, (2, 2, 2), 16, 8)
        given = (q, k, steps, None, None, "bshd", "half", 0, 1.0, False, "same", False)
        launches = kernels_of(lambda given=given: CUDA_ON_HOST.selective_rotary_qk(*given))
        assert len(launches) == (3 if tokens > 16 else 1)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_of_float64_beside_other_formats(dtype, pairing, kernels_of):
    """The same bits, by single numbers; forwards and back."""
    rng = np.random.default_rng(0)
    q, k, steps = tensors_by_steps("bshd", rng, dtype, "float64", 40, (4, 2, 2), 64, 32)
    given = (steps, None, None, "bshd", pairing, 0, 1.0, False, "same")
    call = ("selective_rotary_qk", q, k, *given, False)
    name = {"float16": "Float16", "bfloat16": "BFloat16", "float32": "float"}.get(dtype)
    wide = f"double, 2, {str(pairing == 'interleaved').lower()}"
    walk = f"<{wide if name is None else f'{name}, 1, false'}, double>"
    forwards = kernels_of(lambda: getattr(CUDA_ON_HOST, call[0])(*call[1:]))
    assert forwards[-1] == "SelectiveThread" + walk
    to = np.empty_like(steps)
    back = kernels_of(lambda: CUDA_ON_HOST.selective_rotary_backward((q, k), (q, k), *given, to))
    assert "SelectiveGradientThread" + walk in back
    CUDA_ON_HOST.simulate()
    assert_agree(*call)


def test_states_after_no_tokens():
    rng = np.random.default_rng(0)
    q, k, steps = tensors_by_steps("bshd", rng, "float32", "float32", 0, (2, 2, 2), 16, 8)
    before = states(rng, 2, 2, 8)
    given = (q, k, steps, before, None, "bshd", "half", 0, 1.0, False, "same", False)
    assert_same_bits(CUDA_ON_HOST.selective_rotary_qk(*given)[2], before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rotations_by_steps_at_any_address_and_stride(pairing, dtype):
    rng = np.random.default_rng(0)
    shape = (21, 3, 32)
    x, base = numbers(dtype, *shape), steps_as(dtype, rng, (21, 3, 66))
    for steps in (base[..., :16], base[..., 1:17], base[..., 0:32:2], base[:, ::-1, 31:15:-1]):
        for offset in range(0, 17, DTYPES[dtype].itemsize):
            given = (steps, None, None, "thd", pairing, 0, 1.0, False, "same")
            there = aligned_rows(shape, DTYPES[dtype], offset)
            there.array[...] = x
            CUDA_ON_HOST.selective_rotary_qk(there.array, None, *given, True)
            there.assert_rest_untouched()
            assert_same_bits(
                there.array.copy(), NATIVE.selective_rotary_qk(x, None, *given, False)[0]
            )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**31 * 1.001])
@pytest.mark.parametrize("tokens", [9, 75])
def test_what_is_no_angle_is_nan_to_the_end_of_its_row_and_pair(tokens, bad):
    rng = np.random.default_rng(0)
    q, k, steps = tensors_by_steps("thd", rng, "float32", "float32", tokens, (4, 2, 2), 16, 8)
    starts = np.array([0, 2, tokens - 3, tokens])
    given = ("thd", "half", 0, 1.0, False, "same", False)
    good = NATIVE.selective_rotary_qk(q, k, steps, None, starts, *given)
    steps[5, 1, 3] = bad
    found = CUDA_ON_HOST.selective_rotary_qk(q, k, steps, None, starts, *given)
    for ours, theirs, shared in zip(found[:2], good[:2], (2, 1), strict=True):
        lost = np.zeros(ours.shape, bool)
        lost[5 : tokens - 3, shared:, [3, 11]] = True
        assert np.isnan(ours[lost]).all()
        assert_same_bits(ours[~lost], theirs[~lost])


def gradients(
    q: np.ndarray, k: np.ndarray | None, grads: tuple[np.ndarray, ...], given: tuple[Any, ...]
) -> tuple[np.ndarray, ...]:
    tensors = (q,) if k is None else (q, k)
    of_steps = np.full_like(given[0], 7)
    of_x = CUDA_ON_HOST.selective_rotary_backward(grads, tensors, *given, of_steps)
    return (*of_x, of_steps)


@settings(max_examples=60)
@given(CASES_BY_STEPS)
def test_gradients_of_steps(drawn):
    """x has the bits of the CPU's operator; a step the sum of as many float32 (float64)."""
    torch = pytest.importorskip("torch")
    importlib.import_module("posenc_native.engines.torch")
    case = ByTheSteps(**drawn)
    q, k, grads = case.q, case.k, case.grads
    angles, before, starts, layout, pairing, start, scale, inverse, out = case.given
    CUDA_ON_HOST.simulate(*case.order)
    try:
        *of_x, of_steps = gradients(q, k, grads, case.given)
    finally:
        CUDA_ON_HOST.simulate()

    def tensor(array: np.ndarray | None) -> Any:
        if array is None:
            return None
        if array.dtype == DTYPES["bfloat16"]:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    expected = tensor(np.zeros_like(angles))
    by_torch = torch.ops.posenc_native.rotary_qk_by_steps_backward(
        *map(tensor, grads), tensor(q), tensor(k), expected, tensor(angles), tensor(before),
        tensor(starts), layout, str(pairing), start, scale, inverse, out,
    )  # fmt: skip
    for ours, theirs in zip(of_x, by_torch, strict=True):
        bits = theirs.view(torch.int16) if drawn["dtype"] == "bfloat16" else theirs
        assert_same_bits(ours, bits.numpy().view(ours.dtype))
    # Of every token and head a product, a fused product and an addition, and the order of heads.
    unit = 2.0**-53 if drawn["dtype"] == "float64" else 2.0**-24
    most = max(float(np.abs(x.astype(np.float64)).max(initial=0)) for x in (q, k, *of_x))
    heads = case.heads[0] + case.heads[1]
    bound = unit * drawn["tokens"] * heads * (heads + 2) * 2 * most**2
    theirs = expected.double().numpy()
    rounding = torch.finfo(getattr(torch, drawn["steps"])).eps
    error = np.abs(of_steps.astype(np.float64) - theirs)
    assert (error <= bound + rounding * (np.abs(theirs) + bound)).all(), error.max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tokens", [16, 75, 256, 1001])
@pytest.mark.parametrize("inverse", [False, True])
def test_sums_of_gradients_of_steps_lose_nothing(inverse, tokens, dtype):
    """Whole numbers, turned by nothing: sums of those of all tokens have more than 24 bits."""
    rng = np.random.default_rng(0)
    x, grad = (rng.integers(-2047, 2048, (tokens, 3, 8)).astype(dtype) for _ in range(2))
    starts = np.array([0, tokens // 3, tokens])
    steps = np.zeros((tokens, 3, 4))
    given = (steps, None, starts, "thd", "half", 0, 1.0, inverse, "same")
    of_x, of_steps = gradients(x, None, (grad,), given)
    assert_same_bits(of_x, grad)
    each = grad[..., 4:].astype(float) * x[..., :4] - grad[..., :4].astype(float) * x[..., 4:]
    rows = np.split(-each if inverse else each, starts[1:-1])
    expected = [np.cumsum(row[::-1], 0)[::-1] for row in rows]
    assert np.array_equal(of_steps, np.concatenate(expected))


@pytest.mark.parametrize("seed", range(30))
def test_any_starts_stay_within_the_tokens(as_before, seed):
    """A GPU does not look at them before: whatever they are, memory around is as it was."""
    rng = np.random.default_rng(seed)
    CUDA_ON_HOST.simulate(seed)
    tokens = int(rng.integers(1, 80))
    q, _, _ = tensors_by_steps("thd", rng, "float32", "float32", tokens, (2, 2, 2), 16, 8)
    starts = rng.choice([0, 1, tokens, tokens // 2, -1, 2**62, -(2**63), 2**63 - 1, tokens + 1], 6)
    steps, to = (aligned_rows((tokens, 2, 8), np.dtype(np.float32), 4) for _ in range(2))
    steps.array[...] = 0.5
    given = (steps.array, None, starts, "thd", "half", 0, 1.0, False, "same", to.array)
    CUDA_ON_HOST.selective_rotary_backward((q,), (q,), *given)
    to.assert_rest_untouched()
