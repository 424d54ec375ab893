"""Kinds of option values, used as annotations in the functions that are commands.

`Annotated[int, Kind(...)]` is an int for Python, and also says how the option is parsed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from posenc_native.core.calls.arguments import FLOAT_DTYPES

from .parser import CommandError, require
from .positions import Positions


@dataclass(frozen=True)
class Kind:
    """How an option is parsed.

    Attributes:
        read: converts the typed text; raises argparse.ArgumentTypeError with the reason.
        metavar: the name of the value in --help.
        choices: all allowed values.
        short: a one-letter name of the option.
        text: the text in --help for every option of this kind.
    """

    read: Callable[[str], Any] = str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    short: str | None = None
    text: str = ""


def _reader(read: Callable[[str], Any], expected: str) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}") from None

    return checked


whole_number = _reader(int, "an int")
number = _reader(float, "a number")


def at_least_one(text: str) -> int:
    """An int of 1 or more."""
    value: int = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value


def _several(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [read(part) for part in text.split(",")]


def _positions(text: str) -> Positions:
    try:
        return Positions.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size(text: str) -> tuple[float, float]:
    try:
        width, height = map(float, text.split("x"))
    except ValueError:
        width = height = 0.0
    if not (0 < width < 1000 and 0 < height < 1000):
        raise argparse.ArgumentTypeError(f"expected inches like 8x5, got {text!r}")
    return width, height


PLAIN = {
    int: Kind(whole_number, "N"),
    float: Kind(number, "X"),
    Path: Kind(Path, "PATH"),
}
Count = Annotated[int, Kind(at_least_one, "N")]
Ints = Annotated[list[int], Kind(_several(whole_number), "N,N")]
Floats = Annotated[list[float], Kind(_several(number), "X,X")]
Text = Annotated[Path, Kind(Path, "FILE")]
ArrayFile = Annotated[Path, Kind(Path, "FILE.npy")]
Size = Annotated[tuple[float, float], Kind(_size, "WxH")]
Places = Annotated[
    Positions,
    Kind(
        _positions,
        "POSITIONS",
        text="a count, 100 for 0 to 99; START:STOP or START:STOP:STEP, as in range(); a list, "
        "5,7.5,9; or several of these, 0:8,1000:1008",
    ),
]
DtypeName = Annotated[
    str,
    Kind(
        choices=FLOAT_DTYPES,
        text="number format; each number is rounded once, from the exact angle",
    ),
]


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype with this name; bfloat16 needs ml_dtypes."""
    if name == "bfloat16":
        require("ml_dtypes", "--dtype bfloat16")
    dtype: np.dtype[Any] = np.dtype(name)  # importing ml_dtypes has registered its own
    return dtype


# --- Files


def output(*suffixes: str) -> Kind:
    """The name of a file to write, with one of these suffixes; checked before any work."""
    either = " or ".join(part for part in (", ".join(suffixes[:-1]), suffixes[-1]) if part)

    def read(text: str) -> Path:
        path = Path(text)
        problem = None
        if path.suffix.lower() not in suffixes:
            problem = f"expected a name that ends in {either}, got {text!r}"
        elif path.is_dir():
            problem = f"expected a file, got the folder {text!r}"
        elif not path.parent.is_dir():
            problem = f"cannot write {text}: no folder {path.parent}"
        if problem:
            raise argparse.ArgumentTypeError(problem)
        return path

    text = f"where to write: {either}; an existing file is replaced"
    return Kind(read, "FILE", short="-o", text=text)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """One line for a file that cannot be read."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Give the name of a temporary file, which is renamed to `path` on success.

    An existing file stays until then; an interrupted run leaves nothing behind.
    """
    target = path.resolve()  # a symbolic link stays a link
    part = target.with_name(f"{target.stem}.{os.getpid()}.part{target.suffix}")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
