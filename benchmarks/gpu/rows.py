"""What is timed on a GPU: prefill, packed tokens, backward, decode, tables, sums, relative."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant
from benchmarks.gpu import peers
from benchmarks.gpu.timing import Goal, Ours
from benchmarks.peers.contestants import BASE, HEAD_DIM, Options, Row, compile_row
from benchmarks.peers.tables import recipe_table
from posenc_native import nn

# The name of a case, and what builds it.
Named = tuple[str, Callable[[], Case]]
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
        # Addresses, as benchmarks.clock.harness.Buffers has them.
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
    return Ours(name, mode, run, limit, goal=goal)


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

    learned = inv_freq.clone().requires_grad_()

    def differentiate(
        key: str, function: Callable[..., Any], *others: torch.Tensor
    ) -> Callable[[Any], Any]:
        def run(b: Any) -> Any:
            results = b.__dict__.get(key)
            if results is None:
                results = b.__dict__[key] = function(*b.leaves)
            leaves = (*b.leaves, *others)
            return torch.autograd.grad(results, leaves, (b.q, b.k), retain_graph=True)

        return run

    def ours(q: torch.Tensor, k: torch.Tensor, frequencies: torch.Tensor = inv_freq) -> Any:
        return pn.apply_rotary_qk(q, k, positions, frequencies, layout="bshd")

    def ours_learned(q: torch.Tensor, k: torch.Tensor) -> Any:
        return ours(q, k, learned)

    rows: list[Row] = [
        copy(),
        _ours("apply_rotary_qk", "fresh", differentiate("ours", ours), _of_copy(options)),
        _ours("apply_rotary_qk, learned inv_freq", "fresh",
              differentiate("learned", ours_learned, learned), limit="two reads"),
    ]  # fmt: skip
    eager = peers.rotary(options, "bshd", "half", dtype, positions)[0]
    if isinstance(eager, Contestant):
        forward = eager.run
        run = differentiate("theirs", lambda q, k: forward(_Pair(q, k)))
        eager = Contestant(eager.name, "fresh", run, "copy")
    return Case(name, 1, sets, [*rows, eager])


def _normed(options: Options, device: str, size: tuple[int, int, int], name: str) -> Case:
    """Norm and rotation in one pass, the append, and the backward, beside torch.compile.

    vLLM has a kernel for it, which knows tables, 16 bits and in place alone.
    """
    dtype = torch.bfloat16
    sets = _sets(options, lambda: QueryKey(*size, dtype, "bshd", device))
    positions = torch.arange(size[1], device=device)
    inv_freq = torch.tensor(pn.rotary_frequencies(HEAD_DIM, BASE)[0], device=device)
    weight = torch.linspace(0.5, 1.5, HEAD_DIM, device=device).to(dtype)
    named = {"q_weight": weight, "k_weight": weight, "layout": "bshd"}
    keys, values = (torch.zeros_like(sets[0].k) for _ in range(2))

    def norm(b: Any, **more: Any) -> Any:
        return pn.norm_rotary_qk(b.q, b.k, positions, inv_freq, **named, **more)

    def append(b: Any) -> Any:
        where = (positions, inv_freq, keys, values, positions)
        return pn.rotary_append(b.q, b.k, b.k, *where, cache_layout="bshd", inplace=True, **named)

    def both(q: torch.Tensor, k: torch.Tensor) -> Any:
        normed = (torch.nn.functional.rms_norm(x, (HEAD_DIM,), weight, 1e-6) for x in (q, k))
        return pn.apply_rotary_qk(*normed, positions, inv_freq, layout="bshd")

    for b in sets:
        # Of their own: rows in place overwrite q and k.
        b.leaves = [t.detach().clone().requires_grad_() for t in (b.q, b.k)]

    def backward(b: Any) -> Any:
        if "results" not in b.__dict__:
            b.results = pn.norm_rotary_qk(*b.leaves, positions, inv_freq, **named)
        return torch.autograd.grad(b.results, b.leaves, (b.q, b.k), retain_graph=True)

    goal = _of_copy(options)
    rows: list[Row] = [
        copy(),
        _ours("norm_rotary_qk", "in place", lambda b: norm(b, inplace=True), goal),
        _ours("norm_rotary_qk", "fresh", norm, goal),
        _ours("rotary_append, norm", "in place", append),
        _ours("norm_rotary_qk, autograd", "fresh", backward, limit="two reads"),
        compile_row(
            options, "rms_norm and apply_rotary_qk, torch.compile", both,
            lambda function, b: function(b.q, b.k), "copy",
        ),
    ]  # fmt: skip
    return Case(name, 1, sets, rows)


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


# --- Relative encodings; sizes (batch, heads, queries, keys)

Size = tuple[int, int, int, int]


def _diagonals(size: Size, device: str) -> torch.Tensor:
    _, heads, queries, keys = size
    return torch.randn(heads, queries + keys - 1, device=device)


def _toeplitz_bias(
    options: Options, device: str, size: Size, dtype: torch.dtype, name: str
) -> Case:
    _, heads, queries, keys = size
    sets = _sets(options, lambda: Memory((heads, queries, keys), dtype, device))
    diagonals = _diagonals(size, device)
    goal = _of_copy(options)

    def ours(out: torch.Tensor | None) -> torch.Tensor:
        return pn.toeplitz_bias(diagonals, queries, keys, dtype=dtype, out=out)

    rows: list[Row] = [
        copy(),
        Contestant("fill", "out=", lambda b: b.target.fill_(1.0), "fill"),
        _ours("toeplitz_bias", "out=", lambda b: ours(b.target), goal, "fill"),
        _ours("toeplitz_bias", "fresh", lambda b: ours(None), goal, "fill"),
        Contestant("unfold, flip", "out=",
                   lambda b: b.target.copy_(diagonals.unfold(-1, keys, 1).flip(1)), "fill"),
    ]  # fmt: skip
    return Case(name, 1, sets, rows)


def _add_toeplitz(
    options: Options, device: str, size: Size, dtype: torch.dtype, aligned: bool, name: str
) -> Case:
    sets = _sets(options, lambda: Memory(size, dtype, device))
    diagonals = _diagonals(size, device)
    bias = pn.toeplitz_bias(diagonals, size[2], size[3], dtype=dtype)
    goal = _of_copy(options) if aligned else None
    rows: list[Row] = [
        copy(),
        _ours("add_toeplitz_bias", "in place",
              lambda b: pn.add_toeplitz_bias(b.target, diagonals, out=b.target), goal),
        _ours("add_toeplitz_bias", "out=",
              lambda b: pn.add_toeplitz_bias(b.memory, diagonals, out=b.target), goal),
        _ours("add_toeplitz_bias", "fresh",
              lambda b: pn.add_toeplitz_bias(b.memory, diagonals), goal),
        Contestant("scores + bias, bias ready", "out=",
                   lambda b: torch.add(b.memory, bias, out=b.target), "copy"),
    ]  # fmt: skip
    return Case(name, 1, sets, rows)


def _add_grid(
    options: Options, device: str, windows: int, heads: int, side: int, name: str
) -> Case:
    """Swin's windows: one bias for all of them."""
    size = (windows, heads, side * side, side * side)
    sets = _sets(options, lambda: Memory(size, torch.bfloat16, device))
    table = torch.randn(heads, 2 * side - 1, 2 * side - 1, device=device)
    grid = {"q_len": (side, side), "k_len": (side, side)}
    bias = pn.toeplitz_bias(table, (side, side), (side, side), dtype=torch.bfloat16)
    shape = table.shape
    rows: list[Row] = [
        copy(),
        _ours("add_toeplitz_bias", "in place",
              lambda b: pn.add_toeplitz_bias(b.target, table, out=b.target, **grid)),
        Contestant("scores + bias, bias ready", "in place", lambda b: b.target.add_(bias), "copy"),
        Contestant("sum", "fresh", lambda b: b.memory.sum(), "read"),
        _ours("diagonal_sums", "fresh",
              lambda b: pn.diagonal_sums(b.memory, entries=tuple(shape[1:]), **grid), limit="read"),
    ]  # fmt: skip
    return Case(name, 1, sets, rows)


def _diagonal_sums(
    options: Options, device: str, size: Size, dtype: torch.dtype, name: str
) -> Case:
    sets = _sets(options, lambda: Memory(size, dtype, device))
    goal = _of_copy(options)
    rows: list[Row] = [
        copy(),
        Contestant("sum", "fresh", lambda b: b.memory.sum(), "read"),
        _ours("diagonal_sums", "fresh", lambda b: pn.diagonal_sums(b.memory), goal, "read"),
    ]
    return Case(name, 1, sets, rows)


class Looked(Memory):
    """Scores [.., keys], and x [.., width] to gather them from or to scatter them to."""

    def __init__(self, size: Size, width: int, dtype: torch.dtype, device: str) -> None:
        super().__init__(size, dtype, device)
        self.x = torch.randn((*size[:-1], width), dtype=dtype, device=device)


def _look_up(
    options: Options, device: str, size: Size, dtype: torch.dtype, clip: int | None, name: str
) -> Case:
    """Transformer-XL's shift, or distances clipped at `clip` as Shaw's are."""
    queries, keys = size[2:]
    width = queries + keys - 1 if clip is None else 2 * clip + 1
    sets = _sets(options, lambda: Looked(size, width, dtype, device))
    index, goal = None, _of_copy(options)
    if clip is not None:
        distances = torch.arange(queries + keys - 1, device=device) - (queries - 1)
        index, goal = distances.clamp(-clip, clip) + clip, None
    rows: list[Row] = [
        copy(),
        _ours("relative_gather", "out=",
              lambda b: pn.relative_gather(b.x, index, keys, out=b.target), goal),
        _ours("relative_gather of content", "out=",
              lambda b: pn.relative_gather(b.x, index, keys, content=b.memory, scale=0.125,
                                           out=b.target), None, "two reads"),
        _ours("relative_scatter", "out=",
              lambda b: pn.relative_scatter(b.memory, index, width, out=b.x)),
    ]  # fmt: skip
    if index is not None:
        columns = index[queries - 1 + _steps(queries, keys, device)].expand(size)
        rows.append(
            Contestant("torch.gather, columns ready", "out=",
                       lambda b: torch.gather(b.x, -1, columns, out=b.target), "copy")
        )  # fmt: skip
    return Case(name, 1, sets, rows)


def _steps(queries: int, keys: int, device: str) -> torch.Tensor:
    """j - i"""
    return torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None]


def _decode_bias(options: Options, device: str, batch: int, keys: int, name: str) -> Case:
    """One query of each sequence, at a position of its own, from a table made once; in cache."""
    buffers = Memory((batch, 32, 1, keys), torch.bfloat16, device)
    diagonals = torch.randn(32, 2 * keys, device=device)
    q_offset = torch.randint(keys, (batch,), device=device)
    rows: list[Row] = [
        copy(),
        _ours("add_toeplitz_bias", "in place",
              lambda b: pn.add_toeplitz_bias(b.target, diagonals, q_offset=q_offset, origin=keys,
                                             out=b.target)),
    ]  # fmt: skip
    return Case(name, 1, [buffers], rows, in_cache=True)


def _relative_cases(options: Options, device: str) -> list[list[Named]]:
    """The families of relative encodings."""

    def size(batch: int, heads: int, queries: int, keys: int) -> Size:
        length = options.size(queries, 33), options.size(keys, 40)
        return (options.size(batch, 2), options.size(heads, 2), *length)

    def case(
        kind: str, build: Callable[..., Case], of: Size, dtype: torch.dtype, *more: Any
    ) -> Named:
        name = f"{kind}, {' x '.join(map(str, of))}, {_dtype(dtype)}"
        return name, functools.partial(build, options, device, of, dtype, *more, name)

    dtypes = (torch.bfloat16, torch.float32)
    one, many = size(1, 32, 4096, 4096), size(4, 16, 2048, 2048)
    odd = (options.size(4, 1), options.size(16, 1), options.size(2047, 21), options.size(2047, 21))
    windows = options.size(8192, 3)
    grid = f"windows of a grid, {windows} x 4 x 49 x 49, bfloat16"
    batch, keys = options.size(64, 2), options.size(8192, 64)
    decode = f"decode with a bias, {batch} x 32 x 1 x {keys}, bfloat16"
    return [
        [case("bias of diagonals", _toeplitz_bias, one, dtype) for dtype in dtypes],
        [
            *(case("add bias", _add_toeplitz, many, dtype, True) for dtype in dtypes),
            case("add bias", _add_toeplitz, odd, torch.bfloat16, False),
        ],
        [case("diagonal sums", _diagonal_sums, many, dtype) for dtype in dtypes],
        [case("shift", _look_up, many, dtype, None) for dtype in dtypes],
        [case("look-ups", _look_up, many, torch.bfloat16, 64)],
        [(grid, functools.partial(_add_grid, options, device, windows, 4, 7, grid))],
        [(decode, functools.partial(_decode_bias, options, device, batch, keys, decode))],
    ]


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


def cases(options: Options, device: str) -> list[Named]:
    """The names of all cases and what builds each.

    Families take turns, each with what matters most first: a run that is cut off has some of each.
    """
    without_compile = Options(options.quick, False, options.cache_bytes)

    def prefill(
        batch: int, seq: int, heads: int, dtype: torch.dtype, layout: str, pairing: str,
        compiled: bool,
    ) -> Named:  # fmt: skip
        b, s = options.size(batch, 2), options.size(seq, 8)
        name = (
            f"prefill, {b} x {s} tokens, {heads} + {K_HEADS} heads, {_dtype(dtype)}, "
            f"{layout}, {pairing}"
        )
        chosen = options if compiled else without_compile
        build = functools.partial(
            _prefill, chosen, device, (b, s, heads), dtype, layout, pairing, name
        )
        return name, build

    def decode(tokens: int) -> Named:
        name = f"decode, {tokens} x 1 tokens, 32 + {K_HEADS} heads, bfloat16"
        return name, functools.partial(_decode, without_compile, device, tokens, name)

    def packed(tokens: int) -> Named:
        name = f"packed, {tokens} tokens, 32 + {K_HEADS} heads, bfloat16, thd"
        return name, functools.partial(_packed, options, device, tokens, name)

    def backward(batch: int, seq: int) -> Named:
        size, dtype = (batch, seq, 32), torch.bfloat16
        name = f"backward, {batch} x {seq} tokens, 32 + {K_HEADS} heads, bfloat16, bshd"
        return name, functools.partial(_backward, without_compile, device, size, dtype, name)

    def normed(batch: int, seq: int) -> Named:
        name = f"norm and rotation, {batch} x {seq} tokens, 32 + {K_HEADS} heads, bfloat16, bshd"
        return name, functools.partial(_normed, options, device, (batch, seq, 32), name)

    def table(length: int, dtype: torch.dtype) -> Named:
        shape = (length, HEAD_DIM)
        name = f"sinusoidal table, {length} x {HEAD_DIM}, {_dtype(dtype)}"
        return name, functools.partial(_table, options, device, shape, dtype, name)

    def add(shape: tuple[int, int, int], dtype: torch.dtype) -> Named:
        name = f"add sinusoidal, {' x '.join(map(str, shape))}, {_dtype(dtype)}"
        return name, functools.partial(_sum, options, device, shape, dtype, name)

    activations = (options.size(8, 2), options.size(4096, 8), options.size(4096, 64))
    families = [
        # Quick, the sizes of all would be alike.
        [prefill(*row) for row in (_PREFILL[7:9] if options.quick else _PREFILL)],
        [decode(tokens) for tokens in ((1, 8) if options.quick else (1, 64, 256))],
        [packed(options.size(16384, 16))],
        [backward(options.size(4, 2), options.size(4096, 8))],
        [normed(options.size(4, 2), options.size(4096, 8))],
        [table(options.size(131072, 64), dtype) for dtype in (torch.float32, torch.bfloat16)],
        [add(activations, dtype) for dtype in (torch.bfloat16, torch.float32)],
        *_relative_cases(options, device),
    ]
    turns = itertools.zip_longest(*families)
    return [case for turn in turns for case in turn if case is not None]
