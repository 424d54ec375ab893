"""Tables as pictures: all of one as shades, single rows and columns as waves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch
from matplotlib.transforms import Affine2D

from posenc_native.base.arguments import wrong_value

from . import drawing
from .encodings import (
    Encoding,
    evenly,
    has_scale,
    is_range,
    number,
    position_name,
    position_words,
    read_encoding,
    read_indices,
    read_position,
    read_positions,
)

_SAMPLES = 16  # of a curve between two positions
_DOTS = 128  # positions that can be told apart as dots


def heatmap(encoding: Any, positions: Any = 100, *, ax: Axes | None = None) -> Axes:
    """A table as shades: positions downwards, dimensions to the right, and a colour bar.

    Where a pixel holds several positions or dimensions it shows their mean, so waves too short to
    be seen become the shade of 0; nothing that is not in the table appears.

    Args:
        encoding: an int dim, a `SinusoidalSpec`, a `Rotary` (cosines of all pairs, then sines) or a
            table ``[positions, dim]``: see the head of posenc_native.plot.
        positions: an int n for 0 .. n-1 (of a table at most all its rows), or ``[n]``.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes.

    Raises:
        ValueError: an odd dim, a spec of several coordinates, a table without two axes, positions
            that it does not have.
        TypeError: arguments of a wrong kind.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.heatmap(128)
        >>> print(ax.get_title(loc="left"))
        Sinusoidal table
        dim 128, base 10,000, interleaved, positions 0 .. 99
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('dimension', 'position')
    """
    function = "plot.heatmap"
    shown = read_encoding(function, encoding)
    found = read_positions(function, positions, shown)
    values = shown.table(found)
    # Wider where columns are many: two pixels each keep neighbouring sines and cosines apart.
    ax = drawing.one_axes(function, ax, (8.0 if shown.width <= 256 else 12.0, 4.8))
    neighbours = is_range(found) and has_scale(found)  # else every row has its name
    first = float(found[0]) if neighbours else 0.0
    extent = (-0.5, shown.width - 0.5, first + len(found) - 0.5, first - 0.5)
    drawing.shade(ax, values, extent, _limits(shown, values), "value")
    drawing.dimension_ticks(ax.xaxis, shown.width)
    drawing.position_ticks(ax.yaxis, None if neighbours else [position_name(one) for one in found])
    ax.set(xlabel=shown.columns, ylabel="position")
    drawing.set_title(ax, shown.title(position_words(found)))
    return ax


def _limits(shown: Encoding, values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """-1 to 1 where there is nothing but sines and cosines; else as far as values go, 0 in the
    middle.
    """
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0
    if shown.pairs and largest <= 1:
        largest = 1.0
    return -largest, largest


def waves(
    encoding: Any,
    positions: Any = 100,
    *,
    dimensions: Sequence[int] | None = None,
    position: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Single columns of a table along positions, wavelengths marked; or a single row of it.

    Along positions every dimension has a lane of its own, from -1 to 1, and below it an arrow as
    long as its wavelength, ``2 * pi / frequency`` (for the paper's table
    ``2 * pi * base ** (2i / dim)``). With `position` the row of that position is drawn across
    all dimensions, sines and cosines apart, with marks where the wavelength is 10, 100 ...

    Args:
        encoding: as in `heatmap`.
        positions: as in `heatmap`; increasing.
        dimensions: the columns to draw; by default five, with wavelengths from some that can just
            be followed to some longer than what is shown.
        position: draw the row of this position instead.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes.

    Raises:
        ValueError: as in `heatmap`; columns that the table does not have; `dimensions` together
            with `position`.
        TypeError: arguments of a wrong kind.

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
    if position is not None:
        if dimensions is not None:
            wrong_value(function, "dimensions", "None with position, a row of all of them", "both")
        return _position_across_dimensions(function, shown, position, ax)
    return _dimensions_across_positions(
        function, shown, read_positions(function, positions, shown), dimensions, ax
    )


def _dimensions_across_positions(
    function: str,
    shown: Encoding,
    positions: npt.NDArray[Any],
    dimensions: Sequence[int] | None,
    ax: Axes | None,
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
    largest = _limits(shown, exact)[1]
    fine, between = positions, exact
    if _has_between(shown, positions):
        fine = np.linspace(positions[0], positions[-1], (len(positions) - 1) * _SAMPLES + 1)
        between = shown.table(fine)[:, chosen]
    ax = drawing.one_axes(function, ax, (8.0, 1.0 + 0.9 * len(chosen)))
    first, last = float(positions[0]), float(positions[-1])
    look = drawing.palette(ax)
    for lane, column in enumerate(chosen):
        # Lines keep the numbers of the table; it is the picture that moves them to their lane.
        place = Affine2D().scale(1, 0.36 / largest).translate(0, -lane) + ax.transData
        ax.axhline(-lane, color=look.faint, linewidth=0.8, zorder=1)
        ax.plot(
            fine, between[:, lane], color=look.colours[0], linewidth=1.0, transform=place,
            label=shown.column_name(column),
        )  # fmt: skip
        if len(positions) <= _DOTS:
            ax.plot(
                positions, exact[:, lane], "o", color=look.colours[0], markersize=3.0,
                transform=place,
            )  # fmt: skip
        pair = shown.pair_of(column)
        if pair is not None:
            _mark_wavelength(ax, pair.wavelength, -lane - 0.46, first, last)
    names = [shown.column_name(column) for column in chosen]
    ax.set_yticks([-lane for lane in range(len(chosen))], names)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-len(chosen) + 0.35, 0.5)
    margin = 0.01 * max(last - first, 1.0)
    ax.set_xlim(first - margin, last + margin)
    drawing.position_ticks(ax.xaxis)
    heights = f"each lane from {number(-largest)} to {number(largest)}"
    ax.set(xlabel="position", ylabel="dimension" if shown.columns == "dimension" else "pair")
    ax.spines[["top", "right", "left"]].set_visible(False)
    drawing.set_title(ax, shown.title(position_words(positions), heights))
    return ax


def _has_between(shown: Encoding, positions: npt.NDArray[Any]) -> bool:
    """Whether the curve between positions is known, and so few samples of it can follow it."""
    return (
        bool(shown.pairs)
        and 1 < len(positions) <= 8192
        and bool((np.diff(positions) <= 1).all())
        and bool(np.abs(positions).max() < 2**40)
    )


def _mark_wavelength(ax: Axes, wavelength: float, y: float, first: float, last: float) -> None:
    """A line as long as a wave, from the first position on; an arrow where the wave goes on."""
    whole, look = wavelength <= last - first, drawing.palette(ax)
    if not math.isfinite(wavelength):
        ax.annotate("does not turn", (first, y), va="center", fontsize="small", color=look.grey)
        return
    end = first + wavelength if whole else last
    style = "|-|,widthA=0.25,widthB=0.25" if whole else "]->,widthA=0.25,lengthA=0"
    ax.add_patch(
        FancyArrowPatch(
            (first, y),
            (end, y),
            arrowstyle=style,
            mutation_scale=10,
            color=look.grey,
            shrinkA=0,
            shrinkB=0,
            linewidth=1.0,
        )
    )
    words = f"wavelength {number(wavelength)}" + ("" if whole else ", longer than shown")
    # Beside a short arrow; above the line it would hide the wave.
    inside = not whole or wavelength > 0.5 * (last - first)
    ax.annotate(
        words, ((first + end) / 2 if inside else end, y),
        xytext=(0, 0) if inside else (5, 0), textcoords="offset points",
        ha="center" if inside else "left", va="center", fontsize="small", color=look.ink,
        bbox={"facecolor": ax.get_facecolor() if inside else "none", "edgecolor": "none", "pad": 1},
    )  # fmt: skip


def _from_short_to_long_waves(shown: Encoding, positions: npt.NDArray[Any]) -> list[int]:
    """Five columns: of waves from a twentieth of what is shown to four times as much."""
    there = [(p.wavelength, p.sine) for p in shown.pairs if p.sine is not None and p.inv_freq]
    if not there:
        return evenly(shown.width, 5)
    there.sort()
    lengths = np.log([wavelength for wavelength, _ in there])
    wanted = np.linspace(math.log(len(positions) / 20), math.log(4 * len(positions)), 5)
    nearest = {int(np.abs(lengths - length).argmin()) for length in wanted}
    return [there[i][1] for i in sorted(nearest)]


def _position_across_dimensions(
    function: str, shown: Encoding, position: int, ax: Axes | None
) -> Axes:
    found = read_position(function, position, shown)
    values = shown.table(found)[0]
    ax = drawing.one_axes(function, ax, (8.0, 3.6))
    sines = [pair.sine for pair in shown.pairs if pair.sine is not None]
    cosines = [pair.cosine for pair in shown.pairs if pair.cosine is not None]
    others = sorted(set(range(shown.width)) - {*sines, *cosines})
    size, look = 4.0 if shown.width <= 128 else 2.5, drawing.palette(ax)
    for name, columns, line, fill, colour in (
        ("sine", sines, "-o", look.colours[0], look.colours[0]),
        ("cosine", cosines, "--s", look.paper, look.colours[1]),
        ("value", others, "-^", look.grey, look.grey),
    ):
        if columns:
            ax.plot(
                columns, values[columns], line, label=name, linewidth=1.0, markersize=size,
                markerfacecolor=fill, markeredgewidth=1.0, color=colour,
            )  # fmt: skip
    largest = _limits(shown, values)[1]
    ax.set_ylim(-1.4 * largest, 1.08 * largest)  # with room for the legend
    _mark_lengths(ax, shown)
    drawing.dimension_ticks(ax.xaxis, shown.width)
    ax.set_xlim(-1 - 0.01 * shown.width, shown.width + 0.01 * shown.width)
    ax.set(xlabel=shown.columns, ylabel="value")
    if shown.pairs:
        ax.legend(loc="lower right", frameon=False, ncols=2)
    drawing.open_frame(ax)
    drawing.set_title(ax, shown.title(position_words(found)))
    return ax


def _mark_lengths(ax: Axes, shown: Encoding) -> None:
    """Where the wavelength is 10, 100, 1000 ... positions."""
    turning = [pair for pair in shown.pairs if pair.inv_freq]
    if len(turning) < 2:
        return
    lengths = np.log10([pair.wavelength for pair in turning])
    order = np.argsort(lengths)
    sides = ([pair.sine for pair in turning], [pair.cosine for pair in turning])
    columns = [np.array([np.nan if c is None else c for c in side])[order] for side in sides]
    if np.nanmax(np.abs(columns[0] - columns[1])) <= 1:  # side by side: one mark for both
        columns = [(columns[0] + columns[1]) / 2]
    powers = drawing.powers_of_ten(10 ** lengths.min(), 10 ** lengths.max())
    marks = [
        (float(np.interp(power, lengths[order], side)), power)
        for side in columns
        for power in powers
    ]
    for x, _ in marks:
        ax.axvline(x, color=drawing.palette(ax).grey, linewidth=0.8, linestyle=":", zorder=1)
    apart = 0.05 * shown.width  # a scaling may bring them too close together to be named
    named = [
        mark for i, mark in enumerate(marks) if i == 0 or abs(mark[0] - marks[i - 1][0]) > apart
    ]
    drawing.length_ticks(ax, "wavelength, positions", named)
