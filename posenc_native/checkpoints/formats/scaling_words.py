"""A format's words for the numbers of a scaling, declared once.

A format has words for the numbers, by their names in a configuration of transformers, or the code
of its engine fixes a number:

    yarn(Word("rope_factor", 32.0), Word("original_seq_len", 4096), truncate=False)

Reading and writing follow from this: numbers that the code fixes are read from here, and are lost
if a model has others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from posenc_native.core.frequencies.scaling import _yarn_mscale
from posenc_native.models.entries import LENGTH_LIMIT

from .settings import Settings


class Word(NamedTuple):
    """The entry of a file that holds a number.

    Attributes:
        key: its name.
        default: the number that the engine uses without it; None if the file must have it.
    """

    key: str
    default: float | None = None


Number = Word | float
WEIGHTS = ("mscale", "mscale_all_dim")
# The numbers of a scaling that does not name them.
IMPLIED = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
_FAST, _SLOW = Word("beta_fast", 32.0), Word("beta_slow", 1.0)


@dataclass(frozen=True)
class ScalingWords:
    """The words of a format for a scaling.

    Attributes:
        rope_type: the scaling.
        numbers: the word of a number, or the number in the engine's code, by its name.
    """

    rope_type: str
    numbers: Mapping[str, Number]

    @property
    def words(self) -> dict[str, Word]:
        """The numbers that a file has."""
        return {name: number for name, number in self.numbers.items() if isinstance(number, Word)}

    def read(self, settings: Settings, **known: Number) -> dict[str, Any]:
        """The scaling in a file; `known` numbers replace those of the declaration.

        Raises:
            ValueError, TypeError: a missing or invalid number.
        """
        scaling: dict[str, Any] = {"rope_type": self.rope_type}
        for name, number in {**self.numbers, **known}.items():
            if isinstance(number, Word):
                number = _KINDS.get(name, Settings.positive)(settings, number.key, number.default)
            scaling[name] = number
        fast, slow = (self.words.get(name) for name in ("beta_fast", "beta_slow"))
        if fast and slow and scaling["beta_fast"] < scaling["beta_slow"]:
            least = f"{slow.key} = {scaling['beta_slow']:g}"
            settings.wrong(fast.key, f"a number >= {least}", f"{scaling['beta_fast']:g}")
        if scaling.get("truncate"):  # as without this key
            del scaling["truncate"]
        return scaling

    def write(self, scaling: Mapping[str, Any]) -> dict[str, Any]:
        """The entries for a scaling."""
        numbers = {**IMPLIED, **scaling}
        return {word.key: numbers[name] for name, word in self.words.items() if name in numbers}

    def lost(self, scaling: Mapping[str, Any]) -> list[str]:
        """Sentences about numbers of a scaling that differ from those in the engine's code."""
        numbers = {**IMPLIED, **scaling}
        return [
            f"The scaling {self.rope_type} with {name} {_text(numbers[name])}: the engine always "
            f"uses {_text(number)}."
            for name, number in {**IMPLIED, **self.numbers}.items()
            if not isinstance(number, Word) and numbers[name] != number
        ]


def _text(number: Any) -> str:
    return str(number).lower() if isinstance(number, bool) else f"{number:g}"


def _length(settings: Settings, key: str, default: int | None) -> int:
    return settings.count(key, default, LENGTH_LIMIT)


# How a number is read, unless it is any number above 0.
_KINDS: dict[str, Callable[[Settings, str, Any], Any]] = {
    "original_max_position_embeddings": _length,
    "max_position_embeddings": _length,
    "mscale": Settings.weight,
    "mscale_all_dim": Settings.weight,
    "truncate": Settings.flag,
}


def llama3(
    factor: Number,
    low: Number = 1.0,
    high: Number = 4.0,
    trained: Number = 8192,
) -> ScalingWords:
    """The words for Llama 3's scaling; the published numbers are the defaults."""
    numbers = {
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": trained,
    }
    return ScalingWords("llama3", numbers)


def yarn(
    factor: Number,
    trained: Number,
    fast: Number = _FAST,
    slow: Number = _SLOW,
    **others: Number,
) -> ScalingWords:
    """The words for YaRN. `others` are those for truncate, mscale and mscale_all_dim."""
    numbers = {
        "factor": factor,
        "original_max_position_embeddings": trained,
        "beta_fast": fast,
        "beta_slow": slow,
    }
    return ScalingWords("yarn", {**numbers, **others})


def yarn_scale(factor: float, mscale: float = 1.0, mscale_all_dim: float = 0.0) -> float:
    """The factor of cosines and sines that YaRN's weights give.

    Its part in the softmax scale, per query and key, is ``yarn_scale(factor, mscale_all_dim)``.
    """
    return _yarn_mscale(factor, mscale) / _yarn_mscale(factor, mscale_all_dim)


def yarn_weight(factor: float, scale: float) -> float | None:
    """The mscale for which `yarn_scale` is `scale`; None if there is none."""
    if math.isclose(scale, 1.0, rel_tol=1e-9):
        return 0.0
    return round((scale - 1) / (0.1 * math.log(factor)), 9) if factor > 1 < scale else None


def scale_apart(scaling: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """A scaling without YaRN's weights, and the factor of cosines and sines that they give."""
    others = {name: number for name, number in scaling.items() if name not in WEIGHTS}
    return others, yarn_scale(scaling["factor"], *(scaling[name] for name in WEIGHTS))
