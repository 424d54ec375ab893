"""The command line: ``python -m posenc_native {demo, explain, info, bench}``."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__, backend, demo
from .explain import explain

_PROGRAM = "python -m posenc_native"
_EPILOG = f"""\
examples:
  {_PROGRAM} demo                        a Llama on the text that ships, both ways
  {_PROGRAM} demo --text book.txt        the same on a text of yours
  {_PROGRAM} explain model/config.json   how a model rotates, in plain words
  {_PROGRAM} info                        what was built and what is in use
  {_PROGRAM} bench --filter rotary       compare rotary with its peers and the memory limit

`{_PROGRAM} COMMAND --help` explains a command.
"""
_DEMO = """\
Reads a text through a transformers Llama (its own class, random weights from a fixed seed, a token
is a byte), once as transformers rotates queries and keys and once after posenc_native.hf.patch.
Prints a table and saves it as a picture: how far the logits differ, whether the greedy continuation
is the same, how long rotary takes in prefill and decode, and how exact cos and sin are.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: those after the program's name; None for ``sys.argv``.

    Returns:
        The exit status: 0, or 1 after an error, which is one line on stderr; of bench in another
        environment, its own. A command line that makes no sense exits with 2, as argparse does.
    """
    parser = _parser()
    # bench has options of its own, those of the benchmarks.
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "bench":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        if options.command == "demo":
            demo.run(options.text, options.out, options.tokens, options.quick)
        elif options.command == "explain":
            _explain(options.config)
        elif options.command == "info":
            backend.show_config()
        else:
            return _bench(rest)
    except (demo.DemoError, _CommandError) as error:
        print(f"{_PROGRAM} {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{_PROGRAM} {options.command}: interrupted", file=sys.stderr)
        return 130
    return 0


class _CommandError(Exception):
    """One line for the user."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Exact positional encodings: see them at work, see what was built.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"posenc_native {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    show = commands.add_parser(
        "demo",
        help="run a real model on real text, rotated by transformers and by this library",
        description=_DEMO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    show.add_argument("--text", type=Path, metavar="FILE", help="a text to read; 4096 bytes of it")
    show.add_argument(
        "--out",
        type=Path,
        metavar="PNG",
        default=Path("posenc_native_demo.png"),
        help="where the picture goes (default: %(default)s)",
    )
    show.add_argument(
        "--tokens",
        type=_at_least_one,
        metavar="N",
        default=32,
        help="length of the greedy continuation (default: %(default)s)",
    )
    show.add_argument(
        "--quick", action="store_true", help="on 256 bytes, in seconds; its times mean little"
    )
    words = commands.add_parser(
        "explain",
        help="say in plain words how a model rotates, from its config.json",
        description="Reads a Hugging Face config.json and says how the model encodes positions by "
        "rotation, and where engines are known to differ on it. Nothing is downloaded.",
    )
    words.add_argument("config", type=Path, metavar="PATH", help="a config.json, or its folder")
    commands.add_parser(
        "info",
        help="print the version, what was built, and what is in use",
        description="Prints the version, SIMD targets, threads, torch operators and backend.",
    )
    commands.add_parser(
        "bench",
        help="compare with other libraries and the limits of memory, in a working copy of the "
        "repository; what is missing is installed into its own virtual environment",
        description="Runs the benchmarks of the repository with the options given.",
        add_help=False,
    )
    return parser


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value


def _explain(path: Path) -> None:
    try:
        text = str(explain(path))
    except OSError as error:
        raise _CommandError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, TypeError) as error:
        raise _CommandError(str(error)) from None
    print(text)


def _bench(arguments: list[str]) -> int:
    """Run the benchmarks here if everything is there, else in the repository's environment."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "benchmarks" / "__main__.py").is_file():
        raise _CommandError("the benchmarks are part of the repository, which is not here")
    if missing := _missing(root / "requirements" / "bench.txt"):
        environment = root / os.environ.get("VENV", ".venv")
        print(f"{', '.join(missing)}: not in {sys.prefix}; setting up {environment}", flush=True)
        if subprocess.run(
            [root / "scripts" / "setup.sh", "bench", "package"], check=False
        ).returncode:
            raise _CommandError("cannot set up what is needed: see above")
        command = [str(environment / "bin" / "python"), "-m", "benchmarks", *arguments]
        return subprocess.run(command, cwd=root, check=False).returncode
    sys.path.insert(0, str(root))
    importlib.import_module("benchmarks.__main__").main(arguments)
    return 0


def _missing(requirements: Path) -> list[str]:
    """The packages of a file of requirements that this interpreter does not have, and torch."""
    lines = requirements.read_text(encoding="utf-8").splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    return [name for name in ("torch", *names) if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
