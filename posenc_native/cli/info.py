"""info: what was built and what is in use."""

from __future__ import annotations

import argparse
import json
from typing import Any

from posenc_native import configuration

from . import terminal
from .parser import add_command

_DESCRIPTION = """\
Prints the version, the SIMD targets that were compiled and the one in use,
threads, torch operators, CUDA kernels, and which optional packages are there:
what a bug report should begin with. Imports torch if it is installed, to ask
for the driver."""

_EXAMPLES = """\

--json
| grep SIMD"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "info",
        _run,
        "print the version, what was built, and what is in use",
        _DESCRIPTION,
        _EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object, for programs")


def _run(options: argparse.Namespace) -> None:
    entries = configuration.configuration()
    if options.json:
        print(json.dumps(entries, indent=2))
    else:
        terminal.show_table(("", ""), list(entries.items()))
