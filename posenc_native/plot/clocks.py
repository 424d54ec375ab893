"""The pairs of a position as the hands of clocks."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Wedge
from matplotlib.text import Text
from PIL import Image

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_value

from . import drawing
from .encodings import (
    Encoding,
    FloatArray,
    evenly,
    number,
    position_words,
    read_encoding,
    read_indices,
    read_position,
    read_positions,
)

_SHOWN, _COLUMNS = 8, 4
_RADIUS, _HEIGHT = 0.42, 1.36  # of a dial, and of a row of them; dials are 1 apart
_LETTERS, _SMALLEST = 8.5, 6.5  # points


def clock(
    encoding: Any, position: Any = 50, *, pairs: Sequence[int] | None = None, ax: Axes | None = None
) -> Axes:
    """The pairs of one position as hands of clocks, from the fastest to the slowest.

    A hand points to (sine, cosine): it starts at 12 o'clock at position 0 and turns clockwise, once
    in a wavelength. The shaded sector is what it has gone of the turn that it is in.

    Args:
        encoding: an int dim, a `SinusoidalSpec` or a `Rotary`.
        position: where the hands are, one position.
        pairs: which pairs; default eight of them, evenly from the first to the last.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes.

    Raises:
        ValueError: as in `heatmap`; a ready table, of which no frequencies are known; pairs that
            are not there.
        TypeError: arguments of a wrong kind.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.clock(128, 50)
        >>> ax.texts[0].get_text().splitlines()
        ['pair 0', 'wavelength 6.283', '7.958 turns']
    """
    function = "plot.clock"
    shown = read_encoding(function, encoding)
    chosen = _chosen_pairs(function, shown, pairs)
    found = read_position(function, position, shown)
    row = shown.table(found)[0]
    ax = _axes_of_dials(function, ax, len(chosen))
    _Dials(ax, shown, chosen).turn(found[0], row)
    return ax


def clock_animation(
    encoding: Any,
    positions: Any,
    path: str | os.PathLike[str],
    *,
    pairs: Sequence[int] | None = None,
    frames_per_second: float = 10.0,
    ax: Axes | None = None,
) -> Axes:
    """The hands of `clock`, turning: an animated GIF, a frame for each position.

    Args:
        encoding, pairs: as in `clock`.
        positions: an int n for 0 .. n-1, or ``[n]``.
        path: the file to write, ending in .gif.
        frames_per_second: above 0, at most 50, which is what viewers keep up with. A GIF counts
            hundredths of a second.
        ax: the Axes to draw into, whose whole figure is recorded; None for a new figure.

    Returns:
        The Axes, as it is in the last frame.

    Raises:
        ValueError: as in `clock`; a path with another ending, a rate out of range.
        TypeError: arguments of a wrong kind.
        OSError: a file that cannot be written, such as one in a folder that is not there.

    Example:
        >>> import pathlib, tempfile
        >>> import posenc_native as pn
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "clock.gif"
        ...     ax = pn.plot.clock_animation(64, 3, file)
        ...     file.read_bytes()[:6]
        b'GIF89a'
    """
    function = "plot.clock_animation"
    shown = read_encoding(function, encoding)
    chosen = _chosen_pairs(function, shown, pairs)
    found = read_positions(function, positions, shown)
    rate = arguments.positive_number(function, "frames_per_second", frames_per_second)
    if rate > 50:
        wrong_value(function, "frames_per_second", "at most 50", rate)
    if not os.fspath(path).lower().endswith(".gif"):
        wrong_value(function, "path", "a file that ends in .gif", os.fspath(path))
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{function}: path: no folder {folder}")
    rows = shown.table(found)
    ax = _axes_of_dials(function, ax, len(chosen))
    figure = ax.figure.canvas.figure  # all of it, of a SubFigure too
    dials = _Dials(ax, shown, chosen)
    frames: list[Image.Image] = []
    for position, row in zip(found, rows, strict=True):
        dials.turn(position, row)
        buffer = io.BytesIO()
        # All of the figure, whatever the user's settings cut off: frames have to be of one size.
        with rc_context({"savefig.bbox": None}):
            figure.savefig(buffer, format="png", dpi=100, pil_kwargs={"compress_level": 0})
        picture = Image.open(buffer).convert("RGB")
        frames.append(_with_colours_of(frames[0], picture) if frames else picture.quantize(64))
    frames[0].save(
        path, format="GIF", save_all=True, append_images=frames[1:], loop=0,
        duration=10 * round(100 / rate),
    )  # fmt: skip
    return ax


def _chosen_pairs(function: str, shown: Encoding, pairs: Sequence[int] | None) -> list[int]:
    count = len(shown.pairs)
    if not count:
        wrong_value(function, "encoding", "one with frequencies", f"a {shown.name.lower()}")
    whole = [i for i in range(count) if None not in (shown.pairs[i].sine, shown.pairs[i].cosine)]
    if pairs is None:
        return [whole[i] for i in evenly(len(whole), _SHOWN)]
    chosen = read_indices(function, "pairs", pairs, count)
    for i in chosen:
        if i not in whole:
            wrong_value(function, "pairs", "pairs with a sine and a cosine", i)
    return chosen


def _axes_of_dials(function: str, ax: Axes | None, count: int) -> Axes:
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    return drawing.one_axes(function, ax, (max(1.9 * columns, 5.0), 0.7 + 2.45 * rows))


def _with_colours_of(first: Image.Image, picture: Image.Image) -> Image.Image:
    """A picture in the nearest of another's colours: a frame holds only what has moved then.

    Pillow's own search for them is not exact: what stands still would flicker.
    """
    pixels = np.asarray(picture, np.int64) @ np.array([1 << 16, 1 << 8, 1])
    packed, where = np.unique(pixels, return_inverse=True)
    colours = packed[:, None, None] >> np.array([16, 8, 0]) & 255
    palette = np.reshape(first.getpalette() or [], (-1, 3))
    nearest = ((colours - palette) ** 2).sum(-1).argmin(-1).astype(np.uint8)
    result = Image.fromarray(nearest[where].reshape(pixels.shape))
    result.putpalette(first.getpalette() or [])
    return result


def _cell_points(ax: Axes, columns: int, rows: int) -> float:
    """The distance between dials."""
    width, height = drawing.points(ax)
    return min(width / columns, height / (_HEIGHT * rows))


class _Dials:
    """A dial for each pair, in rows, and what moves on them."""

    def __init__(self, ax: Axes, shown: Encoding, chosen: list[int]) -> None:
        self._ax, self._shown, self._chosen = ax, shown, chosen
        columns = min(len(chosen), _COLUMNS)
        rows = math.ceil(len(chosen) / columns)
        # Three lines of "wavelength 54,410", or only the first where they would be too small.
        cell = _cell_points(ax, columns, rows)
        self._lines = 3 if 0.095 * cell >= _SMALLEST else 1
        letters = min(_LETTERS, max(_SMALLEST, 0.095 * cell))
        look = drawing.palette(ax)
        self._moving: list[tuple[float, float, Line2D, Wedge, Text]] = []
        for i in range(len(chosen)):
            x, y = float(i % columns), -_HEIGHT * (i // columns)
            ax.add_patch(Circle((x, y), _RADIUS, facecolor=look.paper, edgecolor=look.grey))
            sector = Wedge((x, y), _RADIUS, 90, 90, facecolor=look.faint, edgecolor="none")
            ax.add_patch(sector)
            for quarter in range(4):  # as a clock has them at 12, 3, 6 and 9
                sine, cosine = math.sin(quarter * math.pi / 2), math.cos(quarter * math.pi / 2)
                ends = np.array([0.9, 1.0]) * _RADIUS
                ax.plot(x + ends * sine, y + ends * cosine, color=look.grey, linewidth=1.0)
            (hand,) = ax.plot(
                [x, x], [y, y + _RADIUS], color=look.colours[0], linewidth=2.4, marker="o",
                markersize=6, markevery=[1], solid_capstyle="round",
            )  # fmt: skip
            words = ax.text(
                x, y - 1.12 * _RADIUS, "", ha="center", va="top", fontsize=letters,
                color=look.ink, in_layout=False,
            )  # fmt: skip
            self._moving.append((x, y, hand, sector, words))
        ax.set_aspect("equal")
        ax.set_xlim(-0.55, columns - 0.45)
        ax.set_ylim(-_HEIGHT * (rows - 1) - 0.95, 0.5)
        ax.set_axis_off()

    def turn(self, position: Any, row: FloatArray) -> None:
        """Set the hands to a position, whose row of the table this is."""
        for i, (x, y, hand, sector, words) in zip(self._chosen, self._moving, strict=True):
            pair = self._shown.pairs[i]
            sine, cosine = float(row[pair.sine]), float(row[pair.cosine])
            hand.set_data([x, x + _RADIUS * sine], [y, y + _RADIUS * cosine])
            at = 90 - math.degrees(math.atan2(sine, cosine))
            # A wedge is drawn anticlockwise, from its first angle on.
            sector.set_theta1(at if pair.inv_freq >= 0 else 90)
            sector.set_theta2(90 if pair.inv_freq >= 0 else at)
            turns = float(position) * pair.inv_freq / (2 * math.pi)
            length = number(pair.wavelength)
            facts = (f"pair {i}", f"wavelength {length}", f"{turns:,.3f} turns")
            words.set_text("\n".join(facts[: self._lines]))
        title = self._shown.title(position_words(np.array([position])))
        drawing.set_title(self._ax, title + "; a hand points to (sine, cosine)")
