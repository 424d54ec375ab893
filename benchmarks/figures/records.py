"""`python -m benchmarks.figures.records results/X.json`: judge recorded figures by today's goals.

Writes the text beside them. Also here: what files of results are called, and how the cases of a run
take their places among those recorded before.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from . import judging, report

RESULTS = Path(__file__).parents[1] / "results"

Figures = dict[str, Any]


def load(path: Path) -> Figures:
    figures: Figures = json.loads(path.read_text(encoding="utf-8"))
    return figures


def write(path: Path, figures: Figures) -> None:
    path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------ merging


def origin(machine: dict[str, Any], rounds: int) -> dict[str, Any]:
    """When something was recorded, of which sources and in how many rounds."""
    return {"date": machine["date"], "commit": machine["commit"], "rounds": rounds}


def _with_origins(figures: Figures) -> Figures:
    """Every case says where it comes from; so does what was recorded before they did."""
    own = origin(figures["machine"], figures["rounds"])
    cases = [{**case, "recorded": case.get("recorded", own)} for case in figures["cases"]]
    filled = {**figures, "cases": cases}
    for study in _studies(figures):
        filled[f"{study}_recorded"] = figures.get(f"{study}_recorded", own)
    return filled


def _studies(figures: Figures) -> list[str]:
    """What was measured beside the cases."""
    return [study for study in report.STUDIES if study in figures]


def _conditions(figures: Figures) -> tuple[Any, ...]:
    """What all cases of a file have in common."""
    machine = figures["machine"]
    used = machine["posenc_native"]["SIMD target in use"]
    return machine["cpu"], machine["cores"], used, figures["quick"]


def merged(recorded: Figures | None, figures: Figures) -> Figures:
    """Recorded figures, where there are any, with those of a run in place of what it ran again.

    The machine is described as the run found it; every case says when it was recorded. Another
    machine, or other instructions, is a ValueError.
    """
    if recorded is None:
        return figures
    if (before := _conditions(recorded)) != (now := _conditions(figures)):
        raise ValueError(f"recorded of {before}, and this run is of {now}: not the same machine")
    before_all, now_all = _with_origins(recorded), _with_origins(figures)
    again = {case["case"]: case for case in now_all["cases"]}
    cases = [again.pop(case["case"], case) for case in before_all["cases"]]
    return {**before_all, **now_all, "cases": [*cases, *again.values()]}


def origins_text(figures: Figures) -> str:
    """When each part was recorded, for the eye."""
    figures = _with_origins(figures)

    def words(of: dict[str, Any]) -> str:
        commit = of["commit"]
        where = f"commit {commit[:12]}{commit[40:]}, " if commit else ""
        return f"{of['date'][:10]}, {where}{of['rounds']} rounds"

    counts = Counter(words(case["recorded"]) for case in figures["cases"])
    of_study = {study: words(figures[f"{study}_recorded"]) for study in _studies(figures)}
    lines = []
    for when in sorted({*counts, *of_study.values()}):
        then = [study.replace("_", " ") for study, of in of_study.items() if of == when]
        lines.append(", ".join([f"recorded {when}: {counts[when]} cases", *then]))
    return "".join(f"{line}\n" for line in lines)


# ----------------------------------------------------------------------------------------- columns

# Every claim of speed on x86 has a column for each.
COLUMNS = ("AVX-512", "AVX2")

Columns = dict[str, Figures | None]


def recorded_columns(processor: str, folder: Path = RESULTS) -> Columns:
    """What is recorded of a processor (report.processor_name), by its instructions.

    None for instructions of which nothing is.
    """
    found: Columns = {}
    for name in (processor, f"{processor}-avx2"):
        path = folder / f"{name}.json"
        if path.exists():
            figures = load(path)
            found[judging.instructions_of(figures["machine"])] = figures
    if not found or set(found) & set(COLUMNS):
        return {name: found.get(name) for name in COLUMNS}
    return found


def columns_beside(figures: Figures, folder: Path = RESULTS) -> Columns:
    """These figures, and what is recorded of this processor's other instructions."""
    columns = recorded_columns(report.processor_name(figures["machine"]), folder)
    own = judging.instructions_of(figures["machine"])
    return {**columns, own: figures} if own in COLUMNS else {own: figures}


def case_of(figures: Figures | None, name: str) -> dict[str, Any] | None:
    """The case of that name, with the best peer of each row; None if it is not recorded."""
    if figures is None:
        return None
    found = next((case for case in figures["cases"] if case["case"] == name), None)
    return found and judging.judged_case(found)


# --------------------------------------------------------------------------------------------- text


def text(figures: Figures) -> str:
    """All that a file says, the page that sums it up at its end."""
    from benchmarks.cases.goals import RULES  # brings torch

    from . import summary

    shown = judging.judged(figures, RULES)
    parts = [report.machine_text(figures["machine"]) + origins_text(figures)]
    parts += [report.as_text(case) for case in shown["cases"]]
    parts += [report.STUDIES[study](figures[study]) for study in _studies(figures)]
    parts.append(report.goals_text(shown["cases"]))
    parts.append(summary.page(figures, columns_beside(figures), RULES))
    return "\n".join(parts)


def write_text(path: Path, figures: Figures) -> None:
    path.with_suffix(".txt").write_text(text(figures), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures.records", description=__doc__
    )
    parser.add_argument("figures", type=Path, nargs="+", help="benchmarks/results/X.json")
    for path in parser.parse_args(arguments).figures:
        write_text(path, load(path))
        print(path.with_suffix(".txt"))


if __name__ == "__main__":
    main()
