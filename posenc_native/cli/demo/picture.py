"""The tables as a picture, above plots of attention and of the error by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .far import BACK, SHOWN_POSITIONS, TOKENS
from .measure import Figures
from .show import share_of_attention, text_of

__all__ = ["draw"]

INK, ORANGE = "#1a1a1a", "#c9701a"
# Told apart without color as well.
STYLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("transformers", {"color": ORANGE, "linestyle": "--", "marker": "s"}),
    ("posenc_native", {"color": INK, "linestyle": "-", "marker": "o"}),
)
LINE = 0.2  # inches from line to line of the tables


def draw(figures: Figures, out: Path) -> None:
    """Draw all measurements, one panel below the other."""
    from matplotlib.figure import Figure

    text = text_of(figures)
    heights = [LINE * (text.count("\n") + 3), 2.9, 2.9]
    figure = Figure((10, sum(heights)), dpi=120, facecolor="white", layout="constrained")
    parts: Any = figure.subfigures(3, height_ratios=heights)
    words, attention, errors = parts
    words.text(
        0.04, 1 - LINE / heights[0], text, va="top", family="monospace", color=INK,
        fontsize=60 * LINE, linespacing=1.2,
    )  # fmt: skip
    _draw_attention(attention, figures)
    _draw_errors(errors.add_subplot(), figures)
    figure.savefig(out, format="png")


def _draw_attention(figure: Any, figures: Figures) -> None:
    """A panel for each position, in each a line for every token and each variant."""
    title = f"Attention of a head that looks {BACK} tokens back: a line for each of {TOKENS} tokens"
    figure.suptitle(title, x=0.04, ha="left", fontsize=11, weight="bold", color=INK)
    panels = figure.subplots(1, len(figures.attention), sharey=True)
    for axes, (position, pair) in zip(panels, figures.attention.items(), strict=True):
        # Ours is broad, below: what lies on it is the same, what leaves it is not.
        for (_, style), way, broad in reversed(list(zip(STYLES, pair, (0.9, 4.0), strict=True))):
            for weights in way.weights:
                axes.plot(weights, color=style["color"], linewidth=broad)
        share = f"{share_of_attention(pair[0].elsewhere)}\nelsewhere"
        axes.text(11, 0.95, share, color=ORANGE, fontsize=9, weight="bold", ha="right", va="top")
        axes.set_title(f"from {position:,}", loc="left", fontsize=10, color=INK)
        axes.set(ylim=(0.0, 1.0), xticks=[0, BACK, 8])
        axes.set_xlabel("tokens back", fontsize=9)
        _open(axes)
    panels[0].set_yticks([0.0, 0.5, 1.0], ["0", "½", "1"])
    for (name, style), y in zip(STYLES, (0.55, 0.42), strict=True):
        panels[0].text(5.2, y, name, color=style["color"], fontsize=9, weight="bold")


def _draw_errors(axes: Any, figures: Figures) -> None:
    positions = list(figures.errors)
    for library, (name, style) in enumerate(STYLES):
        values = [errors[library] for errors in figures.errors.values()]
        axes.plot(positions, values, markersize=5, linewidth=1.8, **style)
        axes.annotate(
            name, (positions[-1], values[-1]), xytext=(10, 0), textcoords="offset points",
            va="center", weight="bold", color=style["color"],
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 2.0)
    ticks = [16, 256, *SHOWN_POSITIONS]
    axes.set_xticks(ticks, [f"{p:,}" for p in ticks])
    axes.minorticks_off()
    axes.set_xlabel("position")
    axes.set_title("Largest error of cos and sin", loc="left", fontsize=11, weight="bold")
    _open(axes)


def _open(axes: Any) -> None:
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
