"""Frequencies against 200-bit arithmetic and against transformers' own functions."""

import math

import mpmath
import numpy as np
import pytest

from posenc_native.frequencies import (
    ROTARY_SCALINGS,
    frequencies,
    rotary_frequencies,
    wavelengths,
)

# transformers computes in float32: some rounding errors of 6e-8 in a row.
FLOAT32 = 1e-6

LONG_FACTORS = {
    "short_factor": [1 + 0.01 * i for i in range(48)],
    "long_factor": [1 + 0.02 * i**1.5 for i in range(48)],
}

# Parameters as published with the model, and head_dim, max_position_embeddings.
PUBLISHED = {
    "Llama 3.1": (
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        128,
        131072,
    ),
    "Llama 3.2": (
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        64,
        131072,
    ),
    "Qwen 2.5": (
        {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        },
        128,
        32768,
    ),
    "DeepSeek V3": (
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 40,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
        64,
        163840,
    ),
    "DeepSeek V2 Lite": (
        {
            "rope_type": "yarn",
            "rope_theta": 10000,
            "factor": 40,
            "mscale": 0.707,
            "mscale_all_dim": 0.8,
            "original_max_position_embeddings": 4096,
        },
        64,
        163840,
    ),
    "gpt-oss": (
        {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        64,
        131072,
    ),
    "YaRN without a factor": (
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": None,
            "original_max_position_embeddings": 4096,
        },
        128,
        65536,
    ),
    "Gemma 3": ({"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}, 256, 131072),
    "Phi-3 mini 128k": (
        {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 4096,
            **LONG_FACTORS,
        },
        96,
        131072,
    ),
    "LongRoPE with a factor": (
        {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 8192,
            **LONG_FACTORS,
        },
        96,
        131072,
    ),
    "LongRoPE with an attention_factor": (
        {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "attention_factor": 1.19,
            "original_max_position_embeddings": 8192,
            **LONG_FACTORS,
        },
        96,
        131072,
    ),
    "Gemma 4": (
        {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
        512,
        131072,
    ),
    "dynamic": ({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 128, 2048),
}


def by_transformers(scaling, head_dim, max_position_embeddings, seq_len=None):
    rope_utils = pytest.importorskip(
        "transformers.modeling_rope_utils", reason="the outside oracle of the scalings"
    )
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        rope_parameters=dict(scaling),
    )
    inv_freq, attention_factor = rope_utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
        config, "cpu", seq_len=seq_len
    )
    return inv_freq.numpy(), attention_factor


def check_against_transformers(scaling, head_dim, max_position_embeddings, seq_len=None):
    expected = by_transformers(scaling, head_dim, max_position_embeddings, seq_len)
    inv_freq, attention_factor = rotary_frequencies(
        head_dim,
        scaling={**scaling, "max_position_embeddings": max_position_embeddings},
        seq_len=seq_len,
    )
    assert inv_freq.dtype == np.float64
    # Where a scaling blends f / factor with f, the rounding of the weight counts `factor` times.
    rtol = FLOAT32 + 2.0**-24 * (scaling.get("factor") or 16)
    np.testing.assert_allclose(inv_freq, expected[0], rtol=rtol)
    assert attention_factor == pytest.approx(expected[1], rel=1e-15)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("seq_len", [None, 1000, 8193, 100_000])
def test_published_parameters_as_in_transformers(name, seq_len):
    scaling, head_dim, max_position_embeddings = PUBLISHED[name]
    check_against_transformers(scaling, head_dim, max_position_embeddings, seq_len)


@pytest.mark.parametrize("head_dim", [2, 8, 64, 80, 256])
@pytest.mark.parametrize("base", [1e4, 5e5, 1e7])
@pytest.mark.parametrize("factor", [1.0, 2.5, 32.0])
def test_grid_as_in_transformers(head_dim, base, factor):
    common = {"rope_theta": base, "factor": factor}
    trained = {**common, "original_max_position_embeddings": 4096}
    grid = [
        {"rope_type": "linear", **common},
        {"rope_type": "proportional", **common, "partial_rotary_factor": 0.75},
        {"rope_type": "yarn", **trained},
        {"rope_type": "yarn", **trained, "truncate": False, "attention_factor": 0.5},
        {"rope_type": "yarn", **trained, "beta_fast": 16, "beta_slow": 2, "mscale": 0.7},
        {"rope_type": "llama3", **trained, "low_freq_factor": 1.5, "high_freq_factor": 6.0},
    ]
    for scaling in grid:
        check_against_transformers(scaling, head_dim, 131072)
    if head_dim > 2:
        check_against_transformers({"rope_type": "dynamic", **common}, head_dim, 2048, 5000)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_default_as_in_transformers(head_dim):
    modeling = pytest.importorskip(
        "transformers.models.llama.modeling_llama", reason="the outside oracle of the default"
    )
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, rope_theta=5e5)
    inv_freq, attention_factor = rotary_frequencies(head_dim, 5e5)
    rotary = modeling.LlamaRotaryEmbedding(config)
    np.testing.assert_allclose(inv_freq, rotary.inv_freq.numpy(), rtol=FLOAT32)
    assert attention_factor == 1.0


def test_alpha_as_in_transformers():
    modeling = pytest.importorskip(
        "transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense",
        reason="the outside oracle of the NTK alpha",
    )
    from transformers import HunYuanDenseV1Config

    scaling = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10000.0}
    config = HunYuanDenseV1Config(head_dim=128, rope_parameters=dict(scaling))
    expected = modeling.HunYuanDenseV1RotaryEmbedding(config).inv_freq.numpy()
    for scaled in (scaling, {"rope_type": "ntk_alpha", "alpha": 1000.0}):
        np.testing.assert_allclose(rotary_frequencies(128, 1e4, scaled)[0], expected, rtol=FLOAT32)


# The plain formula


@pytest.mark.parametrize("base", [1e4, 5e5, 1e6, 0.5, 3.3])
@pytest.mark.parametrize(("dim", "shift"), [(128, 0.0), (512, 1.0), (6, 0.5), (10, -1.25)])
def test_frequencies_and_wavelengths_are_correctly_rounded(dim, base, shift):
    with mpmath.workprec(200):
        exponent = 1 / (mpmath.mpf(dim) / 2 - mpmath.mpf(shift))
        exact = [mpmath.mpf(base) ** (-i * exponent) for i in range(dim // 2)]
        expected = [float(w) for w in exact]
        expected_wavelengths = [float(2 * mpmath.pi / w) for w in exact]
    np.testing.assert_array_equal(frequencies(dim, base, shift=shift), expected)
    np.testing.assert_array_equal(wavelengths(dim, base, shift=shift), expected_wavelengths)


def test_exact_powers_are_exact():
    np.testing.assert_array_equal(frequencies(8, 1e4), [1.0, 0.1, 0.01, 0.001])
    np.testing.assert_array_equal(frequencies(6, 2.0**30), [1.0, 2.0**-10, 2.0**-20])


def test_empty():
    assert frequencies(0).shape == (0,)
    assert wavelengths(0).dtype == np.float64
    assert rotary_frequencies(0)[0].shape == (0,)


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (ValueError, {"dim": 3}),
        (ValueError, {"dim": -2}),
        (TypeError, {"dim": 4.0}),
        (TypeError, {"dim": True}),
        (ValueError, {"base": 0}),
        (ValueError, {"base": -1e4}),
        (ValueError, {"base": math.nan}),
        (TypeError, {"base": "1e4"}),
        (TypeError, {"base": 1j}),
        (ValueError, {"shift": 4.0}),
        (ValueError, {"shift": math.inf}),
        (ValueError, {"base": 1e-300}),
    ],
    ids=str,
)
def test_bad_arguments(error, arguments):
    values = {"dim": 8, "base": 1e4, "shift": 0.0, **arguments}
    for function in (frequencies, wavelengths):
        with pytest.raises(error, match=rf"^{function.__name__}: .*: expected .*, got "):
            function(values["dim"], values["base"], shift=values["shift"])


# Scalings


def test_unknown_rope_type_names_those_known():
    with pytest.raises(ValueError, match=r"scaling\['rope_type'\].*yarn.*got 'su'"):
        rotary_frequencies(64, scaling={"rope_type": "su"})


REQUIRED = {
    "default": {},
    "linear": {"factor": 2.0},
    "ntk_alpha": {"alpha": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 4096},
    "llama3": {
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    },
    "longrope": {
        "factor": 2.0,
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0] * 32,
        "long_factor": [2.0] * 32,
    },
    "proportional": {},
}


HIGH = "high_freq_factor"


def test_every_rope_type_is_covered_here():
    assert list(REQUIRED) == list(ROTARY_SCALINGS)


@pytest.mark.parametrize("rope_type", REQUIRED)
def test_missing_and_nonsense_values_are_named(rope_type):
    good = {"rope_type": rope_type, **REQUIRED[rope_type]}
    rotary_frequencies(64, scaling=good)
    for key in REQUIRED[rope_type]:
        name = rf"^rotary_frequencies: scaling\['{key}'\]: expected .*, got "
        missing = {k: value for k, value in good.items() if k != key}
        for bad in (missing, {**good, key: None}):
            with pytest.raises(ValueError, match=name):
                rotary_frequencies(64, scaling=bad)
        if key.endswith("_factor") and isinstance(good[key], list):
            with pytest.raises(ValueError, match=name):
                rotary_frequencies(64, scaling={**good, key: [1.0] * 31})
            with pytest.raises(ValueError, match=name):
                rotary_frequencies(64, scaling={**good, key: [-1.0] * 32})
        else:
            for value in (0.0, -1.0, math.inf):
                with pytest.raises(ValueError, match=name):
                    rotary_frequencies(64, scaling={**good, key: value})
        with pytest.raises(TypeError, match=name):
            rotary_frequencies(64, scaling={**good, key: "4"})
    with pytest.raises(ValueError, match=r"scaling: expected a key of rope_type .*'beta'"):
        rotary_frequencies(64, scaling={**good, "beta": 1})


@pytest.mark.parametrize(
    ("error", "match", "scaling"),
    [
        (TypeError, "scaling: expected a mapping", [("rope_type", "linear")]),
        (TypeError, "'truncate'", {"rope_type": "yarn", **REQUIRED["yarn"], "truncate": 1}),
        (ValueError, "'high_freq", {"rope_type": "llama3", **REQUIRED["llama3"], HIGH: 1.0}),
        (ValueError, "'partial_", {"rope_type": "proportional", "partial_rotary_factor": 1.5}),
        (ValueError, "'max_position", {"rope_type": "dynamic", "factor": 2.0, "seq_len": 9}),
    ],
)
def test_bad_scalings(error, match, scaling):
    with pytest.raises(error, match=match):
        rotary_frequencies(64, scaling=scaling)


def test_base_and_rope_theta_must_agree():
    scaling = {"rope_type": "default", "rope_theta": 5e5}
    expected = rotary_frequencies(64, 5e5)[0]
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling)[0], expected)
    np.testing.assert_array_equal(rotary_frequencies(64, 5e5, scaling)[0], expected)
    with pytest.raises(ValueError, match=r"base: expected scaling\['rope_theta'\] = 500000.0"):
        rotary_frequencies(64, 1e6, scaling)


def test_length_is_a_key_or_an_argument():
    scaling = {"rope_type": "longrope", **REQUIRED["longrope"]}
    short, long = frequencies(64), frequencies(64) / 2
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling)[0], short)
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling, seq_len=4096)[0], short)
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling, seq_len=4097)[0], long)
    with_key = {**scaling, "seq_len": 4097}
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=with_key)[0], long)


def test_old_name_of_the_type_and_keys_of_other_use():
    scaling = {"type": "linear", "factor": 2.0, "mrope_section": [16, 24, 24], "rope_theta": None}
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling)[0], frequencies(64) / 2)
