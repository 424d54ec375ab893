"""Untrusted YAML, read as data: no Python tags, within limits (SECURITY.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.optional import absent, install_command

# Tens of times what engines write.
_MOST_BYTES = 1 << 18
_MOST_ENTRIES = 1 << 15  # the entries behind an alias count every time
_MOST_LEVELS = 100
_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
_MOST_DIGITS = 256  # of a text that may be a number


def read_yaml(path: Path, function: str) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ValueError, TypeError: invalid YAML, no mapping, a tag that makes an object, or over a
            limit.
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
    loader = _loader(yaml, wrong)
    try:
        beyond = _beyond_bounds(yaml, yaml.parse(content, Loader=loader))
        if beyond:
            wrong(f"YAML with {beyond}", "a file that breaks this limit")
        entries = yaml.load(content, Loader=loader)
    except yaml.YAMLError as error:
        wrong("YAML of plain data", f"invalid text: {' '.join(str(error).split())[:200]}")
    except (RecursionError, ValueError, TypeError, AttributeError, LookupError) as error:
        if hasattr(error, "fault"):
            raise
        said = " ".join(str(error).split())[:200] or type(error).__name__
        wrong("YAML of plain data", f"invalid text: {said}")
    if not isinstance(entries, dict):
        wrong_type(function, "config", "a YAML mapping", type(entries).__name__)
    return entries


def _loader(yaml: Any, wrong: Callable[[str, str], NoReturn]) -> Any:
    """PyYAML's safe loader; 1e6 is a number, as in YAML 1.2 and OmegaConf, and a key is unique."""

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
            if twice is not None:
                wrong("each name once", f"{twice[:64]!r} twice")
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    return Loader


def _beyond_bounds(yaml: Any, events: Iterable[Any]) -> str:
    """The limit that the YAML breaks; "" if none. The events come without recursion."""
    known: dict[str, tuple[int, int]] = {}  # entries and levels by anchor
    opened: list[tuple[str | None, int, int]] = []  # anchor, entries and levels of open collections
    total = 0
    for event in events:
        entries = levels = 0
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in known:  # it may contain itself
                return "anchors that end before their aliases"
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
