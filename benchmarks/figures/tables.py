"""Tables of what is recorded, in Markdown, and the one of speed.csv in docs/speed.md.

speed.csv names its rows: a case on one thread, a row of it, and what the page calls that.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import judging, records, report

PROCESSOR = "amd-epyc-2-cores"
PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
NOT_RECORDED = "not recorded yet"
_BLOCK = re.compile(r"(<!-- speed: .*? -->\n).*?(<!-- /speed -->)", re.DOTALL)

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


def dated(words: str, case: Case | None, last: str) -> str:
    """With the day of a case that was recorded before the last commit that has a record."""
    day = records.day_of_older(case["recorded"], last) if case else ""
    return f"{words} ({day})" if day else words


def lines() -> list[dict[str, str]]:
    with Path(__file__).with_name("speed.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=";"))


def speed(columns: records.Columns) -> str:
    """Our times and multiples of the limit, a column for all instructions; the best peer."""
    last, rows = records.newest(columns), []
    for line in lines():
        cases = [case_of(figures, f"{line['case']}, 1 thread") for figures in columns.values()]
        found = [(case, row_of(case, line["row"], line["mode"])) for case in cases]
        # In cache no memory bounds it.
        cells = [
            dated(time(row, limits=bool(case and case["buffer_sets"] > 1)), case, last)
            for case, row in found
        ]
        first = next(((case, row) for case, row in found if case and row), None)
        rows.append([line["words"], line["mode"], *cells, _peer(*first, last) if first else ""])
    headings = ("", "mode", *columns, "best peer in this mode, or in the mode it has")
    return "\n".join(markdown(headings, rows, len(headings))) + "\n"


def _peer(case: Case, row: judging.Row, last: str) -> str:
    best = judging.best_peer(case, row)
    if best is None:
        return ""
    mode = "" if best["same_mode"] else f", {best['mode']}"
    return dated(f"{report.duration(best['seconds'])}, {best['contestant']}{mode}", case, last)


def _head(columns: records.Columns) -> str:
    """Which processor and instructions, and when."""
    words = []
    for name, figures in columns.items():
        if figures is None:
            words.append(f"{name}: {NOT_RECORDED}.")
            continue
        machine = figures["machine"]
        origins = "; ".join(records.origins_text(figures).splitlines())
        words.append(f"{machine['cpu']}, {report.instructions_text(machine)}: {origins}.")
    return "\n".join(f"- {line}" for line in words) + "\n"


def page(text: str) -> str:
    """The page with what is recorded now between its marks."""
    columns = records.recorded_columns(PROCESSOR)
    inside = f"{speed(columns)}\n{_head(columns)}"
    found, count = _BLOCK.subn(lambda marks: f"{marks[1]}{inside}{marks[2]}", text)
    assert count == 1, "docs/speed.md: the marks of the table of speed"
    return found
