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


@dataclass(frozen=True)
class Listed:
    """An operand that the call gets as a list of its numbers."""

    operand: Operand


@dataclass(frozen=True)
class Described:
    """A `Rotary`, by the arguments that make it."""

    arguments: dict[str, Any]


@dataclass
class Case:
    """A call, its memory, and how it is to be run."""

    function: str
    arguments: dict[str, Any]
    layout: Layout
    faults: list[str]
    written: list[Operand] = field(default_factory=list)
    # The results, as objects; what is written besides is a result too, by its contents.
    returned: list[Operand] = field(default_factory=list)
    # Arguments that change, in another way to write the call that has the same bits.
    twin: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None

    @property
    def effects(self) -> list[Operand]:
        """What is written and not returned."""
        returned = [id(operand) for operand in self.returned]
        return [operand for operand in self.written if id(operand) not in returned]


CACHES = ("keys", "values")
SCALES = ("k_scale", "v_scale")  # the divisor of each
# None stands for their default.
NOT_GIVEN = ("layout", "pairing", "rotary_start", "scale")


def _places(arguments: dict[str, Any], inputs: Sequence[str]) -> list[Operand]:
    """Where results go: what out says, or the inputs in place."""
    out = arguments.get("out")
    if arguments.get("inplace"):
        inputs = inputs[:1] if "keys" in arguments and not arguments.get("return_k") else inputs
        out = tuple(arguments[name] for name in inputs)
    outs = out if isinstance(out, tuple) else (out,)
    return [operand for operand in outs if isinstance(operand, Operand)]


def finish(
    builder: Builder,
    function: str,
    arguments: dict[str, Any],
    inputs: Sequence[str] = (),
    replaceable: Sequence[str] | None = None,
) -> Case:
    """The case; now and then an operand lies in the memory of one that is written to.

    inputs: the names of what is overwritten in place. replaceable: the names of arguments that may
    be of another kind; None for all.
    """

    def written() -> tuple[list[Operand], list[Operand]]:
        returned = _places(arguments, inputs)
        made = arguments.get("scales")
        caches = [arguments.get(n) for n in CACHES] + list(made if isinstance(made, tuple) else ())
        return returned + [one for one in caches if isinstance(one, Operand)], returned

    outputs, _ = written()
    if outputs and builder.choices.chance(4):
        others = [o for o in builder.layout.operands if all(o is not one for one in outputs)]
        if others:
            builder.move_into(builder.choices.one_of(others), builder.choices.one_of(outputs))
    if builder.fault(1.5, "an argument of another kind"):
        name = builder.choices.one_of(sorted(arguments if replaceable is None else replaceable))
        other = builder.choices.wrong()
        if other is not None or name not in NOT_GIVEN:
            arguments[name] = other
    return Case(function, arguments, builder.layout, builder.faults, *written())


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
        none = () if name in NOT_GIVEN else (None,)
        return builder.choices.one_of((float("nan"), float("inf"), "1", True, 1 + 0j, *none))
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
