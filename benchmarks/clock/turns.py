"""Calls that take turns, in any counters: processor time, faults. harness.py has limits besides."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence


def medians(
    runs: Mapping[str, Callable[[], object]],
    calls: Mapping[str, int],
    rounds: int,
    counters: Callable[[], Sequence[float]],
) -> dict[str, list[float]]:
    """By how much a call of each run moves the counters: medians over the rounds, after one more.

    In every round each has its turn, of so many calls, in an order that is the same in all
    processes.
    """
    samples: dict[str, list[list[float]]] = {name: [] for name in runs}
    order, shuffle = list(runs), random.Random(0).shuffle
    for _ in range(rounds + 1):
        shuffle(order)
        for name in order:
            run, number, before = runs[name], range(calls[name]), counters()
            for _ in number:
                run()
            moved = zip(counters(), before, strict=True)
            samples[name].append([(after - then) / calls[name] for after, then in moved])
    return {
        name: [statistics.median(of) for of in zip(*rows[1:], strict=True)]
        for name, rows in samples.items()
    }
