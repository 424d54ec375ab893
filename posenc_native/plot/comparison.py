"""How far apart two descriptions of a model rotate, against position."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_value
from posenc_native.explanations.compare import rotations_apart
from posenc_native.explanations.distances import VISIBLE, distances_at, first_visible

from . import drawing

_POINTS = 160  # of a curve
_FURTHEST = 1 << 24


def compare(
    first: Any, second: Any, positions: int | None = None, *, ax: Axes | None = None
) -> Axes:
    """How far cosines and sines of two descriptions are apart, a curve for each kind of layer.

    At each position the largest error up to there, since errors of single positions swing. The
    line across is what bfloat16 can show, 2^-9; a mark on a curve is the first position beyond it.

    Args:
        first, second: as in `posenc_native.compare`: paths, mappings, names of presets, `Rotary`.
        positions: how many, 2 or more; default the longest sequence that the two are meant for.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes; its first lines are the curves, labelled by the type of their layers.

    Raises:
        ValueError: as in `posenc_native.compare`; no layers whose rotations can be laid side by
            side.
        TypeError, OSError: as in `posenc_native.compare`.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.compare("llama-3", "llama-3.1", 8192)
        >>> ax.lines[0].get_label()
        'all layers'
    """
    function = "plot.compare"
    one, other, matches, longest = rotations_apart(first, second, function)
    if positions is not None:
        longest = arguments.size(function, "positions", positions)
        if not 2 <= longest <= _FURTHEST:
            wrong_value(function, "positions", f"a count in 2 .. {_FURTHEST}", longest)
    if not matches:
        got = "none whose rotated dims are as many"
        wrong_value(function, "first, second", "layers that rotate in both", got)
    (ax,) = drawing.axes(function, ax, (8.0, 4.4))
    look = drawing.palette(ax)
    places = np.unique(np.geomspace(1, longest - 1, _POINTS).astype(np.int64)).tolist()
    curves = [
        np.maximum.accumulate([error for _, error, _ in distances_at(*match.groups, places)])
        for match in matches
    ]
    for i, (match, errors) in enumerate(zip(matches, curves, strict=True)):
        colour, dashes, _ = look.line(i)
        name = match.layer_type or "all layers"
        ax.plot(places, errors, color=colour, linestyle=dashes,
                linewidth=1.4, label=name)  # fmt: skip
    for i, match in enumerate(matches):
        seen = first_visible(*match.groups, longest)
        if seen is not None:
            colour, _, marker = look.line(i)
            at = max(seen, 1)
            ax.scatter([at], [VISIBLE], s=45, marker=marker, facecolor=look.paper,
                       edgecolor=colour, linewidth=1.4, zorder=4)  # fmt: skip
            drawing.write(ax, f"from {seen:,}", (at, VISIBLE), xytext=(6, -10 - 12 * i),
                          textcoords="offset points", ha="left", va="top")  # fmt: skip
    ax.axhline(VISIBLE, color=look.grey, linewidth=0.9, linestyle="--", zorder=1)
    drawing.write(ax, "what bfloat16 can show, 1/512", (longest - 1, VISIBLE), xytext=(0, 3),
                  textcoords="offset points", ha="right", va="bottom")  # fmt: skip
    drawing.logarithmic_positions(ax)
    ax.set_yscale("log")
    least = min(float(errors[0]) for errors in curves)
    low = min(VISIBLE / 16, max(least, 1e-9))
    ax.set_ylim(low / 1.5, 3.0)
    title = f"Rotations apart\n{one.source}, {other.source}"
    drawing.set_words(
        ax, title, "position", "largest error of a cosine or sine so far", drawing.OPEN
    )
    if len(matches) > 1:
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax
