"""Cases: one integer, one call of a public function with all of its memory.

Most calls are right. The others have something wrong in them, which the case knows (`faults`) and
which all engines have to refuse alike, unless it happens to be harmless.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzz.choices import Choices
from fuzz.operands import Builder

from .common import Case, Dtype
from .relative import (
    add_toeplitz_bias,
    diagonal_sums,
    relative_gather,
    relative_scatter,
    toeplitz_bias,
)
from .rotary import (
    apply_rotary,
    apply_rotary_qk,
    apply_rotary_qk_tables,
    apply_rotary_tables,
    rotary_backward,
    rotary_tables,
)
from .sinusoids import (
    add_sinusoidal,
    sinusoidal,
)

__all__ = ["FUNCTIONS", "NAMES", "Case", "Dtype", "case_of", "drawn"]

FUNCTIONS: dict[str, Callable[[Builder], Case]] = {
    function.__name__: function
    for function in (
        apply_rotary, apply_rotary_qk, apply_rotary_tables, apply_rotary_qk_tables,
        rotary_backward, rotary_tables, sinusoidal, add_sinusoidal, toeplitz_bias,
        add_toeplitz_bias, diagonal_sums, relative_gather, relative_scatter,
    )
}  # fmt: skip
NAMES = list(FUNCTIONS)


def case_of(seed: int) -> Case:
    """The case of an integer; seeds that differ by a multiple of len(NAMES) are of one function."""
    case = drawn(NAMES[seed % len(NAMES)], Choices.of_seed(seed))
    case.seed = seed
    return case


def drawn(function: str, choices: Choices) -> Case:
    """A case of a function, by choices of any source."""
    return FUNCTIONS[function](Builder(choices))
