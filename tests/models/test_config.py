"""Configurations against the models of transformers: what they compute decides."""

import functools
import importlib
import importlib.util
import inspect
import json
from pathlib import Path

import numpy as np
import outside
import pytest
from hf_configurations import classes, language_configs

from posenc_native import Rotary, explain, model_facts, nope_layers, reference, vision_rotary
from posenc_native.config import Configuration, rotary_arguments
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


def test_codegen_rotates_as_the_model_does():
    torch = pytest.importorskip("torch", reason=ORACLE)
    config_class, modeling = transformers_classes("codegen", "CodeGen")
    arguments = rotary_arguments(config_class(n_embd=256, n_head=2, rotary_dim=64))
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 128), np.float32)
    sin, cos = torch.split(modeling.create_sinusoidal_positions(9, 64)[None], 32, dim=-1)
    by_token = torch.from_numpy(x[..., :64]).transpose(1, 2)
    rotated = modeling.apply_rotary_pos_emb(by_token, sin, cos).transpose(1, 2).numpy()
    expected = np.concatenate([rotated, x[..., 64:]], axis=-1)
    np.testing.assert_allclose(rotate(x, arguments), expected, atol=2e-5)


def test_roformer_rotates_as_the_model_does():
    torch = pytest.importorskip("torch", reason=ORACLE)
    config_class, modeling = transformers_classes("roformer", "RoFormer")
    arguments = rotary_arguments(config_class(**SIZES))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 2, 9, 64), np.float32))
    table = modeling.RoFormerSinusoidalPositionalEmbedding(9, 64).create_weight()[None, None]
    apply = modeling.RoFormerSelfAttention.apply_rotary_position_embeddings
    expected, _ = apply(table, x, x)
    np.testing.assert_allclose(rotate(x.numpy(), arguments), expected, atol=2e-5)


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


# Every model of transformers that rotates: what its configuration class, its rotary module and its
# function to apply them do, against what Rotary.from_config does.

ARGUMENTS = {
    "esm": {"position_embedding_type": "rotary"},
    "glm4v": {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4}},
    "glm4v_moe": {"head_dim": 128},
    "glm_image": {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4}},
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "qwen3_omni_moe": {"head_dim": 128},
    "zamba2": {"use_mem_rope": True},
    "cohere_compass": {
        "layer_types": ["full_attention", "sliding_attention"],
        "num_hidden_layers": 2,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
    },
}
# Modules that rotate something other than the heads of a language or speech model by a position
# each, or that model_facts.REFUSED names.
OTHERS = {
    "blt": "its parts have configurations of their own",
    "clvp": "rotates by a module without a configuration of its own",
    "efficientloftr": "matches images",
    "eomt_dinov3": "sees images",
    "esmfold2": "folds proteins",
    "hunyuan_vl": "refused",
    "mistral_large4": "refused",
    "mlcd": "sees images",
    "musicflamingo": "rotates by time in seconds, before its language model",
    "nemotron3_diarization": "its parts have configurations of their own",
    "sam3": "sees images",
    "seamless_m4t": "rotates by a module without a configuration of its own",
    "wav2vec2_bert": "rotates by a module without a configuration of its own",
    "wav2vec2_conformer": "rotates by a module without a configuration of its own",
}


# Where the annotation of a rotary module names a configuration that it is never given.
CONFIGURATIONS = {
    "DiaRotaryEmbedding": "DiaDecoderConfig",
    "Qwen2_5OmniRotaryEmbedding": "Qwen2_5OmniTextConfig",
    "Qwen3OmniMoeRotaryEmbedding": "Qwen3OmniMoeTalkerCodePredictorConfig",
    "Qwen3OmniMoeTalkerRotaryEmbedding": "Qwen3OmniMoeTalkerTextConfig",
    "T5GemmaRotaryEmbedding": "T5GemmaModuleConfig",
}


def rotary_folders():
    """Folders of transformers.models whose modeling file has a rotary module."""
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        return []
    files = (Path(found.origin).parent / "models").glob("*/modeling_*.py")
    return sorted(
        {
            file.parent.name
            for file in files
            if file.stem == f"modeling_{file.parent.name}" and rotary_classes(file.read_text())
        }
    )


def rotary_classes(source):
    lines = (line for line in source.splitlines() if line.startswith("class "))
    names = [line.removeprefix("class ").partition("(")[0] for line in lines]
    return [
        name for name in names if "Rotary" in name and "ision" not in name and "DiT" not in name
    ]


def configuration(rotary_class, folder):
    """The configuration that a rotary module takes, of the model's own sizes."""
    parameters = list(inspect.signature(rotary_class.__init__).parameters.values())
    config = parameters[1].annotation
    if rotary_class.__name__ in CONFIGURATIONS:
        module = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
        config = getattr(module, CONFIGURATIONS[rotary_class.__name__])
    elif hasattr(config(), "text_config"):
        config = type(config().text_config)
    options = json.loads(json.dumps(ARGUMENTS.get(folder, {})))
    return config(**options)


def apply_function(modeling, config):
    """The function of the model that rotates by cosines and sines."""
    functions = {
        name: value
        for name, value in vars(modeling).items()
        if name.startswith("apply_rotary") and "ision" not in name and inspect.isfunction(value)
    }
    if config.model_type == "dots3_note_audio_encoder":  # a second model in the file
        del functions["apply_rotary_pos_emb_interleave"]
    order = ["apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb", *functions]
    return functions[next(name for name in order if name in functions)]


def rotated_by(apply, x, tables, width):
    """x [b, h, s, d] rotated by a model's function, in the order of dims that ours has."""
    import torch

    if torch.is_tensor(tables):  # cos + i sin, for neighbouring dims
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * tables[:, None]).flatten(-2)
    part = x[..., :width]
    two = [*inspect.signature(apply).parameters][1] in ("k", "xk")
    result = apply(part, part, *tables)[0] if two else apply(part, *tables)
    if apply.__name__.endswith("_interleave"):  # first the even dims, then the odd ones
        result = torch.stack(result.chunk(2, dim=-1), dim=-1).flatten(-2)
    return torch.cat([result, x[..., width:]], dim=-1)


@pytest.mark.parametrize("folder", [name for name in rotary_folders() if name not in OTHERS])
def test_every_model_rotates_as_transformers_does(folder):
    torch = pytest.importorskip("torch", reason=ORACLE)
    pytest.importorskip("transformers", reason=ORACLE)
    modeling = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    names = rotary_classes(Path(modeling.__file__).read_text())
    for name in names:
        rotary_class = getattr(modeling, name)
        config = configuration(rotary_class, folder)
        module = rotary_class(config)
        buffers = {
            key for key, _ in module.named_buffers() if "original" not in key and "inv_freq" in key
        }
        assert buffers, name
        for buffer in buffers:
            layer_type = buffer.removesuffix("inv_freq").removesuffix("_") or None
            ours = Rotary.from_config(config, layer_type)
            expected = np.sort(np.abs(getattr(module, buffer).double().numpy()))
            np.testing.assert_allclose(np.sort(np.abs(ours.inv_freq)), expected, rtol=2e-6)

            torch.manual_seed(0)
            x = torch.randn(1, 2, 7, ours.head_dim)
            positions = torch.arange(7)[None]
            if ours.axis_map is not None:
                rows = [positions, 2 * positions + 3, 17 - positions]
                positions = torch.stack(rows[: ours.axis_map.max() + 1])
            options = {} if layer_type is None else {"layer_type": layer_type}
            tables = module(x, positions, **options)
            apply = None if torch.is_tensor(tables) else apply_function(modeling, config)
            width = 2 * len(ours.inv_freq) if ours.rotary_start == 0 else ours.head_dim
            result = rotated_by(apply, x, tables, width)
            # float32: some 4 roundings of values below 5, and phases below 32 off by 2^-20.
            np.testing.assert_allclose(ours.apply(x, positions), result, atol=2e-5, err_msg=name)


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
    "kimi k2": (
        {"model_type": "kimi_k2", "qk_rope_head_dim": 64, "rope_theta": 50000.0},
        {"head_dim": 64, "pairing": "interleaved", "base": 50000.0},
    ),
    "qwen2.5-omni": (
        {
            "thinker_config": {
                "text_config": {
                    "model_type": "qwen2_5_omni_text",
                    **SIZES,
                    "hidden_size": 512,
                    "rope_theta": 1e6,
                }
            }
        },
        {"head_dim": 128, "base": 1e6},
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
    "modernbert": {
        "global_rope_theta": 1e6,
        "local_rope_theta": 5e4,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "deepseek_v4": {
        "head_dim": 512,
        "qk_rope_head_dim": 128,
        "num_hidden_layers": 4,
        "compress_ratios": [0, 4, 128, 4, 0],
        "rope_theta": 2e4,
        "compress_rope_theta": 1.5e5,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
    },
    "minimax_m2": {"rotary_dim": 64, "head_dim": 128, "rope_theta": 5e6},
}


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
        (ValueError, "bert in which nothing speaks of a rotary", {"model_type": "bert", **SIZES}),
        (ValueError, "'num_attention_heads'", {"hidden_size": 64, "rope_theta": 1e4}),
        (ValueError, "'hidden_size'", {"num_attention_heads": 4, "rope_theta": 1e4}),
        (ValueError, "'num_attention_heads'", {**SIZES, "num_attention_heads": 0, "rope_theta": 1}),
        (ValueError, "'head_dim'", {"head_dim": 63, "rope_theta": 1e4}),
        (ValueError, "'rope_theta'", {"head_dim": 64, "rope_theta": -1}),
        (TypeError, "'rope_theta'", {"head_dim": 64, "rope_theta": "10000"}),
        (TypeError, "'rope_scaling'", {"head_dim": 64, "rope_scaling": "linear"}),
        (ValueError, "'rope_type'.*axial", {"head_dim": 64, "rope_scaling": {"type": "axial"}}),
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


@pytest.mark.parametrize("model_type", ["bert", "gpt2"])
def test_models_without_any_rotary_encoding_are_told_what_was_looked_for(model_type):
    config = classes()[model_type](num_hidden_layers=4)
    looked_for = r"\(rope_parameters, rope_scaling, rope_theta, .*rotary_dim\)"
    match = f"config: .*{looked_for}, got a configuration of {model_type} in which nothing speaks"
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


# The tables of model_facts


@pytest.mark.parametrize("scaled", [False, True])
def test_defaults_are_those_of_transformers(scaled):
    """A configuration of sizes alone means what the class makes of it, for every model."""
    checked = 0
    for model_type, config in language_configs().items():
        if model_type in model_facts.REFUSED:
            continue
        options = {}
        if model_type in model_facts.ROTARY_IF:
            key, wanted, _ = model_facts.ROTARY_IF[model_type]
            options = {key: wanted}
        if model_type in ("glm4v_text", "glm4v_moe_text", "glm_image_text", "qwen3_omni_moe_text"):
            continue  # sections that do not fit a head, or a head of an odd size, by default
        if model_type == "cohere2_moe" and scaled:
            continue  # its class loses rope_scaling
        if model_type in ("blt", "efficientloftr", "musicflamingo", "dots3_note_text"):
            continue  # made of parts; no language; layers of sizes that the class works out
        flat = not any(isinstance(value, dict) for value in config.rope_parameters.values())
        try:
            if scaled and flat:
                options["rope_scaling"] = {"type": "linear", "factor": 2.0}
            config = type(config)(**json.loads(json.dumps(options)))  # which changes its arguments
        except Exception:  # a class that wants no scaling
            assert scaled, model_type
            continue
        bare = {
            key: value
            for key, value in config.to_dict().items()
            if not key.startswith(("rope_", "rotary_", "partial_rotary"))
            or key == "rope_interleave"
        }
        bare.update(options)
        types = [None] if flat else [*config.rope_parameters]
        for layer_type in types:
            if not flat and config.rope_parameters[layer_type] is None:
                continue
            expected = Rotary.from_config(config, layer_type)
            given = Rotary.from_config(bare, layer_type)
            assert given == expected, (model_type, layer_type)
            checked += 1
    assert checked > 150


SCALINGS = [
    None,
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    YARN,
    {"rope_type": "yarn", "factor": 4.0, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.0},
    LLAMA3,
    {key: value for key, value in LLAMA3.items() if not key.startswith("original")},
]


@pytest.mark.parametrize(
    "model_type",
    [
        "cohere", "deepseek_v3", "exaone4", "gemma2", "gemma3_text", "glm", "glm4",
        "gpt_oss", "granite", "lfm2", "llama", "llama4_text", "minicpm3", "ministral3",
        "mistral", "modernbert", "nemotron", "olmo2", "olmo3", "persimmon", "phi",
        "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "smollm3", "stablelm", "starcoder2",
    ],
)  # fmt: skip
def test_files_of_every_scaling_mean_what_the_class_makes_of_them(model_type):
    sizes = {**SIZES, "num_hidden_layers": 4, "max_position_embeddings": 16384, "head_dim": 64}
    if model_type in ("deepseek_v3", "minicpm3"):
        sizes["qk_rope_head_dim"] = 32
        del sizes["head_dim"]
    for scaling in SCALINGS:
        for base in (None, 3e5):
            file = {**sizes, "rope_scaling": scaling}
            if base is not None and scaling is not None:
                file["rope_scaling"] = {**scaling, "rope_theta": base}
            config = classes()[model_type](**json.loads(json.dumps(file)))
            parameters = config.rope_parameters
            for layer_type in [k for k, v in parameters.items() if isinstance(v, dict)] or [None]:
                expected = Rotary.from_config(config, layer_type)
                given = Rotary.from_config({"model_type": model_type, **file}, layer_type)
                np.testing.assert_array_equal(given.inv_freq, expected.inv_freq)
                assert (given.scale, given.pairing) == (expected.scale, expected.pairing)


def test_every_rotary_model_is_in_the_table_of_defaults():
    known = set(model_facts.DEFAULTS) | {"blt", "efficientloftr", "musicflamingo"}
    assert set(language_configs()) <= known


def test_interleaving_is_said_or_known():
    said = {
        model_type
        for model_type, config in language_configs().items()
        if getattr(config, "rope_interleave", False)
    }
    assert said
    assert said <= model_facts.INTERLEAVED


def test_models_with_a_softmax_correction():
    root = Path(outside.module("transformers").__file__).parent / "models"
    corrected = {
        file.parent.name
        for file in root.glob("*/modeling_*.py")
        if "= yarn_apply_mscale(" in file.read_text()
    }
    names = {name.removesuffix("_text") for name in model_facts.SOFTMAX_CORRECTED}
    assert names == corrected


def test_model_types_of_the_tables_exist():
    named = set(model_facts.INTERLEAVED) | model_facts.TRAILING | model_facts.BACKWARD
    for table in (
        model_facts.ALL_OR_NOTHING,
        model_facts.DEFAULTS,
        model_facts.EVERY_NTH_WITHOUT,
        model_facts.FULL_ATTENTION_WITHOUT,
        model_facts.MROPE,
        model_facts.PERIODS,
        model_facts.REFUSED,
        model_facts.ROPE_LABELS,
        model_facts.ROTARY_IF,
        model_facts.ROWS_AND_COLUMNS,
        model_facts.FLAT,
        model_facts.GLOBAL_HEAD_DIM,
        model_facts.SOFTMAX_CORRECTED,
    ):
        named |= set(table)
    assert named <= set(classes())


# Layers without rotary encoding


NOPE = {
    "afmoe": {},
    "beam": {},
    "cohere2": {},
    "cohere2_moe": {"first_k_dense_replace": 2},
    "exaone4": {},
    "exaone4 without windows": {"sliding_window": None, "layer_types": ["full_attention"] * 12},
    "exaone_moe": {},
    "flint": {},
    "granite_swa": {"layer_rope_theta": [1e4, 0, 1e4, 0] * 3},
    "granitemoe_swa": {"layer_rope_theta": [0, 1e4, 0, 1e4] * 3},
    "kolibri1": {},
    "llama4_text": {},
    "llama4_text by interval": {"no_rope_layer_interval": 3},
    "mistral_large4_text": {},
    "muse_glimmer_text": {},
    "muse_spark_text": {},
    "smollm3": {},
    "smollm3 by list": {"no_rope_layers": [1, 0, 0, 1] * 3},
    "llama": {},
    "qwen3_next": {},
    "gemma3_text": {},
}


def layers_that_rotate(config):
    """What the attention modules of the model do, by their own words."""
    text = config.model_type.removesuffix("_text")
    name = next(
        folder
        for folder in (config.model_type, text)
        if importlib.util.find_spec(f"transformers.models.{folder}")
    )
    modeling = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    attention = next(
        value
        for key, value in vars(modeling).items()
        if key.endswith(("Attention", "FlexAttention")) and "ision" not in key
    )
    import torch

    def rotates(layer):
        bases = getattr(config, "layer_rope_theta", None)
        if bases:
            return bool(bases[layer])
        layer_type = config.layer_types[layer] if getattr(config, "layer_types", None) else ""
        if config.model_type == "beam":
            return config.rope_parameters[layer_type] is not None
        with torch.device("meta"):
            module = attention(config, layer)
        source = inspect.getsource(attention.forward)
        for condition in (
            "if self.use_rope:",
            "if self.is_local_attention:",
            "if self.sliding_window is not None or self.force_rope:",
            "if self.sliding_window is not None:",
            "if self.sliding_window is None or self.is_sliding:",
        ):
            if condition in source:
                return bool(eval(condition.removeprefix("if ").rstrip(":"), {"self": module}))
        return True

    return [layer for layer in range(config.num_hidden_layers) if rotates(layer)]


@pytest.mark.parametrize("name", NOPE)
def test_layers_without_rotary_encoding(name):
    pytest.importorskip("torch", reason=ORACLE)
    config_class = classes()[name.partition(" ")[0]]
    config = config_class(num_hidden_layers=12, **json.loads(json.dumps(NOPE[name])))
    rotating = layers_that_rotate(config)
    kinds = config.to_dict().get("layer_types") or [""] * 12
    attention = [layer for layer, kind in enumerate(kinds) if kind != "linear_attention"]
    expected = tuple(layer for layer in attention if layer not in rotating)
    assert nope_layers(config) == expected
    if config.model_type not in model_facts.REFUSED:
        for layer in attention:
            if layer in expected:
                with pytest.raises(ValueError, match=rf"layer: expected .*layer {layer} \(NoPE\)"):
                    Rotary.from_config(config, layer=layer)
            else:
                Rotary.from_config(config, layer=layer)
        for kind in {kinds[layer] for layer in expected} - {kinds[layer] for layer in rotating}:
            if kind:
                with pytest.raises(ValueError, match=rf"layer_type: .*type {kind} \(NoPE\)"):
                    Rotary.from_config(config, kind)
    # A file may leave out what the class works out.
    periodic = {*model_facts.PERIODS, *model_facts.EVERY_NTH_WITHOUT}
    if name.partition(" ")[0] in periodic and "first_k_dense_replace" not in NOPE[name]:
        left_out = ("layer_types", "no_rope_layers", "layer_rope_theta")
        bare = {k: v for k, v in config.to_dict().items() if k not in left_out}
        assert nope_layers({**bare, **NOPE[name]}) == expected


UNNUMBERED = [
    name
    for name in NOPE
    if name in {*model_facts.EVERY_NTH_WITHOUT, *model_facts.PERIODS, "beam", "flint"}
    and name != "gemma3_text"
]


@pytest.mark.parametrize("name", UNNUMBERED)
def test_layers_that_cannot_be_numbered(name):
    """Models with such layers by default, of which a file does not say how many layers it has."""
    assert nope_layers(classes()[name]()), "by default it has no such layers"
    file = {"model_type": name, "head_dim": 64}
    with pytest.raises(ValueError, match=r"^nope_layers: config\['num_hidden_layers'\]") as ours:
        nope_layers(file)
    if name not in model_facts.REFUSED:
        with pytest.raises(ValueError, match="'num_hidden_layers'") as theirs:
            Rotary.from_config(file, layer=3)
        assert str(ours.value).partition(":")[2] == str(theirs.value).partition(":")[2]
        # What rotates is known all the same.
        assert Rotary.from_config(file, "sliding_attention" if name == "beam" else None)


@pytest.mark.parametrize("name", ["afmoe", "cohere2", "exaone4", "kolibri1"])
def test_layers_whose_types_follow_from_a_period(name):
    """A file with a number of layers alone means what the class makes of it, layer by layer."""
    file = {"model_type": name, "head_dim": 64, "num_hidden_layers": 10}
    config = classes()[name](head_dim=64, num_hidden_layers=10)
    without = nope_layers(config)
    assert 0 < len(without) < 10
    for layer in sorted({*range(10)} - {*without}):
        assert Rotary.from_config(file, layer=layer) == Rotary.from_config(config, layer=layer)
    assert explain(file).nope_layers == explain(config).nope_layers == without


def test_layers_that_are_numbered_by_a_list():
    file = {"model_type": "smollm3", "head_dim": 64, "no_rope_layers": [1, 0, 0, 1]}
    assert nope_layers(file) == (1, 2)
    assert Rotary.from_config(file, layer=3) == Rotary.from_config(file)
    with pytest.raises(ValueError, match=r"layer: expected a layer in 0 .. 3"):
        Rotary.from_config(file, layer=4)
    assert [group.layers for group in explain(file).layers] == [(0, 3), (1, 2)]
    assert nope_layers({"model_type": "smollm3", "no_rope_layer_interval": 0}) == ()


@pytest.mark.parametrize("name", ["beam", "flint"])
def test_a_number_of_layers_is_not_enough_without_a_period(name):
    file = {"model_type": name, "head_dim": 64, "num_hidden_layers": 12}
    for call in (nope_layers, functools.partial(Rotary.from_config, layer=3)):
        with pytest.raises(ValueError, match=r"'layer_types'.*the type of each layer"):
            call(file)


@pytest.mark.parametrize("name", ["exaone4", "exaone_moe", "kolibri1"])
def test_a_sliding_window_that_a_file_leaves_out_is_there(name):
    file = {"model_type": name, "num_hidden_layers": 10}
    assert nope_layers(file) == nope_layers(classes()[name](num_hidden_layers=10)) != ()


def test_layers_have_bases_of_their_own():
    values = {"head_dim": 64, "num_hidden_layers": 4, "rope_theta": 1e4}
    config = {**values, "layer_rope_theta": [1e4, 0, 1e6, 1e4]}
    assert [Rotary.from_config(config, layer=i).base for i in (0, 2, 3)] == [1e4, 1e6, 1e4]
    with pytest.raises(ValueError, match="layer: expected the number of a layer: they differ"):
        Rotary.from_config(config)
    types = {"layer_types": ["full_attention", "sliding_attention"] * 2}
    with pytest.raises(ValueError, match="they differ"):
        Rotary.from_config({**config, **types}, "full_attention")
    assert Rotary.from_config({**config, **types}, "sliding_attention").base == 1e4
    scaled = {**values, "rope_scaling": {"type": "linear", "factor": 2.0}}
    config = {**scaled, "rope_scaling_layers": [0, 3]}
    assert [Rotary.from_config(config, layer=i).inv_freq[0] for i in range(4)] == [0.5, 1, 1, 0.5]
    groups = Configuration.read(
        {**config, "layer_types": ["full_attention"] * 4}, "explain"
    ).groups()
    assert [group.layers for group in groups] == [(0, 3), (1, 2)]


@pytest.mark.parametrize(
    ("error", "match", "options"),
    [
        (ValueError, "layer: expected a layer in 0 .. 3, got 4", {"layer": 4}),
        (TypeError, "layer: expected an int", {"layer": 1.0}),
        (ValueError, "layer: expected no layer_type", {"layer": 1, "layer_type": "x"}),
    ],
)
def test_bad_layers(error, match, options):
    with pytest.raises(error, match=match):
        rotary_arguments({"head_dim": 64, "rope_theta": 1, "num_hidden_layers": 4}, **options)
    with pytest.raises(ValueError, match="'num_hidden_layers'"):
        rotary_arguments({"head_dim": 64, "rope_theta": 1}, layer=0)
    for key in ("no_rope_layers", "layer_rope_theta"):
        with pytest.raises(TypeError, match=f"'{key}'.*a list"):
            nope_layers({"head_dim": 64, "rope_theta": 1, key: 4})


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "falcon", "alibi": True},
        {"model_type": "esm"},
        {"model_type": "granitemoehybrid", "rope_theta": 1e4},
        {"model_type": "zamba2"},
        {"model_type": "kimi_linear", "rope_theta": 1e4},
    ],
    ids=lambda config: config["model_type"],
)
def test_models_that_may_have_no_rotary_encoding(config):
    with pytest.raises(ValueError, match=f"this {config['model_type']} has no rotary encoding"):
        Rotary.from_config({**SIZES, **config})
    assert nope_layers({**SIZES, **config}) == ()


# Vision encoders


def vision_configs():
    """Those of transformers that vision_rotary knows, by its names."""
    found = {}
    for model_type, config_class in classes().items():
        try:
            config = Configuration.read(config_class(), "explain")
        except Exception:  # a model of parts that have no defaults
            continue
        if config.sees:
            found[model_type] = config_class()
    return found


def test_vision_encoders_as_in_transformers():
    compared = []
    for model_type, config in vision_configs().items():
        if model_type == "vjepa2":
            with pytest.raises(ValueError, match=r"see vision_rotary\('vjepa2', 64\)"):
                Rotary.from_config(config)
            continue
        ours = Rotary.from_config(config)
        modeling = importlib.import_module(
            type(config).__module__.replace("configuration", "modeling")
        )
        names = [
            name
            for name in vars(modeling)
            if name.endswith(("RotaryEmbedding", "RopePositionEmbedding"))
            and ("ision" in name or "V" in name or "MLCD" in name)
            and "Text" not in name
        ]
        named = [name for name in names if "Vision" in name] or names
        module = getattr(modeling, named[0])(config)
        if model_type == "llama4_vision_model":  # a table of cos + i sin, patches counted from 1
            table = module.freqs_ci.flatten(0, -2)
            angles = table[0].angle().numpy()
            np.testing.assert_allclose(angles, ours.inv_freq, rtol=1e-5)
            compared.append(model_type)
            continue
        theirs = module.inv_freq.double().numpy().ravel()
        if model_type == "dinov3_vit":
            theirs = theirs * 2 * np.pi  # coordinates are turns there
        np.testing.assert_allclose(np.unique(ours.inv_freq), np.unique(theirs), rtol=2e-6)
        compared.append(model_type)
    assert len(compared) > 24


def test_vision_configuration_as_published():
    vision = {
        "model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "num_heads": 16,
        "patch_size": 14, "spatial_merge_size": 2,
    }  # fmt: skip
    assert Rotary.from_config(vision) == vision_rotary("qwen2_5_vl", 80)
    older = {"model_type": "qwen2_vl", "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16}
    assert Rotary.from_config({**older, "patch_size": 14}) == vision_rotary("qwen2_vl", 80)
    pixtral = {"model_type": "pixtral", "head_dim": 64, "image_size": 1024, "rope_theta": 1e4}
    assert Rotary.from_config(pixtral) == vision_rotary("pixtral", 64)
    assert Rotary.from_config({**pixtral, "rope_theta": 1e6}) != vision_rotary("pixtral", 64)
    with pytest.raises(ValueError, match="layer_type, layer: expected none for a vision encoder"):
        Rotary.from_config(pixtral, "full_attention")
    assert nope_layers(pixtral) == ()
    words = " ".join(str(explain(vision)).split())
    assert "axes: of the pairs, 20 by height, 20 by width are driven, in blocks" in words
    assert "for text" not in words


def test_length_of_the_sequence():
    config = {**SIZES, "original_max_position_embeddings": 4096, "max_position_embeddings": 131072}
    config["rope_scaling"] = LONGROPE
    short, long = (Rotary.from_config(config, seq_len=length) for length in (4096, 4097))
    for same in (Rotary.from_config(config, seq_len=1), Rotary.from_config(config)):
        np.testing.assert_array_equal(short.inv_freq, same.inv_freq)
    np.testing.assert_allclose(
        short.inv_freq / long.inv_freq, 32 * np.arange(2, 34) / range(32, 64)
    )
    linear = {**SIZES, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert Rotary.from_config(linear, seq_len=10**6) == Rotary.from_config(linear)
