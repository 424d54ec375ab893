"""Bad calls of sinusoidal tables: each says why, and has written nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bad_calls import (
    BIG_ENDIAN,
    INF,
    NAN,
    Bad,
    T,
    V,
    assert_refused,
    expanded,
    read_only,
    shifted_out,
    steps,
    x,
)


def table_over_positions() -> tuple[Any, ...]:
    memory = np.zeros((5, 8), np.float64)
    return memory[:, 0], 8, {"out": memory}


def out_over_halves_of_positions() -> tuple[Any, ...]:
    """Each position is a float32 of the result and one beside it."""
    memory = np.zeros(80, np.float32)
    return (
        memory[:40].view(np.int64)[:20].reshape(5, 4)[:, 3],
        8,
        {"out": memory[1::2].reshape(5, 8)},
    )


def sum_over_positions() -> tuple[Any, ...]:
    memory = np.zeros((2, 5, 8), np.float64)
    return x(2, 5, 8, dtype=np.float64), memory[0, :, 0], {"out": memory}


BAD: dict[str, Bad] = {
    # --- sinusoidal: sizes
    "negative count": Bad("sinusoidal", lambda: (-3, 8), V, "positions"),
    "odd dim": Bad("sinusoidal", lambda: (3, 7), V, "dim"),
    "negative dim": Bad("sinusoidal", lambda: (3, -2), V, "dim"),
    "dim of float": Bad("sinusoidal", lambda: (3, 8.0), T, "dim"),
    "dim of bool": Bad("sinusoidal", lambda: (3, True), T, "dim"),
    "dim of None": Bad("sinusoidal", lambda: (3, None), T, "dim"),
    "dim of None at positions": Bad("sinusoidal", lambda: (np.arange(3), None), T, "dim"),
    "count beyond memory": Bad("sinusoidal", lambda: (2**62, 8), V, "positions|result"),
    "count beyond int64": Bad("sinusoidal", lambda: (2**80, 8), V, "positions|result"),
    "product overflows": Bad("sinusoidal", lambda: (2**46, 2**16), V, "positions|result"),
    "product of array overflows": Bad(
        "sinusoidal", lambda: (np.broadcast_to(np.int64(1), (2**52,)), 2**10), V, "positions|result"
    ),
    "product of axes overflows": Bad(
        "sinusoidal",
        lambda: (np.broadcast_to(np.int8(1), (2**20, 2**20, 2**19)), 64),
        V,
        "positions|result",
    ),
    # --- sinusoidal: numbers and names
    "base zero": Bad("sinusoidal", lambda: (3, 8, {"base": 0}), V, "base"),
    "base negative": Bad("sinusoidal", lambda: (3, 8, {"base": -1.0}), V, "base"),
    "base nan": Bad("sinusoidal", lambda: (3, 8, {"base": NAN}), V, "base"),
    "base inf": Bad("sinusoidal", lambda: (3, 8, {"base": INF}), V, "base"),
    "base subnormal": Bad("sinusoidal", lambda: (3, 8, {"base": 1e-320}), V, "base"),
    "base subnormal for one pair": Bad("sinusoidal", lambda: (3, 2, {"base": 1e-320}), V, "base"),
    "frequencies too far apart": Bad(
        "sinusoidal", lambda: (3, 4, {"base": 1e300, "shift": 1.5}), V, "shift"
    ),
    "dim beyond memory": Bad("sinusoidal", lambda: (3, 2**62), V, "dim|positions|result"),
    "base text": Bad("sinusoidal", lambda: (3, 8, {"base": "1e4"}), T, "base"),
    "base complex": Bad("sinusoidal", lambda: (3, 8, {"base": 1j}), T, "base"),
    "shift dim / 2": Bad("sinusoidal", lambda: (3, 8, {"shift": 4}), V, "shift"),
    "shift above": Bad("sinusoidal", lambda: (3, 8, {"shift": 100.0}), V, "shift"),
    "shift nan": Bad("sinusoidal", lambda: (3, 8, {"shift": NAN}), V, "shift"),
    "shift -inf": Bad("sinusoidal", lambda: (3, 8, {"shift": -INF}), V, "shift"),
    "shift None": Bad("sinusoidal", lambda: (3, 8, {"shift": None}), T, "shift"),
    "scale nan": Bad("sinusoidal", lambda: (3, 8, {"scale": NAN}), V, "scale"),
    "scale inf": Bad("sinusoidal", lambda: (3, 8, {"scale": INF}), V, "scale"),
    "scale True": Bad("sinusoidal", lambda: (3, 8, {"scale": True}), T, "scale"),
    "scale text": Bad("sinusoidal", lambda: (3, 8, {"scale": "2"}), T, "scale"),
    "frequencies too large": Bad("sinusoidal", lambda: (3, 8, {"scale": 1e30}), V, "scale"),
    "table layout": Bad("sinusoidal", lambda: (3, 8, {"layout": "sincos"}), V, "layout"),
    "table layout of int": Bad("sinusoidal", lambda: (3, 8, {"layout": 1}), T, "layout"),
    "table layout of None": Bad("sinusoidal", lambda: (3, 8, {"layout": None}), T, "layout"),
    "table of int32": Bad("sinusoidal", lambda: (3, 8, {"dtype": np.int32}), T, "dtype"),
    "table of complex": Bad("sinusoidal", lambda: (3, 8, {"dtype": "c8"}), T, "dtype"),
    "table of longdouble": Bad("sinusoidal", lambda: (3, 8, {"dtype": np.longdouble}), T, "dtype"),
    "table big-endian": Bad("sinusoidal", lambda: (3, 8, {"dtype": BIG_ENDIAN}), T, "dtype"),
    "table of no dtype": Bad("sinusoidal", lambda: (3, 8, {"dtype": "floaty"}), T, "dtype"),
    "table of float8": Bad(
        "sinusoidal", lambda: (3, 8, {"dtype": ml_dtypes.float8_e4m3fn}), T, "dtype"
    ),
    # --- sinusoidal: positions
    "bool count": Bad("sinusoidal", lambda: (True, 8), T, "positions"),
    "no positions": Bad("sinusoidal", lambda: (None, 8), T, "positions"),
    "text positions": Bad("sinusoidal", lambda: ("abc", 8), T, "positions"),
    "ragged positions": Bad("sinusoidal", lambda: ([[1, 2], [3]], 8), T, "positions"),
    **{
        f"positions of {dtype}": Bad(
            "sinusoidal", lambda dtype=dtype: (np.ones(3, dtype), 8), T, "positions"
        )
        for dtype in [
            *("bool", "complex64", "complex128", "float16", "bfloat16", "longdouble", "object"),
            *(">i8", ">f4", "U3", "m8[s]", "int4", "float8_e5m2"),
        ]
    },
    "nan position": Bad("sinusoidal", lambda: (np.array([1, NAN]), 8), V, "positions"),
    "inf position": Bad("sinusoidal", lambda: (np.array([1, -INF], np.float32), 8), V, "positions"),
    "position 2^63": Bad("sinusoidal", lambda: ([0, 2.0**63], 8), V, "positions"),
    "position -2^63 as a float": Bad("sinusoidal", lambda: ([0, -(2.0**63)], 8), V, "positions"),
    # --- sinusoidal: out
    "table out of other shape": Bad("sinusoidal", lambda: (3, 8, {"out": x(3, 6)}), V, "out"),
    "table out transposed": Bad("sinusoidal", lambda: (3, 8, {"out": x(8, 3)}), V, "out"),
    "table out with an axis more": Bad("sinusoidal", lambda: (3, 8, {"out": x(1, 3, 8)}), V, "out"),
    "table out of int64": Bad(
        "sinusoidal", lambda: (3, 8, {"out": x(3, 8, dtype=int)}), T, "out|dtype"
    ),
    "table out of other dtype": Bad(
        "sinusoidal", lambda: (3, 8, {"out": x(3, 8), "dtype": np.float64}), T, "out"
    ),
    "table out big-endian": Bad(
        "sinusoidal", lambda: (3, 8, {"out": x(3, 8, dtype=BIG_ENDIAN)}), T, "out|dtype"
    ),
    "table out read-only": Bad("sinusoidal", lambda: (3, 8, {"out": read_only(x(3, 8))}), V, "out"),
    "table out of stride 0": Bad(
        "sinusoidal", lambda: (3, 8, {"out": expanded(x(3, 8))}), V, "out"
    ),
    "table out is a list": Bad("sinusoidal", lambda: (3, 8, {"out": [1.0]}), T, "out"),
    "table out over positions": Bad("sinusoidal", table_over_positions, V, "out"),
    "table out over halves of positions": Bad("sinusoidal", out_over_halves_of_positions, V, "out"),
    "table out of touching windows": Bad(
        "sinusoidal",
        lambda: (5, 8, {"out": np.lib.stride_tricks.as_strided(x(36), (5, 8), (28, 4))}),
        V,
        "out",
    ),
    # --- add_sinusoidal
    "sum with a list": Bad("add_sinusoidal", lambda: ([[1.0, 2.0]],), T, "x"),
    "sum with None": Bad("add_sinusoidal", lambda: (None,), T, "x"),
    "sum of one axis": Bad("add_sinusoidal", lambda: (x(8),), V, "x"),
    "sum of odd dim": Bad("add_sinusoidal", lambda: (x(5, 7),), V, "dim"),
    "sum of int32": Bad("add_sinusoidal", lambda: (x(5, 8, dtype=np.int32),), T, "x"),
    "sum of complex": Bad("add_sinusoidal", lambda: (x(5, 8, dtype=np.complex64),), T, "x"),
    "sum of longdouble": Bad("add_sinusoidal", lambda: (x(5, 8, dtype=np.longdouble),), T, "x"),
    "sum big-endian": Bad("add_sinusoidal", lambda: (x(5, 8, dtype=BIG_ENDIAN),), T, "x"),
    "sum at too many positions": Bad(
        "add_sinusoidal", lambda: (x(2, 5, 8), steps(6)), V, "positions"
    ),
    "sum at [1, t]": Bad("add_sinusoidal", lambda: (x(2, 5, 8), steps(1, 4)), V, "positions"),
    "sum at [b, 1]": Bad("add_sinusoidal", lambda: (x(2, 5, 8), steps(2, 1)), V, "positions"),
    "sum from beyond 64 bits": Bad("add_sinusoidal", lambda: (x(2, 5, 8), 2**63), V, "positions"),
    "sum at a float": Bad("add_sinusoidal", lambda: (x(2, 5, 8), 5.0), T, "positions"),
    "a float for a count": Bad("sinusoidal", lambda: (4096.0, 8), T, "positions"),
    "a NumPy float for a count": Bad("sinusoidal", lambda: (np.float32(7.5), 8), T, "positions"),
    "sum at [s, b]": Bad("add_sinusoidal", lambda: (x(2, 5, 8), steps(5, 2)), V, "positions"),
    "sum at bool": Bad("add_sinusoidal", lambda: (x(5, 8), steps(dtype=bool)), T, "positions"),
    "sum at float16": Bad("add_sinusoidal", lambda: (x(5, 8), steps(dtype="f2")), T, "positions"),
    "sum at nan": Bad("add_sinusoidal", lambda: (x(5, 8), np.full(5, NAN)), V, "positions"),
    "sum layout": Bad("add_sinusoidal", lambda: (x(5, 8), {"layout": "bhsd"}), V, "layout"),
    "sum base subnormal": Bad("add_sinusoidal", lambda: (x(5, 8), {"base": 1e-320}), V, "base"),
    "sum base": Bad("add_sinusoidal", lambda: (x(5, 8), {"base": -2}), V, "base"),
    "sum shift": Bad("add_sinusoidal", lambda: (x(5, 8), {"shift": 4.0}), V, "shift"),
    "x_scale nan": Bad("add_sinusoidal", lambda: (x(5, 8), {"x_scale": NAN}), V, "x_scale"),
    "x_scale text": Bad("add_sinusoidal", lambda: (x(5, 8), {"x_scale": "1"}), T, "x_scale"),
    "alpha inf": Bad("add_sinusoidal", lambda: (x(5, 8), {"alpha": INF}), V, "alpha"),
    "x_scale beyond float32": Bad(
        "add_sinusoidal", lambda: (x(5, 8), {"x_scale": -1e39}), V, "x_scale"
    ),
    "alpha beyond float32": Bad("add_sinusoidal", lambda: (x(5, 8), {"alpha": 1e39}), V, "alpha"),
    "alpha complex": Bad("add_sinusoidal", lambda: (x(5, 8), {"alpha": 1j}), T, "alpha"),
    "sum out of other shape": Bad("add_sinusoidal", lambda: (x(5, 8), {"out": x(4, 8)}), V, "out"),
    "sum out of other dtype": Bad(
        "add_sinusoidal", lambda: (x(5, 8), {"out": x(5, 8, dtype=np.float64)}), T, "out"
    ),
    "sum out read-only": Bad(
        "add_sinusoidal", lambda: (x(5, 8), {"out": read_only(x(5, 8))}), V, "out"
    ),
    "sum out of stride 0": Bad(
        "add_sinusoidal", lambda: (x(5, 8), {"out": expanded(x(5, 8))}), V, "out"
    ),
    "sum out over x": Bad(
        "add_sinusoidal", lambda: ((pair := shifted_out())[0], {"out": pair[1]}), V, "out"
    ),
    "sum out over x backwards": Bad(
        "add_sinusoidal", lambda: ((a := x(5, 8)), {"out": a[::-1]}), V, "out"
    ),
    "sum out over positions": Bad("add_sinusoidal", sum_over_positions, V, "out"),
    # --- shift_matrix
    "shift by an array": Bad("shift_matrix", lambda: ([1, 2], 8), T, "offset"),
    "shift of odd dim": Bad("shift_matrix", lambda: (1, 7), V, "dim"),
    "shift by nan": Bad("shift_matrix", lambda: (NAN, 8), V, "offset"),
    "shift by text": Bad("shift_matrix", lambda: ("1", 8), T, "offset"),
    "shift layout": Bad("shift_matrix", lambda: (1, 8, {"layout": "sin"}), V, "layout"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_says_why_and_writes_nothing(backend, name):
    assert_refused(BAD[name])
