"""Values of two descriptions in words: each value, and whether the two are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.checkpoints.formats.description import Description
from posenc_native.core.frequencies.axes import pairs_by_axis
from posenc_native.core.frequencies.frequencies import rounded_frequencies
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import LayerGroup

from .words import number

# Two numbers count as equal if they agree in float32: files store bases, factors and frequencies
# in it, and their writers computed some of them.
SAME = 2.0**-20


def close(one: float, other: float, error: float = SAME) -> bool:
    """Whether two numbers are equal within a relative error."""
    return abs(one - other) <= error * max(abs(one), abs(other))


def texts(values: Sequence[Any]) -> tuple[str, str]:
    """Two values as people write them; None is "none"."""
    one, other = ("none" if each is None else value_text(each) for each in values)
    return one, other


def axes(rotary: Rotary) -> str:
    """The position axes of a rotation."""
    if rotary.axis_map is None:
        return "one"
    counts, in_blocks = pairs_by_axis(rotary.axis_map)
    order = "in blocks" if in_blocks else "alternating"
    return f"{', '.join(map(str, counts))} pairs by axis, {order}"


# The parameters that frequencies depend on, by type, with their defaults.
_COUNTING: dict[str, dict[str, Any]] = {
    "yarn": {"factor": None, "original_max_position_embeddings": None, "beta_fast": 32.0,
             "beta_slow": 1.0, "truncate": True},
    "llama3": {"factor": None, "low_freq_factor": None, "high_freq_factor": None,
               "original_max_position_embeddings": None},
    "longrope": {"short_factor": None, "long_factor": None, "short_mscale": None,
                 "long_mscale": None, "original_max_position_embeddings": None},
}  # fmt: skip


def _counting(scaling: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a scaling that frequencies depend on."""
    known = _COUNTING.get(scaling["rope_type"])
    if known is None:
        return scaling
    found = {key: value for key, value in scaling.items() if key in known}
    usual = {key: value for key, value in known.items() if value is not None}
    return {"rope_type": scaling["rope_type"], **usual, **found}


def scaling_words(one: Any, other: Any) -> tuple[str, str] | None:
    """The parameters that differ between two scalings, in words for each; None if none differs."""
    one, other = ({**(each or {"rope_type": "default"})} for each in (one, other))
    for each in (one, other):
        each.pop("seq_len", None)
    if one["rope_type"] != other["rope_type"]:
        return _type_words(one), _type_words(other)
    one, other = _counting(one), _counting(other)
    keys = [key for key in {**one, **other} if not _same_value(one.get(key), other.get(key))]
    if not keys:
        return None
    said = [
        f"{each['rope_type']}, " + ", ".join(f"{key} {value_text(each.get(key))}" for key in keys)
        for each in (one, other)
    ]
    return said[0], said[1]


def _type_words(scaling: dict[str, Any]) -> str:
    if scaling["rope_type"] == "default":
        return "none"
    factor = scaling.get("factor")
    return f"{scaling['rope_type']}{f', factor {number(factor)}' if factor else ''}"


def _same_value(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return close(float(one), float(other))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same_value, one, other))
    return bool(one == other)


def value_text(value: Any) -> str:
    """A value of a scaling as people write it."""
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"{value_text(min(value))} to {value_text(max(value))}" if value else "empty"
    return number(value) if isinstance(value, (int, float)) else str(value)


def base_of(group: LayerGroup, rotary: Rotary) -> float | None:
    """The base of frequencies, also of those that a file gives by factors; None if unknown."""
    return group.base if "inv_freq" in rotary._given else rotary.base


def shares(rotary: Rotary, base: float) -> npt.NDArray[np.float64]:
    """The factor on each frequency that the base alone gives."""
    found: npt.NDArray[np.float64]
    found = rotary.inv_freq / rounded_frequencies(rotary.rotary_dim, base)
    return found


def frequency_words(one: Rotary, other: Rotary) -> tuple[str, str]:
    """The pair whose frequencies differ most."""
    a, b = np.abs(one.inv_freq), np.abs(other.inv_freq)
    pair = int(np.argmax(np.abs(a - b) / np.maximum(np.maximum(a, b), 1e-300)))
    said = [f"{number(each.inv_freq[pair])} radians per position" for each in (one, other)]
    said[0] = f"pair {pair} turns by {said[0]}"
    return said[0], said[1]


def in_words(description: Description, name: str, text: str) -> str:
    """A value with its name in the format."""
    for unknown in description.unknown:
        if unknown.field == name:
            return f"{text} (not in the file; {unknown.assumed})" if unknown.assumed else "unknown"
    word = description.words.get(name)
    return f"{text} ({word})" if word else text
