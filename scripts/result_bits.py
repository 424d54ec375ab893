"""The bits of results: a fixed set of calls, one line for each with a hash of what it returns.

    POSENC_ISA=AVX2 python scripts/result_bits.py > avx2
    POSENC_ISA=AVX3 python scripts/result_bits.py | diff avx2 -

Every SIMD target with a fused multiply-add, which all but SSE4 have, gives the same lines;
scripts/aarch64.sh compares NEON's. The gradients of frequencies and positions are left out: they
are sums over heads or pairs in vectors, whose lengths differ. Inputs are made of integers and
divisions, which are the same everywhere, without pow or log of a C library.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

import posenc_native as pn
from posenc_native.engines import backend

DTYPES = [np.dtype(each) for each in ("float16", ml_dtypes.bfloat16, "float32", "float64")]
POSITIONS = {
    "count": 257,
    "int64": np.random.default_rng(1).integers(-(2**62), 2**62, 301),
    "uint8": np.arange(256, dtype=np.uint8),
    "float32": (np.random.default_rng(2).integers(-(2**20), 2**20, 301) / 64).astype(np.float32),
    "float64": np.random.default_rng(3).integers(-(2**50), 2**50, 301) / 2**30,
}
Line = tuple[str, tuple[Any, ...]]


def numbers(dtype: np.dtype, *shape: int) -> np.ndarray:
    """In [-4, 4], some of them small, subnormal in float16, or zero."""
    values = np.random.default_rng(sum(shape)).integers(-(2**20), 2**20, shape) / 2.0**18
    values.flat[::11] *= 2.0**-16
    values.flat[5] = 0
    return values.astype(dtype)


def frequencies(*shape: int) -> np.ndarray:
    """Radians per position, from 1 down to about 10^-4."""
    steps = np.random.default_rng(sum(shape)).integers(1, 101, (2, *shape))
    return 1 / (steps[0] * steps[1])


def sinusoidal() -> Iterator[Line]:
    for (kind, positions), dtype, layout, dim in itertools.product(
        POSITIONS.items(), DTYPES, ("interleaved", "sin_cos", "cos_sin"), (2, 6, 64, 130)
    ):
        table = pn.sinusoidal(positions, dim, layout=layout, dtype=dtype)
        yield f"sinusoidal {kind} {dtype} {layout} {dim}", (table,)
    for dtype, layout in itertools.product(DTYPES, ("interleaved", "sin_cos")):
        added = pn.add_sinusoidal(numbers(dtype, 2, 33, 46), alpha=0.3, layout=layout)
        yield f"add_sinusoidal {dtype} {layout}", (added,)


def rotary() -> Iterator[Line]:
    places = np.random.default_rng(4).integers(0, 2**40, 37)
    for dtype, pairing, dim in itertools.product(
        DTYPES, ("half", "interleaved", 8), (8, 64, 72, 128)
    ):
        name = f"{dtype} {pairing} {dim}"
        inv_freq = frequencies(dim // 2)
        q, k = numbers(dtype, 2, 3, 37, dim), numbers(dtype, 2, 1, 37, dim)
        for layout in ("bhsd", "bshd"):
            axes = [0, *(layout.index(each) for each in "hs"), 3]
            turned = pn.apply_rotary_qk(
                q.transpose(axes), k.transpose(axes), places, inv_freq,
                layout=layout, pairing=pairing,
            )  # fmt: skip
            yield f"apply_rotary_qk {name} {layout}", turned
        cos, sin = pn.rotary_tables(places, inv_freq)
        for compute in ("float32", "as_written"):
            tables = pn.Tables(cos, sin, compute=compute)
            turned = pn.apply_rotary_qk(q, k, None, tables, pairing=pairing)
            yield f"apply_rotary_qk by tables, {name} {compute}", turned
        gradients, _, _ = backend.implementation.rotary_backward(
            (q,), (q[::-1],), places % 512, inv_freq, "bhsd", pairing, 0, None, 1.0, False, True
        )
        yield f"rotary_backward {name}", gradients
    for dtype in DTYPES:
        x, by_axis = numbers(dtype, 2, 3, 37, 64), np.stack([places, places // 7])
        mapped = pn.apply_rotary(x, by_axis, frequencies(32), axis_map=np.arange(32) % 2)
        mixed = pn.apply_rotary(x, by_axis, frequencies(2, 3, 32))
        yield f"apply_rotary {dtype} of axes", (mapped, mixed)


def relative() -> Iterator[Line]:
    for dtype in DTYPES:
        scores, values = numbers(dtype, 2, 8, 33, 47), numbers(dtype, 2, 8, 33, 9)
        index = np.random.default_rng(5).integers(0, 9, 79)
        diagonals = pn.relative.alibi_diagonals(8, 33, 47, q_offset=0)  # slopes are powers of two
        yield f"toeplitz_bias {dtype}", (pn.toeplitz_bias(diagonals.astype(dtype), 33, 47),)
        yield f"add_toeplitz_bias {dtype}", (pn.add_toeplitz_bias(scores, diagonals),)
        yield f"diagonal_sums {dtype}", (pn.diagonal_sums(scores),)
        yield f"relative_gather {dtype}", (pn.relative_gather(values, index, 47),)
        yield f"relative_scatter {dtype}", (pn.relative_scatter(scores, index, 9),)


if __name__ == "__main__":
    for name, results in itertools.chain(sinusoidal(), rotary(), relative()):
        digest = hashlib.sha256()
        for result in results:
            digest.update(np.ascontiguousarray(result).tobytes())
        print(name, digest.hexdigest()[:16])
