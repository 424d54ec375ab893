"""Times on a device: of its work, between events, and of the host, which only has to ask for it."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.clock.harness import Case, Contestant, Skipped
from benchmarks.gpu.device import Device

# A sample is to take about so long on the device, in at most so many calls: a queue of launches
# holds 1024, and some peers launch a dozen kernels a call.
_SAMPLE = 0.5e-3
_MOST_CALLS = 20
# Calls of a sample of the host's time, for the same reason.
_HOST_CALLS = 40


# A GPU at rest runs at a fraction of its clock, and takes a while to leave it.
_WARM = 0.2
_CYCLES = 10_000_000
# How often a sample is taken again, with twice the lead, because it was not queued in time.
_AGAIN = 4


@dataclass(frozen=True)
class Sample:
    """Seconds a call; clean if all calls were queued before the device began the first."""

    seconds: float
    clean: bool


class Clock:
    """Seconds a call, of a device's time and of the host's."""

    def __init__(self, device: Device) -> None:
        self.on = device
        self._cycles_per_second = self._calibrate()

    def _calibrate(self) -> float:
        """The fastest that the device counts cycles: at any lower clock a lead lasts longer."""
        warm = time.perf_counter() + _WARM
        while time.perf_counter() < warm:
            self.on.sleep(_CYCLES)
            self.on.synchronize()
        return _CYCLES / min(
            self._between(lambda: self.on.sleep(_CYCLES)).seconds for _ in range(5)
        )

    def host(self, run: Callable[[Any], object], buffers: Sequence[Any], calls: int) -> float:
        """Of the host's time, with a device that lags behind but whose queue does not fill."""
        self.on.synchronize()
        start = time.perf_counter_ns()
        for number in range(calls):
            run(buffers[number % len(buffers)])
        seconds = (time.perf_counter_ns() - start) * 1e-9 / calls
        self.on.synchronize()
        return seconds

    def device(
        self, run: Callable[[Any], object], buffers: Sequence[Any], calls: int, host: float
    ) -> Sample:
        """Of the device's time: it sleeps until all calls, `host` seconds each, are queued.

        Where the host took longer, the device has waited for it within the sample: once more.
        """

        def work() -> None:
            for number in range(calls):
                run(buffers[number % len(buffers)])

        lead = 1.5 * host * calls + 50e-6
        for _ in range(_AGAIN):
            self.on.synchronize()
            self.on.sleep(int(lead * self._cycles_per_second))
            sample = self._between(work)
            if sample.clean:
                break
            lead *= 2
        return Sample(sample.seconds / calls, sample.clean)

    def _between(self, work: Callable[[], object]) -> Sample:
        start, end = (self.on.event() for _ in range(2))
        start.record()
        work()
        end.record()
        clean = not start.query()
        end.synchronize()
        return Sample(float(start.elapsed_time(end)) * 1e-3, clean)


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
    device: list[Sample] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    calls: int = 1

    @property
    def device_seconds(self) -> list[float]:
        """Of the clean samples; of all where there is none."""
        clean = [sample.seconds for sample in self.device if sample.clean]
        return clean or [sample.seconds for sample in self.device]

    @property
    def not_clean(self) -> int:
        """How many samples have time of the host in them."""
        return sum(not sample.clean for sample in self.device)

    @property
    def seconds(self) -> float:
        return statistics.median(self.device_seconds)

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
    once = clock.device(run, buffers, 2, host).seconds
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
                once = timed.device[-1].seconds if timed.device else 5e-3
                calls = min(_HOST_CALLS, max(1, int(5e-3 / max(once, 1e-9))))
                timed.host.append(clock.host(run, case.buffers, calls))
                timed.device.append(clock.device(run, case.buffers, timed.calls, min(timed.host)))
    finally:
        if collecting:
            gc.enable()
    return result
