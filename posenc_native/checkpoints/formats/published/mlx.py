"""MLX: a Hugging Face configuration, as mlx-lm reads it.

mlx-lm's model files read other entries than transformers does, and have other defaults. mlx.json
has a row for every model type that was run (tests/engines_at_hand).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from posenc_native.checkpoints.formats.description import Description, Ground, Unknown
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.settings import without_rotation
from posenc_native.models.config import Configuration
from posenc_native.models.fields import read_fields
from posenc_native.models.unread import UnreadEntry, unread_entries

from .hugging_face import WORDS, described
from .mlx_models import VERSION, Model, row_of

TITLE = "MLX configuration"
_ENGINE = "mlx-lm"
_WORDS = {**WORDS, "pairing": "rope_traditional"}
# Entries about the rotation; a remark names those that a model's code does not read.
_ABOUT = ("rope_parameters", "rope_scaling", "rope_theta", "rope_traditional", "rope_interleave",
          "partial_rotary_factor", "head_dim")  # fmt: skip
_WITH_BASE = ("rope_parameters", "rope_theta")


def _claims(entries: Mapping[str, Any]) -> bool:
    if "rope_traditional" in entries:
        return True
    ours, theirs = entries.get("quantization"), entries.get("quantization_config")
    if not isinstance(ours, Mapping) or not {"bits", "group_size"} & {*ours}:
        return False
    return not (isinstance(theirs, Mapping) and "quant_method" in theirs)


def _read(entries: Mapping[str, Any], source: str, function: str) -> Description:
    fields = read_fields(entries, function)
    name = entries.get("model_type") or fields.get("model_type")
    row = row_of(entries, fields)
    if row is None:
        known = described(Configuration.read(entries, function), source, TITLE, _ENGINE, _WORDS)
        why = f"mlx-lm's code for {name or 'a model without model_type'} was not run"
        return dataclasses.replace(known, ground=Ground("unknown", _ENGINE, why=why))
    model = Model(function, fields, row)
    groups = model.groups()
    count, length = model.count, fields.get("max_position_embeddings")
    unknown = []
    if model.assumed_bases:
        bases = dict.fromkeys(f"{base:,.10g}" for base in model.assumed_bases)
        unknown.append(Unknown("base", f"mlx-lm defaults to {' and '.join(bases)}"))
    if count is None:
        unknown.append(Unknown("layer_count"))
    return Description(
        source=source,
        format=TITLE,
        engine=_ENGINE,
        model_type=str(fields.get("model_type") or name),
        groups=groups,
        layer_count=count,
        length=length if isinstance(length, int) else None,
        nope_layers=without_rotation(groups),
        words=_WORDS,
        unknown=tuple(unknown),
        remarks=tuple(dict.fromkeys([*_remarks(str(name), fields, model), *model.remarks])),
        unread=_unread(function, fields, model),
        entries=fields,
        corrects_softmax=bool(row.get("correction")),
        latent="qk_rope_head_dim" in row["head"],
        ground=Ground("run", _ENGINE, VERSION),
    )


def _remarks(name: str, fields: Mapping[str, Any], model: Model) -> list[str]:
    """Sentences about entries that transformers reads, and this model's code does not."""
    base = " or ".join(place for place in model.row["base"] if isinstance(place, str))
    return [
        f"mlx-lm's code for {name} does not read {key}"
        + (f": it reads the base from {base}." if base and key in _WITH_BASE else ".")
        for key in _ABOUT
        if fields.get(key) is not None and key not in model.read
    ]


def _unread(function: str, fields: Mapping[str, Any], model: Model) -> tuple[UnreadEntry, ...]:
    """Entries that may be misspelled; remarks name the others."""
    remarked = {key for key in _ABOUT if key not in model.read}
    if "rope_scaling" in model.read and fields.get("rope_scaling"):  # it is read before the other
        remarked.add("rope_parameters")
    own = {key: value for key, value in fields.items() if key not in remarked}
    read = {f"config[{key!r}]" for key in model.read}
    entries = unread_entries(Configuration(function, own, model_type="", layer_types=()))
    return tuple(entry for entry in entries if entry.place not in read)


FORMAT = Format("mlx", TITLE, _claims, _read, takes_overrides=True)
