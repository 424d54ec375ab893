"""Goals, and whether a run reached them.

Both are derived from times whenever they are shown. A recorded file has times alone, so that it is
judged by the goals of today.

Like is compared with like: a row in place with rows in place, out= with out=, fresh results with
fresh ones. A library that has no such mode is compared in the mode that it has, which is what its
users can get, and every text says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

BEST_PEER = "the best peer"

Row = dict[str, Any]


@dataclass(frozen=True)
class AtMost:
    """Multiples of the row's memory limit, or of the time of the row called `of`.

    `avx2` is the bound where the kernels use AVX2, if that is another one.
    """

    times: float
    avx2: float | None = None
    of: str | None = None


@dataclass(frozen=True)
class AtLeast:
    """So many times as fast as the best peer, or as the fastest row whose name begins with `of`."""

    times: float
    of: str = BEST_PEER


@dataclass(frozen=True)
class Gain:
    """So many times as fast as the same work on one thread, where a copy gains as much."""

    times: float


Goal = AtMost | AtLeast | Gain


@dataclass(frozen=True)
class Rule:
    """Goals of our rows: `cases` and `rows` are regular expressions that occur in their names."""

    cases: str
    mode: str | None  # None: any
    goals: tuple[Goal, ...]
    rows: str = ""
    least_bytes: int = 0  # in cases of so many bytes and more

    def holds(self, case: dict[str, Any], row: Row) -> bool:
        return (
            self.mode in (None, row["mode"])
            and case["bytes"] >= self.least_bytes
            and re.search(self.cases, case["case"]) is not None
            and re.search(self.rows, row["contestant"]) is not None
        )


def instructions(target: str) -> str:
    """A SIMD target in the words of processors: "AVX-512", "AVX2", "SSE4", "NEON"."""
    return "AVX-512" if target.startswith("AVX3") else target.partition("_")[0]


def instructions_of(machine: dict[str, Any]) -> str:
    """Those that the kernels used."""
    return instructions(machine["posenc_native"]["SIMD target in use"])


# -------------------------------------------------------------------------------------- comparisons


def timed(case: dict[str, Any]) -> list[Row]:
    return [row for row in case["rows"] if "skipped" not in row]


def _is_peer(row: Row) -> bool:
    return not (row.get("ours") or row.get("yardstick"))


def _compared(case: dict[str, Any], row: Row, of: str) -> tuple[list[Row], list[str]]:
    """The rows that a row is to be compared with, and the names of such that were left out."""
    named = [
        other
        for other in case["rows"]
        if other is not row
        and ("skipped" not in other or other.get("left_out"))
        and (_is_peer(other) if of == BEST_PEER else other["contestant"].startswith(of))
    ]
    same = [other for other in named if other["mode"] == row["mode"]]
    if all("skipped" in other for other in same):
        # A yardstick says what a loop or a copy takes in a mode; in another one it says nothing.
        same = [other for other in named if not other.get("yardstick")]
    left_out = [other["contestant"] for other in same if "skipped" in other]
    return [other for other in same if "skipped" not in other], left_out


def _seconds(row: Row) -> float:
    return float(row["seconds"])


def best_peer(case: dict[str, Any], row: Row) -> dict[str, Any] | None:
    """The fastest peer in the row's mode; if none has it, the fastest of any mode."""
    if _is_peer(row):  # it is one of those
        peers = [other for other in timed(case) if _is_peer(other) and other["mode"] == row["mode"]]
    else:
        peers, _ = _compared(case, row, BEST_PEER)
    if not peers:
        return None
    best = min(peers, key=_seconds)
    return {
        "contestant": best["contestant"],
        "mode": best["mode"],
        "seconds": best["seconds"],
        "times_as_fast": best["seconds"] / row["seconds"],
        "same_mode": best["mode"] == row["mode"],
    }


def _verdict(case: dict[str, Any], row: Row, goal: Goal, isa: str) -> dict[str, Any] | None:
    """What became of a goal; None with nobody to compare with.

    `met` is None where the limit does not gain as much, and where the goal is met only because
    rows were left out. `short` is the factor by which it is missed.
    """
    remark, met = "", None
    if isinstance(goal, AtMost):
        bound = goal.avx2 if goal.avx2 is not None and isa == "AVX2" else goal.times
        if goal.of is None:
            of, unit = row["limit"], case["limits"][row["limit"]]["seconds"]
        else:
            of = goal.of
            units = [other["seconds"] for other in timed(case) if other["contestant"] == of]
            if not units:
                return None
            unit = min(units)
        figure = row["seconds"] / unit
        text, met = f"at most {bound:g} x {of}", figure <= bound
        return {"goal": text, "remark": "", "figure": figure, "met": met, "short": figure / bound}
    if isinstance(goal, AtLeast):
        others, left_out = _compared(case, row, goal.of)
        text = f"{goal.times:g} x as fast as {goal.of}"
    else:
        alone = f"{row['contestant']}, 1 thread"
        others, left_out = _compared(case, row, alone)
        others = [other for other in others if other["contestant"] == alone]
        text = f"{goal.times:g} x as fast as on 1 thread"
    if not others:
        return None
    best = min(others, key=_seconds)
    figure = best["seconds"] / row["seconds"]
    met = figure >= goal.times
    if best["mode"] != row["mode"]:
        remark = best["mode"]
    if isinstance(goal, Gain) and (gain := copy_gain(case, row)) < goal.times:
        remark, met = f"{_limit_of_gain(case, row)} gains {gain:.2f}", None
    elif met and left_out:
        remark, met = f"{', '.join(left_out)} left out", None
    return {
        "goal": text,
        "remark": remark,
        "figure": figure,
        "met": met,
        "short": goal.times / figure,
    }


def _limit_of_gain(case: dict[str, Any], row: Row) -> str:
    """A copy shows what several threads are good for in memory, where the case has one."""
    return "copy" if "copy" in case["limits"] else str(row["limit"])


def copy_gain(case: dict[str, Any], row: Row) -> float:
    """How many times as fast the limit is on the case's threads as on one."""
    return float(case["limits"][_limit_of_gain(case, row)].get("times_one_thread", 1.0))


# ----------------------------------------------------------------------------------------- verdicts


def judged_case(
    case: dict[str, Any], rules: Sequence[Rule] = (), isa: str = "AVX-512"
) -> dict[str, Any]:
    """The case with `best_peer` and `goals` in its rows, where there are any."""
    rows = []
    for row in case["rows"]:
        if "skipped" in row:
            rows.append(row)
            continue
        judged = dict(row)
        if best := best_peer(case, row):
            judged["best_peer"] = best
        goals = [
            goal for rule in rules if row["ours"] and rule.holds(case, row) for goal in rule.goals
        ]
        verdicts = [v for goal in goals if (v := _verdict(case, row, goal, isa))]
        if verdicts:
            judged["goals"] = verdicts
        rows.append(judged)
    return {**case, "rows": rows}


def judged(figures: dict[str, Any], rules: Sequence[Rule]) -> dict[str, Any]:
    """A run's figures with the verdicts of today. Times of a quick run mean nothing."""
    isa = instructions_of(figures["machine"])
    rules = () if figures["quick"] else rules
    return {**figures, "cases": [judged_case(case, rules, isa) for case in figures["cases"]]}


Entry = tuple[dict[str, Any], Row, dict[str, Any]]


def all_goals(cases: Iterable[dict[str, Any]]) -> Iterator[Entry]:
    """Case, row and verdict of every goal."""
    for case in cases:
        for row in case["rows"]:
            for goal in row.get("goals", ()):
                yield case, row, goal


@dataclass(frozen=True)
class Tally:
    """What became of a number of goals."""

    met: int
    unjudged: int
    missed: tuple[Entry, ...]  # the furthest from its goal first

    @property
    def words(self) -> str:
        return f"{self.met} met, {len(self.missed)} missed, {self.unjudged} not judged"


def tally(entries: Iterable[Entry]) -> Tally:
    entries = list(entries)
    missed = [entry for entry in entries if entry[2]["met"] is False]
    return Tally(
        met=sum(entry[2]["met"] is True for entry in entries),
        unjudged=sum(entry[2]["met"] is None for entry in entries),
        missed=tuple(sorted(missed, key=lambda entry: -entry[2]["short"])),
    )
