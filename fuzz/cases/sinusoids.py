"""Cases of tables of sines and cosines, written down or added."""

from __future__ import annotations

from typing import Any

from fuzz.operands import FLOATS, Builder

from .common import Case, finish, number, positions_of, result_dtype

BASES = (1e4, 5e5, 2.0, 1.0, 0.5, 1e-3)
BAD_BASES = (0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-300)


def _waves(builder: Builder, arguments: dict[str, Any], dim: int) -> None:
    choices = builder.choices
    if choices.chance(60):
        arguments["layout"] = choices.one_of(("interleaved", "sin_cos", "cos_sin"))
    if builder.fault(0.7, "layout"):
        arguments["layout"] = choices.one_of(("", "half", None, 1))
    if choices.chance(40):
        arguments["base"] = choices.one_of(BASES)
    if builder.fault(1, "base"):
        arguments["base"] = choices.one_of(BAD_BASES)
    if choices.chance(30):
        arguments["shift"] = choices.one_of((0.0, 0.5, -1.0, -3.0, 1.0 if dim > 2 else 0.25))
    if builder.fault(1, "shift"):
        arguments["shift"] = choices.one_of((1.0, dim / 2, 1e9, -1e9, float("nan"), dim / 2 - 1e-9))
    if choices.chance(30):
        arguments["scale"] = number(builder, "scale", (0.5, -0.3, 1.0, 6.25, 1000.0, 0.0))
    if builder.fault(0.7, "scale"):
        arguments["scale"] = choices.one_of((1e18, 1e19, -1e30, 1e-18, 1e-30))


def _even(builder: Builder) -> int:
    dim = builder.size()
    return dim + dim % 2


def sinusoidal(builder: Builder) -> Case:
    """Tables of sines and cosines."""
    choices, arguments = builder.choices, dict[str, Any]()
    dim = _even(builder)
    if builder.fault(1, "dim"):
        dim = choices.one_of((dim + 1, -2, dim + 3))
    arguments["dim"] = dim
    rows = builder.sizes(choices.integer(0, 5), max(builder.elements // max(dim, 1), 1))
    if choices.chance(20):
        rows = rows[:1] or [3]
        arguments["positions"] = rows[0]
    else:
        arguments["positions"] = positions_of(builder, rows)
    _waves(builder, arguments, dim)
    dtype = result_dtype(builder, arguments)
    out = None
    if choices.chance(60):
        kind = choices.one_of(FLOATS) if "dtype" not in arguments else dtype
        out = builder.operand("out", [*rows, max(dim, 0)], kind, builder.numbers(), output=True)
        arguments["out"] = out
        if "dtype" in arguments and choices.chance(50):
            del arguments["dtype"]
    return finish(builder, "sinusoidal", arguments)


def add_sinusoidal(builder: Builder) -> Case:
    """The same, added."""
    choices, arguments = builder.choices, dict[str, Any]()
    rank = choices.integer(2, 5) if not builder.fault(1, "rank") else choices.below(2)
    dim = _even(builder)
    if builder.fault(0.7, "dim"):
        dim += 1
    shape = [*builder.sizes(max(rank - 1, 0), max(builder.elements // max(dim, 1), 1)), dim][-rank:]
    x = builder.operand("x", shape if rank else [], choices.one_of(FLOATS), builder.numbers())
    arguments["x"] = x
    if choices.chance(6):
        arguments["positions"] = choices.one_of((0, 3, -7, 2**40))
    elif choices.chance(80):
        rows = list(x.shape[:-1]) if choices.chance(40) else list(x.shape[-2:-1])
        arguments["positions"] = positions_of(builder, rows)
    _waves(builder, arguments, dim)
    for name in ("x_scale", "alpha"):
        if choices.chance(30):
            arguments[name] = number(builder, name, (0.5, 22.627, -2.0, 0.0, 1))
    out = builder.out(x, x.shape, x.dtype, replaceable=True)
    if out is not None:
        arguments["out"] = out
    return finish(builder, "add_sinusoidal", arguments)
