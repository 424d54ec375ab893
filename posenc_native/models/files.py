"""Configurations in files: JSON that somebody else wrote, read within bounds (SECURITY.md)."""

from __future__ import annotations

import os
from typing import Any

from posenc_native.base import arguments

# Hundreds of times what published configurations have; the longest, with a name for each of 21,843
# labels, take a megabyte. What such a file makes of memory is thus bounded too.
MOST_BYTES = 1 << 24
MOST_LEVELS = 100


def read_configuration(path: str | os.PathLike[str], function: str) -> Any:
    """What a config.json holds, the file or its folder; ValueError for what is not readable JSON.

    A name that a mapping has twice with two values is refused: readers would not agree on which one
    counts. NaN and Infinity are read, since published configurations have them; whoever uses a
    number checks it.
    """
    import json  # here, because `import posenc_native` does not need it
    from pathlib import Path

    path = Path(path)
    with (path / "config.json" if path.is_dir() else path).open("rb") as file:
        content = file.read(MOST_BYTES + 1)  # not its size first: a device has none
    if len(content) > MOST_BYTES:
        expected = f"a file of at most {MOST_BYTES} bytes"
        arguments.wrong_value(function, "config", expected, "a longer one")

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            for key, value in pairs:
                if value != found[key]:
                    got = f"{key!r} twice, with different values"
                    arguments.wrong_value(function, "config", "each name once", got)
        return found

    levels = f"JSON of at most {MOST_LEVELS} levels"
    try:
        found = json.loads(content.decode("utf-8"), object_pairs_hook=mapping)
    except UnicodeDecodeError as error:
        arguments.wrong_value(function, "config", "UTF-8 text", f"{error.reason} at {error.start}")
    except RecursionError:
        arguments.wrong_value(function, "config", levels, "more")
    except json.JSONDecodeError as error:
        arguments.wrong_value(function, "config", "JSON", f"text that is none: {error}")
    except ValueError as error:
        if hasattr(error, "fault"):
            raise
        # Of int: Python reads no number of thousands of digits.
        arguments.wrong_value(function, "config", "numbers of at most 4300 digits", "a longer one")
    if _is_deeper(found, MOST_LEVELS):
        arguments.wrong_value(function, "config", levels, "more")
    return found


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether a mapping or a list lies in so many others. No recursion: that is the point."""
    containers = [value]
    for _ in range(levels):
        inner = []
        for container in containers:
            if isinstance(container, dict):
                inner += [each for each in container.values() if isinstance(each, (dict, list))]
            elif isinstance(container, list):
                inner += [each for each in container if isinstance(each, (dict, list))]
        if not inner:
            return False
        containers = inner
    return True
