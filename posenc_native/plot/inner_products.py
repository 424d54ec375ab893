"""Inner products by offset: what makes an encoding one of relative positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.rotary.rotary import Rotary
from posenc_native.rotary.supports import rotary_in

from . import drawing
from .encodings import (
    Encoding,
    FloatArray,
    number,
    read_encoding,
    read_numbers,
    read_positions,
    rotary_words,
    same_on_all_axes,
)

_STARTS = (0, 100, 10_000, 1_000_000)


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
        query, key = _vectors(function, rope, q, k)
        name = "Rotary: products of rotated queries and keys"
        words = rotary_words(rope)
        whose = (
            "q and k given"
            if k is not None
            else "k = q, given"
            if q is not None
            else ("k = q, random")
        )
        whose += f", mean of {len(query):,}" if len(query) > 1 else ""
        words = f"{words}\n{whose}"
        first = _read_starts(function, _STARTS if starts is None else starts, count)
        curves = [_rotated(rope, query, key, start, steps) for start in first]
        label = "rotated query · rotated key"
    else:
        if q is not None or k is not None:
            wrong_value(function, "q, k", "None with a table, which has rows of its own", "others")
        shown = read_encoding(function, encoding)
        name, words = f"{shown.name}: products of rows", shown.parameters
        if starts is None:
            rows = shown.rows
            starts = _STARTS if rows is None else sorted({rows // 4, rows // 2, 3 * rows // 4})
        first = _read_starts(function, starts, count, shown)
        curves = [_products(shown.table, start, steps, shown.rows) for start in first]
        label = "inner product of two rows"
    ax = drawing.one_axes(function, ax, (8.0, 4.4))
    _draw_curves(ax, steps, first, curves)
    ax.set(xlabel="offset, positions", ylabel=label)
    drawing.set_title(ax, f"{name}\n{words}, {_agreement(curves)}")
    return ax


def _read_starts(
    function: str, starts: Any, offsets: int, shown: Encoding | None = None
) -> npt.NDArray[Any]:
    if arguments.is_count(starts):
        wrong_type(function, "starts", "a sequence of positions", type(starts).__name__)
    first = read_positions(function, starts, shown, "starts")
    arguments.check_dtype(function, "starts", first.dtype, arguments.INTEGER_DTYPES)
    for start in first.tolist():
        if not -(2**63) <= start - offsets <= start + offsets < 2**63:
            wrong_value(function, "starts", f"positions {offsets} within int64", start)
    return first.astype(np.int64)


def _vectors(function: str, rope: Rotary, q: Any, k: Any) -> tuple[FloatArray, FloatArray]:
    """Queries and keys [n, head_dim]."""
    if q is None:
        if k is not None:
            wrong_value(function, "q", "queries, where k is given", None)
        q = np.random.default_rng(0).standard_normal(rope.head_dim)
    query = read_numbers(function, "q", q)
    key = query if k is None else read_numbers(function, "k", k)
    if not query.size or query.shape[-1:] != (rope.head_dim,):
        expected = f"shape [..., head_dim] = [..., {rope.head_dim}]"
        wrong_value(function, "q", expected, list(query.shape))
    arguments.check_shape(function, "k", key.shape, query.shape)
    return query.reshape(-1, rope.head_dim), key.reshape(-1, rope.head_dim)


def _rotated(
    rope: Rotary, query: FloatArray, key: FloatArray, start: Any, steps: npt.NDArray[Any]
) -> FloatArray:
    def turned(vectors: FloatArray, positions: npt.NDArray[Any]) -> FloatArray:
        tokens = np.repeat(vectors[:, None].astype(np.float32), len(positions), 1)
        positions = same_on_all_axes(rope, positions)
        return np.asarray(rope.apply(tokens, positions, layout="hsd"), np.float64)

    at = np.array([int(start)])
    return np.asarray((turned(query, at) * turned(key, at + steps)).sum(-1).mean(0), np.float64)


def _products(table: Any, start: Any, steps: npt.NDArray[Any], rows: int | None) -> FloatArray:
    """Products with the row of start; NaN where a ready table has no row."""
    others = int(start) + steps
    there = np.ones(len(steps), bool) if rows is None else (others >= 0) & (others < rows)
    result = np.full(len(steps), np.nan)
    result[there] = table(others[there]) @ table(np.array([int(start)]))[0]
    return result


def _draw_curves(
    ax: Axes, steps: npt.NDArray[Any], first: npt.NDArray[Any], curves: list[FloatArray]
) -> None:
    every = max(1, len(steps) // 8)
    handles = []
    look = drawing.palette(ax)
    for i, (start, curve) in enumerate(zip(first, curves, strict=True)):
        colour = look.colours[i % len(look.colours)]
        dashes = drawing.DASHES[i % len(drawing.DASHES)]
        (line,) = ax.plot(
            steps, curve, color=colour, linewidth=0.9, linestyle=dashes, label=f"from {start:,}"
        )
        some = slice(i * every // len(curves), None, every)
        dots = ax.scatter(  # above all lines
            steps[some], curve[some], s=45, marker=drawing.MARKERS[i % len(drawing.MARKERS)],
            facecolor=look.paper, edgecolor=colour, linewidth=1.4, zorder=4,
        )  # fmt: skip
        handles.append((line, dots))
    names = [f"from {start:,}" for start in first]
    ax.legend(
        handles, names, title="position\nof the first", frameon=False, loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )  # fmt: skip
    ax.axvline(0, color=look.faint, linewidth=0.8, zorder=0)
    drawing.position_ticks(ax.xaxis)
    drawing.open_frame(ax)


def _agreement(curves: list[FloatArray]) -> str:
    """How far curves are apart, beside their largest value."""
    together = np.array(curves)
    together = together[:, np.isfinite(together).all(0)]
    if len(curves) < 2 or not together.size:
        return "one curve" if len(curves) < 2 else "curves that share no offset"
    apart = float((together.max(0) - together.min(0)).max())
    far = number(apart) if apart >= 0.01 else f"{apart:.1e}"
    return f"curves at most {far} apart, of {number(float(np.abs(together).max()))}"
