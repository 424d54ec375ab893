"""Tables of what is recorded, in Markdown: what pages have between their marks (scripts/pages).

    <!-- measured: machine -->
    <!-- measured: at a glance -->
    <!-- measured: libraries -->
    <!-- measured: accuracy rotary base 5e5 -->
    <!-- measured: case rotary, q 32 + k 8 heads x 4096 x 128, torch float32, half, 1 thread -->
    <!-- measured: call decode, 1 x (q 32 + k 8 heads x 1 x 128), torch bfloat16, half, 1 thread -->
    <!-- measured: goals -->
    <!-- measured: missed goals -->
    <!-- measured: gpu missed goals -->
    <!-- measured: gpu machine -->
    <!-- measured: gpu -->

The records are benchmarks/results/amd-epyc-2-cores.json and, of AVX2 instructions on that
processor, amd-epyc-2-cores-avx2.json; of a GPU gpu-nvidia-h200.json. A page never repeats a figure
by hand. Times have a column for each, which says so where nothing is recorded, and is headed by the
day of its figures. Goals are those of benchmarks/cases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.cases.goals import RULES

from . import judging, readme, records, report, tables
from .tables import NOT_RECORDED, PROCESSOR

OF_GPU = records.RESULTS / "gpu-nvidia-h200.json"
# What other rows are compared with, and no library.
_YARDSTICKS = ("copy", "fill", "sum")


def text(what: str) -> str:
    """The table that a mark names; a name that nothing is recorded of is a ValueError."""
    kind, _, which = what.partition(" ")
    if what in _WHOLE:
        lines = _WHOLE[what]()
    elif kind == "accuracy" and (rows := _accuracy_of(which)):
        lines = _accuracy(rows)
    elif kind in ("case", "call") and tables.case_of(_results(), which):
        lines = _case(which, limits=kind == "case")
    else:
        known = ", ".join([*_WHOLE, "accuracy QUANTITY", "case NAME", "call NAME"])
        raise ValueError(f"measured: nothing is recorded of {what!r}; expected {known}")
    return "\n".join(lines) + "\n"


@functools.cache
def _columns() -> records.Columns:
    """What is recorded, by instructions; judged."""
    return {
        name: figures and judging.judged(figures, RULES)
        for name, figures in records.recorded_columns(PROCESSOR).items()
    }


def _results() -> Any:
    return _columns()["AVX-512"]


def _machine() -> list[str]:
    machine = _results()["machine"]
    packages = ", ".join(f"{name} {v}" for name, v in machine["packages"].items() if v)
    words = (
        f"{machine['cpu']}, {machine['cores']} cores, "
        f"{report.instructions_text(machine)}; {machine['system']}, "
        f"Python {machine['python']}; {packages}."
    )
    lines = [words, "", *_recorded("AVX-512")]
    if lesser := _columns()["AVX2"]:
        lines += ["", f"{report.instructions_text(lesser['machine'])}.", *_recorded("AVX2")]
    else:
        lines += ["", f"AVX2: {NOT_RECORDED}."]
    return lines


def _recorded(column: str) -> list[str]:
    return [f"{line}." for line in records.origins_text(_columns()[column] or {}).splitlines()]


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
    day = records.day(_results()["accuracy_recorded"])
    headings = ["position", *(f"{p:,}" for p in positions)]
    return [*tables.markdown(headings, lines, 1), "", f"Recorded {day}."]


def _case(name: str, *, limits: bool) -> list[str]:
    """Times, with multiples of the memory limit if that matters; a column for all instructions.

    Ours first, then the others, the fastest first.
    """
    cases = {column: tables.case_of(figures, name) for column, figures in _columns().items()}
    first = next(case for case in cases.values() if case)
    rows = []
    for kind in first["limits"] if limits else ():
        times = (
            report.duration(case["limits"][kind]["seconds"]) if case else NOT_RECORDED
            for case in cases.values()
        )
        rows.append([f"*memory limit: {kind}*", "", *times])
    timed = sorted(judging.timed(first), key=lambda row: (not row["ours"], row["seconds"]))
    for row in timed:
        words = f"**{row['contestant']}**" if row["ours"] else row["contestant"]
        found = (tables.row_of(case, row["contestant"], row["mode"]) for case in cases.values())
        rows.append([words, row["mode"], *(tables.time(one, limits=limits) for one in found)])
    days = {column: records.day(case["recorded"]) for column, case in cases.items() if case}
    return [*tables.markdown(["", "mode", *cases], rows, 2), "", f"{tables.recorded(days)}."]


def _tallies(entries: Iterable[judging.Entry]) -> dict[str, judging.Tally]:
    """What became of each goal, like ones together."""
    by_goal: dict[str, list[judging.Entry]] = {}
    for entry in entries:
        by_goal.setdefault(entry[2]["goal"], []).append(entry)
    return {text: judging.tally(of) for text, of in sorted(by_goal.items(), key=_kind_of_goal)}


def _goals() -> list[str]:
    """How often each goal is met, and how far off it is where it is not; columns as times have."""
    columns = _columns()
    tallies = {
        column: _tallies(judging.all_goals(figures["cases"]))
        for column, figures in columns.items()
        if figures
    }
    # A bound of its own for AVX2 is a goal of its own.
    goals = dict.fromkeys(text for of in tallies.values() for text in of)
    rows = [
        [text, *(_tally(tallies[c].get(text)) if c in tallies else NOT_RECORDED for c in columns)]
        for text in goals
    ]
    words = "met, missed, not judged"
    headings = (f"{column}{_since(figures)}: {words}" for column, figures in columns.items())
    return tables.markdown(["goal", *headings], rows, 1)


def _since(figures: records.Figures | None) -> str:
    """The day of the oldest case."""
    if figures is None:
        return ""
    return f" (since {min(records.day(case['recorded']) for case in figures['cases'])})"


def _tally(of: judging.Tally | None) -> str:
    return f"{of.met}, {len(of.missed)}, {of.unjudged}" if of else ""


def _kind_of_goal(entry: tuple[str, Any]) -> tuple[str, float]:
    """Sorts goals by their words, then by the number, so that like ones stand together."""
    number = next(float(word) for word in entry[0].split() if word[0].isdigit())
    return " ".join(word for word in entry[0].split() if not word[0].isdigit()), number


def _missed_goals() -> list[str]:
    """A line for a goal that rows of a name and mode miss: how many cases, and the furthest."""
    lines = []
    for column, figures in _columns().items():
        if figures is None:
            lines += [f"**{column}**: {NOT_RECORDED}.", ""]
            continue
        found: dict[tuple[str, str, str], list[judging.Entry]] = {}
        tally = judging.tally(judging.all_goals(figures["cases"]))
        for case, row, goal in tally.missed:
            key = goal["goal"], row["contestant"], row["mode"]
            found.setdefault(key, []).append((case, row, goal))
        rows = []
        for (text, contestant, mode), entries in found.items():
            case, _, goal = entries[0]
            remark = f" ({goal['remark']})" if goal["remark"] else ""
            rows.append(
                [
                    f"{contestant}, {mode}",
                    f"{text}{remark}",
                    f"{goal['figure']:.2f}",
                    case["case"],
                    str(len(entries)),
                ]
            )
        headings = ["row", "goal", "worst value", "in this case", "cases"]
        lines += [
            f"**{column}**: {len(tally.missed)} goals are missed.",
            "",
            *tables.markdown(headings, rows, 5),
            "",
        ]
    return lines


def _gpu_missed_goals() -> list[str]:
    """A line for every row that misses its goal, and how many met theirs."""
    judged = [
        (name, row)
        for name, case in _of_gpu()["cases"].items()
        for row in case.get("rows", ())
        if row.get("goal")
    ]
    missed = [(name, row) for name, row in judged if not row["goal"]["met"]]
    rows = [
        [name, f"{row['contestant']}, {row['mode']}", row["goal"]["is"], f"{row['of_copy']:.2f}",
         f"{row['host_microseconds']:.0f}"]
        for name, row in missed
    ]  # fmt: skip
    words = (
        f"**{_of_gpu()['machine']['device']}**: {len(missed)} of {len(judged)} goals are missed."
    )
    headings = ["case", "row", "goal", "of copy", "host µs"]
    return [words, "", *tables.markdown(headings, rows, 3)]


@functools.cache
def _of_gpu() -> Any:
    return records.load(OF_GPU)


def _gpu_machine() -> list[str]:
    machine = _of_gpu()["machine"]
    packages = ", ".join(f"{name} {v}" for name, v in machine["packages"].items() if v)
    commits = sorted({(case["date"], case["commit"]) for case in _of_gpu()["cases"].values()})
    of = ", ".join(dict.fromkeys(commit for _, commit in commits))
    where = f"{machine['device']}, {machine['multiprocessors']} multiprocessors"
    with_what = f"CUDA {machine['cuda']}, driver {machine['driver']}; {packages}"
    return [f"{where}, {with_what}. Recorded {machine['date']}, commit {of}."]


def _gpu() -> list[str]:
    """Ours, then the others, the fastest first: a line each."""
    rows = []
    for name, case in _of_gpu()["cases"].items():
        if "not_run" in case:
            continue
        timed = [row for row in case["rows"] if row["contestant"] not in _YARDSTICKS]
        for row in sorted(timed, key=lambda row: (not row["ours"], row["microseconds"])):
            words = f"**{row['contestant']}**" if row["ours"] else row["contestant"]
            figures = (f"{row['microseconds']:.1f}", f"{row['of_copy']:.2f}",
                       f"{row['host_microseconds']:.0f}")  # fmt: skip
            rows.append([name, words, row["mode"], *figures])
            name = ""
    headings = ["case", "row", "mode", "device µs", "of copy", "host µs"]
    return tables.markdown(headings, rows, 3)


_WHOLE: dict[str, Callable[[], list[str]]] = {
    "machine": _machine,
    "at a glance": lambda: tables.at_a_glance(records.recorded_columns(PROCESSOR)),
    "libraries": readme.table,
    "goals": _goals,
    "missed goals": _missed_goals,
    "gpu missed goals": _gpu_missed_goals,
    "gpu machine": _gpu_machine,
    "gpu": _gpu,
}
