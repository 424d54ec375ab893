"""A text through a model, both ways: what differs, and how long it takes.

The models are transformers' own with heads of a realistic size and random weights from a fixed
seed: a Llama, and a Qwen3, whose attention norms q and k. A token is a byte of the text, so that
nothing is downloaded. Both ways run in the same process on the same weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .attention import Attention, attention
from .exact import exact_cos_sin
from .models import (
    LAYERS,
    NORMED_LAYERS,
    SHOWN_POSITIONS,
    Ways,
    both_ways,
    facts_about,
    small_llama,
    small_qwen3,
    tables_of_model,
    ways_to_norm,
)
from .timing import Clock, Timing, compare, decoding_steps, prefills, rotary_alone, take_turns

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FULL", "MOVED_TO", "QUICK", "Figures", "Sizes", "measure"]

MOVED_TO = 131072


@dataclass(frozen=True)
class Sizes:
    """How much a demonstration does.

    Attributes:
        context: bytes of the text that are read; the model with norms reads an eighth.
        rounds: of each time of a prefill.
        steps: rounds of each time of a decoding step; half as many of that with norms.
    """

    context: int
    rounds: int
    steps: int


FULL = Sizes(context=1024, rounds=6, steps=40)
QUICK = Sizes(context=128, rounds=6, steps=12)


@dataclass(frozen=True)
class Figures:
    """What was measured. Pairs are (transformers, posenc_native).

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


class _Steps:
    """Reports how far the work is: steps of known weight, each in equal ticks."""

    def __init__(self, report: Callable[[str, float], None], total: float) -> None:
        self._report, self._total, self._done, self._share = report, total, 0.0, 0.0
        self._label = ""

    @contextlib.contextmanager
    def step(self, label: str, weight: float, ticks: int = 1) -> Iterator[None]:
        """Work that takes about `weight` seconds and calls `tick` so many times."""
        end, self._share, self._label = self._done + weight, weight / ticks, label
        self._report(label, self._done / self._total)
        yield
        self._done = end

    def tick(self, *_: object) -> None:
        self._done += self._share
        self._report(self._label, self._done / self._total)


def measure(
    data: bytes,
    new_tokens: int,
    sizes: Sizes = FULL,
    compiled: bool = False,
    report: Callable[[str, float], None] = lambda label, fraction: None,
) -> Figures:
    """Run the model both ways and measure.

    Args:
        data: the text, of which ``sizes.context`` bytes are read.
        new_tokens: length of the greedy continuation.
        sizes: how much is done.
        compiled: whether the time of compiled models is measured, too.
        report: is told what is being done and which fraction of all is done.
    """
    # Seconds, roughly.
    reading, writing = 0.7 * sizes.context / FULL.context, 0.02 * new_tokens
    timing = 4.5 * reading * sizes.rounds + 0.06 * sizes.steps + 0.5
    norms = timing * NORMED_LAYERS / LAYERS / 8 + 1.0
    compiling = 120.0 if compiled else 0.0
    total = 3.0 + 2 * (2 * reading + writing) + timing + norms + 2 * compiling + 1.0
    progress = _Steps(report, total)
    with progress.step("importing torch and transformers", 3.0):
        import torch

        ways = both_ways(small_llama())
    ids = torch.tensor([list(data[: sizes.context])])

    def read(name: str, model: Any) -> tuple[Tensor, list[int], float]:
        hooks = [layer.register_forward_hook(progress.tick) for layer in model.model.layers]
        with progress.step(f"{name}: reading {ids.shape[1]} tokens", reading, LAYERS):
            result = model(ids, use_cache=True)
        logits = result.logits
        with progress.step(f"{name}: writing {new_tokens} tokens", writing, LAYERS * new_tokens):
            continuation = _greedy_continuation(model, result, new_tokens)
        with progress.step(f"{name}: the text elsewhere", reading, LAYERS):
            there = torch.arange(MOVED_TO, MOVED_TO + ids.shape[1])[None]
            change = model(ids, position_ids=there).logits - logits
        for hook in hooks:
            hook.remove()
        return logits, continuation, float(change.abs().max())

    with torch.no_grad():
        theirs, ours = read("transformers", ways.theirs), read("posenc_native", ways.ours)
        times: dict[str, dict[str, Timing]] = {}
        with progress.step("timing both ways in turns", timing, 2 * sizes.rounds):
            titles = f"Time of rotary, {LAYERS} layers", "Time of the whole model"
            times |= _times(ways, ids, sizes, titles, "the same, inplace=False", progress.tick)
        if compiled:
            with progress.step("compiling both ways", compiling, 2):
                title = "The whole model, compiled"
                times |= _times_of_compiled(ways, ids, sizes, title, progress.tick)
        brief = replace(sizes, steps=-(-sizes.steps // 2))
        ways_of_norms, start = ways_to_norm(small_qwen3()), ids[:, : -(-ids.shape[1] // 8)]
        with progress.step("timing norms of q and k", norms, 2 * sizes.rounds):
            titles = "Qwen3 before attention", "The whole Qwen3"
            normed = _times(
                ways_of_norms, start, brief, titles, "the same, norm apart", progress.tick
            )
        if compiled:
            with progress.step("compiling both ways", compiling, 2):
                title = "The whole Qwen3, compiled"
                normed |= _times_of_compiled(ways_of_norms, start, brief, title, progress.tick)
        heads = {p: (attention(ways.theirs, p), attention(ways.ours, p)) for p in SHOWN_POSITIONS}
        with progress.step("cos and sin with 60 digits", 1.0):
            errors = _errors_of_tables(ways.theirs, ways.ours)
    return Figures(
        tokens=ids.shape[1],
        spread=float(theirs[0].std()),
        difference=float((ours[0] - theirs[0]).abs().max()),
        continuation=(theirs[1], ours[1]),
        moved=(theirs[2], ours[2]),
        times=times,
        normed=normed,
        errors=errors,
        attention=heads,
        facts=facts_about(ways.theirs, ids.shape[1], len(data)),
    )


def _greedy_continuation(model: Any, result: Any, count: int) -> list[int]:
    """The greedy continuation from a prefill, one token at a time on its cache."""
    tokens: list[int] = []
    for _ in range(count):
        token = result.logits[:, -1:].argmax(-1)
        tokens.append(int(token))
        result = model(token, past_key_values=result.past_key_values, use_cache=True)
    return tokens


def _times(
    ways: Ways,
    ids: Tensor,
    sizes: Sizes,
    titles: tuple[str, str],
    other: str,
    tick: Callable[[], None],
) -> dict[str, dict[str, Timing]]:
    """Of rotary alone and of whole models, as they are without torch.compile.

    titles: of these. other: what ``ways.other`` is.
    """
    length = ids.shape[1]
    alone = take_turns(rotary_alone(ways, length), sizes.rounds, tick)
    alone_step = take_turns(rotary_alone(ways, 1), 5 * sizes.steps)
    whole = take_turns(prefills(ways, ids), sizes.rounds, tick)
    whole_step = take_turns(decoding_steps(ways, ids), sizes.steps)

    def rows(prefill: list[list[float]], step: list[list[float]]) -> dict[str, Timing]:
        return {
            f"prefill, {length:,} tokens": compare(prefill[0], prefill[1]),
            other: compare(prefill[0], prefill[2]),
            "decode, 1 token": compare(step[0], step[1]),
        }

    return {titles[0]: rows(alone, alone_step), titles[1]: rows(whole, whole_step)}


def _times_of_compiled(
    ways: Ways, ids: Tensor, sizes: Sizes, title: str, tick: Callable[[], None]
) -> dict[str, dict[str, Timing]]:
    """Of whole models, both compiled."""
    import torch

    def turns(kind: Callable[[list[Any], Tensor], list[Clock]], rounds: int) -> list[list[float]]:
        # A program for each kind of call: what was compiled for another is not looked through.
        clocks = kind([torch.compile(way, dynamic=False) for way in (ways.theirs, ways.ours)], ids)
        take_turns(clocks, 2)  # compiles
        tick()
        return take_turns(clocks, rounds)

    prefill, step = turns(prefills, sizes.rounds), turns(decoding_steps, sizes.steps)
    return {
        title: {
            f"prefill, {ids.shape[1]:,} tokens": compare(*prefill),
            "decode, 1 token": compare(*step),
        }
    }


def _errors_of_tables(theirs: Any, ours: Any) -> dict[int, tuple[float, float]]:
    """The largest error of cos and sin around each position, both ways."""
    import torch

    frequencies = theirs.model.rotary_emb.inv_freq.tolist()
    errors = {}
    for position in sorted({16 * 4**k for k in range(11)} | set(SHOWN_POSITIONS)):
        # Several around each: at a power of two itself, float32 makes no error at all.
        some = range(position, position + 8)
        exact = [[exact_cos_sin(p, frequency) for frequency in frequencies] for p in some]
        truth = torch.tensor(exact, dtype=torch.float64).movedim(-1, 0)
        a, b = (float((tables_of_model(m, some) - truth).abs().max()) for m in (theirs, ours))
        errors[position] = (a, b)
    return errors
