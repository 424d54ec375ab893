"""Layers without rotary encoding, and layers with bases of their own."""

import importlib
import importlib.util
import inspect
import json

import pytest
from hf_configurations import classes
from model_configurations import ORACLE, SIZES, with_fact
from posenc_native.rotary import nope_layers

from posenc_native import Rotary, explain
from posenc_native.models.config import Configuration, rotary_arguments

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
    if config.model_type not in with_fact("refused"):
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
    periodic = {*with_fact("full_attention_every"), *with_fact("nope_every")}
    if name.partition(" ")[0] in periodic and "first_k_dense_replace" not in NOPE[name]:
        left_out = ("layer_types", "no_rope_layers", "layer_rope_theta")
        bare = {k: v for k, v in config.to_dict().items() if k not in left_out}
        assert nope_layers({**bare, **NOPE[name]}) == expected


UNNUMBERED = [
    name
    for name in NOPE
    if name in {*with_fact("nope_every"), *with_fact("full_attention_every"), "beam", "flint"}
    and name not in {*with_fact("others_linear"), "gemma3_text"}
]


@pytest.mark.parametrize("name", UNNUMBERED)
def test_layers_that_cannot_be_numbered(name):
    """Models with such layers by default, of which a file does not say how many layers it has."""
    assert nope_layers(classes()[name]()), "by default it has no such layers"
    file = {"model_type": name, "head_dim": 64}
    with pytest.raises(ValueError, match=r"^nope_layers: config\['num_hidden_layers'\]") as ours:
        nope_layers(file)
    if name not in with_fact("refused"):
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


@pytest.mark.parametrize("name", ["beam", "exaone4", "exaone_moe", "flint", "kolibri1"])
def test_a_sliding_window_that_a_file_leaves_out_is_there(name):
    file = {"model_type": name, "num_hidden_layers": 10}
    assert nope_layers(file) == nope_layers(classes()[name](num_hidden_layers=10)) != ()


def test_layers_have_bases_of_their_own():
    values = {"head_dim": 64, "num_hidden_layers": 4, "rope_theta": 1e4}
    config = {**values, "layer_rope_theta": [1e4, 0, 1e6, 1e4]}
    assert [Rotary.from_config(config, layer=i).base for i in (0, 2, 3)] == [1e4, 1e6, 1e4]
    with pytest.raises(ValueError, match="expected the index of a layer, because they differ"):
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
        (TypeError, "layer_type: expected a str, got int", {"layer_type": 3}),
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


SMALL = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 8,
         "max_position_embeddings": 8192, "rope_theta": 1e4}  # fmt: skip
# Entries of published files that say which layers have attention, and those layers.
HYBRID = {
    "bamba": ({"attn_layer_indices": [2, 5]}, [2, 5]),
    "lfm2": ({"full_attn_idxs": [2, 5, 6]}, [2, 5, 6]),
    "minimax": ({}, [0, 2, 4, 6]),
    "minimax_m1": ({"attn_type_list": [0, 0, 1, 0, 0, 0, 1, 0]}, [2, 6]),
    "recurrent_gemma": ({"block_types": ["recurrent", "attention"]}, [1, 3, 5, 7]),
    "bailing_hybrid": ({"layer_group_size": 4, "qk_rope_head_dim": 32}, [3, 7]),
    "kimi_linear": ({"linear_attn_config": {"full_attn_layers": [4, 8], "kda_layers": [1, 2]},
                     "mla_use_nope": False}, [3, 7]),
    "zamba2": ({"layers_block_type": ["mamba", "mamba", "hybrid", "mamba"] * 2,
                "use_mem_rope": True}, [2, 6]),
}  # fmt: skip


@pytest.mark.parametrize("name", HYBRID)
def test_entries_that_name_the_layers_with_attention(name):
    entries, expected = HYBRID[name]
    config = {**SMALL, **entries, "model_type": name}
    said = [i for group in explain(config).layers if group.rotary for i in group.layers]
    assert sorted(said) == expected


def test_a_model_without_rotary_encoding_is_none_with_a_base():
    config = {**SMALL, "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*ME*-"}
    (group,) = explain(config).layers
    assert (group.rotary, group.layers) == (None, (3, 6))


@pytest.mark.parametrize(
    ("name", "entries", "said"),
    [
        ("bailing_hybrid", {"layer_group_size": 0}, "one or more, got 0"),
        ("recurrent_gemma", {"block_types": []}, r"one or more, got \[\]"),
        ("nemotron_h", {"hybrid_override_pattern": ""}, "one or more, got ''"),
        ("nemotron_h", {"hybrid_override_pattern": "M-X*"}, "the letters M, .*, got 'X'"),
    ],
)
def test_entries_that_name_no_layers_are_refused(name, entries, said):
    for function in (explain, Rotary.from_config, nope_layers):
        with pytest.raises(ValueError, match=rf"config\['{next(iter(entries))}'\].*{said}"):
            function({**SMALL, **entries, "model_type": name})
