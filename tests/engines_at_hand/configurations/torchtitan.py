"""Dumps of torchtitan's trainer, with the entries that its rotation reads."""

from __future__ import annotations

from typing import Any

_ROPE = {"dim": 32, "max_seq_len": 2048, "theta": 500000.0}
_LLAMA = {
    "scaling": "llama",
    "scaling_factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_YARN = {
    "scaling": "yarn",
    "rope_factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_seq_len": 4096,
    "truncate": True,
}
_PLAIN = ("llama3", "qwen3", "gpt_oss", "muse_glimmer")
_LATENT = ("deepseek_v3", "kimi_k2_5")
_SCALINGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "llama by default": {"scaling": "llama"},
    "llama, factor": {**_LLAMA, "scaling_factor": 32.0},
    "llama, bands": {**_LLAMA, "low_freq_factor": 2.0, "high_freq_factor": 8.0},
    "llama, length": {**_LLAMA, "original_max_position_embeddings": 1024},
    "yarn": _YARN,
    "yarn by default": {"scaling": "yarn"},
    "yarn, only a factor": {"scaling": "yarn", "rope_factor": 8.0},
    "yarn, not truncated": {**_YARN, "truncate": False},
    "yarn, betas": {**_YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, length": {**_YARN, "original_seq_len": 1024},
    "yarn, factor below 1": {**_YARN, "rope_factor": 0.5},
    "none": {"scaling": "none", "rope_factor": 8.0},
}


def configurations() -> dict[str, Any]:
    """Every model with every scaling, and what belongs to a model."""
    made: dict[str, Any] = {}
    for name in (*_PLAIN, *_LATENT):
        made[f"{name}: as it is"] = _dump(name, _ROPE)
        made[f"{name}: no base"] = _dump(name, {"dim": 32, "max_seq_len": 2048})
        for scaling, entries in _SCALINGS.items():
            made[f"{name}: {scaling}"] = _dump(name, {**_ROPE, **entries})
    for name in _LATENT:
        for weight in (0.7, 0.0):
            made[f"{name}: mscale {weight}"] = _dump(name, {**_ROPE, **_YARN}, mscale=weight)
    made["muse_glimmer: some rotate"] = _dump(
        "muse_glimmer", _ROPE, layers=({"use_rope": True}, {"use_rope": False}, {})
    )
    made["llama3: layers differ"] = _dump(
        "llama3", _ROPE, layers=({}, {"rope": {**_ROPE, "theta": 10000.0}})
    )
    made["llama3: length of another release"] = _dump(
        "llama3", {"dim": 32, "max_context_length": 2048, "theta": 10000.0}
    )
    made["gpt_oss: mscale"] = _dump("gpt_oss", {**_ROPE, **_YARN}, mscale=0.5)
    made["llama3: wide heads"] = _dump("llama3", {**_ROPE, "dim": 64, **_LLAMA}, head_dim=64)
    return made


def _dump(
    name: str, rope: dict[str, Any], layers: tuple[dict[str, Any], ...] = ({}, {}), **entries: Any
) -> dict[str, Any]:
    attention: dict[str, Any] = {"dim": 64, "n_heads": 1, "rope": rope}
    if name in _LATENT:
        attention |= {"qk_nope_head_dim": 16, "qk_rope_head_dim": rope["dim"], "v_head_dim": 16,
                      "kv_lora_rank": 16}  # fmt: skip
    else:
        attention |= {"head_dim": rope["dim"], "n_kv_heads": 1}
    model = {"layers": [{"attention": {**attention, **entries, **layer}} for layer in layers]}
    return {"model_spec": {"name": name, "model": model}}
