"""What peers have to know of a case of rotary, and the angles as most code has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.clock.harness import Job

from .contestants import BASE, HEAD_DIM, Options, QueryKey, tolerance


@dataclass(frozen=True)
class Rotation:
    """A case of rotary, as far as peers have to know it."""

    options: Options
    sets: Sequence[QueryKey]
    dtype: Any
    pairing: str
    positions: np.ndarray  # [s] or [b, s]
    threads: int
    main: bool = True  # whether torch.compile takes part without --exhaustive too

    @property
    def layout(self) -> str:
        return self.sets[0].layout

    @property
    def heads_axis(self) -> int:
        return self.layout.index("h")

    def heads_first(self, x: torch.Tensor) -> torch.Tensor:
        """As bhsd, for those who know no other; and back."""
        return x if self.layout == "bhsd" else x.transpose(1, 2)

    def sequence_first(self, x: torch.Tensor) -> torch.Tensor:
        """As bshd, and back."""
        return x if self.layout == "bshd" else x.transpose(1, 2)

    def job(self, rotate: Callable[[QueryKey], Any]) -> Job:
        """What `rotate` computes, which is what all contestants are to compute."""
        return Job(
            rotate,
            lambda b: (b.q, b.k),
            lambda b: (b.out_q, b.out_k),
            tolerance(self.dtype, self.positions),
        )


def frequencies() -> torch.Tensor:
    """The frequencies as most code has them, in float32."""
    return 1.0 / (BASE ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float) / HEAD_DIM))


def angles(positions: torch.Tensor) -> torch.Tensor:
    """[1 or b, s, HEAD_DIM / 2], in float32."""
    inv_freq = frequencies().to(positions.device)
    return positions.reshape(-1, positions.shape[-1], 1).float() * inv_freq
