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
from benchmarks.peers.contestants import (
    Activations,
    Options,
    Row,
    compile_row,
    missing,
    ours,
    yardstick,
)
from posenc_native import nn

from .scores import HEADS, frozen, gradient_of, job_of, shape_of, sums_job

# Makes the bias of a peer, anew in each call.
Make = Callable[[], torch.Tensor]


def _scores(options: Options, length: int) -> list[Any]:
    return options.make_sets(lambda: Activations((1, *shape_of(length)), torch.float32))


def _called(function: Callable[..., Any], b: Activations) -> Any:
    return function(b.x)


def _adds(make: Make) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """What adds a peer's bias, by mode."""
    return {"in place": lambda x: x.add_(make()), "fresh": lambda x: x + make()}


_LIMITS = {"in place": "in-place scale", "fresh": "copy"}


def _forward(
    options: Options,
    sets: list[Any],
    about: tuple[str, int],
    module: Any,
    peer: str,
    make: Make | None,
    *,
    ready: bool = True,
    modes: tuple[str, ...] = ("in place", "fresh"),
) -> Case:
    """A bias added to scores, by a module and by a peer: ready, eager and compiled."""
    (name, threads), dtype = about, sets[0].x.dtype
    mine = f"nn.{type(module).__name__}"
    rows: list[Row] = [
        ours(mine, "in place", lambda b: module(b.x, inplace=True)),
        ours(mine, "fresh", lambda b: module(b.x)),
    ]
    if make is None:
        return Case(name, threads, sets, [*rows, Skipped(peer, "fresh", _why_not())])
    if ready:
        bias = make().contiguous()
        for mode, add in _adds(lambda: bias).items():
            run = functools.partial(_called, add)
            rows.append(Contestant(f"{peer}, bias ready", mode, run, _LIMITS[mode]))
    adds = {mode: add for mode, add in _adds(make).items() if mode in modes}
    for mode, add in adds.items():
        run = functools.partial(_called, add)
        rows.append(Contestant(f"{peer}, eager", mode, run, _LIMITS[mode]))
    rows += [
        compile_row(options, f"{peer}, torch.compile", add, _called, _LIMITS[mode], mode)
        for mode, add in adds.items()
    ]
    job = job_of(dtype, lambda b: module(b.x), lambda b: b.x)
    return Case(name, threads, sets, rows, job=job)


def _why_not() -> str:
    return missing("transformers") or "not in this release"


def _backward(
    options: Options,
    sets: list[Any],
    about: tuple[str, int],
    module: Any,
    weight: torch.Tensor,
    peer: str,
    given: tuple[Make, torch.Tensor] | None,
    *,
    modes: tuple[str, ...] = ("in place", "fresh"),
) -> Case:
    """A bias added to scores, and the gradient of its weight from that of the scores."""
    name, threads = about
    mine = f"nn.{type(module).__name__}{', learned' * (weight.ndim == 1)}"
    limit = "in-place add"  # scores are read and written, their gradient is read

    def flat(gradient: Any) -> Any:
        return gradient[0].flatten()

    calls = {"in place": functools.partial(module, inplace=True), "fresh": module}
    own = {mode: gradient_of(calls[mode], weight) for mode in modes}
    rows: list[Row] = [
        dataclasses.replace(ours(mine, mode, run, limit=limit), result=flat)
        for mode, run in own.items()
    ]
    if given is None:
        return Case(name, threads, sets, [*rows, Skipped(peer, "fresh", _why_not())])
    make, of = given
    adds = _adds(make)

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return gradient_of(function, of)(b)

    for mode in modes:
        run = gradient_of(adds[mode], of)
        rows.append(Contestant(f"{peer}, eager", mode, run, limit, result=flat))
    compiled = f"{peer}, torch.compile"
    rows.append(compile_row(options, compiled, adds["fresh"], call, limit, result=flat))
    return Case(name, threads, sets, rows, job=sums_job(lambda b: flat(own["fresh"](b))))


# ----------------------------------------------------------------------------------------------- T5

T5 = "transformers (T5)"


def t5_peer() -> Any:
    """T5Attention of transformers, with a bias of its own; None if it is not installed."""
    if missing("transformers", "transformers.models.t5.modeling_t5"):
        return None
    module = importlib.import_module("transformers.models.t5.modeling_t5")
    config = importlib.import_module("transformers").T5Config(num_heads=HEADS)
    return module.T5Attention(config, has_relative_attention_bias=True)


def _t5(length: int) -> tuple[Any, tuple[Make, torch.Tensor] | None]:
    """Our module, and the peer's bias and table, which are the same."""
    module, peer = nn.T5RelativeBias(HEADS), t5_peer()
    if peer is None:
        return module, None
    weight = peer.relative_attention_bias.weight
    module.weight.data.copy_(weight.data)
    return module, (functools.partial(peer.compute_bias, length, length), weight)


def t5_bias(options: Options, length: int, threads: int, name: str) -> Case:
    """Bias added to scores, no gradient: what the first layer of a T5 does."""
    module, given = _t5(length)
    if given:
        given[1].requires_grad_(False)
    sets = _scores(options, length)
    return _forward(options, sets, (name, threads), frozen(module), T5, given and given[0])


def t5_bias_gradient(options: Options, length: int, threads: int, name: str) -> Case:
    module, given = _t5(length)
    sets = _scores(options, length)
    return _backward(options, sets, (name, threads), module, module.weight, T5, given)


# -------------------------------------------------------------------------------------------- ALiBi

ALIBI = "slopes * distances"


def _alibi(length: int) -> tuple[Make, torch.Tensor]:
    slopes = torch.from_numpy(pn.relative.alibi_slopes(HEADS)).float()[:, None, None]

    def make() -> torch.Tensor:
        steps = torch.arange(length)
        return slopes * -(steps - steps[:, None]).abs()

    return make, slopes


def alibi_bias(options: Options, length: int, threads: int, name: str) -> Case:
    def columns(b: Activations) -> Any:
        return b.x.add_(pn.relative.alibi_columns(HEADS, length, device="cpu"))

    make, _ = _alibi(length)
    sets, about = _scores(options, length), (name, threads)
    case = _forward(
        options, sets, about, nn.ALiBi(HEADS), ALIBI, make, ready=False, modes=("in place",)
    )
    # A softmax makes the same of it, as of MPT's and BLOOM's.
    mine = dataclasses.replace(
        ours("scores.add_(alibi_columns)", "in place", columns), checked=False
    )
    rows = [*case.contestants, mine]

    # Both add a number for each key, the same for all queries: cheaper work, so no peers.
    peer = "transformers (MPT)"
    if reason := missing("transformers", "transformers.models.mpt.modeling_mpt"):
        rows.append(Skipped(peer, "fresh", reason))
    else:
        mpt = importlib.import_module("transformers.models.mpt.modeling_mpt")
        build = functools.partial(mpt.build_mpt_alibi_tensor, HEADS, length)
        rows.append(yardstick(peer, "in place", lambda b: b.x.add_(build()), "in-place scale"))
        rows.append(yardstick(peer, "fresh", lambda b: b.x + build(), "copy"))
    peer = "transformers (BLOOM)"
    if reason := missing("transformers", "transformers.models.bloom.modeling_bloom"):
        rows.append(Skipped(peer, "in place", reason))
    else:
        bloom = importlib.import_module("transformers.models.bloom.modeling_bloom")
        mask = torch.ones(1, length, dtype=torch.long)
        of_bloom = functools.partial(bloom.build_alibi_tensor, mask, HEADS, torch.float32)
        rows.append(yardstick(peer, "in place", lambda b: b.x.add_(of_bloom()), "in-place scale"))
    return dataclasses.replace(case, contestants=rows)


def alibi_bias_gradient(options: Options, length: int, threads: int, name: str) -> Case:
    """The gradient is that of learned slopes."""
    module = nn.ALiBi(HEADS, learned=True)
    make, slopes = _alibi(length)
    given = make, slopes.requires_grad_()
    sets, about = _scores(options, length), (name, threads)
    return _backward(options, sets, about, module, module.slopes, ALIBI, given, modes=("fresh",))


# --------------------------------------------------------------------------------------------- Swin

WINDOW = (7, 7)
SWIN = "transformers (Swin)"


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


def _swin(dtype: torch.dtype) -> tuple[Any, Any]:
    """Our module and the peer, whose tables are the same; None where there is no peer."""
    module, peer = nn.SwinRelativeBias(3, WINDOW).to(dtype), swin_peer()
    if peer is not None:
        module.load_state_dict(peer.to(dtype).state_dict())
    return module, peer


def swin_bias(options: Options, dtype: torch.dtype, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: Activations(swin_shape(options), dtype))
    module, peer = _swin(dtype)
    make = frozen(peer) if peer else None
    return _forward(options, sets, (name, threads), frozen(module), SWIN, make)


def swin_bias_gradient(options: Options, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: Activations(swin_shape(options), torch.float32))
    module, peer = _swin(torch.float32)
    given = (peer, peer.relative_position_bias_table) if peer else None
    weight = module.relative_position_bias_table
    return _backward(options, sets, (name, threads), module, weight, SWIN, given)
