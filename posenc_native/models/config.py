"""Hugging Face model configurations as the arguments of `Rotary`.

What configurations leave to the code of their models (pairing, defaults of older files, position
axes, layers without rotary encoding) stands in facts.py. transformers itself is not needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from posenc_native import arguments
from posenc_native.frequencies import ROTARY_SCALINGS, scaled_frequencies
from posenc_native.multi_axis import VISION_MODELS, FullWidthRotary, mrope_axis_map, vision_rotary

from . import facts as model_facts

_OLD_ROPE_TYPES = {"mrope": "default", "su": "longrope"}

# Entries that say of each layer whether it rotates.
_ONE_BY_ONE = ("no_rope_layers", "layer_rope_theta")

# Entries in which a configuration may speak of a rotary encoding.
_BASES = ("rope_theta", "global_rope_theta", "rotary_emb_base")
_ROTARY = ("rope_parameters", "rope_scaling", *_BASES, "rotary_dim")

# Entries under which configurations of several modalities keep that of the language model.
_INNER = ("text_config", "thinker_config", "language_config", "llm_config")


def rotary_arguments(
    config: Any,
    layer_type: str | None = None,
    *,
    layer: int | None = None,
    seq_len: int | None = None,
) -> dict[str, Any]:
    """Arguments of `Rotary` for the attention layers of a Hugging Face model.

    Args:
        config: a configuration object of transformers, the mapping that a config.json holds, or the
            path of that file or of its folder. Of a model for several modalities the
            ``text_config`` is read; its ``vision_config`` may be given by itself, if it is of a
            model that `vision_rotary` knows. The rotary parameters may be in ``rope_parameters``,
            flat or by layer type, or in ``rope_theta`` and ``rope_scaling``.
        layer_type: which layers, such as "full_attention" or "sliding_attention", where they
            differ.
        layer: number of a layer, in place of its type; needed where layers of one type differ.
        seq_len: length of the sequence, for the scalings that depend on it (dynamic, longrope).
            Without it they are as for short sequences.

    Returns:
        ``head_dim``, ``base``, ``rotary_dim``, ``pairing``, ``scaling``, ``axis_map`` (int64
        [rotary_dim // 2] or None) and ``rotary_start``. In multi-head latent attention, where the
        rotated dims are a tensor of their own, head_dim is the width of that tensor. ``inv_freq``
        and ``scale`` stand in place of base, rotary_dim and scaling for the rare model that these
        do not describe: one whose share of the head is an odd number of dims, of which it rotates
        one more, or one that turns backward (NanoChat). A vision encoder has head_dim, inv_freq,
        pairing and axis_map.

    Raises:
        ValueError: no rotary encoding in these layers or at all, an entry that is missing or
            nonsense, a layer_type or layer that is missing or unknown, a model whose rotation these
            arguments cannot express.
        TypeError: config or an entry of the wrong kind.
        OSError: a file that cannot be read.

    Example:
        >>> rotary_arguments({"hidden_size": 64, "num_attention_heads": 4, "rope_theta": 5e5})
        ... # doctest: +NORMALIZE_WHITESPACE
        {'head_dim': 16, 'base': 500000.0, 'rotary_dim': 16, 'pairing': 'half', 'scaling': None,
         'axis_map': None, 'rotary_start': 0}

    A config.json may leave out whatever its model's class has a default for. Of the rotary
    encoding those defaults are known here; a size that is missing is an error, and
    ``transformers.AutoConfig.from_pretrained`` gives the complete object.

    Source: ``configuration_*.py``, ``modeling_*.py`` and ``modeling_rope_utils.py`` of
    transformers 5.23. Unlike there, "truncate" of YaRN counts in the entry of a layer type too.
    """
    model = Configuration.read(config, "Rotary.from_config")
    return model.rotary_arguments(layer_type, layer, seq_len)


def nope_layers(config: Any) -> tuple[int, ...]:
    """Numbers of the attention layers that have no rotary encoding ("NoPE").

    Some models leave the encoding out of every fourth layer or so (Llama 4, SmolLM3), or of the
    layers without a sliding window (Cohere 2, EXAONE 4), to do better at lengths beyond training.

    Args:
        config: as in `Rotary.from_config`.

    Returns:
        Their numbers, from 0; empty for most models. Layers without attention (state space, linear
        attention) are not among them.

    Raises:
        ValueError: the model has such layers, but the configuration does not say how many layers
            there are, or of which types; and as in `Rotary.from_config`.
        TypeError, OSError: as in `Rotary.from_config`.

    Example:
        >>> nope_layers({"model_type": "smollm3", "num_hidden_layers": 8})
        (3, 7)
    """
    return Configuration.read(config, "nope_layers").nope_layers()


@dataclass(frozen=True)
class LayerGroup:
    """Layers of a model that rotate alike; `layers` is empty where they have no numbers."""

    layer_type: str | None
    layers: tuple[int, ...]
    arguments: dict[str, Any] | None  # of Rotary; None for layers without rotary encoding


@dataclass(frozen=True)
class Configuration:
    """What a configuration says of its language model, or of the vision encoder that it is of, and
    what its model_type says besides. Errors begin with the name of `function`."""

    function: str
    fields: Mapping[str, Any]
    model_type: str
    layer_types: tuple[str, ...]  # one a layer, or none at all

    @classmethod
    def read(cls, config: Any, function: str) -> Configuration:
        """From an object, a mapping or a path."""
        fields = _language_model(_mapping(config, function))
        model_type = str(fields.get("model_type"))
        return cls(
            function,
            fields,
            model_facts.ALIASES.get(model_type, model_type),
            _layer_types(fields, model_type),
        )

    @property
    def layer_count(self) -> int | None:
        """Number of layers, None where the configuration does not say."""
        given = _first(self.fields, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if isinstance(given, int):
            return given
        each = self.layer_types or _first(self.fields, *_ONE_BY_ONE)
        return (len(each) or None) if isinstance(each, (list, tuple)) else None

    def rotary_arguments(
        self, layer_type: str | None, layer: int | None, seq_len: int | None
    ) -> dict[str, Any]:
        """See the function of this name."""
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
            interleaved = self.model_type in model_facts.INTERLEAVED
        trailing = self.model_type in model_facts.TRAILING
        result: dict[str, Any] = {
            "head_dim": head_dim,
            "base": base,
            "rotary_dim": rotary_dim,
            "pairing": "interleaved" if interleaved else "half",
            "scaling": scaling,
            "axis_map": self._axis_map(parameters, (rotary_dim + 1) // 2),
            "rotary_start": head_dim - rotary_dim if trailing else 0,
        }
        backward = self.model_type in model_facts.BACKWARD
        if rotary_dim % 2 or backward:
            inv_freq, scale = scaled_frequencies(self.function, rotary_dim, base, scaling)
            for key in ("base", "rotary_dim", "scaling"):
                del result[key]
            result.update(inv_freq=-inv_freq if backward else inv_freq, scale=scale)
        return result

    def nope_layers(self) -> tuple[int, ...]:
        """Attention layers without rotary encoding; ValueError where they cannot be numbered."""
        known = self._numbered_without()
        if self.unnumbered_without:
            if self.layer_count is None:
                self._without_count()
            expected = "the type of each layer, as some have no rotary encoding"
            self._wrong("layer_types", expected, "none")
        return known

    def _numbered_without(self) -> tuple[int, ...]:
        """As many of them as the configuration numbers."""
        if not self._is_rotary():
            return ()
        without = self._every_nth_without()
        types = [
            name
            for name in dict.fromkeys(self.layer_types)
            if "attention" in name and self._type_is_without(name)
        ]
        by_type = {i for i, name in enumerate(self.layer_types) if name in types}
        return tuple(sorted((without | by_type) - self._forced()))

    @property
    def unnumbered_without(self) -> dict[str | None, int]:
        """Kinds of layers without rotary encoding whose numbers cannot be known.

        By layer type, None for a rule that asks for none: every how many layers there is one
        (below 0: counted back from the last), 0 where that is not known.
        """
        if not self._is_rotary() or self.layer_types:
            return {}
        every = self._interval_without()
        if every:
            return {None: every} if self.layer_count is None else {}
        entries = self._given() or model_facts.DEFAULTS.get(self.model_type, {})
        types = ("full_attention", *(key for key in entries if key.endswith("_attention")))
        period = _period(self.fields, self.model_type)
        return {
            name: period if isinstance(period, int) and name == "full_attention" else 0
            for name in types
            if self._type_is_without(name)
        }

    def groups(self, seq_len: int | None = None) -> list[LayerGroup]:
        """All attention layers, those that rotate alike together."""
        nope = self._numbered_without()
        if not self.layer_types and not nope:
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
        found: dict[str, LayerGroup] = {}
        for layer in range(self.layer_count or 0):
            name = self.layer_types[layer] if self.layer_types else None
            if name is not None and not _has_attention(name):
                continue
            values = None
            if layer not in nope:
                values = self.rotary_arguments(None, layer, seq_len)
            key = f"{name} {_comparable(values)}"
            before = found.get(key, LayerGroup(name, (), values))
            found[key] = LayerGroup(name, (*before.layers, layer), values)
        return list(found.values())

    @property
    def corrects_softmax(self) -> bool:
        """Whether the model applies `softmax_correction`."""
        return self.model_type in model_facts.SOFTMAX_CORRECTED

    @property
    def sees(self) -> bool:
        """Whether it is a vision encoder that `vision_rotary` knows."""
        return self._of_images() and self._vision_name in VISION_MODELS

    @property
    def _vision_name(self) -> str:
        return re.sub("_vision(_encoder|_model)?$", "", self.model_type)

    def _of_images(self) -> bool:
        return "vocab_size" not in self.fields and bool(
            {"image_size", "patch_size"} & {*self.fields}
        )

    @property
    def names_a_base(self) -> bool:
        """Whether it is the configuration, and not the class of the model, that has the base."""
        given = self._given()
        everywhere = [given, *_nested(given).values()]
        return any(base is not None for base in (*self._bases(), *map(_base_of, everywhere)))

    def _refuse(self) -> None:
        model_type = self.model_type
        if model_type in model_facts.REFUSED:
            got = f"{model_type}, which {model_facts.REFUSED[model_type]}"
            self._wrong("model_type", "a model whose pairs turn as its configuration says", got)
        if self._of_images() and not self.sees:
            got = f"{model_type}, which sees images in a way of its own"
            self._wrong("model_type", "a language model or one of VISION_MODELS", got)
        if not self._is_rotary():
            key, wanted, default = model_facts.ROTARY_IF[model_type]
            got = repr(self.fields.get(key, default))
            self._wrong(key, f"{wanted!r}, or this {model_type} has no rotary encoding", got)
        silent = not self._given() and self._bases()[0] is None
        silent = silent and not {"rope_scaling", "rotary_dim"} & {*self.fields}
        if silent and not self.sees and model_type not in model_facts.DEFAULTS:
            expected = f"an entry about a rotary encoding ({', '.join(_ROTARY)})"
            arguments.wrong_value(self.function, "config", expected, self._parts())

    def _is_rotary(self) -> bool:
        condition = model_facts.ROTARY_IF.get(self.model_type)
        if condition is None:
            return True
        key, wanted, default = condition
        return bool(self.fields.get(key, default) == wanted)

    def _vision_arguments(self, layer_type: str | None, layer: int | None) -> dict[str, Any]:
        """Arguments of Rotary for a vision encoder, all of whose layers are alike."""
        if layer_type is not None or layer is not None:
            arguments.wrong_value(
                self.function, "layer_type, layer", "none for a vision encoder", layer_type or layer
            )
        fields = self.fields
        head_dim = fields.get("head_dim")
        if head_dim is None and "memory_attention_hidden_size" in fields:
            rate = self._size(fields, "memory_attention_downsample_rate")
            heads = rate * self._size(fields, "memory_attention_num_attention_heads")
            head_dim = self._size(fields, "memory_attention_hidden_size") // heads
        elif head_dim is None:
            width = self._size(fields, "embed_dim", "hidden_size")
            head_dim = width // self._size(fields, "num_heads", "num_attention_heads")
        base = _first({**fields, **self._given()}, "rope_theta")
        changes = {} if base is None else {"base": self._positive("rope_theta", base)}
        rotary = vision_rotary(self._vision_name, head_dim, **changes)
        if isinstance(rotary, FullWidthRotary):
            got = f"{self.model_type}: see vision_rotary({self._vision_name!r}, {head_dim})"
            self._wrong("model_type", "a model whose pairs turn by one angle each", got)
        return {
            "head_dim": head_dim,
            "inv_freq": rotary.inv_freq,
            "pairing": rotary.pairing,
            "axis_map": rotary.axis_map,
        }

    # Which layers

    def _type_of(self, layer: int, layer_type: str | None) -> str | None:
        """The type of a layer."""
        count = self.layer_count
        number = arguments.size(self.function, "layer", layer)
        if layer_type is not None:
            arguments.wrong_value(
                self.function, "layer", "no layer_type beside it", repr(layer_type)
            )
        if count is None:
            self._without_count()
        if number >= count:
            arguments.wrong_value(self.function, "layer", f"a layer in 0 .. {count - 1}", number)
        return self.layer_types[number] if self.layer_types else None

    def _without_count(self) -> NoReturn:
        self._wrong("num_hidden_layers", "a number, to tell the layers apart", "none")

    def _check_rotary(self, layer_type: str | None, layer: int | None) -> None:
        """ValueError where none of the layers meant has a rotary encoding."""
        nope = set(self._numbered_without() if layer is None else self.nope_layers())
        if layer is not None:
            meant, name = {layer}, f"layer {layer}"
        else:
            types = self.layer_types or ("",) * (self.layer_count or 0)
            meant = {
                number
                for number, kind in enumerate(types)
                if layer_type in (None, kind) and (not kind or _has_attention(kind))
            }
            name = "the model" if layer_type is None else f"layers of type {layer_type}"
        without = bool(meant) and meant <= nope
        if layer_type is not None and not meant:
            without = self._type_is_without(layer_type)
        if without:
            expected = "layers with a rotary encoding"
            arguments.wrong_value(
                self.function,
                "layer_type" if layer is None else "layer",
                expected,
                f"{name} (NoPE)",
            )

    def _type_is_without(self, layer_type: str) -> bool:
        """Whether no layer of this type has a rotary encoding, by its type alone."""
        given = _first(self.fields, "rope_parameters", "rope_scaling")
        entries = given if given else model_facts.DEFAULTS.get(self.model_type, {})
        if isinstance(entries, Mapping) and self._label(layer_type) in entries:
            return entries[self._label(layer_type)] is None
        if layer_type == "sliding_attention":
            return False
        if self.model_type in model_facts.FULL_ATTENTION_WITHOUT:
            return True
        beside = self.model_type in model_facts.FULL_ATTENTION_WITHOUT_BESIDE_WINDOWS
        return beside and self.fields.get("sliding_window", 1) is not None

    def _every_nth_without(self) -> set[int]:
        """Layers of which the configuration, or a rule of the model, says one by one."""
        count = self.layer_count or 0
        for key in _ONE_BY_ONE:
            given = self.fields.get(key)
            if given and not isinstance(given, (list, tuple)):
                arguments.wrong_type(self.function, _name(key), "a list", type(given).__name__)
            if given:
                return {layer for layer, value in enumerate(given) if not value}
        every = self._interval_without()
        if every < 0:
            return {layer for layer in range(count) if (count - 1 - layer) % -every == 0}
        return {layer for layer in range(count) if every and (layer + 1) % every == 0}

    def _interval_without(self) -> int:
        """The entry of EVERY_NTH_WITHOUT, or what the configuration says in its place."""
        every = model_facts.EVERY_NTH_WITHOUT.get(self.model_type, 0)
        if any(self.fields.get(key) for key in _ONE_BY_ONE):
            return 0
        if every <= 0:
            return every
        interval = self.fields.get("no_rope_layer_interval", every)
        return arguments.size(self.function, _name("no_rope_layer_interval"), interval)

    def _forced(self) -> set[int]:
        """Layers of Cohere 2 MoE that rotate whatever their type."""
        kinds = self.fields.get("mlp_layer_types") or ()
        if self.model_type != "cohere2_moe":
            return set()
        if self.fields.get("prefix_dense_sliding_window_pattern", 1) != 1:
            return set()
        return {layer for layer, kind in enumerate(kinds) if kind == "dense"}

    # Parameters

    def _label(self, layer_type: str) -> str:
        """The entry of rope_parameters for a layer type."""
        return model_facts.ROPE_LABELS.get(self.model_type, {}).get(layer_type, layer_type)

    def _entries(self) -> dict[str, dict[str, Any]]:
        """The rotary parameters by layer type; empty where all layers have the same."""
        given = self._given()
        defaults = model_facts.DEFAULTS.get(self.model_type, {})
        by_type = {
            key: value
            for key, value in given.items()
            if isinstance(value, Mapping) or (value is None and "attention" in key)
        }
        flat = self._flat()
        if not by_type:
            nested = _nested(defaults)
            if not flat and (given or not nested):
                return {}
            by_type = {key: given if scaled else {} for key, (scaled, _) in flat.items()}
            if not given:
                by_type = {key: {} for key in (*flat, *nested)}
        base = self._bases()[0]
        result = {}
        for key, value in by_type.items():
            if value is None:
                continue
            own = self.fields.get(flat[key][1] or "") if key in flat else base
            entry = {**(_beside_scaling(defaults.get(key)) if given else defaults.get(key, {}))}
            if own is not None:
                entry["rope_theta"] = own
            result[key] = {**entry, **{k: v for k, v in value.items() if v is not None}}
        return result

    def _flat(self) -> Mapping[str, tuple[bool, str | None]]:
        """How a flat rope_scaling is meant where layers differ: the entry of FLAT."""
        known = model_facts.FLAT.get(self.model_type)
        if known is None and self._bases()[1] is not None:
            known = model_facts.FLAT["gemma3_text"]
        return known or {}

    def _given(self) -> Mapping[str, Any]:
        given = _first(self.fields, "rope_parameters", "rope_scaling") or {}
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            arguments.wrong_type(self.function, _name("rope_scaling"), "a mapping", kind)
        return given

    def _bases(self) -> tuple[Any, Any]:
        """The base that the configuration names, and that of its sliding-window layers."""
        base = _first(self.fields, *_BASES)
        return base, _first(self.fields, "rope_local_base_freq", "local_rope_theta")

    def _parameters(self, layer_type: str | None) -> dict[str, Any]:
        """What holds for the layer type, in the form of today; rope_theta is always there."""
        given, (base, _) = self._given(), self._bases()
        defaults = model_facts.DEFAULTS.get(self.model_type)
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
        known = defaults or {}
        if given:
            whole = self.model_type in model_facts.ALL_OR_NOTHING
            known = {} if whole else _beside_scaling(known)
        result = {"rope_theta": 10000.0, **known}
        if base is not None:
            result["rope_theta"] = base
        return {**result, **{key: value for key, value in given.items() if value is not None}}

    def _unknown(self, layer_type: str | None, known: Iterable[str | None]) -> NoReturn:
        expected = f"one of {', '.join(map(str, known))}"
        arguments.wrong_value(self.function, "layer_type", expected, layer_type)

    def _parts(self) -> str:
        """Why nothing was found: perhaps it is in a part of the configuration."""
        parts = [
            key
            for key, value in self.fields.items()
            if isinstance(value, Mapping) and {"rope_parameters", "rope_theta"} & {*value}
        ]
        see = f" (but see its {', '.join(parts)})" if parts else ""
        of = f" of {self.model_type}" if self.fields.get("model_type") else ""
        return f"a configuration{of} in which nothing speaks of a rotary encoding{see}"

    def _of_layers(self, layer_type: str | None, layer: int | None) -> dict[str, Any]:
        """What some layers have for themselves: a base, or no scaling."""
        bases = self.fields.get("layer_rope_theta")
        scaled = self.fields.get("rope_scaling_layers")
        if not bases and scaled is None:
            return {}
        nope = set(self._numbered_without())
        layers = [
            i
            for i in range(self.layer_count or 0)
            if i not in nope
            and layer in (None, i)
            and (layer_type is None or self.layer_types[i] == layer_type)
        ]
        found = []
        for i in layers:
            own: dict[str, Any] = {}
            if bases:
                own["rope_theta"] = bases[i]
            if scaled is not None and i not in scaled:
                own["rope_type"] = "default"
            if own not in found:
                found.append(own)
        if len(found) > 1:
            arguments.wrong_value(
                self.function, "layer", "the number of a layer: they differ", None
            )
        return found[0] if found else {}

    def _head_dim(self, layer_type: str | None, layer: int | None) -> int:
        """Width of what is rotated: the head, or the part that latent attention splits off."""
        fields = {**self.fields, **self._own_fields(layer_type, layer)}
        latent = fields.get("qk_rope_head_dim")
        value = latent if self.model_type not in model_facts.TRAILING else None
        value = value or _first(fields, "head_dim", "attention_head_dim", "kv_channels")
        if value is None:
            width = self._size(fields, "hidden_size", "n_embd", "d_model")
            heads = ("num_attention_heads", "n_head", "n_heads", "encoder_num_attention_heads")
            value = width // self._size(fields, *heads)
        head_dim = arguments.size(self.function, _name("head_dim"), value)
        if head_dim < 2:
            self._wrong("head_dim", "2 dims or more", head_dim)
        return head_dim

    def _own_fields(self, layer_type: str | None, layer: int | None) -> Mapping[str, Any]:
        """What the configuration says of the layer, or of the first of this type, alone."""
        if "per_layer_config" not in self.fields:
            default = model_facts.GLOBAL_HEAD_DIM.get(self.model_type)
            if default is not None and layer_type == "full_attention":
                return {"head_dim": self.fields.get("global_head_dim") or default}
            return {}
        for index, values in (self.fields.get("per_layer_config") or {}).items():
            number = int(index)
            alike = layer_type is not None and self.layer_types[number] == layer_type
            if number == layer or (layer is None and alike):
                return values  # type: ignore[no-any-return]
        return {}

    def _rotary_dim(self, parameters: Mapping[str, Any], head_dim: int) -> int:
        fields = self.fields
        share = parameters.get("partial_rotary_factor")
        latent = fields.get("qk_rope_head_dim")
        if latent is not None and (latent == head_dim or self.model_type in model_facts.TRAILING):
            return self._checked_rotary_dim(self._size(fields, "qk_rope_head_dim"), head_dim)
        given = fields.get("rope_parameters") or {}
        if "partial_rotary_factor" not in given and not _nested(given):
            named = _first(fields, "partial_rotary_factor", "rotary_pct")
            share = share if named is None else named
            if named is None and not given and fields.get("rotary_dim"):
                rotary_dim = arguments.size(
                    self.function, _name("rotary_dim"), fields["rotary_dim"]
                )
                return self._checked_rotary_dim(rotary_dim, head_dim)
        share = self._positive("partial_rotary_factor", 1.0 if share is None else share)
        return self._checked_rotary_dim(int(head_dim * share), head_dim)

    def _checked_rotary_dim(self, rotary_dim: int, head_dim: int) -> int:
        if not 0 < rotary_dim + rotary_dim % 2 <= head_dim:
            if rotary_dim == head_dim:
                self._wrong("head_dim", "an even int", head_dim)
            expected = f"a rotary_dim in 1 .. {head_dim}, an odd one below"
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
            known["seq_len"] = seq_len
        keys = (*ROTARY_SCALINGS[rope_type].keys, "seq_len")
        return {
            "rope_type": rope_type,
            **{key: known[key] for key in keys if known.get(key) is not None},
        }

    def _axis_map(self, parameters: Mapping[str, Any], pairs: int) -> npt.NDArray[np.int64] | None:
        if self.model_type in model_facts.ROWS_AND_COLUMNS:
            return mrope_axis_map([pairs - pairs // 2, pairs // 2], order="interleaved")
        order, default = model_facts.MROPE.get(self.model_type, ("sectioned", None))
        if parameters.get("mrope_interleaved"):
            order = "interleaved"
        section = parameters.get("mrope_section", default)
        if section is None:
            return None
        name = _name("mrope_section")
        if not isinstance(section, (list, tuple)):
            arguments.wrong_type(self.function, name, "a list", type(section).__name__)
        counts = [arguments.size(self.function, name, count) for count in section]
        if order == "interleaved" and len(counts) == 3:
            # An axis takes what there is of its pairs, and time what the others leave.
            counts[1:] = [
                min(count, len(range(axis, pairs, 3))) for axis, count in enumerate(counts[1:], 1)
            ]
            counts[0] = pairs - sum(counts[1:])
        if len(counts) != 3 or sum(counts) != pairs:
            self._wrong("mrope_section", f"3 numbers with the sum {pairs}", section)
        return mrope_axis_map(counts, order=order)

    def _rope_type(self, parameters: Mapping[str, Any]) -> str:
        named = str(parameters.get("rope_type") or parameters.get("type") or "default")
        rope_type = _OLD_ROPE_TYPES.get(named, named)
        if rope_type == "yarn" and "short_factor" in parameters:  # so the first Phi-3 files name it
            rope_type = "longrope"
        # How axial frequencies lie in a head is not in a configuration.
        known = [name for name in ROTARY_SCALINGS if name != "axial"]
        if rope_type not in known:
            self._wrong("rope_type", f"one of {', '.join(known)}", rope_type)
        return rope_type

    # Values

    def _size(self, fields: Mapping[str, Any], *keys: str) -> int:
        value = _first(fields, *keys)
        if value is None:
            self._wrong(keys[0], "a number", "none (see transformers.AutoConfig)")
        result = arguments.size(self.function, _name(keys[0]), value)
        if result == 0:
            self._wrong(keys[0], "a number > 0", result)
        return result

    def _positive(self, key: str, value: object) -> float:
        return arguments.positive_number(self.function, _name(key), value)

    def _wrong(self, key: str, expected: str, got: object) -> NoReturn:
        arguments.wrong_value(self.function, _name(key), expected, got)


def _mapping(config: Any, function: str) -> Mapping[str, Any]:
    if isinstance(config, (str, os.PathLike)):
        import json
        from pathlib import Path

        path = Path(config)
        file = path / "config.json" if path.is_dir() else path
        config = json.loads(file.read_text(encoding="utf-8"))
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        expected = "a configuration object, a mapping or a path"
        arguments.wrong_type(function, "config", expected, type(config).__name__)
    return config


def _language_model(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in _INNER:
        if isinstance(fields.get(key), Mapping):
            return _language_model(fields[key])
    return fields


def _layer_types(fields: Mapping[str, Any], model_type: str) -> tuple[str, ...]:
    """The type of each layer, as given or by the period of the model."""
    given = fields.get("layer_types")
    if given:
        return tuple(map(str, given))
    ratios = fields.get("compress_ratios")
    if ratios and all(ratio in model_facts.COMPRESS_RATIOS for ratio in ratios):
        types = [model_facts.COMPRESS_RATIOS[ratio] for ratio in ratios]
        return tuple(types[: fields.get("num_hidden_layers")])
    period = _period(fields, model_type)
    if period is None:
        return ()
    count = fields.get("num_hidden_layers")
    if isinstance(period, str):  # one letter a layer: L(ocal) or G(lobal)
        windows = [letter == "L" for letter in period]
    else:
        windows = [True] * (period - 1) + [False]
    if not isinstance(count, int):
        return ()
    no_windows = fields.get("sliding_window", 1) is None
    if no_windows and model_type in model_facts.FULL_ATTENTION_WITHOUT_BESIDE_WINDOWS:
        windows = [False]
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return tuple(kinds[layer % len(kinds)] for layer in range(count))


def _period(fields: Mapping[str, Any], model_type: str) -> Any:
    """Every how many layers one has full attention, or one letter a layer of the period."""
    given = _first(fields, "sliding_window_pattern", "global_attn_every_n_layers")
    known = model_facts.PERIODS.get(model_type)
    return known if given is None else given or known or 1


def _has_attention(layer_type: str) -> bool:
    """Whether layers of this type have attention with positions of its own."""
    without = ("linear_attention", "mamba", "conv", "recurrent", "moe", "mlp")
    return layer_type not in without


def _nested(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if isinstance(value, Mapping)}


def _base_of(parameters: Mapping[str, Any]) -> Any:
    return parameters.get("rope_theta")


def _beside_scaling(defaults: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of default parameters, those that hold whatever the scaling."""
    keys = ("rope_theta", "partial_rotary_factor", "attention_factor")
    return {key: defaults[key] for key in keys if key in defaults} if defaults else {}


def _comparable(values: Mapping[str, Any] | None) -> str:
    return "" if values is None else repr({k: np.array(v).tolist() for k, v in values.items()})


def _first(fields: Mapping[str, Any], *keys: str) -> Any:
    """The first of these entries that is there and not None."""
    return next((fields[key] for key in keys if fields.get(key) is not None), None)


def _name(key: str) -> str:
    return f"config[{key!r}]"
