"""Timing: contestants of one case take turns, in one process, round after round.

A machine's speed drifts, with its clock and with its neighbours. Contestants that take turns drift
together, so their ratios hold where times measured one after the other would not.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks import limits

# A limit's variants all run in the first rounds, the fastest two of each kind in all.
_ROUNDS_OF_EVERY_VARIANT = 5
# Contestants slower than this, in seconds, sit out some of the rounds, at most seven of eight.
_SLOW = 0.05
_LONGEST_STRIDE = 8
# How long GNU OpenMP's idle threads spin for new work (8 ms), with a margin. They would take a
# processor from whoever comes next and starts threads of its own.
_OPENMP_SPIN = 0.010


class Buffers(Protocol):
    """One set of buffers. Cases have several and use them in turn, so that none stays in cache."""

    nbytes: int
    work: int  # address of what is read, and written where the work is in place
    out: int  # address of what is written otherwise, or read where it is added in place


@dataclass(frozen=True)
class Goal:
    """What the project means to reach."""

    at_most: float
    unit: str  # "x" (multiples of the memory limit) or "µs" (a call)


@dataclass(frozen=True)
class Contestant:
    """One row: something to time."""

    name: str
    mode: str  # "in place", "out=", "fresh"
    run: Callable[[Any], object]  # gets one of the case's buffer sets
    limit: str | None = None  # the kind of memory limit (limits.KINDS) that bounds it
    ours: bool = False
    goal: Goal | None = None
    warmups: int = 1
    calls: int = 1  # how many calls of `run` are timed as one sample
    repeats: int = 1  # how often one call of `run` does the work


@dataclass(frozen=True)
class Skipped:
    """A row that cannot be timed here, and why."""

    name: str
    mode: str
    reason: str


@dataclass
class Case:
    """Contestants that do the same work on the same bytes."""

    name: str
    threads: int
    buffers: Sequence[Buffers]
    contestants: Sequence[Contestant | Skipped]
    in_cache: bool = False  # the buffers are meant to stay in cache: one set, many calls a sample


@dataclass
class Result:
    """A case with its times: seconds of every sample, by contestant and by limit variant."""

    case: Case
    rows: list[tuple[Contestant, list[float]]] = field(default_factory=list)
    limit_samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    others: float | None = None  # how many cores other processes used meanwhile, if known

    def limit(self, kind: str) -> tuple[str, float]:
        """The fastest variant of a kind, by its median: its name and that median.

        Of those that ran in every round: the machine may have been faster in the first ones.
        """
        samples = self.limit_samples[kind]
        most = max(map(len, samples.values()))
        medians = {name: statistics.median(s) for name, s in samples.items() if len(s) == most}
        best = min(medians, key=medians.__getitem__)
        return best, medians[best]

    def moved(self, kind: str) -> int:
        """The bytes that are read and written."""
        return self.case.buffers[0].nbytes * limits.PASSES[kind]


def _busy() -> tuple[float, float] | None:
    """Seconds that all cores, and that this process, have worked so far; None if not told."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _wait, interrupt, soft, steal = map(int, first.split()[1:9])
    ticks = user + nice + system + interrupt + soft + steal
    own = os.times()
    return ticks / os.sysconf("SC_CLK_TCK"), own.user + own.system


def limit_contestants(kind: str, threads: int, repeats: int) -> list[Contestant]:
    """One contestant for every variant of a memory limit."""

    def runner(variant: int) -> Callable[[Any], object]:
        def run(buffers: Buffers) -> None:
            in_place = kind.startswith("in-place")
            dst, src = (buffers.work, buffers.out) if in_place else (buffers.out, buffers.work)
            limits.run(kind, variant, dst, src, buffers.nbytes, threads=threads, repeats=repeats)

        return run

    return [
        Contestant(name, kind, runner(variant), repeats=repeats)
        for variant, name in enumerate(limits.variants(kind))
    ]


def _sample(contestant: Contestant, buffers: Buffers, pause: float) -> float:
    """The seconds of one call. A result that was made is released within them."""
    run, calls = contestant.run, range(contestant.calls)
    resume = time.perf_counter() + pause
    while time.perf_counter() < resume:  # busy: a sleeping core would start slowly
        pass
    start = time.perf_counter_ns()
    for _ in calls:
        run(buffers)
    return (time.perf_counter_ns() - start) * 1e-9 / (contestant.calls * contestant.repeats)


def measure(case: Case, rounds: int) -> Result:
    """Run the contestants of a case, and its memory limits, round robin."""
    contestants = [c for c in case.contestants if isinstance(c, Contestant)]
    kinds = [kind for kind in limits.KINDS if any(c.limit == kind for c in contestants)]
    repeats = max(c.calls for c in contestants) if case.in_cache else 1
    # A second thread has nothing to gain in cache.
    threads = 1 if case.in_cache else case.threads
    variants = {kind: limit_contestants(kind, threads, repeats) for kind in kinds}
    everyone = contestants + [v for kind in kinds for v in variants[kind]]
    # By number, since two rows may be equal in all but what they run.
    samples: list[list[float]] = [[] for _ in everyone]
    pause = _OPENMP_SPIN if case.threads > 1 else 0.0
    order = list(range(len(everyone)))
    shuffle = random.Random(0).shuffle
    turn = 0

    def take(number: int) -> float:
        nonlocal turn
        turn += 1
        return _sample(everyone[number], case.buffers[turn % len(case.buffers)], pause)

    collecting = gc.isenabled()
    gc.disable()
    try:
        # A slow contestant's number of rounds from one sample to the next.
        stride = []
        for number, contestant in enumerate(everyone):
            for _ in range(contestant.warmups):
                first = take(number) * contestant.calls * contestant.repeats
            stride.append(min(_LONGEST_STRIDE, 1 + int(first / _SLOW)))
        # Only now: warming up starts compilers, which are processes too.
        began, before = time.perf_counter(), _busy()
        for round_number in range(rounds):
            # In another order each time: what one leaves in the caches is not always the same
            # neighbour's gain or loss.
            shuffle(order)
            for number in order:
                if round_number % stride[number] == 0:
                    samples[number].append(take(number))
            if round_number + 1 == _ROUNDS_OF_EVERY_VARIANT:
                order = _without_slow_variants(order, len(contestants), everyone, samples)
    finally:
        if collecting:
            gc.enable()

    after, wall = _busy(), time.perf_counter() - began
    timed = list(zip(everyone, samples, strict=True))
    result = Result(case, timed[: len(contestants)])
    for variant, times in timed[len(contestants) :]:
        result.limit_samples.setdefault(variant.mode, {})[variant.name] = times
    if before and after:
        result.others = max(0.0, (after[0] - before[0]) - (after[1] - before[1])) / wall
    return result


def _without_slow_variants(
    order: list[int], first: int, everyone: list[Contestant], samples: list[list[float]]
) -> list[int]:
    """The numbers in order, less all but the two fastest variants of each limit from `first` on."""
    kept: list[int] = [number for number in order if number < first]
    for kind in {everyone[number].mode for number in order if number >= first}:
        variants = [n for n in order if n >= first and everyone[n].mode == kind]
        kept += sorted(variants, key=lambda n: statistics.median(samples[n]))[:2]
    return kept
