"""How pictures look: their figures, words, shades, lines and ticks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.image import AxesImage
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator, MultipleLocator

from posenc_native.base.arguments import wrong_type, wrong_value

from .encodings import FloatArray, Positions, has_scale, is_range, position_name

# Perceptually uniform and made for all eyes; its lightness grows with the number all the way, so a
# printed page says the same. A diverging map would have two shades of grey for one number.
SHADES = "cividis"
_DASHES: tuple[Any, ...] = (
    "-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1)), (0, (1, 1)),
)  # fmt: skip
_MARKERS = "os^Dv*PX"
OPEN = ("top", "right")  # sides that a frame around lines does without


@dataclass(frozen=True)
class Palette:
    """Colours that go together, on light paper or on dark.

    Attributes:
        ink: words.
        grey: marks and their words.
        faint: lines behind what is shown.
        paper: what is hollow.
        bands: three that can be told apart, neighbours beside each other.
        colours: lines, in turn.
    """

    ink: str
    grey: str
    faint: str
    paper: str
    bands: tuple[str, str, str]
    colours: tuple[str, ...]

    def line(self, i: int) -> tuple[str, Any, str]:
        """Colour, dashes and marker of line i: each alone tells eight lines apart."""
        return self.colours[i % 8], _DASHES[i % 8], _MARKERS[i % 8]


_LIGHT = Palette(
    "#1a1a1a", "#6b6b6b", "#d9d9d9", "#ffffff", ("#ffffff", "#dedede", "#f1f1f1"),
    ("#10375c", "#c8553d", "#3c887e", "#8c6bb1", "#b8860b", "#4d4d4d", "#2f7ebc", "#a3315b"),
)  # fmt: skip
_DARK = Palette(
    "#f2f2f2", "#a8a8a8", "#4a4a4a", "#000000", ("#000000", "#333333", "#1c1c1c"),
    ("#8fc1f0", "#f09a86", "#86d6c9", "#c9aee6", "#e8c95a", "#cfcfcf", "#5fa3dc", "#e88fb2"),
)  # fmt: skip


def palette(ax: Axes) -> Palette:
    """The colours for these Axes: for dark paper where their style has light words."""
    red, green, blue = to_rgb(ax.title.get_color())
    return _DARK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else _LIGHT


def axes(
    function: str, ax: Any, size: tuple[float, float], count: int = 1, **grid: Any
) -> npt.NDArray[np.object_]:
    """The Axes given, or those of a new figure of this size in inches.

    `grid` is what plt.subplots takes.
    """
    if ax is None:
        # pyplot's own, since that is what plt.show() and notebooks show.
        from matplotlib import pyplot

        _, made = pyplot.subplots(
            ncols=count, figsize=size, layout="constrained", squeeze=False, **grid
        )
        return np.ravel(made)
    given = np.array(ax, object).ravel()
    if not all(isinstance(one, Axes) for one in given):
        expected = f"{count if count > 1 else 'one'} matplotlib Axes or None"
        wrong_type(function, "ax", expected, type(ax).__name__)
    if len(given) != count:
        wrong_value(function, "ax", f"{count} Axes", len(given))
    return given


def points(ax: Axes) -> tuple[float, float]:
    """Width and height of an Axes, as far as they are known before a layout."""
    return 72 * ax.bbox.width / ax.figure.dpi, 72 * ax.bbox.height / ax.figure.dpi


def set_title(ax: Axes, title: str) -> None:
    """What is shown on the first line; then its parameters, on as many as the width asks for."""
    size = font_manager.FontProperties(size="medium").get_size_in_points()
    wide = max(20, int(points(ax)[0] / (0.52 * size)))  # a letter is half as wide as high
    lines = [part for line in title.splitlines() for part in _broken_at_commas(line, wide)]
    ax.set_title("\n".join(lines), loc="left", fontsize="medium", color=palette(ax).ink)


def _broken_at_commas(line: str, wide: int) -> list[str]:
    """Lines of so many letters, broken at commas wherever that will do."""
    parts = line.split(", ")
    whole = ", ".join(part if len(part) > wide else part.replace(" ", "\xa0") for part in parts)
    return [one.replace("\xa0", " ") for one in textwrap.wrap(whole, wide)]


def set_words(ax: Axes, title: str, x: str, y: str, without: Sequence[str] = ()) -> None:
    """The title and the names of both axes; and a frame without these sides."""
    ax.set(xlabel=x, ylabel=y)
    for side in without:
        ax.spines[side].set_visible(False)
    set_title(ax, title)


def write(ax: Axes, words: str, xy: tuple[float, float], **look: Any) -> None:
    """Small words at a place; `look` is what ax.annotate takes."""
    ax.annotate(words, xy, **{"fontsize": "small", "color": palette(ax).ink, **look})


def shade(ax: Axes, values: FloatArray, limits: tuple[float, float], first: float) -> AxesImage:
    """A matrix as an image, on top the row of position `first`.

    Where a pixel holds several numbers it shows the shade of their mean. To pick single numbers
    would draw patterns that are not there. Numbers are averaged, not colours.
    """
    rows, columns = values.shape
    ax.grid(False)  # some styles have one, over the image
    return ax.imshow(
        np.ma.masked_invalid(values), cmap=SHADES, vmin=limits[0], vmax=limits[1],
        extent=(-0.5, columns - 0.5, first + rows - 0.5, first - 0.5), aspect="auto",
        interpolation="antialiased", interpolation_stage="data",
    )  # fmt: skip


def shade_positions(ax: Axes, values: FloatArray, positions: Positions, limit: float) -> AxesImage:
    """A matrix from -limit to limit with a row for each position and a column for each dimension.

    Positions that are no scale are names of their rows.
    """
    names = None
    if not (is_range(positions) and has_scale(positions)):
        names = [position_name(one) for one in positions]
    image = shade(ax, values, (-limit, limit), 0.0 if names else float(positions[0]))
    dimension_ticks(ax.xaxis, values.shape[1])
    position_ticks(ax.yaxis, names)
    return image


def shade_pairs(ax: Axes, values: FloatArray, positions: Positions) -> AxesImage:
    """A square matrix with a row and a column for each position; shades from its least number on.

    Positions that are no scale are names of their rows and columns.
    """
    names = None
    if not (is_range(positions) and has_scale(positions)):
        names = [position_name(one) for one in positions]
    first = 0.0 if names else float(positions[0])
    finite = values[np.isfinite(values)]
    limits = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    image = shade(ax, values, limits, first)
    end = first + len(values)
    image.set_extent((first - 0.5, end - 0.5, end - 0.5, first - 0.5))
    for axis in (ax.xaxis, ax.yaxis):
        position_ticks(axis, names)
    return image


def colour_bar(image: AxesImage, axes: Any, label: str, clipped: bool = False) -> None:
    """The shades and their numbers, beside these Axes; pointed where numbers go on beyond them."""
    figure = image.get_figure()
    assert figure is not None
    figure.colorbar(image, ax=axes, label=label, pad=0.02, extend="both" if clipped else "neither")


def dimension_ticks(axis: Any, width: float) -> None:
    """Set at most nine ticks, at multiples of a power of two: 0, 16, 32 ..."""
    step = 1
    while width / step > 8:
        step *= 2
    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _without_decimals(value)))


def position_ticks(axis: Any, names: Sequence[str] | None = None) -> None:
    """Set a few ticks at whole positions; `names` are of rows that are not neighbours."""

    def text(value: float, _: Any) -> str:
        if names is None:
            return _without_decimals(value)
        row = round(value)
        # Of a single row there are ticks at fractions too.
        return names[row] if row in range(len(names)) and abs(value - row) < 0.01 else ""

    axis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(text))


def logarithmic_positions(ax: Axes) -> None:
    """Positions to the right, logarithmic: 1, 10, 100 ... written out."""
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _without_decimals(value)))


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
    top, grey = ax.secondary_xaxis("top"), palette(ax).grey
    names = [f"{10 ** (power % 3)}{('', 'k', 'M', 'G')[power // 3]}" for _, power in marks]
    top.set_xticks([x for x, _ in marks], names)
    top.tick_params(labelsize="small", colors=grey)
    top.set_xlabel(name, fontsize="small", color=grey)
    top.spines["top"].set_visible(False)
