"""Tables in any convention: a project's columns, coordinates and gaps as a `SinusoidalSpec`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.suggestions.vocabulary import answer_methods
from posenc_native.core.documents.reprs import call
from posenc_native.encodings.rotary.tables import rotary_tables
from posenc_native.engines import late
from posenc_native.engines.arrays import Arrays

from .coordinates import is_shape, points_of
from .grid import GridCoordinates
from .presets import described_presets, spec_arguments
from .tables import sinusoidal

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        AxisPlace,
        ByDtype,
        OfNumPy,
        OfTorch,
        OnDevice,
        Remainder,
        SinusoidalLayout,
        Tensor,
        TensorLike,
    )

__all__ = ["SinusoidalSpec"]

Of = TypeVar("Of", int, float)


if TYPE_CHECKING:
    Cells = int | npt.NDArray[Any] | Sequence[int] | Sequence[npt.NDArray[Any]]
    Sizes = int | Sequence[int] | npt.NDArray[Any]
    CellTensors = TensorLike | Sequence[TensorLike]


@answer_methods
@dataclass(frozen=True, kw_only=True)
class SinusoidalSpec:
    """How a model encodes positions as sines and cosines: any convention, as data.

    Every coordinate has P pairs of a sine and a cosine, with the frequencies
    ``scale * base ** (-i / (P - shift))`` or those of a list. The other choice is the order of the
    columns: how coordinate (a), function (sin or cos) and frequency (i) vary, slowest to fastest.

        ============= ============ ======================= ==============================
        layout        axis_place   slowest ... fastest     for example
        ============= ============ ======================= ==============================
        interleaved   outer        axis frequency function DETR
        sin_cos       outer        axis function frequency MAE
        sin_cos       middle       function axis frequency timm
        sin_cos       inner        function frequency axis timm's Fourier features
        interleaved   inner        frequency function axis NeRF, GLIGEN
        interleaved   middle       frequency axis function
        ============= ============ ======================= ==============================

    A spec is immutable and hashable and holds no array. Call it to get a table: the axes of a grid
    first, from one table of each axis. A model makes its spec once; ``torch.compile(dynamic=True)``
    may not follow a spec that is made while it traces.

    Args:
        dim: total width of the table.
        axis_order: the order of the coordinates; its length is the number of coordinates. (1, 0)
            puts columns before rows.
        base, scale: as in `sinusoidal`: a number each (base above 0) for all coordinates, or one
            per coordinate.
        shift: as in `sinusoidal`: a number, with P in place of dim / 2. A single pair has frequency
            `scale` for any shift.
        inv_freq: explicit frequencies, P numbers in radians, in place of base and shift.
        layout: "interleaved", "sin_cos" or "cos_sin".
        axis_place: "outer" (a block for each coordinate), "middle" or "inner".
        shares: relative widths of the coordinates, as in (2, 3, 3); default equal.
        remainder: the treatment of a dim that is not a multiple of the pairs' width: "error",
            "zeros" (zero columns at the end), "drop" (a narrower table) or "cut" (one pair more,
            truncated at dim). P is then the number of pairs before the cut, so the paper's
            exponents 2i/dim have shift 0.5: the table of PyTorch's tutorial, which leaves out the
            last cosine, is ``SinusoidalSpec(29, remainder="cut", shift=0.5)``. With shift 0 the
            exponents are 2i/(dim + 1), as in positional-encodings.
        include_coordinates: the coordinates themselves are the first columns.
        origin: an int >= 0, or one per coordinate, that is subtracted from the coordinates first:
            exactly, of integers. The angles of times in nanoseconds since 1970 (1.7e18) are off by
            0.3 radians, those of milliseconds by 3e-7, as frequencies are multiples of 2^-64 turns;
            with the origin near the times they are exact.
        logarithm: the coordinates, all above 0, are replaced by their natural logarithms.
        zero_position: rows at this position are zero (with one coordinate only).
        zero_rows: number of zero rows before those of a grid given by its sizes (class tokens).
        grid: how sizes or a mask become coordinates; None counts cells from 0.

    Raises:
        ValueError: dim cannot be divided this way, a name is unknown, or a number is out of range.
        TypeError: an argument has a wrong type.

    Example:
        >>> import posenc_native as pn
        >>> fairseq = pn.SinusoidalSpec(dim=7, layout="sin_cos", shift=1, remainder="zeros")
        >>> fairseq(2).round(2)
        array([[0.  , 0.  , 0.  , 1.  , 1.  , 1.  , 0.  ],
               [0.84, 0.01, 0.  , 0.54, 1.  , 1.  , 0.  ]], dtype=float32)
        >>> grid = pn.SinusoidalSpec(8, axis_order=(0, 1))  # pixels, cells
        >>> grid(sizes=(1, 2)).round(2)
        array([[[0.  , 1.  , 0.  , 1.  , 0.  , 1.  , 0.  , 1.  ],
                [0.  , 1.  , 0.  , 1.  , 0.84, 0.54, 0.01, 1.  ]]], dtype=float32)

    Source: for several coordinates, Wang & Liu 2019, "Translating Math Formula Images to LaTeX
    Sequences Using Deep Neural Networks with Sequence-level Training"; tensor2tensor's
    ``add_timing_signal_nd``.
    """

    dim: int = field(kw_only=False)
    axis_order: tuple[int, ...] = (0,)
    base: float | tuple[float, ...] = 10000.0
    scale: float | tuple[float, ...] = 1.0
    shift: float = 0.0
    inv_freq: tuple[float, ...] | None = None
    layout: SinusoidalLayout = "interleaved"
    axis_place: AxisPlace = "outer"
    shares: tuple[int, ...] | None = None
    remainder: Remainder = "error"
    include_coordinates: bool = False
    origin: int | tuple[int, ...] = 0
    logarithm: bool = False
    zero_position: int | None = None
    zero_rows: int = 0
    grid: GridCoordinates | None = None

    def __post_init__(self) -> None:
        function = "SinusoidalSpec"
        order = tuple(arguments.size(function, "axis_order", a) for a in self.axis_order)
        axes = len(order)
        if not axes or sorted(order) != list(range(axes)):
            wrong_value(function, "axis_order", "each of 0 .. A-1 once", order)
        arguments.check_sinusoidal_layout(function, self.layout)
        arguments.check_name(function, "axis_place", self.axis_place, _PLACES)
        arguments.check_name(function, "remainder", self.remainder, _REMAINDERS)
        if self.zero_position is not None and axes != 1:
            wrong_value(function, "zero_position", "None with several coordinates", axes)
        if self.grid is not None and not isinstance(self.grid, GridCoordinates):
            wrong_type(function, "grid", "a GridCoordinates", type(self.grid).__name__)
        values = {
            "dim": arguments.size(function, "dim", self.dim),
            "axis_order": order,
            "base": _for_each_axis(function, "base", self.base, axes, arguments.positive_number),
            "scale": _for_each_axis(function, "scale", self.scale, axes, arguments.finite_number),
            "origin": _for_each_axis(function, "origin", self.origin, axes, arguments.size),
            "shift": arguments.finite_number(function, "shift", self.shift),
            "zero_rows": arguments.size(function, "zero_rows", self.zero_rows),
        }
        if self.shares is not None:
            shares = tuple(arguments.size(function, "shares", share) for share in self.shares)
            if len(shares) != axes or not sum(shares):
                wrong_value(function, "shares", f"{axes} ints, not all 0", shares)
            values["shares"] = shares
        if self.inv_freq is not None:
            values["inv_freq"] = tuple(
                arguments.finite_number(function, "inv_freq", w) for w in self.inv_freq
            )
        for name, value in values.items():
            object.__setattr__(self, name, value)
        for pairs in self.pairs:
            if self.inv_freq is not None and len(self.inv_freq) != pairs:
                expected = f"{pairs} frequencies for dim = {self.dim}"
                wrong_value(function, "inv_freq", expected, len(self.inv_freq))
            if self.inv_freq is None and pairs > 1 and self.shift >= pairs:
                wrong_value(function, "shift", f"a number < {pairs}, its pairs", self.shift)

    def __repr__(self) -> str:
        return call(self, **{field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def preset(cls, name: str, dim: int, **options: Any) -> SinusoidalSpec:
        """The convention of another project, by name; `presets` lists names and options.

        Args:
            name: "fairseq", "whisper", "diffusers_timestep", "mae", "detr", "nerf" ...
            dim: total width of the table.
            options: the project's options, under its names.

        The table has the axes of a grid first, ``[..., dim]``. (Projects that flatten a grid, put
        channels first or repeat it for a batch rearrange the same numbers.)

        Raises:
            ValueError: a name or option is unknown, or a value does not fit.
            TypeError: an argument has a wrong type.

        Example:
            >>> import posenc_native as pn
            >>> timestep = pn.SinusoidalSpec.preset("diffusers_timestep", 4, flip_sin_to_cos=True)
            >>> timestep([0.5]).round(4)
            array([[0.8776, 1.    , 0.4794, 0.    ]], dtype=float32)
            >>> pn.SinusoidalSpec.preset("mae", 768, cls_token=True)(sizes=(14, 14)).shape
            (197, 768)
            >>> # fairseq's positions of tokens
            >>> positions = pn.positions.padded_positions([[1, 1, 0]], padding=1, start=2)
            >>> pn.SinusoidalSpec.preset("fairseq", 4, padding_idx=1)(positions).round(2)
            array([[[ 0.91,  0.  , -0.42,  1.  ],
                    [ 0.14,  0.  , -0.99,  1.  ],
                    [ 0.  ,  0.  ,  0.  ,  0.  ]]], dtype=float32)
        """
        return cls(**spec_arguments(name, dim, options))

    @staticmethod
    def presets() -> dict[str, str]:
        """The names that `preset` accepts, each with its options and its source.

        Example:
            >>> import posenc_native as pn
            >>> names = pn.SinusoidalSpec.presets()
            >>> names["whisper"]
            'max_timescale=10000.0: openai/whisper, sinusoids'
            >>> len(names) > 20
            True
        """
        return described_presets()

    @property
    def pairs(self) -> tuple[int, ...]:
        """The number of frequencies of each coordinate."""
        axes = len(self.axis_order)
        width = self.dim - (axes if self.include_coordinates else 0)
        shares = self.shares or (1,) * axes
        unit = 2 * sum(shares)
        units, rest = width // unit, width % unit  # torch.compile does not support divmod
        uneven = len(set(shares)) > 1
        if width < 0 or (rest and (self.remainder == "error" or uneven)):
            also = f" and {self.dim - width} more" if self.include_coordinates else ""
            hint = ""
            if rest and self.remainder == "error" and not uneven:
                hint = 'write remainder="zeros", "drop" or "cut", as the project does'
                if unit == 2 and not also and self.inv_freq is None:
                    hint = arguments.odd_width(self.dim, self.shift)
            wrong_value("SinusoidalSpec", "dim", f"a multiple of {unit}{also}", self.dim, hint)
        if uneven and self.axis_place != "outer":
            wrong_value("SinusoidalSpec", "axis_place", "'outer' with shares", self.axis_place)
        parts = units + (1 if rest and self.remainder == "cut" else 0)
        return tuple(parts * share for share in shares)

    @overload
    def __call__(self, positions: Cells, **made: Unpack[OfNumPy]) -> Array[Any]: ...
    @overload
    def __call__(self, positions: CellTensors, **made: Unpack[OfTorch]) -> Tensor: ...
    @overload
    def __call__(self, positions: Any, **made: Unpack[ByDtype]) -> Tensor: ...
    @overload
    def __call__(self, positions: Any, **made: Unpack[OnDevice]) -> Tensor: ...
    @overload
    def __call__(self, *, sizes: Sizes, **made: Unpack[OfNumPy]) -> Array[Any]: ...
    @overload
    def __call__(self, *, mask: npt.NDArray[Any], **made: Unpack[OfNumPy]) -> Array[Any]: ...
    @overload
    def __call__(self, positions: None = ..., *, sizes: Any = ..., mask: Any = ...,
                 dtype: Any = ..., device: Any = ...) -> Any: ...  # fmt: skip
    def __call__(
        self,
        positions: Any = None,
        *,
        sizes: Any = None,
        mask: Any = None,
        dtype: Any = None,
        device: Any = None,
    ) -> Any:
        """The table at these positions, or of the cells of a grid; exactly one of three arguments.

        Args:
            positions: for one coordinate, an int n for the n cells of the grid, or an array or
                tensor of any shape. For A coordinates, A arrays or tensors that broadcast, or one
                array or tensor ``[..., A]``. A tuple or list of A ints, A > 1, is read as `sizes`,
                and bools as `mask`.
            sizes: the number of cells along each axis, A ints: a tuple (``x.shape[1:-1]``), or an
                integer array or tensor ``[A]`` (one row of spatial_shapes in Deformable DETR). A
                tensor's device is that of the result; its numbers are read, for which a GPU waits.
            mask: ``[..., n]`` or ``[..., n_1 ... n_A]``, bools or the integers 0 and 1: True or 1
                for cells that are present; see `GridCoordinates`.
            dtype, device: as in `sinusoidal`: float16, bfloat16, float32 (default) or float64.

        Returns:
            ``[..., dim]``; for sizes ``[n_1 ... n_A, dim]``, or ``[zero_rows + n_1 ... n_A, dim]``
            with `zero_rows`. Gradients reach floating-point positions.

        Raises:
            ValueError: coordinates do not broadcast; integers could be positions as well as sizes
                or a mask (a tuple of ints for one coordinate; integers ``[A]``, which are sizes or
                one position; integers ``[..., A]`` for a spec with a `grid`, which are a mask or
                positions): the message says what to write for each. Or, with `logarithm`, a
                coordinate has no logarithm (of tensors, only if values can be read: on the CPU,
                while torch does not trace).
            TypeError: a dtype is not supported, or there is none of the three.

        Example:
            >>> import posenc_native as pn
            >>> spec = pn.SinusoidalSpec.preset("positional_encodings", 12)
            >>> spec(sizes=(7,)).shape, spec([7]).shape  # 7 rows; the row at position 7
            ((7, 12), (1, 12))
        """
        arrays, points = points_of(self, positions, sizes, mask, dtype, device)
        filled = self._filled(arrays, points)
        if filled is not None:
            return filled
        tables = [self._table(arrays, points[axis], axis, dtype) for axis in self.axis_order]
        xp, leading = arrays.xp, tables[0].shape[:-1]
        if len(tables) > 1:
            leading = _common_shape(arrays, tables, points)
            tables = [xp.broadcast_to(t, (*leading, t.shape[-1])) for t in tables]
        if self.axis_place != "outer" and len(tables) > 1:
            tables = [self._merged(xp, tables)]
        if self.include_coordinates:
            coordinates = [xp.broadcast_to(points[axis], leading) for axis in self.axis_order]
            tables.insert(0, arrays.held("positions", xp.stack(coordinates, -1)))
        width = sum(table.shape[-1] for table in tables)
        if width < self.dim and self.remainder == "zeros":
            tables.append(_zeros(arrays, tables[0], (*leading, self.dim - width)))
        table = xp.concatenate(tables, -1) if len(tables) > 1 else tables[0]
        if width > self.dim:
            table = table[..., : self.dim]
        if self.zero_position is not None:
            mask = (points[0] != self.zero_position)[..., None]
            table = xp.where(mask, table, _zeros(arrays, table, ()))
        of_sizes = sizes is not None or is_shape(positions, len(self.axis_order))
        if self.zero_rows and of_sizes:
            table = table.reshape(math.prod(leading), table.shape[-1])
            zeros = _zeros(arrays, table, (self.zero_rows, table.shape[-1]))
            table = xp.concatenate([zeros, table], 0)
        return table

    def _filled(self, arrays: Arrays, points: list[Any]) -> Any:
        """The table, with every coordinate written to its columns; None if that does not apply.

        It applies to coordinates of one shape whose columns are evenly spaced, as in NeRF's: a
        merged copy of their tables would take longer than the tables.
        """
        axes, shape = len(points), tuple(points[0].shape)
        if axes == 1 or self.axis_place != "inner" or self.inv_freq is not None:
            return None
        if any(tuple(point.shape) != shape for point in points[1:]):
            return None
        if arrays.is_torch and not late.torch_operations().are_fixed_on_cpu(*points):
            return None
        skipped = axes if self.include_coordinates else 0
        width = skipped + 2 * sum(self.pairs)
        if width != self.dim or self.zero_rows:
            return None
        arguments.check_byte_count(arrays.function, (*shape, width), 8)
        table = arrays.xp.empty((*shape, width), dtype=arrays.dtype)
        for place, axis in enumerate(self.axis_order):
            if skipped:
                table[..., place] = arrays.held("positions", points[axis])
            columns = table[..., skipped + place :: axes]
            self._sinusoidal(points[axis], axis, out=columns)
        return table

    def _table(self, arrays: Arrays, point: Any, axis: int, dtype: Any) -> Any:
        """The table [..., 2P] of one coordinate."""
        if self.inv_freq is None:
            return self._sinusoidal(point, axis, dtype=dtype)
        pairs, scale = self.pairs[axis], self.scale
        scale = scale[axis] if isinstance(scale, tuple) else scale
        inv_freq = arrays.constant([w * scale for w in self.inv_freq])
        cos, sin = rotary_tables(point, inv_freq, dtype=dtype)
        if self.layout == "interleaved":
            return arrays.xp.stack([sin, cos], -1).reshape(*point.shape, 2 * pairs)
        return arrays.xp.concatenate([cos, sin] if self.layout == "cos_sin" else [sin, cos], -1)

    def _sinusoidal(self, point: Any, axis: int, **result: Any) -> Any:
        """The table of one coordinate, whose frequencies follow from base and shift."""
        pairs, base, scale = self.pairs[axis], self.base, self.scale
        return sinusoidal(
            point, 2 * pairs, layout=self.layout,
            base=base[axis] if isinstance(base, tuple) else base,
            scale=scale[axis] if isinstance(scale, tuple) else scale,
            shift=self.shift if pairs > 1 else 0.0, **result,
        )  # fmt: skip

    def _merged(self, xp: Any, tables: list[Any]) -> Any:
        """The merged tables of all coordinates, in which the coordinate does not vary slowest."""
        *leading, width = tables[0].shape
        split = (width // 2, 2) if self.layout == "interleaved" else (2, width // 2)
        split_tables = [table.reshape(*leading, *split) for table in tables]
        merged = xp.stack(split_tables, -2 if self.axis_place == "middle" else -1)
        return merged.reshape(*leading, width * len(tables))


_PLACES = ("outer", "middle", "inner")

_REMAINDERS = ("error", "zeros", "drop", "cut")


def _for_each_axis(
    function: str, argument: str, value: Any, axes: int, check: Callable[..., Of]
) -> Of | tuple[Of, ...]:
    """One number for all coordinates, or a tuple with a number for each coordinate."""
    if not isinstance(value, (tuple, list)):
        return check(function, argument, value)
    if len(value) != axes:
        wrong_value(function, argument, f"a number, or {axes} numbers", list(value))
    return tuple(check(function, argument, x) for x in value)


def _common_shape(arrays: Arrays, tables: list[Any], points: list[Any]) -> Any:
    """The leading axes of all tables."""
    shapes = [tuple(table.shape[:-1]) for table in tables]
    if arrays.seen(points[0]) is not None:
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            got = " and ".join(str(list(shape)) for shape in shapes)
            wrong_value(arrays.function, "positions", "coordinates that broadcast", got)
    return arrays.xp.broadcast_shapes(*shapes)


def _zeros(arrays: Arrays, like: Any, shape: tuple[int, ...]) -> Any:
    return like.new_zeros(shape) if arrays.is_torch else np.zeros(shape, like.dtype)
