"""MLX: a Hugging Face configuration, as mlx-lm reads it.

Source: mlx-lm 0.32.2, models/rope_utils.py and the model files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from posenc_native.checkpoints.formats.description import Description, Unknown
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.settings import Settings
from posenc_native.models.config import Configuration, LayerGroup
from posenc_native.models.fields import read_fields

from .hugging_face import WORDS, described

TITLE = "MLX configuration"
# Their code assumes rope_traditional = True if the file does not say.
_TRADITIONAL = ("glm4", "youtu_llm")
# Their code reads rope_theta and rope_scaling, not rope_parameters; with its default base.
_WITHOUT_PARAMETERS = {
    "cohere": 8e6, "cohere2": 5e4, "deepseek_v2": 1e4, "deepseek_v3": 1e4, "deepseek_v32": 1e4,
    "gemma": 1e4, "gemma2": 1e4, "gpt_oss": 1.5e5, "kimi_k2": 1e4, "llama": 1e4, "mistral": 1e4,
    "mixtral": 1e6, "olmo": 1e4, "olmo2": 1e4, "phi": 1e4, "phi3": 1e4, "qwen2": 1e6,
    "qwen2_moe": 1e6, "seed_oss": 1e4, "starcoder2": 1e5,
}  # fmt: skip


def _claims(entries: Mapping[str, Any]) -> bool:
    if "rope_traditional" in entries:
        return True
    ours, theirs = entries.get("quantization"), entries.get("quantization_config")
    if not isinstance(ours, Mapping) or not {"bits", "group_size"} & {*ours}:
        return False
    return not (isinstance(theirs, Mapping) and "quant_method" in theirs)


def _read(entries: Mapping[str, Any], source: str, function: str) -> Description:
    fields = read_fields(entries, function)
    settings = Settings(function, fields, "config")
    # mlx-lm prefers "type" to "rope_type".
    own = fields.get("rope_scaling")
    if isinstance(own, Mapping) and own.get("type") and own.get("rope_type"):
        fields = {**fields, "rope_scaling": {**own, "rope_type": own["type"]}}
    base = _WITHOUT_PARAMETERS.get(str(fields.get("model_type")))
    lost = base is not None and fields.get("rope_parameters") is not None
    unsaid = lost and fields.get("rope_theta") is None
    if lost:
        fields = {key: value for key, value in fields.items() if key != "rope_parameters"}
    if unsaid:
        fields = {**fields, "rope_theta": base}
    model = Configuration.read(fields, function)
    words = {**WORDS, "pairing": "rope_traditional"}
    description = described(model, source, TITLE, "mlx-lm", words)
    remarks = list(description.remarks)
    unknown = description.unknown
    if lost:
        remarks.append(
            f"mlx-lm's code for {model.model_type} does not read rope_parameters: it needs "
            "rope_theta and rope_scaling at the top level of the file."
        )
    if unsaid:
        unknown = (*unknown, Unknown("base", f"mlx-lm defaults to {base:,.0f}"))
    unread = tuple(
        value for value in description.unread if value.place != "config['rope_traditional']"
    )
    groups = description.groups
    if "rope_traditional" in settings or model.model_type in _TRADITIONAL:
        traditional = settings.flag("rope_traditional", model.model_type in _TRADITIONAL)
        pairing = "interleaved" if traditional else "half"
        groups = tuple(_changed(group, pairing=pairing) for group in groups)
    groups = tuple(_as_mlx_scales(group, remarks) for group in groups)
    return dataclasses.replace(
        description,
        groups=groups,
        unknown=unknown,
        remarks=tuple(dict.fromkeys(remarks)),
        unread=unread,
    )


def _changed(group: LayerGroup, **changes: Any) -> LayerGroup:
    if group.arguments is None:
        return group
    return dataclasses.replace(group, arguments={**group.arguments, **changes})


def _as_mlx_scales(group: LayerGroup, remarks: list[str]) -> LayerGroup:
    """The group with the scaling as mlx-lm reads it, without the keys that it ignores."""
    scaling = (group.arguments or {}).get("scaling")
    if not scaling:
        return group
    if scaling["rope_type"] == "yarn":
        kept = {k: v for k, v in scaling.items() if k not in ("truncate", "attention_factor")}
        if kept != scaling:
            names = " and ".join(k for k in scaling if k not in kept)
            remarks.append(f"mlx-lm does not read YaRN's {names}.")
        return _changed(group, scaling=kept)
    long = scaling.get("long_factor")
    if long is not None and scaling["rope_type"] == "longrope":
        remarks.append("mlx-lm uses the long factors at every length.")
        both = {**scaling, "short_factor": long}
        return _changed(group, scaling=both)
    return group


FORMAT = Format("mlx", TITLE, _claims, _read, takes_overrides=True)
