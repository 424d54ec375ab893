"""The table as a picture, above where attention goes and the error by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .attention import BACK, TOKENS
from .measure import Figures
from .models import SHOWN_POSITIONS
from .show import sections, sections_of_norms, share_of_attention

__all__ = ["draw"]

INK, GREY, ORANGE = "#1a1a1a", "#666666", "#c9701a"
# Told apart without colour as well.
STYLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("transformers", {"color": ORANGE, "linestyle": "--", "marker": "s"}),
    ("posenc_native", {"color": INK, "linestyle": "-", "marker": "o"}),
)
LINE = 0.245  # inches from line to line of the table


def draw(figures: Figures, out: Path) -> None:
    """Draw everything that was measured, one thing below the other."""
    from matplotlib.figure import Figure

    parts = sections(figures) + sections_of_norms(figures)
    lines = 1 + sum(1.5 + len(part.rows) for part in parts)
    table, attention, errors = 1.2 + LINE * lines, 3.1, 2.6
    height = table + attention + errors
    figure = Figure(figsize=(10, height), dpi=120, facecolor="white")
    _draw_table(figure, figures, parts)
    _draw_attention(figure, figures, (errors + 0.62) / height, (attention - 1.2) / height)
    _draw_errors(figure, figures, 0.62 / height, (errors - 0.95) / height)
    figure.savefig(out, format="png")


def _draw_table(figure: Any, figures: Figures, parts: list[Any]) -> None:
    from matplotlib.lines import Line2D

    height = figure.get_figheight()
    columns = ((0.05, "left"), (0.53, "right"), (0.70, "right"), (0.73, "left"))
    figure.text(
        0.05, 1 - 0.42 / height, "Rotary encoding, two ways", fontsize=17, weight="bold", color=INK
    )
    figure.text(0.05, 1 - 1.02 / height, figures.facts, fontsize=9, color=GREY, linespacing=1.4)
    y = 1 - 1.3 / height

    def line(cells: tuple[str, ...], weight: str = "normal") -> None:
        for (x, side), cell in zip(columns, cells, strict=True):
            figure.text(x, y, cell, ha=side, fontsize=10.5, color=INK, weight=weight)

    def rule(width: float) -> None:
        figure.add_artist(Line2D([0.05, 0.95], [y, y], color=INK, linewidth=width))

    line(("", "transformers", "posenc_native", ""), weight="bold")
    y -= 0.4 * LINE / height
    rule(1.2)
    for part in parts:
        y -= LINE / height
        line((part.title, "", "", ""), weight="bold")
        for what, *cells in part.rows:
            y -= LINE / height
            line((f"   {what}", *cells))
        y -= 0.45 * LINE / height
        rule(0.5)


def _draw_attention(figure: Any, figures: Figures, bottom: float, height: float) -> None:
    """A panel for each position, in each a line for every token, of both ways."""
    left, right, gap = 0.085, 0.95, 0.02
    width = (right - left + gap) / len(figures.attention) - gap
    above = bottom + height + 0.34 / figure.get_figheight()
    title = f"Where a head looks that looks {BACK} tokens back: {TOKENS} lines for {TOKENS} tokens"
    figure.text(left, above, title, fontsize=11, weight="bold", color=INK)
    for place, (position, pair) in enumerate(figures.attention.items()):
        axes = figure.add_axes((left + place * (width + gap), bottom, width, height))
        # Ours is broad, below: what lies on it is the same, what leaves it is not.
        for (_, style), way, broad in reversed(list(zip(STYLES, pair, (0.9, 4.0), strict=True))):
            for weights in way.weights:
                axes.plot(weights, color=style["color"], linewidth=broad)
        share = f"{share_of_attention(pair[0].elsewhere)}\nelsewhere"
        axes.text(11, 0.95, share, color=ORANGE, fontsize=9, weight="bold", ha="right", va="top")
        if place == 0:
            for (name, style), y in zip(STYLES, (0.55, 0.42), strict=True):
                axes.text(5.2, y, name, color=style["color"], fontsize=9, weight="bold")
        axes.set_title(f"from {position:,}", loc="left", fontsize=10, color=INK)
        axes.set_ylim(0.0, 1.0)
        axes.set_xticks([0, BACK, 8])
        axes.set_yticks([0.0, 0.5, 1.0], ["0", "½", "1"] if place == 0 else [])
        axes.set_xlabel("tokens back", fontsize=9)
        axes.grid(True, color="#e4e4e4", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)


def _draw_errors(figure: Any, figures: Figures, bottom: float, height: float) -> None:
    axes = figure.add_axes((0.085, bottom, 0.72, height))
    positions = list(figures.errors)
    for which, (name, style) in enumerate(STYLES):
        values = [errors[which] for errors in figures.errors.values()]
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
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
