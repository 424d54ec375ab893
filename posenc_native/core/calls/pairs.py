"""Options of calls for q and k: pairs of options, calls with only q or only k, outputs.

A pair is a tuple (for q, for k). An option that is not a pair applies to both.
"""

from __future__ import annotations

from itertools import permutations
from operator import is_
from typing import Any

import numpy as np
from numpy import ndarray

from . import arguments
from .errors import blame
from .tables import Tables


def outputs(function: str, out: Any, inplace: bool, missing: int | None = None) -> tuple[Any, Any]:
    """The argument out for q and k; the output of a missing tensor is None."""
    if not isinstance(out, tuple) or len(out) != 2:
        got = f"a tuple of {len(out)}" if isinstance(out, tuple) else type(out).__name__
        arguments.wrong_type(function, "out", "a pair (q_out, k_out)", got)
    if inplace:
        arguments.wrong_value(function, "inplace", "False if out is given", True)
    for i, place in enumerate(out):
        if (place is None) != (i == missing):
            expected = f"None, as {'qk'[i]} is" if i == missing else "memory for the result"
            got = "None" if place is None else type(place).__name__
            arguments.wrong_type(function, f"out[{i}]", expected, got)
        arguments.check_no_mask(function, f"out[{i}]", place)
    return out


def as_operands(
    function: str, q: Any, k: Any, inplace: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """q and k as arrays; for inplace they must be NumPy arrays or of a subclass."""
    plain_q = arguments.as_operand(function, "q", q)
    if arguments.is_tensor(k):
        arguments.wrong_type(function, "k", "an array, as q is", type(k).__name__)
    plain_k = arguments.as_operand(function, "k", k)
    if inplace:
        check_overwritten(function, q=q, k=k)
    return plain_q, plain_k


def check_overwritten(function: str, **inputs: Any) -> None:
    """TypeError for an input that cannot be rotated in place, since it is read through a copy."""
    for argument, value in inputs.items():
        if value is not None and not isinstance(value, np.ndarray):
            expected = "a NumPy array or a torch tensor, to rotate in place"
            arguments.wrong_type(function, argument, expected, type(value).__name__)


def missing_one(q: Any, k: Any) -> int | None:
    """The index of the tensor that is None, q (0) or k (1); None if neither or both are."""
    return None if (q is None) == (k is None) else int(k is None)


def first_given(inputs: tuple[Any, ...]) -> Any:
    """x, or q, or k if q is None."""
    return inputs[0] if inputs[0] is not None or len(inputs) == 1 else inputs[1]


def in_place(outs: tuple[Any, ...] | None, inputs: tuple[Any, ...]) -> bool:
    """Whether each result overwrites its input."""
    return outs is not None and all(map(is_, outs, inputs))


def of_pair(option: Any, i: int) -> Any:
    """The option for q or for k; an option that is not a pair applies to both."""
    return option[i] if is_pair(option) else option


def is_pair(option: Any) -> bool:
    """Whether an option is a pair for q and k. Two numbers are positions of two tokens instead."""
    return (
        type(option) is tuple
        and len(option) == 2
        and not all(isinstance(number, (int, float, np.number)) for number in option)
    )


# The meaning of positions that are an int, if the tokens of x determine their number.
FIRST = "the position of the first token"


def positions_of_each(
    function: str, q: Any, k: Any, positions: Any, layout: Any
) -> tuple[Any, Any]:
    """Positions of q, and those of k if they differ; as arrays if q is an array."""
    if not is_pair(positions):
        return positions, None
    pair = [positions[0], 0 if positions[1] is None else positions[1]]
    for i, x in enumerate((q, k)):
        own = pair[i]
        if own is None or type(own) is ndarray:
            continue
        try:
            if arguments.is_count(own):
                pair[i] = positions_in(function, own, x, layout)
            elif not arguments.is_tensor(q):
                pair[i] = arguments.as_positions(function, own, an_int=FIRST)
        except (ValueError, TypeError) as error:
            blame(error, argument=f"positions[{i}]")
            raise
    return pair[0], pair[1]


def positions_in(function: str, first: int, x: Any, layout: Any) -> Any:
    """The positions first, first + 1 ... of the tokens of x, as an array or a tensor like x.

    They are empty if the layout does not fit x; another check raises that error.
    """
    shape = getattr(x, "shape", ())
    at = max(layout.find("s"), layout.find("t")) if isinstance(layout, str) else -1
    return consecutive(function, first, shape[at] if 0 <= at < len(shape) else 0, x)


def consecutive(function: str, first: int, count: int, x: Any) -> Any:
    """`count` positions from the first on, as an array or a tensor like x."""
    if not arguments.is_symbolic(first):
        first = int(first)
        if not -(2**63) <= first <= 2**63 - max(count, 1):
            expected = "an int of 64 bits, for which all later positions also fit"
            arguments.wrong_value(function, "positions", expected, first)
    if not arguments.is_tensor(x):
        return np.arange(count) + np.int64(first)
    import torch

    return torch.arange(count, device=x.device) + first


def pairs_of(function: str, tables: Tables, two: bool) -> Tables:
    """Tables in which tuples are pairs for q and k.

    Raises:
        TypeError: only one of cos and sin is a pair, or a pair comes with a single tensor.
    """
    parts: dict[str, Any] = {"cos": tables.cos, "sin": tables.sin, "rows": tables.rows}
    tuples = {name: value for name, value in parts.items() if type(value) is tuple}
    if not tuples:
        return tables
    pairs = {name for name, value in tuples.items() if is_pair(value)}
    if pairs and not two:
        name = min(pairs)
        wanted = "one for q and k" if name == "rows" else "one table for q and k"
        arguments.wrong_type(function, name, f"{wanted} (apply_rotary_qk takes pairs)", "a pair")
    for name, paired in permutations(("cos", "sin")):
        if paired in pairs and name not in pairs:
            expected = f"a pair ({name}_q, {name}_k), since {paired} is a pair"
            arguments.wrong_type(function, name, expected, type(parts[name]).__name__)
    lists: dict[str, Any] = {
        name: list(value) for name, value in tuples.items() if name not in pairs
    }
    return tables._replace(**lists) if lists else tables


def as_tables(function: str, tables: Tables) -> Tables:
    """Tables of arrays."""
    changes: dict[str, Any] = {}
    for name in ("cos", "sin", "rows", "axis_map"):
        value = getattr(tables, name)
        if type(value) is ndarray or (value is None and name in ("rows", "axis_map")):
            continue
        changes[name] = (
            tuple(_as_array(function, f"{name}[{i}]", value[i]) for i in (0, 1))
            if type(value) is tuple and name != "axis_map"
            else _as_array(function, name, value)
        )
    return tables._replace(**changes) if changes else tables


def _as_array(function: str, name: str, value: Any) -> Any:
    return value if type(value) is ndarray else arguments.as_array(function, name, value)


def starts_of_each(function: str, rotary_start: Any) -> tuple[Any, int]:
    """rotary_start for q and for k; -1 for k if it is the same."""
    if type(rotary_start) is not tuple:
        return rotary_start, -1
    if len(rotary_start) != 2:
        got = f"a tuple of {len(rotary_start)}"
        arguments.wrong_type(function, "rotary_start", "an int or a pair of ints", got)
    q_start, k_start = (
        arguments.size(function, f"rotary_start[{i}]", start)
        for i, start in enumerate(rotary_start)
    )
    return q_start, k_start
