"""The pairs of a position as the hands of clocks."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
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
_DPI, _LAYOUTS = 100, 20  # of animations; a layout that does not settle is good enough

_Pixels = npt.NDArray[np.uint32]  # blue, green and red, in the bits from high to low


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
    dials = _Dials(function, ax, shown, chosen)
    dials.turn(found[0], row)
    return dials.axes


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
    dials = _Dials(function, ax, shown, chosen)
    turns = list(zip(found, rows, strict=True))
    with _recording(dials, *turns[0]) as pixels_at:
        # Of the first alone they would lack those of sectors: at position 0 there are none.
        colours = _Colours(np.stack([pixels_at(*turns[i]) for i in (0, len(turns) // 2)]))
        frames = [colours.picture(pixels_at(*each)) for each in turns]
    dials.turn(*turns[-1])
    frames[0].save(
        path, format="GIF", save_all=True, append_images=frames[1:], loop=0,
        duration=10 * round(100 / rate),
    )  # fmt: skip
    return dials.axes


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


@contextlib.contextmanager
def _recording(
    dials: _Dials, position: Any, row: FloatArray
) -> Iterator[Callable[[Any, FloatArray], _Pixels]]:
    """Gives a function that turns the dials to a position and returns the pixels of the figure.

    The layout is found once, with this position, and what stands still is drawn once: both take far
    longer than what moves.
    """
    figure = dials.axes.figure.canvas.figure  # all of it, of a SubFigure too
    canvas, dpi, face = figure.canvas, figure.dpi, figure.get_facecolor()
    layout = figure.get_layout_engine()
    # All of the figure, whatever the user's settings cut off; Any, as its methods have no types.
    recorder: Any = FigureCanvasAgg(figure)
    shapes, texts = dials.shapes(), dials.texts()
    try:
        figure.set_dpi(_DPI)
        if rcParams["savefig.facecolor"] != "auto":
            figure.set_facecolor(rcParams["savefig.facecolor"])
        place = None
        for _ in range(_LAYOUTS):  # lines of the title ask for room, and room decides on lines
            if place == (place := dials.axes.bbox.bounds):
                break
            dials.turn(position, row)
            figure.draw_without_rendering()
        if layout is not None:
            figure.set_layout_engine("none")
        for artist in (*shapes, *texts):
            artist.set_animated(True)
        recorder.draw()
        renderer = recorder.renderer
        draw_text, wanted = renderer.draw_text, set[str]()

        def draw_if_wanted(gc: Any, x: float, y: float, line: str, *more: Any, **look: Any) -> None:
            if line in wanted:
                draw_text(gc, x, y, line, *more, **look)

        def draw_lines(which: slice) -> None:
            """Some lines of each text, exactly where they are in all of it."""
            for text in texts:
                wanted.clear()
                wanted.update(text.get_text().split("\n")[which])
                text.draw(renderer)

        # The renderer is asked for each line: the last, which changes, takes a quarter of the time
        # of three.
        renderer.draw_text = draw_if_wanted
        draw_lines(slice(-1))
        still = recorder.copy_from_bbox(figure.bbox)

        def pixels_at(position: Any, row: FloatArray) -> _Pixels:
            dials.turn(position, row)
            recorder.restore_region(still)
            for shape in shapes:
                shape.draw(renderer)
            draw_lines(slice(-1, None))
            pixels: _Pixels = np.asarray(recorder.buffer_rgba()).view("<u4")[..., 0]
            return np.asarray(pixels & np.uint32(0xFFFFFF), np.uint32)

        yield pixels_at
    finally:
        for artist in (*shapes, *texts):
            artist.set_animated(False)
        if layout is not None:
            figure.set_layout_engine(layout)
        figure.set_facecolor(face)
        figure.set_dpi(dpi)
        figure.set_canvas(canvas)


class _Colours:
    """The colours of all frames, so that what stands still does not flicker: those of some."""

    def __init__(self, some: _Pixels) -> None:
        some = some.reshape(-1, some.shape[-1])
        self._flat = Image.fromarray(_channels(some)).quantize(64).getpalette() or []
        self._palette = np.reshape(self._flat, (-1, 3)).astype(np.int64)
        self._nearest = np.full(1 << 24, -1, np.int16)  # of each colour that has been seen
        self._last: _Pixels | None = None
        self._chosen = np.empty(0, np.uint8)

    def picture(self, pixels: _Pixels) -> Image.Image:
        """The pixels in the nearest of these colours; Pillow's own search is not exact."""
        if self._last is None:
            changed, self._chosen = np.ones(pixels.shape, bool), np.empty(pixels.shape, np.uint8)
        else:
            changed = pixels != self._last  # few, and to look up all takes longer than to draw
        colours, self._last = pixels[changed], pixels
        new = np.unique(colours[self._nearest[colours] < 0])
        apart = _channels(new)[:, None].astype(np.int64) - self._palette
        self._nearest[new] = (apart**2).sum(-1).argmin(-1)
        self._chosen[changed] = self._nearest[colours]
        result = Image.fromarray(self._chosen.copy())
        result.putpalette(self._flat)
        return result


def _channels(pixels: _Pixels) -> npt.NDArray[np.uint8]:
    """Red, green and blue of pixels, in a new last axis."""
    return np.stack([pixels >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)


class _Dials:
    """A dial for each pair, in rows, and what moves on them."""

    def __init__(self, function: str, ax: Any, shown: Encoding, chosen: list[int]) -> None:
        columns = min(len(chosen), _COLUMNS)
        rows = math.ceil(len(chosen) / columns)
        (ax,) = drawing.axes(function, ax, (max(1.9 * columns, 5.0), 0.7 + 2.45 * rows))
        self.axes: Axes = ax
        self._shown, self._chosen = shown, chosen
        # Three lines of "wavelength 54,410", or only the first where they would be too small.
        width, height = drawing.points(ax)
        letters = 0.095 * min(width / columns, height / (_HEIGHT * rows))
        self._lines = 3 if letters >= _SMALLEST else 1
        letters = min(_LETTERS, max(_SMALLEST, letters))
        look = drawing.palette(ax)
        self._moving: list[tuple[float, float, Line2D, Wedge, Text]] = []
        for i in range(len(chosen)):
            x, y = float(i % columns), -_HEIGHT * (i // columns)
            ax.add_patch(Circle((x, y), _RADIUS, facecolor=look.paper, edgecolor=look.grey))
            sector = Wedge((x, y), _RADIUS, 90, 90, facecolor=look.faint, edgecolor="none")
            ax.add_patch(sector)
            (hand,) = ax.plot(
                [x, x], [y, y + _RADIUS], color=look.colours[0], linewidth=2.4, marker="o",
                markersize=6, markevery=[1], solid_capstyle="round",
            )  # fmt: skip
            words = ax.text(
                x, y - 1.12 * _RADIUS, "", ha="center", va="top", fontsize=letters,
                color=look.ink, in_layout=False,
            )  # fmt: skip
            self._moving.append((x, y, hand, sector, words))
        # Quarters, as a clock has them; one line for all dials, as it is drawn in every frame.
        x, y = np.array([each[:2] for each in self._moving]).T[:, :, None, None]
        ends = np.array([0.9, 1.0, math.nan]) * _RADIUS
        x = x + np.array([0, 1, 0, -1])[:, None] * ends
        y = y + np.array([1, 0, -1, 0])[:, None] * ends
        (self._marks,) = ax.plot(x.ravel(), y.ravel(), color=look.grey, linewidth=1.0, zorder=1.5)
        self._title = ax.set_title("", loc="left")
        ax.set_aspect("equal")
        ax.set_xlim(-0.55, columns - 0.45)
        ax.set_ylim(-_HEIGHT * (rows - 1) - 0.95, 0.5)
        ax.set_axis_off()

    def turn(self, position: Any, row: FloatArray) -> None:
        """Set the hands to a position, whose row of the table this is.

        Of each text only the last line depends on it.
        """
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
        where = position_words(np.array([position]))
        name, _, parameters = self._shown.title().partition("\n")
        title = f"{name}; a hand points to (sine, cosine)\n{parameters}\n{where}"
        drawing.set_title(self.axes, title)

    def shapes(self) -> list[Artist]:
        """What a turn moves, and the marks over it, in the order in which they are drawn."""
        _, _, hands, sectors, _ = zip(*self._moving, strict=True)
        return [*sectors, self._marks, *hands]

    def texts(self) -> list[Text]:
        """What a turn writes."""
        return [*(words for *_, words in self._moving), self._title]
