"""The CUDA kernels on the host: what a GPU's threads do, one after another.

posenc_native._cuda_on_host is the native module with the kernels of csrc/cuda in the place of the
CPU's (csrc/cuda/on_host.cu, compiled by nvcc): the same checks before them, the same launch
geometry, on a grid so small that blocks do several pieces, and shared memory that is not a number
until it is written. All tests with the `target` fixture run over it too. Here are the shapes where
such kernels break, compared bit by bit with the CPU's kernels.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import aligned_rows
from conftest import CUDA_ON_HOST, NATIVE, NEEDS_CUDA_ON_HOST, NEEDS_NATIVE, TARGETS
from oracle import DTYPES, assert_same_bits

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


def frequencies(pairs: int) -> np.ndarray:
    return 1e4 ** (-np.arange(pairs) / max(pairs, 1))


def numbers(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(DTYPES[dtype])


def both(name: str, *arguments: Any) -> tuple[Any, Any]:
    """What the CUDA kernels and the CPU's give, each from its own copy of the arguments."""
    results = []
    for module in (CUDA_ON_HOST, NATIVE):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        results.append(getattr(module, name)(*copies))
    return results[0], results[1]


def assert_rotations_agree(
    q: np.ndarray, k: np.ndarray, positions: Any, inv_freq: np.ndarray, layout: str, pairing: Any,
    start: int = 0, axis_map: Any = None, scale: float = 1.0, inverse: bool = False,
) -> None:  # fmt: skip
    """q with k, q alone, from tables; functional and in place."""
    options = (layout, pairing, start, axis_map, scale, inverse)
    for inplace in (False, True):
        for ours, theirs in zip(
            *both("apply_rotary_qk", q, k, positions, inv_freq, *options, inplace), strict=True
        ):
            assert_same_bits(ours, theirs)
    assert_same_bits(*both("apply_rotary", q, positions, inv_freq, *options, None))
    if positions is not None:
        for dtype in (np.float16, np.float32, np.float64):
            cos, sin = NATIVE.rotary_tables(positions, inv_freq, axis_map, scale, np.dtype(dtype))
            tables = (cos, sin, layout, pairing, start, inverse)
            assert_same_bits(*both("apply_rotary_tables", q, *tables, None))
            for inplace in (False, True):
                pairs = both("apply_rotary_qk_tables", q, k, *tables, inplace)
                for ours, theirs in zip(*pairs, strict=True):
                    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(
    "dim", [32, 36, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576]
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
@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8), (2, 3, 0)])
def test_nothing_to_do(shape, dtype):
    x = numbers(dtype, *shape)
    inv_freq = frequencies(shape[-1] // 2)
    options = ("hsd", "half", 0, None, 1.0, False, None)
    assert_same_bits(*both("apply_rotary", x, None, inv_freq, *options))
    rows = ("sin_cos", 0.0, 1.0, np.dtype(DTYPES[dtype]), None)
    assert_same_bits(*both("sinusoidal", np.zeros(shape[:2]), shape[-1], 1e4, *rows))
    options = (1.0, 1.0, 1e4, "interleaved", 0.0, 1.0, None)
    assert_same_bits(*both("add_sinusoidal", x, None, *options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
@pytest.mark.parametrize("dim", [2, 6, 16, 30, 126, 512, 4098, 8192, 8194, 20000])
def test_tables(dim, layout, dtype):
    """Wide ones take two launches: a sequence of frequencies has 4096 pairs at most."""
    spec = (dim, 1e4, layout, 1.0 if dim > 2 else 0.0, -0.3, np.dtype(DTYPES[dtype]), None)
    for positions in (37, np.array([[2**40, -5, 0], [1, 2, 10**6]]), np.array([0.25, -1e6])):
        assert_same_bits(*both("sinusoidal", positions, *spec))
    x = numbers(dtype, 3, 2, 7, dim)
    options = (3.0, 0.5, 1e4, layout, 0.0, 1.0, None)
    for positions in (None, np.arange(7) * 99, np.arange(42).reshape(3, 2, 7)):
        assert_same_bits(*both("add_sinusoidal", x, positions, *options))


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_and_many_repetitions(dtype):
    table = (64, 1e4, "interleaved", 0.0, 1.0, np.dtype(DTYPES[dtype]), None)
    assert_same_bits(*both("sinusoidal", 5001, *table))
    options = (1.0, 1.0, 1e4, "sin_cos", 0.0, 1.0, None)
    assert_same_bits(*both("add_sinusoidal", numbers(dtype, 301, 1, 32), None, *options))
    assert_same_bits(*both("add_sinusoidal", numbers(dtype, 2, 1, 301, 16), None, *options))


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


def test_pieces_beyond_the_two_to_the_31st(tmp_path):
    """The last piece of a launch of 2^33 + 5 rows, all of which lie in the same place."""
    nvcc = shutil.which(os.environ.get("CUDACXX", "nvcc"))
    sources = Path(__file__).parent.parent / "csrc"
    if nvcc is None or not sources.is_dir():
        pytest.skip("needs nvcc and the C++ sources")
    program = tmp_path / "last_piece"
    source = Path(__file__).with_name("last_piece.cu")
    core = [sources / "core" / name for name in ("angles.cc", "sinusoidal.cc", "view.cc")]
    flags = ["-std=c++17", "-I", sources, "-Xcompiler=-ffp-contract=off", "-arch=sm_90"]
    subprocess.run([nvcc, *flags, source, *core, "-o", program], check=True)
    output = subprocess.run([program], stdout=subprocess.PIPE, check=True).stdout
    rotated, table = np.frombuffer(output, np.float32).reshape(2, 64)
    last = np.array([2**33 + 4])
    x = np.arange(64, dtype=np.float32)[None]
    options = ("sd", "half", 0, None, 1.0, False)
    inv_freq = 1.0 / (1.0 + np.arange(32))
    assert_same_bits(rotated[None], NATIVE.apply_rotary(x, last, inv_freq, *options, None))
    spec = (64, 1e4, "interleaved", 0.0, 1.0)
    assert_same_bits(table[None], NATIVE.sinusoidal(last, *spec, np.dtype(np.float32), None))
