"""YAML that somebody else wrote, read as data: no tags of Python, within bounds (SECURITY.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.base.optional import absent, install_command

# Tens of times what engines write.
_MOST_BYTES = 1 << 18
_MOST_ENTRIES = 1 << 15  # what an alias stands for counts each time
_MOST_LEVELS = 100
_MOST_DIGITS = 256  # of a text that may be a number


def read_yaml(path: Path, function: str) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        ValueError, TypeError: no YAML, no mapping, a tag that asks for an object, or beyond bounds.
        OSError: a file that cannot be read.
        ImportError: PyYAML is not installed.
    """
    if absent("yaml"):
        said = f"{function}: reading YAML needs PyYAML: {install_command('pyyaml')}"
        raise ImportError(said, name="yaml")
    import yaml  # type: ignore[import-untyped]

    def wrong(expected: str, got: str) -> NoReturn:
        wrong_value(function, "config", expected, got)

    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        wrong(f"a YAML file of at most {_MOST_BYTES} bytes", "a longer one")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        beyond = _beyond_bounds(yaml, yaml.parse(content, Loader=loader))
        if beyond:
            wrong(f"YAML of {beyond}", "more")
        found = yaml.load(content, Loader=loader)
    except yaml.YAMLError as error:
        wrong("YAML of plain data", f"text that is none: {' '.join(str(error).split())[:200]}")
    except (RecursionError, ValueError, TypeError, AttributeError, LookupError) as error:
        if hasattr(error, "fault"):
            raise
        said = " ".join(str(error).split())[:200] or type(error).__name__
        wrong("YAML of plain data", f"text that is none: {said}")
    if not isinstance(found, dict):
        wrong_type(function, "config", "a YAML mapping", type(found).__name__)
    return found


def _beyond_bounds(yaml: Any, events: Iterable[Any]) -> str:
    """What there is too much of; "" for nothing. Events come without recursion."""
    known: dict[str, tuple[int, int]] = {}  # entries and levels of what has a name
    opened: list[tuple[str | None, int, int]] = []  # name, entries and levels of what is not closed
    total = 0
    for event in events:
        entries = levels = 0
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in known:  # it may hold itself
                return "names that stand before their aliases"
            entries, levels = known[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, total, 0))
            entries = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before, inner = opened.pop()
            levels = inner + 1
            if anchor is not None:
                known[anchor] = total - before, levels
        elif isinstance(event, yaml.ScalarEvent):
            entries = 1
            if event.implicit[0] and len(event.value) > _MOST_DIGITS and _is_number(event.value):
                return f"numbers of at most {_MOST_DIGITS} digits"
            if event.anchor is not None:
                known[event.anchor] = 1, 0
        total += entries
        if total > _MOST_ENTRIES:
            return f"at most {_MOST_ENTRIES} entries"
        if len(opened) + levels > _MOST_LEVELS:
            return f"at most {_MOST_LEVELS} levels"
        if opened and levels > opened[-1][2]:
            opened[-1] = (*opened[-1][:2], levels)
    return ""


def _is_number(text: str) -> bool:
    return text[0] in "+-.0123456789" and " " not in text
