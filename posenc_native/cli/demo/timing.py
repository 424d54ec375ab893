"""How long a model takes, and rotary alone, in ways that take turns.

Times of a shared machine drift, so the ways run in rounds, and what counts is their ratio within a
round. Its median has an interval, which says whether there is anything to claim.
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

__all__ = ["Clock", "Timing", "compare", "take_turns", "time_ways"]

Clock = Callable[[], float]  # does the work once and says how many seconds it took
_UNSURE = 20  # an interval may be wrong once in so many times


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
    n, cut, beyond = len(ratios), 0, 1
    while 2 * beyond * _UNSURE <= 2**n:
        cut += 1
        beyond += math.comb(n, cut)
    return Timing(
        statistics.median(theirs),
        statistics.median(ours),
        statistics.median(ratios),
        ends[cut],
        ends[-1 - cut],
    )


def take_turns(clocks: Sequence[Clock], rounds: int, seconds: float = 0.0) -> list[list[float]]:
    """The times of every way; each round begins with another way.

    rounds: how many at least; more until so many seconds have passed.
    """
    times: list[list[float]] = [[] for _ in clocks]
    end = time.monotonic() + seconds
    while len(times[0]) < rounds or time.monotonic() < end:
        first = len(times[0])
        for place in range(len(clocks)):
            index = (first + place) % len(clocks)
            times[index].append(clocks[index]())
    return times


def time_ways(
    ways: Ways,
    ids: Tensor,
    rounds: int,
    seconds: float,
    titles: Sequence[str],
    other: str,
    compiled: bool,
) -> dict[str, dict[str, Timing]]:
    """Sections of times: of rotary alone, of whole models and, if asked for, of compiled ones.

    Args:
        ways: to compare.
        ids: the text.
        rounds, seconds: how often, and how long each is timed at least.
        titles: of the sections.
        other: the label of ``ways.other``.
        compiled: whether the first two ways are compiled and timed, too.
    """
    import torch

    def section(prefill: list[list[float]], step: list[list[float]]) -> dict[str, Timing]:
        prefill_label = f"prefill, {ids.shape[1]:,} tokens"
        rows = {prefill_label: compare(prefill[0], prefill[1])}
        if len(prefill) > 2:
            rows[other] = compare(prefill[0], prefill[2])
        return {**rows, "decode, 1 token": compare(step[0], step[1])}

    def turns(clocks: list[Clock]) -> list[list[float]]:
        return take_turns(clocks, rounds, seconds)

    sections = {
        titles[0]: section(turns(_rotary_alone(ways, ids.shape[1])), turns(_rotary_alone(ways, 1))),
        titles[1]: section(turns(_prefills(ways, ids)), turns(_decoding_steps(ways, ids))),
    }
    if compiled:
        times = []
        for kind in (_prefills, _decoding_steps):
            # A program for each kind of call: no search through programs of other kinds.
            clocks = kind([torch.compile(way, dynamic=False) for way in ways[:2]], ids)
            take_turns(clocks, 2)  # compiles
            times.append(turns(clocks))
        sections[titles[2]] = section(*times)
    return sections


def _prefills(models: Sequence[Any], ids: Tensor) -> list[Clock]:
    """Clocks of whole models that read a text."""
    return [partial(_seconds, model, ids, use_cache=False) for model in models]


def _decoding_steps(models: Sequence[Any], ids: Tensor) -> list[Clock]:
    """Clocks of whole models that read one token after a text."""

    def of(model: Any) -> Clock:
        plain = getattr(model, "_orig_mod", model)  # of torch.compile: a prefill is not compiled
        cache = plain(ids, use_cache=True).past_key_values

        def step(model: Any) -> float:
            seconds = _seconds(model, ids[:, -1:], past_key_values=cache, use_cache=True)
            cache.crop(-1)
            return seconds

        step(plain)  # what has been cut has other strides, which would be compiled for anew
        return partial(step, model)

    return [of(model) for model in models]


def _seconds(model: Any, ids: Tensor, **options: Any) -> float:
    start = time.perf_counter()
    model(ids, **options)
    return time.perf_counter() - start


def _rotary_alone(ways: Ways, tokens: int) -> list[Clock]:
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
        """Called by the attention on its cache."""
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
