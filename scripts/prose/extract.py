"""The prose of a file, and where each line of it stands: Markdown, or the docstrings of Python."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

# Stands for inline code, a formula or an address: no rule has a word for it. Two by turns: the same
# one twice would be a word that is repeated.
_CODE = itertools.cycle("¤§")


def _code(_: object = None) -> str:
    return next(_CODE)


_MARKDOWN = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin).use(colon_fence_plugin)
# Around examples of bad English.
_MARK = re.compile("<!-- prose: (off|on) -->")
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note|Notes):$")
# Aligned columns: a diagram or a table.
_ALIGNED = re.compile(r"\S {3,}\S|={4,}|──")
_ITEM = re.compile(r"^\s*[-*] ")
_NAMED = re.compile(r"^(\s*)(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): ")
_ADDRESS = re.compile(r"https?://\S+|\b[\w./-]+/[\w./-]+\b|\b\w+\.(?:py|md|cc|cuh|cu|h|json|csv)\b")


@dataclass(frozen=True)
class Passage:
    """A paragraph, heading, list item or cell, and the line of the file where it begins."""

    line: int
    text: str


def passages(path: Path) -> list[Passage]:
    text = path.read_text(encoding="utf-8")
    return list(of_python(text) if path.suffix == ".py" else of_markdown(text))


def of_markdown(text: str, first: int = 1) -> Iterator[Passage]:
    line, off = 0, False
    for token in _MARKDOWN.parse(text):
        if token.type == "html_block" and (mark := _MARK.fullmatch(token.content.strip())):
            off = mark[1] == "off"
        if token.map:
            line = token.map[0]
        if off:
            continue
        if token.type == "inline":
            words = _words(token.children or ())
            if words.strip():
                yield Passage(first + line, words)
        elif token.type == "colon_fence":
            # A directive whose inside is Markdown: an admonition, tabs.
            yield from of_markdown(token.content, first + line + 1)


def _words(tokens: list[Token] | tuple[Token, ...]) -> str:
    parts = []
    for token in tokens:
        if token.type == "text":
            parts.append(token.content)
        elif token.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif token.type in ("code_inline", "math_inline"):
            parts.append(_code())
        elif token.type == "image":
            parts.append(_words(token.children or ()))
    return _ADDRESS.sub(_code, "".join(parts))


def of_python(text: str) -> Iterator[Passage]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node) is None:
            continue
        literal = node.body[0]
        assert isinstance(literal, ast.Expr)
        assert isinstance(literal.value, ast.Constant)
        yield from _of_docstring(str(literal.value.value), literal.lineno)


def _of_docstring(docstring: str, first: int) -> Iterator[Passage]:
    """Paragraphs and items of a docstring in Google's style, less doctests and literal blocks."""
    paragraph: list[str] = []
    start = first
    literal: int | None = None  # the indentation above a literal block
    doctest = False
    for number, line in enumerate(inspect.cleandoc(docstring).splitlines(), first):
        words, indent = line.strip(), len(line) - len(line.lstrip())
        inside = literal is not None and (not words or indent > literal)
        doctest = bool(words) and (doctest or words.startswith(">>>"))
        named = _NAMED.match(line)
        section = _SECTION.match(words) is not None
        begins = section or named is not None or _ITEM.match(line) is not None
        if paragraph and (not words or inside or doctest or begins):
            yield from _paragraph(start, paragraph)
            paragraph = []
        if not words or inside or doctest or section:
            continue
        literal = indent if words.endswith("::") else None
        if not paragraph:
            start = number
        paragraph.append(line[named.end() :] if named else words)
    yield from _paragraph(start, paragraph)


def _paragraph(start: int, lines: list[str]) -> Iterator[Passage]:
    if lines and not any(map(_ALIGNED.search, lines)):
        yield Passage(start, _plain("\n".join(lines)))


def _plain(text: str) -> str:
    return _ADDRESS.sub(_code, re.sub(r"``?[^`]+``?", _code, text))
