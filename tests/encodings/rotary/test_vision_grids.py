"""`Rotary.grid`: the positions of each vision model of vision.json, as its own code makes them."""

from __future__ import annotations

import importlib.util
import inspect
import pickle
import re
import types
from pathlib import Path

import numpy as np
import pytest
from axes_cases import normal
from outside import module, timm_layers

import posenc_native as pn
from posenc_native.models.facts import vision_grids, vision_models
from posenc_native.models.rows import rows

HEIGHT, WIDTH = 4, 6


class Seen(Exception):
    """The positions have been seen; the rest of the model need not run."""


def modeling_of(name):
    return module(f"transformers.models.{name}.modeling_{name}")


def vision_class(modeling):
    (found,) = (
        value for name, value in vars(modeling).items()
        if name.endswith("RotaryEmbedding") and hasattr(value, "compute_axial_rope_parameters")
    )  # fmt: skip
    return found


def embedding_of(name, head_dim, base=1e4, **more):
    return vision_class(modeling_of(name))(config_of(head_dim, base, **more))


def config_of(head_dim, base=1e4, **more):
    return types.SimpleNamespace(
        rope_parameters={"rope_type": "axial", "rope_theta": base}, head_dim=head_dim,
        hidden_size=2 * head_dim, num_attention_heads=2, **more,
    )  # fmt: skip


def positions_in_the_model(name):
    """What the encoder gives to its rotary embedding for a picture: [N, A]."""
    torch, modeling = module("torch"), modeling_of(name)
    kind = vision_class(modeling)
    owners = [
        value for value in vars(modeling).values()
        if inspect.isclass(value) and value.__module__ == modeling.__name__
        and f"{kind.__name__}(" in inspect.getsource(value)
    ]  # fmt: skip
    config = inspect.signature(owners[-1].__init__).parameters["config"].annotation
    config = (getattr(modeling, config) if isinstance(config, str) else config)()
    for depth in ("depth", "num_hidden_layers"):
        if hasattr(config, depth):
            setattr(config, depth, 1)
    # Memory that nobody filled: no position depends on a weight. Buffers may be indices.
    with torch.device("meta"):
        model = owners[-1](config)
    model.to_empty(device="cpu")
    for buffer in model.buffers():
        buffer.zero_()
    (rotary,) = (part for part in model.modules() if type(part) is kind)
    seen = []

    def look(_, args, kwargs):
        seen.append([*args, *kwargs.values()][1])
        raise Seen

    rotary.register_forward_pre_hook(look, with_kwargs=True)
    with torch.no_grad(), pytest.raises(Seen):
        model(**picture_for(name, model, config))
    return seen[0].reshape(-1, seen[0].shape[-1])


def picture_for(name, model, config):
    """A black picture of HEIGHT x WIDTH patches, as the forward of the encoder takes it."""
    torch = module("torch")
    takes = inspect.signature(model.forward).parameters
    side = config.patch_size
    channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", 3)
    grid, count = torch.tensor([[1, HEIGHT, WIDTH]]), HEIGHT * WIDTH
    if "image_grid_thw" in takes:  # pixels of merged patches
        merge = config.spatial_merge_size
        pixels = torch.zeros(count // merge**2, merge * side, merge * side, 3)
        return {"pixel_values": pixels, "image_grid_thw": grid // torch.tensor([1, merge, merge])}
    if "inputs_embeds" in takes:
        return {"inputs_embeds": torch.zeros(1, count, config.hidden_size), "grid_thw": grid}
    first = next(iter(takes))
    if "grid_thw" not in takes:
        return {first: torch.zeros(1, channels, HEIGHT * side, WIDTH * side)}
    pixels = torch.zeros(count, channels * getattr(config, "temporal_patch_size", 1) * side**2)
    if name == "kimi_k25":
        pixels = pixels.view(count, channels, side, side)
    result = {first: pixels, "grid_thw": grid}
    if "merge_sizes" in takes:
        result["merge_sizes"] = torch.tensor([merge_of_pictures(name)])
    return result


def merge_of_pictures(name):
    """The default of the image processor: its file is read, because it imports torchvision."""
    folder = Path(modeling_of(name).__file__).parent
    text = (folder / f"image_processing_{name}.py").read_text(encoding="utf-8")
    return int(re.search(r"^    merge_size = (\d+)$", text, re.M)[1])


def tokens(*shape):
    torch = module("torch")
    return torch.from_numpy(normal(*shape))


# For each form of a model's code: our rotation of x, and the model's.


def in_the_model(name):
    positions = positions_in_the_model(name)
    x = tokens(len(positions), 2, 48)
    modeling = modeling_of(name)
    cos, sin = embedding_of(name, 48)(x, positions)
    rope = pn.rotary.vision_rotary(name, 48)
    ours = rope.apply(x, rope.grid(HEIGHT, WIDTH), layout="shd")
    if name == "pixtral":
        turn, more = modeling.apply_rotary_pos_emb, {"unsqueeze_dim": 1}
    else:
        turn, more = modeling.apply_rotary_pos_emb_vision, {}
    return ours, turn(x, x, cos, sin, **more)[0]


def neomme(name):
    modeling = modeling_of(name)
    config = config_of(48, max_position_embeddings=64, layer_types=["full_attention"])
    config.rope_parameters = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    processing = module(f"transformers.models.{name}.processing_{name}")
    ids = processing.NeoMMEProcessor._image_positions(HEIGHT, WIDTH)
    x = tokens(1, 2, len(ids), 48)
    embedding = modeling.NeoMMERotaryEmbedding(config)
    cos, sin = embedding(x, ids.T[:, None], layer_type="full_attention")
    rope = pn.rotary.vision_rotary(name, 48)
    ours = rope.apply(x, rope.grid(HEIGHT, WIDTH))
    return ours, modeling.apply_rotary_pos_emb(x, x, cos, sin)[0]


def gemma4(name):
    modeling = modeling_of(name)
    processing = module(f"transformers.models.{name}.image_processing_pil_{name}")
    picture = np.zeros((16 * HEIGHT * 3, 16 * WIDTH * 3, 3), np.uint8)
    made = processing.Gemma4ImageProcessorPil()(
        images=picture, return_tensors="pt", do_resize=False
    )
    ids = made["image_position_ids"]
    ids = ids[:, (ids[0] >= 0).all(-1)]
    x = tokens(1, ids.shape[1], 2, 72)
    cos, sin = modeling.Gemma4VisionRotaryEmbedding(config_of(72, 100.0))(x, ids)
    rope = pn.rotary.vision_rotary(name, 72)
    ours = rope.apply(x, rope.grid(3 * HEIGHT, 3 * WIDTH), layout="bshd")
    return ours, modeling.apply_multidimensional_rope(x, cos, sin, ids)


def dinov3_vit(name):
    torch, modeling = module("torch"), modeling_of(name)
    config = module(f"transformers.models.{name}.configuration_{name}").DINOv3ViTConfig(
        hidden_size=64, num_attention_heads=2, patch_size=4
    )
    embedding = modeling.DINOv3ViTRopePositionEmbedding(config).eval()
    cos, sin = embedding(torch.zeros(1, 3, 4 * HEIGHT, 4 * WIDTH))
    rope = pn.rotary.vision_rotary(name, 32)
    for table, theirs in zip(rope.tables(rope.grid(HEIGHT, WIDTH)), (cos, sin), strict=True):
        np.testing.assert_allclose(np.concatenate([table, table], -1), theirs, atol=3e-6)
    others = 1 + config.num_register_tokens
    x = tokens(1, 2, others + HEIGHT * WIDTH, 32)
    ours = rope.apply(x, rope.grid(HEIGHT, WIDTH, before=others))
    return ours, modeling.apply_rotary_pos_emb(x, x, cos, sin)[0]


def sam2(name):
    torch, modeling = module("torch"), modeling_of(name)
    memories, pointers = 2, 3
    more = {
        "memory_attention_hidden_size": 64, "memory_attention_downsample_rate": 1,
        "memory_attention_num_attention_heads": 2,
        "memory_attention_rope_feat_sizes": [WIDTH, HEIGHT],  # their order
        "memory_attention_rope_k_sizes": [WIDTH, HEIGHT],
    }  # fmt: skip
    config = config_of(32, **more)
    embedding = embedding_of(name, 32, **more)
    (owner,) = (
        value for value in vars(modeling).values() if hasattr(value, "precompute_positions")
    )
    x = tokens(1, 2, HEIGHT * WIDTH, 32)
    keys = tokens(1, 2, memories * HEIGHT * WIDTH + pointers, 32)
    cos, sin = embedding(x, owner.precompute_positions(config))
    if name == "edgetam_video":
        theirs = modeling.apply_rotary_pos_emb_2d_cross_attn(
            x, keys, cos, sin, cos, sin, num_k_exclude_rope=pointers, repeat_freqs_k=memories
        )
    else:
        theirs = modeling.apply_rotary_pos_emb_2d(
            x, keys, cos, sin, num_k_exclude_rope=pointers, repeat_freqs_k=True
        )
    rope = pn.rotary.vision_rotary(name, 32)
    of_keys = rope.grid(HEIGHT, WIDTH, frames=memories, after=pointers)
    ours = rope.apply(x, rope.grid(HEIGHT, WIDTH)), rope.apply(keys, of_keys)
    return torch.cat(ours, -2), torch.cat(theirs, -2)


def llama4(name):
    torch, modeling = module("torch"), modeling_of(name)
    config = config_of(88, image_size=5 * 7, patch_size=7)  # its images are square
    angles = modeling.Llama4VisionRotaryEmbedding(config)(torch.zeros(1))
    x = tokens(1, 26, 2, 88)
    rope = pn.rotary.vision_rotary(name, 88)
    ours = rope.apply(x, rope.grid(5, 5), layout="bshd")
    return ours, modeling.vision_apply_rotary_emb(x, x, angles)[0]


def eva02(name):
    timm = timm_layers("pos_embed_sincos")
    (folder,) = importlib.util.find_spec("timm").submodule_search_locations
    text = (Path(folder) / "models" / "eva.py").read_text(encoding="utf-8")
    models = re.findall(r"^def eva02_\w+(.*?)^    return", text, re.M | re.S)
    sizes = {size for model in models for size in re.findall(r"ref_feat_shape=\((.*?)\)", model)}
    assert sizes == {"16, 16"}
    embedding = timm.RotaryEmbeddingCat(48, in_pixels=False, ref_feat_shape=[16, 16])
    x = tokens(1, 2, HEIGHT * WIDTH, 48)
    rope = pn.rotary.vision_rotary(name, 48)
    ours = rope.apply(x, rope.grid(HEIGHT, WIDTH))
    return ours, timm.apply_rot_embed_cat(x, embedding.get_embed([HEIGHT, WIDTH]))


def vjepa2(name):
    torch, modeling = module("torch"), modeling_of(name)
    config = module(f"transformers.models.{name}.configuration_{name}").VJEPA2Config(
        patch_size=4, crop_size=20, frames_per_clip=6, tubelet_size=2
    )  # its images are square
    attention = modeling.VJEPA2RopeAttention(config, hidden_size=48, num_attention_heads=2)
    x = tokens(1, 2, 75, 24)
    rope = pn.rotary.vision_rotary(name, 24)
    ours = rope.apply(x, rope.grid(5, 5, frames=3))
    ids = attention.get_position_ids(torch.zeros(1, 75, 1))
    return ours, attention.apply_rotary_embeddings(x, ids)


OTHER_FORMS = {
    "neomme": neomme, "gemma4": gemma4, "dinov3_vit": dinov3_vit, "sam2_video": sam2,
    "edgetam_video": sam2, "sam3_tracker_video": sam2, "llama4": llama4, "eva02": eva02,
    "vjepa2": vjepa2,
}  # fmt: skip


# Diffusion transformers are run in test_diffusion_models.py.
ENCODERS = [
    name for name, row in rows("vision").items() if not row["source"].startswith("diffusers")
]
# Ten seconds each, for imports of their models of sound; their rules are those of Qwen-VL.
SLOW = ("qwen2_5_omni", "qwen3_omni_moe")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in ENCODERS],
)
def test_grid_as_the_model_makes_it(name):
    ours, theirs = OTHER_FORMS.get(name, in_the_model)(name)
    # Their angles of up to 25 are rounded to float32 a few times; a wrong position is off by more
    # than 0.1.
    np.testing.assert_allclose(ours, theirs, atol=4e-5)


@pytest.mark.parametrize("name", vision_models())
def test_grid_for_numpy_and_torch(name):
    torch = module("torch")
    rope = pn.rotary.vision_rotary(name, 192)
    array = rope.grid(HEIGHT, WIDTH)
    assert isinstance(array, np.ndarray)
    assert array.dtype in (np.int64, np.float32)
    wide = rope.grid(HEIGHT, WIDTH, dtype=np.float64)
    assert wide.dtype == (np.int64 if array.dtype == np.int64 else np.float64)
    for tensor in (
        rope.grid(HEIGHT, WIDTH, device="cpu"), rope.grid(HEIGHT, WIDTH, dtype=torch.float32)
    ):  # fmt: skip
        np.testing.assert_array_equal(tensor, array)
        assert tensor.numpy().dtype == array.dtype
    axes = vision_grids()[name].axes
    alone = rope.grid(HEIGHT, WIDTH, before=0, after=0)
    assert array.shape[0] == axes
    around = rope.grid(HEIGHT, WIDTH, before=2, after=1)
    assert not around[:, :2].any()
    assert not around[:, -1:].any()
    np.testing.assert_array_equal(around[:, 2:-1], alone)
    assert rope.grid(HEIGHT, WIDTH, before=0, after=0, frames=2).shape == (axes, 2 * alone.shape[1])
    assert rope.grid(0, 0, before=0, after=0).size == 0


def test_grid_stays_with_the_rotation():
    rope = pn.rotary.vision_rotary("dinov3_vit", 32)
    expected = pn.positions.image_coordinates((2, 3))
    for same in (rope, pickle.loads(pickle.dumps(rope)), rope.with_layout("bshd")):
        np.testing.assert_array_equal(same.grid(2, 3), expected)
    assert "vision='dinov3_vit'" in repr(rope)
    assert pickle.loads(pickle.dumps(rope)) == rope
    # The rotation is the same, the positions are not.
    plain = pn.rotary.axial_rotary(32, base=100.0, freq_scale=2 * np.pi)
    assert plain != rope
    assert (plain.inv_freq == rope.inv_freq).all()
    text = " ".join(str(pn.explain(rope)).split())
    assert "rope.grid(height, width): height and width; coordinates in [-1, 1]" in text
    assert "before=5" in text
    assert "for text" not in text


def test_grid_of_a_configuration():
    vision = {
        "model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "num_heads": 16,
        "patch_size": 14, "spatial_merge_size": 2,
    }  # fmt: skip
    rope = pn.Rotary.from_config(vision)
    np.testing.assert_array_equal(
        rope.grid(4, 6), pn.positions.grid_positions((4, 6), merge_size=2)
    )
    assert "patches in blocks of 2 x 2" in " ".join(str(pn.explain(vision)).split())
    # Blocks of another size than the model's row says: which grid is right is not known.
    other = pn.Rotary.from_config({**vision, "spatial_merge_size": 4})
    assert other.vision is None
    assert "rope.grid" not in str(pn.explain({**vision, "spatial_merge_size": 4}))


def test_grid_is_compiled():
    torch = module("torch")
    rope = pn.rotary.vision_rotary("dinov3_vit", 32)
    x = tokens(1, 2, 11, 32)

    def rotated(x):
        return rope.apply(x, rope.grid(2, 3, before=5, device="cpu"))

    compiled = torch.compile(rotated, backend="eager", fullgraph=True)
    np.testing.assert_array_equal(compiled(x), rotated(x))


def test_a_compiled_function_takes_the_grid_of_each_rotation():
    """Of models that differ in the name alone, which a graph has to look at."""
    torch = module("torch")

    def placed(rope, x):
        return rope.grid(2, 3, text=2, device="cpu") + x

    compiled = torch.compile(placed, backend="eager", fullgraph=True)
    x = torch.zeros(1)
    for name in ("flux", "qwen_image", "hunyuan_video"):
        rope = pn.rotary.vision_rotary(name, 128)
        np.testing.assert_array_equal(compiled(rope, x), placed(rope, x))


BAD_GRIDS = [
    (ValueError, r"Rotary.grid: vision: expected .* write .*grid_positions\(\(.*, got None",
     lambda: pn.Rotary(8).grid(2, 3)),
    (ValueError, r"Rotary.grid: vision: expected a rotation over the 2 axes of pixtral, got .* 3",
     lambda: pn.rotary.vision_rotary("pixtral", 96, axes=3).grid(2, 3)),
    (ValueError, "Rotary: vision: expected one of dinov3_vit or",
     lambda: pn.Rotary(8, vision="dinov3")),
    (TypeError, "Rotary: vision: expected a str", lambda: pn.Rotary(8, vision=2)),
    (ValueError, "Rotary.grid: height: expected a multiple of merge_size = 2, .* got 3",
     lambda: pn.rotary.vision_rotary("qwen2_vl", 32).grid(3, 4)),
    (ValueError, "Rotary.grid: merge_size: expected 1 for dinov3_vit, .* got 2",
     lambda: pn.rotary.vision_rotary("dinov3_vit", 32).grid(2, 4, merge_size=2)),
    (ValueError, "Rotary.grid: frames: expected 1 for llama4, .* got 2",
     lambda: pn.rotary.vision_rotary("llama4", 32).grid(2, 2, frames=2)),
    (ValueError, "Rotary.grid: text: expected 0 for wan, which gives no position to a text, got 2",
     lambda: pn.rotary.vision_rotary("wan", 64).grid(2, 2, text=2)),
    (TypeError, "Rotary.grid: text: expected an int",
     lambda: pn.rotary.vision_rotary("flux", 128).grid(2, 2, text=2.0)),
    (ValueError, "Rotary.grid: fps: expected None for flux, whose time has no unit, got 24",
     lambda: pn.rotary.vision_rotary("flux", 128).grid(2, 2, fps=24)),
    (ValueError, "Rotary.grid: fps: expected",
     lambda: pn.rotary.vision_rotary("cosmos", 64).grid(2, 2, fps=0)),
    (ValueError, "Rotary.grid: merge_size: expected 1 for cogvideox, which orders patches by rows",
     lambda: pn.rotary.vision_rotary("cogvideox", 64).grid(2, 2, merge_size=2)),
    (TypeError, "Rotary.grid: width: expected an int, got float",
     lambda: pn.rotary.vision_rotary("pixtral", 32).grid(2, 2.0)),
    (ValueError, "Rotary.grid: before: expected an int",
     lambda: pn.rotary.vision_rotary("pixtral", 32).grid(2, 2, before=-1)),
    (TypeError, "Rotary.grid: dtype",
     lambda: pn.rotary.vision_rotary("pixtral", 32).grid(2, 2, dtype=np.float16)),
    (ValueError, "Rotary.grid: sizes: expected a grid of fewer",
     lambda: pn.rotary.vision_rotary("vjepa2", 12).grid(10**10, 10**10)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "match", "call"), BAD_GRIDS)
def test_bad_grids(error, match, call):
    with pytest.raises(error, match=match):
        call()
