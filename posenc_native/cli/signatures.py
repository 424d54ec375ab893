"""Commands from functions: a signature defines the options, a docstring the text of --help.

A parameter becomes the option of its name if ``Args:`` has a line for it or its kind has a text
(kinds.py). A positional-only parameter is typed without a name. `*words` takes any number of
further words, or the remaining command line if ``Args:`` has no line for it. A `SinusoidalSpec` or
a `Rotary` becomes the options of encodings.py. An option that is not typed is not passed, so the
function's own default applies. `as_` is typed --as.
"""

from __future__ import annotations

import argparse
import inspect
import types
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

from .encodings import KINDS, add_encoding, encoding
from .kinds import PLAIN, Kind
from .parser import CommandParser, Words, add_command, default_in_help, flag

Function = Callable[..., Any]


def add_function(
    commands: Any,
    name: str,
    function: Function,
    *also: Function,
    group: str = "",
    width: int | None = None,
    **settings: Any,
) -> CommandParser:
    """Add a command that calls a function.

    Args:
        commands: where to, from `CommandParser.add_commands`.
        name: as the user types it.
        function: the function to call; its docstring is the text of --help.
        also: functions whose options the command takes too.
        group: title of the options that do not describe an encoding.
        width: of an encoding that no option describes; None: an option has to.
        settings: keywords for argparse.ArgumentParser.
    """
    texts = _words(function).arguments
    takes_more = any(
        parameter.kind is parameter.VAR_POSITIONAL and parameter.name not in texts
        for parameter in _parameters(function)
    )
    parser = add_command(commands, name, _words(function), **settings)
    parser.set_defaults(run=partial(_run, function), takes_more=takes_more)
    for parameter in _parameters(function):
        if kinds := KINDS.get(parameter.annotation):
            add_encoding(parser, *kinds, width=width)
    titled = parser.add_argument_group(group) if group else parser
    names: set[str] = set()
    for source in (function, *also):
        texts = _words(source).arguments
        for parameter in _parameters(source):
            if parameter.name not in names and _add_option(titled, parameter, texts):
                names.add(parameter.name)
    return parser


def _run(function: Function, options: argparse.Namespace) -> Any:
    return bound(function, options)()


def bound(function: Function, options: argparse.Namespace, *more: Function) -> Callable[[], Any]:
    """The function with its `values`."""
    arguments = values(function, options, *more)
    alone = [
        arguments.pop(parameter.name)
        for parameter in _parameters(function)
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    named = (p.name for p in _parameters(function) if p.kind is p.VAR_POSITIONAL)
    several = [value for name in named for value in arguments.pop(name, ())]
    return partial(function, *alone, *several, *options.more, **arguments)


def values(function: Function, options: argparse.Namespace, *more: Function) -> dict[str, Any]:
    """The arguments of a function that were typed, and the encoding that it takes.

    more: functions whose arguments it takes as its ``**keywords``.
    """
    typed, arguments = vars(options), {}
    for parameter in _parameters(function):
        if kinds := KINDS.get(parameter.annotation):
            arguments[parameter.name] = encoding(options, *kinds)
        elif parameter.name in typed:
            arguments[parameter.name] = typed[parameter.name]
        elif parameter.kind is parameter.VAR_KEYWORD:
            for source in more:
                arguments |= values(source, options)
    return arguments


def _words(function: Function) -> Words:
    """Its attribute `words`; without, those of its docstring."""
    words: Words = getattr(function, "words", None) or Words.of(function.__doc__)
    return words


def _parameters(function: Function) -> list[inspect.Parameter]:
    return [
        parameter.replace(annotation=_without_none(parameter.annotation))
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
    ]


def _without_none(hint: Any) -> Any:
    """X of X | None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not types.NoneType]
        return members[0] if len(members) == 1 else hint
    return hint


def _add_option(group: Any, parameter: inspect.Parameter, said: dict[str, str]) -> bool:
    name, hint, default = parameter.name, parameter.annotation, parameter.default
    kind = next(iter(getattr(hint, "__metadata__", ())), PLAIN.get(hint, Kind()))
    text = "; ".join(filter(None, (kind.text, said.get(name))))
    if not text:
        return False
    if not (default is parameter.empty or default is None or default is False):
        text += f" (default: {default_in_help(default)})"
    settings: dict[str, Any] = {"help": text.replace("%", "%%")}
    if hint is bool:
        settings["action"] = "store_true"
    else:
        settings |= {"type": kind.read, "metavar": kind.metavar, "choices": kind.choices}
    if parameter.kind is parameter.POSITIONAL_ONLY:
        may_be_missing = {} if default is parameter.empty else {"nargs": "?"}
        group.add_argument(name, **settings, **may_be_missing)
        return True
    if parameter.kind is parameter.VAR_POSITIONAL:
        # With a default, argparse does not list it among the arguments that are required.
        group.add_argument(name, **settings, nargs="*", default=())
        return True
    flags = filter(None, (kind.short, flag(name.removesuffix("_"))))
    settings |= {"required": default is parameter.empty, "default": argparse.SUPPRESS}
    group.add_argument(*flags, **settings, dest=name)
    return True
