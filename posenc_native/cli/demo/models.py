"""The models that read: transformers' own classes, random weights from a fixed seed."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from posenc_native import configuration

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "HEAD_DIM",
    "KEY_HEADS",
    "LAYERS",
    "NORMED_LAYERS",
    "QUERY_HEADS",
    "SHOWN_POSITIONS",
    "Ways",
    "both_ways",
    "facts_about",
    "small_llama",
    "small_qwen3",
    "tables_of_model",
    "ways_to_norm",
]

SHOWN_POSITIONS = (4096, 131072, 1048576, 16777216)
LAYERS, QUERY_HEADS, KEY_HEADS, HEAD_DIM = 4, 32, 8, 128
NORMED_LAYERS = 2  # of the model that norms q and k


class Ways(NamedTuple):
    """One model, rotated in different ways; the weights are the same."""

    theirs: Any
    ours: Any
    other: Any  # ours, with another option


def small_llama() -> Any:
    """A small Llama: heads as large models have them, everything else as small as will do."""
    import transformers

    return _small(transformers.LlamaForCausalLM, transformers.LlamaConfig, LAYERS)


def small_qwen3() -> Any:
    """The same as a Qwen3, which norms each head of q and k before it is rotated."""
    import transformers

    return _small(transformers.Qwen3ForCausalLM, transformers.Qwen3Config, NORMED_LAYERS)


def _small(kind: Any, config: Any, layers: int) -> Any:
    import torch

    values = config(
        vocab_size=256,  # bytes
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=QUERY_HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=2 * SHOWN_POSITIONS[-1],
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},  # as Llama 3
        # The usual 0.02 makes all attention scores of such a narrow model about 0, so that a token
        # hardly notices where another stands. This makes their standard deviation 1.7.
        initializer_range=0.058,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(2017)
        return kind(values).eval()


def both_ways(model: Any) -> Ways:
    """The model, and copies that are patched; the last of them rotates into fresh memory."""
    return _patched(model, {}, {"inplace": False})


def ways_to_norm(model: Any) -> Ways:
    """The same: norm and rotation in one pass, and the norm apart, as the model has it."""
    return _patched(model, {"fuse_norm": True}, {})


def _patched(model: Any, options: dict[str, Any], others: dict[str, Any]) -> Ways:
    from posenc_native import hf

    ours, other = copy.deepcopy(model), copy.deepcopy(model)
    hf.patch(ours, **options)
    hf.patch(other, **others)
    return Ways(model, ours, other)


def tables_of_model(model: Any, positions: range) -> Tensor:
    """Cosines and sines as the model's rotary module gives them: [2, positions, pairs], float64."""
    import torch

    rotary = model.model.rotary_emb
    pair = rotary(torch.zeros(1), position_ids=torch.tensor([list(positions)]))
    # transformers' tables hold every value twice, for a head's two halves.
    return torch.stack([table[0, :, : HEAD_DIM // 2] for table in pair]).double()


def facts_about(model: Any, read: int, total: int) -> str:
    """What it is and what it runs on, in three lines."""
    import torch
    import transformers

    millions = sum(p.numel() for p in model.parameters()) / 1e6
    native = configuration.configuration()["backend"]
    return (
        f"{type(model).__name__}, {LAYERS} layers, {QUERY_HEADS} query and {KEY_HEADS} key heads "
        f"of {HEAD_DIM}\n"
        f"{millions:.0f} million random weights in float32, {read:,} of {total:,} bytes of text\n"
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, backend {native}"
    )
