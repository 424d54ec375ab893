"""What is timed between projection and attention: norm, rotation and cache, and their backward.

The limit of a prefill is a copy of the packed projection: q, k and v read once, and written once.
It is that of memory which is there. Fresh results take the time in which the operating system
provides it on top, and in place q is read and written where it lies.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Job, Skipped
from benchmarks.figures.judging import AtLeast, AtMost, Rule
from benchmarks.peers.contestants import (
    BASE,
    HEAD_DIM,
    NOTHING,
    Options,
    Row,
    address,
    compile_row,
    label,
    many,
    missing,
    normal,
    not_compiled,
    ours,
    tolerance,
    yardstick,
)
from benchmarks.peers.rotation import angles

Q_HEADS, K_HEADS = 32, 8
QWEN3 = "transformers.models.qwen3.modeling_qwen3"
EAGER, COMPILED = "transformers (Qwen3)", "transformers (Qwen3), torch.compile"
APART = "compiled norm, apply_rotary_qk, index_copy_"
NORMED, PLAIN, NORM = "rotary_append, norm", "rotary_append", "norm_rotary_qk"
# The same with a Rotary, as the documentation writes it.
ROTARY_APPEND, ROTARY_NORM = "Rotary.append, norm", "Rotary.norm"
NUMPY, NUMPY_ROTARY = f"NumPy: {NORMED}", f"NumPy: {ROTARY_APPEND}"
_CALL, _ADD = "torch.neg", "torch.add"

# What is to be reached. A call for one token is counted in calls of torch.neg on the same q, as in
# decode.py.
_PREFILL, _DECODE, _BACKWARD = (f"^before attention, {of}" for of in ("prefill", "decode", "back"))
GOALS = (
    Rule(f"{_PREFILL}.*float32", "out=", (AtMost(1.3),), f"^{NORMED}$"),
    Rule(f"{_PREFILL}.*float16", "out=", (AtMost(1.5),), f"^{NORMED}$"),
    Rule(_PREFILL, "out=", (AtMost(1.3),), f"^{PLAIN}$"),
    Rule(_PREFILL, "out=", (AtLeast(4.0, of=APART), AtLeast(8.0, of=COMPILED)), f"^{NORMED}$"),
    Rule(_DECODE, None, (AtMost(6.0, of=_CALL),), f"^{NORMED}$"),
    Rule(_DECODE, None, (AtMost(3.0, of=_CALL),), "^NumPy: "),
    Rule(_DECODE, "in place", (AtMost(1.1, of=NORMED),), f"^{ROTARY_APPEND}$"),
    Rule(_DECODE, "in place", (AtMost(1.1, of=NORM),), f"^{ROTARY_NORM}$"),
    Rule(_DECODE, "in place", (AtMost(1.1, of=NUMPY),), f"^{NUMPY_ROTARY}$"),
    # Both make their results anew.
    Rule(_BACKWARD, None, (AtMost(1.6, of=_ADD), AtLeast(8.0, of=COMPILED))),
)


class Projected:
    """What a projection wrote, [1, s, heads of q, k and v, d], caches, and room for as much."""

    def __init__(self, seq: int, dtype: torch.dtype) -> None:
        heads = Q_HEADS + 2 * K_HEADS
        self.qkv = normal(seq * heads * HEAD_DIM, dtype).reshape(1, seq, heads, HEAD_DIM)
        self.q, self.k, self.v = self.qkv.split([Q_HEADS, K_HEADS, K_HEADS], 2)
        self.room = torch.empty_like(self.qkv)
        self.q_out = torch.empty_like(self.q, memory_format=torch.contiguous_format).zero_()
        self.k_out = torch.empty_like(self.k, memory_format=torch.contiguous_format).zero_()
        cache = (1, max(seq, 4096), K_HEADS, HEAD_DIM)
        self.keys, self.values = torch.zeros(cache, dtype=dtype), torch.zeros(cache, dtype=dtype)
        self.work, self.out, self.nbytes = address(self.qkv), address(self.room), self.qkv.nbytes


def _weight(dtype: torch.dtype) -> Tensor:
    # Of magnitude 1: calls in place norm the same q thousands of times, and numbers that were
    # multiplied by 0.5 each time would be subnormal soon, which some processors take longer for.
    return torch.ones(HEAD_DIM, dtype=dtype).index_fill(0, torch.arange(0, HEAD_DIM, 3), -1)


def _models_own(dtype: torch.dtype, positions: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    """Norm and rotation of Qwen3, its tables made."""
    module: Any = importlib.import_module(QWEN3)
    norm = module.Qwen3RMSNorm(HEAD_DIM).to(dtype)
    norm.weight.data.copy_(_weight(dtype))
    norm.requires_grad_(False)
    both = torch.cat([angles(positions)] * 2, -1)
    cos, sin = both.cos().to(dtype), both.sin().to(dtype)

    def run(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        rotated: tuple[Tensor, Tensor] = module.apply_rotary_pos_emb(
            norm(q), norm(k), cos, sin, unsqueeze_dim=2
        )
        return rotated

    return run


def _forward(options: Options, seq: int, dtype: torch.dtype, decode: bool, name: str) -> Case:
    positions = torch.tensor([4095]) if decode else torch.arange(seq)
    inv_freq = torch.from_numpy(pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0])
    weight = _weight(dtype)
    slots = positions
    make = functools.partial(Projected, seq, dtype)
    sets = [make()] if decode else options.make_sets(make)
    layouts = {"layout": "bshd", "cache_layout": "bshd"}
    weights = {"q_weight": weight, "k_weight": weight}

    def append(b: Projected, **more: Any) -> Tensor:
        result: Tensor = pn.rotary_append(
            b.q, b.k, b.v, positions, inv_freq, b.keys, b.values, slots, **layouts, **more
        )
        return result

    def copied(b: Projected, q: Tensor, k: Tensor) -> Tensor:
        b.keys.index_copy_(1, slots, k)
        b.values.index_copy_(1, slots, b.v)
        return q

    rows: list[Row] = [
        ours(NORMED, "in place", lambda b: append(b, inplace=True, **weights)),
        ours(NORMED, "out=", lambda b: append(b, out=b.q_out, **weights)),
        ours(NORMED, "fresh", lambda b: append(b, **weights)),
        _unchecked(ours(PLAIN, "in place", lambda b: append(b, inplace=True))),
        _unchecked(ours(PLAIN, "out=", lambda b: append(b, out=b.q_out))),
        _unchecked(ours(PLAIN, "fresh", append)),
    ]
    if decode:
        rope = pn.Rotary(HEAD_DIM, base=BASE, layout="bshd")

        def append_by_rotary(b: Projected) -> None:
            rope.append(
                b.q, b.k, b.v, positions, b.keys, b.values, slots, cache_layout="bshd",
                inplace=True, **weights,
            )  # fmt: skip

        def norm(b: Projected) -> None:
            pn.norm_rotary_qk(b.q, b.k, positions, inv_freq, layout="bshd", inplace=True, **weights)

        def norm_by_rotary(b: Projected) -> None:
            rope.norm(b.q, b.k, positions, inplace=True, **weights)

        rows += [
            _unchecked(ours(name, "in place", run))
            for name, run in (
                (ROTARY_APPEND, append_by_rotary),
                (NORM, norm),
                (ROTARY_NORM, norm_by_rotary),
            )
        ]
        rows += _numpy_rows(dtype, positions, rope, weight, layouts, weights)
        rows.append(yardstick(_CALL, "fresh", lambda b: torch.neg(b.q), "copy"))
    if reason := missing("transformers", QWEN3):
        rows += [Skipped(EAGER, "fresh", reason)]
    else:
        model = _models_own(dtype, positions)

        def whole(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            rotated_q, rotated_k = model(q, k)
            keys.index_copy_(1, slots, rotated_k)
            values.index_copy_(1, slots, v)
            return rotated_q

        def call(function: Callable[..., Any], b: Projected) -> Any:
            return function(b.q, b.k, b.v, b.keys, b.values)

        rows += [
            Contestant(EAGER, "fresh", lambda b: copied(b, *model(b.q, b.k)), "copy"),
            compile_row(options, COMPILED, whole, call, "copy"),
        ]
        if not decode:

            def kept(
                q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor
            ) -> Tensor:
                return out.copy_(whole(q, k, v, keys, values))

            def call_kept(function: Callable[..., Any], b: Projected) -> Any:
                return function(b.q, b.k, b.v, b.keys, b.values, b.q_out)

            compiled = compile_row(options, COMPILED, kept, call_kept, "copy")
            rows.append(dataclasses.replace(compiled, mode="out="))
    rows += _apart(options, dtype, positions, inv_freq, weight, copied, decode)
    job = Job(
        lambda b: append(b, **weights),
        lambda b: b.q,
        lambda b: b.q_out,
        # Rounded after the norm and its product too.
        2 * tolerance(dtype, positions.numpy()),
    )
    if decode:
        rows = [*many(options, rows), NOTHING]
    return Case(name, 1, sets, rows, in_cache=decode, job=job)


def _unchecked(row: Contestant) -> Contestant:
    """Of other work than the case's, or of results that it does not look at."""
    return Contestant(row.name, row.mode, row.run, row.limit, ours=True, checked=False)


def _numpy_rows(
    dtype: torch.dtype,
    positions: Tensor,
    rope: pn.Rotary,
    weight: Tensor,
    layouts: dict[str, str],
    weights: dict[str, Tensor],
) -> list[Row]:
    names = NUMPY, NUMPY_ROTARY
    if dtype == torch.bfloat16:
        return [Skipped(name, "in place", "NumPy has no bfloat16 of its own") for name in names]
    arrays = Projected(1, dtype)
    q, k, v, keys, values = (
        x.numpy() for x in (arrays.q, arrays.k, arrays.v, arrays.keys, arrays.values)
    )
    where, inv_freq = positions.numpy(), rope.inv_freq
    named: dict[str, Any] = dict.fromkeys(weights, weight.numpy())

    def append(b: Projected) -> None:
        pn.rotary_append(
            q, k, v, where, inv_freq, keys, values, where, inplace=True, **layouts, **named
        )

    def append_by_rotary(b: Projected) -> None:
        rope.append(q, k, v, where, keys, values, where, cache_layout="bshd", inplace=True, **named)

    return [
        Contestant(name, "in place", run, "in-place scale", ours=True, checked=False)
        for name, run in zip(names, (append, append_by_rotary), strict=True)
    ]


def _apart(
    options: Options,
    dtype: torch.dtype,
    positions: Tensor,
    inv_freq: Tensor,
    weight: Tensor,
    copied: Callable[[Projected, Tensor, Tensor], Tensor],
    decode: bool,
) -> list[Row]:
    """Each step by itself, the norm compiled: what there is without these functions."""
    modes = ("fresh",) if decode else ("fresh", "out=")
    if reason := not_compiled(options, True):
        return [Skipped(APART, mode, reason, left_out=True) for mode in modes]

    def norm(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            torch.nn.functional.rms_norm(x.float(), x.shape[-1:], weight.float(), 1e-6).to(dtype)
            for x in (q, k)
        )

    def norm_to(q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor) -> tuple[Tensor, ...]:
        normed = norm(q, k)
        return q_out.copy_(normed[0]), k_out.copy_(normed[1])

    compiled, compiled_to = (torch.compile(one, dynamic=False) for one in (norm, norm_to))

    def rest(b: Projected, q: Tensor, k: Tensor) -> Tensor:
        return copied(
            b, *pn.apply_rotary_qk(q, k, positions, inv_freq, layout="bshd", inplace=True)
        )

    runs: dict[str, Callable[[Projected], Tensor]] = {
        "fresh": lambda b: rest(b, *compiled(b.q, b.k)),
        "out=": lambda b: rest(b, *compiled_to(b.q, b.k, b.q_out, b.k_out)),
    }
    return [
        Contestant(APART, mode, runs[mode], "copy", yardstick=True, warmups=3) for mode in modes
    ]


class Gradients:
    """q and k with the gradients of what they became, and room for as much."""

    def __init__(self, seq: int, dtype: torch.dtype) -> None:
        count = seq * (Q_HEADS + K_HEADS) * HEAD_DIM
        self.grads, self.result = normal(count, dtype), normal(count, dtype)
        split = seq * Q_HEADS * HEAD_DIM
        self.grad_q, self.grad_k = (
            part.reshape(1, seq, -1, HEAD_DIM) for part in (self.grads[:split], self.grads[split:])
        )
        self.work, self.out = address(self.result), address(self.grads)
        self.nbytes = self.grads.nbytes


def _backward(options: Options, seq: int, dtype: torch.dtype, name: str) -> Case:
    positions = torch.arange(seq)
    inv_freq = torch.from_numpy(pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0])
    sets = options.make_sets(lambda: Gradients(seq, dtype))

    def row(name: str, function: Callable[..., Any], mine: bool = False) -> Contestant:
        q = normal(seq * Q_HEADS * HEAD_DIM, dtype).reshape(1, seq, Q_HEADS, HEAD_DIM)
        k = normal(seq * K_HEADS * HEAD_DIM, dtype).reshape(1, seq, K_HEADS, HEAD_DIM)
        weights = [_weight(dtype).requires_grad_() for _ in range(2)]
        inputs = [q.requires_grad_(), k.requires_grad_(), *weights]
        results = function(*inputs)

        def run(b: Gradients) -> Any:
            return torch.autograd.grad(results, inputs, (b.grad_q, b.grad_k), retain_graph=True)

        return Contestant(name, "fresh", run, "in-place add", ours=mine, checked=False)

    def fused(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor) -> Any:
        return pn.norm_rotary_qk(
            q, k, positions, inv_freq, q_weight=q_weight, k_weight=k_weight, layout="bshd"
        )

    add = yardstick(_ADD, "fresh", lambda b: torch.add(b.grads, b.result), "in-place add")
    rows: list[Row] = [row("norm_rotary_qk, autograd", fused, mine=True), add]
    if reason := missing("transformers", QWEN3):
        return Case(name, 1, sets, [*rows, Skipped(EAGER, "fresh", reason)])
    module: Any = importlib.import_module(QWEN3)
    norm = module.Qwen3RMSNorm(HEAD_DIM).to(dtype)
    both = torch.cat([angles(positions)] * 2, -1)
    cos, sin = both.cos().to(dtype), both.sin().to(dtype)

    def model(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor) -> Any:
        q, k = (
            torch.func.functional_call(norm, {"weight": weight}, (x,))
            for x, weight in ((q, q_weight), (k, k_weight))
        )
        return module.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)

    rows.append(row(EAGER, model))
    if reason := not_compiled(options, True):
        rows.append(Skipped(COMPILED, "fresh", reason, left_out=True))
    else:
        rows.append(row(COMPILED, torch.compile(model, dynamic=False)))
    return Case(name, 1, sets, rows)


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As rotary.cases, on one thread."""
    if threads > 1:
        return
    shape = f"q {Q_HEADS} + k {K_HEADS} + v {K_HEADS} heads x {{}} x {HEAD_DIM}, {{}}, 1 thread"
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        seq = options.size(4096, 64)
        name = f"before attention, prefill, {shape.format(seq, label(dtype))}"
        yield name, functools.partial(_forward, options, seq, dtype, False, name)
    for dtype in (torch.float32, torch.bfloat16):
        name = f"before attention, decode, {shape.format(1, label(dtype))}"
        yield name, functools.partial(_forward, options, 1, dtype, True, name)
        seq = options.size(2048, 64)
        name = f"before attention, backward, {shape.format(seq, label(dtype))}"
        yield name, functools.partial(_backward, options, seq, dtype, name)
