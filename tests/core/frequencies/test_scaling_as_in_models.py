"""Scaled frequencies, against transformers' own functions and vLLM's formula."""

import math
from types import SimpleNamespace

import numpy as np
import outside
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scalings import REQUIRED

from posenc_native.core.frequencies.frequencies import frequencies
from posenc_native.core.frequencies.scaling import (
    rotary_frequencies,
    scaled_frequencies,
    softmax_correction,
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
    "Llama 3.1": ({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                   "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192},
                  128, 131072),
    "Llama 3.2": ({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
                   "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192},
                  64, 131072),
    "Qwen 2.5": ({"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                  "original_max_position_embeddings": 32768},
                 128, 32768),
    "DeepSeek V3": ({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096},
                    64, 163840),
    "DeepSeek V2 Lite": ({"rope_type": "yarn", "rope_theta": 10000, "factor": 40, "mscale": 0.707,
                          "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096},
                         64, 163840),
    "gpt-oss": ({"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0,
                 "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096},
                64, 131072),
    "YaRN without a factor": ({"rope_type": "yarn", "rope_theta": 10000.0, "factor": None,
                               "original_max_position_embeddings": 4096},
                              128, 65536),
    "Gemma 3": ({"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}, 256, 131072),
    "Phi-3 mini 128k": ({"rope_type": "longrope", "rope_theta": 10000.0,
                         "original_max_position_embeddings": 4096, **LONG_FACTORS},
                        96, 131072),
    "LongRoPE with a factor": (
        {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 16.0,
         "original_max_position_embeddings": 8192, **LONG_FACTORS},
        96, 131072,
    ),
    "LongRoPE with an attention_factor": (
        {"rope_type": "longrope", "rope_theta": 10000.0, "attention_factor": 1.19,
         "original_max_position_embeddings": 8192, **LONG_FACTORS},
        96, 131072,
    ),
    "Gemma 4": ({"rope_type": "proportional", "rope_theta": 1000000.0,
                 "partial_rotary_factor": 0.25},
                512, 131072),
    "dynamic": ({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 128, 2048),
}  # fmt: skip


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


@pytest.mark.parametrize("factor", [None, 4.0])
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn"},
        {"rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 0.5},
        {"rope_type": "longrope", **LONG_FACTORS},
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ],
    ids=lambda scaling: "-".join(map(str, (scaling["rope_type"], len(scaling)))),
)
@pytest.mark.parametrize("seq_len", [None, 8192, 8193])
def test_without_the_length_of_the_training_as_in_transformers(scaling, factor, seq_len):
    if scaling["rope_type"] == "llama3" and factor is None:
        factor = 8.0  # which llama3 needs
    scaling = {**scaling, "factor": factor, "rope_theta": 1e4}
    check_against_transformers(scaling, 96, 8192, seq_len)


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
