"""What is timed of queries and keys as engines have them: slices of a step's packed projection,
[tokens, (heads of q, k and v) * head_dim], rotated in place, from one token to a long prompt.

Ranks of tensor parallelism have so few heads that a step stays in the cache. The peer is vLLM's own
operator for the CPU, which reads a table of cosines and sines in the model's dtype.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Job, Skipped
from benchmarks.figures.judging import AtLeast, Rule
from benchmarks.peers.contestants import (
    BASE,
    Options,
    Row,
    address,
    label,
    many,
    missing,
    normal,
    ours,
    tolerance,
)

VLLM, VLLM_MODULE = "vLLM, its operator", "vllm._custom_ops"
GOALS = (Rule("^packed, ", "in place", (AtLeast(1.0, of=VLLM),)),)

# Heads of q and of k (and v), and head_dim.
SHAPES = ((4, 1, 128), (8, 4, 64), (32, 8, 128))
TOKENS = (1, 16, 512, 4096)


class _Step:
    """What the projection wrote for the tokens of a step, and a copy of it."""

    def __init__(
        self, tokens: int, q_heads: int, k_heads: int, dim: int, dtype: torch.dtype
    ) -> None:
        widths = [q_heads * dim, k_heads * dim, k_heads * dim]
        self.qkv = normal(tokens * sum(widths), dtype).reshape(tokens, -1)
        self.flat_q, self.flat_k, _ = self.qkv.split(widths, -1)
        self.q, self.k = (
            x.unflatten(-1, (heads, dim))
            for x, heads in ((self.flat_q, q_heads), (self.flat_k, k_heads))
        )
        self.room = self.qkv.clone()
        self.work, self.out = address(self.qkv), address(self.room)
        self.nbytes = self.q.nbytes + self.k.nbytes


def _packed(
    options: Options, tokens: int, shape: tuple[int, int, int], dtype: torch.dtype, threads: int,
    name: str,
) -> Case:  # fmt: skip
    dim = shape[2]
    step = _Step(tokens, *shape, dtype)
    positions = torch.tensor([4095]) if tokens == 1 else torch.arange(tokens)
    inv_freq = torch.from_numpy(pn.rotary.rotary_frequencies(dim, BASE)[0])
    cos, sin = pn.rotary_tables(positions, inv_freq)
    tables = pn.Tables(cos, sin)
    rope = pn.Rotary(dim, base=BASE, layout="thd")
    operators = torch.ops.posenc_native

    def rotate(b: _Step, inplace: bool = True) -> Any:
        return pn.apply_rotary_qk(b.q, b.k, positions, inv_freq, layout="thd", inplace=inplace)

    def by_tables(b: _Step) -> None:
        pn.apply_rotary_qk(b.q, b.k, None, tables, layout="thd", inplace=True)

    calls: dict[str, Callable[[_Step], Any]] = {
        "apply_rotary_qk": rotate,
        "apply_rotary_qk, tables ready": by_tables,
        "operator": lambda b: operators.rotary_qk_(b.q, b.k, positions, inv_freq, "thd"),
        "operator, tables ready": lambda b: operators.rotary_qk_from_tables_(
            b.q, b.k, cos, sin, "thd"
        ),
        "Rotary": lambda b: rope(b.q, b.k, positions, inplace=True),
    }
    rows: list[Row] = [ours(name, "in place", run) for name, run in calls.items()]
    if reason := missing(VLLM_MODULE):
        rows.append(Skipped(VLLM, "in place", reason))
    else:
        custom: Any = importlib.import_module(VLLM_MODULE)
        every = torch.arange(4096)[:, None] * inv_freq
        cache = torch.cat((every.cos(), every.sin()), -1).to(dtype)

        def operator(b: _Step) -> None:
            custom.rotary_embedding(positions, b.flat_q, b.flat_k, dim, cache, True)

        rows.append(Contestant(VLLM, "in place", operator, "in-place scale"))
    job = Job(
        functools.partial(rotate, inplace=False),
        lambda b: (b.q, b.k),
        lambda b: (b.q, b.k),
        tolerance(dtype, positions.numpy()),
        lambda b: b.qkv,
    )
    # A sample is about as long whatever the tokens are.
    rows = many(options, rows, max(1, 400 // tokens))
    return Case(name, threads, [step], rows, in_cache=True, job=job)


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As rotary.cases, of every shape in two formats."""
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    for dtype in (torch.bfloat16, torch.float32):
        for shape in SHAPES:
            q_heads, k_heads, dim = shape
            for tokens in TOKENS:
                size = f"q {q_heads} + k {k_heads} + v {k_heads} heads x {dim}"
                seq = options.size(tokens, min(tokens, 64))
                name = f"packed, {seq} x ({size}), {label(dtype)}, {suffix}"
                yield name, functools.partial(_packed, options, seq, shape, dtype, threads, name)
