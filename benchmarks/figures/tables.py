"""Parts of tables of what is recorded, in Markdown, and the table at a glance of docs/speed.md.

speed.csv names its rows: a case on one thread, a row of it, and what the page calls that.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import judging, records, report

PROCESSOR = "amd-epyc-2-cores"
# Of a figure of another day than most of its column; twice, of a figure of yet another one.
MARK = "†"
NOT_RECORDED = "not recorded yet"

Case = dict[str, Any]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> list[str]:
    """Columns of words, so many, and then of numbers, which are aligned to the right."""
    marks = ["---" if i < words else "--:" for i in range(len(headings))]
    return [f"| {' | '.join(cells)} |" for cells in (headings, marks, *rows)]


def case_of(figures: records.Figures | None, name: str) -> Case | None:
    return next(
        (case for case in (figures or {"cases": ()})["cases"] if case["case"] == name), None
    )


def row_of(case: Case | None, name: str, mode: str) -> judging.Row | None:
    rows = judging.timed(case) if case else ()
    return next((row for row in rows if (row["contestant"], row["mode"]) == (name, mode)), None)


def time(row: judging.Row | None, *, limits: bool) -> str:
    """The time, and what it is of the memory limit where that matters."""
    if row is None:
        return NOT_RECORDED
    words = report.duration(row["seconds"])
    return (
        f"{words}, {row['times_limit']:.2f} x {row['limit']}"
        if limits and "limit" in row
        else words
    )


def lines() -> list[dict[str, str]]:
    with Path(__file__).with_name("speed.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=";"))


def at_a_glance(columns: records.Columns) -> list[str]:
    """Our times and multiples of the limit, a column for all instructions; the best peer.

    A line below has the day of most figures of each column; a figure of another day carries a mark.
    """
    found = []
    for line in lines():
        cases = [case_of(figures, f"{line['case']}, 1 thread") for figures in columns.values()]
        found.append([(case, row_of(case, line["row"], line["mode"])) for case in cases])
    days = [
        Counter(records.day(case["recorded"]) for case, row in column if case and row)
        for column in zip(*found, strict=True)
    ]
    usual = [max(counts, key=counts.__getitem__) if counts else "" for counts in days]
    others = sorted(
        {day for of, most in zip(days, usual, strict=True) for day in of if day != most}
    )
    marks = {day: MARK * number for number, day in enumerate(others, 1)}
    rows = []
    for line, pairs in zip(lines(), found, strict=True):
        cells = []
        for (case, row), day in zip(pairs, usual, strict=True):
            # In cache no memory bounds it.
            words = time(row, limits=bool(case and case["buffer_sets"] > 1))
            own = records.day(case["recorded"]) if case and row else day
            cells.append(words if own == day else f"{words} {marks[own]}")
        first = next(((case, row) for case, row in pairs if case and row), None)
        rows.append([line["words"], line["mode"], *cells, _peer(*first) if first else ""])
    headings = ("", "mode", *columns, "best peer in this mode, or in the mode it has")
    of_days = recorded(dict(zip(columns, usual, strict=True)))
    of_marks = "".join(f"; {marks[day]} {day}" for day in others)
    return [*markdown(headings, rows, len(headings)), "", f"{of_days}{of_marks}."]


def recorded(days: dict[str, str]) -> str:
    """The day of each column, once where it is the same."""
    if len(set(days.values())) == 1:
        return f"Recorded {next(iter(days.values())) or 'never'}"
    return "Recorded " + ", ".join(f"{day} ({column})" for column, day in days.items() if day)


def _peer(case: Case, row: judging.Row) -> str:
    best = judging.best_peer(case, row)
    if best is None:
        return ""
    mode = "" if best["same_mode"] else f", {best['mode']}"
    return f"{report.duration(best['seconds'])}, {best['contestant']}{mode}"
