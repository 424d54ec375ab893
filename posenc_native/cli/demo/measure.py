"""A text through a model, both ways: what differs, and how long it takes.

The model is transformers' own LlamaForCausalLM with heads of a realistic size and random weights
from a fixed seed. A token is a byte of the text, so that nothing is downloaded. Both ways run in
the same process on the same weights.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from posenc_native import configuration

from .exact import exact_cos_sin

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "FULL",
    "LAYERS",
    "MOVED_TO",
    "QUICK",
    "SHOWN_POSITIONS",
    "Figures",
    "Sizes",
    "both_ways",
]

SHOWN_POSITIONS = (4096, 131072, 1048576)
MOVED_TO = 131072
LAYERS, QUERY_HEADS, KEY_HEADS, HEAD_DIM = 4, 32, 8, 128


@dataclass(frozen=True)
class Sizes:
    """How much a demonstration does.

    Attributes:
        context: bytes of the text that are read.
        moved: how many of these are read again at a later position.
        prefill_repeats, decode_repeats: how often each is timed.
    """

    context: int
    moved: int
    prefill_repeats: int
    decode_repeats: int


FULL = Sizes(context=4096, moved=1024, prefill_repeats=5, decode_repeats=300)
QUICK = Sizes(context=256, moved=64, prefill_repeats=3, decode_repeats=20)


@dataclass(frozen=True)
class Figures:
    """What was measured. Pairs are (transformers, posenc_native); times are in seconds."""

    tokens: int
    spread: float  # standard deviation of the logits
    difference: float  # the largest between a logit and its twin
    continuation: tuple[list[int], list[int]]
    moved: tuple[float, float]  # largest change of a logit when the text stands elsewhere
    prefill: tuple[float, float, float]  # the third is posenc_native in fresh memory
    decode: tuple[float, float, float]
    errors: dict[int, tuple[float, float]]  # of cos and sin, by position
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


def both_ways(
    data: bytes,
    new_tokens: int,
    sizes: Sizes = FULL,
    report: Callable[[str, float], None] = lambda label, fraction: None,
) -> Figures:
    """Run the model both ways and measure.

    Args:
        data: the text, of which ``sizes.context`` bytes are read.
        new_tokens: length of the greedy continuation.
        sizes: how much is done.
        report: is told what is being done and which fraction of all is done.
    """
    # Seconds, roughly; a prefill grows with the square of the text.
    reading, writing = 5.0 * (sizes.context / FULL.context) ** 2 + 0.1, 0.02 * new_tokens
    progress = _Steps(report, total=3.0 + 2 * (reading + writing + 1.5) + 6.0 + 0.5)
    with progress.step("importing torch and transformers", 3.0):
        import torch

        from posenc_native import hf

        model = _small_llama()
    ids = torch.tensor([list(data[: sizes.context])])
    around = sorted({16 * 4**k for k in range(9)} | set(SHOWN_POSITIONS))
    # Several around each: at a power of two itself, float32 makes no error at all.
    positions = {p: range(p, p + 8) for p in around}

    def read(way: str) -> tuple[Tensor, list[int], float, dict[int, Tensor]]:
        with progress.step(f"{way}: reading {ids.shape[1]} tokens", reading, LAYERS):
            result = model(ids, use_cache=True)
        logits = result.logits
        with progress.step(f"{way}: writing {new_tokens} tokens", writing, LAYERS * new_tokens):
            continuation = _greedy_continuation(model, result, new_tokens)
        with progress.step(f"{way}: the text elsewhere", 1.5, 2 * LAYERS):
            text = ids[:, : sizes.moved]
            there = torch.arange(MOVED_TO, MOVED_TO + text.shape[1])[None]
            change = model(text, position_ids=there).logits - model(text).logits
        rotary = model.model.rotary_emb
        tables = {p: _tables_of_model(rotary, some) for p, some in positions.items()}
        return logits, continuation, float(change.abs().max()), tables

    hooks = [layer.register_forward_hook(progress.tick) for layer in model.model.layers]
    with torch.no_grad():
        theirs = read("transformers")
        with hf.patch(model):
            ours = read("posenc_native")
        for hook in hooks:
            hook.remove()
        with progress.step("timing the rotary part", 6.0, sizes.prefill_repeats):
            prefill = _time_rotary(model, ids.shape[1], sizes.prefill_repeats, progress.tick)
            decode = _time_rotary(model, 1, sizes.decode_repeats)
    errors = {}
    with progress.step("cos and sin with 60 digits", 0.5, len(positions)):
        for position, some in positions.items():
            truth = _exact_tables(model.model.rotary_emb.inv_freq.tolist(), some)
            a, b = (float((way[3][position] - truth).abs().max()) for way in (theirs, ours))
            errors[position] = (a, b)
            progress.tick()
    return Figures(
        tokens=ids.shape[1],
        spread=float(theirs[0].std()),
        difference=float((ours[0] - theirs[0]).abs().max()),
        continuation=(theirs[1], ours[1]),
        moved=(theirs[2], ours[2]),
        prefill=prefill,
        decode=decode,
        errors=errors,
        facts=_facts_about(model, ids.shape[1], len(data)),
    )


def _small_llama() -> Any:
    """A small Llama: heads as large models have them, everything else as small as will do."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=256,  # bytes
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=LAYERS,
        num_attention_heads=QUERY_HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=2 * SHOWN_POSITIONS[-1],
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},  # as Llama 3
        # The usual 0.02 makes all attention scores of such a narrow model about 0, so that a token
        # hardly notices where another stands. This makes their standard deviation 1.7.
        initializer_range=0.058,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(2017)
        return cast(Any, transformers.LlamaForCausalLM(config)).eval()


def _greedy_continuation(model: Any, result: Any, count: int) -> list[int]:
    """The greedy continuation from a prefill, one token at a time on its cache."""
    tokens: list[int] = []
    for _ in range(count):
        token = result.logits[:, -1:].argmax(-1)
        tokens.append(int(token))
        result = model(token, past_key_values=result.past_key_values, use_cache=True)
    return tokens


def _tables_of_model(rotary: Any, positions: range) -> Tensor:
    """Cosines and sines as the model's rotary module gives them: [2, positions, pairs]."""
    import torch

    pair = rotary(torch.zeros(1), position_ids=torch.tensor([list(positions)]))
    # transformers' tables hold every value twice, for a head's two halves.
    return torch.stack([table[0, :, : HEAD_DIM // 2] for table in pair]).double()


def _exact_tables(frequencies: list[float], positions: range) -> Tensor:
    """The same by `exact_cos_sin`."""
    import torch

    exact = [[exact_cos_sin(p, frequency) for frequency in frequencies] for p in positions]
    return torch.tensor(exact, dtype=torch.float64).movedim(-1, 0)


def _time_rotary(
    model: Any, tokens: int, repeats: int, tick: Callable[[], None] | None = None
) -> tuple[float, float, float]:
    """Median time of all that is rotary in one pass: transformers, ours, ours in fresh memory.

    That is the tables, once, and in each layer what its attention does from the last projection to
    the cache: it rotates q and k. The three take turns.
    """
    import torch

    from posenc_native import hf

    hidden = torch.randn(1, tokens, model.config.hidden_size)
    positions = torch.arange(4096, 4096 + tokens)[None]

    def way(patch: Callable[[Any], object]) -> Callable[[], float]:
        twin = copy.deepcopy(model)
        patch(twin)
        clock = _replace_projections(twin, tokens)

        def once() -> float:
            start = time.perf_counter()
            tables = twin.model.rotary_emb(hidden, position_ids=positions)
            clock.total = time.perf_counter() - start
            for layer in twin.model.layers:
                with contextlib.suppress(_Rotated):
                    layer.self_attn(hidden, tables, attention_mask=None, past_key_values=clock)
            return clock.total

        return once

    ways = [way(lambda twin: None), way(hf.patch), way(partial(hf.patch, inplace=False))]
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for once, samples in zip(ways, times, strict=True):
            once()  # so that no way finds the caches as another has left them
            samples.append(once())
        if tick:
            tick()
    theirs, ours, fresh = (statistics.median(samples) for samples in times)
    return theirs, ours, fresh


class _Rotated(Exception):
    """Ends a forward that has rotated its heads: what comes next is not timed."""


class _Clock:
    """Runs from the last projection of an attention until that calls its cache."""

    def __init__(self) -> None:
        self.start = self.total = 0.0

    def update(self, *_: object) -> None:
        """What an attention calls in its cache."""
        self.total += time.perf_counter() - self.start
        raise _Rotated


def _replace_projections(model: Any, tokens: int) -> _Clock:
    """Let projections give ready numbers, in fresh memory as they do, and start the clock."""
    import torch

    clock = _Clock()

    class Projection(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.heads = torch.randn(1, tokens, count * HEAD_DIM)

        def forward(self, _: Tensor) -> Tensor:
            result = self.heads.clone()
            clock.start = time.perf_counter()
            return result

    for layer in model.model.layers:
        for name, count in (("q", QUERY_HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            setattr(layer.self_attn, f"{name}_proj", Projection(count))
    return clock


def _facts_about(model: Any, read: int, total: int) -> str:
    import torch
    import transformers

    millions = sum(p.numel() for p in model.parameters()) / 1e6
    native = configuration.configuration()["backend"]
    return (
        f"{type(model).__name__}, {LAYERS} layers, {QUERY_HEADS} query and {KEY_HEADS} key heads "
        f"of {HEAD_DIM}\n"
        f"{millions:.0f} million random weights in float32, {read:,} of {total:,} bytes of text\n"
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, backend {native}"
    )
