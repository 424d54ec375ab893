"""Rotary of other libraries, where they are installed; cos and sin made beforehand."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from benchmarks.clock.harness import Contestant, Skipped
from benchmarks.peers.contestants import BASE, HEAD_DIM, Options, Row, missing
from benchmarks.peers.rotary import transformers_rotary


def rotary(
    options: Options, layout: str, pairing: str, dtype: torch.dtype, positions: torch.Tensor
) -> list[Row]:
    """Every peer that rotates q and k of this layout and pairing; positions [s]."""
    rows = transformers_rotary(options, pairing, dtype, positions, heads_axis=layout.index("h"))
    if positions.device.type == "cuda":
        rows += [
            _liger(layout, pairing, dtype, positions),
            _flash_attn(layout, pairing, dtype, positions),
            _vllm(layout, pairing, dtype, positions),
        ]
    return rows


def _tables(positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [s, HEAD_DIM / 2]."""
    steps = torch.arange(0, HEAD_DIM, 2, dtype=torch.float, device=positions.device)
    angles = positions[:, None].float() / BASE ** (steps / HEAD_DIM)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _liger(layout: str, pairing: str, dtype: torch.dtype, positions: torch.Tensor) -> Row:
    name, mode = "Liger", "in place"
    if reason := missing("liger_kernel.transformers.rope"):
        return Skipped(name, mode, reason)
    if layout != "bshd" or pairing != "half":
        return Skipped(name, mode, "it rotates bshd in memory, in halves")
    rotate = importlib.import_module("liger_kernel.transformers.rope").liger_rotary_pos_emb
    cos, sin = (torch.cat((t, t), -1)[None] for t in _tables(positions, dtype))

    def run(b: Any) -> Any:
        # It takes bhsd and has kernels for bshd: views of these.
        return rotate(b.q.transpose(1, 2), b.k.transpose(1, 2), cos, sin)

    return Contestant(name, mode, run, "copy")


def _flash_attn(layout: str, pairing: str, dtype: torch.dtype, positions: torch.Tensor) -> Row:
    name, mode = "flash-attn (Triton), twice", "in place"
    if reason := missing("flash_attn.ops.triton.rotary"):
        return Skipped(name, mode, reason)
    if layout != "bshd":
        return Skipped(name, mode, "it rotates bshd")
    rotate = importlib.import_module("flash_attn.ops.triton.rotary").apply_rotary
    cos, sin = _tables(positions, dtype)
    interleaved = pairing == "interleaved"

    def run(b: Any) -> None:
        for x in (b.q, b.k):
            rotate(x, cos, sin, interleaved=interleaved, inplace=True)

    return Contestant(name, mode, run, "copy")


def _vllm(layout: str, pairing: str, dtype: torch.dtype, positions: torch.Tensor) -> Row:
    name, mode = "vLLM", "in place"
    if reason := missing("vllm._custom_ops"):
        return Skipped(name, mode, reason)
    if layout != "bshd":
        return Skipped(name, mode, "it rotates packed tokens")
    rotate = importlib.import_module("vllm._custom_ops").rotary_embedding
    cache = torch.cat(_tables(positions, dtype), -1)
    rows = torch.arange(len(positions), device=positions.device)  # of the cache
    half = pairing == "half"

    def run(b: Any) -> None:
        if b.tokens is None:
            b.tokens = rows.repeat(b.q.shape[0])
        q, k = (x.flatten(0, 1).flatten(1) for x in (b.q, b.k))
        rotate(b.tokens, q, k, HEAD_DIM, cache, half)

    return Contestant(name, mode, run, "copy")
