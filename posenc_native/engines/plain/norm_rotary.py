"""The steps before attention: an RMS norm, the rotation, the append to a cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.caches import (
    Cache,
    CacheView,
    check_cache,
    has_eight_bits,
    scale_of,
    slot_axes,
)
from posenc_native.core.calls.norms import Norm, mean_axes, weight_shape
from posenc_native.core.calls.rotation import Rotation, by_tables
from posenc_native.core.calls.tables import Tables
from posenc_native.core.calls.views import RotaryView, rotary_view

from . import rotary
from .eight_bits import quantized
from .numbers import arange, cast, of, readable, rsqrt, whole, wide
from .phases import Turns
from .query_scale import factors_along, values_of


def norm_rotary(
    function: str, q: Any, k: Any, rotation: Rotation, as_written: bool, norm: Norm,
    turns_of: Turns,
) -> tuple[Any, Any]:  # fmt: skip
    """q and k normed and rotated; the norm comes from `check_norm`.

    turns_of: as `phases.frequency_turns`.
    """
    results = unrounded(function, q, k, rotation, as_written, norm, turns_of)
    return cast(results[0], q.dtype), cast(results[1], q.dtype)


def unrounded(
    function: str, q: Any, k: Any, rotation: Rotation, as_written: bool, norm: Norm,
    turns_of: Turns,
) -> tuple[Any, Any]:  # fmt: skip
    """As `norm_rotary`, in the precision of sums."""
    weights = {"q": norm.q_weight, "k": norm.k_weight}
    inputs = {"q": q, "k": k}
    views = {}
    for name, x in inputs.items():
        arguments.check_dtype(function, name, x.dtype, arguments.FLOAT_DTYPES)
        if x.dtype != q.dtype:
            wrong_type(function, name, f"the dtype of q, {q.dtype}", x.dtype)
        views[name] = _view(function, name, x, rotation)
    factors = {"q": _query_factors(function, q, rotation, as_written, norm, views["q"]), "k": None}
    normed = {
        name: _norm(
            function, f"{name}_weight", weights[name], norm, views[name], as_written, factors[name]
        )
        for name in inputs
    }
    if not as_written:
        inputs = {name: wide(x) for name, x in inputs.items()}
    if factors["q"] is not None and not norm.norm:
        inputs["q"] = inputs["q"] * factors["q"]
    if norm.norm and norm.norm_first:
        inputs = {name: normed[name](x) for name, x in inputs.items()}
    rotated = _rotate(function, inputs["q"], inputs["k"], rotation, as_written, turns_of)
    if norm.norm and not norm.norm_first:
        rotated = normed["q"](rotated[0]), normed["k"](rotated[1])
    return rotated[0], rotated[1]


def _view(function: str, name: str, x: Any, rotation: Rotation) -> RotaryView:
    return rotary_view(function, tuple(x.shape), rotation.layout, "half", 0, 0, name)


def _rotate(
    function: str, q: Any, k: Any, rotation: Rotation, as_written: bool, turns_of: Turns
) -> tuple[Any, ...]:
    if by_tables(rotation):  # the plain steps before have rounded as tables ask
        compute = "as_written" if as_written else "float32"
        rotation = rotation._replace(inv_freq=rotation.inv_freq._replace(compute=compute))
        return rotary.apply_rotary(function, (q, k), rotation, turns_of)
    turned = rotary.apply_rotary(function, (q, k), rotation, turns_of)
    if not as_written:
        return turned
    if rotation.inv_freq.ndim != 1:
        expected = "'float32' with frequencies per head (no library has tables for these)"
        wrong_value(function, "compute", expected, "'as_written'")
    points = rotation.positions
    if points is None:
        points = arange(_view(function, "q", q, rotation).tokens, q)
    real = wide(q[..., :0]).dtype
    cos, sin = rotary.tables(function, points, rotation.inv_freq, rotation.axis_map, real, turns_of)
    tables = Tables(cos * rotation.scale, sin * rotation.scale, compute="as_written")
    rotation = rotation._replace(positions=None, inv_freq=tables, axis_map=None, scale=1.0)
    return rotary.apply_rotary(function, (q, k), rotation, turns_of)


def _query_factors(
    function: str, q: Any, rotation: Rotation, as_written: bool, norm: Norm, view: RotaryView
) -> Any:
    """The factors of queries with the axes of q; None without."""
    if norm.query_scale == "none":
        return None
    if by_tables(rotation) or rotation.axis_map is not None or rotation.inv_freq.ndim > 2:
        expected = "'none' beside tables or several axes"
        wrong_value(function, "query_scale", expected, repr(norm.query_scale))
    if as_written:
        wrong_value(function, "compute", "'float32' beside a factor of queries", "'as_written'")
    points = rotation.positions
    if points is None:
        points = arange(view.tokens, q)
    arguments.check_position_dtype(function, "positions", points.dtype)
    view.check_tokens(function, "positions", tuple(points.shape))
    return factors_along(values_of(norm), q, points, rotation.layout)


def _norm(
    function: str,
    argument: str,
    weight: Any,
    norm: Norm,
    view: RotaryView,
    as_written: bool,
    factors: Any,
) -> Callable[[Any], Any]:
    """The norm of q or of k as a function, with a checked weight; factors: of queries, or None."""
    shape: tuple[int, ...] = ()
    if weight is not None:
        shape = weight_shape(function, argument, weight, norm.norm_over, view)
    axes = mean_axes(norm.norm_over, view)

    def normed(x: Any) -> Any:
        values, count = wide(x), math.prod(x.shape[axis] for axis in axes)
        squares = (values * values).sum(axes, keepdims=True)
        root = rsqrt(squares / count + norm.eps)
        values = values * (root if factors is None else root * factors)
        if weight is not None:
            if as_written and weight.dtype == x.dtype and norm.weight_offset == 0:
                values = cast(cast(values, x.dtype), values.dtype)
            values = values * (cast(weight, values.dtype) + norm.weight_offset).reshape(shape)
        return cast(values, x.dtype) if as_written else values

    return normed


def append(
    function: str, k: Any, v: Any, rotation: Rotation, cache: Cache
) -> Callable[[Any], None]:
    """Check the caches; returns a function that writes rotated keys, and v, to their slots.

    It takes keys that are not rounded yet.
    """
    view = _view(function, "k", k, rotation)
    of_cache = check_cache(function, k, v, cache, view)
    batch, xp = 1 if view.batch is None else view.batch, of(k)
    slots = xp.broadcast_to(whole(cache.slots), (batch, view.tokens))
    if readable(cache.slots):
        _check_slot_values(function, slots, of_cache)
    for i, name in enumerate(("k_scale", "v_scale")):
        _check_scale_values(function, name, scale_of(cache, i).of_heads)

    def write(rotated_k: Any) -> None:
        rows, tokens = xp.where(slots >= 0)
        places: tuple[Any, ...] = (slots[rows, tokens],)
        if of_cache.batch is not None:
            places = (rows, *places)
        elif of_cache.pages is not None:
            places = (places[0] // of_cache.size, places[0] % of_cache.size)
        for i, (to, x) in enumerate(((cache.keys, rotated_k), (cache.values, v))):
            letters = view.layout.replace("t", "s")
            for letter in "hsb":
                if letter not in letters:
                    x, letters = x[None], letter + letters
            by_token = _permuted(x, [letters.index(letter) for letter in "bshd"])
            heads = by_token[rows, tokens]
            if has_eight_bits(to):
                scale, dtype, to = scale_of(cache, i), to.dtype, to.view(xp.uint8)
                heads, made = quantized(heads, scale, dtype)
                if made is not None:
                    _permuted(scale.made, slot_axes(of_cache.layout[:-1]))[places] = made
            _permuted(to, slot_axes(of_cache.layout))[places] = cast(heads, to.dtype)

    return write


def _permuted(x: Any, axes: list[int]) -> Any:
    return of(x).moveaxis(x, axes, list(range(len(axes))))


def _check_scale_values(function: str, name: str, scales: Any) -> None:
    """ValueError unless scales of heads are positive and finite."""
    if scales is None or not readable(scales):
        return
    wrong = ~((scales > 0) & (scales < math.inf))
    if bool(wrong.any()):
        wrong_value(function, name, "positive finite numbers", f"{float(scales[wrong][0]):g}")


def _check_slot_values(function: str, slots: Any, cache: CacheView) -> None:
    """ValueError unless slots are within the cache and none is used twice."""
    outside = (slots < -1) | (slots >= cache.slots)
    if bool(outside.any()):
        expected = f"-1, or slots 0 .. {cache.slots - 1}"
        wrong_value(function, "slots", expected, int(slots[outside][0]))
    for row in slots if cache.batch is not None else [slots.reshape(-1)]:
        unique, counts = of(slots).unique(row[row >= 0], return_counts=True)
        if bool((counts > 1).any()):
            wrong_value(function, "slots", "no slot twice", f"{int(unique[counts > 1][0])} twice")
