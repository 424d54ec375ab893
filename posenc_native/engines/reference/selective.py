"""Phases that data decide, with Python's integers."""

from __future__ import annotations

import decimal
from decimal import Decimal

import numpy as np

from posenc_native.spectra.frequencies import EXACT, TWO_PI

from .checks import Array, check_array, check_float_array, round_once
from .phases import TURN, cos_sin


def accumulated_phases(steps: Array, state: Array | None) -> Array:
    """Sums of steps [..., s, P] along s, in turns times 2^64, from a state [..., P] on."""
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
    cos, sin = cos_sin(phases.view(np.uint64))
    return round_once(cos, dtype), round_once(sin, dtype)
