"""Axial rotary: vision models of transformers and timm."""

from __future__ import annotations

import types

import numpy as np
import pytest
from axes_cases import (
    assert_rotations_agree,
    blocks,
    normal,
)
from outside import module, timm_layers

import posenc_native as pn
from posenc_native.models.facts import vision_models
from posenc_native.models.rows import rows

# --- Axial


def check_axial(rope, q, k, positions, theirs, base, *, layout="bhsd", relative=0.0, absolute=0.0):
    """That the owner's rotation of q and k is ours.

    Their frequencies are computed in float32: a power, within a unit, of an exponent that is
    rounded, so off by log(base) * u more, and a quotient; then the product with the position.
    """
    angle = np.abs(np.asarray(positions)[rope.axis_map]).max() * np.abs(rope.inv_freq)
    relative += 1 + 3 + np.log(base)
    width = 2 * len(rope.inv_freq)
    for result, other, given in zip(
        rope(q, k, positions, layout=layout), theirs, (q, k), strict=True
    ):
        ours, theirs_here, x = (np.asarray(array) for array in (result, other, given))
        assert_rotations_agree(
            ours[..., :width], theirs_here[..., :width], x[..., :width], angle, rope.pairing,
            relative, 9 + absolute,
        )  # fmt: skip
        np.testing.assert_array_equal(ours[..., width:], x[..., width:])
        assert np.abs(ours - x).max() > 0.1


def vision_class(modeling):
    """The vision rotary embedding of a module of transformers."""
    (found,) = (
        value for name, value in vars(modeling).items()
        if name.endswith("RotaryEmbedding") and hasattr(value, "compute_axial_rope_parameters")
    )  # fmt: skip
    return found


def axial_config(head_dim, base, **more):
    return types.SimpleNamespace(
        rope_parameters={"rope_type": "axial", "rope_theta": base}, head_dim=head_dim,
        hidden_size=4 * head_dim, num_attention_heads=4, **more,
    )  # fmt: skip


# Diffusion transformers are run in test_diffusion_models.py.
ENCODERS = [
    name for name, row in rows("vision").items() if not row["source"].startswith("diffusers")
]
# Those that are applied to [s, h, d] by a function of one name and signature.
PACKED_MODELS = sorted(
    set(ENCODERS)
    - {"pixtral", "neomme", "gemma4", "dinov3_vit", "sam2_video", "edgetam_video",
       "sam3_tracker_video", "llama4", "eva02", "vjepa2"}
)  # fmt: skip


@pytest.mark.parametrize("head_dim", [40, 88])
@pytest.mark.parametrize("name", PACKED_MODELS)
def test_vision_models_of_packed_patches(name, head_dim):
    torch = module("torch")
    modeling = module(f"transformers.models.{name}.modeling_{name}")
    axes = vision_models()[name].get("axes", 2)
    embedding = vision_class(modeling)(axial_config(head_dim, 1e4))
    positions = pn.positions.packed_grid_positions(
        [[2, 4, 6], [1, 10, 2]], 68, merge_size=2, time=axes == 3
    )
    q, k = (torch.from_numpy(normal(68, heads, head_dim, seed=heads)) for heads in (4, 2))
    theirs = modeling.apply_rotary_pos_emb_vision(
        q, k, *embedding(q, torch.from_numpy(positions.T.copy()))
    )
    check_axial(pn.rotary.vision_rotary(name, head_dim), q, k, positions, theirs, 1e4, layout="shd")


@pytest.mark.parametrize("head_dim", [32, 64])
def test_pixtral(head_dim):
    torch = module("torch")
    pixtral = module("transformers.models.pixtral.modeling_pixtral")
    embedding = pixtral.PixtralVisionRotaryEmbedding(axial_config(head_dim, 1e4))
    positions = pn.positions.packed_grid_positions([[1, 3, 7], [1, 5, 2]], 31)
    q, k = (torch.from_numpy(normal(1, heads, 31, head_dim, seed=heads)) for heads in (4, 2))
    cos, sin = embedding(q, torch.from_numpy(positions.T.copy()))
    theirs = pixtral.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=0)
    check_axial(pn.rotary.vision_rotary("pixtral", head_dim), q, k, positions, theirs, 1e4)


def test_neomme():
    torch = module("torch")
    neomme = module("transformers.models.neomme.modeling_neomme")
    config = axial_config(48, 1e4, max_position_embeddings=64, layer_types=["full_attention"])
    config.rope_parameters = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    embedding = neomme.NeoMMERotaryEmbedding(config)
    positions = np.random.default_rng(0).integers(0, 60, (2, 3, 7))
    q, k = (torch.from_numpy(normal(3, heads, 7, 48, seed=heads)) for heads in (4, 2))
    cos, sin = embedding(q, torch.from_numpy(positions), layer_type="full_attention")
    theirs = neomme.apply_rotary_pos_emb(q, k, cos, sin)
    check_axial(pn.rotary.vision_rotary("neomme", 48), q, k, positions, theirs, 1e4)


def test_gemma4():
    torch = module("torch")
    gemma4 = module("transformers.models.gemma4.modeling_gemma4")
    embedding = gemma4.Gemma4VisionRotaryEmbedding(axial_config(72, 100.0))
    positions = np.stack(
        [pn.positions.grid_positions([3, 5]), pn.positions.grid_positions([5, 3])], 1
    )  # [A, b, s]
    ids = torch.from_numpy(positions.transpose(1, 2, 0).copy())
    q, k = (torch.from_numpy(normal(2, 15, heads, 72, seed=heads)) for heads in (4, 2))
    cos, sin = embedding(q, ids)
    theirs = [gemma4.apply_multidimensional_rope(x, cos, sin, ids) for x in (q, k)]
    rope = pn.rotary.vision_rotary("gemma4", 72)
    assert rope.pairing == 36
    check_axial(rope, q, k, positions, theirs, 100.0, layout="bshd")


@pytest.mark.parametrize("training", [False, True])
def test_dinov3(training):
    torch = module("torch")
    dino = module("transformers.models.dinov3_vit.modeling_dinov3_vit")
    amounts = {"shift": 0.2, "jitter": 1.5, "rescale": 2.0}
    config = module("transformers.models.dinov3_vit.configuration_dinov3_vit").DINOv3ViTConfig(
        hidden_size=128, num_attention_heads=2, image_size=32, patch_size=4,
        **{f"pos_embed_{name}": amount for name, amount in amounts.items()},
    )  # fmt: skip
    embedding = dino.DINOv3ViTRopePositionEmbedding(config).train(training)
    torch.manual_seed(3)
    cos, sin = embedding(torch.zeros(1, 3, 4 * 5, 4 * 3))
    coordinates = pn.positions.augment_coordinates(
        pn.positions.image_coordinates([5, 3], device="cpu"),
        generator=torch.Generator().manual_seed(3),
        training=training,
        **amounts,
    )
    positions = pn.positions.add_unrotated_tokens(coordinates, before=5)
    q, k = (torch.from_numpy(normal(2, 2, 20, 64, seed=seed)) for seed in range(2))
    theirs = dino.apply_rotary_pos_emb(q, k, cos, sin)
    rope = pn.rotary.vision_rotary("dinov3_vit", 64)
    # 2 pi of the coordinate is rounded twice more. The coordinate is rounded as theirs is, but for
    # that of its center: three roundings of up to 2, stretched by up to 3, turned by 2 pi.
    check_axial(rope, q, k, positions, theirs, 100.0, relative=2, absolute=2 * np.pi * 3 * 3)
    for ours, x in zip(rope(q, k, positions), (q, k), strict=True):
        np.testing.assert_array_equal(ours[..., :5, :], x[..., :5, :])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("options", [{}, {"normalize_coords": "max", "temperature": 30.0}])
def test_dinov3_of_timm(half, options):
    torch = module("torch")
    timm = timm_layers("pos_embed_sincos")
    embedding = timm.RotaryEmbeddingDinoV3(64, rotate_half=half, **options)
    q, k = (torch.from_numpy(normal(1, 2, 21, 64, seed=seed)) for seed in range(2))
    theirs = [timm.apply_rot_embed_cat(x, embedding.get_embed([7, 3]), half=half) for x in (q, k)]
    positions = pn.positions.image_coordinates(
        [7, 3], normalize=options.get("normalize_coords", "separate")
    )
    base = options.get("temperature", 100.0)
    pairing = "half" if half else "interleaved"
    rope = pn.rotary.vision_rotary("dinov3_vit", 64, base=base, pairing=pairing)
    check_axial(rope, q, k, positions, theirs, base, relative=2, absolute=2 * np.pi * 3)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"in_pixels": False},
        {"in_pixels": False, "temperature": 50.0, "grid_offset": 0.5},
        {"in_pixels": False, "ref_feat_shape": [16, 12]},
        {"in_pixels": False, "ref_feat_shape": [16, 12], "grid_indexing": "xy"},
        {"in_pixels": True},
        {"in_pixels": True, "max_res": 96},
        {"in_pixels": True, "max_res": 96, "linear_bands": True},
        {"in_pixels": True, "linear_bands": True, "ref_feat_shape": [7, 7]},
        {"in_pixels": True, "grid_type": "centered", "grid_indexing": "xy"},
        {"in_pixels": False, "grid_type": "pixel"},
    ],
)
def test_rotary_embedding_cat_of_timm(options, half):
    torch = module("torch")
    timm = timm_layers("pos_embed_sincos")
    dim, sizes = 48, [5, 9]
    embedding = timm.RotaryEmbeddingCat(dim, rotate_half=half, **options)
    q, k = (torch.from_numpy(normal(1, 2, 45, dim, seed=seed)) for seed in range(2))
    theirs = [timm.apply_rot_embed_cat(x, embedding.get_embed(sizes), half=half) for x in (q, k)]

    in_pixels = options["in_pixels"]
    data = {"base": options.get("temperature", 10000.0)}
    if in_pixels:  # from 1 to half the resolution, by equal steps or equal factors, times pi
        spaced = np.linspace if options.get("linear_bands") else np.geomspace
        data = {"inv_freq": spaced(1, options.get("max_res", 224) / 2, dim // 4) * np.pi}
    order = (1, 0) if options.get("grid_indexing") == "xy" else (0, 1)
    grid = options.get("grid_type", "pixel" if in_pixels else "index")
    positions = pn.positions.image_coordinates(
        sizes,
        grid={"pixel": "corners", "centered": "centers", "index": "index"}[grid],
        offset=options.get("grid_offset", 0.0),
        reference=options.get("ref_feat_shape"),
        dtype=np.float64,
    )
    pairing = "half" if half else "interleaved"
    rope = pn.rotary.vision_rotary("eva02", dim, axis_order=order, pairing=pairing, **data)
    # Their bands: 2 to a power of up to 7 (off by ln 2 * 7 u and the steps to it), or as those of
    # the base; pi. Their coordinates: up to four roundings, of numbers up to the largest.
    largest = max(1.0, np.abs(positions).max()) * np.abs(rope.inv_freq).max()
    check_axial(rope, q, k, positions, theirs, data.get("base", 2.0**7), relative=3,
                absolute=4 * largest)  # fmt: skip


def sam2_setup(name):
    modeling = module(f"transformers.models.{name}.modeling_{name}")
    config = types.SimpleNamespace(
        rope_parameters={"rope_type": "axial", "rope_theta": 1e4},
        memory_attention_hidden_size=64, memory_attention_downsample_rate=1,
        memory_attention_num_attention_heads=2, memory_attention_rope_feat_sizes=[5, 3],
        memory_attention_rope_k_sizes=[2, 3],
    )  # fmt: skip
    (owner,) = (
        value for key, value in vars(modeling).items() if hasattr(value, "precompute_positions")
    )
    return modeling, vision_class(modeling)(config), config, owner


@pytest.mark.parametrize("name", ["sam2_video", "sam3_tracker_video"])
def test_sam2(name):
    torch = module("torch")
    modeling, embedding, config, owner = sam2_setup(name)
    positions = pn.positions.grid_positions([3, 5])  # their sizes are width and height
    q, k = torch.from_numpy(normal(1, 2, 15, 32)), torch.from_numpy(normal(1, 2, 34, 32, seed=1))
    cos, sin = embedding(q, owner.precompute_positions(config))
    # Two memories of 15 patches and four object pointers, which are not rotated.
    theirs = modeling.apply_rotary_pos_emb_2d(
        q, k, cos, sin, num_k_exclude_rope=4, repeat_freqs_k=True
    )
    of_keys = pn.positions.add_unrotated_tokens(np.tile(positions, 2), after=4)
    rope = pn.rotary.vision_rotary(name, 32)
    check_axial(rope, q, q, positions, [theirs[0]] * 2, 1e4)
    check_axial(rope, k, k, of_keys, [theirs[1]] * 2, 1e4)
    np.testing.assert_array_equal(rope.apply(k, of_keys)[..., -4:, :], k[..., -4:, :])


def test_edgetam():
    torch = module("torch")
    modeling, embedding, config, owner = sam2_setup("edgetam_video")
    q, k = torch.from_numpy(normal(1, 2, 15, 32)), torch.from_numpy(normal(1, 2, 20, 32, seed=1))
    tables = [embedding(q, owner.precompute_positions(config, is_key=key)) for key in (False, True)]
    theirs = modeling.apply_rotary_pos_emb_2d_cross_attn(
        q, k, *tables[0], *tables[1], num_k_exclude_rope=2, repeat_freqs_k=2
    )
    # Two memories, each of three tokens without a place and 3 x 2 with one; two pointers.
    memory = pn.positions.add_unrotated_tokens(pn.positions.grid_positions([3, 2]), before=3)
    of_keys = pn.positions.add_unrotated_tokens(np.tile(memory, 2), after=2)
    rope = pn.rotary.vision_rotary("edgetam_video", 32)
    check_axial(rope, q, q, pn.positions.grid_positions([3, 5]), [theirs[0]] * 2, 1e4)
    check_axial(rope, k, k, of_keys, [theirs[1]] * 2, 1e4)


def test_llama4():
    torch = module("torch")
    llama4 = module("transformers.models.llama4.modeling_llama4")
    config = axial_config(88, 1e4, image_size=5 * 7, patch_size=7)
    angles = llama4.Llama4VisionRotaryEmbedding(config)(torch.zeros(1))
    q, k = (torch.from_numpy(normal(2, 26, heads, 88, seed=heads)) for heads in (4, 2))
    theirs = llama4.vision_apply_rotary_emb(q, k, angles)
    positions = pn.positions.add_unrotated_tokens(pn.positions.grid_positions([5, 5]) + 1, after=1)
    rope = pn.rotary.vision_rotary("llama4", 88)
    check_axial(rope, q, k, positions, theirs, 1e4, layout="bshd")
    np.testing.assert_array_equal(rope.apply(q, positions, layout="bshd")[:, -1], q[:, -1])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("head_dim", [24, 32, 64])
def test_vjepa2(head_dim, kind):
    torch = module("torch")
    vjepa2 = module("transformers.models.vjepa2.modeling_vjepa2")
    config = module("transformers.models.vjepa2.configuration_vjepa2").VJEPA2Config(
        patch_size=4, crop_size=20, frames_per_clip=6, tubelet_size=2
    )
    attention = vjepa2.VJEPA2RopeAttention(config, hidden_size=2 * head_dim, num_attention_heads=2)
    x = torch.from_numpy(normal(2, 2, 75, head_dim))
    theirs = attention.apply_rotary_embeddings(x, attention.get_position_ids(torch.zeros(1, 75, 1)))
    positions = pn.positions.grid_positions([3, 5, 5])
    rope = pn.rotary.vision_rotary("vjepa2", head_dim)
    ours = rope.apply(x.numpy() if kind == "numpy" else x, positions)
    assert isinstance(ours, np.ndarray) == (kind == "numpy")
    width = head_dim // 6 * 6
    # Frequencies of float32 as above; angles of up to 4.
    assert_rotations_agree(ours[..., :width], theirs[..., :width], x[..., :width], 4.0,
                           "interleaved", relative=4 + np.log(1e4))  # fmt: skip
    np.testing.assert_array_equal(ours[..., width:], x[..., width:])
    # It is no rotation of pairs: their lengths change.
    lengths = [np.hypot(*blocks(np.asarray(y[..., :width]), "interleaved")) for y in (ours, x)]
    assert np.abs(lengths[0] - lengths[1]).max() > 0.1
    q, k = rope(x[:, :1], x, positions)
    np.testing.assert_array_equal(k, ours)
    np.testing.assert_array_equal(q, ours[:, :1])


BAD_AXIAL = [
    (ValueError, "axial_rotary: axes", lambda: pn.rotary.axial_rotary(64, 0)),
    (ValueError, "axial_rotary: head_dim: expected at least 4, .* got 3",
     lambda: pn.rotary.axial_rotary(3)),
    (ValueError, "vision_rotary: changes: expected .* axes, axes_dim, base, .* pairing, .* got foo",
     lambda: pn.rotary.vision_rotary("pixtral", 64, foo=1)),
    (TypeError, "FullWidthRotary: k: expected a NumPy array or a torch tensor, got list",
     lambda: pn.rotary.vision_rotary("vjepa2", 12)(np.ones((1, 1, 1, 12)), [1.0])),
    (TypeError, "FullWidthRotary: x: expected a dtype of float16",
     lambda: pn.rotary.vision_rotary("vjepa2", 12).apply(np.ones((1, 1, 1, 12), int))),
    (ValueError, "FullWidthRotary: k: expected the shape of q except for h",
     lambda: pn.rotary.vision_rotary("vjepa2", 12)(np.ones((1, 1, 1, 12)), np.ones((1, 1, 2, 12)))),
    (ValueError, "out: expected shape",
     lambda: pn.rotary.FullWidthRotary(pn.Rotary(8), pn.Rotary(8)).apply(
         np.ones((1, 1, 2, 8)), out=np.ones((1, 1, 1, 8)))),
    (ValueError, "axial_rotary: rotary_dim: expected a multiple of 2 . 3 axes",
     lambda: pn.rotary.axial_rotary(64, 3, rotary_dim=64)),
    (ValueError, "axial_rotary: rotary_dim: .* at most head_dim = 8",
     lambda: pn.rotary.axial_rotary(8, rotary_dim=12)),
    (ValueError, "axial_rotary: order", lambda: pn.rotary.axial_rotary(64, order="hw")),
    (TypeError, "axial_rotary: order", lambda: pn.rotary.axial_rotary(64, order=1)),
    (ValueError, "axial_rotary: spectrum", lambda: pn.rotary.axial_rotary(64, spectrum="all")),
    (ValueError, "axial_rotary: axis_order: expected each of 0 .. 1 once",
     lambda: pn.rotary.axial_rotary(64, axis_order=(0, 0))),
    (ValueError, "axial_rotary: inv_freq: expected shape",
     lambda: pn.rotary.axial_rotary(64, inv_freq=[1.0, 0.5])),
    (ValueError, "axial_rotary: base, scaling, spectrum, freq_scale",
     lambda: pn.rotary.axial_rotary(8, inv_freq=[1.0, 0.5], base=100.0)),
    (ValueError, "axial_rotary: base", lambda: pn.rotary.axial_rotary(64, base=0.0)),
    (ValueError, "axial_rotary: order: expected 'sectioned' with tiled",
     lambda: pn.rotary.axial_rotary(64, order="interleaved", tiled=True)),
    (TypeError, "axial_rotary: tiled", lambda: pn.rotary.axial_rotary(64, tiled=1)),
    (ValueError, "vision_rotary: model: expected one of dinov3_vit, pixtral or",
     lambda: pn.rotary.vision_rotary("vit", 64)),
    (ValueError, "FullWidthRotary: inv_freq: expected shape",
     lambda: pn.rotary.FullWidthRotary.of_dims(8, [1.0, 2.0, 3.0])),
    (ValueError, "FullWidthRotary: axis_map: expected shape",
     lambda: pn.rotary.FullWidthRotary.of_dims(8, [1.0, 2.0], axis_map=[0])),
    (ValueError, "FullWidthRotary: second",
     lambda: pn.rotary.FullWidthRotary(pn.Rotary(8), pn.Rotary(8, pairing="interleaved"))),
    (ValueError, "mixed_frequencies: head_dim", lambda: pn.rotary.mixed_frequencies(6, 2)),
    (TypeError, "mixed_frequencies: dtype",
     lambda: pn.rotary.mixed_frequencies(8, 2, dtype=np.float16)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "match", "call"), BAD_AXIAL)
def test_bad_axial_calls(error, match, call):
    with pytest.raises(error, match=match):
        call()
