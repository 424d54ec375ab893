"""Inner products of encodings of two positions, by their distance or for all pairs of positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.encodings.rotary.rotary import Rotary, rotary_in

from .encodings import (
    DIVERGING,
    Encoding,
    FloatArray,
    Positions,
    number,
    position_words,
    read_encoding,
    read_numbers,
    read_positions,
    rotary_words,
    same_on_all_axes,
)
from .late import colors, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STARTS = (0, 100, 10_000, 1_000_000)
_SEEN = 0.005  # of the height of a picture: curves closer than this are one line

_Curve = Callable[[int], FloatArray]  # of a first position


def similarity(
    encoding: Any,
    offsets: int = 250,
    *,
    starts: Sequence[int] | None = None,
    q: Any = None,
    k: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Inner products against the offset: how they decay.

    For a table, these are products of its rows at p and p + offset. For a rotary encoding, they are
    products of a query rotated to position p and a key rotated to p + offset; of several, the mean.
    By default, it is the mean over all queries of length 1, with the key equal to the query, and a
    dashed line shows how fast the bound of the RoFormer paper falls from 1 at offset 0. It may be
    below the curve. Both fall as tokens move apart: the long-term decay.

    One curve belongs to each first position p. Where the offset alone decides, all curves are
    equal: the picture has one line for them, and its title gives their largest difference. Where
    they differ, as those of a learned table, each has its own color, dashes and markers.

    Args:
        encoding: as in `heatmap`. The `starts` of a ready table are by default three of its rows.
        offsets: how many positions to go in either direction.
        starts: the first positions, one curve each; default 0, 100, 10,000 and 1,000,000.
        q: for a rotary encoding: queries ``[..., head_dim]`` before rotation; default the mean of
            all.
        k: for a rotary encoding: keys of the same shape; default the queries.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes. Its first lines are the curves: one, or one for each of `starts`.

    Raises:
        ValueError: as in `heatmap`; q and k of different shapes, or with a table; no starts.
        TypeError: arguments of a wrong type.

    Source: Su et al. 2021 (RoFormer), section 3.4.3. If every dim is rotated, the mean is
    ``sum(cos(offset * inv_freq)) / P``. With ``S_j = sum_{i < j} exp(1j * offset * inv_freq[i])``,
    j = 1 .. P, a product is at most ``sum_j |S_j|`` times the largest difference of the contents of
    neighboring pairs. For the mean this is ``mean_j |S_j|``: (P + 1) / 2 at offset 0, where the
    product is 1. The line is the bound divided by its value at offset 0.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.similarity(128, offsets=50)
        >>> float(ax.lines[0].get_ydata()[50])  # 64 pairs, each of sin^2 + cos^2
        64.0
        >>> ax = pn.plot.similarity(pn.Rotary(128))
        >>> [line.get_label() for line in ax.lines[:2]]
        ['mean of q · k', "RoFormer's bound, scaled to 1 at 0"]
    """
    function = "plot.similarity"
    count = arguments.size(function, "offsets", offsets)
    steps = np.arange(-count, count + 1)
    rope = rotary_in(encoding)
    bound = None
    if rope is not None:
        shown = None
        curve, name = _products_of_vectors(function, rope, q, k, steps)
        label = "rotated q · k"
        if q is None and len(rope.inv_freq):
            bound = _scaled_bound(rope, steps)
    else:
        shown, name = _read_table(function, encoding, q, k)
        rows = shown.rows
        if starts is None and rows is not None:
            starts = sorted({rows // 4, rows // 2, 3 * rows // 4})
        curve = _products_of_rows(shown, steps)
        label = "inner product"
    first = _read_starts(function, _STARTS if starts is None else starts, count, shown)
    curves = [curve(start) for start in first]
    (ax,) = drawing.axes(function, ax, (8.0, 4.4))
    look, part = colors.palette(ax), drawing.fit(ax)
    low, high = _limits(curves)
    apart = _apart(curves)
    if apart is not None and apart <= _SEEN * (high - low):
        legend = "mean of q · k" if bound is not None else label
        merged = curves[0].copy()
        for curve_of_other in curves[1:]:  # rows that the table does not have are gaps
            merged = np.where(np.isfinite(merged), merged, curve_of_other)
        ax.plot(steps, merged, color=look.colors[0], linewidth=1.6 * part, label=legend)
    else:
        _draw_curves(ax, steps, first, curves)
    if bound is not None:
        color, dashes, _ = look.line(1)
        legend = "RoFormer's bound, scaled to 1 at 0"
        ax.plot(steps, bound, color=color, linestyle=dashes, linewidth=1.4 * part, label=legend)
        high = max(high, float(bound.max()))
    if len(ax.get_legend_handles_labels()[0]) > 1:
        drawing.legend(ax, below=part < 1, borderaxespad=0.2)
    for line in (ax.axhline, ax.axvline):
        line(0, color=look.faint, linewidth=0.8, zorder=0)
    ax.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
    ax.margins(x=0.02)
    drawing.position_ticks(ax, "x")
    words = f"{name}, {_agreement(first, apart)}"
    drawing.set_words(ax, words, drawing.OFFSET, label, drawing.OPEN)
    return ax


def similarity_matrix(
    encoding: Any,
    positions: Any = 100,
    *,
    q: Any = None,
    k: Any = None,
    cmap: Any = DIVERGING,
    ax: Axes | None = None,
) -> Axes:
    """Inner products of all pairs of positions, as shades.

    The numbers are those of `similarity`: of rows of a table, or of rotated queries and keys. White
    is 0, red is positive, blue is negative. Where the offset alone decides, each diagonal has one
    shade; those of a learned table vary.

    Args:
        encoding: as in `heatmap`.
        positions: as in `heatmap`.
        q: for a rotary encoding: queries ``[..., head_dim]`` before rotation; default the mean of
            all.
        k: for a rotary encoding: keys of the same shape; default the queries.
        cmap: a colormap of matplotlib; its middle is 0.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes.

    Raises:
        ValueError, TypeError: as in `similarity`; an unknown colormap.

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
        places = read_positions(function, positions, None)
        values, name = _products_of_all(function, rope, q, k, places)
    else:
        shown, name = _read_table(function, encoding, q, k)
        places = read_positions(function, positions, shown)
        rows = shown.table(places)
        values = rows @ rows.T
    shades = colors.read_colormap(function, cmap)
    (ax,) = drawing.axes(function, ax, (6.4, 5.4))
    image = drawing.shade_pairs(ax, values, shades, places)
    words = f"{name}, {position_words(places)}"
    drawing.set_words(ax, words, *drawing.KEYS_AND_QUERIES)
    drawing.color_bar(image, ax, "inner product")
    return ax


def _read_table(function: str, encoding: Any, q: Any, k: Any) -> tuple[Encoding, str]:
    """The table, and the title of products of its rows."""
    shown = read_encoding(function, encoding)
    if q is not None or k is not None:
        wrong_value(function, "q, k", "a rotary encoding with them", f"a {shown.name.lower()}")
    return shown, f"{shown.name}: products of rows\n{shown.parameters}"


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
    """Products of rotated queries and keys, and their title."""
    query, key, title = _read_vectors(function, rope, q, k)

    def curve(start: int) -> FloatArray:
        at = np.array([start])
        products = (_turned(rope, query, at) * _turned(rope, key, at + steps)).sum(-1)
        return np.asarray(products.mean(0), np.float64)

    return curve, title


def _products_of_all(
    function: str, rope: Rotary, q: Any, k: Any, positions: Positions
) -> tuple[FloatArray, str]:
    """Products of queries and keys at all pairs of positions, and their title."""
    query, key, title = _read_vectors(function, rope, q, k)
    queries, keys = (_turned(rope, vector, positions) for vector in (query, key))
    return np.asarray((queries @ keys.swapaxes(-1, -2)).mean(0), np.float64), title


def _read_vectors(
    function: str, rope: Rotary, q: Any, k: Any
) -> tuple[FloatArray, FloatArray, str]:
    """Queries and keys [count, head_dim] before rotation, and the title of their products."""
    whose = "k = q, given" if k is None else "q and k given"
    if q is None:
        if k is not None:
            wrong_value(function, "q", "queries, where k is given", None)
        # A pair (a, b) times itself, turned by an angle, is (a^2 + b^2) * cos(angle): of vectors of
        # one length, those with equal dims have the mean product.
        q = np.full(rope.head_dim, max(rope.head_dim, 1) ** -0.5)
        whose = "k = q, mean over all q of length 1"
    query = read_numbers(function, "q", q)
    key = query if k is None else read_numbers(function, "k", k)
    if not query.size or query.shape[-1:] != (rope.head_dim,):
        expected = f"shape [..., head_dim] = [..., {rope.head_dim}]"
        wrong_value(function, "q", expected, list(query.shape))
    arguments.check_shape(function, "k", key.shape, query.shape)
    count = query.size // rope.head_dim
    rows = [vector.reshape(count, rope.head_dim) for vector in (query, key)]
    whose += f", mean of {count:,}" if count > 1 else ""
    title = f"Rotary: products of queries and keys\n{rotary_words(rope)}\n{whose}"
    return rows[0], rows[1], title


def _turned(rope: Rotary, vectors: FloatArray, positions: Positions) -> FloatArray:
    """Vectors [count, head_dim] at each of the positions: [count, positions, head_dim]."""
    rows = vectors[:, None].astype(np.float32)
    tokens = np.repeat(rows, len(positions), 1)
    places = same_on_all_axes(rope, positions)
    return np.asarray(rope.apply(tokens, places, layout="hsd"), np.float64)


def _scaled_bound(rope: Rotary, steps: Positions) -> FloatArray:
    """RoFormer's bound, the mean of |S_1| .. |S_P|, divided by its value at offset 0."""
    partial = np.zeros(len(steps), complex)
    total = np.zeros(len(steps))
    for frequency in rope.inv_freq:
        partial += np.exp(1j * frequency * steps)
        total += np.abs(partial)
    pairs = len(rope.inv_freq)
    return total / (pairs * (pairs + 1) / 2)


def _products_of_rows(shown: Encoding, steps: Positions) -> _Curve:
    """Products with the row of a start; NaN where a ready table has no row."""

    def curve(start: int) -> FloatArray:
        ends = start + steps
        present = np.ones(len(steps), bool)
        if shown.rows is not None:
            present = (ends >= 0) & (ends < shown.rows)
        result = np.full(len(steps), np.nan)
        result[present] = shown.table(ends[present]) @ shown.table(np.array([start]))[0]
        return result

    return curve


def _draw_curves(ax: Axes, steps: Positions, first: list[int], curves: list[FloatArray]) -> None:
    """A line with its own color, dashes and markers for each first position."""
    look, part = colors.palette(ax), drawing.fit(ax)
    for i, (start, curve) in enumerate(zip(first, curves, strict=True)):
        color, dashes, marker = look.line(i)
        ax.plot(
            steps, curve, color=color, linewidth=1.2 * part, linestyle=dashes, marker=marker,
            markersize=6 * part, markerfacecolor=look.paper, markeredgewidth=1.3 * part,
            markevery=drawing.markers_apart(ax, i, len(curves), len(steps)),
            label=f"from {start:,}",
        )  # fmt: skip


def _limits(curves: list[FloatArray]) -> tuple[float, float]:
    """From 0, or the least number below, to the largest: a product of 0 is what says nothing."""
    values = np.array(curves)
    values = values[np.isfinite(values)]
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    return (low, high) if low < high else (low, low + 1.0)


def _apart(curves: list[FloatArray]) -> float | None:
    """How far curves are apart, at offsets that all have; None if there are none."""
    together = np.array(curves)
    shared = np.isfinite(together).all(0)
    if len(curves) == 1:
        return 0.0
    if not shared.any():
        return None
    return float(np.ptp(together[:, shared], 0).max())


def _agreement(first: list[int], apart: float | None) -> str:
    """Where curves begin, and how far they are apart."""
    if len(first) == 1:
        return f"from position {first[0]:,}"
    starts = ",\xa0".join(drawing.short(start) for start in first)
    if apart is None:
        return f"from positions {starts}, which share no offset"
    if apart >= 0.01:
        return f"from positions {starts}, at most {number(apart)} apart"
    if apart == 0:
        return f"from positions {starts}, the same"
    # Rounding errors: those of another processor have other digits.
    return f"from positions {starts}, less than 1e{math.floor(math.log10(apart)) + 1:03d} apart"
