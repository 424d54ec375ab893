"""The options of a rotation, declared once for all floors.

Below the public functions a call is ``f(x, *rotation, out)`` or ``f(q, k, *rotation, inplace)``:
the fields of a `Rotation` or a `TableRotation` in their order, which is also that of the operators'
schemas and of the native module. Small calls pass the options on by position, without names. Code
that looks into them makes the record: ``Rotation(*options)``. Options at the end may be left out.

Above `engines/rotations.py` None stands for an option that was not given; below it, every option
has its value.

A public option that is a pair, one for q and one for k, is two fields: the option itself for q, and
for k one whose name begins with ``k_``. The default of that one says that k has what q has.

`RotationOptions` and `TableRotationOptions` are the same for type checkers: the keywords of the
public functions. `tests/base/test_rotation.py` holds all of them together.
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


class Rotation(NamedTuple):
    """By positions and frequencies."""

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
        """The rotation the other way: the transpose."""
        if self.out_pairing != "same":
            return _rearranged_back(self)
        at = Rotation._fields.index("inverse")  # _replace takes several times as long
        return Rotation._make((*self[:at], not self.inverse, *self[at + 1 :]))


class TableRotation(NamedTuple):
    """By ready cosines and sines."""

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
        """The rotation the other way: the transpose."""
        if self.out_pairing != "same":
            return _rearranged_back(self)
        at = TableRotation._fields.index("inverse")  # _replace takes several times as long
        return TableRotation._make((*self[:at], not self.inverse, *self[at + 1 :]))


AnyRotation = TypeVar("AnyRotation", bound="Rotation | TableRotation")


def _rearranged_back(rotation: AnyRotation) -> AnyRotation:
    record: Any = rotation
    pairings = {"pairing": rotation.out_pairing, "out_pairing": rotation.pairing}
    return record._replace(inverse=not rotation.inverse, **pairings)  # type: ignore[no-any-return]


# For k, by the field for q; what stands for that of q.
_OF_K = {
    "positions": "k_positions",
    "cos": "k_cos",
    "sin": "k_sin",
    "rows": "k_rows",
    "rotary_start": "k_start",
}
_AS_Q = {"k_positions": None, "k_cos": None, "k_sin": None, "k_rows": None, "k_start": -1}


def own_tokens(rotation: Rotation | TableRotation) -> bool:
    """Whether k has positions, tables or rows of its own, and so tokens."""
    if isinstance(rotation, Rotation):
        return rotation.k_positions is not None
    return rotation.k_cos is not None or rotation.k_rows is not None


def apart(rotation: Rotation | TableRotation) -> bool:
    """Whether q and k are turned one by one."""
    return own_tokens(rotation) or rotation.k_start >= 0


def of_each(rotation: AnyRotation) -> tuple[AnyRotation, AnyRotation]:
    """The rotations of q alone and of k alone."""
    record: Any = rotation
    fields = {name: k for name, k in _OF_K.items() if k in record._fields}
    same = {k: _AS_Q[k] for k in fields.values()}
    own = {name: getattr(record, k) for name, k in fields.items() if is_pair(rotation, name)}
    return record._replace(**same), record._replace(**same, **own)


@contextmanager
def of_pair(rotation: Rotation | TableRotation, i: int) -> Iterator[None]:
    """Inside, errors about an option that is a pair say which one: that of q (0) or of k (1)."""
    try:
        yield
    except (ValueError, TypeError) as error:
        fault = fault_of(error)
        if fault is not None and is_pair(rotation, fault.argument):
            blame(error, argument=f"{fault.argument}[{i}]")
        raise


def is_pair(rotation: Rotation | TableRotation, option: str) -> bool:
    """Whether the option is one for q and one for k."""
    k = _OF_K.get(option)
    if k is None or k not in rotation._fields:
        return False
    return rotation.k_start >= 0 if k == "k_start" else getattr(rotation, k) is not None


class PairOptions(TypedDict, total=False):
    """Keywords that say where the pairs are."""

    layout: str | None
    pairing: Pairing | None
    rotary_start: int | None


class PairOptionsOfTwo(TypedDict, total=False):
    """The same for q and k."""

    layout: str | None
    pairing: Pairing | None
    rotary_start: int | tuple[int, int] | None


class RotationOptions(PairOptions, total=False):
    """Keywords of rotations by positions and frequencies."""

    axis_map: npt.ArrayLike | torch.Tensor | None
    scale: float | None
    inverse: bool
    out_pairing: Pairing | Literal["same"]
    contiguous: bool


class RotationOptionsOfTwo(PairOptionsOfTwo, total=False):
    """The same for q and k."""

    axis_map: npt.ArrayLike | torch.Tensor | None
    scale: float | None
    inverse: bool
    out_pairing: Pairing | Literal["same"]
    contiguous: bool


class TableRotationOptions(PairOptions, total=False):
    """Keywords of rotations by ready tables."""

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
    """Keywords of a call of a `Rotary`, which has the others itself."""

    layout: str | None
    inverse: bool
