"""What was measured, as a table on the terminal and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .measure import LAYERS, MOVED_TO, SHOWN_POSITIONS, Figures

__all__ = ["Section", "draw", "sections", "table"]


@dataclass(frozen=True)
class Section:
    """A part of the table: rows of what, transformers, posenc_native, comparison."""

    title: str
    rows: list[tuple[str, str, str, str]]


def sections(figures: Figures) -> list[Section]:
    """The table: what both its printed form and its picture show."""
    same, count = figures.same_tokens(), len(figures.continuation[0])
    relative = f"{figures.difference / figures.spread:.0e} of spread"
    time_rows = [
        (name, _duration(theirs), _duration(ours), _ratio(theirs, ours, "faster", "slower"))
        for name, theirs, ours in (
            (f"prefill, {figures.tokens:,} tokens", figures.prefill[0], figures.prefill[1]),
            ("the same, inplace=False", figures.prefill[0], figures.prefill[2]),
            ("decode, 1 token", figures.decode[0], figures.decode[1]),
        )
    ]
    return [
        Section(
            "The same model",
            [
                ("largest logit difference", "", f"{figures.difference:.1e}", relative),
                (
                    "greedy continuation",
                    f"{count} tokens",
                    f"{count} tokens",
                    "the same" if same == count else f"same up to {same}",
                ),
                (
                    f"logits move, text at {MOVED_TO:,}",
                    f"{figures.moved[0]:.1e}",
                    f"{figures.moved[1]:.1e}",
                    _ratio(*figures.moved, "less", "more"),
                ),
            ],
        ),
        Section(f"Time of rotary, {LAYERS} layers", time_rows),
        Section(
            "Largest error of cos and sin",
            [
                (
                    f"near position {position:,}",
                    f"{a:.1e}",
                    f"{b:.1e}",
                    _ratio(a, b, "less", "more"),
                )
                for position, (a, b) in figures.errors.items()
                if position in SHOWN_POSITIONS
            ],
        ),
    ]


def _ratio(theirs: float, ours: float, better: str, worse: str) -> str:
    larger, smaller = max(theirs, ours), max(min(theirs, ours), 1e-30)
    ratio = larger / smaller
    number = f"{ratio:.1f}" if ratio < 10 else f"{float(f'{ratio:.2g}'):,.0f}"
    return f"{number}× {better if ours <= theirs else worse}"


def _duration(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def table(figures: Figures) -> Any:
    """The table for a terminal, as rich prints it."""
    from rich import box
    from rich.table import Table

    table = Table(
        title="Rotary encoding, two ways",
        caption=figures.facts,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for name, side in (("transformers", "right"), ("posenc_native", "right"), ("", "left")):
        table.add_column(name, justify=cast(Any, side), no_wrap=True)
    for section in sections(figures):
        table.add_row(f"[bold]{section.title}[/bold]")
        for what, *cells in section.rows:
            table.add_row(f" {what}", *cells)
        table.add_section()
    return table


def draw(figures: Figures, out: Path) -> None:
    """The table above a chart of the error by position. Told apart without colour as well."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    ink, grey, orange = "#1a1a1a", "#666666", "#d9822b"
    figure = Figure(figsize=(10, 8.6), dpi=150, facecolor="white")
    figure.text(0.05, 0.955, "Rotary encoding, two ways", fontsize=17, weight="bold", color=ink)
    figure.text(0.05, 0.885, figures.facts, fontsize=9, color=grey, linespacing=1.5)

    columns = ((0.05, "left"), (0.60, "right"), (0.755, "right"), (0.785, "left"))
    y, step = 0.845, 0.0285

    def line(cells: tuple[str, ...], weight: str = "normal") -> None:
        for (x, side), cell in zip(columns, cells, strict=True):
            figure.text(x, y, cell, ha=side, fontsize=10.5, color=ink, weight=weight)

    def rule(width: float) -> None:
        figure.add_artist(Line2D([0.05, 0.95], [y, y], color=ink, linewidth=width))

    line(("", "transformers", "posenc_native", ""), weight="bold")
    y -= 0.012
    rule(1.2)
    for section in sections(figures):
        y -= step
        line((section.title, "", "", ""), weight="bold")
        for what, *cells in section.rows:
            y -= step
            line((f"   {what}", *cells))
        y -= 0.012
        rule(0.5)

    axes = figure.add_axes((0.115, 0.075, 0.70, y - 0.15))
    positions = list(figures.errors)
    for which, (name, colour, dashes, marker) in enumerate(
        (("transformers", orange, "--", "s"), ("posenc_native", ink, "-", "o"))
    ):
        values = [errors[which] for errors in figures.errors.values()]
        axes.plot(
            positions,
            values,
            color=colour,
            linestyle=dashes,
            marker=marker,
            markersize=5,
            linewidth=1.8,
        )
        axes.annotate(
            name,
            (positions[-1], values[-1]),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            weight="bold",
            color=colour,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 1.0)
    ticks = [16, 256, *SHOWN_POSITIONS]
    axes.set_xticks(ticks, [f"{p:,}" for p in ticks])
    axes.minorticks_off()
    axes.set_xlabel("position")
    axes.set_title("Largest error of cos and sin", loc="left", fontsize=11, weight="bold")
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, format="png")
