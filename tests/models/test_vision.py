"""Configurations of vision encoders, and lengths of sequences."""

import importlib
import importlib.util

import numpy as np
import pytest
from hf_configurations import classes
from model_configurations import LONGROPE, SIZES
from posenc_native.rotary import nope_layers, vision_rotary

from posenc_native import Rotary, explain
from posenc_native.models.config import Configuration

# Vision encoders


def vision_configs():
    """Those of transformers that vision_rotary knows, by its names."""
    found = {}
    for model_type, config_class in classes().items():
        try:
            config = Configuration.read(config_class(), "explain")
        except Exception:  # a model of parts that have no defaults
            continue
        if config.sees:
            found[model_type] = config_class()
    return found


def test_vision_encoders_as_in_transformers():
    compared = []
    for model_type, config in vision_configs().items():
        if model_type == "vjepa2":
            with pytest.raises(ValueError, match=r"see vision_rotary\('vjepa2', 64\)"):
                Rotary.from_config(config)
            continue
        ours = Rotary.from_config(config)
        modeling = importlib.import_module(
            type(config).__module__.replace("configuration", "modeling")
        )
        names = [
            name
            for name in vars(modeling)
            if name.endswith(("RotaryEmbedding", "RopePositionEmbedding"))
            and ("ision" in name or "V" in name or "MLCD" in name)
            and "Text" not in name
        ]
        named = [name for name in names if "Vision" in name] or names
        module = getattr(modeling, named[0])(config)
        if model_type == "llama4_vision_model":  # a table of cos + i sin, patches counted from 1
            table = module.freqs_ci.flatten(0, -2)
            angles = table[0].angle().numpy()
            np.testing.assert_allclose(angles, ours.inv_freq, rtol=1e-5)
            compared.append(model_type)
            continue
        theirs = module.inv_freq.double().numpy().ravel()
        if model_type == "dinov3_vit":
            theirs = theirs * 2 * np.pi  # coordinates are turns there
        np.testing.assert_allclose(np.unique(ours.inv_freq), np.unique(theirs), rtol=2e-6)
        compared.append(model_type)
    assert len(compared) > 24


def test_vision_configuration_as_published():
    vision = {
        "model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "num_heads": 16,
        "patch_size": 14, "spatial_merge_size": 2,
    }  # fmt: skip
    assert Rotary.from_config(vision) == vision_rotary("qwen2_5_vl", 80)
    older = {"model_type": "qwen2_vl", "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16}
    assert Rotary.from_config({**older, "patch_size": 14}) == vision_rotary("qwen2_vl", 80)
    pixtral = {"model_type": "pixtral", "head_dim": 64, "image_size": 1024, "rope_theta": 1e4}
    assert Rotary.from_config(pixtral) == vision_rotary("pixtral", 64)
    assert Rotary.from_config({**pixtral, "rope_theta": 1e6}) != vision_rotary("pixtral", 64)
    with pytest.raises(ValueError, match="layer_type, layer: expected none for a vision encoder"):
        Rotary.from_config(pixtral, "full_attention")
    assert nope_layers(pixtral) == ()
    words = " ".join(str(explain(vision)).split())
    assert "axes, which drive the pairs: 20 by height, 20 by width, in blocks" in words
    assert "for text" not in words


def test_length_of_the_sequence():
    config = {**SIZES, "original_max_position_embeddings": 4096, "max_position_embeddings": 131072}
    config["rope_scaling"] = LONGROPE
    short, long = (Rotary.from_config(config, seq_len=length) for length in (4096, 4097))
    for same in (Rotary.from_config(config, seq_len=1), Rotary.from_config(config)):
        np.testing.assert_array_equal(short.inv_freq, same.inv_freq)
    np.testing.assert_allclose(
        short.inv_freq / long.inv_freq, 32 * np.arange(2, 34) / range(32, 64)
    )
    linear = {**SIZES, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert Rotary.from_config(linear, seq_len=10**6) == Rotary.from_config(linear)
