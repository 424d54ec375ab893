"""Compare what pages show with what records and code say: PYTHONPATH=scripts python -m pages.

python -m pages                         # tables, docstrings, rooms; every picture is drawn
python -m pages --write                 # writes them
python -m pages --text docs/speed.md    # one page, without pictures
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import ROOT, blocks, files


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown files (default: all)")
    parser.add_argument("--write", action="store_true", help="write what should be there")
    parser.add_argument("--text", action="store_true", help="text alone, no pictures")
    given = parser.parse_args()
    pages = [path.resolve() for path in given.pages] or files()
    if absent := [str(page) for page in pages if not page.is_file()]:
        sys.exit(f"no file {', '.join(absent)}")
    try:
        wrong = [
            line for page in pages for line in check(page, given.write, pictures=not given.text)
        ]
    except ValueError as error:
        sys.exit(str(error))
    if not (given.text or given.pages):
        wrong += check_folders(given.write)
        if given.write:  # tests run them
            from . import notebooks

            wrong += [line for path in notebooks.files() for line in notebooks.check(path, True)]
    if wrong:
        print(*wrong, sep="\n")
        if not given.write:
            sys.exit("`make pages` writes what records and code say now")


def check(page: Path, write: bool = False, *, pictures: bool = True) -> list[str]:
    """What differs on a page, a line each; with ``write``, it is written."""
    before = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT)
    try:
        after = blocks.filled(before)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    old: list[str] = []
    if pictures:
        from . import pictures as of_code  # matplotlib, where pictures are drawn

        after, old = of_code.drawn(after, page, write=write)
    wrong = [f"{name}: the code draws another picture than docs/pictures/{one} has" for one in old]
    if after != before:
        wrong.append(f"{name}: {blocks.first_difference(before, after)}")
        if write:
            page.write_text(after, encoding="utf-8")
    return wrong


def check_folders(write: bool = False) -> list[str]:
    """Pictures of records that are old; pictures that no page shows."""
    from . import pictures

    wrong = [f"{name}: other figures than recorded" for name in pictures.of_records(write=write)]
    for path in pictures.unused(files()):
        wrong.append(f"{path.relative_to(ROOT)}: no page shows it")
        if write:
            path.unlink()
    return wrong


if __name__ == "__main__":
    main()
