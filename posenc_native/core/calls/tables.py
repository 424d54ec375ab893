"""Precomputed cosines and sines as a value, which stands where a rotation takes frequencies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from . import arguments

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


class Tables(NamedTuple):
    """Where the angles of a rotation come from, if not from positions: cosines and sines.

    ``apply_rotary(x, None, Tables(cos, sin))``; so too for q and k, with a norm, and into a cache.
    Positions, axis_map and scale of the call then stay None: the tables include them.

    Args:
        cos, sin: ``[s, P]``, ``[b, s, P]`` or ``[1, s, P]`` (``[t, P]`` for packed tokens), one
            value per pair, of any of the four float dtypes. For different tables per head,
            ``[b, h, s, P]`` or ``[1, h, s, P]`` (``[h, s, P]`` if the layout has no b). With
            `rows`, ``[n, P]``; with `axis_map`, an axis ``[A, ...]`` before the others. Or tuples
            ``(cos_q, cos_k)`` and ``(sin_q, sin_k)``: q and k may then differ in length and batch.
        rows: ``[s]``, ``[b, s]`` or ``[1, s]`` integers, the row of `cos` and `sin` for each token;
            nothing is copied. Or a tuple ``(q_rows, k_rows)``. On CUDA rows are not checked: a row
            outside the tables is replaced by the nearest.
        axis_map: ``[P]`` ints, which of the A tables drives each pair.
        compute: "float32": everything in float32 (float64 for a float64 x), rounded once.
            "as_written": cos and sin, each product and the sum are rounded to x's dtype, as in
            ``x * cos + rotate_half(x) * sin`` on tensors of that dtype. This matches, bit for bit,
            the forward and backward passes of Llama and similar models in transformers in eager
            mode.

    A call checks them against x. Gradients reach cos and sin if they require them.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(4)
        >>> tables = pn.Tables(*rope.tables(3))  # once for all layers
        >>> x = np.ones((3, 4), np.float32)
        >>> same = pn.apply_rotary(x, None, rope, layout="sd")
        >>> bool((pn.apply_rotary(x, None, tables, layout="sd") == same).all())
        True
    """

    # The native module knows this order (csrc/bindings/numpy/door.h).
    cos: npt.ArrayLike | torch.Tensor | tuple[Any, Any]
    sin: npt.ArrayLike | torch.Tensor | tuple[Any, Any]
    rows: npt.ArrayLike | torch.Tensor | tuple[Any, Any] | None = None
    axis_map: npt.ArrayLike | torch.Tensor | None = None
    compute: Literal["float32", "as_written"] = "float32"

    def __repr__(self) -> str:
        options = {"rows": self.rows, "axis_map": self.axis_map}
        shown = [_shown(self.cos), _shown(self.sin)]
        shown += [f"{name}={_shown(value)}" for name, value in options.items() if value is not None]
        if self.compute != "float32":
            shown.append(f"compute={self.compute!r}")
        return f"Tables({', '.join(shown)})"

    def of_one(self, i: int) -> Tables:
        """The tables of q (0) or of k (1)."""
        fields: tuple[Any, ...] = self.cos, self.sin, self.rows
        cos, sin, rows = (value[i] if type(value) is tuple else value for value in fields)
        return Tables(cos, sin, rows, self.axis_map, self.compute)


# --- Tables with the factors of xPos

# The elements of q and k for which a factor leaves room. The elements of layers that are
# normalized, or of a standard deviation of 1, are below it.
ROOM = 16

_LARGEST = {
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float64": (2 - 2.0**-52) * 2.0**1023,
}

# The logarithm of the largest factor in each format. A rotation makes sqrt(2) times ROOM of a pair
# of elements of that size. The inverse of this factor is a normal number in every format.
_LIMITS = {name: math.log(largest / (ROOM * math.sqrt(2))) for name, largest in _LARGEST.items()}


class Reach(NamedTuple):
    """How far from their center the positions of tables with factors are: where results overflow.

    decay is the logarithm of the largest factor per position of distance; of_scale is that of the
    scale of the tables, or of its inverse.
    """

    lowest: float
    highest: float
    center: float
    scale_base: float
    decay: float
    of_scale: float

    def fits(self, dtype: str) -> bool:
        """Whether the format holds all factors times elements of up to `ROOM`."""
        size = self._farthest(self.center) * self.decay + self.of_scale
        return bool(size <= _LIMITS[dtype])  # not for NaN

    def check(self, function: str, argument: str, dtype: str, what: str = "") -> None:
        """ValueError unless the format holds all factors times elements of up to `ROOM`."""
        if self.fits(dtype):
            return
        room = max(_LIMITS[dtype] - self.of_scale, 0.0)
        reach = room / self.decay if self.decay else 0.0
        expected = (
            f"{what}within {math.floor(reach)} of the center, {self.center:g} ({dtype} holds their "
            f"factors times elements of up to {ROOM})"
        )
        got = f"a position {self._farthest(self.center):.0f} from it"
        arguments.wrong_value(function, argument, expected, got, self._way_out(dtype, reach))

    def _farthest(self, center: float) -> float:
        return max(abs(self.lowest - center), abs(self.highest - center))

    def _way_out(self, dtype: str, reach: float) -> str:
        """The suggested dtype, center and scale_base."""
        if not math.isfinite(self.lowest + self.highest) or not reach:
            return ""
        wider = {"float16": "use bfloat16 or float32", "float64": ""}.get(dtype, "use float64")
        # A sequence has other positions, too, if its tokens come one by one.
        middle = math.floor(min(self.lowest, self.center) + max(self.highest, self.center)) // 2
        nearer, farther = self._farthest(middle), self._farthest(self.center)
        ways = [wider, f"scale_base={math.ceil(self.scale_base * farther / reach)}"]
        if nearer <= reach:
            ways.insert(1, f"center={middle} in all calls")
        elif nearer < farther:
            smaller = math.ceil(self.scale_base * nearer / reach)
            ways[1] = f"center={middle} in all calls with scale_base={smaller}"
        ways[-1] += " in a new model"
        return ", or ".join(way for way in ways if way)


class FarTables(Tables):
    """Tables with factors that not every dtype holds: a call checks the dtype of its inputs."""

    # A class of its own, so that native code leaves calls with it to the general path.
    reach: Reach | None = None  # None for a copy by a function that knows named tuples alone

    def of_one(self, i: int) -> Tables:
        """The tables of q (0) or of k (1)."""
        return far_tables(super().of_one(i), self.reach)

    def held_by(self, function: str, inputs: tuple[Any, ...]) -> Tables:
        """The plain tables, if the dtype of the inputs holds their factors; ValueError if not."""
        for x in inputs:
            dtype = arguments.dtype_name(getattr(x, "dtype", None))
            if self.reach is not None and dtype in _LIMITS:
                self.reach.check(function, "inv_freq", dtype, "tables of positions ")
        return Tables(*self)


def far_tables(tables: Tables, reach: Reach | None) -> Tables:
    """The tables with their reach, unless every dtype holds their factors."""
    if reach is None or all(map(reach.fits, _LIMITS)):
        return tables
    far = FarTables(*tables)
    far.reach = reach
    return far


def _shown(table: Any) -> str:
    if type(table) is tuple:
        return f"({', '.join(map(_shown, table))})"
    if not hasattr(table, "shape"):
        return repr(table)
    return f"{table.dtype} {list(table.shape)}"
