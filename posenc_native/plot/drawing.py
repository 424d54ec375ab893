"""How pictures look: their figures, shades, lines and ticks."""

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

# Perceptually uniform and made for all eyes; its lightness grows with the number all the way, so a
# printed page says the same. A diverging map would have two shades of grey for one number.
SHADES = "cividis"
DASHES: tuple[Any, ...] = (
    "-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1)), (0, (1, 1)),
)  # fmt: skip
MARKERS = "os^Dv*PX"


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


def one_axes(function: str, ax: Any, size: tuple[float, float]) -> Axes:
    """The Axes given, or that of a new figure of this size in inches."""
    if ax is None:
        return several_axes(function, None, 1, size)[0]
    if not isinstance(ax, Axes):
        wrong_type(function, "ax", "one matplotlib Axes or None", type(ax).__name__)
    return ax


def several_axes(
    function: str, ax: Any, count: int, size: tuple[float, float], **grid: Any
) -> list[Axes]:
    """The Axes given, so many, or those of a new figure; `grid` is what plt.subplots takes."""
    if ax is None:
        # pyplot's own, since that is what plt.show() and notebooks show.
        from matplotlib import pyplot

        grid = grid or {"ncols": count}
        _, made = pyplot.subplots(figsize=size, layout="constrained", squeeze=False, **grid)
        return list(made.flat)
    given = list(np.ravel(np.asarray(ax, object)))
    if not all(isinstance(one, Axes) for one in given):
        wrong_type(function, "ax", f"{count} matplotlib Axes or None", type(ax).__name__)
    if len(given) != count:
        wrong_value(function, "ax", f"{count} Axes", len(given))
    return given


def as_array_of_axes(axes: Sequence[Axes]) -> npt.NDArray[np.object_]:
    """Several Axes as a function returns them."""
    result = np.empty(len(axes), object)
    result[:] = axes
    return result


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


def shade(
    ax: Axes,
    values: npt.NDArray[np.float64],
    extent: tuple[float, float, float, float],
    limits: tuple[float, float],
    label: str | None,
) -> AxesImage:
    """A matrix as an image, row 0 on top; with a label it has a colour bar.

    Where a pixel holds several numbers it shows the shade of their mean. To pick single numbers
    would draw patterns that are not there. Numbers are averaged, not colours.
    """
    masked = np.ma.masked_invalid(values)
    ax.grid(False)  # some styles have one, over the image
    image = ax.imshow(
        masked, cmap=SHADES, vmin=limits[0], vmax=limits[1], extent=extent, aspect="auto",
        interpolation="antialiased", interpolation_stage="data",
    )  # fmt: skip
    if label is not None:
        colour_bar(image, [ax], label)
    return image


def colour_bar(image: AxesImage, axes: Sequence[Axes], label: str, clipped: bool = False) -> None:
    """The shades and their numbers, beside these Axes; pointed where numbers go on beyond them."""
    figure = axes[0].get_figure()
    assert figure is not None
    figure.colorbar(image, ax=axes, label=label, pad=0.02, extend="both" if clipped else "neither")


def robust_limit(values: npt.NDArray[np.float64]) -> tuple[float, bool]:
    """The magnitude that 2 % of the values exceed, and whether there are such.

    Queries and keys of trained models have single dims that would leave no shades for the rest.
    """
    sizes = np.abs(values[np.isfinite(values)])
    largest = float(sizes.max(initial=0.0))
    usual = float(np.quantile(sizes, 0.98)) if sizes.size else 0.0
    return usual or largest or 1.0, 0 < usual < largest


def label_ends(ax: Axes, ends: Sequence[tuple[float, float, str]]) -> None:
    """Write names beside the right ends (y, x, name) of lines; a legend if lines end together."""
    low, high = ax.get_ylim()
    order = sorted(ends)
    if not order or (len(order) > 1 and order[-1][0] - order[0][0] < 0.2 * (high - low)):
        ax.legend(frameon=False)
        return
    apart, colours = 0.055, palette(ax)
    at = [(y - low) / (high - low) for y, _, _ in order]
    for i in range(1, len(at)):
        at[i] = max(at[i], at[i - 1] + apart)
    over = max(0.0, at[-1] - 1.0)
    for i in reversed(range(len(at))):  # back down, what has been pushed out
        at[i] = min(at[i], 1.0 - (len(at) - 1 - i) * apart) if over else at[i]
    for (y, x, name), place in zip(order, at, strict=True):
        ax.annotate(
            name, (x, y), xytext=(1.03, place), textcoords="axes fraction", va="center",
            fontsize="small", color=colours.ink, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colours.grey, "linewidth": 0.5, "shrinkA": 0},
        )  # fmt: skip


def dimension_ticks(axis: Any, width: float) -> None:
    """Set at most nine ticks, at multiples of a power of two: 0, 16, 32 ..."""
    step = 1
    while width / step > 8:
        step *= 2
    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _without_decimals(value)))


def position_ticks(axis: Any, labels: Sequence[str] | None = None) -> None:
    """Set a few ticks at whole positions; `labels` are for rows that are not neighbours."""

    def text(value: float, _: Any) -> str:
        if labels is None:
            return _without_decimals(value)
        row = round(value)
        # Of a single row there are ticks at fractions too.
        return labels[row] if row in range(len(labels)) and abs(value - row) < 0.01 else ""

    axis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(text))


def _without_decimals(value: float) -> str:
    return Formatter.fix_minus(f"{value:,.0f}")


def length_ticks(ax: Axes, name: str, marks: Sequence[tuple[float, int]]) -> None:
    """An axis on top that has 10^power positions, 1k for 1,000, at each (x, power)."""
    top, grey = ax.secondary_xaxis("top"), palette(ax).grey
    names = [f"{10 ** (power % 3)}{('', 'k', 'M', 'G')[power // 3]}" for _, power in marks]
    top.set_xticks([x for x, _ in marks], names)
    top.tick_params(labelsize="small", colors=grey)
    top.set_xlabel(name, fontsize="small", color=grey)
    top.spines["top"].set_visible(False)


def powers_of_ten(shortest: float, longest: float) -> range:
    """The powers of ten between two lengths, from 1 to 10^11."""
    first = max(0, math.ceil(math.log10(shortest)))
    return range(first, min(11, math.floor(math.log10(longest))) + 1)


def open_frame(ax: Axes) -> None:
    """Take away the lines on top and to the right."""
    ax.spines[["top", "right"]].set_visible(False)
