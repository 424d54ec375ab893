"""`python -m benchmarks.studies.scaled_queries`: a factor of queries by position, in the pass.

A `Rotary` with a query_scale beside one without, and beside one without whose queries are
multiplied after the call, as models do: a token of 8 + 2 heads of 128, and a prompt of 4,096 tokens
of 32 + 8 heads past the trained length, in place, one thread. In microseconds, and in multiples of
the call without. Medians of rounds in which all take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import posenc_native as pn
from benchmarks import command
from benchmarks.clock import turns
from benchmarks.figures.report import lined_up
from benchmarks.peers.contestants import BASE, HEAD_DIM

_FIRST = 20_000
_SCALE = {"beta": 0.1, "original_max_position_embeddings": 16_384}


def _calls(dtype: torch.dtype, tokens: int, heads: int) -> dict[str, Callable[[], object]]:
    plain = pn.Rotary(HEAD_DIM, base=BASE, layout="bshd")
    scaled = pn.Rotary(HEAD_DIM, base=BASE, layout="bshd", query_scale=_SCALE)
    q, k = (torch.randn(1, tokens, n, HEAD_DIM).to(dtype) for n in (heads, heads // 4))
    weight = torch.ones(HEAD_DIM, dtype=dtype)
    positions: Any = _FIRST if tokens == 1 else torch.arange(_FIRST, _FIRST + tokens)
    factors = scaled.query_factors(torch.arange(_FIRST, _FIRST + tokens))[:, None, None]

    def product_after() -> object:
        return plain(q, k, positions, inplace=True)[0].mul_(factors)

    return {
        "rotation": lambda: plain(q, k, positions, inplace=True),
        "scaled": lambda: scaled(q, k, positions, inplace=True),
        "product after, factors ready": product_after,
        "norm": lambda: plain.norm(q, k, positions, q_weight=weight, inplace=True),
        "norm, scaled": lambda: scaled.norm(q, k, positions, q_weight=weight, inplace=True),
    }


def main(rounds: int = 15) -> None:
    """Print the table.

    Args:
        rounds: of which the medians are.
    """
    torch.set_num_threads(1)
    pn.set_num_threads(1)
    rows = [["dtype", "tokens", "call", "us", "of the rotation"]]
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            for tokens, heads, count in ((1, 8, 2000), (4096, 32, 1)):
                calls = _calls(dtype, tokens, heads)
                found = turns.medians(
                    calls, dict.fromkeys(calls, count), rounds, lambda: (time.perf_counter(),)
                )
                own = found["rotation"][0]
                rows += [
                    [str(dtype).removeprefix("torch."), f"{tokens:,}", name, f"{t * 1e6:,.1f}",
                     f"{t / own:.2f}"]
                    for name, (t,) in found.items()
                ]  # fmt: skip
    print("\n".join(lined_up(rows, words=3)))


if __name__ == "__main__":
    command.run(main)
