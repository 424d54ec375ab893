"""The options of a rotation, declared once for all floors.

Below the public functions a call is ``f(x, *rotation, out)`` or ``f(q, k, *rotation, inplace)``:
the fields of a `Rotation` or a `TableRotation` in their order, which is also that of the operators'
schemas and of the native module. Small calls pass the options on by position, without names. Code
that looks into them makes the record: ``Rotation(*options)``.

`RotationOptions` and `TableRotationOptions` are the same for type checkers: the keywords of the
public functions. `tests/base/test_rotation.py` holds all of them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


class Rotation(NamedTuple):
    """By positions and frequencies."""

    positions: Any
    inv_freq: Any
    layout: str = "bhsd"
    pairing: str | int = "half"
    rotary_start: int = 0
    axis_map: Any = None
    scale: float = 1.0
    inverse: bool = False

    def turned_back(self) -> Rotation:
        """The rotation the other way: the transpose."""
        at = Rotation._fields.index("inverse")  # _replace takes several times as long
        return Rotation._make((*self[:at], not self.inverse, *self[at + 1 :]))


class TableRotation(NamedTuple):
    """By ready cosines and sines."""

    cos: Any
    sin: Any
    layout: str = "bhsd"
    pairing: str | int = "half"
    rotary_start: int = 0
    inverse: bool = False
    compute: str = "float32"

    def turned_back(self) -> TableRotation:
        """The rotation the other way: the transpose."""
        at = TableRotation._fields.index("inverse")  # _replace takes several times as long
        return TableRotation._make((*self[:at], not self.inverse, *self[at + 1 :]))


class PairOptions(TypedDict, total=False):
    """Keywords that say where the pairs are."""

    layout: str
    pairing: str | int
    rotary_start: int


class RotationOptions(PairOptions, total=False):
    """Keywords of rotations by positions and frequencies."""

    axis_map: npt.ArrayLike | torch.Tensor | None
    scale: float
    inverse: bool
    contiguous: bool


class TableRotationOptions(PairOptions, total=False):
    """Keywords of rotations by ready tables."""

    inverse: bool
    compute: str


class CallOptions(TypedDict, total=False):
    """Keywords of a call of a `Rotary`, which has the others itself."""

    layout: str
    inverse: bool
