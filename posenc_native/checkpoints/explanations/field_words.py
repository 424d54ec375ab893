"""Values of two descriptions in words, and whether they are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.checkpoints.formats.description import Description
from posenc_native.checkpoints.formats.scaling_words import IMPLIED
from posenc_native.core.frequencies.axes import pairs_by_axis
from posenc_native.core.frequencies.frequencies import rounded_frequencies
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import LayerGroup

from .words import number

# Two numbers count as equal if they agree in float32: files store bases, factors and frequencies
# in it, and their writers computed some of them.
SAME = 2.0**-20


def close(first: float, second: float, error: float = SAME) -> bool:
    """Whether two numbers are equal within a relative error."""
    return abs(first - second) <= error * max(abs(first), abs(second))


def texts(values: Sequence[Any]) -> tuple[str, str]:
    """Two values as people write them; None is "none"."""
    first, second = ("none" if value is None else value_text(value) for value in values)
    return first, second


def axes(rotary: Rotary) -> str:
    """The position axes of a rotation."""
    if rotary.axis_map is None:
        return "one"
    counts, in_blocks = pairs_by_axis(rotary.axis_map)
    order = "in blocks" if in_blocks else "alternating"
    return f"{', '.join(map(str, counts))} pairs by axis, {order}"


def query_scale_words(scale: Mapping[str, Any] | None) -> str:
    """The factor of queries by position, as a formula."""
    if scale is None:
        return "none"
    length = number(scale["original_max_position_embeddings"])
    if scale.get("type") == "logn":
        return f"max(1, ln(position + 1) / ln({length}))"
    shift = scale.get("shift", 0)
    position = f"(position + {number(shift)})" if shift else "position"
    return f"1 + {number(scale['beta'])} * ln(1 + floor({position} / {length}))"


_NO_SCALING = {"rope_type": "default"}
_TRAINED = "original_max_position_embeddings"
# The parameters that frequencies depend on, by type.
_COUNTING = {
    "yarn": {"factor", _TRAINED, *IMPLIED},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", _TRAINED},
    "longrope": {"short_factor", "long_factor", "short_mscale", "long_mscale", _TRAINED},
}


def _counting(scaling: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a scaling that frequencies depend on."""
    if scaling["rope_type"] not in _COUNTING:
        return scaling
    keys = {"rope_type", *_COUNTING[scaling["rope_type"]]}
    return {key: value for key, value in {**IMPLIED, **scaling}.items() if key in keys}


def scaling_words(first: Any, second: Any) -> tuple[str, str] | None:
    """The parameters that differ between two scalings, in words; None if none differs."""
    first, second = (
        {key: value for key, value in (scaling or _NO_SCALING).items() if key != "seq_len"}
        for scaling in (first, second)
    )
    if first["rope_type"] != second["rope_type"]:
        return _type_words(first), _type_words(second)
    first, second = _counting(first), _counting(second)
    keys = [key for key in {**first, **second} if not _same_value(first.get(key), second.get(key))]
    if not keys:
        return None
    said = [", ".join(f"{key} {value_text(scaling.get(key))}" for key in keys)
            for scaling in (first, second)]  # fmt: skip
    return f"{first['rope_type']}, {said[0]}", f"{first['rope_type']}, {said[1]}"


def _type_words(scaling: dict[str, Any]) -> str:
    if scaling["rope_type"] == "default":
        return "none"
    factor = scaling.get("factor")
    return f"{scaling['rope_type']}{f', factor {number(factor)}' if factor else ''}"


def _same_value(first: Any, second: Any) -> bool:
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return close(float(first), float(second))
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(_same_value, first, second))
    return bool(first == second)


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
    """The frequencies as shares of those that the base alone gives."""
    return np.asarray(rotary.inv_freq / rounded_frequencies(rotary.rotary_dim, base))


def frequency_words(first: Rotary, second: Rotary) -> tuple[str, str]:
    """The pair whose frequencies differ most."""
    a, b = np.abs(first.inv_freq), np.abs(second.inv_freq)
    pair = int(np.argmax(np.abs(a - b) / np.maximum(np.maximum(a, b), 1e-300)))
    said = [f"{number(rotary.inv_freq[pair])} radians per position" for rotary in (first, second)]
    return f"pair {pair} turns by {said[0]}", said[1]


def in_words(description: Description, name: str, text: str) -> str:
    """A value with its name in the format."""
    for unknown in description.unknown:
        if unknown.field == name:
            return f"{text} (not in the file; {unknown.assumed})" if unknown.assumed else "unknown"
    word = description.words.get(name)
    return f"{text} ({word})" if word else text
