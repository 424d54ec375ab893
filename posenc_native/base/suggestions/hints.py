"""Suggested fixes for wrong calls of a rotation, searched only after an error has been raised.

All engines refuse the same calls. A fix is therefore found here, once for all of them, from the
original arguments, and added to the error while it propagates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from posenc_native.base.arguments import is_array, is_count
from posenc_native.base.caches import Cache, cache_view
from posenc_native.base.errors import add_hint, fault_of
from posenc_native.base.rotation import Rotation, TableRotation, own_tokens
from posenc_native.base.suggestions.vocabulary import value_hint
from posenc_native.base.views import (
    PAIRINGS,
    RotaryView,
    check_frequency_heads,
    check_same_tokens,
    rotary_view,
)


def hint_at(
    error: BaseException,
    rotation: Rotation | TableRotation,
    cache: Cache | None = None,
    **tensors: Any,
) -> None:
    """Add a suggested fix, if one is found, to the error of a rotation of these tensors.

    cache: the caches that it writes to, if any.
    """
    fault = fault_of(error)
    if fault is None or fault.hint or type(rotation.rotary_start) is tuple:
        return  # the call for q or k alone, with its separate start, has already searched
    hint = ""
    if fault.argument in ("pairing", "out_pairing"):
        hint = value_hint(getattr(rotation, fault.argument), PAIRINGS)
    elif fault.argument == "layout":
        hint = _layout_hint(rotation.layout)
    elif isinstance(error, ValueError):
        argument = fault.argument
        given = getattr(rotation, argument, None)
        if argument == "slots" and cache is not None:
            given = cache.slots
        hint = _one_token(argument, given)
        hint = hint or _one_of_each_row(argument, given, rotation, tensors)
        if cache is not None:
            hint = hint or _another_cache_layout(argument, rotation, tensors, cache)
        hint = hint or _full_width(argument, rotation, tensors)
        hint = hint or _another_layout(argument, rotation, tensors)
        hint = hint or _first_of_each_row(argument, given, rotation, tensors)
        hint = hint or _of_their_own(argument, rotation, tensors)
    add_hint(error, hint)


def _of_their_own(argument: str, rotation: Any, tensors: dict[str, Any]) -> str:
    """A hint for q and k of different lengths or widths, which a pair of options allows."""
    if argument != "k" or len(tensors) != 2 or not isinstance(rotation.layout, str):
        return ""
    q, k = map(_shape, tensors.values())
    letters = rotation.layout
    if not q or not k or not len(q) == len(k) == len(letters) or own_tokens(rotation):
        return ""
    differ = {letter for letter, m, n in zip(letters, q, k, strict=True) if m != n} - set("gh")
    if differ and differ <= {"s", "t"}:
        if isinstance(rotation, TableRotation):
            return "for different lengths write cos=(cos_q, cos_k), sin=(sin_q, sin_k)"
        return "for different lengths write positions=(q_positions, k_positions)"
    if differ == {"d"} and rotation.k_start < 0:
        return "for heads of different widths write rotary_start=(q_start, k_start)"
    return ""


def _full_width(argument: str, rotation: Any, tensors: dict[str, Any]) -> str:
    """A hint for tables with a column per dim, like cat(freqs, freqs) in transformers."""
    if argument not in ("cos", "sin") or not isinstance(rotation, TableRotation):
        return ""
    of_table, of_head = _shape(rotation.cos), _shape(next(iter(tensors.values())))
    width = of_table[-1] if of_table else 0
    if not width or width % 2 or not of_head or width != of_head[-1] - rotation.rotary_start:
        return ""
    part = "::2" if rotation.pairing == "interleaved" else f":{width // 2}"
    return f"tables of full width? write cos[..., {part}], sin[..., {part}]"


def _one_token(argument: str, given: Any) -> str:
    """A hint for a single number that is meant as a token's position or slot."""
    if argument not in ("positions", "slots") or _shape(given) != ():
        return ""
    if not is_array(given):
        # An int is a valid position, but not a valid slot.
        return f"for one token write [{given}]" if argument == "slots" and is_count(given) else ""
    plain = type(given).__name__ == "ndarray" or (type(given).__name__ == "Tensor" and given.is_cpu)
    return f"for one token write [{given.item() if plain else argument.removesuffix('s')}]"


def _one_of_each_row(argument: str, given: Any, rotation: Any, tensors: dict[str, Any]) -> str:
    """A hint for one position, slot or row of a table for each row of a batch, while decoding."""
    column = _column(argument, given, rotation, tensors)
    return f"one for each row of the batch? write {column[0]}" if column and column[1] == 1 else ""


def _first_of_each_row(argument: str, given: Any, rotation: Any, tensors: dict[str, Any]) -> str:
    """A hint for the position of the first token in each row of a batch."""
    column = _column(argument, given, rotation, tensors) if argument == "positions" else None
    if column is None:
        return ""
    return f"the first of each row of the batch? write {column[0]} + arange({column[1]})"


def _column(
    argument: str, given: Any, rotation: Any, tensors: dict[str, Any]
) -> tuple[str, int] | None:
    """One value for each row of a batch as a column, in code, and the tokens of a row."""
    if argument not in ("positions", "slots", "rows", "cos", "sin"):
        return None
    layout, x, shape = rotation.layout, _shape(next(iter(tensors.values()))), _shape(given)
    if not isinstance(layout, str) or not {*"bs"} <= {*layout} or len(layout) != len(x or ()):
        return None
    sizes = dict(zip(layout, x or (), strict=True))
    columns = 1 if argument in ("cos", "sin") else 0
    if not shape or len(shape) != 1 + columns or shape[0] != sizes["b"]:
        return None
    array = argument if is_array(given) else f"np.array({argument})"
    return f"{array}[:, None]", sizes["s"]


def _layout_hint(layout: object) -> str:
    """A hint for a layout that is valid except for capitals, spaces or n for heads."""
    if not isinstance(layout, str):
        return ""
    text = layout.lower().replace(" ", "").replace("n", "h")
    try:
        rotary_view("", (1,) * len(text), text, "half", 0, 0)
    except (ValueError, TypeError):
        return ""
    return f'layout="{text}"?'


_MISPLACED = ("positions", "cos", "sin", "inv_freq", "x", "q", "k")


def _another_layout(argument: str, rotation: Any, tensors: dict[str, Any]) -> str:
    """A hint with the layout in which the call would be valid, or with those it may be."""
    shapes = {name: _shape(x) for name, x in tensors.items()}
    rank = len(next(iter(shapes.values())) or ())
    if argument not in _MISPLACED or not 2 <= rank <= 4:
        return ""
    layouts = {
        4: [*_USUAL, "sbhd"],
        3: ["thd", "hsd", "bsd"],
        2: ["sd"],
    }[rank]
    if _fits(rotation, shapes, rotation.layout):
        return ""  # something else is wrong: a value
    told = [at for at in layouts if _fits(rotation, shapes, at)]
    usual = [at for at in told if at in _USUAL] or told
    if len(usual) == 1:
        return _choices("layout", usual)
    if isinstance(rotation.layout, str) and len(rotation.layout) != rank:  # no axis is in its place
        may_be = [at for at in layouts if _fits(rotation, shapes, at, told=False)]
        return _choices("layout", [at for at in may_be if at in _USUAL] or may_be)
    return ""


_USUAL = ("bhsd", "bshd")
_AXES = {"b": "batch", "h": "heads", "s": "tokens", "t": "tokens", "d": "dims"}
_CACHE_AXES = {**_AXES, "p": "pages", "s": "slots"}


def _choices(option: str, layouts: list[str], names: dict[str, str] = _AXES) -> str:
    """A hint with the axes of each layout; "" without layouts."""
    if len(layouts) == 1:
        return f'{option}="{layouts[0]}"?'
    named = [f'"{at}" for [{", ".join(names[letter] for letter in at)}]' for at in layouts]
    return f"write {option}={', '.join(named)}" if named else ""


def _another_cache_layout(
    argument: str, rotation: Any, tensors: dict[str, Any], cache: Cache
) -> str:
    """A hint with the cache_layout that fits the caches, if the given one does not."""
    layouts = {4: ["bhsd", "bshd", "pshd", "phsd"], 3: ["shd", "hsd"]}
    rank = len(_shape(cache.keys) or ())
    if argument not in ("keys", "values", "slots") or rank not in layouts:
        return ""
    if _holds(rotation, tensors["k"], cache, cache.cache_layout):
        return ""  # something else is wrong: a value
    fitting = [at for at in layouts[rank] if _holds(rotation, tensors["k"], cache, at)]
    return _choices("cache_layout", fitting, _CACHE_AXES)


def _holds(rotation: Any, k: Any, cache: Cache, layout: str) -> bool:
    """Whether caches in this layout hold tokens like those of k."""
    try:
        x = rotary_view("", _shape(k) or (), rotation.layout, "half", 0, 0)
        width = (_shape(cache.values) or (0,))[-1]
        keys = cache_view("", "", _shape(cache.keys) or (), layout, x, x.shape[-1])
        values = cache_view("", "", _shape(cache.values) or (), layout, x, width)
        slots = cache.slots
        listed = isinstance(slots, (list, tuple))  # as for one token: [77]
        x.check_tokens("", "", np.shape(slots) if listed else _shape(slots) or ())
    except (ValueError, TypeError):
        return False
    return keys == values and keys.slots >= x.tokens


def _fits(rotation: Any, shapes: dict[str, Any], layout: str, told: bool = True) -> bool:
    """Whether all shapes fit together in this layout.

    told: whether the shapes must also tell its axes apart.
    """
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    try:
        if isinstance(rotation, Rotation):
            frequencies = _shape(rotation.inv_freq) or ()
            places = {"positions": _shape(rotation.positions) or ()}
            if rotation.axis_map is not None or len(frequencies) == 3:
                before = places["positions"][:1]
            pairs = frequencies[-1]
        else:
            frequencies = ()
            places = {"cos": _shape(rotation.cos) or (), "sin": _shape(rotation.sin) or ()}
            pairs = places["cos"][-1]
            after = (pairs,)
            if rotation.rows is not None:
                places, after = {"rows": _shape(rotation.rows) or ()}, ()
            elif rotation.axis_map is not None:
                before = places["cos"][:1]
        views: dict[str, RotaryView] = {
            name: rotary_view(
                "", shape, layout, rotation.pairing, rotation.rotary_start, pairs, name
            )
            for name, shape in shapes.items()
        }
        first, *others = views.values()
        for other in others:
            check_same_tokens("", first, other)
        check_frequency_heads("", frequencies, views)
        given = {name: shape for name, shape in places.items() if shape}
        for name, shape in given.items():
            first.check_tokens("", name, shape, before=before, after=after)
    except (ValueError, TypeError, IndexError):
        return False
    if not told or given or frequencies[:-1] not in ((), (1,)):
        return True
    # Only heads of k that heads of q share tell tokens from heads: if k has another length instead,
    # as many tokens could look like heads.
    heads = [view.heads for view in views.values()]
    return len(heads) == 2 and 0 < heads[1] < heads[0] and heads[0] % heads[1] == 0


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of an array, a tensor or a list; () for a number, None for None."""
    if value is None:
        return None
    if isinstance(value, list):
        try:
            return np.shape(value)
        except (ValueError, TypeError):  # rows of different lengths; tensors on a GPU
            return None
    return tuple(getattr(value, "shape", ()))
