"""The tables of facts about models, against the defaults of transformers."""

import json
from pathlib import Path

import numpy as np
import outside
import pytest
from hf_configurations import classes, language_configs
from model_configurations import LLAMA3, SIZES, YARN, with_fact

from posenc_native import Rotary
from posenc_native.models.config import Configuration
from posenc_native.models.facts import model_facts

# The rows of facts.json


@pytest.mark.parametrize("scaled", [False, True])
def test_defaults_are_those_of_transformers(scaled):
    """A configuration of sizes alone means what the class makes of it, for every model."""
    checked = 0
    for model_type, config in language_configs().items():
        if model_type in with_fact("refused"):
            continue
        options = {}
        if model_type in with_fact("rotary_if"):
            rule = with_fact("rotary_if")[model_type]
            options = {rule["entry"]: rule["value"]}
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
            config = type(config)(**json.loads(json.dumps(options)))  # it changes its arguments
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


# Whose sizes are by layer, or under other names.
OWN_SIZES = {"moonshine", "openelm"}


def test_a_file_of_a_few_sizes_means_what_the_class_makes_of_them():
    """Some classes have a width of heads of their own, 256 in Gemma 3, and a rule for layers."""
    sizes = {"hidden_size": 480, "num_attention_heads": 4, "num_hidden_layers": 7}
    compared = 0
    for model_type in sorted(set(language_configs()) - set(with_fact("refused")) - OWN_SIZES):
        try:
            expected = Configuration.read(classes()[model_type](**sizes), "test").groups()
        except Exception:
            continue  # the class takes no such sizes
        try:
            found = Configuration.read({"model_type": model_type, **sizes}, "test").groups()
        except ValueError:
            continue  # an error, and no other rotation
        heads = [
            {group.arguments["head_dim"] for group in groups if group.arguments is not None}
            for groups in (found, expected)
        ]
        assert heads[0] == heads[1], model_type
        if model_type in with_fact("full_attention_every"):
            numbers = [sorted(group.layers for group in groups) for groups in (found, expected)]
            assert numbers[0] == numbers[1], model_type
        compared += 1
    assert compared > 120


def test_every_rotary_model_is_in_the_table_of_defaults():
    known = set(with_fact("defaults")) | {"blt", "efficientloftr", "musicflamingo"}
    assert set(language_configs()) <= known


def test_interleaving_is_said_or_known():
    said = {
        model_type
        for model_type, config in language_configs().items()
        if getattr(config, "rope_interleave", False)
    }
    assert said
    assert said <= set(with_fact("pairing"))


def test_models_with_a_softmax_correction():
    root = Path(outside.module("transformers").__file__).parent / "models"
    corrected = {
        file.parent.name
        for file in root.glob("*/modeling_*.py")
        if "= yarn_apply_mscale(" in file.read_text()
    }
    names = {name.removesuffix("_text") for name in with_fact("corrects_softmax")}
    assert names == corrected


def test_model_types_of_the_tables_exist():
    named = set(model_facts()) - set(with_fact("same_as"))
    assert named <= set(classes())
