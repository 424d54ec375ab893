"""The steps before attention in float64: an RMS norm, the rotation, the append to a cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.base.caches import Cache, CacheView, check_cache, slot_axes
from posenc_native.base.errors import named
from posenc_native.base.norms import Norm, check_norm, mean_axes, weight_shape
from posenc_native.base.rotation import Rotation, TableRotation
from posenc_native.base.views import RotaryView, rotary_view, rounds_as_written

from . import rotary
from .checks import (
    Array,
    FloatArray,
    check_array,
    check_float_array,
    check_outputs,
    check_writable,
    round_once,
    store,
)

AnyRotation = Rotation | TableRotation


def norm_rotary_qk(q: Array, k: Array, *call: Any) -> tuple[Array, ...]:
    """q and k normed and rotated; call: a Rotation, compute, a Norm, and outputs."""
    return _norm_rotary("norm_rotary_qk", Rotation, q, k, *call)


def norm_rotary_qk_tables(q: Array, k: Array, *call: Any) -> tuple[Array, ...]:
    """q and k normed and rotated by tables; call: a TableRotation, a Norm, and outputs."""
    return _norm_rotary("norm_rotary_qk_tables", TableRotation, q, k, *call)


def rotary_append(q: Array, k: Array, v: Array, *call: Any) -> tuple[Array, ...]:
    """q and k rotated, k and v cached; call: a Rotation, compute, a Norm, a Cache, outputs."""
    return _append("rotary_append", Rotation, q, k, v, *call)


def rotary_append_tables(q: Array, k: Array, v: Array, *call: Any) -> tuple[Array, ...]:
    """The same by tables; call: a TableRotation, a Norm, a Cache, and outputs."""
    return _append("rotary_append_tables", TableRotation, q, k, v, *call)


def _records(kind: Any, options: list[Any]) -> tuple[AnyRotation, object, Norm, list[Any]]:
    """A rotation, how it is computed, a norm, and the options after them."""
    count = len(kind._fields)
    rotation, others = kind(*options[:count]), options[count:]
    compute = others.pop(0) if kind is Rotation else rotation.compute
    norms = len(Norm._fields)
    return rotation, compute, Norm(*others[:norms]), others[norms:]


def _norm_rotary(function: str, kind: Any, q: Array, k: Array, *call: Any) -> tuple[Array, ...]:
    *options, to = call
    rotation, compute, norm, _ = _records(kind, options)
    results = _turned(function, q, k, rotation, compute, norm)
    outs = check_outputs(function, {"q": q, "k": k}, to, _arrays_of(rotation, norm))
    return tuple(map(store, results, outs))


def _append(
    function: str, kind: Any, q: Array, k: Array, v: Array, *call: Any
) -> tuple[Array, ...]:
    *options, to = call
    rotation, compute, norm, of_cache = _records(kind, options)
    cache = Cache(*of_cache)
    rotated_q, rotated_k = _turned(function, q, k, rotation, compute, norm)
    view = rotary_view(function, k.shape, rotation.layout, "half", 0, 0, "k")
    caches = {"keys": cache.keys, "values": cache.values}
    for name, array in {"v": v, **caches}.items():
        check_float_array(function, name, array)
    check_array(function, "slots", cache.slots, arguments.INTEGER_DTYPES)
    cache_view = check_cache(function, k, v, cache, view)
    _check_slot_values(function, cache.slots, view, cache_view)
    read = [*_arrays_of(rotation, norm), cache.slots]
    inputs = {"q": q, "k": k, "v": v}
    for name, array in caches.items():
        others = [*read, *inputs.values(), *(c for n, c in caches.items() if n != name)]
        check_writable(function, name, array, others)
    results = (rotated_q, rotated_k) if cache.return_k else (rotated_q,)
    outs = check_outputs(function, inputs, to, [*read, *caches.values()], len(results))
    _write(cache.keys, rotated_k, cache.slots, view, cache_view)
    _write(cache.values, v, cache.slots, view, cache_view)
    return tuple(map(store, results, outs))


def _turned(
    function: str, q: Array, k: Array, rotation: AnyRotation, compute: object, norm: Norm
) -> tuple[Array, Array]:
    """q and k normed and rotated, in new memory."""
    as_written = rounds_as_written(function, compute)
    for name, x in (("q", q), ("k", k)):
        check_float_array(function, name, x)
        if x.dtype != q.dtype:
            wrong_type(function, name, f"the dtype of q, {q.dtype}", x.dtype)
    norm = check_norm(function, norm, q.dtype, rotation.layout)
    if isinstance(rotation, Rotation):  # the dtype of q, although q is rotated in float64
        arguments.factor(function, "scale", rotation.scale, q.dtype)
    weights = {"q": norm.q_weight, "k": norm.k_weight}
    inputs = {"q": q, "k": k}
    views = {
        name: rotary_view(function, x.shape, rotation.layout, "half", 0, 0, name)
        for name, x in inputs.items()
    }
    normed = {
        name: _norm(function, f"{name}_weight", weights[name], norm, views[name], as_written)
        for name in inputs
    }
    with named(function):
        if not norm.norm:
            pair = _rotate(q, k, rotation, as_written)
        elif norm.norm_first:
            pair = _rotate(normed["q"](q), normed["k"](k), rotation, as_written)
        else:
            turned = _rotate(_wide(q, as_written), _wide(k, as_written), rotation, as_written)
            pair = normed["q"](turned[0]), normed["k"](turned[1])
    return round_once_to(pair[0], q.dtype), round_once_to(pair[1], q.dtype)


def round_once_to(values: Array, dtype: np.dtype[Any]) -> Array:
    """Values, in float64 or already in the dtype, in the dtype."""
    return values if values.dtype == dtype else round_once(values, dtype)


def _wide(x: Array, as_written: bool) -> Array:
    return x if as_written else x.astype(np.float64)


def _rotate(q: Array, k: Array, rotation: AnyRotation, as_written: bool) -> tuple[Array, ...]:
    """q and k rotated in their own dtype."""
    if isinstance(rotation, TableRotation):
        compute = "as_written" if as_written else "float32"
        return rotary.apply_rotary_qk_tables(q, k, *rotation._replace(compute=compute), False)
    if not as_written:
        return rotary.apply_rotary_qk(q, k, *rotation, False)
    # Check the positions, then make their tables.
    rotary.apply_rotary_qk(q, k, *rotation, False)
    function = "norm_rotary_qk"
    if rotation.inv_freq.ndim != 1:
        expected = "'float32' with frequencies per head (no library has tables for these)"
        wrong_value(function, "compute", expected, "'as_written'")
    points = rotation.positions
    if points is None:
        view = rotary_view(function, q.shape, rotation.layout, "half", 0, 0, "q")
        points = view.tokens
    cos, sin = rotary.rotary_tables(
        points, rotation.inv_freq, rotation.axis_map, rotation.scale, np.float64
    )
    tables = TableRotation(
        cos, sin, rotation.layout, rotation.pairing, rotation.rotary_start, rotation.inverse,
        "as_written",
    )  # fmt: skip
    return rotary.apply_rotary_qk_tables(q, k, *tables, False)


def _norm(
    function: str, argument: str, weight: Any, norm: Norm, view: RotaryView, as_written: bool
) -> Any:
    """The norm of q or of k as a function, with a checked weight."""
    factor: FloatArray | None = None
    if weight is not None:
        check_float_array(function, argument, weight)
        shape = weight_shape(function, argument, weight, norm.norm_over, view)
        factor = (weight.astype(np.float64) + norm.weight_offset).reshape(shape)
    axes = mean_axes(norm.norm_over, view)

    def normed(x: Array) -> Array:
        values: FloatArray = x.astype(np.float64)
        count = max(int(np.prod([x.shape[axis] for axis in axes])), 1)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            mean = np.square(values).sum(axis=axes, keepdims=True) / count
            values = values / np.sqrt(mean + norm.eps)
            scaled: FloatArray = values if factor is None else values * factor
            if not as_written:
                return scaled
            if factor is not None and weight.dtype == x.dtype and norm.weight_offset == 0:
                scaled = round_once(values, x.dtype).astype(np.float64) * factor
            return round_once(scaled, x.dtype)

    return normed


def _arrays_of(rotation: AnyRotation, norm: Norm) -> list[Array | None]:
    options = (*rotation, *norm)
    return [option for option in options if isinstance(option, np.ndarray)]


def _check_slot_values(function: str, slots: Array, view: RotaryView, cache: CacheView) -> None:
    """ValueError unless slots are within the cache and none is used twice."""
    rows = _slots_of_rows(slots if slots.dtype == np.uint64 else slots.astype(np.int64), view)
    outside = rows >= cache.slots
    if slots.dtype != np.uint64:
        outside |= rows < -1
    if np.any(outside):
        expected = f"-1, or slots 0 .. {cache.slots - 1}"
        wrong_value(function, "slots", expected, int(rows[outside].flat[0]))
    rows = rows.astype(np.int64)
    # Rows of a batch have separate slots, or share them.
    for row in rows if cache.batch is not None else [rows.reshape(-1)]:
        written = row[row >= 0]
        unique, counts = np.unique(written, return_counts=True)
        if np.any(counts > 1):
            first = int(unique[counts > 1][0])
            wrong_value(function, "slots", "no slot twice", f"{first} twice")


def _slots_of_rows(slots: Array, view: RotaryView) -> Array:
    batch = 1 if view.batch is None else view.batch
    rows: Array = np.broadcast_to(slots, (batch, view.tokens))
    return rows


def _write(cache: Array, x: Array, slots: Array, view: RotaryView, of_cache: CacheView) -> None:
    """Write the heads of every token to its slot."""
    letters = view.layout.replace("t", "s")
    missing = [letter for letter in "bsh" if letter not in letters]
    x = x.reshape(*(1 for _ in missing), *x.shape)
    letters = "".join(missing) + letters
    by_token = x.transpose([letters.index(letter) for letter in "bshd"])
    by_slot = cache.transpose(slot_axes(of_cache.layout))
    rows = _slots_of_rows(slots.astype(np.int64), view)
    for batch, row in enumerate(rows):
        for token, slot in enumerate(row.tolist()):
            if slot < 0:
                continue
            if of_cache.batch is not None:
                by_slot[batch, slot] = by_token[batch, token]
            elif of_cache.pages is not None:
                by_slot[slot // of_cache.size, slot % of_cache.size] = by_token[batch, token]
            else:
                by_slot[slot] = by_token[batch, token]
