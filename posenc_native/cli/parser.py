"""The command line parser: help laid out as written, errors in one line."""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from posenc_native.core.calls.errors import fault_of
from posenc_native.core.calls.optional import absent, install_command
from posenc_native.core.calls.suggestions.vocabulary import meant

from . import terminal

# An argument, or an item of one: dim, scaling['factor'].
_ARGUMENT = re.compile(r"(?P<name>\w+)(\['(?P<key>\w+)'\])?")


class CommandError(Exception):
    """An error that the user sees as one line.

    Args:
        message: the line.
        program: the name that begins the line; None for the command that runs.
    """

    status = 1

    def __init__(self, message: str, program: str | None = None) -> None:
        super().__init__(message)
        self.program = program


class UsageError(CommandError):
    """An invalid command line."""

    status = 2


class CommandParser(argparse.ArgumentParser):
    """argparse with one-line errors, help laid out as written, and no abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_help_formatter, allow_abbrev=False, **settings)
        # Text that looks like a negative number is a value (--positions -8:8), never an option.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        # Without a command, print help. Each command sets its own function.
        self.set_defaults(parser=self, run=_show_help, takes_more=False)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message.removeprefix("argument "), self.prog)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            like = meant(str(value), [*map(str, action.choices or ())])
            if like:
                error.message += f"; did you mean {' or '.join(like)}?"
            raise

    def add_commands(self, metavar: str, title: str) -> Any:
        """Let it take commands; `add_command` adds them to the returned object."""
        # Without prog, argparse would format the usage to find it, importing rich on a terminal.
        return self.add_subparsers(metavar=metavar, prog=self.prog, title=title)


def unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """The message about words that no option takes, with similar options."""
    said = f"unrecognized arguments: {' '.join(words)}"
    names = [name for action in parser._actions for name in action.option_strings]
    ours = [word for word in words if word.partition("=")[0] in names]
    if ours:  # typed before the command
        return f"{said} (write them after the command: `{parser.prog} {' '.join(ours)}`)"
    like = [near for word in words for near in meant(word.partition("=")[0], names)]
    return f"{said} (did you mean {' or '.join(dict.fromkeys(like))}?)" if like else said


class Words(NamedTuple):
    """The texts in the docstring of a command.

    Attributes:
        summary: the line in the list of commands.
        description: the beginning of its own --help.
        arguments: a text for each name of ``Args:``.
        examples: the lines of ``Examples:``, where $ is the program and the command.
    """

    summary: str
    description: str
    arguments: dict[str, str]
    examples: str

    @classmethod
    def of(cls, docstring: str | None) -> Words:
        """Read a docstring in the form that this project uses."""
        text, *parts = _SECTION.split(inspect.cleandoc(docstring or ""))
        sections = dict(zip(parts[::2], parts[1::2], strict=True))
        summary, _, description = text.strip().partition("\n\n")
        arguments = {
            name: " ".join(said.split())
            for names, said in _ENTRY.findall(sections.get("Args", ""))
            for name in names.split(", ")
        }
        examples = sections.get("Examples", "").rstrip()
        return cls(summary[:1].lower() + summary[1:-1], description, arguments, examples)


_SECTION = re.compile(r"^(Args|Returns|Raises|Examples):\n", re.M)
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", re.M)


def add_command(commands: Any, name: str, words: Words, **settings: Any) -> CommandParser:
    """Add a command.

    Args:
        commands: where to, from `CommandParser.add_commands`.
        name: as the user types it.
        words: the text of --help.
        settings: keywords for argparse.ArgumentParser.
    """
    examples = re.sub(r"^    \$", "  %(prog)s", words.examples.replace("%", "%%"), flags=re.M)
    parser: CommandParser = commands.add_parser(
        name,
        help=words.summary,
        description=words.description,
        epilog=f"examples:\n{examples}",
        **settings,
    )
    return parser


def flag(name: str) -> str:
    """The option of an argument."""
    return "--" + name.replace("_", "-")


def default_in_help(default: object) -> str:
    """A default as a user would type it."""
    if isinstance(default, list):
        return ",".join(map(default_in_help, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def require(module: str, why: str) -> ModuleType:
    """Import an optional package; if it is missing, a CommandError says what to install."""
    if absent(module):
        raise CommandError(f"{why} needs {module}: {install_command(module)}")
    return importlib.import_module(module)


def in_words_of_the_shell(error: Exception, parser: argparse.ArgumentParser) -> str | None:
    """The message of a library error, with the name of the option at fault.

    None if the error is not about an argument.
    """
    fault = fault_of(error)
    if fault is None:
        return None
    flags = {action.dest: "/".join(action.option_strings) for action in parser._actions}
    matches = [_ARGUMENT.fullmatch(name) for name in fault.argument.split(", ")]
    if not all(match and flags.get(match["name"]) for match in matches):
        return str(error)
    names = ", ".join(flags[match["name"]] for match in matches if match)
    key = f" {matches[0]['key']}:" if matches[0] and matches[0]["key"] else ""
    return f"{names}:{key} expected {fault.expected}, got {fault.got}"


def without_function(error: Exception) -> str:
    """The message of an error, without the function that the user did not call."""
    fault = fault_of(error)
    return str(error) if fault is None else str(fault).removeprefix(f"{fault.function}: ")


def _show_help(options: argparse.Namespace) -> int:
    options.parser.print_help(sys.stderr)
    return UsageError.status


def _help_formatter(prog: str, **settings: Any) -> argparse.HelpFormatter:
    """Descriptions and examples laid out as written; in color on a terminal."""
    return _help_formatter_class()(prog, **settings)


@functools.cache
def _help_formatter_class() -> type[argparse.HelpFormatter]:
    """rich-argparse's class, which imports rich, if it is installed and stdout is a terminal."""
    if not terminal.is_rich(sys.stdout) or absent("rich_argparse"):
        return argparse.RawDescriptionHelpFormatter
    from rich_argparse import RawDescriptionRichHelpFormatter

    class Formatter(RawDescriptionRichHelpFormatter):
        group_name_formatter = str
        # Brackets in our texts are shapes, not markup.
        text_markup = False
        help_markup = False

    return Formatter
