"""`python -m benchmarks.studies.host`: what the host takes for a call, by the way that it takes.

One token, 32 + 8 heads of 128 in float32, on one thread, with frequencies and with a Rotary:

    door        a call as users make it, on the CPU, its kernels included
    elsewhere   the same with the CPU in the place of a GPU: no values are looked at, memory and
                kernels are torch's. On a GPU a launch takes the place of the kernel
    general     the path that takes what the door leaves: tensors that torch follows, for instance
    backward    the gradients of q and k, with the call before it; `autograd`: of a Function that
                copies q and k

Then a rotation by tables of 4 + 1 heads, of one token to thousands, from torch and from NumPy: the
difference is what torch costs. Times are medians of rounds in which all take turns, in
microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import posenc_native as pn
from benchmarks import command
from benchmarks.clock import turns
from benchmarks.figures.report import lined_up
from benchmarks.peers.contestants import BASE, HEAD_DIM
from posenc_native.engines import backend

_TOKENS = (1, 16, 64, 256, 408, 416, 512, 640, 1024, 4096)
Call = Callable[[], object]


def _calls() -> dict[str, Call]:
    rope = pn.Rotary(HEAD_DIM, base=BASE, layout="bshd")
    q, k, v = (torch.randn(1, 1, heads, HEAD_DIM) for heads in (32, 8, 8))
    keys, values = torch.zeros(2, 1, 8, 64, HEAD_DIM)
    weight, at = torch.ones(HEAD_DIM), torch.tensor([7])
    weights: dict[str, Any] = {"q_weight": weight, "k_weight": weight, "inplace": True}
    angles = {"frequencies": torch.from_numpy(rope.inv_freq.copy()), "Rotary": rope}
    calls: dict[str, Call] = {"torch.neg": lambda: torch.neg(q)}
    for name, source in angles.items():
        calls |= {
            f"apply_rotary_qk, {name}": lambda source=source: pn.apply_rotary_qk(
                q, k, at, source, layout="bshd", inplace=True
            ),
            f"norm_rotary_qk, {name}": lambda source=source: pn.norm_rotary_qk(
                q, k, at, source, layout="bshd", **weights
            ),
            f"rotary_append with a norm, {name}": lambda source=source: pn.rotary_append(
                q, k, v, at, source, keys, values, at, layout="bshd", **weights
            ),
        }
    return calls


class _Copies(torch.autograd.Function):
    """What torch takes for a Function of q and k, without a rotation."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
        return q.clone(), k.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads


def _gradients() -> dict[str, Call]:
    rope = pn.Rotary(HEAD_DIM, base=BASE, layout="bshd")
    inputs = [torch.randn(1, 1, heads, HEAD_DIM, requires_grad=True) for heads in (32, 8)]
    grads, at = [torch.randn_like(x) for x in inputs], torch.tensor([7])

    def step(forward: Callable[..., Any]) -> object:
        return torch.autograd.grad(forward(*inputs), inputs, grads)

    return {
        "backward, Rotary": lambda: step(lambda q, k: rope(q, k, at)),
        "backward, autograd": lambda: step(_Copies.apply),
    }


def _by_tokens() -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for tokens in _TOKENS:
        for library, convert in (("torch", torch.from_numpy), ("NumPy", np.copy)):
            q, k = (convert(np.ones((1, tokens, h, HEAD_DIM), np.float32)) for h in (4, 1))
            tables = pn.Tables(*pn.Rotary(HEAD_DIM).tables(convert(np.arange(tokens))))
            calls[f"{tokens}, {library}"] = lambda q=q, k=k, tables=tables: pn.apply_rotary_qk(
                q, k, None, tables, layout="bshd", inplace=True
            )
    return calls


@contextmanager
def _elsewhere() -> Iterator[None]:
    backend.native.stand_in(True)
    try:
        yield
    finally:
        backend.native.stand_in(False)


@contextmanager
def _general() -> Iterator[None]:
    door, backend.door = backend.door, backend.ClosedDoor()
    try:
        yield
    finally:
        backend.door = door


def _microseconds(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    for call in calls.values():
        call()
    counts = {name: 20 if ", " in name and name[0].isdigit() else 200 for name in calls}
    found = turns.medians(calls, counts, rounds, lambda: (time.perf_counter(),))
    return {name: of[0] * 1e6 for name, of in found.items()}


def main(rounds: int = 31) -> None:
    """Print the tables.

    Args:
        rounds: of which the medians are.
    """
    if backend.native is None:
        raise command.Refused("the native module is not built")
    torch.set_num_threads(1)
    pn.set_num_threads(1)
    with torch.inference_mode():
        calls = _calls()
        ways = {"door": _microseconds(calls, rounds)}
        for name, way in (("elsewhere", _elsewhere), ("general", _general)):
            with way():
                ways[name] = _microseconds(calls, rounds)
        by_tokens = _microseconds(_by_tokens(), rounds)
    rows = [["", *ways]]
    rows += [[name, *(f"{way[name]:.2f}" for way in ways.values())] for name in calls]
    rows += [[name, f"{time:.1f}"] for name, time in _microseconds(_gradients(), rounds).items()]
    print("\n".join(lined_up(rows, words=1)))
    rows = [["tokens", "torch", "NumPy"]]
    rows += [
        [f"{tokens}", *(f"{by_tokens[f'{tokens}, {library}']:.1f}" for library in rows[0][1:])]
        for tokens in _TOKENS
    ]
    print()
    print("\n".join(lined_up(rows, words=1)))


if __name__ == "__main__":
    command.run(main)
