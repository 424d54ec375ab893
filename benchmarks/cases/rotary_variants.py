"""What is timed for variants of rotary: rounding as written, learned frequencies, moved keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Job
from benchmarks.peers.contestants import (
    BASE,
    HEAD_DIM,
    Activations,
    Options,
    QueryKey,
    Row,
    compile_row,
    label,
    ours,
    tolerance,
)
from benchmarks.peers.rotary import transformers_rotary

# Shapes of learned frequencies, and what has frequencies of its own there.
KINDS = {"[P]": "all heads", "[H, P]": "each head", "[A, H, P]": "each head and axis"}


def _as_written(options: Options, seq: int, dtype: torch.dtype, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: QueryKey(seq, dtype))
    positions = torch.arange(seq)
    inv_freq = torch.from_numpy(pn.rotary_frequencies(HEAD_DIM, BASE)[0])
    cos, sin = pn.rotary_tables(positions, inv_freq, dtype=dtype)

    def rotate(compute: str, inplace: bool, b: QueryKey) -> Any:
        return pn.apply_rotary_qk_tables(b.q, b.k, cos, sin, compute=compute, inplace=inplace)

    rows: list[Row] = [
        ours(f'compute="{compute}"', mode, functools.partial(rotate, compute, mode == "in place"))
        for compute in ("as_written", "float32")
        for mode in ("in place", "fresh")
    ]
    rows += transformers_rotary(options, "half", dtype, positions)
    job = Job(
        functools.partial(rotate, "float32", False),
        lambda b: (b.q, b.k),
        lambda b: (b.out_q, b.out_k),
        tolerance(dtype, positions.numpy()),
    )
    return Case(name, threads, sets, rows, job=job)


def _composed(x: torch.Tensor, positions: torch.Tensor, inv_freq: torch.Tensor) -> torch.Tensor:
    """x [1, H, s, d] by frequencies [H, P] or [A, H, P] of positions [s] or [A, s]."""
    if inv_freq.ndim == 3:  # as RoPE-Mixed: a sum over the axes of the position
        angles = torch.einsum("as,ahp->hsp", positions.float(), inv_freq)
    else:
        angles = positions.float()[:, None] * inv_freq[:, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _learned(
    options: Options, seq: int, kind: str, dtype: torch.dtype, threads: int, name: str
) -> Case:
    shape = (1, options.size(16, 2), seq, HEAD_DIM)
    sets = options.make_sets(lambda: Activations(shape, dtype))
    plain = torch.from_numpy(pn.rotary_frequencies(HEAD_DIM, BASE)[0]).float()
    of_heads = plain.repeat(shape[1], 1)
    inv_freq = {"[P]": plain[None], "[H, P]": of_heads, "[A, H, P]": torch.stack([of_heads] * 2)}
    leaf = inv_freq[kind].clone().requires_grad_()
    positions = torch.arange(seq)
    if kind == "[A, H, P]":
        positions = torch.stack((positions // 64, positions % 64))

    def train(rotate: Callable[..., torch.Tensor], b: Activations) -> Any:
        x = b.x.detach().requires_grad_()
        return torch.autograd.grad(rotate(x, positions, leaf), (x, leaf), b.result)

    rows: list[Row] = [
        ours("apply_rotary", "fresh", functools.partial(train, pn.apply_rotary)),
        Contestant("composition, eager", "fresh", functools.partial(train, _composed), "copy"),
        compile_row(options, "composition, torch.compile", _composed, train, "copy"),
    ]
    expected = functools.partial(train, pn.apply_rotary)
    error = tolerance(dtype, positions.numpy())
    return Case(name, threads, sets, rows, job=Job(expected, expected, expected, error))


def _key_cache(options: Options, seq: int, dtype: torch.dtype, threads: int, name: str) -> Case:
    shape = (1, 8, seq, HEAD_DIM)
    sets = options.make_sets(lambda: Activations(shape, dtype))
    rope = pn.Rotary(HEAD_DIM, base=BASE)
    longer = pn.Rotary(HEAD_DIM, base=BASE, scaling={"rope_type": "linear", "factor": 4.0})
    old, new = torch.arange(seq) + 512, torch.arange(seq)

    def move(new_rope: pn.Rotary, b: Activations) -> None:
        pn.rerotate(b.x, old, new, rope, new_rope, out=b.x)

    rows = [
        ours("rerotate: positions", "in place", functools.partial(move, rope)),
        ours("rerotate: positions, frequencies", "in place", functools.partial(move, longer)),
        ours("rerotate: positions", "fresh", lambda b: pn.rerotate(b.x, old, new, rope)),
        Contestant(
            "scale", "in place", lambda b: b.x.mul_(1.0001), "in-place scale", yardstick=True
        ),
    ]
    return Case(name, threads, sets, rows)


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As rotary.cases, for variants of rotary; on several threads with --exhaustive."""
    if threads > 1 and not options.exhaustive:
        return
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    seq = options.size(4096, 64)
    for dtype in (torch.bfloat16, torch.float16):
        size = f"q 32 + k 8 heads x {seq} x {HEAD_DIM}"
        name = f"rotary: by tables, {size}, {label(dtype)}, {suffix}"
        yield name, functools.partial(_as_written, options, seq, dtype, threads, name)
    for kind, whose in KINDS.items():
        both_ways = "forward and backward"
        for dtype in (torch.float32, torch.bfloat16):
            size = f"16 heads x {seq} x {HEAD_DIM}"
            name = f"rotary: learned for {whose}, {both_ways}, {size}, {label(dtype)}, {suffix}"
            yield name, functools.partial(_learned, options, seq, kind, dtype, threads, name)
    long = options.size(32768, 64)
    name = f"rotary: key cache, 8 heads x {long} x {HEAD_DIM}, torch bfloat16, {suffix}"
    yield name, functools.partial(_key_cache, options, long, torch.bfloat16, threads, name)
