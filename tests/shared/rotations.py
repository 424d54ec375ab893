"""Rotations: how they are compared with exact ones."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from oracle import assert_close, assert_same_bits
from rotating import turned_by

from posenc_native.engines.plain import arrays as reference

AXES = ["sd", "bsd", "hsd", "bhsd", "td", "htd"]
LAYOUTS = ["".join(order) + "d" for axes in AXES for order in itertools.permutations(axes[:-1])]


def frequencies(pairs: int, dtype: str = "float64") -> np.ndarray:
    return (1e4 ** (-np.arange(pairs) / max(pairs, 1))).astype(dtype)


def double(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def magnitude(x: np.ndarray, pairs: int, layout: str, pairing: Any, start: int) -> np.ndarray:
    """|a| + |b| for both partners of a pair, |a| elsewhere."""
    tokens = x.shape[layout.index("t" if "t" in layout else "s")]
    ones = np.ones((tokens, pairs))
    either = [
        reference.apply_rotary(
            np.abs(double(x)), *turned_by(ones, ones, layout, pairing, start, inverse=inverse), None
        )
        for inverse in (False, True)
    ]
    return np.maximum(*either)


def assert_rotated(
    actual: np.ndarray,
    x: np.ndarray,
    positions: Any,
    inv_freq: np.ndarray,
    *,
    layout: str = "bhsd",
    pairing: Any = "half",
    rotary_start: int = 0,
    axis_map: Any = None,
    scale: float = 1.0,
    inverse: bool = False,
) -> None:
    assert actual.dtype == x.dtype
    exact = reference.apply_rotary(
        double(x), positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse,
        None,
    )  # fmt: skip
    terms = magnitude(x, len(inv_freq), layout, pairing, rotary_start) * abs(scale)
    assert_close(actual, exact, terms)
    rotated = slice(rotary_start, rotary_start + 2 * len(inv_freq))
    rest = np.ones(x.shape[-1], bool)
    rest[rotated] = False
    assert_same_bits(actual[..., rest], x[..., rest])


# The same bits


def interleave(x: np.ndarray) -> np.ndarray:
    """Half-split heads as interleaved ones."""
    half = x.shape[-1] // 2
    return np.stack([x[..., :half], x[..., half:]], axis=-1).reshape(x.shape)
