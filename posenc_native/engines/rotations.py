"""The general path of the rotary functions: calls that the fast path (`door`) did not take.

    function ──► door (csrc/bindings/numpy/door.h)      plain arrays and tensors
      └────► run: a Rotary ──► q or k alone ──► pairs ─┬─► arrays ──► native | plain
                                                       └─► tensors ──► operators | plain | parts

Every function comes here with the same `Call`: the record of its verb (verbs.py), which names what
runs it; inputs; the rotation as the caller wrote it; perhaps a norm and a cache. The options of a
`Rotary`, defaults, pairs of options and suggestions for wrong calls are handled here, once for all
engines.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from posenc_native.core.calls import arguments
from posenc_native.core.calls.caches import Cache
from posenc_native.core.calls.descriptions import (
    DESCRIBED,
    check_none_beside,
    description_in,
    learned_in,
)
from posenc_native.core.calls.errors import blame, fault_of
from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.pairs import (
    FIRST,
    as_operands,
    as_tables,
    first_given,
    in_place,
    missing_one,
    of_pair,
    pairs_of,
    positions_in,
    positions_of_each,
    starts_of_each,
)
from posenc_native.core.calls.rotation import Rotation, by_tables
from posenc_native.core.calls.suggestions.hints import hint_at
from posenc_native.core.calls.tables import FarTables

from . import late
from .plain.query_scale import of_norm
from .scaled_queries import scaled_queries
from .verbs import APPLY_ROTARY, NORM_ROTARY_QK, Outs, RotaryVerb


class Call(NamedTuple):
    """A call of a rotary function, with its arguments grouped."""

    verb: RotaryVerb
    inputs: tuple[Any, ...]  # x; q and k; or q, k and v for an append
    rotation: Rotation  # None for omitted options
    # None for new memory, or a place for each result, which may be the input itself.
    outs: Outs
    compute: tuple[str | None, ...] = ()  # of a norm; None stands for that of tables, or float32
    norm: tuple[Any, ...] = ()  # a Norm; () without a norm
    cache: tuple[Any, ...] = ()  # the fields of a Cache, for an append

    # Not a property: torch.compile does not follow properties of named tuples (torch 2.10).
    def arguments(self) -> tuple[Any, ...]:
        """The arguments in the order of the native module, its fast path and the reference."""
        to = to_of(self.outs, self.inputs)
        return (*self.inputs, *self.rotation, *self.compute, *self.norm, *self.cache, to)


# The fast path and the functions with its signature have a single argument for memory. For x, it is
# None or `out`. For others it is `to`: False for new memory, True for that of the inputs, or a
# tuple. It has this meaning nowhere else.


def outs_of(to: Any, *inputs: Any) -> Outs:
    """The places of the results, from the `to` of a call of the fast path."""
    if type(to) is tuple:
        return to
    return inputs if to else None


def to_of(outs: Outs, inputs: tuple[Any, ...]) -> Any:
    """The argument for memory of the fast path, for results at these places."""
    if len(inputs) == 1:
        return None if outs is None else outs[0]
    return outs is not None and (in_place(outs, inputs) or outs)


def run(call: Call, contiguous: bool = False) -> Any:
    """The results of a call from the engine for its inputs; contiguous: copy inputs to C order."""
    verb, inputs, rotation, outs = call[:4]
    if type(rotation.inv_freq) is FarTables:
        rotation = rotation._replace(inv_freq=rotation.inv_freq.held_by(verb.name, inputs))
        call = call._replace(rotation=rotation)
    if outs is None and not contiguous and not call.norm and late.operations_on(inputs[0]):
        results = late.torch_operations().at_door.rotate(verb, inputs, rotation)
        if results is not NotImplemented:
            return results
    rope = description_in(rotation.inv_freq)
    values = getattr(rope, "query_scale", None)
    if values is None or len(inputs) == 1 or inputs[0] is None:
        return _rotated(call, contiguous)
    layout = rotation.layout or rope.layout
    if _scales_in_its_pass(call, rope, layout):
        norm = Norm(*call.norm) if call.norm else Norm(norm=False)
        scaled = call._replace(
            verb=verb if call.norm else NORM_ROTARY_QK,
            compute=call.compute or (None,),
            norm=norm._replace(**of_norm(values)),
        )
        try:
            return _rotated(scaled, contiguous)
        except (ValueError, TypeError) as error:
            blame(error, function=verb.name)
            raise
    results = _rotated(call, contiguous)
    q = scaled_queries(verb.name, values, results[0], rotation.positions, layout, outs is None)
    return (q, *results[1:])


def _scales_in_its_pass(call: Call, rope: Any, layout: str) -> bool:
    """Whether kernels of a norm multiply queries by their factors.

    Other calls multiply the results: rows with scalings of their own, layouts with g, separate
    positions of k, rounding as written, learned frequencies.
    """
    rotation = call.rotation
    if hasattr(rope, "rotation_of_rows") or type(rotation.positions) is tuple or "g" in layout:
        return False
    if "h" not in layout and any(x is None for x in call.inputs[:2]):
        return False  # one without heads stands for the other
    if call.norm:
        return call.compute[0] != "as_written"
    if rotation.out_pairing != "same":
        return False
    if not arguments.is_tensor(call.inputs[0]):
        return True
    late.torch_operations()
    from .following import needs_grad, transformed

    heads = [x for x in call.inputs if x is not None]  # queries alone, or keys
    if transformed() or (call.outs is not None and needs_grad(*heads)):
        return False
    angles = learned_in(rotation.inv_freq), rotation.positions
    return not needs_grad(*[x for x in angles if arguments.is_tensor(x)])


def _rotated(call: Call, contiguous: bool) -> Any:
    """The results of the options that are arguments of the engines."""
    verb, inputs, rotation, outs, *normed = call  # unpacked: _replace takes a microsecond
    function = verb.name
    try:
        rope = description_in(rotation.inv_freq)
        if hasattr(rope, "rotation_of_rows"):  # encodings/rotary/rows.py: tables stand for it
            rotation = rope.rotation_of_rows(function, verb.rotated, inputs, rotation)
            if call.compute:
                tables = rotation.inv_freq._replace(compute=call.compute[0] or "float32")
                rotation, normed[0] = rotation._replace(inv_freq=tables), (None,)
        elif rope is not None:
            rotation = _described(verb, inputs, rotation, rope)
        elif by_tables(rotation):
            _check_none_beside_tables(function, rotation, call.compute)
        rotation = _with_defaults(rotation)
        if contiguous:
            written = outs is not None
            inputs = tuple(
                x if x is None else arguments.in_order(function, x, written) for x in inputs
            )
        if len(inputs) > 1 and (inputs[0] is None or inputs[1] is None):
            alone = _normed_alone if call.norm else _alone
            return alone(Call(verb, inputs, rotation, outs, *normed))
        # len: torch.compile cannot follow bool of a named tuple (torch 2.11).
        rotation = _expanded(function, inputs, rotation, len(call.norm) > 0)
        if late.operations_on(inputs[0]) is not None:
            return verb.tensors(inputs, rotation, outs, *normed)
        converted = _as_arrays(Call(verb, inputs, rotation, outs, *normed))
        rotation = converted.rotation
        results = verb.arrays(*converted.arguments())
        if outs is None:
            return results
        return outs if len(inputs) > 1 else outs[0]
    except (ValueError, TypeError) as error:
        operands = {n: x for n, x in zip(verb.rotated, inputs, strict=False) if x is not None}
        of_cache = Cache(*call.cache) if call.cache else None
        asked = call.rotation
        if arguments.is_count(asked.positions) or type(asked.positions) is list:
            # An int was expanded, perhaps along the wrong axis; a list became an array.
            rotation = rotation._replace(positions=asked.positions)
        hint_at(error, _with_defaults(rotation), of_cache, **operands)
        raise


# Defaults of the options that a description may include.
_DEFAULTS = tuple(
    Rotation._field_defaults.get(name) if name in ("layout", *DESCRIBED) else None
    for name in Rotation._fields
)


def _with_defaults(rotation: Rotation) -> Rotation:
    options: list[Any] = [
        default if value is None else value
        for value, default in zip(rotation, _DEFAULTS, strict=True)
    ]
    return Rotation(*options)


# Options that tables stand for.
_OF_TABLES = ("positions", "axis_map", "scale")


def _check_none_beside_tables(
    function: str, rotation: Rotation, compute: tuple[str | None, ...]
) -> None:
    options = {name: getattr(rotation, name) for name in _OF_TABLES}
    if compute:
        options["compute"] = compute[0]
    for name, value in options.items():
        if value is not None and not (name == "scale" and value == 1.0):
            where = "Tables(cos, sin, compute=...)" if name == "compute" else "the tables"
            expected = f"None beside Tables: {where} stand for it"
            arguments.wrong_value(function, name, expected, _shown(value))


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{type(value).__name__} {list(shape)}"


def _described(
    verb: RotaryVerb, inputs: tuple[Any, ...], rotation: Rotation, rope: Any
) -> Rotation:
    """The rotation with all options of the description that replaces frequencies."""
    check_none_beside(verb.name, rope, {name: getattr(rotation, name) for name in DESCRIBED})
    for name, x in zip(verb.rotated, inputs, strict=False):
        rope._check_width(verb.name, name, x)
    x = first_given(inputs)
    inv_freq, axis_map = rope._of(x)
    learned = learned_in(rotation.inv_freq)
    if learned is not None and arguments.is_tensor(x):
        inv_freq = learned  # the parameter itself, so that gradients reach it
    layout = rope.layout if rotation.layout is None else rotation.layout
    return rotation._replace(
        inv_freq=inv_freq, layout=layout, pairing=rope.pairing, rotary_start=rope.rotary_start,
        axis_map=axis_map, scale=rope.scale,
    )  # fmt: skip


def _expanded(function: str, inputs: tuple[Any, ...], rotation: Any, normed: bool) -> Any:
    """The rotation with integer positions expanded, and options for k in their own fields."""
    changes: dict[str, Any] = {}
    first = rotation.positions
    if arguments.is_count(first):
        changes["positions"] = positions_in(function, first, inputs[0], rotation.layout)
    elif isinstance(first, float):
        arguments.as_positions(function, first, an_int=FIRST)
    two = len(inputs) > 1 and not normed
    if by_tables(rotation):
        changes["inv_freq"] = pairs_of(function, rotation.inv_freq, two)
    if two:
        q, k = inputs
        if type(rotation.rotary_start) is tuple:
            names = ("rotary_start", "k_start")
            changes.update(zip(names, starts_of_each(function, rotation.rotary_start), strict=True))
        if type(first) is tuple:
            own = positions_of_each(function, q, k, first, rotation.layout)
            changes.update(zip(("positions", "k_positions"), own, strict=True))
    return rotation._replace(**changes) if changes else rotation


# --- q or k alone


def _alone(call: Call) -> tuple[Any, Any]:
    """Rotate q or k while the other is None; errors refer to the call for both."""
    verb, inputs, rotation, outs = call[:4]
    function = verb.name
    missing = missing_one(*inputs)
    if missing is None:
        arguments.wrong_type(function, "q", "q, k or both", "None for both")
    i = 1 - missing
    start, k_start = starts_of_each(function, rotation.rotary_start)
    if by_tables(rotation):
        rotation = rotation._replace(inv_freq=rotation.inv_freq.of_one(i))
    start = k_start if i == 1 and k_start >= 0 else start
    rotation = rotation._replace(rotary_start=start, positions=of_pair(rotation.positions, i))
    try:
        result = run(Call(APPLY_ROTARY, inputs[i : i + 1], rotation, outs and outs[i : i + 1]))
    except (ValueError, TypeError) as error:
        names = {"x": "qk"[i], "out": "qk"[i] if outs and outs[i] is inputs[i] else f"out[{i}]"}
        fault = fault_of(error)
        if fault is not None:
            blame(error, function=function, argument=names.get(fault.argument, fault.argument))
        raise
    return (result, None) if i == 0 else (None, result)


def _normed_alone(call: Call) -> tuple[Any, ...]:
    """A call with a norm or a cache, without q or k: the missing input has no heads."""
    function = call.verb.name
    i = missing_one(*call.inputs[:2])
    if i is None or (i == 1 and call.cache):
        argument, expected = ("k", "keys to write") if call.cache else ("q", "q, k or both")
        got = "None" if call.cache else "None for both"
        arguments.wrong_type(function, argument, expected, got)
    inputs = list(call.inputs)
    there = inputs[1 - i]
    if _by_head(call.rotation):  # it would not fit without heads: use an unused input of x's shape
        tensor = arguments.is_tensor(there)
        inputs[i] = unused = there.new_zeros(there.shape) if tensor else np.zeros_like(there)
    else:
        inputs[i] = unused = _no_heads(function, "qk"[1 - i], there, call.rotation.layout)
    norm: Any = call.norm
    norm = norm._replace(**{("q_weight", "k_weight")[i]: None})
    outs = call.outs
    if outs is not None:
        outs = tuple(unused if out is None else out for out in outs)
    try:
        results = run(call._replace(inputs=tuple(inputs), norm=norm, outs=outs))
    except (ValueError, TypeError) as error:  # about the input that is there
        fault = fault_of(error)
        if fault is not None and fault.argument == "qk"[i]:
            blame(error, argument="qk"[1 - i])
        raise
    return tuple(None if j == i else result for j, result in enumerate(results))


def _by_head(rotation: Any) -> bool:
    """Whether heads have different frequencies or tables."""
    tables = rotation.inv_freq
    if not by_tables(rotation):
        return len(getattr(tables, "shape", ())) > 1 and tables.shape[-2] != 1
    axes = len(getattr(tables.cos, "shape", ()))
    if not isinstance(rotation.layout, str):
        return False
    return axes > 2 + ("b" in rotation.layout) + (tables.axis_map is not None)


def _no_heads(function: str, name: str, x: Any, layout: Any) -> Any:
    """x with 0 heads, and so without elements; x itself if the layout does not fit it."""
    if late.operations_on(x) is None:
        x = arguments.as_operand(function, name, x)
    heads = layout.find("h") if isinstance(layout, str) else x.ndim
    if heads < 0:
        arguments.wrong_value(function, "layout", "letters with h if q or k is None", repr(layout))
    if heads >= x.ndim:
        return x
    if type(x) is ndarray:
        return x[(slice(None),) * heads + (slice(0, 0),)]
    return x.new_empty((*x.shape[:heads], 0, *x.shape[heads + 1 :]))


# --- Arrays


def _as_arrays(call: Call) -> Call:
    verb, inputs, rotation, outs = call[:4]
    function = verb.name
    overwrites = in_place(outs, inputs)
    if len(inputs) == 1:
        inputs = (arguments.as_operand(function, "x", inputs[0]),)
    else:
        q, k = as_operands(function, inputs[0], inputs[1], overwrites)
        inputs = (q, k, *(arguments.as_operand(function, "v", v) for v in inputs[2:]))
    changes: dict[str, Any] = {}
    if by_tables(rotation):
        changes["inv_freq"] = as_tables(function, rotation.inv_freq)
    else:
        changes["inv_freq"] = arguments.as_frequencies(function, rotation.inv_freq)
        if rotation.positions is not None:
            changes["positions"] = arguments.as_positions(
                function, rotation.positions, an_int=FIRST
            )
        if rotation.axis_map is not None:
            changes["axis_map"] = arguments.as_array(function, "axis_map", rotation.axis_map)
    norm: Any = call.norm
    for name in ("q_weight", "k_weight") if norm else ():
        weight = getattr(norm, name)
        if weight is not None:
            norm = norm._replace(**{name: arguments.as_array(function, name, weight)})
    cache = call.cache
    if cache:
        keys, values = (
            _writable(function, name, x) for name, x in zip(("keys", "values"), cache, strict=False)
        )
        cache = (keys, values, arguments.as_integers(function, "slots", cache[2]), *cache[3:])
    if overwrites:
        outs = inputs[: len(outs or ())]
    elif outs is not None:
        names = ["out"] if len(outs) == 1 else [f"out[{i}]" for i in range(len(outs))]
        outs = tuple(_writable(function, name, out) for name, out in zip(names, outs, strict=True))
    return Call(verb, inputs, rotation._replace(**changes), outs, call.compute, norm, cache)


def _writable(function: str, name: str, out: Any) -> Any:
    """An output as a plain NumPy array with the same memory."""
    if not isinstance(out, ndarray):
        expected = "a NumPy array or a torch tensor, to write to"
        arguments.wrong_type(function, name, expected, type(out).__name__)
    arguments.check_no_mask(function, name, out)
    return out.view(ndarray)
