"""Far from the start: the tokens that a head attends to, and the error of cosines and sines.

The head finds a token by its distance. It is built by hand: all tokens have the same key, ones in
every pair, and the query is that key rotated to `BACK` tokens before. So attention is highest
there, and it is the same for every token at every position: a wrong angle is visible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .models import HEAD_DIM

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BACK", "SHOWN_POSITIONS", "TOKENS", "Attention", "attention", "errors_of_tables"]

SHOWN_POSITIONS = (4096, 131072, 1048576, 16777216)
BACK = 4
WINDOW = 12  # distances 0 .. 11 are looked at
TOKENS = 64


@dataclass(frozen=True)
class Attention:
    """Attention of `TOKENS` neighboring tokens to the `WINDOW` tokens that end at each.

    Attributes:
        weights: ``[TOKENS, WINDOW]``, by distance.
        elsewhere: the share of attention that is not where it should be, the mean over the tokens.
    """

    weights: list[list[float]]
    elsewhere: float


def attention(model: Any, position: int) -> Attention:
    """Of a head whose tokens begin at this position, by the model's own tables."""
    import torch

    cos, sin = _tables_of(model, range(position, position + TOKENS + WINDOW - 1))
    frequencies = model.model.rotary_emb.inv_freq.double()
    # What it should be depends on distances alone, which are small: float64 will do.
    distances = torch.arange(WINDOW, dtype=torch.float64)[:, None]
    exact = ((distances - BACK) * frequencies).cos().sum(1).softmax(0)
    turn = -BACK * frequencies
    query_cos = cos * turn.cos() - sin * turn.sin()
    query_sin = sin * turn.cos() + cos * turn.sin()
    scores = query_cos @ cos.T + query_sin @ sin.T
    rows = [scores[i, i - WINDOW + 1 : i + 1].flip(0) for i in range(WINDOW - 1, len(scores))]
    weights = torch.stack(rows).softmax(1)
    return Attention(weights.tolist(), float((weights - exact).abs().sum(1).mean() / 2))


def errors_of_tables(theirs: Any, ours: Any) -> dict[int, tuple[float, float]]:
    """The largest error of cos and sin near each position: (transformers, posenc_native)."""
    errors = {}
    for position in sorted({16 * 4**k for k in range(11)} | {*SHOWN_POSITIONS}):
        # Several around each position: at a power of two itself, float32 makes no error at all.
        nearby = range(position, position + 8)
        truth = exact_tables(nearby, theirs.model.rotary_emb.inv_freq)
        a, b = (float((_tables_of(m, nearby) - truth).abs().max()) for m in (theirs, ours))
        errors[position] = (a, b)
    return errors


def exact_tables(positions: range, frequencies: Tensor) -> Tensor:
    """Cosines and sines in float64, in which an angle is exact: position * float32 has 49 bits."""
    import torch

    angles = torch.tensor(positions)[:, None].double() * frequencies.double()
    return torch.stack([angles.cos(), angles.sin()])


def _tables_of(model: Any, positions: range) -> Tensor:
    """Cosines and sines as the model's rotary module gives them: [2, positions, pairs], float64."""
    import torch

    pair = model.model.rotary_emb(torch.zeros(1), position_ids=torch.tensor([list(positions)]))
    # transformers' tables hold every value twice, for a head's two halves.
    return torch.stack([table[0, :, : HEAD_DIM // 2] for table in pair]).double()
