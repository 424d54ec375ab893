"""Results that are read as text, in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .html import as_html
from .parts import WIDTH, Part, as_text


class Document:
    """A result whose ``str()`` is its `text`, which notebooks show as HTML."""

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """All of it, in lines of at most `width` characters; tables may be wider."""
        return as_text(self._parts(), width)

    def _repr_html_(self) -> str:
        """Notebooks show this in place of the repr."""
        return as_html(self._parts())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython shows this in a terminal."""
        printer.text(self.text())

    def _parts(self) -> Iterable[Part]:
        raise NotImplementedError
