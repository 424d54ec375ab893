"""What is timed on a GPU: prefill, packed tokens, backward, decode, tables, sums, relative.

A family of cases is a function: of where to compute and the numbers of a case it makes buffers,
and rows that work on them. TABLE has the cases of all.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant
from benchmarks.gpu import peers
from benchmarks.gpu.buffers import (
    K_HEADS,
    OF_COPY,
    OF_HOST,
    Looked,
    Memory,
    Place,
    QueryKey,
    Rows,
    ours,
)
from benchmarks.gpu.timing import Ours
from benchmarks.peers.contestants import BASE, HEAD_DIM, Options, compile_row
from benchmarks.peers.tables import recipe_table
from posenc_native import nn

_FILL = Contestant("fill", "out=", lambda b: b.target.fill_(1.0), "fill")
_SUM = Contestant("sum", "fresh", lambda b: b.memory.sum(), "read")


# --- Rotary


def _prefill(
    on: Place, batch: int, seq: int, heads: int, dtype: torch.dtype, layout: str, pairing: str,
    compiled: bool = False,
) -> Rows:  # fmt: skip
    positions, inv_freq = on.phases(seq)
    rotate = partial(pn.apply_rotary_qk, positions=positions, inv_freq=inv_freq, layout=layout,
                     pairing=pairing)  # fmt: skip
    return on.sets(QueryKey, batch, seq, heads, dtype, layout), [
        *ours("apply_rotary_qk", {
            "in place": lambda b: rotate(b.q, b.k, inplace=True),
            "fresh": lambda b: rotate(b.q, b.k),
        }, OF_COPY),
        *peers.rotary(on.compiled(compiled), layout, pairing, dtype, positions),
    ]  # fmt: skip


def _packed(on: Place, tokens: int, dtype: torch.dtype) -> Rows:
    """Sequences of different lengths one after the other; each token has its own position."""
    lengths = [tokens // 2, tokens // 4, tokens // 8, tokens // 8]
    positions = torch.cat([on.phases(length)[0] for length in lengths])
    rope = partial(pn.Rotary(HEAD_DIM, base=BASE), positions=positions, layout="thd")
    return on.sets(QueryKey, 1, tokens, 32, dtype, "thd"), ours("Rotary", {
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


def _backward(on: Place, batch: int, seq: int, dtype: torch.dtype) -> Rows:
    positions, inv_freq = on.phases(seq)
    learned = inv_freq.clone().requires_grad_()
    rotate = partial(pn.apply_rotary_qk, positions=positions, layout="bshd")
    theirs = peers.rotary(on.compiled(False), "bshd", "half", dtype, positions)[0]
    if isinstance(theirs, Contestant):
        forward = theirs.run
        run = _Backward(lambda q, k: forward(_Pair(q, k)))
        theirs = Contestant(theirs.name, "fresh", run, "copy")
    return on.sets(QueryKey, batch, seq, 32, dtype, "bshd"), [
        *ours("apply_rotary_qk", {"fresh": _Backward(partial(rotate, inv_freq=inv_freq))}, OF_COPY),
        *ours("apply_rotary_qk, learned inv_freq",
              {"fresh": _Backward(partial(rotate, inv_freq=learned), learned)}, limit="two reads"),
        theirs,
    ]  # fmt: skip


@dataclass(frozen=True)
class _Pair:
    """q and k alone, as peers take them."""

    q: torch.Tensor
    k: torch.Tensor


def _normed(on: Place, batch: int, seq: int, dtype: torch.dtype) -> Rows:
    """Norm and rotation in one pass, the append, and the backward, beside torch.compile.

    vLLM has a kernel for it, which knows tables, 16 bits and in place alone.
    """
    sets = on.sets(QueryKey, batch, seq, 32, dtype, "bshd")
    positions, inv_freq = on.phases(seq)
    weight = torch.linspace(0.5, 1.5, HEAD_DIM, device=on.device).to(dtype)
    named = {"q_weight": weight, "k_weight": weight, "layout": "bshd"}
    norm = partial(pn.norm_rotary_qk, positions=positions, inv_freq=inv_freq, **named)
    keys, values = (torch.zeros_like(sets[0].k) for _ in range(2))

    def append(b: Any) -> Any:
        where = (positions, inv_freq, keys, values, positions)
        return pn.rotary_append(b.q, b.k, b.k, *where, cache_layout="bshd", inplace=True, **named)

    def both(q: torch.Tensor, k: torch.Tensor) -> Any:
        normed = (torch.nn.functional.rms_norm(x, (HEAD_DIM,), weight, 1e-6) for x in (q, k))
        return pn.apply_rotary_qk(*normed, positions, inv_freq, layout="bshd")

    return sets, [
        *ours("norm_rotary_qk", {
            "in place": lambda b: norm(b.q, b.k, inplace=True),
            "fresh": lambda b: norm(b.q, b.k),
        }, OF_COPY),
        *ours("rotary_append, norm", {"in place": append}),
        *ours("norm_rotary_qk, autograd", {"fresh": _Backward(norm)}, limit="two reads"),
        compile_row(on.options, "rms_norm and apply_rotary_qk, torch.compile", both,
                    lambda function, b: function(b.q, b.k), "copy"),
    ]  # fmt: skip


def _decode(on: Place, tokens: int, dtype: torch.dtype) -> Rows:
    """One token of each of `tokens` sequences, in cache.

    Calls are written as users write them: what the host takes for one is judged.
    """
    positions = torch.randint(100_000, (tokens, 1), device=on.device)
    inv_freq = on.phases(1)[1]
    rope, module = pn.Rotary(HEAD_DIM, base=BASE), nn.RotaryEmbedding(HEAD_DIM, base=BASE)

    def rotate(b: QueryKey) -> Any:
        return pn.apply_rotary_qk(b.q, b.k, positions, inv_freq, layout="bshd", inplace=True)

    return [QueryKey(tokens, 1, 32, dtype, "bshd", on.device)], [
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
        *peers.rotary(on.compiled(False), "bshd", "half", dtype, positions[0]),
    ]  # fmt: skip


# --- Sinusoids


def _table(on: Place, length: int, dim: int, dtype: torch.dtype) -> Rows:
    return on.sets(Memory, (length, dim), dtype), [
        _FILL,
        *ours("sinusoidal", {
            "out=": lambda b: pn.sinusoidal(length, dim, out=b.target),
            "fresh": lambda b: pn.sinusoidal(length, dim, dtype=dtype, device=on.device),
        }, OF_COPY, "fill"),
        Contestant("plain torch", "out=", lambda b: recipe_table(b.target), "fill"),
    ]  # fmt: skip


def _sum(on: Place, batch: int, seq: int, dim: int, dtype: torch.dtype) -> Rows:
    table = recipe_table(torch.empty((seq, dim), device=on.device)).to(dtype)
    return on.sets(Memory, (batch, seq, dim), dtype), [
        *ours("add_sinusoidal", {
            "in place": lambda b: pn.add_sinusoidal(b.target, out=b.target),
            "out=": lambda b: pn.add_sinusoidal(b.memory, out=b.target),
            "fresh": lambda b: pn.add_sinusoidal(b.memory),
        }, OF_COPY),
        Contestant("x + table, table ready", "out=",
                   lambda b: torch.add(b.memory, table, out=b.target), "copy"),
    ]  # fmt: skip


# --- Relative encodings


def _diagonals(on: Place, heads: int, queries: int, keys: int) -> torch.Tensor:
    return torch.randn(heads, queries + keys - 1, device=on.device)


def _bias(on: Place, batch: int, heads: int, queries: int, keys: int, dtype: torch.dtype) -> Rows:
    diagonals = _diagonals(on, heads, queries, keys)
    bias = partial(pn.toeplitz_bias, diagonals, queries, keys, dtype=dtype)
    return on.sets(Memory, (heads, queries, keys), dtype), [
        _FILL,
        *ours("toeplitz_bias", {"out=": lambda b: bias(out=b.target), "fresh": lambda b: bias()},
              OF_COPY, "fill"),
        Contestant("unfold, flip", "out=",
                   lambda b: b.target.copy_(diagonals.unfold(-1, keys, 1).flip(1)), "fill"),
    ]  # fmt: skip


def _add_bias(
    on: Place, batch: int, heads: int, queries: int, keys: int, dtype: torch.dtype
) -> Rows:
    diagonals = _diagonals(on, heads, queries, keys)
    bias = pn.toeplitz_bias(diagonals, queries, keys, dtype=dtype)
    goal = None if keys % 2 else OF_COPY  # rows of odd length are not aligned
    return on.sets(Memory, (batch, heads, queries, keys), dtype), [
        *ours("add_toeplitz_bias", {
            "in place": lambda b: pn.add_toeplitz_bias(b.target, diagonals, out=b.target),
            "out=": lambda b: pn.add_toeplitz_bias(b.memory, diagonals, out=b.target),
            "fresh": lambda b: pn.add_toeplitz_bias(b.memory, diagonals),
        }, goal),
        Contestant("scores + bias, bias ready", "out=",
                   lambda b: torch.add(b.memory, bias, out=b.target), "copy"),
    ]  # fmt: skip


def _windows(on: Place, windows: int, heads: int, tokens: int, _: int, dtype: torch.dtype) -> Rows:
    """Swin's windows: one bias for all of them."""
    side = math.isqrt(tokens)
    table = torch.randn(heads, 2 * side - 1, 2 * side - 1, device=on.device)
    grid = {"q_len": (side, side), "k_len": (side, side)}
    bias = pn.toeplitz_bias(table, **grid, dtype=dtype)
    add = partial(pn.add_toeplitz_bias, diagonals=table, **grid)
    sums = partial(pn.diagonal_sums, entries=tuple(table.shape[1:]), **grid)
    return on.sets(Memory, (windows, heads, tokens, tokens), dtype), [
        *ours("add_toeplitz_bias", {"in place": lambda b: add(b.target, out=b.target)}),
        Contestant("scores + bias, bias ready", "in place", lambda b: b.target.add_(bias), "copy"),
        _SUM,
        *ours("diagonal_sums", {"fresh": lambda b: sums(b.memory)}, limit="read"),
    ]


def _sums(on: Place, *size_and_dtype: Any) -> Rows:
    *size, dtype = size_and_dtype
    rows = ours("diagonal_sums", {"fresh": lambda b: pn.diagonal_sums(b.memory)}, OF_COPY, "read")
    return on.sets(Memory, tuple(size), dtype), [_SUM, *rows]


def _look_up(
    on: Place, batch: int, heads: int, queries: int, keys: int, dtype: torch.dtype,
    clip: int | None = None,
) -> Rows:  # fmt: skip
    """Transformer-XL's shift, or distances clipped at `clip` as Shaw's are."""
    size = (batch, heads, queries, keys)
    width, index = queries + keys - 1, None
    if clip is not None:
        distances = torch.arange(width, device=on.device) - (queries - 1)
        width, index = 2 * clip + 1, distances.clamp(-clip, clip) + clip
    gather = partial(pn.relative_gather, index=index, k_len=keys)
    rows = [
        *ours("relative_gather", {"out=": lambda b: gather(b.x, out=b.target)},
              OF_COPY if clip is None else None),
        *ours("relative_gather of content",
              {"out=": lambda b: gather(b.x, content=b.memory, scale=0.125, out=b.target)},
              limit="two reads"),
        *ours("relative_scatter",
              {"out=": lambda b: pn.relative_scatter(b.memory, index, width, out=b.x)}),
    ]  # fmt: skip
    if index is not None:
        i, j = (torch.arange(length, device=on.device) for length in (queries, keys))
        columns = index[queries - 1 + j - i[:, None]].expand(size)
        run = lambda b: torch.gather(b.x, -1, columns, out=b.target)  # noqa: E731
        rows.append(Contestant("torch.gather, columns ready", "out=", run, "copy"))
    return on.sets(Looked, size, width, dtype), rows


def _decode_bias(
    on: Place, batch: int, heads: int, queries: int, keys: int, dtype: torch.dtype
) -> Rows:
    """One query of each sequence, at a position of its own, from a table made once; in cache."""
    q_offset = torch.randint(keys, (batch,), device=on.device)
    table = {"diagonals": torch.randn(heads, 2 * keys, device=on.device), "origin": keys}
    add = partial(pn.add_toeplitz_bias, q_offset=q_offset, **table)
    rows = ours("add_toeplitz_bias", {"in place": lambda b: add(b.target, out=b.target)})
    return [Memory((batch, heads, queries, keys), dtype, on.device)], rows


# --- All cases

HALF, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
_HEADS = f"32 + {K_HEADS} heads"
_SIZE = "{} x {} x {} x {}, {}"
# A family's name, of the numbers of a case; its function; its cases, what matters most first; when
# it is to be quick.
TABLE: list[tuple[str, Callable[..., Rows], list[tuple[Any, ...]], list[tuple[Any, ...]]]] = [
    (f"prefill, {{}} x {{}} tokens, {{}} + {K_HEADS} heads, {{}}, {{}}, {{}}", _prefill, [
        (4, 4096, 32, BF16, "bshd", "half", True),  # torch.compile of the peer too
        (1, 4096, 32, BF16, "bshd", "half"),
        (16, 8192, 64, BF16, "bshd", "half"),
        (16, 8192, 32, BF16, "bshd", "half"),
        (4, 4096, 64, BF16, "bshd", "half"),
        (1, 4096, 64, BF16, "bshd", "half"),
        (4, 4096, 32, BF16, "bhsd", "half", True),
        (16, 8192, 32, BF16, "bhsd", "half"),
        (4, 4096, 32, BF16, "bshd", "interleaved"),
        (4, 4096, 32, BF16, "bhsd", "interleaved"),
        (4, 4096, 32, F32, "bshd", "half"),
        (4, 4096, 32, HALF, "bshd", "half"),
    ], [(2, 8, 32, BF16, "bhsd", "half"), (2, 8, 32, BF16, "bshd", "interleaved")]),
    (f"decode, {{}} x 1 tokens, {_HEADS}, {{}}", _decode,
     [(1, BF16), (64, BF16), (256, BF16)], [(1, BF16), (8, BF16)]),
    (f"packed, {{}} tokens, {_HEADS}, {{}}, thd", _packed, [(16384, BF16)], [(16, BF16)]),
    (f"backward, {{}} x {{}} tokens, {_HEADS}, {{}}, bshd", _backward,
     [(4, 4096, BF16)], [(2, 8, BF16)]),
    (f"norm and rotation, {{}} x {{}} tokens, {_HEADS}, {{}}, bshd", _normed,
     [(4, 4096, BF16)], [(2, 8, BF16)]),
    ("sinusoidal table, {} x {}, {}", _table,
     [(131072, 128, F32), (131072, 128, BF16)], [(64, 128, F32), (64, 128, BF16)]),
    ("add sinusoidal, {} x {} x {}, {}", _sum,
     [(8, 4096, 4096, BF16), (8, 4096, 4096, F32)], [(2, 8, 64, BF16), (2, 8, 64, F32)]),
    (f"bias of diagonals, {_SIZE}", _bias,
     [(1, 32, 4096, 4096, BF16), (1, 32, 4096, 4096, F32)],
     [(1, 2, 33, 40, BF16), (1, 2, 33, 40, F32)]),
    (f"add bias, {_SIZE}", _add_bias,
     [(4, 16, 2048, 2048, BF16), (4, 16, 2048, 2048, F32), (4, 16, 2047, 2047, BF16)],
     [(2, 2, 33, 40, BF16), (2, 2, 33, 40, F32), (1, 1, 21, 21, BF16)]),
    (f"diagonal sums, {_SIZE}", _sums,
     [(4, 16, 2048, 2048, BF16), (4, 16, 2048, 2048, F32)],
     [(2, 2, 33, 40, BF16), (2, 2, 33, 40, F32)]),
    (f"shift, {_SIZE}", _look_up,
     [(4, 16, 2048, 2048, BF16), (4, 16, 2048, 2048, F32)],
     [(2, 2, 33, 40, BF16), (2, 2, 33, 40, F32)]),
    (f"look-ups, {_SIZE}", _look_up,
     [(4, 16, 2048, 2048, BF16, 64)], [(2, 2, 33, 40, BF16, 64)]),
    (f"windows of a grid, {_SIZE}", _windows, [(8192, 4, 49, 49, BF16)], [(3, 4, 49, 49, BF16)]),
    (f"decode with a bias, {_SIZE}", _decode_bias,
     [(64, 32, 1, 8192, BF16)], [(2, 32, 1, 64, BF16)]),
]  # fmt: skip


def cases(options: Options, device: str) -> dict[str, Callable[[], Case]]:
    """What builds each case, by name.

    Families take turns: a run that is cut off has some of each.
    """
    on = Place(options, device)

    def build(name: str, family: Callable[..., Rows], numbers: tuple[Any, ...]) -> Case:
        buffers, rows = family(on, *numbers)
        if options.quick:  # nothing that is so small comes near a goal
            rows = [dataclasses.replace(r, goal=None) if isinstance(r, Ours) else r for r in rows]
        # What bounds all the others: a copy of the same bytes within device memory.
        copy = Contestant("copy", "out=", lambda b: b.target.copy_(b.memory), "copy")
        return Case(name, 1, buffers, [copy, *rows])

    turns = itertools.zip_longest(*(
        [(name, family, numbers) for numbers in (quick if options.quick else full)]
        for name, family, full, quick in TABLE
    ))  # fmt: skip
    return {
        (name := form.format(*(str(n).removeprefix("torch.") for n in numbers))):
            partial(build, name, family, numbers)
        for turn in turns for form, family, numbers in filter(None, turn)
    }  # fmt: skip
