"""Small models of every file of transformers, made so by the names of their entries."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

# What an entry of a configuration becomes, by its name.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "audio_vocab_size"), 64),
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "dim", "n_embd", "ffn_dim"), 64),
    **dict.fromkeys(("embedding_size", "embedding_dim", "out_hidden_size", "output_dim"), 64),
    **dict.fromkeys(("projection_dim", "intermediate_size"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "depth"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_key_value_heads"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head"), 4),
    **dict.fromkeys(("head_dim", "q_lora_rank", "kv_lora_rank", "v_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "patch_size"), 8),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("moe_num_experts",), 4),
    **dict.fromkeys(("num_experts_per_tok",), 2),
    **dict.fromkeys(("n_group", "topk_group", "bos_token_id"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 4096),
    **dict.fromkeys(("num_channels", "in_channels"), 3),
    "image_size": 32,
    "mlp_ratio": 1,
    "pad_token_id": 0,
}
MOST_PARAMETERS = 3e7


def shrunk(kind: type, depth: int = 0) -> dict[str, Any]:
    """Arguments for a small configuration."""
    names = {entry.name for entry in dataclasses.fields(kind)}
    given = {name: value for name, value in SMALL.items() if name in names}
    for name, sub in (getattr(kind, "sub_configs", None) or {}).items():
        if name in names and depth < 3 and dataclasses.is_dataclass(sub):
            try:
                given[name] = sub(**shrunk(sub, depth + 1))
            except Exception:  # whatever a configuration may raise: it stays large
                continue
    return given


def modeling_files() -> list[str]:
    root = Path(transformers.__file__).parent / "models"
    pattern = re.compile(r"def \w*(apply_\w*rot|rotate_queries|rotate_half)", re.I)
    files = sorted(root.glob("*/modeling_*.py"))
    return [f"{f.parent.name}.{f.stem}" for f in files if pattern.search(f.read_text())]


def small_models(name: str, given: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """Small models of a file, without heads; each has a part that no smaller one had.

    given: entries of their configurations that shrinking does not get right.
    """
    module = importlib.import_module(f"transformers.models.{name}")
    seen: set[type] = set()
    for kind in sorted(
        vars(module).values(), key=lambda value: len(getattr(value, "__name__", ""))
    ):
        if not (inspect.isclass(kind) and issubclass(kind, transformers.PreTrainedModel)):
            continue
        config = getattr(kind, "config_class", None)
        if kind.__module__ != module.__name__ or config is None:
            continue
        if re.search(r"PreTrainedModel$|For[A-Z]", kind.__name__):
            continue
        try:
            known = {entry.name for entry in dataclasses.fields(config)}
            own = {key: value for key, value in (given or {}).items() if key in known}
            values = config(**(shrunk(config) | own))
            with torch.device("meta"):
                model = kind._from_config(values)
            parts = {type(part) for part in model.modules()}
            size = sum(parameter.numel() for parameter in model.parameters())
            if parts <= seen or size > MOST_PARAMETERS:
                continue
            model = kind._from_config(values)
        except Exception:  # whatever a model may raise
            continue
        seen |= parts
        yield model.eval()


def hidden_states(model: Any) -> Any:
    """What a model makes of ids of tokens; None if it wants something else."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter.requires_grad:
            torch.nn.init.normal_(parameter, 0.0, 0.1)
    ids = torch.randint(3, 64, (2, 12), generator=torch.Generator().manual_seed(1))
    try:
        with torch.no_grad():
            result = model(input_ids=ids)[0]
    except Exception:  # whatever a model may raise
        return None
    return result if isinstance(result, torch.Tensor) and result.isfinite().all() else None
