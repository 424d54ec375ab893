"""Modules, and functions made of several operations, as cases for sharded_compare.py.

Their parameters are plain tensors: the whole of them, on each rank the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sharded_calls import INV_FREQ, QK, B, Case, D, H, S, q_and_k, randn, rows

import posenc_native as pn
from posenc_native import nn as pnn

SCORES = {"scores": "bhqk"}
X = {"x": "bsd"}


def module(make: Callable[[], torch.nn.Module]) -> Any:
    """A call of the module, made anew with the same parameters; with inplace where it has that."""

    def call(inplace: bool = False, **tensors: Any) -> Any:
        torch.manual_seed(3)
        one = make()
        return one(*tensors.values(), **({"inplace": True} if inplace else {}))

    return call


def scores(make: Callable[[], torch.nn.Module]) -> Case:
    return Case(
        lambda: {"scores": randn(B, H, S, S)}, SCORES, module(make), free="bhqk",
        in_place=["scores"],
    )  # fmt: skip


def absolute(make: Callable[[], torch.nn.Module]) -> Case:
    return Case(lambda: {"x": randn(B, S, D)}, X, module(make), free="bs")


def turned(make: Callable[[], torch.nn.Module]) -> Case:
    return Case(q_and_k, QK, module(make))


def scored(make: Callable[[], torch.nn.Module]) -> Case:
    """Inner products of q and k: sums over d, which torch makes of what it gathers as it likes."""
    return Case(
        lambda: {"q": randn(B, H, S, D), "k": randn(B, H, S, D)}, QK, module(make), free="bh",
        sums=True,
    )  # fmt: skip


ROPE = pn.Rotary(D)
MODULES: dict[str, Case] = {
    "Rotary": Case(q_and_k, QK, lambda q, k, **o: ROPE(q, k, **o), in_place="qk"),
    "rerotate": Case(
        lambda: {"x": randn(B, H, S, D)}, {"x": "bhsd"},
        lambda x: pn.rerotate(x, torch.arange(S) + 9, None, ROPE),
    ),
    "apply_xpos": Case(
        q_and_k, QK, lambda q, k, **o: pn.apply_xpos(q, k, None, INV_FREQ, **o), in_place="qk"
    ),
    "apply_xpos, rows": Case(
        lambda: q_and_k(positions=rows()), QK,
        lambda q, k, positions, **o: pn.apply_xpos(q, k, positions, INV_FREQ, **o), in_place="qk",
    ),
    "RotaryEmbedding": turned(lambda: pnn.RotaryEmbedding(D)),
    "NormRotaryEmbedding": turned(lambda: pnn.NormRotaryEmbedding(D)),
    "LearnedRotaryEmbedding": turned(lambda: pnn.LearnedRotaryEmbedding(D)),
    "XPos": turned(lambda: pnn.XPos(D)),
    "ALiBi": scores(lambda: pnn.ALiBi(H)),
    "ALiBi, learned": scores(lambda: pnn.ALiBi(H, learned=True)),
    "Kerple": scores(lambda: pnn.Kerple(H)),
    "Sandwich": scores(lambda: pnn.Sandwich(H)),
    "T5RelativeBias": scores(lambda: pnn.T5RelativeBias(H)),
    "ClippedRelativeBias": scores(lambda: pnn.ClippedRelativeBias(H, 3)),
    "SinusoidalPositionalEncoding": absolute(
        lambda: pnn.SinusoidalPositionalEncoding(D, dropout=0.0)
    ),
}  # fmt: skip
