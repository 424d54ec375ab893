"""`python -m benchmarks.studies.kernel_hook`: the layer of `posenc_native.hf.kernels` for a call.

The rotary function of Llama in transformers rotates q and k of 32 + 8 heads of 128 by tables, and
our layer in its place, in turn: called directly, and compiled by Inductor. A row has the medians in
microseconds and their ratio, on one thread.
"""

from __future__ import annotations

import time
from types import MethodType
from typing import Any

import torch
from torch import nn
from transformers.models.llama import modeling_llama

from benchmarks import command
from benchmarks.clock import turns
from benchmarks.figures.report import lined_up
from posenc_native.hf.kernels import RotaryPosEmb

_TOKENS = (1, 512, 4096)


class _Own(nn.Module):
    """The model's function, as the package `kernels` wraps it."""

    kernel_layer_name = "rotary_pos_emb"

    def forward(self, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        own = modeling_llama.apply_rotary_pos_emb
        own = own.forward if isinstance(own, nn.Module) else own
        return own(q, k, cos, sin, unsqueeze_dim)


def _row(tokens: int, dtype: torch.dtype, compiled: bool, rounds: int) -> list[str]:
    q, k = (torch.randn(1, tokens, h, 128, dtype=dtype).transpose(1, 2) for h in (32, 8))
    table = torch.randn(1, tokens, 64, dtype=dtype).repeat(1, 1, 2)
    own, ours = _Own(), _Own()
    ours.forward = MethodType(RotaryPosEmb.forward, ours)  # type: ignore[method-assign]
    functions: dict[str, Any] = {"own": own, "ours": ours}
    if compiled:
        torch.compiler.reset()
        functions = {name: torch.compile(f, fullgraph=True) for name, f in functions.items()}
    calls = {name: lambda f=f: f(q, k, table, table) for name, f in functions.items()}
    for call in calls.values():
        call()
    counts = dict.fromkeys(calls, max(1, 1000 // tokens))
    found = turns.medians(calls, counts, rounds, lambda: (time.perf_counter(),))
    times = [found[name][0] * 1e6 for name in calls]
    way = "compiled" if compiled else "called"
    return [
        way,
        str(dtype)[6:],
        f"{tokens:,}",
        *(f"{t:,.1f}" for t in times),
        f"{times[1] / times[0]:.2f}",
    ]


@torch.no_grad()
def main(rounds: int = 15) -> None:
    """Print the table.

    Args:
        rounds: of which the medians are.
    """
    torch.set_num_threads(1)
    rows = [["", "dtype", "tokens", "transformers", "ours", "ratio"]]
    for compiled in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            rows += [_row(tokens, dtype, compiled, rounds) for tokens in _TOKENS]
    print("\n".join(lined_up(rows)))


if __name__ == "__main__":
    command.run(main)
