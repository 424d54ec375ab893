"""The directive ``measured``: tables of a benchmark's results, made when the page is built.

    ```{measured} machine
    ```
    ```{measured} accuracy rotary base 5e5
    ```
    ```{measured} case rotary, q 32 + k 8 heads x 4096 x 128, torch float32, half, 1 thread
    ```
    ```{measured} call decode, 1 x (q 32 + k 8 heads x 1 x 128), torch bfloat16, half, 1 thread
    ```
    ```{measured} goals
    ```
    ```{measured} missed goals
    ```

The results are benchmarks/results/amd-epyc-2-cores.json; a page never repeats a figure by hand.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from benchmarks.figures import report

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "amd-epyc-2-cores.json"


class Measured(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(RESULTS))
        what, _, which = self.arguments[0].partition(" ")
        if what == "machine" and not which:
            lines = _machine()
        elif what == "accuracy" and (rows := _accuracy_of(which)):
            lines = _accuracy(rows)
        elif what == "case" and (case := _case_of(which)):
            lines = _case(case)
        elif what == "call" and (case := _case_of(which)):
            lines = _call(case)
        elif what == "goals" and not which:
            lines = _goals()
        elif (what, which) == ("missed", "goals"):
            lines = _missed_goals()
        else:
            raise self.error(f"measured: {RESULTS.name} has no {self.arguments[0]!r}")
        return self.parse_text_to_nodes("\n".join(lines))


@functools.cache
def _results() -> Any:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def _machine() -> list[str]:
    machine = _results()["machine"]
    packages = ", ".join(f"{name} {v}" for name, v in machine["packages"].items() if v)
    words = (
        f"{machine['cpu']}, {machine['cores']} cores, "
        f"{machine['posenc_native']['SIMD target in use']}; {machine['system']}, "
        f"Python {machine['python']}; {packages}. Measured {machine['date'][:10]}, the median of "
        f"{_results()['rounds']} rounds."
    )
    return [words]


def _table(headings: list[str], rows: list[list[str]], numbers_from: int) -> list[str]:
    """A table in Markdown; columns from that number on are aligned to the right."""
    marks = ["---" if i < numbers_from else "--:" for i in range(len(headings))]
    return [f"| {' | '.join(cells)} |" for cells in (headings, marks, *rows)]


def _accuracy_of(quantity: str) -> list[dict[str, Any]]:
    return [row for row in _results()["accuracy"] if row["quantity"] == quantity]


def _accuracy(rows: list[dict[str, Any]]) -> list[str]:
    positions = sorted({row["position"] for row in rows})
    lines = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        errors = {row["position"]: row["error"] for row in rows if row["peer"] == peer}
        if any(error is not None for error in errors.values()):
            cells = (errors.get(position) for position in positions)
            lines.append([peer, *("" if e is None else f"{e:.1e}" for e in cells)])
    return _table(["position", *(f"{p:,}".replace(",", " ") for p in positions)], lines, 1)


def _case_of(name: str) -> dict[str, Any] | None:
    return next((case for case in _results()["cases"] if case["case"] == name), None)


def _rows(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that were timed: ours, then the others, the fastest first."""
    timed = [row for row in case["rows"] if "skipped" not in row]
    return sorted(timed, key=lambda row: (not row["ours"], row["seconds"]))


def _cells(row: dict[str, Any]) -> list[str]:
    name = f"**{row['contestant']}**" if row["ours"] else row["contestant"]
    return [name, row["mode"], report.duration(row["seconds"])]


def _case(case: dict[str, Any]) -> list[str]:
    """Times and multiples of the memory limit."""
    limits = [
        [f"*memory limit: {kind}*", "", report.duration(limit["seconds"]), ""]
        for kind, limit in case["limits"].items()
    ]
    rows = [
        [*_cells(row), f"{row['times_limit']:.2f} x {row['limit']}" if "limit" in row else ""]
        for row in _rows(case)
    ]
    return _table(["", "mode", "time", "of the limit"], [*limits, *rows], 2)


def _call(case: dict[str, Any]) -> list[str]:
    """Times alone, of what is so small that memory does not matter."""
    return _table(["", "mode", "time"], [_cells(row) for row in _rows(case)], 2)


def _all_goals() -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Case, row, goal."""
    return [
        (case, row, goal)
        for case in _results()["cases"]
        for row in case["rows"]
        for goal in row.get("goals", ())
    ]


def _goals() -> list[str]:
    """How often each goal is met, and how far off it is where it is not."""
    by_text: dict[str, list[dict[str, Any]]] = {}
    for _, _, goal in _all_goals():
        text = re.sub(r"as fast as .*, 1 thread.*", "as fast as on 1 thread", goal["goal"])
        by_text.setdefault(text, []).append(goal)
    rows = []
    for text, goals in sorted(by_text.items(), key=_kind_of_goal):
        missed = sorted(goal["figure"] for goal in goals if goal["met"] is False)
        met = sum(goal["met"] is True for goal in goals)
        reached = f"{missed[0]:.2f} to {missed[-1]:.2f}" if missed else ""
        unjudged = len(goals) - met - len(missed)
        rows.append([text, *(str(n or "") for n in (met, len(missed), unjudged)), reached])
    return _table(["goal", "met", "missed", "not judged", "the missed reach"], rows, 1)


def _kind_of_goal(entry: tuple[str, Any]) -> tuple[str, float]:
    """Sorts goals by their words, then by the number, so that like ones stand together."""
    number = next(float(word) for word in entry[0].split() if word[0].isdigit())
    return " ".join(word for word in entry[0].split() if not word[0].isdigit()), number


def _missed_goals() -> list[str]:
    rows = [
        [case["case"], f"{row['contestant']}, {row['mode']}", goal["goal"], f"{goal['figure']:.2f}"]
        for case, row, goal in _all_goals()
        if goal["met"] is False
    ]
    return _table(["case", "row", "goal", "reached"], rows, 3)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
