"""Cases: one integer, one call of a public function with all of its memory.

Most calls are right. The others have something wrong in them, which the case knows (`faults`) and
which all engines have to refuse alike, unless it happens to be harmless.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzz.choices import Choices
from fuzz.operands import Builder

from .common import Case, Described, Dtype, Listed
from .relative import (
    add_toeplitz_bias,
    diagonal_sums,
    relative_gather,
    relative_scatter,
    toeplitz_bias,
)
from .rotary import VERBS, Verb, bound_steps, rotary_backward, rotary_tables, rotation
from .selective import selective_rotary_qk
from .sinusoids import (
    add_sinusoidal,
    sinusoidal,
)

__all__ = [
    "FUNCTIONS", "NAMES", "Case", "Described", "Dtype", "Listed", "case_of", "drawn",
]  # fmt: skip


def _of(verb: Verb) -> Callable[[Builder], Case]:
    return lambda builder: rotation(builder, verb)


FUNCTIONS: dict[str, Callable[[Builder], Case]] = {verb.name: _of(verb) for verb in VERBS} | {
    function.__name__: function
    for function in (
        bound_steps, rotary_backward, rotary_tables, sinusoidal, add_sinusoidal, toeplitz_bias,
        add_toeplitz_bias, diagonal_sums, relative_gather, relative_scatter, selective_rotary_qk,
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
