"""Rotary functions of diffusers and timm, and what `posenc_native.hf` puts in their place.

Both get what a layer of a real model hands over: heads of its size, tables as it makes them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.clock.harness import Case, Contestant, Skipped
from benchmarks.figures.judging import AtMost, Rule
from benchmarks.peers.contestants import Activations, Options, Row, label, missing
from benchmarks.peers.packages import timm_positions

# Of complex numbers in float32 torch makes one pass, too.
GOALS = (
    Rule("a function of.* bfloat16", None, (AtMost(0.35, of="theirs"),), "^hf.patch"),
    Rule("a function of.* float32", None, (AtMost(1.0, of="theirs"),), "^hf.patch"),
)


@dataclass(frozen=True)
class _Function:
    """A function of a package, and how a model calls it.

    Attributes:
        module: where it is.
        name: what it is called there.
        shape: of q, [batch, ..., dims].
        tokens: the axis of these.
        tables: what comes after q, for so many tokens.
        options: of the call.
    """

    module: str
    name: str
    shape: tuple[int, ...]
    tokens: int
    tables: Callable[[int], Any]
    options: dict[str, Any]


def _angles(*shape: int) -> torch.Tensor:
    """Of positions along the last axis but one."""
    *_, tokens, pairs = shape
    steps = torch.outer(torch.arange(tokens), 1e4 ** -torch.linspace(0, 1, pairs + 1)[:-1])
    return steps.expand(shape).contiguous()


def _every_dim(angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = (each.repeat_interleave(2, -1) for each in (angles.cos(), angles.sin()))
    return cos, sin


def _complex(angles: torch.Tensor) -> torch.Tensor:
    return torch.polar(torch.ones_like(angles), angles)


_DIFFUSERS = "diffusers.models"
_FUNCTIONS = {
    "Flux": _Function(
        f"{_DIFFUSERS}.embeddings", "apply_rotary_emb", (1, 4608, 24, 128), 1,
        lambda tokens: _every_dim(_angles(tokens, 64)), {"sequence_dim": 1},
    ),
    "HunyuanVideo": _Function(
        f"{_DIFFUSERS}.embeddings", "apply_rotary_emb", (1, 24, 4608, 128), 2,
        lambda tokens: _every_dim(_angles(tokens, 64)), {},
    ),
    "LTX": _Function(
        f"{_DIFFUSERS}.transformers.transformer_ltx", "apply_rotary_emb", (1, 4992, 2048), 1,
        lambda tokens: _every_dim(_angles(1, tokens, 1024)), {},
    ),
    "Qwen-Image": _Function(
        f"{_DIFFUSERS}.transformers.transformer_qwenimage", "apply_rotary_emb_qwen",
        (1, 4096, 24, 128), 1, lambda tokens: _complex(_angles(tokens, 64)), {"use_real": False},
    ),
    "EVA02-L/448": _Function(
        "timm.layers.pos_embed_sincos", "apply_rot_embed_cat", (4, 16, 1024, 64), 2,
        lambda tokens: torch.cat(_every_dim(_angles(tokens, 32))[::-1], -1), {},
    ),
}  # fmt: skip


def _function(of: _Function) -> Callable[..., Any]:
    """The model's own; of timm without its other layers, which ask for torchvision."""
    of_timm = of.module.startswith("timm.")
    module = timm_positions() if of_timm else importlib.import_module(of.module)
    return getattr(module, of.name)  # type: ignore[no-any-return]


def _case(options: Options, of: _Function, dtype: torch.dtype, name: str, threads: int) -> Case:
    tokens = options.size(of.shape[of.tokens], 64)
    shape = (*of.shape[: of.tokens], tokens, *of.shape[of.tokens + 1 :])
    sets = options.make_sets(functools.partial(Activations, shape, dtype))
    rows: list[Row]
    try:
        theirs = _function(of)
        if reason := missing("posenc_native.hf"):
            raise ImportError(reason)
    except ImportError as error:
        rows = [Skipped("theirs", "fresh", str(error))]
        return Case(name, threads, sets, rows)
    functions: Any = importlib.import_module("posenc_native.hf.learned.functions")
    ours, tables = functions.Learned(theirs, print).function(False), of.tables(tokens)

    def row(title: str, function: Callable[..., Any], own: bool) -> Contestant:
        run = lambda b: function(b.x, tables, **of.options)  # noqa: E731
        return Contestant(title, "fresh", run, "copy", ours=own, checked=False)

    return Case(name, threads, sets, [row("hf.patch", ours, True), row("theirs", theirs, False)])


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As rotary.cases."""
    for model, of in _FUNCTIONS.items():
        for dtype in (torch.float32, torch.bfloat16):
            sizes = " x ".join(map(str, of.shape))
            plural = "s" if threads > 1 else ""
            name = (
                f"a function of {of.module.partition('.')[0]} ({model}), {sizes}, {label(dtype)}, "
                f"{threads} thread{plural}"
            )
            yield name, functools.partial(_case, options, of, dtype, name, threads)
