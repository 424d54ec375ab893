"""torchtune: the builder of a model and its arguments, as named in a recipe's YAML or JSON.

Source: torchtune 0.6.1, models/*/_component_builders.py and _model_builders.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from posenc_native.checkpoints.formats.description import Description, Ground, Unknown
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.scaling_words import Word, llama3
from posenc_native.checkpoints.formats.settings import Settings, check_share
from posenc_native.models.config import LayerGroup
from posenc_native.models.rows import rows

TITLE = "torchtune settings"
_WORDS = {
    "layer_count": "num_layers",
    "head_dim": "embed_dim / num_heads or head_dim",
    "pairing": "the builder's code",
    "base": "rope_base",
    "scaling": "scale_factor",
}
# Prefixes of builders that build the same model with adapters.
_PREFIXES = ("qlora_", "lora_")
# The pairing, the base and the factor of Llama 3's scaling, by family of builders.
_BUILDERS: dict[str, tuple[str, float, float | None]] = {
    "llama2": ("interleaved", 1e4, None),
    "code_llama2": ("interleaved", 1e6, None),
    "llama3": ("interleaved", 5e5, None),
    "llama3_1": ("interleaved", 5e5, 8.0),
    "llama3_2": ("interleaved", 5e5, 32.0),
    "llama3_3": ("interleaved", 5e5, 8.0),
    "mistral": ("interleaved", 1e4, None),
    "gemma": ("interleaved", 1e4, None),
    "gemma2": ("interleaved", 1e4, None),
    "phi3": ("half", 1e4, None),
    "phi4": ("half", 1e4, None),
    "qwen2": ("half", 1e6, None),
    "qwen2_5": ("half", 1e6, None),
}


@lru_cache(maxsize=1)
def builders() -> Mapping[str, Mapping[str, Any]]:
    """The sizes that builders of whole models have in their code, from torchtune.json."""
    return rows("torchtune", __file__)


def _component(entries: Mapping[str, Any]) -> Any:
    model = entries.get("model")
    builder = model if isinstance(model, Mapping) and "_component_" in model else entries
    return builder.get("_component_"), builder


def _claims(entries: Mapping[str, Any]) -> bool:
    name, _ = _component(entries)
    return isinstance(name, str) and name.startswith("torchtune.")


def _read(entries: Mapping[str, Any], source: str, function: str) -> Description:
    name, inner = _component(entries)
    settings = Settings(function, inner, "settings")
    parts = settings.text("_component_").split(".")
    family = parts[2] if len(parts) > 3 and parts[1] == "models" else ""
    if family not in _BUILDERS:
        known = ", ".join(f"torchtune.models.{builder}" for builder in _BUILDERS)
        settings.wrong("_component_", f"a builder from {known}", repr(name))
    model = parts[-1]
    for prefix in _PREFIXES:
        model = model.removeprefix(prefix)
    in_code = builders().get(model, {})
    settings = Settings(function, {**in_code, **inner}, "settings")
    if "embed_dim" not in settings and "head_dim" not in settings:
        expected = "the builder's arguments beside it (embed_dim, num_heads, num_layers, rope_base)"
        settings.wrong("_component_", expected, f"{parts[-1]}, which sets them in its code")
    pairing, base, factor = _BUILDERS[family]
    head_dim = settings.head_dim("head_dim", "embed_dim", "num_heads")
    check_share(settings, "num_heads", head_dim, head_dim)
    scaling = None if factor is None else llama3(Word("scale_factor", factor)).read(settings)
    unknown = []
    if "rope_base" not in settings and not in_code:
        unknown.append(Unknown("base", f"torchtune's {family} defaults to {base:,.0f}"))
    layers = settings.layers("num_layers") if "num_layers" in settings else None
    if layers is None:
        unknown.append(Unknown("layer_count"))
    rotation = {
        "head_dim": head_dim,
        "base": settings.positive("rope_base", base),
        "pairing": pairing,
        "scaling": scaling,
    }
    return Description(
        source=source,
        format=TITLE,
        engine="torchtune",
        model_type=family,
        groups=(LayerGroup(None, tuple(range(layers or 0)), rotation),),
        layer_count=layers,
        length=settings.length("max_seq_len"),
        words=_WORDS,
        unknown=tuple(unknown),
        ground=Ground("run", "torchtune", "0.6.1"),
        permuted_by="torchtune's hf_to_tune" if pairing == "interleaved" else "",
    )


FORMAT = Format("torchtune", TITLE, _claims, _read)
