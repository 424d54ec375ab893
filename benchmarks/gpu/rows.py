"""What is timed on a GPU: prefill, packed tokens, backward, decode, tables, sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

import posenc_native as pn
from benchmarks.gpu import peers
from benchmarks.harness import Case, Contestant, Goal
from benchmarks.rows import BASE, HEAD_DIM, Options, Row, recipe_table
from posenc_native import nn

K_HEADS = 8
# At least this part of the bandwidth of a copy, where there is enough to move.
OF_COPY = 0.90
HOST_MICROSECONDS = 6.0


class QueryKey:
    """Query and key, one after the other in one piece of memory, and as much to copy it to."""

    def __init__(
        self, batch: int, seq: int, q_heads: int, dtype: torch.dtype, layout: str, device: str
    ) -> None:
        sizes = {"b": batch, "s": seq, "t": seq, "d": HEAD_DIM}
        shapes = [[(sizes | {"h": h})[axis] for axis in layout] for h in (q_heads, K_HEADS)]
        split, rest = map(math.prod, shapes)
        self.memory = torch.randn(split + rest, dtype=dtype, device=device)
        self.q = self.memory[:split].view(shapes[0])
        self.k = self.memory[split:].view(shapes[1])
        self.target = torch.empty_like(self.memory)
        self.nbytes = self.memory.nbytes
        self.tokens: torch.Tensor | None = None
        # Addresses, as benchmarks.harness.Buffers has them.
        self.work, self.out = self.memory.data_ptr(), self.target.data_ptr()


class Memory:
    """A tensor, and one like it."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        self.memory = torch.randn(shape, dtype=dtype, device=device)
        self.target = torch.empty_like(self.memory)
        self.nbytes = self.memory.nbytes
        self.work, self.out = self.memory.data_ptr(), self.target.data_ptr()


def copy() -> Contestant:
    """What bounds all the others: a copy of the same bytes, from device memory to device memory."""
    return Contestant("copy", "out=", lambda b: b.target.copy_(b.memory), "copy")


def _sets(options: Options, make: Callable[[], Any]) -> list[Any]:
    first = make()
    return [first, *(make() for _ in range(options.sets(first.nbytes) - 1))]


def _ours(
    name: str, mode: str, run: Callable[[Any], object], goal: Goal | None = None,
    limit: str = "copy",
) -> Contestant:  # fmt: skip
    return Contestant(name, mode, run, limit, ours=True, goal=goal)


def _of_copy(options: Options) -> Goal | None:
    return None if options.quick else Goal(1 / OF_COPY, "x")


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _prefill(
    options: Options, device: str, size: tuple[int, int, int], dtype: torch.dtype, layout: str,
    pairing: str, name: str,
) -> Case:  # fmt: skip
    sets = _sets(options, lambda: QueryKey(*size, dtype, layout, device))
    positions = torch.arange(size[1], device=device)
    inv_freq = torch.tensor(pn.rotary_frequencies(HEAD_DIM, BASE)[0], device=device)
    given = {"layout": layout, "pairing": pairing}

    def rotate(b: QueryKey) -> Any:
        return pn.apply_rotary_qk(b.q, b.k, positions, inv_freq, **given)

    def rotate_in_place(b: QueryKey) -> Any:
        return pn.apply_rotary_qk(b.q, b.k, positions, inv_freq, inplace=True, **given)

    goal = _of_copy(options)
    rows: list[Row] = [
        copy(),
        _ours("apply_rotary_qk", "in place", rotate_in_place, goal),
        _ours("apply_rotary_qk", "fresh", rotate, goal),
        *peers.rotary(options, layout, pairing, dtype, positions),
    ]
    return Case(name, 1, sets, rows)


def _packed(options: Options, device: str, tokens: int, name: str) -> Case:
    """Sequences of different lengths one after the other; each token has its own position."""
    sets = _sets(options, lambda: QueryKey(1, tokens, 32, torch.bfloat16, "thd", device))
    lengths = [tokens // 2, tokens // 4, tokens // 8, tokens // 8]
    positions = torch.cat([torch.arange(n, device=device) for n in lengths])
    rope = pn.Rotary(HEAD_DIM, base=BASE)
    goal = _of_copy(options)
    rows: list[Row] = [
        copy(),
        _ours(
            "Rotary", "in place",
            lambda b: rope(b.q, b.k, positions, layout="thd", inplace=True), goal,
        ),
        _ours("Rotary", "fresh", lambda b: rope(b.q, b.k, positions, layout="thd"), goal),
    ]  # fmt: skip
    return Case(name, 1, sets, rows)


def _backward(
    options: Options, device: str, size: tuple[int, int, int], dtype: torch.dtype, name: str
) -> Case:
    """The backward alone; its forward is run once for each buffer set."""
    sets = _sets(options, lambda: QueryKey(*size, dtype, "bshd", device))
    positions = torch.arange(size[1], device=device)
    inv_freq = torch.tensor(pn.rotary_frequencies(HEAD_DIM, BASE)[0], device=device)
    for b in sets:
        b.leaves = [t.detach().requires_grad_() for t in (b.q, b.k)]

    def differentiate(key: str, function: Callable[..., Any]) -> Callable[[Any], Any]:
        def run(b: Any) -> Any:
            results = b.__dict__.get(key)
            if results is None:
                results = b.__dict__[key] = function(*b.leaves)
            return torch.autograd.grad(results, b.leaves, (b.q, b.k), retain_graph=True)

        return run

    def ours(q: torch.Tensor, k: torch.Tensor) -> Any:
        return pn.apply_rotary_qk(q, k, positions, inv_freq, layout="bshd")

    run = differentiate("ours", ours)
    rows: list[Row] = [copy(), _ours("apply_rotary_qk", "fresh", run, _of_copy(options))]
    eager = peers.rotary(options, "bshd", "half", dtype, positions)[0]
    if isinstance(eager, Contestant):
        forward = eager.run
        run = differentiate("theirs", lambda q, k: forward(_Pair(q, k)))
        eager = Contestant(eager.name, "fresh", run, "copy")
    return Case(name, 1, sets, [*rows, eager])


class _Pair:
    """q and k alone, as peers take them."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor) -> None:
        self.q, self.k = q, k


def _decode(options: Options, device: str, tokens: int, name: str) -> Case:
    """One token of each of `tokens` sequences, in cache."""
    buffers = QueryKey(tokens, 1, 32, torch.bfloat16, "bshd", device)
    positions = torch.randint(100_000, (tokens, 1), device=device)
    first = positions[0]
    inv_freq = torch.tensor(pn.rotary_frequencies(HEAD_DIM, BASE)[0], device=device)
    rope, module = pn.Rotary(HEAD_DIM, base=BASE), nn.RotaryEmbedding(HEAD_DIM, base=BASE)
    goal = None if options.quick else Goal(HOST_MICROSECONDS, "µs")

    def rotate(b: QueryKey) -> Any:
        return pn.apply_rotary_qk(b.q, b.k, positions, inv_freq, layout="bshd", inplace=True)

    rows: list[Row] = [
        copy(),
        _ours("apply_rotary_qk", "in place", rotate, goal),
        _ours(
            "Rotary", "in place",
            lambda b: rope(b.q, b.k, positions, layout="bshd", inplace=True), goal,
        ),
        _ours(
            "nn.RotaryEmbedding", "in place",
            lambda b: module(b.q, b.k, positions, layout="bshd", inplace=True), goal,
        ),
        _ours(
            "nn.RotaryEmbedding", "fresh", lambda b: module(b.q, b.k, positions, layout="bshd"),
        ),
        # Theirs have one position for all sequences, which is no more work.
        *peers.rotary(options, "bshd", "half", torch.bfloat16, first),
    ]  # fmt: skip
    return Case(name, 1, [buffers], rows, in_cache=True)


def _table(
    options: Options, device: str, shape: tuple[int, int], dtype: torch.dtype, name: str
) -> Case:
    sets = _sets(options, lambda: Memory(shape, dtype, device))
    length, dim = shape
    goal = _of_copy(options)
    rows: list[Row] = [
        copy(),
        Contestant("fill", "out=", lambda b: b.target.fill_(1.0), "fill"),
        _ours("sinusoidal", "out=", lambda b: pn.sinusoidal(length, dim, out=b.target), goal,
              "fill"),
        _ours("sinusoidal", "fresh",
              lambda b: pn.sinusoidal(length, dim, dtype=dtype, device=device), goal, "fill"),
        Contestant("plain torch", "out=", lambda b: recipe_table(b.target), "fill"),
    ]  # fmt: skip
    return Case(name, 1, sets, rows)


def _sum(
    options: Options, device: str, shape: tuple[int, ...], dtype: torch.dtype, name: str
) -> Case:
    sets = _sets(options, lambda: Memory(shape, dtype, device))
    table = recipe_table(torch.empty(shape[-2:], device=device)).to(dtype)
    goal = _of_copy(options)
    rows: list[Row] = [
        copy(),
        _ours("add_sinusoidal", "in place",
              lambda b: pn.add_sinusoidal(b.target, out=b.target), goal),
        _ours("add_sinusoidal", "out=", lambda b: pn.add_sinusoidal(b.memory, out=b.target), goal),
        _ours("add_sinusoidal", "fresh", lambda b: pn.add_sinusoidal(b.memory), goal),
        Contestant("x + table, table ready", "out=",
                   lambda b: torch.add(b.memory, table, out=b.target), "copy"),
    ]  # fmt: skip
    return Case(name, 1, sets, rows)


# (batch, tokens, query heads, dtype, layout, pairing, torch.compile of the peer too)
_PREFILL = [
    (4, 4096, 32, torch.bfloat16, "bshd", "half", True),
    (1, 4096, 32, torch.bfloat16, "bshd", "half", False),
    (16, 8192, 64, torch.bfloat16, "bshd", "half", False),
    (16, 8192, 32, torch.bfloat16, "bshd", "half", False),
    (4, 4096, 64, torch.bfloat16, "bshd", "half", False),
    (1, 4096, 64, torch.bfloat16, "bshd", "half", False),
    (4, 4096, 32, torch.bfloat16, "bhsd", "half", True),
    (16, 8192, 32, torch.bfloat16, "bhsd", "half", False),
    (4, 4096, 32, torch.bfloat16, "bshd", "interleaved", False),
    (4, 4096, 32, torch.bfloat16, "bhsd", "interleaved", False),
    (4, 4096, 32, torch.float32, "bshd", "half", False),
    (4, 4096, 32, torch.float16, "bshd", "half", False),
]


def cases(options: Options, device: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """The names of all cases, what matters most first, and what builds each."""
    without_compile = Options(options.quick, False, options.cache_bytes)

    def prefill(rows: list[Any]) -> Iterator[tuple[str, Callable[[], Case]]]:
        for batch, seq, heads, dtype, layout, pairing, compiled in rows:
            b, s = options.size(batch, 2), options.size(seq, 8)
            name = (
                f"prefill, {b} x {s} tokens, {heads} + {K_HEADS} heads, {_dtype(dtype)}, "
                f"{layout}, {pairing}"
            )
            chosen = options if compiled else without_compile
            yield (
                name,
                functools.partial(
                    _prefill, chosen, device, (b, s, heads), dtype, layout, pairing, name
                ),
            )

    if options.quick:  # their sizes would be alike
        yield from prefill(_PREFILL[7:9])
    else:
        yield from prefill(_PREFILL[:3])
    for tokens in (1, 8) if options.quick else (1, 64, 256):
        name = f"decode, {tokens} x 1 tokens, 32 + {K_HEADS} heads, bfloat16"
        yield name, functools.partial(_decode, without_compile, device, tokens, name)
    if not options.quick:
        yield from prefill(_PREFILL[3:])
    tokens = options.size(16384, 16)
    name = f"packed, {tokens} tokens, 32 + {K_HEADS} heads, bfloat16, thd"
    yield name, functools.partial(_packed, options, device, tokens, name)
    size = (options.size(4, 2), options.size(4096, 8), 32)
    name = f"backward, {size[0]} x {size[1]} tokens, 32 + {K_HEADS} heads, bfloat16, bshd"
    yield name, functools.partial(_backward, without_compile, device, size, torch.bfloat16, name)
    for dtype in (torch.float32, torch.bfloat16):
        shape = (options.size(131072, 64), HEAD_DIM)
        name = f"sinusoidal table, {shape[0]} x {shape[1]}, {_dtype(dtype)}"
        yield name, functools.partial(_table, options, device, shape, dtype, name)
    for dtype in (torch.bfloat16, torch.float32):
        activations = (options.size(8, 2), options.size(4096, 8), options.size(4096, 64))
        name = f"add sinusoidal, {' x '.join(map(str, activations))}, {_dtype(dtype)}"
        yield name, functools.partial(_sum, options, device, activations, dtype, name)
