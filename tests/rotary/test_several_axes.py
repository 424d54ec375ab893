"""Axis maps and axial rotary against the models that use them: transformers and timm.

Bounds are those of test_outside_oracles.py: with u = 2^-24, a result is off by
(u * |angle| + 9u) * (|a| + |b|) where frequencies are the other's own float32 ones.
"""

from __future__ import annotations

import pickle
import types

import numpy as np
import pytest
from outside import module, timm_layers

import posenc_native as pn
from posenc_native import multi_axis

U = 2.0**-24


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def blocks(x, pairing):
    """The partners (a, b) of the last axis, each [..., P], by the module's rule for blocks."""
    width = x.shape[-1]
    block = {"half": width, "interleaved": 2}.get(pairing, pairing)
    split = x.reshape(*x.shape[:-1], width // block, 2, block // 2)
    return (split[..., i, :].reshape(*x.shape[:-1], width // 2) for i in range(2))


def joined(a, b, pairing):
    width = 2 * a.shape[-1]
    block = {"half": width, "interleaved": 2}.get(pairing, pairing)
    split = [c.reshape(*c.shape[:-1], width // block, block // 2) for c in (a, b)]
    return np.stack(split, -2).reshape(*a.shape[:-1], width)


def assert_rotations_agree(ours, theirs, x, angle, pairing, relative=1.0, absolute=9.0):
    """Within (relative * u * |angle| + absolute * u) * (|a| + |b|); angle broadcasts to pairs."""
    a, b = blocks(np.abs(np.asarray(x, np.float64)), pairing)
    bound = (relative * U * np.abs(angle) + absolute * U) * (a + b)
    excess = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))
    excess -= joined(bound, bound, pairing)
    assert ours.shape == theirs.shape
    assert (excess <= 0).all(), f"beyond the bound by {excess.max()}"


# --- M-RoPE


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

    axis_map = pn.mrope_axis_map(section, order=order)
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
    rope = pn.Rotary(2 * pairs, inv_freq=inv_freq, axis_map=pn.mrope_axis_map(section))
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
        np.testing.assert_array_equal(pn.mrope_axis_map(section, order="round_robin"), expected)


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
    axis_map = pn.mrope_axis_map(section, order="interleaved", leftover=3)
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
    axis_map = pn.mrope_axis_map([2 * count for count in section])
    rope = pn.FullWidthRotary.of_dims(head_dim, inv_freq, axis_map=axis_map)
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
        axis_map = pn.mrope_axis_map(section, order="interleaved", pairs=dim // 2)
        np.testing.assert_array_equal(axis_map, embedding.axis)
        x = torch.from_numpy(normal(1, 2, 15, dim))
        theirs = timm.apply_rot_embed_cat(x, embedding.get_embed([3, 5]), half=True)
        grid = np.concatenate([np.zeros((1, 15), np.int64), pn.grid_positions([3, 5])])
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
        (
            ValueError,
            "section: expected as many pairs of height as of width",
            [3, 2, 4],
            {"order": "spatial_first"},
        ),
        (
            ValueError,
            "section: expected at most 5 pairs of axis 1",
            [2, 7, 5],
            {"order": "interleaved"},
        ),
        (ValueError, "leftover: expected 0 with order", [2, 2], {"leftover": 2}),
        (
            ValueError,
            "leftover: expected an axis in 0 .. 3, .* got 7",
            [2, 1, 1],
            {"order": "interleaved", "pairs": 8, "leftover": 7},
        ),
    ],
)
def test_bad_sections(error, match, section, options):
    with pytest.raises(error, match=f"mrope_axis_map: {match}"):
        pn.mrope_axis_map(section, **options)


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


# Those that are applied to [s, h, d] by a function of one name and signature.
PACKED_MODELS = sorted(
    set(multi_axis.VISION_MODELS)
    - {"pixtral", "neomme", "gemma4", "dinov3_vit", "sam2_video", "edgetam_video",
       "sam3_tracker_video", "llama4", "eva02", "vjepa2"}
)  # fmt: skip


@pytest.mark.parametrize("head_dim", [40, 88])
@pytest.mark.parametrize("name", PACKED_MODELS)
def test_vision_models_of_packed_patches(name, head_dim):
    torch = module("torch")
    modeling = module(f"transformers.models.{name}.modeling_{name}")
    axes = multi_axis.VISION_MODELS[name].get("axes", 2)
    embedding = vision_class(modeling)(axial_config(head_dim, 1e4))
    positions = pn.packed_grid_positions([[2, 4, 6], [1, 10, 2]], 68, merge_size=2, time=axes == 3)
    q, k = (torch.from_numpy(normal(68, heads, head_dim, seed=heads)) for heads in (4, 2))
    theirs = modeling.apply_rotary_pos_emb_vision(
        q, k, *embedding(q, torch.from_numpy(positions.T.copy()))
    )
    check_axial(pn.vision_rotary(name, head_dim), q, k, positions, theirs, 1e4, layout="shd")


@pytest.mark.parametrize("head_dim", [32, 64])
def test_pixtral(head_dim):
    torch = module("torch")
    pixtral = module("transformers.models.pixtral.modeling_pixtral")
    embedding = pixtral.PixtralVisionRotaryEmbedding(axial_config(head_dim, 1e4))
    positions = pn.packed_grid_positions([[1, 3, 7], [1, 5, 2]], 31)
    q, k = (torch.from_numpy(normal(1, heads, 31, head_dim, seed=heads)) for heads in (4, 2))
    cos, sin = embedding(q, torch.from_numpy(positions.T.copy()))
    theirs = pixtral.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=0)
    check_axial(pn.vision_rotary("pixtral", head_dim), q, k, positions, theirs, 1e4)


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
    check_axial(pn.vision_rotary("neomme", 48), q, k, positions, theirs, 1e4)


def test_gemma4():
    torch = module("torch")
    gemma4 = module("transformers.models.gemma4.modeling_gemma4")
    embedding = gemma4.Gemma4VisionRotaryEmbedding(axial_config(72, 100.0))
    positions = np.stack([pn.grid_positions([3, 5]), pn.grid_positions([5, 3])], 1)  # [A, b, s]
    ids = torch.from_numpy(positions.transpose(1, 2, 0).copy())
    q, k = (torch.from_numpy(normal(2, 15, heads, 72, seed=heads)) for heads in (4, 2))
    cos, sin = embedding(q, ids)
    theirs = [gemma4.apply_multidimensional_rope(x, cos, sin, ids) for x in (q, k)]
    rope = pn.vision_rotary("gemma4", 72)
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
    coordinates = pn.augment_coordinates(
        pn.image_coordinates([5, 3], device="cpu"),
        generator=torch.Generator().manual_seed(3),
        training=training,
        **amounts,
    )
    positions = pn.add_unrotated_tokens(coordinates, before=5)
    q, k = (torch.from_numpy(normal(2, 2, 20, 64, seed=seed)) for seed in range(2))
    theirs = dino.apply_rotary_pos_emb(q, k, cos, sin)
    rope = pn.vision_rotary("dinov3_vit", 64)
    # 2 pi of the coordinate is rounded twice more. The coordinate is rounded as theirs is, but for
    # that of its centre: three roundings of up to 2, stretched by up to 3, turned by 2 pi.
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
    positions = pn.image_coordinates([7, 3], normalize=options.get("normalize_coords", "separate"))
    base = options.get("temperature", 100.0)
    pairing = "half" if half else "interleaved"
    rope = pn.vision_rotary("dinov3_vit", 64, base=base, pairing=pairing)
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
    positions = pn.image_coordinates(
        sizes,
        grid={"pixel": "corners", "centered": "centers", "index": "index"}[grid],
        offset=options.get("grid_offset", 0.0),
        reference=options.get("ref_feat_shape"),
        dtype=np.float64,
    )
    pairing = "half" if half else "interleaved"
    rope = pn.vision_rotary("eva02", dim, axis_order=order, pairing=pairing, **data)
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
    positions = pn.grid_positions([3, 5])  # their sizes are width and height
    q, k = torch.from_numpy(normal(1, 2, 15, 32)), torch.from_numpy(normal(1, 2, 34, 32, seed=1))
    cos, sin = embedding(q, owner.precompute_positions(config))
    # Two memories of 15 patches and four object pointers, which are not rotated.
    theirs = modeling.apply_rotary_pos_emb_2d(
        q, k, cos, sin, num_k_exclude_rope=4, repeat_freqs_k=True
    )
    of_keys = pn.add_unrotated_tokens(np.tile(positions, 2), after=4)
    rope = pn.vision_rotary(name, 32)
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
    memory = pn.add_unrotated_tokens(pn.grid_positions([3, 2]), before=3)
    of_keys = pn.add_unrotated_tokens(np.tile(memory, 2), after=2)
    rope = pn.vision_rotary("edgetam_video", 32)
    check_axial(rope, q, q, pn.grid_positions([3, 5]), [theirs[0]] * 2, 1e4)
    check_axial(rope, k, k, of_keys, [theirs[1]] * 2, 1e4)


def test_llama4():
    torch = module("torch")
    llama4 = module("transformers.models.llama4.modeling_llama4")
    config = axial_config(88, 1e4, image_size=5 * 7, patch_size=7)
    angles = llama4.Llama4VisionRotaryEmbedding(config)(torch.zeros(1))
    q, k = (torch.from_numpy(normal(2, 26, heads, 88, seed=heads)) for heads in (4, 2))
    theirs = llama4.vision_apply_rotary_emb(q, k, angles)
    positions = pn.add_unrotated_tokens(pn.grid_positions([5, 5]) + 1, after=1)
    rope = pn.vision_rotary("llama4", 88)
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
    positions = pn.grid_positions([3, 5, 5])
    rope = pn.vision_rotary("vjepa2", head_dim)
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


# --- Partners of unequal angles


@pytest.mark.parametrize("pairing", ["half", "interleaved", 4])
@pytest.mark.parametrize("start", [0, 3])
def test_full_width_formula(pairing, start):
    rng = np.random.default_rng(0)
    inv_freq, positions = rng.normal(size=8), rng.integers(-50, 50, (2, 3, 5))
    axis_map = rng.integers(0, 2, 8)
    x = rng.normal(size=(3, 5, 2, 12))
    rope = pn.FullWidthRotary.of_dims(
        12, inv_freq, axis_map=axis_map, pairing=pairing, rotary_start=start, scale=1.5
    )
    angle = (positions[axis_map].transpose(1, 2, 0) * inv_freq)[:, :, None]
    (a, b), (s, t) = blocks(x[..., start : start + 8], pairing), blocks(angle, pairing)
    expected = x.copy()
    expected[..., start : start + 8] = 1.5 * joined(
        a * np.cos(s) - b * np.sin(s), b * np.cos(t) + a * np.sin(t), pairing
    )
    # float64: angles of up to 50 * 3, rounded once.
    np.testing.assert_allclose(
        rope.apply(x, positions, layout="bshd"), expected, rtol=0, atol=1e-12
    )
    equal = pn.FullWidthRotary(rope.first, rope.first)
    np.testing.assert_array_equal(
        equal.apply(x, positions, layout="bshd"), rope.first.apply(x, positions, layout="bshd")
    )


@pytest.mark.parametrize("pairing", ["half", "interleaved", 4])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_inverse_of_full_width_is_the_transpose(pairing, kind):
    rng = np.random.default_rng(1)
    inv_freq, positions = rng.normal(size=8), rng.integers(-50, 50, 5)
    rope = pn.FullWidthRotary.of_dims(12, inv_freq, pairing=pairing, rotary_start=3, scale=1.5)
    x = rng.normal(size=(5, 2, 12))
    angle = (positions[:, None] * inv_freq)[:, None]
    (a, b), (s, t) = blocks(x[..., 3:11], pairing), blocks(angle, pairing)
    expected = x.copy()
    expected[..., 3:11] = 1.5 * joined(
        a * np.cos(s) + b * np.sin(t), b * np.cos(t) - a * np.sin(s), pairing
    )
    given = x.copy()
    if kind == "torch":
        torch = module("torch")
        given, positions = torch.from_numpy(given), torch.from_numpy(positions)
    result = rope.apply(given, positions, layout="thd", inverse=True)
    # float64: angles of up to 50 * 3, rounded once.
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)
    both = rope(given, given[:, :1], positions, layout="thd", inverse=True)
    np.testing.assert_array_equal(both[0], result)
    np.testing.assert_array_equal(both[1], result[:, :1])
    # <R x, y> = <x, R' y>, and for equal angles it undoes the rotation.
    y = rng.normal(size=x.shape)
    other = y if kind == "numpy" else torch.from_numpy(y)
    rotated = np.asarray(rope.apply(other, positions, layout="thd"))
    assert (rotated * x).sum() == pytest.approx((y * np.asarray(result)).sum(), rel=1e-12)
    alike = pn.Rotary(12)
    undone = pn.FullWidthRotary(alike, alike).apply(
        alike.apply(given, positions, layout="thd"), positions, layout="thd", inverse=True
    )
    np.testing.assert_allclose(undone, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_full_width_results_in_place(inverse, kind, dtype):
    rope = pn.vision_rotary("vjepa2", 12)
    x = normal(1, 2, 12, 12).astype(dtype)
    positions = pn.grid_positions([2, 2, 3])
    if kind == "torch":
        torch = module("torch")
        x, positions = torch.from_numpy(x), torch.from_numpy(positions)
    copied = x.clone if kind == "torch" else x.copy
    expected = rope.apply(x, positions, inverse=inverse)
    assert expected.dtype == x.dtype
    out = copied()
    assert rope.apply(x, positions, inverse=inverse, out=out) is out
    np.testing.assert_array_equal(out, expected)
    own = copied()
    assert rope.apply(own, positions, inverse=inverse, out=own) is own
    np.testing.assert_array_equal(own, expected)
    q, k = copied(), copied()[:, :1]
    rotated = rope(q, k, positions, inverse=inverse, inplace=True)
    assert rotated[0] is q
    assert rotated[1] is k
    np.testing.assert_array_equal(q, expected)
    np.testing.assert_array_equal(k, expected[:, :1])


def test_full_width_gradients_and_compiling():
    torch = module("torch")
    rope = pn.vision_rotary("vjepa2", 12)
    positions = torch.from_numpy(pn.grid_positions([2, 2, 3]))
    x = torch.from_numpy(normal(1, 2, 12, 12)).double().requires_grad_()
    for inverse in (False, True):
        options = {"inverse": inverse}
        assert torch.autograd.gradcheck(lambda x, o=options: rope.apply(x, positions, **o), x)
        compiled = torch.compile(
            lambda q, k, p, o=options: rope(q, k, p, **o), fullgraph=True, backend="eager"
        )
        q, k = x.detach().to(torch.bfloat16), x.detach()[:, :1].to(torch.bfloat16)
        expected = rope(q, k, positions, **options)
        for ours, other in zip(compiled(q, k, positions), expected, strict=True):
            assert ours.dtype == torch.bfloat16
            np.testing.assert_array_equal(ours.float(), other.float())


def test_full_width_rotary_is_a_value():
    rope = pn.vision_rotary("vjepa2", 24)
    assert rope == pn.vision_rotary("vjepa2", 24)
    assert rope != pn.vision_rotary("vjepa2", 24, base=50.0)
    assert pickle.loads(pickle.dumps(rope)) == rope
    assert hash(rope) == hash(pn.vision_rotary("vjepa2", 24))
    with pytest.raises(AttributeError):
        rope.first = rope.second


BAD_AXIAL = [
    (ValueError, "axial_rotary: axes", lambda: pn.axial_rotary(64, 0)),
    (ValueError, "axial_rotary: head_dim: expected at least 4, .* got 3",
     lambda: pn.axial_rotary(3)),
    (ValueError, "vision_rotary: changes: expected .* axes, base, .* pairing, .* got foo",
     lambda: pn.vision_rotary("pixtral", 64, foo=1)),
    (TypeError, "FullWidthRotary: k: expected a NumPy array or a torch tensor, got list",
     lambda: pn.vision_rotary("vjepa2", 12)(np.ones((1, 1, 1, 12)), [1.0])),
    (TypeError, "FullWidthRotary: x: expected a dtype of float16",
     lambda: pn.vision_rotary("vjepa2", 12).apply(np.ones((1, 1, 1, 12), int), inverse=True)),
    (ValueError, "FullWidthRotary: k: expected the shape of q but for h",
     lambda: pn.vision_rotary("vjepa2", 12)(np.ones((1, 1, 1, 12)), np.ones((1, 1, 2, 12)))),
    (ValueError, "out: expected shape",
     lambda: pn.FullWidthRotary(pn.Rotary(8), pn.Rotary(8)).apply(
         np.ones((1, 1, 2, 8)), out=np.ones((1, 1, 1, 8)))),
    (ValueError, "axial_rotary: rotary_dim: expected a multiple of 2 . 3 axes",
     lambda: pn.axial_rotary(64, 3, rotary_dim=64)),
    (ValueError, "axial_rotary: rotary_dim: .* at most head_dim = 8",
     lambda: pn.axial_rotary(8, rotary_dim=12)),
    (ValueError, "axial_rotary: order", lambda: pn.axial_rotary(64, order="hw")),
    (TypeError, "axial_rotary: order", lambda: pn.axial_rotary(64, order=1)),
    (ValueError, "axial_rotary: spectrum", lambda: pn.axial_rotary(64, spectrum="all")),
    (ValueError, "axial_rotary: axis_order: expected each of 0 .. 1 once",
     lambda: pn.axial_rotary(64, axis_order=(0, 0))),
    (ValueError, "axial_rotary: inv_freq: expected shape",
     lambda: pn.axial_rotary(64, inv_freq=[1.0, 0.5])),
    (ValueError, "axial_rotary: base, spectrum, freq_scale",
     lambda: pn.axial_rotary(8, inv_freq=[1.0, 0.5], base=100.0)),
    (ValueError, "axial_rotary: base", lambda: pn.axial_rotary(64, base=0.0)),
    (ValueError, "axial_rotary: order: expected 'sectioned' where tiled",
     lambda: pn.axial_rotary(64, order="interleaved", tiled=True)),
    (TypeError, "axial_rotary: tiled", lambda: pn.axial_rotary(64, tiled=1)),
    (ValueError, "vision_rotary: model: expected one of qwen2_vl",
     lambda: pn.vision_rotary("vit", 64)),
    (ValueError, "FullWidthRotary: inv_freq: expected shape",
     lambda: pn.FullWidthRotary.of_dims(8, [1.0, 2.0, 3.0])),
    (ValueError, "FullWidthRotary: axis_map: expected shape",
     lambda: pn.FullWidthRotary.of_dims(8, [1.0, 2.0], axis_map=[0])),
    (ValueError, "FullWidthRotary: second",
     lambda: pn.FullWidthRotary(pn.Rotary(8), pn.Rotary(8, pairing="interleaved"))),
    (ValueError, "mixed_frequencies: head_dim", lambda: pn.mixed_frequencies(6, 2)),
    (TypeError, "mixed_frequencies: dtype",
     lambda: pn.mixed_frequencies(8, 2, dtype=np.float16)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "match", "call"), BAD_AXIAL)
def test_bad_axial_calls(error, match, call):
    with pytest.raises(error, match=match):
        call()
