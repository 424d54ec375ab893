"""Small diffusers models that rotate q and k, and inputs for them.

Each function of MODELS returns a model with random weights and the arguments of its forward. The
same numbers come out each time.
"""

from __future__ import annotations

import inspect
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
# The sizes of all models that have a parameter of this name and say nothing else.
SIZES: dict[str, Any] = {
    "in_channels": 8, "out_channels": 8, "num_layers": 2, "num_single_layers": 2,
    "num_refiner_layers": 1, "num_attention_heads": 2, "attention_head_dim": 32,
    "hidden_size": 64, "intermediate_size": 64, "ffn_dim": 64, "freq_dim": 32, "text_dim": 16,
    "text_embed_dim": 16, "text_embed_2_dim": 12, "joint_attention_dim": 16,
    "caption_channels": 16, "cross_attention_dim": 64, "time_embed_dim": 8,
    "num_kv_heads": 2, "multiple_of": 16, "rope_max_seq_len": 32, "sample_height": 2 * ROWS,
    "sample_width": 2 * COLUMNS, "axes_dims_rope": (8, 12, 12), "rope_axes_dim": (8, 12, 12),
}  # fmt: skip


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def ones(*shape: int) -> torch.Tensor:
    """A mask that hides nothing."""
    return torch.ones(*shape, dtype=torch.bool)


def times(*values: float) -> torch.Tensor:
    return torch.tensor(values)


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


def build(name: str, **config: Any) -> Any:
    """A model of diffusers. Inputs drawn after it are always the same, too."""
    torch.manual_seed(0)
    kind = getattr(diffusers, name)
    parameters = inspect.signature(kind.__init__).parameters
    sizes = {size: value for size, value in SIZES.items() if size in parameters}
    model = kind(**{**sizes, **config}).eval()
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


# --- inputs ---------------------------------------------------------------------------------------


def grid_ids(*extent: int) -> torch.Tensor:
    """Indices along each axis of every point of a grid."""
    return torch.cartesian_prod(*(torch.arange(n) for n in extent)).reshape(-1, len(extent))


def image_ids() -> torch.Tensor:
    """Of the tokens of an image: (0, row, column)."""
    return grid_ids(1, ROWS, COLUMNS).float()


def video(channels: int = 8, frames: int = FRAMES) -> torch.Tensor:
    """Latents of a video: each frame has ROWS by COLUMNS tokens of 2 by 2 latents."""
    return noise(1, channels, frames, 2 * ROWS, 2 * COLUMNS)


def video_inputs(**more: Any) -> dict[str, Any]:
    return {
        "hidden_states": video(),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": noise(1, TEXT, 16),
        **more,
    }


def image_inputs(**more: Any) -> dict[str, Any]:
    return {
        "hidden_states": noise(2, 4, 2 * ROWS, 2 * COLUMNS),
        "timestep": times(0.5, 0.5),
        "encoder_hidden_states": noise(2, TEXT, 16),
        **more,
    }


def flux_inputs(**more: Any) -> dict[str, Any]:
    return image_inputs(
        hidden_states=noise(2, TOKENS, 8),
        encoder_hidden_states=noise(2, TEXT, 16),
        **{"img_ids": image_ids(), "txt_ids": torch.zeros(TEXT, 3), **more},
    )


# --- models ---------------------------------------------------------------------------------------


def ltx2(rope_type: str) -> Case:
    model = build(
        "LTX2VideoTransformer3DModel", audio_in_channels=4, audio_out_channels=4,
        audio_num_attention_heads=2, audio_attention_head_dim=16, audio_cross_attention_dim=32,
        rope_type=rope_type,
    )  # fmt: skip
    return model, video_inputs(
        hidden_states=noise(1, FRAMES * TOKENS, 8), timestep=times(500.0),
        audio_hidden_states=noise(1, 9, 4), audio_encoder_hidden_states=noise(1, TEXT, 16),
        encoder_attention_mask=ones(1, TEXT), num_frames=FRAMES, height=ROWS, width=COLUMNS,
        audio_num_frames=9, fps=25.0,
    )  # fmt: skip


def kandinsky(name: str, config: dict[str, Any], **more: Any) -> Case:
    model = build(
        name, in_visual_dim=8, in_text_dim=16, in_text_dim2=12, time_dim=16, out_visual_dim=8,
        model_dim=64, ff_dim=64, num_text_blocks=1, num_visual_blocks=2, axes_dims=(8, 12, 12),
        **config,
    )  # fmt: skip
    return model, video_inputs(
        hidden_states=noise(1, FRAMES, 2 * ROWS, 2 * COLUMNS, 8), timestep=times(500.0),
        pooled_projections=noise(1, 12), **more,
    )  # fmt: skip


def cogvideox(name: str = "CogVideoXTransformer3DModel", **config: Any) -> Case:
    given = {
        "in_channels": 4, "out_channels": 4, "sample_frames": 5, "max_text_seq_length": TEXT,
        "use_rotary_positional_embeddings": True,
    }  # fmt: skip
    model = build(name, **given, **config)
    size = ROWS, COLUMNS
    tables = embeddings.get_3d_rotary_pos_embed(32, ((0, 0), size), size, FRAMES)
    return model, video_inputs(
        hidden_states=noise(1, FRAMES, 4, 2 * ROWS, 2 * COLUMNS), image_rotary_emb=tables
    )


def cogvideox15() -> Case:
    """CogVideoX 1.5: tokens of two frames, and tables that are a slice of larger ones."""
    model, inputs = cogvideox(patch_size_t=2)
    size = ROWS, COLUMNS
    tables = embeddings.get_3d_rotary_pos_embed(32, None, size, 1, grid_type="slice", max_size=size)
    return model, {**inputs, "image_rotary_emb": tables}


def consis_id() -> Case:
    model, inputs = cogvideox(
        "ConsisIDTransformer3DModel", is_train_face=True, cross_attn_interval=1,
        cross_attn_dim_head=8, cross_attn_num_heads=2, LFE_id_dim=2, LFE_vit_dim=2, LFE_depth=5,
        LFE_dim_head=8, LFE_num_heads=2, LFE_num_id_token=1, LFE_num_querie=1, LFE_output_dim=42,
        LFE_ff_mult=1, LFE_num_scale=1,
    )  # fmt: skip
    return model, {**inputs, "id_vit_hidden": [noise(1, 2, 2)], "id_cond": noise(1, 2)}


def allegro() -> Case:
    model = build(
        "AllegroTransformer3DModel",
        attention_head_dim=48,
        cross_attention_dim=96,
        sample_frames=FRAMES,
    )
    size = ROWS, COLUMNS
    *tables, t, h, w = embeddings.get_3d_rotary_pos_embed_allegro(48, ((0, 0), size), size, FRAMES)
    grid = torch.cartesian_prod(t.long(), h.long(), w.long()).T[:, None].contiguous()
    return model, video_inputs(image_rotary_emb=(tuple(tables), tuple(grid)))


def omni_gen() -> Case:
    """An image among the text, the time, and the latents."""
    factors = {"long_factor": [2.0] * 16, "short_factor": [1.0 + 0.1 * i for i in range(16)]}
    model = build(
        "OmniGenTransformer2DModel", in_channels=4, num_key_value_heads=2, pad_token_id=0,
        vocab_size=64, time_step_dim=8, pos_embed_max_size=16, rope_scaling=factors,
    )  # fmt: skip
    count = 2 * TOKENS + TEXT + 1
    return model, {
        "hidden_states": noise(2, 4, 2 * ROWS, 2 * COLUMNS),
        "timestep": times(0.5, 0.5),
        "input_ids": torch.randint(0, 64, (2, TOKENS + TEXT)),
        "input_img_latents": [noise(1, 4, 2 * ROWS, 2 * COLUMNS)],
        "input_image_sizes": {0: [[0, TOKENS]]},
        "attention_mask": torch.ones(2, count, count),
        "position_ids": torch.arange(count).expand(2, count).contiguous(),
    }


def qwen_image(name: str = "QwenImageTransformer2DModel", **config: Any) -> Case:
    model = build(name, patch_size=2, in_channels=16, out_channels=4, **config)
    return model, image_inputs(
        hidden_states=noise(2, TOKENS, 16), img_shapes=[[(1, ROWS, COLUMNS)]] * 2,
        encoder_hidden_states_mask=torch.ones(2, TEXT, dtype=torch.int64),
    )  # fmt: skip


def ideogram4() -> Case:
    model = build(
        "Ideogram4Transformer2DModel", adaln_dim=16, llm_features_dim=16, rope_theta=10_000,
        mrope_section=(8, 4, 4),
    )  # fmt: skip
    count = TEXT + TOKENS
    hidden, text = noise(1, count, 8), noise(1, count, 16)
    hidden[:, :TEXT], text[:, TEXT:] = 0, 0
    positions = torch.cat([torch.arange(TEXT)[:, None].expand(TEXT, 3), image_ids().long() + 100])
    return model, {
        "hidden_states": hidden,
        "encoder_hidden_states": text,
        "timestep": times(0.5),
        "position_ids": positions[None],
        "segment_ids": torch.ones(1, count, dtype=torch.int64),
        "indicator": torch.tensor([[3] * TEXT + [2] * TOKENS]),
    }


def minimax_h3() -> Case:
    model = build(
        "MiniMaxH3Transformer3DModel", hidden_size=48, in_channels=2,
        audio_in_channels=6, freq_dim=8, time_embed_hidden_dim=24, time_embed_dim=16,
        rope_freq_dim=4,
    )  # fmt: skip
    audio = 6
    count = TEXT + audio + TOKENS
    tags = torch.tensor([1] * TEXT + [2] * audio + [0] * TOKENS)
    positions = torch.zeros(count, 3)
    positions[:, 0] = torch.arange(count)
    positions[-TOKENS:, 1:] = image_ids()[:, 1:]
    return model, {
        "hidden_states": noise(1, TOKENS, 8),
        "audio_hidden_states": noise(1, audio, 6),
        "encoder_hidden_states": noise(1, TEXT, 16),
        "timestep": times(0.7, 0.3),
        "timestep_indices": (tags == 2).long(),
        "token_tags": tags,
        "position_ids": positions,
        "video_indices": torch.where(tags == 0)[0],
        "audio_indices": torch.where(tags == 2)[0],
        "text_indices": torch.where(tags == 1)[0],
    }


def counted(start: int = 1) -> torch.Tensor:
    """Positions of the tokens of a text, along the axes from this one on."""
    ids = torch.zeros(TEXT, 3)
    ids[:, start:] = torch.arange(TEXT)[:, None]
    return ids


MODELS: dict[str, Callable[[], Case]] = {
    "AceStep": lambda: (
        build("AceStepTransformer1DModel", num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=16, in_channels=24, audio_acoustic_hidden_dim=8,
              rope_theta=10000.0, sliding_window=8),
        image_inputs(hidden_states=noise(2, 48, 8), timestep_r=times(0.5, 0.5),
                     encoder_hidden_states=noise(2, TEXT, 64),
                     context_latents=noise(2, 48, 16)),
    ),
    "Allegro": allegro,
    "AnyFlow": lambda: (
        build("AnyFlowTransformer3DModel"),
        video_inputs(hidden_states=video().transpose(1, 2).contiguous(),
                     timestep=torch.full((1, FRAMES), 500.0),
                     r_timestep=torch.full((1, FRAMES), 250.0)),
    ),
    "Bria": lambda: (build("BriaTransformer2DModel"), flux_inputs()),
    "BriaFibo": lambda: (
        build("BriaFiboTransformer2DModel", text_encoder_dim=8),
        flux_inputs(text_encoder_layers=[noise(2, TEXT, 8)] * 4),
    ),
    "Chroma": lambda: (
        build("ChromaTransformer2DModel", approximator_num_channels=8,
              approximator_hidden_dim=16, approximator_layers=1),
        flux_inputs(),
    ),
    "ChronoEdit": lambda: (build("ChronoEditTransformer3DModel"), video_inputs()),
    "CogVideoX": cogvideox,
    "CogVideoX15": cogvideox15,
    "CogView4": lambda: (
        build("CogView4Transformer2DModel", in_channels=4, out_channels=4, condition_dim=4,
              rope_axes_dim=(256, 256)),
        image_inputs(timestep=torch.tensor([500, 500]), crop_coords=torch.zeros(2, 2),
                     original_size=times(64.0, 80.0).expand(2, 2),
                     target_size=times(64.0, 80.0).expand(2, 2)),
    ),
    "ConsisID": consis_id,
    "Cosmos": lambda: (
        build("CosmosTransformer3DModel", mlp_ratio=2, adaln_lora_dim=4, max_size=(4, 32, 32),
              concat_padding_mask=False),
        video_inputs(fps=16),
    ),
    "EasyAnimate": lambda: (
        build("EasyAnimateTransformer3DModel", patch_size=2, mmdit_layers=1,
              time_position_encoding_type="3d_rope"),
        video_inputs(),
    ),
    "ErnieImage": lambda: (
        build("ErnieImageTransformer2DModel", ffn_hidden_size=64, text_in_dim=16),
        {"hidden_states": noise(2, 8, ROWS, COLUMNS), "timestep": times(500.0, 500.0),
         "text_bth": noise(2, TEXT, 16), "text_lens": torch.tensor([TEXT, TEXT - 2])},
    ),
    "Flux": lambda: (
        build("FluxTransformer2DModel", pooled_projection_dim=16),
        flux_inputs(pooled_projections=noise(2, 16)),
    ),
    "Flux2": lambda: (
        build("Flux2Transformer2DModel", axes_dims_rope=(8, 8, 8, 8)),
        flux_inputs(img_ids=grid_ids(1, ROWS, COLUMNS, 1), txt_ids=grid_ids(1, 1, 1, TEXT),
                    guidance=times(1.0, 1.0)),
    ),
    "GlmImage": lambda: (
        build("GlmImageTransformer2DModel", in_channels=4, out_channels=4, condition_dim=4,
              prior_vq_quantizer_codebook_size=64),
        image_inputs(timestep=torch.tensor([500, 500]), crop_coords=torch.zeros(2, 2),
                     prior_token_id=torch.randint(0, 64, (2, TOKENS)),
                     prior_token_drop=~ones(2, TOKENS),
                     target_size=times(64.0, 80.0).expand(2, 2)),
    ),
    "Helios": lambda: (
        build("HeliosTransformer3DModel", rope_dim=(8, 12, 12), has_multi_term_memory_patch=True),
        video_inputs(hidden_states=noise(1, 8, FRAMES, 16, 16),
                     latents_history_long=noise(1, 8, 4, 16, 16),
                     latents_history_mid=noise(1, 8, 1, 16, 16),
                     latents_history_short=noise(1, 8, 1, 16, 16),
                     indices_latents_history_long=torch.arange(4.0)[None],
                     indices_latents_history_mid=times(4.0)[None],
                     indices_latents_history_short=times(5.0)[None],
                     indices_hidden_states=times(6.0, 7.0)[None]),
    ),
    "HiDream": lambda: (
        build("HiDreamImageTransformer2DModel", patch_size=2, in_channels=4, out_channels=4,
              num_layers=1, num_single_layers=1, caption_channels=[16, 8], text_emb_dim=8,
              num_routed_experts=2, num_activated_experts=2, max_resolution=(32, 32),
              llama_layers=(0, 1), force_inference_output=True),
        {"hidden_states": noise(2, 4, 8, 8), "timesteps": torch.tensor([500, 500]),
         "encoder_hidden_states_t5": noise(2, TEXT, 16),
         "encoder_hidden_states_llama3": noise(2, 2, TEXT, 8), "pooled_embeds": noise(2, 8)},
    ),
    "HunyuanDiT": lambda: (
        build("HunyuanDiT2DModel", sample_size=8, patch_size=2, in_channels=4,
              cross_attention_dim=16, cross_attention_dim_t5=16, pooled_projection_dim=16,
              text_len=TEXT, text_len_t5=TEXT),
        image_inputs(hidden_states=noise(2, 4, 8, 8), timestep=times(500.0, 500.0),
                     text_embedding_mask=torch.ones(2, TEXT),
                     encoder_hidden_states_t5=noise(2, TEXT, 16),
                     text_embedding_mask_t5=torch.ones(2, TEXT),
                     image_meta_size=torch.tensor([[64.0] * 4 + [0.0] * 2] * 2),
                     style=torch.zeros(2, dtype=torch.int64),
                     image_rotary_emb=embeddings.get_2d_rotary_pos_embed(
                         32, ((0, 0), (4, 4)), (4, 4), output_type="pt")),
    ),
    "HunyuanFramepack": lambda: (
        build("HunyuanVideoFramepackTransformer3DModel", pooled_projection_dim=8,
              has_image_proj=True, image_proj_dim=16, has_clean_x_embedder=True),
        video_inputs(pooled_projections=noise(1, 8), encoder_attention_mask=torch.ones(1, TEXT),
                     guidance=times(5120.0), image_embeds=noise(1, TEXT, 16),
                     latents_clean=video(frames=1), latents_history_2x=video(frames=2),
                     latents_history_4x=video(frames=4),
                     indices_latents_history_4x=torch.arange(4),
                     indices_latents_history_2x=torch.arange(4, 6),
                     indices_latents_clean=torch.tensor([6]),
                     indices_latents=torch.tensor([7, 8])),
    ),
    "HunyuanImage": lambda: (
        build("HunyuanImageTransformer2DModel", in_channels=4, out_channels=4, patch_size=(2, 2),
              rope_axes_dim=(16, 16)),
        image_inputs(timestep=times(500.0, 500.0), encoder_attention_mask=torch.ones(2, TEXT),
                     encoder_hidden_states_2=noise(2, 4, 12),
                     encoder_attention_mask_2=torch.ones(2, 4)),
    ),
    "HunyuanVideo": lambda: (
        build("HunyuanVideoTransformer3DModel", pooled_projection_dim=8),
        video_inputs(pooled_projections=noise(1, 8), encoder_attention_mask=torch.ones(1, TEXT),
                     guidance=times(5120.0)),
    ),
    "HunyuanVideo15": lambda: (
        build("HunyuanVideo15Transformer3DModel", image_embed_dim=8, target_size=16),
        video_inputs(hidden_states=noise(1, 8, FRAMES, ROWS, COLUMNS), timestep=times(500.0),
                     encoder_hidden_states_2=noise(1, 4, 12),
                     encoder_attention_mask=torch.ones(1, TEXT),
                     encoder_attention_mask_2=torch.ones(1, 4),
                     image_embeds=torch.zeros(1, 3, 8)),
    ),
    "Ideogram4": ideogram4,
    "JoyImage": lambda: (
        build("JoyImageEditTransformer3DModel", rope_dim_list=[8, 12, 12], rope_type="mrope",
              theta=256),
        video_inputs(timestep=times(500.0)),
    ),
    "Kandinsky5": lambda: kandinsky(
        "Kandinsky5Transformer3DModel", {},
        visual_rope_pos=[torch.arange(n) for n in (FRAMES, ROWS, COLUMNS)],
        text_rope_pos=torch.arange(TEXT),
    ),
    "Kandinsky6": lambda: kandinsky(
        "Kandinsky6Transformer3DModel",
        {"visual_cond": False, "in_audio_dim": 4, "out_audio_dim": 4, "ca_rope": True,
         "cross_gates": True, "fix_modulation": True},
        audio_hidden_states=noise(1, 9, 4),
    ),
    "Krea2": lambda: (
        build("Krea2Transformer2DModel", num_attention_heads=4, num_key_value_heads=2,
              timestep_embed_dim=8, text_hidden_dim=32, num_text_layers=2,
              text_num_attention_heads=2, text_num_key_value_heads=1, text_intermediate_size=32,
              num_layerwise_text_blocks=1, num_refiner_text_blocks=1),
        video_inputs(hidden_states=noise(1, TOKENS, 8), timestep=times(0.5),
                     encoder_hidden_states=noise(1, TEXT, 2, 32),
                     position_ids=torch.cat([torch.zeros(TEXT, 3), image_ids()]),
                     encoder_attention_mask=ones(1, TEXT)),
    ),
    "LTX": lambda: (
        build("LTXVideoTransformer3DModel"),
        video_inputs(hidden_states=noise(1, FRAMES * TOKENS, 8),
                     encoder_attention_mask=ones(1, TEXT), num_frames=FRAMES, height=ROWS,
                     width=COLUMNS, rope_interpolation_scale=(8 / 25, 32, 32)),
    ),
    "LTX2": lambda: ltx2("interleaved"),
    "LTX2Split": lambda: ltx2("split"),
    "LongCatAudio": lambda: (
        build("LongCatAudioDiTTransformer", dit_dim=64, dit_depth=2, dit_heads=2, dit_text_dim=16,
              latent_dim=8, text_conv=False),
        image_inputs(hidden_states=noise(2, 24, 8), encoder_attention_mask=ones(2, TEXT),
                     attention_mask=ones(2, 24)),
    ),
    "LongCatImage": lambda: (
        build("LongCatImageTransformer2DModel", pooled_projection_dim=16),
        flux_inputs(txt_ids=counted(1), guidance=times(3.5, 3.5)),
    ),
    "Lumina2": lambda: (
        build("Lumina2Transformer2DModel", sample_size=16, in_channels=4, out_channels=4,
              hidden_size=128, num_attention_heads=4, axes_dim_rope=(8, 12, 12),
              axes_lens=(32, 32, 32), cap_feat_dim=16),
        image_inputs(encoder_attention_mask=ones(2, TEXT)),
    ),
    "LuminaNext": lambda: (
        build("LuminaNextDiT2DModel", sample_size=16, in_channels=4, hidden_size=128,
              num_attention_heads=4, learn_sigma=False, cross_attention_dim=16),
        image_inputs(encoder_mask=torch.ones(2, TEXT), cross_attention_kwargs={},
                     image_rotary_emb=embeddings.get_2d_rotary_pos_embed_lumina(32, 16, 16)),
    ),
    "MiniMaxH3": minimax_h3,
    "MiniMaxMusic3": lambda: (
        build("MiniMaxMusic3Transformer1DModel", condition_dim=16, ff_inner_dim=64, rotary_dim=16,
              fourier_embedding_dim=8),
        video_inputs(hidden_states=noise(1, 8, 24), timestep=times(0.5),
                     encoder_hidden_states=noise(1, 24, 16)),
    ),
    "Mochi": lambda: (
        build("MochiTransformer3DModel", pooled_projection_dim=16, max_sequence_length=TEXT),
        video_inputs(encoder_attention_mask=ones(1, TEXT)),
    ),
    "MotifVideo": lambda: (build("MotifVideoTransformer3DModel"), video_inputs()),
    "NucleusMoE": lambda: qwen_image(
        "NucleusMoEImageTransformer2DModel", moe_enabled=False, capacity_factors=[8.0, 8.0]
    ),
    "OmniGen": omni_gen,
    "OvisImage": lambda: (
        build("OvisImageTransformer2DModel"), flux_inputs(txt_ids=counted(0))
    ),
    "PRX": lambda: (
        build("PRXTransformer2DModel", in_channels=4, context_in_dim=16, num_heads=2, depth=2,
              axes_dim=[16, 16]),
        image_inputs(),
    ),
    "QwenImage": qwen_image,
    "QwenImageLayered": lambda: qwen_image(use_layer3d_rope=True),
    "SanaVideo": lambda: (
        build("SanaVideoTransformer3DModel", num_cross_attention_heads=2,
              cross_attention_head_dim=32, sample_size=8),
        video_inputs(),
    ),
    "SkyReelsV2": lambda: (build("SkyReelsV2Transformer3DModel"), video_inputs()),
    "StableAudio": lambda: (
        build("StableAudioDiTModel", sample_size=16, num_attention_heads=4,
              num_key_value_attention_heads=2, time_proj_dim=16, global_states_input_dim=16,
              cross_attention_input_dim=16),
        image_inputs(hidden_states=noise(2, 8, 24), global_hidden_states=noise(2, 1, 16),
                     rotary_embedding=embeddings.get_1d_rotary_pos_embed(
                         16, 25, use_real=True, repeat_interleave_real=False)),
    ),
    "StableAudio3": lambda: (
        build("StableAudio3DiTModel", io_channels=8, embed_dim=128, depth=2, num_heads=4,
              cond_token_dim=16, global_cond_dim=12, local_add_cond_dim=5,
              timestep_features_dim=16, ff_mult=2, num_memory_tokens=3),
        image_inputs(hidden_states=noise(2, 8, 24), global_hidden_states=noise(2, 12)),
    ),
    "Wan": lambda: (build("WanTransformer3DModel"), video_inputs()),
    "WanAnimate": lambda: (
        build("WanAnimateTransformer3DModel", in_channels=20, latent_channels=8, image_dim=16,
              motion_encoder_channel_sizes={"4": 16, "8": 16, "16": 16}, motion_encoder_size=16,
              motion_style_dim=8, motion_dim=4, motion_encoder_dim=16, face_encoder_hidden_dim=16,
              face_encoder_num_heads=2, inject_face_latents_blocks=2),
        video_inputs(hidden_states=video(20, frames=3),
                     encoder_hidden_states_image=noise(1, 4, 16), pose_hidden_states=video(),
                     face_pixel_values=noise(1, 3, 5, 16, 16)),
    ),
    "WanVACE": lambda: (
        build("WanVACETransformer3DModel", vace_layers=[0], vace_in_channels=24),
        video_inputs(control_hidden_states=video(24)),
    ),
    "ZImage": lambda: (
        build("ZImageTransformer2DModel", in_channels=4, dim=64, n_layers=2, n_refiner_layers=1,
              n_heads=2, n_kv_heads=2, cap_feat_dim=16, axes_dims=[8, 12, 12],
              axes_lens=[64, 32, 32]),
        {"x": [noise(4, 1, 2 * ROWS, 2 * COLUMNS) for _ in range(2)], "t": times(0.5, 0.5),
         "cap_feats": [noise(TEXT, 16), noise(TEXT - 2, 16)]},
    ),
}  # fmt: skip
