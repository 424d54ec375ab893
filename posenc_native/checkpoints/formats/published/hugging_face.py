"""Configurations of Hugging Face transformers: config.json, its mapping, a configuration object."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from posenc_native.checkpoints.formats.description import (
    DIFFUSERS,
    TRANSFORMERS,
    Description,
    Ground,
    Unknown,
)
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.written import (
    Written,
    differs,
    layer_types,
    only_some_attend,
    rotations,
)
from posenc_native.core.frequencies.axes import pairs_by_axis
from posenc_native.core.frequencies.scaling import rotary_frequencies
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.config import Configuration
from posenc_native.models.entries import named_rope_type
from posenc_native.models.facts import ModelFacts
from posenc_native.models.fields import by_layer_type
from posenc_native.models.unread import unread_entries

NAME = "Hugging Face configuration"
ENGINE = "transformers"
WORDS = {
    "layer_count": "num_hidden_layers",
    "layer_types": "layer_types",
    "nope_layers": "no_rope_layers, layer_types or the model's code",
    "head_dim": "head_dim",
    "rotary_dim": "partial_rotary_factor",
    "pairing": "the model's code",
    "base": "rope_theta",
    "scaling": "rope_scaling",
    "scale": "attention_factor or mscale, else from factor",
    "softmax_correction": "mscale_all_dim",
    "axis_map": "mrope_section",
    "length": "max_position_embeddings",
}
# ROPE_INIT_FUNCTIONS of transformers 5, and "default".
_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
_RATIO = {"factor", "max_position_embeddings"}  # LongRoPE needs either
_SHARE = "partial_rotary_factor"
_FACTORS = ("attention_factor", "mscale", "mscale_all_dim", "short_mscale", "long_mscale")


def read(config: Any, source: str, function: str) -> Description:
    """The description of a configuration object, a mapping or the path of a config.json."""
    return described(Configuration.read(config, function), source)


def described(
    model: Configuration,
    source: str,
    form: str = NAME,
    engine: str = ENGINE,
    words: Mapping[str, str] = WORDS,
) -> Description:
    """The description of a configuration that has been read."""
    groups = tuple(model.groups())
    rotating = [group.arguments for group in groups if group.arguments is not None]
    unknown = []
    if rotating and not model.names_a_base and "inv_freq" not in rotating[0]:
        bases = dict.fromkeys(
            f"{rotation['base']:,.10g}" for rotation in rotating if "base" in rotation
        )
        unknown.append(Unknown("base", f"the model's class defaults to {' and '.join(bases)}"))
    if model.layer_count is None and model.diffusion is None:
        unknown.append(Unknown("layer_count"))
    length = model.fields.get("max_position_embeddings")
    latent = model.fields.get("qk_rope_head_dim")
    return Description(
        source=source,
        format=form,
        engine=engine if model.diffusion is None else DIFFUSERS.engine,
        model_type=model.model_type if model.fields.get("model_type") else "",
        groups=groups,
        layer_count=model.layer_count,
        length=int(length) if isinstance(length, (int, np.integer)) else None,
        nope_layers=() if model.unnumbered_without else model.nope_layers(),
        unnumbered_without=model.unnumbered_without,
        words=words,
        unknown=tuple(unknown),
        unread=unread_entries(model),
        entries=model.fields,
        corrects_softmax=model.corrects_softmax,
        latent=latent is not None and any(rotation["head_dim"] == latent for rotation in rotating),
        sees=model.sees,
        nope_query_scale=model.nope_query_scale,
        ground=_ground(model),
    )


def _ground(model: Configuration) -> Ground:
    if not model.fields.get("model_type"):
        return Ground("derived", why="the rules that the models of transformers share")
    if model.diffusion is not None:
        return DIFFUSERS
    if model.sees or _was_run(model):
        return TRANSFORMERS
    why = f"transformers was not run with a model of type {model.model_type[:64]}"
    return Ground("unknown", ENGINE, why=why)


_LENGTH = "original_max_position_embeddings"


def _was_run(model: Configuration) -> bool:
    """Whether transformers was run with configurations of this kind, and took them."""
    facts, parameters = model.facts, model.rotary_parameters
    if facts.scalings and named_rope_type(parameters) not in ("default", *facts.scalings):
        return False
    nested = by_layer_type(parameters)
    if nested:
        return model.is_known and _was_run_by_layer_type(facts, parameters)
    flat = bool(parameters)
    if flat and facts.flat and model.parameters_key == "rope_parameters":
        return False  # such classes overlook them there, or not
    flat = flat or _SHARE in model.fields
    if flat and (facts.flat_unknown or any(key not in parameters for key in facts.needs)):
        return False
    return model.is_known


def _was_run_by_layer_type(facts: ModelFacts, parameters: Mapping[str, Any]) -> bool:
    """The same for parameters by layer type. Many classes take none, and all overlook some."""
    known = {**(facts.defaults or {}), **facts.flat}
    own = by_layer_type(facts.defaults or {})
    if not own and not facts.flat:
        return False
    for label, entry in parameters.items():
        if not isinstance(entry, Mapping):
            if entry is not None and label != "rope_type":
                return False  # some classes refuse parameters beside those of layer types
            continue
        share = entry.get(_SHARE)
        overlooked = entry.get("truncate", True) is not True
        overlooked |= facts.whole_share and share not in (None, 1)
        usual = own.get(label, {}).get("rope_type")
        overlooked |= usual == "proportional" != named_rope_type(entry)  # its share
        # The defaults of a class do not complete an entry.
        incomplete = _SHARE in own.get(label, {}) and share is None
        incomplete |= facts.own_parameters and entry.get("rope_theta") is None
        if label not in known or overlooked or incomplete:
            return False
    return True


def _write(description: Description, written: Written) -> None:
    by_type = rotations(description)
    rotaries = list(by_type.values())
    parameters: dict[str, Any] = {
        str(layer_type): _parameters(rotary, written) for layer_type, rotary in by_type.items()
    }
    if description.query_scale is not None and description.entries:
        length = description.query_scale[_LENGTH]
        for entry in parameters.values():
            entry |= {"llama_4_scaling_beta": description.query_scale["beta"], _LENGTH: length}
    if len({repr(entry) for entry in parameters.values()}) == 1:
        parameters = next(iter(parameters.values()))
    else:
        parameters = {layer_type: entry for layer_type, entry in parameters.items() if entry}
    types = layer_types(description)
    count, nope = description.layer_count or 0, {*description.nope_layers}
    words = {**WORDS, "head_dim": "qk_rope_head_dim"} if description.latent else WORDS
    written.put_sizes(words, description, rotaries[0])
    written.put(
        WORDS,
        model_type=description.model_type if description.entries else "",
        rope_parameters=parameters,
        layer_types=types,
        no_rope_layers=[int(i not in nope) for i in range(count)] if nope else [],
    )
    written.lose(
        "Heads of different widths.", when=len({rotary.head_dim for rotary in rotaries}) > 1
    )
    written.lose(
        "Which layers have attention.",
        when=count > 0 and not types and only_some_attend(description),
    )
    written.lose_pairing(
        "The pairing (interleaved): transformers has it in the code of a model, and most models "
        "use the half pairing. If the weights are permuted to it, add --permuted.",
        when=any(rotary.pairing != "half" for rotary in rotaries),
    )
    written.lose(
        "The rotated dims are the last of a head.",
        when=any(rotary.rotary_start for rotary in rotaries),
    )
    written.lose(
        "The factor of queries by position, which few models have.",
        when=description.query_scale is not None and not description.entries,
    )
    written.lose(
        "The softmax correction, which the code of a model applies.",
        when=any(group.softmax_correction != 1 for group in description.groups),
    )


def _parameters(rotary: Rotary, written: Written) -> dict[str, Any]:
    """The rotary parameters; none if no base and scaling give the frequencies."""
    if "inv_freq" in rotary._given:
        written.lose_frequencies()
        return {}
    parameters: dict[str, Any] = {"rope_theta": rotary.base, "rope_type": "default"}
    parameters |= {
        name: value for name, value in (rotary.scaling or {}).items() if name != "seq_len"
    }
    kind = parameters["rope_type"]
    written.lose(f"The scaling {kind}, which transformers does not have.", kind not in _TYPES)
    if rotary.rotary_dim != rotary.head_dim:
        parameters["partial_rotary_factor"] = rotary.rotary_dim / rotary.head_dim
    if differs(rotary.scale, _usual_scale(rotary)):
        if kind in ("yarn", "longrope"):
            parameters = {name: value for name, value in parameters.items() if name not in _FACTORS}
            parameters["attention_factor"] = rotary.scale
        else:
            written.lose_scale(rotary)
    if rotary.axis_map is not None:
        counts, in_blocks = pairs_by_axis(rotary.axis_map)
        parameters |= {"mrope_section": counts} | ({} if in_blocks else {"mrope_interleaved": True})
        written.lose(f"Position axes other than 3: {len(counts)}.", when=len(counts) != 3)
    return parameters


def _usual_scale(rotary: Rotary) -> float:
    """The factor of cosine and sine that the rest of the scaling gives; NaN if none."""
    scaling = {
        name: value for name, value in (rotary.scaling or {}).items() if name not in _FACTORS
    }
    if not scaling:
        return 1.0
    if scaling["rope_type"] == "longrope" and not _RATIO & {*scaling}:
        return math.nan
    return rotary_frequencies(rotary.rotary_dim, rotary.base, scaling)[1]


FORMAT = Format("hf", NAME, lambda entries: True, read, write=_write, takes_overrides=True)
