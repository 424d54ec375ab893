"""Modules, and functions made of several operations, as cases for sharded_compare.py.

Their parameters are plain tensors: the whole of them, on each rank the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sharded_calls import INV_FREQ, QK, B, Case, D, H, S, Tensors, q_and_k, randn, rows

import posenc_native as pn
from posenc_native import nn as pnn
from posenc_native.nn import DecomposedRelativePosition

SCORES = {"scores": "bhqk"}
X = {"x": "bsd"}


def module(make: Callable[[], torch.nn.Module]) -> Any:
    """A call of the module, made anew with the same parameters; with inplace where it has that."""

    def call(inplace: bool = False, **tensors: Any) -> Any:
        torch.manual_seed(3)
        one = make()
        return one(*tensors.values(), **({"inplace": True} if inplace else {}))

    return call


def scores(make: Callable[[], torch.nn.Module], in_place: Sequence[str] = ("scores",)) -> Case:
    return Case(
        lambda: {"scores": randn(B, H, S, S)}, SCORES, module(make), free="bhqk",
        in_place=in_place,
    )  # fmt: skip


def absolute(make: Callable[[], torch.nn.Module]) -> Case:
    return Case(lambda: {"x": randn(B, S, D)}, X, module(make), free="bs")


def turned(make: Callable[[], torch.nn.Module]) -> Case:
    return Case(q_and_k, QK, module(make))


def scored(make: Callable[[], torch.nn.Module]) -> Case:
    """Inner products of q and k: sums over d, which torch makes of as many as are there."""
    return Case(
        lambda: {"q": randn(B, H, S, D), "k": randn(B, H, S, D)}, QK, module(make), free="bh",
        sums=True,
    )  # fmt: skip


def numbers(tensors: Tensors, axes: str, call: Callable[..., Any], free: str = "") -> Case:
    """Integers from integers: of what torch cannot cut every rank computes the whole."""
    return Case(
        lambda: tensors, dict.fromkeys(tensors, axes),
        lambda **given: call(*given.values()), free=free, gradients=False,
    )  # fmt: skip


def attend(p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return pnn.ShawRelativePosition(D, 2).attend(p, v)


def selective(q: torch.Tensor, k: torch.Tensor, tokens: torch.Tensor) -> Any:
    torch.manual_seed(3)
    one = pnn.SelectiveRotaryEmbedding(D, 2 * D, 2, gate="head", bias=True, layout="bshd")
    return one(q, k, tokens)[:2]


def by_xpos(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, **options: Any) -> Any:
    tables = pn.rotary.xpos_tables(positions, INV_FREQ)
    return pn.apply_rotary_qk(q, k, None, tables, **options)


def gated(scores: torch.Tensor, x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    torch.manual_seed(3)
    return pnn.T5RelativeBias(H, gate_dim=D)(scores, inplace=inplace, hidden_states=x)


ROPE = pn.Rotary(D)
MODULES: dict[str, Case] = {
    "Rotary": Case(q_and_k, QK, lambda q, k, **o: ROPE(q, k, **o), in_place="qk"),
    "rerotate": Case(
        lambda: {"x": randn(B, H, S, D)}, {"x": "bhsd"},
        lambda x: pn.rerotate(x, torch.arange(S) + 9, None, ROPE),
    ),
    "xpos_tables": Case(
        q_and_k, QK, lambda q, k, **o: by_xpos(q, k, torch.arange(q.shape[2]), **o), in_place="qk"
    ),
    "xpos_tables, rows": Case(
        lambda: q_and_k(positions=rows()), QK,
        by_xpos, in_place="qk",
    ),
    "RotaryEmbedding": turned(lambda: pnn.RotaryEmbedding(D)),
    "NormRotaryEmbedding": turned(lambda: pnn.NormRotaryEmbedding(D)),
    "LearnedRotaryEmbedding": turned(lambda: pnn.LearnedRotaryEmbedding(D)),
    "XPos": turned(lambda: pnn.XPos(D)),
    "SelectiveRotaryEmbedding": Case(
        lambda: {"q": randn(B, S, H, D), "k": randn(B, S, 2, D), "tokens": randn(B, S, 2 * D)},
        {"q": "bshd", "k": "bshd", "tokens": "bsd"}, selective, free="b", sums=True,
    ),
    "ALiBi": scores(lambda: pnn.ALiBi(H)),
    "ALiBi, learned": scores(lambda: pnn.ALiBi(H, learned=True, causal=True)),
    "Kerple": scores(lambda: pnn.Kerple(H)),
    "Sandwich": scores(lambda: pnn.Sandwich(H)),
    "T5RelativeBias": scores(lambda: pnn.T5RelativeBias(H, causal=True)),
    "T5RelativeBias, gate": Case(
        lambda: {"scores": randn(B, H, S, S), "x": randn(B, S, H * D)},
        {"scores": "bhqk", "x": "bqc"},
        gated, free="bhqk", in_place=("scores",), sums=True,
    ),
    "ClippedRelativeBias": scores(lambda: pnn.ClippedRelativeBias(H, 3)),
    "alibi_diagonals, slopes": Case(
        lambda: {"slopes": torch.rand(H)}, {"slopes": "h"},
        lambda slopes: pn.relative.alibi_diagonals(H, S, S, slopes=slopes), free="",
    ),
    "relative_position_bucket": numbers(
        {"relative": torch.arange(-6, 6).view(3, 4)}, "mn",
        pn.relative.relative_position_bucket, free="mn",
    ),
    "padded_positions": numbers(
        {"mask": torch.tensor([[0, 1, 1], [1, 1, 0], [1, 2, 2]])}, "bs",
        pn.positions.padded_positions, free="b",
    ),
    "packed_positions": numbers(
        {"cu_seqlens": torch.tensor([0, 3, 5])}, "n",
        lambda cu_seqlens: pn.positions.packed_positions(cu_seqlens, 6),
    ),
    "ContextParallel.packed": numbers(
        {"cu_seqlens": torch.tensor([0, 4, 12])}, "n",
        lambda cu_seqlens: tuple(pn.positions.ContextParallel(1, 2).packed(cu_seqlens, 12)),
    ),
    "add_unrotated_tokens": numbers(
        {"positions": torch.arange(10).view(2, 5)}, "As",
        lambda positions: pn.positions.add_unrotated_tokens(positions, before=1),
    ),
    "vision_language_positions": numbers(
        {"types": torch.tensor([[0, 1, 1, 1, 1, 1, 1, 0]])}, "bs",
        lambda types: pn.positions.vision_language_positions(types, [[1, 4, 6]]),
    ),
    "FIRE": scores(lambda: pnn.FIRE(H, causal=True), in_place=()),
    "RelativePositionalEncoding": scored(lambda: pnn.RelativePositionalEncoding(H * D, H)),
    "DecomposedRelativePosition": scored(
        lambda: DecomposedRelativePosition(D, (1, S - 1), class_token=True)
    ),
    "ShawRelativePosition": scored(lambda: pnn.ShawRelativePosition(D, 2, causal=True)),
    "ShawRelativePosition.attend": Case(
        lambda: {"p": randn(B, H, S, S), "v": randn(B, H, S, D)}, {"p": "bhqk", "v": "bhkd"},
        attend, free="bh", sums=True,
    ),
    "LearnedPositionalEncoding": absolute(
        lambda: pnn.LearnedPositionalEncoding(S, D, dropout=0.0)
    ),
    "SinusoidalPositionalEncoding": absolute(
        lambda: pnn.SinusoidalPositionalEncoding(D, dropout=0.0)
    ),
}  # fmt: skip
