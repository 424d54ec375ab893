"""The entry of the diagonals, or of an index, for query 0 and key 0.

entry of query i and key j   origin + j - (i + q_offset);   by default origin = q_len - 1
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import as_array, is_tensor, wrong_type, wrong_value

Lengths = int | Sequence[int]


def lengths_of(function: str, argument: str, value: Any) -> tuple[int, ...]:
    """A length as one int per axis of a grid; a plain int is one axis."""
    if isinstance(value, (tuple, list)):
        if not 1 <= len(value) <= 3:
            wrong_value(function, argument, "an int, or 1 to 3 ints", list(value))
        return tuple(arguments.length(function, argument, length) for length in value)
    return (arguments.length(function, argument, value),)


def matrix_lengths(
    function: str, argument: str, shape: Sequence[int], q_len: Any, k_len: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """q_len and k_len per axis; by default the last two axes of the matrices."""
    if len(shape) < 2:
        wrong_value(function, argument, "shape [..., H, q_len, k_len]", list(shape))
    if q_len is None and k_len is None:
        return (shape[-2],), (shape[-1],)
    rows = (shape[-2],) if q_len is None else lengths_of(function, "q_len", q_len)
    columns = (shape[-1],) if k_len is None else lengths_of(function, "k_len", k_len)
    if len(rows) != len(columns):
        wrong_value(function, "k_len", f"{len(rows)} numbers, as in q_len", list(columns))
    if (math.prod(rows), math.prod(columns)) != (shape[-2], shape[-1]):
        wrong_value(
            function, argument,
            f"shape [..., q_len = {math.prod(rows)}, k_len = {math.prod(columns)}]", list(shape),
        )  # fmt: skip
    return rows, columns


def first_entry(
    function: str,
    shape: Sequence[int],
    q_len: tuple[int, ...],
    k_len: tuple[int, ...],
    q_offset: Any,
    origin: Any,
) -> tuple[tuple[int, ...] | None, Any]:
    """The entry of query 0 and key 0 on each axis, and the q_offset still to be subtracted.

    An int q_offset is subtracted here; only an array or a tensor is returned. The entry is None for
    diagonals made for the call, where it is ``q_len - 1``.
    """
    rank = len(q_len)
    if len(k_len) != rank:
        wrong_value(function, "k_len", f"{rank} numbers, as in q_len", list(k_len))
    if len(shape) < rank:
        expected = f"a leading axis of heads and {rank} of entries"
        wrong_value(function, "diagonals", expected, f"shape {list(shape)}")
    q_offset = _q_offset(function, q_offset)
    if origin is None:
        for queries, keys, count in zip(q_len, k_len, shape[len(shape) - rank :], strict=True):
            if count != max(queries + keys - 1, 0):
                wrong_value(
                    function, "diagonals",
                    f"q_len + k_len - 1 = {max(queries + keys - 1, 0)} entries (for more, give "
                    "origin)", count,
                )  # fmt: skip
        _no_offset_without_origin(function, q_offset)
        return None, None
    first = tuple(
        signed_integer(function, "origin", entry)
        for entry in (origin if isinstance(origin, (tuple, list)) else (origin,))
    )
    if len(first) != rank:
        wrong_value(function, "origin", f"{rank} numbers, as in q_len", list(first))
    if not arguments.is_count(q_offset):
        return first, q_offset
    if q_offset and rank > 1:
        wrong_value(function, "q_offset", "None if q_len and k_len are tuples", q_offset)
    return (first[0] - q_offset, *first[1:]), None


def entry_or_default(start: tuple[int, ...] | None, q_len: tuple[int, ...]) -> tuple[int, ...]:
    """The entry of query 0 and key 0 on each axis, with None replaced; see `first_entry`."""
    return tuple(queries - 1 for queries in q_len) if start is None else start


def index_and_entry(
    function: str, index: Any, queries: int, keys: int, q_offset: Any, origin: Any
) -> tuple[Any, int | None, Any]:
    """The index as an array or tensor, and its entry and q_offset as in `first_entry`."""
    if index is not None and not is_tensor(index):
        index = as_array(function, "index", index)
    q_offset = _q_offset(function, q_offset)
    if origin is not None:
        first = signed_integer(function, "origin", origin)
        if arguments.is_count(q_offset):
            return index, first - q_offset, None
        return index, first, q_offset
    if index is not None and (
        len(index.shape) != 1 or index.shape[0] != max(queries + keys - 1, 0)
    ):
        wrong_value(
            function, "index",
            f"shape [q_len + k_len - 1] = [{max(queries + keys - 1, 0)}] (for a longer index, give "
            "origin)", list(index.shape),
        )  # fmt: skip
    _no_offset_without_origin(function, q_offset)
    return index, None, None


def _no_offset_without_origin(function: str, q_offset: Any) -> None:
    if not arguments.is_count(q_offset) or q_offset != 0:
        wrong_value(function, "origin", "the entry of distance 0 (q_offset requires it)", None)


def _q_offset(function: str, q_offset: Any) -> Any:
    """The argument q_offset: an int, or an array or tensor of ints."""
    if is_tensor(q_offset):
        return q_offset
    if arguments.is_count(q_offset) or np.isscalar(q_offset) or q_offset is None:
        return signed_integer(function, "q_offset", q_offset)
    return as_array(function, "q_offset", q_offset)


def missing_column(function: str, value: Any) -> int | None:
    """The argument missing: None, or an int of 64 bits."""
    if value is None or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    number = _index(function, "missing", value)
    if not -(2**63) <= number < 2**63:
        wrong_value(function, "missing", "an int of 64 bits", number)
    return number


def signed_integer(function: str, argument: str, value: Any) -> int:
    """The argument as an int within 2^61, negative or not; torch.export may keep it symbolic."""
    if arguments.is_symbolic(value):
        return value  # type: ignore[no-any-return]
    number = value if type(value) is int else _index(function, argument, value)
    if not -(2**61) < number < 2**61:
        wrong_value(function, argument, "an int within 2^61", number)
    return number


def _index(function: str, argument: str, value: Any) -> int:
    if isinstance(value, bool):
        wrong_type(function, argument, "an int", "bool")
    try:
        return operator.index(value)
    except TypeError:
        wrong_type(function, argument, "an int", type(value).__name__)
