"""How far apart two descriptions of a model rotate, against position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from posenc_native.checkpoints.explanations.compare import rotations_apart
from posenc_native.checkpoints.explanations.distances import VISIBLE, distances_at, first_visible
from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value

from .late import colors, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 160  # of a curve
_FURTHEST = 1 << 24


def compare(
    first: Any, second: Any, positions: int | None = None, *, ax: Axes | None = None
) -> Axes:
    """How far apart two checkpoints rotate, against position.

    A curve for each kind of layer shows the largest difference of cosines and sines up to each
    position, because those of single positions swing. The horizontal line is what bfloat16 can
    show, 2^-9. A mark on it is the first position at which a curve is beyond it.

    Args:
        first, second: as in `posenc_native.compare`: paths, mappings, names of presets, `Rotary`.
        positions: how many, 2 to 16,777,216; default the longest sequence that the two are meant
            for.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes; its first lines are the curves, labeled by the type of their layers.

    Raises:
        ValueError: as in `posenc_native.compare`; no layers that rotate as many dims in both.
        TypeError, OSError: as in `posenc_native.compare`.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.compare("llama-3", "llama-3.1", 8192)
        >>> ax.lines[0].get_label()
        'all layers'
    """
    function = "plot.compare"
    rotation, reference, matches, longest = rotations_apart(first, second, function)
    if positions is not None:
        longest = arguments.size(function, "positions", positions)
        if not 2 <= longest <= _FURTHEST:
            wrong_value(function, "positions", f"a count in 2 .. {_FURTHEST}", longest)
    if not matches:
        got = "none whose rotated dims are as many"
        wrong_value(function, "first, second", "layers that rotate in both", got)
    (ax,) = drawing.axes(function, ax, (8.0, 4.4))
    look, part = colors.palette(ax), drawing.fit(ax)
    places = np.unique(np.geomspace(1, longest - 1, _POINTS).astype(np.int64)).tolist()
    curves = [
        np.maximum.accumulate([error for _, error, _ in distances_at(*match.groups, places)])
        for match in matches
    ]
    for i, (match, errors) in enumerate(zip(matches, curves, strict=True)):
        color, dashes, _ = look.line(i)
        name = match.layer_type or "all layers"
        ax.plot(places, errors, color=color, linestyle=dashes,
                linewidth=1.6 * part, label=name)  # fmt: skip
    visible = [first_visible(*match.groups, longest) for match in matches]
    for i, first_seen in enumerate(visible):
        if first_seen is None:
            continue
        color, _, marker = look.line(i)
        at = max(first_seen, 1)
        overlaid = visible[i + 1 :].count(first_seen)  # more marks there, which it is to surround
        ax.scatter([at], [VISIBLE], s=45 * (1 + overlaid) * part**2, marker=marker,
                   facecolor=look.paper, edgecolor=color, linewidth=1.4 * part,
                   zorder=4)  # fmt: skip
        if not overlaid:
            earlier = sum(
                position is not None and position < first_seen for position in set(visible)
            )
            left = at > longest**0.75  # to the right there would be no room
            drawing.write(
                ax, f"from position {first_seen:,}", (at, VISIBLE), textcoords="offset points",
                xytext=(-6 if left else 6, -drawing.letters(ax) * (0.8 + 1.3 * earlier)),
                ha="right" if left else "left", va="top",
            )  # fmt: skip
    ax.axhline(VISIBLE, color=look.gray, linewidth=0.9, linestyle=":", zorder=1,
               label=f"what bfloat16 can show, 1/{1 / VISIBLE:.0f}")  # fmt: skip
    drawing.logarithmic_positions(ax)
    ax.set_yscale("log")
    least = min(float(errors[0]) for errors in curves)
    low = min(VISIBLE / 16, max(least, 1e-9))
    ax.set_ylim(low / 1.5, 3.0)
    title = f"Rotations apart: largest error of cos and sin\n{rotation.source}, {reference.source}"
    drawing.set_words(ax, title, "position", "largest error so far", drawing.OPEN)
    drawing.legend(ax, below=part < 1)
    return ax
