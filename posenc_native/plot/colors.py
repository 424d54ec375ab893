"""Colors, dashes and markers for light and dark paper, color-blind readers and gray print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, to_hex, to_rgb, to_rgba

from posenc_native.core.calls.arguments import wrong_type, wrong_value

_DASHES: tuple[Any, ...] = (
    "-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1)), (0, (1, 1)),
)  # fmt: skip
_MARKERS = "os^Dv*PX"

# Near the hues of Okabe and Ito, darker on light paper. Any two differ by 11 or more in CIELAB, for
# each kind of color blindness too (Machado et al. 2009, full severity), and by 3.4 in gray.
_ON_LIGHT = (
    "#006aa0", "#c75d00", "#1b634b", "#641747", "#1b1b1b", "#c23e38", "#7c8d22", "#004982",
)  # fmt: skip
_ON_DARK = (
    "#60bcf1", "#d86004", "#20aa7e", "#f1e543", "#e78dbe", "#ebebeb", "#efb23a", "#1277b8",
)  # fmt: skip


@dataclass(frozen=True)
class Palette:
    """Colors of one picture.

    Attributes:
        ink: words, as the style of the Axes has them.
        paper: the background, also inside hollow markers.
        gray: marks and their words.
        faint: lines behind the data.
        bands: three shades of paper, the middle shade darkest.
        colors: lines, in turn.
    """

    ink: str
    paper: str
    gray: str
    faint: str
    bands: tuple[str, str, str]
    colors: tuple[str, ...]

    def line(self, i: int) -> tuple[str, Any, str]:
        """Color, dashes and marker of line i.

        Among eight lines each of the three differs, among 64 at least one.
        """
        return self.colors[i % 8], _DASHES[(i + i // 8) % 8], _MARKERS[i % 8]

    def ordered(self, count: int) -> list[str]:
        """So many colors from gray to that of the first line, for what has an order."""
        first = _mixed(self.ink, self.paper, 0.55)
        return [_mixed(self.colors[0], first, i / max(count - 1, 1)) for i in range(count)]


def palette(ax: Axes) -> Palette:
    """The colors of these Axes: words and paper are those of their style."""
    ink, paper = to_hex(ax.title.get_color()), to_hex(_paper(ax))
    face = ax.figure.get_facecolor()
    around = to_hex(face) if to_rgba(face)[3] else paper
    grays = (_mixed(ink, paper, part) for part in (0.65, 0.75, 0.85))
    # Marks of gray have words, some of them beside the Axes.
    gray = next((shade for shade in grays if _contrast(shade, around) >= 4.5), ink)
    return Palette(
        ink, paper, gray, _mixed(ink, paper, 0.16),
        (paper, _mixed(ink, paper, 0.16), _mixed(ink, paper, 0.07)),
        _ON_DARK if luminance(ink) > luminance(paper) else _ON_LIGHT,
    )  # fmt: skip


def _contrast(a: str, b: str) -> float:
    """The contrast of two colors as WCAG 2 defines it: 1 to 21."""
    dark, light = sorted(map(luminance, (a, b)))
    return (light + 0.05) / (dark + 0.05)


def _paper(ax: Axes) -> Any:
    """The background behind Axes; where all is transparent, what their words can be read on."""
    for artist in (ax, ax.figure):
        color = artist.get_facecolor()
        if to_rgba(color)[3]:
            return color
    return "white" if luminance(ax.title.get_color()) < 0.5 else "black"


def luminance(color: Any) -> float:
    """Relative luminance of a color, 0 (black) to 1 (white), as WCAG 2 defines it."""
    return float(np.dot((0.2126, 0.7152, 0.0722), np.power(to_rgb(color), 2.2)))


def _mixed(color: str, ground: str, part: float) -> str:
    """So large a part of a color, the rest of the ground."""
    parts = part * np.array(to_rgb(color)) + (1 - part) * np.array(to_rgb(ground))
    return to_hex(parts.tolist())


def read_colormap(function: str, cmap: Any) -> Colormap:
    """The argument `cmap` of a heat map: a name that matplotlib knows, or a Colormap.

    Raises:
        ValueError: an unknown name.
        TypeError: anything else.
    """
    if isinstance(cmap, Colormap):
        return cmap
    if not isinstance(cmap, str):
        expected = "the name of a colormap, or a matplotlib Colormap"
        wrong_type(function, "cmap", expected, type(cmap).__name__)
    if cmap not in colormaps:
        expected = "a colormap of matplotlib, such as 'RdBu_r', 'PuOr' or 'cividis'"
        wrong_value(function, "cmap", expected, repr(cmap))
    return colormaps[cmap]
