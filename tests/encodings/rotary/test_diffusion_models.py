"""Diffusion transformers: `Rotary.from_config` of a model and `Rotary.grid`, inside the model."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from axes_cases import assert_rotations_agree
from outside import module

import posenc_native as pn
from posenc_native.models.diffusion import diffusion_models
from posenc_native.models.rows import rows

torch = module("torch")
module("diffusers")
from diffusers.models import embeddings  # noqa: E402
from diffusers_models import (  # noqa: E402
    COLUMNS,
    FRAMES,
    MODELS,
    ROWS,
    TEXT,
    build,
    cogvideox,
    image_inputs,
    noise,
)


def of_cogvideox(rows, columns, make=cogvideox):
    """Tables as the pipeline makes them for an image of another size than in training."""
    crop = module("diffusers.pipelines.cogvideo.pipeline_cogvideox").get_resize_crop_region_for_grid
    model, inputs = make()
    model.register_to_config(sample_width=90, sample_height=60)
    tables = embeddings.get_3d_rotary_pos_embed(
        32, crop((rows, columns), 45, 30), (rows, columns), FRAMES
    )
    video = noise(1, FRAMES, 4, 2 * rows, 2 * columns)
    return model, {**inputs, "hidden_states": video, "image_rotary_emb": tables}


def of_hunyuan_dit(rows, columns):
    crop = module(
        "diffusers.pipelines.hunyuandit.pipeline_hunyuandit"
    ).get_resize_crop_region_for_grid
    model, inputs = MODELS["HunyuanDiT"]()
    tables = embeddings.get_2d_rotary_pos_embed(
        32, crop((rows, columns), 32), (rows, columns), output_type="pt"
    )
    return model, {
        **inputs, "hidden_states": noise(2, 4, 2 * rows, 2 * columns), "image_rotary_emb": tables
    }  # fmt: skip


def of_lumina2():
    """Without refiners, so that the first rotated call has text and patches."""
    model = build("Lumina2Transformer2DModel", sample_size=16, in_channels=4, out_channels=4,
                  hidden_size=128, num_attention_heads=4, axes_dim_rope=(8, 12, 12),
                  axes_lens=(32, 32, 32), cap_feat_dim=16, num_refiner_layers=0)  # fmt: skip
    return model, image_inputs(encoder_attention_mask=torch.ones(2, TEXT, dtype=torch.bool))


def of_z_image():
    """With as many patches and text tokens as need no more to fill them up."""
    model = build("ZImageTransformer2DModel", in_channels=4, dim=64, n_layers=2,
                  n_refiner_layers=0, n_heads=2, n_kv_heads=2, cap_feat_dim=16,
                  axes_dims=[8, 12, 12], axes_lens=[128, 32, 32])  # fmt: skip
    return model, {"x": [noise(4, 1, 8, 16)] * 2, "t": torch.tensor([0.5, 0.5]),
                   "cap_feats": [noise(32, 16)] * 2}  # fmt: skip


VIDEO = {"frames": FRAMES}
IMAGE_TEXT, VIDEO_TEXT = {"text": TEXT}, {"frames": FRAMES, "text": TEXT}
# The row of vision.json, a model, and what grid needs beside the sizes; (4, 5) patches or others.
CASES = {
    "flux": ("flux", MODELS["Flux"], IMAGE_TEXT),
    "chroma": ("flux", MODELS["Chroma"], IMAGE_TEXT),
    "bria": ("flux", MODELS["Bria"], IMAGE_TEXT),
    "krea2": ("flux", MODELS["Krea2"], IMAGE_TEXT),
    "flux2": ("flux2", MODELS["Flux2"], IMAGE_TEXT),
    "qwen_image": ("qwen_image", MODELS["QwenImage"], IMAGE_TEXT),
    "lumina2": ("lumina2", of_lumina2, IMAGE_TEXT),
    "z_image": ("z_image", of_z_image, {"text": 32, "width": 8}),
    "cogview4": ("cogview4", MODELS["CogView4"], IMAGE_TEXT),
    "hunyuan_dit": ("hunyuan_dit", lambda: of_hunyuan_dit(4, 5), {}),
    "hunyuan_dit, tall": ("hunyuan_dit", lambda: of_hunyuan_dit(7, 3), {"height": 7, "width": 3}),
    "hunyuan_image": ("hunyuan_image", MODELS["HunyuanImage"], {"text": 4 + TEXT}),
    "hunyuan_video": ("hunyuan_video", MODELS["HunyuanVideo"], VIDEO_TEXT),
    "hunyuan_video15": ("hunyuan_video", MODELS["HunyuanVideo15"], {**VIDEO, "text": 3 + 4 + TEXT}),
    "motif": ("hunyuan_video", MODELS["MotifVideo"], VIDEO_TEXT),
    "wan": ("wan", MODELS["Wan"], VIDEO),
    "wan_vace": ("wan", MODELS["WanVACE"], VIDEO),
    "wan_animate": ("wan", MODELS["WanAnimate"], {"frames": 3}),
    "skyreels": ("wan", MODELS["SkyReelsV2"], VIDEO),
    "anyflow": ("wan", MODELS["AnyFlow"], VIDEO),
    "cosmos": ("cosmos", MODELS["Cosmos"], {**VIDEO, "fps": 16}),
    "cogvideox": ("cogvideox", lambda: of_cogvideox(4, 5), VIDEO_TEXT),
    "cogvideox, wide": (
        "cogvideox", lambda: of_cogvideox(3, 9), {**VIDEO_TEXT, "height": 3, "width": 9}
    ),
    "consis_id": ("cogvideox", lambda: of_cogvideox(4, 5, MODELS["ConsisID"]), VIDEO_TEXT),
    "easy_animate": ("cogvideox", MODELS["EasyAnimate"], VIDEO_TEXT),
    "cogvideox15": ("cogvideox15", MODELS["CogVideoX15"], IMAGE_TEXT),
    "ltx_video": ("ltx_video", MODELS["LTX"], VIDEO),
}  # fmt: skip


def without_turns(value):
    """Tables of the same form that rotate nothing."""
    if isinstance(value, torch.Tensor):
        return torch.ones_like(value) if value.is_complex() else value
    if isinstance(value, dict):
        return {key: without_turns(each) for key, each in value.items()}
    if not isinstance(value, (tuple, list)):
        return value
    parts = [without_turns(part) for part in value]
    if [type(part) for part in parts] == [torch.Tensor] * 2 and not parts[0].is_complex():
        parts = [torch.ones_like(parts[0]), torch.zeros_like(parts[1])]
    return type(value)(parts)


def queries(monkeypatch, model, inputs, rotated):
    """The queries of all attention calls, with the rotation of the model or without."""
    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def look(query, *args, **kwargs):
        seen.append(query.detach().clone())
        return attend(query, *args, **kwargs)

    embedding = None
    if "image_rotary_emb" not in inputs:
        names = ("pos_embed", "rope", "rope_embedder", "rope_embedding", "rotary_emb")
        embedding = next(getattr(model, name) for name in names if hasattr(model, name))
    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(torch.nn.functional, "scaled_dot_product_attention", look)
        if not rotated and embedding is None:
            inputs = {**inputs, "image_rotary_emb": without_turns(inputs["image_rotary_emb"])}
        elif not rotated:
            kind = type(embedding)
            method = "forward" if isinstance(embedding, torch.nn.Module) else "__call__"
            make = getattr(kind, method)
            patched.setattr(
                kind, method, functools.wraps(make)(lambda *a, **k: without_turns(make(*a, **k)))
            )
        model(**inputs)
    return seen


@pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning")
@pytest.mark.parametrize("case", CASES)
def test_the_model_rotates_so(monkeypatch, case):
    """The first queries that the model rotates, from those that it has without a rotation."""
    name, make, options = CASES[case]
    model, inputs = make()
    rope = pn.Rotary.from_config(model)
    assert rope.vision == name
    positions = rope.grid(**{"height": ROWS, "width": COLUMNS, **options})
    before, after = (queries(monkeypatch, model, inputs, rotated) for rotated in (False, True))
    x, theirs = next(
        (plain, turned)
        for plain, turned in zip(before, after, strict=True)
        if plain.shape == turned.shape and not torch.equal(plain, turned)
    )
    if name == "ltx_video":  # all heads as one
        x, theirs = (each.transpose(1, 2).flatten(2)[:, None] for each in (x, theirs))
    ours = rope.apply(x, positions)
    # Their angles: a frequency as in test_axial, a coordinate of at most four operations beside it.
    angle = np.abs(positions[rope.axis_map]).max(1) * rope.inv_freq
    relative = 8 + 2 * np.log(10000.0)
    start, end = rope.rotary_start, rope.rotary_start + rope.rotary_dim
    assert_rotations_agree(
        ours[..., start:end].numpy(), theirs[..., start:end].numpy(), x[..., start:end].numpy(),
        angle, rope.pairing, relative, 9,
    )  # fmt: skip
    others = np.delete(np.arange(rope.head_dim), np.arange(start, end))
    assert torch.equal(ours[..., others], theirs[..., others])
    assert (ours - x).abs().max() > 0.1


def test_tables_of_linear_attention():
    """SANA-Video rotates in an attention of its own, by the tables of Wan."""
    model, inputs = MODELS["SanaVideo"]()
    rope = pn.Rotary.from_config(model)
    hidden = inputs["hidden_states"]
    frames, rows, columns = np.array(hidden.shape[2:]) // model.config.patch_size
    theirs = model.rope(hidden)
    for ours, table in zip(
        rope.tables(rope.grid(rows, columns, frames=frames)), theirs, strict=True
    ):
        np.testing.assert_allclose(ours.repeat(2, -1), table[0, :, 0], rtol=0, atol=2.5 * 2.0**-24)


def test_every_row_of_diffusers_is_run():
    named = {name for facts in diffusion_models().values() for name in facts.models}
    of_diffusers = {
        name for name, row in rows("vision").items() if row["source"].startswith("diffusers")
    }
    assert {name for name, *_ in CASES.values()} == named == of_diffusers
