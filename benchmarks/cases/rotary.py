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
from benchmarks.clock.harness import Case
from benchmarks.figures.judging import AtLeast, AtMost, Gain, Rule
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
    yardstick,
)
from benchmarks.peers.rotation import Rotation

# What is to be reached on one thread, in every layout and pairing, forward and backward.
ALONE = "1 thread$"
_ROTARY = "^rotary(| backward), .*"
_WIDE, _NARROW = f"{_ROTARY} float32, .*{ALONE}", f"{_ROTARY}float16, .*{ALONE}"
# A loop that somebody wrote by hand is never to be faster in the mode that it has.
NUMBA = AtLeast(1.0, of="numba")
GOALS = (
    Rule(_WIDE, "in place", (AtMost(1.15),)),
    Rule(_NARROW, "in place", (AtMost(1.30),)),
    Rule(f"{_ROTARY}torch float32, .*{ALONE}", "out=", (AtMost(1.2, avx2=1.25),)),
    # NumPy's large arrays lie at multiples of 16 bytes: no vector of a result is a whole line.
    Rule(f"{_ROTARY}NumPy float32, .*{ALONE}", "out=", (AtMost(1.3),)),
    Rule(_NARROW, "out=", (AtMost(1.35, avx2=1.5),)),
    Rule(_WIDE, None, (AtLeast(3.0),)),
    Rule(f"{_ROTARY}torch float16, .*{ALONE}", None, (AtLeast(3.0),)),
    Rule(f"{_ROTARY}bfloat16, .*{ALONE}", None, (AtLeast(8.0),)),
    Rule(f"{_ROTARY}{ALONE}", "in place", (NUMBA,)),
    Rule(f"{_ROTARY}{ALONE}", "out=", (NUMBA,)),
)
# Of every case on two threads.
TWO_THREADS = (Rule("2 threads$", None, (Gain(1.7),)),)


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

    Every format and pairing in one shape, forward and backward in one layout, forward in every
    layout; the rest once, and less on two threads. With --exhaustive, the product of all.
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
            _RotaryCase(dtype, pairing, layout)
            for pairing, dtype, layout in itertools.product(PAIRINGS, dtypes, LAYOUTS[1:])
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
    inv_freq: Any = pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0]
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

    way = ", inverse" if inverse else ""
    rows: list[Row] = [
        *and_alone(threads, ours(f"apply_rotary_qk{way}", "in place", in_place)),
        *and_alone(threads, ours(f"apply_rotary{way}, twice", "out=", into)),
        ours(f"apply_rotary_qk{way}", "fresh", fresh),
    ]
    if inverse:
        through_autograd = rotary_peers.gradient_row(
            "apply_rotary_qk, autograd", lambda q, k: turn(q, k), sets[0], ours=True
        )
        rows.append(through_autograd)
    if isinstance(dtype, torch.dtype):
        rows += [
            yardstick("copy_", "out=", lambda b: (b.out_q.copy_(b.q), b.out_k.copy_(b.k)), "copy"),
            yardstick("clone", "fresh", lambda b: (b.q.clone(), b.k.clone()), "copy"),
        ]
    return Case(name, threads, sets, [*rows, *peers], job=rotation.job(fresh))


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """The names of the cases with a given number of threads, and what builds each."""
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    for case in _rotary_cases(options, threads):
        name = case.name(options, suffix)
        yield name, functools.partial(_rotary, options, case, threads, name)
