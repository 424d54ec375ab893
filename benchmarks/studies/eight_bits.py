"""`python -m benchmarks.studies.eight_bits`: appends to caches of 8 bits, out of cache.

16,384 packed tokens of 1 + 8 + 8 heads of 128 into a pool, one thread: into a cache of the dtype of
k, and into caches of 8 bits, with a scale and with scales that are made. In milliseconds, in
multiples of the first, and of a copy of as many bytes as keys and values are read and written with.
Medians of rounds in which all take turns.
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

_TOKENS, _HEADS = 16_384, 8
_FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _calls(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    rope = pn.Rotary(HEAD_DIM, base=BASE, layout="thd")
    q, k, v = (torch.randn(_TOKENS, heads, HEAD_DIM).to(dtype) for heads in (1, _HEADS, _HEADS))
    positions = torch.arange(_TOKENS)

    def append(kept: torch.dtype, **options: Any) -> Callable[[], object]:
        keys, values = (torch.zeros(k.shape, dtype=kept) for _ in "kv")
        return lambda: rope.append(
            q, k, v, positions, keys, values, positions, cache_layout="shd", inplace=True,
            **options,
        )  # fmt: skip

    scales = torch.zeros(2, _TOKENS, _HEADS)
    calls = {_name(dtype): append(dtype)}
    calls |= {_name(kept): append(kept, k_scale=0.3, v_scale=0.3) for kept in _FORMATS}
    calls["float8_e4m3fn, made"] = append(torch.float8_e4m3fn, scales=tuple(scales))
    numbers = torch.zeros(k.numel() * (dtype.itemsize + 1), dtype=torch.uint8)
    room = torch.zeros_like(numbers)
    calls["copy"] = lambda: room.copy_(numbers)
    return calls


def main(rounds: int = 15) -> None:
    """Print the table.

    Args:
        rounds: of which the medians are.
    """
    torch.set_num_threads(1)
    pn.set_num_threads(1)
    rows = [["from", "to", "ms", "of its own", "of a copy"]]
    with torch.inference_mode():
        for dtype in (torch.bfloat16, torch.float32):
            calls = _calls(dtype)
            found = turns.medians(
                calls, dict.fromkeys(calls, 1), rounds, lambda: (time.perf_counter(),)
            )
            own, copy = found[_name(dtype)][0], found["copy"][0]
            rows += [
                [_name(dtype), name, f"{t * 1e3:.2f}", f"{t / own:.2f}", f"{t / copy:.2f}"]
                for name, (t,) in found.items()
            ]
    print("\n".join(lined_up(rows, words=2)))


if __name__ == "__main__":
    command.run(main)
