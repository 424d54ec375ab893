"""Results of 8 bits: `out=` of float8 or int8 for q and k, as kernels of attention take them.

    q ──(norm)── rotation ──► / q_scale ──► round ──► out[0]

A result of 8 bits is written as a cache is: its tokens are the slots. Numbers are divided by a
scale and rounded once, from float32 (core/calls/caches.py has the formats). Caches have no groups,
no inverse, no pairs that move and no factor of queries: there a call in float32 comes first.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.caches import has_eight_bits, scale_options
from posenc_native.core.calls.descriptions import description_in
from posenc_native.core.calls.errors import blame, fault_of
from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.pairs import of_pair
from posenc_native.core.calls.rotation import Rotation, by_tables
from posenc_native.core.calls.views import check_layout

from . import late
from .rotations import Call, run
from .verbs import APPLY_ROTARY_QK, NORM_ROTARY_QK, ROTARY_APPEND


def any_eight_bits(outs: Any) -> bool:
    """Whether one of the places has 8 bits."""
    return any(hasattr(out, "dtype") and has_eight_bits(out) for out in outs)


def refuse_scales(function: str, q_scale: Any, k_scale: Any) -> NoReturn:
    """The error for scales without memory of 8 bits."""
    name, scale = ("k_scale", k_scale) if q_scale is None else ("q_scale", q_scale)
    wrong_value(function, name, "None without out= of 8 bits", _shown(scale))


def _shown(scale: Any) -> str:
    return f"shape {list(scale.shape)}" if hasattr(scale, "shape") else repr(scale)


def write_eight_bits(call: Call, scales: tuple[Any, Any]) -> tuple[Any, Any]:
    """The results of a call for q and k, of which one or both are of 8 bits.

    scales: (q_scale, k_scale), as those of a cache.

    Raises:
        ValueError, TypeError: as in the call; or steps are rounded as written where a call in
            float32 comes first. Then nothing has been written.
    """
    function, outs = call.verb.name, call.outs or ()
    _check(function, call)
    there = [i for i in (0, 1) if outs[i] is not None]
    if len(there) == 2 and _overlap(outs[0], outs[1]):
        wrong_value(function, "out[1]", "no memory in common with out[0]", "an overlap")
    # All but the last go to memory of their own first: if the last call fails, nothing has been
    # written.
    found = {i: _new_like(outs[i]) for i in there[:-1]}
    found[there[-1]] = outs[there[-1]]
    for i, place in found.items():
        try:
            _write_one(call, i, place, scales[i])
        except (ValueError, TypeError) as error:
            _in_words_of(error, function, i)
            raise
    for i in there[:-1]:
        outs[i][...] = found[i]
    return outs[0], outs[1]


def append_beside_eight_bits(call: Call, q_scale: Any) -> tuple[Any, ...]:
    """The results of an append whose queries go to memory of 8 bits."""
    q, outs = call.inputs[0], call.outs or ()
    if q is None:
        wrong_value(call.verb.name, "q_scale", "None, as q is", _shown(q_scale))
    place = _new_like(outs[0])  # if the append fails, nothing has been written
    of_q = call._replace(inputs=(q, None), outs=(place, None), cache=())
    write_eight_bits(of_q, (q_scale, None))
    results = run(call._replace(inputs=(None, *call.inputs[1:]), outs=(None, *outs[1:])))
    outs[0][...] = place
    return outs[0], *results[1:]


def _check(function: str, call: Call) -> None:
    for name, x in zip("qk", call.inputs, strict=False):
        if arguments.is_tensor(x):
            late.torch_operations()
            from .torch.results import no_output_for_gradient

            no_output_for_gradient(function, x)
        elif x is not None and not isinstance(x, np.ndarray):
            arguments.as_operand(function, name, x)


def _write_one(call: Call, i: int, out: Any, scale: Any) -> None:
    """Write q (0) or k (1) to its place."""
    function, x, rotation = call.verb.name, call.inputs[i], call.rotation
    rope = description_in(rotation.inv_freq)
    layout = check_layout(function, rotation.layout or getattr(rope, "layout", None) or "bhsd")
    if "h" not in layout:
        x, out, layout = x[..., None, :], out[..., None, :], f"{layout[:-1]}h{layout[-1]}"
    if tuple(out.shape) != tuple(x.shape):
        wrong_value(function, f"out[{i}]", f"shape {list(x.shape)}", list(out.shape))
    if not has_eight_bits(out):
        if scale is not None:
            name = f"{'qk'[i]}_scale"
            wrong_value(function, name, "None, as the result has no 8 bits", _shown(scale))
        pair = (x, None) if i == 0 else (None, x)
        places = (out, None) if i == 0 else (None, out)
        run(call._replace(inputs=pair, outs=places, rotation=rotation._replace(layout=layout)))
        return
    scaled = i == 0 and getattr(rope, "query_scale", None) is not None
    turns_back = rotation.inverse or rotation.out_pairing != "same"
    if scaled or turns_back or "g" in layout:
        _check_rounding(function, call)
        wide = _wide(x)
        pair = (wide, None) if i == 0 else (None, wide)
        verb = NORM_ROTARY_QK if call.norm else APPLY_ROTARY_QK
        options = rotation._replace(layout=layout)
        results = run(Call(verb, pair, options, None, call.compute, call.norm))
        _round(function, results[i], out, layout, scale)
        return
    norm: Any = call.norm or Norm(norm=False)
    weight = (norm.q_weight, norm.k_weight)[i]
    cache = _as_cache(function, x, out, layout, scale)
    one = Rotation(
        of_pair(rotation.positions, i), rotation.inv_freq, layout, rotation.pairing,
        of_pair(rotation.rotary_start, i), rotation.axis_map, rotation.scale,
    )  # fmt: skip
    compute = call.compute or (None,)
    norm = norm._replace(q_weight=None, k_weight=weight)
    run(Call(ROTARY_APPEND, (None, x, x[..., :0]), one, None, compute, norm, cache))


def _as_cache(function: str, x: Any, out: Any, layout: str, scale: Any) -> tuple[Any, ...]:
    """The fields of a `Cache` whose slots are the tokens of x."""
    slots: Any = np.arange(x.shape[max(layout.find("s"), layout.find("t"))])
    if arguments.is_tensor(x):
        import torch

        slots = torch.from_numpy(slots).to(x.device)
    of_scales = scale_options(function, scale, None, None)
    return out, out[..., :0], slots, layout.replace("t", "s"), False, *of_scales


def _check_rounding(function: str, call: Call) -> None:
    """ValueError where steps are rounded to the dtype of q and k, which float32 would not show."""
    tables = call.rotation.inv_freq
    compute = tables.compute if by_tables(call.rotation) else (call.compute or (None,))[0]
    if compute == "as_written":
        expected = "'float32' beside such results of 8 bits"
        wrong_value(function, "compute", expected, repr(compute))


def _wide(x: Any) -> Any:
    """x in float32, or float64."""
    if arguments.dtype_name(x.dtype) in ("float32", "float64"):
        return x
    return x.float() if arguments.is_tensor(x) else x.astype(np.float32)


def _round(function: str, x: Any, out: Any, layout: str, scale: Any) -> None:
    """Divide and round x to memory of 8 bits: an append that rotates no pairs."""
    if "g" in layout:
        at, each = layout.index("g"), layout.replace("g", "")
        heads = x.shape[layout.index("h")]
        of_heads = getattr(scale, "ndim", 0) == 1 and len(scale) == x.shape[at] * heads
        for group in range(x.shape[at]):
            part = (*[slice(None)] * at, group)
            own = scale[group * heads : (group + 1) * heads] if of_heads else scale
            _round(function, x[part], out[part], each, own)
        return
    none = x.new_empty(0) if arguments.is_tensor(x) else np.empty(0)
    still = Rotation(None, none, layout, "half", 0, None, 1.0)
    cache = _as_cache(function, x, out, layout, scale)
    run(Call(ROTARY_APPEND, (None, x, x[..., :0]), still, None, (None,), Norm(norm=False), cache))


def _new_like(out: Any) -> Any:
    return out.new_empty(out.shape) if arguments.is_tensor(out) else np.empty(out.shape, out.dtype)


def _overlap(first: Any, second: Any) -> bool:
    if arguments.is_tensor(first) and arguments.is_tensor(second):
        from .torch.results import overlap

        return bool(overlap(first, second))
    both = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    return both and bool(np.shares_memory(first, second))


def _in_words_of(error: BaseException, function: str, i: int) -> None:
    """Let an error of `rotary_append` name the arguments of the call."""
    fault = fault_of(error)
    if fault is None or fault.function == function:
        return
    names = {"k": "qk"[i], "v": "qk"[i], "keys": f"out[{i}]", "values": f"out[{i}]",
             "k_scale": f"{'qk'[i]}_scale", "k_weight": f"{'qk'[i]}_weight"}  # fmt: skip
    blame(error, function=function, argument=names.get(fault.argument, fault.argument))
