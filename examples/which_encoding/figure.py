"""The results as a table in the terminal and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiment import Figures, Run

# Told apart without color, too: by lightness, dashes and marker.
STYLES: dict[str, dict[str, Any]] = {
    "none": {"color": "#9a9a9a", "marker": "x", "linestyle": "-"},
    "learned": {"color": "#b8860b", "marker": "s", "linestyle": "--"},
    "sinusoidal": {"color": "#d1603d", "marker": "D", "linestyle": "-."},
    "T5": {"color": "#4f9d8b", "marker": "^", "linestyle": "-"},
    "ALiBi": {"color": "#7b5ea7", "marker": "v", "linestyle": (0, (5, 1))},
    "rotary": {"color": "#10375c", "marker": "o", "linestyle": "-"},
}
ADAPTED = {"learned": "learned, resampled", "rotary": "rotary, YaRN"}
Losses = dict[int, list[float]]  # by factor of the trained length, one of each seed


def lines(runs: list[Run], which: int = 0) -> Iterable[tuple[str, str, Losses]]:
    """(label, encoding, losses) of every line; which is 1 for losses beyond the trained length."""
    for encoding in STYLES:
        mine = [run for run in runs if run.encoding == encoding]
        for label, of_runs in (
            (encoding, [run.held_out for run in mine]),
            (ADAPTED.get(encoding, ""), [run.adapted for run in mine]),
        ):
            if of_runs and of_runs[0]:
                yield label, encoding, {f: [of[f][which] for of in of_runs] for f in of_runs[0]}


def table(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: held-out losses."""
    settings, runs = figures.settings, figures.runs
    longest = max(settings.factors)
    heads = ["encoding", *(f"{f}x = {f * settings.length}" for f in settings.factors)]
    heads.append(f"{longest}x, beyond 1x")
    rows = []
    beyond = {label: losses for label, _, losses in lines(runs, which=1)}
    for label, _, losses in lines(runs):
        cells = [_cell(losses.get(factor)) for factor in settings.factors]
        rows.append([label, *cells, _cell(beyond[label].get(longest))])
    return heads, rows


def _cell(values: list[float] | None) -> str:
    if values is None:
        return "-"
    spread = f"±{(max(values) - min(values)) / 2:.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def draw(figures: Figures, out: Path) -> None:
    """Training curves on the left, held-out loss at 1x, 2x, 4x the trained length on the right."""
    from matplotlib.figure import Figure

    settings, runs = figures.settings, figures.runs
    figure = Figure(figsize=(10.5, 4.6), dpi=110, facecolor="white")
    left = figure.add_axes((0.065, 0.14, 0.32, 0.76))  # with room for names at the right
    right = figure.add_axes((0.54, 0.14, 0.30, 0.76))
    ends = []
    for encoding, style in STYLES.items():
        curves = [smooth(run.training) for run in runs if run.encoding == encoding]
        if curves:
            mean = [statistics.fmean(values) for values in zip(*curves, strict=True)]
            begin = len(mean) // 25  # where the mean of a few steps says little yet
            left.plot(
                range(begin + 1, len(mean) + 1), mean[begin:], linewidth=1.7,
                color=style["color"], linestyle=style["linestyle"],
            )  # fmt: skip
            ends.append((mean[-1], encoding, style["color"]))
    left.set(xlabel="step", ylabel="training loss, nats a character")
    left.set_title(f"Trained on {settings.length} characters at a time", loc="left")
    label_ends(left, settings.steps, ends)

    ends = []
    places = {factor: place for place, factor in enumerate(settings.factors)}
    for label, encoding, losses in lines(runs):
        style = dict(STYLES[encoding])
        adapted = label != encoding
        if adapted:
            style |= {"linestyle": ":", "markerfacecolor": "white"}
        mean = [statistics.fmean(values) for values in losses.values()]
        spread = [
            [middle - min(values) for middle, values in zip(mean, losses.values(), strict=True)],
            [max(values) - middle for middle, values in zip(mean, losses.values(), strict=True)],
        ]
        right.errorbar(
            [places[factor] for factor in losses], mean, spread, linewidth=1.7, markersize=6,
            capsize=3, **style,
        )  # fmt: skip
        if len(losses) > 1:  # what ends at 1x has its label at the line that goes on
            ends.append((mean[-1], label, style["color"]))
    # A ratio of losses is a distance, so that the best stay apart although the worst is far away.
    right.set_yscale("log")
    right.set_xticks(list(places.values()), [f"{f}x\n{f * settings.length}" for f in places])
    right.set(xlabel="length of the text that is read", ylabel="held-out loss, nats a character")
    right.set_title("Read at and beyond the trained length", loc="left")
    right.yaxis.set_major_formatter("{x:.1f}")
    right.yaxis.set_minor_formatter("{x:.1f}")
    label_ends(right, len(places) - 1, ends)
    for axes in (left, right):
        axes.grid(True, axis="y", which="both", color="#e6e6e6", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out)


def smooth(values: list[float], keep: float = 0.95) -> list[float]:
    """The running mean that forgets, without the pull of a start at zero."""
    result, mean, weight = [], 0.0, 0.0
    for value in values:
        mean = keep * mean + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        result.append(mean / weight)
    return result


def label_ends(axes: Any, x: float, ends: list[tuple[float, str, str]]) -> None:
    """Names at the right ends of lines, moved apart where lines end close together."""
    axes.get_ylim()  # settles the scale, which the transformations below are made of
    low, high = axes.transAxes.transform([(0, 0), (0, 1)])[:, 1]
    apart = 13.0 * axes.figure.dpi / 72  # from line to line of text, in pixels
    below = low - apart
    for y, label, color in sorted(ends):
        at = axes.transData.transform((x, y))[1]
        place = below = max(at, below + apart)
        axes.annotate(
            label, (x, y), xytext=(1.04, (place - low) / (high - low)), textcoords="axes fraction",
            va="center", color=color, weight="bold", fontsize=9.5, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkB": 4},
        )  # fmt: skip


def show(figures: Figures) -> None:
    """Print the table: with rich where it is installed, else as columns of plain text."""
    title = "Loss on text that was held out, nats a character"
    heads, rows = table(figures)
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        print(title)
        for row in (heads, *rows):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
        return
    drawn = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for i, head in enumerate(heads):
        drawn.add_column(head, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*row)
    Console().print(drawn)
