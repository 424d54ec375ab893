"""The models that read: transformers' own classes, random weights from a fixed seed."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from posenc_native.engines import configuration

__all__ = [
    "HEAD_DIM",
    "KEY_HEADS",
    "LAYERS",
    "NORMED_LAYERS",
    "QUERY_HEADS",
    "Ways",
    "both_ways",
    "facts_about",
    "ways_to_norm",
]

LAYERS, QUERY_HEADS, KEY_HEADS, HEAD_DIM = 4, 32, 8, 128
NORMED_LAYERS = 2  # of the model that norms q and k


class Ways(NamedTuple):
    """One model, rotated in different ways; the weights are the same."""

    theirs: Any
    ours: Any
    other: Any  # ours, with another option


def both_ways() -> Ways:
    """A Llama, and copies that are patched; the last of them rotates into fresh memory."""
    return _patched("Llama", LAYERS, {}, {"inplace": False})


def ways_to_norm() -> Ways:
    """A Qwen3, which norms heads before they are rotated: in one pass, and the norm apart."""
    return _patched("Qwen3", NORMED_LAYERS, {"fuse_norm": True}, {})


def _patched(
    kind: str, layers: int, options: dict[str, Any], variant_options: dict[str, Any]
) -> Ways:
    import torch
    import transformers

    from posenc_native import hf

    config = getattr(transformers, f"{kind}Config")(
        # Heads as large models have them, everything else as small as will do.
        vocab_size=256,  # bytes
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=QUERY_HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=1 << 25,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},  # as Llama 3
        # The usual 0.02 makes all attention scores of such a narrow model about 0, so that a token
        # hardly notices where another stands. This makes their standard deviation 1.7.
        initializer_range=0.058,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(2017)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    ours, variant = copy.deepcopy(model), copy.deepcopy(model)
    hf.patch(ours, **options)
    hf.patch(variant, **variant_options)
    return Ways(model, ours, variant)


def facts_about(model: Any, read: int, total: int) -> str:
    """The model and the machine, in three lines."""
    import torch
    import transformers

    millions = sum(p.numel() for p in model.parameters()) / 1e6
    native = configuration.configuration()["backend"]
    return (
        f"{type(model).__name__}, {LAYERS} layers, {QUERY_HEADS} query and {KEY_HEADS} key heads "
        f"of {HEAD_DIM}\n"
        f"{millions:.0f} million random weights in float32, {read:,} of {total:,} bytes of text\n"
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"threads: {torch.get_num_threads()}, backend {native}"
    )
