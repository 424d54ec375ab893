"""Axis maps: sections and turns of axes, against transformers and timm."""

from __future__ import annotations

import types

import numpy as np
import pytest
from axes_cases import assert_rotations_agree, normal
from outside import module, timm_layers

import posenc_native as pn


def mrope_module(name, section, head_dim, **options):
    """(module of the model, its rotary embedding of the text) with these sections."""
    module("transformers")
    family, config_class, embedding_class = {
        "qwen2_vl": ("qwen2_vl", "Qwen2VLTextConfig", "Qwen2VLRotaryEmbedding"),
        "qwen2_5_vl": ("qwen2_5_vl", "Qwen2_5_VLTextConfig", "Qwen2_5_VLRotaryEmbedding"),
        "qwen3_vl": ("qwen3_vl", "Qwen3VLTextConfig", "Qwen3VLTextRotaryEmbedding"),
        "qwen3_5": ("qwen3_5", "Qwen3_5TextConfig", "Qwen3_5TextRotaryEmbedding"),
        "ernie": ("ernie4_5_vl_moe", "Ernie4_5_VLMoeTextConfig",
                  "Ernie4_5_VLMoeTextRotaryEmbedding"),
        "glm4v": ("glm4v", "Glm4vTextConfig", "Glm4vTextRotaryEmbedding"),
        "glm4v_moe": ("glm4v_moe", "Glm4vMoeTextConfig", "Glm4vMoeTextRotaryEmbedding"),
    }[name]  # fmt: skip
    modeling = module(f"transformers.models.{family}.modeling_{family}")
    configuration = module(f"transformers.models.{family}.configuration_{family}")
    config = getattr(configuration, config_class)(
        hidden_size=4 * head_dim, num_attention_heads=4, num_key_value_heads=2, head_dim=head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": section,
                         **options},
    )  # fmt: skip
    return modeling, getattr(modeling, embedding_class)(config)


@pytest.mark.parametrize(
    ("name", "section", "order", "pairing", "head_dim", "options"),
    [
        ("qwen2_vl", [16, 24, 24], "sectioned", "half", 128, {}),
        ("qwen2_5_vl", [5, 0, 11], "sectioned", "half", 32, {}),
        ("qwen3_vl", [24, 20, 20], "interleaved", "half", 128, {}),
        ("qwen3_vl", [9, 3, 4], "interleaved", "half", 32, {}),
        ("qwen3_5", [11, 11, 10], "interleaved", "half", 256, {"partial_rotary_factor": 0.25}),
        ("ernie", [22, 22, 20], "spatial_first", "interleaved", 128, {}),
        ("ernie", [5, 5, 6], "spatial_first", "interleaved", 32, {}),
        ("glm4v", [8, 12, 12], "sectioned", "interleaved", 128, {"partial_rotary_factor": 0.5}),
        ("glm4v_moe", [8, 12, 12], "sectioned", "half", 128, {"partial_rotary_factor": 0.5}),
    ],
)
def test_mrope_of_transformers(name, section, order, pairing, head_dim, options):
    torch = module("torch")
    modeling, embedding = mrope_module(name, section, head_dim, **options)
    pairs = sum(section)
    positions = np.random.default_rng(0).integers(0, 4096, (3, 2, 7))
    q, k = normal(2, 4, 7, head_dim), normal(2, 2, 7, head_dim, seed=1)
    tensors = torch.from_numpy(q), torch.from_numpy(k)
    cos, sin = embedding(tensors[0], torch.from_numpy(positions))
    theirs = modeling.apply_rotary_pos_emb(*tensors, cos, sin)

    axis_map = pn.rotary.mrope_axis_map(section, order=order)
    assert np.bincount(axis_map, minlength=3).sum() == pairs
    # Their own float32 frequencies; ERNIE holds its in the order of its sections, which is that of
    # the pairs only once they are put together.
    inv_freq = embedding.inv_freq.numpy()
    if name == "ernie":
        inv_freq = np.sort(inv_freq)[::-1].copy()
    rope = pn.Rotary(head_dim, inv_freq=inv_freq, axis_map=axis_map, pairing=pairing)
    angle = (positions[axis_map].transpose(1, 2, 0) * inv_freq)[:, None]
    for ours, other, x in zip(rope(q, k, positions), theirs, (q, k), strict=True):
        width = 2 * pairs
        assert_rotations_agree(ours[..., :width], other.numpy()[..., :width], x[..., :width],
                               angle, pairing)  # fmt: skip
        np.testing.assert_array_equal(ours[..., width:], x[..., width:])
        wrong = pn.apply_rotary(x, positions[::-1].copy(), inv_freq, axis_map=axis_map,
                                pairing=pairing)  # fmt: skip
        assert np.abs(wrong - other.numpy()).max() > 0.1  # the map matters


def test_mrope_of_the_original_hunyuan():
    # XD-RoPE: four axes, cos and sin [A, s, 2P] split by the list of sections twice over, as the
    # model published it and as vLLM has it. (transformers 5.23 doubles each section instead, which
    # gives the partners of a pair different axes.)
    section, s, theta = [3, 5, 2, 6], 6, 1e4
    pairs = sum(section)
    positions = np.random.default_rng(0).integers(0, 300, (4, s))
    inv_freq = theta ** (-np.arange(pairs) / pairs)
    angle = positions[..., None] * np.tile(inv_freq, 2)  # [A, s, 2P]
    edges = np.cumsum(section * 2)[:-1]
    angle = np.concatenate(
        [part[i % 4] for i, part in enumerate(np.split(angle, edges, axis=-1))], -1
    )
    x = normal(1, 2, s, 2 * pairs).astype(np.float64)
    turned = np.concatenate([-x[..., pairs:], x[..., :pairs]], -1)
    theirs = x * np.cos(angle) + turned * np.sin(angle)
    rope = pn.Rotary(2 * pairs, inv_freq=inv_freq, axis_map=pn.rotary.mrope_axis_map(section))
    # float64: the angle is rounded once, 300 * 2^-53, and ours to 2^-60.
    assert np.abs(rope.apply(x, positions) - theirs).max() < 300 * 2.0**-52 * np.abs(x).max()


def test_round_robin_passes_axes_that_have_their_pairs():
    # SGLang's loop for GLM: pair i asks for axis i % 3 and goes on to the next that has pairs left.
    for section in ([8, 12, 12], [3, 0, 2], [1, 7, 2], [4, 4, 4]):
        counts, expected = [0, 0, 0], []
        for i in range(sum(section)):
            axis = i % 3
            while counts[axis] >= section[axis]:
                axis = (axis + 1) % 3
            counts[axis] += 1
            expected.append(axis)
        np.testing.assert_array_equal(
            pn.rotary.mrope_axis_map(section, order="round_robin"), expected
        )


def test_leftover_pairs_can_have_a_fourth_axis():
    # ggml's rule for IMROPE, pair by pair, with sections t, h, w and a fourth position row.
    t, h, w = section = [24, 20, 20]
    expected = []
    for pair in range(sum(section)):
        if pair % 3 == 1 and pair < 3 * h:
            expected.append(1)
        elif pair % 3 == 2 and pair < 3 * w:
            expected.append(2)
        elif pair % 3 == 0 and pair < 3 * t:
            expected.append(0)
        else:
            expected.append(3)
    axis_map = pn.rotary.mrope_axis_map(section, order="interleaved", leftover=3)
    np.testing.assert_array_equal(axis_map, expected)
    assert axis_map.dtype == np.int64
    assert (axis_map == 3).sum() == 2


def test_hunyuan_as_transformers_has_it():
    # Each section doubled over the full width: dim d and its partner d + P have different axes.
    torch = module("torch")
    hunyuan = module("transformers.models.hunyuan_vl.modeling_hunyuan_vl")
    section, head_dim = [3, 5, 2, 6], 32
    config = types.SimpleNamespace(
        max_position_embeddings=4096, head_dim=head_dim,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0,
                         "mrope_section": section},
    )  # fmt: skip
    embedding = hunyuan.HunYuanVLRotaryEmbedding(config)
    positions = np.random.default_rng(0).integers(0, 4096, (4, 2, 6))
    q, k = (torch.from_numpy(normal(2, heads, 6, head_dim, seed=heads)) for heads in (4, 2))
    theirs = hunyuan.apply_rotary_pos_emb(q, k, *embedding(q, torch.from_numpy(positions)))
    inv_freq = np.tile(embedding.inv_freq.numpy(), 2)
    axis_map = pn.rotary.mrope_axis_map([2 * count for count in section])
    rope = pn.rotary.FullWidthRotary.of_dims(head_dim, inv_freq, axis_map=axis_map)
    angle = positions[axis_map].transpose(1, 2, 0) * inv_freq
    angle = angle.reshape(2, 6, 2, -1).max(2)[:, None]  # of either partner
    for ours, other, x in zip(rope(q, k, positions), theirs, (q, k), strict=True):
        assert_rotations_agree(ours, other, x, angle, "half")


def test_clamped_sections_of_timm():
    # GenLIP: interleaved sections that need not add up to the pairs; positions 0, height, width.
    torch = module("torch")
    timm = timm_layers("pos_embed_sincos")
    for dim, section in ((64, (8, 12, 12)), (72, (12, 12, 12)), (72, (8, 12, 12))):
        embedding = timm.RotaryEmbeddingMRope(dim, mrope_section=section)
        axis_map = pn.rotary.mrope_axis_map(section, order="interleaved", pairs=dim // 2)
        np.testing.assert_array_equal(axis_map, embedding.axis)
        x = torch.from_numpy(normal(1, 2, 15, dim))
        theirs = timm.apply_rot_embed_cat(x, embedding.get_embed([3, 5]), half=True)
        grid = np.concatenate([np.zeros((1, 15), np.int64), pn.positions.grid_positions([3, 5])])
        inv_freq = embedding.inv_freq.numpy()
        rope = pn.Rotary(dim, inv_freq=inv_freq, axis_map=axis_map)
        angle = grid[axis_map].T * inv_freq
        assert_rotations_agree(rope.apply(x, grid), theirs, x, angle, "half")


@pytest.mark.parametrize(
    ("error", "match", "section", "options"),
    [
        (ValueError, "order: expected one of sectioned", [1, 2, 3], {"order": "sorted"}),
        (ValueError, "section: expected two or more sections", [4], {}),
        (ValueError, "section: expected an int in 0", [4, -1, 3], {}),
        (TypeError, "section: expected an int, got float", [4, 2.0, 3], {}),
        (TypeError, "section: expected ints, got int", 12, {}),
        (TypeError, "section: expected an int, got str", ["1", "2"], {}),
        (ValueError, "section: expected as many pairs for height as for width", [3, 2, 4],
         {"order": "spatial_first"}),
        (ValueError, "section: expected at most 5 pairs for axis 1", [2, 7, 5],
         {"order": "interleaved"}),
        (ValueError, "leftover: expected 0 with order", [2, 2], {"leftover": 2}),
        (ValueError, "leftover: expected an axis in 0 .. 3, .* got 7", [2, 1, 1],
         {"order": "interleaved", "pairs": 8, "leftover": 7}),
    ],
)  # fmt: skip
def test_bad_sections(error, match, section, options):
    with pytest.raises(error, match=f"mrope_axis_map: {match}"):
        pn.rotary.mrope_axis_map(section, **options)
