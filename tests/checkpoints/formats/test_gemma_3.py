"""Gemma 3 in files of training and serving engines: two bases, by the kind of layer."""

from __future__ import annotations

from typing import Any

import pytest

import posenc_native as pn

GEMMA_LAYERS = [(0, 1e4), (1, 1e4), (2, 1e6), (3, 1e4), (4, 1e4), (5, 1e6)]


@pytest.mark.parametrize(
    "source",
    [
        {"architecture": "Gemma3ForCausalLM", "position_embedding_type": "rope_gpt_neox",
         "num_hidden_layers": 6, "head_size": 64, "rotary_base": 1e6, "rope_local_base_freq": 1e4,
         "_sliding_window_pattern": 3, "rotary_scaling": {"type": "linear", "factor": 8.0}},
        {"num_layers": 6, "hidden_size": 128, "num_attention_heads": 2, "kv_channels": 64,
         "position_embedding_type": "rope", "rotary_base": [1e4, 1e6],
         "interleaved_attn_pattern": [2, 1], "rotary_seq_len_interpolation_factor": 8},
    ],
    ids=["TensorRT-LLM", "Megatron-Bridge"],
)  # fmt: skip
def test_layers_of_gemma_3_have_two_bases(source: dict[str, Any]) -> None:
    """Layers with a window have the local base, and no scaling."""
    explanation = pn.explain(source)
    assert explanation.to_dict()["ground"]["kind"] == "unknown"  # neither engine was run
    found = {i: group.rotary for group in explanation.layers for i in group.layers}
    assert [(i, found[i].base) for i in range(6)] == GEMMA_LAYERS
    assert [found[i].scaling is None for i in range(6)] == [base == 1e4 for _, base in GEMMA_LAYERS]


@pytest.mark.parametrize(
    "more",
    [
        {"no_rope_freq": 2},
        {"multi_latent_attention": True, "qk_pos_emb_head_dim": 64},
    ],
)
def test_a_pair_of_bases_beside_what_it_would_hide(more: dict[str, Any]) -> None:
    """Layers without rotation, and latent attention, were dropped in silence."""
    pair = {"num_layers": 6, "hidden_size": 128, "num_attention_heads": 2, "kv_channels": 64,
            "position_embedding_type": "rope", "rotary_base": [1e4, 1e6]}  # fmt: skip
    with pytest.raises(ValueError, match=f"rotary_base.*one number beside {next(iter(more))}"):
        pn.explain({**pair, **more})
