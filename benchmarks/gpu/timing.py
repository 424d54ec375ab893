"""Times on a device: of its work, between events, and of the host, which only has to ask for it."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.clock.harness import Case, Contestant, Skipped

# A sample is to take about so long on the device, in at most so many calls: a queue of launches
# holds 1024, and some peers launch a dozen kernels a call.
_SAMPLE = 0.5e-3
_MOST_CALLS = 20
# Calls of a sample of the host's time, for the same reason.
_HOST_CALLS = 40


class Clock:
    """Seconds a call, on a CUDA device or, to see that everything runs, on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self._cycles_per_second = 0.0
        if self.cuda:
            torch.cuda._sleep(1000)
            cycles = 10_000_000
            self._cycles_per_second = cycles / self._between(lambda: torch.cuda._sleep(cycles))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def host(self, run: Callable[[Any], object], buffers: Sequence[Any], calls: int) -> float:
        """Of the host's time, with a device that lags behind but whose queue does not fill."""
        self.synchronize()
        start = time.perf_counter_ns()
        for number in range(calls):
            run(buffers[number % len(buffers)])
        seconds = (time.perf_counter_ns() - start) * 1e-9 / calls
        self.synchronize()
        return seconds

    def device(
        self, run: Callable[[Any], object], buffers: Sequence[Any], calls: int, host: float
    ) -> float:
        """Of the device's time: it sleeps until all calls, `host` seconds each, are queued."""
        if not self.cuda:
            return self.host(run, buffers, calls)
        self.synchronize()
        lead = 1.5 * host * calls + 50e-6
        torch.cuda._sleep(int(lead * self._cycles_per_second))

        def work() -> None:
            for number in range(calls):
                run(buffers[number % len(buffers)])

        return self._between(work) / calls

    def _between(self, work: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3


@dataclass(frozen=True)
class Goal:
    """So many multiples of the copy at most ("x"), or so many microseconds of the host ("µs")."""

    at_most: float
    unit: str


@dataclass(frozen=True)
class Ours(Contestant):
    """A row of this library, and what it is to reach."""

    ours: bool = True
    goal: Goal | None = None


@dataclass
class Timed:
    """A contestant with its samples, in seconds a call."""

    contestant: Contestant
    device: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    calls: int = 1

    @property
    def seconds(self) -> float:
        return statistics.median(self.device)

    @property
    def host_seconds(self) -> float:
        return statistics.median(self.host)


@dataclass
class Result:
    """A case with its times; contestants that failed to run are among the skipped."""

    case: Case
    rows: list[Timed]
    skipped: list[Skipped]


def _warm_up(clock: Clock, timed: Timed, buffers: Sequence[Any]) -> None:
    """Compile, fill caches, and find out how many calls make a sample."""
    run = timed.contestant.run
    for _ in range(max(3, timed.contestant.warmups)):
        for each in buffers:
            run(each)
    host = clock.host(run, buffers, 2)
    once = clock.device(run, buffers, 2, host)
    timed.calls = max(1, min(_MOST_CALLS, int(_SAMPLE / max(once, 1e-9))))


def measure(clock: Clock, case: Case, rounds: int) -> Result:
    """Run the contestants of a case round robin, in an order shuffled anew each round."""
    result = Result(case, [], [c for c in case.contestants if isinstance(c, Skipped)])
    for contestant in case.contestants:
        if isinstance(contestant, Skipped):
            continue
        timed = Timed(contestant)
        try:
            _warm_up(clock, timed, case.buffers)
        except Exception as error:
            if contestant.ours:
                raise
            # Peers need more memory, or cannot be compiled here.
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:100]}"
            result.skipped.append(Skipped(contestant.name, contestant.mode, reason))
            continue
        result.rows.append(timed)

    order, shuffle = list(result.rows), random.Random(0).shuffle
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            shuffle(order)
            for timed in order:
                run = timed.contestant.run
                calls = (
                    min(_HOST_CALLS, max(1, int(5e-3 / timed.device[-1]))) if timed.device else 1
                )
                timed.host.append(clock.host(run, case.buffers, calls))
                timed.device.append(clock.device(run, case.buffers, timed.calls, min(timed.host)))
    finally:
        if collecting:
            gc.enable()
    return result
