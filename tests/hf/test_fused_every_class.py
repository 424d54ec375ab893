"""`hf.patch(model, fuse_norm=True)` on every attention class of transformers with norms of q or k.

What becomes of a class is found by patching a small model that has it: its norm is done in the pass
of the rotation, or it is left alone for a reason. Models whose configuration does not shrink are
passed over and counted.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_every import hidden_states, modeling_files, small_models  # noqa: E402

from posenc_native import hf  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

NORM = r"(q|k|query|key|qk)_(layer_?)?norm"
FULL = {"layer_types": ["full_attention"] * 2}
# A quarter of the head is rotated, in pairs of three axes.
WIDE = FULL | {"head_dim": 128}
# What configurations leave out, or are not shrunk right by.
GIVEN: dict[str, dict[str, Any]] = {
    "cohere": {"use_qk_norm": True},
    "dots1": {"n_shared_experts": 1},
    "flint": {"layer_types": ["sliding_attention", "full_attention"]},
    "gemma3n": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_hidden_layers": 3, "num_kv_shared_layers": 1, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64, "laurel_rank": 8, "intermediate_size": 64,
        "activation_sparsity_pattern": [0.0] * 3,
    },
    "gemma4": {
        "global_head_dim": 32, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
    },
    "glm4_moe": {"use_qk_norm": True},
    "lfm2_moe": FULL,
    "lfm3": FULL,
    "phi": {"qk_layernorm": True},
    "qwen3_5": WIDE,
    "qwen3_5_moe": WIDE,
    "qwen3_next": FULL,
    "qwen4_exp": WIDE,
    "stablelm": {"qk_layernorm": True},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip

# Why classes are left alone, and how many at least.
REASONS = {
    "is not an RMS norm": 1,
    "has more than a vector of weights": 5,
    "is used in another way": 5,  # after the rotation: HunYuan, TimesFM, Llama 4, NanoChat
    "rotated without a norm before it": 2,  # the norm is multiplied by a factor
    "does not reach the rotation": 2,
    "no part of it is a norm of one tensor": 1,
}
FUSED = {
    "Qwen3Attention", "Qwen3MoeAttention", "Qwen3NextAttention", "Qwen3VLTextAttention",
    "Qwen3_5Attention", "Gemma3Attention", "Gemma3nTextAttention", "Gemma4TextAttention",
    "Glm4MoeAttention", "Exaone4Attention", "Lfm2Attention", "Lfm2MoeAttention",
    "Olmo2Attention", "Olmo3Attention", "OlmoeAttention", "FlexOlmoAttention",
    "OlmoHybridAttention", "MiniMaxM2Attention",
}  # fmt: skip


def files_with_norms() -> list[str]:
    """Names of files of models whose attention has a norm of q or k."""
    found = []
    for name in modeling_files():
        module = importlib.import_module(f"transformers.models.{name}")
        if re.search(rf"self\.{NORM} = ", inspect.getsource(module)):
            found.append(name)
    return found


def with_norms(model: Any) -> dict[str, str]:
    """Modules that have a norm of q or k themselves, and their classes."""
    return {
        name: type(module).__name__
        for name, module in model.named_modules()
        if any(re.fullmatch(NORM, child) for child, _ in module.named_children())
    }


@dataclass
class Table:
    """What becomes of classes."""

    fused: dict[str, float | None] = field(default_factory=dict)  # how far results are off
    left: dict[str, str] = field(default_factory=dict)  # the note
    passed_over: list[str] = field(default_factory=list)  # files


@pytest.fixture(scope="module")
def table() -> Table:
    result = Table()
    for name in files_with_norms():
        models = list(small_models(name, GIVEN.get(name.partition(".")[0])))
        if not models:
            result.passed_over.append(name)
        for model in models:
            if kinds := with_norms(model):
                before = hidden_states(model)
                try:
                    handle = hf.patch(model, fuse_norm=True)
                except ValueError:  # no attention in it is one of those that are patched
                    continue
                after = None if before is None else hidden_states(model)
                off = None if before is None else float((after - before).abs().max() / before.std())
                result.fused |= {kinds[part]: off for part in handle.fused}
                alone = kinds.keys() & {*handle.patched} - {*handle.fused}
                result.left |= {kinds[part]: handle.notes.get(part, "") for part in alone}
    return result


def test_fused(table: Table) -> None:
    assert set(table.fused) >= FUSED
    assert len(table.fused) >= 40
    compared = {kind: off for kind, off in table.fused.items() if off is not None}
    assert len(compared) >= 30
    # Positions below 12: hardly any phase error.
    assert {kind: off for kind, off in compared.items() if not off < 1e-4} == {}


def test_left_alone_for_a_reason(table: Table) -> None:
    why = {
        kind: [reason for reason in REASONS if reason in note] for kind, note in table.left.items()
    }
    assert {kind: table.left[kind] for kind, reasons in why.items() if not reasons} == {}
    counted = Counter(reason for reasons in why.values() for reason in reasons)
    assert all(counted[reason] >= least for reason, least in REASONS.items()), counted
    assert not set(table.left) & FUSED
    assert len(table.passed_over) <= 8, table.passed_over
