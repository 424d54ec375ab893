"""How long a model takes, and rotary alone, in ways that take turns.

Times of a shared machine drift, so the ways run in rounds, and what counts is their ratio within a
round. Its median has an interval, and where 1 is in it no difference is claimed.
"""

from __future__ import annotations

import contextlib
import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .models import HEAD_DIM, KEY_HEADS, QUERY_HEADS, Ways

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Clock", "Timing", "compare", "decoding_steps", "prefills", "rotary_alone", "take_turns"]

Clock = Callable[[], float]  # does the work once and says how many seconds it took
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Timing:
    """Two ways, compared.

    Attributes:
        theirs, ours: median time in seconds.
        ratio: median over the rounds of theirs / ours.
        low, high: the median's interval of at least 95 % confidence; 0 and infinity where there are
            too few rounds for one, fewer than six.
    """

    theirs: float
    ours: float
    ratio: float
    low: float
    high: float


def compare(theirs: Sequence[float], ours: Sequence[float]) -> Timing:
    """From the times of each round.

    The interval is that of the sign test: whichever the distribution, a ratio is as likely above
    its median as below, so the k-th smallest and the k-th largest of n enclose it with a
    probability that follows from n coins.
    """
    ratios = sorted(a / b for a, b in zip(theirs, ours, strict=True))
    ends = [0.0, *ratios, math.inf]
    n, cut, beyond = len(ratios), 0, 1.0
    while 1.0 - 2.0 * beyond / 2.0**n >= CONFIDENCE:
        cut += 1
        beyond += math.comb(n, cut)
    return Timing(
        statistics.median(theirs),
        statistics.median(ours),
        statistics.median(ratios),
        ends[cut],
        ends[-1 - cut],
    )


def take_turns(
    clocks: Sequence[Clock], rounds: int, tick: Callable[[], None] | None = None
) -> list[list[float]]:
    """The times of every way; each round begins with another."""
    times: list[list[float]] = [[] for _ in clocks]
    for first in range(rounds):
        for place in range(len(clocks)):
            which = (first + place) % len(clocks)
            times[which].append(clocks[which]())
        if tick:
            tick()
    return times


def prefills(models: Sequence[Any], ids: Tensor) -> list[Clock]:
    """Clocks of whole models that read a text."""

    def of(model: Any) -> Clock:
        def once() -> float:
            start = time.perf_counter()
            model(ids, use_cache=False)
            return time.perf_counter() - start

        return once

    return [of(model) for model in models]


def decoding_steps(models: Sequence[Any], ids: Tensor) -> list[Clock]:
    """Clocks of whole models that read one token after a text."""

    def of(model: Any) -> Clock:
        plain = getattr(model, "_orig_mod", model)  # of torch.compile: a prefill is not compiled
        cache = plain(ids, use_cache=True).past_key_values
        token = ids[:, -1:]

        def step(model: Any) -> float:
            start = time.perf_counter()
            model(token, past_key_values=cache, use_cache=True)
            seconds = time.perf_counter() - start
            cache.crop(-1)
            return seconds

        step(plain)  # what has been cut has other strides, which would be compiled for anew
        return partial(step, model)

    return [of(model) for model in models]


def rotary_alone(ways: Ways, tokens: int) -> list[Clock]:
    """Clocks of all that is rotary in one pass of the models.

    That is the tables, once, and in each layer what its attention does between projections and
    the cache: it rotates q and k, and norms them before if the model does.
    """
    import torch

    hidden = torch.randn(1, tokens, ways.theirs.config.hidden_size)
    positions = torch.arange(4096, 4096 + tokens)[None]

    def of_rotary(model: Any) -> Clock:
        twin = copy.deepcopy(model)
        clock = _replace_projections(twin, tokens)

        def run() -> float:
            start = time.perf_counter()
            tables = twin.model.rotary_emb(hidden, position_ids=positions)
            clock.total = time.perf_counter() - start
            for layer in twin.model.layers:
                with contextlib.suppress(_Rotated):
                    layer.self_attn(hidden, tables, attention_mask=None, past_key_values=clock)
            return clock.total

        def once() -> float:
            run()  # so that it does not find the caches as another way has left them
            return run()

        return once

    return [of_rotary(model) for model in ways]


class _Rotated(Exception):
    """Ends a forward that has rotated its heads: what comes next is not timed."""


class _Stopwatch:
    """Runs from a projection of an attention to the next one, or to the call of its cache."""

    def __init__(self) -> None:
        self.start: float | None = None
        self.total = 0.0

    def stop(self) -> None:
        """Add what has passed since it was started, if it was."""
        if self.start is not None:
            self.total += time.perf_counter() - self.start
            self.start = None

    def update(self, *_: object) -> None:
        """What an attention calls in its cache."""
        self.stop()
        raise _Rotated


def _replace_projections(model: Any, tokens: int) -> _Stopwatch:
    """Let projections give ready numbers, in fresh memory as they do, and start the clock."""
    import torch

    clock = _Stopwatch()

    class Projection(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.heads = torch.randn(1, tokens, count * HEAD_DIM)

        def forward(self, _: Tensor) -> Tensor:
            clock.stop()
            result = self.heads.clone()
            clock.start = time.perf_counter()
            return result

    for layer in model.model.layers:
        for name, count in (("q", QUERY_HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            setattr(layer.self_attn, f"{name}_proj", Projection(count))
    return clock
