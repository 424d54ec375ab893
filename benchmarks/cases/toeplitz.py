"""What is timed: a bias by distance laid down or added, and sums along diagonals."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant
from benchmarks.figures.judging import AtMost, Rule
from benchmarks.peers.contestants import (
    Activations,
    Options,
    Row,
    Table,
    address,
    and_alone,
    compile_row,
    normal,
    ours,
    yardstick,
)

from .rotary import ALONE
from .scores import HEADS, job_of, shape_of, sums_job

# What is to be reached on one thread.
GOALS = (
    Rule(f"^relative: toeplitz bias, .*{ALONE}", "out=", (AtMost(1.15),)),
    Rule(f"^relative: add toeplitz bias, .*{ALONE}", "in place", (AtMost(1.2),)),
    Rule(f"^relative: diagonal sums, .*{ALONE}", "fresh", (AtMost(1.3),)),
)


class Gradient:
    """The gradient of scores."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.grad = normal(int(np.prod(shape)), dtype).reshape(shape)
        self.sums = normal(64, np.float32)  # of the memory limit, one number for each thread
        self.work, self.out = address(self.grad), address(self.sums)
        self.nbytes = self.grad.nbytes


def by_index(diagonals: torch.Tensor, length: int) -> torch.Tensor:
    """The bias, by an index of every query and key."""
    steps = torch.arange(length)
    return diagonals[:, steps - steps[:, None] + (length - 1)]


def write_bias(options: Options, length: int, dtype: Any, threads: int, name: str) -> Case:
    shape = shape_of(length)
    sets = options.make_sets(lambda: Table(shape, dtype))
    diagonals = normal(HEADS * (2 * length - 1), dtype).reshape(HEADS, -1)

    def write(b: Table) -> None:
        pn.toeplitz_bias(diagonals, length, length, out=b.table)

    rows: list[Row] = [
        *and_alone(threads, ours("toeplitz_bias", "out=", write, limit="fill")),
        ours(
            "toeplitz_bias",
            "fresh",
            lambda b: pn.toeplitz_bias(diagonals, length, length),
            limit="fill",
        ),
    ]
    if isinstance(dtype, torch.dtype):

        def row_by_row(b: Table) -> None:
            for i in range(length):
                b.table[:, i] = diagonals[:, length - 1 - i : 2 * length - 1 - i]

        def call(function: Callable[..., Any], b: Table) -> Any:
            return function(diagonals, length)

        rows += [
            Contestant("a slice for each query", "out=", row_by_row, "fill"),
            Contestant(
                "unfold, flip", "fresh", lambda b: diagonals.unfold(-1, length, 1).flip(-2), "fill"
            ),
            Contestant("by index", "fresh", functools.partial(call, by_index), "fill"),
            compile_row(options, "by index, torch.compile", by_index, call, "fill"),
        ]
    else:
        view = sliding_window_view(diagonals, length, -1)[:, ::-1]
        rows += [
            Contestant("a strided view", "out=", lambda b: np.copyto(b.table, view), "fill"),
            Contestant("a strided view", "fresh", lambda b: view.copy(), "fill"),
        ]
    job = job_of(dtype, lambda b: pn.toeplitz_bias(diagonals, length, length), lambda b: b.table)
    return Case(name, threads, sets, rows, job=job)


def add_bias(options: Options, length: int, dtype: Any, threads: int, name: str) -> Case:
    shape = shape_of(length)
    sets = options.make_sets(lambda: Activations(shape, dtype))
    diagonals = normal(HEADS * (2 * length - 1), dtype).reshape(HEADS, -1)
    bias = pn.toeplitz_bias(diagonals, length, length)

    def into(b: Activations) -> None:
        pn.add_toeplitz_bias(b.x, diagonals, out=b.result)

    rows: list[Row] = [
        *and_alone(
            threads,
            ours(
                "add_toeplitz_bias",
                "in place",
                lambda b: pn.add_toeplitz_bias(b.x, diagonals, out=b.x),
            ),
        ),
        ours("add_toeplitz_bias", "out=", into),
        ours("add_toeplitz_bias", "fresh", lambda b: pn.add_toeplitz_bias(b.x, diagonals)),
    ]
    ready = "scores + bias, bias ready"
    if isinstance(dtype, torch.dtype):

        def add(x: torch.Tensor, diagonals: torch.Tensor) -> torch.Tensor:
            return x + by_index(diagonals, length)

        def add_in_place(x: torch.Tensor, diagonals: torch.Tensor) -> torch.Tensor:
            return x.add_(by_index(diagonals, length))

        def call(function: Callable[..., Any], b: Activations) -> Any:
            return function(b.x, diagonals)

        compiled = "scores + by index, torch.compile"
        rows += [
            Contestant(ready, "in place", lambda b: b.x.add_(bias), "in-place scale"),
            Contestant(ready, "out=", lambda b: torch.add(b.x, bias, out=b.result), "copy"),
            Contestant(ready, "fresh", lambda b: b.x + bias, "copy"),
            compile_row(options, compiled, add_in_place, call, "in-place scale", "in place"),
            compile_row(options, compiled, add, call, "copy"),
        ]
    else:
        rows += [
            Contestant(ready, "in place", lambda b: np.add(b.x, bias, out=b.x), "in-place scale"),
            Contestant(ready, "out=", lambda b: np.add(b.x, bias, out=b.result), "copy"),
            Contestant(ready, "fresh", lambda b: b.x + bias, "copy"),
        ]
    job = job_of(
        dtype, lambda b: pn.add_toeplitz_bias(b.x, diagonals), lambda b: b.x, lambda b: b.result
    )
    return Case(name, threads, sets, rows, job=job)


def sum_by_shear(grad: torch.Tensor) -> torch.Tensor:
    """Sums along diagonals by padding: rows that are one longer put diagonals into columns."""
    length = grad.shape[-1]
    padded = torch.nn.functional.pad(grad, (length, 0)).flatten(1)
    sheared = torch.nn.functional.pad(padded, (0, length)).unflatten(1, (length, 2 * length + 1))
    return sheared.sum(1, dtype=torch.float32)[:, 1:-1]


def sum_by_index(grad: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The backward of a look-up, as autograd of most code runs it."""
    heads, length = grad.shape[:2]
    sums = torch.zeros(heads, 2 * length - 1, dtype=torch.float32)
    return sums.index_add_(1, index, grad.flatten(1).float())


def sum_diagonals(options: Options, length: int, dtype: Any, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: Gradient(shape_of(length), dtype))
    sums = ours("diagonal_sums", "fresh", lambda b: pn.diagonal_sums(b.grad), limit="sum")
    rows: list[Row] = [*and_alone(threads, sums)]
    if isinstance(dtype, torch.dtype):
        steps = torch.arange(length)
        index = (steps - steps[:, None] + (length - 1)).flatten()

        def call(function: Callable[..., Any], b: Gradient) -> Any:
            return function(b.grad)

        rows += [
            yardstick("torch.sum of all", "fresh", lambda b: b.grad.sum(), "sum"),
            Contestant("pad, view, sum", "fresh", lambda b: sum_by_shear(b.grad), "sum"),
            compile_row(options, "pad, view, sum, torch.compile", sum_by_shear, call, "sum"),
            Contestant("index_add", "fresh", lambda b: sum_by_index(b.grad, index), "sum"),
        ]
    else:
        rows += [
            yardstick("np.sum of all", "fresh", lambda b: b.grad.sum(), "sum"),
            Contestant(
                "np.trace of each",
                "fresh",
                lambda b: [
                    b.grad.trace(e, axis1=1, axis2=2, dtype=np.float32)
                    for e in range(1 - length, length)
                ],
                "sum",
                result=lambda sums: np.stack(sums, -1),
            ),
        ]
    return Case(name, threads, sets, rows, job=sums_job(lambda b: pn.diagonal_sums(b.grad)))
