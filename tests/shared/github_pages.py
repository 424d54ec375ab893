"""What GitHub makes of a Markdown page: names of headings, targets of links and pictures."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from pathlib import Path

from markdown_it import MarkdownIt
from places import ROOT


@functools.cache
def tokens(page: Path) -> list:
    parser = MarkdownIt("commonmark").enable("table")
    return parser.parse(page.read_text(encoding="utf-8"))


def text_of(inline) -> str:
    return "".join(t.content for t in inline.children if t.type in ("text", "code_inline"))


@functools.cache
def headings(page: Path) -> set[str]:
    """Names that GitHub gives: lower case, words and hyphens, a number where one is repeated."""
    seen: Counter[str] = Counter()
    found = set()
    of_page = tokens(page)
    for token, inline in itertools.pairwise(of_page):
        if token.type != "heading_open":
            continue
        slug = re.sub(r"[^\w\- ]", "", text_of(inline).strip().lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def targets(page: Path) -> list[str]:
    """Of links and images."""
    found = []
    for token in tokens(page):
        for child in token.children or ():
            found += [child.attrGet(name) for name in ("href", "src") if child.attrGet(name)]
        for html in (token, *(token.children or ())):
            if html.type in ("html_block", "html_inline"):
                shown = re.sub(r"<!--.*?-->", "", html.content, flags=re.S)
                found += re.findall(r'\b(?:href|src)="([^"]+)"', shown)
    return found


def lost(page: Path) -> list[str]:
    found = []
    for target in targets(page):
        if re.match(r"\w+:", target):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        there = file.exists() and file.is_relative_to(ROOT)
        if there and heading:
            there = file.suffix == ".md" and heading in headings(file)
        if not there:
            found.append(target)
    return found
