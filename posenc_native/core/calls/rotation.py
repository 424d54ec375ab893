"""The options of a rotation, declared once for all layers.

Below the public functions a call is ``f(x, *rotation, out)`` or ``f(q, k, *rotation, inplace)``:
the fields of a `Rotation` or a `TableRotation` in their order. The operators' schemas and the
native module use the same order. Small calls pass the options on by position. Code that inspects
them makes the record: ``Rotation(*options)``. Options at the end may be omitted.

Above `engines/rotations.py`, None stands for an option that was not given; below it, every option
has its value.

A public option that may be a pair for q and k is two fields: the option itself for q, and a field
for k whose name begins with ``k_``. The default of that field means that k has the option of q.

`RotationOptions` and `TableRotationOptions` declare the same for type checkers: the keywords of the
public functions. `tests/core/calls/test_rotation.py` checks that all of them agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar

from .errors import blame, fault_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from .kinds import Pairing


AnyRotation = TypeVar("AnyRotation", bound="Rotation | TableRotation")


def _turned_back(rotation: AnyRotation) -> AnyRotation:
    record: Any = rotation
    if rotation.out_pairing == "same":
        at = rotation._fields.index("inverse")  # _replace takes several times as long
        return record._make((*rotation[:at], not rotation.inverse, *rotation[at + 1 :]))  # type: ignore[no-any-return]
    pairings = {"pairing": rotation.out_pairing, "out_pairing": rotation.pairing}
    return record._replace(inverse=not rotation.inverse, **pairings)  # type: ignore[no-any-return]


class Rotation(NamedTuple):
    """A rotation by positions and frequencies."""

    positions: Any
    inv_freq: Any
    layout: Any = "bhsd"
    pairing: Any = "half"
    rotary_start: Any = 0
    axis_map: Any = None
    scale: Any = 1.0
    inverse: bool = False
    k_positions: Any = None
    k_start: int = -1
    out_pairing: str | int = "same"

    def turned_back(self) -> Rotation:
        """The inverse rotation: the transpose."""
        return _turned_back(self)


class TableRotation(NamedTuple):
    """A rotation by precomputed cosines and sines."""

    cos: Any
    sin: Any
    layout: Any = "bhsd"
    pairing: Any = "half"
    rotary_start: Any = 0
    inverse: bool = False
    compute: str = "float32"
    rows: Any = None
    axis_map: Any = None
    k_cos: Any = None
    k_sin: Any = None
    k_rows: Any = None
    k_start: int = -1
    out_pairing: str | int = "same"

    def turned_back(self) -> TableRotation:
        """The inverse rotation: the transpose."""
        return _turned_back(self)


# The fields for k, by those for q.
_OF_K = {
    **{name: f"k_{name}" for name in ("positions", "cos", "sin", "rows")},
    "rotary_start": "k_start",
}


def own_tokens(rotation: Rotation | TableRotation) -> bool:
    """Whether k has separate positions, tables or rows, and therefore separate tokens."""
    if isinstance(rotation, Rotation):
        return rotation.k_positions is not None
    return rotation.k_cos is not None or rotation.k_rows is not None


def apart(rotation: Rotation | TableRotation) -> bool:
    """Whether q and k are rotated separately."""
    return own_tokens(rotation) or rotation.k_start >= 0


def of_each(rotation: AnyRotation) -> tuple[AnyRotation, AnyRotation]:
    """The separate rotations of q and of k."""
    record: Any = rotation
    fields = {name: k for name, k in _OF_K.items() if k in record._fields}
    same = {k: record._field_defaults[k] for k in fields.values()}
    own = {name: getattr(record, k) for name, k in fields.items() if is_pair(rotation, name)}
    return record._replace(**same), record._replace(**same, **own)


@contextmanager
def of_pair(rotation: Rotation | TableRotation, i: int) -> Iterator[None]:
    """Add the index, q (0) or k (1), to errors about an option that is a pair."""
    try:
        yield
    except (ValueError, TypeError) as error:
        fault = fault_of(error)
        if fault is not None and is_pair(rotation, fault.argument):
            blame(error, argument=f"{fault.argument}[{i}]")
        raise


def is_pair(rotation: Rotation | TableRotation, option: str) -> bool:
    """Whether the option is a pair for q and k."""
    k = _OF_K.get(option)
    if k is None or k not in rotation._fields:
        return False
    return rotation.k_start >= 0 if k == "k_start" else getattr(rotation, k) is not None


class PairOptions(TypedDict, total=False):
    """Keywords that define the pairs."""

    layout: str | None
    pairing: Pairing | None
    rotary_start: int | None


class PairOptionsOfTwo(TypedDict, total=False):
    """The same for q and k."""

    layout: str | None
    pairing: Pairing | None
    rotary_start: int | tuple[int, int] | None


class _OptionsOfAngles(TypedDict, total=False):
    """Keywords of rotations by positions and frequencies, except those that define the pairs."""

    axis_map: npt.ArrayLike | torch.Tensor | None
    scale: float | None
    inverse: bool
    out_pairing: Pairing | Literal["same"]
    contiguous: bool


class RotationOptions(PairOptions, _OptionsOfAngles, total=False):
    """Keywords of rotations by positions and frequencies."""


class RotationOptionsOfTwo(PairOptionsOfTwo, _OptionsOfAngles, total=False):
    """The same for q and k."""


class TableRotationOptions(PairOptions, total=False):
    """Keywords of rotations by precomputed tables."""

    inverse: bool
    compute: Literal["float32", "as_written"]
    rows: npt.ArrayLike | torch.Tensor | None
    axis_map: npt.ArrayLike | torch.Tensor | None
    out_pairing: Pairing | Literal["same"]


class TableRotationOptionsOfTwo(PairOptionsOfTwo, total=False):
    """The same for q and k."""

    inverse: bool
    compute: Literal["float32", "as_written"]
    rows: npt.ArrayLike | torch.Tensor | tuple[Any, Any] | None
    axis_map: npt.ArrayLike | torch.Tensor | None
    out_pairing: Pairing | Literal["same"]


class CallOptions(TypedDict, total=False):
    """Keywords of a call of a `Rotary`, which includes all others."""

    layout: str | None
    inverse: bool
