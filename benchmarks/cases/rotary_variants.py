"""What is timed for variants of rotary: rounding as written, tables of each head and of the whole
width, learned frequencies, moved keys."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Job
from benchmarks.figures.judging import AtMost, Rule
from benchmarks.peers.contestants import (
    BASE,
    HEAD_DIM,
    Activations,
    Options,
    QueryKey,
    Row,
    address,
    compile_row,
    label,
    normal,
    ours,
    tolerance,
)
from benchmarks.peers.packages import timm_positions
from benchmarks.peers.rotary import transformers_rotary

GOALS = (
    Rule("^rotary: tables of each head.* 1 thread$", "in place", (AtMost(1.3),)),
    Rule("^rotary: tables of the whole width.* 1 thread$", "in place", (AtMost(1.5),)),
)

# Shapes of learned frequencies, and what has frequencies of its own there.
KINDS = {"[P]": "all heads", "[H, P]": "each head", "[A, H, P]": "each head and axis"}


def _as_written(options: Options, seq: int, dtype: torch.dtype, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: QueryKey(seq, dtype))
    positions = torch.arange(seq)
    inv_freq = torch.from_numpy(pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0])
    cos, sin = pn.rotary_tables(positions, inv_freq, dtype=dtype)

    def rotate(compute: str, inplace: bool, b: QueryKey) -> Any:
        return pn.apply_rotary_qk(
            b.q, b.k, None, pn.Tables(cos, sin, compute=compute), inplace=inplace
        )

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


class _WithTables:
    """x [b, h, s, d] or [b, s, d], its result, and tables [.., P] that are as cold as x is.

    The memory limits read and write x and half of the tables' bytes: as many bytes as x read and
    written and the tables read.
    """

    def __init__(
        self, shape: tuple[int, ...], table: tuple[int, ...], dtype: Any, table_dtype: Any
    ) -> None:
        count, angles = math.prod(shape), torch.rand(table) * (2 * math.pi)
        self.cos, self.sin = angles.cos().to(table_dtype), angles.sin().to(table_dtype)
        whole = [normal(count + self.cos.nbytes // dtype.itemsize, dtype) for _ in range(2)]
        self.x, self.result = (one[:count].reshape(shape) for one in whole)
        self.work, self.out, self.nbytes = address(whole[0]), address(whole[1]), whole[0].nbytes


def _tables_of_each(
    options: Options, shape: tuple[int, ...], table: tuple[int, ...], pairing: str,
    dtype: torch.dtype, threads: int, name: str,
) -> Case:  # fmt: skip
    sets = options.make_sets(lambda: _WithTables(shape, table, dtype, torch.float32))
    # Without heads, a rotation of the whole width is that of one head.
    whole = len(shape) == 3

    def rotate(b: _WithTables, out: torch.Tensor | None) -> Any:
        x = b.x[:, :, None] if whole else b.x
        if out is not None and whole:
            out = out[:, :, None]
        layout = "bshd" if whole else "bhsd"
        return pn.apply_rotary(
            x, None, pn.Tables(b.cos, b.sin), layout=layout, pairing=pairing, out=out
        )

    def eager(b: _WithTables) -> torch.Tensor:
        return _as_timm(b.x, b.sin, b.cos, pairing == "half")

    rows: list[Row] = [
        ours("apply_rotary by tables", "in place", lambda b: rotate(b, b.x)),
        ours("apply_rotary by tables", "out=", lambda b: rotate(b, b.result)),
        ours("apply_rotary by tables", "fresh", lambda b: rotate(b, None).reshape(shape)),
        Contestant("timm", "fresh", eager, "copy"),
    ]
    job = Job(
        lambda b: rotate(b, None).reshape(shape),
        lambda b: b.x,
        lambda b: b.result,
        tolerance(dtype, np.zeros(1)),
    )
    return Case(name, threads, sets, rows, job=job)


def _as_timm(x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, half: bool) -> torch.Tensor:
    """timm's rotation, which takes sines and cosines of the full width in one table."""
    both = [torch.cat((t, t), -1) if half else t.repeat_interleave(2, -1) for t in (sin, cos)]
    return timm_positions().apply_rot_embed_cat(x, torch.cat(both, -1), half=half)  # type: ignore[no-any-return]


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
    plain = torch.from_numpy(pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0]).float()
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
    batch, width = options.size(4, 1), options.size(2048, 64)
    for dtype in (torch.float32, torch.bfloat16):
        for pairing in ("interleaved", "half"):
            shape = (batch, 12, 196, 64)
            for rows, of in ((1, "each head"), (batch, "each head and row")):
                size = " x ".join(map(str, shape))
                name = f"rotary: tables of {of}, {size}, {label(dtype)}, {pairing}, {suffix}"
                table = (rows, 12, 196, 32)
                yield (
                    name,
                    functools.partial(
                        _tables_of_each, options, shape, table, pairing, dtype, threads, name
                    ),
                )
        flat = (1, options.size(4096, 64), width)
        size = " x ".join(map(str, flat))
        name = f"rotary: tables of the whole width, {size}, {label(dtype)}, interleaved, {suffix}"
        table = (*flat[:2], width // 2)
        yield (
            name,
            functools.partial(
                _tables_of_each, options, flat, table, "interleaved", dtype, threads, name
            ),
        )
    for kind, whose in KINDS.items():
        both_ways = "forward and backward"
        for dtype in (torch.float32, torch.bfloat16):
            size = f"16 heads x {seq} x {HEAD_DIM}"
            name = f"rotary: learned for {whose}, {both_ways}, {size}, {label(dtype)}, {suffix}"
            yield name, functools.partial(_learned, options, seq, kind, dtype, threads, name)
    long = options.size(32768, 64)
    name = f"rotary: key cache, 8 heads x {long} x {HEAD_DIM}, torch bfloat16, {suffix}"
    yield name, functools.partial(_key_cache, options, long, torch.bfloat16, threads, name)
