"""`python -m benchmarks.studies.packed_qkv`: q, k and v out of one matrix, in training.

4,096 tokens, 32 + 2 x 8 heads of 128, on one thread, without a norm and with one:

    split_qkv   one call; its gradients are written to one matrix
    by hand     views of the matrix, a call for q and k, a copy of v; autograd joins the gradients
    clone       of the matrix

Times are medians of rounds in which all take turns, in milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from statistics import median
from typing import Any

import torch
from torch import Tensor

import posenc_native as pn
from benchmarks import command
from benchmarks.figures.report import lined_up
from benchmarks.peers.contestants import BASE, HEAD_DIM

_HEADS, _KV_HEADS = 32, 8
_ROPE = pn.Rotary(HEAD_DIM, base=BASE, layout="sbhd")


def _by_hand(matrix: Tensor, grouped: bool, weight: Tensor | None) -> tuple[Tensor, ...]:
    heads = matrix.unflatten(-1, (-1, HEAD_DIM))
    if grouped:
        groups = heads.unflatten(-2, (_KV_HEADS, -1)).split((_HEADS // _KV_HEADS, 1, 1), -2)
        q, k, v = (x.flatten(-3, -2) for x in groups)
    else:
        q, k, v = heads.split((_HEADS, _KV_HEADS, _KV_HEADS), -2)
    if weight is None:
        q, k = _ROPE(q, k)
    else:
        q, k = _ROPE.norm(q, k, q_weight=weight, k_weight=weight)
    return q, k, v.contiguous()


def _split(matrix: Tensor, grouped: bool, weight: Tensor | None) -> tuple[Tensor, ...]:
    weights: dict[str, Any] = {"q_weight": weight, "k_weight": weight}
    return _ROPE.split_qkv(matrix, heads=_HEADS, kv_heads=_KV_HEADS, grouped=grouped, **weights)


def _times(split: Callable[..., Any], *call: Any, grads: list[Tensor]) -> tuple[float, float]:
    start = time.perf_counter()
    results = split(*call)
    between = time.perf_counter()
    torch.autograd.grad(results, call[0], grads)
    return between - start, time.perf_counter() - between


def _clone(matrix: Tensor) -> float:
    start = time.perf_counter()
    matrix.detach().clone()
    return time.perf_counter() - start


def main(tokens: int = 4096, rounds: int = 9) -> None:
    """Print the table.

    Args:
        tokens: of the sequence.
        rounds: of which the medians are.
    """
    torch.set_num_threads(1)
    pn.set_num_threads(1)
    rows = [["", "split_qkv", "by hand", "clone"]]
    weights = {"": None, ", norm": torch.ones(HEAD_DIM)}
    for dtype, (norm, weight), grouped in product(
        (torch.bfloat16, torch.float32), weights.items(), (False, True)
    ):
        x = torch.randn(tokens, 1, (_HEADS + 2 * _KV_HEADS) * HEAD_DIM).to(dtype).requires_grad_()
        grads = [torch.randn(tokens, 1, n, HEAD_DIM).to(dtype)
                 for n in (_HEADS, _KV_HEADS, _KV_HEADS)]  # fmt: skip
        found = [
            [*_times(_split, x, grouped, weight, grads=grads),
             *_times(_by_hand, x, grouped, weight, grads=grads), _clone(x)]
            for _ in range(rounds + 1)
        ]  # fmt: skip
        split, back, by_hand, back_by_hand, clone = (
            f"{median(times) * 1e3:.1f}" for times in zip(*found[1:], strict=True)
        )
        name = f"{str(dtype)[6:]}, {'grouped' if grouped else 'stacked'}{norm}"
        rows.append([f"{name}, forward", split, by_hand, clone])
        rows.append([f"{name}, backward", back, back_by_hand, clone])
    print("\n".join(lined_up(rows, words=1)))


if __name__ == "__main__":
    command.run(main)
