"""Lists everything but words that an edit of English changed.

    PYTHONPATH=scripts python -m prose.facts [BASE] [FILE...]

Compares each file with the one of the commit BASE (default: HEAD). Of Markdown: code blocks, inline
code, numbers and links. Of Python: everything except docstrings and comments, and their numbers.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from markdown_it import MarkdownIt

from .__main__ import ROOT, files

_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:[ ,.^e]\d+|[eE][-+]?\d+)*")
_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)")

Facts = dict[str, Counter[str]]


def of_markdown(text: str) -> Facts:
    blocks, prose = Counter[str](), text
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in ("fence", "code_block"):
            blocks[token.info + "\n" + token.content] += 1
            prose = prose.replace(token.content, "\n", 1)
    inline = Counter(" ".join(code.split()) for _, code in _CODE.findall(prose))
    bare = _LINK.sub("](", _CODE.sub("", prose))
    return {
        "code block": blocks,
        "inline code": inline,
        "link": Counter(_LINK.findall(prose)),
        "number": Counter(_NUMBER.findall(bare)),
    }


def of_python(text: str) -> Facts:
    tree = ast.parse(text)
    words = []
    for node in ast.walk(tree):
        if isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        ) and ast.get_docstring(node):
            words.append(node.body[0].value.value)  # type: ignore[attr-defined]
            node.body[0].value.value = ""  # type: ignore[attr-defined]
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    doctests = re.findall(r"^ *(>>> .*)$", "\n".join(words), re.MULTILINE)
    prose = "\n".join(words + comments)
    return {
        "code": Counter(ast.dump(node) for node in tree.body),
        "doctest": Counter(doctests),
        "directive": Counter(re.findall(r"# (?:noqa|type:)[^\n]*", "\n".join(comments))),
        "number": Counter(_NUMBER.findall(prose)),
    }


def of_file(name: str, text: str) -> Facts:
    return of_python(text) if name.endswith(".py") else of_markdown(text)


def differences(name: str, before: str, after: str) -> list[str]:
    old, new = of_file(name, before), of_file(name, after)
    lines = []
    for kind in old:
        for sign, only in (("-", old[kind] - new[kind]), ("+", new[kind] - old[kind])):
            lines += [f"{sign} {kind}: {what[:200]!r} x {count}" for what, count in only.items()]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="prose.facts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("base", nargs="?", default="HEAD")
    parser.add_argument("files", nargs="*", type=Path)
    chosen = parser.parse_args(arguments)
    changed = 0
    for path in chosen.files or files():
        name = str(path.resolve().relative_to(ROOT))
        shown = subprocess.run(
            ["git", "show", f"{chosen.base}:{name}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if shown.returncode or shown.stdout == path.read_text(encoding="utf-8"):
            continue  # new, or the same
        for line in differences(name, shown.stdout, path.read_text(encoding="utf-8")):
            print(f"{name}: {line}")
            changed += 1
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
