"""The options of a rotation, declared once for all layers.

Below the public functions a call is ``f(x, *rotation, out)`` or ``f(q, k, *rotation, inplace)``:
the fields of a `Rotation` in their order, which the native module uses, too. Public functions pass
the options on by position. Code that inspects them makes the record: ``Rotation(*options)``.
Options at the end may be omitted.

`Rotation.inv_freq` is where angles come from, besides positions: frequencies, or `Tables` of
cosines and sines. The operators' schemas have the parts of tables one by one: `flat`.

Above `engines/rotations.py`, None stands for an option that the call lacks; below it, every option
has its value.

A public option that may be a pair for q and k is two fields: the option itself for q, and a field
for k whose name begins with ``k_``. The default of that field means that k has the option of q.
Tables have pairs as tuples.

`RotationOptions` declares the same for type checkers: the keywords of the public functions.
`tests/core/calls/test_rotation.py` checks that all of them agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from .errors import blame, fault_of
from .tables import Tables

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from .kinds import FrequencyAxes, Pairing


class Rotation(NamedTuple):
    """How x, or q and k, are rotated."""

    positions: Any
    inv_freq: Any  # frequencies, or Tables
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
        if self.out_pairing == "same":
            at = self._fields.index("inverse")
            options: Any = (*self[:at], not self.inverse, *self[at + 1 :])
            return Rotation(*options)  # _replace takes several times as long
        pairings = {"pairing": self.out_pairing, "out_pairing": self.pairing}
        return self._replace(inverse=not self.inverse, **pairings)

    def option(self, name: str) -> Any:
        """An option by its name, also one of the tables; None if there is none."""
        owner = self.inv_freq if type(self.inv_freq) is Tables and name in Tables._fields else self
        return getattr(owner, name, None)


def by_tables(rotation: Rotation) -> bool:
    """Whether the angles come from tables."""
    return type(rotation.inv_freq) is Tables


# The options of a rotation by tables in the order of the operators' schemas.
OF_TABLES = (
    "cos", "sin", "layout", "pairing", "rotary_start", "inverse", "compute", "rows", "axis_map",
    "k_cos", "k_sin", "k_rows", "k_start", "out_pairing",
)  # fmt: skip


def schema(tables: bool) -> tuple[str, ...]:
    """The names of the options in the order of the operators' schemas."""
    return OF_TABLES if tables else Rotation._fields


def flat(rotation: Rotation) -> tuple[Any, ...]:
    """The options in the order of the operators' schemas, without tuples of tensors."""
    tables = rotation.inv_freq
    if type(tables) is not Tables:
        return rotation
    cos: Any
    sin: Any
    rows: Any
    cos, sin, rows, axis_map, compute = tables
    k_cos = k_sin = k_rows = None
    if type(cos) is tuple:
        (cos, k_cos), (sin, k_sin) = cos, sin
    if type(rows) is tuple:
        rows, k_rows = rows
    return (
        cos, sin, rotation.layout, rotation.pairing, rotation.rotary_start, rotation.inverse,
        compute, rows, axis_map, k_cos, k_sin, k_rows, rotation.k_start, rotation.out_pairing,
    )  # fmt: skip


def from_flat(options: Sequence[Any], tables: bool) -> Rotation:
    """The rotation with these options; tables: they are in the order for tables."""
    if not tables:
        return Rotation(*options)
    defaults = (
        "bhsd", "half", 0, False, "float32", None, None, None, None, None, -1, "same",
    )  # fmt: skip
    fields: list[Any] = [*options, *defaults[len(options) - 2 :]]
    cos, sin, layout, pairing, start, inverse, compute, rows, axis_map = fields[:9]
    k_cos, k_sin, k_rows, k_start, out_pairing = fields[9:]
    if k_cos is not None:
        cos, sin = (cos, k_cos), (sin, k_sin)
    if k_rows is not None:
        rows = rows, k_rows
    return Rotation(
        None, Tables(cos, sin, rows, axis_map, compute), layout, pairing, start, inverse=inverse,
        k_start=k_start, out_pairing=out_pairing,
    )  # fmt: skip


def own_tokens(rotation: Rotation) -> bool:
    """Whether k has separate positions, tables or rows, and therefore separate tokens."""
    tables = rotation.inv_freq
    if type(tables) is Tables:
        return type(tables.cos) is tuple or type(tables.rows) is tuple
    return rotation.k_positions is not None


def apart(rotation: Rotation) -> bool:
    """Whether q and k are rotated separately."""
    return own_tokens(rotation) or rotation.k_start >= 0


def of_each(rotation: Rotation) -> tuple[Rotation, Rotation]:
    """The separate rotations of q and of k."""
    shared = rotation._replace(k_positions=None, k_start=-1)
    if by_tables(rotation):
        q, k = (shared._replace(inv_freq=rotation.inv_freq.of_one(i)) for i in (0, 1))
    else:
        own = rotation.k_positions
        q, k = shared, shared if own is None else shared._replace(positions=own)
    return q, k if rotation.k_start < 0 else k._replace(rotary_start=rotation.k_start)


@contextmanager
def of_pair(rotation: Rotation, i: int) -> Iterator[None]:
    """Add the index, q (0) or k (1), to errors about an option that is a pair."""
    try:
        yield
    except (ValueError, TypeError) as error:
        fault = fault_of(error)
        if fault is not None and is_pair(rotation, fault.argument):
            blame(error, argument=f"{fault.argument}[{i}]")
        raise


def is_pair(rotation: Rotation, option: str) -> bool:
    """Whether the option is a pair for q and k."""
    if option == "positions":
        return rotation.k_positions is not None
    if option == "rotary_start":
        return rotation.k_start >= 0
    return option in ("cos", "sin", "rows") and type(rotation.option(option)) is tuple


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
    """Keywords of rotations, except those that define the pairs."""

    axis_map: npt.ArrayLike | torch.Tensor | None
    scale: float | None
    inverse: bool
    out_pairing: Pairing | Literal["same"]
    contiguous: bool
    inv_freq_axes: FrequencyAxes | None


class RotationOptions(PairOptions, _OptionsOfAngles, total=False):
    """Keywords of rotations."""


class RotationOptionsOfTwo(PairOptionsOfTwo, _OptionsOfAngles, total=False):
    """The same for q and k."""


class RotaryArguments(TypedDict, total=False):
    """Keywords that define a `Rotary`, beside head_dim and the layout of its calls."""

    base: float
    rotary_dim: int | None
    pairing: Pairing
    scaling: Mapping[str, Any] | None
    axis_map: npt.ArrayLike | None
    rotary_start: int
    inv_freq: npt.ArrayLike | None
    scale: float | None


class CallOptions(TypedDict, total=False):
    """Keywords of a call of a `Rotary`, which includes all others."""

    layout: str | None
    inverse: bool
