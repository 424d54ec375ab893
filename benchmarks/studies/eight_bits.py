"""`python -m benchmarks.studies.eight_bits`: appends to caches of 8 bits, in and out of cache.

128 and 16,384 packed tokens of 1 + 8 + 8 heads of 128 into a pool, one thread: into a cache of the
dtype of k, and into caches of 8 bits, with a scale and with scales that are made. In nanoseconds a
row of keys or values, in multiples of the first, and of a copy of as many bytes as keys and values
are read and written with. Medians of rounds in which all take turns.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch

import posenc_native as pn
from benchmarks import command
from benchmarks.clock import turns
from benchmarks.figures.report import lined_up
from benchmarks.peers.contestants import BASE, HEAD_DIM

_HEADS = 8
_CALLS = {128: 200, 16_384: 1}  # in a turn, by the number of tokens
_FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _calls(dtype: torch.dtype, tokens: int) -> dict[str, Callable[[], object]]:
    rope = pn.Rotary(HEAD_DIM, base=BASE, layout="thd")
    q, k, v = (torch.randn(tokens, heads, HEAD_DIM).to(dtype) for heads in (1, _HEADS, _HEADS))
    positions = torch.arange(tokens)

    def append(kept: torch.dtype, **options: Any) -> Callable[[], object]:
        keys, values = (torch.zeros(k.shape, dtype=kept) for _ in "kv")
        return lambda: rope.append(
            q, k, v, positions, keys, values, positions, cache_layout="shd", inplace=True,
            **options,
        )  # fmt: skip

    scales = torch.zeros(2, tokens, _HEADS)
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
    rows = [["tokens", "from", "to", "ns a row", "of its own", "of a copy"]]
    with torch.inference_mode():
        for tokens, dtype in itertools.product(_CALLS, (torch.bfloat16, torch.float32)):
            calls = _calls(dtype, tokens)
            found = turns.medians(
                calls, dict.fromkeys(calls, _CALLS[tokens]), rounds, lambda: (time.perf_counter(),)
            )
            own, copy = found[_name(dtype)][0], found["copy"][0]
            for name, (t,) in found.items():
                ns = t / (2 * _HEADS * tokens) * 1e9
                ratios = f"{t / own:.2f}", f"{t / copy:.2f}"
                rows.append([str(tokens), _name(dtype), name, f"{ns:.0f}", *ratios])
    print("\n".join(lined_up(rows, words=3)))


if __name__ == "__main__":
    command.run(main)
