"""What a scaling does to the frequencies of a rotary encoding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posenc_native.base.arguments import wrong_value
from posenc_native.rotary.rotary import Rotary
from posenc_native.rotary.supports import rotary_of
from posenc_native.spectra.scaling import RotaryBlend, rotary_blend

from . import drawing
from .encodings import base_of, number, rotary_words

if TYPE_CHECKING:
    from posenc_native.base.kinds import SupportsRotary


def frequencies(
    scaled: SupportsRotary, unscaled: SupportsRotary | None = None, *, ax: Axes | None = None
) -> Axes:
    """Each frequency of a scaled rotary encoding, as a part of the unscaled one.

    1 is a pair that turns as fast as before, 1/8 one that turns eight times slower. Wavelengths of
    the unscaled pairs are marked on top. For YaRN and Llama 3 the bands are shaded: pairs that are
    kept, blended and slowed in full, with the bounds from the rule that makes the frequencies; for
    every scaling that names it, the length of the first training is marked, where a pair turns
    just once within it.

    Args:
        scaled: of the scalings that depend on the length of a sequence (dynamic, LongRoPE) the one
            made for a ``seq_len``.
        unscaled: default `scaled` without its scaling; needed where `scaled` was made of
            frequencies.
        ax: the Axes to draw into; None for a new figure.

    Returns:
        The Axes.

    Raises:
        ValueError: different numbers of pairs; no pairs; a `scaled` that was made of frequencies,
            alone.
        TypeError: what neither is nor has a `Rotary`.

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
        unscaled = Rotary(scaled.head_dim, base=base_of(scaled), rotary_dim=scaled.rotary_dim)
    else:
        unscaled = rotary_of(function, "unscaled", unscaled)
    count = len(scaled.inv_freq)
    if not count or len(unscaled.inv_freq) != count:
        wrong_value(function, "unscaled", f"{count} pairs, 1 or more", len(unscaled.inv_freq))
    ax = drawing.one_axes(function, ax, (8.0, 4.4))
    look = drawing.palette(ax)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = scaled.inv_freq / unscaled.inv_freq
        lengths = 2 * math.pi / np.abs(unscaled.inv_freq)
    turning = np.isfinite(parts) & (parts > 0)
    ax.plot(
        np.arange(count), np.where(turning, parts, np.nan), "-o", color=look.colours[0],
        linewidth=1.2, markersize=4 if count <= 64 else 2.5, zorder=3,
    )  # fmt: skip
    ax.axhline(1.0, color=look.faint, linewidth=1.0, zorder=1)
    _part_axis(ax, parts[turning])
    ax.set_xlim(-1, count)
    drawing.dimension_ticks(ax.xaxis, count)
    ax.set(xlabel="pair", ylabel="frequency, scaled / unscaled")
    if (np.diff(lengths) > 0).all():  # pairs of several axes begin anew with each
        powers = drawing.powers_of_ten(lengths[0], lengths[-1])
        ticks = [(_pair_of(lengths, 10.0**power), power) for power in powers]
        drawing.length_ticks(ax, "unscaled wavelength, positions", ticks)
        _mark(ax, scaled, lengths, parts)
    drawing.open_frame(ax)
    still = f"\n{count - int(turning.sum())} pairs do not turn" if not turning.all() else ""
    drawing.set_title(ax, f"Rotary frequencies, scaled\n{rotary_words(scaled)}{still}")
    return ax


def _part_axis(ax: Axes, parts: npt.NDArray[np.float64]) -> None:
    """A logarithmic axis with 1, 1/2, 1/4 ...; a plain one where nothing is halved."""
    low, high = float(parts.min(initial=1.0)), float(parts.max(initial=1.0))
    if high / low < 2.5:
        ax.set_ylim(low - 0.1, high + 0.15)
        return
    ax.set_yscale("log", base=2)
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    ax.yaxis.set_major_locator(FixedLocator([2.0**power for power in powers]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(
        FuncFormatter(lambda part, _: f"{part:.0f}" if part >= 1 else f"1/{1 / part:.0f}")
    )
    ax.set_ylim(low / 1.2, high * 1.15 * (high / low) ** 0.1)  # with room for the bands' names


def _pair_of(lengths: npt.NDArray[np.float64], length: float) -> float:
    """The (fractional) pair of a wavelength."""
    return float(np.interp(math.log(length), np.log(lengths), np.arange(len(lengths))))


def _mark(
    ax: Axes, scaled: Rotary, lengths: npt.NDArray[np.float64], parts: npt.NDArray[np.float64]
) -> None:
    """Bands, and the wavelengths that decide."""
    scaling = scaled.scaling or {}
    marks: list[tuple[float, str]] = []
    blend = rotary_blend("plot.frequencies", scaled.rotary_dim, scaled.base, scaling)
    if blend is not None:
        _shade_bands(ax, blend)
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
    ink = drawing.palette(ax).ink
    for length, lines in together.items():
        x = _pair_of(lengths, length)
        ax.axvline(x, color=ink, linewidth=0.9, linestyle="--", zorder=2)
        # Beside the line, where the curve is not: below it on the left, above it on the right.
        below = parts[math.ceil(x)] > math.sqrt(np.nanmin(parts[parts > 0]) * np.nanmax(parts))
        ax.annotate(
            "\n".join(lines), (x, 0.03 if below else 0.86), xycoords=("data", "axes fraction"),
            xytext=(-3 if below else 3, 0), textcoords="offset points", rotation=90,
            ha="right" if below else "left", va="bottom" if below else "top", fontsize="small",
            color=ink,
        )  # fmt: skip


def _shade_bands(ax: Axes, blend: RotaryBlend) -> None:
    """Pairs that are kept, blended and slowed, with a name each."""
    count = len(blend.kept)
    fast, slow = int((blend.slowed == 0).sum()), count - int((blend.kept == 0).sum())
    look = drawing.palette(ax)
    bands = (
        ("kept", -1.0, fast - 0.5, look.bands[0]),
        ("blended", fast - 0.5, slow - 0.5, look.bands[1]),
        ("slowed", slow - 0.5, float(count), look.bands[2]),
    )
    for name, start, end, shade in bands:
        if end - start < 0.75:
            continue
        ax.axvspan(start, end, color=shade, linewidth=0, zorder=0)
        ax.annotate(
            name, ((start + end) / 2, 0.97), xycoords=("data", "axes fraction"), ha="center",
            va="top", fontsize="small", weight="bold", color=look.ink,
        )  # fmt: skip
