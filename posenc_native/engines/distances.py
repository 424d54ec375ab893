"""Which entry of its diagonals, or column of its table, a query and a key have: by their distance.

The records stand in the calls of all engines as their fields, one after another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Lengths = tuple[int, ...]


class Grid(NamedTuple):
    """Of query i and key j it is start + j - i, less q_offset, along each axis of a grid."""

    q_len: Lengths
    k_len: Lengths
    start: Any  # None, of tensors only, for q_len - 1
    q_offset: Any


class Columns(NamedTuple):
    """Of query i and key j it is index[start + j - i], less q_offset; without index the entry."""

    index: Any
    start: Any
    q_offset: Any
    missing: int | None  # what stands in index for no column
