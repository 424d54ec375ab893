"""Rotary as other projects compute it, each in the form that serves it best: tables made before."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.clock.harness import Contestant, Skipped

from .contestants import BASE, HEAD_DIM, Options, QueryKey, Row, missing, not_compiled
from .packages import timm_positions, torchtune_positions
from .rotary_outside_torch import jax_row, numba_rows, numpy_row, onnxruntime_row
from .rotation import Rotation, angles

Rotate = Callable[[torch.Tensor, torch.Tensor], Any]


# ------------------------------------------------------------------------- functions of two tensors


class _Unsuited(Exception):
    """A peer does not do this, and why."""


@dataclass(frozen=True)
class TorchPeer:
    """A function that rotates tensors, given as functions of q and k in the layout of the case."""

    name: str
    make: Callable[[Rotation], Rotate]
    compiled: bool = False  # whether a row of torch.compile stands beside it
    modules: tuple[str, ...] = ()
    yardstick: bool = False


def _transformers(family: str, r: Rotation) -> Rotate:
    wanted = "half" if family == "llama" else "interleaved"
    assert r.pairing == wanted
    return _with_tables(family, r.dtype, torch.from_numpy(r.positions), r.heads_axis)


def _with_tables(
    family: str, dtype: torch.dtype, positions: torch.Tensor, heads_axis: int
) -> Rotate:
    """The rotary function of a family of transformers, its tables made."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    turned = angles(positions)
    both = torch.cat((turned, turned), -1) if family == "llama" else turned.repeat_interleave(2, -1)
    return functools.partial(
        module.apply_rotary_pos_emb,
        cos=both.cos().to(dtype),
        sin=both.sin().to(dtype),
        unsqueeze_dim=heads_axis,
    )


FAMILIES = {"half": "llama", "interleaved": "cohere"}


def transformers_rotary(
    options: Options, pairing: str, dtype: torch.dtype, positions: torch.Tensor, heads_axis: int = 1
) -> list[Row]:
    """The rotary function of transformers for this pairing, eager and compiled, of q and k.

    Its cos and sin are made beforehand, in float32 and cast to the model's dtype, as its models do
    once per forward pass.
    """
    family = FAMILIES[pairing]
    name = f"transformers ({family.capitalize()})"
    if reason := missing("transformers", f"transformers.models.{family}.modeling_{family}"):
        return [Skipped(name, "fresh", reason)]
    rotate = _with_tables(family, dtype, positions, heads_axis)
    return list(_forward(options, name, rotate, compiled=True, main=True))


def _rotary_embedding_torch(r: Rotation) -> Rotate:
    """It takes the cosine and sine of its cached angles in every call."""
    _only(r, "interleaved")
    package: Any = importlib.import_module("rotary_embedding_torch")
    module = package.RotaryEmbedding(HEAD_DIM, theta=BASE)
    freqs = module(torch.from_numpy(r.positions).float()).detach()
    # A head's axis beside that of the batch, where every sequence has positions of its own.
    by_row = freqs.ndim == 3
    if r.layout == "bshd":
        freqs = freqs.unsqueeze(-2)
    elif by_row:
        freqs = freqs.unsqueeze(1)
    axis = -2 if r.layout == "bhsd" else -3

    def rotate(q: torch.Tensor, k: torch.Tensor) -> Any:
        return tuple(package.apply_rotary_emb(freqs, x, seq_dim=axis) for x in (q, k))

    return rotate


def _x_transformers(r: Rotation) -> Rotate:
    """It takes the cosine and sine of its cached angles in every call."""
    _only(r, "interleaved")
    package: Any = importlib.import_module("x_transformers.x_transformers")
    freqs, scale = package.RotaryEmbedding(HEAD_DIM, base=BASE)(torch.from_numpy(r.positions))
    turn = r.heads_first

    def rotate(q: torch.Tensor, k: torch.Tensor) -> Any:
        return tuple(turn(package.apply_rotary_pos_emb(turn(x), freqs, scale)) for x in (q, k))

    return rotate


def _torchtune(r: Rotation) -> Rotate:
    _only(r, "interleaved")
    longest = int(r.positions.max()) + 1
    rope = torchtune_positions().RotaryPositionalEmbeddings(HEAD_DIM, longest, BASE)
    seq = r.positions.shape[-1]
    from_zero = r.positions.ndim == 1 and np.array_equal(r.positions, np.arange(seq))
    input_pos = None if from_zero else torch.from_numpy(r.positions.reshape(-1, seq))
    turn = r.sequence_first

    def rotate(q: torch.Tensor, k: torch.Tensor) -> Any:
        return tuple(turn(rope(turn(x), input_pos=input_pos)) for x in (q, k))

    return rotate


def _timm(r: Rotation) -> Rotate:
    package = timm_positions()
    turned = angles(torch.from_numpy(r.positions))
    both = (
        torch.cat((turned, turned), -1) if r.pairing == "half" else turned.repeat_interleave(2, -1)
    )
    table = torch.cat((both.sin(), both.cos()), -1).to(r.dtype).unsqueeze(r.heads_axis)

    def rotate(q: torch.Tensor, k: torch.Tensor) -> Any:
        return tuple(
            package.apply_rot_embed_cat(x, table, half=r.pairing == "half") for x in (q, k)
        )

    return rotate


def _only(r: Rotation, pairing: str) -> None:
    if r.pairing != pairing:
        raise _Unsuited(f"it rotates {pairing} pairs")


def torch_peers(pairing: str) -> list[TorchPeer]:
    family = FAMILIES[pairing]
    return [
        TorchPeer(
            f"transformers ({family.capitalize()})",
            functools.partial(_transformers, family),
            compiled=True,
            modules=("transformers", f"transformers.models.{family}.modeling_{family}"),
        ),
        TorchPeer(
            "rotary-embedding-torch", _rotary_embedding_torch, modules=("rotary_embedding_torch",)
        ),
        TorchPeer("x-transformers", _x_transformers, modules=("x_transformers",)),
        TorchPeer("torchtune", _torchtune),
        TorchPeer("timm", _timm),
    ]


def _forward(
    options: Options, name: str, rotate: Rotate, *, compiled: bool, main: bool
) -> Iterator[Row]:
    """The rows of a function of q and k."""
    eager = f"{name}, eager" if compiled else name
    yield Contestant(eager, "fresh", lambda b: rotate(b.q, b.k), "copy")
    if not compiled:
        return
    name += ", torch.compile"
    if reason := not_compiled(options, main):
        yield Skipped(name, "fresh", reason, left_out=True)
        return
    fast = torch.compile(rotate, dynamic=False)
    yield Contestant(name, "fresh", lambda b: fast(b.q, b.k), "copy", warmups=3)


def _backward(
    options: Options, name: str, rotate: Rotate, first: QueryKey, *, compiled: bool, main: bool
) -> Iterator[Row]:
    """The same of their gradients."""
    yield gradient_row(f"{name}, eager" if compiled else name, rotate, first)
    if not compiled:
        return
    name += ", torch.compile"
    if reason := not_compiled(options, main):
        yield Skipped(name, "fresh", reason, left_out=True)
        return
    functorch: Any = importlib.import_module("torch._functorch.config")
    # Its graph is kept, for as many backward passes as there are samples.
    with functorch.patch(donated_buffer=False):
        yield gradient_row(name, torch.compile(rotate, dynamic=False), first, warmups=3)


def gradient_row(
    name: str, rotate: Rotate, first: QueryKey, *, ours: bool = False, **more: Any
) -> Contestant:
    """Backward through autograd: a case's q and k are the gradients that come in.

    The forward pass runs once, here, and its graph is kept: what is timed is the backward alone.
    """
    q, k = (torch.randn_like(x).requires_grad_() for x in (first.q, first.k))
    results = rotate(q, k)

    def run(b: QueryKey) -> Any:
        return torch.autograd.grad(results, (q, k), (b.q, b.k), retain_graph=True)

    return Contestant(name, "fresh", run, "copy", ours=ours, **more)


def _torch_rows(r: Rotation, *, backward: bool) -> Iterator[Row]:
    for peer in torch_peers(r.pairing):
        if reason := missing(*peer.modules):
            yield Skipped(peer.name, "fresh", reason)
            continue
        try:
            rotate = peer.make(r)
        except (_Unsuited, ImportError) as error:
            yield Skipped(peer.name, "fresh", str(error).partition("\n")[0])
            continue
        if backward:
            yield from _backward(
                r.options, peer.name, rotate, r.sets[0], compiled=peer.compiled, main=r.main
            )
        else:
            yield from _forward(r.options, peer.name, rotate, compiled=peer.compiled, main=r.main)


def _addcmul(r: Rotation, *, sign: float = 1.0) -> Row:
    """The best that we know to write with operations of torch: no temporary, results reused."""
    turned = angles(torch.from_numpy(r.positions)).unsqueeze(r.heads_axis)
    cos, sin = turned.cos().to(r.dtype), (sign * turned.sin()).to(r.dtype)
    negative = -sin

    def halves(x: torch.Tensor) -> Sequence[torch.Tensor]:
        return x.chunk(2, -1) if r.pairing == "half" else (x[..., 0::2], x[..., 1::2])

    def run(b: QueryKey) -> None:
        for x, out in ((b.q, b.out_q), (b.k, b.out_k)):
            (a, b_), (to_a, to_b) = halves(x), halves(out)
            torch.mul(a, cos, out=to_a).addcmul_(b_, negative)
            torch.mul(b_, cos, out=to_b).addcmul_(a, sin)

    return Contestant("hand-written, addcmul_", "out=", run, "copy", yardstick=True)


# ---------------------------------------------------------------------------------------- all peers


def forward(r: Rotation) -> list[Row]:
    """Every peer's rotation of q and k."""
    if not isinstance(r.dtype, torch.dtype):
        return [numpy_row(r), onnxruntime_row(r), jax_row(r), *numba_rows(r)]
    return [
        *_torch_rows(r, backward=False),
        onnxruntime_row(r),
        jax_row(r),
        _addcmul(r),
        *numba_rows(r),
    ]


def backward(r: Rotation) -> list[Row]:
    """Every peer's gradient of q and k, whose incoming gradients are the case's q and k."""
    return [
        *_torch_rows(r, backward=True),
        Skipped("ONNX Runtime, IO binding", "out=", "its RotaryEmbedding has no gradient"),
        jax_row(r, backward=True),
        _addcmul(r, sign=-1.0),
        *numba_rows(r, sign=-1.0),
    ]
