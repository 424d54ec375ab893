"""Data-dependent phases with Python integers, and rotations by them."""

from __future__ import annotations

import decimal
import itertools
from decimal import Decimal
from typing import Any

import numpy as np

from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.rotation import Rotation
from posenc_native.core.calls.tables import Tables
from posenc_native.core.frequencies.frequencies import EXACT, TWO_PI
from posenc_native.engines.plain.numbers import round_once
from posenc_native.engines.plain.phases import TURN, cos_sin

from .checks import Array, To, check_array, check_float_array, check_outputs
from .rotary import apply_rotary

LARGEST = 2.0**31  # radians of a step


def accumulated_phases(steps: Array, state: Array | None) -> Array:
    """Sums of steps [..., s, P] along s, in turns times 2^64, starting from a state [..., P]."""
    check_float_array("accumulated_phases", "steps", steps)
    with decimal.localcontext(EXACT):
        turns = [
            int((Decimal(float(step)) * TURN / TWO_PI).to_integral_value()) % TURN
            for step in steps.ravel()
        ]
    wrapped = np.array(turns, np.uint64).view(np.int64).reshape(steps.shape)
    sums: Array = np.cumsum(wrapped, axis=-2, dtype=np.int64)
    return sums if state is None else sums + state[..., None, :]


def phase_tables(phases: Array, dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
    """Cosines and sines of phases."""
    check_array("phase_tables", "phases", phases, ("int64",))
    cos, sin = cos_sin(phases, np.float64)
    return round_once(cos, dtype), round_once(sin, dtype)


def selective_rotary_qk(
    q: Array | None,
    k: Array | None,
    steps: Array,
    state: Array | None,
    starts: Array | None,
    layout: str,
    pairing: Any,
    rotary_start: int,
    scale: float,
    inverse: bool,
    out_pairing: Any,
    to: bool | tuple[Array | None, Array | None],
) -> tuple[Array | None, Array | None, Array]:
    """q and k rotated by sums of steps, and the states after the tokens; `to`: outputs."""
    function = "selective_rotary_qk"
    if not (np.abs(steps.astype(np.float64)) <= LARGEST).all():
        wrong_value(function, "steps", "finite radians of at most 2^31", "larger ones or NaN")
    inputs = {name: x for name, x in (("q", q), ("k", k)) if x is not None}
    places: To = to
    if isinstance(to, tuple):
        places = tuple(out for out, x in zip(to, (q, k), strict=True) if x is not None)
    outs = list(check_outputs(function, inputs, places, [steps, state, starts], len(inputs)))
    order = [layout.index(letter) for letter in "bhst" if letter in layout] + [steps.ndim - 1]
    laid = steps.transpose(order)
    tokens = laid.shape[-2]
    ends = [0, tokens] if starts is None else starts.tolist()
    phases, after = np.empty(laid.shape, np.int64), []
    for row, (first, last) in enumerate(itertools.pairwise(ends)):
        before = state if state is None or starts is None else state[row]
        sums = accumulated_phases(laid[..., first:last, :], before)
        phases[..., first:last, :] = sums
        if last > first:
            after.append(sums[..., -1, :])
        else:
            begun = np.zeros((*laid.shape[:-2], laid.shape[-1]), np.int64)
            after.append(begun if before is None else begun + before)
    cos, sin = (table * scale for table in cos_sin(phases, np.float64))
    results = [
        None if x is None else _rotated(x, cos, sin, layout, pairing, rotary_start, inverse,
                                        out_pairing, outs.pop(0))
        for x in (q, k)
    ]  # fmt: skip
    states = after[0] if starts is None else np.stack(after)
    return results[0], results[1], np.ascontiguousarray(states)


def _rotated(
    x: Array, cos: Array, sin: Array, layout: str, pairing: Any, rotary_start: int,
    inverse: bool, out_pairing: Any, out: Array | None,
) -> Array:  # fmt: skip
    """x rotated by tables for the heads of the steps."""
    if "h" in layout:
        times = x.shape[layout.index("h")] // max(cos.shape[-3], 1)
        cos, sin = cos.repeat(times, axis=-3), sin.repeat(times, axis=-3)
    rotation = Rotation(
        None, Tables(cos, sin), layout=layout, pairing=pairing, rotary_start=rotary_start,
        inverse=inverse, out_pairing=out_pairing,
    )  # fmt: skip
    return apply_rotary(x, *rotation, out)
