"""Frequencies against 200-bit arithmetic and against transformers' own functions."""

import math
from types import SimpleNamespace

import mpmath
import numpy as np
import outside
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_native.frequencies import (
    ROTARY_SCALINGS,
    frequencies,
    rotary_frequencies,
    scaled_frequencies,
    softmax_correction,
    wavelengths,
)

# transformers computes in float32: some rounding errors of 6e-8 in a row.
FLOAT32 = 1e-6

ROPE_UTILS = "transformers.modeling_rope_utils"

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
            "mscale_all_dim": 0.707,
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
    rope_utils = outside.module(ROPE_UTILS)
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
        {"rope_type": "llama3", **trained, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
    ]
    for scaling in grid:
        check_against_transformers(scaling, head_dim, 131072)
    if head_dim > 2:
        check_against_transformers({"rope_type": "dynamic", **common}, head_dim, 2048, 5000)


def some_scaling(draw, rope_type, base, pairs):
    """A scaling of this type that makes sense, and how much it enlarges rounding errors."""
    positive = st.floats(0.25, 64.0)
    factor = draw(st.one_of(positive, st.integers(1, 64)))
    trained = draw(st.integers(512, 65536))
    scaling = {"rope_type": rope_type, "rope_theta": base, "factor": factor}
    if rope_type == "proportional":
        scaling["partial_rotary_factor"] = draw(st.floats(0.0, 1.0))
        if draw(st.booleans()):
            del scaling["factor"]
    if rope_type in ("linear", "dynamic", "proportional"):
        return scaling, 1.0
    scaling["original_max_position_embeddings"] = trained
    optional = {"attention_factor": positive}
    if rope_type == "llama3":
        low = draw(st.floats(0.5, 4.0))
        high = low + draw(st.floats(0.5, 8.0))
        scaling.update(low_freq_factor=low, high_freq_factor=high)
        # The weight of f against f / factor has a rounding error of its own, a multiple of the
        # turns within the trained length, at most `high`, over high - low.
        return scaling, 1 + 2 * max(factor, 1) * high / (high - low)
    if rope_type == "longrope":
        some = st.lists(st.floats(0.5, 64.0), min_size=pairs, max_size=pairs)
        scaling.update(short_factor=draw(some), long_factor=draw(some))
        optional["factor"] = st.just(factor)
    else:
        slow = draw(st.floats(0.5, 4.0))
        fast = slow * draw(st.floats(2.0, 64.0))
        optional.update(
            beta_fast=st.just(fast),
            beta_slow=st.just(slow),
            mscale=st.floats(0.0, 2.0),
            mscale_all_dim=st.floats(0.0, 2.0),
            truncate=st.booleans(),
        )
    # transformers takes None for absent, but insists on a factor for YaRN.
    for key, values in optional.items():
        choice = draw(st.sampled_from(["given", "absent", "None"]))
        if choice == "given":
            scaling[key] = draw(values)
        elif choice == "absent" and not (key == "factor" and rope_type == "yarn"):
            scaling.pop(key, None)
        else:
            scaling[key] = None
    if rope_type == "yarn" and bool(scaling.get("beta_fast")) != bool(scaling.get("beta_slow")):
        scaling.update(beta_fast=fast, beta_slow=slow)
    # The ramp falls from 1 to 0 over at least dim * ln(2) / (2 ln(base)) pairs, from a bound that
    # float32 rounds.
    return scaling, 1 + 2 * max(factor, 1) * 2 * math.log(base) / math.log(2)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_parameters_as_in_transformers(data):
    draw = data.draw
    rope_type = draw(st.sampled_from(sorted(outside.module(ROPE_UTILS).ROPE_INIT_FUNCTIONS)))
    head_dim = 2 * draw(st.integers(2, 128))
    base = draw(st.floats(1e2, 1e8))
    scaling, enlarged = some_scaling(draw, rope_type, base, head_dim // 2)
    length = draw(st.integers(512, 131072))
    seq_len = draw(st.one_of(st.none(), st.integers(1, 300_000)))

    expected = by_transformers(scaling, head_dim, length, seq_len)
    given_length = {"max_position_embeddings": length}
    inv_freq, attention_factor = rotary_frequencies(
        head_dim, scaling={**scaling, **given_length}, seq_len=seq_len
    )
    if rope_type == "dynamic":
        base *= (scaling["factor"] * max(seq_len or 0, length) / length) ** 2
    # float32: the exponent of the base, the power, its inverse and two or three products.
    rtol = 2.0**-24 * (abs(math.log(base)) + 8) * enlarged
    np.testing.assert_allclose(inv_freq, expected[0], rtol=rtol)
    assert attention_factor == pytest.approx(expected[1], rel=1e-14)


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


def test_ntk_as_in_vllm():
    """The formulas of NTKScalingRotaryEmbedding, whose project cannot be installed here."""
    dim, base, factor, power = 64, 1e4, 8.0, 0.625
    exponents = np.arange(0, dim, 2) / dim
    expected = (base * factor) ** -exponents / factor ** (2 / dim)
    scaling = {"rope_type": "ntk", "factor": factor}
    np.testing.assert_allclose(rotary_frequencies(dim, base, scaling)[0], expected, rtol=1e-13)
    # The highest frequency keeps all but a little, the lowest is divided by the whole factor.
    assert expected[-1] == pytest.approx(base ** -exponents[-1] / factor)

    a = math.log(factor) / (dim / 2) ** power
    expected = base**-exponents / np.exp(a * np.arange(1, dim // 2 + 1) ** power)
    scaling["mixed_b"] = power
    np.testing.assert_allclose(rotary_frequencies(dim, base, scaling)[0], expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("folder", "prefix", "head_dim", "axes"),
    [
        ("qwen2_5_vl", "Qwen2_5_VL", 80, 2),
        ("gemma4", "Gemma4", 64, 2),
        ("glm4v", "Glm4v", 128, 2),
        ("minimax_m3_vl", "MiniMaxM3VL", 80, 3),
    ],
)
def test_axial_as_in_transformers(folder, prefix, head_dim, axes):
    modeling = outside.module(f"transformers.models.{folder}.modeling_{folder}")
    config = SimpleNamespace(head_dim=head_dim, rope_parameters={"rope_theta": 1e4})
    rotary = getattr(modeling, f"{prefix}VisionRotaryEmbedding")
    one_axis, attention_factor = rotary.compute_axial_rope_parameters(config)
    rotated = head_dim // (2 * axes) * 2 * axes  # what is left over is not rotated
    scaling = {"rope_type": "axial", "axes": axes}
    inv_freq, ours = rotary_frequencies(rotated, scaling=scaling)
    assert len(inv_freq) == rotated // 2
    expected = np.tile(one_axis.numpy(), axes)
    np.testing.assert_allclose(inv_freq, expected, rtol=FLOAT32)
    assert ours == attention_factor == 1.0
    if axes == 2:
        default = rotary_frequencies(rotated, scaling={"rope_type": "axial"})[0]
        np.testing.assert_array_equal(default, inv_freq)


@pytest.mark.parametrize("head_dim", [40, 42, 44, 50])
@pytest.mark.parametrize("rope_type", ["default", "linear", "dynamic", "llama3"])
def test_odd_shares_of_a_head_as_in_transformers(head_dim, rope_type):
    scaling = {"rope_type": rope_type, "rope_theta": 1e4, **REQUIRED[rope_type]}
    shared = {**scaling, "partial_rotary_factor": 0.5}
    lengths = {"max_position_embeddings": 8192, "seq_len": 20000}
    if rope_type == "default":
        modeling = outside.module("transformers.models.glm4_moe.modeling_glm4_moe")
        config = SimpleNamespace(head_dim=head_dim, rope_parameters=shared)
        expected = modeling.Glm4MoeRotaryEmbedding.compute_default_rope_parameters(config)[0]
    else:
        expected = by_transformers(shared, head_dim, 8192, 20000)[0]
    dim = head_dim // 2
    inv_freq, _ = scaled_frequencies("test", dim, 1e4, {**scaling, **lengths})
    assert len(inv_freq) == (dim + 1) // 2
    np.testing.assert_allclose(inv_freq, expected, rtol=FLOAT32)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.3, 1.0])
def test_share_of_proportional_as_in_transformers(share):
    scaling = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": share}
    check_against_transformers(scaling, 64, 4096)


@pytest.mark.parametrize("seq_len", [None, 0, 4096, 4097])
def test_mscales_of_longrope_as_in_transformers(seq_len):
    """Phi-3.5-MoE scales cos and sin by the length.

    PhimoeRotaryEmbedding takes the factors of short sequences at every length; the code published
    with the model, and every other engine, changes to the long ones with the scale.
    """
    torch = outside.module("torch")
    modeling = outside.module("transformers.models.phimoe.modeling_phimoe")
    from transformers import PhimoeConfig

    scaling = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0 + i / 64 for i in range(64)],
        "long_factor": [2.0 + i for i in range(64)],
        "short_mscale": 1.243163121016122,
        "long_mscale": 1.25,
    }
    config = PhimoeConfig(head_dim=128, rope_parameters=dict(scaling))
    rotary = modeling.PhimoeRotaryEmbedding(config)
    positions = torch.tensor([[(seq_len or 1) - 1]])
    cos, sin = rotary(torch.zeros(1), positions)
    inv_freq, attention_factor = rotary_frequencies(128, scaling=scaling, seq_len=seq_len)
    assert float(torch.hypot(cos, sin).mean()) == pytest.approx(attention_factor, rel=1e-6)
    factors = np.array(scaling["long_factor" if seq_len == 4097 else "short_factor"])
    np.testing.assert_allclose(inv_freq, frequencies(128) / factors, rtol=1e-15)


# The softmax scale


@pytest.mark.parametrize(
    "folder",
    ["deepseek_v2", "deepseek_v3", "deepseek_v32", "mistral4", "minicpm3", "longcat_flash"],
)
@pytest.mark.parametrize("factor", [1, 0.5, 4.0, 40])
@pytest.mark.parametrize("mscale_all_dim", [None, 0, 0.707, 1.0])
def test_softmax_correction_as_in_transformers(folder, factor, mscale_all_dim):
    modeling = outside.module(f"transformers.models.{folder}.modeling_{folder}")
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": mscale_all_dim,
    }
    expected = modeling.yarn_apply_mscale(scaling, 192**-0.5) / 192**-0.5
    assert softmax_correction(scaling) == pytest.approx(expected, rel=1e-15)


def test_softmax_correction_is_of_yarn_alone():
    assert softmax_correction(None) == 1.0
    for rope_type, required in REQUIRED.items():
        assert softmax_correction({"rope_type": rope_type, **required}) == 1.0
    old = {"type": "yarn", "original_max_position_embeddings": 4096, "mscale_all_dim": 1.0}
    from_lengths = softmax_correction({**old, "max_position_embeddings": 163840})
    assert from_lengths == softmax_correction({**old, "factor": 40}) > 1.8
    with pytest.raises(ValueError, match=r"^softmax_correction: scaling\['factor'\]"):
        softmax_correction(old)
    with pytest.raises(TypeError, match=r"^softmax_correction: scaling: expected a mapping"):
        softmax_correction([1])


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
    "ntk": {"factor": 2.0},
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
    "axial": {},
}


HIGH = "high_freq_factor"
YARN = {"rope_type": "yarn", **REQUIRED["yarn"]}
LONG_ROPE = {"rope_type": "longrope", **REQUIRED["longrope"]}


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
            for value in (0.0, -1.0, math.inf, math.nan):
                with pytest.raises(ValueError, match=name):
                    rotary_frequencies(64, scaling={**good, key: value})
        for value in ("4", True, 1j):
            with pytest.raises(TypeError, match=name):
                rotary_frequencies(64, scaling={**good, key: value})
    with pytest.raises(ValueError, match=r"scaling: expected a key of rope_type .*'beta'"):
        rotary_frequencies(64, scaling={**good, "beta": 1})


@pytest.mark.parametrize(
    ("error", "match", "scaling"),
    [
        (TypeError, "scaling: expected a mapping", [("rope_type", "linear")]),
        (TypeError, "'truncate'", {"rope_type": "yarn", **REQUIRED["yarn"], "truncate": 1}),
        (ValueError, "'high_freq", {"rope_type": "llama3", **REQUIRED["llama3"], HIGH: 0.5}),
        (ValueError, "'partial_", {"rope_type": "proportional", "partial_rotary_factor": 1.5}),
        (ValueError, "'max_position", {"rope_type": "dynamic", "factor": 2.0, "seq_len": 9}),
        (ValueError, "'factor'.*finite base", {"rope_type": "ntk", "factor": 1e306}),
        (ValueError, "'alpha'.*finite base", {"rope_type": "ntk_alpha", "alpha": 1e305}),
        (ValueError, "'alpha'.*finite base", {"rope_type": "ntk_alpha", "alpha": 5e-324}),
        (ValueError, "'mixed_b'", {"rope_type": "ntk", "factor": 2.0, "mixed_b": -1.0}),
        (ValueError, "'long_mscale'", {**LONG_ROPE, "short_mscale": 1.2}),
        (ValueError, "'axes'.*64 dims", {"rope_type": "axial", "axes": 7}),
        (ValueError, "'axes'", {"rope_type": "axial", "axes": 0}),
        (TypeError, "'axes'", {"rope_type": "axial", "axes": 2.0}),
        (TypeError, "'short_factor'.*a list", {**LONG_ROPE, "short_factor": 1.0}),
        (TypeError, "'short_factor'.*a list", {**LONG_ROPE, "short_factor": np.array(1.0)}),
        (TypeError, "'short_factor'.*real", {**LONG_ROPE, "short_factor": [True] * 32}),
        (TypeError, "'short_factor'.*real", {**LONG_ROPE, "short_factor": ["1"] * 32}),
        (ValueError, "'long_factor'", {**LONG_ROPE, "long_factor": [math.nan] * 32}),
        (ValueError, "'rope_theta'", {"rope_theta": 0.0}),
        (ValueError, "'rope_theta'.*base > 1", {**YARN, "rope_theta": 1.0}),
        (ValueError, "'beta_fast'.*beta_slow = 2", {**YARN, "beta_fast": 1, "beta_slow": 2}),
        (ValueError, "'beta_fast'.*beta_slow = 33", {**YARN, "beta_slow": 33}),
        # A value that the type does not read must still make sense.
        (ValueError, "'seq_len'", {"rope_type": "linear", "factor": 2.0, "seq_len": -1}),
        (TypeError, "'max_position", {"max_position_embeddings": "4096"}),
        (ValueError, "'partial_", {"partial_rotary_factor": math.nan}),
    ],
)
def test_bad_scalings(error, match, scaling):
    with pytest.raises(error, match=match):
        rotary_frequencies(64, scaling=scaling)


@pytest.mark.parametrize("key", ["attention_factor", "beta_fast", "beta_slow", "mscale"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "1", True, None])
def test_optional_values_of_yarn(key, value):
    if value is None:  # as in configurations that list every key
        expected, got = (rotary_frequencies(64, scaling=s) for s in (YARN, {**YARN, key: None}))
        np.testing.assert_array_equal(got[0], expected[0])
        assert got[1] == expected[1]
        return
    for function in (lambda s: rotary_frequencies(64, scaling=s), softmax_correction):
        error = TypeError if isinstance(value, (str, bool)) else ValueError
        with pytest.raises(error, match=rf"scaling\['{key}'\]: expected .*, got "):
            function({**YARN, key: value})


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
