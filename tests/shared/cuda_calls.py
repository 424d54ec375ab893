"""Every function of tensors, called on a CUDA device."""

from __future__ import annotations

import pytest
import torch
import torch_cases
from torch_cases import assert_same_bits, random

import posenc_native as pn
from posenc_native import nn as pnn

HEAD_DIM = 16
SHAPE = (2, 3, 5, HEAD_DIM)


def inv_freq(device="cuda", dim=HEAD_DIM):
    return torch.tensor(pn.rotary.rotary_frequencies(dim)[0], device=device)


class Inputs:
    """Arguments on a device; made anew, they are the same numbers."""

    def __init__(self, device="cuda", dtype=torch.float32, shape=SHAPE):
        self.x, self.other = (random(shape, dtype, device, seed) for seed in (0, 1))
        self.k = random((shape[0], 1, *shape[2:]), dtype, device, seed=2)
        self.out = torch.full_like(self.x, -7.0)  # no NaN: devices differ in its bits
        self.positions = torch.arange(shape[2], device=device) * 1000 + 2**33
        self.fractions = self.positions.double() + 0.25
        self.axes = torch.stack([self.positions, self.positions - 2**33])
        self.axis_map = torch.arange(HEAD_DIM // 2, device=device) % 2
        self.f = inv_freq(device)
        self.cos, self.sin = pn.rotary_tables(self.positions, self.f)
        self.steps = random((shape[0], 1, shape[2], HEAD_DIM // 2), dtype, device, seed=5)
        self.state = torch.arange(shape[0] * HEAD_DIM // 2, device=device) << 50
        self.state = self.state.view(shape[0], 1, -1)
        self.table = torch.full((shape[2], HEAD_DIM), -7.0, dtype=dtype, device=device)
        # Relative: scores of 5 queries and keys of which there are two windows in longer diagonals.
        queries, keys = shape[2:]
        self.diagonals = random((shape[1], queries + keys + 3), dtype, device, seed=3)
        self.offsets = torch.arange(shape[0], device=device)
        self.window = {"q_offset": self.offsets, "origin": queries + 2}
        self.bias = torch.full_like(self.x, -7.0)
        # Whole numbers: the order of sums does not show.
        self.whole = (self.x * 4).round()
        self.wide = random((*shape[:3], 9), dtype, device, seed=4)
        self.wide_out = torch.full_like(self.wide, -7.0)
        self.index = torch.arange(queries + keys + 3, device=device).clamp(3, 11) - 3
        # Pages of four slots; a slot is not written.
        self.keys, self.values = (
            torch.full((8, 4, 1, HEAD_DIM), -7.0, dtype=dtype, device=device) for _ in range(2)
        )
        self.slots = torch.arange(shape[0] * shape[2], device=device).view(shape[0], -1) - 1
        self.tensors = [self.x, self.other, self.k, self.out, self.table, self.bias, self.wide_out]


ROPE = pn.Rotary(HEAD_DIM, base=5e5)
MODULE = pnn.RotaryEmbedding(HEAD_DIM, base=5e5)
ENCODE = pnn.SinusoidalPositionalEncoding(HEAD_DIM, 0.0, base=5e5)

# Every function of tensors, functional, in place and by out=. Each returns what it wrote.
CALLS = {
    "sinusoidal": lambda i: pn.sinusoidal(i.positions, HEAD_DIM),
    "sinusoidal float64": lambda i: pn.sinusoidal(i.fractions, HEAD_DIM, dtype=torch.float64),
    "sinusoidal of an int": lambda i: pn.sinusoidal(7, HEAD_DIM, device=i.x.device),
    "sinusoidal out": lambda i: pn.sinusoidal(i.positions, HEAD_DIM, out=i.table),
    "add_sinusoidal": lambda i: pn.add_sinusoidal(i.x, i.positions, x_scale=2.0),
    "add_sinusoidal in place": lambda i: pn.add_sinusoidal(i.x, out=i.x),
    "add_sinusoidal out": lambda i: pn.add_sinusoidal(i.x, i.fractions, out=i.out),
    "rotary_tables": lambda i: pn.rotary_tables(i.positions, i.f),
    "rotary_tables axes": lambda i: pn.rotary_tables(i.axes, i.f, axis_map=i.axis_map),
    "apply_rotary": lambda i: pn.apply_rotary(i.x, i.positions, i.f),
    "apply_rotary axes": lambda i: pn.apply_rotary(i.x, i.axes, i.f, axis_map=i.axis_map),
    "apply_rotary in place": lambda i: pn.apply_rotary(i.x, i.fractions, i.f, out=i.x),
    "apply_rotary out": lambda i: pn.apply_rotary(i.x, None, i.f, pairing="interleaved", out=i.out),
    "apply_rotary_qk": lambda i: pn.apply_rotary_qk(i.x, i.k, i.positions, i.f),
    "apply_rotary_qk in place": lambda i: pn.apply_rotary_qk(i.x, i.k, None, i.f, inplace=True),
    "apply_rotary of pairs that move": lambda i: pn.apply_rotary(
        i.x, i.positions, i.f, pairing="interleaved", out_pairing="half"
    ),
    "apply_rotary_qk of pairs that move in place": lambda i: pn.apply_rotary_qk(
        i.x, i.k, None, i.f, out_pairing="interleaved", inplace=True
    ),
    "apply_rotary by tables": lambda i: pn.apply_rotary(i.x, None, pn.Tables(i.cos, i.sin)),
    "apply_rotary by tables in place": lambda i: pn.apply_rotary(
        i.x, None, pn.Tables(i.cos, i.sin), out=i.x
    ),
    "apply_rotary by tables out": lambda i: pn.apply_rotary(
        i.x, None, pn.Tables(i.cos, i.sin), out=i.out
    ),
    "apply_rotary_qk by tables": lambda i: pn.apply_rotary_qk(
        i.x, i.k, None, pn.Tables(i.cos, i.sin)
    ),
    "apply_rotary_qk by tables in place": lambda i: pn.apply_rotary_qk(
        i.x, i.k, None, pn.Tables(i.cos, i.sin), pairing="interleaved", inplace=True
    ),
    "selective_rotary_qk": lambda i: pn.selective_rotary_qk(
        i.x, i.k, i.steps, state=i.state, layout="bhsd"),
    "selective_rotary_qk in place": lambda i: pn.selective_rotary_qk(
        i.x, i.k, i.steps, layout="bhsd", pairing="interleaved", inplace=True),
    "selective_rotary_qk out": lambda i: pn.selective_rotary_qk(
        i.x, None, i.steps, layout="bhsd", out=(i.out, None))[::2],
    "accumulated_phases": lambda i: (
        pn.selective.accumulated_phases(i.steps, axis=2, state=i.state),
    ),
    "phase_tables": lambda i: pn.selective.phase_tables(i.state, dtype=torch.bfloat16),
    "norm_rotary_qk": lambda i: pn.norm_rotary_qk(
        i.x, i.k, i.positions, i.f, q_weight=i.x[0, :, 0], norm_over="token"
    ),
    "norm_rotary_qk in place": lambda i: pn.norm_rotary_qk(
        i.x, i.k, i.fractions, i.f, weight_offset=1.0, norm_first=False, inplace=True
    ),
    "norm_rotary_qk by tables": lambda i: pn.norm_rotary_qk(
        i.x, i.k, None, pn.Tables(i.cos, i.sin, compute="as_written"), q_weight=i.x[0, 0, 0]
    ),
    "rotary_append": lambda i: (
        *pn.rotary_append(i.x, i.k, i.k.clone(), None, i.f, i.keys, i.values, i.slots,
                          cache_layout="pshd", return_k=True),
        i.keys, i.values,
    ),
    "toeplitz_bias": lambda i: pn.toeplitz_bias(i.diagonals, *i.x.shape[2:], **i.window),
    "toeplitz_bias out": lambda i: pn.toeplitz_bias(
        i.diagonals, *i.x.shape[2:], out=i.bias, **i.window
    ),
    "add_toeplitz_bias": lambda i: pn.add_toeplitz_bias(i.x, i.diagonals, **i.window),
    "add_toeplitz_bias in place": lambda i: pn.add_toeplitz_bias(
        i.x, i.diagonals, out=i.x, **i.window
    ),
    "add_toeplitz_bias out": lambda i: pn.add_toeplitz_bias(
        i.x, i.diagonals, out=i.out, **i.window
    ),
    "add_toeplitz_bias of a grid": lambda i: pn.add_toeplitz_bias(
        i.x, i.diagonals[:, : i.x.shape[2] + 15, None], q_len=(i.x.shape[2], 1), k_len=(16, 1)
    ),
    "diagonal_sums": lambda i: pn.diagonal_sums(i.x, entries=i.diagonals.shape[1], **i.window),
    "diagonal_sums kept": lambda i: pn.diagonal_sums(i.x, keep=2),
    "relative_gather": lambda i: pn.relative_gather(i.wide, i.index, 16, **i.window),
    "relative_gather content": lambda i: pn.relative_gather(
        i.wide, i.index, 16, content=i.x, scale=0.3, out=i.out, **i.window
    ),
    "relative_gather shift": lambda i: pn.relative_gather(i.wide, None, 16),
    "relative_scatter": lambda i: pn.relative_scatter(i.whole, i.index, 9, **i.window),
    "relative_scatter out": lambda i: pn.relative_scatter(
        i.whole, i.index, 9, scale=0.5, out=i.wide_out, **i.window
    ),
    "relative_scatter shift": lambda i: pn.relative_scatter(i.x, None, 9, scale=0.3),
    "Rotary": lambda i: ROPE(i.x, i.k, i.positions),
    "Rotary in place": lambda i: ROPE(i.x, i.k, i.positions, inplace=True),
    "Rotary.tables": lambda i: ROPE.tables(i.positions),
    "nn.RotaryEmbedding": lambda i: MODULE(i.x, i.k, i.positions),
    "nn.SinusoidalPositionalEncoding": lambda i: ENCODE(i.x, i.positions),
}  # fmt: skip
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def assert_all_same(results, expected):
    for result, e in zip(as_tuple(results), as_tuple(expected), strict=True):
        assert_same_bits(result, e)


@pytest.fixture(autouse=True)
def kernels():
    if reason := torch_cases.why_no_kernels("cuda"):
        pytest.skip(reason)
