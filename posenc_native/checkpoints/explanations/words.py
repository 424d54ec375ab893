"""Numbers and lists as parts of sentences."""

from __future__ import annotations

import math

import numpy as np


def layer_numbers(layers: tuple[int, ...]) -> str:
    """The numbers of layers, or the rule that they follow."""
    if len(layers) == 1:
        return str(layers[0])
    steps = set(np.diff(layers).tolist())
    if steps == {1}:
        return f"{layers[0]} to {layers[-1]}"
    if len(steps) == 1 and len(layers) > 2:
        step = int(layers[1] - layers[0])
        return f"{layers[0]}, {layers[1]} ... {layers[-1]} ({every_nth(step)})"
    if len(layers) > 10:
        shown = ", ".join(map(str, layers[:6]))
        return f"{shown} ... {layers[-1]} ({len(layers)} layers)"
    return ", ".join(map(str, layers))


def every_nth(step: int) -> str:
    """As in "every second", "every third", "every 4th"."""
    return "every " + {2: "second", 3: "third"}.get(step, f"{step}th")


def layer_rule(layer_type: str | None, every: int) -> str:
    """An entry of `Configuration.unnumbered_without` in words."""
    if layer_type is not None:
        usual = f", {every_nth(every)} layer" if every > 1 else ""
        return f"those of type {layer_type}{usual}"
    return (
        f"{every_nth(every)} layer" if every > 0 else f"the last and {every_nth(-every)} before it"
    )


def number(value: float) -> str:
    """A number as a person writes it: 10,000 and 0.0625, four digits or those of a whole number."""
    if abs(value) < 1e12 and (abs(value) >= 1000 or value == int(value)):
        return f"{round(value):,}"
    return f"{value:.4g}"


def times(value: float) -> str:
    """As in "once", "2 times"."""
    return "once" if value == 1 else f"{number(value)} times"


def turn_text(frequency: float) -> str:
    """The number of positions that a turn takes, at a frequency in radians per position."""
    turn = 2 * math.pi / frequency
    return f"{turn:.1f}" if turn < 100 else f"{turn:,.0f}" if turn < 1e9 else f"{turn:.2g}"
