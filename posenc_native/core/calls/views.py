"""How a rotation views a tensor: its axes, the rotated part of a head, the pairs of dims.

As in arguments.py, nothing here touches the elements of an array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .arguments import one_of, size, wrong_type, wrong_value
from .suggestions.vocabulary import value_hint

PAIRINGS = ("half", "interleaved")  # the names; an int is a pairing too


@dataclass(frozen=True)
class RotaryView:
    """How a rotation views a tensor: the letters of its axes, and the pairs of dims of a head.

    layout: one letter per axis in memory order, ``d`` last: b (batch), s (sequence) or t (packed
    tokens), h (heads), and with h also g (groups of heads; h is then the heads of a group). The
    dims ``start .. start + 2 * pairs`` of ``d`` are rotated. They form blocks of `block` dims.
    Within a block, dim i is paired with dim i + block / 2; the pairs of all blocks, in order, have
    the `pairs` frequencies. In the result the blocks have `out_block` dims.
    """

    shape: tuple[int, ...]
    layout: str
    start: int
    pairs: int
    block: int
    out_block: int

    def turned_back(self) -> RotaryView:
        """The view of the inverse rotation, which starts from the blocks of the result."""
        return replace(self, block=self.out_block, out_block=self.block)

    @property
    def tokens(self) -> int:
        """Length of the axis s or t."""
        return self.shape[self.layout.index("t" if "t" in self.layout else "s")]

    @property
    def batch(self) -> int | None:
        """Length of the axis b, None without the axis."""
        return self.shape[self.layout.index("b")] if "b" in self.layout else None

    @property
    def heads(self) -> int:
        """The number of heads, 1 without an axis h."""
        return self._length("g") * self._length("h")

    def _length(self, letter: str) -> int:
        return self.shape[self.layout.index(letter)] if letter in self.layout else 1

    def check_tokens(
        self,
        function: str,
        argument: str,
        shape: tuple[int, ...],
        before: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
    ) -> None:
        """ValueError unless the axes between before and after are [s], [1, s], [b, s] or [t]."""
        letters = ["t" if "t" in self.layout else "s"]
        allowed = [(*before, self.tokens, *after)]
        if self.batch is not None:
            letters += ["1, s", "b, s"]
            allowed += [(*before, rows, self.tokens, *after) for rows in (1, self.batch)]
        if not one_of(tuple(shape), allowed):
            names = [
                f"[{', '.join([*'A' * len(before), axes, *'P' * len(after)])}]" for axes in letters
            ]
            expected = f"shape {names[0]} = {list(allowed[0])}"
            if self.batch is not None:
                expected += f", {names[1]} or {names[2]} = {list(allowed[2])}"
            wrong_value(function, argument, expected, list(shape))

    def check_table(
        self,
        function: str,
        argument: str,
        shape: tuple[int, ...],
        rows: int | None = None,
        by_axis: bool = False,
    ) -> bool:
        """Whether a table is per head; ValueError unless its axes fit the tokens and pairs.

        The axes are those of `check_tokens`, then P. Per head they are [b, h, s, P] or
        [1, h, s, P], or [h, s, P] without an axis b. by_axis: an axis [A] comes first. rows: the
        shape is [rows, P].
        """
        if rows is not None:
            if tuple(shape) != (rows, self.pairs):
                expected = f"shape [n, P] = {[rows, self.pairs]}"
                wrong_value(function, argument, expected, list(shape))
            return False
        before = tuple(shape[:1]) if by_axis else ()
        batched = self.batch is not None
        if "h" not in self.layout or len(shape) != len(before) + batched + 3:
            self.check_tokens(function, argument, shape, before=before, after=(self.pairs,))
            return False
        *batch, heads, tokens, pairs = shape[len(before) :]
        if (tokens, pairs) != (self.tokens, self.pairs) or (
            batched and not one_of(batch[0], (1, self.batch))
        ):
            axes = "A, " * by_axis + "b, " * batched + "h, s, P"
            sizes = [*before, *[self.batch] * batched, self.heads, self.tokens, self.pairs]
            wrong_value(function, argument, f"shape [{axes}] = {sizes}", list(shape))
        if not one_of(heads, (1, self.heads)):
            expected = f"tables for {self.heads} heads, or one for all heads"
            wrong_value(function, argument, expected, f"shape {list(shape)}")
        return True

    def align(self, table: Any, by_head: bool = False) -> Any:
        """Tables per token, with axes that broadcast with x[..., :P].

        table: an array or tensor ``[s, P]``, ``[1, s, P]`` or ``[b, s, P]``, with an axis H before
        P if it is per head.
        """
        letters = ["b"] * (table.ndim - 2 - by_head) + ["t" if "t" in self.layout else "s"]
        letters += ["h"] * by_head + ["d"]
        if by_head and "h" not in self.layout:  # one head
            letters.remove("h")
            table = table[..., 0, :]
        if by_head and "g" in self.layout:
            groups = 1 if table.shape[-2] == 1 else self._length("g")
            heads = 1 if table.shape[-2] == 1 else self._length("h")
            table = table.reshape([*table.shape[:-2], groups, heads, table.shape[-1]])
            letters.insert(-2, "g")
        for i, letter in enumerate(letter for letter in self.layout if letter in letters):
            j = letters.index(letter)
            if i != j:
                table = table.swapaxes(i, j)
                letters[i], letters[j] = letters[j], letters[i]
        lengths = dict(zip(letters, table.shape, strict=True))
        return table.reshape([lengths.get(letter, 1) for letter in self.layout])


def rotary_view(
    function: str,
    shape: tuple[int, ...],
    layout: object,
    pairing: object,
    rotary_start: object,
    pairs: int,
    argument: str = "x",
    angles: str = "inv_freq",
    out_pairing: object = "same",
) -> RotaryView:
    """How a tensor of this shape is rotated; ValueError if the arguments do not fit it.

    angles: the argument that determines the number of pairs.
    """
    letters = check_layout(function, layout)
    if len(shape) != len(letters):
        wrong_value(function, argument, f"{len(letters)} axes ({letters})", f"shape {list(shape)}")
    block = out_block = _block_size(function, "pairing", pairing, pairs)
    if out_pairing != "same":
        out_block = _block_size(function, "out_pairing", out_pairing, pairs)
    start = size(function, "rotary_start", rotary_start)
    if 2 * pairs > shape[-1]:
        kind = {"inv_freq": "frequencies", "cos": "columns"}.get(angles, "pairs")
        expected = f"at most {shape[-1] // 2} {kind}, 2 dims each, for head_dim {shape[-1]}"
        wrong_value(function, angles, expected, f"{pairs}, which turn {2 * pairs} dims")
    if start + 2 * pairs > shape[-1]:
        expected = f"rotary_start + 2 * {pairs} frequencies <= head_dim = {shape[-1]}"
        wrong_value(function, "rotary_start", expected, start)
    return RotaryView(tuple(shape), letters, start, pairs, block, out_block)


def check_frequency_axes(function: str, shape: tuple[int, ...]) -> None:
    """ValueError unless inv_freq is [P], [H, P] or [A, H, P]."""
    if not 1 <= len(shape) <= 3 or (len(shape) == 3 and shape[0] == 0):
        wrong_value(function, "inv_freq", "shape [P], [H, P] or [A, H, P]", list(shape))


def check_frequency_heads(
    function: str, shape: tuple[int, ...], views: Mapping[str, RotaryView]
) -> None:
    """ValueError unless inv_freq is the same for all heads, or has a row per head of every x."""
    for name, view in views.items():
        if len(shape) > 1 and not one_of(shape[-2], (1, view.heads)):
            expected = f"frequencies for {view.heads} heads of {name}, or one row for all heads"
            wrong_value(function, "inv_freq", expected, f"shape {list(shape)}")


def rotary_axes(function: str, no_positions: bool, no_axis_map: bool, frequency_axes: int) -> bool:
    """Whether positions have an axis [A, ...]; ValueError if they do and are missing."""
    summed = frequency_axes == 3
    if no_positions and (summed or not no_axis_map):
        argument = "inv_freq [A, H, P]" if no_axis_map else "axis_map"
        wrong_value(function, "positions", f"shape [A, s] or [A, b, s] with {argument}", None)
    if summed and not no_axis_map:
        expected = "None with inv_freq [A, H, P], which already maps the axes"
        wrong_value(function, "axis_map", expected, "an array")
    return summed or not no_axis_map


def rounds_as_written(function: str, compute: object) -> bool:
    """Whether a rotation by tables rounds after each operation; ValueError for unknown names."""
    if not isinstance(compute, str):
        wrong_type(function, "compute", "a str", type(compute).__name__)
    if compute not in ("float32", "as_written"):
        wrong_value(function, "compute", "'float32' or 'as_written'", repr(compute))
    return compute == "as_written"


def check_same_tokens(
    function: str, q: RotaryView, k: RotaryView, own_tokens: bool = False, own_start: bool = False
) -> None:
    """ValueError unless the shapes of q and k are equal except for their heads.

    own_tokens, own_start: k has separate tokens, or a separate start, and may differ there too.
    """
    free = "gh" + "bst" * own_tokens + "d" * own_start
    for letter, q_length, k_length in zip(q.layout, q.shape, k.shape, strict=True):
        if letter not in free and q_length != k_length:
            but = ", ".join(letter for letter in q.layout if letter in free) or "h"
            expected = f"the shape of q except for {but}, {list(q.shape)}"
            wrong_value(function, "k", expected, list(k.shape))


def check_layout(function: str, layout: object) -> str:
    """The layout as a str of letters; TypeError or ValueError if no rotation can have it."""
    if not isinstance(layout, str):
        wrong_type(function, "layout", "a str", type(layout).__name__)
    letters = set(layout)
    tokens_once = letters & {"t", "s", "b"} in ({"t"}, {"s"}, {"s", "b"})
    if (
        len(letters) != len(layout)
        or not letters <= set("bsghdt")
        or ("g" in letters and "h" not in letters)
        or not layout.endswith("d")
        or not tokens_once
    ):
        expected = (
            "distinct letters of b, s, h, d (or t, h, d), with s or t, ending in d; g is allowed "
            "with h"
        )
        wrong_value(function, "layout", expected, repr(layout))
    return layout


def _block_size(function: str, argument: str, pairing: object, pairs: int) -> int:
    if pairing == "half":
        return max(2 * pairs, 2)
    if pairing == "interleaved":
        return 2
    same_text = "'same', " if argument == "out_pairing" else ""
    expected = f"{same_text}'half', 'interleaved' or an even int that divides {2 * pairs}"
    if isinstance(pairing, str):
        wrong_value(function, argument, expected, repr(pairing), value_hint(pairing, PAIRINGS))
    block = size(function, argument, pairing)
    if block == 0 or block % 2 or 2 * pairs % block:
        wrong_value(function, argument, expected, block)
    return block if pairs else 2  # without pairs, a block may have any size, even beyond an array's
