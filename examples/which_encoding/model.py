"""A small GPT for characters, with any of six ways to know of positions."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

import posenc_native as pn
from posenc_native import nn as pnn


class Transformer(nn.Module):
    """Pre-norm, causal, 0.8 million weights as it is used here.

    A position encoding enters in one of three places, and that is all there is to know of them:

    - at the input, a vector added to every embedding: sinusoidal, learned;
    - in each layer, queries and keys rotated by their positions: rotary;
    - in each layer, a number added to the score of a query and a key: T5, ALiBi.
    """

    def __init__(
        self, vocabulary: int, length: int, encoding: str, d: int = 128, heads: int = 4,
        depth: int = 4,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head_dim = d // heads
        self.embed = nn.Embedding(vocabulary, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocabulary)
        # Last, so that one seed draws the same weights for everything above, whatever the encoding.
        self.at_input: pnn.PositionalEncoding | None = None
        self.rope: pnn.RotaryEmbedding | None = None
        self.bias: pnn.ToeplitzBias | None = None
        if encoding == "learned":
            # As large as the embeddings it is added to; at 0.02, which is the default for
            # embeddings of 0.02, it would be lost beside them until it has grown.
            self.at_input = pnn.LearnedPositionalEncoding(length, d, dropout=0.0, std=1.0)
        elif encoding == "sinusoidal":
            self.at_input = pnn.SinusoidalPositionalEncoding(d, dropout=0.0)
        elif encoding == "T5":
            self.bias = pnn.T5RelativeBias(  # one table for all layers
                heads, bidirectional=False, causal=True
            )
        elif encoding == "ALiBi":
            self.bias = pnn.ALiBi(heads, causal=True)
        elif encoding == "rotary":
            # Strides are enough: heads are not copied before it.
            self.rope = pnn.RotaryEmbedding(self.head_dim, layout="bshd")
        elif encoding != "none":
            raise ValueError(f"Transformer: encoding: unknown: {encoding!r}")

    def can_read(self, length: int) -> bool:
        """Whether there is a position for every one of so many tokens."""
        table = self.at_input
        return not isinstance(table, pnn.LearnedPositionalEncoding) or length <= table.num_positions

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [b, s, vocabulary] of the next token, for tokens [b, s]."""
        x = self.embed(tokens)
        if self.at_input is not None:
            x = self.at_input(x)
        diagonals = None
        if self.bias is not None:
            # A bias is one number for each distance; so is a causal mask: -inf for later keys. So
            # both are one addition to the scores, and no [s, s] matrix of either is ever made.
            length = tokens.shape[1]
            diagonals = self.bias.diagonals(length, length, device=x.device)
        for block in self.blocks:
            x = block(x, self.rope, diagonals)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    """Attention, then a feed-forward network."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.project = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.feed = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(
        self, x: Tensor, rope: pnn.RotaryEmbedding | None, diagonals: Tensor | None
    ) -> Tensor:
        """x [b, s, d] -> [b, s, d]."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        if rope is not None:
            q, k = rope(q, k)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        if diagonals is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q * q.shape[-1] ** -0.5) @ k.mT
            pn.add_toeplitz_bias(scores, diagonals, out=scores)  # in place
            mixed = scores.softmax(-1) @ v
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        result: Tensor = x + self.feed(self.norm2(x))
        return result
