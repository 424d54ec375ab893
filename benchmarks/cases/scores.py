"""What the cases of relative encodings share: scores, their gradients, how exact results are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.clock.harness import Job
from benchmarks.peers.contestants import Activations, tolerance

HEADS = 16


def job_of(
    dtype: Any,
    expected: Callable[[Any], Any],
    changed: Callable[[Any], Any],
    written: Callable[[Any], Any] | None = None,
) -> Job:
    """The job of results that are rounded once or twice, without angles.

    `changed` finds results in place, `written` those of "out=".
    """
    return Job(expected, changed, written or changed, tolerance(dtype, np.zeros(1)))


# Sums of up to millions of float32 numbers, in any order, relative to the largest of them.
_SUMS = 5e-3


def sums_job(expected: Callable[[Any], Any]) -> Job:
    """The job of sums, which are returned whatever the mode; in place scores are overwritten."""
    return Job(expected, expected, expected, _SUMS, overwritten=lambda b: b.x)


def shape_of(length: int) -> tuple[int, int, int]:
    return HEADS, length, length


def frozen(module: torch.nn.Module) -> Any:
    """A module whose parameters require no gradient."""
    return module.requires_grad_(False)


def gradient_of(
    make: Callable[[torch.Tensor], torch.Tensor], weight: torch.Tensor
) -> Callable[[Activations], Any]:
    """Forward from scores, which require no gradient themselves, and backward to the weight."""

    def run(b: Activations) -> Any:
        # detach: in place, these would carry the graph of every call before.
        return torch.autograd.grad(make(b.x.detach()), weight, b.result)

    return run
