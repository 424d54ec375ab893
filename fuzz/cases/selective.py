"""Cases of rotations by angles that data decide."""

from __future__ import annotations

import math
from typing import Any

from fuzz.operands import FLOATS, Builder

from .common import Case, Listed, finish
from .rotary import Heads, Verb, _bindable, _integers, _results, _without_one

VERB = Verb.of("selective_rotary_qk", "q", "k")
ODD_STEPS = (
    0.0, -0.0, 1e-30, 2.0**-63, -(2.0**-62), 3.0e-18, 0.1, -1.0, 3.1415927, 255.875, 256.0, -300.5,
    1e4, 6e4, 1e6, -123456.75, 2.0**31,
)  # fmt: skip
STATES = (0, 1, -1, 12345, 2**61, -(2**62) - 1, 2**63 - 1, -(2**63))


def _steps(builder: Builder, heads: Heads, layout: str) -> tuple[Any, int]:
    """Steps with heads that divide those of q and k, and how many."""
    choices = builder.choices
    own = 1
    if "h" in layout and choices.chance(70):
        own = max(math.gcd(*(heads.heads(i) for i in (0, 1))), 1)
    if "h" in layout and builder.fault(1, "steps: heads"):
        own = heads.heads(0) + choices.integer(1, 3)
    sizes = heads.sizes[0] | {"h": own, "d": heads.pairs}
    shape = [sizes[letter] for letter in layout]
    dtype = choices.one_of(FLOATS)
    fill: Any = ("normal", choices.below(1 << 12))
    if choices.chance(30):
        fits = [step for step in ODD_STEPS if dtype != "float16" or abs(step) < 65504]
        fill = [choices.one_of(fits) for _ in range(math.prod(shape))]
        if fill and builder.fault(5, "steps: value"):
            bad = (float("nan"), float("inf"), -float("inf"))
            fill[choices.below(len(fill))] = choices.one_of(bad)
    return builder.operand("steps", shape, dtype, fill), own


def selective_rotary_qk(builder: Builder) -> Case:
    """q and k by steps, a state, and rows of packed tokens."""
    choices, arguments = builder.choices, dict[str, Any]()
    layout, heads = _bindable(builder, arguments, VERB, groups=False)
    arguments |= {"layout": layout} | dict(zip("qk", heads.operands, strict=True))
    arguments["steps"], own = _steps(builder, heads, layout)
    rows = [heads.sizes[0]["b"]] if "b" in layout else []
    if not rows and choices.chance(50):
        tokens, count = heads.tokens(), choices.integer(1, 4)
        starts = sorted(choices.integer(0, tokens) for _ in range(count - 1))
        bad = (-1, tokens + 1, 2**40)
        arguments["starts"] = _integers(builder, "starts", [count + 1], [0, *starts, tokens], bad)
        given = arguments["starts"]
        if builder._repeats(given.operand if isinstance(given, Listed) else given):
            builder.faults.append("starts: elements may share memory")
        rows = [count]
    if choices.chance(50):
        shape = [*rows, *([own] if "h" in layout else []), heads.pairs]
        values = [choices.one_of(STATES) for _ in range(math.prod(shape))]
        dtype = choices.one_of(FLOATS) if builder.fault(1, "state: dtype") else "int64"
        arguments["state"] = builder.operand("state", shape, dtype, values)
    if choices.chance(30):
        arguments["scale"] = choices.one_of((0.5, -2.0, 1, 1e-3))
    if choices.chance(25):
        arguments["inverse"] = choices.chance(50)
    _results(builder, arguments, heads, VERB)
    if choices.chance(20):
        _without_one(builder, arguments, heads, VERB)
    return finish(builder, VERB.name, arguments, VERB.inputs)
