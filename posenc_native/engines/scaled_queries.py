"""Queries multiplied by factors of their positions, after a call whose kernels do not do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.pairs import consecutive, of_pair

from . import late
from .arrays import Arrays
from .plain.query_scale import LENGTH, factors_along, factors_at

__all__ = ["query_factors", "scaled_queries"]


def query_factors(query_scale: Mapping[str, Any] | None, positions: Any, dtype: Any) -> Any:
    """`Rotary.query_factors` by the values of `checked_query_scale`."""
    function = "Rotary.query_factors"
    arrays = Arrays(function, dtype, positions=positions)
    return arrays.rounded(factors_at(query_scale, arrays.points("positions", positions)))


def _first_scaled(values: Mapping[str, Any]) -> float:
    """The position up to which factors are 1."""
    return float(values[LENGTH] - values.get("shift", 0.0))


def scaled_queries(
    function: str, values: Mapping[str, Any], q: Any, positions: Any, layout: str, own: bool
) -> Any:
    """Rotated queries times the factors of their positions.

    The product is computed in float32 (float64 for float64) and rounded to the dtype of q.

    Args:
        values: of `checked_query_scale`.
        q: the result of a rotation, in which the positions have been checked.
        positions, layout: as in that call; of a pair of positions those of q count.
        own: False if q is memory of the caller, which is then written.
    """
    at = {letter: layout.index(letter) for letter in "bst" if letter in layout}
    tokens = at["t"] if "t" in at else at["s"]
    positions = of_pair(positions, 0)
    if positions is None or arguments.is_count(positions):
        first, count = 0 if positions is None else positions, q.shape[tokens]
        fixed = not (arguments.is_symbolic(first) or arguments.is_symbolic(count))
        if fixed and first + count <= _first_scaled(values):
            return q
        positions = consecutive(function, first, count, q)
    if not arguments.is_tensor(q):
        factors = factors_along(values, q, np.asarray(positions), layout)
        return np.multiply(q, factors, out=q, casting="unsafe")
    from posenc_native.engines.following import needs_grad, tracing, transformed

    late.torch_operations()
    arrays = Arrays(function, x=q).of_parts()
    points = _whole(arrays.positions("positions", positions)).detach()
    factors = factors_along(values, q, points, layout)
    sharded = type(q).__name__ == "DTensor"
    if sharded:
        factors = _cut_as(q, factors)
    if own and (needs_grad(q) or transformed() or tracing()):
        return (q * factors).to(q.dtype)
    if sharded:  # torch writes to no DTensor that is cut twice along one axis
        q.to_local().mul_(factors.to_local())
        return q
    return q.mul_(factors)


def _cut_as(q: Any, factors: Any) -> Any:
    """Whole factors as a DTensor, cut along the axes of q that they have."""
    from torch.distributed.tensor import DTensor, Replicate

    whole, mesh = [Replicate()] * q.device_mesh.ndim, q.device_mesh
    cuts = [cut if cut.is_shard() and factors.shape[cut.dim] > 1 else Replicate()
            for cut in q.placements]  # fmt: skip
    return DTensor.from_local(factors, mesh, whole, run_check=False).redistribute(placements=cuts)


def _whole(positions: Any) -> Any:
    """Positions as a plain tensor; those of DTensors are gathered, as one number for each token."""
    return positions.full_tensor() if type(positions).__name__ == "DTensor" else positions
