"""info: what was built and what is in use."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from posenc_native import configuration
from posenc_native.engines.backend import torch_library
from posenc_native.engines.late import torch_operations
from posenc_native.sinusoids.tables import sinusoidal

from . import terminal
from .parser import add_command

_SAME = "a table is that of NumPy, bit for bit"

_DESCRIPTION = """\
Prints the version, the SIMD targets that were compiled and the one in use,
threads, torch operators, CUDA kernels, and which optional packages are there:
what a bug report should begin with. torch takes seconds to import, so what
only it can tell is asked with --check."""

_EXAMPLES = """\

--check
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
    parser.add_argument(
        "--check",
        action="store_true",
        help="import torch, ask for the driver, and compute a table by its operators on each "
        "device that they serve; exit status 1 if it is not that of NumPy, bit for bit",
    )


def _run(options: argparse.Namespace) -> int:
    entries = configuration.configuration(ask_torch=options.check)
    failed = []
    if options.check:
        tried = dict(_tried())
        failed = [name for name, said in tried.items() if said != _SAME]
        entries.update(tried)
    else:
        entries["not tried"] = "the operators: --check imports torch and tries them"
    if options.json:
        print(json.dumps(entries, indent=2))
    else:
        terminal.show_table(("", ""), list(entries.items()))
    return 1 if failed else 0


def _tried() -> Iterator[tuple[str, str]]:
    """What became of a table of each device that the operators serve."""
    if torch_library() is None:
        return
    try:
        torch_operations()
        import torch
    except (ImportError, OSError) as error:  # no torch here, or one that is too old
        yield "tried", str(error)
        return
    positions, dim = np.array([0, 1, 1000, 2**40]), 64
    wanted = sinusoidal(positions, dim)
    for device in ("cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))):
        try:
            found = sinusoidal(torch.tensor(positions, device=device), dim).cpu().numpy()
            said = _SAME if np.array_equal(found, wanted) else "a table is not that of NumPy"
        except RuntimeError as error:
            said = str(error)
        yield f"tried on {device}", said
