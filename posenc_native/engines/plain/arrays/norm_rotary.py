"""The steps before attention in float64: an RMS norm, the rotation, the append to a cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.caches import EIGHT_BITS, Cache, scale_of
from posenc_native.core.calls.norms import Norm, check_norm
from posenc_native.core.calls.rotation import Rotation, by_tables
from posenc_native.core.calls.views import rounds_as_written
from posenc_native.engines.plain import norm_rotary as plain
from posenc_native.engines.plain.numbers import cast
from posenc_native.engines.plain.phases import frequency_turns

from .checks import Array, check_array, check_float_array, check_outputs, check_writable, store
from .rotary import check_rotation


def norm_rotary_qk(q: Array, k: Array, *call: Any) -> tuple[Array, ...]:
    """q and k normed and rotated; call: a Rotation, compute, a Norm, and outputs."""
    return _run("norm_rotary_qk", {"q": q, "k": k}, *call)


def rotary_append(q: Array, k: Array, v: Array, *call: Any) -> tuple[Array, ...]:
    """q and k rotated, k and v cached; call: a Rotation, compute, a Norm, a Cache, outputs."""
    return _run("rotary_append", {"q": q, "k": k, "v": v}, *call)


def _run(function: str, inputs: dict[str, Array], *call: Any) -> tuple[Array, ...]:
    *options, to = call
    count = len(Rotation._fields)
    rotation, compute, others = Rotation(*options[:count]), options[count], options[count + 1 :]
    if by_tables(rotation):
        compute = rotation.inv_freq.compute
    elif compute is None:
        compute = "float32"
    norm, of_cache = Norm(*others[: len(Norm._fields)]), others[len(Norm._fields) :]
    q, k = inputs["q"], inputs["k"]
    as_written = rounds_as_written(function, compute)
    norm = check_norm(function, norm, q.dtype, rotation.layout)
    rotation, read = check_rotation(function, q, rotation)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        wide = plain.unrounded(function, q, k, rotation, as_written, norm, frequency_turns)
        results = [cast(x, q.dtype) for x in wide]
    read += [weight for weight in norm[:2] if weight is not None]
    if not of_cache:
        return tuple(map(store, results, check_outputs(function, inputs, to, read)))
    cache = Cache(*of_cache)
    caches = {"keys": cache.keys, "values": cache.values}
    check_float_array(function, "v", inputs["v"])
    for name, array in caches.items():
        check_array(function, name, array, (*arguments.FLOAT_DTYPES, *EIGHT_BITS))
    check_array(function, "slots", cache.slots, arguments.INTEGER_DTYPES)
    for i in range(2):
        scale = scale_of(cache, i)
        if scale.of_heads is not None:
            check_array(function, ("k_scale", "v_scale")[i], scale.of_heads, ("float32",))
            read.append(scale.of_heads)
        if scale.made is not None:
            caches[f"scales[{i}]"] = scale.made
            check_array(function, f"scales[{i}]", scale.made, ("float32",))
    write = plain.append(function, k, inputs["v"], rotation, cache)
    read.append(cache.slots)
    for name, array in caches.items():
        others = [*read, *inputs.values(), *(c for n, c in caches.items() if n != name)]
        check_writable(function, name, array, others)
    count = 1 + bool(cache.return_k)
    outs = check_outputs(function, inputs, to, [*read, *caches.values()], count)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        write(wide[1])
    return tuple(map(store, results[:count], outs))
