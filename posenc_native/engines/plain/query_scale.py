"""The factor of queries by position, which lets attention stay sharp over long contexts.

    llama4   1 + beta * ln(1 + floor((p + shift) / L))    Llama 4, Ministral 3, Mistral 4
    logn     max(1, ln(p + 1) / ln(L))                    Qwen

p is the position of the query, L the length of the original training. Up to L the factor is 1.

Source: Nakanishi 2025, "Scalable-Softmax Is Superior for Attention"; ``modeling_llama4.py`` and
``modeling_ministral3.py`` of transformers 5.23. logn: Chiang and Cholak 2022, "Overcoming a
Theoretical Limitation of Self-Attention".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.pairs import consecutive, of_pair
from posenc_native.engines import late
from posenc_native.engines.arrays import Arrays

__all__ = ["checked_query_scale", "query_factors", "scaled_queries"]

_LENGTH = "original_max_position_embeddings"
# The keys of each type, and their defaults; None: there is none.
_KEYS: dict[str, dict[str, float | None]] = {
    "llama4": {"beta": None, _LENGTH: None, "shift": 0.0},
    "logn": {_LENGTH: None},
}


def query_factors(query_scale: Mapping[str, Any] | None, positions: Any, dtype: Any) -> Any:
    """`Rotary.query_factors` by the values of `checked_query_scale`."""
    function = "Rotary.query_factors"
    arrays = Arrays(function, dtype, positions=positions)
    return arrays.rounded(_factors(query_scale, arrays.points("positions", positions), arrays))


def checked_query_scale(function: str, query_scale: Any) -> dict[str, Any]:
    """The values of a query_scale with its defaults.

    Raises:
        TypeError, ValueError: it is no mapping, or a key is missing, unknown or out of range.
    """
    if not isinstance(query_scale, Mapping):
        got = type(query_scale).__name__
        wrong_type(function, "query_scale", "None or a mapping of beta and lengths", got)
    kind = query_scale.get("type", "llama4")
    arguments.check_name(function, "query_scale['type']", kind, tuple(_KEYS))
    keys = _KEYS[kind]
    for key in query_scale:
        if key != "type" and key not in keys:
            expected = f"the keys type, {', '.join(keys)} for {kind}"
            wrong_value(function, "query_scale", expected, repr(key))
    values: dict[str, Any] = {"type": kind}
    for key, default in keys.items():
        value = query_scale.get(key, default)
        name = f"query_scale[{key!r}]"
        if value is None:
            wrong_value(function, name, "a number", "none")
        values[key] = arguments.finite_number(function, name, value)
    least = 1.0 if kind == "logn" else 0.0
    if values[_LENGTH] <= least:
        expected = f"a number > {least:g}"
        wrong_value(function, f"query_scale[{_LENGTH!r}]", expected, values[_LENGTH])
    return values


def _factors(values: Mapping[str, Any] | None, points: Any, arrays: Arrays) -> Any:
    """The factors at positions in float64."""
    seen = arrays.seen(points) if arrays.is_torch else None
    if seen is not None:  # NumPy's logarithms, so that tensors have the same bits
        return arrays.xp.from_numpy(np.asarray(_factors(values, seen, Arrays(arrays.function))))
    if values is None:
        return arrays.xp.ones_like(points)
    length, xp = values[_LENGTH], arrays.xp
    if values["type"] == "logn":
        return xp.log((points + 1.0).clip(length)) / float(np.log(length))
    steps = xp.floor((points + values["shift"]) / length).clip(0.0)
    return 1.0 + values["beta"] * xp.log1p(steps)


def _first_scaled(values: Mapping[str, Any]) -> float:
    """The position up to which factors are 1."""
    return float(values[_LENGTH] - values.get("shift", 0.0))


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
        points = np.asarray(positions, np.float64)
        factors = _along(_factors(values, points, Arrays(function)), q.ndim, at, tokens)
        wide = np.float64 if q.dtype == np.float64 else np.float32
        return np.multiply(q, factors.astype(wide), out=q, casting="unsafe")
    late.torch_operations()
    import torch

    from posenc_native.engines.following import needs_grad, tracing, transformed

    arrays = Arrays(function, x=q).of_parts()
    points = arrays.wide(_whole(arrays.positions("positions", positions)).detach())
    factors = _along(_factors(values, points, arrays), q.ndim, at, tokens)
    factors = factors.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
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


def _along(factors: Any, ndim: int, at: Mapping[str, int], tokens: int) -> Any:
    """Factors ``[s]``, ``[b, s]`` or ``[1, s]`` with the axes of q."""
    shape = [1] * ndim
    shape[tokens] = factors.shape[-1]
    if factors.ndim == 2:
        if at["b"] > tokens:
            factors = factors.T
        shape[at["b"]] = factors.shape[0 if at["b"] < tokens else 1]
    return factors.reshape(shape)
