"""Steps of `Rotary.bind`, as one call of the fuzzer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import posenc_native as pn


def from_first(first: int, x: Any, layout: str = "bhsd") -> Any:
    """The positions first, first + 1 ... of the tokens of x, an array or a tensor."""
    tokens = x.shape[layout.index("t" if "t" in layout else "s")]
    if isinstance(x, np.ndarray):
        return np.arange(first, first + tokens)
    import torch

    return torch.arange(first, first + tokens)


def bound_steps(
    rotary: pn.Rotary,
    q: Any,
    k: Any,
    calls: Sequence[tuple[Any, Any, Any]],
    *,
    bound: bool = True,
    layout: str = "bhsd",
    inverse: bool = False,
    inplace: bool = False,
) -> tuple[Any, ...]:
    """The q and k of all calls (q, k, position) of what is bound; unbound: of ordinary calls."""
    options: dict[str, Any] = {"layout": layout, "inverse": inverse, "inplace": inplace}
    step = rotary.bind(q, k, **options)
    results: list[Any] = []
    for q, k, position in calls:
        if bound:
            results.extend(step(q, k, position))
        else:
            if isinstance(position, int):
                position = from_first(position, q, layout)
            results.extend(rotary(q, k, position, **options))
    return tuple(results)
