"""The verbs: a record for each operation, with its names and the functions that run it.

    a rotation      the door of its public function ──► run (rotations.py) ──► arrays or tensors
    another verb    door, arrays or tensors, called by its public function

torch/__init__.py has the half of each record that needs torch: what runs it on tensors, the rule
for DTensors, the fake and the rule of vmap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posenc_native.core.calls.rotation import Rotation, by_tables

from . import backend, late

# None for new memory, or a place for each result, which may be the input itself.
Outs = tuple[Any, ...] | None


@dataclass(frozen=True, eq=False)
class Verb:
    """An operation: its public name, and its operator for torch."""

    name: str
    operator: str  # of csrc/bindings/torch
    forms: tuple[str, ...] = ("", "_", "_out")  # of the operator: new, in place, to memory

    @property
    def operators(self) -> tuple[str, ...]:
        """Its operators for new results."""
        return (self.operator,)


@dataclass(frozen=True, eq=False, kw_only=True)
class RotaryVerb(Verb):
    """A rotation. Another operator, `from_tables`, reads tables instead of frequencies.

    door, arrays: take inputs, a rotation, and perhaps compute, a norm and a cache, field by field,
    and an argument for memory (rotations.to_of). tensors: takes them as groups, and outs.
    """

    rotated: tuple[str, ...] = ("q", "k")  # names of the inputs that are rotated
    door: Callable[..., Any]
    arrays: Callable[..., Any]
    tensors: Callable[..., Any]

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators by frequencies and by tables."""
        return self.operator, f"{self.operator}_from_tables"


def _rotate(inputs: Any, rotation: Rotation, outs: Outs, *_: Any) -> Any:
    (x,), out = inputs, None if outs is None else outs[0]
    return late.torch_operations().apply_rotary(x, rotation, out)


def _rotate_qk(inputs: Any, rotation: Rotation, outs: Outs, *_: Any) -> Any:
    q, k = inputs
    return late.torch_operations().apply_rotary_qk(q, k, rotation, outs)


def _norm_rotary(
    inputs: Any, rotation: Rotation, outs: Outs, compute: Any, norm: Any, cache: Any
) -> Any:
    own = _compute_of(rotation, compute)
    return late.torch_operations().norm_rotary_qk(inputs, rotation, own, norm, outs)


def _append(
    inputs: Any, rotation: Rotation, outs: Outs, compute: Any, norm: Any, cache: Any
) -> Any:
    own = _compute_of(rotation, compute)
    return late.torch_operations().rotary_append(inputs, rotation, own, norm, cache, outs)


def _compute_of(rotation: Rotation, compute: Any) -> Any:
    if by_tables(rotation):
        return rotation.inv_freq.compute
    return "float32" if compute[0] is None else compute[0]


APPLY_ROTARY = RotaryVerb(
    "apply_rotary",
    "rotary",
    rotated=("x",),
    door=lambda *call: backend.door.apply_rotary(*call),
    arrays=lambda *call: backend.implementation.apply_rotary(*call),
    tensors=_rotate,
)
APPLY_ROTARY_QK = RotaryVerb(
    "apply_rotary_qk",
    "rotary_qk",
    door=lambda *call: backend.door.apply_rotary_qk(*call),
    arrays=lambda *call: backend.implementation.apply_rotary_qk(*call),
    tensors=_rotate_qk,
)
NORM_ROTARY_QK = RotaryVerb(
    "norm_rotary_qk",
    "norm_rotary_qk",
    door=lambda *call: backend.door.norm_rotary_qk(*call),
    arrays=lambda *call: backend.implementation.norm_rotary_qk(*call),
    tensors=_norm_rotary,
)
ROTARY_APPEND = RotaryVerb(
    "rotary_append",
    "rotary_append",
    door=lambda *call: backend.door.rotary_append(*call),
    arrays=lambda *call: backend.implementation.rotary_append(*call),
    tensors=_append,
)
ROTARY_TABLES = Verb("rotary_tables", "rotary_tables", ("",))
SINUSOIDAL = Verb("sinusoidal", "sinusoidal", ("", "_out"))
ADD_SINUSOIDAL = Verb("add_sinusoidal", "add_sinusoidal")
TOEPLITZ_BIAS = Verb("toeplitz_bias", "toeplitz_bias", ("", "_out"))
ADD_TOEPLITZ_BIAS = Verb("add_toeplitz_bias", "add_toeplitz_bias")
DIAGONAL_SUMS = Verb("diagonal_sums", "diagonal_sums", ("",))
RELATIVE_GATHER = Verb("relative_gather", "relative_gather", ("", "_out"))
RELATIVE_SCATTER = Verb("relative_scatter", "relative_scatter", ("", "_out"))

ROTATIONS = (APPLY_ROTARY, APPLY_ROTARY_QK, NORM_ROTARY_QK, ROTARY_APPEND)
OTHERS = (
    ROTARY_TABLES, SINUSOIDAL, ADD_SINUSOIDAL, TOEPLITZ_BIAS, ADD_TOEPLITZ_BIAS, DIAGONAL_SUMS,
    RELATIVE_GATHER, RELATIVE_SCATTER,
)  # fmt: skip
# In the order of Operation in csrc/bindings/numpy/tensors.h, which ends with those of
# encodings/selective.
OPERATORS = (
    *[verb.operators[0] for verb in ROTATIONS],
    *[verb.operators[1] for verb in ROTATIONS],
    *[verb.operator for verb in OTHERS],
    "rotary_by_steps",
    "rotary_qk_by_steps",
)
