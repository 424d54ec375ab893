"""The properties of a file format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .description import Description
from .written import Written


def _unreadable(entries: Mapping[str, Any], source: str, function: str) -> Description:
    raise NotImplementedError


@dataclass(frozen=True)
class Format:
    """A file format that describes how a model rotates.

    Attributes:
        name: the part before the colon in ``name:path``.
        title: its name in sentences.
        claims: whether a mapping has this format.
        read: reads a description from a mapping, its source and the function that errors name.
        read_file: the same for a file that is neither JSON nor YAML.
        read_launch: for settings that name another file: that file and overrides for it
            (served.Launch).
        write: puts a description into the words of this format; None if no writer does.
        suffixes: the suffixes of such files.
        magic: the first bytes of such a file.
        takes_overrides: whether overrides of a Hugging Face configuration can be applied.
    """

    name: str
    title: str
    claims: Callable[[Mapping[str, Any]], bool] = lambda entries: False
    read: Callable[[Mapping[str, Any], str, str], Description] = _unreadable
    read_file: Callable[[Path, str, str], Description] | None = None
    read_launch: Callable[[Mapping[str, Any], str], Any] | None = None
    write: Callable[[Description, Written], None] | None = None
    suffixes: tuple[str, ...] = ()
    magic: bytes = b""
    takes_overrides: bool = False

    def is_file(self, file: Path) -> bool:
        """Whether a file has this format, by its name or its first bytes."""
        if self.read_file is None:
            return False
        if file.suffix.lower() in self.suffixes:
            return True
        if not self.magic or not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(len(self.magic)) == self.magic
