"""Named presets against the published configurations, read by us and by transformers."""

import importlib

import numpy as np
import outside
import pytest

from posenc_native import Rotary, nope_layers, rotary_presets
from posenc_native.models.presets import rotary_preset

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
LLAMA3["original_max_position_embeddings"] = 8192
DEEPSEEK = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
MINISTRAL = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
    "llama_4_scaling_beta": 0.1,
}
QWEN_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def sizes(hidden, heads, theta=None, length=None, **others):
    """The entries that nearly every config.json has."""
    named = {"rope_theta": theta, "max_position_embeddings": length}
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        **{key: value for key, value in named.items() if value is not None},
        **others,
    }


def latent(model_type, theta, length, scaling):
    return {
        "model_type": model_type,
        **sizes(7168, 128, theta, length, qk_rope_head_dim=64, qk_nope_head_dim=128),
        "rope_scaling": scaling,
    }


def phi(name, hidden, heads, **others):
    """The lists are the preset's own: what is checked is everything around them."""
    scaling = rotary_preset(name).scaling
    lists = {key: list(scaling[key]) for key in ("short_factor", "long_factor")}
    return {
        "model_type": "phi3",
        **sizes(hidden, heads, 1e4, 131072, original_max_position_embeddings=4096, pad_token_id=0),
        "rope_scaling": {"type": "longrope", **lists},
        **others,
    }


def gemma3(head_dim, length, factor):
    scaling = None if factor is None else {"rope_type": "linear", "factor": factor}
    return {
        "model_type": "gemma3_text",
        **sizes(2560, 8, 1e6, length, head_dim=head_dim),
        "rope_local_base_freq": 10000.0,
        "rope_scaling": scaling,
    }


# As in the config.json of the model, of which only what has to do with positions is given.
PUBLISHED = {
    "roformer": {"model_type": "roformer", **sizes(768, 12, None, 1536)},
    "gpt-j": {
        "model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64, "n_positions": 2048,
        "max_position_embeddings": 2048,
    },
    "gpt-neox-20b": {
        "model_type": "gpt_neox", **sizes(6144, 64, None, 2048),
        "rotary_pct": 0.25, "rotary_emb_base": 10000,
    },
    "llama-2": {"model_type": "llama", **sizes(4096, 32, None, 4096), "rope_scaling": None},
    "llama-3": {"model_type": "llama", **sizes(4096, 32, 5e5, 8192)},
    "llama-3.1": {
        "model_type": "llama", **sizes(4096, 32, 5e5, 131072),
        "rope_scaling": {**LLAMA3, "factor": 8.0},
    },
    "llama-3.2-1b": {
        "model_type": "llama", **sizes(2048, 32, 5e5, 131072, head_dim=64),
        "rope_scaling": {**LLAMA3, "factor": 32.0},
    },
    "llama-3.2-3b": {
        "model_type": "llama", **sizes(3072, 24, 5e5, 131072, head_dim=128),
        "rope_scaling": {**LLAMA3, "factor": 32.0},
    },
    "llama-3.3": {
        "model_type": "llama", **sizes(8192, 64, 5e5, 131072, head_dim=128),
        "rope_scaling": {**LLAMA3, "factor": 8.0},
    },
    "llama-4-scout": {
        "model_type": "llama4_text", **sizes(5120, 40, 5e5, 10485760, head_dim=128),
        "num_hidden_layers": 48, "no_rope_layers": [1, 1, 1, 0] * 12,
        "rope_scaling": {**LLAMA3, "factor": 16.0, "high_freq_factor": 1.0},
    },
    "llama-4-maverick": {
        "model_type": "llama4_text", **sizes(5120, 40, 5e5, 1048576, head_dim=128),
        "num_hidden_layers": 48, "no_rope_layers": [], "rope_scaling": None,
    },
    "mistral-7b-v0.1": {"model_type": "mistral", **sizes(4096, 32, 1e4, 32768)},
    "mistral-7b-v0.3": {"model_type": "mistral", **sizes(4096, 32, 1e6, 32768)},
    "mixtral-8x7b": {"model_type": "mixtral", **sizes(4096, 32, 1e6, 32768)},
    "mistral-nemo": {"model_type": "mistral", **sizes(5120, 32, 1e6, 131072, head_dim=128)},
    "mistral-small-3.1": {"model_type": "mistral", **sizes(5120, 32, 1e9, 131072, head_dim=128)},
    "ministral-3": {
        "model_type": "ministral3", **sizes(4096, 32, None, 262144, head_dim=128),
        "rope_parameters": MINISTRAL,
    },
    "mistral-4": {
        "model_type": "mistral4", **sizes(4096, 32, None, 1048576, qk_rope_head_dim=64),
        "rope_parameters": {
            **MINISTRAL, "rope_theta": 1e4, "factor": 128.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen2.5": {"model_type": "qwen2", **sizes(3584, 28, 1e6, 32768)},
    "qwen2.5-yarn": {
        "model_type": "qwen2", **sizes(3584, 28, 1e6, 131072), "rope_scaling": QWEN_YARN,
    },
    "qwen2-vl": {
        "model_type": "qwen2_vl_text", **sizes(3584, 28, 1e6, 32768),
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    },
    "qwen2.5-vl": {
        "model_type": "qwen2_5_vl_text", **sizes(3584, 28, 1e6, 128000),
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    },
    "qwen3": {"model_type": "qwen3", **sizes(4096, 32, 1e6, 40960, head_dim=128)},
    "qwen3-yarn": {
        "model_type": "qwen3", **sizes(4096, 32, 1e6, 131072, head_dim=128),
        "rope_scaling": {**QWEN_YARN, "rope_type": "yarn"},
    },
    "qwen3-next": {
        "model_type": "qwen3_next", **sizes(2048, 16, 1e7, 262144, head_dim=256),
        "partial_rotary_factor": 0.25, "rope_scaling": None,
    },
    "qwen3-vl": {
        "model_type": "qwen3_vl_text", **sizes(4096, 32, 5e6, 262144, head_dim=128),
        "rope_scaling": {
            "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
        },
    },
    "deepseek-v2": latent("deepseek_v2", 1e4, 163840, DEEPSEEK),
    "deepseek-v2-lite": latent(
        "deepseek_v2", 1e4, 163840, {**DEEPSEEK, "mscale": 0.707, "mscale_all_dim": 0.707}
    ),
    "deepseek-v3": latent("deepseek_v3", 1e4, 163840, DEEPSEEK),
    "deepseek-r1": latent("deepseek_v3", 1e4, 163840, DEEPSEEK),
    "kimi-k2": latent(
        "kimi_k2", 5e4, 131072, {**DEEPSEEK, "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0}
    ),
    "phi-2": {
        "model_type": "phi", **sizes(2560, 32, 1e4, 2048), "partial_rotary_factor": 0.4,
    },
    "phi-3-mini-4k": {"model_type": "phi3", **sizes(3072, 32, 1e4, 4096, pad_token_id=0)},
    "phi-3-mini-128k": phi("phi-3-mini-128k", 3072, 32),
    "phi-3-vision-128k": phi("phi-3-vision-128k", 3072, 32),
    "phi-3.5-mini": phi("phi-3.5-mini", 3072, 32),
    "phi-4": {"model_type": "phi3", **sizes(5120, 40, 2.5e5, 16384, pad_token_id=0)},
    "phi-4-mini": phi("phi-4-mini", 3072, 24, partial_rotary_factor=0.75),
    "gpt-oss": {
        "model_type": "gpt_oss", **sizes(2880, 64, 1.5e5, 131072, head_dim=64),
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4096,
        },
    },
    "gemma-3-1b": gemma3(256, 32768, None),
    "gemma-3-4b": gemma3(256, 131072, 8.0),
    "gemma-3-12b": gemma3(256, 131072, 8.0),
    "gemma-3-27b": gemma3(128, 131072, 8.0),
    "gemma-4": {
        "model_type": "gemma4_text", **sizes(2816, 16, None, 131072, head_dim=256),
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "global_head_dim": 512,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "glm-4": {
        "model_type": "glm4", **sizes(4096, 32, 1e4, 32768, head_dim=128, pad_token_id=0),
        "partial_rotary_factor": 0.5,
    },
    "glm-4.5": {
        "model_type": "glm4_moe", **sizes(5120, 96, 1e6, 131072, head_dim=128),
        "partial_rotary_factor": 0.5,
    },
    "command-r": {"model_type": "cohere", **sizes(8192, 64, 8e6, 131072)},
    "olmo-3": {
        "model_type": "olmo3", **sizes(4096, 32, 5e5, 65536),
        "rope_scaling": {
            "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 8192, "attention_factor": 1.2079441541679836,
        },
    },
    "smollm3": {
        "model_type": "smollm3", **sizes(2048, 16, 5e6, 65536), "num_hidden_layers": 36,
        "no_rope_layers": [1, 1, 1, 0] * 9,
    },
    "modernbert": {
        "model_type": "modernbert", **sizes(768, 12, None, 8192),
        "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
    },
}  # fmt: skip

CASES = [
    (name, layer_type)
    for name, facts in rotary_presets().items()
    for layer_type in (facts.layers or [None])
]


def test_every_preset_has_its_published_form_here():
    assert list(PUBLISHED) == list(rotary_presets())


def same(rotary, other):
    np.testing.assert_array_equal(rotary.inv_freq, other.inv_freq)
    np.testing.assert_array_equal(rotary.axis_map, other.axis_map)
    for name in ("head_dim", "scale", "pairing", "rotary_start"):
        assert getattr(rotary, name) == getattr(other, name), name


@pytest.mark.parametrize(("name", "layer_type"), CASES)
@pytest.mark.parametrize("seq_len", [None, 4096, 4097])
def test_presets_are_what_the_published_configuration_says(name, layer_type, seq_len):
    published, facts = PUBLISHED[name], rotary_presets()[name]
    expected = Rotary.from_config(published, layer_type, seq_len=seq_len)
    same(Rotary.preset(name, layer_type, seq_len=seq_len), expected)
    assert facts.length == published["max_position_embeddings"]
    assert facts.source
    nope = nope_layers(published)
    count = published.get("num_hidden_layers", 0)
    assert nope == (tuple(range(3, count, 4)) if facts.nope else ())


@pytest.mark.parametrize(("name", "layer_type"), CASES)
@pytest.mark.parametrize("seq_len", [None, 100_000])
def test_presets_as_in_transformers(name, layer_type, seq_len):
    transformers = outside.module("transformers")
    facts = rotary_presets()[name]
    values = {**PUBLISHED[name], "num_hidden_layers": PUBLISHED[name].get("num_hidden_layers", 6)}
    model_type = values.pop("model_type").replace("kimi_k2", "deepseek_v3")
    if model_type in ("roformer", "gptj"):
        pytest.skip("its module has no frequencies")
    values.setdefault("num_key_value_heads", values["num_attention_heads"])
    config = transformers.AutoConfig.for_model(model_type, **values)
    modeling = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
    rotary_class = next(
        value
        for key, value in vars(modeling).items()
        if key.endswith("RotaryEmbedding") and "ision" not in key
    )
    module = rotary_class(config)
    prefix = "" if layer_type is None else f"{layer_type}_"
    expected = getattr(module, f"{prefix}inv_freq")
    ours = Rotary.preset(name, layer_type, seq_len=seq_len)
    if seq_len is not None and facts.scaling and facts.scaling["rope_type"] == "longrope":
        functions = outside.module("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
        expected, _ = functions["longrope"](config, "cpu", seq_len=seq_len)
    scale = getattr(module, f"{prefix}attention_scaling")
    # float32: the power of the base, its inverse, a blend of YaRN whose weight counts factor times.
    factor = (ours.scaling or {}).get("factor", 1.0)
    rtol = 2.0**-24 * (np.log(facts.base) + 8) * (1 + 2 * factor)
    np.testing.assert_allclose(ours.inv_freq, expected.numpy(), rtol=rtol)
    assert ours.scale == pytest.approx(scale, rel=1e-15)
    if hasattr(modeling, "yarn_apply_mscale"):
        correction = modeling.yarn_apply_mscale(config.rope_parameters, 1.0)
        assert facts.softmax_correction == pytest.approx(correction, rel=1e-15)
        assert facts.corrects_softmax
    else:
        assert facts.softmax_correction == 1.0


def test_lists_of_longrope():
    """What is known of the lists from elsewhere: their length, ends and order."""
    ends = {
        "phi-3-mini-128k": (1.0700000524520874, 64.76000213623047, 1.1, 3.049999999999997),
        "phi-3-vision-128k": (1.0299999713897705, 64.81001281738281, 1.05, 3.049999999999997),
        "phi-3.5-mini": (1.0800000429153442, 64.83999633789062, 1.0, 2.8399994373321533),
        "phi-4-mini": (1.0, 47.77, 1.0, 1.0),
    }
    for name, facts in rotary_presets().items():
        if not facts.scaling or facts.scaling["rope_type"] != "longrope":
            continue
        short, long = facts.scaling["short_factor"], facts.scaling["long_factor"]
        assert (long[0], long[-1], short[0], short[-1]) == ends.pop(name)
        for factors in (short, long):
            assert len(factors) == 48
            assert list(factors) == sorted(factors)
    assert not ends


def test_presets_cannot_be_changed_and_do_not_depend_on_each_other():
    with pytest.raises(TypeError):
        rotary_presets()["mine"] = None
    with pytest.raises(AttributeError):
        rotary_presets()["llama-3"].base = 1.0
    rotary = Rotary.preset("llama-3.1")
    assert rotary == Rotary.preset("llama-3.1") == Rotary.preset("llama-3.3")
    assert rotary != Rotary.preset("llama-3")


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ValueError, "name: expected one of .*llama-3.1.*got 'llama3.1'", ("llama3.1",)),
        (ValueError, "name: expected one of .*gpt-oss.*got 'GPT-OSS-20b'", ("GPT-OSS-20b",)),
        (ValueError, "name: expected one of .*roformer, smollm3, got '###'", ("###",)),
        (ValueError, "layer_type: expected one of full_.*, sliding_.*, got None", ("gemma-4",)),
        (ValueError, "layer_type: expected one of None, got 'full'", ("llama-3", "full")),
        (TypeError, "name: expected a str, got int", (3,)),
    ],
)
def test_bad_names(error, match, arguments):
    with pytest.raises(error, match=rf"^Rotary\.preset: {match}"):
        Rotary.preset(*arguments)
