"""The entries that mlx-lm's model files read, and their rotations.

A row of mlx.json has for each value the places where a model file looks for it, in this order. A
place is the name of an entry (``rope_parameters.rope_theta``; ``{type}`` is the type of the layer)
or the default:

    head, rotated, share   width of a head; number or share of its dims that turn
    base, scaling          of the frequencies
    traditional            whether pairs are interleaved
    width, heads, count    names of the sizes, if other than Hugging Face's
    layers, of             how layers get their types; what differs for a type: its places, null if
                           it does not rotate, "absent" if it has no attention
    rules                  how a scaling is read (`mlx_scalings`)
    like, inside           the row of the language model; where it is

`ratio` is the width of the model over the number of heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from posenc_native.checkpoints.formats.settings import Layer, Settings, check_share, grouped
from posenc_native.core.frequencies.scaling import scaled_frequencies
from posenc_native.models.config import LayerGroup
from posenc_native.models.entries import HEAD_LIMIT
from posenc_native.models.rows import rows

from .mlx_scalings import Scaling, read_scaling

Row = Mapping[str, Any]
VERSION = "0.32.2"  # of mlx-lm, which was run
_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"


@cache
def models() -> Mapping[str, Row]:
    """The rows of mlx.json."""
    return rows("mlx", __file__)


@cache
def _rules() -> Mapping[str, Mapping[str, Any]]:
    """The rows of mlx_scalings.json."""
    return rows("mlx_scalings", __file__)


def row_of(entries: Mapping[str, Any], fields: Mapping[str, Any]) -> Row | None:
    """The row for a configuration, whose language part is `fields`; None if there is none."""
    name = entries.get("model_type") or fields.get("model_type")
    row = models().get(name) if isinstance(name, str) else None
    if row is None:
        return None
    inside = row.get("inside")
    nested = fields is not entries
    if nested and (inside is None or fields is not entries.get("text_config")):
        return None
    if "like" in row:
        inner = row["like"]
        if inner == "{model_type}":  # of the part
            inner = fields.get("model_type")
            inner = inner if inner in row["known"] else row["otherwise"]
        row = models()[inner]
    return {**row, "inside": inside, "nested": nested}


class Model:
    """A configuration, read by a row.

    Attributes:
        read: names of the entries that were read.
        assumed_bases: defaults that were used because the configuration has no base.
        remarks: sentences about the scaling.
    """

    def __init__(self, function: str, fields: Mapping[str, Any], row: Row) -> None:
        self.row = row
        self.settings = Settings(function, {**row.get("assumes", {}), **_present(fields)}, "config")
        self.nulls = {key for key, value in fields.items() if value is None}
        self.read: set[str] = set()
        self.assumed_bases: list[float] = []
        self.remarks: list[str] = []
        if row["inside"] == "required" and not row["nested"]:
            self.settings.wrong("text_config", "the part of the language model", "none")

    @cached_property
    def count(self) -> int | None:
        """The number of layers; None if the configuration does not have it."""
        key = self.row.get("count", "num_hidden_layers")
        return self.settings.layers(key) if key in self.settings or self._types_differ else None

    @property
    def _types_differ(self) -> bool:
        return "layers" in self.row

    def groups(self) -> tuple[LayerGroup, ...]:
        """The layers with attention, by how they rotate."""
        if not self._types_differ:
            name, arguments, correction, *base = self._layer(None, self.row)
            layers = tuple(range(self.count or 0))
            return (LayerGroup(name, layers, arguments, correction, *base),)
        types = self._types(self.count or 0)
        by_type = {name: self._row(name, types) for name in dict.fromkeys(types)}
        attending = [i for i, name in enumerate(types) if by_type[name] != "absent"]
        layer = cache(lambda name: self._layer(name, by_type[name]))
        groups = grouped(self.settings, len(attending), lambda i: layer(types[attending[i]]))
        return tuple(
            dataclasses.replace(group, layers=tuple(attending[i] for i in group.layers))
            for group in groups
        )

    def _row(self, name: str | None, types: Sequence[str | None]) -> Any:
        """The row for a type of layers; None or "absent"."""
        changes = self.row.get("of", {}).get(name, {})
        if changes is None and self.row.get("mixed") and len({*types}) == 1:
            changes = {}
        return changes if changes is None or changes == "absent" else {**self.row, **changes}

    def _layer(self, name: str | None, row: Any) -> Layer:
        if row is None or any(self._is(key, value) for key, value in row.get("unless", {}).items()):
            return name, None, 1.0
        for place in row.get("needs", ()):
            settings, key, _ = next(self._places([place], name))
            if key not in settings:
                settings.wrong(key, "an entry, which mlx-lm needs", "none")
        for key, value in row.get("refuses", {}).items():
            if self._is(key, value):
                self.settings.wrong(key, "another value, which mlx-lm has", value)
        head = self._head(row, name)
        rotary_dim = self._rotary_dim(row, name, head)
        base = self._base(row, name)
        scaling = self._scaling(row, name, rotary_dim)
        traditional = self._first(row.get("traditional", [False]), name, Settings.flag)
        values: dict[str, Any] = {
            "head_dim": head,
            "base": base,
            "rotary_dim": rotary_dim,
            # The module for LongRoPE always turns halves.
            "pairing": "interleaved" if traditional and not scaling.in_halves else "half",
            "scaling": scaling.numbers,
            "axis_map": None,
            "rotary_start": 0,
        }
        self.remarks.extend(scaling.remarks)
        if not row.get("backward"):
            return name, values, scaling.correction
        del values["base"], values["rotary_dim"], values["scaling"]
        inv_freq, scale = scaled_frequencies(self.settings.function, rotary_dim, base, None)
        values.update(inv_freq=(-inv_freq).tolist(), scale=scale)
        return name, values, 1.0, base

    def _is(self, key: str, value: object) -> bool:
        self.read.add(key)
        return bool(self.settings[key] == value)

    # Values

    def _head(self, row: Row, name: str | None) -> int:
        head = self._first(row["head"], name, lambda at, key, default: at.heads(key))
        width, heads = row.get("width", "hidden_size"), row.get("heads", "num_attention_heads")
        if head is None:
            head = self.settings.count(width) // self.settings.count(heads)
            if not 2 <= head <= HEAD_LIMIT:
                expected = f"2 to {HEAD_LIMIT} dims a head"
                self.settings.wrong(width, expected, head)
        whole = row.get("whole")
        if whole:
            head = self.settings.count(whole) if whole in self.settings else head
            if head * self.settings.count(heads) != self.settings.count(width):
                self.settings.wrong(whole, f"{width} / {heads}", head)
        return int(head)

    def _rotary_dim(self, row: Row, name: str | None, head: int) -> int:
        optional = "share" in row
        rotated = row.get("rotated")
        if rotated:
            dims = self._first(rotated, name, Settings.count, required=not optional)
            if dims is not None:
                return check_share(self.settings, "rotary_dim", dims, head)
        if not optional:
            return check_share(self.settings, "head_dim", head, head)
        share = self._first(row["share"], name, Settings.positive)
        dims = int(head * share) if share <= 1 else 0
        return check_share(self.settings, "partial_rotary_factor", dims, head)

    def _base(self, row: Row, name: str | None) -> float:
        for settings, key, default in self._places(row["base"], name):
            if key in settings:
                self.read.add(key)
                return settings.positive(key)
            if default is not None:
                self.assumed_bases.append(float(default))
                return float(default)
        settings, key, _ = next(self._places(row["base"], name))
        return settings.wrong(key, "a base, which mlx-lm needs for this model", "none")

    def _scaling(self, row: Row, name: str | None, rotary_dim: int) -> Scaling:
        rule = _rules()[row.get("rules", "any")]
        found = None
        for settings, key, _ in self._places(row.get("scaling", ()), name):
            if key in settings:
                found = settings.inner(key)
                break
        if found is None and rule.get("required"):
            self.settings.wrong(row["scaling"][0], "a scaling, which mlx-lm needs", "none")
        top = self.settings if row.get("length", True) else None
        corrects = bool(row.get("correction"))
        return read_scaling(found, rule, self.settings, top, rotary_dim, corrects)

    def _first(
        self,
        places: Sequence[Any],
        name: str | None,
        read: Callable[..., Any],
        *,
        required: bool = True,
    ) -> Any:
        """The value at the first place that exists; None for `ratio`."""
        for settings, key, default in self._places(places, name):
            if key in settings or default is not None:
                return read(settings, key, default) if key in settings else default
        if required and places[-1] != "ratio":
            settings, key, _ = next(self._places(places, name))
            settings.wrong(key, "a value, which mlx-lm needs for this model", "none")
        return None

    def _places(
        self, places: Sequence[Any], name: str | None
    ) -> Iterator[tuple[Settings, str, Any]]:
        """The mapping and the key of each place, and the default that applies there."""
        null = False
        for place in places:
            if place == "ratio":
                continue
            if not isinstance(place, str):
                if not null or isinstance(place, bool):  # null replaces the default of a number
                    yield self.settings, "", place
                continue
            path, _, default = place.partition("=")
            *parents, key = path.split(".")
            settings, exists = self.settings, True
            self.read.add((parents or [key])[0])
            for parent in parents:
                parent = str(name) if parent == "{type}" else parent
                exists = exists and parent in settings
                settings = settings.inner(parent)
            key = str(name) if key == "{type}" else key
            null = not parents and key in self.nulls
            yield settings, key, float(default) if default and exists else None

    # Types of layers

    def _types(self, count: int) -> list[str | None]:
        for rule, *arguments in self.row["layers"]:
            types = getattr(self, f"_by_{rule}")(count, *arguments)
            if types is not None:
                return list(types)
        if self.row.get("uniform"):
            return [None] * count
        key = self.row["layers"][0][1]
        return self.settings.wrong(key, "the types of the layers", "none")

    def _by_list(self, count: int, key: str) -> list[str] | None:
        """By the names in a list."""
        values = self._listed(count, key)
        if values is None:
            return None
        whole = Settings(self.settings.function, dict(enumerate(values)), self.settings.name(key))
        return [whole.text(i) for i in range(count)]  # type: ignore[arg-type]

    def _by_flags(self, count: int, key: str) -> list[str] | None:
        """By a list of numbers, of which 0 stands for full attention."""
        values = self._listed(count, key)
        return None if values is None else [_SLIDING if value else _FULL for value in values]

    def _by_indices(self, count: int, key: str) -> list[str] | None:
        """By a list with the indices of the attention layers."""
        if key not in self.settings:
            return None
        indices = self.settings.numbers(key, most=count)
        return [_FULL if i in indices else "conv" for i in range(count)]

    def _by_cycle(self, count: int, key: str) -> list[str] | None:
        """By names, or a text such as "LLLG", that repeat."""
        if key not in self.settings:
            return None
        if isinstance(self.settings[key], (list, tuple)):
            names = self._by_list(min(count, len(self.settings[key])), key)
            return [names[i % len(names)] for i in range(count)] if names else None
        text = self.settings.text(key)
        if not text or {*text} - {"L", "G"}:
            self.settings.wrong(key, "the letters L and G", repr(text))
        return [_SLIDING if text[i % len(text)] == "L" else _FULL for i in range(count)]

    def _by_period(
        self, count: int, key: str | int, default: int | None = None, other: str = _SLIDING
    ) -> list[str]:
        """The last of so many layers has full attention."""
        period = key if isinstance(key, int) else self.settings.count(key, default)
        return [other if (i + 1) % period else _FULL for i in range(count)]

    def _by_groups(self, count: int, key: str, default: int | None = None) -> list[str]:
        """Likewise, and so have those after the last whole group."""
        whole = count - count % self.settings.count(key, default)
        types = self._by_period(count, key, default, _LINEAR)
        return types[:whole] + [_FULL] * (count - whole)

    def _listed(self, count: int, key: str) -> Sequence[Any] | None:
        values = self.settings[key]
        if values is None:
            return None
        if not isinstance(values, (list, tuple)) or len(values) < count:
            self.settings.wrong(key, f"a list for {count} layers", "another value")
        return values[:count]


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}
