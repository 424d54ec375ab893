"""Shows how far a run is: a bar where somebody watches, plain lines where nobody does.

Nothing is drawn while something is timed: no thread refreshes the bar; `advance` does, between
rounds.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Drawing takes about a millisecond and pushes what was timed out of the caches.
_SECONDS_BETWEEN_DRAWINGS = 0.25


class Progress:
    """A context. Plain lines where rich is missing, or standard output is no terminal."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self._drawn = 0.0
        self._bar = None
        if console is None:
            if not sys.stdout.isatty():
                return
            try:
                from rich.console import Console
            except ImportError:
                return
            console = Console()
        from rich import progress
        from rich.table import Column

        name = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False, table_column=name),
            progress.BarColumn(bar_width=20),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("rest"),
            progress.TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            expand=True,
            transient=True,
            speed_estimate_period=1800.0,  # of the whole run: cases differ much
        )
        self._task = self._bar.add_task("", total=steps)

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def begin(self, name: str) -> None:
        """Name what comes next."""
        if self._bar:
            self._bar.update(self._task, description=name)
            self._draw()

    def advance(self, steps: int = 1) -> None:
        """So many steps are done."""
        if self._bar:
            self._bar.update(self._task, advance=steps)
            if time.perf_counter() > self._drawn + _SECONDS_BETWEEN_DRAWINGS:
                self._draw()

    def say(self, text: str) -> None:
        """Print text, above the bar."""
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def _draw(self) -> None:
        if self._bar:
            self._bar.refresh()
            self._drawn = time.perf_counter()
