"""Output for a terminal, drawn by rich, and for a pipe, as plain text."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO


def is_rich(stream: TextIO) -> bool:
    """Whether rich writes to this stream: rich is installed and the stream is a terminal."""
    return (
        stream.isatty()
        and os.environ.get("TERM") != "dumb"
        and importlib.util.find_spec("rich") is not None
    )


def printable(text: str) -> str:
    """Text from an untrusted file, made safe for a terminal: it cannot move the cursor.

    Control characters, text-direction marks and unpaired surrogates become escapes.
    """
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def show_table(columns: tuple[str, str], rows: Sequence[tuple[str, str]]) -> None:
    """Print names and their values; a header only on a terminal."""
    if not is_rich(sys.stdout):
        width = max(len(name) for name, _ in rows)
        print("\n".join(f"{name:{width}}  {value}" for name, value in rows))
        return
    import rich
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_header=any(columns))
    table.add_column(columns[0], style="bold", no_wrap=True)
    table.add_column(columns[1], overflow="fold")  # the whole text, for copying
    for row in rows:
        table.add_row(*map(Text, row))  # no markup: brackets are shapes
    rich.print(table)


def show_text(text: str) -> None:
    """Print text; on a terminal, headings (unindented lines after an empty one) are bold."""
    if not is_rich(sys.stdout):
        print(text)
        return
    from rich.console import Console

    console, before = Console(), ""
    for line in text.splitlines():
        style = "bold" if line and not before and not line.startswith(" ") else None
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
        before = line


@contextlib.contextmanager
def progress(label: str, total: float) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, if that is a terminal.

    Yields a function that takes the progress since the last call and, optionally, a new label.
    """
    if not is_rich(sys.stderr):
        yield lambda done, label=None: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task: Any = bar.add_task(label, total=total)
        yield lambda done, label=None: bar.update(task, advance=done, description=label)
