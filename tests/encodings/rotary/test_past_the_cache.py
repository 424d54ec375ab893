"""Rows written past the cache: the bits of rows written into it, and nothing beside them."""

from __future__ import annotations

import numpy as np
from arrays import unsigned
from matrices import product
from oracle import DTYPES, assert_same_bits
from targets import NEEDS_NATIVE, written_past_the_cache

import posenc_native as pn

pytestmark = NEEDS_NATIVE

# Sizes in bytes matter: whole lines, whole vectors, neither.
HEAD_DIMS = [16, 32, 48, 64, 72, 80, 96, 128, 160, 256, 1024]
# Batch, heads and tokens: more heads and tokens than are rotated side by side, so that
# some are left over.
SHAPES = {"bhsd": (2, 11, 13), "bshd": (2, 13, 11)}


def surrounded(shape: tuple[int, ...], gap: int, offset: int, dtype: np.dtype):
    """An array of rows with `gap` numbers between them, `offset` bytes beyond a line, and all of
    the memory that it lies in."""
    rows = int(np.prod(shape[:-1]))
    size = rows * (shape[-1] + gap)
    memory = np.zeros((size + 512) * dtype.itemsize, np.uint8)
    first = -memory.ctypes.data % 64 + 64 + offset
    numbers = memory[first : first + size * dtype.itemsize].view(dtype)
    numbers = numbers.reshape(*shape[:-1], shape[-1] + gap)
    return numbers[..., : shape[-1]], memory


@product(pairing=["half", "interleaved", 16], layout=SHAPES, dtype=DTYPES)
def test_rows_at_any_place(target, dtype, layout, pairing):
    rng = np.random.default_rng(3)
    number = np.dtype(DTYPES[dtype])
    for head_dim in HEAD_DIMS:
        shape = (*SHAPES[layout], head_dim)
        for rotated, start in {(head_dim, 0), (head_dim // 2, 0), (head_dim // 2, head_dim // 4)}:
            if pairing == 16 and rotated % 16:
                continue
            inv_freq = pn.rotary.rotary_frequencies(rotated)[0]
            options = {"layout": layout, "pairing": pairing, "rotary_start": start}
            in_gap, out_gap = rng.choice([0, 0, head_dim, 32], 2)
            x, _ = surrounded(shape, in_gap, 0, number)
            x[...] = rng.standard_normal(shape)
            expected = pn.apply_rotary(x, None, inv_freq, **options)
            for offset in (0, number.itemsize, 16, 32, 48, 64 - number.itemsize):
                out, memory = surrounded(shape, out_gap, offset, number)
                with written_past_the_cache():
                    pn.apply_rotary(x, None, inv_freq, out=out, **options)
                assert_same_bits(out, expected)
                unsigned(out)[...] = 0
                assert not memory.any(), (head_dim, rotated, start, in_gap, out_gap, offset)
