"""What rotary encoding does to queries and keys, and what a scaling does to its frequencies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posenc_native.base.arguments import wrong_value
from posenc_native.rotary.rotary import Rotary
from posenc_native.rotary.supports import rotary_of
from posenc_native.spectra.scaling import rotary_blend

from . import drawing
from .encodings import (
    FloatArray,
    base_of,
    number,
    position_words,
    read_numbers,
    read_positions,
    rotary_words,
    same_on_all_axes,
)

if TYPE_CHECKING:
    from posenc_native.base.kinds import SupportsRotary

_DATA_AND_HEIGHT = ("data", "axes fraction")  # a pair, and a part of the height


def rotation(
    x: Any, rope: SupportsRotary, positions: Any = None, *, ax: Any = None
) -> npt.NDArray[np.object_]:
    """Queries (or keys) of a head before and after rotary encoding, side by side.

    What is the same for all tokens is a stripe before; after it is a wave, of the wavelength of its
    pair. Both panels have the same shades, which the largest 2 % of the numbers are beyond: trained
    models have single dims that are far larger than all others. Where a pixel holds several numbers
    it shows their mean.

    Args:
        x: ``[s, head_dim]``, the tokens of one head, as ``q[0, head]`` is of ``[b, h, s, d]``.
        rope: how they are rotated.
        positions: an int n for 0 .. n-1, or ``[s]``; None for 0 .. s-1.
        ax: two Axes of one figure to draw into; None for a new figure.

    Returns:
        Two Axes: before, after.

    Raises:
        ValueError: x of another shape, as many positions as there are no tokens.
        TypeError: arguments of a wrong kind.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> q = np.random.default_rng(0).standard_normal((32, 64))
        >>> before, after = pn.plot.rotation(q, pn.Rotary(64))
        >>> bool(np.array_equal(before.images[0].get_array(), q))
        True
        >>> after.get_xlabel(), after.get_ylabel()
        ('dimension of the head', 'position')
    """
    function = "plot.rotation"
    rope = rotary_of(function, "rope", rope)
    values = read_numbers(function, "x", x)
    if values.ndim != 2 or values.shape[1] != rope.head_dim or not len(values):
        expected = f"shape [s, head_dim] = [s, {rope.head_dim}], one head as q[0, 0] is"
        wrong_value(function, "x", expected, list(values.shape))
    found = read_positions(function, len(values) if positions is None else positions)
    if len(found) != len(values):
        wrong_value(function, "positions", f"{len(values)} of them, one a token", len(found))
    turned = rope.apply(values, same_on_all_axes(rope, found), layout="sd")
    axes = drawing.axes(function, ax, (11.5, 4.8), 2)
    limit, clipped = _robust_limit(np.stack([values, turned]))
    parts = zip(axes, (values, turned), strict=True)
    *_, image = [drawing.shade_positions(one, part, found, limit) for one, part in parts]
    beyond = "; 2 % are beyond" if clipped else ""
    drawing.colour_bar(image, axes, f"value, in both panels{beyond}", clipped)
    words = (f"Before rotary\n{position_words(found)}", f"After rotary\n{rotary_words(rope)}")
    for one, title in zip(axes, words, strict=True):
        drawing.set_words(one, title, "dimension of the head", "position")
    return axes


def _robust_limit(values: FloatArray) -> tuple[float, bool]:
    """The magnitude that 2 % of the values exceed, and whether there are such.

    Queries and keys of trained models have single dims that would leave no shades for the rest.
    """
    sizes = np.abs(values[np.isfinite(values)])
    largest = float(sizes.max(initial=0.0))
    usual = float(np.quantile(sizes, 0.98)) if sizes.size else 0.0
    return usual or largest or 1.0, 0 < usual < largest


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
    (ax,) = drawing.axes(function, ax, (8.0, 4.4))
    look, pairs = drawing.palette(ax), np.arange(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = scaled.inv_freq / unscaled.inv_freq
        lengths = 2 * math.pi / np.abs(unscaled.inv_freq)
    turning = np.isfinite(parts) & (parts > 0)
    ax.plot(
        pairs, np.where(turning, parts, np.nan), "-o", color=look.colours[0], linewidth=1.2,
        markersize=4 if count <= 64 else 2.5, zorder=3,
    )  # fmt: skip
    ax.axhline(1.0, color=look.faint, linewidth=1.0, zorder=1)
    _part_axis(ax, parts[turning])
    ax.set_xlim(-1, count)
    drawing.dimension_ticks(ax.xaxis, count)
    # Pairs of several axes begin anew with each; one that stands still has no length.
    if (np.diff(lengths) > 0).all() and np.isfinite(lengths).all():
        ticks = drawing.powers_of_ten(lengths, pairs)
        drawing.length_ticks(ax, "unscaled wavelength, positions", ticks)
        _mark(ax, scaled, lengths, parts)
    still = f"\n{count - int(turning.sum())} pairs do not turn" if not turning.all() else ""
    drawing.set_words(
        ax, f"Rotary frequencies, scaled\n{rotary_words(scaled)}{still}", "pair",
        "frequency, scaled / unscaled", drawing.OPEN,
    )  # fmt: skip
    return ax


def _part_axis(ax: Axes, parts: FloatArray) -> None:
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


def _mark(ax: Axes, scaled: Rotary, lengths: FloatArray, parts: FloatArray) -> None:
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
    for length, lines in together.items():
        # The (fractional) pair that has this wavelength.
        x = float(np.interp(math.log(length), np.log(lengths), np.arange(len(lengths))))
        ax.axvline(x, color=drawing.palette(ax).ink, linewidth=0.9, linestyle="--", zorder=2)
        # Beside the line, where the curve is not: below it on the left, above it on the right.
        below = parts[math.ceil(x)] > math.sqrt(np.nanmin(parts[parts > 0]) * np.nanmax(parts))
        drawing.write(
            ax, "\n".join(lines), (x, 0.03 if below else 0.86), xycoords=_DATA_AND_HEIGHT,
            xytext=(-3 if below else 3, 0), textcoords="offset points", rotation=90,
            ha="right" if below else "left", va="bottom" if below else "top",
        )  # fmt: skip


def _shade_bands(ax: Axes, count: int, kept: int, slowed: int) -> None:
    """So many pairs that are kept, those that are blended, those that are slowed: named."""
    edges = (-1.0, kept - 0.5, count - slowed - 0.5, float(count))
    for i, name in enumerate(("kept", "blended", "slowed")):
        start, end = edges[i : i + 2]
        if end - start < 0.75:
            continue
        ax.axvspan(start, end, color=drawing.palette(ax).bands[i], linewidth=0, zorder=0)
        drawing.write(
            ax, name, ((start + end) / 2, 0.97), xycoords=_DATA_AND_HEIGHT, ha="center", va="top",
            weight="bold",
        )  # fmt: skip
