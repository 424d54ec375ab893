"""What is timed: Transformer-XL's shift of position scores, and Shaw's scores."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Skipped
from benchmarks.figures.judging import AtMost, Rule
from benchmarks.peers.contestants import (
    Options,
    Row,
    address,
    compile_row,
    missing,
    ours,
    yardstick,
)
from posenc_native import nn

from .rotary import ALONE
from .scores import HEADS, frozen, job_of, sums_job

# What is to be reached on one thread.
GOALS = (Rule(f"^relative: shift, \\d+ x .*{ALONE}", "out=", (AtMost(1.2),)),)


# ------------------------------------------------------------------------------------------- shifts


class _Shift:
    """Position scores with a column for each distance, content scores, and room for a result."""

    def __init__(self, length: int, *, in_place: bool = False) -> None:
        self.x = torch.randn(1, HEADS, length, 2 * length - 1)
        self.result = torch.randn(1, HEADS, length, length)  # the content scores
        self.nbytes = self.result.nbytes
        self.work, self.out = address(self.x), address(self.result)
        if in_place:
            self.work, self.out = self.out, self.work


def strided_shift(x: torch.Tensor) -> torch.Tensor:
    """The relative shift as a view: rows that begin one entry earlier each."""
    batch, heads, length, width = x.shape
    strides = (*x.stride()[:2], width - 1, 1)
    return x.as_strided((batch, heads, length, length), strides, x.storage_offset() + length - 1)


def conformer_shift() -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The shift of transformers: a view of a padded copy. The method does not use self."""
    name = "transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer"
    if missing("transformers", name):
        return None
    attention = importlib.import_module(name).FastSpeech2ConformerAttention
    return functools.partial(attention.shift_relative_position_tensor, None)


CONFORMER = "transformers (FastSpeech2)"


def shift_alone(options: Options, length: int, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: _Shift(length))
    job = job_of(torch.float32, lambda b: pn.relative_gather(b.x, None, length), lambda b: b.result)
    rows: list[Row] = [
        ours(
            "relative_gather", "out=", lambda b: pn.relative_gather(b.x, None, length, out=b.result)
        ),
        ours("relative_gather", "fresh", lambda b: pn.relative_gather(b.x, None, length)),
        Contestant(
            "as_strided, copy_", "out=", lambda b: b.result.copy_(strided_shift(b.x)), "copy"
        ),
        Contestant("as_strided, clone", "fresh", lambda b: strided_shift(b.x).contiguous(), "copy"),
    ]
    if (shift := conformer_shift()) is None:
        rows.append(Skipped(CONFORMER, "fresh", missing("transformers") or "not in this release"))
        return Case(name, threads, sets, rows, job=job)

    def contiguous(x: torch.Tensor) -> torch.Tensor:
        return shift(x).contiguous()

    def call(function: Callable[..., Any], b: _Shift) -> Any:
        return function(b.x)

    rows += [
        Contestant(f"{CONFORMER}, a view", "fresh", functools.partial(call, shift), "copy"),
        compile_row(options, f"{CONFORMER}, compiled", contiguous, call, "copy"),
    ]
    return Case(name, threads, sets, rows, job=job)


def shift_onto_content(options: Options, length: int, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: _Shift(length, in_place=True))
    limit = "in-place add"

    def gather(b: _Shift) -> Any:
        return pn.relative_gather(b.x, None, length, content=b.result, scale=0.5, out=b.result)

    def gather_fresh(b: _Shift) -> Any:
        return pn.relative_gather(b.x, None, length, content=b.result, scale=0.5)

    job = job_of(torch.float32, gather_fresh, lambda b: b.result)
    rows: list[Row] = [
        ours("relative_gather, content, scale", "in place", gather, limit=limit),
        ours("relative_gather, content, scale", "fresh", gather_fresh, limit=limit),
        Contestant(
            "as_strided, add_, mul_",
            "in place",
            lambda b: b.result.add_(strided_shift(b.x)).mul_(0.5),
            limit,
        ),
    ]
    if (shift := conformer_shift()) is None:
        rows.append(Skipped(CONFORMER, "fresh", missing("transformers") or "not in this release"))
        return Case(name, threads, sets, rows, job=job)

    def scores(content: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (content + shift(x)) * 0.5

    def call(function: Callable[..., Any], b: _Shift) -> Any:
        return function(b.result, b.x)

    rows += [
        Contestant(
            f"{CONFORMER}, eager", "in place", lambda b: b.result.add_(shift(b.x)).mul_(0.5), limit
        ),
        Contestant(f"{CONFORMER}, eager", "fresh", functools.partial(call, scores), limit),
        compile_row(options, f"{CONFORMER}, compiled", scores, call, limit),
    ]
    return Case(name, threads, sets, rows, job=job)


def shift_and_back(options: Options, length: int, threads: int, name: str) -> Case:
    """The shift and its transpose, all results fresh."""
    sets = options.make_sets(lambda: _Shift(length))

    def call(function: Callable[..., Any], b: _Shift) -> Any:
        x = b.x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, b.result)

    def gather(x: torch.Tensor) -> Any:
        return pn.relative_gather(x, None, length)

    job = job_of(torch.float32, lambda b: call(gather, b)[0], lambda b: b.result)
    rows: list[Row] = [
        Contestant("relative_gather", "fresh", functools.partial(call, gather), ours=True)
    ]
    if (shift := conformer_shift()) is None:
        rows.append(Skipped(CONFORMER, "fresh", missing("transformers") or "not in this release"))
        return Case(name, threads, sets, rows, job=job)
    rows += [
        Contestant(f"{CONFORMER}, eager", "fresh", functools.partial(call, shift)),
        compile_row(options, f"{CONFORMER}, compiled", shift, call, None),
    ]
    return Case(name, threads, sets, rows, job=job)


# --------------------------------------------------------------------------------------------- Shaw


class _Queries:
    """Queries and keys."""

    work = out = 0  # no limit is measured on them

    def __init__(self, length: int) -> None:
        self.q, self.k = (torch.randn(1, HEADS, length, 64) for _ in range(2))
        self.nbytes = self.q.nbytes + self.k.nbytes


def shaw_scores(options: Options, length: int, threads: int, name: str) -> Case:
    """Scores of content and position, products of matrices and all."""
    left = options.size(128, 8)
    sets = options.make_sets(lambda: _Queries(length))
    module = frozen(nn.ShawRelativePosition(64, left=left, values=False))
    steps = torch.arange(length)
    index = (steps - steps[:, None]).clamp(-left, left) + left

    def by_vectors(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        vectors = module.key_table[index]  # [q_len, k_len, head_dim]
        return (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, vectors)) * module.scale

    def by_products(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        products = q @ module.key_table.mT
        return (q @ k.mT + products.gather(-1, index.expand(1, HEADS, -1, -1))) * module.scale

    def call(function: Callable[..., Any], b: _Queries) -> Any:
        return function(b.q, b.k)

    rows: list[Row] = [
        Contestant("nn.ShawRelativePosition", "fresh", functools.partial(call, module), ours=True),
        Contestant("table[index], einsum", "fresh", functools.partial(call, by_vectors)),
        compile_row(options, "table[index], einsum, compiled", by_vectors, call, None),
        Contestant("products, gather", "fresh", functools.partial(call, by_products)),
        compile_row(options, "products, gather, compiled", by_products, call, None),
        yardstick("content alone", "fresh", lambda b: b.q @ b.k.mT),
    ]
    job = sums_job(functools.partial(call, module))
    return Case(name, threads, sets, rows, job=job)
