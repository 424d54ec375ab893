"""Frames of an animation: the pixels of a figure whose dials turn, in few colors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from .encodings import FloatArray

_DPI, _LAYOUTS = 100, 20  # of animations; a layout that does not settle is good enough

Pixels = npt.NDArray[np.uint32]  # blue, green and red, in the bits from high to low


class Dials(Protocol):
    """A picture that a position turns."""

    axes: Axes

    def turn(self, position: Any, row: FloatArray) -> None:
        """Show a position, whose row of the table this is."""

    def shapes(self) -> list[Artist]:
        """The shapes that a turn moves or that lie over these, in the order of drawing."""

    def texts(self) -> Sequence[Text]:
        """The texts that a turn changes."""


@contextlib.contextmanager
def recording(
    dials: Dials, position: Any, row: FloatArray
) -> Iterator[Callable[[Any, FloatArray], Pixels]]:
    """Gives a function that turns the dials to a position and returns the pixels of the figure.

    The layout is computed once, with this position, and everything that stands still is drawn once:
    both take far longer than the rest.
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

        def draw_lines(lines: slice) -> None:
            """Some lines of each text, exactly where they are in all of it."""
            for text in texts:
                wanted.clear()
                wanted.update(text.get_text().split("\n")[lines])
                text.draw(renderer)

        # The renderer is asked for each line: the last, which changes, takes a quarter of the time
        # of three.
        renderer.draw_text = draw_if_wanted
        draw_lines(slice(-1))
        still = recorder.copy_from_bbox(figure.bbox)

        def pixels_at(position: Any, row: FloatArray) -> Pixels:
            dials.turn(position, row)
            recorder.restore_region(still)
            for shape in shapes:
                shape.draw(renderer)
            draw_lines(slice(-1, None))
            pixels: Pixels = np.asarray(recorder.buffer_rgba()).view("<u4")[..., 0]
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


class FrameColors:
    """The colors of all frames, from a few of them: parts that stand still do not flicker."""

    def __init__(self, pixels: Pixels) -> None:
        pixels = pixels.reshape(-1, pixels.shape[-1])
        self._flat = Image.fromarray(_channels(pixels)).quantize(64).getpalette() or []
        self._palette = np.reshape(self._flat, (-1, 3)).astype(np.int64)
        self._nearest = np.full(1 << 24, -1, np.int16)  # of each color that has been seen
        self._last: Pixels | None = None
        self._chosen = np.empty(0, np.uint8)

    def picture(self, pixels: Pixels) -> Image.Image:
        """The pixels in the nearest of these colors; Pillow's own search is not exact."""
        if self._last is None:
            changed, self._chosen = np.ones(pixels.shape, bool), np.empty(pixels.shape, np.uint8)
        else:
            changed = pixels != self._last  # few, and to look up all takes longer than to draw
        colors, self._last = pixels[changed], pixels
        new = np.unique(colors[self._nearest[colors] < 0])
        apart = _channels(new)[:, None].astype(np.int64) - self._palette
        self._nearest[new] = (apart**2).sum(-1).argmin(-1)
        self._chosen[changed] = self._nearest[colors]
        result = Image.fromarray(self._chosen.copy())
        result.putpalette(self._flat)
        return result


def _channels(pixels: Pixels) -> npt.NDArray[np.uint8]:
    """Red, green and blue of pixels, in a new last axis."""
    return np.stack([pixels >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)
