"""MLX: a Hugging Face configuration, as mlx-lm reads it.

Source: mlx-lm 0.32.2, models/rope_utils.py and the model files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from posenc_native.formats.description import Description
from posenc_native.formats.form import Format
from posenc_native.formats.settings import Settings
from posenc_native.models.config import Configuration, LayerGroup
from posenc_native.models.fields import read_fields

from .hugging_face import WORDS, described

TITLE = "MLX configuration"
# Whose code has rope_traditional = True where the file does not say.
_TRADITIONAL = ("glm4", "youtu_llm")


def _claims(entries: Mapping[str, Any]) -> bool:
    if "rope_traditional" in entries:
        return True
    ours, theirs = entries.get("quantization"), entries.get("quantization_config")
    if not isinstance(ours, Mapping) or not {"bits", "group_size"} & {*ours}:
        return False
    return not (isinstance(theirs, Mapping) and "quant_method" in theirs)


def _read(entries: Mapping[str, Any], source: str, function: str) -> Description:
    fields = read_fields(entries, function)
    given = Settings(function, fields, "config")
    # "type" counts before "rope_type" there.
    own = fields.get("rope_scaling")
    if isinstance(own, Mapping) and own.get("type") and own.get("rope_type"):
        fields = {**fields, "rope_scaling": {**own, "rope_type": own["type"]}}
    model = Configuration.read(fields, function)
    words = {**WORDS, "pairing": "rope_traditional"}
    found = described(model, source, TITLE, "mlx-lm", words)
    remarks = list(found.remarks)
    groups = found.groups
    if "rope_traditional" in given or model.model_type in _TRADITIONAL:
        traditional = given.flag("rope_traditional", model.model_type in _TRADITIONAL)
        pairing = "interleaved" if traditional else "half"
        groups = tuple(_changed(group, pairing=pairing) for group in groups)
    groups = tuple(_as_mlx_scales(group, remarks) for group in groups)
    return dataclasses.replace(found, groups=groups, remarks=tuple(dict.fromkeys(remarks)))


def _changed(group: LayerGroup, **changes: Any) -> LayerGroup:
    if group.arguments is None:
        return group
    return dataclasses.replace(group, arguments={**group.arguments, **changes})


def _as_mlx_scales(group: LayerGroup, remarks: list[str]) -> LayerGroup:
    """What mlx-lm makes of a scaling: some of its keys are not read."""
    scaling = (group.arguments or {}).get("scaling")
    if not scaling:
        return group
    if scaling["rope_type"] == "yarn":
        kept = {k: v for k, v in scaling.items() if k not in ("truncate", "attention_factor")}
        if kept != scaling:
            names = " and ".join(k for k in scaling if k not in kept)
            remarks.append(f"mlx-lm does not read {names} of YaRN.")
        return _changed(group, scaling=kept)
    long = scaling.get("long_factor")
    if long is not None and scaling["rope_type"] == "longrope":
        remarks.append("mlx-lm takes the long factors at every length.")
        both = {**scaling, "short_factor": long}
        return _changed(group, scaling=both)
    return group


FORMAT = Format("mlx", TITLE, _claims, _read, takes_overrides=True)
