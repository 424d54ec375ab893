"""Commands from functions: an option for each parameter, from its annotation and its docstring.

A dataclass will do as well: its fields are the parameters.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Result = typing.TypeVar("Result")


class Refused(RuntimeError):
    """What is asked for cannot be done here: the command ends with this line."""


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


# How an option of each type is read, and what its value is called in the help.
_KINDS: dict[Any, dict[str, Any]] = {
    int: {"type": int, "metavar": "N"},
    float: {"type": float, "metavar": "X"},
    str: {"metavar": "TEXT"},
    Path: {"type": Path, "metavar": "PATH"},
    Sequence[int]: {"type": _numbers, "metavar": "N,N"},
    Sequence[str]: {"action": "append", "metavar": "TEXT"},
    Sequence[Path]: {"type": Path, "metavar": "PATH", "nargs": "*"},
}


def parser_of(function: Callable[..., object]) -> argparse.ArgumentParser:
    """Described by the module's docstring; options are described below "Args:" of the function's.

    A flag that is on by default is turned off by `--no-NAME`. What has no default needs no name,
    and what has no description is not shown.
    """
    module = vars(sys.modules[function.__module__])
    parser = argparse.ArgumentParser(
        f"python -m {module['__spec__'].name.removesuffix('.__main__')}",
        description=module["__doc__"],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    described = (inspect.getdoc(function) or "").partition("Args:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", described, re.MULTILINE)
    texts = {name: " ".join(text.split()).replace("%", "%%") for name, text in entries}
    types = typing.get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, default = types[name], parameter.default
        shown: dict[str, Any] = {"help": texts.get(name, argparse.SUPPRESS)}
        if kind is bool:
            prefix, action = ("--no-", "store_false") if default else ("--", "store_true")
            option = prefix + name.replace("_", "-")
            parser.add_argument(option, dest=name, action=action, **shown)
            continue
        # Of `Path | None` the type that it has where it is given.
        kind = next((k for k in typing.get_args(kind) if type(None) in typing.get_args(kind)), kind)
        if default is not parameter.empty:
            # A list, where more can be appended.
            shown["default"] = list(default) if kind == Sequence[str] else default
            name = f"--{name}"
        parser.add_argument(name, **shown, **_KINDS[kind])
    return parser


def run(function: Callable[..., Result], arguments: Sequence[str] | None = None) -> Result:
    """What the function returns, called with what the command line says."""
    parser = parser_of(function)
    try:
        return function(**vars(parser.parse_args(arguments)))
    except Refused as error:
        sys.exit(f"{parser.prog}: {error}")
