"""Lint English: PYTHONPATH=scripts python -m prose [FILE...].

Without files, all documents and the docstrings of the package. Exits with 1 if it finds something.
"""

from __future__ import annotations

import argparse
import bisect
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from proselint import checks
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

from . import extract, rules

ROOT = Path(__file__).parents[2]
# What a reader of this project reads. CHANGELOG.md is a record: what was written stays.
PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "benchmarks/**/*.md",
    "examples/**/*.md",
    "posenc_native/**/*.py",
)


@dataclass(frozen=True)
class Finding:
    line: int
    rule: str
    message: str


def files() -> list[Path]:
    """Tracked files and new ones, as git sees them."""
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *PATTERNS],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return [path for name in found if (path := ROOT / name).is_file()]


def _register() -> dict[str, bool]:
    registry = CheckRegistry()
    if not registry.checks:
        registry.register_many(checks.__register__)
        registry.register_many(tuple(rule.check() for rule in rules.RULES))
    # Longer names first: proselint takes the first that begins a check's name.
    enabled = dict.fromkeys(rules.OFF, False) | DEFAULT["checks"] | {"posenc": True}
    enabled |= dict.fromkeys(rules.OFF, False)
    return dict(sorted(enabled.items(), key=lambda item: -item[0].count(".")))


def findings(passages: Sequence[extract.Passage]) -> list[Finding]:
    """Of passages in their order; the same words in two places are two findings."""
    enabled = _register()
    texts = [passage.text for passage in passages]
    starts = list(accumulate((len(text) + 2 for text in texts), initial=0))
    content = "\n\n".join(texts)
    if not content:
        return []
    found = []
    for result in LintFile("prose", content).lint({"max_errors": 100_000, "checks": enabled}):
        check = result.check_result
        # proselint puts an empty line before the content; a match may begin before its words.
        matched = content[max(check.span[0] - 1, 0) : max(check.span[1] - 1, 0)]
        if check.check_path == "lexical_illusions" and (
            "\n\n" in matched.strip() or any(map(str.isdigit, matched))
        ):
            continue  # two passages that begin and end alike; digits of one number
        at = max(check.span[0] - 1, 0) + len(matched) - len(matched.lstrip(" \n.!?:;—"))
        index = bisect.bisect_right(starts, at) - 1
        line = passages[index].line + texts[index][: at - starts[index]].count("\n")
        message = " ".join(check.message.split())
        found.append(Finding(line, check.check_path, message[:160]))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="prose", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    chosen = parser.parse_args(arguments).files
    count = 0
    for path in chosen or files():
        for finding in findings(extract.passages(path)):
            name = path.resolve().relative_to(ROOT)
            print(f"{name}:{finding.line}: {finding.rule}: {finding.message}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
