"""`python -m benchmarks.figures`: what is recorded, judged by today's goals, on pages and pictures.

python -m benchmarks.figures results/X.json   # its text and pictures again; its summary
python -m benchmarks.figures                  # fails where docs/speed.md has other figures
python -m benchmarks.figures --write          # puts them there
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import command

from . import plot, records, summary, tables


def main(results: Sequence[Path], threads: int = 1, write: bool = False) -> None:
    """Write a file's text and pictures, or look at docs/speed.md.

    Args:
        results: benchmarks/results/X.json; of growth curves the picture alone
        threads: draw cases with so many (default: 1)
        write: write docs/speed.md
    """
    for path in results:
        figures = records.load(path)
        if "cases" in figures:
            path.with_suffix(".txt").write_text(summary.text(figures), encoding="utf-8")
            print(summary.page(figures, records.columns_beside(figures)))
        for picture in plot.draw(figures, path, threads):
            print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")
    if results:
        return
    before = tables.PAGE.read_text(encoding="utf-8")
    after = tables.page(before)
    if write:
        tables.PAGE.write_text(after, encoding="utf-8")
    elif after != before:
        raise command.Refused("docs/speed.md has other figures: --write puts the recorded ones in")


if __name__ == "__main__":
    command.run(main)
