"""Calls of DTensors that are errors, and second derivatives, on each rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from sharded_calls import INV_FREQ, B, D, H, K, S, randn
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import posenc_native as pn


class Inputs:
    """q, k and scores cut along one axis, and whole."""

    def __init__(self, dim: int) -> None:
        torch.manual_seed(0)
        self.mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        self.placements = [Shard(dim)]
        self.plain = {"q": randn(B, H, 2 * S, D), "k": randn(B, K, 2 * S, D)}
        self.q, self.k = (self.cut(x) for x in self.plain.values())

    def cut(self, x: Tensor, *placements: Any) -> DTensor:
        own = list(placements) or self.placements
        return distribute_tensor(x.clone(), self.mesh, own)


def _in_place(x: Inputs, placements: list[Any]) -> Any:
    q = DTensor.from_local(x.plain["q"], x.mesh, placements, run_check=False)
    return pn.apply_rotary_qk(q, x.k, None, INV_FREQ, inplace=True)


def _append(x: Inputs, heads: int, slots: Tensor) -> Any:
    """Into caches of so many heads and 20 slots."""
    caches = (x.cut(torch.zeros(B, heads, 20, D)) for _ in "kv")
    return pn.rotary_append(x.q, x.k, x.k, None, INV_FREQ, *caches, slots)


def _append_with_scales(x: Inputs, *placements: Any) -> Any:
    """Into caches of int8, with memory for scales in these placements."""
    caches = [x.cut(torch.zeros(B, K, 20, D, dtype=torch.int8)) for _ in "kv"]
    made = x.cut(torch.zeros(B, K, 20), *placements)
    slots = torch.arange(2 * S)
    return pn.rotary_append(
        x.q, x.k, x.k, None, INV_FREQ, *caches, slots, scales=(made, x.cut(made.full_tensor()))
    )


# The axis that is cut, the call, and what is said.
ERRORS: dict[str, tuple[int, Callable[[Inputs], Any], type[Exception], str]] = {
    "positions of a part": (
        2, lambda x: pn.apply_rotary_qk(x.q, x.k, torch.arange(S), INV_FREQ), ValueError,
        r"apply_rotary_qk: positions: expected shape \[s\] = \[10\], .* got \[5\]; .*from_local",
    ),
    "tables of a part": (
        2,
        lambda x: pn.apply_rotary(
            x.q, None, pn.Tables(*pn.rotary_tables(torch.arange(S), INV_FREQ))
        ),
        ValueError, r"apply_rotary: cos: expected .* got \[5, 8\]; .*DTensor.from_local",
    ),
    "frequencies of a part": (1, lambda x: pn.apply_rotary(x.q, None, torch.rand(H // 2, D // 2)),
                              ValueError,
                              r"apply_rotary: inv_freq: expected .*; .*DTensor.from_local"),
    "heads in pieces, in place": (
        3, lambda x: pn.apply_rotary_qk(x.q, x.k, None, INV_FREQ, inplace=True), ValueError,
        r"apply_rotary_qk: q: expected a DTensor placed like the result, \[R\], got \[S\(3\)\]",
    ),
    "a sum that is to be made, in place": (
        2, lambda x: _in_place(x, [Partial()]), ValueError,
        r"apply_rotary_qk: q: expected a DTensor placed like the result, \[R\], got \[P",
    ),
    "a plain out": (2, lambda x: pn.apply_rotary(x.q, None, INV_FREQ, out=x.plain["q"]), TypeError,
                    r"apply_rotary: out: expected a DTensor, as x is, got Tensor"),
    "an out that is placed elsewhere": (
        2, lambda x: pn.apply_rotary(x.q, None, INV_FREQ, out=x.cut(x.plain["q"], Shard(1))),
        ValueError, r"apply_rotary: out: expected a DTensor placed .*, \[S\(2\)\], got \[S\(1\)\]",
    ),
    "a wrong k, in place": (
        2,
        lambda x: pn.apply_rotary_qk(
            x.q, x.cut(randn(B, K, 2 * S, D + 2), Shard(1)), None, INV_FREQ, inplace=True
        ),
        ValueError, r"apply_rotary_qk: k: expected",
    ),
    "a layout of other axes": (
        2, lambda x: pn.apply_rotary(x.q, None, INV_FREQ, layout="bsd"), ValueError,
        r"apply_rotary: x: expected",
    ),
    "diagonals of a part": (
        1, lambda x: pn.add_toeplitz_bias(x.q, torch.zeros(H // 2, 2 * S + D - 1)), ValueError,
        r"add_toeplitz_bias: diagonals: expected the leading axes of the scores, .*from_local",
    ),
    "a plain cache": (
        1,
        lambda x: pn.rotary_append(
            x.q, x.k, x.k, None, INV_FREQ, *torch.zeros(2, B, K, 20, D), torch.arange(2 * S)
        ),
        TypeError, r"rotary_append: keys: expected a DTensor, as k is, got Tensor",
    ),
    # What fits as a part, on some ranks or on all.
    "frequencies of q's heads for fewer heads of k": (
        1, lambda x: pn.apply_rotary_qk(x.q, x.cut(randn(B, 2, 2 * S, D)), None, torch.rand(4, 8)),
        ValueError, r"apply_rotary_qk: inv_freq: expected frequencies for 2 heads of k",
    ),
    "other lengths without positions": (
        2, lambda x: pn.apply_rotary_qk(x.q, x.cut(randn(B, K, S, D), Replicate()), None, INV_FREQ),
        ValueError, r"apply_rotary_qk: k: expected",
    ),
    "a batch that ends in another part": (
        0,
        lambda x: pn.apply_rotary_qk(
            x.q, x.cut(randn(B - 1, K, 2 * S, D)), None, INV_FREQ, inplace=True
        ),
        ValueError, r"apply_rotary_qk: k: expected",
    ),
    "too few entries for the last queries, in place": (
        2, lambda x: pn.add_toeplitz_bias(x.q, torch.zeros(H, 20), origin=2 * S - 3, out=x.q),
        ValueError, r"add_toeplitz_bias: diagonals: expected entries",
    ),
    "a cache of more heads": (1, lambda x: _append(x, K + 1, torch.arange(2 * S)), ValueError,
                              r"rotary_append: keys: expected"),
    "scales that are placed unlike their cache": (
        1, lambda x: _append_with_scales(x, Replicate()), ValueError,
        r"rotary_append: scales\[0\]: expected the placements of the cache, .*, got",
    ),
    "a slot that no cache has": (
        1, lambda x: _append(x, K, torch.arange(2 * S) + 15), ValueError,
        r"rotary_append: slots: expected -1, or slots 0 .. 19, got",
    ),
    "rows of latents that are cut": (
        2,
        lambda x: pn.Rotary(D).append_latent(
            x.q, x.plain["k"][:, 0], x.plain["k"][:, 1], 0, x.cut(torch.zeros(B, 20, 2 * D)), [0]
        ),
        ValueError, r"Rotary.append_latent: cache: expected a DTensor that is not sharded along d",
    ),
    "an out where a gradient is required": (
        2, lambda x: pn.apply_rotary(x.q.requires_grad_(), None, INV_FREQ, out=x.cut(x.plain["q"])),
        ValueError, r"apply_rotary: out: expected no out if a gradient is required",
    ),
    "a gradient in place, of a norm": (
        2, lambda x: pn.norm_rotary_qk(x.q.requires_grad_(), x.k, None, INV_FREQ, inplace=True),
        ValueError, r"norm_rotary_qk: inplace: expected False if a gradient is required",
    ),
}  # fmt: skip


def compare_error(name: str) -> list[str]:
    """What is wrong with how a call fails: its kind, its words, and what it has written."""
    dim, call, kind, words = ERRORS[name]
    x = Inputs(dim)
    wrong = []
    try:
        call(x)
        wrong.append("no error")
    except Exception as error:
        if type(error) is not kind or not re.match(words, str(error)):
            wrong.append(f"{type(error).__name__}: {error}")
    for given, plain in zip((x.q, x.k), x.plain.values(), strict=True):
        if not torch.equal(given.detach().full_tensor(), plain):
            wrong.append("something has been written")
    return wrong


def compare_meshes() -> list[str]:
    """Four ranks: q cut over one dimension of a mesh, k or caches over the other."""
    first, second = (init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))[n] for n in "ab")
    torch.manual_seed(0)
    wrong = []
    for dim in (0, 1, 2):
        q, k = randn(4, H, 2 * S, D), randn(4, H, 2 * S, D)
        keys, values = torch.zeros(2, 4, H, 2 * S, D)
        cut_q = distribute_tensor(q, first, [Shard(dim)])
        cut_k = distribute_tensor(k, second, [Shard(dim)])
        for name, call in {
            "rotation": lambda q, k: pn.apply_rotary_qk(q, k, None, INV_FREQ),
            "norm": lambda q, k: pn.norm_rotary_qk(q, k, None, INV_FREQ),
        }.items():
            pairs = zip(call(cut_q, cut_k), call(q, k), strict=True)
            if not all(torch.equal(ours.full_tensor(), theirs) for ours, theirs in pairs):
                wrong.append(f"{name}, axis {dim}")
        caches = [distribute_tensor(x, mesh, [Shard(1)]) for x, mesh in
                  ((keys, first), (values, second))]  # fmt: skip
        for given in (cut_q, cut_k):
            try:
                pn.rotary_append(given, given, given, None, INV_FREQ, *caches, torch.arange(2 * S))
                wrong.append(f"append, axis {dim}: no error")
            except ValueError as error:
                if "expected a DTensor on the mesh of keys" not in str(error):
                    wrong.append(str(error))
        try:
            pn.apply_rotary(cut_q, distribute_tensor(torch.arange(2 * S), second, [Replicate()]),
                            INV_FREQ)  # fmt: skip
            wrong.append("positions: no error")
        except ValueError as error:
            if "tensors of a call share a mesh" not in str(error):
                wrong.append(str(error))
    return wrong


def compare_plain_in_place() -> list[str]:
    """A plain k beside a q that is followed: both are overwritten."""
    x = Inputs(2)
    q, k = (x.plain[name].clone() for name in "qk")
    weight = torch.ones((), requires_grad=True)
    wanted = pn.apply_rotary_qk(q, k, None, INV_FREQ)
    cut_q, plain_k = x.cut(q) * weight, k.clone()
    results = pn.apply_rotary_qk(cut_q, plain_k, None, INV_FREQ, inplace=True)
    wrong = [] if results[0] is cut_q and results[1] is plain_k else ["other results"]
    if not torch.equal(results[0].detach().full_tensor(), wanted[0]):
        wrong.append("q")
    if not torch.equal(plain_k, wanted[1]):
        wrong.append("k")
    return wrong


TWICE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "rotation": lambda q, k: pn.apply_rotary_qk(q, k, None, INV_FREQ),
    "norm": lambda q, k: pn.norm_rotary_qk(q, k, None, INV_FREQ),
    "norm, weight": lambda q, k: pn.norm_rotary_qk(
        q, k, None, INV_FREQ, q_weight=torch.linspace(1, 2, D, requires_grad=True)
    ),
    "selective": lambda q, k: pn.selective_rotary_qk(q, k, k[..., : D // 2], layout="bhsd")[:2],
    "bias": lambda q, k: (
        pn.add_toeplitz_bias(q, torch.linspace(0, 1, 2 * S + D - 1).expand(H, -1)),
        pn.add_sinusoidal(k),
    ),
}


def compare_second(name: str) -> list[str]:
    """The derivative of a gradient by what it was made of, beside that of whole tensors."""
    wrong = []
    for dim in range(3):
        x = Inputs(dim)
        weights = [randn(*one.shape) for one in x.plain.values()]

        def second(q: Tensor, k: Tensor, grads: list[Tensor], name: str = name) -> Any:
            q.requires_grad_()
            k.requires_grad_()
            results = [one**2 for one in TWICE[name](q, k)]
            first = torch.autograd.grad(results, [q, k], grads, create_graph=True)
            return torch.autograd.grad([one**2 for one in first], [q, *grads], grads)

        plain = [w.clone().requires_grad_() for w in weights]
        expected = second(*(one.clone() for one in x.plain.values()), plain)
        cut = [x.cut(w).requires_grad_() for w in weights]
        found = second(x.q, x.k, cut)
        for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            if not torch.equal(ours.full_tensor(), theirs):
                wrong.append(f"axis {dim}: derivative {i}")
            if list(ours.placements) != [Shard(dim)]:
                wrong.append(f"axis {dim}: derivative {i} is placed {ours.placements}")
    return wrong
