"""The words about a configuration: what they say, and when."""

import mpmath
import numpy as np
import outside
import pytest
from hf_configurations import language_configs
from posenc_native.rotary import nope_layers
from published import DEEPSEEK, LLAMA3, MINISTRAL, PUBLISHED, sizes

from posenc_native import Rotary, explain
from posenc_native.core.frequencies.scaling import softmax_correction

LLAMA = {"model_type": "llama", **sizes(4096, 32, 5e5, 131072)}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def text(config):
    """All of it on one line, as wrapping may break anywhere."""
    return " ".join(str(explain(config)).split())


def scaled(**scaling):
    return {**LLAMA, "rope_scaling": scaling}


# What is said, and of which configuration; the second configuration does not have it.
CASES = {
    "dynamic": ("recomputes the frequencies", scaled(type="dynamic", factor=2.0), LLAMA),
    "dynamic, vLLM": ("for 262,144 positions", scaled(type="dynamic", factor=2.0), LLAMA),
    "dynamic, fixed": ("nothing depends on the length",
                       scaled(type="dynamic", factor=1.0, alpha=1000.0),
                       scaled(type="dynamic", factor=2.0)),
    "longrope": ("vLLM 0.32.0 decides once at the start", PUBLISHED["phi-3.5-mini"], LLAMA),
    "longrope, lists": ("1.08 to 64.84 for longer ones", PUBLISHED["phi-3.5-mini"], LLAMA),
    "truncate": ("are not rounded to whole pairs", PUBLISHED["gpt-oss"], scaled(**YARN)),
    "truncate in an entry": ("transformers 5.23 overlooks it",
                             {**sizes(4096, 32, None, 131072),
                              "rope_parameters": {"full_attention": {**YARN, "rope_theta": 1e4,
                                                                     "truncate": False}}},
                             PUBLISHED["gpt-oss"]),
    "attention factor": ("that does not read this uses 1.277 (0.1 ln(factor) + 1)",
                         PUBLISHED["ministral-3"], scaled(**YARN)),
    "attention factor, equal": (
        "multiplied by 1.208 (the attention factor), so scores grow by a factor of 1.459.",
        PUBLISHED["olmo-3"], LLAMA,
    ),
    "mscale alone": ("mscale is given without the other", scaled(**YARN, mscale=1.0),
                     scaled(**YARN, mscale=1.0, mscale_all_dim=1.0)),
    "softmax": ("multiplies the scale of its scores by 1.874", PUBLISHED["deepseek-v3"],
                PUBLISHED["ministral-3"]),
    "softmax, not": ("does not correct the softmax scale", PUBLISHED["ministral-3"],
                     PUBLISHED["deepseek-v3"]),
    "temperature": ("multiplied by 1 + 0.1 * ln(1 + floor(position / 16,384))",
                    PUBLISHED["ministral-3"], LLAMA),
    "betas": ("Code that swaps the two", PUBLISHED["gpt-oss"], scaled(**YARN)),
    "linear": ("divides positions instead", scaled(type="linear", factor=8.0), LLAMA),
    "llama3": ("Here 29 pairs keep their frequency, 6 are blended and 29 are slowed by 8.",
               PUBLISHED["llama-3.1"], LLAMA),
    "llama3, step": ("make a step", PUBLISHED["llama-4-scout"], PUBLISHED["llama-3.1"]),
    "axes": ("the shape [3, batch, tokens]. Fused kernels that read only the first row",
             PUBLISHED["qwen2-vl"], LLAMA),
    "axes, turns": ("The remaining pairs use time", PUBLISHED["qwen3-vl"], PUBLISHED["qwen2-vl"]),
    "axes, shares": ("24 by time, 20 by height, 20 by width", PUBLISHED["qwen3-vl"],
                     PUBLISHED["qwen2-vl"]),
    "axes, two": ("16 by height, 16 by width", {"model_type": "neomme"}, PUBLISHED["qwen2-vl"]),
    "share": ("applies the share twice", PUBLISHED["glm-4.5"], LLAMA),
    "share, words": ("The first 64 of the 128 dims of a head", PUBLISHED["glm-4.5"], LLAMA),
    "proportional": ("over the whole head, and dim i pairs with dim i + 256", PUBLISHED["gemma-4"],
                     LLAMA),
    "still pairs": ("the other 192 pairs have frequency 0", PUBLISHED["gemma-4"], LLAMA),
    "neighbors": ("Neighboring dims form pairs", PUBLISHED["command-r"], LLAMA),
    "halves": ('dim i with dim i + 64 ("half")', LLAMA, PUBLISHED["command-r"]),
    "latent": ("that latent attention keeps", PUBLISHED["deepseek-v3"], LLAMA),
    "latent, order": ("so no score changes", PUBLISHED["deepseek-v3"], PUBLISHED["command-r"]),
    "backward": ("minus the angle", {"model_type": "nanochat", **sizes(512, 4)}, LLAMA),
    "trailing": ("The last 64 of the 512 dims",
                 {"model_type": "deepseek_v4", "head_dim": 512, "rope_theta": 1e4,
                  "rope_parameters": {"partial_rotary_factor": 0.125}},
                 LLAMA),
    "nope": ("Layers: 3, 7 ... 35 (every 4th)", PUBLISHED["smollm3"], LLAMA),
    "nope, warning": ("`nope_layers` lists them", PUBLISHED["smollm3"], LLAMA),
    "nope, unnumbered": (
        "(every 4th layer): an engine that rotates all layers alike is wrong, which may show",
        {"model_type": "smollm3", "head_dim": 128}, PUBLISHED["smollm3"],
    ),
    "nope, number missing": (
        "does not say how many layers there are (num_hidden_layers), so it is unknown which",
        {"model_type": "smollm3", "head_dim": 128},
        {"model_type": "beam", "head_dim": 128, "num_hidden_layers": 8},
    ),
    "nope, interval": ("(every third layer)",
                       {"model_type": "llama4_text", "head_dim": 128, "no_rope_layer_interval": 3},
                       PUBLISHED["llama-4-scout"]),
    "nope, from the last": ("(the last and every 4th before it)",
                            {"model_type": "muse_spark_text", "head_dim": 128},
                            {"model_type": "muse_spark_text", "head_dim": 128,
                             "num_hidden_layers": 8}),
    "nope, unnumbered type": ("(those of type full_attention, every 4th layer)",
                              {"model_type": "cohere2", "head_dim": 128},
                              {"model_type": "cohere2", "head_dim": 128, "num_hidden_layers": 8}),
    "nope, no period": (
        "(those of type full_attention): an engine that rotates all layers alike is wrong",
        {"model_type": "beam", "head_dim": 128},
        {"model_type": "cohere2", "head_dim": 128},
    ),
    "nope, types missing": ("The configuration does not say which layers these are (layer_types)",
                            {"model_type": "some", "head_dim": 128, "num_hidden_layers": 8,
                             "rope_parameters": {"full_attention": None,
                                                 "sliding_attention": {"rope_theta": 1e4}}},
                            {"model_type": "cohere2", "head_dim": 128}),
    "factor without a type": (
        "rope_scaling has a factor (2.0) without a rope_type beside it. The factor is ignored",
        scaled(factor=2.0), scaled(type="linear", factor=2.0),
    ),
    "factor without a type, by layer": (
        "rope_parameters has a factor (8.0) without a rope_type",
        {**sizes(4096, 32, None, 131072),
         "rope_parameters": {"full_attention": {"rope_theta": 1e6, "factor": 8.0}}},
        scaled(factor=8.0),
    ),
    "layers differ": ("one table of cosines for all of them is wrong", PUBLISHED["gemma-3-4b"],
                      LLAMA),
    "base unsaid": ("class defaults to 10,000", {"model_type": "llama", "head_dim": 64}, LLAMA),
    "moe": ("rotates by the short factors at every length",
            {"model_type": "phimoe",
             **sizes(256, 4, 1e4, 131072, original_max_position_embeddings=4096),
             "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 32,
                              "long_factor": [2.0] * 32, "short_mscale": 1.2, "long_mscale": 1.3}},
            PUBLISHED["phi-3.5-mini"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_and_when(name):
    words, config, other = CASES[name]
    assert words in text(config)
    assert words not in text(other)


def test_attributes_hold_what_the_text_says():
    report = explain(PUBLISHED["deepseek-v3"])
    (group,) = report.layers
    assert report.model_type == "deepseek_v3"
    assert group.rotary == Rotary.from_config(PUBLISHED["deepseek-v3"])
    assert group.softmax_correction == softmax_correction(DEEPSEEK)
    assert report.nope_layers == ()
    for fact in (*group.facts, *report.warnings):
        assert fact in text(PUBLISHED["deepseek-v3"])

    report = explain(PUBLISHED["llama-4-scout"])
    rotating, without = report.layers
    assert without.rotary is None
    assert without.layers == report.nope_layers == nope_layers(PUBLISHED["llama-4-scout"])
    assert sorted(rotating.layers + without.layers) == list(range(48))
    assert rotating.softmax_correction == 1.0


@pytest.mark.parametrize("model_type", ["smollm3", "llama4_text", "cohere2"])
def test_layers_without_numbers_are_told_apart(model_type):
    report = explain({"model_type": model_type, "head_dim": 128})
    rotating, without = report.layers
    assert rotating.rotary == Rotary.from_config({"model_type": model_type, "head_dim": 128})
    assert without.rotary is None
    assert rotating.layers == without.layers == report.nope_layers == ()
    lines = str(report).splitlines()
    assert "All layers" not in lines
    assert "Layers that rotate" in lines
    named = f"Layers of type {without.layer_type}"
    assert (named if without.layer_type else "Layers without rotary encoding") in lines


def test_model_that_corrects_no_softmax_scale_has_none():
    (group,) = explain(PUBLISHED["ministral-3"]).layers
    assert group.softmax_correction == 1.0
    assert softmax_correction({k: v for k, v in MINISTRAL.items() if "beta" not in k}) > 1.6


@pytest.mark.parametrize("name", ["llama-3.1", "llama-4-scout", "gemma-3-4b", "command-r"])
def test_error_of_float32_is_what_float32_does(name):
    """The figure against float32 arithmetic done here, its exact value from mpmath."""
    config = PUBLISHED[name]
    length = config["max_position_embeddings"]
    largest = 0.0
    for layer_type in {"gemma-3-4b": ("full_attention", "sliding_attention")}.get(name, (None,)):
        inv_freq = Rotary.from_config(config, layer_type).inv_freq
        for position in range(length - 64, length):
            product = np.float32(position) * inv_freq.astype(np.float32)
            with mpmath.workprec(200):
                exact = [mpmath.mpf(int(position)) * mpmath.mpf(float(w)) for w in inv_freq]
                off = [abs(mpmath.mpf(float(p)) - e) for p, e in zip(product, exact, strict=True)]
            largest = max(largest, float(max(off)))
    assert f"off by up to {largest:.4g} radians near position {length:,}" in text(config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"head_dim": 2}, "are rotated, as 1 pair: dim"),
        ({"head_dim": 2, "rope_scaling": {**LLAMA3, "factor": 8.0}},
         "Here 1 pair keeps its frequency, 0 are blended and 0 are slowed by 1."),
        ({"head_dim": 4, "rope_scaling": {**LLAMA3, "factor": 8.0}}, "1 is slowed by 8."),
    ],
)  # fmt: skip
def test_one_pair_is_not_several(config, said):
    assert said in text({"rope_theta": 1e8, **config})


def test_large_numbers_have_all_digits_before_the_point():
    assert "(base 159,704)" in explain(Rotary(64, base=159703.56)).text(500)
    assert "(base 10,000,000)" in explain(Rotary(64, base=1e7)).text(500)


def test_the_exactness_of_angles_has_its_limit():
    assert "In posenc_native angles are exact to float32 up to position 2^38." in text(LLAMA)


def test_short_models_hear_nothing_of_float32():
    assert "float32" not in text({"model_type": "llama", **sizes(512, 8, 1e4, 128)})


def test_lines_are_short_and_nothing_is_printed(capsys):
    for config in PUBLISHED.values():
        lines = str(explain(config)).splitlines()
        assert max(map(len, lines)) <= 92
        assert all(line == line.rstrip() for line in lines)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


# By default of their classes, not of any model: sections that do not fit a head, heads of an odd
# size, a share above 1, parts without sizes of their own.
NONSENSE = {
    "blt",
    "efficientloftr",
    "glm4v_moe_text",
    "glm4v_text",
    "glm_image_text",
    "qwen3_omni_moe_text",
}


def test_every_model_of_transformers_is_explained():
    from model_configurations import with_fact

    outside.module("transformers")
    explained = 0
    for model_type, config in language_configs().items():
        if model_type in {*with_fact("refused"), *with_fact("rotary_if"), *NONSENSE}:
            continue
        report = explain(config)
        explained += 1
        numbers = [layer for group in report.layers for layer in group.layers]
        assert len(numbers) == len(set(numbers)), model_type
        assert set(report.nope_layers) <= set(numbers), model_type
        assert str(report).startswith(f"Rotary encoding of {report.model_type}\n")
    assert explained > 140


@pytest.mark.parametrize(
    ("error", "match", "config"),
    [
        (TypeError, "config: expected a configuration", 7),
        (ValueError, "expected an entry about a rotary encoding", {"model_type": "t5"}),
        (ValueError, "'beta_fast'.*beta_slow = 32", scaled(**YARN, beta_fast=1, beta_slow=32)),
        (ValueError, "'low_freq_factor'", scaled(type="llama3", factor=8.0)),
        (ValueError, "'high_freq", scaled(**{**LLAMA3, "factor": 8.0, "low_freq_factor": 5.0})),
    ],
)
def test_what_cannot_be_understood(error, match, config):
    with pytest.raises(error, match=match):
        explain(config)
