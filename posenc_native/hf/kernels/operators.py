"""The rotation in a graph of torch.compile.

A graph cannot look at the values of tables, so it has an operator, which looks when it runs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from .functions import FUNCTIONS, rotated, tables_of


@torch.library.custom_op("posenc_native_hf::rotary_pos_emb", mutates_args=())
def _operator(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, dim: int, index: int
) -> tuple[Tensor, Tensor]:
    return _laid_out((q, k), rotated(FUNCTIONS[index].own.__self__, q, k, cos, sin, dim))


@torch.library.custom_op("posenc_native_hf::rotary_pos_emb_backward", mutates_args=())
def _backward_operator(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, dim: int, index: int
) -> tuple[Tensor, Tensor]:
    """The gradients of heads from those of the rotated heads, q and k."""
    function = FUNCTIONS[index]
    if (tables := tables_of(function, cos, sin)) is not None:
        back = dataclasses.replace(function.rotation, inverse=not function.rotation.inverse)
        layout = back.layouts[q.ndim, cos.ndim, dim]
        return _laid_out((q, k), back((q, k), *tables, layout))
    # The transpose: what dim i gets from dim j by a column of sin, j now gets from i.
    swapped = -sin.roll(function.angles, dims=-1)
    return _laid_out((q, k), function.own(q, k, cos, swapped, dim))


def _laid_out(heads: tuple[Tensor, Tensor], results: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The results with the strides that `_like` says."""
    likes = (torch.empty_like(x, device="meta").stride() for x in heads)
    pairs = zip(heads, results, likes, strict=True)
    q, k = (r if r.stride() == s else torch.empty_like(x).copy_(r) for x, r, s in pairs)
    return q, k


def _like(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, cos, sin, ctx.dim, ctx.index = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, q: Tensor, k: Tensor) -> tuple[Tensor | None, ...]:
    operator = torch.ops.posenc_native_hf.rotary_pos_emb_backward
    return *operator(q, k, *ctx.saved_tensors, ctx.dim, ctx.index), None, None, None, None


_operator.register_fake(_like)
_operator.register_autograd(_backward, setup_context=_keep)
_backward_operator.register_fake(_like)
