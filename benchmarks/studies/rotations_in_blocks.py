"""`python -m benchmarks.studies.rotations_in_blocks`: what rotating takes in a block of a model.

A block of benchmarks/cases/blocks.py runs up to the product of attention, before `hf.patch` and
after it, in turn; what its rotary functions take is added up. Then whole blocks run, unpatched: of
these it is the share. The figures are medians in milliseconds, on one thread.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import posenc_native as pn
from benchmarks import command
from benchmarks.cases import blocks
from benchmarks.figures.report import lined_up
from benchmarks.peers.contestants import Options
from posenc_native.hf.learned.rotations import LearnedRotation

_THEIRS = ("apply_rotary_emb", "apply_rotary_emb_qwen", "apply_rot_embed_cat")
_TIMES = 5


class _Attention(Exception):
    """The block has come to attention."""


def _spent_before_attention(run: Callable[[], object], functions: Sequence[Any]) -> float:
    """Seconds in functions of these codes until attention begins."""
    spent, begun = 0.0, 0.0

    def follow(frame: Any, event: str, _: Any) -> None:
        nonlocal spent, begun
        if frame.f_code in functions or frame.f_code.co_name in functions:
            if event == "call":
                begun = time.perf_counter()
            elif event == "return":
                spent += time.perf_counter() - begun

    def attention(*_: Any, **__: Any) -> Any:
        raise _Attention

    own = nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention = attention  # type: ignore[assignment]
    sys.setprofile(follow)
    try:
        run()
    except _Attention:
        return spent
    finally:
        sys.setprofile(None)
        nn.functional.scaled_dot_product_attention = own
    raise RuntimeError("a block without attention")


def _row(name: str, build: Callable[[], Any], quick: bool) -> list[str]:
    case = build()
    rows = {each.name: each.run for each in case.contestants}
    codes = {"patched": [LearnedRotation.__call__.__code__], "unpatched": _THEIRS}
    seconds: dict[str, list[float]] = {each: [] for each in codes}
    for i in range((1 if quick else _TIMES) + 1):
        for each, functions in codes.items():
            spent = _spent_before_attention(lambda each=each: rows[each](None), functions)  # type: ignore[misc]
            if i:  # the first call learns
                seconds[each].append(spent)
    whole = []
    for _ in range(1 if quick else 3):
        begin = time.perf_counter()
        rows["unpatched"](None)
        whole.append(time.perf_counter() - begin)
    before, after = (statistics.median(seconds[each]) for each in ("unpatched", "patched"))
    block = statistics.median(whole)
    share = (before - after) / block
    figures = (f"{1e3 * each:.1f}" for each in (before, after, block))
    return [name.removeprefix("a block, "), *figures, f"{100 * share:.1f} %"]


def main(part: str = "float32", quick: bool = False) -> None:
    """Print what rotating q and k takes in a block of a model, before hf.patch and after it.

    Args:
        part: of the names of blocks.
        quick: small blocks, once: does it run at all?
    """
    torch.set_num_threads(1)
    pn.set_num_threads(1)
    table = [["", "before", "patched", "block", "saved"]]
    for name, build in blocks.cases(Options(quick=quick), 1):
        if part in name:
            table.append(_row(name, build, quick))
    print("\n".join(lined_up(table)))


if __name__ == "__main__":
    command.run(main)
