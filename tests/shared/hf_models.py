"""Tiny random models of transformers, and how far their results are apart."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import transformers

from posenc_native import hf

CLOSE = 1e-4  # of the spread of what a model gives
VOCABULARY = 64
TOKENS = 24

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS = {"head_dim": 16}
ENCODER = {key: value for key, value in TEXT.items() if key != "num_key_value_heads"}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "experts_implementation": "eager",
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
}
KINDS = {"layer_types": ["sliding_attention", "full_attention"]}


def rope(**parameters: Any) -> dict[str, Any]:
    given = {"rope_type": "default", "rope_theta": 10000.0} | parameters
    return {"rope_parameters": given}


# Configurations of models that turn ids of tokens into hidden states.
TEXT_MODELS: dict[str, dict[str, Any]] = {
    "Llama": TEXT,
    "Mistral": TEXT,
    "Mixtral": TEXT | EXPERTS,
    "Qwen2": TEXT,
    "Qwen3": TEXT | HEADS,
    "Qwen3Moe": TEXT | HEADS | EXPERTS,
    "Gemma2": TEXT | HEADS | KINDS,
    "Gemma3Text": TEXT | HEADS | KINDS,
    # Kinds of layers with heads of their own width; some frequencies are 0.
    "Gemma4Text": TEXT
    | HEADS
    | KINDS
    | {"global_head_dim": 32, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    "Phi": TEXT,
    "Phi3": TEXT,
    "Phimoe": TEXT | EXPERTS,
    "GPTNeoX": ENCODER,
    "StableLm": TEXT,
    "Cohere": TEXT,
    "Cohere2": TEXT | HEADS | KINDS,
    "Glm4": TEXT | HEADS,
    # Tables of complex numbers.
    "DeepseekV2": TEXT | LATENT | EXPERTS | {"first_k_dense_replace": 1},
    "Llama4Text": TEXT | HEADS | EXPERTS | {"intermediate_size_mlp": 64},
    "DeepseekV3": TEXT | LATENT | EXPERTS,
    "Olmo2": TEXT,
    "GptOss": TEXT | HEADS | EXPERTS,
    "Exaone4": TEXT | HEADS | KINDS,
    "SmolLM3": TEXT | {"no_rope_layers": [1, 0]},
    "ModernBert": ENCODER | KINDS,
    # A table of sines for an embedding; the function that rotates is a static method.
    "RoFormer": ENCODER | {"embedding_size": 64},
    "Falcon": ENCODER | {"alibi": False, "new_decoder_architecture": False},
    "Persimmon": ENCODER,
    "MiniMax": TEXT | HEADS | EXPERTS | {"layer_types": ["full_attention"] * 2},
    "Ernie4_5": TEXT | HEADS,
    "Helium": TEXT | HEADS,
    "Nemotron": TEXT | HEADS,
    "Granite": TEXT,
    "Olmo3": TEXT | KINDS,
    "ModernBertDecoder": ENCODER | KINDS,
    "Jais2": TEXT | HEADS,
    "Starcoder2": TEXT,
    "BitNet": TEXT,
    "Arcee": TEXT,
    "SeedOss": TEXT | HEADS,
}

SECTIONS = rope(mrope_section=[4, 2, 2])
# The same, of models whose tokens have a position on several axes, and how many.
TEXT_OF_AXES: dict[str, tuple[int, dict[str, Any]]] = {
    "Qwen2VLText": (3, TEXT | SECTIONS),
    "Qwen2_5_VLText": (3, TEXT | SECTIONS),
    "Qwen3VLText": (3, TEXT | HEADS | SECTIONS),
    "Glm4vText": (3, TEXT | SECTIONS),
    # Height and width take turns, time has the rest.
    "Ernie4_5_VLMoeText": (
        3,
        TEXT
        | EXPERTS
        | {
            "moe_intermediate_size": [16, 16],
            "moe_num_experts": 4,
            "mlp_layer_types": ["dense"] * 2,
        }
        | rope(mrope_section=[3, 3, 2]),
    ),
    # The two dims of a pair have axes of their own.
    "HunYuanVLText": (
        4,
        TEXT | HEADS | rope(xdrope_section=[2, 2, 2, 2], mrope_section=[2, 2, 2, 2]),
    ),
}


def initialized(model: Any) -> Any:
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter.requires_grad:
            # The attention of a fresh model hardly looks at positions.
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    return model.eval()


def text_model(name: str, config: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}Config")
    folder = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
    return initialized(getattr(folder, f"{name}Model")(kind(**config)))


def tokens() -> Any:
    ids = torch.randint(3, VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids}


@torch.no_grad()
def output(model: Any, inputs: dict[str, Any]) -> Any:
    result = model(**inputs)
    return result if isinstance(result, torch.Tensor) else result[0]


def distance(a: Any, b: Any) -> float:
    """Largest difference as a fraction of the spread of b."""
    return float((a.double() - b.double()).abs().max() / b.double().std())


def check(model: Any, inputs: dict[str, Any]) -> Any:
    before = output(model, inputs)
    with hf.patch(model) as handle:
        patched = output(model, inputs)
        assert handle.patched
        assert not handle.skipped
        assert distance(patched, before) < CLOSE
    assert torch.equal(output(model, inputs), before)
    assert not any("_posenc_native" in module.__dict__ for module in model.modules())
    return handle


IMAGE = {"image_size": 32, "patch_size": 8, "hidden_size": 64, "intermediate_size": 64}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4}
TOWER = {"depth": 2, "num_heads": 4, "hidden_size": 64, "patch_size": 4, "intermediate_size": 64}
GRID = [[1, 4, 6], [2, 2, 4]]


def numbers(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def images() -> dict[str, Any]:
    return {"pixel_values": numbers(2, 3, 32, 32)}


def patches(name: str = "hidden_states", width: int = 96) -> dict[str, Any]:
    """Patches of two images or videos, one after another."""
    return {name: numbers(40, width), "grid_thw": torch.tensor(GRID)}


def memory() -> dict[str, Any]:
    """What the memory attention of SAM 2 gets: an image of 4 x 4, two such and 3 pointers."""
    return {
        "current_vision_features": numbers(16, 1, 64),
        "memory": numbers(35, 1, 64),
        "memory_posision_embeddings": numbers(35, 1, 64),
        "num_object_pointer_tokens": 3,
    }


def squares() -> dict[str, Any]:
    """Patches of 6 x 6, flattened, with x and y of each, as Gemma 4 takes them."""
    grid = torch.cartesian_prod(torch.arange(6), torch.arange(6)).flip(1)
    return {"pixel_values": numbers(2, 36, 192), "pixel_position_ids": grid.expand(2, -1, -1)}


# Folder of transformers, class of the model, configuration, what it takes.
VISION_MODELS: dict[str, tuple[str, str, str, dict[str, Any], dict[str, Any]]] = {
    "Qwen2-VL": ("qwen2_vl", "Qwen2VisionTransformerPretrainedModel", "Qwen2VLVisionConfig",
                 {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "patch_size": 4},
                 patches()),
    "Qwen2.5-VL": ("qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel",
                   "Qwen2_5_VLVisionConfig",
                   TOWER | {"out_hidden_size": 64, "window_size": 16, "fullatt_block_indexes": [1]},
                   patches()),
    "Qwen3-VL": ("qwen3_vl", "Qwen3VLVisionModel", "Qwen3VLVisionConfig",
                 TOWER | {"out_hidden_size": 64, "num_position_embeddings": 16,
                          "deepstack_visual_indexes": [1]},
                 patches()),
    "GLM-4V": ("glm4v", "Glm4vVisionModel", "Glm4vVisionConfig",
               TOWER | {"image_size": 32, "out_hidden_size": 64},
               {"hidden_states": numbers(40, 96),
                "grid_thw": torch.tensor([[1, 4, 6], [1, 4, 4]])}),
    "ERNIE-4.5-VL": ("ernie4_5_vl_moe", "Ernie4_5_VLMoeVisionTransformerPretrainedModel",
                     "Ernie4_5_VLMoeVisionConfig", TOWER, patches(width=48)),
    "Kimi K2.5": (
        "kimi_k25",
        "Kimi_K25VisionModel",
        "Kimi_K25VisionConfig",
        LAYERS
        | {"patch_size": 4, "hidden_size": 64, "intermediate_size": 64, "pos_emb_height": 8}
        | {"pos_emb_width": 8},
        {"pixel_values": numbers(40, 3, 4, 4), "grid_thw": torch.tensor([[1, 4, 6], [1, 4, 4]])},
    ),
    # Time, height and width; a part of each head.
    "MiniMax-M3-VL": ("minimax_m3_vl", "MiniMaxM3VLVisionModel", "MiniMaxM3VLVisionConfig",
                      IMAGE | LAYERS | {"patch_size": 4}, patches("pixel_values", 96)),
    "Pixtral": ("pixtral", "PixtralVisionModel", "PixtralVisionConfig", IMAGE | LAYERS,
                images() | {"image_sizes": torch.tensor([[32, 32], [24, 16]])}),
    # Tokens in front of the patches stay as they are; coordinates are centers of patches.
    "DINOv3": ("dinov3_vit", "DINOv3ViTModel", "DINOv3ViTConfig",
               IMAGE | LAYERS | {"num_register_tokens": 2}, images()),
    # The keys are several images and pointers that have no place.
    "SAM 2": ("sam2_video", "Sam2VideoMemoryAttention", "Sam2VideoConfig",
              {"memory_attention_hidden_size": 64, "memory_attention_num_layers": 2,
               "memory_attention_num_attention_heads": 2,
               "memory_attention_feed_forward_hidden_size": 64,
               "memory_attention_rope_feat_sizes": [4, 4]},
              memory()),
    "SAM 3": ("sam3", "Sam3ViTModel", "Sam3ViTConfig",
              IMAGE | LAYERS | {"window_size": 2, "global_attn_indexes": [1],
                                "pretrain_image_size": 16},
              images()),
    # Each half of a head has an axis of its own, and halves of its own.
    "Gemma 4": ("gemma4", "Gemma4VisionModel", "Gemma4VisionConfig",
                IMAGE | LAYERS | HEADS | {"num_key_value_heads": 4, "position_embedding_size": 64},
                squares()),
    # The two dims of a pair have different frequencies; heads and positions are all it says.
    "V-JEPA 2": (
        "vjepa2",
        "VJEPA2Model",
        "VJEPA2Config",
        LAYERS
        | {"patch_size": 8, "crop_size": 32, "frames_per_clip": 4, "hidden_size": 64}
        | {"mlp_ratio": 1.0, "pred_hidden_size": 32, "pred_num_attention_heads": 2}
        | {"pred_num_hidden_layers": 2, "pred_num_mask_tokens": 2},
        {"pixel_values_videos": numbers(1, 4, 3, 32, 32)},
    ),
    # A table of complex numbers for one size of image.
    "Llama 4": (
        "llama4",
        "Llama4VisionModel",
        "Llama4VisionConfig",
        IMAGE
        | LAYERS
        | {"intermediate_size": 256, "vision_output_dim": 64, "projector_input_dim": 64}
        | {"projector_output_dim": 64},
        images(),
    ),
    # A row of the tables is learned.
    "MLCD": ("mlcd", "MLCDVisionModel", "MLCDVisionConfig", IMAGE | LAYERS, images()),
    "EXAONE 4.5": (
        "exaone4_5", "Exaone4_5_VisionModel", "Exaone4_5_VisionConfig",
        TOWER | {"out_hidden_size": 64, "window_size": 16, "fullatt_block_indexes": [1]} | {
            "num_key_value_heads": 4
        },
        patches(),
    ),
}  # fmt: skip


SPEECH = LAYERS | {
    "hidden_size": 64, "intermediate_size": 64, "position_embeddings_type": "rotary",
    "vocab_size": VOCABULARY,
}  # fmt: skip
# Configuration, the class of the encoder, values, inputs.
SPEECH_MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "Wav2Vec2-Conformer": (
        "wav2vec2_conformer", "Wav2Vec2ConformerEncoder", SPEECH | {
            "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
        }, {"hidden_states": numbers(2, TOKENS, 64)},
    ),
    "Wav2Vec2-BERT": (
        "wav2vec2_bert", "Wav2Vec2BertModel",
        SPEECH | {"feature_projection_input_dim": 8, "add_adapter": True, "adapter_act": "relu"},
        {"input_features": numbers(2, TOKENS, 8)},
    ),
    "SeamlessM4T": (
        "seamless_m4t", "SeamlessM4TSpeechEncoder", SPEECH | {
            "speech_encoder_layers": 2, "speech_encoder_attention_heads": 4,
            "speech_encoder_intermediate_size": 64, "feature_projection_input_dim": 8,
        }, {"input_features": numbers(2, TOKENS, 8)},
    ),
}  # fmt: skip


def speech_model(name: str) -> tuple[Any, dict[str, Any]]:
    folder, model, values, inputs = SPEECH_MODELS[name]
    modeling = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    kind = model.partition("Encoder")[0].partition("Model")[0].partition("Speech")[0] + "Config"
    torch.manual_seed(0)
    return initialized(getattr(modeling, model)(getattr(transformers, kind)(**values))), inputs


def vision_model(name: str) -> tuple[Any, dict[str, Any]]:
    folder, model, config, values, inputs = VISION_MODELS[name]
    package = f"transformers.models.{folder}"
    kind = getattr(importlib.import_module(f"{package}.configuration_{folder}"), config)
    torch.manual_seed(0)
    modeling = importlib.import_module(f"{package}.modeling_{folder}")
    return initialized(getattr(modeling, model)(kind(**values))), inputs
