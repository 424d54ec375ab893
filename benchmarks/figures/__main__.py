"""`python -m benchmarks.figures`: what is recorded, judged by today's goals, on pages and pictures.

python -m benchmarks.figures results/X.json   # its text and pictures again; its summary
python -m benchmarks.figures                  # fails where a page has other figures
python -m benchmarks.figures --write          # puts them there, and draws README's pictures
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import command

from . import plot, readme, records, summary, tables


def main(results: Sequence[Path], threads: int = 1, write: bool = False) -> None:
    """Write a file's text and pictures, or check docs/speed.md and README.md.

    Args:
        results: benchmarks/results/X.json; of growth curves the picture alone
        threads: draw cases with so many (default: 1)
        write: write docs/speed.md, README.md and its pictures
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
    for path, page in ((tables.PAGE, tables.page), (readme.PAGE, readme.page)):
        before = path.read_text(encoding="utf-8")
        after = page(before)
        if write:
            path.write_text(after, encoding="utf-8")
        elif after != before:
            raise command.Refused(
                f"{path.name} has other figures: --write puts the recorded ones in"
            )
    if write:
        readme.draw()
    elif old := readme.old_pictures():
        raise command.Refused(f"{', '.join(old)}: other figures than recorded: --write draws them")


if __name__ == "__main__":
    command.run(main)
