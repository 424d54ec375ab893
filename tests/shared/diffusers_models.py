"""Small diffusers models that rotate q and k, and inputs for them.

Each function of MODELS returns a model with random weights and the arguments of its forward. The
same numbers come out each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import diffusers
import torch
from diffusers.models import embeddings
from torch import nn

Case = tuple[nn.Module, dict[str, Any]]

PROJECTION = re.compile(
    r"(^|[._])(to_q|to_k|to_q_t|to_k_t|q_proj|k_proj|qkv|to_qkv|to_query|to_key"
    r"|to_qkv_mlp_proj|img_qkv_proj)$"
)
NORM = re.compile(r"(^|[._])(norm_(added_)?[qk]|[qk](_rms)?_norm|query_norm|key_norm)$")
OUTPUT = re.compile(r"(^|[._])(to_out(_t)?(\.0)?|to_add_out|out_layer)$")
PROJECTIONS, NORMS, OUTPUTS = 4.0, 2.0, 3.0
# Of the hidden states, the text, and a grid of frames, rows and columns after patching.
TEXT = 7
FRAMES, ROWS, COLUMNS = 2, 4, 5
TOKENS = ROWS * COLUMNS
# Arguments that keep their precision when the others are cast: pipelines pass them so.
KEPT = ("image_rotary_emb", "rotary_embedding", "position_ids", "_mask", "image_meta_size")


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def sharpen(model: nn.Module) -> None:
    """Make attention look at few tokens, which positions choose.

    Weights of q and k grow: those of their norms where there are some, which undo what the
    projections do. Those of the output grow to be seen beside the residual stream; gates and
    modulations that start at zero would hide all.
    """
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None:
            continue
        if NORM.search(name) and not weight.any():  # of a norm that adds one to them
            weight.data += NORMS - 1
        elif NORM.search(name):
            weight.data *= NORMS
        elif PROJECTION.search(name):
            weight.data *= PROJECTIONS
        elif OUTPUT.search(name):
            weight.data *= OUTPUTS


def build(name: str, **config: Any) -> nn.Module:
    """A model of diffusers. Inputs drawn after it are always the same, too."""
    torch.manual_seed(0)
    model = getattr(diffusers, name)(**config).eval()
    sharpen(model)
    return model


def cast_model(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """In this precision, but for the parts that `from_pretrained` leaves in float32."""
    kept = getattr(model, "_keep_in_fp32_modules", None) or ()
    for name, value in model.state_dict(keep_vars=True).items():
        if value.is_floating_point() and not any(part in kept for part in name.split(".")):
            value.data = value.data.to(dtype)
    return model


def cast(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The inputs as a pipeline of this precision passes them."""

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        if isinstance(value, list):
            return [one(entry) for entry in value]
        return value

    return {name: value if name.endswith(KEPT) else one(value) for name, value in inputs.items()}


def grid_ids(*extent: int) -> torch.Tensor:
    """Indices along each axis of every point of a grid."""
    return torch.cartesian_prod(*(torch.arange(n) for n in extent)).reshape(-1, len(extent))


def image_ids() -> torch.Tensor:
    """Of the tokens of an image: (0, row, column)."""
    return grid_ids(1, ROWS, COLUMNS).float()


def flux_like(name: str, **config: Any) -> nn.Module:
    given = {
        "patch_size": 1, "in_channels": 8, "num_layers": 2, "num_single_layers": 2,
        "attention_head_dim": 32, "num_attention_heads": 2, "joint_attention_dim": 16,
        "axes_dims_rope": (8, 12, 12),
    }  # fmt: skip
    return build(name, **{**given, **config})


def flux_inputs(**more: Any) -> dict[str, Any]:
    return {
        "hidden_states": noise(2, TOKENS, 8),
        "encoder_hidden_states": noise(2, TEXT, 16),
        "timestep": torch.tensor([0.5, 0.5]),
        "img_ids": image_ids(),
        "txt_ids": torch.zeros(TEXT, 3),
        "return_dict": False,
        **more,
    }


def flux() -> Case:
    model = flux_like("FluxTransformer2DModel", pooled_projection_dim=16)
    return model, flux_inputs(pooled_projections=noise(2, 16))


def flux2() -> Case:
    model = flux_like("Flux2Transformer2DModel", axes_dims_rope=(8, 8, 8, 8))
    ids = torch.zeros(TEXT, 4, dtype=torch.int64)
    ids[:, 3] = torch.arange(TEXT)
    inputs = flux_inputs(
        img_ids=grid_ids(1, ROWS, COLUMNS, 1), txt_ids=ids, guidance=torch.tensor([1.0, 1.0])
    )
    return model, inputs


def chroma() -> Case:
    model = flux_like(
        "ChromaTransformer2DModel",
        approximator_num_channels=8,
        approximator_hidden_dim=16,
        approximator_layers=1,
    )
    return model, flux_inputs()


def bria() -> Case:
    return flux_like("BriaTransformer2DModel"), flux_inputs()


def bria_fibo() -> Case:
    model = flux_like("BriaFiboTransformer2DModel", text_encoder_dim=8)
    inputs = flux_inputs()
    layers = [inputs["encoder_hidden_states"][:, :, :8]] * 4
    return model, {**inputs, "text_encoder_layers": layers}


def longcat_image() -> Case:
    model = flux_like("LongCatImageTransformer2DModel", pooled_projection_dim=16)
    ids = torch.zeros(TEXT, 3)
    ids[:, 1:] = torch.arange(TEXT)[:, None]
    return model, flux_inputs(txt_ids=ids, guidance=torch.tensor([3.5, 3.5]))


def ovis_image() -> Case:
    model = flux_like("OvisImageTransformer2DModel", out_channels=8)
    ids = torch.arange(TEXT).float()[:, None].expand(TEXT, 3).contiguous()
    return model, flux_inputs(txt_ids=ids)


def video(channels: int = 8, stride: int = 2, frames: int = FRAMES) -> torch.Tensor:
    """Latents of a video, of ROWS by COLUMNS tokens of stride by stride latents in each frame."""
    return noise(1, channels, frames, ROWS * stride, COLUMNS * stride)


def video_inputs(**more: Any) -> dict[str, Any]:
    return {
        "hidden_states": video(),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": noise(1, TEXT, 16),
        "return_dict": False,
        **more,
    }


def wan_like(name: str, **config: Any) -> nn.Module:
    given = {
        "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 32,
        "in_channels": 8, "out_channels": 8, "text_dim": 16, "freq_dim": 32, "ffn_dim": 64,
        "num_layers": 2, "rope_max_seq_len": 32,
    }  # fmt: skip
    return build(name, **{**given, **config})


def wan() -> Case:
    return wan_like("WanTransformer3DModel"), video_inputs()


def wan_vace() -> Case:
    model = wan_like("WanVACETransformer3DModel", vace_layers=[0], vace_in_channels=24)
    return model, video_inputs(control_hidden_states=video(24))


def wan_animate() -> Case:
    model = wan_like(
        "WanAnimateTransformer3DModel",
        in_channels=20,
        latent_channels=8,
        image_dim=16,
        motion_encoder_channel_sizes={"4": 16, "8": 16, "16": 16},
        motion_encoder_size=16,
        motion_style_dim=8,
        motion_dim=4,
        motion_encoder_dim=16,
        face_encoder_hidden_dim=16,
        face_encoder_num_heads=2,
        inject_face_latents_blocks=2,
    )
    inputs = video_inputs(
        hidden_states=video(20, frames=3),
        encoder_hidden_states_image=noise(1, 4, 16),
        pose_hidden_states=video(8),
        face_pixel_values=noise(1, 3, 5, 16, 16),
    )
    return model, inputs


def sky_reels() -> Case:
    return wan_like("SkyReelsV2Transformer3DModel"), video_inputs()


def chrono_edit() -> Case:
    return wan_like("ChronoEditTransformer3DModel"), video_inputs()


def any_flow() -> Case:
    model = wan_like("AnyFlowTransformer3DModel")
    inputs = video_inputs(
        hidden_states=video().transpose(1, 2).contiguous(),
        timestep=torch.full((1, FRAMES), 500.0),
        r_timestep=torch.full((1, FRAMES), 250.0),
    )
    return model, inputs


def helios() -> Case:
    model = build(
        "HeliosTransformer3DModel",
        num_attention_heads=2,
        attention_head_dim=32,
        in_channels=8,
        out_channels=8,
        text_dim=16,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
        rope_dim=(8, 12, 12),
        has_multi_term_memory_patch=True,
    )
    indices = torch.arange(6 + FRAMES).float()[None]
    inputs = video_inputs(
        indices_latents_history_long=indices[:, :4],
        indices_latents_history_mid=indices[:, 4:5],
        indices_latents_history_short=indices[:, 5:6],
        indices_hidden_states=indices[:, 6:],
        latents_history_long=noise(1, 8, 4, 16, 16),
        latents_history_mid=noise(1, 8, 1, 16, 16),
        latents_history_short=noise(1, 8, 1, 16, 16),
        hidden_states=noise(1, 8, FRAMES, 16, 16),
    )
    return model, inputs


def sana_video() -> Case:
    model = build(
        "SanaVideoTransformer3DModel",
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=32,
        cross_attention_dim=64,
        caption_channels=16,
        sample_size=8,
        rope_max_seq_len=32,
    )
    return model, video_inputs()


def hunyuan_video() -> Case:
    model = build(
        "HunyuanVideoTransformer3DModel",
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        patch_size=2,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(8, 12, 12),
    )
    inputs = video_inputs(
        pooled_projections=noise(1, 8),
        encoder_attention_mask=torch.ones(1, TEXT),
        guidance=torch.tensor([5120.0]),
    )
    return model, inputs


def hunyuan_video15() -> Case:
    model = build(
        "HunyuanVideo15Transformer3DModel",
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        num_refiner_layers=1,
        text_embed_dim=16,
        text_embed_2_dim=12,
        image_embed_dim=8,
        rope_axes_dim=(8, 12, 12),
        target_size=16,
    )
    inputs = video_inputs(
        hidden_states=video(8, 1),
        timestep=torch.tensor([500.0]),
        encoder_hidden_states_2=noise(1, 4, 12),
        encoder_attention_mask=torch.ones(1, TEXT),
        encoder_attention_mask_2=torch.ones(1, 4),
        image_embeds=torch.zeros(1, 3, 8),
    )
    return model, inputs


def hunyuan_framepack() -> Case:
    model = build(
        "HunyuanVideoFramepackTransformer3DModel",
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(8, 12, 12),
        has_image_proj=True,
        image_proj_dim=16,
        has_clean_x_embedder=True,
    )
    frame = {"stride": 2, "frames": 1}
    inputs = video_inputs(
        pooled_projections=noise(1, 8),
        encoder_attention_mask=torch.ones(1, TEXT),
        guidance=torch.tensor([5120.0]),
        image_embeds=noise(1, TEXT, 16),
        latents_clean=video(**frame),
        latents_history_2x=video(frames=2),
        latents_history_4x=video(frames=4),
        indices_latents_history_4x=torch.arange(4),
        indices_latents_history_2x=torch.arange(4, 6),
        indices_latents_clean=torch.tensor([6]),
        indices_latents=torch.tensor([7, 8]),
    )
    return model, inputs


def hunyuan_image() -> Case:
    model = build(
        "HunyuanImageTransformer2DModel",
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        patch_size=(2, 2),
        text_embed_dim=16,
        text_embed_2_dim=12,
        rope_axes_dim=(16, 16),
    )
    inputs = image_inputs(
        timestep=torch.tensor([500.0, 500.0]),
        encoder_attention_mask=torch.ones(2, TEXT),
        encoder_hidden_states_2=noise(2, 4, 12),
        encoder_attention_mask_2=torch.ones(2, 4),
    )
    return model, inputs


def hunyuan_dit() -> Case:
    model = build(
        "HunyuanDiT2DModel",
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        hidden_size=64,
        cross_attention_dim=16,
        cross_attention_dim_t5=16,
        pooled_projection_dim=16,
        text_len=TEXT,
        text_len_t5=TEXT,
    )
    inputs = {
        "hidden_states": noise(2, 4, 8, 8),
        "timestep": torch.tensor([500.0, 500.0]),
        "encoder_hidden_states": noise(2, TEXT, 16),
        "text_embedding_mask": torch.ones(2, TEXT),
        "encoder_hidden_states_t5": noise(2, TEXT, 16),
        "text_embedding_mask_t5": torch.ones(2, TEXT),
        "image_meta_size": torch.tensor([[64.0, 64.0, 64.0, 64.0, 0.0, 0.0]] * 2),
        "style": torch.zeros(2, dtype=torch.int64),
        "image_rotary_emb": embeddings.get_2d_rotary_pos_embed(
            32, ((0, 0), (4, 4)), (4, 4), output_type="pt"
        ),
        "return_dict": False,
    }
    return model, inputs


def ltx_video() -> Case:
    model = build(
        "LTXVideoTransformer3DModel",
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        cross_attention_dim=64,
        num_layers=2,
        caption_channels=16,
    )
    inputs = video_inputs(
        hidden_states=noise(1, FRAMES * TOKENS, 8),
        encoder_attention_mask=torch.ones(1, TEXT, dtype=torch.bool),
        num_frames=FRAMES,
        height=ROWS,
        width=COLUMNS,
        rope_interpolation_scale=(8 / 25, 32, 32),
    )
    return model, inputs


def ltx2(rope_type: str = "interleaved") -> Case:
    model = build(
        "LTX2VideoTransformer3DModel",
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        cross_attention_dim=64,
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=16,
        audio_cross_attention_dim=32,
        num_layers=2,
        caption_channels=16,
        rope_type=rope_type,
    )
    inputs = video_inputs(
        hidden_states=noise(1, FRAMES * TOKENS, 8),
        timestep=torch.tensor([500.0]),
        audio_hidden_states=noise(1, 9, 4),
        audio_encoder_hidden_states=noise(1, TEXT, 16),
        encoder_attention_mask=torch.ones(1, TEXT, dtype=torch.bool),
        num_frames=FRAMES,
        height=ROWS,
        width=COLUMNS,
        audio_num_frames=9,
        fps=25.0,
    )
    return model, inputs


def ltx2_split() -> Case:
    return ltx2("split")


def mochi() -> Case:
    model = build(
        "MochiTransformer3DModel",
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        pooled_projection_dim=16,
        in_channels=8,
        text_embed_dim=16,
        time_embed_dim=8,
        max_sequence_length=TEXT,
    )
    return model, video_inputs(encoder_attention_mask=torch.ones(1, TEXT, dtype=torch.bool))


def cosmos() -> Case:
    model = build(
        "CosmosTransformer3DModel",
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        mlp_ratio=2,
        text_embed_dim=16,
        adaln_lora_dim=4,
        max_size=(4, 32, 32),
        concat_padding_mask=False,
    )
    return model, video_inputs(fps=16)


def motif_video() -> Case:
    model = build(
        "MotifVideoTransformer3DModel",
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        num_single_layers=2,
        patch_size=2,
        text_embed_dim=16,
        image_embed_dim=None,
        rope_axes_dim=(8, 12, 12),
    )
    return model, video_inputs()


def joy_image() -> Case:
    model = build(
        "JoyImageEditTransformer3DModel",
        patch_size=[1, 2, 2],
        in_channels=8,
        hidden_size=64,
        num_attention_heads=2,
        text_dim=16,
        num_layers=2,
        rope_dim_list=[8, 12, 12],
        rope_type="mrope",
        theta=256,
    )
    return model, video_inputs(timestep=torch.tensor([500.0]))


def kandinsky5() -> Case:
    model = build(
        "Kandinsky5Transformer3DModel",
        in_visual_dim=8,
        in_text_dim=16,
        in_text_dim2=12,
        time_dim=16,
        out_visual_dim=8,
        model_dim=64,
        ff_dim=64,
        num_text_blocks=1,
        num_visual_blocks=2,
        axes_dims=(8, 12, 12),
    )
    inputs = video_inputs(
        hidden_states=noise(1, FRAMES, 2 * ROWS, 2 * COLUMNS, 8),
        timestep=torch.tensor([500.0]),
        pooled_projections=noise(1, 12),
        visual_rope_pos=[torch.arange(n) for n in (FRAMES, ROWS, COLUMNS)],
        text_rope_pos=torch.arange(TEXT),
    )
    return model, inputs


def kandinsky6() -> Case:
    model = build(
        "Kandinsky6Transformer3DModel",
        in_visual_dim=8,
        out_visual_dim=8,
        in_text_dim=16,
        in_text_dim2=12,
        time_dim=16,
        model_dim=64,
        ff_dim=64,
        num_text_blocks=1,
        num_visual_blocks=2,
        axes_dims=(8, 12, 12),
        visual_cond=False,
        in_audio_dim=4,
        out_audio_dim=4,
        ca_rope=True,
        cross_gates=True,
        fix_modulation=True,
    )
    inputs = video_inputs(
        hidden_states=noise(1, FRAMES, 2 * ROWS, 2 * COLUMNS, 8),
        timestep=torch.tensor([500.0]),
        pooled_projections=noise(1, 12),
        audio_hidden_states=noise(1, 9, 4),
    )
    return model, inputs


def cogvideox_like(name: str, **config: Any) -> Case:
    given = {
        "num_attention_heads": 2, "attention_head_dim": 32, "in_channels": 4, "out_channels": 4,
        "time_embed_dim": 8, "text_embed_dim": 16, "num_layers": 2, "sample_width": 2 * COLUMNS,
        "sample_height": 2 * ROWS, "sample_frames": 5, "max_text_seq_length": TEXT,
        "use_rotary_positional_embeddings": True,
    }  # fmt: skip
    model = build(name, **{**given, **config})
    tables = embeddings.get_3d_rotary_pos_embed(
        32, ((0, 0), (ROWS, COLUMNS)), (ROWS, COLUMNS), FRAMES
    )
    inputs = video_inputs(
        hidden_states=noise(1, FRAMES, 4, 2 * ROWS, 2 * COLUMNS), image_rotary_emb=tables
    )
    return model, inputs


def cogvideox() -> Case:
    return cogvideox_like("CogVideoXTransformer3DModel")


def cogvideox15() -> Case:
    """CogVideoX 1.5: tokens of two frames, and tables that are a slice of larger ones."""
    model, inputs = cogvideox_like("CogVideoXTransformer3DModel", patch_size_t=2)
    tables = embeddings.get_3d_rotary_pos_embed(
        32, None, (ROWS, COLUMNS), 1, grid_type="slice", max_size=(ROWS, COLUMNS)
    )
    return model, {**inputs, "image_rotary_emb": tables}


def consis_id() -> Case:
    model, inputs = cogvideox_like(
        "ConsisIDTransformer3DModel",
        is_train_face=True,
        cross_attn_interval=1,
        cross_attn_dim_head=8,
        cross_attn_num_heads=2,
        LFE_id_dim=2,
        LFE_vit_dim=2,
        LFE_depth=5,
        LFE_dim_head=8,
        LFE_num_heads=2,
        LFE_num_id_token=1,
        LFE_num_querie=1,
        LFE_output_dim=42,
        LFE_ff_mult=1,
        LFE_num_scale=1,
    )
    return model, {**inputs, "id_vit_hidden": [noise(1, 2, 2)], "id_cond": noise(1, 2)}


def allegro() -> Case:
    model = build(
        "AllegroTransformer3DModel",
        num_attention_heads=2,
        attention_head_dim=48,
        in_channels=8,
        out_channels=8,
        num_layers=2,
        cross_attention_dim=96,
        sample_width=2 * COLUMNS,
        sample_height=2 * ROWS,
        sample_frames=FRAMES,
        caption_channels=16,
    )
    *tables, t, h, w = embeddings.get_3d_rotary_pos_embed_allegro(
        48, ((0, 0), (ROWS, COLUMNS)), (ROWS, COLUMNS), FRAMES
    )
    grid = torch.cartesian_prod(t.long(), h.long(), w.long()).T[:, None].contiguous()
    return model, video_inputs(image_rotary_emb=(tuple(tables), tuple(grid)))


def easy_animate() -> Case:
    model = build(
        "EasyAnimateTransformer3DModel",
        attention_head_dim=32,
        num_attention_heads=2,
        in_channels=8,
        out_channels=8,
        patch_size=2,
        mmdit_layers=1,
        num_layers=2,
        sample_height=2 * ROWS,
        sample_width=2 * COLUMNS,
        text_embed_dim=16,
        time_embed_dim=8,
        time_position_encoding_type="3d_rope",
    )
    return model, video_inputs()


def image_inputs(**more: Any) -> dict[str, Any]:
    return {
        "hidden_states": noise(2, 4, 2 * ROWS, 2 * COLUMNS),
        "timestep": torch.tensor([0.5, 0.5]),
        "encoder_hidden_states": noise(2, TEXT, 16),
        "return_dict": False,
        **more,
    }


def cogview4_like(name: str, **config: Any) -> nn.Module:
    given = {
        "patch_size": 2, "in_channels": 4, "out_channels": 4, "num_layers": 2,
        "attention_head_dim": 32, "num_attention_heads": 2, "text_embed_dim": 16,
        "time_embed_dim": 8, "condition_dim": 4,
    }  # fmt: skip
    return build(name, **{**given, **config})


def cogview4() -> Case:
    model = cogview4_like("CogView4Transformer2DModel")
    size = torch.tensor([[64.0, 80.0]] * 2)
    inputs = image_inputs(
        timestep=torch.tensor([500, 500]),
        original_size=size,
        target_size=size,
        crop_coords=torch.zeros(2, 2),
    )
    return model, inputs


def glm_image() -> Case:
    model = cogview4_like("GlmImageTransformer2DModel", prior_vq_quantizer_codebook_size=64)
    inputs = image_inputs(
        timestep=torch.tensor([500, 500]),
        prior_token_id=torch.randint(0, 64, (2, TOKENS)),
        prior_token_drop=torch.zeros(2, TOKENS, dtype=torch.bool),
        target_size=torch.tensor([[64.0, 80.0]] * 2),
        crop_coords=torch.zeros(2, 2),
    )
    return model, inputs


def lumina2() -> Case:
    model = build(
        "Lumina2Transformer2DModel",
        sample_size=16,
        patch_size=2,
        in_channels=4,
        hidden_size=128,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=4,
        num_kv_heads=2,
        multiple_of=16,
        axes_dim_rope=(8, 12, 12),
        axes_lens=(32, 32, 32),
        cap_feat_dim=16,
    )
    return model, image_inputs(encoder_attention_mask=torch.ones(2, TEXT, dtype=torch.bool))


def lumina_next() -> Case:
    model = build(
        "LuminaNextDiT2DModel",
        sample_size=16,
        patch_size=2,
        in_channels=4,
        hidden_size=128,
        num_layers=2,
        num_attention_heads=4,
        num_kv_heads=2,
        multiple_of=16,
        learn_sigma=False,
        cross_attention_dim=16,
    )
    inputs = image_inputs(
        encoder_mask=torch.ones(2, TEXT),
        image_rotary_emb=embeddings.get_2d_rotary_pos_embed_lumina(32, 16, 16),
        cross_attention_kwargs={},
    )
    return model, inputs


def omni_gen() -> Case:
    model = build(
        "OmniGenTransformer2DModel",
        in_channels=4,
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        num_layers=2,
        pad_token_id=0,
        vocab_size=64,
        time_step_dim=8,
        pos_embed_max_size=16,
        rope_scaling={
            "long_factor": [2.0] * 16,
            "short_factor": [1.0 + 0.1 * i for i in range(16)],
        },
    )
    # An image among the text, the time, and the latents.
    count = 2 * TOKENS + TEXT + 1
    inputs = {
        "hidden_states": noise(2, 4, 2 * ROWS, 2 * COLUMNS),
        "timestep": torch.tensor([0.5, 0.5]),
        "input_ids": torch.randint(0, 64, (2, TOKENS + TEXT)),
        "input_img_latents": [noise(1, 4, 2 * ROWS, 2 * COLUMNS)],
        "input_image_sizes": {0: [[0, TOKENS]]},
        "attention_mask": torch.ones(2, count, count),
        "position_ids": torch.arange(count).expand(2, count).contiguous(),
        "return_dict": False,
    }
    return model, inputs


def hi_dream() -> Case:
    model = build(
        "HiDreamImageTransformer2DModel",
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=32,
        num_attention_heads=2,
        caption_channels=[16, 8],
        text_emb_dim=8,
        num_routed_experts=2,
        num_activated_experts=2,
        axes_dims_rope=(8, 12, 12),
        max_resolution=(32, 32),
        llama_layers=(0, 1),
        force_inference_output=True,
    )
    inputs = {
        "hidden_states": noise(2, 4, 8, 8),
        "timesteps": torch.tensor([500, 500]),
        "encoder_hidden_states_t5": noise(2, TEXT, 16),
        "encoder_hidden_states_llama3": noise(2, 2, TEXT, 8),
        "pooled_embeds": noise(2, 8),
        "return_dict": False,
    }
    return model, inputs


def prx() -> Case:
    model = build(
        "PRXTransformer2DModel",
        in_channels=4,
        patch_size=2,
        context_in_dim=16,
        hidden_size=64,
        num_heads=2,
        depth=2,
        axes_dim=[16, 16],
    )
    return model, image_inputs()


def ernie_image() -> Case:
    model = build(
        "ErnieImageTransformer2DModel",
        hidden_size=64,
        num_attention_heads=2,
        num_layers=2,
        ffn_hidden_size=64,
        in_channels=8,
        out_channels=8,
        patch_size=1,
        text_in_dim=16,
        rope_axes_dim=(8, 12, 12),
    )
    inputs = {
        "hidden_states": noise(2, 8, ROWS, COLUMNS),
        "timestep": torch.tensor([500.0, 500.0]),
        "text_bth": noise(2, TEXT, 16),
        "text_lens": torch.tensor([TEXT, TEXT - 2]),
        "return_dict": False,
    }
    return model, inputs


def qwen_image_like(name: str, **config: Any) -> Case:
    model = build(
        name,
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 12, 12),
        **config,
    )
    inputs = image_inputs(
        hidden_states=noise(2, TOKENS, 16),
        encoder_hidden_states_mask=torch.ones(2, TEXT, dtype=torch.int64),
        img_shapes=[[(1, ROWS, COLUMNS)]] * 2,
    )
    return model, inputs


def qwen_image() -> Case:
    return qwen_image_like("QwenImageTransformer2DModel")


def qwen_image_layered() -> Case:
    return qwen_image_like("QwenImageTransformer2DModel", use_layer3d_rope=True)


def nucleus_moe() -> Case:
    return qwen_image_like(
        "NucleusMoEImageTransformer2DModel", moe_enabled=False, capacity_factors=[8.0, 8.0]
    )


def krea2() -> Case:
    model = build(
        "Krea2Transformer2DModel",
        in_channels=8,
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        timestep_embed_dim=8,
        text_hidden_dim=32,
        num_text_layers=2,
        text_num_attention_heads=2,
        text_num_key_value_heads=1,
        text_intermediate_size=32,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(8, 12, 12),
    )
    inputs = {
        "hidden_states": noise(1, TOKENS, 8),
        "encoder_hidden_states": noise(1, TEXT, 2, 32),
        "timestep": torch.tensor([0.5]),
        "position_ids": torch.cat([torch.zeros(TEXT, 3), image_ids()]),
        "encoder_attention_mask": torch.ones(1, TEXT, dtype=torch.bool),
        "return_dict": False,
    }
    return model, inputs


def ideogram4() -> Case:
    model = build(
        "Ideogram4Transformer2DModel",
        in_channels=8,
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        intermediate_size=64,
        adaln_dim=16,
        llm_features_dim=16,
        rope_theta=10_000,
        mrope_section=(8, 4, 4),
    )
    count = TEXT + TOKENS
    hidden, text = noise(1, count, 8), noise(1, count, 16)
    hidden[:, :TEXT], text[:, TEXT:] = 0, 0
    positions = torch.cat([torch.arange(TEXT)[:, None].expand(TEXT, 3), image_ids().long() + 100])
    indicator = torch.tensor([[3] * TEXT + [2] * TOKENS])
    inputs = {
        "hidden_states": hidden,
        "encoder_hidden_states": text,
        "timestep": torch.tensor([0.5]),
        "position_ids": positions[None],
        "segment_ids": torch.ones(1, count, dtype=torch.int64),
        "indicator": indicator,
        "return_dict": False,
    }
    return model, inputs


def z_image() -> Case:
    model = build(
        "ZImageTransformer2DModel",
        in_channels=4,
        dim=64,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[8, 12, 12],
        axes_lens=[64, 32, 32],
    )
    inputs = {
        "x": [noise(4, 1, 2 * ROWS, 2 * COLUMNS) for _ in range(2)],
        "t": torch.tensor([0.5, 0.5]),
        "cap_feats": [noise(TEXT, 16), noise(TEXT - 2, 16)],
        "return_dict": False,
    }
    return model, inputs


def stable_audio() -> Case:
    model = build(
        "StableAudioDiTModel",
        sample_size=16,
        in_channels=8,
        out_channels=8,
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=4,
        num_key_value_attention_heads=2,
        cross_attention_dim=64,
        time_proj_dim=16,
        global_states_input_dim=16,
        cross_attention_input_dim=16,
    )
    inputs = {
        "hidden_states": noise(2, 8, 24),
        "timestep": torch.tensor([0.5, 0.5]),
        "encoder_hidden_states": noise(2, TEXT, 16),
        "global_hidden_states": noise(2, 1, 16),
        "rotary_embedding": embeddings.get_1d_rotary_pos_embed(
            16, 25, use_real=True, repeat_interleave_real=False
        ),
        "return_dict": False,
    }
    return model, inputs


def stable_audio3() -> Case:
    model = build(
        "StableAudio3DiTModel",
        io_channels=8,
        embed_dim=128,
        depth=2,
        num_heads=4,
        cond_token_dim=16,
        global_cond_dim=12,
        local_add_cond_dim=5,
        timestep_features_dim=16,
        ff_mult=2,
        num_memory_tokens=3,
    )
    inputs = {
        "hidden_states": noise(2, 8, 24),
        "timestep": torch.tensor([0.5, 0.5]),
        "encoder_hidden_states": noise(2, TEXT, 16),
        "global_hidden_states": noise(2, 12),
        "return_dict": False,
    }
    return model, inputs


def ace_step() -> Case:
    model = build(
        "AceStepTransformer1DModel",
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        in_channels=24,
        audio_acoustic_hidden_dim=8,
        rope_theta=10000.0,
        sliding_window=8,
    )
    inputs = {
        "hidden_states": noise(2, 48, 8),
        "timestep": torch.tensor([0.5, 0.5]),
        "timestep_r": torch.tensor([0.5, 0.5]),
        "encoder_hidden_states": noise(2, TEXT, 64),
        "context_latents": noise(2, 48, 16),
        "return_dict": False,
    }
    return model, inputs


def longcat_audio() -> Case:
    model = build(
        "LongCatAudioDiTTransformer",
        dit_dim=64,
        dit_depth=2,
        dit_heads=2,
        dit_text_dim=16,
        latent_dim=8,
        text_conv=False,
    )
    inputs = {
        "hidden_states": noise(2, 24, 8),
        "encoder_hidden_states": noise(2, TEXT, 16),
        "encoder_attention_mask": torch.ones(2, TEXT, dtype=torch.bool),
        "attention_mask": torch.ones(2, 24, dtype=torch.bool),
        "timestep": torch.tensor([0.5, 0.5]),
        "return_dict": False,
    }
    return model, inputs


def minimax_music3() -> Case:
    model = build(
        "MiniMaxMusic3Transformer1DModel",
        in_channels=8,
        condition_dim=16,
        num_layers=2,
        num_attention_heads=2,
        attention_head_dim=32,
        ff_inner_dim=64,
        rotary_dim=16,
        fourier_embedding_dim=8,
    )
    inputs = {
        "hidden_states": noise(1, 8, 24),
        "encoder_hidden_states": noise(1, 24, 16),
        "timestep": torch.tensor([0.5]),
        "return_dict": False,
    }
    return model, inputs


def minimax_h3() -> Case:
    model = build(
        "MiniMaxH3Transformer3DModel",
        num_attention_heads=2,
        attention_head_dim=32,
        hidden_size=48,
        num_layers=2,
        num_refiner_layers=1,
        ffn_dim=64,
        in_channels=2,
        audio_in_channels=6,
        text_dim=16,
        freq_dim=8,
        time_embed_hidden_dim=24,
        time_embed_dim=16,
        rope_freq_dim=4,
    )
    audio = 6
    count = TEXT + audio + TOKENS
    tags = torch.tensor([1] * TEXT + [2] * audio + [0] * TOKENS)
    positions = torch.zeros(count, 3)
    positions[:, 0] = torch.arange(count)
    positions[-TOKENS:, 1:] = image_ids()[:, 1:]
    inputs = {
        "hidden_states": noise(1, TOKENS, 8),
        "audio_hidden_states": noise(1, audio, 6),
        "encoder_hidden_states": noise(1, TEXT, 16),
        "timestep": torch.tensor([0.7, 0.3]),
        "timestep_indices": (tags == 2).long(),
        "token_tags": tags,
        "position_ids": positions,
        "video_indices": torch.where(tags == 0)[0],
        "audio_indices": torch.where(tags == 2)[0],
        "text_indices": torch.where(tags == 1)[0],
        "return_dict": False,
    }
    return model, inputs


MODELS: dict[str, Callable[[], Case]] = {
    "AceStep": ace_step,
    "Allegro": allegro,
    "AnyFlow": any_flow,
    "Bria": bria,
    "BriaFibo": bria_fibo,
    "Chroma": chroma,
    "ChronoEdit": chrono_edit,
    "CogVideoX": cogvideox,
    "CogVideoX15": cogvideox15,
    "CogView4": cogview4,
    "ConsisID": consis_id,
    "Cosmos": cosmos,
    "EasyAnimate": easy_animate,
    "ErnieImage": ernie_image,
    "Flux": flux,
    "Flux2": flux2,
    "GlmImage": glm_image,
    "Helios": helios,
    "HiDream": hi_dream,
    "HunyuanDiT": hunyuan_dit,
    "HunyuanFramepack": hunyuan_framepack,
    "HunyuanImage": hunyuan_image,
    "HunyuanVideo": hunyuan_video,
    "HunyuanVideo15": hunyuan_video15,
    "Ideogram4": ideogram4,
    "JoyImage": joy_image,
    "Kandinsky5": kandinsky5,
    "Kandinsky6": kandinsky6,
    "Krea2": krea2,
    "LTX": ltx_video,
    "LTX2": ltx2,
    "LTX2Split": ltx2_split,
    "LongCatAudio": longcat_audio,
    "LongCatImage": longcat_image,
    "Lumina2": lumina2,
    "LuminaNext": lumina_next,
    "MiniMaxH3": minimax_h3,
    "MiniMaxMusic3": minimax_music3,
    "Mochi": mochi,
    "MotifVideo": motif_video,
    "NucleusMoE": nucleus_moe,
    "OmniGen": omni_gen,
    "OvisImage": ovis_image,
    "PRX": prx,
    "QwenImage": qwen_image,
    "QwenImageLayered": qwen_image_layered,
    "SanaVideo": sana_video,
    "SkyReelsV2": sky_reels,
    "StableAudio": stable_audio,
    "StableAudio3": stable_audio3,
    "Wan": wan,
    "WanAnimate": wan_animate,
    "WanVACE": wan_vace,
    "ZImage": z_image,
}
