"""Configurations of diffusers: the class, its defaults, and what is refused."""

from __future__ import annotations

import importlib
import inspect
import json
import re

import numpy as np
import pytest
from outside import module
from posenc_native.rotary import axial_rotary, vision_rotary

from posenc_native import Rotary, compare, explain
from posenc_native.models.diffusion import diffusion_models

CLASS = "_class_name"
FLUX = {CLASS: "FluxTransformer2DModel", "attention_head_dim": 128, "num_layers": 19,
        "axes_dims_rope": [16, 56, 56], "patch_size": 1}  # fmt: skip


def code_of(name):
    source = diffusion_models()[name].source.removeprefix("diffusers 0.42, ")
    return importlib.import_module("diffusers." + source.removesuffix(".py").replace("/", "."))


@pytest.mark.parametrize("name", diffusion_models())
def test_facts_of_a_class_are_those_of_its_code(name):
    """Its defaults, the entries that are said to be beside the point, and whether it rotates."""
    module("diffusers")
    facts = diffusion_models()[name]
    parameters = inspect.signature(getattr(code_of(name), name).__init__).parameters
    for entry, value in facts.defaults.items():
        default = parameters[entry].default
        assert (tuple(default) if isinstance(default, list) else default) == value, entry
    assert set(facts.beside) <= set(parameters)
    rotates = re.search("rotary|rope|freqs_cis", inspect.getsource(code_of(name)), re.I)
    assert bool(rotates) is not facts.unrotated


def test_a_configuration_in_each_form(tmp_path):
    rope = vision_rotary("flux", 128)
    assert Rotary.from_config(FLUX) == Rotary.from_config({CLASS: FLUX[CLASS]}) == rope
    (tmp_path / "config.json").write_text(json.dumps({**FLUX, "_diffusers_version": "0.42.0"}))
    assert Rotary.from_config(tmp_path) == rope
    assert explain(tmp_path).layers[0].rotary == rope
    assert compare(tmp_path, rope).verdict == "alike"
    shares = {**FLUX, "axes_dims_rope": [64, 32, 32]}
    assert Rotary.from_config(shares).axis_map.tolist() == [0] * 32 + [1] * 16 + [2] * 16
    other = {
        CLASS: "HunyuanVideoTransformer3DModel",
        "rope_theta": 100.0,
        "rope_axes_dim": [96, 16, 16],
    }
    expected = axial_rotary(128, axes_dim=(96, 16, 16), base=100.0, pairing="interleaved")
    np.testing.assert_array_equal(Rotary.from_config(other).inv_freq, expected.inv_freq)


def test_a_model_and_its_own_configuration():
    torch = module("torch")
    diffusers = module("diffusers")
    with torch.device("meta"):
        model = diffusers.FluxTransformer2DModel(num_layers=1, num_single_layers=1)
    assert Rotary.from_config(model) == vision_rotary("flux", 128)
    with pytest.raises(ValueError, match=r"'_class_name'\]: expected the name .*; pass the model"):
        Rotary.from_config(model.config)
    assert Rotary.from_config({**model.config, CLASS: "FluxTransformer2DModel"}).vision == "flux"


def test_positions_that_depend_on_entries():
    """Other sizes in training, other orders: the rotation is known, its positions are not."""
    video = {CLASS: "CogVideoXTransformer3DModel", "use_rotary_positional_embeddings": True}
    assert Rotary.from_config(video) == vision_rotary("cogvideox", 64)
    assert Rotary.from_config({**video, "patch_size_t": 2}) == vision_rotary("cogvideox15", 64)
    other = Rotary.from_config({**video, "sample_width": 170, "sample_height": 96})
    assert other.vision is None
    np.testing.assert_array_equal(other.inv_freq, vision_rotary("cogvideox", 64).inv_freq)
    layered = {CLASS: "QwenImageTransformer2DModel", "use_layer3d_rope": True}
    assert Rotary.from_config(layered).vision is None
    text = " ".join(str(explain({CLASS: "LTXVideoTransformer3DModel"})).split())
    assert "time at 25 frames per second unless fps= says otherwise" in text
    assert "The last 2046 of the 2048 dims" in text
    assert "diffusers 0.42.0 was run" in text
    assert "DeepSeek" not in text


SIZED = {CLASS: "ZImageTransformer2DModel", "dim": 3840, "n_heads": 30, "rope_theta": 256.0}
REFUSED = [
    (ValueError, "expected a class of diffusers that .*FluxTransformer2D.*, got Flux9; .*axial_rot",
     {CLASS: "Flux9"}),
    (TypeError, r"'_class_name'\]: expected a str, got int", {CLASS: 5}),
    (ValueError, "expected a model with a rotary encoding, got SD3Transformer2DModel",
     {CLASS: "SD3Transformer2DModel"}),
    (ValueError, "got MochiTransformer3DModel, which learns its frequencies",
     {CLASS: "MochiTransformer3DModel"}),
    (ValueError, r"'use_rotary_positional_embeddings'\]: expected True, .* got False",
     {CLASS: "CogVideoXTransformer3DModel", "patch_size_t": 2}),
    (ValueError, r"'patch_size_t'\]: expected .*, got 4",
     {CLASS: "CogVideoXTransformer3DModel", "patch_size_t": 4,
      "use_rotary_positional_embeddings": True}),
    (ValueError, r"'axes_dims_rope'\]: .* add up to the width of a head, 128, .* 64 in total",
     {**FLUX, "axes_dims_rope": [16, 24, 24]}),
    (TypeError, r"'axes_dims_rope'\]: expected a list", {**FLUX, "axes_dims_rope": 128}),
    (TypeError, r"'rope_scale'\]: expected",
     {CLASS: "CosmosTransformer3DModel", "rope_scale": ["a"]}),
    (ValueError, "scaling: expected one value, or one for each of 3 axes, got 2 values",
     {CLASS: "CosmosTransformer3DModel", "rope_scale": [1.0, 2.0]}),
    (ValueError, r"'rope_theta'\]: expected a number > 0", {**SIZED, "rope_theta": 0}),
    (ValueError, r"'n_heads'\]: expected a number > 0", {**SIZED, "n_heads": 0}),
    (ValueError, r"'rope_thet'\]: .* did you mean 'rope_theta'\?", {**SIZED, "rope_thet": 10000.0}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "match", "config"), REFUSED)
def test_what_is_refused(error, match, config):
    with pytest.raises(error, match=match):
        Rotary.from_config(config)
    with pytest.raises(ValueError, match="layer_type, layer: expected none"):
        Rotary.from_config(FLUX, "full_attention")
