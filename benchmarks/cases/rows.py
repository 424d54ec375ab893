"""What is timed: rotary forward and backward, sinusoidal tables, x + table, decode.

Variants of rotary and relative encodings have files of their own.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Goal, Job, Skipped
from benchmarks.peers import rotary as rotary_peers
from benchmarks.peers import tables as table_peers
from benchmarks.peers.contestants import (
    BASE,
    HEAD_DIM,
    NOTHING,
    Activations,
    Options,
    QueryKey,
    Row,
    Table,
    and_alone,
    compile_row,
    label,
    many,
    missing,
    normal,
    ours,
)
from benchmarks.peers.rotary import Rotation
from benchmarks.peers.tables import Positions
from posenc_native import nn

# Multiples of the memory limits to reach, on one thread; how many times as fast as any peer.
ROTARY_WIDE, ROTARY_NARROW, ROTARY_REUSED, TABLE = 1.15, 1.25, 1.15, 1.3
FASTER, FASTER_BFLOAT16, FASTER_TABLE = 3.0, 8.0, 4.0
# From how many bytes on a table is to reach its limit.
LARGE_TABLE = 16 << 20
NUMBA = Goal(at_least=1.0, of="numba")


# ----------------------------------------------------------------------------------------- rotary


@dataclass(frozen=True)
class _RotaryCase:
    """One of the product of shapes, formats, pairings, layouts and directions."""

    dtype: Any
    pairing: str = "half"
    layout: str = "bhsd"
    batch: int = 1
    backward: bool = False
    compiled: bool = False  # torch.compile takes part without --exhaustive too

    def seq(self, options: Options) -> int:
        return options.size(4096, 64) // self.batch

    def name(self, options: Options, suffix: str) -> str:
        way = " backward" if self.backward else ""
        shape = f"q 32 + k 8 heads x {self.seq(options)} x {HEAD_DIM}"
        if self.batch > 1:
            shape = f"{self.batch} x {shape}"
        layout = "" if self.layout == "bhsd" else f", {self.layout}"
        return f"rotary{way}, {shape}, {label(self.dtype)}, {self.pairing}{layout}, {suffix}"


PAIRINGS = ("half", "interleaved")
LAYOUTS = ("bhsd", "bshd", "qkv")
BATCHES = (1, 4)


def _rotary_cases(options: Options, threads: int) -> Iterator[_RotaryCase]:
    """Every format and pairing in one shape and layout, forward and backward; every layout in every
    format; the rest once, and less on two threads. With --exhaustive, the product.
    """
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    main = (torch.float32, torch.bfloat16)
    chosen = [
        *(
            _RotaryCase(dtype, pairing, backward=backward, compiled=dtype in main)
            for backward in (False, True)
            for dtype, pairing in itertools.product(dtypes, PAIRINGS)
        ),
        *(_RotaryCase(np.float32, pairing) for pairing in PAIRINGS),
        *(
            _RotaryCase(dtype, layout=layout)
            for dtype, layout in itertools.product(dtypes, LAYOUTS[1:])
        ),
        *(_RotaryCase(dtype, batch=4) for dtype in main),
    ]
    if threads > 1:
        chosen = [
            case
            for case in chosen
            if case.layout == "bhsd" and case.batch == 1 and case.pairing == "half"
        ]
    if options.exhaustive:
        product = itertools.product(dtypes, PAIRINGS, LAYOUTS, BATCHES, (False, True))
        known = {dataclasses.replace(case, compiled=False) for case in chosen}
        chosen += [case for case in itertools.starmap(_RotaryCase, product) if case not in known]
    yield from chosen


def _rotary(options: Options, case: _RotaryCase, threads: int, name: str) -> Case:
    seq, dtype, pairing = case.seq(options), case.dtype, case.pairing
    sets = options.make_sets(lambda: QueryKey(seq, dtype, batch=case.batch, layout=case.layout))
    layout = sets[0].layout
    inv_freq: Any = pn.rotary_frequencies(HEAD_DIM, BASE)[0]
    positions: Any = np.arange(seq)
    rotation = Rotation(options, sets, dtype, pairing, positions, threads, case.compiled)
    peers = rotary_peers.backward(rotation) if case.backward else rotary_peers.forward(rotation)
    if isinstance(dtype, torch.dtype):
        positions, inv_freq = torch.from_numpy(positions), torch.from_numpy(inv_freq)
    turn = functools.partial(
        pn.apply_rotary_qk, positions=positions, inv_freq=inv_freq, layout=layout, pairing=pairing
    )
    turn_one = functools.partial(
        pn.apply_rotary, positions=positions, inv_freq=inv_freq, layout=layout, pairing=pairing
    )
    inverse = case.backward

    def in_place(b: QueryKey) -> None:
        turn(b.q, b.k, inverse=inverse, inplace=True)

    def into(b: QueryKey) -> None:
        turn_one(b.q, inverse=inverse, out=b.out_q)
        turn_one(b.k, inverse=inverse, out=b.out_k)

    def fresh(b: QueryKey) -> Any:
        return turn(b.q, b.k, inverse=inverse)

    peer_goal = Goal(at_least=FASTER_BFLOAT16 if dtype is torch.bfloat16 else FASTER)
    limit_goal = Goal(ROTARY_WIDE if sets[0].q.itemsize == 4 else ROTARY_NARROW)
    goals = functools.partial(options.goals, threads)
    way = ", inverse" if inverse else ""
    rows: list[Row] = [
        *and_alone(
            options,
            threads,
            ours(
                f"apply_rotary_qk{way}", "in place", in_place, goals(limit_goal, peer_goal, NUMBA)
            ),
        ),
        *and_alone(
            options,
            threads,
            ours(
                f"apply_rotary{way}, twice",
                "out=",
                into,
                goals(Goal(ROTARY_REUSED), peer_goal, NUMBA),
            ),
        ),
        ours(f"apply_rotary_qk{way}", "fresh", fresh, goals(peer_goal)),
    ]
    if inverse:
        through_autograd = rotary_peers.gradient_row(
            "apply_rotary_qk, autograd", lambda q, k: turn(q, k), sets[0], ours=True
        )
        rows.append(dataclasses.replace(through_autograd, goals=goals(peer_goal)))
    if isinstance(dtype, torch.dtype):
        rows += [
            Contestant(
                "copy_",
                "out=",
                lambda b: (b.out_q.copy_(b.q), b.out_k.copy_(b.k)),
                "copy",
                yardstick=True,
                checked=False,
            ),
            Contestant(
                "clone",
                "fresh",
                lambda b: (b.q.clone(), b.k.clone()),
                "copy",
                yardstick=True,
                checked=False,
            ),
        ]
    return Case(name, threads, sets, [*rows, *peers], job=_rotary_job(fresh, rotation))


def _rotary_job(rotate: Callable[[QueryKey], Any], rotation: Rotation) -> Job:
    return Job(
        rotate,
        lambda b: (b.q, b.k),
        lambda b: (b.out_q, b.out_k),
        rotary_peers.tolerance(rotation.dtype, rotation.positions),
    )


# ----------------------------------------------------------------------------------------- tables


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

    large = [Goal(TABLE)] if sets[0].nbytes >= LARGE_TABLE else []
    peers = [Goal(at_least=FASTER_TABLE)]
    written = ours(
        "sinusoidal", "out=", write, options.goals(threads, *large, *peers), limit="fill"
    )
    fresh = ours("sinusoidal", "fresh", make, options.goals(threads, *peers), limit="fill")
    rows: list[Row] = [
        *and_alone(options, threads, written),
        fresh,
        *table_peers.tables(options, sets, positions, dim, dtype, threads, main=main),
    ]
    job = Job(
        make,
        lambda b: b.table,
        lambda b: b.table,
        # Frequencies are exponentials in float32.
        rotary_peers.tolerance(dtype, positions.array(), base_error=2.0**-21),
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
        *and_alone(options, threads, in_place),
        *and_alone(options, threads, into),
        ours("add_sinusoidal", "fresh", fresh),
        Contestant(peer, "in place", lambda b: b.x.add_(table), "in-place scale"),
        Contestant(peer, "out=", lambda b: torch.add(b.x, table, out=b.result), "copy"),
        Contestant(peer, "fresh", functools.partial(call, add), "copy"),
        compile_row(options, f"{peer}, torch.compile", add, call, "copy", main=threads == 1),
    ]
    if reason := rotary_peers.missing_jax():
        rows.append(Skipped("JAX, jit", "fresh", reason))
    else:
        compiled = rotary_peers.import_jax().jit(lambda x, table: x + table)
        ready = rotary_peers.jax_array(table)
        arrays = {b.work: rotary_peers.jax_array(b.x) for b in sets}
        rows.append(
            Contestant(
                "JAX, jit, table ready",
                "fresh",
                lambda b: compiled(arrays[b.work], ready).block_until_ready(),
                "copy",
                result=np.asarray,
                warmups=2,
                context=rotary_peers.on_threads(threads),
            )
        )
    job = Job(
        fresh,
        lambda b: b.x,
        lambda b: b.result,
        rotary_peers.tolerance(dtype, np.arange(shape[-2]), base_error=2.0**-21),
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
    error = rotary_peers.tolerance(dtype, np.arange(shape[-2]), base_error=2.0**-21)
    return Case(name, threads, sets, rows, job=Job(fresh, fresh, fresh, error))


# ----------------------------------------------------------------------------------------- decode


def _decode(
    options: Options, batch: int, dtype: torch.dtype, pairing: str, compiled: bool, name: str
) -> Case:
    """One new token of every sequence: little but the price of a call."""
    buffers = QueryKey(1, dtype, batch=batch)
    array_dtype = {torch.bfloat16: ml_dtypes.bfloat16}.get(dtype, str(dtype)[6:])
    arrays = QueryKey(1, np.dtype(array_dtype), batch=batch)
    inv_freq = pn.rotary_frequencies(HEAD_DIM, BASE)[0]
    inv_freq_torch = torch.from_numpy(inv_freq)
    # One sequence, or as many of different lengths.
    position = np.array([4095]) if batch == 1 else 4095 - 3 * np.arange(batch)[:, None]
    position_torch = torch.from_numpy(position)
    rope = pn.Rotary(HEAD_DIM, base=BASE, pairing=pairing)
    module = nn.RotaryEmbedding(HEAD_DIM, base=BASE, pairing=pairing)

    def from_torch(b: QueryKey) -> None:
        pn.apply_rotary_qk(b.q, b.k, position_torch, inv_freq_torch, pairing=pairing, inplace=True)

    def from_numpy(b: QueryKey) -> None:
        pn.apply_rotary_qk(q, k, position, inv_freq, pairing=pairing, inplace=True)

    transformers = Goal(at_least=8.0, of="transformers")
    torch_goals = [transformers, Goal(at_least=1.0, of="ONNX Runtime"), NUMBA]
    numpy_goals = [transformers, Goal(at_least=2.0, of="ONNX Runtime"), NUMBA]
    if batch == 1:
        torch_goals.append(Goal(4, "µs"))
        numpy_goals.append(Goal(2.5, "µs"))
    torch_goals, numpy_goals = (
        list(options.goals(1, *goals)) for goals in (torch_goals, numpy_goals)
    )
    q, k = arrays.q, arrays.k
    rotation = Rotation(options, [buffers], dtype, pairing, position, 1, compiled)
    fresh_goals = options.goals(1, transformers)

    # These work on arrays of their own, which no job looks at.
    def numpy_row(name: str, mode: str, run: Callable[[QueryKey], Any], goals: Any) -> Contestant:
        return dataclasses.replace(ours(name, mode, run, goals), checked=False)

    rows: list[Row] = [
        ours("torch: apply_rotary_qk", "in place", from_torch, torch_goals),
        ours(
            "torch: Rotary",
            "in place",
            lambda b: rope(b.q, b.k, position_torch, inplace=True),
            torch_goals,
        ),
        ours(
            "torch: nn.RotaryEmbedding",
            "in place",
            lambda b: module(b.q, b.k, position_torch, inplace=True),
            torch_goals,
        ),
        ours(
            "torch: nn.RotaryEmbedding",
            "fresh",
            lambda b: module(b.q, b.k, position_torch),
            fresh_goals,
        ),
        numpy_row("NumPy: apply_rotary_qk", "in place", from_numpy, numpy_goals),
        numpy_row(
            "NumPy: Rotary",
            "in place",
            lambda b: rope(q, k, position, inplace=True),
            numpy_goals,
        ),
        numpy_row("NumPy: Rotary", "fresh", lambda b: rope(q, k, position), fresh_goals),
        *rotary_peers.forward(rotation),
        NOTHING,
    ]
    job = _rotary_job(
        lambda b: pn.apply_rotary_qk(b.q, b.k, position_torch, inv_freq_torch, pairing=pairing),
        rotation,
    )
    return Case(name, 1, [buffers], many(options, rows), True, job)


def _decode_attention(options: Options, name: str) -> Case:
    """One token through an attention of transformers, as it is and as hf.patch leaves it.

    Its projections are of a small model, so that the rotation is a part of it that shows.
    """
    buffers = Activations((1, 1, 64), torch.float32)
    peer = "transformers (Llama), its attention"
    rows: list[Row] = [NOTHING]
    if reason := missing("transformers"):
        rows.append(Skipped(peer, "fresh", reason))
        return Case(name, 1, [buffers], rows, in_cache=True)
    package: Any = importlib.import_module("transformers")
    hf: Any = importlib.import_module("posenc_native.hf")
    config = package.LlamaConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=HEAD_DIM,
        vocab_size=16,
        attn_implementation="sdpa",
    )
    position = torch.tensor([[4095]])

    def attention(model: Any) -> Callable[[Activations], Any]:
        layer, rotary = model.model.layers[0].self_attn, model.model.rotary_emb

        def run(b: Activations) -> Any:
            with torch.inference_mode():
                return layer(b.x, rotary(b.x, position), attention_mask=None)[0]

        return run

    plain = package.LlamaForCausalLM(config).eval()
    rows.append(Contestant(peer, "fresh", attention(plain), "copy"))
    for inplace in (False, True):
        model = package.LlamaForCausalLM(config).eval()
        model.load_state_dict(plain.state_dict())
        hf.patch(model, inplace=inplace)
        words = "hf.patch, inplace=True" if inplace else "hf.patch"
        row = ours(f"{words}: its attention", "fresh", attention(model))
        rows.insert(inplace, row)
    job = Job(attention(plain), lambda b: b.x, lambda b: b.x, 1e-3)
    return Case(name, 1, [buffers], many(options, rows), True, job)


def _decode_sinusoidal(options: Options, name: str) -> Case:
    """One row of a table, for one token, and x plus it."""
    dim = 1024
    buffers = Activations((1, dim), torch.float32)
    position = torch.tensor([4095])
    array, x = position.numpy(), normal(dim, np.float32).reshape(1, dim)
    table = torch.empty(4096, dim)
    table_peers.recipe_table(table)

    def own(row: Contestant) -> Contestant:
        return dataclasses.replace(row, checked=False)

    rows: list[Row] = [
        ours("torch: sinusoidal", "out=", lambda b: pn.sinusoidal(position, dim, out=b.result)),
        ours("torch: sinusoidal", "fresh", lambda b: pn.sinusoidal(position, dim)),
        own(
            ours(
                "torch: add_sinusoidal",
                "in place",
                lambda b: pn.add_sinusoidal(b.x, position, out=b.x),
            )
        ),
        own(ours("NumPy: sinusoidal", "out=", lambda b: pn.sinusoidal(array, dim, out=x))),
        own(ours("NumPy: sinusoidal", "fresh", lambda b: pn.sinusoidal(array, dim))),
        *table_peers.of_one_row(position, dim),
        dataclasses.replace(
            Contestant("table[position], table ready", "fresh", lambda b: table[position], "copy"),
            yardstick=True,
        ),
        NOTHING,
    ]
    job = Job(
        lambda b: pn.sinusoidal(position, dim),
        lambda b: b.x,
        lambda b: b.result,
        rotary_peers.tolerance(torch.float32, array, base_error=2.0**-21),
    )
    return Case(name, 1, [buffers], many(options, rows), True, job)


# ------------------------------------------------------------------------------------------ cases


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """The names of all cases with a given number of threads, and what builds each."""
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    for case in _rotary_cases(options, threads):
        name = case.name(options, suffix)
        yield name, functools.partial(_rotary, options, case, threads, name)
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
    for batch, dtype, pairing, compiled in (
        (1, torch.bfloat16, "half", True),
        (1, torch.float32, "half", True),
        (1, torch.float16, "half", False),
        (1, torch.bfloat16, "interleaved", False),
        (1, torch.float32, "interleaved", False),
        (32, torch.bfloat16, "half", False),
        (32, torch.float32, "half", False),
        (32, torch.float32, "interleaved", False),
    ):
        shape = f"{batch} x (q 32 + k 8 heads x 1 x {HEAD_DIM})"
        name = f"decode, {shape}, {label(dtype)}, {pairing}, {suffix}"
        yield name, functools.partial(_decode, options, batch, dtype, pairing, compiled, name)
    name = f"decode, an attention, q 32 + k 8 heads x 1 x {HEAD_DIM}, torch float32, {suffix}"
    yield name, functools.partial(_decode_attention, options, name)
    name = f"decode, a sinusoidal row, 1 x 1024, torch float32, {suffix}"
    yield name, functools.partial(_decode_sinusoidal, options, name)
