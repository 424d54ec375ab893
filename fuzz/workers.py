"""Processes that run cases, and one that watches them: a crash is a finding like others."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import struct
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from .cases import NAMES, case_of
from .choices import Choices

# A case that takes so many seconds hangs.
PATIENCE = 60.0
_WORDS = 3 + 2 * len(NAMES)  # seed, when it began, executions; cases and executions by function


@dataclass
class Found:
    """A finding of a case: what it says, or how the process died."""

    seed: int
    function: str
    text: str


class Shared:
    """What a worker is at, readable after it has crashed."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * _WORDS)

    def __getitem__(self, index: int) -> int:
        value: int = struct.unpack_from("q", self._memory, 8 * index)[0]
        return value

    def __setitem__(self, index: int, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * index, value)

    def begin(self, seed: int) -> None:
        """A case begins."""
        self[0], self[1] = seed, int(time.monotonic())

    def end(self, seed: int, executions: int) -> None:
        """It is over, after so many calls."""
        self[2] = 1
        at = 3 + 2 * (seed % len(NAMES))
        self[at] += 1
        self[at + 1] += executions

    def counts(self) -> dict[str, tuple[int, int]]:
        """Cases and executions by function."""
        return {n: (self[3 + 2 * i], self[4 + 2 * i]) for i, n in enumerate(NAMES)}


# Seeds for job `i` of `n`, those behind a seed that has crashed if there is one.
Seeds = Callable[[int, int, "int | None"], Iterator[int]]


def seeds_from(first: int, functions: Sequence[str], limit: int | None) -> Seeds:
    """All from the first on whose case is of one of the functions."""
    wanted = {NAMES.index(name) for name in functions}

    def seeds(job: int, jobs: int, behind: int | None) -> Iterator[int]:
        seed = first + job if behind is None else behind + jobs
        while limit is None or seed < first + limit:
            if seed % len(NAMES) in wanted:
                yield seed
            seed += jobs

    return seeds


def one_after_the_other(given: Sequence[int]) -> Seeds:
    """These."""

    def seeds(job: int, jobs: int, behind: int | None) -> Iterator[int]:
        own = given[job::jobs]
        return iter(own if behind is None else own[own.index(behind) + 1 :])

    return seeds


def findings_of(seed: int, trial: Any) -> list[Found]:
    """Runs the case of a seed."""
    from .trial import plan_of

    case = case_of(seed)
    plan = plan_of(case, Choices.of_seed(~seed))
    try:
        return [Found(seed, case.function, str(f)) for f in trial.findings(case, plan)]
    except Exception:  # of the fuzzer itself
        return [Found(seed, case.function, f"the fuzzer fails: {traceback.format_exc()}")]


def _work(shared: Shared, seeds: Iterator[int], until: float, pipe: Connection) -> None:
    from . import compare
    from .trial import Trial

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    compare.quick_reference()
    trial = Trial()
    for seed in seeds:
        if time.monotonic() > until:
            break
        before = trial.executions
        shared.begin(seed)
        for found in findings_of(seed, trial):
            pipe.send(found)
        shared.end(seed, trial.executions - before)
    pipe.close()


class Worker:
    """A process and what it is at; a new process after each crash."""

    def __init__(self, seeds: Seeds, job: int, jobs: int, until: float) -> None:
        self.seeds, self.job, self.jobs, self.until = seeds, job, jobs, until
        self.shared = Shared()
        self._start(None)

    def _start(self, behind: int | None) -> None:
        # Forked, it shares the counters; nothing has threads yet.
        context: Any = multiprocessing.get_context("fork")
        self.pipe, child = context.Pipe(duplex=False)
        arguments = (self.shared, self.seeds(self.job, self.jobs, behind), self.until, child)
        self.shared.begin(-1)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        child.close()

    def received(self) -> Iterator[Found]:
        """Findings that have come in."""
        try:
            while self.pipe.poll():
                yield self.pipe.recv()
        except EOFError:
            self.process.join(5)

    def died(self) -> Found | None:
        """What a crash or a hang was, after which the worker goes on behind it."""
        seed = self.shared[0]
        if self.process.is_alive():
            if time.monotonic() - self.shared[1] < PATIENCE + 60 * (self.shared[2] == 0):
                return None
            self.process.kill()
            self.process.join()
            text = f"still running after {PATIENCE:.0f} seconds"
        else:
            if self.process.exitcode == 0:
                return None
            text = f"died of signal {-(self.process.exitcode or 0)}"
        self._start(seed if seed >= 0 else None)
        return Found(seed, NAMES[seed % len(NAMES)], text)


def watch(
    jobs: int, seeds: Seeds, seconds: float, tell: Callable[[Found], None],
    until_found: bool = False,
) -> Counter[tuple[str, str]]:  # fmt: skip
    """Runs cases for so long; returns how many cases and executions there were by function."""
    until = time.monotonic() + seconds
    workers = [Worker(seeds, job, jobs, until) for job in range(jobs)]
    findings = 0
    while any(worker.process.is_alive() for worker in workers):
        wait([worker.pipe for worker in workers if not worker.pipe.closed], timeout=0.2)
        for worker in workers:
            for found in worker.received():
                tell(found)
                findings += 1
            crash = worker.died()
            if crash is not None:
                tell(crash)
                findings += 1
        if until_found and findings:
            for worker in workers:
                worker.process.kill()
            break
        if all(w.process.exitcode is not None for w in workers):
            break
        time.sleep(0.05)
    counts: Counter[tuple[str, str]] = Counter()
    for worker in workers:
        for found in worker.received():
            tell(found)
        for name, (cases, executions) in worker.shared.counts().items():
            counts[name, "cases"] += cases
            counts[name, "executions"] += executions
    return counts
