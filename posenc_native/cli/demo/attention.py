"""Where a head looks that finds a token by its distance, at early positions and at late ones.

The head is made by hand: all tokens have the same key, ones in every pair, and the query is that
key as it would stand `BACK` tokens before. So attention is highest there, and it is the same for
every token, wherever it stands: an angle that is off shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .models import tables_of_model

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BACK", "TOKENS", "Attention", "attention", "attention_of_tables"]

BACK = 4
WINDOW = 12  # distances 0 .. 11 are looked at
TOKENS = 64


@dataclass(frozen=True)
class Attention:
    """Attention of `TOKENS` neighbouring tokens to the `WINDOW` tokens that end at each.

    Attributes:
        weights: ``[TOKENS, WINDOW]``, by distance.
        elsewhere: the share of attention that is not where it should be, the mean over the tokens.
    """

    weights: list[list[float]]
    elsewhere: float


def attention(model: Any, position: int) -> Attention:
    """Of a head whose tokens begin at this position, by the model's own tables."""
    import torch

    tables = tables_of_model(model, range(position, position + TOKENS + WINDOW - 1))
    frequencies = model.model.rotary_emb.inv_freq.double()
    # What it should be depends on distances alone, which are small: float64 will do.
    distances = torch.arange(WINDOW, dtype=torch.float64)[:, None]
    exact = ((distances - BACK) * frequencies).cos().sum(1).softmax(0)
    found = attention_of_tables(tables, frequencies)
    return Attention(found.tolist(), float((found - exact).abs().sum(1).mean() / 2))


def attention_of_tables(tables: Tensor, frequencies: Tensor) -> Tensor:
    """Attention by distance, ``[tokens, WINDOW]``, from the tables of a run of positions."""
    import torch

    cos, sin = tables
    turn = -BACK * frequencies
    query_cos = cos * turn.cos() - sin * turn.sin()
    query_sin = sin * turn.cos() + cos * turn.sin()
    scores = query_cos @ cos.T + query_sin @ sin.T
    rows = [scores[i, i - WINDOW + 1 : i + 1].flip(0) for i in range(WINDOW - 1, len(scores))]
    return torch.stack(rows).softmax(1)
