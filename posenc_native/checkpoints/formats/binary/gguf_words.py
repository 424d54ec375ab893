"""Names of a GGUF file's fields by architecture, values that it leaves out, remarks about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from posenc_native.checkpoints.formats.description import Ground, Unknown
from posenc_native.checkpoints.formats.scaling_words import ScalingWords, Word, yarn, yarn_scale
from posenc_native.checkpoints.formats.settings import Settings
from posenc_native.models.config import LayerGroup
from posenc_native.models.rows import rows

# What was run: tests/engines_at_hand/records/llama_cpp.json.
_ENGINE, _VERSION = "llama.cpp (llama-cpp-python)", "0.3.36"
_FEATURES = {
    "none": "no scaling",
    "linear": "a linear scaling",
    "yarn": "YaRN",
    "longrope": "factors by length",
    "factors": "rope_freqs.weight",
    "other factors": "factors that the architecture does not have",
    "some dims": "heads that rotate in part",
}


@lru_cache(maxsize=1)
def architectures() -> Mapping[str, Mapping[str, Any]]:
    """The rows of llama_cpp.json."""
    return rows("llama_cpp", __file__)


def words(name: str) -> dict[str, str]:
    """The keys of an architecture, by the fields of a description."""
    return {
        "layer_count": f"{name}.block_count",
        "layer_types": f"{name}.attention.sliding_window_pattern",
        "nope_layers": "llama.cpp's code",
        "head_dim": f"{name}.attention.key_length",
        "rotary_dim": f"{name}.rope.dimension_count",
        "pairing": f"llama.cpp's code for {name}",
        "base": f"{name}.rope.freq_base",
        "scale": f"{name}.rope.scaling.attn_factor and YaRN",
        "softmax_correction": f"{name}.rope.scaling.yarn_log_multiplier",
        "axis_map": f"{name}.rope.dimension_sections",
        "length": f"{name}.context_length",
    }


def yarn_words(row: Mapping[str, Any]) -> ScalingWords:
    """The keys of YaRN; the code of most architectures fixes the bounds."""
    fast, slow = (
        Word(f"rope.scaling.yarn_{name}", number) if row.get("reads_betas") else number
        for name, number in (("beta_fast", float(row.get("beta_fast", 32.0))), ("beta_slow", 1.0))
    )
    trained = Word("rope.scaling.original_context_length")
    return yarn(Word("rope.scaling.factor", 1.0), trained, fast, slow)


def yarn_magnitude(name: str, factor: float, weight: float) -> float:
    """The factor of cosines and sines in llama.cpp's YaRN; `weight` is mscale_all_dim."""
    above = weight if name == "deepseek2" and weight != 0 else 1.0
    return yarn_scale(factor, above, weight)


def source_of_scaling(
    settings: Settings, name: str, row: Mapping[str, Any], groups: Iterable[LayerGroup]
) -> str:
    """The key or tensors that the scaling comes from, or those that the file does not have."""
    scalings = [(group.arguments or {}).get("scaling") or {} for group in groups]
    types = {scaling.get("rope_type") for scaling in scalings}
    if "llama3" in types:
        return "rope_freqs.weight"
    if "longrope" in types:
        return "rope_factors_short.weight and rope_factors_long.weight"
    key = f"{name}.rope.scaling.type"
    if "rope.scaling.type" in settings:
        return key
    if "linear" in types:
        factor = "scaling.factor" if "rope.scaling.factor" in settings else "scale_linear"
        return f"{name}.rope.{factor}"
    return f"no {key}" + (" and no rope_freqs.weight" if "rope_freqs" in row else "")


def unknown(settings: Settings, row: Mapping[str, Any]) -> list[Unknown]:
    """The missing keys for which llama.cpp has a default."""
    if "rope.freq_base" not in settings and "fixed_base" not in row:
        return [Unknown("base", "llama.cpp defaults to 10,000")]
    return []


def ground(
    settings: Settings,
    name: str,
    row: Mapping[str, Any],
    groups: Iterable[LayerGroup],
    factors: Iterable[str],
    unread: Iterable[str],
) -> Ground:
    """Whether files of this architecture, with all entries of this file, were run.

    factors, unread: the names of factor tensors that have an effect, and of the others.
    """
    kinds = [group.arguments for group in groups if group.arguments is not None]
    scalings = {(kind.get("scaling") or {}).get("rope_type") for kind in kinds}
    kind = str(settings["rope.scaling.type"] or "linear")
    if kind not in ("yarn", "longrope"):
        kind = "linear" if "linear" in scalings else "none"
    factors = set(factors)
    wanted = {"longrope" if {"rope_factors_long", "rope_factors_short"} & factors else kind}
    if "rope_freqs" in factors:
        wanted.add("factors")
    if any(tensor not in row for tensor in map(_rule, unread)):
        wanted.add("other factors")
    if any(_rotated(kind) < kind["head_dim"] for kind in kinds):
        wanted.add("some dims")
    missing = wanted - set(row.get("run", ()))
    if not missing:
        return Ground("run", _ENGINE, _VERSION)
    what = ", ".join(_FEATURES[feature] for feature in _FEATURES if feature in missing)
    done = "refused" if missing & set(row.get("refused", ())) else "was not run with"
    return Ground("unknown", _ENGINE, _VERSION, f"llama.cpp {done} a file of {name} with {what}")


def _rotated(arguments: Mapping[str, Any]) -> int:
    pairs = arguments.get("inv_freq")
    return int(arguments["rotary_dim"]) if pairs is None else 2 * len(pairs)


def _rule(tensor: str) -> str:
    return "rope_freqs" if tensor == "rope_freqs" else "long_factors"


def remarks(
    settings: Settings, name: str, row: Mapping[str, Any], unread: Iterable[str], parts: int
) -> list[str]:
    """Remarks about a file; `unread` are its tensors of factors that have no effect."""
    said = []
    ignored = [
        key
        for key, taken in (("yarn_beta_fast", 32), ("yarn_beta_slow", 1))
        if settings[f"rope.scaling.{key}"] not in (None, taken) and not row.get("reads_betas")
    ]
    if ignored:
        names = " and ".join(ignored)
        said.append(f"llama.cpp does not read {names} for {name}: it always uses 32 and 1.")
    for tensor in sorted(unread):
        if _rule(tensor) in row:
            said.append(
                f"The tensor {tensor}.weight is in the file, but llama.cpp does not read it with "
                "these settings: its factors have no effect."
            )
        else:
            said.append(
                f"The tensor {tensor}.weight is in the file, but {name} has no such factors in "
                "llama.cpp, which refuses files with tensors that it does not know."
            )
    if parts > 1:
        said.append(f"The first of {parts} files: tensors in the others were not read.")
    return said
