"""The rotations that a learned function may be, and the tables that it may get.

"cos, sin", "sin, cos"    two tensors, or one tensor with both side by side
"complex"                 cos + i sin
"matrix"                  [[cos, -sin], [sin, cos]] for every pair
"angles"                  the function computes cos and sin of them itself
"indexed"                 for each section of the dims, cos and sin [n, width]; then positions, the
                          rows of each section
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posenc_native.core.calls.tables import Tables
from posenc_native.encodings.rotary.apply import apply_rotary
from posenc_native.encodings.rotary.full_width import second_partners
from posenc_native.engines.arrays import Arrays
from posenc_native.hf.rotation import may_be_overwritten

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Pairing

__all__ = ["LearnedRotation", "Ordered", "are_matrices", "as_two", "rotations"]

# cos and sin in order: of all pairs; or those of first partners, then those of second partners.
Ordered = tuple[tuple[Tensor, Tensor], ...]


# --- kinds of tables ------------------------------------------------------------------------------


def as_two(kind: str, leaves: list[Tensor]) -> tuple[Tensor, Tensor]:
    """cos and sin of tables of a kind, as views."""
    if kind == "complex":
        parts = torch.view_as_real(leaves[0])
        return parts[..., 0], parts[..., 1]
    if kind == "matrix":
        return leaves[0][..., 0, 0], leaves[0][..., 1, 0]
    if kind == "angles":
        return leaves[0].cos(), leaves[0].sin()
    if kind == "indexed":
        tables, rows = leaves[: -len(leaves) // 3], leaves[-len(leaves) // 3 :]
        cos, sin = (
            torch.cat([table[at] for table, at in zip(tables[i::2], rows, strict=True)], -1)
            for i in range(2)
        )
        return cos, sin
    first, second = leaves if len(leaves) == 2 else leaves[0].chunk(2, dim=-1)
    return (first, second) if kind == "cos, sin" else (second, first)


def kinds(leaves: list[Tensor]) -> tuple[str, ...]:
    """The kinds that tables may have."""
    first = leaves[0]
    if len(leaves) == 2:
        alike = first.shape == leaves[1].shape and not any(map(torch.is_complex, leaves))
        return ("cos, sin", "sin, cos") if alike else ()
    if _are_indexed(leaves):
        return ("indexed",)
    if len(leaves) != 1:
        return ()
    if first.is_complex():
        return ("complex",)
    if not first.is_floating_point():
        return ()
    if are_matrices(first):
        return ("matrix",)
    return ("sin, cos", "cos, sin", "angles") if first.shape[-1] % 2 == 0 else ("angles",)


def _are_indexed(leaves: list[Tensor]) -> bool:
    """Whether leaves may be tables of several sections and the rows of each."""
    sections, rest = divmod(len(leaves), 3)
    if rest or sections < 2:
        return False
    tables, rows = leaves[: 2 * sections], leaves[2 * sections :]
    return (
        all(t.ndim == 2 and t.is_floating_point() and t.shape[1] % 2 == 0 for t in tables)
        and len({table.shape[1] for table in tables}) == 1
        and all(at.dtype == torch.int64 and at.shape == rows[0].shape for at in rows)
    )


def are_matrices(table: Tensor) -> bool:
    """Whether a table may have a rotation matrix for every pair."""
    return table.ndim > 3 and table.shape[-2:] == (2, 2)


# --- rotations by them ----------------------------------------------------------------------------


@dataclass(frozen=True)
class LearnedRotation:
    """The behavior of calls of one kind, in the terms of `apply_rotary` with `Tables`.

    Attributes:
        kind: of tables: "cos, sin", "sin, cos" (two, or one tensor with both side by side),
            "complex", "matrix", "angles", "indexed".
        axes: for each axis of a table except its columns, the matching axis of x; -1 if it has
            size 1.
        layout: the layout of x.
        pairing: the pairing of its dims.
        inverse: whether it rotates in the other direction.
        start: the first rotated dim.
        dims: the number of rotated dims.
        every_dim: whether tables have a column for each dim, not for each pair.
        unequal: whether the two columns of a pair may differ: each dim turns by its own angle, as
            `FullWidthRotary` has it.
        dtype: the dtype of the result.
        heads: the number of rotated tensors.
        gives: a Tensor, or a tuple or a list of them.
        split: the number of heads in the last axis of x, 0 if heads have their own axis; `layout`
            and `axes` then refer to x with an axis for heads.
    """

    kind: str
    axes: tuple[int, ...]
    layout: str
    pairing: Pairing
    inverse: bool
    start: int
    dims: int
    every_dim: bool
    dtype: torch.dtype
    heads: int
    gives: type
    split: int = 0
    unequal: bool = False

    def columns(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of the first and of the second dims of pairs: views [.., pairs]."""
        if not self.every_dim:
            return table, table
        if self.pairing == "interleaved":
            return table[..., ::2], table[..., 1::2]
        first, second = table.unflatten(-1, (-1, 2, self._block() // 2)).unbind(-2)
        return first.flatten(-2), second.flatten(-2)

    def _block(self) -> int:
        """The dims of a block of pairs, whose second half are the partners of the first."""
        if isinstance(self.pairing, int):
            return self.pairing
        return self.dims if self.pairing == "half" else 2

    def along(self, table: Tensor, rank: int) -> Tensor:
        """A table whose axes are broadcast to those of x."""
        kept = [axis for axis in self.axes if axis >= 0]
        table = table[tuple(slice(None) if axis >= 0 else 0 for axis in self.axes)]
        shape = [1] * (rank - 1)
        for size, axis in zip(table.shape[:-1], kept, strict=True):
            shape[axis] = size
        order = sorted(range(len(kept)), key=kept.__getitem__)
        return table.permute(*order, -1).reshape(*shape, table.shape[-1])

    def in_order(self, table: Tensor) -> Tensor:
        """A table as `Tables` have it: [s, P], [b, s, P] or [b, h, s, P]."""
        varies = {self.layout[axis] for axis in self.axes if axis >= 0}
        letters = "bhs" if "h" in varies else "bs" if "b" in varies else "s"
        table = self.along(table, len(self.layout))
        kept = [self.layout.index(letter) for letter in letters if letter in self.layout]
        shape = [table.shape[axis] for axis in kept]
        table = table.permute(*kept, *(a for a in range(table.ndim) if a not in kept))
        return table.reshape(*([1] * (letters[0] == "b" and "b" not in self.layout)), *shape, -1)

    def may_overwrite(self, x: Tensor) -> bool:
        """Whether the result can be written into x."""
        return x.dtype == self.dtype and may_be_overwritten(x)

    def __call__(self, x: Tensor, tables: Ordered, inplace: bool = False) -> Tensor:
        """x rotated by tables in order; inplace: into x itself, if it `may_overwrite` x."""
        heads = x.unflatten(-1, (self.split, -1)) if self.split else x
        heads = heads.to(torch.promote_types(x.dtype, self.dtype))
        inplace = inplace and len(tables) == 1
        each: list[Tensor] = [
            apply_rotary(
                heads, None, Tables(*of_partner), layout=self.layout, pairing=self.pairing,
                rotary_start=self.start, inverse=self.inverse, out=heads if inplace else None,
            )
            for of_partner in tables
        ]  # fmt: skip
        if inplace:
            return x
        rotated = each[0]
        if len(each) == 2:
            arrays = Arrays("LearnedRotation", None, None, x=heads)
            second = second_partners(arrays, heads.shape[-1], self.start, self._block())
            rotated = torch.where(second, each[1], rotated)
        return (rotated.flatten(-2) if self.split else rotated).to(self.dtype)


def rotations(
    x: Tensor, leaves: list[Tensor], dtype: torch.dtype, count: int, gives: type
) -> Iterator[LearnedRotation]:
    """All rotations that calls with such tensors may be."""
    for kind in kinds(leaves):
        table, _ = as_two(kind, leaves)
        width = table.shape[-1]
        for split in (0, *_splits(table.shape[:-1], x)):
            heads = x.unflatten(-1, (split, -1)) if split else x
            size = heads.shape[-1]
            for axes in _matches(table.shape[:-1], heads.shape[:-1], bool(split)):
                layout = _layout(heads.ndim, {axis for axis in axes if axis >= 0}, bool(split))
                for every_dim, dims in ((True, width), (False, 2 * width)):
                    if layout is None or dims > size or dims % 2:
                        continue
                    starts = (0,) if dims == size else (0, size - dims)
                    pairings: tuple[Pairing, ...] = ("interleaved", "half")
                    if kind == "indexed":
                        pairings = (leaves[0].shape[-1],)
                    for start, pairing, back in itertools.product(starts, pairings, (False, True)):
                        yield LearnedRotation(
                            kind, axes, layout, pairing, back, start, dims, every_dim, dtype,
                            count, gives, split,
                        )  # fmt: skip


def _splits(table: tuple[int, ...], x: Tensor) -> list[int]:
    """The possible numbers of heads in the last axis of x, if tables have an axis for heads."""
    if x.ndim != 3 or len(table) != 3:
        return []
    return [size for size in dict.fromkeys(table) if size > 1 and x.shape[-1] % size == 0]


def _matches(
    table: tuple[int, ...], x: tuple[int, ...], in_any_order: bool
) -> Iterator[tuple[int, ...]]:
    """The axes of x that match the axes of a table with more than one entry, in order."""
    own = [i for i, size in enumerate(table) if size != 1]
    choose = itertools.permutations if in_any_order else itertools.combinations
    for chosen in choose(range(len(x)), len(own)):
        if all(table[i] == x[axis] for i, axis in zip(own, chosen, strict=True)):
            axes = [-1] * len(table)
            for i, axis in zip(own, chosen, strict=True):
                axes[i] = axis
            yield tuple(axes)


def _layout(rank: int, varies: set[int], split: bool) -> str | None:
    """The layout of x if tables vary along these axes; the last of them is for tokens."""
    if not varies or not 2 < rank < 5:
        return None
    if split:
        return "bshd"
    tokens = max(varies)
    if rank == 3:
        return "bsd" if tokens == 1 else "shd"
    return {2: "bhsd", 1: "bshd"}.get(tokens)
