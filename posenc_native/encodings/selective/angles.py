"""The data of a call of `selective_rotary_qk`: checked arguments, phases, and rotated inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.errors import blame, fault_of
from posenc_native.core.calls.tables import Tables
from posenc_native.core.calls.views import RotaryView, check_same_tokens, rotary_view
from posenc_native.encodings.positions.rows import Rows, checked_rows
from posenc_native.encodings.rotary.apply import apply_rotary_qk
from posenc_native.engines.arrays import Arrays

from .phases import (
    LARGEST,
    check_steps,
    checked_state,
    phase_tables,
    phases_and_state,
    sums_of_numbers,
)

if TYPE_CHECKING:
    from .across import Across

__all__ = ["FUNCTION", "Angles", "Selective", "turned"]

FUNCTION = "selective_rotary_qk"


class Selective(NamedTuple):
    """The options of a call."""

    layout: str
    pairing: Any
    rotary_start: int
    scale: float
    inverse: bool
    out_pairing: Any


class Angles:
    """The phases of a call and the inputs that they rotate, checked, in the order of tables.

    Args:
        q, k: from one library; one of them may be None.
        steps, state, starts: as the caller passed them.
        options: of the rotation.
        across: the data that the tokens of a rank need from other ranks; `starts` are its pieces.
    """

    def __init__(
        self,
        q: Any,
        k: Any,
        steps: Any,
        state: Any,
        starts: Any,
        options: Selective,
        across: Across | None = None,
    ) -> None:
        if q is None and k is None:
            wrong_type(FUNCTION, "q", "q, k or both", "None for both")
        named = {name: x for name, x in (("q", q), ("k", k)) if x is not None}
        inputs = {**named, "steps": steps, "state": state, "starts": starts}
        arrays = Arrays(FUNCTION, None, None, **inputs)
        self.arrays: Arrays = arrays
        self.across: Across | None = across
        for name, x in named.items():
            if arrays.is_torch and not arguments.is_tensor(x):
                wrong_type(FUNCTION, name, "a tensor, like the others", type(x).__name__)
            arguments.check_dtype(FUNCTION, name, x.dtype, arguments.FLOAT_DTYPES)
        self.options: Selective = options
        self.steps: Any = arrays.floats("steps", steps)
        self.views: dict[str, RotaryView] = self._views(named)
        first = next(iter(self.views.values()))
        letters = first.layout
        batched = "b" in letters
        self.by_head: bool = "h" in letters
        self._check_shape(letters, first)
        order = [letters.index(letter) for letter in "bhst" if letter in letters]
        self.order: tuple[int, ...] = (*order, len(letters) - 1)
        if starts is not None and batched and across is None:
            hint = 'write packed rows as "thd"'
            wrong_value(FUNCTION, "starts", f"None with axis b in {letters!r}", "starts", hint)
        self.rows: Rows | None = checked_rows(arrays, starts, first.tokens)
        inner = [self.steps.shape[i] for i in order[:-1]]
        axes = ", ".join("bh"[not batched : 1 + self.by_head])
        if self.rows is not None:
            inner, axes = [self.rows.count, *inner], f"rows, {axes}" if axes else "rows"
        shape = [*inner, self.steps.shape[-1]]
        self.state: Any = checked_state(arrays, state, shape, f"{axes}, P" if axes else "P")
        self.real: str = "float64" if "float64" in {_name(x) for x in named.values()} else "float32"

    def _views(self, named: dict[str, Any]) -> dict[str, RotaryView]:
        o = self.options
        if self.steps.ndim == 0:
            wrong_value(FUNCTION, "steps", "the axes of q, with P in place of d", "shape []")
        views = {
            name: rotary_view(
                FUNCTION, tuple(x.shape), o.layout, o.pairing, o.rotary_start,
                self.steps.shape[-1], argument=name, angles="steps", out_pairing=o.out_pairing,
            )
            for name, x in named.items()
        }  # fmt: skip
        if "g" in o.layout:
            wrong_value(FUNCTION, "layout", "letters of b, s, h, t and d", repr(o.layout))
        if len(views) == 2:
            check_same_tokens(FUNCTION, views["q"], views["k"])
        return views

    def _check_shape(self, letters: str, view: RotaryView) -> None:
        """ValueError unless steps have the axes of q, with P for d, and heads that divide those."""
        sizes = list(self.steps.shape)
        heads = [operand.heads for operand in self.views.values()]
        wanted = [*view.shape[:-1], *sizes[-1:]]
        if "h" in letters and len(sizes) == len(letters):
            own = sizes[letters.index("h")]
            if any(n % own if own else n for n in heads):
                expected = f"heads that divide those of q and k, {' and '.join(map(str, heads))}"
                wrong_value(FUNCTION, "steps", expected, f"shape {sizes}")
            wanted[letters.index("h")] = own
        if sizes != wanted:
            axes = ", ".join(letters[:-1]) + ", P"
            wrong_value(FUNCTION, "steps", f"shape [{axes}] = {wanted}", f"shape {sizes}")

    def in_order(self, values: Any) -> Any:
        """Values with the axes of steps, as [b, h, s, P] without axes that the layout lacks."""
        if isinstance(values, np.ndarray):
            return values.transpose(self.order)
        return values.permute(self.order)

    def tables(self) -> tuple[Any, Any, Any]:
        """cos and sin in the order of tables, and the state after the last token."""
        arrays = self.arrays
        seen = check_steps(arrays, self.steps)
        steps = self.in_order(self.steps)
        axis = steps.ndim - 2
        phases, state = phases_and_state(arrays, steps, self.state, self.rows, axis)
        cos, sin = phase_tables(phases, getattr(arrays.xp, self.real))
        if not seen:
            # The steps are unchecked: after a step that is not a valid angle, no angle is valid.
            bad = arrays.whole(~(steps.detach().abs() <= LARGEST))
            wrong = sums_of_numbers(arrays, bad, self.rows, axis) > 0
            cos, sin = (table.masked_fill(wrong, float("nan")) for table in (cos, sin))
        return cos, sin, state

    def of_heads(self, table: Any, view: RotaryView) -> Any:
        """A table for the heads of x; without the axis of heads if all share one table."""
        if not self.by_head:
            return table
        heads = table.shape[-3]
        if heads == view.heads:
            return table
        if heads == 1:
            return table[..., 0, :, :]
        times = view.heads // heads
        if isinstance(table, np.ndarray):
            return table.repeat(times, axis=-3)
        return table.repeat_interleave(times, dim=-3)


def _name(x: Any) -> str:
    return arguments.dtype_name(x.dtype)


def turned(
    q: Any, k: Any, angles: Angles, cos: Any, sin: Any, to: dict[str, Any]
) -> tuple[Any, Any]:
    """q and k rotated by the tables of `Angles`."""
    o = angles.options
    scale = arguments.factor(FUNCTION, "scale", o.scale, (k if q is None else q).dtype)
    if scale != 1.0:
        cos, sin = cos * scale, sin * scale
    own = [[angles.of_heads(t, view) for t in (cos, sin)] for view in angles.views.values()]
    share_tables = len(own) == 1 or own[0][0].shape == own[1][0].shape
    tables = own[0] if share_tables else zip(*own, strict=True)
    try:
        return apply_rotary_qk(
            q, k, None, Tables(*tables), layout=o.layout, pairing=o.pairing,
            rotary_start=o.rotary_start, inverse=o.inverse, out_pairing=o.out_pairing, **to,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        fault = fault_of(error)
        if fault is not None:
            blame(error, function=FUNCTION)
        raise
