"""The pairs of a position as the hands of clocks."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value

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
from .late import colors, drawing

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.patches import Wedge
    from matplotlib.text import Text

_SHOWN = 8
_HANDS = 5  # of a dial with steps of its own, the first at 0
_PART = 8  # of a turn, about, from each of them to the next
_SEEN = 1 / 16  # of a turn: a hand that has gone less hardly differs from one at 12 o'clock
_RADIUS = 0.42  # of a dial in its cell
# Lines of words below a dial, whether names are written out, and letters of the longest line: the
# first that leave a dial as many points as it needs.
_WORDS = ((3, True, 24), (3, False, 13), (1, True, 7), (1, False, 2))
_SMALLEST = 30.0


def clock(
    encoding: Any,
    position: Any = None,
    *,
    pairs: Sequence[int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Pairs as clock hands, from the fastest to the slowest.

    A hand points to (sine, cosine). It starts at 12 o'clock at position 0 and turns clockwise, once
    in a wavelength (positive frequencies). Pairs differ in wavelength by a factor of up to 10,000:
    at any one position, the hands of most of them are still, or have turned many times.

    Without `position`, each clock therefore has steps of its own: its five hands are 0, 1, 2, 3 and
    4 steps from the start, gray to full color. The step is one of 1, 2, 5, 10, 20, 50 ... positions
    and about an eighth of a turn. With `position`, all hands are at that position, and the shaded
    sector is the part of the current turn that is done.

    Args:
        encoding: an int dim, a `SinusoidalSpec` or a `Rotary`.
        position: one position for all hands; default steps of its own for each pair.
        pairs: numbers of pairs; default eight, evenly from the first to the last, with `position`
            from those that have turned by 1/16 or more, if any have.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes.

    Raises:
        ValueError: as in `heatmap`; a ready table, which has no frequencies; pairs that do not
            exist; no position for an encoding of logarithms.
        TypeError: arguments of a wrong type.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.clock(128)
        >>> ax.texts[7].get_text().splitlines()
        ['pair 63', 'wavelength 54,410', 'positions 0, 5k .. 20k']
        >>> ax = pn.plot.clock(128, 50)
        >>> ax.texts[0].get_text().splitlines()
        ['pair 0', 'wavelength 6.283', '7.958 turns']
    """
    function = "plot.clock"
    shown = read_encoding(function, encoding)
    if position is None:
        if shown.logarithm:
            expected = "a position: steps of a logarithm are not positions"
            wrong_value(function, "position", expected, None)
        turning = [i for i in _whole_pairs(function, shown) if shown.pairs[i].inv_freq]
        chosen = _read_pairs(function, shown, pairs, turning)
        dials = _Dials(function, ax, shown, chosen)
        dials.step()
        return dials.axes
    place = read_position(function, position, shown)
    row = shown.table(place)[0]
    moved = _moved_pairs(function, shown, float(shown.coordinates(place)[0]))
    dials = _Dials(function, ax, shown, _read_pairs(function, shown, pairs, moved))
    dials.turn(place[0], row)
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
    """The hands of `clock`, turning: an animated .gif, a frame for each position.

    Args:
        encoding: as in `clock`.
        positions: as in `heatmap`.
        path: the file to write, ending in .gif.
        pairs: numbers of pairs; default eight, evenly from those that turn by 1/16 or more between
            the positions, if any do.
        frames_per_second: of a .gif, which counts hundredths of a second; at most 50, which viewers
            can show.
        ax: the Axes to draw into, whose whole figure is recorded; None for a new figure.

    Returns:
        The Axes, as it is in the last frame.

    Raises:
        ValueError: as in `clock`; a path with another ending, a rate out of range.
        TypeError: arguments of a wrong type.
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
    places = read_positions(function, positions, shown)
    rows = shown.table(places)
    way = np.ptp(shown.coordinates(places)) or shown.coordinates(places)[0]
    chosen = _read_pairs(function, shown, pairs, _moved_pairs(function, shown, float(way)))
    rate = arguments.positive_number(function, "frames_per_second", frames_per_second)
    if rate > 50:
        wrong_value(function, "frames_per_second", "at most 50", rate)
    if not os.fspath(path).lower().endswith(".gif"):
        wrong_value(function, "path", "a file that ends in .gif", os.fspath(path))
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{function}: path: no folder {folder}")
    dials = _Dials(function, ax, shown, chosen)
    from .recording import FrameColors, recording

    turns = list(zip(places, rows, strict=True))
    with recording(dials, *turns[0]) as pixels_at:
        # The first alone would lack the color of sectors: at position 0 there are none.
        few = FrameColors(np.stack([pixels_at(*turns[i]) for i in (0, len(turns) // 2)]))
        frames = [few.picture(pixels_at(*turn)) for turn in turns]
    dials.turn(*turns[-1])
    frames[0].save(
        path, format="GIF", save_all=True, append_images=frames[1:], loop=0,
        duration=10 * round(100 / rate),
    )  # fmt: skip
    return dials.axes


def _whole_pairs(function: str, shown: Encoding) -> list[int]:
    """The pairs with both columns, a sine and a cosine."""
    if not shown.pairs:
        wrong_value(function, "encoding", "one with frequencies", f"a {shown.name.lower()}")
    return [i for i, pair in enumerate(shown.pairs) if None not in (pair.sine, pair.cosine)]


def _moved_pairs(function: str, shown: Encoding, way: float) -> list[int]:
    """The pairs that turn visibly in a way, in positions from 0; all if none does."""
    complete_pairs = _whole_pairs(function, shown)
    least = 2 * math.pi * _SEEN
    return [
        i for i in complete_pairs if abs(way * shown.pairs[i].inv_freq) >= least
    ] or complete_pairs


def _read_pairs(
    function: str, shown: Encoding, pairs: Sequence[int] | None, default: list[int]
) -> list[int]:
    """The argument `pairs`; by default up to eight of these, evenly."""
    complete_pairs = _whole_pairs(function, shown)
    if pairs is None:
        candidates = default or complete_pairs
        return [candidates[i] for i in evenly(len(candidates), _SHOWN)]
    chosen = read_indices(function, "pairs", pairs, len(shown.pairs))
    for i in chosen:
        if i not in complete_pairs:
            wrong_value(function, "pairs", "pairs with a sine and a cosine", i)
    return chosen


class _Dials:
    """A dial for each pair, and the parts that move on them."""

    def __init__(self, function: str, ax: Any, shown: Encoding, chosen: list[int]) -> None:
        columns = min(len(chosen), 4)
        rows = math.ceil(len(chosen) / 4)
        (ax,) = drawing.axes(function, ax, (max(1.9 * columns, 5.0), 0.7 + 2.45 * rows))
        from matplotlib.patches import Circle, Wedge

        self.axes: Axes = ax
        self._shown, self._chosen = shown, chosen
        tried = [drawing.Cells(ax, len(chosen), lines, wide) for lines, _, wide in _WORDS]
        least = max(_SMALLEST, 0.7 * tried[1].unit)  # long words are not worth small dials
        best = next((i for i, layout in enumerate(tried) if layout.unit >= least), -1)
        cells, (self._lines, self._roomy, _) = tried[best], _WORDS[best]
        cells.show(ax)
        look, self._part = colors.palette(ax), drawing.fit(ax)
        self._moving: list[tuple[float, float, Line2D, Wedge, Text]] = []
        for x, y in cells.centers:
            ax.add_patch(Circle((x, y), _RADIUS, facecolor=look.paper, edgecolor=look.gray))
            sector = Wedge((x, y), _RADIUS, 90, 90, facecolor=look.faint, edgecolor="none")
            ax.add_patch(sector)
            words = ax.text(
                x, y + cells.words, "", ha="center", va="top", fontsize=cells.size,
                color=look.ink, in_layout=False,
            )  # fmt: skip
            hand = self._add_hand(x, y, look.colors[0])
            self._moving.append((x, y, hand, sector, words))
        # Quarters, as a clock has them; one line for all dials, as it is drawn in every frame.
        x, y = np.array(cells.centers).T[:, :, None, None]
        ends = np.array([0.9, 1.0, math.nan]) * _RADIUS
        x = x + np.array([0, 1, 0, -1])[:, None] * ends
        y = y + np.array([1, 0, -1, 0])[:, None] * ends
        (self._marks,) = ax.plot(x.ravel(), y.ravel(), color=look.gray, linewidth=1.0, zorder=1.5)
        self._title = ax.set_title("", loc="left")

    def _add_hand(self, x: float, y: float, color: str, wide: float = 1.0) -> Line2D:
        (hand,) = self.axes.plot(
            [x, x], [y, y + _RADIUS], color=color, linewidth=2.4 * wide * self._part, marker="o",
            markersize=6 * wide * self._part, markevery=[1], solid_capstyle="round",
        )  # fmt: skip
        return hand

    def turn(self, position: Any, row: FloatArray) -> None:
        """Set the hands to a position, whose row of the table this is.

        Of each text only the last line depends on it.
        """
        way = float(self._shown.coordinates(np.array([position]))[0])
        for i, moving in zip(self._chosen, self._moving, strict=True):
            turns = way * self._shown.pairs[i].inv_freq / (2 * math.pi)
            self._point(i, moving, row)
            self._say(i, moving, f"{turns:,.3f} turns")
        where = position_words(np.array([position]))
        self._say_title(where)

    def step(self) -> None:
        """Set the hands of each pair to positions of its own, a step apart."""
        ordered = colors.palette(self.axes).ordered(_HANDS)
        for i, moving in zip(self._chosen, self._moving, strict=True):
            x, y, last, *_ = moving
            pair = self._shown.pairs[i]
            if not pair.inv_freq:
                self._say(i, moving, "does not turn")
                continue
            step = _nice_step(pair.wavelength / _PART, self._shown.whole)
            places = step * np.arange(_HANDS)
            rows = self._shown.table(places)
            for k in range(_HANDS - 1):
                hand = self._add_hand(x, y, ordered[k], 0.5 + 0.5 * k / (_HANDS - 1))
                hand.set_zorder(last.get_zorder() - 1 + k / _HANDS)
                self._move(hand, x, y, rows[k], i)
            self._point(i, moving, rows[-1])
            names = [drawing.short(float(place)) for place in places]
            words = "positions " if self._roomy else ""
            self._say(i, moving, f"{words}{names[0]}, {names[1]} .. {names[-1]}")
        self._say_title(f"{_HANDS} positions each, a step apart, gray to full color")

    def _move(
        self, hand: Line2D, x: float, y: float, row: FloatArray, i: int
    ) -> tuple[float, float]:
        pair = self._shown.pairs[i]
        assert pair.sine is not None
        assert pair.cosine is not None
        sine, cosine = float(row[pair.sine]), float(row[pair.cosine])
        hand.set_data([x, x + _RADIUS * sine], [y, y + _RADIUS * cosine])
        return sine, cosine

    def _point(
        self, i: int, moving: tuple[float, float, Line2D, Wedge, Text], row: FloatArray
    ) -> None:
        x, y, hand, sector, _ = moving
        sine, cosine = self._move(hand, x, y, row, i)
        at = 90 - math.degrees(math.atan2(sine, cosine))
        forward = self._shown.pairs[i].inv_freq >= 0
        # A wedge is drawn counterclockwise, from its first angle on.
        sector.set_theta1(at if forward else 90)
        sector.set_theta2(90 if forward else at)

    def _say(self, i: int, moving: tuple[float, float, Line2D, Wedge, Text], last: str) -> None:
        length = self._shown.pairs[i].wavelength
        name = "wavelength" if self._roomy else "λ ="
        pair = f"pair {i}" if self._roomy or self._lines > 1 else f"{i}"
        in_short = 1e6 <= length < math.inf
        digits = drawing.short(float(f"{length:.4g}")) if in_short else number(length)
        lines = (pair, f"{name} {digits}", last)
        moving[-1].set_text("\n".join(lines[: self._lines]))

    def _say_title(self, *more: str) -> None:
        name, _, parameters = self._shown.title().partition("\n")
        lines = (f"{name}, hands at (sine, cosine)", parameters, *more)
        drawing.set_title(self.axes, "\n".join(lines))

    def shapes(self) -> list[Artist]:
        """The shapes that a turn moves, and the marks over them, in the order of drawing."""
        _, _, hands, sectors, _ = zip(*self._moving, strict=True)
        return [*sectors, self._marks, *hands]

    def texts(self) -> list[Text]:
        """The texts that a turn changes."""
        return [*(words for *_, words in self._moving), self._title]


def _nice_step(wanted: float, whole: bool) -> float | int:
    """The nearest of 1, 2, 5, 10, 20, 50 ...; less than 1 only if positions are not whole."""
    power = math.floor(math.log10(wanted))
    steps = [digit * 10.0**exponent for exponent in (power, power + 1) for digit in (1, 2, 5)]
    step = min(steps, key=lambda size: abs(math.log(size / wanted)))
    return max(1, round(step)) if whole else step
