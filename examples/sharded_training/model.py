"""A small transformer for characters that says nothing of devices, and the rows it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Shard

import posenc_native as pn
from posenc_native import nn as pnn

WIDTH, HEADS, DEPTH = 64, 4, 3


@dataclass(frozen=True)
class Row:
    """Which tokens of a row are here: all of them, or a part under context parallelism."""

    length: int
    part: pn.positions.ContextParallel | None = None
    mesh: Any = None  # of the ranks that share the row

    @property
    def positions(self) -> Tensor | None:
        """Of the tokens that are here; None for 0 .. length - 1."""
        return None if self.part is None else self.part.positions(self.length, device="cpu")

    def shard(self, tokens: Tensor) -> Tensor:
        """Of whole rows ``[b, length]`` what is here."""
        return tokens if self.part is None else self.part.shard(tokens, 1)

    def gathered(self, x: Tensor) -> Tensor:
        """Keys or values ``[b, h, s, d]`` of all ranks that share the row, one after another."""
        if self.part is None:
            return x
        parts = DTensor.from_local(x, self.mesh, [Shard(2)], run_check=False)
        # Each rank has the gradient of what its own queries made of them.
        return parts.full_tensor(grad_placements=[Partial()])

    def with_bias(self, scores: Tensor, diagonals: Tensor) -> Tensor:
        """Scores of queries here and keys gathered, plus a bias of the whole row, and masked."""
        if self.part is None:
            return pn.add_toeplitz_bias(scores, diagonals, causal=True)
        queries = self.part.positions(self.length, device="cpu")
        keys = self.part.gathered_positions(self.length, device="cpu")
        return scores + pn.relative.bias_at_positions(
            diagonals, queries, keys, origin=self.length - 1, causal=True
        )


class Transformer(nn.Module):
    """Pre-norm and causal: rotary with QK-norm in all layers, T5's bias too in the second."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.ModuleList(Block(with_t5=i == 1) for i in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor, row: Row) -> Tensor:
        """Logits ``[b * s, vocabulary]`` of the next token, for the tokens that are here."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, row)
        logits: Tensor = self.head(self.norm(x).flatten(0, 1))
        return logits


class Block(nn.Module):
    """Attention, then a feed-forward network."""

    def __init__(self, with_t5: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(with_t5)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, row: Row) -> Tensor:
        """x [b, s, d] -> [b, s, d]."""
        x = x + self.attention(self.norm1(x), row)
        result: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return result


class Attention(nn.Module):
    """Of as many heads as its projections give it."""

    def __init__(self, with_t5: bool) -> None:
        super().__init__()
        self.head_dim = WIDTH // HEADS
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.rope = pnn.NormRotaryEmbedding(self.head_dim, layout="bshd")
        self.t5 = pnn.T5RelativeBias(HEADS, bidirectional=False) if with_t5 else None

    def forward(self, x: Tensor, row: Row) -> Tensor:
        """x [b, s, d] -> [b, s, d]."""
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)) for y in (self.q(x), self.k(x), self.v(x)))
        q, k = self.rope(q, k, positions=row.positions)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        k, v = row.gathered(k), row.gathered(v)
        if self.t5 is None:
            diagonals = torch.zeros(q.shape[1], 2 * row.length - 1, dtype=x.dtype)
        else:
            diagonals = self.t5.diagonals(row.length, row.length)
        scores = row.with_bias((q * self.head_dim**-0.5) @ k.mT, diagonals)
        mixed = scores.softmax(-1) @ v
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result
