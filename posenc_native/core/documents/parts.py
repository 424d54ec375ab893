"""The parts of a document, and its lines in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import NamedTuple

WIDTH = 92  # letters of a line, if nobody says another number
# How the lines of each kind of part are indented: the first, and the others.
_INDENTED = {
    "heading": ("", ""),
    "paragraph": ("", ""),
    "entry": ("", "  "),
    "remark": ("  ", "  "),
    "fact": ("  ", "  "),
    "item": ("  - ", "    "),
}
_FIRST, _OTHERS = 11, 14  # letters of a column of numbers, at least


class Part(NamedTuple):
    """A part of a document.

    Attributes:
        kind: "heading"; "paragraph", "entry" and "remark", which differ in their indentation;
            "fact" and "item", parts of a list without and with dashes; "table"; "gap", an empty
            line.
        words: all except tables and gaps have them.
        rows: the rows of a table; the first has the names of the columns.
    """

    kind: str
    words: str = ""
    rows: tuple[tuple[str, ...], ...] = ()


GAP = Part("gap")


def wrapped(text: str, width: int, first: str, then: str) -> list[str]:
    """The lines of a text, with one indentation for the first and one for the others."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=then, break_on_hyphens=False
    )


def as_text(parts: Iterable[Part], width: int) -> str:
    """The document in lines of at most `width` characters; tables may be wider."""
    lines: list[str] = []
    for part in parts:
        if part.kind == "table":
            for row in part.rows:
                first, *rest = row
                cells = [f"  {first:>{_FIRST}}", *(f"{cell:>{_OTHERS}}" for cell in rest)]
                lines.append("".join(cells))
        elif part.kind == "gap":
            lines.append("")
        else:
            lines += wrapped(part.words, width, *_INDENTED[part.kind])
    return "\n".join(lines).rstrip()
