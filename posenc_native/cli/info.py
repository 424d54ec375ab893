"""info: what was built and what is in use."""

from __future__ import annotations

from collections.abc import Iterator
from json import dumps

import numpy as np

from posenc_native import configuration
from posenc_native.engines.backend import torch_library
from posenc_native.engines.late import torch_operations
from posenc_native.sinusoids.tables import sinusoidal

from .terminal import show_table

_SAME = "a table is that of NumPy, bit for bit"


def info(json: bool = False, check: bool = False) -> int:
    """Print the version, what was built, and what is in use.

    Prints the version, the SIMD targets that were compiled and the one in use,
    threads, torch operators, CUDA kernels, and which optional packages are there:
    what a bug report should begin with. torch takes seconds to import, so what
    only it can tell is asked with --check.

    Args:
        json: as one JSON object, for programs: numbers are numbers, lists are lists
        check: import torch, ask for the driver, and compute a table by its operators on each
            device that they serve; exit status 1 if it is not that of NumPy, bit for bit

    Examples:
        $
        $ --check
        $ --json
        $ | grep SIMD
    """
    entries = configuration.configuration(ask_torch=check)
    tried = dict(_tried()) if check else {}
    untried = {} if check else {"not tried": "the operators: --check imports torch and tries them"}
    entries |= tried | untried
    if json:
        print(dumps(entries, indent=2))
    else:
        rows = [(name, configuration.text_of(value)) for name, value in entries.items()]
        show_table(("", ""), rows)
    return 1 if {*tried.values()} - {_SAME} else 0


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
