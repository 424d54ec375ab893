"""Architectures in vLLM with the plugin and without, against transformers with exact angles."""

from __future__ import annotations

import pytest
from models import MODELS, NEEDED, made
from running import PROMPTS, errors, served

CLASSES = {
    "llama 3.1": "Llama3RotaryEmbedding",
    "yarn": "YaRNScalingRotaryEmbedding",
    "phi 3 long rope": "Phi3LongRoPEScaledRotaryEmbedding",
    "deepseek v3": "DeepseekScalingRotaryEmbedding",
    "qwen 2 vl": "MRotaryEmbedding",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_float32(folder, name, record_property):
    """Tokens as without the plugin; log-probabilities as in float64."""
    model = made(name, folder)
    options = {"dtype": "float32", **NEEDED.get(name, {})}
    ours, theirs = (served(model, plugin, **options) for plugin in (True, False))
    kind = CLASSES.get(name, "RotaryEmbedding")
    assert ours["classes"] == [f"Exact{kind}"]
    assert ours["calls"][f"Exact{kind}"] > 0
    assert ours["tables"] == []
    assert theirs["classes"] == [kind]
    assert theirs["tables"]
    assert f"posenc_native: exact angles and no table in a layer {kind}" in ours["log"]
    found = errors(model, PROMPTS, ours["runs"][0])
    before = errors(model, PROMPTS, theirs["runs"][0])
    record_property("errors", f"{max(found):.1e} with the plugin, {max(before):.1e} without")
    assert [x["tokens"] for x in ours["runs"][0]] == [x["tokens"] for x in theirs["runs"][0]]
    assert max(found) < 2e-4


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_bfloat16(folder, name, record_property):
    model = made(name, folder)
    options = {"dtype": "bfloat16", **NEEDED.get(name, {})}
    ours, theirs = (served(model, plugin, **options) for plugin in (True, False))
    found = errors(model, PROMPTS, ours["runs"][0])
    before = errors(model, PROMPTS, theirs["runs"][0])
    record_property("errors", f"{max(found):.1e} with the plugin, {max(before):.1e} without")
    assert max(found) < 2 * max(before)
