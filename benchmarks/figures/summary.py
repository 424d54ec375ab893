"""`python -m benchmarks.figures.summary results/X.json`: a run on a page, read in a minute."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import judging, records, report
from .judging import Row, Rule

# What is read in a minute: so many rows that are behind, so many goals that are missed.
_BEHIND, _MISSED = 6, 7
_WIDTH = 37
_CALL = "torch.neg"
# A limit that gains less by a second thread has nothing to gain.
_GAINS = 1.1
# To start a thread or to wake one takes up to so many seconds.
_HANDOVER = 80e-6

Figures = dict[str, Any]
Found = list[tuple[dict[str, Any], Row]]


def family(name: str) -> str:
    """What a case is about: its name up to the first comma, variants together."""
    first = name.partition(",")[0]
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


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{_digits(low)} to {_digits(high)}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def _cell(rows: Found) -> str:
    """The median multiple and the worst; in how many rows we are ahead, and by how much."""
    multiples = [value for case, row in rows if (value := _of_unit(case, row)) is not None]
    of_limit = f"{statistics.median(multiples):.2f} ({max(multiples):.2f})" if multiples else ""
    best = [row["best_peer"] for _, row in rows if "best_peer" in row]
    if not best:
        return f"{of_limit:<13}"
    ahead = sum(peer["times_as_fast"] > 1 for peer in best)
    other_mode = "" if all(peer["same_mode"] for peer in best) else " *"
    factors = _range([peer["times_as_fast"] for peer in best])
    return f"{of_limit:<13}{f'{ahead}/{len(best)}':<7}{factors}{other_mode}"


def _table(columns: dict[str, Figures | None]) -> list[str]:
    cells: dict[tuple[str, str], dict[str, Found]] = {}
    for name, figures in columns.items():
        for case, row in _ours(figures) if figures else ():
            if case["threads"] == 1:
                key = family(case["case"]), row["mode"]
                cells.setdefault(key, {}).setdefault(name, []).append((case, row))
    lines = [
        f"{'':<27}" + "".join(f"{name:<{_WIDTH}}" for name in columns),
        f"{'one thread':<27}" + f"{'of limit':<13}{'ahead':<7}{'times as fast':<17}" * len(columns),
    ]
    for (of, mode), by_column in sorted(cells.items(), key=lambda item: _place(item[0])):
        texts = (
            _cell(by_column[name]) if name in by_column else "not recorded yet" for name in columns
        )
        lines.append(f"{of:<18}{mode:<9}" + "".join(f"{text:<{_WIDTH}}" for text in texts))
    return lines


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
    found.sort(key=lambda entry: entry[0])
    lines = [f"behind the best peer in the same mode: {len(found)} rows"]
    lines += [
        f"  {factor:.2f} x {row['contestant']}, {row['mode']}, as {best['contestant']}; "
        f"{case['case']}"
        for factor, case, row, best in found[:_BEHIND]
    ]
    return [*lines, *_more(found, _BEHIND)]


def _more(entries: Sequence[Any], shown: int) -> list[str]:
    return [f"  and {len(entries) - shown} more"] if len(entries) > shown else []


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
    ours = _range([gains[0] for _, _, gains in found])
    limits = _range([gains[1] for _, _, gains in found])
    lines = [f"a second thread: rows gain {ours} x, their limits {limits} x"]
    lines += [
        f"  {row['contestant']}, {row['mode']}: {gain:.2f} x, the limit {of_limit:.2f} x: {cause}; "
        f"{case['case']}"
        for case, row, (gain, of_limit, cause) in found
        if cause
    ]
    return lines


def _goals(name: str, figures: Figures) -> list[str]:
    """How many are met, and which are not: for each the row that is furthest from it."""
    tally = judging.tally(judging.all_goals(figures["cases"]))
    lines = [
        f"{name}, goals: {tally.met} met, {len(tally.missed)} missed, {tally.unjudged} not judged"
    ]
    by_goal: dict[str, list[judging.Entry]] = {}
    for entry in tally.missed:
        by_goal.setdefault(entry[2]["goal"], []).append(entry)
    kinds = list(by_goal.items())
    for text, entries in kinds[:_MISSED]:
        case, row, goal = entries[0]
        count = f"{len(entries)} x" if len(entries) > 1 else ""
        lines.append(
            f"  {count:>4} {text}: worst {goal['figure']:.2f}, {row['contestant']}, {row['mode']}; "
            f"{case['case']}"
        )
    return [*lines, *_more(kinds, _MISSED)]


def page(figures: Figures, columns: records.Columns, rules: Sequence[Rule]) -> str:
    """The page of these figures, and of the same cases with other instructions beside them."""
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


def main(arguments: list[str] | None = None) -> None:
    from benchmarks.cases.goals import RULES  # brings torch

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures.summary", description=__doc__
    )
    parser.add_argument("figures", type=Path, help="benchmarks/results/X.json")
    figures = records.load(parser.parse_args(arguments).figures)
    print(page(figures, records.columns_beside(figures), RULES))


if __name__ == "__main__":
    main()
