"""A run on a page, read in a minute; and all that a file of results says, with that at its end."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from . import judging, records, report
from .judging import Row, Rule
from .records import Figures

# What is read in a minute: so many rows that are behind, so many goals that are missed.
_BEHIND, _MISSED = 5, 6
_CALL = "torch.neg"
# A limit that gains less by a second thread has nothing to gain.
_GAINS = 1.1
# To start a thread or to wake one takes up to so many seconds.
_HANDOVER = 80e-6

Found = list[tuple[dict[str, Any], Row]]


def family(name: str) -> str:
    """What a case is about: its name up to the first comma, variants together."""
    first = name.partition(",")[0].partition(" (")[0]  # "a function of LIBRARY (MODEL)"
    if first.startswith("rotary:"):
        return "rotary variants"
    return first.partition(":")[0]


def _ours(figures: Figures) -> Iterator[tuple[dict[str, Any], Row]]:
    for case in figures["cases"]:
        for row in judging.timed(case):
            if row["ours"]:
                yield case, row


def _of_unit(case: dict[str, Any], row: Row) -> float | None:
    """Multiples of the memory limit or, in cache, of a call of torch.neg; None without either."""
    if case["buffer_sets"] == 1:
        calls = [other["seconds"] for other in judging.timed(case) if other["contestant"] == _CALL]
        return row["seconds"] / min(calls) if calls else None
    return row.get("times_limit")


def _range(values: Iterable[float]) -> str:
    of = list(values)
    return " to ".join(report.factor(value).removesuffix(" x") for value in (min(of), max(of)))


def _cells(rows: Found) -> list[str]:
    """The median multiple and the worst; in how many rows we are ahead, and by how much."""
    if not rows:
        return ["not recorded yet", "", ""]
    multiples = [value for case, row in rows if (value := _of_unit(case, row)) is not None]
    of_limit = f"{statistics.median(multiples):.2f} ({max(multiples):.2f})" if multiples else ""
    best = [row["best_peer"] for _, row in rows if "best_peer" in row]
    if not best:
        return [of_limit, "", ""]
    ahead = sum(peer["times_as_fast"] > 1 for peer in best)
    other_mode = "" if all(peer["same_mode"] for peer in best) else " *"
    factors = _range(peer["times_as_fast"] for peer in best)
    return [of_limit, f"{ahead}/{len(best)}", f"{factors}{other_mode}"]


def _table(columns: records.Columns) -> list[str]:
    found: dict[tuple[str, str], dict[str, Found]] = {}
    for name, figures in columns.items():
        for case, row in _ours(figures) if figures else ():
            if case["threads"] == 1:
                key = family(case["case"]), row["mode"]
                found.setdefault(key, {}).setdefault(name, []).append((case, row))
    rows = [["", ""], ["one thread", ""]]
    for name in columns:
        rows[0] += [name, "", ""]
        rows[1] += ["of limit", "ahead", "times as fast"]
    for key in sorted(found, key=_place):
        of_columns = (_cells(found[key].get(name, [])) for name in columns)
        rows.append([*key, *itertools.chain(*of_columns)])
    return report.lined_up(rows, words=len(rows[0]))


_FAMILIES = ("rotary", "rotary backward", "rotary variants", "decode")
_MODES = ("in place", "out=", "fresh")


def _place(key: tuple[str, str]) -> tuple[int, str, int]:
    of, mode = key
    return _FAMILIES.index(of) if of in _FAMILIES else len(_FAMILIES), of, _MODES.index(mode)


def _behind(figures: Figures) -> list[str]:
    """Rows that a peer is faster than in the same mode, the furthest first."""
    found = [
        (best["times_as_fast"], case, row, best)
        for case, row in _ours(figures)
        if (best := row.get("best_peer"))
        and best["same_mode"]
        and best["times_as_fast"] < 1
        # On one of two threads it is there for what the second one gains.
        and not row["contestant"].endswith(", 1 thread")
    ]
    lines = [
        f"  {factor:.2f} x {_named(row)}, as {best['contestant']}; {case['case']}"
        for factor, case, row, best in sorted(found, key=lambda entry: entry[0])
    ]
    return [f"behind the best peer in the same mode: {len(found)} rows", *_first(lines, _BEHIND)]


def _named(row: Row) -> str:
    return f"{row['contestant']}, {row['mode']}"


def _first(lines: list[str], number: int) -> list[str]:
    more = [f"  and {len(lines) - number} more"] if len(lines) > number else []
    return lines[:number] + more


def second_thread(case: dict[str, Any], row: Row) -> tuple[float, float, str | None] | None:
    """What a row and its limit gain by a second thread, and why it is less than the limit does.

    The cause is None where the row gains as much, or where there is little to gain. The whole is
    None for a row that was not timed on one thread.
    """
    alone = f"{row['contestant']}, 1 thread"
    twins = [
        other["seconds"]
        for other in judging.timed(case)
        if other["contestant"] == alone and other["mode"] == row["mode"]
    ]
    if not twins:
        return None
    gain, of_limit = twins[0] / row["seconds"], case["limits"][row["limit"]]["times_one_thread"]
    if of_limit < _GAINS or gain >= 0.9 * of_limit:
        return gain, of_limit, None
    if row["times_limit"] <= 1.2:
        return gain, of_limit, "both threads are at the limit of the memory"
    if twins[0] < 4 * _HANDOVER:
        return gain, of_limit, "the call is hardly longer than it takes to wake a thread"
    return gain, of_limit, "not explained"


def _threads(figures: Figures) -> list[str]:
    found = [
        (case, row, gains)
        for case, row in _ours(figures)
        if case["threads"] == 2 and (gains := second_thread(case, row))
    ]
    if not found:
        return []
    ours, limits = (_range(gains[i] for _, _, gains in found) for i in range(2))
    return [f"a second thread: rows gain {ours} x, their limits {limits} x"] + [
        f"  {_named(row)}: {gain:.2f} x, the limit {of_limit:.2f} x: {cause}; {case['case']}"
        for case, row, (gain, of_limit, cause) in found
        if cause
    ]


def _goals(name: str, figures: Figures) -> list[str]:
    """How many are met, and which are not: for each the row that is furthest from it."""
    tally = judging.tally(judging.all_goals(figures["cases"]))
    by_goal: dict[str, list[judging.Entry]] = {}
    for entry in tally.missed:
        by_goal.setdefault(entry[2]["goal"], []).append(entry)
    lines = []
    for text, entries in by_goal.items():
        case, row, goal = entries[0]
        count = f"{len(entries)} x" if len(entries) > 1 else ""
        worst = f"worst {goal['figure']:.2f}, {_named(row)}; {case['case']}"
        lines.append(f"  {count:>4} {text}: {worst}")
    return [f"{name}, goals: {tally.words}", *_first(lines, _MISSED)]


def page(figures: Figures, columns: records.Columns, rules: Sequence[Rule] | None = None) -> str:
    """The page of these figures, and of the same cases with other instructions beside them.

    It is judged by the goals of today, where no others are given.
    """
    rules = _today() if rules is None else rules
    names = {case["case"] for case in figures["cases"]}
    own = judging.instructions_of(figures["machine"])
    shown: records.Columns = {}
    for name, of in {**columns, own: figures}.items():
        cases = [case for case in of["cases"] if case["case"] in names] if of else []
        shown[name] = judging.judged({**of, "cases": cases}, rules) if of and cases else None
    machine, mine = figures["machine"], judging.judged(figures, rules)
    lines = [
        f"SUMMARY: {machine['cpu']}, {machine['cores']} cores",
        *(
            report.instructions_text(of["machine"]) if of else f"{name}: not recorded yet"
            for name, of in shown.items()
        ),
        "",
        *_table(shown),
        "of limit: the median (the worst) of the memory limit; decode, of a call of torch.neg",
        "times as fast: as the best peer in the same mode; *: of some rows no peer has the mode",
        "",
        *_goals(own, mine),
        *_behind(mine),
        *_threads(mine),
    ]
    for name, of in shown.items():
        if of and name != own:
            lines += ["", *_goals(name, of)[:2]]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _today() -> Sequence[Rule]:
    from benchmarks.cases.goals import RULES  # brings torch

    return RULES


def text(figures: Figures) -> str:
    """All that a file says."""
    shown = judging.judged(figures, _today())
    parts = [report.machine_text(figures["machine"]) + records.origins_text(figures)]
    parts += [report.as_text(case) for case in shown["cases"]]
    parts += [report.STUDIES[study](figures[study]) for study in records.studies(figures)]
    parts.append(report.goals_text(shown["cases"]))
    parts.append(page(figures, records.columns_beside(figures)))
    return "\n".join(parts)
