"""Arguments of configurations rotate as the models of transformers do."""

import importlib
import importlib.util
import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from model_configurations import LLAMA3, LONGROPE, ORACLE, SIZES, YARN

from posenc_native import Rotary
from posenc_native.core.frequencies.scaling import rotary_frequencies
from posenc_native.engines.plain import arrays as reference
from posenc_native.models.config import rotary_arguments

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
    "phi3": ("phi3", "Phi3",
             {"rope_scaling": LONGROPE, "original_max_position_embeddings": 4096,
              "max_position_embeddings": 131072, "pad_token_id": 0}),
    "gpt_neox": ("gpt_neox", "GPTNeoX", {}),
    "gpt_neox, whole head": ("gpt_neox", "GPTNeoX", {"rotary_pct": 1.0, "rotary_emb_base": 5e4}),
    "stablelm": ("stablelm", "StableLm", {}),
    "gpt_oss": ("gpt_oss", "GptOss", {"head_dim": 64}),
    "cohere": ("cohere", "Cohere", {}),
    "glm": ("glm", "Glm", {"head_dim": 64, "pad_token_id": 0}),
    "helium": ("helium", "Helium", {"head_dim": 64}),
    "ernie4_5": ("ernie4_5", "Ernie4_5", {}),
}  # fmt: skip


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
# each, or that are refused.
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

    if torch.is_tensor(tables):  # cos + i sin, for neighboring dims
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
