"""Defects that are known and being mended; what they explain is no finding. Empty at best."""

from __future__ import annotations

from .cases import Case
from .engines import Engine
from .memory import Operand

# What a finding says, and the defect that explains it.
EXPLAINED = {
    "expected aligned memory": "the native module alone refuses unaligned arrays",
    "need at least one array to stack": "frequencies of no heads, in the reference",
    "a ratio of neighbouring frequencies": "only the native module limits the ratio",
}


def known_defect(case: Case, engine: Engine, text: str) -> str | None:
    """The name of the defect that explains a finding."""
    del engine
    for words, defect in EXPLAINED.items():
        if words in text:
            return defect
    if case.function == "rotary_backward" and "the reference raises" in text:
        return "rotary_backward of nothing, in the reference"
    if "sinusoidal" in case.function and "the reference takes it" in text:
        x = case.arguments.get("x")
        if case.arguments.get("dim") == 0 or (isinstance(x, Operand) and x.shape[-1:] == (0,)):
            return "tables of no columns, whose scale only the native module checks"
    return None


def crashes(case: Case) -> bool:
    """Whether a known defect may take the process along: such a case is not run."""
    if case.function != "diagonal_sums":
        return False
    grad = case.arguments.get("grad")
    return isinstance(grad, Operand) and 0 in grad.shape
