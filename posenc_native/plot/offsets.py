"""What depends on an offset: relative biases, and inner products of encodings of two positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.relative.bias import toeplitz_bias
from posenc_native.rotary.rotary import Rotary
from posenc_native.rotary.supports import rotary_in

from . import drawing
from .encodings import (
    Encoding,
    FloatArray,
    Positions,
    evenly,
    number,
    position_words,
    read_encoding,
    read_indices,
    read_numbers,
    read_positions,
    rotary_words,
    same_on_all_axes,
)

_SHOWN = 8
_STARTS = (0, 100, 10_000, 1_000_000)

_Curve = Callable[[int], FloatArray]  # of a first position


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
    count = len(given.values)
    offset = arguments.size(function, "q_offset", q_offset)
    (shown_head,) = read_indices(function, "head", [head], count)
    some = evenly(count, _SHOWN) if heads is None else heads
    chosen = read_indices(function, "heads", some, count)
    axes = drawing.axes(function, ax, (11.5, 4.6), 2, gridspec_kw={"width_ratios": [1, 1.3]})
    _draw_matrix(axes[0], given, shown_head, offset)
    _draw_diagonals(axes[1], given, chosen, offset)
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


def _draw_matrix(ax: Axes, given: _Bias, head: int, q_offset: int) -> None:
    values = given.matrix(head)
    finite = values[np.isfinite(values)]
    limits = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    image = drawing.shade(ax, values, limits, q_offset)
    drawing.colour_bar(image, [ax], "bias, added to the score")
    drawing.position_ticks(ax.xaxis)
    drawing.position_ticks(ax.yaxis)
    sizes = f"{given.q_len:,} queries × {given.k_len:,} keys"
    title = f"Bias of head {head} of {len(given.values)}\n{sizes}"
    drawing.set_words(ax, title, "position of the key", "position of the query")


def _draw_diagonals(ax: Axes, given: _Bias, heads: list[int], q_offset: int) -> None:
    distances = np.arange(1 - given.q_len, given.k_len) - q_offset
    ends = []
    varying = False
    for i, head in enumerate(heads):
        least, mean, largest = given.diagonals(head)
        colour, dashes, marker = drawing.palette(ax).line(i)
        ax.plot(
            distances, mean, color=colour, linestyle=dashes, marker=marker, markersize=4.5,
            linewidth=1.2, markevery=_some(i, heads, distances), label=f"head {head}",
        )  # fmt: skip
        if (largest > least).any():
            varying = True
            ax.fill_between(distances, least, largest, color=colour, alpha=0.15, linewidth=0)
        there = np.flatnonzero(np.isfinite(mean))
        if len(there):
            ends.append((float(mean[there[-1]]), float(distances[there[-1]]), f"head {head}"))
    shown, every = len(heads), len(given.values)
    some = "" if shown == every else f" of {shown} of {every} heads"
    how = "means along diagonals, bands from least to largest" if varying else "one value an offset"
    _offset_axis(
        ax, f"Its diagonals{some}\n{how}",
        "offset, position of the key - position of the query", "bias",
    )  # fmt: skip
    _label_ends(ax, ends)


def _some(i: int, curves: Sequence[Any], steps: Positions) -> slice:
    """Where curve i has its markers: apart from those of the others."""
    every = max(1, len(steps) // 8)
    return slice(i * every // len(curves), None, every)


def _offset_axis(ax: Axes, title: str, x: str, y: str) -> None:
    """What both pictures of curves have: offset 0 marked, whole offsets, their words."""
    ax.axvline(0, color=drawing.palette(ax).faint, linewidth=0.8, zorder=0)
    drawing.position_ticks(ax.xaxis)
    drawing.set_words(ax, title, x, y, drawing.OPEN)


def _label_ends(ax: Axes, ends: Sequence[tuple[float, float, str]]) -> None:
    """Write names beside the right ends (y, x, name) of lines; a legend if lines end together."""
    low, high = ax.get_ylim()
    order = sorted(ends)
    if not order or (len(order) > 1 and order[-1][0] - order[0][0] < 0.2 * (high - low)):
        ax.legend(frameon=False)
        return
    apart, grey = 0.055, drawing.palette(ax).grey
    at = [(y - low) / (high - low) for y, _, _ in order]
    for i in range(1, len(at)):
        at[i] = max(at[i], at[i - 1] + apart)
    if at[-1] > 1:
        for i, place in enumerate(at):  # back down, what has been pushed out
            at[i] = min(place, 1.0 - (len(at) - 1 - i) * apart)
    for (y, x, name), place in zip(order, at, strict=True):
        drawing.write(
            ax, name, (x, y), xytext=(1.03, place), textcoords="axes fraction", va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": grey, "linewidth": 0.5, "shrinkA": 0},
        )  # fmt: skip


def similarity(
    encoding: Any,
    offsets: int = 100,
    *,
    starts: Sequence[int] | None = None,
    q: Any = None,
    k: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Inner products of two positions by how far apart they are, from several first positions.

    For a table these are its rows at p and p + offset; for a `Rotary`, a query rotated to position
    p and a key rotated to p + offset. Where the offset alone decides, the curves of all p lie on
    each other; the title says how far apart they are at most. Each curve has its own markers, at
    its own offsets, so that all can be told apart where they coincide.

    Args:
        encoding: as in `heatmap`. The curves of a learned table differ.
        offsets: how many positions to go in either direction.
        starts: the first positions p; default 0, 100, 10,000 and 1,000,000, of a ready table three
            of its rows.
        q, k: of a `Rotary` only: vectors ``[..., head_dim]`` of one shape, before rotation; of
            several the mean of their products is shown. k is by default q, and q one vector of
            normal numbers from a fixed generator.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes; its first lines are the curves, in the order of `starts`.

    Raises:
        ValueError: as in `heatmap`; q and k of other shapes, or with a table; no starts.
        TypeError: arguments of a wrong kind.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.similarity(128, offsets=50)
        >>> float(ax.lines[0].get_ydata()[50])  # 64 pairs, each of sin^2 + cos^2
        64.0
        >>> [line.get_label() for line in ax.lines[:4]]
        ['from 0', 'from 100', 'from 10,000', 'from 1,000,000']
    """
    function = "plot.similarity"
    count = arguments.size(function, "offsets", offsets)
    steps = np.arange(-count, count + 1)
    rope = rotary_in(encoding)
    if rope is not None:
        shown = None
        curve, whose = _products_of_vectors(function, rope, q, k, steps)
        name = f"Rotary: products of rotated queries and keys\n{rotary_words(rope)}\n{whose}"
        label = "rotated query · rotated key"
    else:
        if q is not None or k is not None:
            wrong_value(function, "q, k", "None with a table, which has rows of its own", "others")
        shown = read_encoding(function, encoding)
        rows = shown.rows
        if starts is None and rows is not None:
            starts = sorted({rows // 4, rows // 2, 3 * rows // 4})
        curve = _products_of_rows(shown, steps)
        name = f"{shown.name}: products of rows\n{shown.parameters}"
        label = "inner product of two rows"
    first = _read_starts(function, _STARTS if starts is None else starts, count, shown)
    curves = [curve(start) for start in first]
    (ax,) = drawing.axes(function, ax, (8.0, 4.4))
    _draw_curves(ax, steps, first, curves)
    _offset_axis(ax, f"{name}, {_agreement(curves)}", "offset, positions", label)
    return ax


def similarity_matrix(
    encoding: Any,
    positions: Any = 100,
    *,
    q: Any = None,
    k: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Inner products of all pairs of positions, as shades: position by position.

    As in `similarity`, of rows of a table or of rotated queries and keys. Where the offset alone
    decides, diagonals are of one shade; a learned table shows where it knows no offset.

    Args:
        encoding: as in `heatmap`.
        positions: as in `heatmap`.
        q, k: as in `similarity`.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes.

    Raises:
        ValueError, TypeError: as in `similarity`.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.similarity_matrix(128, 50)
        >>> shades = ax.images[0].get_array()
        >>> shades.shape, round(float(shades[3, 3]), 3)  # 64 pairs, each of sin^2 + cos^2
        ((50, 50), 64.0)
    """
    function = "plot.similarity_matrix"
    rope = rotary_in(encoding)
    if rope is not None:
        found = read_positions(function, positions, None)
        values, whose = _products_of_all(function, rope, q, k, found)
        name = f"Rotary: products of rotated queries and keys\n{rotary_words(rope)}\n{whose}"
    else:
        if q is not None or k is not None:
            wrong_value(function, "q, k", "None with a table, which has rows of its own", "others")
        shown = read_encoding(function, encoding)
        found = read_positions(function, positions, shown)
        rows = shown.table(found)
        values = rows @ rows.T
        name = f"{shown.name}: products of rows\n{shown.parameters}"
    (ax,) = drawing.axes(function, ax, (6.4, 5.4))
    image = drawing.shade_pairs(ax, values, found)
    drawing.colour_bar(image, [ax], "inner product")
    words = f"{name}, {position_words(found)}"
    drawing.set_words(ax, words, "position of the key", "position of the query")
    return ax


def _read_starts(function: str, starts: Any, offsets: int, shown: Encoding | None) -> list[int]:
    if arguments.is_count(starts):
        wrong_type(function, "starts", "a sequence of positions", type(starts).__name__)
    first = read_positions(function, starts, shown, "starts")
    arguments.check_dtype(function, "starts", first.dtype, arguments.INTEGER_DTYPES)
    for start in first.tolist():
        if not -(2**63) <= start - offsets <= start + offsets < 2**63:
            wrong_value(function, "starts", f"positions {offsets} within int64", start)
    return [int(start) for start in first]


def _products_of_vectors(
    function: str, rope: Rotary, q: Any, k: Any, steps: Positions
) -> tuple[_Curve, str]:
    """Products of rotated queries and keys, and whose they are."""
    query, key, whose = _read_vectors(function, rope, q, k)

    def curve(start: int) -> FloatArray:
        at = np.array([start])
        products = (_turned(rope, query, at) * _turned(rope, key, at + steps)).sum(-1)
        return np.asarray(products.mean(0), np.float64)

    return curve, whose


def _products_of_all(
    function: str, rope: Rotary, q: Any, k: Any, positions: Positions
) -> tuple[FloatArray, str]:
    """Products of queries and keys at all pairs of positions, and whose they are."""
    query, key, whose = _read_vectors(function, rope, q, k)
    queries, keys = (_turned(rope, each, positions) for each in (query, key))
    return np.asarray((queries @ keys.swapaxes(-1, -2)).mean(0), np.float64), whose


def _read_vectors(
    function: str, rope: Rotary, q: Any, k: Any
) -> tuple[FloatArray, FloatArray, str]:
    """Queries and keys [count, head_dim] before rotation, and whose they are."""
    whose = "k = q, given" if k is None else "q and k given"
    if q is None:
        if k is not None:
            wrong_value(function, "q", "queries, where k is given", None)
        q = np.random.default_rng(0).standard_normal(rope.head_dim)
        whose = "k = q, random"
    query = read_numbers(function, "q", q)
    key = query if k is None else read_numbers(function, "k", k)
    if not query.size or query.shape[-1:] != (rope.head_dim,):
        expected = f"shape [..., head_dim] = [..., {rope.head_dim}]"
        wrong_value(function, "q", expected, list(query.shape))
    arguments.check_shape(function, "k", key.shape, query.shape)
    count = query.size // rope.head_dim
    rows = [each.reshape(count, rope.head_dim) for each in (query, key)]
    return rows[0], rows[1], whose + (f", mean of {count:,}" if count > 1 else "")


def _turned(rope: Rotary, vectors: FloatArray, positions: Positions) -> FloatArray:
    """Vectors [count, head_dim] at each of the positions: [count, positions, head_dim]."""
    rows = vectors[:, None].astype(np.float32)
    tokens = np.repeat(rows, len(positions), 1)
    places = same_on_all_axes(rope, positions)
    return np.asarray(rope.apply(tokens, places, layout="hsd"), np.float64)


def _products_of_rows(shown: Encoding, steps: Positions) -> _Curve:
    """Products with the row of a start; NaN where a ready table has no row."""

    def curve(start: int) -> FloatArray:
        others = start + steps
        there = np.ones(len(steps), bool)
        if shown.rows is not None:
            there = (others >= 0) & (others < shown.rows)
        result = np.full(len(steps), np.nan)
        result[there] = shown.table(others[there]) @ shown.table(np.array([start]))[0]
        return result

    return curve


def _draw_curves(ax: Axes, steps: Positions, first: list[int], curves: list[FloatArray]) -> None:
    look = drawing.palette(ax)
    names = [f"from {start:,}" for start in first]
    handles = []
    for i, (name, curve) in enumerate(zip(names, curves, strict=True)):
        colour, dashes, marker = look.line(i)
        (line,) = ax.plot(steps, curve, color=colour, linewidth=0.9, linestyle=dashes, label=name)
        some = _some(i, curves, steps)
        dots = ax.scatter(  # above all lines
            steps[some], curve[some], s=45, marker=marker, facecolor=look.paper, edgecolor=colour,
            linewidth=1.4, zorder=4,
        )  # fmt: skip
        handles.append((line, dots))
    ax.legend(
        handles, names, title="position\nof the first", frameon=False, loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )  # fmt: skip


def _agreement(curves: list[FloatArray]) -> str:
    """How far curves are apart, beside their largest value."""
    together = np.array(curves)
    together = together[:, np.isfinite(together).all(0)]
    if len(curves) < 2 or not together.size:
        return "one curve" if len(curves) < 2 else "curves that share no offset"
    apart = float((together.max(0) - together.min(0)).max())
    far = number(apart) if apart >= 0.01 else f"{apart:.1e}"
    return f"curves at most {far} apart, of {number(float(np.abs(together).max()))}"
