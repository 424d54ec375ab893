"""`python -m benchmarks.studies.resampling`: `resample_positions` beside torch's interpolate.

A table of 37 x 37 positions of 1024 numbers, float32, to other sizes, one thread. torch gets the
table as an image [1, 1024, 37, 37], a view. Milliseconds: medians of rounds in which both take
turns.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch

import posenc_native as pn
from benchmarks import command
from benchmarks.clock import turns
from benchmarks.figures.report import lined_up

_OLD, _WIDTH, _SIZES = 37, 1024, (64, 128)
_OF_TORCH = {"cubic": "bicubic", "linear": "bilinear"}


def _calls(size: int, interpolation: str, antialias: bool) -> dict[str, Callable[[], object]]:
    table = torch.randn(_OLD * _OLD, _WIDTH)
    image = table.view(1, _OLD, _OLD, _WIDTH).permute(0, 3, 1, 2)
    return {
        "ours": lambda: pn.absolute.resample_positions(
            table, (size, size), interpolation=interpolation, antialias=antialias
        ),
        "torch": lambda: torch.nn.functional.interpolate(
            image, (size, size), mode=_OF_TORCH[interpolation], antialias=antialias
        ),
    }


def main(rounds: int = 15) -> None:
    """Print the table.

    Args:
        rounds: of which the medians are.
    """
    torch.set_num_threads(1)
    rows = [["to", "interpolation", "antialias", "ours", "torch", "ratio"]]
    with torch.inference_mode():
        for size, kind, antialias in itertools.product(_SIZES, _OF_TORCH, (True, False)):
            calls = _calls(size, kind, antialias)
            found = turns.medians(
                calls, dict.fromkeys(calls, 1), rounds, lambda: (time.perf_counter(),)
            )
            ours, theirs = found["ours"][0] * 1e3, found["torch"][0] * 1e3
            shown = f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}"
            rows.append([str(size), kind, str(antialias), *shown])
    print("\n".join(lined_up(rows, words=3)))


if __name__ == "__main__":
    command.run(main)
