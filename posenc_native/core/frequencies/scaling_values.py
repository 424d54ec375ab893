"""Reads the values of a scaling, with errors that name the key; the register of all rope_types.

scaling.py has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.errors import did_you_mean

from .frequencies import FloatArray


class ScalingValues:
    """Reads a scaling; a missing or invalid value is an error that names its key."""

    def __init__(self, function: str, scaling: Mapping[str, Any] | None) -> None:
        if scaling is None:
            scaling = {}
        if not isinstance(scaling, Mapping):
            wrong_type(function, "scaling", "a mapping or None", type(scaling).__name__)
        self.function = function
        self._given = {
            key: arguments.plain(value) for key, value in scaling.items() if value is not None
        }
        if "truncate" in scaling and scaling["truncate"] is None:
            self._given["truncate"] = False
        rope_type = self._given.get("rope_type", self._given.get("type", "default"))
        if not isinstance(rope_type, str):
            wrong_type(function, self._name("rope_type"), "a str", type(rope_type).__name__)
        self.rope_type: str = rope_type
        rule = ROTARY_SCALINGS.get(self.rope_type)
        if rule is None:
            expected = f"one of {', '.join(ROTARY_SCALINGS)}"
            hint = did_you_mean(self.rope_type, ROTARY_SCALINGS)
            wrong_value(function, self._name("rope_type"), expected, repr(self.rope_type), hint)
        for key in scaling:
            if key not in rule.keys and key not in KEYS_OF_EVERY_TYPE:
                keys = ", ".join(rule.keys) or "there is none"
                expected = f"a key of rope_type {self.rope_type} ({keys})"
                hint = did_you_mean(key, rule.keys + KEYS_OF_EVERY_TYPE)
                if not {"rope_type", "type"} & {*self._given}:
                    named = [name for name, kind in ROTARY_SCALINGS.items() if key in kind.keys]
                    hint = f"add 'rope_type', such as {named[0]!r}" if named else hint
                wrong_value(function, "scaling", expected, repr(key), hint)
        for key in self._given:
            if key in _POSITIVE or key in _NOT_NEGATIVE:
                self.number(key)

    def __contains__(self, key: str) -> bool:
        return key in self._given

    def number(self, key: str, default: float | None = None) -> float:
        """The number at key, which is positive unless the key is in _NOT_NEGATIVE."""
        value = arguments.finite_number(self.function, self._name(key), self._get(key, default))
        if value < 0 or (value == 0 and key in _POSITIVE):
            self.wrong(key, "a number > 0" if key in _POSITIVE else "a number >= 0", value)
        return value

    def trained(self) -> float:
        """The length of the original training; a configuration without it was not extended."""
        original, longest = "original_max_position_embeddings", "max_position_embeddings"
        return self.number(longest if original not in self and longest in self else original)

    def count(self, key: str, default: int | None = None) -> int:
        """The int at key, 1 or more."""
        value = arguments.size(self.function, self._name(key), self._get(key, default))
        if value == 0:
            self.wrong(key, "an int > 0", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """The bool at key."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            wrong_type(self.function, self._name(key), "a bool", type(value).__name__)
        return value

    def numbers(self, key: str, count: int) -> FloatArray:
        """The list of `count` numbers above 0 at key."""
        values = self._get(key)
        if not isinstance(values, (list, tuple, np.ndarray)) or getattr(values, "ndim", 1) != 1:
            wrong_type(self.function, self._name(key), "a list", type(values).__name__)
        if len(values) != count:
            self.wrong(key, f"{count} numbers, one per frequency", f"{len(values)} numbers")
        name = self._name(key)
        return np.array([arguments.positive_number(self.function, name, v) for v in values])

    def wrong(self, key: str, expected: str, got: object) -> NoReturn:
        """Raise the ValueError that names the key."""
        wrong_value(self.function, self._name(key), expected, got)

    def _get(self, key: str, default: Any = None) -> Any:
        value = self._given.get(key, default)
        if value is None:
            self.wrong(key, f"a value ({self.rope_type} requires one)", "none")
        return value

    @staticmethod
    def _name(key: str) -> str:
        return f"scaling[{key!r}]"


# A rule takes (dim, base, values) and gives (inv_freq, attention_factor).
Rule = Callable[[int, float, ScalingValues], tuple[FloatArray, float]]


@dataclass(frozen=True)
class RotaryBlend:
    """How YaRN and Llama 3 scale: fast pairs keep their frequency, slow pairs are slowed.

    Attributes:
        trained: the length of the original training.
        fast: (key, turns): pairs with more turns within `trained` are kept, rounded to whole pairs.
        slow: (key, turns): pairs with fewer turns are fully slowed, rounded to whole pairs.
        kept, slowed: [P], the shares of each pair; they add up to 1.
    """

    trained: float
    fast: tuple[str, float]
    slow: tuple[str, float]
    kept: FloatArray
    slowed: FloatArray

    def of(self, plain: FloatArray, factor: float) -> FloatArray:
        """The scaled frequencies."""
        return plain / factor * self.slowed + plain * self.kept


Blend = Callable[[int, float, ScalingValues], RotaryBlend]


@dataclass(frozen=True)
class RotaryScaling:
    """How one rope_type scales the frequencies, the keys that it reads, and the pairs it keeps."""

    compute: Rule
    keys: tuple[str, ...]
    blend: Blend | None = None


# Keys that a configuration of any type may have; most types read none of them.
KEYS_OF_EVERY_TYPE = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "max_position_embeddings",
    "original_max_position_embeddings", "mrope_section", "mrope_interleaved", "seq_len",
)  # fmt: skip

_POSITIVE = frozenset((
    "L_test", "alpha", "attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor",
    "long_mscale", "low_freq_factor", "max_position_embeddings",
    "original_max_position_embeddings", "rope_theta", "short_mscale",
))  # fmt: skip

_NOT_NEGATIVE = frozenset(
    ("mixed_b", "mscale", "mscale_all_dim", "partial_rotary_factor", "seq_len")
)

ROTARY_SCALINGS: dict[str, RotaryScaling] = {}


def scaling_in_full(scaling: Mapping[str, Any]) -> dict[str, Any] | None:
    """A valid scaling in one form: plain values, no key that its rule ignores, none implied.

    A missing length of the original training, and a missing factor, follow from the other keys, as
    in the rules. None if the scaling changes no frequency ("default").
    """
    values = ScalingValues("scaling", scaling)._given
    name = values.get("rope_type", values.get("type", "default"))
    if name == "default":
        return None
    keys = ROTARY_SCALINGS[name].keys
    full = {"rope_type": name} | {
        key: np.asarray(value).tolist() if isinstance(value, (tuple, np.ndarray)) else value
        for key, value in values.items()
        if key in (*keys, "seq_len")
    }
    original, longest = "original_max_position_embeddings", "max_position_embeddings"
    if original in keys and longest in full:
        full.setdefault(original, full[longest])
        if "factor" in keys:
            full.setdefault("factor", full[longest] / full[original])
    return full


def rope_type(name: str, *keys: str, blend: Blend | None = None) -> Callable[[Rule], Rule]:
    """Register the decorated rule, which reads these keys, in ROTARY_SCALINGS."""

    def enter(rule: Rule) -> Rule:
        ROTARY_SCALINGS[name] = RotaryScaling(rule, keys, blend)
        return rule

    return enter
