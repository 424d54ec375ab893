"""`python -m benchmarks`: time this library, its peers and the memory limits. See README.md."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import posenc_native as pn
from benchmarks.cases import decode, qkv, relative, rotary, rotary_variants, sinusoidal
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


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--filter",
        action="append",
        metavar="TEXT",
        help="only cases whose name has TEXT; given again, cases that have every TEXT",
    )
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument(
        "--threads", default="1,2", metavar="N,N", help="numbers of threads (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds of every case (default: 31; with --quick: 3)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes, no torch.compile: shows that everything runs, its times mean nothing",
    )
    parser.add_argument(
        "--no-compile", action="store_true", help="leave out torch.compile, which takes minutes"
    )
    parser.add_argument(
        "--exhaustive", action="store_true", help="all combinations, which takes hours"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="write the figures to PATH (default, for a run of everything and with --merge: "
        "benchmarks/results/PROCESSOR.json), the text and the pictures beside it",
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="into what is recorded there: what runs takes the place of the same cases, "
        "all others stay",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = _arguments(arguments)
    _fix_thresholds_of_malloc()
    wanted = options.filter or []
    choices = contestants.Options(
        quick=options.quick,
        compiled=not (options.quick or options.no_compile),
        exhaustive=options.exhaustive,
        cache_bytes=report.last_level_cache(),
    )
    rounds = options.rounds or (3 if options.quick else 31)
    threads = [int(number) for number in options.threads.split(",")]
    chosen = [
        (number, name, build)
        for number in threads
        for name, build in itertools.chain(
            *(
                file.cases(choices, number)
                for file in (rotary, sinusoidal, decode, qkv, rotary_variants, relative)
            )
        )
        if all(text in name for text in wanted)
    ]
    studies: dict[str, Callable[[], Sequence[Any]]] = {
        "accuracy": accuracy.accuracy,
        "many_devices": functools.partial(many_devices.costs, min(rounds, many_devices.ROUNDS)),
    }
    studies = {
        name: study
        for name, study in studies.items()
        if all(text in name.replace("_", " ") for text in wanted)
    }
    if options.list:
        names = [name.replace("_", " ") for name in studies]
        print("\n".join([name for _, name, _ in chosen] + names))
        return
    if not (chosen or studies):
        sys.exit(
            f"python -m benchmarks: no case has {' and '.join(wanted)} in its name; see --list"
        )

    everything = not (
        wanted
        or options.quick
        or options.no_compile
        or options.exhaustive
        or options.rounds
        or options.threads != "1,2"
    )
    machine = report.machine()
    path = options.json
    if path is None and (everything or options.merge):
        records.RESULTS.mkdir(exist_ok=True)
        path = records.RESULTS / f"{report.machine_name(machine)}.json"
    figures: dict[str, Any] = {"machine": machine, "quick": options.quick, "rounds": rounds}
    figures["cases"] = []
    recorded = records.load(path) if options.merge and path and path.exists() else None
    try:  # before an hour has passed
        records.merged(recorded, figures)
    except ValueError as error:
        sys.exit(f"python -m benchmarks: {path}: {error}")
    print(report.machine_text(machine), flush=True)
    pause = 0.0 if options.quick else harness.OPENMP_SPIN
    with progress.Progress(len(chosen) * rounds + len(studies)) as shown:
        for number, name, build in chosen:
            shown.begin(name)
            torch.set_num_threads(number)
            pn.set_num_threads(number)
            torch.compiler.reset()  # or compiled kernels would be generalised to any shape
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
        print(summary.page(figures, records.columns_beside(figures), RULES))
    if path is not None:
        figures = records.merged(recorded, figures)
        records.write(path, figures)
        records.write_text(path, figures)
        _part(path).unlink(missing_ok=True)
        print(report.draw(path))


if __name__ == "__main__":
    main()
