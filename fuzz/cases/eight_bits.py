"""Caches of 8 bits: their dtypes, and what their numbers are divided by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzz.memory import EIGHT_BITS, Operand
from fuzz.operands import Builder

from .common import CACHES, SCALES, number

FACTORS = (1.0, 0.013, 2.0**-7, 2, 1e-3, 448.0, 1e-38, 3e38)
WRONG = (0.0, -0.5, -0.0, float("nan"), float("inf"))


def cache_dtypes(builder: Builder, dtype: str) -> list[str]:
    """The dtypes of keys and of values: that of k, or each of 8 bits."""
    choices = builder.choices
    if not choices.chance(25):
        return [dtype, dtype]
    return [choices.one_of([*EIGHT_BITS]) if choices.chance(80) else dtype for _ in CACHES]


def scales_of_caches(
    builder: Builder, arguments: dict[str, Any], dtypes: Sequence[str], shape: Sequence[int],
    heads: int,
) -> None:  # fmt: skip
    """k_scale, v_scale, scales. shape: of both caches without d; dtypes: theirs."""
    choices = builder.choices
    made: list[Operand | None] = [None, None]
    for i, (name, dtype) in enumerate(zip(SCALES, dtypes, strict=True)):
        if dtype not in EIGHT_BITS and not builder.fault(1, f"{name}: a cache of floats"):
            continue
        kind = choices.weighted(none=15, number=20, one=10, heads=25, made=30)
        if kind == "number":
            arguments[name] = number(builder, name, FACTORS)
            if builder.fault(3, f"{name}: value"):
                arguments[name] = choices.one_of((*WRONG, 1e39, 1e-50))
        elif kind in ("one", "heads"):
            own = [heads] if kind == "heads" else choices.one_of(([1], []))
            values = [choices.one_of(FACTORS) for _ in range(heads if kind == "heads" else 1)]
            if values and builder.fault(3, f"{name}: value"):
                values[choices.below(len(values))] = choices.one_of(WRONG)
            arguments[name] = builder.operand(name, own, "float32", values)
        elif kind == "made":
            made[i] = operand = builder.operand(f"{name}s", shape, "float32", output=True)
            if builder._repeats(operand):
                builder.faults.append(f"{name}s: elements may share memory")
            if builder.fault(2, f"{name}: beside scales that are made"):
                arguments[name] = 0.5
    if made != [None, None]:
        if builder.fault(2, "scales: twice the same"):
            made = [made[0] or made[1]] * 2
        arguments["scales"] = tuple(made)
        if builder.fault(1, "scales: no pair"):
            arguments["scales"] = choices.one_of((made[0], (*made, None), ()))
