"""The measurements as a table of text, for a terminal and for the picture."""

from __future__ import annotations

from typing import NamedTuple

from .far import SHOWN_POSITIONS
from .measure import MOVED_TO, Figures
from .timing import Timing

__all__ = [
    "Section",
    "headline",
    "sections",
    "sections_of_norms",
    "share_of_attention",
    "text_of",
]

NEAR = 1048576  # the position of the headline's error


class Section(NamedTuple):
    """A part of the table. Rows: label, transformers, posenc_native, comparison."""

    title: str
    rows: list[tuple[str, str, str, str]]


def headline(figures: Figures) -> list[str]:
    """Three numbers: of rotary alone, of the whole model, of the error; each with what it means."""
    alone, model = (next(iter(figures.times[title].items())) for title in list(figures.times)[:2])
    error = _errors("", *figures.errors[NEAR], "smaller", "larger")[-1]
    return [
        f"Rotary encoding alone:     {_faster(alone[1])} ({alone[0]})",
        f"The whole model:           {_faster(model[1])} ({model[0]})",
        f"Error of cosine and sine:  {error} (at position {NEAR:,})",
    ]


def sections(figures: Figures) -> list[Section]:
    """The first table."""
    agreed, count = figures.same_tokens(), len(figures.continuation[0])
    relative = f"{figures.difference / figures.spread:.0e} of spread"
    alike = "the same" if agreed == count else f"same up to {agreed}"
    rows = [
        ("largest logit difference", "", f"{figures.difference:.1e}", relative),
        ("greedy continuation", f"{count} tokens", f"{count} tokens", alike),
        _errors(f"logits move if at {MOVED_TO:,}", *figures.moved),
    ]
    elsewhere = [
        (f"near position {position:,}", *(share_of_attention(way.elsewhere) for way in ways), "")
        for position, ways in figures.attention.items()
    ]
    errors = [_errors(f"near position {p:,}", *figures.errors[p]) for p in SHOWN_POSITIONS]
    return [
        Section("The same model", rows),
        *_times(figures.times),
        Section("Attention on wrong tokens", elsewhere),  # type: ignore[arg-type]
        Section("Largest error of cos, sin", errors),
    ]


def sections_of_norms(figures: Figures) -> list[Section]:
    """The second table: a model that norms q and k before it rotates them."""
    return _times(figures.normed)


def _times(times: dict[str, dict[str, Timing]]) -> list[Section]:
    return [
        Section(
            title,
            [
                (label, _duration(time.theirs), _duration(time.ours), _faster(time))
                for label, time in rows.items()
            ],
        )
        for title, rows in times.items()
    ]


def share_of_attention(value: float) -> str:
    """In percent, to two decimal places."""
    return f"{100 * value:.2f} %" if value >= 1e-4 else "< 0.01 %"


def _errors(
    label: str, theirs: float, ours: float, better: str = "less", worse: str = "more"
) -> tuple[str, str, str, str]:
    ratio = max(theirs, 1e-30) / max(ours, 1e-30)
    return label, f"{theirs:.1e}", f"{ours:.1e}", _times_as(ratio, better, worse)


def _faster(time: Timing) -> str:
    """How many times as fast, by the median; no claim if the interval contains 1."""
    if time.low <= 1.0 <= time.high:  # of too few rounds, too: 0 and infinity
        return "no difference seen"
    if time.high > _WIDEST * time.low:
        return f"at least {_times_as(time.low, 'faster', '')}" if time.low > 1.0 else _NOISY
    return _times_as(time.ratio, "faster", "slower")


_WIDEST = 1.5  # the ratio of an interval's ends beyond which its median says nothing
_NOISY = "too noisy to tell"


def _times_as(ratio: float, better: str, worse: str) -> str:
    larger = max(ratio, 1 / ratio)
    digits = 2 if larger < 2 else 1
    number = f"{larger:.{digits}f}" if larger < 10 else f"{float(f'{larger:.2g}'):,.0f}"
    return f"{number}× {better if ratio >= 1 else worse}"


def _duration(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def text_of(figures: Figures) -> str:
    """The tables, as text."""
    first, second = sections(figures), sections_of_norms(figures)
    return "\n\n".join(
        [
            "posenc_native against transformers\n" + "\n".join(headline(figures)),
            _line("", "transformers", "posenc_native", ""),
            *map(_section, first),
            figures.facts,
            "Qwen3: norm and rotation in one pass",
            *map(_section, second),
        ]
    )


def _section(section: Section) -> str:
    return "\n".join(
        [section.title, *(_line(f"  {label}", *rest) for label, *rest in section.rows)]
    )


def _line(label: str, theirs: str, ours: str, comparison: str) -> str:
    return f"{label:30}{theirs:>14}{ours:>15}   {comparison}".rstrip()
