"""The effect of a scaling on the frequencies of a rotary encoding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.frequencies.scaling import rotary_blend
from posenc_native.encodings.rotary.rotary import Rotary, rotary_of

from .encodings import FloatArray, number, rotary_words
from .late import colors, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from posenc_native.core.calls.kinds import SupportsRotary

_DATA_AND_HEIGHT = ("data", "axes fraction")  # a pair, and a part of the height
_DASHES = ("--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))  # of bounds


def frequencies(
    scaled: SupportsRotary, unscaled: SupportsRotary | None = None, *, ax: Axes | None = None
) -> Axes:
    """The effect of a scaling on each rotary frequency.

    At 1 a pair turns as fast as before, at 1/8 eight times slower. The axis on top
    has the wavelengths of the unscaled pairs. For YaRN (Peng et al. 2023, section 3.2) and Llama 3,
    the bands are shaded: pairs that keep their frequency, blended pairs and slowed pairs. Dashed
    lines mark the bounds of the bands and, for every scaling that names it, the length of the first
    training, in which the pair there turns once.

    Args:
        scaled: the encoding; with a scaling that depends on the length of a sequence (dynamic,
            LongRoPE), an encoding made for a ``seq_len``.
        unscaled: the rotation to compare with; default `scaled` without its scaling. Required if
            `scaled` was made of frequencies.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes.

    Raises:
        ValueError: different numbers of pairs; no pairs; a `scaled` that was made of frequencies,
            without `unscaled`.
        TypeError: an argument that neither is nor has a `Rotary`.

    Example:
        >>> import posenc_native as pn
        >>> ax = pn.plot.frequencies(pn.Rotary.preset("llama-3.1"))
        >>> ax.lines[0].get_ydata()[[0, -1]]
        array([1.   , 0.125])
        >>> [text.get_text().split()[0] for text in ax.texts[:3]]
        ['kept', 'blended', 'slowed']
    """
    function = "plot.frequencies"
    scaled = rotary_of(function, "scaled", scaled)
    if unscaled is None:
        if "inv_freq" in scaled._given:
            expected = "a Rotary to compare with, where scaled was made of frequencies"
            wrong_value(function, "unscaled", expected, None)
        unscaled = Rotary(scaled.head_dim, base=scaled.base, rotary_dim=scaled.rotary_dim)
    else:
        unscaled = rotary_of(function, "unscaled", unscaled)
    count = len(scaled.inv_freq)
    if not count or len(unscaled.inv_freq) != count:
        wrong_value(function, "unscaled", f"{count} pairs, 1 or more", len(unscaled.inv_freq))
    (ax,) = drawing.axes(function, ax, (8.0, 4.4))
    look, part, pairs = colors.palette(ax), drawing.fit(ax), np.arange(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = scaled.inv_freq / unscaled.inv_freq
        lengths = 2 * math.pi / np.abs(unscaled.inv_freq)
    turning = np.isfinite(parts) & (parts > 0)
    ax.plot(
        pairs, np.where(turning, parts, np.nan), "-o", color=look.colors[0], linewidth=1.2,
        markersize=min(4.0, max(1.5, 0.6 * drawing.points(ax)[0] / count)) * part, zorder=3,
    )  # fmt: skip
    ax.axhline(1.0, color=look.faint, linewidth=1.0, zorder=1)
    _part_axis(ax, parts[turning])
    ax.set_xlim(-1, count)
    drawing.dimension_ticks(ax, count)
    # Pairs of several axes begin anew with each axis; a pair that stands still has no length.
    if (np.diff(lengths) > 0).all() and np.isfinite(lengths).all():
        ticks = drawing.powers_of_ten(lengths, pairs)
        drawing.length_ticks(ax, "unscaled wavelength, positions", ticks)
        _mark(ax, scaled, lengths)
    still = f"\n{count - int(turning.sum())} pairs do not turn" if not turning.all() else ""
    drawing.set_words(
        ax, f"Rotary frequencies, scaled\n{rotary_words(scaled)}{still}", "pair",
        "scaled / unscaled", drawing.OPEN,
    )  # fmt: skip
    return ax


def _part_axis(ax: Axes, parts: FloatArray) -> None:
    """A logarithmic axis with 1, 1/2, 1/4 ...; a plain axis where nothing is halved."""
    low, high = float(parts.min(initial=1.0)), float(parts.max(initial=1.0))
    if high / low < 2.5:
        ax.set_ylim(low - 0.1, high + 0.15)
        return
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ax.set_yscale("log", base=2)
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    step = 1 + int(3.5 * drawing.letters(ax) * len(powers) / drawing.points(ax)[1])
    ax.yaxis.set_major_locator(FixedLocator([2.0**power for power in powers if not power % step]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(
        FuncFormatter(lambda part, _: f"{part:.0f}" if part >= 1 else f"1/{1 / part:.0f}")
    )
    # On top there is room for the names of the bands, below for a half of a marker.
    names = drawing.height_of_words(ax)
    span = math.log(high / low) / (0.92 - names)
    ax.set_ylim(low / math.exp(0.08 * span), high * math.exp(names * span))


def _mark(ax: Axes, scaled: Rotary, lengths: FloatArray) -> None:
    """Bands, and the wavelengths that decide."""
    scaling = scaled.scaling or {}
    marks: list[tuple[float, str]] = []
    blend = rotary_blend("plot.frequencies", scaled.rotary_dim, scaled.base, scaling)
    if blend is not None:
        _shade_bands(ax, len(lengths), int((blend.slowed == 0).sum()), int((blend.kept == 0).sum()))
        for key, turns in (blend.fast, blend.slow):
            words = f"{number(turns)} turn{'s' if turns != 1 else ''} in {number(blend.trained)}"
            marks.append((blend.trained / turns, f"{words} ({key})"))
    for key, words in (
        ("original_max_position_embeddings", "first training"),
        ("max_position_embeddings", "max_position_embeddings"),
        ("seq_len", "this sequence"),
    ):
        if scaling.get(key) is not None:
            marks.append((float(scaling[key]), f"{words}: {number(scaling[key])} positions"))
    together: dict[float, list[str]] = {}
    for length, words in marks:
        if lengths[0] <= length <= lengths[-1]:
            together.setdefault(length, []).append(words)
    handles, places = [], []
    for i, (length, lines) in enumerate(sorted(together.items())):
        # The (fractional) pair that has this wavelength.
        x = float(np.interp(math.log(length), np.log(lengths), np.arange(len(lengths))))
        places.append(x)
        handles.append(
            ax.axvline(
                x, ymax=0.9, color=colors.palette(ax).ink, linewidth=1.0, linestyle=_DASHES[i % 4],
                zorder=2, label="\n".join(lines),
            )
        )  # fmt: skip
    if handles:
        # In the lower left corner, as far as the first of these lines; or below.
        letters = max(len(line) for lines in together.values() for line in lines)
        needs = drawing.letters(ax) * (0.56 * letters + 5)
        has = drawing.points(ax)[0] * (places[0] + 1) / (len(lengths) + 1)
        drawing.legend(ax, handles=handles, below=needs > has)


def _shade_bands(ax: Axes, count: int, kept: int, slowed: int) -> None:
    """So many pairs that are kept, those that are blended, those that are slowed: named."""
    edges = (-1.0, kept - 0.5, count - slowed - 0.5, float(count))
    for i, name in enumerate(("kept", "blended", "slowed")):
        start, end = edges[i : i + 2]
        if end - start < 0.75:
            continue
        ax.axvspan(start, end, color=colors.palette(ax).bands[i], linewidth=0, zorder=0)
        drawing.write(
            ax, name, ((start + end) / 2, 0.98), xycoords=_DATA_AND_HEIGHT, ha="center", va="top",
            weight="bold",
        )  # fmt: skip
