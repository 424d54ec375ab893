"""What is timed: rotary, forward and backward, of every format, pairing and layout."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Goal
from benchmarks.peers import rotary as rotary_peers
from benchmarks.peers.contestants import (
    BASE,
    HEAD_DIM,
    Options,
    QueryKey,
    Row,
    and_alone,
    label,
    ours,
)
from benchmarks.peers.rotation import Rotation

# Multiples of the memory limits to reach, on one thread; how many times as fast as any peer.
ROTARY_WIDE, ROTARY_NARROW, ROTARY_REUSED = 1.15, 1.25, 1.15
FASTER, FASTER_BFLOAT16 = 3.0, 8.0
NUMBA = Goal(at_least=1.0, of="numba")


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
    """The combinations that are timed.

    Every format and pairing in one shape and layout, forward and backward; every layout in every
    format; the rest once, and less on two threads. With --exhaustive, the product of all.
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
    return Case(name, threads, sets, [*rows, *peers], job=rotation.job(fresh))


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """The names of the cases with a given number of threads, and what builds each."""
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    for case in _rotary_cases(options, threads):
        name = case.name(options, suffix)
        yield name, functools.partial(_rotary, options, case, threads, name)
