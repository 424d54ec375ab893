"""Configurations of Hugging Face transformers: config.json, its mapping, a configuration object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from posenc_native.formats.description import Description, Unknown
from posenc_native.formats.form import Format
from posenc_native.models.config import Configuration
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
}


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
        bases = dict.fromkeys(f"{each['base']:,.10g}" for each in rotating if "base" in each)
        unknown.append(Unknown("base", f"the model's class defaults to {' and '.join(bases)}"))
    if model.layer_count is None:
        unknown.append(Unknown("layer_count"))
    length = model.fields.get("max_position_embeddings")
    latent = model.fields.get("qk_rope_head_dim")
    return Description(
        source=source,
        format=form,
        engine=engine,
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
        latent=latent is not None and any(each["head_dim"] == latent for each in rotating),
        sees=model.sees,
    )


FORMAT = Format("hf", NAME, lambda entries: True, read, takes_overrides=True)
