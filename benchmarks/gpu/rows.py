"""What is timed on a GPU: prefill, packed tokens, backward, decode, tables, sums, relative.

A family of cases is a function: of the options and the numbers of a case it makes buffer sets, and
rows that work on them. TABLE has the cases of all. `build` has all tensors made on the device.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant
from benchmarks.gpu import device, peers
from benchmarks.gpu.timing import OF_COPY, OF_HOST, Goal, Ours
from benchmarks.peers.contestants import BASE, HEAD_DIM, Options, Row, compile_row
from benchmarks.peers.tables import recipe_table
from posenc_native import nn

K_HEADS = 8
Rows = tuple[list[Any], list[Row]]


class Memory:
    """A tensor, and one like it."""

    def __init__(self, dtype: torch.dtype, *shape: int) -> None:
        self.memory = torch.randn(shape, dtype=dtype)
        self.target = torch.empty_like(self.memory)
        self.nbytes = self.memory.nbytes
        # Addresses, as benchmarks.clock.harness.Buffers has them.
        self.work, self.out = self.memory.data_ptr(), self.target.data_ptr()


class QueryKey(Memory):
    """Query and key, one after the other in one piece of memory, and as much to copy it to."""

    def __init__(self, dtype: torch.dtype, layout: str, batch: int, seq: int, heads: int) -> None:
        sizes = {"b": batch, "s": seq, "t": seq, "d": HEAD_DIM}
        shapes = [[(sizes | {"h": h})[axis] for axis in layout] for h in (heads, K_HEADS)]
        split, rest = map(math.prod, shapes)
        super().__init__(dtype, split + rest)
        self.q = self.memory[:split].view(shapes[0])
        self.k = self.memory[split:].view(shapes[1])
        self.tokens: torch.Tensor | None = None  # what vLLM keeps


class Looked(Memory):
    """Scores [.., keys], and x [.., width] to gather them from or to scatter them to."""

    def __init__(self, dtype: torch.dtype, width: int, *shape: int) -> None:
        super().__init__(dtype, *shape)
        self.x = torch.randn((*shape[:-1], width), dtype=dtype)


def ours(
    name: str, ways: Mapping[str, Callable[[Any], object]], goal: Goal | None = None,
    limit: str = "copy", nbytes: int | None = None,
) -> list[Row]:  # fmt: skip
    """A row of this library for each of its ways to give results.

    `nbytes` are what has to be read and written, where it is not a buffer twice.
    """
    return [Ours(name, mode, run, limit, nbytes, goal=goal) for mode, run in ways.items()]


# What bounds all the others: a copy of the same bytes within device memory.
_COPY = Contestant("copy", "out=", lambda b: b.target.copy_(b.memory), "copy")
_FILL = Contestant("fill", "out=", lambda b: b.target.fill_(1.0), "fill")
_SUM = Contestant("sum", "fresh", lambda b: b.memory.sum(), "read")


# --- Rotary


def _phases(tokens: int) -> dict[str, torch.Tensor]:
    """Positions and frequencies."""
    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0])
    return {"positions": torch.arange(tokens), "inv_freq": inv_freq}


def _prefill(
    options: Options, dtype: torch.dtype, batch: int, seq: int, heads: int, layout: str,
    pairing: str, compiled: bool = False,
) -> Rows:  # fmt: skip
    phases = _phases(seq)
    rotate = partial(pn.apply_rotary_qk, **phases, layout=layout, pairing=pairing)
    return options.make_sets(partial(QueryKey, dtype, layout, batch, seq, heads)), [
        *ours("apply_rotary_qk", {
            "in place": lambda b: rotate(b.q, b.k, inplace=True),
            "fresh": lambda b: rotate(b.q, b.k),
        }, OF_COPY),
        *peers.rotary(options, layout, pairing, dtype, phases["positions"], compiled=compiled),
    ]  # fmt: skip


def _packed(options: Options, dtype: torch.dtype, tokens: int) -> Rows:
    """Sequences of different lengths one after the other; each token has its own position."""
    lengths = [tokens // 2, tokens // 4, tokens // 8, tokens // 8]
    positions = torch.cat([torch.arange(length) for length in lengths])
    rope = partial(pn.Rotary(HEAD_DIM, base=BASE), positions=positions, layout="thd")
    return options.make_sets(partial(QueryKey, dtype, "thd", 1, tokens, 32)), ours("Rotary", {
        "in place": lambda b: rope(b.q, b.k, inplace=True),
        "fresh": lambda b: rope(b.q, b.k),
    }, OF_COPY)  # fmt: skip


class _Backward:
    """The backward alone; its forward is run once for each buffer set."""

    def __init__(self, forward: Callable[..., Any], *others: torch.Tensor) -> None:
        self._forward, self._others = forward, others
        self._ready: dict[int, Any] = {}

    def __call__(self, b: QueryKey) -> Any:
        if b.work not in self._ready:
            # Of their own: rows in place overwrite q and k.
            leaves = [t.detach().clone().requires_grad_() for t in (b.q, b.k)]
            self._ready[b.work] = self._forward(*leaves), (*leaves, *self._others)
        return torch.autograd.grad(*self._ready[b.work], (b.q, b.k), retain_graph=True)


def _backward(options: Options, dtype: torch.dtype, batch: int, seq: int) -> Rows:
    phases = _phases(seq)
    learned = phases["inv_freq"].clone().requires_grad_()
    rotate = partial(pn.apply_rotary_qk, **phases, layout="bshd")
    theirs = peers.rotary(options, "bshd", "half", dtype, phases["positions"])[0]
    if isinstance(theirs, Contestant):
        forward = theirs.run
        run = _Backward(lambda q, k: forward(_Pair(q, k)))
        theirs = Contestant(theirs.name, "fresh", run, "copy")
    sets = options.make_sets(partial(QueryKey, dtype, "bshd", batch, seq, 32))
    return sets, [
        *ours("apply_rotary_qk", {"fresh": _Backward(rotate)}, OF_COPY),
        *ours("apply_rotary_qk, learned inv_freq",  # reads q and k too
              {"fresh": _Backward(partial(rotate, inv_freq=learned), learned)},
              nbytes=3 * sets[0].nbytes),
        theirs,
    ]  # fmt: skip


def _selective(options: Options, dtype: torch.dtype, batch: int, seq: int) -> Rows:
    """Angles that data decide, with steps for every head of k."""
    steps = (torch.randn(batch, seq, K_HEADS, HEAD_DIM // 2) * 0.1).to(dtype)
    learned = steps.clone().requires_grad_()

    def rotate(q: torch.Tensor, k: torch.Tensor, of: torch.Tensor = steps, **to: Any) -> Any:
        return pn.selective_rotary_qk(q, k, of, layout="bshd", **to)[:2]

    def recipe(b: QueryKey) -> Any:
        groups = b.q.unflatten(2, (K_HEADS, -1)).transpose(2, 3)
        angles = steps.float().cumsum(1)[:, :, None]
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        halves = [x.chunk(2, -1) for x in (groups, b.k[:, :, None])]
        return [torch.cat((x * cos - y * sin, y * cos + x * sin), -1) for x, y in halves]

    sets = options.make_sets(partial(QueryKey, dtype, "bshd", batch, seq, 32))
    forward = 2 * sets[0].nbytes + steps.nbytes
    return sets, [
        *ours("selective_rotary_qk", {
            "in place": lambda b: rotate(b.q, b.k, inplace=True),
            "fresh": lambda b: rotate(b.q, b.k),
        }, nbytes=forward),
        *ours("selective_rotary_qk, backward",  # reads q and k too, writes a gradient of steps
              {"fresh": _Backward(partial(rotate, of=learned), learned)},
              nbytes=forward + sets[0].nbytes + steps.nbytes),
        Contestant("the recipe, eager", "fresh", recipe, "copy", forward),
    ]  # fmt: skip


@dataclass(frozen=True)
class _Pair:
    """q and k alone, as peers take them."""

    q: torch.Tensor
    k: torch.Tensor


def _normed(options: Options, dtype: torch.dtype, batch: int, seq: int) -> Rows:
    """Norm and rotation in one pass, the append, and the backward, beside torch.compile.

    vLLM has a kernel for it, which knows tables, 16 bits and in place alone.
    """
    sets = options.make_sets(partial(QueryKey, dtype, "bshd", batch, seq, 32))
    phases = _phases(seq)
    weight = torch.linspace(0.5, 1.5, HEAD_DIM).to(dtype)
    named = {**phases, "q_weight": weight, "k_weight": weight, "layout": "bshd"}
    norm = partial(pn.norm_rotary_qk, **named)
    keys, values = (torch.zeros_like(sets[0].k) for _ in range(2))
    v = {b.work: torch.randn_like(b.k) for b in sets}
    cache = {"keys": keys, "values": values, "slots": phases["positions"]}
    append = partial(pn.rotary_append, **named, **cache, cache_layout="bshd", inplace=True)

    def both(q: torch.Tensor, k: torch.Tensor) -> Any:
        normed = (torch.nn.functional.rms_norm(x, (HEAD_DIM,), weight, 1e-6) for x in (q, k))
        return pn.apply_rotary_qk(*normed, **phases, layout="bshd")

    return sets, [
        *ours("norm_rotary_qk", {
            "in place": lambda b: norm(b.q, b.k, inplace=True),
            "fresh": lambda b: norm(b.q, b.k),
        }, OF_COPY),
        *ours("rotary_append, norm",  # q in place, k and v from where they are into the caches
              {"in place": lambda b: append(b.q, b.k, v[b.work])},
              nbytes=2 * sets[0].q.nbytes + 4 * sets[0].k.nbytes),
        *ours("norm_rotary_qk, autograd", {"fresh": _Backward(norm)}, nbytes=3 * sets[0].nbytes),
        compile_row(options, "rms_norm and apply_rotary_qk, torch.compile", both,
                    lambda function, b: function(b.q, b.k), "copy"),
    ]  # fmt: skip


def _decode(options: Options, dtype: torch.dtype, tokens: int) -> Rows:
    """One token of each of `tokens` sequences, in cache.

    Calls are written as users write them: what the host takes for one is judged.
    """
    positions = torch.randint(100_000, (tokens, 1))
    inv_freq = _phases(1)["inv_freq"]
    rope, module = pn.Rotary(HEAD_DIM, base=BASE), nn.RotaryEmbedding(HEAD_DIM, base=BASE)

    def rotate(b: QueryKey) -> Any:
        return pn.apply_rotary_qk(b.q, b.k, positions, inv_freq, layout="bshd", inplace=True)

    return [QueryKey(dtype, "bshd", tokens, 1, 32)], [
        *ours("apply_rotary_qk", {"in place": rotate}, OF_HOST),
        *ours("Rotary",
              {"in place": lambda b: rope(b.q, b.k, positions, layout="bshd", inplace=True)},
              OF_HOST),
        *ours("nn.RotaryEmbedding",
              {"in place": lambda b: module(b.q, b.k, positions, layout="bshd", inplace=True)},
              OF_HOST),
        *ours("nn.RotaryEmbedding",
              {"fresh": lambda b: module(b.q, b.k, positions, layout="bshd")}),
        # Theirs have one position for all sequences, which is no more work.
        *peers.rotary(options, "bshd", "half", dtype, positions[0]),
    ]  # fmt: skip


LAYERS = 32


def _step(options: Options, dtype: torch.dtype, tokens: int) -> Rows:
    """What stands before attention in the layers of a decoding step, with a graph and without."""
    rope = pn.Rotary(HEAD_DIM, base=BASE, layout="bshd")
    at = torch.randint(100, (tokens, 1))
    weight = torch.linspace(0.5, 1.5, HEAD_DIM).to(dtype)
    caches = torch.zeros((2, tokens, 128, K_HEADS, HEAD_DIM), dtype=dtype)
    options_of_append: dict[str, Any] = {
        "q_weight": weight, "k_weight": weight, "cache_layout": "bshd", "inplace": True,
    }  # fmt: skip

    def append(b: QueryKey) -> None:
        rope.append(b.q, b.k, b.k, at, *caches, at, **options_of_append)

    def step(b: QueryKey) -> None:
        for _ in range(LAYERS):
            append(b)

    return [QueryKey(dtype, "bshd", tokens, 1, 32)], [
        *ours(
            "Rotary.norm", {"in place": lambda b: rope.norm(b.q, b.k, at, inplace=True)}, OF_HOST
        ),
        *ours("Rotary.append, norm", {"in place": append}, OF_HOST),
        *ours(f"{LAYERS} layers", {"in place": step}),
        *ours(f"{LAYERS} layers, CUDA graph", {"in place": device.Captured(step)}),
    ]


# --- Sinusoids


def _table(options: Options, dtype: torch.dtype, length: int, dim: int) -> Rows:
    make = partial(pn.sinusoidal, length, dim)
    return options.make_sets(partial(Memory, dtype, length, dim)), [
        _FILL,
        *ours("sinusoidal", {
            "out=": lambda b: make(out=b.target),
            "fresh": lambda b: make(dtype=dtype, device=b.target.device),
        }, OF_COPY, "fill"),
        Contestant("plain torch", "out=", lambda b: recipe_table(b.target), "fill"),
    ]  # fmt: skip


def _sum(options: Options, dtype: torch.dtype, batch: int, seq: int, dim: int) -> Rows:
    table = recipe_table(torch.empty((seq, dim))).to(dtype)
    return options.make_sets(partial(Memory, dtype, batch, seq, dim)), [
        *ours("add_sinusoidal", {
            "in place": lambda b: pn.add_sinusoidal(b.target, out=b.target),
            "out=": lambda b: pn.add_sinusoidal(b.memory, out=b.target),
            "fresh": lambda b: pn.add_sinusoidal(b.memory),
        }, OF_COPY),
        Contestant("x + table, table ready", "out=",
                   lambda b: torch.add(b.memory, table, out=b.target), "copy"),
    ]  # fmt: skip


# --- Relative encodings: of scores [batch, heads, queries, keys]


def _bias(options: Options, dtype: torch.dtype, *size: int) -> Rows:
    heads, queries, keys = size[1:]
    diagonals = torch.randn(heads, queries + keys - 1)
    bias = partial(pn.toeplitz_bias, diagonals, queries, keys, dtype=dtype)
    return options.make_sets(partial(Memory, dtype, *size[1:])), [
        _FILL,
        *ours("toeplitz_bias", {"out=": lambda b: bias(out=b.target), "fresh": lambda b: bias()},
              OF_COPY, "fill"),
        Contestant("unfold, flip", "out=",
                   lambda b: b.target.copy_(diagonals.unfold(-1, keys, 1).flip(1)), "fill"),
    ]  # fmt: skip


def _add_bias(options: Options, dtype: torch.dtype, *size: int) -> Rows:
    heads, queries, keys = size[1:]
    diagonals = torch.randn(heads, queries + keys - 1)
    bias = pn.toeplitz_bias(diagonals, queries, keys, dtype=dtype)
    goal = None if keys % 2 else OF_COPY  # rows of odd length are not aligned
    return options.make_sets(partial(Memory, dtype, *size)), [
        *ours("add_toeplitz_bias", {
            "in place": lambda b: pn.add_toeplitz_bias(b.target, diagonals, out=b.target),
            "out=": lambda b: pn.add_toeplitz_bias(b.memory, diagonals, out=b.target),
            "fresh": lambda b: pn.add_toeplitz_bias(b.memory, diagonals),
        }, goal),
        Contestant("scores + bias, bias ready", "out=",
                   lambda b: torch.add(b.memory, bias, out=b.target), "copy"),
    ]  # fmt: skip


def _windows(options: Options, dtype: torch.dtype, *size: int) -> Rows:
    """Swin's windows: one bias for all of them."""
    heads, side = size[1], math.isqrt(size[-1])
    table = torch.randn(heads, 2 * side - 1, 2 * side - 1)
    grid = {"q_len": (side, side), "k_len": (side, side)}
    bias = pn.toeplitz_bias(table, **grid, dtype=dtype)
    add = partial(pn.add_toeplitz_bias, diagonals=table, **grid)
    sums = partial(pn.diagonal_sums, entries=tuple(table.shape[1:]), **grid)
    return options.make_sets(partial(Memory, dtype, *size)), [
        *ours("add_toeplitz_bias", {"in place": lambda b: add(b.target, out=b.target)}),
        Contestant("scores + bias, bias ready", "in place", lambda b: b.target.add_(bias), "copy"),
        _SUM,
        *ours("diagonal_sums", {"fresh": lambda b: sums(b.memory)}, limit="read"),
    ]


def _sums(options: Options, dtype: torch.dtype, *size: int) -> Rows:
    rows = ours("diagonal_sums", {"fresh": lambda b: pn.diagonal_sums(b.memory)}, OF_COPY, "read")
    return options.make_sets(partial(Memory, dtype, *size)), [_SUM, *rows]


def _look_up(options: Options, dtype: torch.dtype, *size: int, clip: int | None = None) -> Rows:
    """Transformer-XL's shift, or distances clipped at `clip` as Shaw's are."""
    queries, keys = size[2:]
    width, index = queries + keys - 1, None
    if clip is not None:
        distances = torch.arange(width) - (queries - 1)
        width, index = 2 * clip + 1, distances.clamp(-clip, clip) + clip
    gather = partial(pn.relative_gather, index=index, k_len=keys)
    sets = options.make_sets(partial(Looked, dtype, width, *size))
    scores, x = sets[0].nbytes, sets[0].x.nbytes
    # A shift reads as many numbers of a row of x as it writes, whatever the row's width.
    gathered = scores + min(scores, x)
    rows = [
        *ours("relative_gather", {"out=": lambda b: gather(b.x, out=b.target)}, OF_COPY,
              nbytes=gathered),
        *ours("relative_gather of content",
              {"out=": lambda b: gather(b.x, content=b.memory, scale=0.125, out=b.target)},
              OF_COPY, nbytes=gathered + scores),
        *ours("relative_scatter",
              {"out=": lambda b: pn.relative_scatter(b.memory, index, width, out=b.x)},
              OF_COPY, nbytes=scores + x),
    ]  # fmt: skip
    if index is not None:
        columns = index[queries - 1 + torch.arange(keys) - torch.arange(queries)[:, None]]
        columns = columns.expand(size)
        run = lambda b: torch.gather(b.x, -1, columns, out=b.target)  # noqa: E731
        rows.append(Contestant("torch.gather, columns ready", "out=", run, "copy", gathered))
    return sets, rows


def _decode_bias(options: Options, dtype: torch.dtype, *size: int) -> Rows:
    """One query of each sequence, at a position of its own, from a table made once; in cache."""
    batch, heads, _, keys = size
    table = {"diagonals": torch.randn(heads, 2 * keys), "origin": keys}
    add = partial(pn.add_toeplitz_bias, q_offset=torch.randint(keys, (batch,)), **table)
    rows = ours("add_toeplitz_bias", {"in place": lambda b: add(b.target, out=b.target)})
    return [Memory(dtype, *size)], rows


# --- All cases

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
_HEADS = f"32 + {K_HEADS} heads"
_SIZE = "{1} x {2} x {3} x {4}, {0}"
_SCORES = (4, 16, 2048, 2048)
# A family's name, of the numbers of a case; its function; its cases, what matters most first.
TABLE: list[tuple[str, Callable[..., Rows], list[tuple[Any, ...]]]] = [
    (f"prefill, {{1}} x {{2}} tokens, {{3}} + {K_HEADS} heads, {{0}}, {{4}}, {{5}}", _prefill, [
        (BF16, 4, 4096, 32, "bshd", "half", True),  # torch.compile of the peer too
        (BF16, 1, 4096, 32, "bshd", "half"),
        (BF16, 16, 8192, 64, "bshd", "half"),
        (BF16, 16, 8192, 32, "bshd", "half"),
        (BF16, 4, 4096, 64, "bshd", "half"),
        (BF16, 1, 4096, 64, "bshd", "half"),
        (BF16, 4, 4096, 32, "bhsd", "half", True),
        (BF16, 16, 8192, 32, "bhsd", "half"),
        (BF16, 4, 4096, 32, "bshd", "interleaved"),
        (BF16, 4, 4096, 32, "bhsd", "interleaved"),
        (F32, 4, 4096, 32, "bshd", "half"),
        (F16, 4, 4096, 32, "bshd", "half"),
    ]),
    (f"decode, {{1}} x 1 tokens, {_HEADS}, {{0}}", _decode, [(BF16, 1), (BF16, 64), (BF16, 256)]),
    (f"a decoding step, {{1}} x 1 tokens, {_HEADS}, {{0}}", _step, [(BF16, 1), (BF16, 64)]),
    (f"packed, {{1}} tokens, {_HEADS}, {{0}}, thd", _packed, [(BF16, 16384)]),
    (f"backward, {{1}} x {{2}} tokens, {_HEADS}, {{0}}, bshd", _backward, [(BF16, 4, 4096)]),
    (f"norm and rotation, {{1}} x {{2}} tokens, {_HEADS}, {{0}}, bshd", _normed,
     [(BF16, 4, 4096)]),
    (f"data decide, {{1}} x {{2}} tokens, {_HEADS}, {{0}}, bshd", _selective,
     [(BF16, 4, 4096), (F32, 4, 4096)]),
    ("sinusoidal table, {1} x {2}, {0}", _table, [(F32, 131072, 128), (BF16, 131072, 128)]),
    ("add sinusoidal, {1} x {2} x {3}, {0}", _sum, [(BF16, 8, 4096, 4096), (F32, 8, 4096, 4096)]),
    (f"bias of diagonals, {_SIZE}", _bias, [(BF16, 1, 32, 4096, 4096), (F32, 1, 32, 4096, 4096)]),
    (f"add bias, {_SIZE}", _add_bias,
     [(BF16, *_SCORES), (F32, *_SCORES), (BF16, 4, 16, 2047, 2047)]),
    (f"diagonal sums, {_SIZE}", _sums, [(BF16, *_SCORES), (F32, *_SCORES)]),
    (f"shift, {_SIZE}", _look_up, [(BF16, *_SCORES), (F32, *_SCORES)]),
    (f"look-ups, {_SIZE}", partial(_look_up, clip=64), [(BF16, *_SCORES)]),
    (f"windows of a grid, {_SIZE}", _windows, [(BF16, 8192, 4, 49, 49)]),
    (f"decode with a bias, {_SIZE}", _decode_bias, [(BF16, 64, 32, 1, 8192)]),
]  # fmt: skip


def _small(numbers: Iterable[Any]) -> tuple[Any, ...]:
    """The numbers of a case that is to be quick: 48 at most, or 49 where they are odd."""
    return tuple(min(n, 48 + n % 2) if isinstance(n, int) else n for n in numbers)


def cases(quick: bool) -> dict[str, Callable[[Options], Rows]]:
    """The function of each case, by name.

    Families take turns: a run that is cut off has some of each.
    """
    found: dict[str, Callable[[Options], Rows]] = {}
    turns = itertools.zip_longest(*([(*row[:2], case) for case in row[2]] for row in TABLE))
    for form, family, case in filter(None, itertools.chain(*turns)):
        dtype, *numbers = _small(case) if quick else case
        name = form.format(str(dtype).removeprefix("torch."), *numbers)
        found[name] = lambda options, f=family, d=dtype, n=numbers: f(options, d, *n)
    return found


def build(name: str, options: Options, device: str) -> Case:
    """A case on a device: the copy, and its rows."""
    with torch.device(device):
        buffers, rows = cases(options.quick)[name](options)
    if options.quick:  # nothing that is so small comes near a goal
        rows = [dataclasses.replace(r, goal=None) if isinstance(r, Ours) else r for r in rows]
    return Case(name, 1, buffers, [_COPY, *rows])
