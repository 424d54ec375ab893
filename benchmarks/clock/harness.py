"""Timing: contestants of one case take turns, in one process, round after round.

A machine's speed drifts, with its clock and with its neighbors. Contestants that take turns drift
together, so their ratios hold where times measured one after the other would not.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from . import limits

# A limit's variants all run in the first rounds, the fastest two of each kind in all.
_ROUNDS_OF_EVERY_VARIANT = 5
# Contestants slower than this, in seconds, sit out some of the rounds, at most seven of eight.
_SLOW = 0.02
_LONGEST_STRIDE = 8
# How long GNU OpenMP's idle threads spin for new work (8 ms), with a margin. They would take a
# processor from whoever comes next and starts threads of its own.
OPENMP_SPIN = 0.010


class Buffers(Protocol):
    """One set of buffers. Cases have several and use them in turn, so that none stays in cache."""

    nbytes: int
    work: int  # address of what is read, and written where the work is in place
    out: int  # address of what is written otherwise, or read where it is added in place


# How many numbers of a result are compared with what the case wants, about.
_COMPARED = 1 << 16


@dataclass(frozen=True)
class Job:
    """What all contestants of a case compute, so that no row times something else.

    Results are an array, or a tuple or list of arrays. A row is believed if they are within
    `tolerance` times the largest number that is expected: room for its dtype's rounding and for
    float32 angles.
    """

    expected: Callable[[Any], Any]  # from a buffer set that has not been worked on
    in_place: Callable[[Any], Any]  # where work in place leaves them
    out: Callable[[Any], Any]  # where "out=" leaves them
    tolerance: float
    # What work in place overwrites, where that is not the results.
    overwritten: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Contestant:
    """One row: something to time."""

    name: str
    mode: str  # "in place", "out=", "fresh"
    run: Callable[[Any], object]  # gets one of the case's buffer sets
    limit: str | None = None  # the kind of memory limit (limits.KINDS) that bounds it
    # Bytes that it has to read and write, each once, where they are not those of its limit; on a
    # GPU alone.
    nbytes: int | None = None
    ours: bool = False
    yardstick: bool = False  # shown beside the peers, but not a library: a copy, a hand-made loop
    # Makes the case's results, an array or several, of what a run returned; None: it did.
    result: Callable[[Any], Any] | None = None
    checked: bool = True  # against the case's Job
    warmups: int = 1
    calls: int = 1  # how many calls of `run` are timed as one sample
    repeats: int = 1  # how often one call of `run` does the work
    # A run that times only a part of what it does returns the seconds of that.
    tells_seconds: bool = False
    # Entered before a sample is timed and left after it.
    context: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class Skipped:
    """A row that cannot be timed here, and why."""

    name: str
    mode: str
    reason: str
    left_out: bool = False  # it could be, and might have been the fastest


@dataclass
class Case:
    """Contestants that do the same work on the same bytes."""

    name: str
    threads: int
    buffers: Sequence[Buffers]
    contestants: Sequence[Contestant | Skipped]
    in_cache: bool = False  # the buffers are meant to stay in cache: one set, many calls a sample
    job: Job | None = None


@dataclass
class Result:
    """A case with its times: seconds of every sample, by contestant and by limit variant."""

    case: Case
    rows: list[tuple[Contestant, list[float]]] = field(default_factory=list)
    limit_samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    # The same on one thread, where the case has several.
    limit_samples_alone: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    others: float | None = None  # how many cores other processes used meanwhile, if known

    def limit(self, kind: str) -> tuple[str, float]:
        """The fastest variant of a kind, by its median: its name and that median."""
        return _fastest(self.limit_samples[kind])

    def limit_gain(self, kind: str) -> float:
        """How many times as fast a limit is on the case's threads as on one."""
        if kind not in self.limit_samples_alone:
            return 1.0
        return _fastest(self.limit_samples_alone[kind])[1] / self.limit(kind)[1]

    def moved(self, kind: str) -> int:
        """The bytes that are read and written."""
        return self.case.buffers[0].nbytes * limits.PASSES[kind]


def _fastest(samples: dict[str, list[float]]) -> tuple[str, float]:
    """Name and median of the fastest variant among those that ran in every round.

    The others ran only in the first rounds, when the machine may have been faster.
    """
    most = max(map(len, samples.values()))
    medians = {name: statistics.median(s) for name, s in samples.items() if len(s) == most}
    best = min(medians, key=medians.__getitem__)
    return best, medians[best]


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


# ---------------------------------------------------------------------------- the same work by all


def _numbers(array: Any) -> np.ndarray:
    """Some of an array's numbers as float64: whole rows, from all over its longest axis."""
    if hasattr(array, "detach"):
        array = array.detach()
    axis = max(range(array.ndim - 1), key=lambda i: array.shape[i], default=0)
    step = math.prod(array.shape) // _COMPARED | 1  # odd: heads and powers of two do not hide
    some = array[(slice(None),) * axis + (slice(None, None, step),)]
    if hasattr(some, "double"):
        some = some.double().numpy()
    return np.array(some, np.float64)  # a copy, also of what is overwritten next


def _several(results: Any) -> Sequence[Any]:
    """The arrays of results, which are one array or several."""
    return results if isinstance(results, (tuple, list)) else [results]


def _samples(results: Any) -> list[np.ndarray]:
    """Some numbers of an array or of each of several."""
    return [_numbers(array) for array in _several(results)]


def _without_other_work(case: Case) -> Case:
    """The case without contestants that fail or compute something else: they are skipped."""
    job, buffers = case.job, case.buffers[0]
    if job is None:
        return case
    expected: list[np.ndarray] | None = None
    judged: dict[int, Contestant | Skipped] = {}
    # First those that leave the buffers as they are: they share one expectation.
    contestants = enumerate(case.contestants)
    for number, row in sorted(contestants, key=lambda pair: pair[1].mode == "in place"):
        judged[number] = row
        if isinstance(row, Skipped) or not row.checked:
            continue
        if expected is None:
            expected = _samples(job.expected(buffers))
        written = row.mode == "out=" and row.result is None
        if written:  # or the right result of another contestant would be found
            for array in _several(job.out(buffers)):
                array[...] = math.nan
        try:
            returned = row.run(buffers)
            if row.mode == "in place" and row.result is None:
                results = job.in_place(buffers)
            elif written:
                results = job.out(buffers)
            else:
                results = row.result(returned) if row.result else returned
            found = _samples(results)
            reason = _difference(found, expected, job.tolerance)
        except Exception as error:
            if row.ours:
                raise
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if row.mode == "in place":
            expected = None
        if reason is None:
            continue
        if row.ours:
            raise AssertionError(f"{case.name}: {row.name}, {row.mode}: {reason}")
        judged[number] = Skipped(row.name, row.mode, reason)
    return dataclasses.replace(case, contestants=[judged[i] for i in range(len(judged))])


def _difference(
    found: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float
) -> str | None:
    """How results differ from what is expected; None if they do not."""
    shapes = [[list(array.shape) for array in arrays] for arrays in (found, expected)]
    if shapes[0] != shapes[1]:
        return f"computes something else: shapes {shapes[0]}, expected {shapes[1]}"
    # np.max, not max: it lets a NaN of any array through.
    scale = np.max([np.abs(array).max(initial=0) for array in expected])
    off = np.max([np.abs(a - b).max(initial=0) for a, b in zip(found, expected, strict=True)])
    if off <= tolerance * scale:  # not where it is a NaN
        return None
    return f"computes something else: off by {off:.2g} where {tolerance * scale:.2g} is expected"


# The share of numbers that may be subnormal: of normally distributed float16, one in 20 000 is.
_SUBNORMAL = 0.01


def _check_still_normal(case: Case) -> None:
    """RuntimeError if what was overwritten again and again has vanished, or grown beyond bounds.

    Some processors take several times as long for subnormal numbers, so that all that was timed on
    such buffers, limits too, is wrong.
    """
    if case.job is None or all(row.mode != "in place" for row in case.contestants):
        return
    overwritten = case.job.overwritten or case.job.in_place
    for number, buffers in enumerate(case.buffers):
        for array in _several(overwritten(buffers)):
            kind = str(array.dtype).removeprefix("torch.")
            numbers = np.abs(_numbers(array))
            bad = np.mean(~((_SMALLEST_NORMAL[kind] <= numbers) & (numbers < np.inf)))
            if bad > _SUBNORMAL:
                raise RuntimeError(
                    f"{case.name}: {bad:.0%} of the numbers of set {number} are 0, subnormal or "
                    "infinite now: calls in place have to keep a case's data normal"
                )


_SMALLEST_NORMAL = {
    "float64": 2.0**-1022, "float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14,
}  # fmt: skip


# ------------------------------------------------------------------------------------------ timing


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
    with contestant.context():
        resume = time.perf_counter() + pause
        while time.perf_counter() < resume:  # busy: a sleeping core would start slowly
            pass
        start = time.perf_counter_ns()
        if contestant.tells_seconds:
            seconds = sum(run(buffers) for _ in calls)  # type: ignore[misc]
        else:
            for _ in calls:
                run(buffers)
            seconds = (time.perf_counter_ns() - start) * 1e-9
    return seconds / (contestant.calls * contestant.repeats)


def measure(
    case: Case,
    rounds: int,
    after_round: Callable[[], object] = lambda: None,
    *,
    pause: float = OPENMP_SPIN,
) -> Result:
    """Run the contestants of a case, and its memory limits, round robin.

    With several threads each waits `pause` seconds before its turn.
    """
    case = _without_other_work(case)
    contestants = [c for c in case.contestants if isinstance(c, Contestant)]
    kinds = [kind for kind in limits.KINDS if any(c.limit == kind for c in contestants)]
    repeats = max(c.calls for c in contestants) if case.in_cache else 1
    # A second thread has nothing to gain in cache.
    threads = 1 if case.in_cache else case.threads
    groups = [(kind, number) for number in sorted({threads, 1}) for kind in kinds]
    variants = {group: limit_contestants(*group, repeats) for group in groups}
    everyone = contestants + [v for group in groups for v in variants[group]]
    # By number, since two rows may be equal in all but what they run.
    samples: list[list[float]] = [[] for _ in everyone]
    pause = pause if case.threads > 1 else 0.0
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
        # Only now, because warming up starts compilers, which are processes too.
        began, before = time.perf_counter(), _busy()
        for round_number in range(rounds):
            # In another order each time, so that not always the same contestant gains or loses by
            # what its neighbor leaves in the caches.
            shuffle(order)
            for number in order:
                if round_number % stride[number] == 0:
                    samples[number].append(take(number))
            if round_number + 1 == _ROUNDS_OF_EVERY_VARIANT:
                order = _without_slow_variants(order, len(contestants), variants, samples)
            after_round()
    finally:
        if collecting:
            gc.enable()

    after, wall = _busy(), time.perf_counter() - began
    _check_still_normal(case)
    rest = iter(samples)
    result = Result(case, [(contestant, next(rest)) for contestant in contestants])
    for (kind, number), members in variants.items():
        alone = number != threads
        of_kind = result.limit_samples_alone if alone else result.limit_samples
        of_kind[kind] = {variant.name: next(rest) for variant in members}
    if before and after:
        result.others = max(0.0, (after[0] - before[0]) - (after[1] - before[1])) / wall
    return result


def _without_slow_variants(
    order: list[int],
    first: int,
    variants: dict[tuple[str, int], list[Contestant]],
    samples: list[list[float]],
) -> list[int]:
    """The numbers in order, less all but the two fastest variants of each limit from `first` on."""
    kept: list[int] = [number for number in order if number < first]
    for members in variants.values():
        numbers = range(first, first + len(members))
        kept += sorted(numbers, key=lambda n: statistics.median(samples[n]))[:2]
        first += len(members)
    return kept
