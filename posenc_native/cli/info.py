"""info: print the features of this build and those in use."""

from __future__ import annotations

from collections.abc import Iterator
from json import dumps

import numpy as np

from posenc_native import vllm
from posenc_native.encodings.sinusoids.tables import sinusoidal
from posenc_native.engines import configuration
from posenc_native.engines.backend import torch_library
from posenc_native.engines.late import torch_operations

from .terminal import show_table

_SAME = "a table matches NumPy's, bit for bit"


def info(json: bool = False, check: bool = False) -> int:
    """Print the version, what was built, and what is in use.

    Prints the version, the SIMD targets that were compiled and the one in use,
    threads, torch operators, CUDA kernels, which optional packages are installed,
    and whether vLLM uses the plugin. Begin a bug report with this output.
    Importing torch takes seconds, so entries that need torch are filled in only
    with --check.

    Args:
        json: print one JSON object, for programs: numbers are numbers, lists are lists
        check: import torch, query the driver, and compute a table with its operators on each
            device that they support; exit status 1 if one does not match NumPy's, bit for bit

    Examples:
        $
        $ --check
        $ --json
        $ | grep SIMD
    """
    entries = configuration.configuration(ask_torch=check)
    entries["plugin for vLLM"] = vllm.state()
    tried = dict(_tried()) if check else {}
    untried = {} if check else {"not tried": "the operators; --check imports torch and tries them"}
    entries |= tried | untried
    if json:
        print(dumps(entries, indent=2))
    else:
        rows = [(name, configuration.text_of(value)) for name, value in entries.items()]
        show_table(("", ""), rows)
    return 1 if {*tried.values()} - {_SAME} else 0


def _tried() -> Iterator[tuple[str, str]]:
    """The outcome of computing a table on each device that the operators support."""
    if torch_library() is None:
        return
    try:
        torch_operations()
        import torch
    except (ImportError, OSError) as error:  # torch is missing or too old
        yield "tried", str(error)
        return
    positions, dim = np.array([0, 1, 1000, 2**40]), 64
    wanted = sinusoidal(positions, dim)
    for device in ("cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))):
        try:
            table = sinusoidal(torch.tensor(positions, device=device), dim).cpu().numpy()
            verdict = _SAME if np.array_equal(table, wanted) else "a table differs from NumPy's"
        except RuntimeError as error:
            verdict = str(error)
        yield f"tried on {device}", verdict
