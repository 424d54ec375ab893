"""Key-value caches: the letters of their axes, and where a slot is in them.

cache_layout   slot of a token                              used by
bhsd  bshd     index along s, in the row of its batch       static caches, rings
shd   hsd      index along s                                flat pools
pshd  phsd     page * size of a page + place in the page    pages: vLLM, FlashInfer
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .arguments import FLOAT_DTYPES, INTEGER_DTYPES, check_dtype, wrong_type, wrong_value
from .views import RotaryView


class Cache(NamedTuple):
    """The cache and the slots to write, in the order of the schemas and of the native module."""

    keys: Any
    values: Any
    slots: Any
    cache_layout: str = "bhsd"
    return_k: bool = False


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
    for name, tensor in (("v", v), ("keys", cache.keys), ("values", cache.values)):
        check_dtype(function, name, tensor.dtype, FLOAT_DTYPES)
        if tensor.dtype != k.dtype:
            wrong_type(function, name, f"the dtype of k, {k.dtype}", tensor.dtype)
    if tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        expected = f"the shape of k except for d, {list(k.shape)}"
        wrong_value(function, "v", expected, list(v.shape))
    for name, to, of in (("keys", cache.keys, k), ("values", cache.values, v)):
        views.append(cache_view(function, name, tuple(to.shape), layout, x, of.shape[-1]))
    if views[0] != views[1]:
        expected = f"as many slots as keys, {list(cache.keys.shape)}"
        wrong_value(function, "values", expected, f"shape {list(cache.values.shape)}")
    check_dtype(function, "slots", cache.slots.dtype, INTEGER_DTYPES)
    x.check_tokens(function, "slots", tuple(cache.slots.shape))
    return views[0]


def slot_axes(layout: str) -> list[int]:
    """The axes of a cache in the order batch or page (if any), slot, head, dim."""
    return [layout.index(letter) for letter in "bpshd" if letter in layout]
