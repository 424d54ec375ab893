"""Rotary of other libraries, where they are installed; cos and sin made beforehand."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.clock.harness import Contestant, Skipped
from benchmarks.peers.contestants import BASE, HEAD_DIM, Options, Row, missing
from benchmarks.peers.rotary import transformers_rotary


def rotary(
    options: Options, layout: str, pairing: str, dtype: torch.dtype, positions: torch.Tensor,
    *, compiled: bool = False,
) -> list[Row]:  # fmt: skip
    """Every peer that rotates q and k of this layout and pairing; positions [s].

    torch.compile of them takes seconds: it is for the cases that ask for it.
    """
    options = dataclasses.replace(options, compiled=options.compiled and compiled)
    rows = transformers_rotary(options, pairing, dtype, positions, heads_axis=layout.index("h"))
    if positions.device.type == "cuda":
        steps = torch.arange(0, HEAD_DIM, 2, dtype=torch.float, device=positions.device)
        angles = positions[:, None].float() / BASE ** (steps / HEAD_DIM)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        for name, module, takes, can, make in _IN_PLACE:
            if not (reason := missing(module)) and not can(layout, pairing):
                reason = takes
            if reason:
                rows.append(Skipped(name, "in place", reason))
            else:
                run = make(importlib.import_module(module), cos, sin, pairing)
                rows.append(Contestant(name, "in place", run, "copy"))
    return rows


# Each makes of its module, and of cos and sin [s, HEAD_DIM / 2], what rotates a buffer set.
Run = Callable[[Any], object]


def _liger(module: Any, cos: torch.Tensor, sin: torch.Tensor, pairing: str) -> Run:
    tables = [torch.cat((t, t), -1)[None] for t in (cos, sin)]
    # It takes bhsd and has kernels for bshd: views of these.
    return lambda b: module.liger_rotary_pos_emb(b.q.transpose(1, 2), b.k.transpose(1, 2), *tables)


def _flash_attn(module: Any, cos: torch.Tensor, sin: torch.Tensor, pairing: str) -> Run:
    def run(b: Any) -> None:
        for x in (b.q, b.k):
            module.apply_rotary(x, cos, sin, interleaved=pairing == "interleaved", inplace=True)

    return run


def _vllm(module: Any, cos: torch.Tensor, sin: torch.Tensor, pairing: str) -> Run:
    cache = torch.cat((cos, sin), -1)
    rows = torch.arange(len(cache), device=cache.device)

    def run(b: Any) -> None:
        if b.tokens is None:
            b.tokens = rows.repeat(b.q.shape[0])
        q, k = (x.flatten(0, 1).flatten(1) for x in (b.q, b.k))
        module.rotary_embedding(b.tokens, q, k, HEAD_DIM, cache, pairing == "half")

    return run


_IN_PLACE: list[tuple[str, str, str, Callable[[str, str], bool], Callable[..., Run]]] = [
    ("Liger", "liger_kernel.transformers.rope", "it rotates bshd in memory, in halves",
     lambda layout, pairing: (layout, pairing) == ("bshd", "half"), _liger),
    ("flash-attn (Triton), twice", "flash_attn.ops.triton.rotary", "it rotates bshd",
     lambda layout, pairing: layout == "bshd", _flash_attn),
    ("vLLM", "vllm._custom_ops", "it rotates packed tokens",
     lambda layout, pairing: layout == "bshd", _vllm),
]  # fmt: skip
