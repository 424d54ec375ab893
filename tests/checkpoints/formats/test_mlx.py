"""What the record of mlx-lm (tests/engines_at_hand) does not say: words, sources, bad files."""

import json
from pathlib import Path
from typing import Any

import pytest

import posenc_native as pn
from posenc_native.checkpoints.formats.published.mlx_models import VERSION, models
from posenc_native.checkpoints.formats.reading import read

RECORD = json.loads(
    (Path(__file__).parents[2] / "engines_at_hand" / "records" / "mlx.json").read_text("utf-8")
)
QWEN = {"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
        "num_hidden_layers": 2, "max_position_embeddings": 131072, "rope_theta": 1e6,
        "quantization": {"bits": 4}}  # fmt: skip
LLAMA = {**QWEN, "model_type": "llama"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


def test_every_row_was_run() -> None:
    """A row whose model type was not run would claim what nobody saw."""
    run = {
        answer["configuration"]["model_type"]
        for answer in RECORD["answers"].values()
        if "layers" in answer
    }
    assert {*models()} == run
    assert RECORD["version"] == VERSION


@pytest.mark.parametrize("model_type", ["a_new_model", None])
def test_a_model_that_was_not_run_is_unknown(model_type: str | None) -> None:
    ground = read({**QWEN, "model_type": model_type}, "explain").ground
    assert ground.kind == "unknown"
    assert "mlx-lm" in ground.why


# Configurations, and words of the remark about an entry that the engine ignores.
IGNORED: dict[str, tuple[dict[str, Any], str]] = {
    "parameters": ({**LLAMA, "rope_parameters": {"rope_theta": 5e5}}, "rope_parameters"),
    "a scaling": ({**QWEN, "model_type": "mixtral", "rope_scaling": YARN}, "rope_scaling"),
    "pairing": ({**QWEN, "rope_traditional": True}, "rope_traditional"),
    "a share": ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "truncate": ({**QWEN, "rope_scaling": {**YARN, "truncate": False}}, "truncate"),
    "a factor": ({**QWEN, "rope_scaling": {**YARN, "attention_factor": 1.0}}, "attention_factor"),
}


@pytest.mark.parametrize("name", IGNORED)
def test_ignored_entries_are_named(name: str) -> None:
    config, word = IGNORED[name]
    remarks = read(config, "explain").remarks
    assert any("does not read" in remark and word in remark for remark in remarks)


def test_a_misspelled_entry_is_named() -> None:
    entries = pn.explain({**LLAMA, "rope_scaling": {**YARN, "beta_fst": 16}}).unread
    assert any("beta_fst" in str(entry) for entry in entries)
    assert not pn.explain({**LLAMA, "rope_scaling": YARN}).unread


def test_a_default_base_is_unknown() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    unknown = read(config, "explain").unknown
    assert [(value.field, value.assumed) for value in unknown] == [
        ("base", "mlx-lm defaults to 10,000")
    ]


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_softmax_correction_of_latent_attention(weight: float) -> None:
    latent = {**QWEN, "model_type": "deepseek_v3", "qk_rope_head_dim": 16}
    scaling = {**YARN, "mscale": 1.0, "mscale_all_dim": weight}
    (group,) = read({**latent, "rope_scaling": scaling}, "explain").groups
    assert group.softmax_correction == pytest.approx((0.1 * weight * 1.3862943611 + 1) ** 2)


# Values that no model has.
BAD: dict[str, dict[str, Any]] = {
    "null base": {**LLAMA, "rope_theta": None},
    "null mscale": {**QWEN, "rope_scaling": {**YARN, "mscale": None}},
    "text for parameters": {**QWEN, "model_type": "laguna",
                            "rope_parameters": {"full_attention": "default"}},
    "short list": {**QWEN, "model_type": "afmoe", "layer_types": ["full_attention"]},
    "numbers for types": {**QWEN, "model_type": "afmoe", "layer_types": [1, 2]},
    "other letters": {**QWEN, "model_type": "exaone4", "sliding_window_pattern": "LX"},
    "text for a pattern": {**QWEN, "model_type": "gemma3_text", "sliding_window_pattern": "6"},
    "a list of texts": {**QWEN, "model_type": "lfm2", "full_attn_idxs": ["a"]},
    "a share above 1": {**QWEN, "model_type": "phi", "partial_rotary_factor": 1.5},
    "a huge share": {**QWEN, "model_type": "phi", "partial_rotary_factor": 1e300},
    "rotated dims": {**QWEN, "model_type": "minimax", "rotary_dim": 64},
    "no sizes": {"model_type": "qwen2", "rope_theta": 1e6, "quantization": {"bits": 4}},
    "an odd list of factors": {**QWEN, "rope_scaling": {**YARN, "rope_type": "longrope",
                               "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_errors(name: str) -> None:
    with pytest.raises((ValueError, TypeError), match="explain: "):
        pn.explain(BAD[name])
