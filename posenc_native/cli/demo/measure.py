"""Runs a text through a model with and without posenc_native, and compares results and times.

The models are transformers' own, with heads of a realistic size and random weights from a fixed
seed: a Llama, and a Qwen3, whose attention norms q and k. A token is a byte of the text, so nothing
is downloaded. Both variants run in the same process on the same weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .far import SHOWN_POSITIONS, Attention, attention, errors_of_tables
from .models import LAYERS, both_ways, facts_about, ways_to_norm
from .timing import Timing, time_ways

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FULL", "MOVED_TO", "QUICK", "Figures", "Sizes", "measure"]

MOVED_TO = 131072


class Sizes(NamedTuple):
    """How much a demonstration does.

    Attributes:
        context: bytes of the text that are read; the model with norms reads an eighth.
        rounds, seconds: how often, and how long each kind of call is timed at least.
        threads: of torch; None for as many as it has. Two that share a processor with other
            programs wait for each other ten times as long as they compute.
    """

    context: int
    rounds: int
    seconds: float
    threads: int | None = None


# Six rounds are the fewest that have an interval (timing.compare).
FULL = Sizes(context=512, rounds=6, seconds=1.5)
QUICK = Sizes(context=64, rounds=6, seconds=0.2, threads=1)


@dataclass(frozen=True)
class Figures:
    """The measurements. Pairs are (transformers, posenc_native).

    Attributes:
        tokens: how many were read.
        spread: standard deviation of the logits.
        difference: the largest between a logit and its twin.
        continuation: the tokens that each way wrote.
        moved: largest change of a logit when the text stands elsewhere.
        times: by a section's title, by a row's.
        normed: the same, of the model that norms q and k.
        errors: of cos and sin, by position.
        attention: of a head that finds a token by its distance, by position.
        facts: of the model and the machine.
    """

    tokens: int
    spread: float
    difference: float
    continuation: tuple[list[int], list[int]]
    moved: tuple[float, float]
    times: dict[str, dict[str, Timing]]
    normed: dict[str, dict[str, Timing]]
    errors: dict[int, tuple[float, float]]
    attention: dict[int, tuple[Attention, Attention]]
    facts: str

    def same_tokens(self) -> int:
        """How many tokens of the continuation are the same before the first that is not."""
        theirs, ours = self.continuation
        pairs = enumerate(zip(theirs, ours, strict=True))
        return next((i for i, (a, b) in pairs if a != b), len(theirs))


def measure(
    data: bytes,
    new_tokens: int,
    sizes: Sizes = FULL,
    compiled: bool = False,
    done: Callable[[float, str], None] = lambda fraction, label: None,
) -> Figures:
    """Run both variants of the models and measure.

    Args:
        data: the text, of which ``sizes.context`` bytes are read.
        new_tokens: length of the greedy continuation.
        sizes: how much is done.
        compiled: whether the time of compiled models is measured, too.
        done: is told which fraction of all has been done since the last time, and what comes next.
    """
    import torch

    ways = both_ways()
    ids = torch.tensor([list(data[: sizes.context])])
    count = ids.shape[1]
    with torch.no_grad(), _threads(sizes.threads):
        done(0.2, f"transformers: reading {count} tokens, writing {new_tokens}")
        theirs = _read(ways.theirs, ids, new_tokens)
        done(0.1, f"posenc_native: reading {count} tokens, writing {new_tokens}")
        ours = _read(ways.ours, ids, new_tokens)
        done(0.1, "timing both ways in turns")
        titles = (f"Time of rotary, {LAYERS} layers", "Time of the whole model",
                  "The whole model, compiled")  # fmt: skip
        other = "the same, inplace=False"
        times = time_ways(ways, ids, sizes.rounds, sizes.seconds, titles, other, compiled)
        done(0.4, "timing norms of q and k")
        start = ids[:, : -(-count // 8)]
        titles = "Qwen3 before attention", "The whole Qwen3", "The whole Qwen3, compiled"
        other, norms = "the same, norm apart", ways_to_norm()
        normed = time_ways(norms, start, sizes.rounds, sizes.seconds, titles, other, compiled)
        done(0.1, "attention, cos and sin far from the start")
        heads = {p: (attention(ways.theirs, p), attention(ways.ours, p)) for p in SHOWN_POSITIONS}
        errors = errors_of_tables(ways.theirs, ways.ours)
        facts = facts_about(ways.theirs, count, len(data))
    return Figures(
        tokens=count,
        spread=float(theirs.logits.std()),
        difference=float((ours.logits - theirs.logits).abs().max()),
        continuation=(theirs.continuation, ours.continuation),
        moved=(theirs.moved, ours.moved),
        times=times,
        normed=normed,
        errors=errors,
        attention=heads,
        facts=facts,
    )


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Read(NamedTuple):
    """The output of a model for the text."""

    logits: Tensor
    continuation: list[int]
    moved: float


def _read(model: Any, ids: Tensor, new_tokens: int) -> _Read:
    import torch

    result = model(ids, use_cache=True)
    logits, tokens = result.logits, []
    for _ in range(new_tokens):
        token = result.logits[:, -1:].argmax(-1)
        tokens.append(int(token))
        result = model(token, past_key_values=result.past_key_values, use_cache=True)
    there = torch.arange(MOVED_TO, MOVED_TO + ids.shape[1])[None]
    change = model(ids, position_ids=there).logits - logits
    return _Read(logits, tokens, float(change.abs().max()))
