"""Meta's params.json of published Llama checkpoints, read as Meta's own code reads them.

Source: llama-models at commit a9c89c4, models/llama3/args.py and model.py, models/llama4/args.py
and model.py; meta-llama/llama, llama/model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_native.checkpoints.formats.description import Description, Ground
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.scaling_words import Word, llama3
from posenc_native.checkpoints.formats.settings import (
    Settings,
    grouped_except,
    without_rotation,
)

TITLE = "Meta params.json"
_WORDS = {
    "layer_count": "n_layers",
    "nope_layers": "nope_layer_interval",
    "head_dim": "dim / n_heads",
    "pairing": "Meta's code: complex numbers",
    "base": "rope_theta",
    "scaling": "use_scaled_rope",
}
_LLAMA3 = llama3(8.0)
_LLAMA4 = llama3(Word("rope_scaling_factor", 16.0), high=Word("rope_high_freq_factor", 1.0))
# Widths and depths of Llama 3.2, whose factor is in no params.json.
_LLAMA_3_2 = {(2048, 16), (3072, 28)}


def _claims(entries: Mapping[str, Any]) -> bool:
    inner = entries.get("model")
    params = inner if isinstance(inner, Mapping) else entries
    return {"dim", "n_layers", "n_heads"} <= {*params} and "model_type" not in params


def _read(entries: Mapping[str, Any], source: str, function: str) -> Description:
    if isinstance(entries.get("model"), Mapping):
        entries = entries["model"]
    settings = Settings(function, entries, "params")
    width, heads = settings.count("dim"), settings.count("n_heads")
    head_dim = width // heads
    if head_dim < 2 or head_dim % 2:
        settings.wrong("n_heads", "heads with an even number of dims", f"{head_dim} dims each")
    layers = settings.layers("n_layers")
    llama4 = any(
        key in settings for key in ("nope_layer_interval", "attention_chunk_size", "moe_args")
    )
    scaled = settings.flag("use_scaled_rope", False)
    remarks = []
    if scaled or llama4:
        default, assumed = 500000.0, "Meta's code defaults to 500,000"
    else:
        default, assumed = 10000.0, "Llama 2's code defaults to 10,000, Llama 3's to 500,000"
    base, unknown = settings.base("rope_theta", default, assumed)
    scaling = None
    if scaled:
        scaling = (_LLAMA4 if llama4 else _LLAMA3).read(settings)
        if not llama4 and (width, layers) in _LLAMA_3_2:
            remarks.append(
                "The file has the shape of Llama 3.2. Meta's code scales every Llama 3 by 8; "
                "Hugging Face's configurations of Llama 3.2 and torchtune use 32."
            )
    every = settings.count("nope_layer_interval") if "nope_layer_interval" in settings else 0
    rotation = {
        "head_dim": head_dim,
        "base": base,
        "pairing": "interleaved",
        "scaling": scaling,
    }
    skipped = [every > 0 and (i + 1) % every == 0 for i in range(layers)]
    groups = grouped_except(settings, "nope_layer_interval", skipped, rotation, 1.0)
    why = (
        "Meta's code of Llama 4 was not run"
        if llama4
        else "Llama 2's code was not run; Llama 3's, llama-models 0.3.0, takes the base 500,000"
    )
    return Description(
        source=source,
        format=TITLE,
        engine="Meta's code",
        ground=(
            Ground("unknown", "Meta's code", why=why)
            if llama4 or not (scaled or "rope_theta" in settings)
            else Ground("run", "llama-models", "0.3.0")
        ),
        model_type="llama4" if llama4 else "llama",
        groups=groups,
        layer_count=layers,
        nope_layers=without_rotation(groups),
        words=_WORDS,
        unknown=tuple(unknown),
        remarks=tuple(remarks),
        # Llama 4 keeps Meta's order of dims at Hugging Face.
        permuted_by="" if llama4 else "transformers' convert_llama_weights_to_hf.py",
    )


FORMAT = Format("meta", TITLE, _claims, _read)
