"""Hugging Face model configurations as the arguments of `Rotary`.

fields.py finds the entries of a configuration; layers.py determines which layers rotate. facts.json
holds what configurations leave to the code of their models: the pairing, defaults of older files,
position axes, layers without rotary encoding. transformers itself is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.errors import did_you_mean
from posenc_native.core.frequencies.axes import mrope_axis_map
from posenc_native.core.frequencies.scaling import (
    ROTARY_SCALINGS,
    scaled_frequencies,
    softmax_correction,
)

from .entries import HEAD_LIMIT, KIND_LIMIT, SIZES, named_rope_type
from .facts import facts_of
from .fields import BASES, HEAD_WIDTHS, HEADS, LOCAL_BASES, WIDTHS, by_layer_type, first_value
from .layers import has_attention
from .vision import VisionConfig

# Entries that may describe a rotary encoding.
_ROTARY = ("rope_parameters", "rope_scaling", *BASES, "rotary_dim")


def rotary_arguments(
    config: Any,
    layer_type: str | None = None,
    *,
    layer: int | None = None,
    seq_len: int | None = None,
) -> dict[str, Any]:
    """Arguments of `Rotary` for the attention layers of a Hugging Face model.

    Args:
        config: a configuration object of transformers, the mapping in a config.json, or the path of
            that file or of its folder. If the model has several modalities, its ``text_config`` is
            read; its ``vision_config`` may be passed by itself, if `vision_rotary` knows the model.
            Or a transformer of diffusers, or its configuration with the entry "_class_name".
            The rotary parameters may be in ``rope_parameters``, flat or by layer type, or in
            ``rope_theta`` and ``rope_scaling``.
        layer_type: the type of the layers, such as "full_attention" or "sliding_attention", if
            types differ.
        layer: index of a layer, instead of its type; needed if layers of one type differ.
        seq_len: length of the sequence, for the scalings that depend on it (dynamic, longrope).
            Without it the scaling is that for short sequences.

    Returns:
        ``head_dim``, ``base``, ``rotary_dim``, ``pairing``, ``scaling``, ``axis_map`` (int64
        [rotary_dim // 2] or None) and ``rotary_start``; and ``query_scale``, if the model has one
        in the layers that rotate. In multi-head latent attention the rotated
        dims are a separate tensor, and head_dim is its width. A few models cannot be described by
        base, rotary_dim and scaling: they have ``inv_freq`` and ``scale`` instead. These are models
        whose share of the head is an odd number of dims, of which they rotate one more, and models
        that rotate backward (NanoChat). A vision encoder has head_dim, inv_freq, pairing,
        axis_map and vision.

    Raises:
        ValueError: no rotary encoding in these layers or at all, an entry that is missing or
            invalid, a layer_type or layer that is missing or unknown, a model whose rotation these
            arguments cannot express.
        TypeError: config or an entry of the wrong type.
        OSError: a file that cannot be read.

    Example:
        >>> rotary_arguments({"hidden_size": 64, "num_attention_heads": 4, "rope_theta": 5e5})
        ... # doctest: +NORMALIZE_WHITESPACE
        {'head_dim': 16, 'base': 500000.0, 'rotary_dim': 16, 'pairing': 'half', 'scaling': None,
         'axis_map': None, 'rotary_start': 0}

    A config.json may leave out any entry for which its model's class has a default. The defaults of
    the rotary encoding are known here. A missing size is an error;
    ``transformers.AutoConfig.from_pretrained`` gives the complete object.

    Source: ``configuration_*.py``, ``modeling_*.py`` and ``modeling_rope_utils.py`` of
    transformers 5.23. Unlike there, YaRN's "truncate" is also read in the entry of a layer type.
    """
    model = Configuration.read(config, "Rotary.from_config")
    return model.rotary_arguments(layer_type, layer, seq_len)


@dataclass(frozen=True)
class LayerGroup:
    """Layers of a model that rotate alike; `layers` is empty if they have no indices."""

    layer_type: str | None
    layers: tuple[int, ...]
    arguments: dict[str, Any] | None  # of Rotary; None for layers without rotary encoding
    softmax_correction: float = 1.0  # the model also multiplies the softmax scale by it
    base: float | None = None  # that a file states beside a list of frequencies


@dataclass(frozen=True)
class Configuration(VisionConfig):
    """The configuration of a language model, a vision encoder or a diffusion transformer.

    The facts of its model_type add what it leaves out.
    """

    def rotary_arguments(
        self, layer_type: str | None, layer: int | None, seq_len: int | None
    ) -> dict[str, Any]:
        """See the function of this name."""
        if layer_type is not None and not isinstance(layer_type, str):
            arguments.wrong_type(self.function, "layer_type", "a str", type(layer_type).__name__)
        self._refuse()
        if self.sees:
            return self._vision_arguments(layer_type, layer)
        if layer is not None:
            layer_type = self._type_of(layer, layer_type)
        self._check_rotary(layer_type, layer)
        parameters = self._parameters(layer_type)
        parameters.update(self._of_layers(layer_type, layer))
        rope_type = self._rope_type(parameters)
        head_dim = self._head_dim(layer_type, layer)
        rotary_dim = self._rotary_dim(parameters, head_dim)
        base = self._positive("rope_theta", parameters["rope_theta"])
        if rope_type == "proportional":  # a share of the frequencies, not of the dims
            rotary_dim = head_dim
        scaling = self._scaling(parameters, rope_type, seq_len)
        interleaved = self.fields.get("rope_interleave")
        if interleaved is None:
            interleaved = self.facts.pairing == "interleaved"
        result: dict[str, Any] = {
            "head_dim": head_dim,
            "base": base,
            "rotary_dim": rotary_dim,
            "pairing": "interleaved" if interleaved else "half",
            "scaling": scaling,
            "axis_map": self._axis_map(parameters, (rotary_dim + 1) // 2),
            "rotary_start": head_dim - rotary_dim if self.facts.trailing else 0,
        }
        if query_scale := self._query_scale(parameters):
            result["query_scale"] = query_scale
        backward = self.facts.backward
        if rotary_dim % 2 or backward:
            inv_freq, scale = scaled_frequencies(self.function, rotary_dim, base, scaling)
            for key in ("base", "rotary_dim", "scaling"):
                del result[key]
            result.update(inv_freq=-inv_freq if backward else inv_freq, scale=scale)
        return result

    def groups(self, seq_len: int | None = None) -> list[LayerGroup]:
        """All attention layers, grouped by how they rotate."""
        return [
            replace(group, softmax_correction=softmax_correction(group.arguments.get("scaling")))
            if self.facts.corrects_softmax and group.arguments is not None
            else group
            for group in self._groups(seq_len)
        ]

    def _groups(self, seq_len: int | None) -> list[LayerGroup]:
        nope = frozenset(self._numbered_without)
        by_layer = self.fields.get("layer_rope_theta") or self._scaled_layers is not None
        if not self.layer_types and not nope and not by_layer:
            labels, without = self._entries(), self.unnumbered_without
            names: list[str | None] = [*labels] if labels else [None]
            alike = len(names) == 1 and not without
            rotating = [
                LayerGroup(
                    name,
                    tuple(range(self.layer_count or 0)) if alike else (),
                    self.rotary_arguments(name, None, seq_len),
                )
                for name in names
                if name not in without or name is None
            ]
            return rotating + [LayerGroup(name, (), None) for name in without]
        # Layers are compared by their own entries: there may be thousands of layers.
        keys: dict[str, str] = {}
        members: dict[str, list[int]] = {}
        values: dict[str, tuple[str | None, dict[str, Any] | None]] = {}
        for layer in range(self.layer_count or 0):
            name = self.layer_types[layer] if self.layer_types else None
            if name is not None and not has_attention(name):
                continue
            own = f"{name} {layer in nope} {self._of_layer(layer)} {self._own_fields(None, layer)}"
            if own not in keys:
                if len(keys) == KIND_LIMIT:
                    expected = f"layers of at most {KIND_LIMIT} kinds"
                    self._wrong("num_hidden_layers", expected, "more")
                rotation = None if layer in nope else self.rotary_arguments(None, layer, seq_len)
                keys[own] = f"{name} {_comparable(rotation)}"
                values.setdefault(keys[own], (name, rotation))
            members.setdefault(keys[own], []).append(layer)
        return [
            LayerGroup(name, tuple(members[key]), rotation)
            for key, (name, rotation) in values.items()
        ]

    @property
    def corrects_softmax(self) -> bool:
        """Whether the model applies `softmax_correction`."""
        return self.facts.corrects_softmax

    @property
    def names_a_base(self) -> bool:
        """Whether the base comes from the configuration, and not from the class of the model."""
        shared = self.rotary_parameters
        everywhere = [shared, *by_layer_type(shared).values()]
        named = (parameters.get("rope_theta") for parameters in everywhere)
        return any(base is not None for base in (*self._bases(), *named))

    def _refuse(self) -> None:
        model_type = self.model_type
        if self.facts.unrotated:
            self._wrong("model_type", "a model with a rotary encoding", model_type)
        if self.facts.refused:
            got = f"{model_type}, which {self.facts.refused}"
            self._wrong("model_type", "a model that rotates as its configuration says", got)
        if self._of_images() and not self.sees:
            got = f"{model_type}, which encodes images in another way"
            self._wrong("model_type", "a language model or one that vision_rotary knows", got)
        rule = self.facts.rotary_if
        if rule is not None and not self._is_rotary():
            expected = f"{rule['value']!r}, or this {model_type} has no rotary encoding"
            got = repr(self.fields.get(rule["entry"], rule["default"]))
            self._wrong(rule["entry"], expected, got)
        silent = not self.rotary_parameters and self._bases()[0] is None
        silent = silent and not {"rope_scaling", "rotary_dim"} & {*self.fields}
        if silent and not self.sees and self.facts.defaults is None:
            expected = f"an entry about a rotary encoding ({', '.join(_ROTARY)})"
            self._wrong_argument("config", expected, self._parts())

    # Parameters

    def _entries(self) -> dict[str, dict[str, Any]]:
        """The rotary parameters by layer type; empty if all layers share them."""
        parameters = self.rotary_parameters
        defaults = self.facts.defaults or {}
        by_type = {
            key: value
            for key, value in parameters.items()
            if isinstance(value, Mapping) or (value is None and "attention" in key)
        }
        flat = self._flat()
        if not by_type:
            nested = by_layer_type(defaults)
            if not flat and (parameters or not nested):
                return {}
            # Such classes know the type of flat parameters by its name of today alone.
            spread = {key: entry for key, entry in parameters.items() if key != "type"}
            spread = dict(parameters) if self.facts.flat_unknown else spread
            by_type = {key: spread if rule["scaled"] else {} for key, rule in flat.items()}
            if not parameters:
                by_type = {key: {} for key in (*flat, *nested)}
        base = self._bases()[0]
        result = {}
        for key, value in by_type.items():
            if value is None or (not parameters and defaults.get(key, {}) is None):
                continue
            own = self._base_named(flat[key]["base"]) if key in flat else base
            entry = {
                **(_beside_scaling(defaults.get(key)) if parameters else defaults.get(key, {}))
            }
            if own is not None:
                entry["rope_theta"] = own
            result[key] = {**entry, **_stated(value)}
        return result

    def _base_named(self, name: str | None) -> Any:
        """The base in this entry; an unknown model may have another name for it."""
        alike = () if self.is_known else (BASES, LOCAL_BASES)
        names = next((names for names in alike if name in names), (name or "",))
        return first_value(self.fields, *names)

    def _flat(self) -> Mapping[str, Mapping[str, Any]]:
        """The meaning of a flat rope_scaling if layers differ: the fact of this name."""
        known = self.facts.flat or self.is_known
        if not known and self._bases()[1] is not None:
            return facts_of("gemma3_text").flat
        return self.facts.flat

    def _parameters(self, layer_type: str | None) -> dict[str, Any]:
        """The parameters of the layer type, under their current names, always with rope_theta."""
        parameters, (base, _) = self.rotary_parameters, self._bases()
        entries = self._entries()
        if entries:
            if layer_type is None and len(entries) == 1:
                (layer_type,) = entries
            label = None if layer_type is None else self._label(layer_type)
            if label not in entries:
                self._unknown(layer_type, entries)
            return {"rope_theta": 10000.0, **entries[label]}
        if layer_type is not None and layer_type not in self.layer_types:
            self._unknown(layer_type, [None, *dict.fromkeys(self.layer_types)])
        known = self.facts.defaults or {}
        if parameters:
            known = {} if self.facts.defaults_or_scaling else _beside_scaling(known)
        result = {"rope_theta": 10000.0, **known}
        if base is not None:
            result["rope_theta"] = base
        return {**result, **_stated(parameters)}

    def _unknown(self, layer_type: str | None, known: Iterable[str | None]) -> NoReturn:
        self._wrong_argument("layer_type", f"one of {', '.join(map(str, known))}", layer_type)

    def _parts(self) -> str:
        """The configuration without such an entry, and its parts that may have it."""
        parts = [
            key
            for key, value in self.fields.items()
            if isinstance(value, Mapping) and {"rope_parameters", "rope_theta"} & {*value}
        ]
        see = f" (but see its {', '.join(parts)})" if parts else ""
        of = f" of {self.model_type}" if self.fields.get("model_type") else ""
        return f"a configuration{of} without one{see}"

    def _of_layers(self, layer_type: str | None, layer: int | None) -> dict[str, Any]:
        """Parameters that only some layers have: a base, or no scaling."""
        if layer is not None:
            return self._of_layer(layer)
        if not self.fields.get("layer_rope_theta") and "rope_scaling_layers" not in self.fields:
            return {}
        nope = set(self._numbered_without)
        entries: list[dict[str, Any]] = []
        for i in range(self.layer_count or 0):
            if i in nope or (layer_type is not None and self.layer_types[i] != layer_type):
                continue
            own = self._of_layer(i)
            if entries and own != entries[0]:
                self._wrong_argument("layer", "the index of a layer, because they differ", None)
            entries = [own]
        return entries[0] if entries else {}

    def _of_layer(self, layer: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        if self.fields.get("layer_rope_theta"):
            own["rope_theta"] = self.fields["layer_rope_theta"][layer]
        if self._scaled_layers is not None and layer not in self._scaled_layers:
            own["rope_type"] = "default"
        return own

    @cached_property
    def _scaled_layers(self) -> frozenset[int] | None:
        scaled = self.fields.get("rope_scaling_layers")
        return None if scaled is None else frozenset(scaled)

    def _head_dim(self, layer_type: str | None, layer: int | None) -> int:
        """Width of the rotated tensor: the head, or the part that latent attention splits off."""
        fields = {**self.fields, **self._own_fields(layer_type, layer)}
        latent = fields.get("qk_rope_head_dim")
        value = None if self.facts.trailing else latent
        value = value or first_value(fields, *HEAD_WIDTHS)
        value = value or self.facts.head_dim
        if value is None:
            width = self._size(fields, *WIDTHS) * self.facts.widening
            value = width // self._size(fields, *HEADS)
        return self._head_size(value)

    def _own_fields(self, layer_type: str | None, layer: int | None) -> Mapping[str, Any]:
        """The entries for only this layer, or for the first layer of this type."""
        if "per_layer_config" not in self.fields:
            default = self.facts.global_head_dim
            if default is not None and layer_type == "full_attention":
                return {"head_dim": self.fields.get("global_head_dim") or default}
            return {}
        if layer is None:
            alike = (
                values
                for number, values in self._by_layer.items()
                if layer_type is not None and layer_type in self.layer_types[number : number + 1]
            )
            return next(alike, {})
        return self._by_layer.get(layer, {})

    @cached_property
    def _by_layer(self) -> dict[int, Mapping[str, Any]]:
        """The sizes in per_layer_config, by layer index."""
        per_layer = self.fields.get("per_layer_config") or {}
        return {
            int(layer): {key: values[key] for key in SIZES if key in values}
            for layer, values in per_layer.items()
        }

    def _rotary_dim(self, parameters: Mapping[str, Any], head_dim: int) -> int:
        fields = self.fields
        share = parameters.get("partial_rotary_factor")
        latent = fields.get("qk_rope_head_dim")
        if latent is not None and (latent == head_dim or self.facts.trailing):
            return self._checked_rotary_dim(self._size(fields, "qk_rope_head_dim"), head_dim)
        if self.facts.whole_share:
            return self._checked_rotary_dim(head_dim, head_dim)
        rope_parameters = {} if "scaling" in self.parameters_key else self.rotary_parameters
        if "partial_rotary_factor" not in rope_parameters and not by_layer_type(rope_parameters):
            names: tuple[str, ...] = ("partial_rotary_factor", "rotary_pct")
            if self.facts.share is not None:
                names = (self.facts.share,)
            if self.facts.fixed or (self.facts.own_parameters and not self.rotary_parameters):
                names = ()
            named = first_value(fields, *names)
            share = share if named is None else named
            read = fields.get("rotary_dim") and not self.facts.rotary_dim_unread
            if named is None and not rope_parameters and read:
                return self._checked_rotary_dim(self._size(fields, "rotary_dim"), head_dim)
        share = self._positive("partial_rotary_factor", 1.0 if share is None else share)
        if head_dim * share > HEAD_LIMIT:
            self._wrong("partial_rotary_factor", "a share of the head", share)
        return self._checked_rotary_dim(int(head_dim * share), head_dim)

    def _checked_rotary_dim(self, rotary_dim: int, head_dim: int) -> int:
        if not 0 < rotary_dim + rotary_dim % 2 <= head_dim:
            if rotary_dim == head_dim:
                self._wrong_head("an even int", head_dim)
            expected = f"a rotary_dim in 1 .. {head_dim}, below it if odd"
            self._wrong("partial_rotary_factor", expected, rotary_dim)
        return rotary_dim

    def _scaling(
        self, parameters: Mapping[str, Any], rope_type: str, seq_len: int | None
    ) -> dict[str, Any] | None:
        """The parameters that rotary_frequencies reads for this type, lengths included."""
        if rope_type == "default":
            return None
        known = {**parameters}
        length = self.fields.get("max_position_embeddings")
        trained = self.fields.get("original_max_position_embeddings")
        known["max_position_embeddings"] = length
        known["original_max_position_embeddings"] = (
            trained or parameters.get("original_max_position_embeddings") or length
        )
        if rope_type in ("dynamic", "longrope"):
            known["seq_len"] = arguments.plain(seq_len)
        keys = (*ROTARY_SCALINGS[rope_type].keys, "seq_len")
        return {
            "rope_type": rope_type,
            **{key: known[key] for key in keys if known.get(key) is not None},
        }

    def _axis_map(self, parameters: Mapping[str, Any], pairs: int) -> npt.NDArray[np.int64] | None:
        if self.facts.rows_and_columns:
            return mrope_axis_map([pairs - pairs // 2, pairs // 2], order="interleaved")
        known = self.facts.mrope or {"order": "sectioned", "section": None}
        order: Any = "interleaved" if parameters.get("mrope_interleaved") else known["order"]
        section = parameters.get("mrope_section", known["section"])
        if section is None:
            return None
        counts = [int(count) for count in section]
        if len(counts) != 3 or (order != "interleaved" and sum(counts) != pairs):
            self._wrong("mrope_section", f"3 numbers with the sum {pairs}", section)
        return mrope_axis_map(counts, order=order, pairs=pairs)

    def _rope_type(self, parameters: Mapping[str, Any]) -> str:
        rope_type = named_rope_type(parameters)
        # A configuration cannot describe the order of axial frequencies in a head.
        known = [name for name in ROTARY_SCALINGS if name != "axial"]
        if rope_type not in known:
            key = "rope_type" if parameters.get("rope_type") else "type"
            hint = did_you_mean(rope_type, known)
            self._wrong(key, f"one of {', '.join(known)}", rope_type, hint)
        return rope_type


def _stated(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are not None; "truncate" is then False, as in transformers."""
    stated = {key: value for key, value in parameters.items() if value is not None}
    if "truncate" in parameters:
        stated.setdefault("truncate", False)
    return stated


def _beside_scaling(defaults: Mapping[str, Any] | None) -> dict[str, Any]:
    """The default parameters that apply with any scaling."""
    keys = ("rope_theta", "partial_rotary_factor", "attention_factor")
    return {key: defaults[key] for key in keys if key in defaults} if defaults else {}


def _comparable(values: Mapping[str, Any] | None) -> str:
    return "" if values is None else repr({k: np.array(v).tolist() for k, v in values.items()})
