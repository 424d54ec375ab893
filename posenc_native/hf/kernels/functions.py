"""The behavior of a decorated function of a model, and our rotation in its place."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posenc_native.engines import following
from posenc_native.hf.forms import Form, NotServed
from posenc_native.hf.rotation import Rotation, probe_function
from posenc_native.hf.signatures import own_function

__all__ = ["FUNCTIONS", "Function", "index_of", "rotated", "tables_of"]


class Function(NamedTuple):
    """The behavior of a model's own function with tables of one width.

    Attributes:
        own: the function.
        rotation: the rotation that it is, if the columns of an angle are equal.
        angles: the number of angles.
        doubled: whether a table has every angle twice. The function reads both halves, so it
            rotates pairs only if they are equal.
    """

    own: Any
    rotation: Rotation
    angles: int
    doubled: bool


FUNCTIONS: list[Function] = []


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def index_of(module: nn.Module, width: int) -> int:
    """The index of the `Function` in `FUNCTIONS`; -1: its calls are not rotations of pairs."""
    return _probed(module, width)


@cache
def _probed(module: nn.Module, width: int) -> int:
    own = own_function(module)
    try:
        rotation = probe_function(own, Form((*range(width),)))
        doubled = rotation.pairing is None and _each_in_its_column(rotation.mixed)
        angles = width // 2 if doubled else width
        if doubled:
            rotation = probe_function(own, Form((*range(angles), *range(angles))))
    except NotServed:
        return -1
    pairs = rotation.keeps_pairs and rotation.order == (*range(angles),)
    if not pairs or (doubled and rotation.pairing != "half"):
        return -1
    function = Function(own, rotation, angles, doubled)
    FUNCTIONS.append(function)  # other threads may append too: the last is not always this one
    return next(i for i, known in enumerate(FUNCTIONS) if known is function)


def _each_in_its_column(mixed: tuple[tuple[int, ...], ...]) -> bool:
    """Whether every dim is x times its own column of cos plus another dim times that of sin."""
    return all(
        (a, of_cos, of_sin) == (i, i, i) for i, (a, of_cos, _, of_sin, _) in enumerate(mixed)
    )


def rotated(
    module: nn.Module, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """q and k as the model's own function returns them, rounded once if it rotates pairs."""
    index = -1
    if not following.transformed() and not torch.jit._trace.is_tracing():
        index = index_of(module, cos.shape[-1])
    if index >= 0:
        function = FUNCTIONS[index]
        if not function.rotation.keeps_dtype:  # the result of a product has the wider dtype
            q, k = (x.to(torch.promote_types(x.dtype, cos.dtype)) for x in (q, k))
        if _covers(function.rotation, q, k, cos, sin, dim):
            if torch.compiler.is_compiling():
                operator: Any = torch.ops.posenc_native_hf.rotary_pos_emb
                result: tuple[Tensor, ...] = operator(q, k, cos, sin, dim, index)
                return result
            plain = all(type(x) is Tensor for x in (q, k, cos, sin))
            if plain and (tables := tables_of(function, cos, sin)) is not None:
                layout = function.rotation.layouts[q.ndim, cos.ndim, dim]
                return function.rotation((q, k), *tables, layout)
    own: Callable[..., tuple[Tensor, ...]] = own_function(module)
    return own(q, k, cos, sin, dim)


def _covers(rotation: Rotation, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, dim: int) -> bool:
    """Whether these are heads and tables of the shapes that the rotation takes."""
    if q.ndim != k.ndim or cos.shape != sin.shape or cos.requires_grad or sin.requires_grad:
        return False
    layout = rotation.layout((q, k), cos.shape, dim)
    if layout is None:
        return False
    if rotation.part == "whole" and not q.shape[-1] == k.shape[-1] == rotation.dims:
        return False
    return cos.ndim == 2 or cos.shape[0] == 1 or cos.shape[0] == q.shape[0] == k.shape[0]


def tables_of(function: Function, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor] | None:
    """cos and sin with every angle once; None if a table does not have every angle twice."""
    if not function.doubled:
        return cos, sin
    angles = function.angles
    for table in (cos, sin):
        # All layers of a step get the same tensors: they are compared once. The values of an
        # inference tensor may change without a new version, so it is compared in every layer.
        version = -1 if table.is_inference() else table._version
        if version < 0 or getattr(table, "_posenc_halves", None) != version:
            if table.is_meta or (table.is_cuda and torch.cuda.is_current_stream_capturing()):
                return None
            if not torch.equal(table[..., :angles], table[..., angles:]):
                return None
            table._posenc_halves = version  # type: ignore[attr-defined]
    return cos[..., :angles], sin[..., :angles]
