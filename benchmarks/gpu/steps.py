"""The steps, their order, and how much of a call's time each gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.checks import PASSED, UNFINISHED

# Seconds of a call. Machines that are lent end a call after ten minutes; one is for leaving.
BUDGET = 540


@dataclass(frozen=True)
class Step:
    """A part of the work that can have a call of its own."""

    name: str
    limit: float  # seconds that it gets at most where other steps wait
    least: float  # seconds without which it is left to the next call
    of: tuple[str, ...]  # what its outcome depends on, beside the package


_SMALL = ("benchmarks/gpu/small_run.py", "tests/shared")

# Before all others in every call. The wheel is unpacked in seconds; to build one takes minutes.
INSTALL = Step("install", 60, 10, ())
BUILD = Step("install", BUDGET, 240, ())

# Most news for a minute first. The small run tells within one whether anything works. Tests come
# before times, since times of wrong results are worth nothing. Times come before the sanitizers: no
# other machine can give them, while what sanitizers look for has been looked for on the host.
# Of the sanitizers memcheck and racecheck find what users would meet; initcheck and synccheck find
# less in kernels that keep nothing in shared memory but sums.
STEPS = (
    Step("small run", 120, 30, _SMALL),
    Step("tests", 240, 120, ("pyproject.toml", "tests")),
    Step("times", 300, 60, ("benchmarks/clock/harness.py", "benchmarks/gpu/peers.py",
                            "benchmarks/gpu/rows.py", "benchmarks/gpu/timing.py",
                            "benchmarks/peers")),
    Step("memcheck", 180, 90, _SMALL),
    Step("racecheck", 180, 90, _SMALL),
    Step("initcheck", 180, 90, _SMALL),
    Step("synccheck", 180, 90, _SMALL),
)  # fmt: skip
NAMES = tuple(step.name for step in STEPS)


def to_run(
    recorded: Mapping[str, Mapping[str, Any]], keys: Mapping[str, str]
) -> tuple[list[Step], list[Step]]:
    """Steps of `keys` that have not run to an end for what they depend on, and those to try again.

    One that failed, or could not run on that machine, has another try when all others had one.
    """
    unfinished, again = [], []
    for step in STEPS:
        if step.name not in keys:
            continue
        entry = recorded.get(step.name)
        if entry is None or entry["of"] != keys[step.name] or entry["status"] == UNFINISHED:
            unfinished.append(step)
        elif entry["status"] != PASSED:
            again.append(step)
    return unfinished, again


def limit(step: Step, after: Sequence[Step], seconds: float) -> float:
    """What a step gets of the seconds that are left; 0 where that is too little to begin it."""
    given = min(step.limit, seconds) if after else seconds
    return given if given >= step.least else 0
