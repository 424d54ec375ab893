"""Text between two marks, made of records and of code:

    <!-- measured: accuracy rotary base 5e5 -->
    | ... |
    <!-- /measured -->

| mark | what stands there |
|---|---|
| `measured: WHAT` | a table of records of the benchmark (benchmarks/figures/measured.py) |
| `docstring: MODULE` | the docstring of a module, with its pictures in characters |
| `engines` | the engines that were run, from their records |
| `rooms` | the rooms of the package by its imports (scripts/rooms.py) |
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable

import rooms

from benchmarks.figures import measured

from . import engines

_BLOCK = re.compile(r"^(<!-- (\w+)(?:: (.+?))? -->\n)(.*?)^(<!-- /\2 -->)$", re.S | re.M)


def _docstring(module: str) -> str:
    text = inspect.cleandoc(importlib.import_module(module).__doc__ or "")
    return f"```text\n{text}\n```\n"


MAKERS: dict[str, Callable[[str], str]] = {
    "measured": measured.text,
    "docstring": _docstring,
    "engines": lambda _: engines.table(),
    "rooms": lambda _: rooms.picture(),
}


def filled(page: str) -> str:
    """The page with what should stand between its marks. Other comments stay as they are."""

    def made(match: re.Match[str]) -> str:
        begin, name, what, _, end = match.groups()
        return f"{begin}{MAKERS[name](what or '')}{end}" if name in MAKERS else match[0]

    return _BLOCK.sub(made, page)


def first_difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return " / ".join([line for line in lines if line[:1] in "+-"][2:4])
