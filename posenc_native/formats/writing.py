"""Write a description in the words of an engine, and list what these cannot express.

Each writer gives entries and, in sentences, the facts that are lost. The reader of the same format
reads the written entries: tests/formats/test_writing.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posenc_native.rotary.rotary import Rotary
from posenc_native.spectra.axes import pairs_by_axis
from posenc_native.spectra.frequencies import rounded_frequencies
from posenc_native.spectra.scaling import rotary_frequencies

from .binary.gguf import architectures, yarn_magnitude
from .description import Description, depends_on_length


@dataclass
class Written:
    """Entries of a file, and facts that they cannot express.

    Attributes:
        entries: names and values, as in the format.
        lost: a sentence for each fact of the description that the format cannot express.
        permuted: whether the weights of queries and keys are permuted to match the format's
            pairing, so that a pairing that it cannot express is not lost.
    """

    entries: dict[str, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    permuted: bool = False

    def lose_pairing(self, sentence: str) -> None:
        """Say that the format has another pairing, unless the weights are permuted to match."""
        if not self.permuted:
            self.lost.append(sentence)


def write(description: Description, form: str, permuted: bool = False) -> Written:
    """A description in the words of "hf", "gguf", "megatron" or "mistral".

    permuted: the weights of queries and keys are permuted as the format needs, as in `compare`.
    """
    result = Written(permuted=permuted)
    if not _rotations(description):
        result.lost.append("A model without rotary encoding.")
        return result
    WRITERS[form](description, result)
    return result


def _rotations(description: Description) -> dict[str | None, Rotary]:
    """The rotation of each layer type, for types that rotate."""
    return {
        group.layer_type: Rotary(**group.arguments)
        for group in description.groups
        if group.arguments is not None
    }


def _one_rotation(description: Description, result: Written, form: str) -> Rotary:
    found = list(_rotations(description).values())
    if any(rotary != found[0] for rotary in found):
        result.lost.append(f"{form} has one rotation for all layers; the first layer's is written.")
    return found[0]


def _without(description: Description, result: Written, form: str) -> None:
    if description.nope_layers or description.unnumbered_without:
        result.lost.append(
            f"{form} cannot say which layers do not rotate: the engine's code decides."
        )
    numbers = {i for group in description.groups for i in group.layers}
    if numbers and len(numbers) != description.layer_count:
        result.lost.append(
            f"{form} cannot say which layers have attention: the engine's code decides."
        )


def _usual_scale(rotary: Rotary) -> float:
    """The factor of cosine and sine that the rest of the scaling gives; NaN if none."""
    scaling = {k: v for k, v in (rotary.scaling or {}).items() if k not in _FACTORS}
    if not scaling:
        return 1.0
    if scaling["rope_type"] == "longrope" and not {"factor", "max_position_embeddings"} & {
        *scaling
    }:
        return math.nan
    return rotary_frequencies(rotary.rotary_dim, rotary.base, scaling)[1]


_FACTORS = ("attention_factor", "mscale", "mscale_all_dim", "short_mscale", "long_mscale")
# ROPE_INIT_FUNCTIONS of transformers 5, and "default".
_TYPES_OF_TRANSFORMERS = (
    "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional",
)  # fmt: skip


def _write_hf(description: Description, result: Written) -> None:
    rotations = _rotations(description)
    first = next(iter(rotations.values()))
    head = "qk_rope_head_dim" if description.latent else "head_dim"
    entries: dict[str, Any] = {head: first.head_dim}
    if description.model_type and description.entries:
        entries["model_type"] = description.model_type
    if description.layer_count:
        entries["num_hidden_layers"] = description.layer_count
    if description.length:
        entries["max_position_embeddings"] = description.length
    if any(rotary.head_dim != first.head_dim for rotary in rotations.values()):
        result.lost.append("Heads of different widths.")
    parameters = {name: _hf_parameters(rotary, result) for name, rotary in rotations.items()}
    if len({repr(each) for each in parameters.values()}) == 1:
        expressed = next(iter(parameters.values()))
    else:
        expressed = {str(name): each for name, each in parameters.items() if each}
    if expressed:
        entries["rope_parameters"] = expressed
    types = _layer_types(description)
    if types:
        entries["layer_types"] = types
    if description.nope_layers and description.layer_count:
        skipped = {*description.nope_layers}
        entries["no_rope_layers"] = [int(i not in skipped) for i in range(description.layer_count)]
    result.entries = entries
    if any(rotary.pairing != "half" for rotary in rotations.values()):
        result.lose_pairing(
            "The pairing (interleaved): transformers has it in the code of a model, and most "
            "models use the half pairing. If the weights are permuted to it, add --permuted."
        )
    if any(rotary.rotary_start for rotary in rotations.values()):
        result.lost.append("The rotated dims are the last of a head.")
    if any(group.softmax_correction != 1 for group in description.groups):
        result.lost.append("The softmax correction, which the code of a model applies.")


def _layer_types(description: Description) -> list[str]:
    names = {
        i: group.layer_type
        for group in description.groups
        for i in group.layers
        if group.layer_type
    }
    count = description.layer_count
    if not count or len({*names.values()}) < 2:
        return []
    return [names.get(i) or "linear_attention" for i in range(count)]


def _hf_parameters(rotary: Rotary, result: Written) -> dict[str, Any]:
    """The rotary parameters; none if no base and scaling give the frequencies."""
    if "inv_freq" in rotary._given:
        result.lost.append("Frequencies that no base and scaling give.")
        return {}
    found: dict[str, Any] = {"rope_theta": rotary.base, "rope_type": "default"}
    found |= {k: v for k, v in (rotary.scaling or {}).items() if k != "seq_len"}
    if found["rope_type"] not in _TYPES_OF_TRANSFORMERS:
        result.lost.append(f"The scaling {found['rope_type']}, which transformers does not have.")
    if rotary.rotary_dim != rotary.head_dim:
        found["partial_rotary_factor"] = rotary.rotary_dim / rotary.head_dim
    if not math.isclose(rotary.scale, _usual_scale(rotary), rel_tol=1e-9):
        if found["rope_type"] in ("yarn", "longrope"):
            for key in _FACTORS:
                found.pop(key, None)
            found["attention_factor"] = rotary.scale
        else:
            result.lost.append(f"The factor {rotary.scale:g} of cosines and sines.")
    if rotary.axis_map is not None:
        counts, in_blocks = pairs_by_axis(rotary.axis_map)
        found["mrope_section"] = counts
        if not in_blocks:
            found["mrope_interleaved"] = True
        if len(counts) != 3:
            result.lost.append(f"Position axes other than 3: {len(counts)}.")
    return found


def _write_gguf(description: Description, result: Written) -> None:
    form = "GGUF"
    known = architectures()
    fits = (
        name
        for name, row in known.items()
        if description.model_type in (name, *row.get("models", ())) and row["rope"] != "none"
    )
    name = next(fits, None)
    if name is None:
        name = "llama"
        result.lost.append(
            f"An architecture of llama.cpp for {description.model_type or 'this model'}: it is "
            "written as llama."
        )
    row = known[name]
    rotations = _rotations(description)
    rotary = rotations.get("full_attention") or next(iter(rotations.values()))
    entries: dict[str, Any] = {
        "general.architecture": name,
        f"{name}.attention.key_length": rotary.head_dim,
        f"{name}.rope.dimension_count": rotary.rotary_dim,
    }
    if description.layer_count:
        entries[f"{name}.block_count"] = description.layer_count
    if description.length:
        entries[f"{name}.context_length"] = description.length
    neighbors = row["rope"] == "norm"
    if neighbors != (rotary.pairing == "interleaved"):
        weights = "permuted, as its converter does" if row.get("permuted") else "in that order"
        result.lose_pairing(
            f"The pairing {rotary.pairing}: llama.cpp's {name} rotates "
            f"{'neighbors' if neighbors else 'halves'}, so the weights of queries and keys have "
            f"to be {weights}. If they are, add --permuted."
        )
    prefix = f"{name}.rope."
    correction = _correction(description)
    _gguf_rotation(rotary, row, name, correction, entries, result)
    if correction != 1 and not row.get("corrects"):
        result.lost.append("The softmax correction.")
    sliding = rotations.get("sliding_attention")
    if sliding is not None and sliding != rotary:
        if row.get("window", {}).get("base") == "own" and "inv_freq" not in sliding._given:
            entries[f"{prefix}freq_base_swa"] = sliding.base
            if sliding.scaling is not None:
                result.lost.append("The scaling of the sliding layers.")
        else:
            result.lost.append(f"A separate rotation for the sliding layers of {name}.")
        entries[f"{name}.attention.sliding_window"] = 1
        result.lost.append("The width of the window: sliding_window = 1 is a placeholder.")
        types = _layer_types(description)
        if types:
            key = f"{name}.attention.sliding_window_pattern"
            entries[key] = [kind == "sliding_attention" for kind in types]
        else:
            result.lost.append("Which layers have a sliding window.")
    _without(description, result, form)
    result.entries = entries


def _gguf_rotation(
    rotary: Rotary,
    row: Mapping[str, Any],
    name: str,
    correction: float,
    entries: dict[str, Any],
    result: Written,
) -> None:
    prefix, scaling = f"{name}.rope.", rotary.scaling or {}
    usual = 1.0
    kind = scaling.get("rope_type", "default")
    if "inv_freq" in rotary._given:
        plain = rounded_frequencies(rotary.rotary_dim, 10000.0)
        entries[f"{prefix}freq_base"] = 10000.0
        entries["rope_freqs.weight"] = (plain / np.maximum(rotary.inv_freq, 1e-30)).tolist()
    else:
        entries[f"{prefix}freq_base"] = rotary.base
    if kind == "linear":
        entries[f"{prefix}scaling.type"] = "linear"
        entries[f"{prefix}scaling.factor"] = scaling["factor"]
    elif kind == "yarn":
        entries[f"{prefix}scaling.type"] = "yarn"
        entries[f"{prefix}scaling.factor"] = scaling.get("factor", 1.0)
        trained = scaling.get("original_max_position_embeddings")
        entries[f"{prefix}scaling.original_context_length"] = trained
        weight = scaling.get("mscale_all_dim") or 0.0
        if row.get("corrects"):
            weight = _weight(scaling.get("factor", 1.0), math.sqrt(correction) / rotary.scale)
            if weight is None:
                result.lost.append("The softmax correction.")
        if weight and "log_multiplier" in row:
            key = f"{prefix}scaling.yarn_log_multiplier"
            entries[key] = weight / row["log_multiplier"]
        else:
            weight = 0.0
        usual = yarn_magnitude(name, scaling.get("factor", 1.0), weight)
        bounds = scaling.get("beta_fast", 32), scaling.get("beta_slow", 1)
        if bounds != (32, 1) and not row.get("reads_betas"):
            result.lost.append("beta_fast and beta_slow other than 32 and 1.")
        if not scaling.get("truncate", True):
            result.lost.append("Bounds of YaRN's blend that are not rounded (truncate false).")
    elif kind == "longrope":
        entries[f"{prefix}scaling.type"] = "longrope"
        trained = scaling.get("original_max_position_embeddings")
        entries[f"{prefix}scaling.original_context_length"] = trained
        for length in ("short", "long"):
            entries[f"rope_factors_{length}.weight"] = list(scaling[f"{length}_factor"])
    elif depends_on_length({"scaling": rotary.scaling}):
        result.lost.append("Frequencies that change with the length (dynamic).")
    elif kind != "default":
        plain = rounded_frequencies(rotary.rotary_dim, rotary.base)
        factors = np.where(rotary.inv_freq > 0, plain / np.maximum(rotary.inv_freq, 1e-300), 1e30)
        entries["rope_freqs.weight"] = factors.tolist()
    if "rope_freqs.weight" in entries and "rope_freqs" not in row:
        result.lost.append(
            "rope_freqs.weight, which llama.cpp does not read for this architecture."
        )
    if not math.isclose(rotary.scale, usual, rel_tol=1e-9):
        entries[f"{prefix}scaling.attn_factor"] = rotary.scale / usual
    if rotary.axis_map is not None:
        counts, _ = pairs_by_axis(rotary.axis_map)
        entries[f"{prefix}dimension_sections"] = [*counts, 0, 0, 0, 0][:4]
        if row["rope"] not in ("mrope", "imrope"):
            result.lost.append("Several position axes.")


def _correction(description: Description) -> float:
    """The largest of the softmax corrections."""
    return max(group.softmax_correction for group in description.groups)


def _weight(factor: float, grown: float) -> float | None:
    """The weight for which YaRN's 1 + 0.1 * weight * ln(factor) is `grown`; None if none is."""
    if math.isclose(grown, 1.0, rel_tol=1e-9):
        return 0.0
    return round((grown - 1) / (0.1 * math.log(factor)), 9) if factor > 1 < grown else None


def _write_megatron(description: Description, result: Written) -> None:
    form = "Megatron"
    rotary = _one_rotation(description, result, form)
    kind = (rotary.scaling or {}).get("rope_type", "default")
    if description.latent and rotary.pairing == "interleaved" and kind in ("default", "yarn"):
        result.entries = _megatron_latent(description, rotary, result)
        return
    entries: dict[str, Any] = {
        "position_embedding_type": "rope",
        "kv_channels": rotary.head_dim,
        "rotary_percent": rotary.rotary_dim / rotary.head_dim,
        "rotary_interleaved": rotary.pairing == "interleaved",
    }
    if "inv_freq" in rotary._given:
        result.lost.append("Frequencies that no base and scaling give.")
    else:
        entries["rotary_base"] = rotary.base
    count = description.layer_count
    if count:
        entries["num_layers"] = count
    if description.length:
        entries["max_position_embeddings"] = description.length
    scaling = rotary.scaling or {}
    kind = scaling.get("rope_type", "default")
    scale = 1.0
    if kind == "llama3":
        fixed = {"low_freq_factor": 1, "high_freq_factor": 4}
        fixed["original_max_position_embeddings"] = 8192
        if any(scaling.get(key) != value for key, value in fixed.items()):
            result.lost.append("Bounds of Llama 3's scaling other than 1, 4 and 8192 positions.")
        entries |= {"use_rope_scaling": True, "rope_scaling_factor": scaling["factor"]}
    elif kind == "linear":
        factor = scaling["factor"]
        if factor != int(factor):
            result.lost.append("A linear factor that is not an int.")
        entries["rotary_seq_len_interpolation_factor"] = int(factor)
    elif kind == "yarn":
        scale = _usual_scale(rotary)
        entries |= {
            "position_embedding_type": "yarn",
            "yarn_rotary_scaling_factor": scaling.get("factor", 1.0),
            "yarn_original_max_position_embeddings": scaling["original_max_position_embeddings"],
            "yarn_beta_fast": scaling.get("beta_fast", 32.0),
            "yarn_beta_slow": scaling.get("beta_slow", 1.0),
            "yarn_correction_range_round_to_int": bool(scaling.get("truncate", True)),
        }
        if rotary.pairing == "interleaved" or rotary.rotary_dim != rotary.head_dim:
            result.lost.append("YaRN with the interleaved pairing, or of a part of the head.")
        if math.isclose(rotary.scale, 1.0):
            entries |= {"yarn_mscale": 1.0, "yarn_mscale_all_dim": 1.0}
            scale = 1.0
    elif kind != "default":
        result.lost.append(f"The scaling {kind}.")
    if not math.isclose(rotary.scale, scale, rel_tol=1e-9):
        result.lost.append(f"The factor {rotary.scale:g} of cosines and sines.")
    if rotary.axis_map is not None:
        counts, in_blocks = pairs_by_axis(rotary.axis_map)
        if in_blocks and len(counts) == 3:
            entries |= {"position_embedding_type": "mrope", "mrope_section": counts}
        else:
            result.lost.append("Position axes that alternate, or other than 3 of them.")
    if rotary.rotary_start:
        result.lost.append("The rotated dims are the last of a head.")
    if description.nope_layers and count:
        skipped = {*description.nope_layers}
        entries["no_rope_freq"] = [int(i in skipped) for i in range(count)]
    else:
        _without(description, result, form)
    if any(group.softmax_correction != 1 for group in description.groups):
        result.lost.append("The softmax correction, outside of latent attention.")
    result.entries = entries


def _megatron_latent(description: Description, rotary: Rotary, result: Written) -> dict[str, Any]:
    """The arguments of multi-head latent attention, which has its own YaRN."""
    scaling, correction = rotary.scaling or {}, _correction(description)
    entries: dict[str, Any] = {
        "multi_latent_attention": True,
        "qk_pos_emb_head_dim": rotary.head_dim,
        "position_embedding_type": "rope",
        "rope_type": "yarn" if scaling else "rope",
        "rotary_base": rotary.base,
    }
    if description.layer_count:
        entries["num_layers"] = description.layer_count
    if description.length:
        entries["max_position_embeddings"] = description.length
    if scaling:
        factor, root = scaling.get("factor", 1.0), math.sqrt(correction)
        weights = _weight(factor, rotary.scale * root), _weight(factor, root)
        entries |= {
            "rotary_scaling_factor": factor,
            "original_max_position_embeddings": scaling["original_max_position_embeddings"],
            "beta_fast": scaling.get("beta_fast", 32.0),
            "beta_slow": scaling.get("beta_slow", 1.0),
            "mscale": weights[0] or 0.0,
            "mscale_all_dim": weights[1] or 0.0,
        }
        if weights[0] is None:
            result.lost.append(f"The factor {rotary.scale:g} of cosines and sines.")
        if weights[1] is None:
            result.lost.append("The softmax correction.")
        if not scaling.get("truncate", True):
            result.lost.append("Bounds of YaRN's blend that are not rounded (truncate false).")
    elif correction != 1:
        result.lost.append("The softmax correction, without YaRN.")
    if not scaling and rotary.scale != 1:
        result.lost.append(f"The factor {rotary.scale:g} of cosines and sines.")
    _without(description, result, "Megatron")
    return entries


def _write_mistral(description: Description, result: Written) -> None:
    form = "params.json"
    rotary = _one_rotation(description, result, form)
    head = "qk_rope_head_dim" if description.latent else "head_dim"
    entries: dict[str, Any] = {head: rotary.head_dim}
    correction = _correction(description)
    if description.layer_count:
        entries["n_layers"] = description.layer_count
    if description.length:
        entries["max_position_embeddings"] = description.length
    if "inv_freq" in rotary._given:
        result.lost.append("Frequencies that no base and scaling give.")
    else:
        entries["rope_theta"] = rotary.base
    scaling = rotary.scaling or {}
    kind = scaling.get("rope_type", "default")
    scale = 1.0
    if kind == "yarn":
        usual = _usual_scale(rotary)
        applies = math.isclose(rotary.scale, usual, rel_tol=1e-9)
        scale = usual if applies else 1.0
        if description.latent:  # where apply_scale is for the softmax scale
            applies, scale = math.isclose(correction, usual**2, rel_tol=1e-9), 1.0
            correction = 1.0 if applies else correction
        entries["yarn"] = {
            "factor": scaling.get("factor", 1.0),
            "original_max_position_embeddings": scaling["original_max_position_embeddings"],
            "beta": scaling.get("beta_fast", 32.0),
            "alpha": scaling.get("beta_slow", 1.0),
            "apply_scale": applies,
        }
        if not scaling.get("truncate", True):
            result.lost.append("Bounds of YaRN's blend that are not rounded (truncate false).")
    elif kind != "default":
        result.lost.append(f"The scaling {kind}.")
    if not math.isclose(rotary.scale, scale, rel_tol=1e-9):
        result.lost.append(f"The factor {rotary.scale:g} of cosines and sines.")
    if rotary.pairing != "interleaved":
        result.lose_pairing(
            "The pairing half: Mistral's code rotates neighbors, so the weights of queries and "
            "keys have to be permuted. If they are, add --permuted."
        )
    if rotary.rotary_dim != rotary.head_dim or rotary.rotary_start:
        result.lost.append("The rotation of only a part of the head.")
    if rotary.axis_map is not None:
        result.lost.append("Several position axes.")
    if correction != 1:
        result.lost.append("The softmax correction.")
    _without(description, result, form)
    result.entries = entries


WRITERS: dict[str, Callable[[Description, Written], None]] = {
    "hf": _write_hf,
    "gguf": _write_gguf,
    "megatron": _write_megatron,
    "mistral": _write_mistral,
}
