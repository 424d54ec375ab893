"""Attention whose methods do something between the norms of q and k and their rotation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    rotate_half,
)

D, H, KV, WIDTH = 16, 4, 2, 24


def apply_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class Attention(nn.Module):
    """What the classes below have in common."""

    over_token = False
    rotates = True

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, H * D)
        self.k_proj = nn.Linear(WIDTH, KV * D)
        heads = (H, KV) if self.over_token else (1, 1)
        self.q_norm: nn.Module = LlamaRMSNorm(heads[0] * D, 1e-5)
        self.k_norm: nn.Module = LlamaRMSNorm(heads[1] * D, 1e-5)
        self.flag, self.factor = True, 1.5


class Plain(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class TokensFirst(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        """Of which the first statement is this."""
        shape = (*x.shape[:-1], -1, D)
        q, k = self.q_proj(x).view(shape), self.k_proj(x).view(shape)
        q = self.q_norm(q)
        k = self.k_norm(k)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin=sin, unsqueeze_dim=2)
        return q, k


class OverTheToken(Attention):
    over_token = True

    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x))
        k = self.k_norm(self.k_proj(x))
        q = q.view(shape)
        k = k.reshape(shape).transpose(1, 2)
        q = q.transpose(1, 2)
        if self.rotates:
            cos, sin = position_embeddings
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class OverTheTokenNotRotated(OverTheToken):
    rotates = False


class InBranches(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q, k = self.q_proj(x).view(shape), self.k_proj(x).view(shape)
        if self.flag:
            q = self.q_norm(q)
            k = self.k_norm(k)
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        cos, sin = position_embeddings
        if not self.rotates:
            pass
        elif self.flag:
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
        else:
            q = 2 * q
        return q, k


class InBranchesNotRotated(InBranches):
    rotates = False


class WithDefaults(Attention):
    def forward(self, x: Any, position_embeddings: Any, *, scale: float = 2.0) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x * scale).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        scales = [scale * each for each in (1, 2)]
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q * scales[0], k


class SeenInBetween(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        size = q.square().mean()
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q * size, k


class WithAFactor(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = (self.q_norm(self.q_proj(x).view(shape)) * self.factor).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class ScaledAfter(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        k *= self.factor
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class KeptUnderAnotherName(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        cos, sin = position_embeddings
        turned = apply_rotary_pos_emb(q, k, cos, sin)
        return turned[0] + q, turned[1]


class InATest(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        cos, sin = position_embeddings
        if q.square().mean() > 0:
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class InALoop(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        cos, sin = position_embeddings
        for _ in range(2):
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class NormInALoop(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q, k = self.q_proj(x).view(shape).transpose(1, 2), self.k_proj(x).view(shape)
        k = k.transpose(1, 2)
        cos, sin = position_embeddings
        for turn in range(2):
            if turn == 0:
                q = self.q_norm(q)
                k = self.k_norm(k)
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class InAContext(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        with torch.autocast("cpu", enabled=False):
            q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
            k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class BetweenViews(Attention):
    over_token = True

    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x)).view(shape)
        k = self.k_norm(self.k_proj(x)).view(shape)
        if self.factor > 2:
            q = q * self.factor
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class OnlyQ(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_proj(x).view(shape).transpose(1, 2)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class SeenByAFunction(Attention):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        size = lambda: q.square().mean()  # noqa: E731
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        cos, sin = position_embeddings
        before = size()
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q * before, k


class CallsSuper(Plain):
    def forward(self, x: Any, position_embeddings: Any) -> Any:
        super().extra_repr()
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class OverPairsOfHeads(Attention):
    """A norm of two heads each, which no option says."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = LlamaRMSNorm(2 * D), LlamaRMSNorm(2 * D)

    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x).view(*x.shape[:-1], -1, 2 * D)).reshape(shape)
        k = self.k_norm(self.k_proj(x).view(*x.shape[:-1], -1, 2 * D)).reshape(shape)
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class OverPositions(Attention):
    """A norm that the views after it do not commute with."""

    def forward(self, x: Any, position_embeddings: Any) -> Any:
        shape = (*x.shape[:-1], -1, D)
        q = self.q_norm(self.q_proj(x).view(*x.shape[:-1], D, -1).transpose(2, 3))
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        q = q.reshape(*x.shape[:-1], -1).view(shape).transpose(2, 3).reshape(shape).transpose(1, 2)
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class OtherNorm(Plain):
    """Of what there is instead of an RMS norm."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.q_norm = norm


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(D)), 1e-5

    def forward(self, x: Any) -> Any:
        return 2 * nn.functional.rms_norm(x, (D,), self.weight, self.eps)


class Model(nn.Module):
    def __init__(self, attention: Any) -> None:
        super().__init__()
        config = LlamaConfig(hidden_size=H * D, num_attention_heads=H, max_position_embeddings=64)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.attention = attention

    def forward(self, x: Any) -> Any:
        positions = torch.arange(x.shape[1])[None]
        return self.attention(x, position_embeddings=self.rotary_emb(x, positions))
