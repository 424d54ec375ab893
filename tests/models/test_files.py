"""Configuration files: older ones, keys of their own, paths, errors."""

import json

import numpy as np
import pytest
from hf_configurations import classes
from model_configurations import LLAMA3, LONGROPE, SIZES, YARN
from posenc_native.rotary import nope_layers

from posenc_native import Rotary, explain
from posenc_native.core.frequencies.scaling import rotary_frequencies
from posenc_native.models.config import Configuration, rotary_arguments

# Older configurations, as files of the Hub have them.
LEGACY = {
    "llama 1": ({"model_type": "llama", **SIZES}, {"base": 1e4, "scaling": None}),
    "llama 2": ({"model_type": "llama", **SIZES, "rope_scaling": None},
                {"head_dim": 64, "rotary_dim": 64, "base": 1e4, "scaling": None}),
    "llama 3.1": ({"model_type": "llama", **SIZES, "rope_theta": 500000.0, "rope_scaling": LLAMA3},
                  {"base": 500000.0, "scaling": LLAMA3}),
    "linear": ({**SIZES, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
               {"scaling": {"rope_type": "linear", "factor": 2.0}}),
    "dynamic": ({**SIZES, "max_position_embeddings": 2048,
                 "rope_scaling": {"type": "dynamic", "factor": 2.0}},
                {"scaling": {"rope_type": "dynamic", "factor": 2.0,
                             "max_position_embeddings": 2048}}),
    "deepseek v3": ({"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128,
                     "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "rope_theta": 10000,
                     "rope_scaling": {"type": "yarn", "factor": 40,
                                      "original_max_position_embeddings": 4096}},
                    {"head_dim": 64, "rotary_dim": 64, "pairing": "interleaved",
                     "scaling": {"rope_type": "yarn", "factor": 40,
                                 "original_max_position_embeddings": 4096}}),
    "kimi k2": ({"model_type": "kimi_k2", "qk_rope_head_dim": 64, "rope_theta": 50000.0},
                {"head_dim": 64, "pairing": "interleaved", "base": 50000.0}),
    "qwen2.5-omni": ({"thinker_config": {"text_config": {"model_type": "qwen2_5_omni_text", **SIZES,
                                                         "hidden_size": 512, "rope_theta": 1e6}}},
                     {"head_dim": 128, "base": 1e6}),
    "phi-3": ({"model_type": "phi3", **SIZES, "rope_theta": 1e4,
               "rope_scaling": {**LONGROPE, "type": "su"}, "max_position_embeddings": 131072,
               "original_max_position_embeddings": 4096},
              {"scaling": {**{key: LONGROPE[key] for key in ("short_factor", "long_factor")},
                           "rope_type": "longrope", "max_position_embeddings": 131072,
                           "original_max_position_embeddings": 4096}}),
    "pythia": ({"model_type": "gpt_neox", **SIZES, "rotary_pct": 0.25, "rotary_emb_base": 10000},
               {"head_dim": 64, "rotary_dim": 16, "pairing": "half"}),
    "phi-2": ({"model_type": "phi", **SIZES, "partial_rotary_factor": 0.4, "hidden_size": 320},
              {"head_dim": 80, "rotary_dim": 32}),
    "gpt-j": ({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64},
              {"head_dim": 256, "rotary_dim": 64, "pairing": "interleaved", "base": 1e4}),
    "minimax": ({"model_type": "minimax_m2", **SIZES, "head_dim": 128, "rotary_dim": 64,
                 "rope_theta": 5e6},
                {"head_dim": 128, "rotary_dim": 64, "base": 5e6}),
    "qwen2-vl": ({"model_type": "qwen2_vl", **SIZES, "rope_theta": 1e6,
                  "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}},
                 {"scaling": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGACY)
def test_older_configurations(name):
    config, expected = LEGACY[name]
    arguments = rotary_arguments(config)
    assert {key: arguments[key] for key in expected} == expected
    rotary_frequencies(arguments["rotary_dim"], arguments["base"], arguments["scaling"])


def test_odd_share_and_backward_turn():
    odd = Rotary.from_config({"head_dim": 42, "rope_theta": 1e4, "partial_rotary_factor": 0.5})
    np.testing.assert_allclose(odd.inv_freq, 1e4 ** -(np.arange(0, 21, 2) / 21), rtol=1e-15)
    backward = Rotary.from_config({"model_type": "nanochat", **SIZES})
    np.testing.assert_array_equal(backward.inv_freq, -Rotary(64).inv_freq)


def test_older_gemma3():
    config = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            **SIZES,
            "head_dim": 256,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    }
    full, sliding = (rotary_arguments(config, f"{kind}_attention") for kind in ("full", "sliding"))
    assert (full["base"], full["scaling"]) == (1e6, {"rope_type": "linear", "factor": 8.0})
    assert (sliding["base"], sliding["scaling"]) == (1e4, None)


# Files with keys of their own, which the class takes apart.
PECULIAR = {
    "gemma4_text": {"head_dim": 256, "global_head_dim": 384, "num_hidden_layers": 6},
    "gemma4_unified_text": {"head_dim": 256, "num_hidden_layers": 6},
    "embedding_gemma2_text": {"head_dim": 256, "num_hidden_layers": 6},
    "gemma3n_text": {"rope_theta": 2e6, "rope_local_base_freq": 2e4},
    "olmo3": {"rope_scaling": {**YARN, "rope_theta": 5e5}},
    "modernbert": {"global_rope_theta": 1e6, "local_rope_theta": 5e4,
                   "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "deepseek_v4": {"head_dim": 512, "qk_rope_head_dim": 128, "num_hidden_layers": 4,
                    "compress_ratios": [0, 4, 128, 4, 0], "rope_theta": 2e4,
                    "compress_rope_theta": 1.5e5,
                    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                                     "original_max_position_embeddings": 65536}},
    "minimax_m2": {"rotary_dim": 64, "head_dim": 128, "rope_theta": 5e6},
}  # fmt: skip


@pytest.mark.parametrize("model_type", PECULIAR)
def test_keys_of_their_own_as_in_transformers(model_type):
    values = {**PECULIAR[model_type], "max_position_embeddings": 131072}
    config = classes()[model_type](**json.loads(json.dumps(values)))
    sizes = ("head_dim", "hidden_size", "num_attention_heads", "num_hidden_layers")
    bare = {"model_type": model_type, **{key: config.to_dict().get(key) for key in sizes}, **values}
    types = [key for key, value in config.rope_parameters.items() if isinstance(value, dict)]
    for layer_type in types or [None]:
        expected, given = (Rotary.from_config(form, layer_type) for form in (config, bare))
        np.testing.assert_array_equal(given.inv_freq, expected.inv_freq)
        for name in ("head_dim", "scale", "pairing", "rotary_start"):
            assert getattr(given, name) == getattr(expected, name), name
    if model_type == "deepseek_v4":
        assert Configuration.read(bare, "explain").layer_types == tuple(config.layer_types)
        compressed = Rotary.from_config(bare, layer=1)
        assert compressed == Rotary.from_config(bare, "compress")
        assert compressed != Rotary.from_config(bare, layer=0) == Rotary.from_config(bare, "main")
        assert (compressed.rotary_start, compressed.scale) == (384, 1.0)


def test_trailing_slice():
    layer = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.125}
    config = {
        "model_type": "deepseek_v4",
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "rope_parameters": {"main": layer, "compress": {**layer, "rope_theta": 160000.0}},
    }
    arguments = rotary_arguments(config, "compress")
    assert (arguments["rotary_start"], arguments["rotary_dim"]) == (448, 64)
    assert arguments["base"] == 160000.0


def test_a_path_is_read(tmp_path):
    config, _ = LEGACY["llama 3.1"]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    for path in (file, str(file), tmp_path):
        assert rotary_arguments(path) == rotary_arguments(config)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="Expecting"):
        rotary_arguments(file)
    with pytest.raises(OSError, match="nowhere"):
        rotary_arguments(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("error", "match", "config"),
    [
        (TypeError, "config: expected a configuration object", 7),
        (ValueError, "configuration of t5 without one", {"model_type": "t5", **SIZES}),
        (ValueError, "with a rotary encoding, got bert", {"model_type": "bert", "rope_theta": 1e4}),
        (ValueError, "'num_attention_heads'", {"hidden_size": 64, "rope_theta": 1e4}),
        (ValueError, "'hidden_size'", {"num_attention_heads": 4, "rope_theta": 1e4}),
        (ValueError, "'num_attention_heads'", {**SIZES, "num_attention_heads": 0, "rope_theta": 1}),
        (ValueError, "'head_dim'", {"head_dim": 63, "rope_theta": 1e4}),
        (ValueError, "'rope_theta'", {"head_dim": 64, "rope_theta": -1}),
        (TypeError, "'rope_theta'", {"head_dim": 64, "rope_theta": "10000"}),
        (TypeError, "'rope_scaling'", {"head_dim": 64, "rope_scaling": "linear"}),
        (ValueError, "'type'.*axial", {"head_dim": 64, "rope_scaling": {"type": "axial"}}),
        (ValueError, "'partial_", {"head_dim": 64, "rope_theta": 1, "partial_rotary_factor": 2.0}),
        (ValueError, "'head_dim'.*2 dims", {"head_dim": 1, "rope_theta": 1}),
        (ValueError, "'mrope_", {"head_dim": 64, "rope_scaling": {"mrope_section": [8, 8, 8]}}),
        (ValueError, "'mrope_", {"head_dim": 64, "rope_scaling": {"mrope_section": [16, 16]}}),
        (ValueError, "'model_type'.*axes", {"model_type": "hunyuan_vl_text", **SIZES}),
        (ValueError, "'model_type'.*images", {"image_size": 224, "rope_theta": 100.0}),
    ],
)
def test_bad_configurations(error, match, config):
    with pytest.raises(error, match=match):
        rotary_arguments(config)


@pytest.mark.parametrize(
    ("place", "rest", "config"),
    [
        ("['rope_scaling']['rope_type']", "got lama3; did you mean 'llama3'?",
         {"rope_scaling": {"rope_type": "lama3", "factor": 8.0}}),
        ("['rope_scaling']['type']", "got linea; did you mean 'linear'?",
         {"rope_scaling": {"type": "linea"}}),
        ("['rope_scaling']['factor']", "got str",
         {"rope_scaling": {"type": "yarn", "factor": "8"}}),
        ("['rope_parameters']['rope_theta']", "got -1.0",
         {"rope_parameters": {"rope_theta": -1.0}}),
        ("['rope_parameters']['full_attention']['rope_type']", "did you mean 'yarn'?",
         {"rope_parameters": {"full_attention": {"rope_type": "yarm", "rope_theta": 1e4}}}),
        ("['rope_parameters']['full_attention']['factor']", "got list",
         {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": [1]}}}),
        ("['per_layer_config']['1']['head_dim']", "got str '8'",
         {"per_layer_config": {"1": {"head_dim": "8"}}}),
    ],
)  # fmt: skip
def test_an_error_names_the_place_of_a_parameter(place, rest, config):
    """Not config['factor'], which the file does not have."""
    with pytest.raises((ValueError, TypeError)) as caught:
        rotary_arguments({"head_dim": 64, "rope_theta": 1e4, **config})
    assert str(caught.value).startswith(f"Rotary.from_config: config{place}: expected ")
    assert rest in str(caught.value)


def test_a_head_that_no_entry_gives_is_not_named():
    """The width of a head is then that of the model over the number of heads."""
    entries = {"hidden_size": 512, "num_attention_heads": 7, "rope_theta": 1e4}
    with pytest.raises(
        ValueError, match=r"config\['hidden_size'\]: expected an even int"
    ) as caught:
        rotary_arguments(entries)
    said = "hidden_size // num_attention_heads, got 512 // 7 = 73; if a head has another width, add"
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
        ("x", (120).to_bytes(8, "little") + b'{"a":{"dtype":"F32"'.ljust(120)),
        ("x", b"PK\x03\x04" + bytes(range(128, 256))),  # torch.save, a zip file
        ("x", b"\x80\x02\x8a\nl\xfc"),  # and a pickle, before torch 1.6
    ],
)
def test_a_file_of_weights_is_told_from_a_configuration(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    for function in (Rotary.from_config, explain):
        with pytest.raises(ValueError, match=r"got a file of weights; give its config\.json or"):
            function(tmp_path / name)


def test_a_folder_named_as_weights_is_read(tmp_path):
    (tmp_path / "model.pt").mkdir()
    (tmp_path / "model.pt/config.json").write_text(json.dumps({"head_dim": 8, "rope_theta": 1e4}))
    assert Rotary.from_config(tmp_path / "model.pt").head_dim == 8


FUNCTIONS = {"Rotary.from_config": Rotary.from_config, "explain": explain}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_name_the_function_that_was_called(name):
    for error, config in [
        (TypeError, 7),
        (ValueError, {"model_type": "gpt2", "n_embd": 64, "n_head": 2}),
        (ValueError, {"model_type": "falcon", "alibi": True}),
        (ValueError, {"head_dim": 64, "rope_theta": -1}),
        (ValueError, {"hidden_size": 64, "rope_theta": 1e4}),
        (ValueError, {"head_dim": 64, "rope_scaling": {"type": "nonsense"}}),
        (TypeError, {"head_dim": 64, "rope_scaling": "linear"}),
        (TypeError, {"head_dim": 64, "rope_theta": 1e4, "no_rope_layers": 4}),
    ]:
        with pytest.raises(error, match=rf"^{name}: config(\[|:)"):
            FUNCTIONS[name](config)
    for bad in (7, {"head_dim": 64, "no_rope_layers": 4}):
        with pytest.raises(TypeError, match=r"^nope_layers: config(\[|:)"):
            nope_layers(bad)


@pytest.mark.parametrize("model_type", ["distilbert", "t5"])
def test_models_without_any_rotary_encoding_are_told_what_was_looked_for(model_type):
    config = classes()[model_type](num_hidden_layers=4)
    looked_for = r"\(rope_parameters, rope_scaling, rope_theta, .*rotary_dim\)"
    match = f"config: .*{looked_for}, got a configuration of {model_type} without one"
    for given in (config, config.to_dict()):
        with pytest.raises(ValueError, match=match):
            Rotary.from_config(given)
        with pytest.raises(ValueError, match=match):
            Rotary.from_config(given, layer=3)
        with pytest.raises(ValueError, match=match):
            explain(given)


@pytest.mark.parametrize(
    "model_type", ["apertus", "cwm", "gemma3_text", "gpt_oss", "llama", "ministral3", "qwen3"]
)
def test_a_factor_without_a_type_scales_nothing(model_type):
    """As in transformers, whose class takes the type "default"."""
    file = {**SIZES, "head_dim": 64, "num_hidden_layers": 6, "rope_scaling": {"factor": 2.0}}
    config = classes()[model_type](**json.loads(json.dumps(file)))
    parameters = config.rope_parameters
    entries = {k: v for k, v in parameters.items() if isinstance(v, dict)} or {None: parameters}
    for layer_type, entry in entries.items():
        assert entry["rope_type"] == "default"
        ours = Rotary.from_config({"model_type": model_type, **file}, layer_type)
        assert ours == Rotary(64, base=entry["rope_theta"])


def test_an_entry_of_none_is_layers_without_rotary_encoding():
    parameters = {"full_attention": None, "sliding_attention": {"rope_theta": 1e4}}
    config = {"head_dim": 64, "rope_parameters": parameters}
    with pytest.raises(ValueError, match=r"layers with a rotary .*type full_attention \(NoPE\)"):
        rotary_arguments(config, "full_attention")
    assert rotary_arguments(config)["base"] == 1e4


def test_flat_parameters_hold_for_every_layer_type():
    config = {"head_dim": 64, "rope_theta": 1e4, "layer_types": ["full_attention"]}
    assert rotary_arguments(config, "full_attention") == rotary_arguments(config)
    with pytest.raises(ValueError, match="layer_type"):
        rotary_arguments(config, "sliding_attention")


def test_a_gguf_file_is_sent_to_explain(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(16))
    with pytest.raises(ValueError, match="got a GGUF file, which explain and compare read"):
        Rotary.from_config(tmp_path / "model.gguf")
