"""Configurations against the models of transformers: what they compute decides."""

import importlib
import json

import numpy as np
import pytest

from posenc_native import config as configurations
from posenc_native import reference
from posenc_native.config import rotary_arguments
from posenc_native.frequencies import rotary_frequencies

ORACLE = "the models of transformers are the oracle of the configurations"

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + i / 32 for i in range(32)],
    "long_factor": [2.0 + i for i in range(32)],
}

# Folder in transformers.models, prefix of its classes, arguments of the configuration.
MODELS = {
    "llama": ("llama", "Llama", {}),
    "llama 3": ("llama", "Llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    "llama with a head_dim": ("llama", "Llama", {"head_dim": 32}),
    "qwen2": ("qwen2", "Qwen2", {"rope_theta": 1e6, "rope_parameters": YARN}),
    "qwen3": ("qwen3", "Qwen3", {"head_dim": 128}),
    "mistral": ("mistral", "Mistral", {"rope_theta": 1e6}),
    "gemma": ("gemma", "Gemma", {"head_dim": 64}),
    "phi": ("phi", "Phi", {}),
    "phi3": (
        "phi3",
        "Phi3",
        {
            "rope_scaling": LONGROPE,
            "original_max_position_embeddings": 4096,
            "max_position_embeddings": 131072,
            "pad_token_id": 0,
        },
    ),
    "gpt_neox": ("gpt_neox", "GPTNeoX", {}),
    "gpt_neox, whole head": ("gpt_neox", "GPTNeoX", {"rotary_pct": 1.0, "rotary_emb_base": 5e4}),
    "stablelm": ("stablelm", "StableLm", {}),
    "gpt_oss": ("gpt_oss", "GptOss", {"head_dim": 64}),
    "cohere": ("cohere", "Cohere", {}),
    "glm": ("glm", "Glm", {"head_dim": 64, "pad_token_id": 0}),
    "helium": ("helium", "Helium", {"head_dim": 64}),
    "ernie4_5": ("ernie4_5", "Ernie4_5", {}),
}


def transformers_classes(folder, prefix):
    """The configuration class and the modeling module of a model."""
    pytest.importorskip("transformers", reason=ORACLE)
    module = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
    modeling = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    return getattr(module, f"{prefix}Config"), modeling


def rotate(x, arguments):
    """x [b, h, s, head_dim], tokens at 0, 1 ..., rotated by the reference."""
    inv_freq, attention_factor = rotary_frequencies(
        arguments["rotary_dim"], arguments["base"], arguments["scaling"]
    )
    assert x.shape[-1] == arguments["head_dim"]
    return reference.apply_rotary(
        x,
        None,
        inv_freq,
        "bhsd",
        arguments["pairing"],
        arguments["rotary_start"],
        None,
        attention_factor,
        False,
        None,
    )


def rotate_by_transformers(x, rotary, apply, **options):
    import torch

    positions = torch.arange(x.shape[2])[None]
    tensor = torch.from_numpy(x)
    cos, sin = rotary(tensor, positions, **options)
    width = cos.shape[-1] if cos.shape[-1] <= x.shape[-1] else x.shape[-1]
    if apply.__module__.endswith("gpt_oss"):  # its tables have one value a pair
        width *= 2
    rotated, _ = apply(tensor[..., :width], tensor[..., :width], cos, sin)
    return np.concatenate([rotated.numpy(), x[..., width:]], axis=-1)


@pytest.mark.parametrize("name", MODELS)
def test_arguments_rotate_as_the_model_does(name):
    folder, prefix, options = MODELS[name]
    config_class, modeling = transformers_classes(folder, prefix)
    config = config_class(**SIZES, **json.loads(json.dumps(options)))
    arguments = rotary_arguments(config)
    assert arguments["axis_map"] is None

    x = np.random.default_rng(0).standard_normal((1, 2, 9, arguments["head_dim"]), np.float32)
    rotary = getattr(modeling, f"{prefix}RotaryEmbedding")(config)
    expected = rotate_by_transformers(x, rotary, modeling.apply_rotary_pos_emb)
    np.testing.assert_allclose(rotate(x, arguments), expected, atol=2e-5)


def test_gptj_rotates_as_the_model_does():
    torch = pytest.importorskip("torch", reason=ORACLE)
    config_class, modeling = transformers_classes("gptj", "GPTJ")
    arguments = rotary_arguments(config_class(n_embd=256, n_head=2, rotary_dim=64))
    assert (arguments["head_dim"], arguments["rotary_dim"]) == (128, 64)

    x = np.random.default_rng(0).standard_normal((1, 2, 9, 128), np.float32)
    sin, cos = torch.split(modeling.create_sinusoidal_positions(9, 64)[None], 32, dim=-1)
    by_token = torch.from_numpy(x[..., :64]).transpose(1, 2)
    rotated = modeling.apply_rotary_pos_emb(by_token, sin, cos).transpose(1, 2).numpy()
    expected = np.concatenate([rotated, x[..., 64:]], axis=-1)
    np.testing.assert_allclose(rotate(x, arguments), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("folder", "prefix", "options"),
    [("gemma3", "Gemma3", {"head_dim": 64}), ("gemma4", "Gemma4", {"head_dim": 64})],
)
@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
def test_nested_parameters_rotate_as_the_model_does(folder, prefix, options, layer_type):
    config_class, modeling = transformers_classes(folder, f"{prefix}Text")
    config = config_class(**{**SIZES, "num_hidden_layers": 12}, **options)
    arguments = rotary_arguments(config, layer_type)
    x = np.random.default_rng(0).standard_normal((1, 2, 9, arguments["head_dim"]), np.float32)
    candidates = [f"{prefix}RotaryEmbedding", f"{prefix}TextRotaryEmbedding"]
    rotary = next(getattr(modeling, c) for c in candidates if hasattr(modeling, c))(config)
    apply = modeling.apply_rotary_pos_emb
    if folder == "gemma4":  # takes one tensor

        def apply(q, k, cos, sin):
            return modeling.apply_rotary_pos_emb(q, cos, sin), None

        apply.__module__ = modeling.__name__
    expected = rotate_by_transformers(x, rotary, apply, layer_type=layer_type)
    np.testing.assert_allclose(rotate(x, arguments), expected, atol=2e-5)
    with pytest.raises(ValueError, match="layer_type: expected one of"):
        rotary_arguments(config)
    with pytest.raises(ValueError, match="layer_type: expected one of"):
        rotary_arguments(config, "chunked_attention")


@pytest.mark.parametrize(
    ("folder", "prefix", "text"),
    [
        ("qwen2_vl", "Qwen2VL", "Qwen2VLText"),
        ("qwen2_5_vl", "Qwen2_5_VL", "Qwen2_5_VLText"),
        ("qwen3_vl", "Qwen3VLText", "Qwen3VLText"),
        ("qwen3_5", "Qwen3_5Text", "Qwen3_5Text"),
        ("glm_ocr", "GlmOcrText", "GlmOcrText"),
        ("glm4v_moe", "Glm4vMoeText", "Glm4vMoeText"),
    ],
)
def test_position_axes_as_in_the_model(folder, prefix, text):
    torch = pytest.importorskip("torch", reason=ORACLE)
    config_class, modeling = transformers_classes(folder, text)
    counts = {**configurations.SECTIONS, **configurations.ALTERNATING_SECTIONS}
    pairs = sum(counts[config_class.model_type])
    share = configurations.ROTARY_SHARE.get(config_class.model_type, 1.0)
    parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
    config = config_class(**SIZES, head_dim=int(2 * pairs / share), rope_parameters=parameters)
    arguments = rotary_arguments(config)
    rotary = getattr(modeling, f"{prefix}RotaryEmbedding")(config)
    axes = torch.arange(3.0)[:, None, None, None].repeat(1, 1, 1, pairs)
    by_dim = rotary.recomposition_frequencies(axes).flatten().numpy()
    expected = by_dim[::2] if arguments["pairing"] == "interleaved" else by_dim[:pairs]
    np.testing.assert_array_equal(arguments["axis_map"], expected)


# Older configurations, as files of the Hub have them.
LEGACY = {
    "llama 1": ({"model_type": "llama", **SIZES}, {"base": 1e4, "scaling": None}),
    "llama 2": (
        {"model_type": "llama", **SIZES, "rope_scaling": None},
        {"head_dim": 64, "rotary_dim": 64, "base": 1e4, "scaling": None},
    ),
    "llama 3.1": (
        {"model_type": "llama", **SIZES, "rope_theta": 500000.0, "rope_scaling": LLAMA3},
        {"base": 500000.0, "scaling": LLAMA3},
    ),
    "linear": (
        {**SIZES, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    "dynamic": (
        {
            **SIZES,
            "max_position_embeddings": 2048,
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
        },
        {"scaling": {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 2048}},
    ),
    "deepseek v3": (
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "num_attention_heads": 128,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "rope_interleave": True,
            "rope_theta": 10000,
            "rope_scaling": {
                "type": "yarn",
                "factor": 40,
                "original_max_position_embeddings": 4096,
            },
        },
        {
            "head_dim": 64,
            "rotary_dim": 64,
            "pairing": "interleaved",
            "scaling": {
                "rope_type": "yarn",
                "factor": 40,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
    "phi-3": (
        {
            "model_type": "phi3",
            **SIZES,
            "rope_theta": 1e4,
            "rope_scaling": {**LONGROPE, "type": "su"},
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
        },
        {
            "scaling": {
                **{key: LONGROPE[key] for key in ("short_factor", "long_factor")},
                "rope_type": "longrope",
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
            }
        },
    ),
    "pythia": (
        {"model_type": "gpt_neox", **SIZES, "rotary_pct": 0.25, "rotary_emb_base": 10000},
        {"head_dim": 64, "rotary_dim": 16, "pairing": "half"},
    ),
    "phi-2": (
        {"model_type": "phi", **SIZES, "partial_rotary_factor": 0.4, "hidden_size": 320},
        {"head_dim": 80, "rotary_dim": 32},
    ),
    "gpt-j": (
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64},
        {"head_dim": 256, "rotary_dim": 64, "pairing": "interleaved", "base": 1e4},
    ),
    "minimax": (
        {"model_type": "minimax_m2", **SIZES, "head_dim": 128, "rotary_dim": 64, "rope_theta": 5e6},
        {"head_dim": 128, "rotary_dim": 64, "base": 5e6},
    ),
    "qwen2-vl": (
        {
            "model_type": "qwen2_vl",
            **SIZES,
            "rope_theta": 1e6,
            "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        },
        {"scaling": None},
    ),
}


@pytest.mark.parametrize("name", LEGACY)
def test_older_configurations(name):
    config, expected = LEGACY[name]
    arguments = rotary_arguments(config)
    assert {key: arguments[key] for key in expected} == expected
    rotary_frequencies(arguments["rotary_dim"], arguments["base"], arguments["scaling"])


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
        (ValueError, "'rope_parameters'.*none of them", {"model_type": "bert", **SIZES}),
        (ValueError, "'num_attention_heads'", {"hidden_size": 64, "rope_theta": 1e4}),
        (ValueError, "'hidden_size'", {"num_attention_heads": 4, "rope_theta": 1e4}),
        (ValueError, "'num_attention_heads'", {**SIZES, "num_attention_heads": 0, "rope_theta": 1}),
        (ValueError, "'head_dim'", {"head_dim": 63, "rope_theta": 1e4}),
        (ValueError, "'rope_theta'", {"head_dim": 64, "rope_theta": -1}),
        (TypeError, "'rope_theta'", {"head_dim": 64, "rope_theta": "10000"}),
        (TypeError, "'rope_scaling'", {"head_dim": 64, "rope_scaling": "linear"}),
        (ValueError, "'rope_type'.*axial", {"head_dim": 64, "rope_scaling": {"type": "axial"}}),
        (ValueError, "'partial_", {"head_dim": 64, "rope_theta": 1, "partial_rotary_factor": 2.0}),
        (ValueError, "'partial_", {"head_dim": 42, "rope_theta": 1, "partial_rotary_factor": 0.5}),
        (ValueError, "'mrope_", {"head_dim": 64, "rope_scaling": {"mrope_section": [8, 8, 8]}}),
        (ValueError, "'mrope_", {"head_dim": 64, "rope_scaling": {"mrope_section": [16, 16]}}),
        (ValueError, "'model_type'.*length", {"model_type": "phimoe", **SIZES}),
        (ValueError, "'model_type'.*images", {"image_size": 224, "rope_theta": 100.0}),
    ],
)
def test_bad_configurations(error, match, config):
    with pytest.raises(error, match=match):
        rotary_arguments(config)


def test_layers_without_rotary_encoding_are_unknown():
    parameters = {"full_attention": None, "sliding_attention": {"rope_theta": 1e4}}
    config = {"head_dim": 64, "rope_parameters": parameters}
    with pytest.raises(ValueError, match="layer_type: expected one of sliding_attention, got full"):
        rotary_arguments(config, "full_attention")
    assert rotary_arguments(config)["base"] == 1e4


def test_flat_parameters_hold_for_every_layer_type():
    config = {"head_dim": 64, "rope_theta": 1e4, "layer_types": ["full_attention"]}
    assert rotary_arguments(config, "full_attention") == rotary_arguments(config)
    with pytest.raises(ValueError, match="layer_type"):
        rotary_arguments(config, "sliding_attention")


@pytest.mark.parametrize("table", ["ROTARY_SHARE", "BASE"])
def test_tables_have_the_defaults_of_transformers(table):
    transformers = pytest.importorskip("transformers", reason="its classes have the defaults")
    key = {"ROTARY_SHARE": "partial_rotary_factor", "BASE": "rope_theta"}[table]
    for model_type, expected in getattr(configurations, table).items():
        parameters = transformers.AutoConfig.for_model(model_type).rope_parameters
        assert parameters.get("full_attention", parameters)[key] == expected, model_type
        if table == "BASE" and model_type in configurations.LOCAL_BASE:
            local = configurations.LOCAL_BASE[model_type]
            assert parameters["sliding_attention"][key] == local, model_type


def test_model_types_of_the_tables_exist():
    transformers = pytest.importorskip("transformers", reason="it knows the model types")
    named = set(configurations.INTERLEAVED) | configurations.TRAILING
    for table in (configurations.SECTIONS, configurations.ALTERNATING_SECTIONS):
        named |= set(table)
    known = set(transformers.CONFIG_MAPPING)
    assert named | set(configurations.REFUSED) <= known
