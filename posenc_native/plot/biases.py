"""A relative bias: as the matrix that is added to the scores, and as its diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_value
from posenc_native.relative.bias import toeplitz_bias

from . import drawing
from .encodings import FloatArray, evenly, read_indices, read_numbers

_SHOWN = 8


def bias(
    bias: Any,
    *,
    q_len: int | None = None,
    k_len: int | None = None,
    q_offset: int = 0,
    head: int = 0,
    heads: Sequence[int] | None = None,
    ax: Any = None,
) -> npt.NDArray[np.object_]:
    """A relative bias in two panels: the matrix of one head, and the diagonals of several.

    A bias that depends on the distance alone is its diagonals. Where a ready matrix is not constant
    along them (FIRE, a masked one), the line is their mean and a band goes from the smallest to the
    largest. What is -inf or NaN is left white.

    Args:
        bias: with `q_len` and `k_len` diagonals ``[H, q_len + k_len - 1]`` or ``[q_len + k_len -
            1]``, as `alibi_diagonals`, `t5_diagonals` and others make them; without, a matrix
            ``[H, q_len, k_len]`` or ``[q_len, k_len]``.
        q_len, k_len: how many queries and keys.
        q_offset: position of query 0 among the keys, for which the bias was made.
        head: whose matrix is shown.
        heads: whose diagonals; default up to eight, evenly from the first to the last.
        ax: two Axes to draw into; None for a new figure.

    Returns:
        Two Axes: the matrix, the diagonals, whose lines are labelled "head 0" and so on.

    Raises:
        ValueError: a shape that does not fit, q_len without k_len, heads that are not there.
        TypeError: arguments of a wrong kind.

    Example:
        >>> import posenc_native as pn
        >>> matrix, lines = pn.plot.bias(pn.alibi_diagonals(8, 64, 64), q_len=64, k_len=64)
        >>> matrix.get_title(loc="left").splitlines()
        ['Bias of head 0 of 8', '64 queries × 64 keys']
        >>> float(lines.lines[0].get_ydata()[-1])  # 63 positions away, slope 1/2
        -31.5
    """
    function = "plot.bias"
    given = _read_bias(function, bias, q_len, k_len)
    count = given.heads
    offset = arguments.size(function, "q_offset", q_offset)
    (shown_head,) = read_indices(function, "head", [head], count)
    some = evenly(count, _SHOWN) if heads is None else heads
    chosen = read_indices(function, "heads", some, count)
    left, right = drawing.several_axes(
        function, ax, 2, (11.5, 4.6), ncols=2, gridspec_kw={"width_ratios": [1, 1.3]}
    )
    _draw_matrix(left, given, shown_head, offset)
    _draw_diagonals(right, given, chosen, offset)
    return drawing.as_array_of_axes([left, right])


@dataclass(frozen=True)
class _Bias:
    """Diagonals [H, q + k - 1], or matrices [H, q, k]."""

    values: FloatArray
    q_len: int
    k_len: int

    @property
    def heads(self) -> int:
        return len(self.values)

    def matrix(self, head: int) -> FloatArray:
        if self.values.ndim == 3:
            return np.asarray(self.values[head])
        laid = toeplitz_bias(self.values[head : head + 1], self.q_len, self.k_len)
        return np.asarray(laid[0], np.float64)

    def diagonals(self, head: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Least, mean and largest finite value of each diagonal; NaN where there is none."""
        values = np.where(np.isfinite(self.values[head]), self.values[head], np.nan)
        if values.ndim == 1:
            return values, values, values
        ends = range(1 - self.q_len, self.k_len)
        finite = [d[np.isfinite(d)] for d in (np.diagonal(values, end) for end in ends)]
        summed = [(d.min(), d.mean(), d.max()) if len(d) else (np.nan,) * 3 for d in finite]
        least, mean, largest = np.array(summed).T
        return least, mean, largest


def _read_bias(function: str, bias: Any, q_len: int | None, k_len: int | None) -> _Bias:
    values = read_numbers(function, "bias", bias)
    if (q_len is None) != (k_len is None):
        wrong_value(function, "q_len, k_len", "both, or none for a matrix", "one of them")
    if q_len is None or k_len is None:
        if values.ndim not in (2, 3) or 0 in values.shape:
            expected = "a matrix [H, q_len, k_len] or [q_len, k_len], or q_len and k_len with it"
            wrong_value(function, "bias", expected, f"shape {list(values.shape)}")
        values = values.reshape(-1, *values.shape[-2:])
        return _Bias(values, *values.shape[1:])
    queries = arguments.size(function, "q_len", q_len)
    keys = arguments.size(function, "k_len", k_len)
    if not queries or not keys:
        wrong_value(function, "q_len, k_len", "1 or more", f"{queries}, {keys}")
    entries = queries + keys - 1
    if values.ndim not in (1, 2) or values.shape[-1] != entries or not values.size:
        expected = f"diagonals [H, q_len + k_len - 1] = [H, {entries}]"
        wrong_value(function, "bias", expected, f"shape {list(values.shape)}")
    return _Bias(values.reshape(-1, entries), queries, keys)


def _draw_matrix(ax: Axes, given: _Bias, head: int, q_offset: int) -> None:
    values = given.matrix(head)
    finite = values[np.isfinite(values)]
    limits = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    extent = (-0.5, given.k_len - 0.5, q_offset + given.q_len - 0.5, q_offset - 0.5)
    drawing.shade(ax, values, extent, limits, "bias, added to the score")
    drawing.position_ticks(ax.xaxis)
    drawing.position_ticks(ax.yaxis)
    ax.set(xlabel="position of the key", ylabel="position of the query")
    sizes = f"{given.q_len:,} queries × {given.k_len:,} keys"
    drawing.set_title(ax, f"Bias of head {head} of {given.heads}\n{sizes}")


def _draw_diagonals(ax: Axes, given: _Bias, heads: list[int], q_offset: int) -> None:
    distances = np.arange(1 - given.q_len, given.k_len) - q_offset
    every = max(1, len(distances) // 8)
    ends = []
    varying = False
    look = drawing.palette(ax)
    for i, head in enumerate(heads):
        least, mean, largest = given.diagonals(head)
        colour = look.colours[i % len(look.colours)]
        ax.plot(
            distances, mean, color=colour, linestyle=drawing.DASHES[i % len(drawing.DASHES)],
            marker=drawing.MARKERS[i % len(drawing.MARKERS)], markersize=4.5, linewidth=1.2,
            markevery=(i * every // len(heads), every), label=f"head {head}",
        )  # fmt: skip
        if (largest > least).any():
            varying = True
            ax.fill_between(distances, least, largest, color=colour, alpha=0.15, linewidth=0)
        there = np.flatnonzero(np.isfinite(mean))
        if len(there):
            ends.append((float(mean[there[-1]]), float(distances[there[-1]]), f"head {head}"))
    ax.axvline(0, color=look.faint, linewidth=0.8, zorder=0)
    drawing.position_ticks(ax.xaxis)
    ax.set(xlabel="offset, position of the key - position of the query", ylabel="bias")
    drawing.open_frame(ax)
    drawing.label_ends(ax, ends)
    some = "" if len(heads) == given.heads else f" of {len(heads)} of {given.heads} heads"
    how = "means along diagonals, bands from least to largest" if varying else "one value an offset"
    drawing.set_title(ax, f"Its diagonals{some}\n{how}")
