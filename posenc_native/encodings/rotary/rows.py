"""Frequencies by row: each row of the batch rotates by frequencies of its own.

Servers batch requests with different scalings: YaRN for some, dynamic NTK and long rope by length.

    inv_freq [b, P] ──► phases [b, s, P] (64-bit turns, exact) ──► tables [b, s, P] ──► one rotation

The bits are those of a call for each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_value
from posenc_native.core.calls.descriptions import DESCRIBED
from posenc_native.core.calls.pairs import consecutive, is_pair
from posenc_native.core.calls.rotation import Rotation
from posenc_native.core.calls.tables import Tables
from posenc_native.core.frequencies.frequencies import TWO_PI
from posenc_native.encodings.positions.rows import checked_rows
from posenc_native.engines import backend, late
from posenc_native.engines.arrays import Arrays
from posenc_native.engines.plain.numbers import cast, followed
from posenc_native.engines.plain.phases import check_points, frequency_turns, moving, phases_at

__all__ = ["AXES", "FrequencyRows", "with_axes"]

# Letters of the axes of frequencies: p pairs, h heads, a position axes, b rows of the batch.
AXES = {"p": "[P]", "hp": "[H, P]", "ahp": "[A, H, P]", "bp": "[b, P]"}
_UNIT = float(TWO_PI / 2**64)  # radians


def with_axes(function: str, inv_freq: Any, axes: str) -> Any:
    """Frequencies whose axes the caller has named, for the place of frequencies in a call."""
    arguments.check_name(function, "inv_freq_axes", axes, tuple(AXES))
    if hasattr(type(inv_freq), "__rotary__") or isinstance(inv_freq, Tables):
        got = type(inv_freq).__name__
        wrong_value(function, "inv_freq_axes", f"None beside a {got}, which has its axes", axes)
    if not is_tensor(inv_freq):
        inv_freq = arguments.as_array(function, "inv_freq", inv_freq)
    arguments.check_dtype(function, "inv_freq", inv_freq.dtype, arguments.FREQUENCY_DTYPES)
    if inv_freq.ndim != len(axes):
        wrong_value(function, "inv_freq", f"shape {AXES[axes]}", list(inv_freq.shape))
    return FrequencyRows(inv_freq) if axes == "bp" else inv_freq


class FrequencyRows:
    """Frequencies ``[b, P]`` in a call that has all other options."""

    # Options that a `Rotary` would have.
    pairing: Any = None
    rotary_start: Any = None
    axis_map: Any = None
    scale: Any = None
    layout: Any = None

    def __init__(self, inv_freq: Any) -> None:
        self.inv_freq = inv_freq

    def __rotary__(self) -> Any:
        return self

    def rotation_of_rows(self, function: str, names: Any, inputs: Any, rotation: Any) -> Any:
        """The rotation of a call with tables in place of frequencies and positions."""
        rotation = self._with_own(function, rotation)
        layout = rotation.layout or self.layout or "bhsd"
        tables = [
            self._tables_for(function, name, x, rotation, layout, i)
            for i, (name, x) in enumerate(zip(names, inputs, strict=False))
        ]
        there = [table for table in tables if table is not None]
        cos, sin = there[0]
        if is_pair(rotation.positions) and len(there) == 2:
            cos, sin = (there[0][0], there[1][0]), (there[0][1], there[1][1])
        return rotation._replace(
            positions=None, inv_freq=Tables(cos, sin), axis_map=None, scale=1.0, layout=layout
        )

    def _tables_for(
        self, function: str, name: str, x: Any, rotation: Any, layout: str, i: int
    ) -> tuple[Any, Any] | None:
        """Cosines and sines for the tokens of x; None without x, or if another input has them."""
        if x is None or (i > 0 and not is_pair(rotation.positions)):
            return None
        if "b" not in layout or "s" not in layout or len(layout) != len(x.shape):
            expected = f"a layout with b and s for {name}, for frequencies of each row of the batch"
            hint = "for packed tokens write Tables(*rows.tables(positions, starts=starts))"
            wrong_value(function, "layout", expected, repr(layout), hint)
        tokens = x.shape[layout.index("s")]
        positions = rotation.positions
        if is_pair(positions):
            positions = positions[i]
        if positions is None or arguments.is_count(positions):
            positions = consecutive(function, positions or 0, tokens, x)
        dtype = "float64" if arguments.dtype_name(x.dtype) == "float64" else "float32"
        rows = x.shape[layout.index("b")]
        return self._tables(function, positions, x, rows, tokens, rotation.axis_map,
                            rotation.scale, dtype)  # fmt: skip

    def tables(
        self, positions: Any, *, axis_map: Any = None, scale: Any = None, dtype: Any = None,
        starts: Any = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Cosines and sines ``[b, s, P]`` for positions ``[s]``, ``[1, s]`` or ``[b, s]``.

        Args:
            positions: or ``[t]`` of packed tokens, with starts; the tables are then ``[t, P]``.
            axis_map, scale, dtype: as in `rotary_tables`.
            starts: ``[b + 1]``, the first token of each row, and the number of tokens.
        """
        function = "rotary_tables"
        rotation = self._with_own(function, Rotation(None, None, None, None, None, axis_map, scale))
        if is_tensor(self.inv_freq) and not is_tensor(positions):
            positions = Arrays(function, x=self.inv_freq).positions("positions", positions)
        elif not is_tensor(positions):
            positions = Arrays(function, dtype).positions("positions", positions)
        name = "float32" if dtype is None else arguments.dtype_name(dtype)
        options = rotation.axis_map, rotation.scale, name
        count, tokens = len(self.inv_freq), positions.shape[-1]
        packed = checked_rows(Arrays(function, x=positions), starts, tokens)
        if packed is None:
            return self._tables(function, positions, positions, count, tokens, *options)
        if packed.count != count:
            wrong_value(function, "starts", f"shape [b + 1] = [{count + 1}]", packed.count + 1)
        row = packed.of_tokens
        tables = self._tables(function, positions[..., None], positions, tokens, 1, *options, row)
        return tables[0][:, 0], tables[1][:, 0]

    def _with_own(self, function: str, rotation: Any) -> Any:
        """The options of a call with those that come with the frequencies."""
        for name in DESCRIBED:
            own, other = getattr(self, name), getattr(rotation, name)
            if own is None:
                continue
            if other is not None:
                expected = f"no {name} beside Rotary.rows, which have it"
                wrong_value(function, name, expected, repr(other))
            rotation = rotation._replace(**{name: own})
        return rotation

    def _tables(
        self, function: str, positions: Any, like: Any, rows: Any, tokens: Any, axis_map: Any,
        scale: Any, dtype: str, row: Any = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Tables ``[rows, tokens, P]``; row: which row of the frequencies each of the rows has."""
        arrays = Arrays(function, x=like).of_parts()  # tables of DTensors are whole
        inv_freq = self._beside(arrays)
        turns = self._turns_beside(arrays, inv_freq)
        factors = None
        if scale is not None:
            of_rows = [scale] if isinstance(scale, float | int) else list(scale)
            factors = arrays.constant(of_rows)[:, None, None]
        if row is not None:
            inv_freq, turns = inv_freq[row], turns[:, row]
            factors = factors if factors is None or len(factors) == 1 else factors[row]
        if len(inv_freq) != rows:
            expected = f"[b, P] with a row for each of the {rows} rows of the batch"
            wrong_value(function, "inv_freq", expected, f"shape {list(inv_freq.shape)}")
        points = _points(arrays, positions, axis_map, rows, tokens)
        phases = phases_at(points, turns[0][:, None], turns[1][:, None])
        # Phases as positions, one for each pair, at a frequency of one unit.
        pairs = inv_freq.shape[-1]
        of_dtype = getattr(arrays.xp, dtype) if arrays.is_torch else np.dtype(dtype)
        engine = late.torch_operations() if arrays.is_torch else backend.implementation
        cos, sin = engine.rotary_tables(
            arrays.xp.moveaxis(phases, -1, 0), arrays.constant([_UNIT] * pairs),
            arrays.arange(pairs), 1.0, of_dtype,
        )  # fmt: skip
        if followed(inv_freq) or followed(points):
            angle = points.to(inv_freq.dtype) * inv_freq[:, None]
            cos, sin = moving(cos, sin, angle.to(cos.dtype))
        if factors is None:
            return cos, sin
        factors = cast(factors, cos.dtype)
        return cos * factors, sin * factors

    def _beside(self, arrays: Arrays) -> Any:
        """Frequencies beside x: arrays are moved to the device of a tensor."""
        if not arrays.is_torch or is_tensor(self.inv_freq):
            return self.inv_freq
        return arrays.xp.from_numpy(np.array(self.inv_freq)).to(arrays.device)

    def _turns_beside(self, arrays: Arrays, inv_freq: Any) -> Any:
        """The fractions and the whole turns of frequencies, [2, b, P]."""
        if not arrays.is_torch:
            return frequency_turns(arrays.function, inv_freq)
        from posenc_native.engines.torch import turns

        return turns.frequency_turns(arrays.function, inv_freq).to(arrays.device)


def _points(arrays: Arrays, positions: Any, axis_map: Any, rows: Any, tokens: Any) -> Any:
    """Positions that broadcast with ``[b, s, P]``."""
    positions = arrays.positions("positions", positions)
    of_tokens = tuple(positions.shape[1:] if axis_map is not None else positions.shape)
    if not arguments.one_of(of_tokens, [(tokens,), (1, tokens), (rows, tokens)]):
        before = "A, " if axis_map is not None else ""
        names = f"shape [{before}s], [{before}1, s] or [{before}b, s]"
        expected = f"{names} with b = {rows}, s = {tokens}"
        wrong_value(arrays.function, "positions", expected, list(positions.shape))
    if axis_map is None:
        points = positions[..., None]
    else:
        axis_map = arrays.integers("axis_map", axis_map, arguments.INTEGER_DTYPES)
        points = arrays.xp.moveaxis(positions, 0, -1)[..., axis_map]
    check_points(arrays.function, positions, axis_map)
    return points if points.ndim == 3 else points[None]
