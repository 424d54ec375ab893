"""Tiny random models of transformers to be patched, and how their results are compared."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SHORT = 1e-4  # of the spread of the logits
TOKENS = 24
FAR = 60_000
VOCABULARY = 64

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 65536,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GPTJ = {
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "rotary_dim": 8,
    "n_positions": 65536,
    "bos_token_id": 1,
    "eos_token_id": None,
}
HEADS_OF_16 = {"head_dim": 16}
DEEPSEEK = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": COMMON,
    "Mistral": COMMON,
    "Qwen2": COMMON,
    "Qwen3": COMMON | HEADS_OF_16,
    "Gemma": COMMON | HEADS_OF_16,
    "Gemma2": COMMON | HEADS_OF_16,
    # One frequency vector a kind of layer.
    "Gemma3Text": COMMON | HEADS_OF_16 | {"layer_types": ["sliding_attention", "full_attention"]},
    "Phi3": COMMON,
    "Olmo": COMMON,
    # A part of each head, sliced by the rotary function (GPT-NeoX) or by the attention.
    "GPTNeoX": COMMON | {"rotary_pct": 0.5},
    "Phi": COMMON | {"partial_rotary_factor": 0.5},
    "StableLm": COMMON | {"partial_rotary_factor": 0.5},
    # Neighbors are pairs; tables with repeated values (Cohere), in halves (GLM), of one's own.
    "Cohere": COMMON,
    "Glm": COMMON | HEADS_OF_16,
    "GPTJ": GPTJ,
    "CodeGen": GPTJ,
    # Pairs of neighbors go in, halves come out; tables of half width; the other direction.
    "DeepseekV3": COMMON | DEEPSEEK,
    "GptOss": COMMON
    | HEADS_OF_16
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"},
    "NanoChat": COMMON,
}

KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
# Models whose attention norms q and k before it rotates them.
NORMED: dict[str, dict[str, Any]] = {
    "Qwen3": COMMON | HEADS_OF_16,
    # 1 + w; norms of q and k of their own in each kind of layer.
    "Gemma3Text": COMMON | HEADS_OF_16 | KINDS,
    # q and k are rotated apart, and the last layer has no k; values are normed too.
    "Gemma3nText": COMMON | HEADS_OF_16 | {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_hidden_layers": 3, "num_kv_shared_layers": 1, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCABULARY, "laurel_rank": 8,
        "activation_sparsity_pattern": [0.0] * 3,
    },
    # The values are k as it was before its norm.
    "Gemma4Text": COMMON | HEADS_OF_16 | KINDS | {
        "global_head_dim": 32, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
        "attention_k_eq_v": True,
    },
    # Over all heads.
    "Olmo2": COMMON,
    "Olmoe": COMMON | {"num_experts": 4, "num_experts_per_tok": 2},
    # The second layer does not rotate.
    "Exaone4": COMMON | HEADS_OF_16 | KINDS,
    # A half of each head is rotated.
    "Glm4Moe": COMMON | HEADS_OF_16 | {
        "use_qk_norm": True, "partial_rotary_factor": 0.5, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 2,
    },
    # q is a part of a projection that has a gate as well.
    "Qwen3Next": COMMON | HEADS_OF_16 | {
        "layer_types": ["full_attention"] * 2, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    },
    "Lfm2": COMMON | {"layer_types": ["full_attention"] * 2},
}  # fmt: skip


def build(name: str, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    arguments = (ARCHITECTURES | NORMED)[name] | kwargs
    config = getattr(transformers, f"{name}Config")(**arguments)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:  # attention of a fresh model hardly looks at positions
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    return model


def tokens(batch: int = 2, count: int = TOKENS) -> Any:
    return torch.randint(2, VOCABULARY, (batch, count), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: Any, first: int = 0, ids: Any = None, step: int = 1) -> Any:
    here = next(model.parameters()).device
    ids = (tokens() if ids is None else ids).to(here)
    positions = first + step * torch.arange(ids.shape[1], device=here)[None]
    return model(input_ids=ids, position_ids=positions).logits


def distance(a: Any, b: Any) -> float:
    """Largest difference as a fraction of the spread of b."""
    return float((a.double() - b.double()).abs().max() / b.double().std())


def traces(model: Any) -> list[str]:
    names = ("forward", "_apply", "_posenc_native")
    return [name for module in model.modules() for name in names if name in module.__dict__]
