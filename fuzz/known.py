"""Defects that are known and being mended; what they explain is no finding. Empty at best."""

from __future__ import annotations

from .cases import Case
from .engines import Engine
from .memory import Operand

# What a finding says, and the defect that explains it.
EXPLAINED = {
    "expected aligned memory": "the native module alone refuses unaligned arrays",
    "need at least one array to stack": "frequencies of no heads, in the reference",
    "expected a real number, got bool": "the native module takes True for 1.0",
    "expected a real number, got complex": "1 + 0j counts as the scale 1.0 of tensors",
    "not implemented for 'UInt": "the composition compares uint16, uint32 and uint64",
    "array is too big": "a block of 2^62 dims for no pairs, in the reference",
    "numpy.ulonglong": "torch does not take this name of uint64",
    "frequency_turns: inv_freq": "the composition names an operator of its own in an error",
    "sin: expected shape": "cos [s, P] beside sin [b, s, P]",
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
    if any(
        operand.dtype == "uint64" and isinstance(operand.fill, list)
        and any(value >= 2**63 for value in operand.fill)
        for operand in case.layout.operands
    ) and "raises" in text:  # fmt: skip
        return "integers of 2^63 and more are read as negative ones"
    return None


def crashes(case: Case) -> bool:
    """Whether a known defect may take the process along: such a case is not run."""
    if case.function != "diagonal_sums":
        return False
    grad = case.arguments.get("grad")
    return isinstance(grad, Operand) and 0 in grad.shape
