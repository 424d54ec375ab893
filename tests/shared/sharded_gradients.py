"""What the one autograd node of a call does, on each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sharded_calls import INV_FREQ, B, D, H, K, S, randn
from sharded_compare import cut
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import posenc_native as pn

CALLS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "apply_rotary": lambda q, k: (
        pn.apply_rotary(q, None, INV_FREQ),
        pn.apply_rotary(k, torch.arange(B * S).reshape(B, S), INV_FREQ, pairing="interleaved"),
    ),
    "apply_rotary_qk": lambda q, k: pn.apply_rotary_qk(q, k, None, INV_FREQ),
    "of each": lambda q, k: pn.apply_rotary_qk(q, k, (None, torch.arange(S) - 4), INV_FREQ),
    "by tables": lambda q, k: pn.apply_rotary_qk(
        q, k, None, pn.Tables(*pn.rotary_tables(torch.arange(S) * 7, INV_FREQ))
    ),
    "to another pairing": lambda q, k: pn.apply_rotary_qk(
        q, k, None, INV_FREQ, out_pairing="interleaved"
    ),
    "norm_rotary_qk": lambda q, k: pn.norm_rotary_qk(
        q, k, None, INV_FREQ, q_weight=torch.linspace(0, 2, D)
    ),
    "norm_rotary_qk, an array": lambda q, k: pn.norm_rotary_qk(
        q, k, None, INV_FREQ, k_weight=np.linspace(0, 2, D, dtype=np.float32)
    ),
}
_PLACEMENTS = (*map(Shard, range(4)), Replicate(), Partial())


def _q_and_k() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return randn(B, H, S, D), randn(B, K, S, D)


def _mesh() -> Any:
    return init_device_mesh("cpu", (torch.distributed.get_world_size(),))


def compare_placements(name: str) -> list[str]:
    """Incoming gradients that are placed unlike the results, beside those of whole tensors."""
    mesh, both, call = _mesh(), _q_and_k(), CALLS[name]
    plain = [x.clone().requires_grad_() for x in both]
    grads = [torch.randn_like(x) for x in both]
    expected = torch.autograd.grad(call(*plain), plain, grads)
    wrong = []
    for i, of_q in enumerate(_PLACEMENTS):
        of_k = _PLACEMENTS[i - i % 2]  # q and k are also sharded in different ways
        own = [cut(x, mesh, [p]).requires_grad_() for x, p in zip(both, (of_q, of_k), strict=True)]
        results = call(*own)
        for of_grad in _PLACEMENTS:
            about = f"q {of_q}, k {of_k}, gradients {of_grad}"
            incoming = [cut(grad, mesh, [of_grad]) for grad in grads]
            before = [x.to_local().clone() for x in incoming]
            gradients = torch.autograd.grad(results, own, incoming, retain_graph=True)
            if not all(map(torch.equal, before, [x.to_local() for x in incoming])):
                wrong.append(f"{about}: incoming gradients have been written")
            for x, ours, theirs in zip(own, gradients, expected, strict=True):
                placed = [Replicate() if p.is_partial() else p for p in x.placements]
                if list(ours.placements) != placed:
                    wrong.append(f"{about}: placed {ours.placements}")
                if not torch.equal(ours.full_tensor(), theirs):
                    wrong.append(about)
    return wrong


def compare_node() -> list[str]:
    """A call is one node; what it reads and does not read; its results."""
    mesh, (q, k) = _mesh(), _q_and_k()
    own_q, own_k = (cut(x, mesh, [Shard(2)]).requires_grad_() for x in (q, k))
    wrong = []
    results = pn.apply_rotary_qk(own_q, own_k, None, INV_FREQ)
    nodes = {result.grad_fn for result in results}
    following = [node for node, _ in nodes.pop().next_functions if node is not None]
    if nodes or [node.variable for node in following] != [own_q, own_k]:
        wrong.append("more than one node")
    # k's result is not used
    of_q, of_k = torch.autograd.grad(results[0].sum(), (own_q, own_k))
    plain = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(pn.apply_rotary(plain, None, INV_FREQ).sum(), plain)
    if not torch.equal(of_q.full_tensor(), expected):
        wrong.append("the gradient of q alone")
    if of_k.placements != (Shard(2),) or of_k.full_tensor().any():
        wrong.append("the gradient of an unused result")
    # Inputs may change before the backward, positions may not.
    positions = torch.arange(S)
    x = own_q * 1
    result = pn.apply_rotary(x, positions, INV_FREQ)
    x.mul_(2)
    result.sum().backward()
    if not torch.equal(own_q.grad.full_tensor(), expected):
        wrong.append("the gradient of an input that was overwritten")
    result = pn.apply_rotary(own_q, positions, INV_FREQ)
    positions += 1
    try:
        result.sum().backward()
        wrong.append("positions were overwritten, and no error")
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            wrong.append(str(error))
    whole = pn.apply_rotary(q.requires_grad_(), own_q.detach()[0, 0, :, 0], INV_FREQ)
    if not isinstance(whole, DTensor) or whole.grad_fn is None:
        wrong.append("a plain x beside DTensors")
    return wrong
