"""What the rows of a GPU's table work on and are made of: buffer sets, goals, where they run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import posenc_native as pn
from benchmarks.gpu.timing import Ours
from benchmarks.peers.contestants import BASE, HEAD_DIM, Options, Row

K_HEADS = 8
# At least this part of the bandwidth of a copy, where there is enough to move; what a call may cost
# the host, where there is not.
OF_COPY = {"of_copy_at_least": 0.90}
OF_HOST = {"host_microseconds_at_most": 6.0}


class Memory:
    """A tensor, and one like it."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        self.memory = torch.randn(shape, dtype=dtype, device=device)
        self.target = torch.empty_like(self.memory)
        self.nbytes = self.memory.nbytes
        # Addresses, as benchmarks.clock.harness.Buffers has them.
        self.work, self.out = self.memory.data_ptr(), self.target.data_ptr()


class QueryKey(Memory):
    """Query and key, one after the other in one piece of memory, and as much to copy it to."""

    def __init__(
        self, batch: int, seq: int, q_heads: int, dtype: torch.dtype, layout: str, device: str
    ) -> None:
        sizes = {"b": batch, "s": seq, "t": seq, "d": HEAD_DIM}
        shapes = [[(sizes | {"h": h})[axis] for axis in layout] for h in (q_heads, K_HEADS)]
        split, rest = map(math.prod, shapes)
        super().__init__((split + rest,), dtype, device)
        self.q = self.memory[:split].view(shapes[0])
        self.k = self.memory[split:].view(shapes[1])
        self.tokens: torch.Tensor | None = None  # what vLLM keeps


class Looked(Memory):
    """Scores [.., keys], and x [.., width] to gather them from or to scatter them to."""

    def __init__(self, size: tuple[int, ...], width: int, dtype: torch.dtype, device: str) -> None:
        super().__init__(size, dtype, device)
        self.x = torch.randn((*size[:-1], width), dtype=dtype, device=device)


@dataclass(frozen=True)
class Place:
    """Where a case is computed, and what the command line chose."""

    options: Options
    device: str

    def sets(self, make: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Buffer sets, which keep each other out of the cache."""
        return self.options.make_sets(lambda: make(*arguments, self.device))

    def phases(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions and frequencies."""
        inv_freq = torch.tensor(pn.rotary_frequencies(HEAD_DIM, BASE)[0], device=self.device)
        return torch.arange(tokens, device=self.device), inv_freq

    def compiled(self, wanted: bool) -> Options:
        """With torch.compile of peers where the case has them: each takes seconds."""
        return dataclasses.replace(self.options, compiled=self.options.compiled and wanted)


Rows = tuple[list[Any], list[Row]]


def ours(
    name: str, ways: Mapping[str, Callable[[Any], object]], goal: dict[str, float] | None = None,
    limit: str = "copy",
) -> list[Row]:  # fmt: skip
    """A row of this library for each of its ways to give results."""
    return [Ours(name, mode, run, limit, goal=goal) for mode, run in ways.items()]
