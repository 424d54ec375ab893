"""The first arguments of a picture: the table that it stands for, its positions, their words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.checkpoints.explanations.words import number as number_in_full
from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.frequencies.frequencies import frequencies
from posenc_native.encodings.rotary.rotary import Rotary, rotary_in
from posenc_native.encodings.sinusoids.spec import SinusoidalSpec

FloatArray = npt.NDArray[np.float64]
Positions = npt.NDArray[Any]

# The colormap of shades: white at 0, blue below, red above. Its lightness falls alike on both sides
# (to within 5 of 100 in CIELAB), so that numbers of the same size weigh the same, and red-green
# blindness leaves blue and red apart. In gray it shows the size of a number and not its sign.
DIVERGING = "RdBu_r"


@dataclass(frozen=True)
class Pair:
    """The columns of a table that write down one angle.

    Attributes:
        inv_freq: radians a position.
        sine, cosine: columns; None for a column that a narrower table has cut off.
    """

    inv_freq: float
    sine: int | None
    cosine: int | None

    @property
    def wavelength(self) -> float:
        """Positions a turn; infinite for a pair that stands still."""
        return 2 * math.pi / abs(self.inv_freq) if self.inv_freq else math.inf


@dataclass(frozen=True)
class Encoding:
    """A table as pictures need it.

    Attributes:
        name: a noun, as a title begins.
        parameters: of what it was made, in words.
        width: number of columns.
        columns: the name of their axis.
        pairs: the columns by frequency, none of a ready table.
        rows: how many positions a ready table has; None where every position has its row.
        table: positions to float64 ``[n, width]``.
        places: how many positions, to the first of them, where these are not 0, 1, 2 ...
        logarithm: whether angles follow the logarithm of a position.
    """

    name: str
    parameters: str
    width: int
    columns: str
    pairs: tuple[Pair, ...]
    rows: int | None
    table: Callable[[Positions], FloatArray]
    places: Callable[[int], Positions] = np.arange
    logarithm: bool = False

    @property
    def whole(self) -> bool:
        """Whether the first positions are whole numbers."""
        return self.places(2).dtype.kind in "iu"

    def coordinates(self, positions: Positions) -> FloatArray:
        """The numbers that frequencies multiply: positions or their logarithms."""
        numbers = np.asarray(positions, np.float64)
        return np.log(numbers) if self.logarithm else numbers

    def pair_of(self, column: int) -> Pair | None:
        """The pair that a column belongs to; None if it is no sine or cosine."""
        return next((pair for pair in self.pairs if column in (pair.sine, pair.cosine)), None)

    def column_name(self, column: int) -> str:
        """A column for a reader: its number, of a rotary encoding that of its pair."""
        pair = self.pair_of(column)
        if pair is None:
            return f"{column}"
        index = column if self.columns == "dimension" else self.pairs.index(pair)
        return f"{index}, {'sine' if column == pair.sine else 'cosine'}"

    def title(self, *more: str) -> str:
        """The name on a line; then the parameters, and more of them."""
        return f"{self.name}\n{_listed(self.parameters, *more)}"


def read_encoding(function: str, encoding: Any) -> Encoding:
    """The argument `encoding` of a picture.

    Raises:
        ValueError: an odd width, a table of other than two axes, a spec of several coordinates.
        TypeError: anything else.
    """
    if arguments.is_count(encoding):
        width = arguments.even_size(function, "encoding", encoding)
        if not width:
            wrong_value(function, "encoding", "a dim > 0", width)
        encoding = SinusoidalSpec(dim=width)
    if isinstance(encoding, SinusoidalSpec):
        return _encoding_of_spec(function, encoding)
    rope = rotary_in(encoding)
    if rope is not None:
        return _encoding_of_rotary(function, rope)
    if not (arguments.is_array(encoding) or isinstance(encoding, (list, tuple))):
        expected = "an int (the dim of a sinusoidal table), a SinusoidalSpec, a Rotary or a table"
        wrong_type(function, "encoding", expected, type(encoding).__name__)
    values = read_numbers(function, "encoding", encoding)
    if values.ndim != 2 or 0 in values.shape:
        wrong_value(function, "encoding", "a table [positions, dim]", f"shape {list(values.shape)}")
    rows, width = values.shape
    words = f"{rows:,} positions × {width} dims"
    return Encoding("Table", words, width, "dimension", (), rows, lambda indices: values[indices])


def read_numbers(function: str, argument: str, value: Any) -> FloatArray:
    """An array or tensor of real numbers, of any dtype and device, as float64 in main memory."""
    if arguments.is_tensor(value) and not value.is_complex():
        value = value.double()  # NumPy has no bfloat16
    return arguments.as_numbers(function, argument, _in_memory(value))


def _in_memory(value: Any) -> Any:
    """A tensor of any device, with or without a gradient, as NumPy can read it."""
    if not arguments.is_tensor(value):
        return value
    value = value.detach()
    return value if value.is_meta else value.cpu()


def read_position(function: str, position: Any, shown: Encoding) -> Positions:
    """The argument `position`, a single position, as [1]."""
    place = arguments.as_array(function, "position", _in_memory(position))
    if place.ndim:
        wrong_value(function, "position", "one position", f"shape {list(place.shape)}")
    return read_positions(function, place.reshape(1), shown, "position")


def read_positions(
    function: str, positions: Any, shown: Encoding | None = None, argument: str = "positions"
) -> Positions:
    """The argument `positions`, [n]: an int n is 0 .. n-1, of a ready table at most its rows."""
    rows = None if shown is None else shown.rows
    if arguments.is_count(positions):
        count = arguments.size(function, "positions", positions)
        places = np.arange if shown is None else shown.places
        array = places(count if rows is None else min(count, rows))
    else:
        array = arguments.as_positions(function, _in_memory(positions), argument)
        arguments.check_dtype(function, argument, array.dtype, arguments.POSITION_DTYPES)
        if array.ndim != 1:
            wrong_value(function, argument, "an int or shape [n]", f"shape {list(array.shape)}")
    if not len(array):
        wrong_value(function, argument, "at least one position", "none")
    if array.dtype.kind == "f" and not (np.abs(array) < 2.0**63).all():
        wrong_value(function, argument, "finite values of magnitude below 2^63", "others")
    if rows is not None:
        arguments.check_dtype(function, argument, array.dtype, arguments.INTEGER_DTYPES)
        if array.min() < 0 or array.max() >= rows:
            worst = array.min() if array.min() < 0 else array.max()
            wrong_value(function, argument, f"rows of the table, 0 .. {rows - 1}", worst)
    return array


def read_indices(function: str, argument: str, indices: Any, count: int) -> list[int]:
    """An argument that chooses some of 0 .. count - 1."""
    if not isinstance(indices, Iterable):
        wrong_type(function, argument, "a sequence of ints", type(indices).__name__)
    chosen = [arguments.size(function, argument, index) for index in indices]
    if not chosen or max(chosen) >= count:
        wrong_value(function, argument, f"some of 0 .. {count - 1}", chosen)
    return chosen


def evenly(count: int, most: int) -> list[int]:
    """Up to so many of 0 .. count - 1, from the first to the last."""
    total = min(most, count)
    return [round(i * (count - 1) / max(total - 1, 1)) for i in range(total)]


def _encoding_of_spec(function: str, spec: SinusoidalSpec) -> Encoding:
    if len(spec.axis_order) != 1:
        expected = "a spec of one coordinate, or its table as [cells, dim]"
        wrong_value(function, "encoding", expected, f"{len(spec.axis_order)} coordinates")
    (count,), grid = spec.pairs, spec.grid
    base, scale = (
        option[0] if isinstance(option, tuple) else option for option in (spec.base, spec.scale)
    )
    if spec.inv_freq is not None:
        inv_freq, made = np.array(spec.inv_freq), "frequencies of its own"
    else:
        inv_freq = frequencies(2 * count, base, shift=spec.shift if count > 1 else 0.0)
        made = f"base {number(base)}"
    words = _listed(
        f"dim {spec.dim}", made, spec.layout, spec.shift and f"shift {number(spec.shift)}",
        scale != 1 and f"scale {number(scale)}", spec.logarithm and "of the logarithm",
    )  # fmt: skip
    columns = np.arange(2 * count) + spec.include_coordinates
    sides = columns.reshape(-1, 2).T if spec.layout == "interleaved" else columns.reshape(2, -1)
    pairs = _pairs(scale * inv_freq, sides[::-1] if spec.layout == "cos_sin" else sides, spec.dim)
    return Encoding(
        "Sinusoidal table", words, spec(np.ones(1)).shape[-1], "dimension", pairs, None,
        lambda positions: np.asarray(spec(positions), np.float64),
        np.arange if grid is None else lambda count: np.asarray(grid.of_shape((count,))[0]),
        spec.logarithm,
    )  # fmt: skip


def _encoding_of_rotary(function: str, rope: Rotary) -> Encoding:
    count = len(rope.inv_freq)
    if not count:
        wrong_value(function, "encoding", "a Rotary that rotates", rope)

    def table(positions: Positions) -> FloatArray:
        tables = rope.tables(same_on_all_axes(rope, positions))
        return np.concatenate(tables, -1).astype(np.float64)

    axes = rope.axis_map is not None and "equal positions on all axes"
    return Encoding(
        "Rotary: cosines and sines", _listed(rotary_words(rope), axes), 2 * count,
        f"cosine of pair 0 .. {count - 1}, then sine",
        _pairs(rope.inv_freq, np.arange(2 * count).reshape(2, -1)[::-1], 2 * count), None, table,
    )  # fmt: skip


def _pairs(inv_freq: FloatArray, sides: npt.NDArray[Any], width: int) -> tuple[Pair, ...]:
    """Pairs of the columns of sines and those of cosines, as far as a table of this width goes."""
    columns = ([c if c < width else None for c in side] for side in sides.tolist())
    return tuple(Pair(*fields) for fields in zip(inv_freq.tolist(), *columns, strict=True))


def same_on_all_axes(rope: Rotary, positions: Positions) -> Positions:
    """Positions [n] as a Rotary takes them: of several axes each has the same, as for text."""
    if rope.axis_map is None:
        return positions
    return np.stack([positions] * (int(rope.axis_map.max(initial=0)) + 1))


def _listed(*words: Any) -> str:
    """The words that there are."""
    return ", ".join(filter(None, words))


def rotary_words(rope: Rotary) -> str:
    """The parameters of a Rotary that a reader of a picture wants to know."""
    scaling = rope.scaling or {}
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    shown = [f"scaling {rope_type}"]
    for key, words in (("factor", "factor"), ("alpha", "alpha"), ("seq_len", "for a sequence of")):
        if scaling.get(key) is not None:
            shown.append(f"{words} {number(scaling[key])}")
    return _listed(
        f"head_dim {rope.head_dim}",
        rope.rotary_dim != rope.head_dim and f"of which {rope.rotary_dim} rotated",
        "frequencies of its own" if "inv_freq" in rope._given else f"base {number(rope.base)}",
        f"pairing {rope.pairing}",
        rope_type != "default" and " ".join(shown),
        rope.scale != 1 and f"cos and sin × {number(rope.scale)}",
    )


def number(value: float) -> str:
    """As the number of `explain`, but short enough for a picture if it is large."""
    if math.isinf(value):
        return "∞"
    if abs(value) < 1e7:
        return number_in_full(value)
    return f"{value / 1e6:.3g} million" if abs(value) < 1e9 else f"{value:.3g}"


def position_words(positions: Positions) -> str:
    """The positions that are shown, in words."""
    first, last = position_name(positions[0]), position_name(positions[-1])
    if len(positions) == 1:
        return f"position {first}"
    return f"positions {first} {'..' if is_range(positions) else '…'} {last}"


def position_name(position: Any) -> str:
    """A position for people: whole numbers with all their digits."""
    return f"{position:,}" if isinstance(position, np.integer) else number(float(position))


def is_range(positions: Positions) -> bool:
    """Whether positions are neighbors, in order; from 2^63 - 1 to -2^63 is no step."""
    return bool(positions[0] <= positions[-1] and (np.diff(positions) == 1).all())


def has_scale(positions: Positions) -> bool:
    """Whether an axis can be a scale of them: its numbers are float64, and need some in reserve."""
    first, last = float(positions[0]), float(positions[-1])
    return abs(last - first) + 1 > 2.0**-40 * max(abs(first), abs(last))
