"""Relative biases: the matrix of one head, and lines against the offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.encodings.relative.bias import toeplitz_bias

from .encodings import DIVERGING, FloatArray, evenly, read_indices, read_numbers
from .late import colors, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

_SHOWN = 8


def bias(
    bias: Any,
    *,
    q_len: int | None = None,
    k_len: int | None = None,
    q_offset: int = 0,
    head: int = 0,
    heads: Sequence[int] | None = None,
    name: str | None = None,
    cmap: Any = DIVERGING,
    ax: Any = None,
) -> npt.NDArray[np.object_]:
    """A relative bias in two panels: the matrix of one head, and lines of several heads.

    The matrix has a row for each query and a column for each key: the number that is added to
    their score before the softmax. White is 0, blue is negative, red is positive. Cells without a
    number (-inf of a mask, NaN) are hatched.

    A bias that depends on the offset alone is one line for each head. Where a ready matrix varies
    along its diagonals (FIRE, a mask), the line is their mean, and a band goes from the smallest
    number to the largest. Each line has its name at its right end; with more lines than names
    have room for, some have none.

    Args:
        bias: with `q_len` and `k_len`, diagonals ``[H, q_len + k_len - 1]`` or
            ``[q_len + k_len - 1]``, as `alibi_diagonals` and `t5_diagonals` make them; without, a
            matrix ``[H, q_len, k_len]`` or ``[q_len, k_len]``.
        q_len, k_len: how many queries and keys.
        q_offset: position of the first query among the keys.
        head: the head whose matrix is drawn.
        heads: the heads whose lines are drawn; default up to eight, evenly from the first to the
            last.
        name: the first line of the title, such as "ALiBi".
        cmap: a colormap of matplotlib; its middle is 0.
        ax: two Axes to draw into; None for a new figure.

    Returns:
        Two Axes: the matrix, and the lines, which are labeled "head 0" and so on.

    Raises:
        ValueError: a shape that does not fit, q_len without k_len, heads that the bias does not
            have, an unknown colormap.
        TypeError: arguments of a wrong type.

    Example:
        >>> import posenc_native as pn
        >>> diagonals = pn.relative.alibi_diagonals(8, 64, 64)
        >>> matrix, lines = pn.plot.bias(diagonals, q_len=64, k_len=64, name="ALiBi")
        >>> matrix.get_title(loc="left").splitlines()
        ['ALiBi', 'head 0 of 8, 64 queries × 64 keys']
        >>> float(lines.lines[0].get_ydata()[-1])  # 63 positions away, slope 1/2
        -31.5
    """
    function = "plot.bias"
    shown = _read_bias(function, bias, q_len, k_len)
    count = len(shown.values)
    offset = arguments.size(function, "q_offset", q_offset)
    (shown_head,) = read_indices(function, "head", [head], count)
    indices = evenly(count, _SHOWN) if heads is None else heads
    chosen = read_indices(function, "heads", indices, count)
    if not (name is None or isinstance(name, str)):
        wrong_type(function, "name", "a str or None", type(name).__name__)
    shades = colors.read_colormap(function, cmap)
    axes = drawing.axes(function, ax, (11.5, 4.6), 2, gridspec_kw={"width_ratios": [1, 1.2]})
    _draw_matrix(axes[0], shown, shown_head, offset, shades, name or "Bias")
    _draw_lines(axes[1], shown, chosen, offset)
    return axes


@dataclass(frozen=True)
class _Bias:
    """Diagonals [H, q + k - 1], or matrices [H, q, k]."""

    values: FloatArray
    q_len: int
    k_len: int

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
        shape = values.shape[-2:]
        expected = "a matrix [H, q_len, k_len] or [q_len, k_len], or q_len and k_len with it"
        fits = len(shape) == 2
        queries, keys = shape if fits else (0, 0)
    else:
        queries = arguments.size(function, "q_len", q_len)
        keys = arguments.size(function, "k_len", k_len)
        if not queries or not keys:
            wrong_value(function, "q_len, k_len", "1 or more", f"{queries}, {keys}")
        shape = (queries + keys - 1,)
        expected = f"diagonals [H, q_len + k_len - 1] = [H, {shape[0]}]"
        fits = values.shape[-1:] == shape
    if not fits or values.ndim > len(shape) + 1 or not values.size:
        wrong_value(function, "bias", expected, f"shape {list(values.shape)}")
    return _Bias(values.reshape(-1, *shape), queries, keys)


def _draw_matrix(
    ax: Axes, bias: _Bias, head: int, q_offset: int, cmap: Colormap, name: str
) -> None:
    image = drawing.shade(ax, bias.matrix(head), cmap, q_offset)
    drawing.position_ticks(ax, "x")
    drawing.position_ticks(ax, "y")
    sizes = f"{bias.q_len:,} queries × {bias.k_len:,} keys"
    title = f"{name}\nhead {head} of {len(bias.values)}, {sizes}"
    drawing.set_words(ax, title, *drawing.KEYS_AND_QUERIES)
    drawing.color_bar(image, ax, "added to the score")


def _draw_lines(ax: Axes, bias: _Bias, heads: list[int], q_offset: int) -> None:
    from .labels import EndLabels

    offsets = np.arange(1 - bias.q_len, bias.k_len) - q_offset
    look, part = colors.palette(ax), drawing.fit(ax)
    lines, varying = [], False
    for i, head in enumerate(heads):
        least, mean, largest = bias.diagonals(head)
        color, dashes, marker = look.line(i)
        marks = drawing.markers_apart(ax, i, len(heads), len(offsets))
        lines += ax.plot(
            offsets, mean, color=color, linestyle=dashes, marker=marker, markersize=4.5 * part,
            linewidth=1.3 * part, markevery=marks, label=f"head {head}",
        )  # fmt: skip
        if (largest > least).any():
            varying = True
            ax.fill_between(offsets, least, largest, color=color, alpha=0.15, linewidth=0)
    ax.axvline(0, color=look.faint, linewidth=0.8, zorder=0)
    drawing.position_ticks(ax, "x")
    selection = (
        "" if len(heads) == len(bias.values) else f"{len(heads)} of {len(bias.values)} heads"
    )
    how = "means along diagonals, bands from least to largest" if varying else ""
    told = ", ".join(filter(None, (selection, how)))
    drawing.set_words(
        ax, f"One line a head, against the offset\n{told}".strip(),
        drawing.OFFSET, "added to the score", drawing.OPEN,
    )  # fmt: skip
    EndLabels(ax, lines)
