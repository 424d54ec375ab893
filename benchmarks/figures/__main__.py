"""`python -m benchmarks.figures results/X.json`: its text and pictures again; its summary.

Verdicts are those of today's goals. `make pages` writes what pages show of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import command

from . import plot, records, summary


def main(results: Sequence[Path], threads: int = 1) -> None:
    """Write the text and the pictures of recorded figures, and print a summary.

    Args:
        results: benchmarks/results/X.json; of growth curves the picture alone
        threads: draw cases with so many (default: 1)
    """
    if not results:
        raise command.Refused("expected files of figures: benchmarks/results/X.json")
    for path in results:
        figures = records.load(path)
        if "cases" in figures:
            path.with_suffix(".txt").write_text(summary.text(figures), encoding="utf-8")
            print(summary.page(figures, records.columns_beside(figures)))
        for picture in plot.draw(figures, path, threads):
            print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    command.run(main)
