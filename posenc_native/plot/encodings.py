"""The first argument of a picture: the table that it stands for, its frequencies, its words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.base import arguments
from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.rotary.rotary import Rotary
from posenc_native.rotary.supports import rotary_in
from posenc_native.sinusoids.spec import SinusoidalSpec
from posenc_native.spectra.frequencies import frequencies

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """The columns of a table that write down one angle.

    Attributes:
        inv_freq: radians a position.
        sine, cosine: columns; None for the one that a narrower table has cut off.
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
        name: what it is, as a title begins.
        parameters: of what it was made, in words.
        width: number of columns.
        columns: what they are, for the name of an axis.
        pairs: the columns by frequency, none of a ready table.
        rows: how many positions a ready table has; None where every position has its row.
        table: positions to float64 ``[n, width]``.
        places: how many positions, to the first of them, where these are not 0, 1, 2 ...
    """

    name: str
    parameters: str
    width: int
    columns: str
    pairs: tuple[Pair, ...]
    rows: int | None
    table: Callable[[npt.NDArray[Any]], FloatArray]
    places: Callable[[int], npt.NDArray[Any]] = np.arange

    def pair_of(self, column: int) -> Pair | None:
        """The pair that a column belongs to; None if it is no sine or cosine."""
        return next((pair for pair in self.pairs if column in (pair.sine, pair.cosine)), None)

    def column_name(self, column: int) -> str:
        """A column for a reader: its number, of a rotary encoding that of its pair."""
        pair = self.pair_of(column)
        if pair is None:
            return f"{column}"
        which = column if self.columns == "dimension" else self.pairs.index(pair)
        return f"{which}, {'sine' if column == pair.sine else 'cosine'}"

    def title(self, *more: str) -> str:
        """What is shown; then the parameters, and more of them."""
        return f"{self.name}\n" + ", ".join(part for part in (self.parameters, *more) if part)


def read_encoding(function: str, encoding: Any) -> Encoding:
    """The argument `encoding` of a picture.

    Raises:
        ValueError: an odd width, a table of other than two axes, a spec of several coordinates.
        TypeError: anything else.
    """
    if arguments.is_count(encoding):
        return _encoding_of_spec(function, SinusoidalSpec(dim=_width(function, encoding)))
    if isinstance(encoding, SinusoidalSpec):
        return _encoding_of_spec(function, encoding)
    rope = rotary_in(encoding)
    if rope is not None:
        return _encoding_of_rotary(function, rope)
    if not (arguments.is_array(encoding) or isinstance(encoding, (list, tuple))):
        expected = "an int (the dim of a sinusoidal table), a SinusoidalSpec, a Rotary or a table"
        wrong_type(function, "encoding", expected, type(encoding).__name__)
    return _encoding_of_table(function, encoding)


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


def read_position(function: str, position: Any, shown: Encoding) -> npt.NDArray[Any]:
    """The argument `position`, a single one, as [1]."""
    found = arguments.as_array(function, "position", _in_memory(position))
    if found.ndim:
        wrong_value(function, "position", "one position", f"shape {list(found.shape)}")
    return read_positions(function, found.reshape(1), shown, "position")


def read_positions(
    function: str, positions: Any, shown: Encoding | None = None, argument: str = "positions"
) -> npt.NDArray[Any]:
    """The argument `positions`, [n]: an int n is 0 .. n-1, of a ready table at most its rows."""
    rows = None if shown is None else shown.rows
    if arguments.is_count(positions):
        count = arguments.size(function, "positions", positions)
        places = np.arange if shown is None else shown.places
        found = places(count if rows is None else min(count, rows))
    else:
        found = arguments.as_positions(function, _in_memory(positions), argument)
        arguments.check_dtype(function, argument, found.dtype, arguments.POSITION_DTYPES)
        if found.ndim != 1:
            wrong_value(function, argument, "an int or shape [n]", f"shape {list(found.shape)}")
    if not len(found):
        wrong_value(function, argument, "at least one position", "none")
    if found.dtype.kind == "f" and not (np.abs(found) < 2.0**63).all():
        wrong_value(function, argument, "finite values of magnitude below 2^63", "others")
    if rows is not None:
        arguments.check_dtype(function, argument, found.dtype, arguments.INTEGER_DTYPES)
        if found.min() < 0 or found.max() >= rows:
            worst = found.min() if found.min() < 0 else found.max()
            wrong_value(function, argument, f"rows of the table, 0 .. {rows - 1}", worst)
    return found


def read_indices(function: str, argument: str, given: Any, count: int) -> list[int]:
    """An argument that chooses some of 0 .. count - 1."""
    if not isinstance(given, Iterable):
        wrong_type(function, argument, "a sequence of ints", type(given).__name__)
    chosen = [arguments.size(function, argument, index) for index in given]
    if not chosen or max(chosen) >= count:
        wrong_value(function, argument, f"some of 0 .. {count - 1}", chosen)
    return chosen


def evenly(count: int, most: int) -> list[int]:
    """Up to so many of 0 .. count - 1, from the first to the last."""
    some = min(most, count)
    return [round(i * (count - 1) / max(some - 1, 1)) for i in range(some)]


def _width(function: str, dim: Any) -> int:
    width = arguments.even_size(function, "encoding", dim)
    if not width:
        wrong_value(function, "encoding", "a dim > 0", width)
    return width


def _encoding_of_spec(function: str, spec: SinusoidalSpec) -> Encoding:
    if len(spec.axis_order) != 1:
        expected = "a spec of one coordinate, or its table as [cells, dim]"
        wrong_value(function, "encoding", expected, f"{len(spec.axis_order)} coordinates")

    def only(value: Any) -> Any:
        return value[0] if isinstance(value, tuple) else value

    (count,) = spec.pairs
    base, scale = only(spec.base), only(spec.scale)
    words = [f"dim {spec.dim}"]
    if spec.inv_freq is not None:
        inv_freq = scale * np.array(spec.inv_freq)
        words.append("frequencies of its own")
    else:
        inv_freq = scale * frequencies(2 * count, base, shift=spec.shift if count > 1 else 0.0)
        words.append(f"base {number(base)}")
    words.append(spec.layout)
    words += [f"shift {number(spec.shift)}"] if spec.shift else []
    words += [f"scale {number(scale)}"] if scale != 1 else []
    words += ["of the logarithm"] if spec.logarithm else []
    first = int(spec.include_coordinates)
    index = np.arange(count)
    if spec.layout == "interleaved":
        sines, cosines = 2 * index, 2 * index + 1
    else:
        sines, cosines = index, index + count
        if spec.layout == "cos_sin":
            sines, cosines = cosines, sines
    pairs = _pairs_of_columns(inv_freq, first + sines, first + cosines, spec.dim)
    width = spec(np.arange(1)).shape[-1] if not spec.logarithm else spec(np.ones(1)).shape[-1]
    grid = spec.grid

    def places(count: int) -> npt.NDArray[Any]:
        return np.arange(count) if grid is None else np.asarray(grid.of_shape((count,))[0])

    return Encoding(
        "Sinusoidal table", ", ".join(words), width, "dimension", pairs, None,
        lambda positions: np.asarray(spec(positions), np.float64),
        places,
    )  # fmt: skip


def _encoding_of_rotary(function: str, rope: Rotary) -> Encoding:
    count = len(rope.inv_freq)
    if not count:
        wrong_value(function, "encoding", "a Rotary that rotates", rope)
    index = np.arange(count)

    def table(positions: npt.NDArray[Any]) -> FloatArray:
        tables = rope.tables(same_on_all_axes(rope, positions))
        return np.concatenate(tables, -1).astype(np.float64)

    words = rotary_words(rope) + (
        ", equal positions on all axes" if rope.axis_map is not None else ""
    )
    columns = f"cosine of pair 0 .. {count - 1}, then sine"
    pairs = _pairs_of_columns(rope.inv_freq, count + index, index, 2 * count)
    return Encoding("Rotary: cosines and sines", words, 2 * count, columns, pairs, None, table)


def _encoding_of_table(function: str, given: Any) -> Encoding:
    values = read_numbers(function, "encoding", given)
    if values.ndim != 2 or 0 in values.shape:
        wrong_value(function, "encoding", "a table [positions, dim]", f"shape {list(values.shape)}")
    rows, width = values.shape
    words = f"{rows:,} positions × {width} dims"
    return Encoding(
        "Table", words, width, "dimension", (), rows, lambda positions: values[positions]
    )


def _pairs_of_columns(
    inv_freq: FloatArray, sines: IntArray, cosines: IntArray, width: int
) -> tuple[Pair, ...]:
    def there(column: int) -> int | None:
        return column if column < width else None

    columns = zip(inv_freq.tolist(), sines.tolist(), cosines.tolist(), strict=True)
    return tuple(Pair(w, there(sine), there(cosine)) for w, sine, cosine in columns)


def same_on_all_axes(rope: Rotary, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Positions [n] as a Rotary takes them: of several axes each has the same, as for text."""
    if rope.axis_map is None:
        return positions
    return np.stack([positions] * (int(rope.axis_map.max(initial=0)) + 1))


def rotary_words(rope: Rotary) -> str:
    """The parameters of a Rotary that a reader of a picture wants to know."""
    words = [f"head_dim {rope.head_dim}"]
    words += [f"of which {rope.rotary_dim} rotated"] if rope.rotary_dim != rope.head_dim else []
    own = "inv_freq" in rope._given
    words.append("frequencies of its own" if own else f"base {number(base_of(rope))}")
    words += [f"pairing {rope.pairing}"]
    words += scaling_words(rope.scaling)
    words += [f"cos and sin × {number(rope.scale)}"] if rope.scale != 1 else []
    return ", ".join(words)


def base_of(rope: Rotary) -> float:
    """The base of the frequencies, which a scaling may bring along."""
    return float((rope.scaling or {}).get("rope_theta") or rope.base)


def scaling_words(scaling: Mapping[str, Any] | None) -> list[str]:
    """A scaling by its type and factor."""
    if not scaling:
        return []
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    if rope_type == "default":
        return []
    keys = ("factor", "alpha")
    shown = [f"{key} {number(scaling[key])}" for key in keys if scaling.get(key) is not None]
    length = scaling.get("seq_len")
    shown += [] if length is None else [f"for a sequence of {number(length)}"]
    return [" ".join((f"scaling {rope_type}", *shown))]


def number(value: float) -> str:
    """A number for people: 10,000 and 0.0625, four digits."""
    if math.isinf(value):
        return "∞"
    if value == int(value) or abs(value) >= 1000:
        if abs(value) < 1e7:
            return f"{value:,.0f}"
        return f"{value / 1e6:.3g} million" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.4g}"


def position_words(positions: npt.NDArray[Any]) -> str:
    """Which positions are shown."""
    first, last = position_name(positions[0]), position_name(positions[-1])
    if len(positions) == 1:
        return f"position {first}"
    between = ".." if is_range(positions) else "…"
    return f"positions {first} {between} {last}"


def position_name(position: Any) -> str:
    """A position for people: whole ones with all their digits."""
    return f"{position:,}" if isinstance(position, np.integer) else number(float(position))


def is_range(positions: npt.NDArray[Any]) -> bool:
    """Whether positions are neighbours, in order; from 2^63 - 1 to -2^63 is no step."""
    return bool(positions[0] <= positions[-1] and (np.diff(positions) == 1).all())


def has_scale(positions: npt.NDArray[Any]) -> bool:
    """Whether an axis can be a scale of them: its numbers are float64, and need some in reserve."""
    first, last = float(positions[0]), float(positions[-1])
    return abs(last - first) + 1 > 2.0**-40 * max(abs(first), abs(last))
