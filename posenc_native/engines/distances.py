"""The entry of the diagonals, or the column of a table, for the distance of a query and a key.

Calls of all engines contain the fields of these records in sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Lengths = tuple[int, ...]


class Grid(NamedTuple):
    """The entry of query i and key j is start + j - i - q_offset along each axis of a grid."""

    q_len: Lengths
    k_len: Lengths
    start: Any  # for tensors, None stands for q_len - 1
    q_offset: Any


class Columns(NamedTuple):
    """The column of i and j is index[start + j - i - q_offset]; without index that entry itself."""

    index: Any
    start: Any
    q_offset: Any
    missing: int | None  # the value in index that stands for no column
