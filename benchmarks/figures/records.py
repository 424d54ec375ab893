"""Files of results: what they are called, how they are written, when each part was recorded.

How the cases of a run take their places among those recorded before is here too.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from . import judging, report

RESULTS = Path(__file__).parents[1] / "results"

Figures = dict[str, Any]
# What is recorded of a processor, by instructions; None for those of which nothing is.
Columns = dict[str, Figures | None]


def load(path: Path) -> Figures:
    figures: Figures = json.loads(path.read_text(encoding="utf-8"))
    return figures


def write(path: Path, figures: Figures) -> None:
    path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def keep(path: Path, figures: Figures, text: str) -> str:
    """Write figures, their text and their pictures, side by side; says what has been written."""
    write(path, figures)
    path.with_suffix(".txt").write_text(text, encoding="utf-8")
    try:
        from . import plot
    except ImportError as error:
        return f"figures written to {path}; no pictures: {error}"
    return f"figures written to {', '.join(map(str, (path, *plot.draw(figures, path))))}"


# ------------------------------------------------------------------------------- what is of when


def origin(machine: dict[str, Any], rounds: int) -> dict[str, Any]:
    """When something was recorded, of which sources and in how many rounds."""
    return {"date": machine["date"], "commit": machine["commit"], "rounds": rounds}


def with_origins(figures: Figures) -> Figures:
    """Every case says where it comes from; so does what was recorded before they did."""
    own = origin(figures["machine"], figures["rounds"])
    cases = [{**case, "recorded": case.get("recorded", own)} for case in figures["cases"]]
    return {**figures, "cases": cases} | {
        name: figures.get(name, own) for name in (f"{study}_recorded" for study in studies(figures))
    }


def studies(figures: Figures) -> list[str]:
    """What was measured beside the cases."""
    return [study for study in report.STUDIES if study in figures]


def day(recorded: dict[str, Any]) -> str:
    return str(recorded["date"][:10])


def origins_text(figures: Figures) -> str:
    """When each part was recorded, for the eye."""
    figures = with_origins(figures)

    def words(of: dict[str, Any]) -> str:
        commit = of["commit"]
        where = f"commit {commit[:12]}{commit[40:]}, " if commit else ""
        return f"{of['date'][:10]}, {where}{of['rounds']} rounds"

    counts = Counter(words(case["recorded"]) for case in figures["cases"])
    of_study = {study: words(figures[f"{study}_recorded"]) for study in studies(figures)}
    lines = []
    for when in sorted({*counts, *of_study.values()}):
        then = [study.replace("_", " ") for study, of in of_study.items() if of == when]
        cases = [f"{counts[when]} cases"] if counts[when] else []
        lines.append(f"recorded {when}: {', '.join([*cases, *then])}")
    return "".join(f"{line}\n" for line in lines)


# ------------------------------------------------------------------------------ merging, columns


def _conditions(figures: Figures) -> tuple[Any, ...]:
    """What all cases of a file have in common.

    Caches too: a virtual machine may give processors of several generations one name.
    """
    machine = figures["machine"]
    used = machine["posenc_native"]["SIMD target in use"]
    return machine["cpu"], machine["cores"], machine["caches"], used, figures["quick"]


def _versions(before: dict[str, str | None], now: dict[str, str | None]) -> dict[str, str | None]:
    """Of each package the versions of two runs, "1, 2" where both had it in different ones."""

    def both(name: str) -> str | None:
        versions = [*(before.get(name) or "").split(", "), now.get(name) or ""]
        return ", ".join(filter(None, dict.fromkeys(versions))) or None

    return {name: both(name) for name in before | now}


def merged(recorded: Figures | None, figures: Figures) -> Figures:
    """Recorded figures, where there are any, with those of a run in place of what it ran again.

    The machine is described as the run found it, with the versions of packages of both; every case
    says when it was recorded. Another machine, or other instructions, is a ValueError.
    """
    if recorded is None:
        return figures
    if (before := _conditions(recorded)) != (now := _conditions(figures)):
        raise ValueError(f"recorded of {before}, and this run is of {now}: not the same machine")
    before_all, now_all = with_origins(recorded), with_origins(figures)
    again = {case["case"]: case for case in now_all["cases"]}
    cases = [again.pop(case["case"], case) for case in before_all["cases"]]
    packages = _versions(before_all["machine"]["packages"], now_all["machine"]["packages"])
    machine = {**now_all["machine"], "packages": packages}
    return {**before_all, **now_all, "machine": machine, "cases": [*cases, *again.values()]}


# Every claim of speed on x86 has a column for each.
COLUMNS = ("AVX-512", "AVX2")


def recorded_columns(processor: str, folder: Path = RESULTS) -> Columns:
    """What is recorded of a processor (report.processor_name), by its instructions."""
    paths = (folder / f"{processor}{suffix}.json" for suffix in ("", "-avx2"))
    of_files = [with_origins(load(path)) for path in paths if path.exists()]
    found: Columns = {judging.instructions_of(of["machine"]): of for of in of_files}
    if not found or set(found) & set(COLUMNS):
        return {name: found.get(name) for name in COLUMNS}
    return found


def columns_beside(figures: Figures, folder: Path = RESULTS) -> Columns:
    """These figures, and what is recorded of this processor's other instructions."""
    columns = recorded_columns(report.processor_name(figures["machine"]), folder)
    own = judging.instructions_of(figures["machine"])
    return {**columns, own: figures} if own in COLUMNS else {own: figures}
