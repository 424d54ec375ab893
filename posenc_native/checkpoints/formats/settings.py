"""The entries of a settings file, checked when they are read.

Such a file is untrusted: a value of another type or size than in any model raises an error that
names the entry (SECURITY.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.models.config import LayerGroup
from posenc_native.models.entries import (
    HEAD_LIMIT,
    KIND_LIMIT,
    LAYER_LIMIT,
    LENGTH_LIMIT,
    WIDTH_LIMIT,
)

from .description import Unknown

_TEXT_LIMIT = 256
_MOST_WEIGHT = 100  # published weights are up to 1


class Settings:
    """Reads entries by name; None counts as absent.

    Args:
        function: the name that begins error messages.
        entries: the mapping.
        place: the name of the mapping in error messages.
    """

    def __init__(self, function: str, entries: Any, place: str) -> None:
        if not isinstance(entries, Mapping):
            wrong_type(function, place, "a mapping", type(entries).__name__)
        self.function: str = function
        self.place: str = place
        self.entries: Mapping[str, Any] = entries

    def __contains__(self, key: str) -> bool:
        return self.entries.get(key) is not None

    def __getitem__(self, key: str) -> Any:
        return self.entries.get(key)

    def inner(self, key: str) -> Settings:
        """The mapping at a key; empty if the key is absent."""
        value = self.entries.get(key)
        return Settings(self.function, {} if value is None else value, f"{self.place}[{key!r}]")

    def count(self, key: str, default: int | None = None, most: int = WIDTH_LIMIT) -> int:
        """An int from 1 to `most`; required if there is no default."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            wrong_type(self.function, self.name(key), "an int", type(value).__name__)
        if not 1 <= value <= most:
            self.wrong(key, f"an int in 1 .. {most}", _short(value))
        return value

    def heads(self, key: str) -> int:
        """The width of a head."""
        dims = self.count(key, most=HEAD_LIMIT)
        if dims < 2:
            self.wrong(key, f"2 dims or more, at most {HEAD_LIMIT}", dims)
        return dims

    def head_dim(self, key: str, width: str, heads: str) -> int:
        """The width of a head; without it, the width of the model over the number of heads."""
        return self.heads(key) if key in self else self.count(width) // self.count(heads)

    def base(self, key: str, default: float, assumed: str) -> tuple[float, list[Unknown]]:
        """The base, and what is unknown if the file does not have it."""
        return self.positive(key, default), [] if key in self else [Unknown("base", assumed)]

    def layers(self, key: str) -> int:
        """A number of layers."""
        return self.count(key, most=LAYER_LIMIT)

    def length(self, *keys: str) -> int | None:
        """A number of positions at the first of these keys that exists."""
        for key in keys:
            if key in self:
                return self.count(key, most=LENGTH_LIMIT)
        return None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._value(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            wrong_type(self.function, self.name(key), "a number", type(value).__name__)
        if isinstance(value, int) and abs(value) > 1 << 64:
            self.wrong(key, "a number below 2^64", "a larger one")
        if not math.isfinite(value):
            self.wrong(key, "a finite number", value)
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        number = self.number(key, default)
        if number <= 0:
            self.wrong(key, "a number > 0", number)
        return number

    def weight(self, key: str, default: float | None = None) -> float:
        """mscale or mscale_all_dim of YaRN, which multiplies a logarithm."""
        number = self.number(key, default)
        if not 0 <= number <= _MOST_WEIGHT:
            self.wrong(key, f"a number in 0 .. {_MOST_WEIGHT}", number)
        return number

    def flag(self, key: str, default: bool) -> bool:
        """A bool."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            wrong_type(self.function, self.name(key), "a bool", type(value).__name__)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A line of text."""
        value = self._value(key, default)
        if not isinstance(value, str):
            wrong_type(self.function, self.name(key), "a str", type(value).__name__)
        if len(value) > _TEXT_LIMIT or not value.isprintable():
            self.wrong(key, f"at most {_TEXT_LIMIT} printable characters", _short(value))
        return value

    def one_of(self, key: str, known: Iterable[str], default: str | None = None) -> str:
        """A name from a list."""
        name = self.text(key, default)
        if name not in (names := list(known)):
            self.wrong(key, f"one of {', '.join(names)}", repr(name))
        return name

    def numbers(self, key: str, most: int, least: int = 0) -> list[float]:
        """A list of finite numbers; empty if the key is absent."""
        value = self.entries.get(key)
        value = [] if value is None else value
        if not isinstance(value, (list, tuple)):
            wrong_type(self.function, self.name(key), "a list", type(value).__name__)
        if not least <= len(value) <= most:
            self.wrong(key, f"{least} to {most} numbers", f"{len(value)} of them")
        whole = Settings(self.function, dict(enumerate(value)), self.name(key))
        return [whole.number(i) for i in range(len(value))]  # type: ignore[arg-type]

    def name(self, key: str) -> str:
        """The name of an entry in error messages."""
        return f"{self.place}[{key!r}]"

    def wrong(self, key: str, expected: str, got: object) -> NoReturn:
        """Raise the ValueError that names the entry."""
        wrong_value(self.function, self.name(key), expected, got)

    def _value(self, key: str, default: Any) -> Any:
        value = self.entries.get(key)
        if value is not None:
            return value
        if default is None:
            self.wrong(key, "a value", "none")
        return default


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 200 else "a huge int"
    return text if len(text) <= 64 else f"a value of {len(text)} characters"


def check_share(settings: Settings, key: str, rotary_dim: int, head_dim: int) -> int:
    """The number of rotated dims, checked to be even and to fit into the head."""
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        settings.wrong(key, f"an even number of rotated dims in 2 .. {head_dim}", rotary_dim)
    return rotary_dim


# The type of a layer, its arguments, correction, and the base beside its frequencies, if any.
Layer = (
    tuple[str | None, dict[str, Any] | None, float]
    | tuple[str | None, dict[str, Any] | None, float, float | None]
)


def grouped(
    settings: Settings, count: int, of_layer: Callable[[int], Layer]
) -> tuple[LayerGroup, ...]:
    """Group layers that rotate alike; of_layer(i) describes layer i."""
    members: dict[str, list[int]] = {}
    values: dict[str, Layer] = {}
    for layer in range(count):
        value = of_layer(layer)
        key = repr(value)
        if key not in values and len(values) == KIND_LIMIT:
            wrong_value(
                settings.function, settings.place, f"layers of at most {KIND_LIMIT} kinds", "more"
            )
        values.setdefault(key, value)
        members.setdefault(key, []).append(layer)
    return tuple(
        LayerGroup(label, tuple(members[key]), arguments, correction, *base)
        for key, (label, arguments, correction, *base) in values.items()
    )


def without_rotation(groups: Iterable[LayerGroup]) -> tuple[int, ...]:
    """Indices of the layers without rotary encoding."""
    return tuple(sorted(i for group in groups if group.arguments is None for i in group.layers))


def grouped_except(
    settings: Settings, key: str, skipped: list[bool], rotation: dict[str, Any], correction: float
) -> tuple[LayerGroup, ...]:
    """Group layers with a rotation, and those that skip it; ValueError at `key` if all do."""
    if all(skipped):
        settings.wrong(key, "a rotary encoding in some layer", repr(settings[key]))
    rotated, unrotated = (None, rotation, correction), (None, None, 1.0)
    return grouped(settings, len(skipped), lambda i: unrotated if skipped[i] else rotated)
