"""Workers of a DataLoader, and the cores that a process may run on."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os

import numpy as np
import pytest
from interpreters import output_of, program
from targets import NEEDS_NATIVE

import posenc_native as pn

# --- Workers of a DataLoader: this file is their program, which a spawned worker imports again

DIM = 64
ROWS = 20000


def encodings(start: int) -> list[str]:
    """Digests of a table of NumPy's and of one of torch's, and of rotations of both."""
    import torch

    positions = np.arange(start, start + ROWS)
    inv_freq = pn.rotary.rotary_frequencies(DIM)[0]
    table = pn.sinusoidal(positions, DIM)
    x = table.reshape(1, 1, ROWS, DIM)
    tensor, frequencies = torch.from_numpy(x), torch.from_numpy(inv_freq)
    results = [
        table,
        pn.apply_rotary(x, positions, inv_freq),
        pn.sinusoidal(torch.from_numpy(positions), DIM).numpy(),
        pn.apply_rotary(tensor, torch.from_numpy(positions), frequencies).numpy(),
    ]
    return [hashlib.sha256(result.tobytes()).hexdigest() for result in results]


class Encodings:
    """What torch.utils.data calls a map-style dataset."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, item: int) -> tuple[int, list[str]]:
        pn.set_num_threads(2)
        return os.getpid(), encodings(item * 10**6)


def load() -> None:
    """Print whether workers get what the parent gets: forked ones, then one that is spawned."""
    import torch

    torch.set_num_threads(2)
    pn.set_num_threads(2)
    dataset = Encodings()
    wanted = [encodings(item * 10**6) for item in range(len(dataset))]
    found = []
    for start_method, count in (("fork", 2), ("spawn", 1)):
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=None, num_workers=count, timeout=100,
            multiprocessing_context=start_method,
        )  # fmt: skip
        loaded = list(loader)
        workers = {worker for worker, _ in loaded} - {os.getpid()}
        again = encodings(0)  # the parent, beside its workers
        digests = [digests for _, digests in loaded]
        found.append([len(workers) == count, digests == wanted, again == wanted[0]])
    print(json.dumps(found))  # noqa: T201


@NEEDS_NATIVE
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_workers_of_a_data_loader():
    assert json.loads(program(__file__)) == [[True, True, True]] * 2


# --- The cores that a process may run on

NEEDS_AFFINITY = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="only Linux binds a process to cores"
)
ONE_CORE = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
TABLE = """
import hashlib
import posenc_native as pn
{before_the_call}
print(pn.get_num_threads(), hashlib.sha256(pn.sinusoidal(100000, 64)).hexdigest())
"""


@NEEDS_NATIVE
@NEEDS_AFFINITY
def test_one_core_before_the_import_means_one_thread():
    count, digest = output_of(ONE_CORE + TABLE.format(before_the_call="")).split()
    assert count == "1"
    assert digest == hashlib.sha256(pn.sinusoidal(100000, 64)).hexdigest()


@NEEDS_NATIVE
@NEEDS_AFFINITY
@pytest.mark.parametrize("count", [1, 2, 5])
def test_one_core_after_the_import_gives_the_same_bits(count):
    """Threads share the core then: slower, and as right."""
    narrowed = f"pn.set_num_threads({count})\n{ONE_CORE}"
    result = output_of(TABLE.format(before_the_call=narrowed)).split()
    assert result == [str(count), hashlib.sha256(pn.sinusoidal(100000, 64)).hexdigest()]


if __name__ == "__main__":
    load()
