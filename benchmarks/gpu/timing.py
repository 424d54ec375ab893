"""Times on a device: of its work, between events, and of the host, which only has to ask for it."""

from __future__ import annotations

import gc
import operator
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.clock.harness import Case, Contestant, Skipped
from benchmarks.gpu.device import Cuda, in_a_line

# A sample is to take about so long on the device, in at most so many calls: a queue of launches
# holds 1024, and some peers launch a dozen kernels a call.
_SAMPLE = 0.5e-3
_MOST_CALLS = 20
# The same of the host's time.
_HOST_SAMPLE = 5e-3
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

    def __init__(self, on: Cuda, now: Callable[[], float] = time.perf_counter) -> None:
        self.on, self._now = on, now
        # The fastest that the device counts cycles: at any lower clock a lead lasts longer.
        warm = now() + _WARM
        while now() < warm:
            on.sleep(_CYCLES)
            on.synchronize()
        fastest = min(self._between(lambda: on.sleep(_CYCLES)).seconds for _ in range(5))
        self.cycles_per_second = _CYCLES / fastest

    def host(self, run: Callable[[Any], object], buffers: Sequence[Any], calls: int) -> float:
        """Of the host's time, with a device that lags behind but whose queue does not fill."""
        self.on.synchronize()
        start = self._now()
        for number in range(calls):
            run(buffers[number % len(buffers)])
        seconds = (self._now() - start) / calls
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
            self.on.sleep(int(lead * self.cycles_per_second))
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
    """What a row is to reach: a figure of it and its bound."""

    figure: str
    reaches: Callable[[float, float], bool]
    bound: float
    words: str


# At least this part of the bandwidth of a copy, where there is enough to move; what a call may cost
# the host, where there is not, against a call of copy_: hosts differ, and so do versions of torch.
OF_COPY = Goal("of_copy", operator.ge, 0.90, "0.90 of the copy")
OF_HOST = Goal("host_of_copy", operator.le, 3.0, "3 x the copy's host")


@dataclass(frozen=True)
class Ours(Contestant):
    """A row of this library."""

    ours: bool = True
    goal: Goal | None = None


@dataclass
class Timed:
    """A contestant with its samples, in seconds a call."""

    contestant: Contestant
    device: list[Sample] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    calls: int = 1

    def figures(self, nbytes: int) -> dict[str, Any]:
        """Of the clean samples; of all where there is none. `nbytes` are those of a buffer."""
        row = self.contestant
        samples = [s.seconds for s in self.device if s.clean] or [s.seconds for s in self.device]
        seconds = statistics.median(samples)
        several = samples if len(samples) > 1 else samples * 2
        low, _, high = statistics.quantiles(several, n=4, method="inclusive")
        # What is read once, what is written once; a table reads nothing.
        if row.nbytes is not None:
            nbytes = row.nbytes
        elif row.limit not in ("fill", "read"):
            nbytes *= 2
        return {
            "contestant": row.name, "ours": row.ours, "mode": row.mode,
            "microseconds": seconds * 1e6, "quartiles": [low * 1e6, high * 1e6],
            "host_microseconds": statistics.median(self.host) * 1e6,
            "samples": len(self.device),
            "samples_not_clean": sum(not sample.clean for sample in self.device),
            "calls_per_sample": self.calls,
            "nbytes": nbytes,
            "gigabytes_per_second": nbytes / seconds / 1e9,
        }  # fmt: skip


def _warm_up(clock: Clock, timed: Timed, buffers: Sequence[Any]) -> None:
    """Compile, fill caches, and find out how many calls make a sample."""
    run = timed.contestant.run
    for _ in range(max(3, timed.contestant.warmups)):
        for each in buffers:
            run(each)
    once = clock.device(run, buffers, 2, clock.host(run, buffers, 2)).seconds
    timed.calls = max(1, min(_MOST_CALLS, int(_SAMPLE / max(once, 1e-9))))


def measure(clock: Clock, case: Case, rounds: int) -> dict[str, Any]:
    """Run the contestants of a case round robin, in an order shuffled anew each round.

    Contestants that fail to run are among the skipped; one of ours is an error.
    """
    skipped = [row for row in case.contestants if isinstance(row, Skipped)]
    rows = []
    for contestant in case.contestants:
        if isinstance(contestant, Skipped):
            continue
        timed = Timed(contestant)
        try:
            _warm_up(clock, timed, case.buffers)
            rows.append(timed)
        except Exception as error:
            if contestant.ours:
                raise
            # Peers need more memory, or cannot be compiled here.
            skipped.append(Skipped(contestant.name, contestant.mode, in_a_line(error)[:100]))

    order, shuffle = list(rows), random.Random(0).shuffle
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            shuffle(order)
            for timed in order:
                run = timed.contestant.run
                once = timed.device[-1].seconds if timed.device else _HOST_SAMPLE
                calls = min(_HOST_CALLS, max(1, int(_HOST_SAMPLE / max(once, 1e-9))))
                timed.host.append(clock.host(run, case.buffers, calls))
                timed.device.append(clock.device(run, case.buffers, timed.calls, min(timed.host)))
    finally:
        if collecting:
            gc.enable()
    return figures(case, rows, skipped)


def figures(case: Case, rows: Sequence[Timed], skipped: Sequence[Skipped]) -> dict[str, Any]:
    """A case with all that is known of it; its first row is the copy."""
    nbytes = case.buffers[0].nbytes
    found = [row.figures(nbytes) for row in rows]
    best = min((row["microseconds"] for row in found if row["ours"]), default=None)
    for timed, row in zip(rows, found, strict=True):
        row["of_copy"] = row["gigabytes_per_second"] / found[0]["gigabytes_per_second"]
        row["host_of_copy"] = row["host_microseconds"] / found[0]["host_microseconds"]
        if best is not None and not row["ours"]:
            row["times_ours"] = row["microseconds"] / best
        if isinstance(timed.contestant, Ours) and (goal := timed.contestant.goal):
            row["goal"] = {"is": goal.words, "met": goal.reaches(row[goal.figure], goal.bound)}
    return {
        "case": case.name, "bytes": nbytes, "buffer_sets": len(case.buffers), "rows": found,
        "skipped": [{"contestant": s.name, "mode": s.mode, "reason": s.reason} for s in skipped],
    }  # fmt: skip
