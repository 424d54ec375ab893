"""Configurations that nobody means: an answer or an error in one line, in little memory."""

from __future__ import annotations

import json
import tracemalloc
import warnings

import numpy as np
import pytest
from config_entries import places, with_entry
from model_configurations import LLAMA3, LONGROPE, YARN
from posenc_native.rotary import nope_layers

from posenc_native import Rotary, explain
from posenc_native.models.entries import HEAD_LIMIT, KIND_LIMIT, LAYER_LIMIT, PART_LIMIT

FUNCTIONS = {
    "Rotary.from_config": Rotary.from_config,
    "explain": explain,
    "nope_layers": nope_layers,
}

SIZES = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 8}
TYPES = ["sliding_attention", "full_attention"] * 4

CONFIGURATIONS = {
    "llama 3": {"model_type": "llama", **SIZES, "rope_theta": 5e5,
                "max_position_embeddings": 131072, "rope_scaling": LLAMA3},
    "gemma 3": {"model_type": "gemma3_text", **SIZES, "head_dim": 256, "layer_types": TYPES,
                "rope_parameters": {"sliding_attention": {"rope_type": "default",
                                                          "rope_theta": 1e4},
                                    "full_attention": {"rope_type": "linear", "factor": 8.0,
                                                       "rope_theta": 1e6}}},
    "older gemma 3": {"model_type": "gemma3_text", **SIZES, "head_dim": 256,
                      "sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
                      "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "deepseek": {"model_type": "deepseek_v3", **SIZES, "qk_rope_head_dim": 64, "rope_theta": 1e4,
                 "max_position_embeddings": 163840, "rope_interleave": True,
                 "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "truncate": False,
                                  "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0}},
    "longrope": {"model_type": "phi3", **SIZES, "head_dim": 64, "rope_scaling": LONGROPE,
                 "original_max_position_embeddings": 4096, "max_position_embeddings": 131072},
    "dynamic": {"model_type": "internlm2", **SIZES, "max_position_embeddings": 4096,
                "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "several axes": {"text_config": {"model_type": "qwen3_vl_text", **SIZES, "head_dim": 128,
                                     "rope_parameters": {"rope_theta": 5e6,
                                                         "mrope_section": [24, 20, 20],
                                                         "mrope_interleaved": True}}},
    "without some": {"model_type": "smollm3", **SIZES, "no_rope_layers": [1, 1, 1, 0] * 2,
                     "no_rope_layer_interval": 4, "rope_theta": 1e4},
    "bases by layer": {"model_type": "granite_swa", **SIZES,
                       "layer_rope_theta": [1e4, 0, 1e4, 0] * 2, "rope_scaling_layers": [0, 2],
                       "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "sizes by layer": {**SIZES, "head_dim": 64, "rope_theta": 1e4, "layer_types": TYPES,
                       "per_layer_config": {"0": {"head_dim": 128}, "1": {"head_dim": 64}}},
    "compressed": {"model_type": "deepseek_v4", **SIZES, "head_dim": 512, "qk_rope_head_dim": 64,
                   "compress_ratios": [0, 4, 128, 4, 0, 0, 0, 0], "compress_rope_theta": 1e5},
    "flux": {"_class_name": "Flux2Transformer2DModel", "attention_head_dim": 128,
             "axes_dims_rope": [32, 32, 32, 32], "rope_theta": 2000},
    "cosmos": {"_class_name": "CosmosTransformer3DModel", "attention_head_dim": 128,
               "rope_scale": [2.0, 1.0, 1.0]},
    "z-image": {"_class_name": "ZImageTransformer2DModel", "dim": 3840, "n_heads": 30,
                "axes_dims": [32, 48, 48], "rope_theta": 256.0},
    "falcon": {"model_type": "falcon", **SIZES, "alibi": False, "rope_theta": 1e4},
    "vision": {"model_type": "qwen2_5_vl", "image_size": 224, "patch_size": 14,
               "hidden_size": 1280, "num_heads": 16},
}  # fmt: skip


def nested(depth, key=None):
    value = {} if key else []
    for _ in range(depth):
        value = {key: value} if key else [value]
    return value


SELF = {}
SELF.update(text_config=SELF, full_attention=SELF, rope_type=SELF)

HOSTILE = [
    2**24, 10**11, 2**63, -3, 0, 10**400, float("nan"), float("inf"), 1e308, -1e308, 5e-324, True,
    "", "x" * 10**6, "a\nb", [], [7], [[]], [1] * 10**5, nested(10**5), {}, {5: 6},
    nested(10**5, "text_config"), SELF, None, 3j, np.zeros(3),
]  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_entry_may_be_anything(name):
    config = CONFIGURATIONS[name]
    for place in places(config):
        for value in HOSTILE:
            changed = with_entry(config, place, value)
            for function, call in FUNCTIONS.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    try:
                        assert str(call(changed))
                    except (ValueError, TypeError) as error:
                        said, fault = str(error), getattr(error, "fault", None)
                        assert fault is not None, (function, place, said)
                        assert "\n" not in said, (function, place)
                        assert len(said) < 3000, (function, place)


WIDE = {"head_dim": HEAD_LIMIT, "num_hidden_layers": LAYER_LIMIT, "rope_theta": 1e4}
KINDS = [f"{i}_attention" for i in range(KIND_LIMIT)]

LARGE = {
    "kinds of layers": {**WIDE, "layer_types": KINDS * (LAYER_LIMIT // KIND_LIMIT),
                        "rope_parameters": {name: {"rope_theta": 1e4 + i} for i,
                                            name in enumerate(KINDS)}},
    "layers of two bases": {**WIDE, "layer_rope_theta": [1e4, 1e5] * (LAYER_LIMIT // 2)},
    "layers without": {**WIDE, "model_type": "smollm3"},
    "sizes by layer": {**WIDE, "layer_types": KINDS * (LAYER_LIMIT // KIND_LIMIT),
                       "per_layer_config": {i: {"head_dim": 64} for i in range(LAYER_LIMIT)}},
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_the_largest_take_little_memory(name):
    tracemalloc.start()
    try:
        assert str(explain(LARGE[name]))
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


REFUSED = {
    "head_dim": (ValueError, "head_dim", {"head_dim": 2**24, "rope_theta": 1e4}),
    "head_dim of quotients": (ValueError, "hidden_size",
                              {"hidden_size": 2**20, "num_attention_heads": 2, "rope_theta": 1e4}),
    "layers": (ValueError, "num_hidden_layers",
               {"head_dim": 64, "rope_theta": 1e4, "num_hidden_layers": 10**10}),
    "fewer than no layers": (ValueError, "num_hidden_layers",
                             {"head_dim": 64, "rope_theta": 1e4, "num_hidden_layers": -3}),
    "types that are no list": (
        TypeError, "layer_types", {"head_dim": 64, "rope_theta": 1e4, "layer_types": 7},
    ),
    "few types": (ValueError, "layer_types",
                  {"head_dim": 64, "rope_theta": 1e4, "num_hidden_layers": 3,
                   "layer_types": TYPES[:2]}),
    "few bases": (ValueError, "layer_rope_theta",
                  {"head_dim": 64, "rope_theta": 1e4, "num_hidden_layers": 3,
                   "layer_rope_theta": [1e4]}),
    "more kinds than models have": (
        ValueError, "layer_types",
        {"head_dim": 64, "rope_theta": 1e4, "layer_types": [str(i) for i in range(100)]},
    ),
    "a period": (ValueError, "sliding_window_pattern",
                 {**SIZES, "model_type": "gemma3_text", "sliding_window_pattern": 2**40}),
    "a number of a part": (TypeError, "text_config", {"text_config": 7}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(name):
    kind, entry, config = REFUSED[name]
    for function in ("Rotary.from_config", "explain"):
        with pytest.raises(kind, match=rf"^{function}: config\['{entry}'\]: expected .*, got "):
            FUNCTIONS[function](config)


@pytest.mark.parametrize(
    "config", [SELF, nested(PART_LIMIT + 1, "text_config")], ids=["self", "deep"]
)
def test_parts_in_parts_end(config):
    with pytest.raises(ValueError, match=r"^explain: config: expected at most \d+ nested parts"):
        explain(config)


def test_longest_layers_rotate_as_before():
    """What layers have in common is found without asking for each of them."""
    config = {**CONFIGURATIONS["bases by layer"], "num_hidden_layers": LAYER_LIMIT}
    config["layer_rope_theta"] = [1e4, 0, 1e5, 0] * (LAYER_LIMIT // 4)
    found = {
        (group.layers[:2], group.rotary) for group in explain(json.loads(json.dumps(config))).layers
    }
    linear = Rotary(128, scaling={"rope_type": "linear", "factor": 2.0})
    assert ((0,), linear) in found
