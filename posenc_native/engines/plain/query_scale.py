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
from posenc_native.core.calls.arguments import is_tensor, wrong_type, wrong_value

from .numbers import cast, of, readable

__all__ = ["LENGTH", "checked_query_scale", "factors_along", "factors_at", "of_norm", "values_of"]

LENGTH = "original_max_position_embeddings"
# The keys of each type, and their defaults; None: there is none.
_KEYS: dict[str, dict[str, float | None]] = {
    "llama4": {"beta": None, LENGTH: None, "shift": 0.0},
    "logn": {LENGTH: None},
}


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
    if values[LENGTH] <= least:
        expected = f"a number > {least:g}"
        wrong_value(function, f"query_scale[{LENGTH!r}]", expected, values[LENGTH])
    return values


def factors_at(values: Mapping[str, Any] | None, points: Any) -> Any:
    """The factors at positions in the dtype of these, float64 (float32 where there is no other)."""
    if is_tensor(points) and readable(points):  # NumPy's logarithms: tensors have the same bits
        seen = factors_at(values, points.detach().numpy())
        return of(points).from_numpy(np.asarray(seen))
    xp = of(points)
    if values is None:
        return xp.ones_like(points)
    length = values[LENGTH]
    if values["type"] == "logn":
        return xp.log((points + 1.0).clip(length)) / float(np.log(length))
    steps = xp.floor((points + values["shift"]) / length).clip(0.0)
    return 1.0 + values["beta"] * xp.log1p(steps)


def factors_along(values: Mapping[str, Any], q: Any, positions: Any, layout: str) -> Any:
    """The factors with the axes of q, in float32 (float64 for float64).

    Args:
        values: of `checked_query_scale`.
        positions: ``[s]``, ``[b, s]`` or ``[1, s]``, an array or a tensor as q is.
    """
    xp, at = of(q), {letter: layout.index(letter) for letter in "bst" if letter in layout}
    tokens = at["t"] if "t" in at else at["s"]
    widest = xp.float32 if xp is not np and positions.device.type == "mps" else xp.float64
    factors = factors_at(values, cast(positions, widest))
    shape = [1] * q.ndim
    shape[tokens] = factors.shape[-1]
    if factors.ndim == 2:
        if at["b"] > tokens:
            factors = factors.T
        shape[at["b"]] = factors.shape[0 if at["b"] < tokens else 1]
    return cast(factors, xp.float64 if q.dtype == xp.float64 else xp.float32).reshape(shape)


def of_norm(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a `Norm` for the values of `checked_query_scale`."""
    return {
        "query_scale": values["type"],
        "query_beta": values.get("beta", 0.0),
        "query_length": values[LENGTH],
        "query_shift": values.get("shift", 0.0),
    }


def values_of(norm: Any) -> dict[str, Any]:
    """The values whose `of_norm` a `Norm` has."""
    return {
        "type": norm.query_scale,
        "beta": norm.query_beta,
        LENGTH: norm.query_length,
        "shift": norm.query_shift,
    }
