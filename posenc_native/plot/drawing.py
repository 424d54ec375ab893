"""How pictures look: their figures, words, shades and ticks."""

from __future__ import annotations

import contextlib
import functools
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import font_manager, rcParams
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.image import AxesImage
from matplotlib.textpath import text_to_path
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator, MultipleLocator
from matplotlib.transforms import ScaledTranslation

from posenc_native.core.calls.arguments import wrong_type, wrong_value

from .colors import palette
from .encodings import FloatArray, Positions, has_scale, is_range, position_name

_STYLE: Any = rcParams  # whose type knows literal names only
OPEN = ("top", "right")  # sides that a frame around lines does without

# Names of axes: of lines by offset, and of the columns and rows of a matrix of scores.
OFFSET = "offset: key - query, positions"
KEYS_AND_QUERIES = ("position of the key", "position of the query")

# Words, lines and markers have the sizes of the style in Axes as wide and high as this or larger,
# in inches. In smaller ones they shrink, by a part for each inch that is missing, down to a least
# part: at 3.3 inches, a column of a paper, words of 10 points have 7. Words stay readable in print.
_ROOMY, _PART_OF_INCH, _LEAST = (3.1, 2.4), 0.52, 0.7
_POINTS = 6.5
_NARROW = 2.6  # inches: narrower panels go below each other

_size: ContextVar[tuple[float, float] | None] = ContextVar("size", default=None)


@contextlib.contextmanager
def sized(size: tuple[float, float] | None) -> Iterator[None]:
    """Inside, new figures have this width and height in inches, whatever their picture needs."""
    token = _size.set(size)
    try:
        yield
    finally:
        _size.reset(token)


def axes(
    function: str, ax: Any, size: tuple[float, float], count: int = 1, **grid: Any
) -> npt.NDArray[np.object_]:
    """The Axes of the argument, or those of a new figure of this size in inches.

    `grid` is what plt.subplots takes for panels beside each other.
    """
    if ax is None:
        # pyplot's own, since that is what plt.show() and notebooks show.
        from matplotlib import pyplot

        width, height = _size.get() or size
        shape = {"ncols": count, **grid} if width / count >= _NARROW else {"nrows": count}
        _, made = pyplot.subplots(
            figsize=(width, height), layout="constrained", squeeze=False, **shape
        )
        return np.ravel(made)
    panels = np.array(ax, object).ravel()
    if not all(isinstance(panel, Axes) for panel in panels):
        expected = f"{count if count > 1 else 'one'} matplotlib Axes or None"
        wrong_type(function, "ax", expected, type(ax).__name__)
    if len(panels) != count:
        wrong_value(function, "ax", f"{count} Axes", len(panels))
    return panels


# --- Sizes


def points(ax: Axes) -> tuple[float, float]:
    """Width and height of an Axes, as far as they are known before a layout."""
    return 72 * ax.bbox.width / ax.figure.dpi, 72 * ax.bbox.height / ax.figure.dpi


def fit(ax: Axes) -> float:
    """The part of their usual size that lines and markers have in these Axes."""
    missing = max(want - has / 72 for has, want in zip(points(ax), _ROOMY, strict=True))
    return min(1.0, max(_LEAST, 1 - _PART_OF_INCH * missing))


def letters(ax: Axes, usual: Any = "small") -> float:
    """The size of letters in these Axes, in points: the usual size, or less where room is short."""
    size = font_manager.FontProperties(size=usual).get_size_in_points()
    return max(fit(ax) * size, min(size, _POINTS))


def height_of_words(ax: Axes) -> float:
    """The part of the height of these Axes that a line of words and its margins take."""
    return min(0.4, 2.2 * letters(ax) / (0.75 * points(ax)[1]))


def markers_apart(ax: Axes, i: int, count: int, numbers: int) -> slice:
    """The numbers of line i that have a marker: others than those of the other lines."""
    every = max(1, numbers // (8 if fit(ax) == 1 else 5))
    return slice(i * every // count, None, every)


def fit_words(ax: Axes) -> None:
    """Make the names of both axes and their ticks as large as these Axes have room for."""
    for axis in (ax.xaxis, ax.yaxis):
        size = letters(ax, _STYLE["axes.labelsize"])
        axis.label.set_fontsize(min(axis.label.get_fontsize(), size))
        if fit(ax) < 1:
            axis.set_tick_params(labelsize=letters(ax, _STYLE[f"{axis.axis_name}tick.labelsize"]))


# --- Words


def set_title(ax: Axes, title: str) -> None:
    """The subject on the first line; then its parameters, on as many lines as they need."""
    size = letters(ax, "medium")
    lines = [part for line in title.splitlines() for part in _broken(line, size, points(ax)[0])]
    ax.set_title(
        "\n".join(lines), loc="left", fontsize=size, color=palette(ax).ink, parse_math=False
    )


@functools.lru_cache(64)  # an animation asks for each frame
def _broken(line: str, size: float, wide: float) -> tuple[str, ...]:
    """Lines no wider than this in points, broken at commas and a space wherever that will do.

    After a comma and a no-break space there is no break.
    """
    font = font_manager.FontProperties(size=size)

    def width(text: str) -> float:
        return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])

    lines: list[str] = []
    for part in line.split(", "):
        joined = f"{lines[-1]}, {part}" if lines else part
        if lines and width(joined + ",") <= wide:
            lines[-1] = joined
            continue
        if lines:
            lines[-1] += ","
        # A part that is too long by itself is broken between words.
        most = max(10, int(len(part) * wide / max(width(part), 1.0)))
        lines += textwrap.wrap(part, most) or [part]
    return tuple(row.replace("\xa0", " ") for row in lines)


def set_words(ax: Axes, title: str, x: str, y: str, without: Sequence[str] = ()) -> None:
    """The title and the names of both axes; and a frame without these sides."""
    ax.set(xlabel=x, ylabel=y)
    for side in without:
        ax.spines[side].set_visible(False)
    set_title(ax, title)
    fit_words(ax)


def write(ax: Axes, words: str, xy: tuple[float, float], **look: Any) -> None:
    """Small words at a place; `look` is what ax.annotate takes."""
    ax.annotate(words, xy, **{"fontsize": letters(ax), "color": palette(ax).ink, **look})


def legend(ax: Axes, *handles: Any, below: bool = False, **look: Any) -> None:
    """A legend in small letters without a frame; `handles` and `look` are what ax.legend takes.

    below: under the name of the x axis, where it covers nothing; only with a layout engine, which
    makes room there.
    """
    if below and ax.figure.get_layout_engine() is not None:
        ticks, name = (letters(ax, _STYLE[f"{part}size"]) for part in ("xtick.label", "axes.label"))
        down = ScaledTranslation(0, -(1.4 * (ticks + name) + 10) / 72, ax.figure.dpi_scale_trans)
        look |= {
            "loc": "upper left", "bbox_to_anchor": (0.0, 0.0), "borderaxespad": 0.0,
            "borderpad": 0.0, "bbox_transform": ax.transAxes + down,
        }  # fmt: skip
    ax.legend(*handles, **{"frameon": False, "fontsize": letters(ax), "handlelength": 2.6, **look})


# --- Small multiples


class Cells:
    """Square cells in rows, with words below each and labels beside it, as large as Axes allow.

    Data coordinates are such that a cell is 1 wide and 1 high, around its center. The columns are
    as many as make it largest.

    Args:
        ax: where they are to be; `show` then makes it show them and nothing else.
        count: how many.
        lines: of words below each cell.
        wide: letters of the longest line.
        around: (beside, above and below), points left free on both sides of each cell.

    Attributes:
        centers: x and y of each cell.
        words: y of the words below a cell, from its center.
        unit: points that a cell is wide and high, about.
        size: of the letters, in points.
    """

    def __init__(
        self, ax: Axes, count: int, lines: int, wide: int, around: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        self.size = letters(ax)
        width, height = points(ax)
        if ax.figure.get_layout_engine() is not None:
            width, height = 1.15 * width, 1.1 * height  # it adds the room of ticks to them
        beside, over = around
        below = 1.3 * self.size * lines + 2 * over
        words = 0.56 * self.size * wide

        def room(columns: int) -> float:
            across = width / columns
            high = height / math.ceil(count / columns) - below
            return min(across - 2 * beside, high) if across >= words else -1.0 / columns

        full = [c for c in range(1, count + 1) if c == math.ceil(count / math.ceil(count / c))]
        columns = max(full, key=room)
        rows = math.ceil(count / columns)
        self.unit = max(room(columns), 2 * self.size)
        # As far apart as there is room, so that words are.
        across = max(1 + 2 * beside / self.unit, words / self.unit)
        down = 1 + below / self.unit
        self.centers = [(across * (i % columns), -down * (i // columns)) for i in range(count)]
        self.words = -0.5 - over / self.unit
        self._limits = (
            (-across / 2, across * (columns - 0.5)),
            (0.5 + over / self.unit - down * rows, 0.5 + over / self.unit),
        )

    def show(self, ax: Axes) -> None:
        """Make these Axes show the cells, without ticks."""
        # Limits, and not the box, follow: a box that shrinks would take its title along.
        ax.set_aspect("equal", adjustable="datalim")
        ax.margins(0)
        ax.update_datalim(np.transpose(self._limits))
        ax.set_axis_off()
        before: Any = ax.get_axes_locator()

        def place(ax: Any, renderer: Any) -> Any:
            # A layout tries boxes of several shapes, and limits follow each box. They begin anew
            # for a box, or those of the last box would also have the room that others needed.
            ax.autoscale_view()
            return before(ax, renderer) if before else ax.get_position(original=True)

        ax.set_axes_locator(place)


# --- Shades


def shade(
    ax: Axes, values: FloatArray, cmap: Colormap, first: float, limit: float | None = None
) -> AxesImage:
    """A matrix as an image, on top the row of position `first`.

    The middle of the colormap is 0, whatever the values are: its ends are the largest magnitude, or
    `limit`. Where a pixel holds several numbers it shows the shade of their mean. To pick single
    numbers would draw patterns that are not there. Numbers are averaged, not colors. Cells without
    a number (masked ones, -inf, NaN) are hatched.
    """
    rows, columns = values.shape
    finite = values[np.isfinite(values)]
    limit = limit or float(np.abs(finite).max(initial=0.0)) or 1.0
    if len(finite) < values.size:
        ax.patch.set(hatch="////", edgecolor=palette(ax).gray, linewidth=0)
    ax.grid(False)  # some styles have one, over the image
    return ax.imshow(
        np.ma.masked_invalid(values), cmap=cmap, vmin=-limit, vmax=limit,
        extent=(-0.5, columns - 0.5, first + rows - 0.5, first - 0.5), aspect="auto",
        interpolation="antialiased", interpolation_stage="data",
    )  # fmt: skip


def shade_positions(
    ax: Axes, values: FloatArray, cmap: Colormap, positions: Positions, limit: float | None = None
) -> AxesImage:
    """A matrix with a row for each position and a column for each dimension.

    Positions that are no scale are names of their rows.
    """
    first, names = _rows(positions)
    image = shade(ax, values, cmap, first, limit)
    dimension_ticks(ax, values.shape[1])
    position_ticks(ax, "y", names)
    return image


def shade_pairs(ax: Axes, values: FloatArray, cmap: Colormap, positions: Positions) -> AxesImage:
    """A square matrix with a row and a column for each position.

    Positions that are no scale are names of their rows and columns.
    """
    first, names = _rows(positions)
    image = shade(ax, values, cmap, first)
    end = first + len(values)
    image.set_extent((first - 0.5, end - 0.5, end - 0.5, first - 0.5))
    for axis in "xy":
        position_ticks(ax, axis, names)
    return image


def _rows(positions: Positions) -> tuple[float, list[str] | None]:
    """The place of the first row; and the names of all, if positions are no scale."""
    if is_range(positions) and has_scale(positions):
        return float(positions[0]), None
    return 0.0, [position_name(position) for position in positions]


def color_bar(image: AxesImage, ax: Axes, label: str) -> None:
    """The shades and their numbers beside these Axes.

    They go from the least value to the largest, and to 0 where all are on one side of it.
    """
    figure = image.get_figure()
    assert figure is not None
    size, fits, wide = letters(ax, _STYLE["axes.labelsize"]), fit(ax), points(ax)[0]
    if figure.get_layout_engine() is None:  # nothing would make room beside the Axes
        bar = figure.colorbar(image, ax=ax, label=label, pad=0.02)
    else:
        beside = ax.inset_axes((1 + 7 * fits / wide, 0, 11 * fits / wide, 1))
        bar = figure.colorbar(image, cax=beside, label=label)
    values: FloatArray = np.ma.compressed(np.ma.asarray(image.get_array()))
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    if low < high:
        bar.ax.set_ylim(low, high)
    bar.ax.yaxis.label.set_fontsize(size)
    if fits < 1:
        bar.ax.tick_params(labelsize=max(fits * size, _POINTS))


# --- Ticks


def dimension_ticks(ax: Axes, width: float) -> None:
    """Set ticks at multiples of a power of two, as many as have room: 0, 16, 32 ..."""
    wide = letters(ax, _STYLE["xtick.labelsize"]) * (1 + len(f"{width:.0f}"))
    most = max(2, min(8, int(points(ax)[0] / wide)))
    step = 1
    while width / step > most:
        step *= 2
    ax.xaxis.set_major_locator(MultipleLocator(step))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _without_decimals(value)))


def position_ticks(ax: Axes, axis: str, names: Sequence[str] | None = None) -> None:
    """Set a few ticks at whole positions; `names` are of rows that are not neighbors."""

    def text(value: float, _: Any) -> str:
        row = round(value)
        if abs(value - row) > 0.01:  # of a single row there are ticks at fractions too
            return ""
        if names is None:
            return _without_decimals(value)
        return names[row] if row in range(len(names)) else ""

    drawn_axis = getattr(ax, f"{axis}axis")
    size = letters(ax, _STYLE[f"{axis}tick.labelsize"])
    if axis == "x":  # the longest name and a gap, beside each other
        numbers = [_without_decimals(end) for end in ax.get_xlim()]
        most = points(ax)[0] / (size * (1.3 + 0.62 * max(map(len, names or numbers))))
    else:
        most = points(ax)[1] / (2.5 * size)
    bins = max(2, min(8, int(most)))
    drawn_axis.set_major_locator(MaxNLocator(nbins=bins, integer=True, steps=[1, 2, 2.5, 5, 10]))
    drawn_axis.set_major_formatter(FuncFormatter(text))


def logarithmic_positions(ax: Axes) -> None:
    """Positions to the right, logarithmic: 1, 10, 100, 1k ..."""
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(value: float) -> str:
    """A number in few letters: 1k for 1,000, 2.5M for 2,500,000."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return Formatter.fix_minus(f"{value / factor:g}{letter}")
    return Formatter.fix_minus(f"{value:g}")


def _without_decimals(value: float) -> str:
    return Formatter.fix_minus(f"{value:,.0f}")


def powers_of_ten(lengths: FloatArray, places: npt.NDArray[Any]) -> list[tuple[float, int]]:
    """The place and the power of 1, 10, 100 ... 10^11 among lengths that increase."""
    logarithms = np.log10(lengths)
    first, last = max(0, math.ceil(logarithms[0])), min(11, math.floor(logarithms[-1]))
    powers = range(first, last + 1)
    return [(float(np.interp(power, logarithms, places)), power) for power in powers]


def length_ticks(ax: Axes, name: str, marks: Sequence[tuple[float, int]]) -> None:
    """An axis on top that has 10^power positions, 1k for 1,000, at each (x, power)."""
    top, gray = ax.secondary_xaxis("top"), palette(ax).gray
    top.set_xticks([x for x, _ in marks], [short(10.0**power) for _, power in marks])
    top.tick_params(labelsize=letters(ax), colors=gray)
    top.set_xlabel(name, fontsize=letters(ax), color=gray)
    top.spines["top"].set_visible(False)
