"""Pictures of figures that a run has written, beside them.

X-speed.png and X-accuracy.png of a comparison, X.png of growth curves.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from benchmarks.clock import limits

from .report import duration

# A panel each: the first case, with the wanted number of threads, whose name begins and ends so.
PANELS = (
    ("rotary, q 32 + k 8 heads x", "torch float32, half"),
    ("rotary, q 32 + k 8 heads x", "torch float32, interleaved"),
    ("rotary, q 32 + k 8 heads x", "torch bfloat16, half"),
    ("rotary backward, q 32 + k 8 heads x", "torch bfloat16, half"),
    ("sinusoidal table, 131072 x 128", "torch float32"),
    ("decode, 1 x", "torch bfloat16, half"),
    ("decode, 32 x", "torch float32, half"),
    ("relative: T5 bias, 16", "torch float32"),
)
# Marks are told apart by lightness alone, and by form. Not bars: a logarithmic axis has no zero for
# them to begin at.
INK = "#222222"
MARK: dict[str, Any] = {"linestyle": "none", "markersize": 7, "markeredgewidth": 0.6}
OURS = MARK | {"marker": "o", "color": "#10375c", "markeredgecolor": INK}
PEER = MARK | {"marker": "s", "color": "#efb366", "markeredgecolor": "#8a5a1c"}
YARDSTICK = MARK | {"marker": "D", "color": "#ffffff", "markeredgecolor": INK}
LIMIT: dict[str, Any] = {"color": "#c1121f", "linewidth": 1.3, "zorder": 3.5}
LIMIT_LINES = dict(zip(limits.KINDS, ("-", "--", "-.", ":", (0, (5, 1, 1, 1))), strict=True))
LINES = ("#10375c", "#c8553d", "#3c887e", "#8c6bb1", "#b8860b", "#666666")
MARKERS = "os^Dvx*P<>ph"
# Light also where the page around is dark.
PAPER = "#ffffff"
# Of words that are written over lines.
_BEHIND = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
STYLE = {
    "font.size": 8.0,
    "text.color": INK,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#e6e6e6",
}


def _figure(width: float, height: float, title: str, dpi: float = 100) -> Figure:
    figure = Figure((width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


def _save(figure: Figure, path: Path, digest: str | None = None) -> Path:
    figure.savefig(path, metadata={"Software": None})
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(64)  # half the file, and nothing to be seen of it
    notes = PngInfo()
    if digest:
        notes.add_text("Figures", digest)
    small.save(path, optimize=True, pnginfo=notes)
    return path


# ------------------------------------------------------------------------------------------- speed


def panels(figures: dict[str, Any], threads: int) -> list[dict[str, Any]]:
    """The cases that the picture shows."""
    found = []
    for begin, end in PANELS:
        for case in figures.get("cases", ()):
            name = re.sub(r", \d+ threads?$", "", case["case"])
            if case["threads"] == threads and name.startswith(begin) and name.endswith(end):
                found.append(case)
                break
    return found


def marks(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that a panel shows, the fastest first: ours in every mode, the best of each peer.

    Of ours the fastest in each mode, of a yardstick the fastest of its name.
    """
    best: dict[Any, dict[str, Any]] = {}
    for row in case["rows"]:
        if "seconds" not in row or row["contestant"] == "a call of nothing":
            continue
        key = ("ours", row["mode"]) if row["ours"] else row["contestant"]
        if key not in best or row["seconds"] < best[key]["seconds"]:
            best[key] = row
    return sorted(best.values(), key=lambda row: row["seconds"])


def _label(row: dict[str, Any]) -> str:
    mode = f", {row['mode']}" if row["mode"] else ""
    return ("posenc_native" if row["ours"] else row["contestant"]) + mode


def _style(row: dict[str, Any]) -> dict[str, Any]:
    if row["ours"]:
        return OURS
    return YARDSTICK if row["yardstick"] else PEER


def _draw_case(axes: Any, case: dict[str, Any]) -> None:
    rows = marks(case)
    fastest, slowest = rows[0]["seconds"], rows[-1]["seconds"]
    # A limit far below all rows says nothing: bytes do not matter there.
    near = {k: v["seconds"] for k, v in case["limits"].items() if v["seconds"] > fastest / 8}
    for kind, seconds in near.items():
        axes.axvline(seconds, **LIMIT, linestyle=LIMIT_LINES[kind])
    for place, row in enumerate(rows):
        seconds = row["seconds"]
        axes.plot(seconds, place, zorder=3.6, **_style(row))
        axes.annotate(
            duration(seconds, 2), (seconds, place), xytext=(7, 0), textcoords="offset points",
            va="center", fontsize=7, zorder=4, bbox=_BEHIND,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(True, axis="y")
    axes.set_xscale("log")
    axes.set_xlim(min([fastest, *near.values()]) * 0.6, slowest * 2.8)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter(lambda value, _: duration(value, 1))
    axes.xaxis.set_minor_formatter("")
    axes.tick_params(axis="x", labelsize=7)
    axes.tick_params(axis="y", length=0)


def _day(recorded: dict[str, Any] | None) -> str:
    """When a panel's figures were recorded: not all were at the same time."""
    return f" ({recorded['date'][:10]})" if recorded else ""


def draw_speed(figures: dict[str, Any], path: Path, threads: int) -> Path | None:
    """A mark for every peer in some cases, and the memory limits as lines; None without a case."""
    shown = panels(figures, threads)
    if not shown:
        return None
    columns = min(2, len(shown))
    # Rows of panels are as high as their longest list of marks.
    marks_of_rows = [
        max(len(marks(case)) for case in shown[first : first + columns])
        for first in range(0, len(shown), columns)
    ]
    heights = [0.62 + 0.165 * count for count in marks_of_rows]
    cpu = figures["machine"]["cpu"]
    figure = _figure(
        4.9 * columns,
        0.7 + sum(heights),
        f"Time on {threads} thread{'s' * (threads > 1)} of {cpu}, logarithmic",
    )
    kinds = dict.fromkeys(kind for case in shown for kind in case["limits"])
    handles = [
        Line2D([], [], label="posenc_native", **OURS),
        Line2D([], [], label="a library", **PEER),
        Line2D([], [], label="a yardstick", **YARDSTICK),
        *(
            Line2D([], [], **LIMIT, linestyle=LIMIT_LINES[kind], label=f"memory limit: {kind}")
            for kind in kinds
        ),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=7)
    grid = figure.subfigures(len(heights), columns, height_ratios=heights, squeeze=False)
    for case, panel in zip(shown, grid.flat, strict=False):
        title = re.sub(r"torch |, \d+ threads?$", "", case["case"])
        panel.suptitle(f"{title}{_day(case.get('recorded'))}", x=0.01, ha="left", fontsize=8.5)
        _draw_case(panel.subplots(), case)
    return _save(figure, path)


# ---------------------------------------------------------------------------------------- accuracy


def draw_accuracy(figures: dict[str, Any], path: Path) -> Path | None:
    """Errors against positions, a line for each peer; None where no peer has any."""
    rows = [row for row in figures.get("accuracy", ()) if row["error"] is not None]
    if not rows:
        return None
    quantities = list(dict.fromkeys(row["quantity"] for row in rows))
    figure = _figure(
        9.8, 4.4, "Largest error of cosine and sine in float32 (up to 2: anything at all)"
    )
    for number, quantity in enumerate(quantities):
        axes = figure.add_subplot(1, len(quantities), number + 1)
        of_quantity = [row for row in rows if row["quantity"] == quantity]
        for place, peer in enumerate(dict.fromkeys(row["peer"] for row in of_quantity)):
            points = sorted((r["position"], r["error"]) for r in of_quantity if r["peer"] == peer)
            ours = peer.startswith("posenc_native")
            axes.plot(
                *zip(*points, strict=True), label=peer,
                color=INK if ours else LINES[place % len(LINES)],
                marker=MARKERS[place % len(MARKERS)], markersize=6.0 if ours else 4.5,
                markerfacecolor=INK if ours else PAPER, linewidth=2.4 if ours else 1.0,
                linestyle=("-", "--", ":", "-.")[0 if ours else place % 4],
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylim(1e-8, 5.0)
        positions = sorted({row["position"] for row in rows})
        axes.set_xticks(positions, [_short(position) for position in positions])
        axes.set_xlabel("position")
        axes.set_title(quantity)
        axes.grid(True, which="major")
        axes.legend(fontsize=6.5, loc="lower right", bbox_to_anchor=(1.0, 0.16))
    return _save(figure, path)


def _short(number: float) -> str:
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("k", 1 << 10)):
        if number >= size and number % size == 0:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


# ------------------------------------------------------------------------------ README's pictures

# Half of README's width each, so fewer and larger words than the pictures above.
_HALF = (5.6, 4.2)
_NAMED: dict[str, dict[str, Any]] = {
    "transformers": MARK | {"marker": "s", "color": "#efb366", "markeredgecolor": "#8a5a1c"},
    "transformers, torch.compile": MARK
    | {"marker": "^", "color": "#c8553d", "markeredgecolor": INK},
    "rotary-embedding-torch": MARK | {"marker": "D", "color": "#8c6bb1", "markeredgecolor": INK},
    "flash-attn": MARK | {"marker": "v", "color": "#3c887e", "markeredgecolor": INK},
    "Liger Kernel": MARK | {"marker": "P", "color": "#bbbbbb", "markeredgecolor": INK},
    "JAX, jit": MARK | {"marker": "X", "color": "#b8860b", "markeredgecolor": INK},
    "a numba loop": MARK | {"marker": "o", "color": "#ffffff", "markeredgecolor": INK},
}


def draw_multiples(rows: list[tuple[str, dict[str, float]]], path: Path, digest: str) -> Path:
    """A line for each measurement: every library's time as a multiple of ours."""
    with mpl.rc_context(STYLE | {"font.size": 9.0}):
        figure = _figure(*_HALF, "Time, as a multiple of posenc_native's", 160)
        axes = figure.add_subplot()
        axes.axvline(1.0, color=OURS["color"], linewidth=1.6)
        names = [name for name in _NAMED if any(name in times for _, times in rows)]
        for name in names:
            points = [(times[name], at) for at, (_, times) in enumerate(rows) if name in times]
            axes.plot(*zip(*points, strict=True), label=name, **_NAMED[name])
        for at, (_, times) in enumerate(rows):
            for side, most in {-1: min(times.values()), 1: max(times.values())}.items():
                # Else marks lie on the line, or on each other.
                if (most > 1.5 or (side == -1 and most < 0.7)) and (side == 1 or len(times) > 1):
                    axes.annotate(
                        f"{most:.{0 if most >= 10 else 1}f} x", (most, at), xytext=(7 * side, 0),
                        textcoords="offset points", ha="left" if side == 1 else "right",
                        va="center", fontsize=8, bbox=_BEHIND,
                    )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(0.2, 400)
        axes.set_xticks([0.3, 1, 3, 10, 30, 100], ["0.3 x", "1 x", "3 x", "10 x", "30 x", "100 x"])
        axes.xaxis.set_minor_formatter("")
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [title for title, _ in rows], fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="both")
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
        figure.legend(loc="outside lower center", ncols=3, fontsize=8, handletextpad=0.2)
        return _save(figure, path, digest)


def draw_errors(curves: list[tuple[str, list[tuple[int, float]]]], path: Path, digest: str) -> Path:
    """Largest error of a cosine or sine against the position, a curve for libraries that agree."""
    with mpl.rc_context(STYLE | {"font.size": 9.0}):
        figure = _figure(*_HALF, "Largest error of cos and sin in float32", 160)
        axes = figure.add_subplot()
        for place, (names, points) in enumerate(curves):
            ours = names == "posenc_native"
            axes.plot(
                *zip(*points, strict=True),
                label="\n".join(textwrap.wrap(names, 64)),
                color=OURS["color"] if ours else LINES[place % len(LINES)],
                marker=MARKERS[place % len(MARKERS)], markersize=6.0 if ours else 4.5,
                linewidth=2.4 if ours else 1.2, linestyle=("-", "--", ":", "-.")[place % 4],
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylim(1e-8, 5.0)
        positions = sorted({position for _, points in curves for position, _ in points})
        axes.set_xticks(positions, [_short(position) for position in positions])
        axes.set_xlabel("position")
        axes.grid(True, which="major")
        figure.legend(loc="outside lower center", fontsize=8)
        return _save(figure, path, digest)


def digest(path: Path) -> str | None:
    """What _save wrote into a picture; None where there is none."""
    if not path.exists():
        return None
    with Image.open(path) as picture:
        found = picture.info.get("Figures")
    return None if found is None else str(found)


# ------------------------------------------------------------------------------------------ growth


def draw_growth(figures: dict[str, Any], path: Path) -> Path:
    """A panel for each curve: time per element, that of the memory limit dotted in the color."""
    curves = figures["curves"]
    columns = min(2, len(curves))
    rows = -(-len(curves) // columns)
    figure = _figure(
        4.9 * columns,
        2.9 * rows + 0.4,
        "Picoseconds an element as work grows; dotted: the memory limit of the same bytes",
    )
    for number, curve in enumerate(curves.values()):
        axes = figure.add_subplot(rows, columns, number + 1)
        every = sorted({point["x"] for points in curve["lines"].values() for point in points})
        # Values that are not powers stand in their order, at equal distances.
        place_of = {x: x if curve["logarithmic"] else place for place, x in enumerate(every)}
        for place, (name, points) in enumerate(curve["lines"].items()):
            x = [place_of[point["x"]] for point in points]
            color = LINES[place % len(LINES)]
            style = {"marker": MARKERS[place % len(MARKERS)], "markersize": 3.0}
            times = [1e3 * point["nanoseconds"] for point in points]
            limit = [1e3 * point["limit_nanoseconds"] for point in points]
            axes.plot(x, times, label=name, color=color, linewidth=1.1, **style)
            axes.plot(x, limit, color=color, linewidth=0.9, linestyle=":")
        if curve["logarithmic"]:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: _short(value))
        else:
            axes.set_xticks(range(len(every)), every, rotation=60, fontsize=6.5)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter("")
        axes.set_xlabel(curve["axis"])
        axes.set_title(f"{curve['title']}{_day(curve)}")
        axes.grid(True, which="major")
        below = -0.22 if curve["logarithmic"] else -0.42
        axes.legend(fontsize=6.0, ncols=2, loc="upper center", bbox_to_anchor=(0.5, below))
    return _save(figure, path)


def draw(figures: dict[str, Any], path: Path, threads: int = 1) -> list[Path]:
    """The pictures that there are of these figures, beside their file."""
    with mpl.rc_context(STYLE):
        if "curves" in figures:
            return [draw_growth(figures, path.with_suffix(".png"))]
        suffix = "" if threads == 1 else f"-{threads}-threads"
        pictures = (
            draw_speed(figures, path.with_name(f"{path.stem}-speed{suffix}.png"), threads),
            draw_accuracy(figures, path.with_name(f"{path.stem}-accuracy.png")),
        )
    return [picture for picture in pictures if picture]
