"""`python -m benchmarks.figures.tables`: the table of speed in docs/speed.md, of what is recorded.

python -m benchmarks.figures.tables            # fails where the page says something else
python -m benchmarks.figures.tables --write    # puts them there
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import judging, records, report

PROCESSOR = "amd-epyc-2-cores"
PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
_BLOCK = re.compile(
    r"(<!-- speed: benchmarks/figures/tables\.py -->\n).*?(<!-- /speed -->)", re.DOTALL
)
_NOT_RECORDED = "not recorded yet"


@dataclass(frozen=True)
class Line:
    """A row of a case, on one thread, and what the page calls it."""

    words: str
    case: str
    row: str
    mode: str


def _rotary(words: str, kind: str, row: str = "apply_rotary_qk", mode: str = "in place") -> Line:
    what, _, of = kind.partition(": ")
    return Line(words, f"{what}, q 32 + k 8 heads x 4096 x 128, torch {of}", row, mode)


_DECODE = "decode, 1 x (q 32 + k 8 heads x 1 x 128), torch bfloat16, half"
_SCORES = "16 x 2048 x 2048"
_TWICE = "apply_rotary, twice"
LINES = (
    _rotary("rotary, 32 + 8 heads x 4096 x 128, float32", "rotary: float32, half"),
    _rotary("the same", "rotary: float32, half", _TWICE, "out="),
    _rotary("bfloat16", "rotary: bfloat16, half"),
    _rotary("the same", "rotary: bfloat16, half", _TWICE, "out="),
    _rotary("interleaved pairs, float32", "rotary: float32, interleaved"),
    _rotary("a fused QKV, bfloat16", "rotary: bfloat16, half, qkv"),
    _rotary("backward, float32", "rotary backward: float32, half", "apply_rotary_qk, inverse"),
    _rotary("backward, bfloat16", "rotary backward: bfloat16, half", "apply_rotary_qk, inverse"),
    Line("one decoding step, torch", _DECODE, "torch: apply_rotary_qk", "in place"),
    Line("one decoding step, NumPy", _DECODE, "NumPy: apply_rotary_qk", "in place"),
    Line(
        "sinusoidal table, 131072 x 128, float32",
        "sinusoidal table, 131072 x 128, torch float32",
        "sinusoidal",
        "out=",
    ),
    Line(
        f"bias by distance, {_SCORES}, float32",
        f"relative: toeplitz bias, {_SCORES}, torch float32",
        "toeplitz_bias",
        "out=",
    ),
    Line(
        "the same, added to scores",
        f"relative: add toeplitz bias, {_SCORES}, torch float32",
        "add_toeplitz_bias",
        "in place",
    ),
    Line(
        "T5 bias, forward and backward",
        f"relative: T5 bias, forward and backward to the table, {_SCORES}, torch float32",
        "nn.T5RelativeBias",
        "in place",
    ),
    Line(
        "relative shift, 4095 to 2048 columns",
        "relative: shift, 16 x 2048 x 4095, torch float32",
        "relative_gather",
        "out=",
    ),
    Line(
        "Swin windows, 512 x 3 x 49 x 49",
        "relative: Swin bias, 512 x 3 x 49 x 49, torch float32",
        "nn.SwinRelativeBias",
        "in place",
    ),
)


def _row(figures: records.Figures | None, line: Line) -> tuple[dict[str, Any], judging.Row] | None:
    """The case of a line, and the row; None if it is not recorded."""
    name = f"{line.case}, 1 thread"
    for case in figures["cases"] if figures else ():
        for row in judging.timed(case):
            if (case["case"], row["contestant"], row["mode"]) == (name, line.row, line.mode):
                return case, row
    return None


def _ours(found: tuple[dict[str, Any], judging.Row] | None) -> str:
    if found is None:
        return _NOT_RECORDED
    case, row = found
    time = report.duration(row["seconds"])
    # In cache no memory bounds it.
    return (
        time if case["buffer_sets"] == 1 else f"{time}, {row['times_limit']:.2f} x {row['limit']}"
    )


def _peer(found: tuple[dict[str, Any], judging.Row]) -> str:
    best = judging.best_peer(*found)
    if best is None:
        return ""
    mode = "" if best["same_mode"] else f", {best['mode']}"
    return f"{report.duration(best['seconds'])}, {best['contestant']}{mode}"


def table(columns: records.Columns) -> str:
    """Our times and multiples of the limit, a column for all instructions; the best peer."""
    lines = [
        f"| | mode | {' | '.join(columns)} | best peer in this mode, or in the one it has |",
        f"|---|---|{'---|' * len(columns)}---|",
    ]
    for line in LINES:
        found = [_row(figures, line) for figures in columns.values()]
        first = next((one for one in found if one), None)
        cells = [line.words, line.mode, *map(_ours, found), _peer(first) if first else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _head(columns: records.Columns) -> str:
    """Which processor and instructions, and when."""
    lines = []
    for name, figures in columns.items():
        if figures is None:
            lines.append(f"{name}: {_NOT_RECORDED}.")
            continue
        machine = figures["machine"]
        origins = "; ".join(records.origins_text(figures).splitlines())
        lines.append(f"{machine['cpu']}, {report.instructions_text(machine)}: {origins}.")
    return "\n".join(f"- {line}" for line in lines) + "\n"


def block() -> str:
    columns = records.recorded_columns(PROCESSOR)
    return f"{table(columns)}\n{_head(columns)}"


def put(text: str, inside: str) -> str:
    """The text with `inside` between the marks."""
    found, count = _BLOCK.subn(lambda marks: f"{marks[1]}{inside}{marks[2]}", text)
    assert count == 1, "docs/speed.md: the marks of the table of speed"
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures.tables", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="write docs/speed.md")
    options = parser.parse_args(arguments)
    before = PAGE.read_text(encoding="utf-8")
    after = put(before, block())
    if options.write:
        PAGE.write_text(after, encoding="utf-8")
    elif after != before:
        command = "python -m benchmarks.figures.tables --write"
        sys.exit(f"docs/speed.md: not the recorded figures: {command}")


if __name__ == "__main__":
    main()
