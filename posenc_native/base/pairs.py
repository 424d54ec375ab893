"""What a call for q and k says of each: options that are pairs, one of the two alone, outputs.

A pair is a tuple (of q, of k). An option that is none holds for both.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from . import arguments
from .errors import blame, fault_of


def outputs(function: str, out: Any, inplace: bool, missing: int | None = None) -> tuple[Any, Any]:
    """The argument out for q and k, of which the one that is missing has none."""
    if not isinstance(out, tuple) or len(out) != 2:
        got = f"{len(out)} of them" if isinstance(out, tuple) else type(out).__name__
        arguments.wrong_type(function, "out", "a pair (q_out, k_out)", got)
    if inplace:
        arguments.wrong_value(function, "inplace", "False where out says where results go", True)
    for i, one in enumerate(out):
        if (one is None) != (i == missing):
            expected = f"None, as {'qk'[i]} is" if i == missing else "memory for the result"
            got = "None" if one is None else type(one).__name__
            arguments.wrong_type(function, f"out[{i}]", expected, got)
        arguments.check_no_mask(function, f"out[{i}]", one)
    return out


def missing_one(q: Any, k: Any) -> int | None:
    """Which of q (0) and k (1) is None; None where neither or both are."""
    return None if (q is None) == (k is None) else int(k is None)


def alone(
    function: str,
    rotate: Callable[..., Any],
    q: Any,
    k: Any,
    angles: tuple[Any, Any],
    inplace: bool,
    out: Any,
    *,
    rotary_start: Any,
    **options: Any,
) -> tuple[Any, Any]:
    """q or k rotated, where the other one is None; errors are about the call for both."""
    if q is None and k is None:
        arguments.wrong_type(function, "q", "q, k or both", "None for both")
    i = int(q is None)
    x = (q, k)[i]
    to = x if inplace else None
    if out is not None:
        to = outputs(function, out, inplace, missing=1 - i)[i]
    start, k_start = starts_of_each(function, rotary_start)
    start = k_start if i == 1 and k_start >= 0 else start
    own = [of_pair(angle, i) for angle in angles]
    if "rows" in options:
        options["rows"] = of_pair(options["rows"], i)
    try:
        result = rotate(x, *own, rotary_start=start, out=to, **options)
    except (ValueError, TypeError) as error:
        names = {"x": "qk"[i], "out": "qk"[i] if to is x else f"out[{i}]"}
        fault = fault_of(error)
        if fault is not None:
            blame(error, function=function, argument=names.get(fault.argument, fault.argument))
        raise
    return (result, None) if i == 0 else (None, result)


def of_pair(option: Any, i: int) -> Any:
    """An option for q or for k, which may be one for both."""
    return option[i] if is_pair(option) else option


def is_pair(option: Any) -> bool:
    """Whether an option is one for q and one for k. Two numbers are positions of two tokens."""
    return (
        type(option) is tuple
        and len(option) == 2
        and not all(isinstance(one, (int, float, np.number)) for one in option)
    )


def positions_of_each(
    function: str, q: Any, k: Any, positions: Any, layout: Any
) -> tuple[Any, Any]:
    """Positions of q, and of k if it has its own; of arrays, as arrays."""
    if not is_pair(positions):
        return positions, None
    pair = list(positions)
    if pair[1] is None:
        pair[1] = _counted(k, layout)
    for i, x in enumerate((q, k)):
        one = pair[i]
        if one is None or type(one) is ndarray or arguments.is_tensor(q):
            continue
        try:
            pair[i] = position_array(function, one, x)
        except (ValueError, TypeError) as error:
            blame(error, argument=f"positions[{i}]")
            raise
    return pair[0], pair[1]


def _counted(x: Any, layout: Any) -> Any:
    """Positions 0 .. s-1 of the tokens of x; of no token where the layout does not fit it."""
    shape = getattr(x, "shape", ())
    at = max(layout.find("s"), layout.find("t")) if isinstance(layout, str) else -1
    count = shape[at] if 0 <= at < len(shape) else 0
    if not arguments.is_tensor(x):
        return np.arange(count)
    import torch

    return torch.arange(count, device=x.device)


def tables_of_each(
    function: str, q: Any, cos: Any, sin: Any
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """cos of q and of k, and sin; None for k where they are the same. Of arrays, as arrays."""
    for (name, table), (other_name, other) in permutations((("cos", cos), ("sin", sin))):
        if is_pair(other) and not is_pair(table):
            expected = f"a pair ({name}_q, {name}_k), as {other_name} is"
            arguments.wrong_type(function, name, expected, type(table).__name__)
    if not is_pair(cos):
        return (cos, None), (sin, None)
    pairs = {"cos": list(cos), "sin": list(sin)}
    for name, pair in pairs.items():
        for i in (0, 1):
            if type(pair[i]) is not ndarray and not arguments.is_tensor(q):
                pair[i] = arguments.as_array(function, f"{name}[{i}]", pair[i])
    return (pairs["cos"][0], pairs["cos"][1]), (pairs["sin"][0], pairs["sin"][1])


def indices_as_arrays(function: str, rows: Any, axis_map: Any) -> tuple[Any, Any]:
    """rows and axis_map as arrays, None where there are none."""
    named = (("rows", rows), ("axis_map", axis_map))
    as_arrays = [
        one if one is None else arguments.as_array(function, name, one) for name, one in named
    ]
    return as_arrays[0], as_arrays[1]


def rows_of_each(function: str, q: Any, rows: Any) -> tuple[Any, Any]:
    """Rows of the tables for q, and for k if it has its own; of arrays, as arrays."""
    pair = list(rows) if is_pair(rows) else [rows, None]
    for i, one in enumerate(pair):
        if one is not None and type(one) is not ndarray and not arguments.is_tensor(q):
            name = f"rows[{i}]" if is_pair(rows) else "rows"
            pair[i] = arguments.as_array(function, name, one)
    return pair[0], pair[1]


def starts_of_each(function: str, rotary_start: Any) -> tuple[Any, int]:
    """rotary_start of q, and of k; -1 where it is the same."""
    if type(rotary_start) is not tuple:
        return rotary_start, -1
    if len(rotary_start) != 2:
        got = f"{len(rotary_start)} of them"
        arguments.wrong_type(function, "rotary_start", "an int or a pair of ints", got)
    q_start, k_start = (
        arguments.size(function, f"rotary_start[{i}]", start)
        for i, start in enumerate(rotary_start)
    )
    return q_start, k_start


def position_array(function: str, positions: Any, x: Any) -> npt.NDArray[Any]:
    """An int n is 0 .. n-1; anything else becomes an array."""
    if isinstance(positions, (int, np.integer)):
        count = arguments.size(function, "positions", positions)
        if count >= 2**60:  # more than any array can have
            arguments.wrong_value(function, "positions", "a count below 2^60", count)
        if count > max(x.shape, default=0):  # as many as no axis has: refused for their shape
            return np.broadcast_to(np.int64(0), count)
        return np.arange(count)
    return arguments.as_positions(function, positions)
