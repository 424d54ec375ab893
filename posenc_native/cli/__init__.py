"""The command line: ``posenc-native`` and ``python -m posenc_native``.

Each command is a function of this package: its signature defines the options, its docstring is the
text of --help (signatures.py).

argparse parses, because the command must work from a bare wheel with only numpy: typer and click
would be dependencies even for users who never type a command. If rich is installed (the extra
[cli]), a terminal gets tables, colors and progress bars from it, and rich-argparse draws --help;
pipes and files get plain text. A command imports only what it needs: --help imports neither torch
nor matplotlib.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from posenc_native import __version__

from . import bench, completion, demo, info, plot, table, terminal
from .checkpoints import compare, explain
from .parser import CommandError, CommandParser, in_words_of_the_shell, unknown
from .signatures import add_function

__all__ = ["main"]

_DESCRIPTION = """\
Position encodings for transformers, exact at every position. Explain how a
model encodes positions, draw encodings, write their tables to files, print
what was built."""

_EPILOG = """\
examples:
  %(prog)s info
  %(prog)s explain path/to/model
  %(prog)s compare llama-3.1 path/to/model
  %(prog)s plot heatmap --dim 128 -o heatmap.png
  %(prog)s plot frequencies --preset llama-3.1
  %(prog)s table rotary --preset llama-3.1 --positions 0:131072 -o llama.npz
  %(prog)s demo

`%(prog)s COMMAND --help` explains a command.

exit status:
  0    done
  1    an error, described in one line on stderr
  2    usage error
  130  interrupted
  141  the reader of the output closed it (`| head`)
  compare exits with 1 if checkpoints differ, with 2 if one cannot be read and
  with 3 if only the expected permutation differs or what an engine does is
  unknown, explain --as with 1 if something cannot be expressed, bench with the
  status of the benchmarks.

On a terminal, rich draws the output if it is installed (rich, rich-argparse),
and NO_COLOR is respected; pipes and files get plain text."""


_LONGEST = 2000  # characters of a message, which may quote what was typed or read


def main(arguments: Sequence[str] | None = None, program: str = "posenc-native") -> int:
    """Run a command.

    Args:
        arguments: those after the program's name; None for ``sys.argv``.
        program: the name that begins messages and --help.

    Returns:
        The exit status, as --help lists them.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - stays open
    try:
        try:
            return _run_command(arguments, program)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit and would report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run_command(arguments: Sequence[str] | None, program: str) -> int:
    parser = program_parser(program)
    speaker = None
    try:
        # bench passes unknown options on to the benchmarks.
        options, rest = parser.parse_known_args(arguments)
        parser = options.parser
        if rest and not options.takes_more:
            parser.error(unknown(parser, rest))
        options.more = rest
        return options.run(options) or 0
    except SystemExit as stop:  # from argparse, after --help and --version
        return int(stop.code or 0)
    except CommandError as error:
        message, status, speaker = str(error), error.status, error.program
    except KeyboardInterrupt:
        message, status = "interrupted", 130
    except MemoryError:
        message, status = "not enough memory", 1
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        message, status = f"cannot use {error.filename or 'the output'}: {error.strerror}", 1
    except (ValueError, TypeError) as error:
        words = in_words_of_the_shell(error, parser)
        if words is None:
            raise
        message, status = words, 2
    if len(message) > _LONGEST:  # the informative parts are at both ends
        message = f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"
    print(terminal.printable(f"{speaker or parser.prog}: {message}"), file=sys.stderr)
    return status


def program_parser(program: str) -> CommandParser:
    """The parser of the whole command line."""
    parser = CommandParser(prog=program, description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"posenc_native {__version__}")
    commands = parser.add_commands("COMMAND", "commands")
    add_function(commands, "info", info.info)
    add_function(commands, "explain", explain.explain)
    add_function(commands, "compare", compare.compare)
    plot.add(commands)
    table.add(commands)
    add_function(commands, "demo", demo.demo)
    add_function(commands, "completion", completion.completion_of(parser))
    # In a working copy the benchmarks print their own --help.
    help_here = bench.repository() is None
    usage = "%(prog)s [OPTION ...]"
    add_function(commands, "bench", bench.bench, add_help=help_here, usage=usage)
    return parser
