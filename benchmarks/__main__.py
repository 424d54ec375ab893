"""`python -m benchmarks`: time this library, its peers and the memory limits. See README.md."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import posenc_native as pn
from benchmarks import command
from benchmarks.cases import (
    blocks,
    decode,
    functions,
    packed,
    patched,
    qkv,
    relative,
    rotary,
    rotary_variants,
    selective,
    sinusoidal,
)
from benchmarks.cases.goals import RULES
from benchmarks.clock import harness, progress
from benchmarks.figures import judging, records, report, summary
from benchmarks.peers import contestants
from benchmarks.studies import accuracy, many_devices


def _fix_thresholds_of_malloc() -> None:
    """Make glibc keep freed blocks up to 32 MiB for the next ones.

    It does so in any process that has freed some, because it raises these thresholds by what was
    freed before. Without this, how fresh a result is would depend on the cases that ran already.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD
        mallopt(-1, 64 << 20)  # M_TRIM_THRESHOLD


def _part(path: Path) -> Path:
    """Where figures are until all are there.

    A run that is interrupted loses only its last case, and overwrites no complete run.
    """
    return path.with_name(f"{path.name}.part")


def main(
    filter: Sequence[str] = (),  # noqa: A002
    list: bool = False,  # noqa: A002
    threads: Sequence[int] = (1, 2),
    rounds: int | None = None,
    quick: bool = False,
    compile: bool = True,  # noqa: A002
    exhaustive: bool = False,
    json: Path | None = None,
    merge: bool = False,
) -> None:
    """Time cases, print and record them.

    Args:
        filter: only cases whose name has TEXT; given again, cases that have every TEXT
        list: name the cases and stop
        threads: numbers of threads (default: 1,2)
        rounds: rounds of every case (default: 31; with --quick: 3)
        quick: tiny sizes, no torch.compile: shows that everything runs, its times mean nothing
        compile: leave out torch.compile, which takes minutes
        exhaustive: all combinations, which takes hours
        json: write the figures to PATH (default, for a run of everything and with --merge:
            benchmarks/results/PROCESSOR.json), the text and the pictures beside it
        merge: into what is recorded there: what runs takes the place of the same cases, all
            others stay
    """
    _fix_thresholds_of_malloc()
    choices = contestants.Options(
        quick=quick,
        compiled=compile and not quick,
        exhaustive=exhaustive,
        cache_bytes=report.last_level_cache(),
    )
    part_of_it = filter or quick or not compile or exhaustive or rounds or (*threads,) != (1, 2)
    rounds = rounds or (3 if quick else 31)
    files = (
        rotary, sinusoidal, decode, patched, functions, blocks, qkv, packed, rotary_variants,
        selective, relative,
    )  # fmt: skip
    chosen = [
        (number, name, build)
        for number, file in itertools.product(threads, files)
        for name, build in file.cases(choices, number)
        if all(text in name for text in filter)
    ]
    every_study: dict[str, Callable[[], Sequence[Any]]] = {
        "accuracy": accuracy.accuracy,
        "many_devices": functools.partial(many_devices.costs, min(rounds, many_devices.ROUNDS)),
    }
    studies = {
        name: study
        for name, study in every_study.items()
        if all(text in name.replace("_", " ") for text in filter)
    }
    if list:
        print("\n".join([name for _, name, _ in chosen] + [n.replace("_", " ") for n in studies]))
        return
    if not (chosen or studies):
        raise command.Refused(f"no case has {' and '.join(filter)} in its name; see --list")

    machine = report.machine()
    path = json
    if path is None and (merge or not part_of_it):
        records.RESULTS.mkdir(exist_ok=True)
        path = records.RESULTS / f"{report.machine_name(machine)}.json"
    figures: dict[str, Any] = {"machine": machine, "quick": quick, "rounds": rounds}
    figures["cases"] = []
    recorded = records.load(path) if merge and path and path.exists() else None
    try:  # before an hour has passed
        records.merged(recorded, figures)
    except ValueError as error:
        raise command.Refused(f"{path}: {error}") from error
    print(report.machine_text(machine), flush=True)
    pause = 0.0 if quick else harness.OPENMP_SPIN
    with progress.Progress(len(chosen) * rounds + len(studies)) as shown:
        for number, name, build in chosen:
            shown.begin(name)
            torch.set_num_threads(number)
            pn.set_num_threads(number)
            torch.compiler.reset()  # or compiled kernels would be generalized to any shape
            result = report.as_json(harness.measure(build(), rounds, shown.advance, pause=pause))
            result["recorded"] = records.origin(machine, rounds)
            figures["cases"].append(result)
            judged = judging.judged({**figures, "cases": [result]}, RULES)
            shown.say(report.as_text(judged["cases"][0]))
            if path is not None:
                records.write(_part(path), records.merged(recorded, figures))
        for name, study in studies.items():
            shown.begin(name.replace("_", " "))
            figures[name] = [dataclasses.asdict(row) for row in study()]
            figures[f"{name}_recorded"] = records.origin(machine, rounds)
            shown.say(report.STUDIES[name](figures[name]))
            shown.advance()
    if figures["cases"]:
        print(report.goals_text(judging.judged(figures, RULES)["cases"]))
        print(summary.page(figures, records.columns_beside(figures)))
    if path is not None:
        figures = records.merged(recorded, figures)
        print(records.keep(path, figures, summary.text(figures)))
        _part(path).unlink(missing_ok=True)


if __name__ == "__main__":
    command.run(main)
