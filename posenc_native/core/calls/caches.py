"""Key-value caches: the letters of their axes, and where a slot is in them.

cache_layout   slot of a token                              used by
bhsd  bshd     index along s, in the row of its batch       static caches, rings
shd   hsd      index along s                                flat pools
pshd  phsd     page * size of a page + place in the page    pages: vLLM, FlashInfer

A cache of 8 bits has numbers divided by a scale: of all, of a head, or of each slot and head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .arguments import (
    FLOAT32_END,
    FLOAT_DTYPES,
    INTEGER_DTYPES,
    check_dtype,
    dtype_name,
    is_count,
    wrong_type,
    wrong_value,
)
from .views import RotaryView


class Cache(NamedTuple):
    """The cache and the slots to write, in the order of the schemas and of the native module."""

    keys: Any
    values: Any
    slots: Any
    cache_layout: str = "bhsd"
    return_k: bool = False
    k_scale: float = 1.0
    v_scale: float = 1.0
    k_scale_of_heads: Any = None  # [1] or [H], in place of the numbers
    v_scale_of_heads: Any = None
    k_scales: Any = None  # memory for scales that are made, the cache's shape without d
    v_scales: Any = None


# The largest numbers of the formats of 8 bits.
EIGHT_BITS: Mapping[str, float] = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}


class Scale(NamedTuple):
    """The divisor of the numbers of one cache."""

    number: float
    of_heads: Any
    made: Any


def scale_options(
    function: str, k_scale: Any, v_scale: Any, scales: Any
) -> tuple[float, float, Any, Any, Any, Any]:
    """The last fields of a `Cache`, from the arguments of a call."""
    numbers, of_heads = [], []
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        is_number = isinstance(scale, (float, np.floating)) or is_count(scale)
        is_array = hasattr(scale, "shape") and not is_number
        if scale is not None and not is_array and not is_number:
            wrong_type(function, name, "a number or an array [1] or [H]", type(scale).__name__)
        numbers.append(1.0 if scale is None or is_array else _as_float(scale))
        of_heads.append(scale if is_array else None)
    made = (None, None) if scales is None else scales
    if not isinstance(made, tuple) or len(made) != 2:
        wrong_type(function, "scales", "a pair (k_scales, v_scales)", type(scales).__name__)
    return numbers[0], numbers[1], of_heads[0], of_heads[1], made[0], made[1]


def _as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:  # an int beyond 2^1024
        return math.inf


class CacheView(NamedTuple):
    """The sizes of a cache that its slots depend on."""

    layout: str
    batch: int | None  # rows with separate slots, None if all rows share the slots
    pages: int | None
    size: int  # of a row, of a page, or of all

    @property
    def slots(self) -> int:
        """The number of slots of one row."""
        return self.size if self.pages is None else self.pages * self.size


def check_cache_layout(function: str, layout: object) -> str:
    """The checked letters of a cache: s, h, d, and perhaps b or p; d last."""
    if not isinstance(layout, str):
        wrong_type(function, "cache_layout", "a str", type(layout).__name__)
    letters = set(layout)
    known = letters in ({*"shd"}, {*"bshd"}, {*"pshd"})
    if len(letters) != len(layout) or not known or not layout.endswith("d"):
        expected = "letters s, h, d and optionally b (batch) or p (pages), each once, ending in d"
        wrong_value(function, "cache_layout", expected, repr(layout))
    return layout


def cache_view(
    function: str, argument: str, shape: tuple[int, ...], layout: str, x: RotaryView, width: int
) -> CacheView:
    """The view of a cache of this shape that holds x (k or v) with heads of `width` dims."""
    if len(shape) != len(layout):
        expected = f"{len(layout)} axes for cache_layout {layout!r}"
        wrong_value(function, argument, expected, f"shape {list(shape)}")
    sizes = dict(zip(layout, shape, strict=True))
    wanted = {"h": x.heads, "d": width}
    if "b" in layout:
        wanted["b"] = 1 if x.batch is None else x.batch
    if any(sizes[letter] != length for letter, length in wanted.items()):
        names = ", ".join(f"{letter} = {length}" for letter, length in wanted.items())
        wrong_value(function, argument, f"a cache of {names}", f"shape {list(shape)}")
    return CacheView(layout, sizes.get("b"), sizes.get("p"), sizes["s"])


def check_cache(function: str, k: Any, v: Any, cache: Cache, x: RotaryView) -> CacheView:
    """The view of a cache that holds k and v, arrays or tensors; x is the view of k.

    Raises:
        TypeError, ValueError: the dtypes, shapes and cache_layout do not fit together.
    """
    layout = check_cache_layout(function, cache.cache_layout)
    views = []
    check_dtype(function, "v", v.dtype, FLOAT_DTYPES)
    if v.dtype != k.dtype:
        wrong_type(function, "v", f"the dtype of k, {k.dtype}", v.dtype)
    for name, tensor in (("keys", cache.keys), ("values", cache.values)):
        if tensor.dtype != k.dtype and dtype_name(tensor.dtype) not in EIGHT_BITS:
            expected = f"the dtype of k, {k.dtype}, or {', '.join(EIGHT_BITS)}"
            wrong_type(function, name, expected, tensor.dtype)
    if tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        expected = f"the shape of k except for d, {list(k.shape)}"
        wrong_value(function, "v", expected, list(v.shape))
    for name, to, of in (("keys", cache.keys, k), ("values", cache.values, v)):
        views.append(cache_view(function, name, tuple(to.shape), layout, x, of.shape[-1]))
    if views[0] != views[1]:
        expected = f"as many slots as keys, {list(cache.keys.shape)}"
        wrong_value(function, "values", expected, f"shape {list(cache.values.shape)}")
    for i in range(2):
        _check_scale(function, i, cache, x.heads)
    check_dtype(function, "slots", cache.slots.dtype, INTEGER_DTYPES)
    x.check_tokens(function, "slots", tuple(cache.slots.shape))
    return views[0]


def has_eight_bits(x: Any) -> bool:
    """Whether numbers of an array are kept in 8 bits."""
    return dtype_name(x.dtype) in EIGHT_BITS


def scale_of(cache: Cache, i: int) -> Scale:
    """The scale of the keys (0) or the values (1)."""
    fields: Any = cache[5 + i :: 2]
    return Scale(*fields)


def _check_scale(function: str, i: int, cache: Cache, heads: int) -> None:
    """TypeError or ValueError unless the scale of the keys (0) or values (1) fits them."""
    to: Any = cache[i]
    number, of_heads, made = scale_of(cache, i)
    name, memory = ("k_scale", "v_scale")[i], f"scales[{i}]"
    divided = of_heads is not None or number != 1.0
    if not has_eight_bits(to):
        if divided or made is not None:
            of = ("keys", "values")[i]
            expected = f"None, or {of} of {', '.join(EIGHT_BITS)}"
            got = f"{of} of {dtype_name(to.dtype)}"
            wrong_value(function, name if divided else memory, expected, got)
        return
    if divided and made is not None:
        wrong_value(function, name, "None beside memory for scales", "a scale")
    if not 2.0**-150 < number < FLOAT32_END:  # rounded, neither 0 nor infinity
        wrong_value(function, name, "a positive finite number in float32", number)
    if of_heads is not None:
        check_dtype(function, name, of_heads.dtype, ("float32",))
        if tuple(of_heads.shape) not in ((), (1,), (heads,)):
            expected = f"a number, or shape [1] or [H] = [{heads}]"
            wrong_value(function, name, expected, f"shape {list(of_heads.shape)}")
    if made is not None:
        check_dtype(function, memory, made.dtype, ("float32",))
        if tuple(made.shape) != tuple(to.shape[:-1]):
            of = ("keys", "values")[i]
            expected = f"the shape of {of} without d, {list(to.shape[:-1])}"
            wrong_value(function, memory, expected, list(made.shape))


def slot_axes(layout: str) -> list[int]:
    """The axes of a cache in the order batch or page (if any), slot, head, dim."""
    return [layout.index(letter) for letter in "bpshd" if letter in layout]
