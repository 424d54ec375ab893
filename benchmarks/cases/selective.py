"""What is timed where data decide the angles: a sequence forwards and backwards, and one token.

The peer is what published code for the CPU comes to: a cumulative sum, cosines and sines of it,
products and a concatenation, in float32.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Job
from benchmarks.peers.contestants import (
    HEAD_DIM,
    NOTHING,
    Options,
    Row,
    address,
    compile_row,
    label,
    many,
    normal,
    ours,
    tolerance,
    yardstick,
)

HEADS = 8


class _Tokens:
    """q, k [1, s, heads, d], their results, and steps of every head, as cold as q and k are.

    The memory limits read and write q, k and half of the bytes of steps: as many bytes as q and k
    read and written and steps read.
    """

    def __init__(self, seq: int, dtype: Any) -> None:
        shape, of_steps = (1, seq, HEADS, HEAD_DIM), (1, seq, HEADS, HEAD_DIM // 2)
        count, more = seq * HEADS * HEAD_DIM, seq * HEADS * HEAD_DIM // 2
        work, out = (normal(2 * count + more // 2, dtype) for _ in range(2))
        self.q, self.k = (work[i * count : (i + 1) * count].reshape(shape) for i in (0, 1))
        self.out_q, self.out_k = (out[i * count : (i + 1) * count].reshape(shape) for i in (0, 1))
        self.steps = (normal(more, dtype) * 0.1).reshape(of_steps)
        if isinstance(dtype, torch.dtype):
            self.steps = self.steps.to(dtype)
        self.work, self.out, self.nbytes = address(work), address(out), work.nbytes


def recipe(q: torch.Tensor, k: torch.Tensor, steps: torch.Tensor) -> tuple[Any, Any]:
    """q and k turned by a cumulative sum in float32."""
    angles = steps.float().cumsum(1)
    cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    return turned(q), turned(k)


def _own(q: Any, k: Any, steps: Any, **to: Any) -> Any:
    return pn.selective_rotary_qk(q, k, steps, layout="bshd", **to)[:2]


def _forwards(options: Options, seq: int, dtype: Any, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: _Tokens(seq, dtype))

    def call(function: Callable[..., Any], b: _Tokens) -> Any:
        return function(b.q, b.k, b.steps)

    title = "selective_rotary_qk"
    rows: list[Row] = [
        ours(title, "out=", lambda b: _own(b.q, b.k, b.steps, out=(b.out_q, b.out_k))),
        ours(title, "in place", lambda b: _own(b.q, b.k, b.steps, inplace=True)),
        ours(title, "fresh", functools.partial(call, _own)),
    ]
    if isinstance(dtype, torch.dtype):
        rows += [
            Contestant("the recipe, eager", "fresh", functools.partial(call, recipe), "copy"),
            compile_row(options, "the recipe, torch.compile", recipe, call, "copy"),
        ]
    # A sum in float32 of thousands of steps drifts.
    error = tolerance(dtype, np.zeros(1)) + seq * 2.0**-20
    job = Job(functools.partial(call, _own), lambda b: (b.q, b.k), lambda b: (b.out_q, b.out_k),
              error)  # fmt: skip
    return Case(name, threads, sets, rows, job=job)


def _both_ways(options: Options, seq: int, dtype: Any, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: _Tokens(seq, dtype))

    def train(function: Callable[..., Any], b: _Tokens) -> Any:
        inputs = [x.detach().requires_grad_() for x in (b.q, b.k, b.steps)]
        return torch.autograd.grad(function(*inputs), inputs, (b.out_q, b.out_k))

    rows: list[Row] = [
        ours("selective_rotary_qk", "fresh", functools.partial(train, _own)),
        Contestant("the recipe, eager", "fresh", functools.partial(train, recipe), "copy",
                   checked=False),
        compile_row(options, "the recipe, torch.compile", recipe, train, "copy"),
    ]  # fmt: skip
    return Case(name, threads, sets, rows)


def _one_token(options: Options, dtype: torch.dtype, name: str) -> Case:
    buffers, arrays = _Tokens(1, dtype), _Tokens(1, np.dtype("float32"))
    state = torch.zeros(1, HEADS, HEAD_DIM // 2, dtype=torch.int64)
    of_arrays = state.numpy()

    def from_numpy(_: _Tokens) -> None:
        pn.selective_rotary_qk(arrays.q, arrays.k, arrays.steps, state=of_arrays, layout="bshd")

    def call(function: Callable[..., Any], b: _Tokens) -> Any:
        return function(b.q, b.k, b.steps)

    rows: list[Row] = [
        ours("torch: selective_rotary_qk", "fresh",
             functools.partial(call, functools.partial(_own, state=state))),
        dataclasses.replace(ours("NumPy: selective_rotary_qk", "fresh", from_numpy), checked=False),
        Contestant("the recipe, eager", "fresh", functools.partial(call, recipe), "copy"),
        yardstick("torch.neg", "fresh", lambda b: torch.neg(b.q), "copy"),
        NOTHING,
    ]  # fmt: skip
    return Case(name, 1, [buffers], many(options, rows), True)


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As rotary.cases."""
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    seq = options.size(4096, 64)
    size = f"q 8 + k 8 heads x {seq} x {HEAD_DIM}"
    kinds: tuple[Any, ...] = (torch.float32, torch.bfloat16)
    for dtype in (*kinds, np.dtype("float32")):
        name = f"selective: steps of each head, {size}, {label(dtype)}, {suffix}"
        yield name, functools.partial(_forwards, options, seq, dtype, threads, name)
    for dtype in kinds:
        name = f"selective: forward and backward, {size}, {label(dtype)}, {suffix}"
        yield name, functools.partial(_both_ways, options, seq, dtype, threads, name)
        if threads == 1:
            name = (
                f"decode, data decide, q 8 + k 8 heads x 1 x {HEAD_DIM}, {label(dtype)}, {suffix}"
            )
            yield name, functools.partial(_one_token, options, dtype, name)
