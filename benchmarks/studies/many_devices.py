"""`python -m benchmarks.studies.many_devices`: what it costs to take DTensors apart.

CPU time of a small call on DTensors beside the same call on what of them is local, on one process
and on each of two, and how many collectives a call makes: none where batch, heads or tokens are
cut. Processes of one machine share its memory, so nothing here says how anything scales.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import posenc_native as pn
from benchmarks import command
from benchmarks.clock import turns
from benchmarks.figures import report
from benchmarks.peers.contestants import BASE, HEAD_DIM

# Each is cut evenly by two; a call takes microseconds.
BATCH, Q_HEADS, K_HEADS, TOKENS = 2, 8, 2, 16
ROUNDS, CALLS = 31, 40


@dataclass(frozen=True)
class Cost:
    """A call with tensors that are cut along one axis; times are of a process, in seconds."""

    operation: str
    cut: str
    processes: int
    local: float
    distributed: float
    of_torch: float  # torch.neg on a DTensor: what torch itself takes
    collectives: int


def _calls() -> dict[str, tuple[dict[str, Tensor], str, Callable[..., Any]]]:
    """By name: the tensors that are cut, the letters of their axes, the call."""
    inv_freq = torch.from_numpy(pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0])
    q, k = (torch.randn(BATCH, heads, TOKENS, HEAD_DIM) for heads in (Q_HEADS, K_HEADS))
    both = {"q": q, "k": k}
    scores = torch.randn(BATCH, Q_HEADS, TOKENS, TOKENS)
    diagonals = torch.randn(Q_HEADS, 2 * TOKENS - 1)

    def with_gradient(q: Tensor, k: Tensor) -> Any:
        both = q.detach().requires_grad_(), k.detach().requires_grad_()
        results = pn.apply_rotary_qk(*both, None, inv_freq)
        return torch.autograd.grad(results, both, results)

    def add_bias(scores: Tensor) -> Tensor:
        return pn.add_toeplitz_bias(scores, diagonals[: scores.shape[1]], origin=TOKENS - 1)

    return {
        "apply_rotary_qk": (both, "bhsd", lambda q, k: pn.apply_rotary_qk(q, k, None, inv_freq)),
        "apply_rotary_qk, in place": (
            both, "bhsd", lambda q, k: pn.apply_rotary_qk(q, k, None, inv_freq, inplace=True)
        ),
        "apply_rotary_qk, forward and backward": (both, "bhsd", with_gradient),
        "norm_rotary_qk": (both, "bhsd", lambda q, k: pn.norm_rotary_qk(q, k, None, inv_freq)),
        "add_toeplitz_bias": ({"scores": scores}, "bhqk", add_bias),
        "add_sinusoidal": (
            {"x": torch.randn(BATCH, TOKENS, HEAD_DIM)}, "bsd", lambda x: pn.add_sinusoidal(x)
        ),
    }  # fmt: skip


def _measure(rank: int, processes: int, place: str, rounds: int) -> None:
    """All costs, on one rank; the first writes its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{place}/store", rank=rank, world_size=processes
    )
    mesh = init_device_mesh("cpu", (processes,))
    costs = []
    for name, (tensors, letters, call) in _calls().items():
        for axis, letter in enumerate(letters):
            in_place = name.endswith("in place")
            if in_place and letter == "d":
                continue  # refused
            cut: dict[str, DTensor] = {
                key: distribute_tensor(x, mesh, [Shard(axis)]) for key, x in tensors.items()
            }
            # A head that is cut is gathered: each process computes with all of it.
            parts = tensors if letter == "d" else {key: x.to_local() for key, x in cut.items()}
            local = {key: x.clone() for key, x in parts.items()}
            first = next(iter(cut.values()))
            with CommDebugMode() as communicated:
                call(**cut)
            runs = {
                "local": functools.partial(call, **local),
                "distributed": functools.partial(call, **cut),
                "of_torch": functools.partial(torch.neg, first),
            }
            number = dict.fromkeys(runs, CALLS)
            found = turns.medians(runs, number, rounds, lambda: (time.process_time(),))
            times = {way: seconds for way, (seconds,) in found.items()}
            collectives = communicated.get_total_counts()
            costs.append(Cost(name, letter, processes, **times, collectives=collectives))
    if rank == 0:
        rows = json.dumps([asdict(cost) for cost in costs])
        Path(place, "costs").write_text(rows, encoding="utf-8")
    torch.distributed.destroy_process_group()


def costs(rounds: int = ROUNDS) -> list[Cost]:
    """On one process, and on the first of two.

    Raises:
        RuntimeError: what a process raised.
    """
    found: list[Cost] = []
    for processes in (1, 2):
        with tempfile.TemporaryDirectory() as place:
            torch.multiprocessing.spawn(_measure, (processes, place, rounds), processes)
            rows = json.loads(Path(place, "costs").read_text(encoding="utf-8"))
            found += [Cost(**row) for row in rows]
    return found


def main(rounds: int = ROUNDS) -> None:
    """Print the table.

    Args:
        rounds: how often each call has its turn (default: 31)
    """
    print(report.many_devices_text([asdict(cost) for cost in costs(rounds)]))


if __name__ == "__main__":
    command.run(main)
