"""Write a description as the metadata and factor tensors of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from posenc_native.checkpoints.formats.description import Description, depends_on_length
from posenc_native.checkpoints.formats.scaling_words import ScalingWords, Word, yarn_weight
from posenc_native.checkpoints.formats.written import (
    Written,
    differs,
    layer_types,
    rotations,
    softmax_correction,
)
from posenc_native.core.frequencies.axes import pairs_by_axis
from posenc_native.core.frequencies.frequencies import rounded_frequencies
from posenc_native.encodings.rotary.rotary import Rotary

from .gguf_words import architectures, words, yarn_magnitude, yarn_words

_LINEAR = ScalingWords("linear", {"factor": Word("rope.scaling.factor", 1.0)})
_LONGROPE = ScalingWords(
    "longrope",
    {
        "original_max_position_embeddings": Word("rope.scaling.original_context_length"),
        "short_factor": Word("rope_factors_short.weight"),
        "long_factor": Word("rope_factors_long.weight"),
    },
)


def write(description: Description, written: Written) -> None:
    """Write a description as metadata; factor tensors are entries by their names."""
    fits = (
        name
        for name, row in architectures().items()
        if description.model_type in (name, *row.get("models", ())) and row["rope"] != "none"
    )
    model, name = description.model_type or "this model", next(fits, "")
    written.lose(
        f"An architecture of llama.cpp for {model}: it is written as llama.", when=not name
    )
    name = name or "llama"
    row = architectures()[name]
    by_type = rotations(description)
    rotary = by_type.get("full_attention") or next(iter(by_type.values()))
    written.entries["general.architecture"] = name
    written.put_sizes(words(name), description, rotary)
    written.put(words(name), rotary_dim=rotary.rotary_dim)
    neighbors = row["rope"] == "norm"
    weights = "permuted, as its converter does" if row.get("permuted") else "in that order"
    written.lose_pairing(
        f"The pairing {rotary.pairing}: llama.cpp's {name} rotates "
        f"{'neighbors' if neighbors else 'halves'}, so the weights of queries and keys have "
        f"to be {weights}. If they are, add --permuted.",
        when=neighbors != (rotary.pairing == "interleaved"),
    )
    correction = softmax_correction(description)
    _write_rotation(rotary, row, name, correction, written)
    written.lose_query_scale(rotary)
    written.lose("The softmax correction.", when=correction != 1 and not row.get("corrects"))
    sliding = by_type.get("sliding_attention")
    if sliding is not None and sliding != rotary:
        _write_window(sliding, row, name, layer_types(description), written)
    written.lose_layers(description, "GGUF")


def _write_rotation(
    rotary: Rotary, row: Mapping[str, Any], name: str, correction: float, written: Written
) -> None:
    scaling = rotary.scaling or {}
    kind, factor = scaling.get("rope_type", "default"), scaling.get("factor", 1.0)
    has_base = "inv_freq" not in rotary._given
    base = rotary.base if has_base else 10000.0
    written.put(words(name), base=base)
    known = {declared.rope_type: declared for declared in (_LINEAR, _LONGROPE, yarn_words(row))}
    if kind in known:
        entries = {"rope.scaling.type": kind, **written.scaling(rotary, known[kind])}
        written.entries |= {
            key if key.endswith(".weight") else f"{name}.{key}": value
            for key, value in entries.items()
        }
    elif depends_on_length({"scaling": rotary.scaling}):
        written.lose("Frequencies that change with the length (dynamic).")
    elif kind != "default" or not has_base:
        plain, inv_freq = rounded_frequencies(rotary.rotary_dim, base), rotary.inv_freq
        factors = np.where(inv_freq > 0, plain / np.maximum(inv_freq, 1e-300), 1e30)
        written.entries["rope_freqs.weight"] = factors.tolist()
        written.lose("Frequencies below 0.", when=bool((inv_freq < 0).any()))
        written.lose(
            "rope_freqs.weight, which llama.cpp does not read for this architecture.",
            when="rope_freqs" not in row,
        )
    usual = 1.0
    if kind == "yarn":
        weight = scaling.get("mscale_all_dim") or 0.0
        if row.get("corrects"):
            weight = yarn_weight(factor, math.sqrt(correction) / rotary.scale)
            written.lose("The softmax correction.", when=weight is None)
        weight = (weight or 0.0) if "log_multiplier" in row else 0.0
        if weight:
            key = f"{name}.rope.scaling.yarn_log_multiplier"
            written.entries[key] = weight / row["log_multiplier"]
        usual = yarn_magnitude(name, factor, weight)
    if differs(rotary.scale, usual):
        written.entries[f"{name}.rope.scaling.attn_factor"] = rotary.scale / usual
    if rotary.axis_map is not None:
        counts, _ = pairs_by_axis(rotary.axis_map)
        written.put(words(name), axis_map=[*counts, 0, 0, 0, 0][:4])
        written.lose("Several position axes.", when=row["rope"] not in ("mrope", "imrope"))


def _write_window(
    sliding: Rotary, row: Mapping[str, Any], name: str, types: list[str], written: Written
) -> None:
    """Write the rotation of layers with a sliding window, which differs from the others'."""
    if row.get("window", {}).get("base") == "own" and "inv_freq" not in sliding._given:
        written.entries[f"{name}.rope.freq_base_swa"] = sliding.base
        written.lose("The scaling of the sliding layers.", when=sliding.scaling is not None)
    else:
        written.lose(f"A separate rotation for the sliding layers of {name}.")
    written.entries[f"{name}.attention.sliding_window"] = 1
    written.lose("The width of the window: sliding_window = 1 is a placeholder.")
    written.put(words(name), layer_types=[kind == "sliding_attention" for kind in types])
    written.lose("Which layers have a sliding window.", when=not types)
