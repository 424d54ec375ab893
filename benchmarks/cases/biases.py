"""What is timed: the biases of T5, ALiBi and Swin, and the code of models."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Skipped
from benchmarks.peers.contestants import Activations, Options, Row, compile_row, missing, ours
from posenc_native import nn

from .scores import HEADS, frozen, gradient_of, job_of, returned, shape_of, sums_job

# ----------------------------------------------------------------------------------------------- T5


def t5_peer() -> Any:
    """T5Attention of transformers, with a bias of its own."""
    module = importlib.import_module("transformers.models.t5.modeling_t5")
    config = importlib.import_module("transformers").T5Config(num_heads=HEADS)
    return module.T5Attention(config, has_relative_attention_bias=True)


def t5_bias(options: Options, length: int, threads: int, name: str) -> Case:
    """Bias added to scores, no gradient: what the first layer of a T5 does."""
    sets = options.make_sets(lambda: Activations((1, *shape_of(length)), torch.float32))
    module = frozen(nn.T5RelativeBias(HEADS))
    rows: list[Row] = [
        ours("nn.T5RelativeBias", "in place", lambda b: module(b.x, inplace=True)),
        ours("nn.T5RelativeBias", "fresh", lambda b: module(b.x)),
    ]
    peer = "transformers (T5)"
    if reason := missing("transformers", "transformers.models.t5.modeling_t5"):
        return Case(name, threads, sets, [*rows, Skipped(peer, "fresh", reason)])
    attention = frozen(t5_peer())
    module.weight.copy_(attention.relative_attention_bias.weight)
    bias = attention.compute_bias(length, length).contiguous()

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + attention.compute_bias(length, length)

    def add_in_place(x: torch.Tensor) -> torch.Tensor:
        return x.add_(attention.compute_bias(length, length))

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return function(b.x)

    rows += [
        Contestant(f"{peer}, bias ready", "in place", lambda b: b.x.add_(bias), "in-place scale"),
        Contestant(f"{peer}, bias ready", "fresh", lambda b: b.x + bias, "copy"),
        Contestant(f"{peer}, eager", "in place", lambda b: add_in_place(b.x), "in-place scale"),
        Contestant(f"{peer}, eager", "fresh", lambda b: add(b.x), "copy"),
        compile_row(
            options, f"{peer}, torch.compile", add_in_place, call, "in-place scale", "in place"
        ),
        compile_row(options, f"{peer}, torch.compile", add, call, "copy"),
    ]
    job = job_of(torch.float32, lambda b: module(b.x), lambda b: b.x)
    return Case(name, threads, sets, rows, job=job)


def t5_bias_gradient(options: Options, length: int, threads: int, name: str) -> Case:
    """Bias added to scores, and the gradient of the table from that of the scores."""
    sets = options.make_sets(lambda: Activations((1, *shape_of(length)), torch.float32))
    module = nn.T5RelativeBias(HEADS)
    limit = "in-place add"  # scores are read and written, their gradient is read
    rows: list[Row] = [
        dataclasses.replace(
            ours(
                "nn.T5RelativeBias",
                "in place",
                gradient_of(lambda x: module(x, inplace=True), module.weight),
                limit=limit,
            ),
            result=returned,
        ),
        ours("nn.T5RelativeBias", "fresh", gradient_of(module, module.weight), limit=limit),
    ]
    peer = "transformers (T5)"
    if reason := missing("transformers", "transformers.models.t5.modeling_t5"):
        return Case(name, threads, sets, [*rows, Skipped(peer, "fresh", reason)])
    attention = t5_peer()
    weight = attention.relative_attention_bias.weight
    module.weight.data.copy_(weight.data)

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + attention.compute_bias(length, length)

    def add_in_place(x: torch.Tensor) -> torch.Tensor:
        return x.add_(attention.compute_bias(length, length))

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return gradient_of(function, weight)(b)

    rows += [
        Contestant(
            f"{peer}, eager",
            "in place",
            gradient_of(add_in_place, weight),
            limit,
            result=returned,
        ),
        Contestant(f"{peer}, eager", "fresh", gradient_of(add, weight), limit),
        compile_row(options, f"{peer}, torch.compile", add, call, limit),
    ]
    job = sums_job(lambda b: gradient_of(module, module.weight)(b)[0])
    return Case(name, threads, sets, rows, job=job)


# -------------------------------------------------------------------------------------------- ALiBi


def alibi_bias(options: Options, length: int, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: Activations((1, *shape_of(length)), torch.float32))
    module = nn.ALiBi(HEADS)
    slopes = torch.from_numpy(pn.alibi_slopes(HEADS)).float()[:, None, None]

    def columns(b: Activations) -> Any:
        return b.x.add_(pn.alibi_columns(HEADS, length, device="cpu"))

    def add_in_place(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(length)
        return x.sub_(slopes * (steps - steps[:, None]).abs())

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return function(b.x)

    plain = "slopes * distances"
    rows: list[Row] = [
        ours("nn.ALiBi", "in place", lambda b: module(b.x, inplace=True)),
        ours("nn.ALiBi", "fresh", lambda b: module(b.x)),
        # A softmax makes the same of it, as of MPT's and BLOOM's.
        dataclasses.replace(ours("scores.add_(alibi_columns)", "in place", columns), checked=False),
        Contestant(
            f"{plain}, eager", "in place", functools.partial(call, add_in_place), "in-place scale"
        ),
        compile_row(
            options, f"{plain}, torch.compile", add_in_place, call, "in-place scale", "in place"
        ),
    ]
    # Both add a number for each key, the same for all queries: cheaper work, so no peers.
    peer = "transformers (MPT)"
    if reason := missing("transformers", "transformers.models.mpt.modeling_mpt"):
        rows.append(Skipped(peer, "fresh", reason))
    else:
        build = importlib.import_module(
            "transformers.models.mpt.modeling_mpt"
        ).build_mpt_alibi_tensor
        rows += [
            Contestant(
                peer,
                "in place",
                lambda b: b.x.add_(build(HEADS, length)),
                "in-place scale",
                yardstick=True,
                checked=False,
            ),
            Contestant(
                peer,
                "fresh",
                lambda b: b.x + build(HEADS, length),
                "copy",
                yardstick=True,
                checked=False,
            ),
        ]
    peer = "transformers (BLOOM)"
    if reason := missing("transformers", "transformers.models.bloom.modeling_bloom"):
        rows.append(Skipped(peer, "in place", reason))
    else:
        bloom = importlib.import_module("transformers.models.bloom.modeling_bloom")
        mask = torch.ones(1, length, dtype=torch.long)
        rows.append(
            Contestant(
                peer,
                "in place",
                lambda b: b.x.add_(bloom.build_alibi_tensor(mask, HEADS, torch.float32)),
                "in-place scale",
                yardstick=True,
                checked=False,
            )
        )
    job = job_of(torch.float32, lambda b: module(b.x), lambda b: b.x)
    return Case(name, threads, sets, rows, job=job)


def alibi_bias_gradient(options: Options, length: int, threads: int, name: str) -> Case:
    """Bias added to scores, and the gradient of learned slopes from that of the scores."""
    sets = options.make_sets(lambda: Activations((1, *shape_of(length)), torch.float32))
    module = nn.ALiBi(HEADS, learned=True)
    slopes = torch.from_numpy(pn.alibi_slopes(HEADS)).float()[:, None, None].requires_grad_()
    limit = "in-place add"  # scores are read and written, their gradient is read

    def add(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(length)
        return x - slopes * (steps - steps[:, None]).abs()

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return gradient_of(function, slopes)(b)

    def flat(gradient: Any) -> Any:
        return gradient[0].flatten()

    own = gradient_of(module, module.slopes)
    plain = "slopes * distances"
    rows: list[Row] = [
        dataclasses.replace(ours("nn.ALiBi, learned", "fresh", own, limit=limit), result=flat),
        Contestant(f"{plain}, eager", "fresh", functools.partial(call, add), limit, result=flat),
        compile_row(options, f"{plain}, torch.compile", add, call, limit, result=flat),
    ]
    return Case(name, threads, sets, rows, job=sums_job(lambda b: flat(own(b))))


# --------------------------------------------------------------------------------------------- Swin

WINDOW = (7, 7)


def swin_shape(options: Options) -> tuple[int, int, int, int]:
    """Swin-T's first stage: 64 windows an image of 224 x 224, 3 heads, 8 images."""
    return options.size(8 * 64, 4), 3, 49, 49


def swin_peer() -> Any:
    """Swin's bias in transformers, with a table that is not zero; None if it is not installed."""
    if missing("transformers", "transformers.models.swin.modeling_swin"):
        return None
    module = importlib.import_module("transformers.models.swin.modeling_swin")
    if not hasattr(module, "SwinRelativePositionBias"):
        return None
    bias = module.SwinRelativePositionBias(3, WINDOW)
    torch.nn.init.normal_(bias.relative_position_bias_table, std=0.02)
    return bias


SWIN = "transformers (Swin)"


def _swin_missing() -> Skipped:
    return Skipped(SWIN, "fresh", missing("transformers") or "not in this release")


def swin_bias(options: Options, dtype: torch.dtype, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: Activations(swin_shape(options), dtype))
    module = frozen(nn.SwinRelativeBias(3, WINDOW).to(dtype))
    rows: list[Row] = [
        ours("nn.SwinRelativeBias", "in place", lambda b: module(b.x, inplace=True)),
        ours("nn.SwinRelativeBias", "fresh", lambda b: module(b.x)),
    ]
    if (peer := swin_peer()) is None:
        return Case(name, threads, sets, [*rows, _swin_missing()])
    peer = frozen(peer.to(dtype))
    module.relative_position_bias_table.copy_(peer.relative_position_bias_table)
    ready = peer()

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + peer()

    def add_in_place(x: torch.Tensor) -> torch.Tensor:
        return x.add_(peer())

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return function(b.x)

    rows += [
        Contestant(f"{SWIN}, bias ready", "in place", lambda b: b.x.add_(ready), "in-place scale"),
        Contestant(
            f"{SWIN}, eager", "in place", functools.partial(call, add_in_place), "in-place scale"
        ),
        Contestant(f"{SWIN}, eager", "fresh", functools.partial(call, add), "copy"),
        compile_row(
            options, f"{SWIN}, torch.compile", add_in_place, call, "in-place scale", "in place"
        ),
        compile_row(options, f"{SWIN}, torch.compile", add, call, "copy"),
    ]
    job = job_of(dtype, lambda b: module(b.x), lambda b: b.x)
    return Case(name, threads, sets, rows, job=job)


def swin_bias_gradient(options: Options, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: Activations(swin_shape(options), torch.float32))
    module = nn.SwinRelativeBias(3, WINDOW)
    table = module.relative_position_bias_table
    limit = "in-place add"
    rows: list[Row] = [
        dataclasses.replace(
            ours(
                "nn.SwinRelativeBias",
                "in place",
                gradient_of(lambda x: module(x, inplace=True), table),
                limit=limit,
            ),
            result=returned,
        ),
        ours("nn.SwinRelativeBias", "fresh", gradient_of(module, table), limit=limit),
    ]
    if (peer := swin_peer()) is None:
        return Case(name, threads, sets, [*rows, _swin_missing()])
    weight = peer.relative_position_bias_table
    table.data.copy_(weight.data)

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + peer()

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return gradient_of(function, weight)(b)

    rows += [
        Contestant(
            f"{SWIN}, eager",
            "in place",
            gradient_of(lambda x: x.add_(peer()), weight),
            limit,
            result=returned,
        ),
        Contestant(f"{SWIN}, eager", "fresh", gradient_of(add, weight), limit),
        compile_row(options, f"{SWIN}, torch.compile", add, call, limit),
    ]
    job = sums_job(lambda b: gradient_of(module, table)(b)[0])
    return Case(name, threads, sets, rows, job=job)
