"""What is timed: sinusoidal tables, and x + table."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Job, Skipped
from benchmarks.figures.judging import AtLeast, AtMost, Rule
from benchmarks.peers import tables as table_peers
from benchmarks.peers.contestants import (
    HEAD_DIM,
    Activations,
    Options,
    Row,
    Table,
    and_alone,
    compile_row,
    label,
    ours,
    tolerance,
)
from benchmarks.peers.runtimes import import_jax, jax_array, missing_jax, on_threads
from benchmarks.peers.tables import Positions

from .rotary import ALONE

# What is to be reached on one thread; the limit is for tables of so many bytes and more.
_LARGE = 16 << 20
_TABLE = "^sinusoidal table, .*"
GOALS = (
    Rule(f"{_TABLE}torch float32, {ALONE}", "out=", (AtMost(1.25),), least_bytes=_LARGE),
    # At multiples of 16 bytes, as rotary.py says.
    Rule(f"{_TABLE}NumPy float32, {ALONE}", "out=", (AtMost(1.3),), least_bytes=_LARGE),
    Rule(f"{_TABLE}bfloat16, {ALONE}", "out=", (AtMost(1.6),), least_bytes=_LARGE),
    Rule(f"{_TABLE}{ALONE}", None, (AtLeast(4.0),)),
)


def _sinusoidal(
    options: Options,
    positions: Positions,
    dim: int,
    dtype: Any,
    main: bool,
    threads: int,
    name: str,
) -> Case:
    sets = options.make_sets(lambda: Table((positions.count, dim), dtype))
    given: Any = positions.array()
    if isinstance(dtype, torch.dtype):
        given = torch.from_numpy(given)
    given = positions.count if positions.from_zero else given

    def write(b: Table) -> None:
        pn.sinusoidal(given, dim, out=b.table)

    def make(b: Table) -> Any:
        return pn.sinusoidal(given, dim, dtype=dtype)

    rows: list[Row] = [
        *and_alone(threads, ours("sinusoidal", "out=", write, limit="fill")),
        ours("sinusoidal", "fresh", make, limit="fill"),
        *table_peers.tables(options, sets, positions, dim, dtype, threads, main=main),
    ]
    job = Job(
        make,
        lambda b: b.table,
        lambda b: b.table,
        # Frequencies are exponentials in float32.
        tolerance(dtype, positions.array(), base_error=2.0**-21),
    )
    return Case(name, threads, sets, rows, job=job)


def _sinusoidal_cases(options: Options, threads: int) -> Iterator[tuple[Positions, int, Any, bool]]:
    """Every way to give positions in one shape, every shape from 0 on; with --exhaustive, all."""
    long, wide, small = (
        (options.size(131072, 256), HEAD_DIM),
        (options.size(4096, 64), 1024),
        (options.size(512, 32), 512),
    )
    offset = 100_000
    chosen: list[tuple[Positions, int, Any, bool]] = [
        (Positions(long[0]), long[1], torch.float32, threads == 1),
        (Positions(long[0], offset), long[1], torch.float32, False),
        (Positions(long[0], scattered=True), long[1], torch.float32, False),
        (Positions(long[0]), long[1], np.float32, False),
        (Positions(long[0]), long[1], torch.bfloat16, False),
        (Positions(wide[0]), wide[1], torch.float32, False),
        (Positions(wide[0]), wide[1], torch.bfloat16, False),
        (Positions(small[0]), small[1], torch.float32, False),
    ]
    if threads > 1:
        chosen = [chosen[0], chosen[3], chosen[5]]
    if options.exhaustive:
        for (count, dim), dtype in itertools.product(
            (long, wide, small), (torch.float32, torch.bfloat16, np.float32)
        ):
            for positions in (
                Positions(count),
                Positions(count, offset),
                Positions(count, scattered=True),
            ):
                if all(case[:3] != (positions, dim, dtype) for case in chosen):
                    chosen.append((positions, dim, dtype, False))
    yield from chosen


def _add_sinusoidal(
    options: Options, shape: tuple[int, ...], dtype: torch.dtype, threads: int, name: str
) -> Case:
    sets = options.make_sets(lambda: Activations(shape, dtype))
    table = table_peers.recipe_table(torch.empty(shape[-2:])).to(dtype)

    def add(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x + table

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return function(b.x, table)

    def fresh(b: Activations) -> Any:
        return pn.add_sinusoidal(b.x)

    peer = "x + table, table ready"
    in_place = ours("add_sinusoidal", "in place", lambda b: pn.add_sinusoidal(b.x, out=b.x))
    into = ours("add_sinusoidal", "out=", lambda b: pn.add_sinusoidal(b.x, out=b.result))
    rows: list[Row] = [
        *and_alone(threads, in_place),
        *and_alone(threads, into),
        ours("add_sinusoidal", "fresh", fresh),
        Contestant(peer, "in place", lambda b: b.x.add_(table), "in-place scale"),
        Contestant(peer, "out=", lambda b: torch.add(b.x, table, out=b.result), "copy"),
        Contestant(peer, "fresh", functools.partial(call, add), "copy"),
        compile_row(options, f"{peer}, torch.compile", add, call, "copy", main=threads == 1),
    ]
    if reason := missing_jax():
        rows.append(Skipped("JAX, jit", "fresh", reason))
    else:
        compiled = import_jax().jit(lambda x, table: x + table)
        ready = jax_array(table)
        arrays = {b.work: jax_array(b.x) for b in sets}
        rows.append(
            Contestant(
                "JAX, jit, table ready",
                "fresh",
                lambda b: compiled(arrays[b.work], ready).block_until_ready(),
                "copy",
                result=np.asarray,
                warmups=2,
                context=on_threads(threads),
            )
        )
    job = Job(
        fresh,
        lambda b: b.x,
        lambda b: b.result,
        tolerance(dtype, np.arange(shape[-2]), base_error=2.0**-21),
    )
    return Case(name, threads, sets, rows, job=job)


def _add_sinusoidal_gradient(
    options: Options, shape: tuple[int, ...], dtype: torch.dtype, threads: int, name: str
) -> Case:
    """x + table through autograd, and the gradient of x from that of the sum, which is the same."""
    sets = options.make_sets(lambda: Activations(shape, dtype))
    table = table_peers.recipe_table(torch.empty(shape[-2:])).to(dtype)

    def call(function: Callable[..., Any], b: Activations) -> Any:
        x = b.x.detach().requires_grad_()
        total = function(x)
        return total.detach(), torch.autograd.grad(total, x, b.result)[0]

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + table

    fresh = functools.partial(call, pn.add_sinusoidal)
    peer = "x + table, table ready"
    rows: list[Row] = [
        ours("add_sinusoidal, autograd", "fresh", fresh),
        Contestant(f"{peer}, eager", "fresh", functools.partial(call, add), "copy"),
        compile_row(options, f"{peer}, torch.compile", add, call, "copy", main=threads == 1),
    ]
    error = tolerance(dtype, np.arange(shape[-2]), base_error=2.0**-21)
    return Case(name, threads, sets, rows, job=Job(fresh, fresh, fresh, error))


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As rotary.cases, for tables."""
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    for positions, dim, dtype, main in _sinusoidal_cases(options, threads):
        table = f"{positions.count} x {dim}{positions.words}"
        name = f"sinusoidal table, {table}, {label(dtype)}, {suffix}"
        yield (
            name,
            functools.partial(_sinusoidal, options, positions, dim, dtype, main, threads, name),
        )
    activations = (options.size(8, 2), options.size(1024, 32), 768)
    for dtype in (torch.float32, torch.bfloat16):
        size = " x ".join(map(str, activations))
        name = f"add sinusoidal, {size}, {label(dtype)}, {suffix}"
        yield name, functools.partial(_add_sinusoidal, options, activations, dtype, threads, name)
    if threads > 1:  # a second one has nothing to do
        return
    name = f"add sinusoidal, forward and backward, {size}, torch float32, {suffix}"
    build = functools.partial(_add_sinusoidal_gradient, options, activations, torch.float32)
    yield name, functools.partial(build, threads, name)
