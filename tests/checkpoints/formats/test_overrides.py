"""What a server makes of overrides, as vLLM 0.32.0 and SGLang 0.5.23 did when they were run.

tests/engines_at_hand has the records; here are kinds in other sizes, and what explain says.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import posenc_native as pn

FLAT = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "max_position_embeddings": 8192,
}
SEEING = {
    "model_type": "qwen3_vl",
    "text_config": {
        **FLAT,
        "model_type": "qwen3_vl_text",
        "head_dim": 64,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {"depth": 1, "hidden_size": 32, "num_heads": 2},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
OLD = {"rope_theta": 3e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
NEW = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e5}}
HALF = {"rope_parameters": {"rope_theta": 3e5, "partial_rotary_factor": 0.5}}
QWEN3 = {"model_type": "qwen3", "head_dim": 64}


def served(engine: str, model: dict[str, Any], overrides: dict[str, Any]) -> Any:
    keys = {"vllm": ("model", "hf_overrides"), "sglang": ("model-path", "json-model-override-args")}
    name, changes = keys[engine]
    return pn.explain({name: model, changes: overrides})


# Engine, configuration, overrides -> base, scaling, rotated dims.
ROTATIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any], float, str, int]] = {
    "replaced": ("vllm", {**FLAT, **OLD}, {"rope_parameters": YARN}, 10000.0, "yarn", 64),
    "replaced, new form": ("vllm", {**FLAT, **NEW}, {"rope_parameters": YARN}, 10000.0, "yarn", 64),
    "replaced, a base": (
        "vllm", {**FLAT, **OLD}, {"rope_parameters": {**YARN, "rope_theta": 2e6}}, 2e6, "yarn", 64),
    "replaced, by the old name": (
        "vllm", {**FLAT, **NEW}, {"rope_scaling": YARN}, 10000.0, "yarn", 64),
    "replaced, a class with its own base": (
        "vllm", {**FLAT, **QWEN3, **OLD}, {"rope_parameters": YARN}, 1e6, "yarn", 64),
    "replaced, the share is lost": (
        "vllm", {**FLAT, **HALF}, {"rope_parameters": YARN}, 10000.0, "yarn", 64),
    "nothing": ("vllm", {**FLAT, **OLD}, {"rope_parameters": {}}, 10000.0, "", 64),
    "a base alone is ignored": ("vllm", {**FLAT, **OLD}, {"rope_theta": 2e6}, 3e5, "linear", 64),
    "a share": ("vllm", {**FLAT, **OLD}, {"partial_rotary_factor": 0.25}, 3e5, "linear", 16),
    "a share, beside one": ("vllm", {**FLAT, **HALF}, {"partial_rotary_factor": 0.25}, 3e5, "", 32),
    "a part, at the top": ("vllm", SEEING, {"rope_parameters": YARN}, 5e6, "", 64),
    "a part, its scaling at the top": ("vllm", SEEING, {"rope_scaling": YARN}, 5e6, "", 64),
    "a part, merged": (
        "vllm", SEEING, {"text_config": {"rope_parameters": YARN}}, 5e6, "yarn", 64),
    "a part, its base": (
        "vllm", SEEING, {"text_config": {"rope_parameters": {"rope_theta": 1e7}}}, 1e7, "", 64),
    "a part, its base in the old place": (
        "vllm", SEEING, {"text_config": {"rope_theta": 1e7}}, 5e6, "", 64),
    "SGLang merges": ("sglang", {**FLAT, **OLD}, {"rope_parameters": YARN}, 3e5, "yarn", 64),
    "SGLang merges nothing": (
        "sglang", {**FLAT, **OLD}, {"rope_parameters": {}}, 3e5, "linear", 64),
    "SGLang removes": ("sglang", {**FLAT, **OLD}, {"rope_parameters": None}, 10000.0, "", 64),
    "SGLang, a base alone": ("sglang", {**FLAT, **OLD}, {"rope_theta": 2e6}, 3e5, "linear", 64),
    "SGLang, a copy at the top": ("sglang", SEEING, {"rope_parameters": YARN}, 5e6, "yarn", 64),
    "SGLang, a part that it copied": (
        "sglang", SEEING, {"text_config": {"rope_parameters": YARN}}, 5e6, "", 64),
    "SGLang, a class that rotates the whole head": (
        "sglang", {**FLAT, **QWEN3, "partial_rotary_factor": 0.5, **OLD}, {}, 3e5, "linear", 64),
}  # fmt: skip


@pytest.mark.parametrize("name", ROTATIONS)
def test_overrides_do_what_the_engine_did(name: str) -> None:
    engine, model, overrides, base, scaling, dims = ROTATIONS[name]
    found = served(engine, model, overrides)
    rotary = found.layers[0].rotary
    assert rotary is not None
    assert (rotary.base, rotary.rotary_dim) == (base, dims)
    assert (rotary.scaling or {}).get("rope_type", "") == scaling
    assert found.description.ground.kind == "run", found.description.ground


REFUSED: dict[str, dict[str, Any]] = {
    "a base without a rope_type": {"rope_parameters": {"rope_theta": 1e6}},
    "the old name of rope_type": {"rope_parameters": {"type": "linear", "factor": 2.0}},
    "YaRN without the original length": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_overrides_with_which_vllm_does_not_start(name: str) -> None:
    with pytest.raises(ValueError, match="vLLM does not start"):
        served("vllm", {**FLAT, **NEW}, REFUSED[name])


SAID: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "no base": ("vllm", {**FLAT, **OLD}, {"rope_scaling": YARN}, "its own default, 10,000"),
    "base alone": ("vllm", {**FLAT, **OLD}, {"rope_theta": 2e6}, "inside rope_parameters"),
    "at the top": ("vllm", SEEING, {"rope_scaling": YARN}, "do not reach text_config"),
    "copied": ("sglang", SEEING, {"text_config": {"rope_theta": 1e6}}, "write them at the top"),
}


@pytest.mark.parametrize("name", SAID)
def test_explain_says_what_an_override_does(name: str) -> None:
    engine, model, overrides, words = SAID[name]
    assert any(words in text for text in served(engine, model, overrides).warnings)


@pytest.mark.parametrize(("length", "first"), [(1024, 1.0), (2048, 1.0), (2049, 8.0), (None, 8.0)])
def test_vllm_takes_one_list_of_longrope_for_all(length: int | None, first: float) -> None:
    factors = {"short_factor": [1.0] * 32, "long_factor": [8.0] * 32}
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 2048, **factors}
    launch = {"model": {**FLAT, "rope_theta": 1e4, "rope_scaling": scaling}, "hf_overrides": {}}
    rotary = pn.explain({**launch, "max_model_len": length}).layers[0].rotary
    assert rotary is not None
    assert rotary.inv_freq[0] == 1 / first
    assert math.isclose(rotary.scale, math.sqrt(1 + math.log(4) / math.log(2048)))


def test_models_that_were_not_run_are_unknown() -> None:
    found = served("vllm", {**FLAT, "model_type": "olmo2", "rope_theta": 1e4}, {})
    assert found.description.ground.kind == "unknown"
    assert "olmo2" in found.description.ground.why


TWICE = '{"rope_theta": 1e6, "rope_theta": 2e6}'


@pytest.mark.parametrize("key", ["overrides", "hf_overrides", "json_model_override_args"])
@pytest.mark.parametrize("function", [pn.explain, lambda source: pn.compare(source, "llama-3.1")])
def test_a_name_twice_in_overrides(key: str, function: Any, tmp_path: Path) -> None:
    """The last value was taken in silence; older tests have the name twice in a file."""
    model = {**FLAT, **NEW}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model))
    sources: dict[str, Any] = {
        "overrides": f"{path}+{TWICE}",
        "hf_overrides": {"model": model, "hf_overrides": TWICE},
        "json_model_override_args": {"model_path": model, "json_model_override_args": TWICE},
    }
    with pytest.raises(ValueError, match=rf"{key}.*: expected each name once, got 'rope_theta'"):
        function(sources[key])
    assert pn.explain(f"{path}+{TWICE.replace('2e6', '1e6')}").layers[0].base == 1e6


@pytest.mark.parametrize("override", [{}, {"rope_parameters": YARN}])
@pytest.mark.parametrize("kind", [[], {}, [None], 5])
@pytest.mark.parametrize(
    ("model", "overrides"), [("model", "hf_overrides"), ("model-path", "json-model-override-args")]
)
def test_a_type_of_model_may_be_anything(model, overrides, kind, override):
    """The rules of servers are found by it."""
    with pytest.raises(TypeError, match=r"config\['model_type'\]: expected a str"):
        pn.explain({model: {**FLAT, "model_type": kind}, overrides: override})


def test_a_dynamic_scaling_without_a_factor_is_an_error():
    scaling = {"rope_type": "dynamic", "rope_theta": 1e4}
    with pytest.raises(ValueError, match=r"\['factor'\]: expected a value"):
        pn.explain({"model-path": {**FLAT, "rope_parameters": scaling}})
