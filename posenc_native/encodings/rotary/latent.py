"""A serving step of multi-head latent attention (MLA): `Rotary.append_latent`.

projection ──► q       last dims rotated ──► q                        to attention
           ──► latent  copied  ────────────► cache[slot][:L]          L dims, normed by the model
           ──► k_rope  rotated ────────────► cache[slot][L:]          and k, if prefill needs it

All heads share a row of the cache: it is the key, and its first L dims are the value. The call is
`rotary_append` for one head of k and v, with the two parts of the cache as keys and values, and
with the part of q that rotates. A latent with several scales is a second call, for as many heads
that do not rotate.

A row of vLLM's fp8_ds_mla is views of bytes: 512 float8_e4m3fn, 4 float32 scales of 128 of these
each, 64 bfloat16 that rotate (656 bytes).

Source: DeepSeek-AI 2024, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts
Language Model", section 2.1.
"""

from __future__ import annotations

import copy
import re
from typing import Any, NamedTuple

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.caches import has_eight_bits
from posenc_native.core.calls.errors import blame, fault_of
from posenc_native.core.calls.views import check_layout
from posenc_native.engines.arrays import any_dtensor
from posenc_native.engines.scaled_queries import scaled_queries

from .append import rotary_append

_FUNCTION = "Rotary.append_latent"


class Call(NamedTuple):
    """The arguments of `Rotary.append_latent`."""

    rope: Any
    q: Any
    k_rope: Any
    latent: Any
    positions: Any
    cache: Any
    slots: Any
    layout: Any
    cache_layout: Any
    return_k: bool
    k_scale: Any
    scales: Any
    inplace: bool
    out: Any


def append_latent(*call: Any) -> Any:
    """The results of a call, with the arguments of a `Call`."""
    try:
        return _append(*call)
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        asked = Call(*call)
        try:
            _check(asked)
        except (ValueError, TypeError) as known:
            raise known from None
        _in_our_words(error, _is_pair(asked.cache))
        raise


def _append(
    rope: Any,
    q: Any,
    k_rope: Any,
    latent: Any,
    positions: Any,
    cache: Any,
    slots: Any,
    layout: Any,
    cache_layout: Any,
    return_k: bool,
    k_scale: Any,
    scales: Any,
    inplace: bool,
    out: Any,
) -> Any:
    layout = rope.layout if layout is None else layout
    width = rope.head_dim - rope.rotary_start
    _check_width(width, k_rope, latent)
    cache, scales = _of_bytes(cache, scales, k_rope, latent)
    k, v = _of_one_head(k_rope, layout), _of_one_head(latent, layout)
    latents, keys = cache if _is_pair(cache) else _parts(cache, v.shape[-1])
    grouped = _has_groups(scales, latents)
    if grouped:  # before anything is written
        _check(Call(rope, q, k_rope, latent, positions, (latents, keys), slots, layout,
                    cache_layout, return_k, k_scale, scales, inplace, out))  # fmt: skip
        by_groups = _of_groups(v, latents, scales[0], layout, cache_layout)
        v, latents, scales = v[..., :0], latents[..., :0], (None, scales[1])
    if "h" not in cache_layout:
        latents, keys = latents[..., None, :], keys[..., None, :]
        cache_layout = f"{cache_layout[:-1]}h{cache_layout[-1:]}"
        if _is_pair(scales):
            scales = tuple(x if x is None else x[..., None] for x in scales)
    options = _of_eight_bits(latents, keys, k_scale, scales)
    angles = rope
    # It may describe heads of q, of which k_rope is a part; and q is scaled whole, below.
    if rope.rotary_start or rope.query_scale is not None:
        angles, of_angles = _of_rotated_dims(rope, latent)
        options |= of_angles
    both = return_k and _is_pair(out)
    q_out, k_out = out if both else (out, None)
    if any_dtensor(cache, q_out, q if inplace else None):
        _check_views(cache=cache, q=q if inplace else None, out=q_out)
    turned, to = q, q_out
    still = 0 if q is None else q.shape[-1] - width  # the dims of q that do not rotate
    if still:
        turned = q[..., still:]
        if q_out is not None:
            _check_out("out[0]" if both else "out", q_out, q)
            to = q_out[..., still:]
    if both:
        to = to, k_out if k_out is None else _of_one_head(k_out, layout)
    results = rotary_append(
        turned, k, v, positions, angles, keys, latents, slots, layout=layout,
        cache_layout=cache_layout, return_k=return_k, inplace=inplace, out=to, **options,
    )  # fmt: skip
    if grouped:
        rotary_append(slots=slots, **by_groups)
    result, k_result = results if return_k else (results, k)
    if inplace:
        q_out, k_out = q, k_rope
    elif q_out is None:
        q_out = _joined(q, still, result) if still else result
    elif still and q_out is not q:
        q_out[..., :still] = q[..., :still]
    if rope.query_scale is not None and q is not None:
        own = q_out is not q and out is None
        q_out = scaled_queries(_FUNCTION, rope.query_scale, q_out, positions, layout, own)
    if not return_k:
        return q_out
    if k_out is None:
        k_out = k_result if k is k_rope else k_result[_at_heads(layout, 0)]
    return q_out, k_out


def _of_rotated_dims(rope: Any, x: Any) -> tuple[Any, dict[str, Any]]:
    """Frequencies of the rotated dims, or rows of them, and options; no factor of queries."""
    if not hasattr(rope, "rotation_of_rows"):
        inv_freq, axis_map = rope._of(x)
        return inv_freq, {"pairing": rope.pairing, "axis_map": axis_map, "scale": rope.scale}
    part = copy.copy(rope)  # Rotary.rows
    part.head_dim, part.rotary_start, part.query_scale = rope.head_dim - rope.rotary_start, 0, None
    return part, {}


def _of_one_head(x: Any, layout: str) -> Any:
    """x with the axis of heads of the layout, if it has one."""
    return x if x.ndim == len(layout) or "h" not in layout else x[_at_heads(layout, None)]


def _at_heads(layout: str, index: int | None) -> tuple[Any, ...]:
    """The index that adds (None) or drops (0) the axis of heads."""
    return (*[slice(None)] * layout.index("h"), index)


def _parts(cache: Any, dims: int) -> tuple[Any, Any]:
    """The parts of rows for latent and key."""
    return cache[..., :dims], cache[..., dims:]


_GROUP = 128  # numbers with a scale of their own, in rows of bytes


def _of_bytes(cache: Any, scales: Any, k_rope: Any, latent: Any) -> tuple[Any, Any]:
    """The cache and its scales as views, if its rows are bytes."""
    if _is_pair(cache) or arguments.dtype_name(getattr(cache, "dtype", None)) != "uint8":
        return cache, scales
    dims, size = latent.shape[-1], k_rope.dtype.itemsize
    end = dims + 4 * (dims // _GROUP)  # of the scales
    bytes_ = end + size * k_rope.shape[-1]
    if dims % _GROUP or cache.shape[-1] != bytes_:
        expected = (
            f"rows of {bytes_} bytes: {dims} of latent (a multiple of {_GROUP}), 4 of a scale for "
            f"{_GROUP} of these, {size} for each of {k_rope.shape[-1]} numbers of k_rope"
        )
        arguments.wrong_value(_FUNCTION, "cache", expected, f"shape {list(cache.shape)}")
    if scales is not None:
        arguments.wrong_value(_FUNCTION, "scales", "None: rows of bytes have theirs", "memory")
    formats: Any
    if arguments.is_tensor(cache):
        import torch as formats
    else:
        import ml_dtypes as formats
    of_scales = formats.float32 if arguments.is_tensor(cache) else np.float32
    latents = cache[..., :dims].view(formats.float8_e4m3fn)
    keys = cache[..., end:].view(k_rope.dtype)
    return (latents, keys), (cache[..., dims:end].view(of_scales), None)


def _has_groups(scales: Any, latents: Any) -> bool:
    """Whether a latent has several scales, along an axis in the place of d."""
    return _is_pair(scales) and getattr(scales[0], "ndim", 0) == latents.ndim


def _of_groups(v: Any, latents: Any, scales: Any, layout: str, cache_layout: str) -> dict[str, Any]:
    """The arguments of `rotary_append` for groups of the latent as heads that do not rotate."""
    if "h" in layout:
        v = v[_at_heads(layout, 0)]
    if "h" in cache_layout:
        at = _at_heads(cache_layout, 0)
        latents, scales = latents[at], scales[at]
    groups = scales.shape[-1]
    heads, kept = (x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups) for x in (v, latents))
    order = f"{layout.replace('h', '')[:-1]}hd"
    none: Any = np.empty(0)  # frequencies
    if arguments.is_tensor(v):
        none = scales.new_empty(0)
    return {
        "q": None, "k": heads, "v": heads[..., :0], "positions": None, "inv_freq": none,
        "keys": kept, "values": kept[..., :0], "layout": order, "scales": (scales, None),
        "cache_layout": f"{cache_layout.replace('h', '')[:-1]}hd",
    }  # fmt: skip


def _is_pair(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2


def _of_eight_bits(latents: Any, keys: Any, k_scale: Any, scales: Any) -> dict[str, Any]:
    """The options of `rotary_append` for caches of 8 bits."""
    options: dict[str, Any] = {}
    if k_scale is not None:  # for the parts of 8 bits; an error if there is none
        of_keys, of_latents = has_eight_bits(keys), has_eight_bits(latents)
        options["k_scale"] = k_scale if of_keys else None
        options["v_scale"] = k_scale if of_latents or not of_keys else None
    if scales is not None:
        options["scales"] = scales[::-1] if _is_pair(scales) else scales
    return options


def _joined(q: Any, still: int, turned: Any) -> Any:
    """The first dims of q, and those that were rotated."""
    parts = q[..., :still], turned
    if arguments.is_tensor(turned):
        import torch

        return torch.cat(parts, -1)
    return np.concatenate(parts, -1)


# --- Checks before a call, of what `rotary_append` does not see


def _check_width(width: int, k_rope: Any, latent: Any) -> None:
    """ValueError unless k_rope has the rotated dims of the description."""
    own = k_rope.shape[-1]
    if own == width:
        return
    expected = f"the {width} dims of the Rotary (head_dim - rotary_start)"
    hint = f"write k_rope[..., -{width}:]" if own > width else ""
    if latent.shape[-1] == width:
        hint = "write k_rope before latent"
    elif own < width and own % 2 == 0:
        hint = f"make the Rotary of the dims that rotate, Rotary({own}, ...)"
    arguments.wrong_value(_FUNCTION, "k_rope", expected, f"shape {list(k_rope.shape)}", hint)


def _check_out(name: str, out: Any, q: Any) -> None:
    """ValueError unless out has the shape of q, and its memory or none of it."""
    if not hasattr(out, "shape"):
        arguments.wrong_type(_FUNCTION, name, "memory like q", type(out).__name__)
    arguments.check_shape(_FUNCTION, name, out.shape, q.shape)
    if not (arguments.is_tensor(out) and arguments.is_tensor(q)):
        apart = out is q or not np.shares_memory(out, q)
    else:
        from posenc_native.engines.torch.results import overlap, same_view

        apart = same_view(out, q) or not overlap(out, q)
    if not apart:
        expected = "the same view as q, or no memory in common with it"
        arguments.wrong_value(_FUNCTION, name, expected, "a partial overlap")


def _check_views(**written: Any) -> None:
    """ValueError for DTensors to write to that are sharded along d: their parts are copies."""
    for name, x in written.items():
        if any_dtensor(x) and any(place.is_shard(x.ndim - 1) for place in x.placements):
            expected = "a DTensor that is not sharded along d"
            arguments.wrong_value(_FUNCTION, name, expected, str(x.placements))


# --- Errors
# `rotary_append` refuses every wrong call that the checks above let pass. Only then is the call
# checked again, for an error in its own words: these checks take twice as long as a call for one
# token.


def _check(call: Call) -> None:
    """Raise the error for shapes that do not fit, if there are such."""
    rope, q, k_rope, latent = call[:4]
    layout = check_layout(_FUNCTION, rope.layout if call.layout is None else call.layout)
    inputs = {"k_rope": k_rope, "latent": latent} | ({} if q is None else {"q": q})
    for name, x in inputs.items():
        if not getattr(x, "shape", ()):
            expected = "a NumPy array or a torch tensor"
            arguments.wrong_type(_FUNCTION, name, expected, type(x).__name__)
    width = rope.head_dim - rope.rotary_start
    _check_width(width, k_rope, latent)
    if q is not None and (len(q.shape) != len(layout) or q.shape[-1] < width):
        expected = f"{len(layout)} axes ({layout}), of which d has at least {width} dims"
        arguments.wrong_value(_FUNCTION, "q", expected, f"shape {list(q.shape)}")
    tokens = list((k_rope if q is None else q).shape[:-1])
    one_head = tokens
    if "h" in layout:
        at = layout.index("h")
        if len(tokens) == len(layout) - 1:
            del tokens[at]
        one_head = [*tokens[:at], 1, *tokens[at:]]
    for name, x in (("k_rope", k_rope), ("latent", latent)):
        if list(x.shape[:-1]) not in (tokens, one_head):
            shapes = dict.fromkeys(str([*axes, x.shape[-1]]) for axes in (tokens, one_head))
            expected = f"shape {' or '.join(shapes)}, since all heads share it"
            arguments.wrong_value(_FUNCTION, name, expected, list(x.shape))
    _check_cache(call, tokens[layout.index("b")] if "b" in layout else 1)


def _check_cache(call: Call, batch: int) -> None:
    letters, dims, width = call.cache_layout, call.latent.shape[-1], call.k_rope.shape[-1]
    cache, of_scales = _of_bytes(call.cache, call.scales, call.k_rope, call.latent)
    call = call._replace(cache=cache, scales=of_scales)
    if not isinstance(letters, str):
        arguments.wrong_type(_FUNCTION, "cache_layout", "a str", type(letters).__name__)
    known = {*letters} - {"h"} in ({*"sd"}, {*"bsd"}, {*"psd"})
    if len({*letters}) != len(letters) or not known or not letters.endswith("d"):
        expected = (
            "letters s, d and optionally h and b (batch) or p (pages), each once, ending in d"
        )
        arguments.wrong_value(_FUNCTION, "cache_layout", expected, repr(letters))
    parts, names = call.cache, ("cache[0]", "cache[1]")
    if not _is_pair(call.cache):
        text = f"{dims + width} dims, {dims} of latent and {width} of k_rope"
        _check_rows("cache", call.cache, letters, dims + width, text, batch)
        parts, names = _parts(call.cache, dims), ("cache", "cache")
    _check_rows(names[0], parts[0], letters, dims, f"{dims} dims, as latent has", batch)
    _check_rows(names[1], parts[1], letters, width, f"{width} dims, as k_rope has", batch)
    if call.scales is not None and not _is_pair(call.scales):
        got = type(call.scales).__name__
        arguments.wrong_type(_FUNCTION, "scales", "a pair (latent_scales, k_scales)", got)
    for i, (scales, part) in enumerate(zip(call.scales or (), parts, strict=False)):
        of_rows = list(part.shape[:-1])
        if i == 0 and _has_groups(call.scales, part):
            _check_groups(call, part, of_rows)
            continue
        if scales is not None and list(getattr(scales, "shape", of_rows)) != of_rows:
            expected = f"the shape of the cache without d, {of_rows}"
            arguments.wrong_value(_FUNCTION, f"scales[{i}]", expected, list(scales.shape))


def _check_groups(call: Call, latents: Any, of_rows: list[int]) -> None:
    """ValueError unless each row has scales of groups of its latent, which has 8 bits."""
    scales, dims = call.scales[0], latents.shape[-1]
    groups = scales.shape[-1]
    if list(scales.shape[:-1]) != of_rows or groups == 0 or dims % groups:
        expected = f"shape {of_rows}, or G more, a divisor of {dims}"
        arguments.wrong_value(_FUNCTION, "scales[0]", expected, list(scales.shape))
    if arguments.dtype_name(scales.dtype) != "float32":
        arguments.wrong_type(_FUNCTION, "scales[0]", "dtype float32", scales.dtype)
    if not has_eight_bits(latents):
        got = arguments.dtype_name(latents.dtype)
        arguments.wrong_value(_FUNCTION, "scales[0]", "None, or a latent cache of 8 bits", got)
    if call.k_scale is not None:
        arguments.wrong_value(_FUNCTION, "k_scale", "None beside memory for scales", "a scale")


def _check_rows(name: str, rows: Any, letters: str, width: int, text: str, batch: int) -> None:
    """ValueError unless a cache of these axes has rows of this width."""
    shape = getattr(rows, "shape", None)
    if shape is None:
        expected = "an array or a tensor, or a pair (latent_cache, k_cache)"
        arguments.wrong_type(_FUNCTION, name, expected, type(rows).__name__)
    sizes = dict(zip(letters, shape, strict=False))
    hint = ""
    if len(shape) != len(letters):
        expected = f"{len(letters)} axes for cache_layout {letters!r}"
    elif sizes["d"] != width:
        expected = f"rows of {text}"
        if name == "cache" and sizes["d"] > width:
            hint = "for rows with other parts write a pair of views, (latent_cache, k_cache)"
    elif sizes.get("h", 1) != 1:
        expected = "one head, which all heads share"
    elif sizes.get("b", batch) != batch:
        expected = f"b = {batch} rows, as k_rope has"
        hint = f'cache_layout="{letters.replace("b", "p")}" for pages?'
    else:
        return
    arguments.wrong_value(_FUNCTION, name, expected, f"shape {list(shape)}", hint)


_OTHER_NAMES = re.compile(r"\bscales\[[01]\]|\b(?:k|v|keys|values|v_scale)\b")


def _in_our_words(error: BaseException, pair: bool) -> None:
    """Let an error of `rotary_append` name the arguments of this call."""
    fault = fault_of(error)
    if fault is None or fault.function == _FUNCTION:
        return
    names = {
        "k": "k_rope", "v": "latent", "v_scale": "k_scale",
        "values": "cache[0]" if pair else "cache", "keys": "cache[1]" if pair else "cache",
        "scales[0]": "scales[1]", "scales[1]": "scales[0]",
    }  # fmt: skip
    texts = {
        field: _OTHER_NAMES.sub(lambda match: names[match.group()], text)
        for field, text in fault._asdict().items()
    }
    blame(error, **{**texts, "function": _FUNCTION})
