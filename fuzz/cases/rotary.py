"""Cases of rotations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from fuzz.memory import Operand
from fuzz.operands import FLOATS, INTEGERS, Builder

from .common import Case, finish, number, positions_of, result_dtype

AXES = ("sd", "bsd", "hsd", "bhsd", "bhsd", "td", "htd")
LAYOUTS = {axes: ["".join(o) + "d" for o in itertools.permutations(axes[:-1])] for axes in AXES}


def _turned(builder: Builder, arguments: dict[str, Any], dim: int | None = None) -> tuple[int, int]:
    """Pairs and the dims of a head; writes pairing and rotary_start."""
    choices = builder.choices
    dim = builder.size() if dim is None else dim
    pairs = dim // 2 if choices.chance(50) else choices.integer(0, dim // 2)
    if choices.chance(40):
        arguments["rotary_start"] = choices.integer(0, dim - 2 * pairs)
    if builder.fault(1, "rotary_start"):
        arguments["rotary_start"] = choices.one_of((-1, dim + 1, dim - 2 * pairs + 1, 2**63 - 1))
    kind = choices.weighted(half=4, interleaved=4, block=2)
    if kind == "block" and pairs:
        blocks = [2 * b for b in range(1, pairs + 1) if pairs % b == 0]
        arguments["pairing"] = choices.one_of(blocks)
    else:
        arguments["pairing"] = "interleaved" if kind == "interleaved" else "half"
    if builder.fault(0.7, "pairing"):
        arguments["pairing"] = choices.one_of((0, 3, -2, 2 * pairs + 2, "full", 2**62, 4))
    return pairs, dim


def _heads(
    builder: Builder, arguments: dict[str, Any], names: Sequence[str]
) -> tuple[dict[str, int], list[Operand], int]:
    """x, or q and k: their sizes by letter, the operands and the number of pairs."""
    choices = builder.choices
    layout = choices.one_of(LAYOUTS[choices.one_of(AXES)])
    lengths = builder.sizes(len(layout))
    sizes = dict(zip(layout, lengths, strict=True))
    dim = min(builder.size(), max(builder.elements // max(math.prod(lengths[:-1]), 1), 2))
    pairs, sizes["d"] = _turned(builder, arguments, dim)
    if layout != "bhsd" or choices.chance(50):
        arguments["layout"] = layout
    if builder.fault(0.7, "layout"):
        arguments["layout"] = choices.one_of(
            ("", "d", "bhd", "sdb", "bhtd", "ssd", "xd", layout[::-1])
        )
    dtype = choices.one_of(FLOATS)
    shape = [sizes[letter] for letter in layout]
    operands = builder.apart(names, shape, dtype) if len(names) > 1 and choices.chance(25) else None
    if operands is None:
        operands = []
        for name in names:
            own = [
                builder.size() % 9 if letter == "h" and name == "k" else sizes[letter]
                for letter in layout
            ]
            if name == "k" and builder.fault(0.7, "k: dtype"):
                dtype = choices.one_of(FLOATS)
            operands.append(builder.operand(name, own, dtype, builder.numbers()))
    return sizes | {"t": sizes.get("t", sizes.get("s", 0))}, operands, pairs


FREQUENCIES = [10000.0 ** (-i / 64) for i in range(64)]
ODD_FREQUENCIES = (
    0.0, -0.0, -0.5, 1.0, 2.0, 2.0000000001, 6.283185307179586, 100.25, 1e9, -1e15, 2.0**62, 9e18,
    -9.2e18, 1e-10, 2.0**-63, 2.0**-64, 1e-30, 1e-40, 2.0**-62 * 3, 3.3e-19,
)  # fmt: skip


def _frequencies(builder: Builder, count: int, dtype: str) -> list[float]:
    choices = builder.choices
    if choices.chance(80):
        first = choices.below(64)
        values = [FREQUENCIES[(first + i) % 64] for i in range(count)]
    else:
        values = [
            choices.one_of(ODD_FREQUENCIES) if choices.chance(50) else choices.one_of(FREQUENCIES)
            for _ in range(count)
        ]
    if count and builder.fault(0.7, "inv_freq: value"):
        bad = (float("nan"), float("inf"), 2.0**63, -(2.0**63), 1e30)
        values[choices.below(count)] = choices.one_of(bad)
    return values


def _places(
    builder: Builder, arguments: dict[str, Any], sizes: dict[str, int], heads: int, pairs: int
) -> None:
    """positions, inv_freq, axis_map, scale, inverse."""
    choices = builder.choices
    kind = choices.weighted(P=60, HP=12, AHP=12, axis_map=16)
    axes = choices.integer(1, 4)
    by_axis = kind in ("AHP", "axis_map")
    tokens = sizes["t"]
    if not by_axis and choices.chance(20):
        arguments["positions"] = None
    else:
        rows = [sizes["b"], tokens] if "b" in sizes and choices.chance(50) else [tokens]
        arguments["positions"] = positions_of(builder, [axes, *rows] if by_axis else rows)
    shape = {"P": [pairs], "axis_map": [pairs], "HP": [heads, pairs], "AHP": [axes, heads, pairs]}[
        kind
    ]
    if kind in ("HP", "AHP") and choices.chance(30):
        shape[-2] = 1
    if kind == "axis_map" and choices.chance(20):
        shape = [heads, pairs]
    dtype = choices.one_of(("float32", "float64"))
    values = _frequencies(builder, math.prod(shape), dtype)
    arguments["inv_freq"] = builder.operand("inv_freq", shape, dtype, values)
    if kind == "axis_map":
        arguments["axis_map"] = _axis_map(builder, pairs, axes)
    if choices.chance(25):
        arguments["scale"] = number(builder, "scale", (0.5, 1.25, -2.0, 0.0, 1, 1e-3, 100.0))
    if choices.chance(25):
        arguments["inverse"] = choices.chance(50)


def _axis_map(builder: Builder, pairs: int, axes: int) -> Operand:
    choices = builder.choices
    dtype = choices.one_of(INTEGERS)
    values = [choices.below(axes) for _ in range(pairs)]
    if values and builder.fault(1.5, "axis_map: value"):
        values[choices.below(pairs)] = choices.one_of((axes, -1 if dtype[0] == "i" else 127, 100))
    return builder.operand("axis_map", [pairs], dtype, values)


def apply_rotary(builder: Builder) -> Case:
    """One tensor by positions."""
    arguments: dict[str, Any] = {}
    sizes, (x,), pairs = _heads(builder, arguments, ["x"])
    _places(builder, arguments, sizes, sizes.get("h", 1), pairs)
    out = builder.out(x, x.shape, x.dtype, replaceable=True)
    arguments |= {"x": x} | ({} if out is None else {"out": out})
    return finish(builder, "apply_rotary", arguments, [out])


def apply_rotary_qk(builder: Builder) -> Case:
    """Queries and keys by positions."""
    arguments: dict[str, Any] = {}
    sizes, (q, k), pairs = _heads(builder, arguments, ["q", "k"])
    _places(builder, arguments, sizes, sizes.get("h", 1), pairs)
    if len(arguments["inv_freq"].shape) > 1:  # of as many heads as q has, and perhaps not k
        builder.faults.append("inv_freq: heads")
    return _both(builder, "apply_rotary_qk", arguments, q, k)


def _both(builder: Builder, name: str, arguments: dict[str, Any], q: Operand, k: Operand) -> Case:
    arguments |= {"q": q, "k": k}
    if builder.choices.chance(50):
        arguments["inplace"] = builder.choices.chance(80)
    in_place = bool(arguments.get("inplace"))
    if in_place and any(builder._repeats(operand) or operand.read_only for operand in (q, k)):
        builder.faults.append("inplace, where elements share memory")
    return finish(builder, name, arguments, [q, k] if in_place else [])


def _tables(builder: Builder, arguments: dict[str, Any], sizes: dict[str, int], pairs: int) -> None:
    """cos, sin, inverse, compute."""
    choices = builder.choices
    rows = [sizes["b"], sizes["t"]] if "b" in sizes and choices.chance(50) else [sizes["t"]]
    dtype = choices.one_of(FLOATS)
    for name in ("cos", "sin"):
        arguments[name] = builder.operand(name, [*rows, pairs], dtype, builder.numbers())
    if choices.chance(25):
        arguments["inverse"] = choices.chance(50)
    if choices.chance(50):
        arguments["compute"] = "as_written"
    if builder.fault(0.7, "compute"):
        arguments["compute"] = choices.one_of(("float64", "", None, 1))


def apply_rotary_tables(builder: Builder) -> Case:
    """One tensor by tables."""
    arguments: dict[str, Any] = {}
    sizes, (x,), pairs = _heads(builder, arguments, ["x"])
    _tables(builder, arguments, sizes, pairs)
    out = builder.out(x, x.shape, x.dtype, replaceable=True)
    arguments |= {"x": x} | ({} if out is None else {"out": out})
    return finish(builder, "apply_rotary_tables", arguments, [out])


def apply_rotary_qk_tables(builder: Builder) -> Case:
    """Queries and keys by tables."""
    arguments: dict[str, Any] = {}
    sizes, (q, k), pairs = _heads(builder, arguments, ["q", "k"])
    _tables(builder, arguments, sizes, pairs)
    return _both(builder, "apply_rotary_qk_tables", arguments, q, k)


def rotary_backward(builder: Builder) -> Case:
    """The gradients of a rotation, of the module: not public, but what autograd calls."""
    arguments: dict[str, Any] = {}
    names = ["x"] if builder.choices.chance(60) else ["q", "k"]
    sizes, given, pairs = _heads(builder, arguments, names)
    _places(builder, arguments, sizes, sizes.get("h", 1), pairs)
    heads = {operand.shape for operand in given}
    if len(heads) > 1 and len(arguments["inv_freq"].shape) > 1:
        builder.faults.append("inv_freq: heads")
    grads = [
        builder.operand("grad", operand.shape, operand.dtype, builder.numbers())
        for operand in given
    ]
    arguments |= {"grads": tuple(grads), "inputs": tuple(given)}
    arguments["of_positions"] = builder.choices.chance(50)
    return Case("rotary_backward", arguments, builder.layout, builder.faults)


def rotary_tables(builder: Builder) -> Case:
    """Cosines and sines."""
    choices, arguments = builder.choices, dict[str, Any]()
    pairs = builder.size()
    rows = builder.sizes(choices.integer(0, 4), max(builder.elements // max(pairs, 1), 1))
    by_axis = choices.chance(30)
    axes = choices.integer(1, 4)
    if not by_axis and choices.chance(20):
        arguments["positions"] = builder.size()
    else:
        arguments["positions"] = positions_of(builder, [axes, *rows] if by_axis else rows)
    dtype = choices.one_of(("float32", "float64"))
    values = _frequencies(builder, pairs, dtype)
    arguments["inv_freq"] = builder.operand("inv_freq", [pairs], dtype, values)
    if by_axis:
        arguments["axis_map"] = _axis_map(builder, pairs, axes)
    if choices.chance(25):
        arguments["scale"] = number(builder, "scale", (0.5, 1.25, -2.0, 0.0, 1, 1e-3, 100.0))
    result_dtype(builder, arguments)
    return finish(builder, "rotary_tables", arguments, [])
