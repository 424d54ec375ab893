"""Configuration files: untrusted JSON, read within limits (SECURITY.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from posenc_native.core.calls import arguments

from .presets import rotary_presets

if TYPE_CHECKING:
    from pathlib import Path

# Hundreds of times the size of published configurations; the longest, with a name for each of
# 21,843 labels, take a megabyte. This also limits the memory that such a file needs.
MOST_BYTES = 1 << 24
MOST_LEVELS = 100
PIPE_SECONDS = 10.0  # how long the writer of a pipe may pause, for example to download the file

_HUB_NAME = re.compile(r"(https?:/+[\w.-]+/)?(?P<name>([\w.-]+/)?[\w.-]+)/?", re.ASCII)
_BYTE_ORDERS = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16 and UTF-32
# Weights have another file beside them that says how the model rotates.
_SUFFIXES_OF_WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt")
# Of torch.save (a zip file, or a pickle before it) and of safetensors, after 8 bytes of a length.
_STARTS_OF_WEIGHTS = re.compile(rb"PK\x03\x04|\x80[\x02-\x05]|.{5}\0\0\0\{\"", re.DOTALL)
_KINDS = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}


def read_configuration(path: str | os.PathLike[str], function: str) -> dict[str, Any]:
    """The content of a config.json, from the file or its folder; ValueError for invalid JSON.

    If a mapping has a name twice with two values, it is refused, because readers would disagree on
    which one counts. NaN and Infinity are read, since published configurations have them; code that
    uses a number checks it. A byte order mark before UTF-8, as editors on Windows write it, is
    skipped.

    Raises:
        ValueError, TypeError: not a JSON object, or an object beyond the limits above.
        OSError: a file that does not exist or cannot be read; its strerror says more than the
            system's if the path looks like a name on a hub, or is a folder without the file.
    """
    import json  # here, because `import posenc_native` does not need it
    from pathlib import Path

    def wrong(expected: str, got: str, hint: str = "") -> NoReturn:
        arguments.wrong_value(function, "config", expected, got, hint)

    text = os.fspath(path)
    path = Path(path)
    try:
        file = path / "config.json" if path.is_dir() else path
        content = _content(file)
    except FileNotFoundError as error:
        said = _what_is_missing(text, path, error.strerror or "no such file")
        raise FileNotFoundError(error.errno, said, text) from None
    except IsADirectoryError as error:
        raise IsADirectoryError(error.errno, "its config.json is a folder", text) from None
    if content is None:
        wrong("a file, or a pipe with a writer", "a pipe without data")
    if content.startswith(b"GGUF"):
        wrong("JSON", "a GGUF file, which explain and compare read")
    if file.suffix in _SUFFIXES_OF_WEIGHTS or _STARTS_OF_WEIGHTS.match(content):
        wrong("a configuration", "a file of weights", "give its config.json or the folder of it")
    if len(content) > MOST_BYTES:
        wrong(f"a file of at most {MOST_BYTES} bytes", "a longer one")
    if not content.strip():
        wrong("JSON", "an empty file")
    if content.startswith(_BYTE_ORDERS):
        wrong("UTF-8 text", "UTF-16 or UTF-32, by its byte order mark")

    levels = f"JSON of at most {MOST_LEVELS} levels"
    try:
        entries = json.loads(content.decode("utf-8-sig"), object_pairs_hook=unique_names(wrong))
    except UnicodeDecodeError as error:
        wrong("UTF-8 text", f"{error.reason} at {error.start}")
    except RecursionError:
        wrong(levels, "more")
    except json.JSONDecodeError as error:
        wrong("JSON", f"invalid JSON: {error}")
    except ValueError as error:
        if hasattr(error, "fault"):
            raise
        # From int: Python reads no number of thousands of digits.
        wrong("numbers of at most 4300 digits", "a longer one")
    if _is_deeper(entries, MOST_LEVELS):
        wrong(levels, "more")
    if not isinstance(entries, dict):
        got = _KINDS.get(type(entries), "a number")
        arguments.wrong_type(function, "config", "a JSON object, {...}", got)
    return entries


def unique_names(
    wrong: Callable[[str, str], NoReturn],
) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """For JSON's object_pairs_hook: `wrong` is called for a name with two values."""

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            for key, value in pairs:
                if value != entries[key]:
                    wrong("each name once", f"{key!r} twice, with different values")
        return entries

    return mapping


def _content(path: Path) -> bytes | None:
    """At most `MOST_BYTES` + 1 bytes; its size is not asked, because a device has none.

    None for a pipe without a writer: opening or reading it as a file would wait forever.
    """
    import select

    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    content = b""
    try:
        while len(content) <= MOST_BYTES:
            try:
                piece = os.read(file, MOST_BYTES + 1 - len(content))
            except BlockingIOError:
                if not select.select([file], [], [], PIPE_SECONDS)[0]:
                    return None
                continue
            if not piece:
                break
            content += piece
    finally:
        os.close(file)
    return content


def _what_is_missing(text: str, path: Path, said: str) -> str:
    """Advice about a path that does not exist."""
    if path.is_dir():
        return "the folder has no config.json"
    match = _HUB_NAME.fullmatch(text)
    if match is None or path.suffix == ".json":
        return said
    from difflib import get_close_matches
    from fnmatch import fnmatch

    name = match["name"]
    if near := get_close_matches(name.lower(), rotary_presets(), n=1, cutoff=0.8):
        return f"{said}; did you mean the preset {near[0]!r}?"
    like = [
        preset
        for preset, facts in rotary_presets().items()
        if any(fnmatch(name.lower(), word.strip(",;").lower()) for word in facts.source.split())
    ]
    known = f", and the preset {like[0]!r} describes it" if like else ""
    return (
        f"{said}. If it names a model on a hub, nothing is downloaded here; "
        f"`hf download {name} config.json` prints the path of its file{known}"
    )


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether mappings and lists are nested deeper than this; without recursion, on purpose."""
    inside = [value]
    for _ in range(levels + 1):
        containers = [item for item in inside if isinstance(item, (dict, list))]
        if not containers:
            return False
        entries = (item.values() if isinstance(item, dict) else item for item in containers)
        inside = [item for items in entries for item in items]
    return True
