"""Names beside the right ends of lines, moved apart where the lines end close together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import IdentityTransform, ScaledTranslation

from . import colors, drawing
from .encodings import evenly

_LEADER, _SAMPLE, _GAP = 10.0, 20.0, 4.0  # points, from the Axes to the words
_APART = 1.15  # from one line of words to the next, in heights of a line


class EndLabels(Artist):
    """A sample and a name for each of some lines, in the order in which they end.

    Their places follow when the picture is drawn, from the height that the Axes has then: names
    never overlap. Where there are more than fit, some lines have none, evenly.

    Args:
        ax: where the lines are.
        lines: the lines, whose labels are the names.
    """

    def __init__(self, ax: Axes, lines: Sequence[Line2D]) -> None:
        super().__init__()
        self.set_zorder(-1)  # drawn first: it moves the words
        self.set_in_layout(False)
        ends = [end for line in lines if (end := _end(line)) is not None]
        self._ends = sorted(zip(ends, range(len(ends)), strict=True), key=lambda pair: pair[0][1])
        look = colors.palette(ax)
        beside = ax.transAxes + ScaledTranslation(
            (_LEADER + _SAMPLE + _GAP) / 72, 0, ax.figure.dpi_scale_trans
        )
        drawn = [line for line in lines if _end(line) is not None]
        self._lines = [drawn[i] for _, i in self._ends]
        self._words = [
            ax.text(
                1.0, 0.5, str(line.get_label()), transform=beside, va="center", color=look.ink,
                fontsize=drawing.letters(ax),
            )
            for line in self._lines
        ]  # fmt: skip
        self._gray = look.gray
        ax.add_artist(self)

    def draw(self, renderer: Any) -> None:
        """Move the names, and draw the samples and what leads to them."""
        ax = self.axes
        if not self._words or ax is None or not self.get_visible():
            return
        box = ax.bbox
        high = _APART * max(artist.get_window_extent(renderer).height for artist in self._words)
        most = max(1, int(box.height / high) + 1)
        count = len(self._words)
        named = evenly(count, most)
        at = [ax.transData.transform(end) for end, _ in self._ends]
        places = dict(
            zip(named, spread([at[i][1] for i in named], high, box.y0, box.y1), strict=True)
        )
        dot = renderer.points_to_pixels(1.0)
        for i, (words, line) in enumerate(zip(self._words, self._lines, strict=True)):
            words.set_visible(i in places)
            if i not in places:
                continue
            y = places[i]
            words.set_y((y - box.y0) / box.height)
            start = box.x1 + _LEADER * dot
            leader = Line2D(
                [at[i][0] + 2 * dot, start - 2 * dot], [at[i][1], y], color=self._gray,
                linewidth=0.5,
            )  # fmt: skip
            sample = Line2D([], [])
            sample.update_from(line)
            sample.set(
                data=(np.linspace(start, start + _SAMPLE * dot, 3), [y] * 3), markevery=[1],
                transform=IdentityTransform(), clip_on=False, visible=True,
            )  # fmt: skip
            for artist in (leader, sample):
                artist.set_figure(ax.figure)
                artist.draw(renderer)


def _end(line: Line2D) -> tuple[float, float] | None:
    """The last point of a line that is a number."""
    x, y = (np.asarray(numbers, float) for numbers in line.get_data())
    finite = np.flatnonzero(np.isfinite(y))
    return (float(x[finite[-1]]), float(y[finite[-1]])) if len(finite) else None


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places as near to those wanted as can be, in their order, so far apart, from low to high.

    Args:
        wanted: increasing.
        apart: at least so far from one to the next; less if they would not fit otherwise.
        low, high: the least and the largest place.
    """
    count = len(wanted)
    apart = min(apart, (high - low) / max(count - 1, 1))
    # Each moved back by those below it: then they may be equal, but not fall. Neighbors that would
    # fall are pooled to their mean (isotonic regression).
    pools: list[tuple[float, int]] = []
    for i, place in enumerate(wanted):
        mean, size = place - i * apart, 1
        while pools and pools[-1][0] > mean:
            before, its_size = pools.pop()
            mean = (before * its_size + mean * size) / (size + its_size)
            size += its_size
        pools.append((mean, size))
    last = high - (count - 1) * apart
    even = [min(max(mean, low), last) for mean, size in pools for _ in range(size)]
    return [place + i * apart for i, place in enumerate(even)]
