"""The steps before attention, composed of torch operations; differentiable to every order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.base.caches import Cache, CacheView, check_cache, slot_axes
from posenc_native.base.norms import Norm, mean_axes, weight_shape
from posenc_native.base.rotation import Rotation, TableRotation
from posenc_native.base.views import RotaryView, rotary_view

from . import rotary
from .phases import concrete, whole_numbers

AnyRotation = Rotation | TableRotation


def norm_rotary(
    function: str, q: Tensor, k: Tensor, rotation: AnyRotation, as_written: bool, norm: Norm
) -> tuple[Tensor, Tensor]:
    """q and k normed and rotated; the norm comes from `check_norm`."""
    weights = {"q": norm.q_weight, "k": norm.k_weight}
    inputs = {"q": q, "k": k}
    views = view_pair(function, q, k, rotation)
    normed = {
        name: _norm(function, f"{name}_weight", weights[name], norm, views[name], as_written)
        for name in inputs
    }
    if not as_written:
        real = torch.float64 if q.dtype == torch.float64 else torch.float32
        inputs = {name: x.to(real) for name, x in inputs.items()}
    if norm.norm and norm.norm_first:
        inputs = {name: normed[name](x) for name, x in inputs.items()}
    rotated = _rotate(function, inputs["q"], inputs["k"], rotation, as_written)
    if norm.norm and not norm.norm_first:
        rotated = normed["q"](rotated[0]), normed["k"](rotated[1])
    return rotated[0].to(q.dtype), rotated[1].to(q.dtype)


def view_pair(function: str, q: Tensor, k: Tensor, rotation: AnyRotation) -> dict[str, RotaryView]:
    """The axes of q and k."""
    views = {}
    for name, x in (("q", q), ("k", k)):
        arguments.check_dtype(function, name, x.dtype, arguments.FLOAT_DTYPES)
        if x.dtype != q.dtype:
            wrong_type(function, name, f"the dtype of q, {q.dtype}", x.dtype)
        views[name] = rotary_view(function, tuple(x.shape), rotation.layout, "half", 0, 0, name)
    return views


def _rotate(
    function: str, q: Tensor, k: Tensor, rotation: AnyRotation, as_written: bool
) -> tuple[Tensor, ...]:
    if isinstance(rotation, TableRotation):
        compute = "as_written" if as_written else "float32"
        return rotary.apply_rotary_tables(function, (q, k), rotation._replace(compute=compute))
    if not as_written:
        return rotary.apply_rotary(function, (q, k), rotation)
    if rotation.inv_freq.ndim != 1:
        expected = "'float32' with frequencies per head (no library has tables for these)"
        wrong_value(function, "compute", expected, "'as_written'")
    rotary.apply_rotary(function, (q, k), rotation)  # for its checks
    points = rotation.positions
    if points is None:
        view = rotary_view(function, tuple(q.shape), rotation.layout, "half", 0, 0, "q")
        points = torch.arange(view.tokens, device=q.device)
    real = torch.float64 if q.dtype == torch.float64 else torch.float32
    cos, sin = rotary.tables(function, points, rotation.inv_freq, rotation.axis_map, real)
    tables = TableRotation(
        cos * rotation.scale, sin * rotation.scale, rotation.layout, rotation.pairing,
        rotation.rotary_start, rotation.inverse, "as_written",
    )  # fmt: skip
    return rotary.apply_rotary_tables(function, (q, k), tables)


def _norm(
    function: str,
    argument: str,
    weight: Tensor | None,
    norm: Norm,
    view: RotaryView,
    as_written: bool,
) -> Any:
    """The norm of q or of k as a function, with a checked weight."""
    shape: tuple[int, ...] = ()
    if weight is not None:
        shape = weight_shape(function, argument, weight, norm.norm_over, view)
    axes = mean_axes(norm.norm_over, view)

    def normed(x: Tensor) -> Tensor:
        real = torch.float64 if x.dtype == torch.float64 else torch.float32
        values = x.to(real)
        values = values * (values.square().mean(axes, keepdim=True) + norm.eps).rsqrt()
        if weight is not None:
            if as_written and weight.dtype == x.dtype and norm.weight_offset == 0:
                values = values.to(x.dtype).to(real)
            values = values * (weight.to(real) + norm.weight_offset).reshape(shape)
        return values.to(x.dtype) if as_written else values

    return normed


def append(
    function: str, k: Tensor, v: Tensor, rotation: AnyRotation, cache: Cache
) -> Callable[[Tensor], None]:
    """Check the caches; returns a function that writes rotated keys, and v, to their slots."""
    view = rotary_view(function, tuple(k.shape), rotation.layout, "half", 0, 0, "k")
    of_cache = check_cache(function, k, v, cache, view)
    batch = 1 if view.batch is None else view.batch
    slots = whole_numbers(cache.slots).expand(batch, view.tokens)
    if concrete(cache.slots):
        _check_slot_values(function, slots, of_cache)

    def write(rotated_k: Tensor) -> None:
        rows, tokens = torch.nonzero(slots >= 0, as_tuple=True)
        places: tuple[Tensor, ...] = (slots[rows, tokens],)
        if of_cache.batch is not None:
            places = (rows, *places)
        elif of_cache.pages is not None:
            size = of_cache.size
            places = (places[0].div(size, rounding_mode="floor"), places[0] % size)
        for to, x in ((cache.keys, rotated_k), (cache.values, v)):
            by_token = _by_token(x, view.layout)
            to.permute(slot_axes(of_cache.layout)).index_put_(places, by_token[rows, tokens])

    return write


def _by_token(x: Tensor, layout: str) -> Tensor:
    """x as [b, s, h, d]."""
    letters = layout.replace("t", "s")
    for letter in "hsb":
        if letter not in letters:
            x, letters = x.unsqueeze(0), letter + letters
    return x.permute([letters.index(letter) for letter in "bshd"])


def _check_slot_values(function: str, slots: Tensor, cache: CacheView) -> None:
    """ValueError unless slots are within the cache and none is used twice."""
    outside = (slots < -1) | (slots >= cache.slots)
    if bool(outside.any()):
        expected = f"-1, or slots 0 .. {cache.slots - 1}"
        wrong_value(function, "slots", expected, int(slots[outside][0]))
    for row in slots if cache.batch is not None else [slots.reshape(-1)]:
        unique, counts = row[row >= 0].unique(return_counts=True)
        if bool((counts > 1).any()):
            wrong_value(function, "slots", "no slot twice", f"{int(unique[counts > 1][0])} twice")
