"""What was measured, as a table: words for a terminal, and for a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from .measure import MOVED_TO, Figures
from .models import SHOWN_POSITIONS
from .timing import Timing

__all__ = ["Section", "sections", "sections_of_norms", "share_of_attention", "tables"]


@dataclass(frozen=True)
class Section:
    """A part of the table: rows of what, transformers, posenc_native, comparison."""

    title: str
    rows: list[tuple[str, str, str, str]]


def sections(figures: Figures) -> list[Section]:
    """The first table: what both its printed form and its picture show."""
    same, count = figures.same_tokens(), len(figures.continuation[0])
    relative = f"{figures.difference / figures.spread:.0e} of spread"
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
                    f"logits move if at {MOVED_TO:,}",
                    f"{figures.moved[0]:.1e}",
                    f"{figures.moved[1]:.1e}",
                    _ratio(*figures.moved, "less", "more"),
                ),
            ],
        ),
        *_times(figures.times),
        Section(
            "Attention gone elsewhere",
            [
                (
                    f"near position {position:,}",
                    share_of_attention(theirs.elsewhere),
                    share_of_attention(ours.elsewhere),
                    "",
                )
                for position, (theirs, ours) in figures.attention.items()
            ],
        ),
        Section(
            "Largest error of cos, sin",
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


def sections_of_norms(figures: Figures) -> list[Section]:
    """The second table: a model that norms q and k before it rotates them."""
    return _times(figures.normed)


def _times(times: dict[str, dict[str, Timing]]) -> list[Section]:
    return [
        Section(
            title,
            [
                (what, _duration(time.theirs), _duration(time.ours), _faster(time))
                for what, time in rows.items()
            ],
        )
        for title, rows in times.items()
    ]


def share_of_attention(value: float) -> str:
    """In per cent, as far as two digits behind the point tell."""
    return f"{100 * value:.2f} %" if value >= 1e-4 else "< 0.01 %"


def _faster(time: Timing) -> str:
    """The interval of how many times as fast; where 1 is in it, or it is wide, no claim."""
    if time.low == 0.0:
        return "too few rounds"
    if time.high > _WIDEST * time.low:
        return "too noisy to tell"
    if time.high < 1.0:
        return f"{_interval(1 / time.high, 1 / time.low)}× slower"
    word = " faster" if time.low > 1.0 else ": noise"
    return f"{_interval(time.low, time.high)}×{word}"


_WIDEST = 1.5  # the ratio of an interval's ends beyond which it says nothing


def _interval(low: float, high: float) -> str:
    digits = 2 if high < 2 else 1 if high < 10 else 0
    ends = [f"{end:,.{digits}f}" for end in (low, high)]
    return "–".join(dict.fromkeys(ends))


def _ratio(theirs: float, ours: float, better: str, worse: str) -> str:
    larger, smaller = max(theirs, ours), max(min(theirs, ours), 1e-30)
    ratio = larger / smaller
    number = f"{ratio:.1f}" if ratio < 10 else f"{float(f'{ratio:.2g}'):,.0f}"
    return f"{number}× {better if ours <= theirs else worse}"


def _duration(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def tables(figures: Figures) -> tuple[Any, Any]:
    """The tables for a terminal, as rich prints them."""
    first = _table("Rotary encoding, two ways", sections(figures), figures.facts)
    return first, _table("Norm and rotation of Qwen3, in one pass", sections_of_norms(figures))


def _table(title: str, parts: list[Section], caption: str | None = None) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for name, side in (("transformers", "right"), ("posenc_native", "right"), ("", "left")):
        table.add_column(name, justify=cast(Any, side), no_wrap=True)
    for section in parts:
        table.add_row(f"[bold]{section.title}[/bold]")
        for what, *cells in section.rows:
            table.add_row(f" {what}", *cells)
        table.add_section()
    return table
