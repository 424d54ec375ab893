"""`python -m fuzz`: random calls of every function that reaches native code; see README.md."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .cases import NAMES
from .snippet import snippet_of
from .workers import Found, findings_of, one_after_the_other, seeds_from, watch

CORPUS = Path(__file__).with_name("corpus.txt")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long (%(default)s)")
    parser.add_argument("--cases", type=int, metavar="N", help="stop after so many cases")
    parser.add_argument(
        "--function", action="append", choices=NAMES, help="only this one; may be given again"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--first", type=int, help="the first seed; by default one that is new")
    parser.add_argument("--seed", type=int, action="append", help="run this case and print it")
    parser.add_argument("--show", type=int, help="print the call of this seed, run nothing")
    parser.add_argument("--corpus", action="store_true", help="run the seeds of corpus.txt")
    parser.add_argument("--until-found", action="store_true", help="stop at the first finding")
    parser.add_argument(
        "--planted", action="store_true", help="build with planted bugs and see each one found"
    )
    return parser.parse_args(arguments)


def corpus() -> list[int]:
    """The seeds of corpus.txt: what a line begins with, or `first .. last`."""
    seeds: list[int] = []
    for line in CORPUS.read_text("utf-8").splitlines():
        numbers = re.match(r"(\d+)(?: \.\. (\d+))?", line)
        if numbers is not None:
            seeds.extend(range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1))
    return seeds


def _kind(found: Found) -> tuple[str, str]:
    """What a finding has in common with others like it."""
    text = re.sub(r"^\[(\w+)[^]]*\]", r"\1", found.text)
    return found.function, re.sub(r"-?\d[\d.e+-]*", "#", text)[:120]


class Report:
    """Findings as they come: the first of each kind with its call."""

    def __init__(self) -> None:
        self.kinds: Counter[tuple[str, str]] = Counter()

    def tell(self, found: Found) -> None:
        """Print it, unless it is like one before."""
        self.kinds[_kind(found)] += 1
        if self.kinds[_kind(found)] > 1:
            return
        print(f"\n# {found.function}, seed {found.seed}: {found.text}")
        print(snippet_of(found.seed), flush=True)


def _run_one(seed: int, report: Report) -> None:
    from . import compare
    from .trial import Trial

    print(snippet_of(seed), flush=True)
    compare.quick_reference()
    for found in findings_of(seed, Trial()):
        report.kinds[_kind(found)] += 1
        print(f"# {found.text}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    given = _arguments(arguments)
    report = Report()
    if given.planted:
        from .planted import find_planted_bugs

        return find_planted_bugs()
    if given.show is not None:
        print(snippet_of(given.show))
        return 0
    if given.seed:
        for seed in given.seed:
            _run_one(seed, report)
        return int(bool(report.kinds))
    first = given.first if given.first is not None else int(time.time()) * 1_000_003
    print("the corpus" if given.corpus else f"seeds from {first}", flush=True)
    began = time.monotonic()
    functions = given.function or NAMES
    seeds = seeds_from(first, functions, given.cases)
    if given.corpus:
        seeds = one_after_the_other(corpus())
    counts = watch(given.jobs, seeds, given.seconds, report.tell, given.until_found)
    seconds = time.monotonic() - began
    if given.until_found and report.kinds:
        cases, executions = (sum(counts[n, c] for n in functions) for c in ("cases", "executions"))
        print(f"found after {cases + 1} cases, {executions} executions, {seconds:.1f} seconds")
    print(f"\n{'function':24}{'cases':>12}{'executions':>12}{'findings':>10}{'kinds':>8}")
    for name in functions:
        kinds = {kind: n for kind, n in report.kinds.items() if kind[0] == name}
        print(
            f"{name:24}{counts[name, 'cases']:12,}{counts[name, 'executions']:12,}"
            f"{sum(kinds.values()):10,}{len(kinds):8}"
        )
    cases, executions = (sum(counts[n, c] for n in functions) for c in ("cases", "executions"))
    print(
        f"{'all':24}{cases:12,}{executions:12,}{sum(report.kinds.values()):10,}"
        f"{len(report.kinds):8}\n{seconds:.0f} seconds, "
        f"{executions / max(seconds, 1):.0f} a second, {sum(report.kinds.values())} findings"
    )
    return int(bool(report.kinds))


if __name__ == "__main__":
    sys.exit(main())
