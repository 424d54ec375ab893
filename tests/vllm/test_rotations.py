"""Rotations from the arguments of vLLM's constructors, without vLLM: what the arguments mean.

tests/in_vllm/check_classes.py compares results with vLLM's.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="requirements/test.txt has it")

from posenc_native.vllm.rotations import KNOWN  # noqa: E402

DIMS, BASE, LENGTH = 16, 100.0, 32
PLAIN = {"head_size": 24, "rotary_dim": DIMS, "max_position_embeddings": LENGTH, "base": BASE,
         "is_neox_style": True}  # fmt: skip


def frequencies(base):
    return (base ** -(np.arange(0, DIMS, 2) / DIMS)).astype(np.float32)


def rotations(name, arguments, **layer):
    """Those of a layer whose frequencies are the powers of what vLLM's method is called with."""
    layer = {
        "base": BASE,
        "rotary_dim": DIMS,
        "max_position_embeddings": 4 * LENGTH,
        "_compute_inv_freq": lambda base: base ** -(torch.arange(0, DIMS, 2) / DIMS),
        **layer,
    }
    return KNOWN[name].rotations({**PLAIN, **arguments}, SimpleNamespace(**layer))


def rows(made):
    return [length for _, length in made.rows]


@pytest.mark.parametrize(
    ("name", "arguments", "layer", "axes"),
    [
        # Sections of time, height, width: one after another, or in turns as long as there are any.
        ("MRotaryEmbedding", {"mrope_section": [3, 3, 2], "mrope_interleaved": False}, {},
         "00011122"),
        ("MRotaryEmbedding", {"mrope_section": [4, 3, 1], "mrope_interleaved": True}, {},
         "01201001"),
        # Height and width in turns, then time. Ernie's sections are height, width, time.
        ("Ernie4_5_VLRotaryEmbedding", {"mrope_section": [3, 3, 2]}, {}, "12121200"),
        ("BailingMRotaryEmbedding", {"mrope_section": [2, 3, 3]}, {"spatial_size": 6}, "12121200"),
        # The layer's own list has an entry for each dim.
        ("MRotaryEmbeddingInterleaved", {}, {"mrope_dim": [0, 1, 2, 0, 1, 2, 0, 0] * 2},
         "01201200"),
    ],
)  # fmt: skip
def test_axes_of_pairs(name, arguments, layer, axes):
    made = rotations(name, arguments, **layer)
    assert "".join(map(str, np.asarray(made.by_axis.axis_map))) == axes
    assert made.by_token.axis_map is None
    assert rows(made) == [4 * LENGTH]  # vLLM's constructor enlarges the length of these


def test_ernie_of_two_widths_is_refused():
    with pytest.raises(ValueError, match="height and width differ: 2 and 3"):
        rotations("Ernie4_5_VLRotaryEmbedding", {"mrope_section": [2, 3, 3]})


def test_linear_divides_frequencies():
    made = rotations("LinearScalingRotaryEmbedding", {"scaling_factors": [4.0]})
    np.testing.assert_array_equal(made.by_token.inv_freq, frequencies(BASE) / 4)
    assert rows(made) == [4 * LENGTH]
    with pytest.raises(ValueError, match="it has 2 scaling factors"):
        rotations("LinearScalingRotaryEmbedding", {"scaling_factors": [1.0, 4.0]})


def test_dynamic_has_the_base_of_the_longest_sequence():
    arguments = {"scaling_factor": 3.0, "max_trained_positions": 8}
    made = rotations("DynamicNTKScalingRotaryEmbedding", arguments)
    base = BASE * (3 * LENGTH / 8 - 2) ** (DIMS / (DIMS - 2))
    np.testing.assert_allclose(made.by_token.inv_freq, frequencies(base), rtol=1e-6)


@pytest.mark.parametrize(("is_long", "used"), [(True, 9.0), (False, 4.0)])
def test_longrope_is_chosen_by_the_layer(is_long, used):
    """The table has the rows of both."""
    arguments = {"short_factor": 4.0, "long_factor": 9.0, "original_max_position_embeddings": 8}
    layer = {"short_mscale": 1.1, "long_mscale": 1.2, "use_long_rope": is_long}
    made = rotations("Phi3LongRoPEScaledRotaryEmbedding", arguments, **layer)
    np.testing.assert_allclose(made.by_token.inv_freq, frequencies(used), rtol=1e-6)
    assert rows(made) == [8, LENGTH]
    assert [rotary.scale for rotary, _ in made.rows] == [1.1, 1.2]


def test_deepseek_has_heads_of_the_rotated_dims_and_a_magnitude():
    layer = {"scaling_factor": 2.5, "mscale": 1.25}
    made = rotations("DeepseekScalingRotaryEmbedding", {"is_neox_style": False}, **layer)
    rotary = made.by_token
    assert (rotary.head_dim, rotary.scale, rotary.pairing) == (DIMS, 1.25, "interleaved")
    assert rows(made) == [2.5 * LENGTH]


def test_frequencies_are_computed_on_the_cpu():
    """vLLM makes layers with the model's device as default, whose powers may have other bits."""
    with torch.device("meta"):
        made = rotations("RotaryEmbedding", {})
    np.testing.assert_allclose(made.by_token.inv_freq, frequencies(BASE), rtol=1e-6)
    assert made.by_token.pairing == "half"
