"""Tables as pictures: a whole table as shades, single rows and columns as waves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from posenc_native.core.calls.arguments import wrong_value

from .encodings import (
    DIVERGING,
    Encoding,
    FloatArray,
    Positions,
    evenly,
    has_scale,
    number,
    position_words,
    read_encoding,
    read_indices,
    read_position,
    read_positions,
)
from .late import colors, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SAMPLES = 16  # of a curve between two positions
_DOTS = 3.4  # points from one position to the next, below which dots would run together


def heatmap(
    encoding: Any,
    positions: Any = 100,
    *,
    cmap: Any = DIVERGING,
    ax: Axes | None = None,
) -> Axes:
    """A table as shades: positions by dimensions.

    It is a sinusoidal table, or the cosines and sines of a rotary encoding. White is 0, red is
    positive and blue is negative. Where a pixel holds several positions or dimensions, it shows
    their mean. Waves too short for the pixels fade to white, and no pattern appears that is not in
    the table.

    Args:
        encoding: an int dim, a `SinusoidalSpec`, a `Rotary` (cosines of all pairs, then sines) or a
            table ``[positions, dim]``: see the head of posenc_native.plot.
        positions: an int n for 0 .. n-1 (of a table at most all its rows), or ``[n]``.
        cmap: a colormap of matplotlib; its middle is 0. In gray print, cividis keeps the sign.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes.

    Raises:
        ValueError: an odd dim, a spec of several coordinates, a table without two axes, positions
            that it does not have, an unknown colormap.
        TypeError: arguments of a wrong type.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.heatmap(128)
        >>> print(ax.get_title(loc="left"))
        Sinusoidal table
        dim 128, base 10,000, interleaved, positions 0 .. 99
        >>> ax.images[0].get_clim()
        (-1.0, 1.0)
        >>> ax = pn.plot.heatmap(128, cmap="PuOr")
    """
    function = "plot.heatmap"
    shown = read_encoding(function, encoding)
    places = read_positions(function, positions, shown)
    shades = colors.read_colormap(function, cmap)
    values = shown.table(places)
    # Wider where columns are many: two pixels each keep neighboring sines and cosines apart.
    (ax,) = drawing.axes(function, ax, (8.0 if shown.width <= 256 else 12.0, 4.8))
    image = drawing.shade_positions(ax, values, shades, places, _largest(shown, values))
    drawing.set_words(ax, shown.title(position_words(places)), shown.columns, "position")
    drawing.color_bar(image, ax, "value")
    return ax


def _largest(shown: Encoding, values: FloatArray) -> float:
    """As far as values go from 0: 1 where there is nothing but sines and cosines."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0
    return 1.0 if shown.pairs and largest <= 1 else largest


def waves(
    encoding: Any,
    positions: Any = 100,
    *,
    dimensions: Sequence[int] | None = None,
    position: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Single dimensions across positions, with wavelengths.

    Along positions, every dimension has its own lane from -1 to 1. The arrow below a lane is as
    long as the wavelength, ``2 * pi / frequency`` (Vaswani et al. 2017, section 3.5:
    ``2 * pi * base ** (2i / dim)``). With `position`, the picture is the row of that position
    across all dimensions: a line of sines and a line of cosines. Marks say where the wavelength is
    10, 100 ... positions.

    Args:
        encoding: as in `heatmap`.
        positions: as in `heatmap`; increasing.
        dimensions: the columns to draw; default five, with wavelengths from a twentieth of the
            positions to four times as many.
        position: one position across all dimensions, instead of dimensions across positions.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes.

    Raises:
        ValueError: as in `heatmap`; columns that the table does not have; `dimensions` together
            with `position`.
        TypeError: arguments of a wrong type.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.waves(128, 200, dimensions=[0, 40])
        >>> [text.get_text() for text in ax.texts]
        ['wavelength 6.283', 'wavelength 111.7']
        >>> pn.plot.waves(128, position=50).get_xlabel()
        'dimension'
    """
    function = "plot.waves"
    shown = read_encoding(function, encoding)
    if position is None:
        places = read_positions(function, positions, shown)
        return _dimensions_across_positions(function, shown, places, dimensions, ax)
    if dimensions is not None:
        wrong_value(function, "dimensions", "None with position, a row of all of them", "both")
    places = read_position(function, position, shown)
    return _position_across_dimensions(function, shown, places, ax)


def _dimensions_across_positions(
    function: str, shown: Encoding, positions: Positions, dimensions: Any, ax: Axes | None
) -> Axes:
    if not (np.diff(positions) > 0).all():
        wrong_value(function, "positions", "positions that increase", "others")
    if not has_scale(positions):
        expected = "positions that the numbers of an axis can tell apart"
        wrong_value(function, "positions", expected, position_words(positions))
    if dimensions is None:
        chosen = _from_short_to_long_waves(shown, positions)
    else:
        chosen = read_indices(function, "dimensions", dimensions, shown.width)
    exact = shown.table(positions)[:, chosen]
    largest = _largest(shown, exact)
    fine, between = positions, exact
    if _has_between(shown, positions):
        fine = np.linspace(positions[0], positions[-1], (len(positions) - 1) * _SAMPLES + 1)
        between = shown.table(fine)[:, chosen]
    (ax,) = drawing.axes(function, ax, (8.0, 1.0 + 0.9 * len(chosen)))
    from matplotlib.transforms import Affine2D

    first, last = float(positions[0]), float(positions[-1])
    names = [shown.column_name(column) for column in chosen]
    look, part = colors.palette(ax), drawing.fit(ax)
    # Between two lanes there is room for a line of words, as high as the lanes will be.
    words = min(0.6, 1.25 * drawing.letters(ax) * len(chosen) / (0.8 * drawing.points(ax)[1]))
    swing = min(0.36, (1 - words) / 2)
    apart = drawing.points(ax)[0] / len(positions)
    for lane, column in enumerate(chosen):
        # Lines keep the numbers of the table; it is the picture that moves them to their lane.
        place = Affine2D().scale(1, swing / largest).translate(0, -lane) + ax.transData
        drawn: dict[str, Any] = {"color": look.colors[0], "transform": place}
        ax.axhline(-lane, color=look.faint, linewidth=0.8, zorder=1)
        ax.plot(fine, between[:, lane], linewidth=1.2 * part, label=names[lane], **drawn)
        if apart >= _DOTS:
            ax.plot(positions, exact[:, lane], "o", markersize=min(3.2, 0.7 * apart), **drawn)
        pair = shown.pair_of(column)
        if pair is not None and not shown.logarithm:
            _mark_wavelength(ax, pair.wavelength, -lane - 0.5, first, last)
    ax.set_yticks([-lane for lane in range(len(chosen))], names)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(0.45 - len(chosen) - words / 2, swing + 0.06)
    margin = 0.01 * max(last - first, 1.0)
    ax.set_xlim(first - margin, last + margin)
    drawing.position_ticks(ax, "x")
    heights = f"each lane from {number(-largest)} to {number(largest)}"
    drawing.set_words(
        ax, shown.title(position_words(positions), heights), "position",
        "dimension" if shown.columns == "dimension" else "pair", (*drawing.OPEN, "left"),
    )  # fmt: skip
    return ax


def _has_between(shown: Encoding, positions: Positions) -> bool:
    """Whether the curve between positions is known, and so few samples of it can follow it."""
    return (
        bool(shown.pairs)
        and 1 < len(positions) <= 8192
        and bool((np.diff(positions) <= 1).all())
        and bool(np.abs(positions).max() < 2**40)
    )


def _mark_wavelength(ax: Axes, wavelength: float, y: float, first: float, last: float) -> None:
    """A line as long as a wave, from the first position on; an arrow where the wave goes on."""
    complete, look = wavelength <= last - first, colors.palette(ax)
    if not math.isfinite(wavelength):
        drawing.write(ax, "does not turn", (first, y), va="center", color=look.gray)
        return
    from matplotlib.patches import FancyArrowPatch

    end = first + wavelength if complete else last
    style = "|-|,widthA=0.25,widthB=0.25" if complete else "]->,widthA=0.25,lengthA=0"
    ax.add_patch(
        FancyArrowPatch(
            (first, y), (end, y), arrowstyle=style, mutation_scale=10 * drawing.fit(ax),
            color=look.gray, shrinkA=0, shrinkB=0, linewidth=1.0,
        )
    )  # fmt: skip
    words = f"wavelength {number(wavelength)}" + ("" if complete else ", longer than shown")
    # Beside a short arrow; above the line it would hide the wave.
    inside = not complete or wavelength > 0.5 * (last - first)
    drawing.write(
        ax, words, ((first + end) / 2 if inside else end, y), xytext=(0 if inside else 5, 0),
        textcoords="offset points", ha="center" if inside else "left", va="center",
        bbox={"facecolor": look.paper if inside else "none", "edgecolor": "none", "pad": 1},
    )  # fmt: skip


def _from_short_to_long_waves(shown: Encoding, positions: Positions) -> list[int]:
    """Five columns: of waves from a twentieth of what is shown to four times as much."""
    waves = [(p.wavelength, p.sine) for p in shown.pairs if p.sine is not None and p.inv_freq]
    if not waves:
        return evenly(shown.width, 5)
    waves.sort()
    lengths = np.log([wavelength for wavelength, _ in waves])
    wanted = np.linspace(math.log(len(positions) / 20), math.log(4 * len(positions)), 5)
    nearest = {int(np.abs(lengths - length).argmin()) for length in wanted}
    return [waves[i][1] for i in sorted(nearest)]


def _position_across_dimensions(
    function: str, shown: Encoding, position: Positions, ax: Axes | None
) -> Axes:
    values = shown.table(position)[0]
    (ax,) = drawing.axes(function, ax, (8.0, 3.6))
    sines = [pair.sine for pair in shown.pairs if pair.sine is not None]
    cosines = [pair.cosine for pair in shown.pairs if pair.cosine is not None]
    unpaired = sorted(set(range(shown.width)) - {*sines, *cosines})
    look = colors.palette(ax)
    size = max(1.5, min(4.0, 0.55 * drawing.points(ax)[0] / max(len(sines), len(unpaired))))
    for name, columns, line, fill, color in (
        ("sine", sines, "-o", look.colors[0], look.colors[0]),
        ("cosine", cosines, "--s", look.paper, look.colors[1]),
        ("value", unpaired, "-^", look.gray, look.gray),
    ):
        if columns:
            ax.plot(
                columns, values[columns], line, label=name, linewidth=drawing.fit(ax), color=color,
                markersize=size, markerfacecolor=fill, markeredgewidth=size / 4,
            )  # fmt: skip
    largest = _largest(shown, values)
    legend = drawing.height_of_words(ax) if shown.pairs else 0.0
    low = -1.08 * largest
    ax.set_ylim(low - 2.16 * largest * legend / (1 - legend), 1.08 * largest)
    _mark_lengths(ax, shown)
    drawing.dimension_ticks(ax, shown.width)
    ax.set_xlim(-1 - 0.01 * shown.width, shown.width + 0.01 * shown.width)
    if shown.pairs:
        drawing.legend(ax, loc="lower right", ncols=2, borderpad=0.1, borderaxespad=0.2)
    title = shown.title(position_words(position))
    drawing.set_words(ax, title, shown.columns, "value", drawing.OPEN)
    return ax


def _mark_lengths(ax: Axes, shown: Encoding) -> None:
    """Where the wavelength is 10, 100, 1000 ... positions."""
    turning = [pair for pair in shown.pairs if pair.inv_freq]
    if len(turning) < 2 or shown.logarithm:
        return
    lengths = np.array([pair.wavelength for pair in turning])
    order = np.argsort(lengths)
    columns = np.array([(pair.sine, pair.cosine) for pair in turning], float).T  # None is NaN
    if np.nanmax(np.abs(columns[0] - columns[1])) <= 1:  # side by side: one mark for both
        columns = columns.mean(0, keepdims=True)
    marks = [
        mark for side in columns for mark in drawing.powers_of_ten(lengths[order], side[order])
    ]
    for x, _ in marks:
        ax.axvline(x, color=colors.palette(ax).gray, linewidth=0.8, linestyle=":", zorder=1)
    # A scaling may bring them too close together to be named.
    far = [abs(x - before) > 0.05 * shown.width for (before, _), (x, _) in pairwise(marks)]
    named = [mark for mark, apart in zip(marks, [True, *far], strict=False) if apart]
    drawing.length_ticks(ax, "wavelength, positions", named)
