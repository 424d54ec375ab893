"""Mistral's params.json, in its own words, as vLLM reads it.

vLLM is run with such files (tests/engines_at_hand), except for experts, latent attention, and
models that also see or hear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc_native.checkpoints.formats.description import Description, Ground
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.scaling_words import Word, yarn, yarn_scale
from posenc_native.checkpoints.formats.settings import Settings, check_share
from posenc_native.checkpoints.formats.written import Written, differs, softmax_correction
from posenc_native.models.config import LayerGroup

TITLE = "Mistral params.json"
_WORDS = {
    "layer_count": "n_layers",
    "head_dim": "head_dim",
    "pairing": "Mistral's code: complex numbers",
    "base": "rope_theta",
    "scaling": "yarn",
    "scale": "yarn.apply_scale",
    "softmax_correction": "yarn.apply_scale",
    "length": "max_position_embeddings",
}
_LATENT_WORDS = {**_WORDS, "head_dim": "qk_rope_head_dim"}
_YARN = yarn(
    Word("factor"),
    Word("original_max_position_embeddings"),
    Word("beta", 32.0),
    Word("alpha", 1.0),
)
_OWN = {"sliding_window", "_sliding_window", "yarn", "llama_4_scaling", "vision_encoder",
        "multimodal", "moe", "q_lora_rank", "max_position_embeddings"}  # fmt: skip
# Parts of a model with which vLLM was not run.
_NOT_RUN = ("moe", "q_lora_rank", "qk_nope_head_dim", "vision_encoder", "multimodal")


def _claims(entries: Mapping[str, Any]) -> bool:
    keys = {*entries}
    model_type = entries.get("model_type", "transformer")
    if not (isinstance(model_type, str) and model_type == "transformer"):
        return False
    mistral = "hidden_dim" in keys and "head_dim" in keys
    foreign = {"multiple_of", "ffn_dim_multiplier"} & keys
    return {"dim", "n_layers"} <= keys and (mistral or bool(_OWN & keys)) and not foreign


def _read(entries: Mapping[str, Any], source: str, function: str) -> Description:
    settings = Settings(function, entries, "params")
    layers = settings.layers("n_layers")
    latent = _LATENT_WORDS["head_dim"] in settings
    words = _LATENT_WORDS if latent else _WORDS
    key = words["head_dim"]
    head_dim = settings.head_dim(key, "dim", "n_heads")
    check_share(settings, key, head_dim, head_dim)
    base, unknown = settings.base(
        "rope_theta",
        10000.0,
        "vLLM defaults to 10,000",
    )
    scaling, scale, correction, remarks = _yarn(settings, latent)
    rotation: dict[str, Any] = {
        "head_dim": head_dim,
        "base": base,
        "pairing": "interleaved",
        "scaling": scaling,
    }
    if scale is not None:
        rotation["scale"] = scale
    temperature = settings.inner("llama_4_scaling")
    if temperature.entries:
        beta, key = temperature.number("beta"), "original_max_position_embeddings"
        if beta:
            rotation["query_scale"] = {"beta": beta, key: temperature.number(key)}
    group = LayerGroup(None, tuple(range(layers)), rotation, correction)
    return Description(
        source=source,
        format=TITLE,
        engine="vLLM",
        ground=_ground(settings, latent),
        model_type="mistral",
        groups=(group,),
        layer_count=layers,
        length=settings.length("max_position_embeddings", "max_seq_len"),
        words=words,
        unknown=tuple(unknown),
        remarks=tuple(remarks),
        latent=latent,
        tells_query_scale=True,
        corrects_softmax=correction != 1,
        permuted_by="" if latent else "transformers' converter of Mistral's weights",
    )


def _ground(settings: Settings, latent: bool) -> Ground:
    others = [key for key in _NOT_RUN if settings[key] is not None]
    if latent or others:
        what = "latent attention" if latent else others[0]
        return Ground("unknown", "vLLM", why=f"vLLM was not run with a params.json with {what}")
    if settings.inner("yarn").entries and "rope_theta" not in settings:
        return Ground("unknown", "vLLM", why="vLLM 0.32.0 refuses yarn without rope_theta")
    return Ground("run", "vLLM", "0.32.0")


def _yarn(
    settings: Settings, latent: bool
) -> tuple[dict[str, Any] | None, float | None, float, list[str]]:
    """The scaling, the factor of cosine and sine, the factor of the softmax scale, and remarks."""
    block = settings.inner("yarn")
    if not block.entries:
        return None, None, 1.0, []
    known = {*(word.key for word in _YARN.words.values()), "apply_scale"}
    for key in (key for key in block.entries if key not in known):
        settings.wrong("yarn", f"only the entries {', '.join(sorted(known))}", repr(str(key)[:64]))
    scaling = _YARN.read(block)
    applied = block.flag("apply_scale", True)
    grown = yarn_scale(scaling["factor"])
    if latent:
        return scaling, 1.0, grown**2 if applied else 1.0, []
    if not applied:
        return scaling, 1.0, 1.0, []
    remarks = []
    if "apply_scale" not in block:
        remarks.append(
            f"yarn has no apply_scale: vLLM then multiplies cosines and sines by {grown:.4g}."
        )
    return scaling, grown, 1.0, remarks


def _write(description: Description, written: Written) -> None:
    form, latent = "params.json", description.latent
    rotary, correction = written.one_rotation(description, form), softmax_correction(description)
    written.put_sizes(_LATENT_WORDS if latent else _WORDS, description, rotary)
    written.put_base(_WORDS, rotary)
    block = written.scaling(rotary, _YARN)
    grown = yarn_scale(block.get("factor", 1.0))
    applies = not (differs(correction, grown**2) if latent else differs(rotary.scale, grown))
    if block:
        written.entries["yarn"] = {**block, "apply_scale": applies}
    scale = rotary.query_scale or {}
    if scale.get("type") == "llama4" and scale["shift"] == 0:
        keys = ("beta", "original_max_position_embeddings")
        written.entries["llama_4_scaling"] = {key: scale[key] for key in keys}
    else:
        written.lose_query_scale(rotary)
    written.lose_scale(rotary, when=differs(rotary.scale, grown if applies and not latent else 1.0))
    written.lose_pairing(
        "The pairing half: Mistral's code rotates neighbors, so the weights of queries and keys "
        "have to be permuted. If they are, add --permuted.",
        when=rotary.pairing != "interleaved",
    )
    written.lose(
        "The rotation of only a part of the head.",
        when=rotary.rotary_dim != rotary.head_dim or rotary.rotary_start > 0,
    )
    written.lose("Several position axes.", when=rotary.axis_map is not None)
    written.lose("The softmax correction.", when=correction != 1 and not (latent and applies))
    written.lose_layers(description, form)


FORMAT = Format("mistral", TITLE, _claims, _read, write=_write)
