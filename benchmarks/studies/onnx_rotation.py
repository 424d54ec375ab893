"""`python -m benchmarks.studies.onnx_rotation`: a rotation in ONNX Runtime, plain or one operator.

q of 32 heads and k of 8 heads of 128, float32, on the CPU: the graph that `torch.onnx.export` makes
of `apply_rotary_qk`, and one with RotaryEmbedding of operator set 23 and the tables of the same
`Rotary`. Milliseconds, tables included: medians of rounds in which both take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import onnxruntime
import torch

import posenc_native as pn
from benchmarks import command
from benchmarks.clock import turns
from benchmarks.figures.report import lined_up

_ROPE = pn.Rotary(128)
Heads = tuple[torch.Tensor, torch.Tensor]


class _Plain(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> Heads:
        rotated: Heads = _ROPE(q, k, positions)
        return rotated


class _OneOperator(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> Heads:
        cos, sin = (table[None] for table in _ROPE.tables(positions, dtype=q.dtype))
        rotate = torch.onnx.ops.rotary_embedding
        return rotate(q, cos, sin), rotate(k, cos, sin)


def _call(model: torch.nn.Module, tokens: int) -> Callable[[], object]:
    inputs = {
        "q": torch.randn(1, 32, tokens, 128),
        "k": torch.randn(1, 8, tokens, 128),
        "positions": torch.arange(tokens),
    }
    program = torch.onnx.export(
        model.eval(), tuple(inputs.values()), opset_version=23, verbose=False
    )
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    given = {name: np.asarray(value) for name, value in inputs.items()}
    return lambda: session.run(None, given)


def main(rounds: int = 31) -> None:
    """Print the table.

    Args:
        rounds: of which the medians are.
    """
    rows = [["tokens", "plain operators", "RotaryEmbedding", "ratio"]]
    for tokens, calls in ((1, 200), (64, 50), (2048, 1)):
        kinds = {"plain": _call(_Plain(), tokens), "one": _call(_OneOperator(), tokens)}
        found = turns.medians(
            kinds, dict.fromkeys(kinds, calls), rounds, lambda: (time.perf_counter(),)
        )
        plain, one = found["plain"][0] * 1e3, found["one"][0] * 1e3
        rows.append([str(tokens), f"{plain:.3f}", f"{one:.3f}", f"{plain / one:.1f}"])
    print("\n".join(lined_up(rows)))


if __name__ == "__main__":
    command.run(main)
