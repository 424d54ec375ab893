"""A document as HTML, as notebooks show it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import groupby

from .parts import Part

_LISTED = ("fact", "item")  # kinds of parts that are list items


def as_html(parts: Iterable[Part]) -> str:
    """The document as HTML.

    All words are escaped, because some come from files. There are no colors, so that the notebook's
    own are used, light or dark, and nothing is loaded.
    """
    lines = ["<div>"]
    for listed, group in groupby(parts, key=lambda part: part.kind in _LISTED):
        inner = [line for part in group for line in _html_of(part)]
        lines += ["<ul>", *inner, "</ul>"] if listed else inner
    return "\n".join([*lines, "</div>"])


def _html_of(part: Part) -> list[str]:
    words = escape(part.words)
    if part.kind == "gap":
        return []
    if part.kind == "heading":
        return [f"<p><strong>{words}</strong></p>"]
    if part.kind in _LISTED:
        return [f"<li>{words}</li>"]
    if part.kind != "table":
        return [f"<p>{words}</p>"]
    written = []
    for i, row in enumerate(part.rows):
        tag = "td" if i else "th"
        cells = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        written.append(f"<tr>{cells}</tr>")
    return ["<table>", *written, "</table>"]
