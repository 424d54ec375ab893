"""A layer of attention with what this library has for it, for tests of several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from posenc_native import nn as pnn

WIDTH, HEADS, TOKENS = 32, 4, 6

BIASES: dict[str, Any] = {
    "T5": lambda: pnn.T5RelativeBias(HEADS),
    "ALiBi": lambda: pnn.ALiBi(HEADS),
    "ALiBi, learned": lambda: pnn.ALiBi(HEADS, learned=True),
    "Kerple": lambda: pnn.Kerple(HEADS),
}


# Not all of its parameters are by head.
SHARED: dict[str, Any] = {"FIRE": lambda: pnn.FIRE(HEADS)}


class Attention(nn.Module):
    """Its heads are as many as the projections give: all, or those of a rank."""

    def __init__(self, bias: nn.Module, learned: bool = False) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        width = WIDTH // HEADS
        self.rope = (
            pnn.LearnedRotaryEmbedding(width, num_heads=HEADS)
            if learned
            else pnn.RotaryEmbedding(width)
        )
        self.bias = bias

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        width = WIDTH // HEADS
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (p(x).unflatten(-1, (-1, width)).transpose(1, 2) for p in projections)
        q, k = self.rope(q, k, positions)
        scores = self.bias(q @ k.mT * width**-0.5)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


def attention(name: str, learned: bool = False) -> Attention:
    torch.manual_seed(4)
    return Attention((BIASES | SHARED)[name](), learned)


def tokens() -> Tensor:
    torch.manual_seed(6)
    return torch.randn(2, TOKENS, WIDTH)


def gradients(layer: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The result, and the gradients of the parameters, whole."""
    result = layer(x)
    (result**2).sum().backward()
    found = {}
    for key, parameter in layer.named_parameters():
        grad: Any = parameter.grad
        assert grad is not None, key
        found[key] = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
    return result, found
