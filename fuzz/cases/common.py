"""What a case is, and what cases of all functions draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzz.memory import Layout, Operand
from fuzz.operands import FLOATS, INTEGERS, Builder

POSITION_DTYPES = (*INTEGERS, "int64", "int64", "float32", "float64", "float64")


@dataclass(frozen=True)
class Dtype:
    """A dtype by name, as an argument."""

    name: str


@dataclass
class Case:
    """A call, its memory, and how it is to be run."""

    function: str
    arguments: dict[str, Any]
    layout: Layout
    faults: list[str]
    written: list[Operand] = field(default_factory=list)
    seed: int | None = None


def finish(
    builder: Builder, function: str, arguments: dict[str, Any], written: Sequence[Operand | None]
) -> Case:
    """The case; now and then an operand lies in the memory of one that is written to."""
    outputs = [operand for operand in written if operand is not None]
    if outputs and builder.choices.chance(4):
        inputs = [o for o in builder.layout.operands if o.name not in ("x", "q", "k", "out")]
        if inputs:
            builder.move_into(builder.choices.one_of(inputs), builder.choices.one_of(outputs))
    if builder.fault(1.5, "an argument of another kind"):
        name = builder.choices.one_of(sorted(arguments))
        arguments[name] = builder.choices.wrong()
        if name == "inplace":
            outputs = [arguments[n] for n in ("q", "k")] if arguments[name] else []
        elif name == "out":
            outputs = []
        outputs = [o for o in outputs if any(o is value for value in arguments.values())]
    return Case(function, arguments, builder.layout, builder.faults, outputs)


def positions_of(builder: Builder, shape: Sequence[int], name: str = "positions") -> Operand:
    """Positions of any dtype; now and then one that is not finite."""
    dtype = builder.choices.one_of(POSITION_DTYPES)
    count = math.prod(shape)
    values = builder.positions(count, dtype)
    if values and dtype.startswith("float") and builder.fault(1.5, f"{name}: value"):
        bad = (float("nan"), float("inf"), -float("inf"), 2.0**63, -(2.0**63), 1e30)
        values[builder.choices.below(count)] = builder.choices.one_of(bad)
    return builder.operand(name, shape, dtype, values)


def number(builder: Builder, name: str, values: Sequence[float]) -> Any:
    """A factor; now and then something that is none."""
    if builder.fault(0.7, name):
        return builder.choices.one_of((float("nan"), float("inf"), "1", None, True, 1 + 0j))
    return builder.choices.one_of(values)


def result_dtype(builder: Builder, arguments: dict[str, Any]) -> str:
    """The argument dtype, or none; returns the dtype of the result."""
    if builder.choices.chance(30):
        return "float32"
    name = builder.choices.one_of(FLOATS)
    arguments["dtype"] = Dtype(name)
    if builder.fault(0.7, "dtype"):
        arguments["dtype"] = builder.choices.one_of((Dtype("int32"), Dtype("bool"), "float8", 3))
    return name
