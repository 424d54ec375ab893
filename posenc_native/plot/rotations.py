"""Rotary encoding as arrows: pairs of dims are vectors in a plane, which it turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls.arguments import is_array, wrong_value
from posenc_native.core.calls.views import rotary_view
from posenc_native.encodings.rotary.rotary import Rotary, rotary_of

from .encodings import (
    FloatArray,
    Positions,
    number,
    position_name,
    position_words,
    read_indices,
    read_numbers,
    read_positions,
    rotary_words,
    same_on_all_axes,
)
from .late import colors, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from posenc_native.core.calls.kinds import SupportsRotary

_TOKENS = 6  # as many arrows of a pair as can be told apart
_TURNS = (120.0, 40.0)  # degrees from the first token to the last, of pairs between fast and slow
_RADIUS = 0.48  # of a circle in its cell; the labels of tips are beside the cell
# Below a circle are two parts of words: on a line, on a line each, or the first alone. The first of
# these forms is written that leaves the cells so many points, or most of what any form leaves.
_FORMS: tuple[Callable[[tuple[str, str]], str], ...] = (" ".join, "\n".join, itemgetter(0))
_ENOUGH, _MOST = 72.0, 0.9


def rotation(
    rope: SupportsRotary,
    positions: Any = None,
    *,
    x: Any = None,
    head: int = 0,
    pairs: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    ax: Any = None,
) -> npt.NDArray[np.object_]:
    """Queries before and after rotary encoding, as arrows.

    Rotary encoding takes the dims of a head in pairs. Each pair is a vector in a plane, and the
    token at position p has it turned by ``p * inv_freq`` (Su et al. 2021, section 3.2): fast pairs
    turn by a radian from one position to the next, slow ones hardly at all. Lengths stay the same.
    Each arrow is a token. Arrows go from gray to full color with the position, which is written at
    their tips.

    Without `x` one vector is drawn at six positions: it shows what the encoding does. With the
    queries or keys of a model as `x`, the picture shows what becomes of them.

    Args:
        rope: how vectors are rotated: a `Rotary` or a module that has a `Rotary`.
        positions: an int n for 0 .. n-1, or ``[s]``; one for each token, default 0, 1, 2 ...
        x: queries or keys before rotation, ``[s, head_dim]``, or with axes in front, such as batch
            and heads; default (1, 0) in each pair, for six tokens or for `positions`.
        head: the head of `x` to draw, counted through the batch.
        pairs: numbers of pairs; default up to four, from the fastest to the slowest.
        tokens: numbers of tokens; default the first six.
        ax: two Axes to draw into; None for a new figure.

    Returns:
        Two Axes: before, after. The arrows of each are one Quiver, ``ax.collections[0]``, in the
        order of pairs, then tokens. For all dims at once, draw ``heatmap(x)`` and
        ``heatmap(rope.apply(x, layout="sd"))``.

    Raises:
        ValueError: x of another shape; positions that are not one for each token; pairs or tokens
            that do not exist; a Rotary without pairs.
        TypeError: arguments of a wrong type.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> before, after = pn.plot.rotation(pn.Rotary(64), pairs=[0])
        >>> arrows = after.collections[0]
        >>> np.degrees(np.arctan2(arrows.V, arrows.U)).round().tolist()  # 57.3 degrees a position
        [0.0, 57.0, 115.0, 172.0, -131.0, -74.0]
    """
    function = "plot.rotation"
    rope = rotary_of(function, "rope", rope)
    count = len(rope.inv_freq)
    if not count:
        wrong_value(function, "rope", "a Rotary that rotates", rope)
    dims = _dims_of_pairs(rope)
    if x is None:
        places = read_positions(function, _TOKENS if positions is None else positions)
        values = np.zeros((len(places), rope.head_dim))
        values[:, dims[:, 0]] = 1.0
    else:
        values = _read_head(function, x, head, rope.head_dim)
        places = read_positions(function, len(values) if positions is None else positions)
    if len(places) != len(values):
        wrong_value(function, "positions", f"{len(values)} of them, one a token", len(places))
    indices = range(min(_TOKENS, len(values))) if tokens is None else tokens
    rows = read_indices(function, "tokens", indices, len(values))
    at = places[rows]
    chosen = _from_fast_to_slow(rope, at) if pairs is None else pairs
    chosen = read_indices(function, "pairs", chosen, count)
    turned = rope.apply(values, same_on_all_axes(rope, places), layout="sd")
    axes = drawing.axes(function, ax, _figure(len(chosen)), 2)
    # Of both panels: [panel, token, pair, 2].
    vectors = np.stack(
        [np.asarray(matrix, float)[rows][:, dims[chosen]] for matrix in (values, turned)]
    )
    lengths = np.linalg.norm(vectors, axis=-1)
    longest = lengths.max((0, 1), where=np.isfinite(lengths), initial=0.0)
    vectors /= np.where(longest > 0, longest, 1.0)[:, None]
    names = [
        (f"pair {i}", f"(dims {a}, {b})") for i, (a, b) in zip(chosen, dims[chosen], strict=True)
    ]
    turns = [(f"{number(math.degrees(rope.inv_freq[i]))}°", "a position") for i in chosen]
    for panel, arrows, below in zip(axes, vectors, _below(axes, at, names, turns), strict=True):
        _draw_planes(panel, arrows, at, *below)
    prefix = "the same vector at each, " if x is None else ""
    drawing.set_title(axes[0], f"Before rotary encoding\n{prefix}{position_words(at)}")
    drawing.set_title(axes[1], f"After: turned by position × frequency\n{rotary_words(rope)}")
    return axes


def _read_head(function: str, x: Any, head: int, head_dim: int) -> FloatArray:
    """The tokens of one head, [s, head_dim]; the others are not converted."""
    several = is_array(x) and x.ndim > 2 and math.prod(x.shape)
    heads = x.reshape(-1, *x.shape[-2:]) if several else [x]
    (index,) = read_indices(function, "head", [head], len(heads))
    values = read_numbers(function, "x", heads[index])
    if values.ndim != 2 or values.shape[1] != head_dim or not len(values):
        expected = f"shape [s, head_dim] = [s, {head_dim}], or with axes in front"
        wrong_value(function, "x", expected, list(np.shape(x)))
    return values


def _dims_of_pairs(rope: Rotary) -> npt.NDArray[np.int64]:
    """The two dims of each pair, [P, 2]."""
    view = rotary_view(
        "Rotary", (1, rope.head_dim), "sd", rope.pairing, rope.rotary_start, len(rope.inv_freq)
    )
    block, within = np.divmod(np.arange(view.pairs), view.block // 2)
    first = view.start + block * view.block + within
    return np.stack([first, first + view.block // 2], -1)


def _from_fast_to_slow(rope: Rotary, at: Positions) -> list[int]:
    """The fastest pair, two pairs that turn visibly between these positions, the slowest."""
    speeds = np.degrees(np.abs(rope.inv_freq))
    span = float(np.abs(at.astype(float) - float(at[0])).max()) or 1.0
    chosen = [int(speeds.argmax()), int(speeds.argmin())]
    chosen += [int(np.abs(speeds * span - turn).argmin()) for turn in _TURNS]
    return sorted(set(chosen), key=lambda i: (-speeds[i], i))


def _figure(count: int) -> tuple[float, float]:
    """Width and height in inches, of two panels that have about as many rows as columns."""
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    cell = min(2.2, 6.0 / columns)
    return 2 * max(columns * cell, 3.6), 0.5 + rows * (cell + 0.1)


def _below(
    axes: npt.NDArray[np.object_], at: Positions, *words: list[tuple[str, str]]
) -> list[tuple[drawing.Cells, list[str]]]:
    """The cells of each of these Axes, and the words below them.

    Both have the same form of words, so that their cells are arranged alike.
    """
    first, last = (len(position_name(at[i])) for i in (0, -1))
    size = drawing.letters(axes[0])
    # Beside a cell there is room for a label of one token, and for half of "first–last" more.
    around = (size * (0.3 * (first + last + 1 + max(first, last)) + 0.4), 1.2 * size)
    tried = []
    for form in _FORMS:
        written = [[form(parts) for parts in panel] for panel in words]
        lines = [line for panel in written for text in panel for line in text.splitlines()]
        line_count = 1 + written[0][0].count("\n")
        wide = max(map(len, lines))
        tried.append((written, [
            drawing.Cells(ax, len(panel), line_count, wide, around)
            for ax, panel in zip(axes, written, strict=True)
        ]))  # fmt: skip
    units = [min(grid.unit for grid in cells) for _, cells in tried]
    least = min(_ENOUGH, _MOST * max(units))
    written, cells = tried[next(i for i, unit in enumerate(units) if unit >= least)]
    return list(zip(cells, written, strict=True))


def _draw_planes(
    ax: Axes, vectors: FloatArray, at: Positions, cells: drawing.Cells, below: list[str]
) -> None:
    """A plane for each pair, vectors [token, pair, 2] in it, and words below."""
    from matplotlib.patches import Circle

    look, part = colors.palette(ax), drawing.fit(ax)
    size = drawing.letters(ax)
    cells.show(ax)
    for i, ((x, y), words) in enumerate(zip(cells.centers, below, strict=True)):
        ax.add_patch(Circle((x, y), _RADIUS, facecolor=look.paper, edgecolor=look.faint))
        for ends in (([x - _RADIUS, x + _RADIUS], [y, y]), ([x, x], [y - _RADIUS, y + _RADIUS])):
            ax.plot(*ends, color=look.faint, linewidth=0.8, zorder=0.5)
        _write_tips(ax, vectors[:, i], at, (x, y), size / cells.unit)
        drawing.write(ax, words, (x, y + cells.words), ha="center", va="top", in_layout=False)
    tokens, pairs = vectors.shape[:2]
    x, y = np.repeat(np.array(cells.centers), tokens, 0).T
    u, v = vectors.swapaxes(0, 1).reshape(-1, 2).T
    ax.quiver(
        x, y, u, v, color=look.ordered(tokens) * pairs, angles="xy", scale_units="xy",
        scale=1 / _RADIUS, units="inches", width=0.022 * part, headwidth=4.5, headlength=5.5,
        headaxislength=5.0, zorder=3,
    )  # fmt: skip


def _write_tips(
    ax: Axes, vectors: FloatArray, at: Positions, center: tuple[float, float], size: float
) -> None:
    """The position of each arrow beyond its tip, as far as these labels do not overlap.

    Tokens that follow each other and have their tips close together have one label. Longer arrows
    go first. size: of the letters, in cells.
    """
    tips = _RADIUS * vectors
    runs: list[list[int]] = []
    for i in range(len(tips)):
        near = runs and np.linalg.norm(tips[i] - tips[runs[-1][-1]]) < 1.5 * size
        if near:
            runs[-1].append(i)
        else:
            runs.append([i])
    reach = {run[0]: float(np.linalg.norm(tips[run], axis=-1).max()) for run in runs}
    taken: list[tuple[float, float, float]] = []  # x, y and half of the width
    for run in sorted(runs, key=lambda run: -reach[run[0]]):
        middle = tips[run].mean(0)
        length = math.hypot(*middle)
        if not length > 0:  # NaN
            continue
        names = [position_name(at[i]) for i in run]
        words = names[0] if len(run) == 1 else f"{names[0]}–{names[-1]}"
        half = 0.3 * size * len(words)
        # The nearest edge of the label is a little beyond the tip.
        x, y = middle / length
        away = reach[run[0]] + 0.02 + abs(x) * half + abs(y) * 0.55 * size
        x, y = away * x, away * y
        if any(abs(x - a) < half + b and abs(y - c) < 1.1 * size for a, c, b in taken):
            continue
        taken.append((x, y, half))
        ax.text(
            center[0] + x, center[1] + y, words, ha="center", va="center", in_layout=False,
            fontsize=drawing.letters(ax), color=colors.palette(ax).ink,
        )  # fmt: skip
