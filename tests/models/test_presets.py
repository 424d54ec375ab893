"""Named presets against the published configurations, read by us and by transformers."""

import copy
import importlib

import numpy as np
import outside
import pytest
from posenc_native.rotary import nope_layers
from published import PUBLISHED

from posenc_native import Rotary

CASES = [
    (name, layer_type)
    for name, facts in Rotary.presets().items()
    for layer_type in (facts.layers or [None])
]


def test_every_preset_has_its_published_form_here():
    assert list(PUBLISHED) == list(Rotary.presets())


def same(rotary, other):
    np.testing.assert_array_equal(rotary.inv_freq, other.inv_freq)
    np.testing.assert_array_equal(rotary.axis_map, other.axis_map)
    for name in ("head_dim", "scale", "pairing", "rotary_start"):
        assert getattr(rotary, name) == getattr(other, name), name


@pytest.mark.parametrize(("name", "layer_type"), CASES)
def test_presets_are_what_the_published_configuration_says(name, layer_type):
    published, facts = PUBLISHED[name], Rotary.presets()[name]
    for seq_len in (None, 4096, 4097):
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
    facts = Rotary.presets()[name]
    # A copy: classes of transformers write into the mappings that they are given.
    values = {"num_hidden_layers": 6, **copy.deepcopy(PUBLISHED[name])}
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
    for name, facts in Rotary.presets().items():
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
        Rotary.presets()["mine"] = None
    with pytest.raises(AttributeError):
        Rotary.presets()["llama-3"].base = 1.0
    rotary = Rotary.preset("llama-3.1")
    assert rotary == Rotary.preset("llama-3.1") == Rotary.preset("llama-3.3")
    assert rotary != Rotary.preset("llama-3")


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ValueError, "name: expected one of .*llama-3.1.*got 'llama3.1'", ("llama3.1",)),
        (ValueError, "name: expected one of .*gpt-oss.*got 'GPT-OSS-20b'", ("GPT-OSS-20b",)),
        (
            ValueError,
            r"name: expected one of the [0-9]+ names in Rotary.presets\(\).*got '###'",
            ("###",),
        ),
        (ValueError, "layer_type: expected one of full_.*, sliding_.*, got None", ("gemma-4",)),
        (ValueError, "layer_type: expected one of None, got 'full'", ("llama-3", "full")),
        (TypeError, "name: expected a str, got int", (3,)),
    ],
)
def test_bad_names(error, match, arguments):
    with pytest.raises(error, match=rf"^Rotary\.preset: {match}"):
        Rotary.preset(*arguments)
