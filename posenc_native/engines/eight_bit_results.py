"""Results of 8 bits: `out=` of float8 or int8 for q and k, as kernels of attention take them.

    q ──(norm)── rotation ──► / q_scale ──► round ──► out[0]

A result of 8 bits is written as a cache is: its tokens are the slots. Numbers are divided by a
scale and rounded once, from float32 (core/calls/caches.py has the formats).
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
from posenc_native.core.calls.rotation import Rotation
from posenc_native.core.calls.views import check_layout

from . import late
from .rotations import Call, run
from .verbs import ROTARY_APPEND


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
        ValueError, TypeError: as in the call, or it has options that a cache has not. Then nothing
            has been written.
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
    rotation = call.rotation
    for name, default in (("inverse", False), ("out_pairing", "same")):
        value = getattr(rotation, name)
        if value != default:
            expected = f"{default!r} beside results of 8 bits"
            wrong_value(function, name, expected, repr(value))
    rope = description_in(rotation.inv_freq)
    out = (call.outs or (None,))[0]
    scaled = getattr(rope, "query_scale", None) is not None
    if scaled and out is not None and has_eight_bits(out):
        expected = "results of the dtype of q, beside a Rotary with a query_scale"
        wrong_value(function, "out[0]", expected, "8 bits")
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
    if "g" in layout:
        expected = "letters without g beside results of 8 bits"
        wrong_value(function, "layout", expected, repr(layout))
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
    norm: Any = call.norm or Norm(norm=False)
    weight = (norm.q_weight, norm.k_weight)[i]
    of_scales = scale_options(function, scale, None, None)
    slots: Any = np.arange(x.shape[max(layout.find("s"), layout.find("t"))])
    if arguments.is_tensor(x):
        import torch

        slots = torch.from_numpy(slots).to(x.device)
    cache = out, out[..., :0], slots, layout.replace("t", "s"), False, *of_scales
    one = Rotation(
        of_pair(rotation.positions, i), rotation.inv_freq, layout, rotation.pairing,
        of_pair(rotation.rotary_start, i), rotation.axis_map, rotation.scale,
    )  # fmt: skip
    compute = call.compute or (None,)
    norm = norm._replace(q_weight=None, k_weight=weight)
    run(Call(ROTARY_APPEND, (None, x, x[..., :0]), one, None, compute, norm, cache))


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
