"""Suggested fixes for wrong calls of a rotation, searched only after an error has been raised.

All engines refuse the same calls. This module therefore finds a fix for all engines, from the
original arguments, and adds the fix to the error while it propagates. Each fix is a change of the
call: `_FIXES` lists the fixes, with the arguments that an error must be about. The first fix that
applies is suggested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from posenc_native.core.calls.arguments import is_array, is_count
from posenc_native.core.calls.caches import Cache, cache_view
from posenc_native.core.calls.errors import Fault, add_hint, fault_of
from posenc_native.core.calls.rotation import Rotation, by_tables, own_tokens
from posenc_native.core.calls.suggestions.vocabulary import surplus_hint, value_hint
from posenc_native.core.calls.views import (
    PAIRINGS,
    RotaryView,
    check_frequency_heads,
    check_same_tokens,
    rotary_view,
)


class _Wrong(NamedTuple):
    """A wrong call: its fault, and its original arguments.

    value: the argument that the fault is about; None if it is not part of the rotation.
    shapes: the shapes of the tensors.
    """

    fault: Fault
    value: Any
    rotation: Any
    tensors: dict[str, Any]
    shapes: dict[str, Any]
    cache: Cache | None


def hint_at(
    error: BaseException,
    rotation: Rotation,
    cache: Cache | None = None,
    **tensors: Any,
) -> None:
    """Add a suggested fix, if there is one, to the error of a rotation of these tensors.

    cache: the caches that it writes to, if any.
    """
    fault = fault_of(error)
    if fault is None or fault.hint or type(rotation.rotary_start) is tuple:
        return  # the call for q or k alone, with its separate start, has already searched
    argument = fault.argument
    value = getattr(cache, "slots", None) if argument == "slots" else rotation.option(argument)
    shapes = {name: _shape(x) for name, x in tensors.items()}
    wrong = _Wrong(fault, value, rotation, tensors, shapes, cache)
    for arguments, kind, fix in _FIXES:
        if argument in arguments.split() and isinstance(error, kind) and (hint := fix(wrong)):
            add_hint(error, hint)
            return


def _our_pairing(wrong: _Wrong) -> str:
    """Another library's name of a pairing."""
    return value_hint(wrong.value, PAIRINGS)


def _our_layout(wrong: _Wrong) -> str:
    """A layout that is valid except for capitals, spaces or n for heads."""
    if not isinstance(wrong.value, str):
        return ""
    text = wrong.value.lower().replace(" ", "").replace("n", "h")
    try:
        rotary_view("", (1,) * len(text), text, "half", 0, 0)
    except (ValueError, TypeError):
        return ""
    return f'layout="{text}"?'


def _one_token(wrong: _Wrong) -> str:
    """A single number that is meant as a token's position or slot."""
    argument, value = wrong.fault.argument, wrong.value
    if _shape(value) != ():
        return ""
    if not is_array(value):
        # An int is a valid position, but not a valid slot.
        return f"for one token write [{value}]" if argument == "slots" and is_count(value) else ""
    plain = type(value).__name__ == "ndarray" or (type(value).__name__ == "Tensor" and value.is_cpu)
    return f"for one token write [{value.item() if plain else argument.removesuffix('s')}]"


def _one_of_each_row(wrong: _Wrong) -> str:
    """One position, slot or row of a table for each row of a batch, while decoding."""
    column, tokens = _column(wrong)
    return f"one for each row of the batch? write {column}" if tokens == 1 else ""


def _first_of_each_row(wrong: _Wrong) -> str:
    """The position of the first token in each row of a batch."""
    column, tokens = _column(wrong)
    return (
        f"the first of each row of the batch? write {column} + arange({tokens})" if tokens else ""
    )


def _column(wrong: _Wrong) -> tuple[str, int]:
    """One value for each row of a batch as a column, in code, and the tokens of a row; else 0."""
    argument, layout = wrong.fault.argument, wrong.rotation.layout
    x, shape = next(iter(wrong.shapes.values())), _shape(wrong.value)
    if not isinstance(layout, str) or not {*"bs"} <= {*layout} or len(layout) != len(x):
        return "", 0
    sizes = dict(zip(layout, x, strict=True))
    columns = 1 if argument in ("cos", "sin") else 0
    if not shape or len(shape) != 1 + columns or shape[0] != sizes["b"]:
        return "", 0
    array = argument if is_array(wrong.value) else f"np.array({argument})"
    return f"{array}[:, None]", sizes["s"]


def _full_width(wrong: _Wrong) -> str:
    """Tables with a column per dim, like cat(freqs, freqs) in transformers."""
    rotation = wrong.rotation
    (width,), of_head = (
        _shape(rotation.option("cos"))[-1:] or (0,),
        next(iter(wrong.shapes.values())),
    )
    if not width or width % 2 or not of_head or width != of_head[-1] - rotation.rotary_start:
        return ""
    part = "::2" if rotation.pairing == "interleaved" else f":{width // 2}"
    return f"tables of full width? write cos[..., {part}], sin[..., {part}]"


def _two_tensors(wrong: _Wrong) -> str:
    """q and k in a call that rotates one tensor."""
    x, *rest = wrong.tensors.values()
    if rest or _shape(wrong.value)[-1:] != _shape(x)[-1:]:
        return ""
    return surplus_hint((x, wrong.value), {}, {wrong.fault.function})


def _of_their_own(wrong: _Wrong) -> str:
    """q and k of different lengths or widths, which a pair of options allows."""
    rotation = wrong.rotation
    if len(wrong.tensors) != 2 or not isinstance(rotation.layout, str):
        return ""
    q, k = wrong.shapes.values()
    if not len(q) == len(k) == len(rotation.layout) or own_tokens(rotation):
        return ""
    differ = {at for at, m, n in zip(rotation.layout, q, k, strict=True) if m != n} - {*"gh"}
    if differ and differ <= {"s", "t"}:
        if by_tables(rotation):
            return "for different lengths write Tables((cos_q, cos_k), (sin_q, sin_k))"
        return "for different lengths write positions=(q_positions, k_positions)"
    if differ == {"d"} and rotation.k_start < 0:
        return "for heads of different widths write rotary_start=(q_start, k_start)"
    return ""


_USUAL = ("bhsd", "bshd")
_LAYOUTS = {4: [*_USUAL, "sbhd"], 3: ["thd", "hsd", "bsd"], 2: ["sd"]}
_CACHE_LAYOUTS = {4: ["bhsd", "bshd", "pshd", "phsd"], 3: ["shd", "hsd"]}
_AXES = {"b": "batch", "h": "heads", "s": "tokens", "t": "tokens", "d": "dims"}
_CACHE_AXES = {**_AXES, "p": "pages", "s": "slots"}


def _another_layout(wrong: _Wrong) -> str:
    """The layout in which the call would be valid, or those it may be."""
    rotation, shapes = wrong.rotation, wrong.shapes
    rank = len(next(iter(shapes.values())))
    layouts = _LAYOUTS.get(rank, [])
    if _fits(rotation, shapes, rotation.layout):
        return ""  # something else is wrong: a value
    told = [at for at in layouts if _fits(rotation, shapes, at)]
    usual = [at for at in told if at in _USUAL] or told
    if len(usual) == 1:
        return _choices("layout", usual, _AXES)
    if isinstance(rotation.layout, str) and len(rotation.layout) != rank:  # no axis is in its place
        may_be = [at for at in layouts if _fits(rotation, shapes, at, told=False)]
        return _choices("layout", [at for at in may_be if at in _USUAL] or may_be, _AXES)
    return ""


def _another_cache_layout(wrong: _Wrong) -> str:
    """The cache_layout that fits the caches, if the call has another."""
    cache = wrong.cache
    if cache is None or _holds(wrong, cache, cache.cache_layout):
        return ""  # something else is wrong: a value
    layouts = _CACHE_LAYOUTS.get(len(_shape(cache.keys)), [])
    fitting = [at for at in layouts if _holds(wrong, cache, at)]
    return _choices("cache_layout", fitting, _CACHE_AXES)


def _choices(option: str, layouts: list[str], names: dict[str, str]) -> str:
    """A hint with the axes of each layout; "" without layouts."""
    if len(layouts) == 1:
        return f'{option}="{layouts[0]}"?'
    named = [f'"{at}" for [{", ".join(names[letter] for letter in at)}]' for at in layouts]
    return f"write {option}={', '.join(named)}" if named else ""


def _holds(wrong: _Wrong, cache: Cache, layout: str) -> bool:
    """Whether caches in this layout hold tokens like those of k."""
    try:
        x = rotary_view("", wrong.shapes["k"], wrong.rotation.layout, "half", 0, 0)
        width = (_shape(cache.values) or (0,))[-1]
        keys = cache_view("", "", _shape(cache.keys), layout, x, x.shape[-1])
        values = cache_view("", "", _shape(cache.values), layout, x, width)
        slots = cache.slots
        listed = isinstance(slots, (list, tuple))  # as for one token: [77]
        x.check_tokens("", "", np.shape(slots) if listed else _shape(slots))
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
        tables = rotation.inv_freq
        if not by_tables(rotation):
            frequencies = _shape(rotation.inv_freq)
            places = {"positions": _shape(rotation.positions)}
            if rotation.axis_map is not None or len(frequencies) == 3:
                before = places["positions"][:1]
            pairs = frequencies[-1]
        else:
            frequencies = ()
            places = {"cos": _shape(tables.cos), "sin": _shape(tables.sin)}
            pairs = places["cos"][-1]
            after = (pairs,)
            if tables.rows is not None:
                places, after = {"rows": _shape(tables.rows)}, ()
            elif tables.axis_map is not None:
                before = places["cos"][:1]
        views: dict[str, RotaryView] = {
            name: rotary_view(
                "", shape, layout, rotation.pairing, rotation.rotary_start, pairs, name
            )
            for name, shape in shapes.items()
        }
        first, *rest = views.values()
        for other in rest:
            check_same_tokens("", first, other)
        check_frequency_heads("", frequencies, views)
        sizes = {name: shape for name, shape in places.items() if shape}
        for name, shape in sizes.items():
            first.check_tokens("", name, shape, before=before, after=after)
    except (ValueError, TypeError, IndexError):
        return False
    if not told or sizes or frequencies[:-1] not in ((), (1,)):
        return True
    # Only heads of k that heads of q share tell tokens from heads: if k has another length instead,
    # as many tokens could look like heads.
    heads = [view.heads for view in views.values()]
    return len(heads) == 2 and 0 < heads[1] < heads[0] and heads[0] % heads[1] == 0


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of an array, a tensor or a list; () for anything else."""
    try:
        return tuple(np.shape(value) if isinstance(value, list) else getattr(value, "shape", ()))
    except (ValueError, TypeError):  # rows of different lengths; tensors on a GPU
        return ()


# The arguments that an error is about, the kind of error, and the fix; in the order of the search.
_FIXES: tuple[tuple[str, type[Exception], Callable[[_Wrong], str]], ...] = (
    ("pairing out_pairing", Exception, _our_pairing),
    ("layout", Exception, _our_layout),
    ("positions slots", ValueError, _one_token),
    ("positions slots rows cos sin", ValueError, _one_of_each_row),
    ("keys values slots", ValueError, _another_cache_layout),
    ("positions", ValueError, _two_tensors),
    ("cos sin", ValueError, _full_width),
    ("positions cos sin inv_freq x q k", ValueError, _another_layout),
    ("positions", ValueError, _first_of_each_row),
    ("k", ValueError, _of_their_own),
)
