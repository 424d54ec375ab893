"""Torch operations for modules, also on unevenly sharded DTensors, some of which torch refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc_native.engines.following import needs_grad

from .cut import Cut, Names, mesh_of, overwritten, whole


def matmul(a: Any, b: Any) -> Tensor:
    """``a [..., m, d] @ b [..., d, n]``, sharded like a except along d; b may have fewer axes."""
    mesh = mesh_of((a, b))
    a = whole(a, mesh)
    leading: Names = tuple(f"n{axis}" for axis in range(a.ndim - 2))
    cut = Cut(a, (*leading, "m", "d"), (*leading, "m"))
    own = cut.part(b, (*leading[a.ndim - b.ndim :], "d", "n"))
    return cut.join(cut.local(a) @ own, (*leading, "m", "n"))


def add_bias(scores: Any, bias: Any, inplace: bool, gate: Any) -> Tensor:
    """scores plus a bias that broadcasts over them, times a gate, sharded like the scores."""
    mesh = mesh_of((scores, bias, gate))
    scores = whole(scores, mesh)
    names: Names = tuple(f"n{axis}" for axis in range(scores.ndim))
    cut = Cut(scores, names, names)
    own = cut.part(bias, names[scores.ndim - bias.ndim :])
    factor = cut.part(gate, names)
    if not inplace:
        part = cut.local(scores)
        part = part + own if factor is None else torch.addcmul(part, factor, own)
        return cut.join(part.to(scores.dtype), names)
    place = cut.place("add_bias", "scores", scores, "scores")
    if needs_grad(*[t for t in (scores, bias, gate) if t is not None]):
        return scores.copy_(add_bias(scores, bias, False, gate))  # type: ignore[no-any-return]
    _ = place.add_(own) if factor is None else place.addcmul_(factor, own)
    overwritten(scores)
    return scores  # type: ignore[no-any-return]


def decomposed_scores(
    plain: Callable[..., Any], q: Any, tables: tuple[Any, ...], *rest: Any
) -> Tensor:
    """Sharded like q along leading axes; queries, keys and the tables are whole.

    plain: the operation on plain tensors.
    """
    q_size, k_size, content, prefix, inplace = rest
    mesh = mesh_of((q, content, *tables))
    q = whole(q, mesh)
    leading: Names = tuple(f"n{axis}" for axis in range(q.ndim - 2))
    cut = Cut(q, (*leading, "m", "d"), leading)
    own = tuple(cut.part(table, ("rows", "d")) for table in tables)
    names = (*leading, "m", "keys")
    scores = cut.part(content, names)
    part = plain(cut.local(q), own, q_size, k_size, scores, prefix, False)
    result = cut.join(part, names)
    return content.copy_(result) if inplace else result
